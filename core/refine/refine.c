/* core/refine/refine.c: which places are tried for a point in a frame, and which one is believed.
 *
 * A point that was refined in the frame before ("followed") is first looked for where it was then, moved as
 * the tracker says that it moved: one registration at full resolution. If the patch fits there and the place
 * agrees with the tracker's, that is the result. Otherwise three places are tried from coarse to fine: the
 * tracker's, the one just named, and the one that the point's own velocity leads to. The best fit wins, the
 * first of these unless another one is better by a margin. The first patches of many points are ordered at
 * once, so that there is work while the decoder goes on to the next frame.
 *
 * Invariants. Registration is always with the query's own patch, taken once, so nothing drifts. Points are
 * independent of each other: threads share them out, each works on its own. A result is refined only if the
 * patch fits better there than at the tracker's place.
 *
 * Fails where patches cannot be cut. A refine that failed is only closed.
 */
#include "core/refine/refine.h"

#include "core/cpu/pool.h"
#include "core/refine/align.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum {
    BLOCK = 64,           /* points whose patches are held at a time where all starts are tried */
    BATCH = TT_CUT_BATCH, /* the same where they need one patch each */
    LEVELS_MAX = 5,       /* of the pyramid; the coarsest has at most two pixels a clip pixel */
    PATIENCE = 3,         /* frames that a point is followed without being seen */
    STARTS = 3,
    MARGIN_PIXELS = 12, /* from the middle of a patch, so that a window fits in */
};

#define LIKE   0.95f /* least likeness of a result */
#define BETTER 0.02f /* likeness by which a later start must be better than an earlier one */
#define AGREES 1.f   /* clip pixels between a followed point and the tracker's */
#define LIMIT  2.f   /* clip pixels that a registration may move a point by */

struct point {
    bool is_taken;      /* its templates are there and have texture */
    float x, y, vx, vy; /* of the last result, and per frame */
    float a[4];         /* of the last result */
    float was_x, was_y; /* the tracker's place in the frame before */
    int age;            /* frames since the last result; PATIENCE: not followed */
};

/* Where a point is looked for. */
struct start {
    float x, y;
    int levels; /* patches that were cut, from level 0; 0: not tried */
    int first;  /* of them */
    struct tt_cut_place place[LEVELS_MAX];
};

struct trial {
    struct start starts[STARTS];
    struct start guess; /* where the tracker's place is judged */
    bool is_done, is_quick;
    struct tt_refine_point result;
    struct tt_warp warp; /* of the result; x and y unused */
};

struct tt_refine {
    int points, width, height, levels;
    float scale; /* stored pixels a clip pixel */
    struct tt_pool *pool;
    struct point *point;           /* [points] */
    struct tt_template *templates; /* [points][levels] */
    struct tt_cut_place *places;   /* [BLOCK × (STARTS + 1) × levels], at least BATCH */
    uint8_t *patches;
    int cuts;
    struct trial trials[BATCH];
    int first, count; /* of the points that are worked on */
    const struct tt_refine_guess *guesses;
};

enum tt_status tt_refine_open(struct tt_refine **refine, int points, int width, int height, int threads,
                              struct tt_error *err)
{
    struct tt_refine *r = calloc(1, sizeof *r);
    size_t cuts;
    enum tt_status status = TT_OK;

    if (!r)
        return tt_fail(err, TT_RETRY_LATER, "no memory to refine tracks");
    r->points = points;
    r->width = width;
    r->height = height;
    r->scale = fmaxf((float)(width > height ? width : height) / TT_CLIP_SIZE, 1);
    for (r->levels = 1; r->levels < LEVELS_MAX && r->scale >= (float)(2 << r->levels);)
        r->levels++;
    cuts = (size_t)BLOCK * (STARTS + 1) * (size_t)r->levels;
    r->point = calloc((size_t)points, sizeof *r->point);
    r->templates = malloc((size_t)points * (size_t)r->levels * sizeof *r->templates);
    r->places = malloc(cuts * sizeof *r->places);
    r->patches = malloc(cuts * TT_CUT_BYTES);
    if (!r->point || !r->templates || !r->places || !r->patches)
        status = tt_fail(err, TT_RETRY_LATER, "no memory to refine %d tracks", points);
    if (!status)
        status = tt_pool_create(&r->pool, threads, err);
    if (status) {
        tt_refine_close(r);
        return status;
    }
    for (int i = 0; i < points; i++)
        r->point[i] = (struct point){.age = PATIENCE, .a = {1, 0, 0, 1}};
    *refine = r;
    return TT_OK;
}

void tt_refine_close(struct tt_refine *r)
{
    if (!r)
        return;
    if (r->pool)
        tt_pool_destroy(r->pool);
    free(r->point);
    free(r->templates);
    free(r->places);
    free(r->patches);
    free(r);
}

/* --- patches --- */

/* Takes up to `most` points from `first` on to work on; first: a multiple of BLOCK. */
static void take_points(struct tt_refine *r, int first, int most)
{
    r->first = first;
    r->count = r->points - first < most ? r->points - first : most;
}

static struct trial *trial_of(struct tt_refine *r, int number)
{
    return &r->trials[r->first % BATCH + number];
}

/* A position in the pixels of a level, whole numbers at their centres. */
static float to_level(float position, int level)
{
    return ldexpf(position, -level) - 0.5f;
}

static float from_level(float position, int level)
{
    return ldexpf(position + 0.5f, level);
}

/* Puts the patches around a place on the list, if it lies within the picture. */
static void order(struct tt_refine *r, struct start *start, float x, float y, int levels)
{
    *start = (struct start){.x = x, .y = y};
    if (!(x >= 0 && y >= 0 && x < (float)r->width && y < (float)r->height))
        return;
    start->first = r->cuts;
    start->levels = levels;
    for (int l = 0; l < levels; l++) {
        struct tt_cut_place place = {(int32_t)floorf(to_level(x, l)) - TT_CUT_SIZE / 2 + 1,
                                     (int32_t)floorf(to_level(y, l)) - TT_CUT_SIZE / 2 + 1, l};

        start->place[l] = r->places[r->cuts++] = place;
    }
}

static const uint8_t *patch(const struct tt_refine *r, const struct start *start, int level)
{
    return r->patches + (size_t)(start->first + level) * TT_CUT_BYTES;
}

/* A place in the pixels of one of a start's patches. */
static void place_warp(const struct start *start, int level, float x, float y, struct tt_warp *warp)
{
    warp->x = to_level(x, level) - (float)start->place[level].x;
    warp->y = to_level(y, level) - (float)start->place[level].y;
}

static void find_place(const struct start *start, int level, const struct tt_warp *warp, float *x, float *y)
{
    *x = from_level(warp->x + (float)start->place[level].x, level);
    *y = from_level(warp->y + (float)start->place[level].y, level);
}

static struct tt_template *templates(const struct tt_refine *r, int point)
{
    return r->templates + (size_t)point * (size_t)r->levels;
}

/* Cuts what is on the list and lets the pool work on the block. */
static enum tt_status cut_and_run(struct tt_refine *r, void (*job)(void *, int, int), tt_refine_cut *cut,
                                  void *user, struct tt_error *err)
{
    enum tt_status status = r->cuts ? cut(user, r->places, r->cuts, r->patches, err) : TT_OK;

    if (!status && r->cuts)
        tt_pool_run(r->pool, r->count, job, r);
    r->cuts = 0;
    return status;
}

/* --- templates --- */

static void take(void *context, int number, int worker)
{
    struct tt_refine *r = context;
    const struct start *start = &trial_of(r, number)->guess;
    struct tt_image image;
    struct tt_warp at;

    (void)worker;
    for (int l = 0; l < start->levels; l++) {
        tt_align_smooth(patch(r, start, l), &image);
        place_warp(start, l, start->x, start->y, &at);
        tt_template_take(templates(r, r->first + number) + l, &image, at.x, at.y, l == 0);
    }
    if (start->levels > 0)
        r->point[r->first + number].is_taken = templates(r, r->first + number)->is_textured;
}

enum tt_status tt_refine_sample(struct tt_refine *r, const struct tt_refine_guess *guesses,
                                tt_refine_cut *cut, void *user, struct tt_error *err)
{
    enum tt_status status = TT_OK;

    for (int first = 0; !status && first < r->points; first += BLOCK) {
        take_points(r, first, BLOCK);
        for (int i = 0; i < r->count; i++) {
            const struct tt_refine_guess *guess = &guesses[r->first + i];

            trial_of(r, i)->guess.levels = 0;
            if (guess->is_query)
                order(r, &trial_of(r, i)->guess, guess->x, guess->y, r->levels);
        }
        status = cut_and_run(r, take, cut, user, err);
    }
    return status;
}

/* --- following --- */

/* How well the query's patch, as it looked last, fits at a place; -1 where that is not within the patch. */
static float judge(const struct tt_refine *r, int point, const struct start *start,
                   const struct tt_image *image, float x, float y)
{
    struct tt_warp warp;

    memcpy(warp.a, r->point[point].a, sizeof warp.a);
    place_warp(start, 0, x, y, &warp);
    if (fabsf(warp.x - TT_CUT_SIZE / 2) > MARGIN_PIXELS || fabsf(warp.y - TT_CUT_SIZE / 2) > MARGIN_PIXELS)
        return -1;
    return tt_align_likeness(templates(r, point), image, &warp);
}

/* Registers from coarse to fine. *warp: the result's shape, *likeness: how well it fits. image: out, of
 * level 0. */
static bool search(const struct tt_refine *r, int point, const struct start *start, struct tt_image *image,
                   struct tt_refine_point *found, struct tt_warp *warp, float *likeness)
{
    float x = start->x, y = start->y;

    for (int l = start->levels - 1; l >= 0; l--) {
        memcpy(warp->a, r->point[point].a, sizeof warp->a);
        tt_align_smooth(patch(r, start, l), image);
        place_warp(start, l, x, y, warp);
        if (l > 0 && !templates(r, point)[l].is_textured)
            continue;
        if (!tt_align(templates(r, point) + l, image, warp))
            return false;
        find_place(start, l, warp, &x, &y);
    }
    if (hypotf(x - start->x, y - start->y) > LIMIT * r->scale)
        return false;
    *likeness = tt_align_likeness(templates(r, point), image, warp);
    *found = (struct tt_refine_point){x, y, true};
    return *likeness >= LIKE;
}

static void try_quickly(void *context, int number, int worker)
{
    struct tt_refine *r = context;
    struct trial *trial = trial_of(r, number);
    const struct start *start = &trial->starts[0];
    const struct tt_refine_guess *guess = &r->guesses[r->first + number];
    struct tt_image image;
    float likeness, before;

    (void)worker;
    if (!trial->is_quick || start->levels == 0 ||
        !search(r, r->first + number, start, &image, &trial->result, &trial->warp, &likeness))
        return;
    before = judge(r, r->first + number, start, &image, guess->x, guess->y);
    trial->is_done = before > -1 && likeness > before &&
                     hypotf(trial->result.x - guess->x, trial->result.y - guess->y) <= AGREES * r->scale;
}

static void try_all(void *context, int number, int worker)
{
    struct tt_refine *r = context;
    struct trial *trial = trial_of(r, number);
    const struct tt_refine_guess *guess = &r->guesses[r->first + number];
    struct tt_image image;
    float best = 0, before = -1;

    (void)worker;
    if (trial->is_done || !r->point[r->first + number].is_taken)
        return;
    if (trial->guess.levels > 0) {
        tt_align_smooth(patch(r, &trial->guess, 0), &image);
        before = judge(r, r->first + number, &trial->guess, &image, guess->x, guess->y);
    }
    for (int s = 0; s < STARTS; s++) {
        struct tt_refine_point found;
        struct tt_warp warp;
        float likeness;

        if (trial->starts[s].levels == 0 ||
            !search(r, r->first + number, &trial->starts[s], &image, &found, &warp, &likeness) ||
            likeness <= before || (trial->is_done && likeness <= best + BETTER))
            continue;
        trial->is_done = true;
        trial->result = found;
        trial->warp = warp;
        best = likeness;
    }
}

static bool is_followed(const struct point *point)
{
    return point->age < PATIENCE;
}

static void order_quick(struct tt_refine *r, int number)
{
    const struct point *p = &r->point[r->first + number];
    const struct tt_refine_guess *guess = &r->guesses[r->first + number];
    struct trial *trial = trial_of(r, number);

    *trial = (struct trial){.is_quick = p->is_taken && !guess->is_query && guess->is_visible && p->age == 0};
    if (trial->is_quick)
        order(r, &trial->starts[0], p->x + guess->x - p->was_x, p->y + guess->y - p->was_y, 1);
}

static void order_all(struct tt_refine *r, int number)
{
    const struct point *p = &r->point[r->first + number];
    const struct tt_refine_guess *guess = &r->guesses[r->first + number];
    struct trial *trial = trial_of(r, number);
    float frames = (float)(p->age + 1);

    if (trial->is_done)
        return;
    for (int s = 0; s < STARTS; s++)
        trial->starts[s].levels = 0;
    trial->guess.levels = 0;
    if (!p->is_taken || guess->is_query || !(guess->is_visible || is_followed(p)))
        return;
    order(r, &trial->guess, guess->x, guess->y, guess->is_visible ? r->levels : 1);
    if (guess->is_visible)
        trial->starts[0] = trial->guess;
    if (is_followed(p)) {
        order(r, &trial->starts[1], p->x + guess->x - p->was_x, p->y + guess->y - p->was_y, r->levels);
        order(r, &trial->starts[2], p->x + p->vx * frames, p->y + p->vy * frames, r->levels);
    }
}

/* Takes the result over into the point's state. */
static struct tt_refine_point settle(struct tt_refine *r, int number)
{
    struct point *p = &r->point[r->first + number];
    const struct tt_refine_guess *guess = &r->guesses[r->first + number];
    struct trial *trial = trial_of(r, number);
    float frames = (float)(p->age + 1);

    p->was_x = guess->x;
    p->was_y = guess->y;
    if (guess->is_query) {
        *p = (struct point){.is_taken = p->is_taken,
                            .x = guess->x,
                            .y = guess->y,
                            .a = {1, 0, 0, 1},
                            .was_x = guess->x,
                            .was_y = guess->y};
    } else if (trial->is_done) {
        p->vx = is_followed(p) ? (trial->result.x - p->x) / frames : 0;
        p->vy = is_followed(p) ? (trial->result.y - p->y) / frames : 0;
        p->x = trial->result.x;
        p->y = trial->result.y;
        memcpy(p->a, trial->warp.a, sizeof p->a);
        p->age = 0;
        return trial->result;
    } else if (is_followed(p)) {
        p->age++;
    }
    return (struct tt_refine_point){guess->x, guess->y, false};
}

/* Those of a batch that were not found quickly. */
static enum tt_status follow_block(struct tt_refine *r, tt_refine_cut *cut, void *user,
                                   struct tt_refine_point *result, struct tt_error *err)
{
    enum tt_status status;

    for (int i = 0; i < r->count; i++)
        order_all(r, i);
    status = cut_and_run(r, try_all, cut, user, err);
    for (int i = 0; !status && i < r->count; i++)
        result[r->first + i] = settle(r, i);
    return status;
}

enum tt_status tt_refine_follow(struct tt_refine *r, const struct tt_refine_guess *guesses,
                                tt_refine_cut *cut, void *user, struct tt_refine_point *result,
                                struct tt_error *err)
{
    enum tt_status status = TT_OK;

    r->guesses = guesses;
    for (int batch = 0; !status && batch < r->points; batch += BATCH) {
        take_points(r, batch, BATCH);
        for (int i = 0; i < r->count; i++)
            order_quick(r, i);
        status = cut_and_run(r, try_quickly, cut, user, err);
        for (int first = batch; !status && first < batch + BATCH && first < r->points; first += BLOCK) {
            take_points(r, first, BLOCK);
            status = follow_block(r, cut, user, result, err);
        }
    }
    return status;
}

/* core/seam.c: a second try within a window for the tracks that it loses.
 *
 * Invariants: results change only after the backend's last call has succeeded. Candidates stand one behind
 * the other in arrays of a block's size, in the order of their queries, so the same block gives the same
 * request.
 *
 * Fails: no memory at open; the backend's failures.
 */
#include "core/seam.h"

#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

struct tt_seam {
    const struct tt_backend_ops *ops;
    struct tt_backend *backend;
    void *supports;                   /* [block] × support_bytes */
    int *query, *anchor;              /* [block] of each candidate */
    int *end;                         /* [block] rule 7: where the row is sure again, or the frames */
    bool *left;                       /* [block] rule 2 */
    float *xy;                        /* [block][2] */
    struct tt_estimate *init, *again; /* [block][TT_CLIP_FRAMES] */
};

enum tt_status tt_seam_open(struct tt_seam **seam, const struct tt_backend_ops *ops,
                            struct tt_backend *backend, int block, struct tt_error *err)
{
    struct tt_seam *made = calloc(1, sizeof *made);
    size_t count = (size_t)block;

    if (made) {
        *made = (struct tt_seam){.ops = ops, .backend = backend};
        made->supports = malloc(count * ops->support_bytes);
        made->query = malloc(count * sizeof *made->query);
        made->anchor = malloc(count * sizeof *made->anchor);
        made->end = malloc(count * sizeof *made->end);
        made->left = malloc(count * sizeof *made->left);
        made->xy = malloc(count * 2 * sizeof *made->xy);
        made->init = malloc(count * TT_CLIP_FRAMES * sizeof *made->init);
        made->again = malloc(count * TT_CLIP_FRAMES * sizeof *made->again);
    }
    if (!made || !made->supports || !made->query || !made->anchor || !made->end || !made->left || !made->xy ||
        !made->init || !made->again) {
        tt_seam_close(made);
        return tt_fail_errno(err, TT_RETRY_LATER, ENOMEM, "second tries of %d tracks", block);
    }
    *seam = made;
    return TT_OK;
}

void tt_seam_close(struct tt_seam *seam)
{
    if (!seam)
        return;
    free(seam->supports);
    free(seam->query);
    free(seam->anchor);
    free(seam->end);
    free(seam->left);
    free(seam->xy);
    free(seam->init);
    free(seam->again);
    free(seam);
}

static double confidence(const struct tt_estimate *e)
{
    return 1 / ((1 + exp((double)e->occlusion)) * (1 + exp((double)e->expected_dist)));
}

static double mean_confidence(const struct tt_estimate *row, int frames)
{
    double sum = 0;

    for (int t = 0; t < frames; t++)
        sum += confidence(row + t);
    return sum / frames;
}

static bool is_sure(const struct tt_estimate *e)
{
    return confidence(e) > TT_SEAM_SURE;
}

static bool is_within(float position)
{
    return position > TT_SEAM_BORDER && position < TT_CLIP_SIZE - TT_SEAM_BORDER;
}

/* The latest anchor not before frame `from`; -1: none. */
static int find_anchor(const struct tt_estimate *row, int frames, int from)
{
    int steady = 0; /* sure frames in a row, from the end */

    for (int t = frames - 1; t >= 0; t--) {
        int middle = t + TT_SEAM_STEADY;

        steady = is_sure(row + t) ? steady + 1 : 0;
        if (steady > 2 * TT_SEAM_STEADY && middle >= from && is_within(row[middle].x) &&
            is_within(row[middle].y))
            return middle;
    }
    return -1;
}

static bool is_in_sight(const struct tt_estimate *row, int frames)
{
    for (int t = 0; t < frames; t++)
        if (!(confidence(row + t) > 0.5))
            return false;
    return true;
}

/* Rule 7: the dip, between two steady stretches, that the row is least sure of, in the sum. Returns the
 * anchor before it, not before frame `from`, or -1: none; *end: out, where the next steady one begins. */
static int find_gap(const struct tt_estimate *row, int frames, int from, int *end)
{
    int anchor = -1, last = -1, steady = 0; /* last: frame of a steady stretch */
    double most = 0;

    for (int t = 0; t < frames; t++) {
        const int start = t - 2 * TT_SEAM_STEADY, middle = last - TT_SEAM_STEADY, gap = start - last - 1;

        steady = is_sure(row + t) ? steady + 1 : 0;
        if (steady == 2 * TT_SEAM_STEADY + 1 && last >= 0) {
            const double mean = mean_confidence(row + last + 1, gap);

            if (is_in_sight(row + last + 1, gap) && mean <= TT_SEAM_SURE && gap * (1 - mean) > most &&
                middle >= from && is_within(row[middle].x) && is_within(row[middle].y)) {
                most = gap * (1 - mean);
                anchor = middle;
                *end = start;
            }
        }
        if (steady > 2 * TT_SEAM_STEADY)
            last = t;
    }
    return anchor;
}

/* The window's row: the result, or what is known where that is more confident. */
static void join(struct tt_estimate *row, const struct tt_estimate *known, const struct tt_estimate *result,
                 int frames, int overlap)
{
    memcpy(row, result, (size_t)frames * sizeof *row);
    for (int t = 0; t < overlap; t++)
        if (confidence(known + t) > confidence(row + t))
            row[t] = known[t];
}

static double distance(const struct tt_estimate *a, const struct tt_estimate *b)
{
    return hypot((double)a->x - (double)b->x, (double)a->y - (double)b->y);
}

/* Rule 2: the result is not where the stitched track is and is sure to be. */
static bool is_left(const struct tt_estimate *known, const struct tt_estimate *result, int overlap)
{
    int sure = 0, left = 0;

    for (int t = 0; t < overlap; t++) {
        if (!is_sure(known + t))
            continue;
        sure++;
        left += confidence(result + t) < 0.5 || !(distance(known + t, result + t) <= TT_SEAM_REACH);
    }
    return 2 * sure > overlap && 2 * left > sure;
}

/* Rules 1 to 4 and 7 for one query: the anchor, or -1 where it needs none or has none. row: out, [frames];
 * *end: out, behind the frames that are tracked again. */
static int examine(const struct tt_seam_block *block, int q, const struct tt_estimate *result,
                   struct tt_estimate *row, int *end, bool *left)
{
    const struct tt_estimate *known = block->known + (size_t)q * (size_t)block->frames;
    const int from = block->place[q] < 0 ? 0 : block->place[q];
    int anchor, behind;

    *end = block->frames;
    *left = block->unbroken[q] && is_left(known, result, block->overlap);
    join(row, known, result, block->frames, block->overlap);
    anchor = find_anchor(row, *left ? block->overlap : block->frames, from);
    behind = anchor + TT_SEAM_STEADY + 1;
    if (anchor >= 0 && behind < block->frames &&
        (*left || mean_confidence(row + behind, block->frames - behind) <= TT_SEAM_SURE))
        return anchor;
    return *left ? -1 : find_gap(row, block->frames, from, end);
}

/* Gathers the queries that are to be tracked again; returns how many. */
static int gather(struct tt_seam *seam, const struct tt_seam_block *block, const struct tt_estimate *result)
{
    const size_t frames = (size_t)block->frames;
    int count = 0;

    for (int q = 0; q < block->queries; q++) {
        struct tt_estimate *row = seam->init + (size_t)count * frames;
        int anchor =
            examine(block, q, result + (size_t)q * frames, row, &seam->end[count], &seam->left[count]);

        if (anchor < 0)
            continue;
        seam->query[count] = q;
        seam->anchor[count] = anchor;
        seam->xy[2 * count] = row[anchor].x;
        seam->xy[2 * count + 1] = row[anchor].y;
        for (int t = 0; t < block->frames; t++)
            if (t > anchor + TT_SEAM_STEADY || !(confidence(row + t) > 0.5))
                row[t] = (struct tt_estimate){.x = NAN, .y = NAN};
        count++;
    }
    return count;
}

static float mix(float before, float behind, float share)
{
    return before + share * (behind - before);
}

/* Whether the row is sure of the point from its query to the frame before `behind`. */
static bool is_chain(const struct tt_seam_block *block, int q, const struct tt_estimate *row, int behind)
{
    const int from = block->place[q] < 0 ? 0 : block->place[q];

    return (block->place[q] >= 0 || block->unbroken[q]) && is_in_sight(row + from, behind - from);
}

/* Rule 6: the row is sure of the point elsewhere, where no chain of sure frames leads to the second try. */
static bool is_return(const struct tt_estimate *row, const struct tt_estimate *again, int frames, int behind,
                      bool chain)
{
    int sure = 0, elsewhere = 0;

    for (int t = behind; t < frames; t++) {
        chain = chain && confidence(again + t) > 0.5;
        if (!is_sure(row + t))
            continue;
        sure++;
        elsewhere += !chain && !(distance(row + t, again + t) <= TT_SEAM_REACH);
    }
    return 2 * elsewhere > sure;
}

static bool agree(const struct tt_estimate *row, const struct tt_estimate *again, int from, int to,
                  double reach)
{
    for (int t = from; t < to; t++)
        if (!(distance(row + t, again + t) < reach))
            return false;
    return true;
}

/* Cross-fades a steady stretch: into the second try, or out of it. */
static void fade(struct tt_estimate *row, const struct tt_estimate *again, bool out)
{
    enum { STRETCH = 2 * TT_SEAM_STEADY + 1 };

    for (int t = 0; t < STRETCH; t++) {
        const float share = (float)(out ? STRETCH - t : t + 1) / (float)(STRETCH + 1);

        row[t] = (struct tt_estimate){mix(row[t].x, again[t].x, share), mix(row[t].y, again[t].y, share),
                                      mix(row[t].occlusion, again[t].occlusion, share),
                                      mix(row[t].expected_dist, again[t].expected_dist, share)};
    }
}

/* Rules 5 to 7: the second try in place of the row's end, or up to frame `end`, if it is better. chain: up to
 * the anchor and its neighbours. */
static bool take_over(struct tt_estimate *row, const struct tt_estimate *again, int frames, int anchor,
                      int end, bool left, bool chain)
{
    const int first = anchor - TT_SEAM_STEADY, behind = anchor + TT_SEAM_STEADY + 1, rest = end - behind;
    const double least = mean_confidence(row + behind, rest) + (left ? -TT_SEAM_LOSS : TT_SEAM_GAIN);

    if (!agree(row, again, first, behind, TT_SEAM_REACH) ||
        (end < frames && !agree(row, again, end, end + 2 * TT_SEAM_STEADY + 1, TT_SEAM_ARRIVAL)))
        return false;
    if (!(mean_confidence(again + behind, rest) >= least) || is_return(row, again, end, behind, chain))
        return false;
    fade(row + first, again + first, false);
    memcpy(row + behind, again + behind, (size_t)rest * sizeof *row);
    if (end < frames)
        fade(row + end, again + end, true);
    return true;
}

enum tt_status tt_seam_hold(struct tt_seam *seam, const struct tt_seam_block *block,
                            struct tt_estimate *result, struct tt_error *err)
{
    const size_t frames = (size_t)block->frames;
    struct tt_track_request request = {.queries = gather(seam, block, result),
                                       .supports = seam->supports,
                                       .query_frame = seam->anchor,
                                       .query_xy = seam->xy,
                                       .init = seam->init};
    struct tt_estimate row[TT_CLIP_FRAMES];
    enum tt_status status;

    if (request.queries == 0)
        return TT_OK;
    status = seam->ops->sample(seam->backend, request.queries, seam->anchor, seam->xy, seam->supports, err);
    if (!status)
        status = seam->ops->track(seam->backend, &request, seam->again, err);
    if (status)
        return status;
    for (int i = 0; i < request.queries; i++) {
        const int q = seam->query[i], anchor = seam->anchor[i];
        const size_t at = (size_t)q * frames;
        bool chain;

        join(row, block->known + at, result + at, block->frames, block->overlap);
        chain = is_chain(block, q, row, anchor + TT_SEAM_STEADY + 1);
        if (take_over(row, seam->again + (size_t)i * frames, block->frames, anchor, seam->end[i],
                      seam->left[i], chain))
            memcpy(result + at, row, frames * sizeof *row);
    }
    return TT_OK;
}

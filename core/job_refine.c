/* core/job_refine.c: the last pass of a job that shall be refined: the video is decoded once more, the
 * tracker's estimates and the frames as they are stored go to core/refine, what comes back goes to a nameless
 * file.
 *
 * Invariants. The stitch (and so a checkpoint) is not touched: an interrupted refinement is begun again and
 * gives the same bits. Either all frames of the video were refined or none: where the second reading gives
 * other frames than the first, or the file was changed, everything stays as the tracker left it and a warning
 * says so. Memory: a tile of frames for each point, whatever the video's length.
 */
#include "core/job_parts.h"

#include "core/fsio.h"
#include "core/refine/refine.h"

#include <errno.h>
#include <math.h>
#include <sched.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { TILE = 32, THREADS_MAX = 16, SCRATCH = 4096 };

/* Refined positions, clip pixels. x is NaN where there is none. */
struct spot {
    float x, y;
};

/* Refined positions lie in tiles [queries][TILE frames], the last of them shorter. */
struct tt_refined {
    int fd;
    int64_t frames;
    int64_t refined, visible; /* of all point-frames */
    int64_t other_size;       /* frames that were left alone because of their size */
};

struct pass {
    struct tt_run *run;
    struct tt_decoder *decoder;
    struct tt_refine *refine;
    int queries;
    struct tt_estimate *estimates; /* [queries][TILE] */
    struct spot *spots;            /* [queries][TILE] */
    double times[TILE];
    struct tt_refine_guess *guesses;
    struct tt_refine_point *points;
};

/* --- where a position of the clip lies in the frame as it is stored, and back --- */

static void to_stored(const struct tt_video_info *info, float x, float y, float *column, float *row)
{
    float u = x / TT_CLIP_SIZE, v = y / TT_CLIP_SIZE, s, t;

    if (info->mirrored)
        u = 1 - u;
    switch (info->rotation) {
    case 90:
        s = v, t = 1 - u;
        break;
    case 180:
        s = 1 - u, t = 1 - v;
        break;
    case 270:
        s = 1 - v, t = u;
        break;
    default:
        s = u, t = v;
    }
    *column = s * (float)info->coded_width;
    *row = t * (float)info->coded_height;
}

static void from_stored(const struct tt_video_info *info, float column, float row, float *x, float *y)
{
    float s = column / (float)info->coded_width, t = row / (float)info->coded_height, u, v;

    switch (info->rotation) {
    case 90:
        u = 1 - t, v = s;
        break;
    case 180:
        u = 1 - s, v = 1 - t;
        break;
    case 270:
        u = t, v = 1 - s;
        break;
    default:
        u = s, v = t;
    }
    if (info->mirrored)
        u = 1 - u;
    *x = u * TT_CLIP_SIZE;
    *y = v * TT_CLIP_SIZE;
}

/* --- the results --- */

static int tile_frames(const struct tt_refined *refined, int64_t first)
{
    return refined->frames - first < TILE ? (int)(refined->frames - first) : TILE;
}

static int64_t spot_offset(const struct tt_run *run, int64_t first, int frames, int query)
{
    return (first * run->queries.count + (int64_t)query * frames) * (int64_t)sizeof(struct spot);
}

/* Calls `take` for every refined position of a block; place: in rows [queries][frames]. */
static enum tt_status read_spots(const struct tt_run *run, int first_query, int queries, int64_t first_frame,
                                 int frames, void (*take)(void *rows, size_t place, const struct spot *spot),
                                 void *rows, struct tt_error *err)
{
    const struct tt_refined *refined = run->refined;
    struct spot spots[TILE];
    int64_t end = first_frame + frames;

    for (int q = 0; q < queries; q++)
        for (int64_t tile = first_frame / TILE * TILE; tile < end; tile += TILE) {
            int count = tile_frames(refined, tile);
            enum tt_status status =
                tt_read_at(refined->fd, spots, (size_t)count * sizeof *spots,
                           spot_offset(run, tile, count, first_query + q), "refined tracks", err);

            if (status)
                return status;
            for (int i = 0; i < count; i++) {
                int64_t at = tile + i - first_frame;

                if (at >= 0 && at < frames && !isnan(spots[i].x))
                    take(rows, (size_t)q * (size_t)frames + (size_t)at, &spots[i]);
            }
        }
    return TT_OK;
}

static void take_position(void *rows, size_t place, const struct spot *spot)
{
    struct tt_estimate *estimate = (struct tt_estimate *)rows + place;

    estimate->x = spot->x;
    estimate->y = spot->y;
}

static void take_mark(void *rows, size_t place, const struct spot *spot)
{
    (void)spot;
    ((bool *)rows)[place] = true;
}

static enum tt_status refined_rows(void *user, int first_query, int queries, int64_t first_frame, int frames,
                                   struct tt_estimate *rows, struct tt_error *err)
{
    struct tt_run *run = user;
    enum tt_status status = tt_stitch_read(run->stitch, first_query, queries, first_frame, frames, rows, err);

    return status ? status
                  : read_spots(run, first_query, queries, first_frame, frames, take_position, rows, err);
}

static enum tt_status refined_marks(void *user, int first_query, int queries, int64_t first_frame, int frames,
                                    bool *refined, struct tt_error *err)
{
    memset(refined, 0, (size_t)queries * (size_t)frames * sizeof *refined);
    return read_spots(user, first_query, queries, first_frame, frames, take_mark, refined, err);
}

static enum tt_status refined_times(void *user, int64_t first_frame, int frames, double *time_s,
                                    struct tt_error *err)
{
    struct tt_run *run = user;

    return tt_stitch_times(run->stitch, first_frame, frames, time_s, err);
}

struct tt_track_source tt_run_source(struct tt_run *run)
{
    if (!run->refined)
        return tt_tracks_from_stitch(run->stitch);
    return (struct tt_track_source){
        .user = run, .rows = refined_rows, .times = refined_times, .refined = refined_marks};
}

void tt_run_refined_counts(const struct tt_run *run, int64_t *refined, int64_t *visible)
{
    *refined = run->refined ? run->refined->refined : 0;
    *visible = run->refined ? run->refined->visible : 0;
}

void tt_run_refined_free(struct tt_run *run)
{
    if (!run->refined)
        return;
    if (run->refined->fd >= 0)
        close(run->refined->fd);
    free(run->refined);
    run->refined = NULL;
}

/* --- the pass --- */

static enum tt_status cut(void *user, const struct tt_cut_place *places, int count, uint8_t *patches,
                          struct tt_error *err)
{
    return tt_decoder_cut(user, places, count, patches, err);
}

static bool is_visible(const struct tt_run *run, const struct tt_estimate *estimate)
{
    float confidence = 1 / (1 + expf(estimate->occlusion)) / (1 + expf(estimate->expected_dist));

    return !(1 - confidence > run->job->occlusion_threshold);
}

/* The next frame, which must be as it was when the video was tracked; *same: whether it is. */
static enum tt_status next_picture(struct pass *pass, int64_t frame, double time_s, bool *is_same,
                                   bool *has_size, struct tt_error *err)
{
    const struct tt_video_info *info = &pass->run->info;
    struct tt_picture picture;
    bool got;
    enum tt_status status = tt_run_go_on(pass->run, TT_JOB_REFINING, frame, err);

    if (!status)
        status = tt_decoder_next(pass->decoder, &picture, &got, err);
    if (status)
        return status;
    *is_same = got && (isnan(time_s) || picture.time_s == time_s);
    *has_size = got && picture.width == info->coded_width && picture.height == info->coded_height;
    return TT_OK;
}

static enum tt_status reopen(struct pass *pass, bool *is_same, struct tt_error *err)
{
    const struct tt_video_info *info = &pass->run->info, *again;
    enum tt_status status;

    tt_decoder_close(pass->decoder);
    pass->decoder = NULL;
    status = tt_decoder_open_patches(&pass->decoder, pass->run->video_fd, &pass->run->job->decoder, err);
    if (status)
        return status;
    again = tt_decoder_info(pass->decoder);
    *is_same = again->width == info->width && again->height == info->height &&
               again->coded_width == info->coded_width && again->coded_height == info->coded_height &&
               again->rotation == info->rotation && again->mirrored == info->mirrored;
    return TT_OK;
}

/* Decodes up to the last query point's frame and takes the points' patches. */
static enum tt_status sample_queries(struct pass *pass, bool *is_same, struct tt_error *err)
{
    const struct tt_run *run = pass->run;
    int64_t last = tt_queries_last_frame(&run->queries);
    enum tt_status status = TT_OK;

    for (int64_t frame = 0; !status && *is_same && frame <= last; frame++) {
        bool has_size = false, is_wanted = false;

        status = next_picture(pass, 0, NAN, is_same, &has_size, err);
        for (int q = 0; q < pass->queries; q++) {
            struct tt_refine_guess *guess = &pass->guesses[q];

            guess->is_query = run->queries.points[q].frame == frame;
            is_wanted |= guess->is_query;
            to_stored(&run->info, run->query_xy[2 * q], run->query_xy[2 * q + 1], &guess->x, &guess->y);
        }
        if (!status && *is_same && has_size && is_wanted)
            status = tt_refine_sample(pass->refine, pass->guesses, cut, pass->decoder, err);
    }
    return status;
}

/* Refines one frame: column `i` of the tile. */
static enum tt_status refine_frame(struct pass *pass, int64_t frame, int i, int frames, struct tt_error *err)
{
    struct tt_run *run = pass->run;
    enum tt_status status;

    for (int q = 0; q < pass->queries; q++) {
        const struct tt_estimate *estimate = &pass->estimates[(size_t)q * frames + i];
        struct tt_refine_guess *guess = &pass->guesses[q];
        bool is_query = run->queries.points[q].frame == frame;

        guess->is_query = is_query;
        guess->is_visible = is_visible(run, estimate);
        to_stored(&run->info, is_query ? run->query_xy[2 * q] : estimate->x,
                  is_query ? run->query_xy[2 * q + 1] : estimate->y, &guess->x, &guess->y);
        run->refined->visible += guess->is_visible;
    }
    status = tt_refine_follow(pass->refine, pass->guesses, cut, pass->decoder, pass->points, err);
    for (int q = 0; !status && q < pass->queries; q++) {
        struct spot *spot = &pass->spots[(size_t)q * frames + i];

        if (!pass->points[q].is_refined)
            continue;
        from_stored(&run->info, pass->points[q].x, pass->points[q].y, &spot->x, &spot->y);
        run->refined->refined++;
    }
    return status;
}

static enum tt_status refine_tile(struct pass *pass, int64_t first, bool *is_same, struct tt_error *err)
{
    struct tt_run *run = pass->run;
    int frames = tile_frames(run->refined, first);
    enum tt_status status =
        tt_stitch_read(run->stitch, 0, pass->queries, first, frames, pass->estimates, err);

    if (!status)
        status = tt_stitch_times(run->stitch, first, frames, pass->times, err);
    for (size_t i = 0; i < (size_t)pass->queries * (size_t)frames; i++)
        pass->spots[i] = (struct spot){NAN, NAN};
    for (int i = 0; !status && *is_same && i < frames; i++) {
        bool has_size = false;

        status = next_picture(pass, first + i, pass->times[i], is_same, &has_size, err);
        if (!status && *is_same && has_size)
            status = refine_frame(pass, first + i, i, frames, err);
        else if (!status && *is_same)
            run->refined->other_size++;
    }
    if (!status && *is_same)
        status = tt_write_at(run->refined->fd, pass->spots,
                             (size_t)pass->queries * (size_t)frames * sizeof *pass->spots,
                             spot_offset(run, first, frames, 0), "refined tracks", err);
    return status;
}

static enum tt_status run_pass(struct pass *pass, bool *is_same, struct tt_error *err)
{
    const struct tt_run *run = pass->run;
    enum tt_status status = reopen(pass, is_same, err);

    if (!status && *is_same)
        status = sample_queries(pass, is_same, err);
    if (!status && *is_same)
        status = reopen(pass, is_same, err);
    for (int64_t first = 0; !status && *is_same && first < run->refined->frames; first += TILE)
        status = refine_tile(pass, first, is_same, err);
    if (!status && *is_same && (!run->job->max_frames || run->refined->frames < run->job->max_frames)) {
        struct tt_picture picture;
        bool got;

        status = tt_decoder_next(pass->decoder, &picture, &got, err);
        *is_same = !status && !got;
    }
    *is_same = *is_same && tt_is_unchanged(run->video_fd, &run->opened);
    return status;
}

static int threads(const struct tt_run *run)
{
    cpu_set_t allowed;
    int count = 1;

    if (strcmp(run->ops->name, "cpu") == 0)
        count = run->ops->plan(run->backend)->device.units;
    else if (sched_getaffinity(0, sizeof allowed, &allowed) == 0)
        count = CPU_COUNT(&allowed);
    return count < 1 ? 1 : count > THREADS_MAX ? THREADS_MAX : count;
}

static enum tt_status open_pass(struct pass *pass, struct tt_run *run, struct tt_error *err)
{
    size_t queries = (size_t)run->queries.count;

    *pass = (struct pass){.run = run, .queries = run->queries.count};
    run->refined = calloc(1, sizeof *run->refined);
    pass->estimates = malloc(queries * TILE * sizeof *pass->estimates);
    pass->spots = malloc(queries * TILE * sizeof *pass->spots);
    pass->guesses = calloc(queries, sizeof *pass->guesses);
    pass->points = malloc(queries * sizeof *pass->points);
    if (run->refined)
        run->refined->fd = -1;
    if (!run->refined || !pass->estimates || !pass->spots || !pass->guesses || !pass->points)
        return tt_fail(err, TT_RETRY_LATER, "no memory to refine %d tracks", run->queries.count);
    run->refined->frames = tt_stitch_frames(run->stitch);
    return tt_refine_open(&pass->refine, run->queries.count, run->info.coded_width, run->info.coded_height,
                          threads(run), err);
}

enum tt_status tt_run_refine(struct tt_run *run, const char *spill_directory, struct tt_error *err)
{
    int64_t start = tt_run_now_ms();
    struct pass pass;
    bool is_same = true;
    enum tt_status status = open_pass(&pass, run, err);

    tt_decoder_close(run->decoder); /* has said all that it had to */
    run->decoder = NULL;
    if (!status)
        status = tt_spill_open(&run->refined->fd, spill_directory, err);
    if (!status)
        status = run_pass(&pass, &is_same, err);
    tt_decoder_close(pass.decoder);
    tt_refine_close(pass.refine);
    free(pass.estimates);
    free(pass.spots);
    free(pass.guesses);
    free(pass.points);
    if (!status && !is_same)
        tt_run_warn(run, "not refined: the video is no longer what it was when it was tracked");
    else if (!status && run->refined->other_size > 0)
        tt_run_warn(run, "%lld frames of another size were not refined", (long long)run->refined->other_size);
    if (status || !is_same)
        tt_run_refined_free(run);
    run->refine_ms = tt_run_now_ms() - start;
    return status;
}

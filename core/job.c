/* core/job.c: one video from its descriptor to its track files.
 *
 * The data goes one way: decoder -> windows -> backend -> stitch -> files. Where a query point lies behind
 * the first window, a pass of its own decodes up to the last query frame and keeps only the supports; then
 * the video is decoded again from its beginning. Memory depends on the number of query points, never on the
 * video's length.
 *
 * Outputs are all written, under temporary names, before the first of them gets its own; on any failure
 * before that moment nothing is left behind. What a run holds is released in one place, tt_job_run.
 */
#include "core/job_parts.h"

#include "core/checkpoint.h"
#include "core/fsio.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

int64_t tt_run_now_ms(void)
{
    struct timespec now;

    clock_gettime(CLOCK_MONOTONIC, &now);
    return (int64_t)now.tv_sec * 1000 + now.tv_nsec / 1000000;
}

static int64_t frames_expected(const struct tt_run *run)
{
    int64_t most = run->job->max_frames;

    return most && (run->info.frames_hint == 0 || most < run->info.frames_hint) ? most
                                                                                : run->info.frames_hint;
}

enum tt_status tt_run_go_on(const struct tt_run *run, enum tt_job_stage stage, int64_t frames,
                            struct tt_error *err)
{
    const struct tt_job *job = run->job;
    const struct tt_job_progress progress = {stage, frames, frames_expected(run)};

    if (job->progress)
        job->progress(job->user, &progress);
    if (job->stop && atomic_load_explicit(job->stop, memory_order_relaxed))
        return tt_fail(err, TT_INTERRUPTED, "interrupted");
    return TT_OK;
}

/* --- query points --- */

static enum tt_status read_mask_points(struct tt_run *run, const char *path,
                                       const struct tt_query_bounds *bounds, struct tt_error *err)
{
    struct tt_mask mask = {0};
    uint8_t *pixels = NULL;
    enum tt_status status;
    int fd;

    status = tt_decoder_open_path(path, &fd, err);
    if (status)
        return tt_fail_within(err, "mask %s", path);
    status = tt_decoder_mask(fd, &run->job->decoder, &pixels, &mask.width, &mask.height, err);
    close(fd);
    mask.pixels = pixels;
    if (status == TT_OK)
        status = tt_queries_mask(&run->queries, run->job->grid, run->job->frame, &mask, bounds->width,
                                 bounds->height, err);
    free(pixels);
    return status ? tt_fail_within(err, "mask %s", path) : TT_OK;
}

/* Where the points come from, in order: the job's own file or mask, a side-car, the grid. */
static enum tt_status find_queries(struct tt_run *run, struct tt_error *err)
{
    const struct tt_query_bounds bounds = {.width = run->info.width, .height = run->info.height};
    const char *file = run->job->queries, *mask = run->job->mask;
    enum tt_sidecar kind = TT_SIDECAR_NONE;
    char *sidecar = NULL;
    enum tt_status status = TT_OK;

    if (!file && !mask && !run->job->ignore_sidecars)
        status = tt_sidecar_find(&kind, &sidecar, run->job->video, err);
    if (kind == TT_SIDECAR_QUERIES)
        file = sidecar;
    else if (kind == TT_SIDECAR_MASK)
        mask = sidecar;
    if (status == TT_OK) {
        if (file)
            status = tt_queries_read(&run->queries, file, &bounds, err);
        else if (mask)
            status = read_mask_points(run, mask, &bounds, err);
        else
            status = tt_queries_grid(&run->queries, run->job->grid, run->job->frame, bounds.width,
                                     bounds.height, err);
    }
    free(sidecar);
    return status;
}

/* Query points that are tracked between two heartbeats: tiles for every unit of the device. */
static int queries_of_block(const struct tt_run *run)
{
    const struct tt_plan *plan = run->ops->plan(run->backend);
    int64_t block = (int64_t)(plan->tile.queries > 0 ? plan->tile.queries : 1) *
                    (plan->device.units > 0 ? plan->device.units : 1);

    return block < run->queries.count ? (int)block : run->queries.count;
}

static enum tt_status prepare_queries(struct tt_run *run, struct tt_error *err)
{
    enum tt_status status = find_queries(run, err);
    size_t count;

    if (status)
        return status;
    count = (size_t)run->queries.count;
    run->query_xy = malloc(count * 2 * sizeof *run->query_xy);
    run->query_place = malloc(count * sizeof *run->query_place);
    run->supports = malloc(count * run->ops->support_bytes);
    run->block = queries_of_block(run);
    run->init = malloc((size_t)run->block * TT_CLIP_FRAMES * sizeof *run->init);
    run->result = malloc((size_t)run->block * TT_CLIP_FRAMES * sizeof *run->result);
    run->unbroken = malloc((size_t)run->block * sizeof *run->unbroken);
    if (!run->query_xy || !run->query_place || !run->supports || !run->init || !run->result || !run->unbroken)
        return tt_fail(err, TT_RETRY_LATER, "no memory for %d query points", run->queries.count);
    tt_queries_to_clip(&run->queries, run->info.width, run->info.height, run->query_xy);
    return tt_seam_open(&run->seam, run->ops, run->backend, run->block, err);
}

/* The points lie in frames that the video turned out not to have. */
static enum tt_status check_length(const struct tt_run *run, int64_t frames, struct tt_error *err)
{
    const struct tt_query_bounds bounds = {
        .width = run->info.width, .height = run->info.height, .frames = frames};

    return tt_queries_check(&run->queries, &bounds, err);
}

/* --- supports --- */

static int compare_frames(const void *a, const void *b)
{
    int32_t x = *(const int32_t *)a, y = *(const int32_t *)b;

    return (x > y) - (x < y);
}

/* The frames that hold query points, ascending, each once. Owned by the caller (free); NULL: no memory. */
static int32_t *query_frames(const struct tt_queries *queries, int *count)
{
    int32_t *frames = malloc((size_t)queries->count * sizeof *frames);
    int kept = 0;

    if (!frames)
        return NULL;
    for (int q = 0; q < queries->count; q++)
        frames[q] = queries->points[q].frame;
    qsort(frames, (size_t)queries->count, sizeof *frames, compare_frames);
    for (int q = 0; q < queries->count; q++)
        if (kept == 0 || frames[kept - 1] != frames[q])
            frames[kept++] = frames[q];
    *count = kept;
    return frames;
}

/* Takes the supports of all points whose frame is among numbers [clip->frames], the frames that the clip
 * holds. */
static enum tt_status sample_clip(struct tt_run *run, const struct tt_clip *clip, const int32_t *numbers,
                                  struct tt_error *err)
{
    enum tt_status status = run->ops->features(run->backend, clip, 0, err);

    if (status)
        return status;
    for (int q = 0; q < run->queries.count; q++) {
        const int32_t *found = bsearch(&run->queries.points[q].frame, numbers, (size_t)clip->frames,
                                       sizeof *numbers, compare_frames);

        run->query_place[q] = found ? (int)(found - numbers) : -1;
    }
    return run->ops->sample(run->backend, run->queries.count, run->query_place, run->query_xy, run->supports,
                            err);
}

/* Reads on to frame `wanted` and leaves it at rgb; frames before it are passed over. */
static enum tt_status seek_frame(struct tt_run *run, int64_t wanted, uint8_t *rgb, struct tt_error *err)
{
    while (run->frames_read <= wanted) {
        int64_t frames = run->frames_read;
        double time_s;
        int got;
        enum tt_status status;

        status = tt_run_read_frames(run, rgb, &time_s, 1, &got, err);
        if (status)
            return status;
        if (got == 0)
            return frames == 0 ? tt_fail(err, TT_BAD_INPUT, "no video frame could be decoded")
                               : check_length(run, frames, err);
    }
    return TT_OK;
}

/* The first of two passes: gathers the frames that hold query points, a clip at a time, and samples there. */
static enum tt_status sample_pass(struct tt_run *run, struct tt_error *err)
{
    int count = 0;
    int32_t *frames = query_frames(&run->queries, &count);
    uint8_t *rgb = malloc(TT_CLIP_BYTES);
    enum tt_status status = TT_OK;

    run->reading = TT_JOB_SUPPORTS;
    if (!frames || !rgb)
        status = tt_fail(err, TT_RETRY_LATER, "no memory for a clip");
    for (int i = 0; status == TT_OK && i < count; i += TT_CLIP_FRAMES) {
        struct tt_clip clip = {.rgb = rgb, .frames = count - i < TT_CLIP_FRAMES ? count - i : TT_CLIP_FRAMES};

        for (int f = 0; status == TT_OK && f < clip.frames; f++)
            status = seek_frame(run, frames[i + f], rgb + (size_t)f * TT_FRAME_BYTES, err);
        if (status == TT_OK)
            status = sample_clip(run, &clip, frames + i, err);
    }
    free(frames);
    free(rgb);
    if (status)
        return status;
    run->supports_sampled = true;
    return tt_run_rewind_video(run, err);
}

/* --- tracking --- */

/* Where each point lies in the window, and the supports of those that have none yet. */
static enum tt_status place_queries(struct tt_run *run, const struct tt_window *window, struct tt_error *err)
{
    int count = run->queries.count;
    enum tt_status status = TT_OK;

    for (int q = 0; q < count; q++)
        run->query_place[q] = tt_window_place(window, run->queries.points[q].frame);
    if (run->supports_sampled)
        return TT_OK;
    status = check_length(run, window->clip.frames < run->clip_frames ? window->clip.frames : 0, err);
    if (status == TT_OK)
        status = run->ops->sample(run->backend, count, run->query_place, run->query_xy, run->supports, err);
    run->supports_sampled = status == TT_OK;
    return status;
}

/* A block's results in a second try where the tracks are lost. */
static enum tt_status hold_block(struct tt_run *run, const struct tt_window *window, int first, int count,
                                 struct tt_error *err)
{
    const struct tt_seam_block block = {.queries = count,
                                        .frames = window->clip.frames,
                                        .overlap = window->overlap,
                                        .place = run->query_place + first,
                                        .unbroken = run->unbroken,
                                        .known = run->init};

    for (int i = 0; i < count; i++) {
        int64_t frame = run->queries.points[first + i].frame;

        run->unbroken[i] =
            frame < window->clip.first_frame && tt_stitch_sure_since(run->stitch, first + i) <= frame;
    }
    return tt_seam_hold(run->seam, &block, run->result, err);
}

static enum tt_status track_block(struct tt_run *run, const struct tt_window *window, int first, int count,
                                  struct tt_error *err)
{
    struct tt_track_request request = {
        .queries = count,
        .supports = (const char *)run->supports + (size_t)first * run->ops->support_bytes,
        .query_frame = run->query_place + first,
        .query_xy = run->query_xy + 2 * (size_t)first,
    };
    enum tt_status status;

    if (tt_stitch_init(run->stitch, first, count, run->init) > 0)
        request.init = run->init;
    status = run->ops->track(run->backend, &request, run->result, err);
    if (status == TT_OK)
        status = hold_block(run, window, first, count, err);
    for (int i = 0; i < count && status == TT_OK;
         i++) /* its query joins a track to the window, or lies in it */
        run->unbroken[i] |= run->query_place[first + i] >= 0;
    if (status == TT_OK)
        status = tt_stitch_doubt(run->stitch, first, count, run->unbroken, run->result, err);
    if (status == TT_OK)
        tt_stitch_add(run->stitch, first, count, run->result);
    return status;
}

/* Reads the next window while the device works on the present one, and hands its pixels over: it has none
 * then. */
static enum tt_status bring_next(struct tt_run *run, struct tt_window *next, struct tt_error *err)
{
    enum tt_status status = tt_windows_next(run->windows, next, err);

    if (status == TT_OK && next->clip.frames > 0)
        status = run->ops->bring(run->backend, &next->clip, next->overlap, err);
    next->clip.rgb = NULL;
    return status ? status : tt_run_go_on(run, TT_JOB_TRACKING, run->frames_tracked, err);
}

/* next: out, where the backend takes windows ahead. */
static enum tt_status track_window(struct tt_run *run, const struct tt_window *window, struct tt_window *next,
                                   struct tt_error *err)
{
    int count = run->queries.count, fresh = window->clip.frames - window->overlap;
    enum tt_status status = tt_run_go_on(run, TT_JOB_TRACKING, run->frames_tracked, err);

    if (status == TT_OK)
        status = run->ops->features(run->backend, &window->clip, run->resumed ? 0 : window->overlap, err);
    if (status == TT_OK)
        status = place_queries(run, window, err);
    if (status == TT_OK)
        status = tt_stitch_begin(run->stitch, window, err);
    if (status == TT_OK && run->ops->bring)
        status = bring_next(run, next, err);
    for (int q = 0; status == TT_OK && q < count; q += run->block) {
        int done = count - q < run->block ? count : q + run->block;

        status = track_block(run, window, q, done - q, err);
        if (status == TT_OK)
            status =
                tt_run_go_on(run, TT_JOB_TRACKING, run->frames_tracked + (int64_t)fresh * done / count, err);
    }
    run->resumed = false;
    run->frames_tracked = window->clip.first_frame + window->clip.frames;
    return status;
}

/* Makes the windows so far durable, if that is wanted and was not done lately. There is another window, so a
 * video of one window never writes a checkpoint. */
static enum tt_status keep(struct tt_run *run, struct tt_error *err)
{
    const struct tt_job *job = run->job;
    enum tt_status status = TT_OK;

    if (job->checkpoint && run->frames_tracked > run->resumed_frames &&
        tt_run_now_ms() - run->kept_ms >= job->checkpoint_ms) {
        status = tt_checkpoint_save(run->stitch, job->checkpoint, run->identity, err);
        run->kept_ms = tt_run_now_ms();
    }
    return status;
}

static enum tt_status track_windows(struct tt_run *run, struct tt_error *err)
{
    struct tt_window window, next = {0};
    enum tt_status status;

    run->reading = TT_JOB_DECODING;
    status = tt_windows_next(run->windows, &window, err);
    while (status == TT_OK && window.clip.frames > 0) {
        int64_t start = tt_run_now_ms(), decoded_ms = run->decode_ms;

        if (window.clip.first_frame > 0)
            status = keep(run, err);
        if (status == TT_OK)
            status = track_window(run, &window, &next, err);
        run->track_ms += tt_run_now_ms() - start - (run->decode_ms - decoded_ms);
        if (status == TT_OK && !run->ops->bring)
            status = tt_windows_next(run->windows, &next, err);
        window = next;
    }
    if (status == TT_OK && tt_windows_frames(run->windows) == 0)
        return tt_fail(err, TT_BAD_INPUT, "no video frame could be decoded");
    return status ? status : tt_stitch_finish(run->stitch, err);
}

/* --- results --- */

/* The decoder's last words: what it had to say, and whether the file ended early. */
static void take_warnings(struct tt_run *run)
{
    int count;
    const char *const *warnings = tt_decoder_warnings(run->decoder, &count);

    run->truncated = tt_decoder_truncated(run->decoder);
    tt_run_warn_all(run, warnings, count);
}

/* Spilled results go where the outputs go, unless the job says otherwise. */
static enum tt_status with_spill_directory(struct tt_run *run,
                                           enum tt_status (*open)(struct tt_run *, const char *,
                                                                  struct tt_error *),
                                           struct tt_error *err)
{
    char *beside = tt_path_folder(run->job->output[0].path);
    enum tt_status status;

    if (!beside)
        return tt_fail(err, TT_RETRY_LATER, "no memory");
    status = open(run, run->job->temporary_directory ? run->job->temporary_directory : beside, err);
    free(beside);
    return status;
}

static enum tt_status open_stitch(struct tt_run *run, const char *directory, struct tt_error *err)
{
    return tt_stitch_open(&run->stitch, run->queries.count, directory, err);
}

/* Everything that finished windows depend on, as one hash. Tiles are left out: they change no result. */
static enum tt_status identify(struct tt_run *run, struct tt_error *err)
{
    const struct tt_job *job = run->job;
    struct tt_sha256 sha;
    struct stat info;
    char text[512];
    int length;

    if (fstat(run->video_fd, &info) < 0)
        return tt_fail_errno(err, tt_status_of_errno(errno), errno, "%s", job->video);
    length =
        snprintf(text, sizeof text, "%s %s %s %d | %lld %lld.%09ld %d %d %d | %d %d %lld %d", TT_VERSION,
                 tt_weights_sha256(run->weights), run->ops->name, run->ops->plan(run->backend)->precision,
                 (long long)info.st_size, (long long)info.st_mtim.tv_sec, info.st_mtim.tv_nsec,
                 run->info.width, run->info.height, job->decoder.resize, run->clip_frames,
                 job->overlap_frames, (long long)job->max_frames, run->queries.count);
    tt_sha256_begin(&sha);
    tt_sha256_add(&sha, text, (size_t)length);
    for (int q = 0; q < run->queries.count; q++) {
        const struct tt_query *point = &run->queries.points[q];

        tt_sha256_add(&sha, &point->frame, sizeof point->frame);
        tt_sha256_add(&sha, &point->x, sizeof point->x);
        tt_sha256_add(&sha, &point->y, sizeof point->y);
    }
    tt_sha256_end(&sha, run->identity);
    return TT_OK;
}

/* Nameless files, or the checkpoint's. What that holds is not tracked again. */
static enum tt_status open_results(struct tt_run *run, struct tt_error *err)
{
    struct tt_window held;
    enum tt_status status;

    run->kept_ms = tt_run_now_ms();
    if (!run->job->checkpoint)
        return with_spill_directory(run, open_stitch, err);
    status = identify(run, err);
    if (!status)
        status = tt_checkpoint_open(&run->stitch, run->queries.count, run->job->checkpoint, run->identity,
                                    &held, err);
    if (status || held.clip.frames == 0)
        return status;
    run->resumed = true;
    run->resumed_at = held.clip.first_frame;
    run->resumed_frames = run->frames_tracked = held.clip.first_frame + held.clip.frames;
    return TT_OK;
}

/* Decodes up to the window that a checkpoint ends with. A video that has it no more is tracked anew next
 * time. */
static enum tt_status resume(struct tt_run *run, struct tt_error *err)
{
    enum tt_status status;

    run->reading = TT_JOB_SKIPPING;
    status = tt_windows_resume(run->windows, run->resumed_at, err);
    if (status == TT_RETRY_LATER)
        tt_checkpoint_remove(run->job->checkpoint);
    return status;
}

/* --- the whole --- */

static void tell_start(const struct tt_run *run)
{
    const struct tt_job_start start = {
        .width = run->info.width,
        .height = run->info.height,
        .frames_expected = frames_expected(run),
        .queries = run->queries.count,
        .resumed_frames = run->resumed_frames,
    };

    if (run->job->started)
        run->job->started(run->job->user, &start);
}

static enum tt_status run_job(struct tt_run *run, struct tt_error *err)
{
    enum tt_status status = tt_run_open_video(run, err);

    if (status == TT_OK)
        status = prepare_queries(run, err);
    if (status == TT_OK)
        status = tt_windows_open(&run->windows, run->clip_frames, run->job->overlap_frames,
                                 tt_run_read_frames, run, err);
    if (status == TT_OK)
        status = open_results(run, err);
    if (status)
        return status;
    tell_start(run);
    if (run->resumed || tt_queries_last_frame(&run->queries) >= run->clip_frames)
        status = sample_pass(run, err);
    if (status == TT_OK && run->resumed)
        status = resume(run, err);
    if (status == TT_OK)
        status = track_windows(run, err);
    if (status)
        return status;
    take_warnings(run);
    if (run->job->refine)
        status = with_spill_directory(run, tt_run_refine, err);
    return status ? status : tt_run_write_outputs(run, err);
}

enum tt_status tt_job_run(const struct tt_job *job, const struct tt_backend_ops *ops,
                          struct tt_backend *backend, const struct tt_weights *weights,
                          struct tt_job_report *report, struct tt_error *err)
{
    struct tt_run run = {.job = job,
                         .ops = ops,
                         .backend = backend,
                         .weights = weights,
                         .video_fd = -1,
                         .clip_frames = job->clip_frames ? job->clip_frames : TT_CLIP_FRAMES};
    int64_t start = tt_run_now_ms();
    enum tt_status status = run_job(&run, err);

    if (status == TT_OK) {
        *report = (struct tt_job_report){
            .frames = tt_stitch_frames(run.stitch),
            .queries = run.queries.count,
            .resumed_frames = run.resumed_frames,
            .truncated = run.truncated,
            .missing = run.missing,
            .decode_ms = run.decode_ms,
            .track_ms = run.track_ms,
            .refined = run.refined != NULL,
            .refine_ms = run.refine_ms,
            .write_ms = run.write_ms,
            .total_ms = tt_run_now_ms() - start,
        };
        tt_run_refined_counts(&run, &report->points_refined, &report->points_visible);
        memcpy(report->warnings, run.warnings, sizeof report->warnings);
    }
    tt_run_refined_free(&run);
    tt_stitch_close(run.stitch);
    tt_windows_close(run.windows);
    tt_decoder_close(run.decoder);
    tt_queries_free(&run.queries);
    free(run.query_xy);
    free(run.query_place);
    free(run.supports);
    free(run.init);
    free(run.result);
    free(run.unbroken);
    tt_seam_close(run.seam);
    if (run.video_fd >= 0)
        close(run.video_fd);
    if (status == TT_RETRY_LATER && job->checkpoint)
        tt_checkpoint_make_room(job->checkpoint);
    return status;
}

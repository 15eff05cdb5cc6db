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
#include "core/job.h"

#include "core/fsio.h"
#include "core/sha256.h"
#include "core/window.h"

#include <errno.h>
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

struct run {
    const struct tt_job *job;
    const struct tt_backend_ops *ops;
    struct tt_backend *backend;
    const struct tt_weights *weights;

    int video_fd;
    struct tt_decoder *decoder;
    struct tt_video_info info;
    struct tt_queries queries;
    float *query_xy;  /* [queries][2], clip pixels */
    int *query_place; /* [queries] frame within the current clip, or -1 */
    void *supports;   /* [queries] × ops->support_bytes */
    bool supports_sampled;
    struct tt_windows *windows;
    struct tt_stitch *stitch;
    struct tt_estimate *init, *result; /* [queries][TT_CLIP_FRAMES] */
    int64_t frames_read;               /* of the current pass */

    int64_t decode_ms, track_ms, write_ms;
    bool truncated;
    char warnings[TT_JOB_WARNING_BYTES];
};

static int64_t now_ms(void)
{
    struct timespec now;

    clock_gettime(CLOCK_MONOTONIC, &now);
    return (int64_t)now.tv_sec * 1000 + now.tv_nsec / 1000000;
}

static bool stopped(const struct tt_job *job)
{
    return job->stop && atomic_load_explicit(job->stop, memory_order_relaxed);
}

/* --- decoding --- */

static enum tt_status open_decoder(struct run *run, struct tt_error *err)
{
    tt_decoder_close(run->decoder);
    run->decoder = NULL;
    run->frames_read = 0;
    return tt_decoder_open(&run->decoder, run->video_fd, &run->job->decoder, err);
}

/* Reads frames up to the job's own limit. A tt_frames_read. */
static enum tt_status read_frames(void *user, uint8_t *rgb, double *time_s, int wanted, int *got,
                                  struct tt_error *err)
{
    struct run *run = user;
    int64_t left = run->job->max_frames ? run->job->max_frames - run->frames_read : INT64_MAX;
    int64_t start = now_ms();
    enum tt_status status = TT_OK;

    *got = 0;
    if (left > 0)
        status = tt_decoder_read(run->decoder, rgb, time_s, left < wanted ? (int)left : wanted, got, err);
    run->frames_read += *got;
    run->decode_ms += now_ms() - start;
    return status;
}

/* --- query points --- */

static enum tt_status read_mask_points(struct run *run, const char *path,
                                       const struct tt_query_bounds *bounds, struct tt_error *err)
{
    struct tt_mask mask = {0};
    uint8_t *pixels = NULL;
    enum tt_status status;
    int fd;

    status = tt_decoder_open_path(path, &fd, err);
    if (status)
        return status;
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
static enum tt_status find_queries(struct run *run, struct tt_error *err)
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

static enum tt_status prepare_queries(struct run *run, struct tt_error *err)
{
    enum tt_status status = find_queries(run, err);
    size_t count;

    if (status)
        return status;
    count = (size_t)run->queries.count;
    run->query_xy = malloc(count * 2 * sizeof *run->query_xy);
    run->query_place = malloc(count * sizeof *run->query_place);
    run->supports = malloc(count * run->ops->support_bytes);
    run->init = malloc(count * TT_CLIP_FRAMES * sizeof *run->init);
    run->result = malloc(count * TT_CLIP_FRAMES * sizeof *run->result);
    if (!run->query_xy || !run->query_place || !run->supports || !run->init || !run->result)
        return tt_fail(err, TT_RETRY_LATER, "no memory for %d query points", run->queries.count);
    tt_queries_to_clip(&run->queries, run->info.width, run->info.height, run->query_xy);
    return TT_OK;
}

/* The points lie in frames that the video turned out not to have. */
static enum tt_status check_length(const struct run *run, int64_t frames, struct tt_error *err)
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
static enum tt_status sample_clip(struct run *run, const struct tt_clip *clip, const int32_t *numbers,
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
static enum tt_status seek_frame(struct run *run, int64_t wanted, uint8_t *rgb, struct tt_error *err)
{
    while (run->frames_read <= wanted) {
        int64_t frames = run->frames_read;
        double time_s;
        int got;
        enum tt_status status;

        if (stopped(run->job))
            return tt_fail(err, TT_INTERRUPTED, "interrupted");
        status = read_frames(run, rgb, &time_s, 1, &got, err);
        if (status)
            return status;
        if (got == 0)
            return frames == 0 ? tt_fail(err, TT_BAD_INPUT, "no video frame could be decoded")
                               : check_length(run, frames, err);
    }
    return TT_OK;
}

/* The first of two passes: gathers the frames that hold query points, a clip at a time, and samples there. */
static enum tt_status sample_pass(struct run *run, struct tt_error *err)
{
    int count = 0;
    int32_t *frames = query_frames(&run->queries, &count);
    uint8_t *rgb = malloc(TT_CLIP_BYTES);
    enum tt_status status = TT_OK;

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
    return open_decoder(run, err);
}

/* --- tracking --- */

static enum tt_status track_window(struct run *run, const struct tt_window *window, struct tt_error *err)
{
    int count = run->queries.count, known;
    struct tt_track_request request = {
        .queries = count, .supports = run->supports, .query_xy = run->query_xy};
    enum tt_status status;

    for (int q = 0; q < count; q++)
        run->query_place[q] = tt_window_place(window, run->queries.points[q].frame);
    request.query_frame = run->query_place;
    status = run->ops->features(run->backend, &window->clip, window->overlap, err);
    if (status == TT_OK && !run->supports_sampled) {
        status = check_length(run, window->clip.frames < TT_CLIP_FRAMES ? window->clip.frames : 0, err);
        if (status == TT_OK)
            status =
                run->ops->sample(run->backend, count, run->query_place, run->query_xy, run->supports, err);
        run->supports_sampled = status == TT_OK;
    }
    if (status == TT_OK)
        status = tt_stitch_begin(run->stitch, window, err);
    if (status)
        return status;
    known = tt_stitch_init(run->stitch, 0, count, run->init);
    request.init = known > 0 ? run->init : NULL;
    status = run->ops->track(run->backend, &request, run->result, err);
    if (status == TT_OK)
        tt_stitch_add(run->stitch, 0, count, run->result);
    return status;
}

static int64_t frames_expected(const struct run *run)
{
    int64_t most = run->job->max_frames;

    return most && (run->info.frames_hint == 0 || most < run->info.frames_hint) ? most
                                                                                : run->info.frames_hint;
}

static enum tt_status track_windows(struct run *run, struct tt_error *err)
{
    struct tt_window window;
    enum tt_status status;

    while ((status = tt_windows_next(run->windows, &window, err)) == TT_OK && window.clip.frames > 0) {
        int64_t start = now_ms();

        if (stopped(run->job))
            return tt_fail(err, TT_INTERRUPTED, "interrupted");
        status = track_window(run, &window, err);
        if (status)
            return status;
        run->track_ms += now_ms() - start;
        if (run->job->progress)
            run->job->progress(run->job->user, window.clip.first_frame + window.clip.frames,
                               frames_expected(run));
    }
    if (status == TT_OK && tt_windows_frames(run->windows) == 0)
        return tt_fail(err, TT_BAD_INPUT, "no video frame could be decoded");
    return status ? status : tt_stitch_finish(run->stitch, err);
}

/* --- results --- */

/* The SHA-256 of the whole file behind a descriptor, whose position is not moved. */
static enum tt_status hash_file(int fd, char hex[TT_SHA256_HEX], struct tt_error *err)
{
    struct tt_sha256 sha;
    char block[65536];
    off_t offset = 0;
    ssize_t got;

    tt_sha256_begin(&sha);
    while ((got = pread(fd, block, sizeof block, offset)) > 0) {
        tt_sha256_add(&sha, block, (size_t)got);
        offset += got;
    }
    if (got < 0)
        return tt_fail_errno(err, tt_status_of_errno(errno), errno,
                             "reading the video again for its SHA-256");
    tt_sha256_end(&sha, hex);
    return TT_OK;
}

static json_t *describe_plan(const struct tt_plan *plan)
{
    return json_pack("{s:s, s:i, s:i}", "precision", plan->precision == TT_FP16 ? "fp16" : "fp32",
                     "tile_queries", plan->tile.queries, "tile_frames", plan->tile.frames);
}

/* The track file's `meta`: all that another person needs to make the same tracks again. Owned by the caller
 * (free). */
static enum tt_status make_meta(char **meta, const struct run *run, int64_t frames, struct tt_error *err)
{
    char digest[TT_SHA256_HEX];
    json_t *root, *model, *source, *windows;
    enum tt_status status = hash_file(run->video_fd, digest, err);

    if (status)
        return status;
    model = json_pack("{s:s, s:s, s:s}", "name", tt_weights_name(run->weights), "size",
                      tt_weights_shape(run->weights)->name, "sha256", tt_weights_sha256(run->weights));
    source = json_pack("{s:s, s:I, s:i, s:i, s:s, s:b, s:s}", "sha256", digest, "frames", (json_int_t)frames,
                       "width", run->info.width, "height", run->info.height, "codec", run->info.codec,
                       "truncated", run->truncated, "warnings", run->warnings);
    windows =
        json_pack("{s:i, s:i}", "clip_frames", TT_CLIP_FRAMES, "overlap_frames", run->job->overlap_frames);
    root = json_pack("{s:s, s:o, s:s, s:o, s:o, s:o, s:o, s:f, s:s}", "program", "tiletrack " TT_VERSION,
                     "model", model, "backend", run->ops->name, "device",
                     json_loads(run->ops->describe(run->backend), 0, NULL), "plan",
                     describe_plan(run->ops->plan(run->backend)), "source", source, "windows", windows,
                     "occlusion_threshold", (double)run->job->occlusion_threshold, "coordinates",
                     "source pixels as displayed; top-left corner 0,0; centre of the first pixel 0.5,0.5");
    *meta = root ? json_dumps(root, JSON_COMPACT) : NULL;
    json_decref(root);
    return *meta ? TT_OK : tt_fail(err, TT_RETRY_LATER, "no memory for the track file's description");
}

static enum tt_status write_outputs(struct run *run, struct tt_error *err)
{
    const struct tt_job *job = run->job;
    struct tt_file *files[TT_JOB_MAX_OUTPUTS] = {NULL};
    struct tt_tracks tracks = {
        .source = tt_tracks_from_stitch(run->stitch),
        .queries = &run->queries,
        .frames = tt_stitch_frames(run->stitch),
        .width = run->info.width,
        .height = run->info.height,
        .occlusion_threshold = job->occlusion_threshold,
    };
    int64_t start = now_ms();
    char *meta = NULL;
    enum tt_status status;

    status = make_meta(&meta, run, tracks.frames, err);
    tracks.meta = meta;
    for (int i = 0; status == TT_OK && i < job->outputs; i++) {
        status = tt_file_create(&files[i], job->output[i].path, err);
        if (status == TT_OK)
            status = tt_tracks_write_file(files[i], job->output[i].format, &tracks, err);
    }
    for (int i = 0; i < job->outputs; i++) {
        if (status == TT_OK && stopped(job))
            status = tt_fail(err, TT_INTERRUPTED, "interrupted");
        if (status == TT_OK)
            status = tt_file_commit(files[i], TT_REPLACE, err);
        else
            tt_file_abandon(files[i]);
    }
    free(meta);
    run->write_ms = now_ms() - start;
    return status;
}

/* The decoder's last words: what it had to say, and whether the file ended early. */
static void take_warnings(struct run *run)
{
    int count;
    const char *const *warnings = tt_decoder_warnings(run->decoder, &count);
    size_t used = 0;

    run->truncated = tt_decoder_truncated(run->decoder);
    for (int i = 0; i < count && used < sizeof run->warnings; i++)
        used += (size_t)snprintf(run->warnings + used, sizeof run->warnings - used, "%s%s", used ? "\n" : "",
                                 warnings[i]);
}

/* Spilled results go where the outputs go, unless the job says otherwise. */
static enum tt_status open_stitch(struct run *run, struct tt_error *err)
{
    const char *output = run->job->output[0].path, *slash = strrchr(output, '/');
    char *beside = slash ? strndup(output, (size_t)(slash - output) + 1) : strdup(".");
    enum tt_status status;

    if (!beside)
        return tt_fail(err, TT_RETRY_LATER, "no memory");
    status = tt_stitch_open(&run->stitch, run->queries.count,
                            run->job->temporary_directory ? run->job->temporary_directory : beside, err);
    free(beside);
    return status;
}

static enum tt_status run_job(struct run *run, struct tt_error *err)
{
    const struct tt_job *job = run->job;
    enum tt_status status;

    status = tt_decoder_open_path(job->video, &run->video_fd, err);
    if (status == TT_OK)
        status = open_decoder(run, err);
    if (status)
        return status;
    run->info = *tt_decoder_info(run->decoder);
    status = prepare_queries(run, err);
    if (status == TT_OK && tt_queries_last_frame(&run->queries) >= TT_CLIP_FRAMES)
        status = sample_pass(run, err);
    if (status == TT_OK)
        status = tt_windows_open(&run->windows, job->overlap_frames, read_frames, run, err);
    if (status == TT_OK)
        status = open_stitch(run, err);
    if (status == TT_OK)
        status = track_windows(run, err);
    if (status)
        return status;
    take_warnings(run);
    return write_outputs(run, err);
}

enum tt_status tt_job_run(const struct tt_job *job, const struct tt_backend_ops *ops,
                          struct tt_backend *backend, const struct tt_weights *weights,
                          struct tt_job_report *report, struct tt_error *err)
{
    struct run run = {.job = job, .ops = ops, .backend = backend, .weights = weights, .video_fd = -1};
    int64_t start = now_ms();
    enum tt_status status = run_job(&run, err);

    if (status == TT_OK) {
        *report = (struct tt_job_report){
            .frames = tt_stitch_frames(run.stitch),
            .queries = run.queries.count,
            .truncated = run.truncated,
            .decode_ms = run.decode_ms,
            .track_ms = run.track_ms,
            .write_ms = run.write_ms,
            .total_ms = now_ms() - start,
        };
        memcpy(report->warnings, run.warnings, sizeof report->warnings);
    }
    tt_stitch_close(run.stitch);
    tt_windows_close(run.windows);
    tt_decoder_close(run.decoder);
    tt_queries_free(&run.queries);
    free(run.query_xy);
    free(run.query_place);
    free(run.supports);
    free(run.init);
    free(run.result);
    if (run.video_fd >= 0)
        close(run.video_fd);
    return status;
}

/* core/job_output.c: a finished run's results: the description in `meta`, and the track files. */
#include "core/job_parts.h"

#include "core/fsio.h"

#include <errno.h>
#include <jansson.h>
#include <stdlib.h>
#include <unistd.h>

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

/* What came of a refinement. */
static json_t *describe_refined(const struct tt_run *run)
{
    int64_t refined, visible;

    tt_run_refined_counts(run, &refined, &visible);
    return json_pack("{s:s, s:b, s:I, s:I}", "resolution", "native", "done", run->refined != NULL,
                     "positions", (json_int_t)refined, "visible", (json_int_t)visible);
}

/* The track file's `meta`: all that another person needs to make the same tracks again. Owned by the caller
 * (free). */
static enum tt_status make_meta(char **meta, const struct tt_run *run, int64_t frames, struct tt_error *err)
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
        json_pack("{s:i, s:i}", "clip_frames", run->clip_frames, "overlap_frames", run->job->overlap_frames);
    root = json_pack("{s:s, s:o, s:s, s:o, s:o, s:o, s:o, s:f, s:s}", "program", "tiletrack " TT_VERSION,
                     "model", model, "backend", run->ops->name, "device",
                     json_loads(run->ops->describe(run->backend), 0, NULL), "plan",
                     describe_plan(run->ops->plan(run->backend)), "source", source, "windows", windows,
                     "occlusion_threshold", (double)run->job->occlusion_threshold, "coordinates",
                     "source pixels as displayed; top-left corner 0,0; centre of the first pixel 0.5,0.5");
    if (run->job->refine)
        json_object_set_new(root, "refined", describe_refined(run));
    *meta = root ? json_dumps(root, JSON_COMPACT) : NULL;
    json_decref(root);
    return *meta ? TT_OK : tt_fail(err, TT_RETRY_LATER, "no memory for the track file's description");
}

enum tt_status tt_run_write_outputs(struct tt_run *run, struct tt_error *err)
{
    const struct tt_job *job = run->job;
    struct tt_file *files[TT_JOB_MAX_OUTPUTS] = {NULL};
    struct tt_tracks tracks = {
        .source = tt_run_source(run),
        .queries = &run->queries,
        .frames = tt_stitch_frames(run->stitch),
        .width = run->info.width,
        .height = run->info.height,
        .occlusion_threshold = job->occlusion_threshold,
    };
    int64_t start = tt_run_now_ms();
    char *meta = NULL;
    enum tt_status status;

    status = tt_run_go_on(run, TT_JOB_WRITING, tracks.frames, err);
    if (status == TT_OK)
        status = make_meta(&meta, run, tracks.frames, err);
    tracks.meta = meta;
    for (int i = 0; status == TT_OK && i < job->outputs; i++) {
        status = tt_file_create(&files[i], job->output[i].path, err);
        if (status == TT_OK)
            status = tt_tracks_write_file(files[i], job->output[i].format, &tracks, err);
    }
    if (status == TT_OK) /* for the last time: once the first has its name, all get theirs */
        status = tt_run_go_on(run, TT_JOB_WRITING, tracks.frames, err);
    for (int i = 0; i < job->outputs; i++) {
        if (status == TT_OK)
            status = tt_file_commit(files[i], TT_REPLACE, err);
        else
            tt_file_abandon(files[i]);
    }
    free(meta);
    run->write_ms = tt_run_now_ms() - start;
    return status;
}

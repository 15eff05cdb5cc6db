/* core/job_output.c: a finished run's results: the description in `meta`, the track files and the exports.
 *
 * All are written under temporary names before the first gets its own. An export that cannot be made of these
 * tracks (no track visible, a frame rate that one frame does not have) and an overlay that fails for any
 * reason are left out, with a warning that says why and what to do, unless nothing else is wanted; then the
 * job fails as they do. A disk that is full, or somebody who stops the job, fails all of it.
 */
#include "core/job_parts.h"

#include "core/digest.h"
#include "core/export.h"
#include "core/fsio.h"
#include "core/overlay.h"

#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static enum tt_status still_writing(void *user, struct tt_error *err)
{
    const struct tt_run *run = user;

    return tt_run_go_on(run, TT_JOB_WRITING, tt_stitch_frames(run->stitch), err);
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
static enum tt_status make_meta(char **meta, struct tt_run *run, int64_t frames, struct tt_error *err)
{
    struct tt_digest digest;
    json_t *root, *model, *source, *windows;
    enum tt_status status = tt_digest_file(&digest, run->video_fd, still_writing, run, err);
    const bool changed = !tt_is_unchanged(run->video_fd, &run->opened);

    if (status)
        return status;
    if (changed)
        tt_run_warn(run,
                    "the video's file was changed while it was tracked: the tracks may be of neither state");
    model = json_pack("{s:s, s:s, s:s}", "name", tt_weights_name(run->weights), "size",
                      tt_weights_shape(run->weights)->name, "sha256", tt_weights_sha256(run->weights));
    source = json_pack("{s:s, s:I, s:I, s:i, s:i, s:s, s:b, s:s}", "sha256", digest.sha256, "bytes",
                       (json_int_t)digest.bytes, "frames", (json_int_t)frames, "width", run->info.width,
                       "height", run->info.height, "codec", run->info.codec, "truncated", run->truncated,
                       "warnings", run->warnings);
    if (changed) { /* what was tracked has no SHA-256 any more */
        json_object_set_new(source, "sha256", json_null());
        json_object_set_new(source, "bytes", json_null());
        json_object_set_new(source, "changed", json_true());
    }
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

struct rows { /* of an export: heartbeats between them */
    const struct tt_run *run;
    struct tt_export_source tracks;
};

static enum tt_status next_row(void *user, int query, struct tt_track_point *points, struct tt_error *err)
{
    const struct rows *rows = user;
    enum tt_status status = tt_run_go_on(rows->run, TT_JOB_WRITING, rows->tracks.frames, err);

    return status ? status : rows->tracks.row(rows->tracks.user, query, points, err);
}

static enum tt_status times(void *user, double *time_s, struct tt_error *err)
{
    const struct rows *rows = user;

    return rows->tracks.times(rows->tracks.user, time_s, err);
}

/* folder: for spilled points */
static enum tt_status write_export(const struct tt_run *run, struct tt_file *file, enum tt_output format,
                                   const char *folder, const struct tt_tracks *tracks, struct tt_error *err)
{
    struct tt_export_options options = {.spill_folder = folder, .stop = run->job->stop};
    struct rows rows = {run, tt_export_from_tracks(tracks)};
    struct tt_export_source source = rows.tracks;

    source.user = &rows;
    source.row = next_row;
    source.times = times;
    return tt_export_write_file(file, tt_export_find(tt_output_names[format]), &source, &options, NULL, err);
}

static enum tt_status drawn(void *user, int64_t frames, int64_t expected, struct tt_error *err)
{
    const struct tt_run *run = user;
    const atomic_bool *stop = run->job->stop_drawing;
    enum tt_status status = tt_run_go_on(run, TT_JOB_DRAWING, frames, err);

    if (!status && stop && atomic_load_explicit(stop, memory_order_relaxed))
        status = tt_fail(err, TT_RETRY_LATER, "out of time after %lld of %lld frames", (long long)frames,
                         (long long)expected);
    return status;
}

/* Decodes the video once more, as a refinement does, and with the same doubt: it must be what it was. folder:
 * for spilled points. */
static enum tt_status write_overlay(struct tt_run *run, struct tt_file *file, const char *folder,
                                    const struct tt_tracks *tracks, struct tt_error *err)
{
    const struct tt_export_source source = tt_export_from_tracks(tracks);
    struct tt_overlay_options options = {.style = TT_OVERLAY_TAILS,
                                         .spill_folder = folder,
                                         .same_times = true,
                                         .decoder = run->job->decoder,
                                         .encoder = TT_ENCODER_DEFAULTS,
                                         .stop = run->job->stop,
                                         .progress = drawn,
                                         .user = run};
    struct tt_overlay_report report;
    enum tt_status status;
    bool more;

    options.encoder.interrupt_fd = run->job->decoder.interrupt_fd;
    options.encoder.stall_seconds = run->job->decoder.stall_seconds;
    status = tt_overlay_write(file, NULL, run->video_fd, &source, &options, &report, err);
    more = !status && report.video_goes_on && tracks->frames != run->job->max_frames;
    if (!status && (more || !tt_is_unchanged(run->video_fd, &run->opened)))
        status = tt_fail(err, TT_RETRY_LATER, "the video is no longer what it was when it was tracked");
    return status;
}

/* Whether a job can go on without an output that failed so: an export that these tracks do not have however
 * often it is tried, and any overlay. */
static bool is_dispensable(enum tt_output format, enum tt_status status)
{
    return format == TT_OUTPUT_OVERLAY ? status != TT_INTERRUPTED : status == TT_BAD_INPUT;
}

static void leave_out(struct tt_run *run, enum tt_output format, const struct tt_error *err)
{
    tt_run_warn(run, "no %s: %s", tt_output_names[format], err->text);
    run->missing |= 1u << format;
}

static enum tt_status write_output(struct tt_run *run, struct tt_file *file,
                                   const struct tt_job_output *output, const struct tt_tracks *tracks,
                                   struct tt_error *err)
{
    char *beside = tt_path_folder(output->path);
    const char *folder = run->job->temporary_directory ? run->job->temporary_directory : beside;
    enum tt_status status;

    if (!beside)
        return tt_fail(err, TT_RETRY_LATER, "no memory");
    if (output->format < TT_OUTPUT_CSV_WIDE)
        status = tt_tracks_write_file(file, (enum tt_track_format)output->format, tracks, err);
    else if (output->format == TT_OUTPUT_OVERLAY)
        status = write_overlay(run, file, folder, tracks, err);
    else
        status = write_export(run, file, output->format, folder, tracks, err);
    free(beside);
    return status;
}

/* An output under its temporary name. alone: no other is there or to come. *file: NULL where the job goes on
 * without it. */
static enum tt_status make_output(struct tt_run *run, struct tt_file **file,
                                  const struct tt_job_output *output, bool alone,
                                  const struct tt_tracks *tracks, struct tt_error *err)
{
    enum tt_status status = tt_file_create(file, output->path, err);

    if (status)
        return status;
    status = write_output(run, *file, output, tracks, err);
    if (!status || !is_dispensable(output->format, status))
        return status;
    if (alone)
        return tt_fail_within(err, "as %s", tt_output_names[output->format]);
    leave_out(run, output->format, err);
    tt_file_abandon(*file);
    *file = NULL;
    return TT_OK;
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
        .calibration = tt_weights_calibration(run->weights),
    };
    int64_t start = tt_run_now_ms();
    enum tt_job_stage stage = TT_JOB_WRITING;
    char *meta = NULL;
    int made = 0;
    enum tt_status status;

    status = tt_run_go_on(run, TT_JOB_WRITING, tracks.frames, err);
    if (status == TT_OK)
        status = make_meta(&meta, run, tracks.frames, err);
    tracks.meta = meta;
    for (int i = 0; status == TT_OK && i < job->outputs; i++) {
        const bool alone = made == 0 && i + 1 == job->outputs;

        status = make_output(run, &files[i], &job->output[i], alone, &tracks, err);
        made += files[i] != NULL;
        stage = job->output[i].format == TT_OUTPUT_OVERLAY ? TT_JOB_DRAWING : TT_JOB_WRITING;
    }
    if (status == TT_OK) /* for the last time: once the first has its name, all get theirs */
        status = tt_run_go_on(run, stage, tracks.frames, err);
    for (int i = 0; i < job->outputs; i++) {
        if (status == TT_OK && files[i])
            status = tt_file_commit(files[i], TT_REPLACE, err);
        else
            tt_file_abandon(files[i]);
    }
    free(meta);
    run->write_ms = tt_run_now_ms() - start;
    return status;
}

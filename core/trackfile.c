/* core/trackfile.c: from estimates to points, and track files of any format.
 *
 * Invariant: tt_tracks_points is the only place where clip pixels become source pixels, logits become
 * confidence and a track is set to its query; all formats take their points from it, block by block.
 *
 * Fails: on a source that fails, on values that are not finite, on arguments that contradict each other, on
 * the disk.
 */
#include "core/trackfile.h"
#include "core/trackfile_parts.h"

#include "core/clip.h"
#include "core/utf8.h"
#include "core/window.h"

#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

const char *const tt_track_format_names[TT_TRACK_FORMATS] = {"npz", "csv", "jsonl"};
const char *const tt_track_format_suffixes[TT_TRACK_FORMATS] = {".tracks.npz", ".tracks.csv",
                                                                ".tracks.jsonl"};

bool tt_block_next(struct tt_block *block, int queries, int64_t frames)
{
    int64_t frame = block->frame + block->frames;
    int query = block->query;

    if (frame >= frames) {
        frame = 0;
        query += block->queries;
    }
    if (query >= queries)
        return false;
    block->query = query;
    block->frame = frame;
    if (frames <= TT_BLOCK_POINTS) {
        int rows = (int)(TT_BLOCK_POINTS / frames);

        block->queries = queries - query < rows ? queries - query : rows;
        block->frames = (int)frames;
    } else {
        block->queries = 1;
        block->frames = (int)(frames - frame < TT_BLOCK_POINTS ? frames - frame : TT_BLOCK_POINTS);
    }
    return true;
}

static double sigmoid(double x)
{
    return 1 / (1 + exp(-x));
}

/* Which of a block's points were refined, where the source knows. */
static enum tt_status mark_refined(const struct tt_tracks *tracks, int first_query, int queries,
                                   int64_t first_frame, int frames, struct tt_track_point *points,
                                   struct tt_error *err)
{
    const struct tt_track_source *source = &tracks->source;
    const size_t count = (size_t)queries * (size_t)frames;
    bool *refined = source->refined ? malloc(count) : NULL;
    enum tt_status status = TT_OK;

    if (source->refined && !refined)
        return tt_fail_errno(err, TT_RETRY_LATER, ENOMEM, "a block of tracks");
    if (refined)
        status = source->refined(source->user, first_query, queries, first_frame, frames, refined, err);
    for (size_t i = 0; !status && i < count; i++)
        points[i].refined = refined && refined[i];
    free(refined);
    return status;
}

static enum tt_status convert(const struct tt_tracks *tracks, int query, int64_t frame,
                              const struct tt_estimate *estimate, struct tt_track_point *point,
                              struct tt_error *err)
{
    const struct tt_query *at = &tracks->queries->points[query];
    double raw;

    if (!isfinite(estimate->x) || !isfinite(estimate->y) || !isfinite(estimate->occlusion) ||
        !isfinite(estimate->expected_dist))
        return tt_fail(err, TT_RESTART_WORKER,
                       "the tracker's result for query %d in frame %lld is not finite", query,
                       (long long)frame);
    point->x = frame == at->frame ? at->x : tt_source_from_clip(estimate->x, tracks->width);
    point->y = frame == at->frame ? at->y : tt_source_from_clip(estimate->y, tracks->height);
    raw = sigmoid(-(double)estimate->occlusion) * sigmoid(-(double)estimate->expected_dist);
    point->confidence = tt_calibrate(tracks->calibration, raw);
    point->occluded = 1.0f - (float)raw > tracks->occlusion_threshold;
    return TT_OK;
}

enum tt_status tt_tracks_points(const struct tt_tracks *tracks, int first_query, int queries,
                                int64_t first_frame, int frames, struct tt_track_point *points,
                                struct tt_error *err)
{
    struct tt_estimate *rows = malloc((size_t)queries * frames * sizeof *rows);
    enum tt_status status;

    if (!rows)
        return tt_fail_errno(err, TT_RETRY_LATER, ENOMEM, "a block of tracks");
    status = tracks->source.rows(tracks->source.user, first_query, queries, first_frame, frames, rows, err);
    for (int q = 0; q < queries; q++)
        for (int t = 0; t < frames && !status; t++)
            status = convert(tracks, first_query + q, first_frame + t, &rows[(size_t)q * frames + t],
                             &points[(size_t)q * frames + t], err);
    free(rows);
    return status ? status : mark_refined(tracks, first_query, queries, first_frame, frames, points, err);
}

static enum tt_status check(const struct tt_tracks *tracks, struct tt_error *err)
{
    const struct tt_query_bounds bounds = {.frames = tracks->frames};
    const struct tt_queries *queries = tracks->queries;

    if (tracks->frames < 1 || tracks->frames > TT_TRACK_FRAMES_MAX)
        return tt_fail(err, TT_REFUSE, "a track file holds 1 to %d frames, not %lld", TT_TRACK_FRAMES_MAX,
                       (long long)tracks->frames);
    if (tracks->queries->count < 1 || tracks->queries->count > TT_QUERIES_MAX)
        return tt_fail(err, TT_REFUSE, "a track file holds 1 to %d queries, not %d", TT_QUERIES_MAX,
                       tracks->queries->count);
    for (int q = 0; queries->labels && q < queries->count; q++)
        if (strlen(queries->labels[q]) > TT_LABEL_BYTES ||
            !tt_utf8_is_label(queries->labels[q], strlen(queries->labels[q])))
            return tt_fail(err, TT_REFUSE, "label of query %d: not UTF-8 of at most %d bytes", q,
                           TT_LABEL_BYTES);
    return tt_queries_check(tracks->queries, &bounds, err);
}

enum tt_status tt_tracks_write_file(struct tt_file *file, enum tt_track_format format,
                                    const struct tt_tracks *tracks, struct tt_error *err)
{
    enum tt_status status = check(tracks, err);

    if (status)
        return status;
    switch (format) {
    case TT_TRACKS_NPZ:
        return tt_tracks_write_npz(file, tracks, err);
    case TT_TRACKS_CSV:
        return tt_tracks_write_csv(file, tracks, err);
    case TT_TRACKS_JSONL:
        return tt_tracks_write_jsonl(file, tracks, err);
    case TT_TRACK_FORMATS:
        break;
    }
    return tt_fail(err, TT_REFUSE, "no such track file format: %d", (int)format);
}

enum tt_status tt_tracks_write(const char *path, enum tt_track_format format, enum tt_commit mode,
                               const struct tt_tracks *tracks, struct tt_error *err)
{
    struct tt_file *file;
    enum tt_status status = tt_file_create(&file, path, err);

    if (status)
        return status;
    status = tt_tracks_write_file(file, format, tracks, err);
    if (!status)
        return tt_file_commit(file, mode, err);
    tt_file_abandon(file);
    return status;
}

static enum tt_status stitch_rows(void *user, int first_query, int queries, int64_t first_frame, int frames,
                                  struct tt_estimate *rows, struct tt_error *err)
{
    return tt_stitch_read(user, first_query, queries, first_frame, frames, rows, err);
}

static enum tt_status stitch_times(void *user, int64_t first_frame, int frames, double *time_s,
                                   struct tt_error *err)
{
    return tt_stitch_times(user, first_frame, frames, time_s, err);
}

struct tt_track_source tt_tracks_from_stitch(struct tt_stitch *stitch)
{
    return (struct tt_track_source){.user = stitch, .rows = stitch_rows, .times = stitch_times};
}

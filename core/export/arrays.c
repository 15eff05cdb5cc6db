/* core/export/arrays.c: tapvid and cotracker: .npz files of the arrays that these programs' own code takes.
 *
 * Both have a place for every sample, so nothing is left out; what is occluded is said in an array of its
 * own. No array is pickled.
 */
#include "core/npz.h"
#include "core/export/run.h"

#include <errno.h>
#include <stdlib.h>

/* --- tapvid: [1,N,...], raster coordinates of a 256×256 video -------------------------------- */

enum { TAPVID_SIDE = 256 };

static float to_tapvid(float value, int side)
{
    return (float)((double)value * TAPVID_SIDE / side);
}

static enum tt_status make_query_points(void *user, int64_t track, int one, void *bytes, struct tt_error *err)
{
    const struct tt_export *run = user;
    const struct tt_query *query = &run->source->queries->points[run->query[track]];
    float *tyx = bytes;

    (void)one;
    (void)err;
    tyx[0] = (float)query->frame;
    tyx[1] = to_tapvid(query->y, run->source->height);
    tyx[2] = to_tapvid(query->x, run->source->width);
    return TT_OK;
}

static enum tt_status make_target_points(void *user, int64_t track, int one, void *bytes,
                                         struct tt_error *err)
{
    struct tt_export *run = user;
    float *xy = bytes;
    enum tt_status status = tt_export_row(run, (int)track, err);

    (void)one;
    for (int64_t t = 0; t < run->frames && !status; t++) {
        xy[2 * t] = to_tapvid(run->row[t].x, run->source->width);
        xy[2 * t + 1] = to_tapvid(run->row[t].y, run->source->height);
    }
    return status;
}

static enum tt_status make_occluded(void *user, int64_t track, int one, void *bytes, struct tt_error *err)
{
    struct tt_export *run = user;
    bool *occluded = bytes;
    enum tt_status status = tt_export_row(run, (int)track, err);

    (void)one;
    for (int64_t t = 0; t < run->frames && !status; t++)
        occluded[t] = run->row[t].occluded;
    return status;
}

enum tt_status tt_export_tapvid(struct tt_export *run, struct tt_error *err)
{
    const int64_t n = run->tracks, t = run->frames;
    const struct tt_npz_array arrays[] = {
        {"query_points.npy",
         {.kind = 'f', .item_bytes = 4, .rank = 3, .shape = {1, n, 3}},
         n,
         1,
         make_query_points},
        {"target_points.npy",
         {.kind = 'f', .item_bytes = 4, .rank = 4, .shape = {1, n, t, 2}},
         n,
         1,
         make_target_points},
        {"occluded.npy", {.kind = 'b', .item_bytes = 1, .rank = 3, .shape = {1, n, t}}, n, 1, make_occluded},
    };

    return tt_npz_write(run->file, arrays, 3, run, err);
}

/* --- cotracker: [1,T,N,...], pixels of the video, pixel centres whole ------------------------ */

struct cotracker {
    struct tt_frames frames;
    struct tt_track_point *points;
};

static enum tt_status make_tracks(void *user, int64_t frame, int one, void *bytes, struct tt_error *err)
{
    struct cotracker *self = user;
    float *xy = bytes;
    enum tt_status status = tt_frames_read(&self->frames, frame, self->points, err);

    (void)one;
    for (int i = 0; i < self->frames.tracks && !status; i++) {
        xy[2 * i] = self->points[i].x - 0.5f;
        xy[2 * i + 1] = self->points[i].y - 0.5f;
    }
    return status;
}

static enum tt_status make_visibility(void *user, int64_t frame, int one, void *bytes, struct tt_error *err)
{
    struct cotracker *self = user;
    bool *visible = bytes;
    enum tt_status status = tt_frames_read(&self->frames, frame, self->points, err);

    (void)one;
    for (int i = 0; i < self->frames.tracks && !status; i++)
        visible[i] = !self->points[i].occluded;
    return status;
}

enum tt_status tt_export_cotracker(struct tt_export *run, struct tt_error *err)
{
    const int64_t n = run->tracks, t = run->frames;
    const struct tt_npz_array arrays[] = {
        {"pred_tracks.npy",
         {.kind = 'f', .item_bytes = 4, .rank = 4, .shape = {1, t, n, 2}},
         t,
         1,
         make_tracks},
        {"pred_visibility.npy",
         {.kind = 'b', .item_bytes = 1, .rank = 3, .shape = {1, t, n}},
         t,
         1,
         make_visibility},
    };
    struct cotracker self = {.points = calloc((size_t)n, sizeof *self.points)};
    enum tt_status status;

    if (!self.points)
        return tt_fail_errno(err, TT_RETRY_LATER, ENOMEM, "exporting tracks");
    status = tt_frames_open(&self.frames, run, err);
    if (!status) {
        status = tt_npz_write(run->file, arrays, 2, &self, err);
        tt_frames_close(&self.frames);
    }
    free(self.points);
    return status;
}

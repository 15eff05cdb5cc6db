/* core/trackfile.h: track files: written as npz, csv and jsonl, read back from npz. docs/FORMATS.md describes
 * them.
 *
 * Neither writer nor reader ever holds queries × frames in memory. Equal data gives equal bytes.
 */
#ifndef TT_CORE_TRACKFILE_H
#define TT_CORE_TRACKFILE_H

#include "core/backend.h"
#include "core/calibration.h"
#include "core/fsio.h"
#include "core/query.h"
#include "core/status.h"

#include <stdbool.h>
#include <stdint.h>

enum { TT_TRACK_FRAMES_MAX = TT_QUERY_FRAME_MAX + 1 };

/* Where the writer takes its rows from; tt_stitch_read and tt_stitch_times behind `user` fit (see
 * tt_tracks_from_stitch). Called with ascending blocks, and more than once for the same block. */
struct tt_track_source {
    void *user;
    /* rows [queries][frames], clip pixels, nothing pinned */
    enum tt_status (*rows)(void *user, int first_query, int queries, int64_t first_frame, int frames,
                           struct tt_estimate *rows, struct tt_error *err);
    enum tt_status (*times)(void *user, int64_t first_frame, int frames, double *time_s,
                            struct tt_error *err);
    /* NULL: nobody tried; or which positions were refined: refined [queries][frames] */
    enum tt_status (*refined)(void *user, int first_query, int queries, int64_t first_frame, int frames,
                              bool *refined, struct tt_error *err);
};

/* All that a track file says. Borrows everything (until the call returns). */
struct tt_tracks {
    struct tt_track_source source;
    const struct tt_queries *queries;         /* N = queries->count */
    int64_t frames;                           /* T, 1..TT_TRACK_FRAMES_MAX */
    int width, height;                        /* as displayed */
    float occlusion_threshold;                /* 0.5 */
    const struct tt_calibration *calibration; /* NULL: confidences stay raw */
    const char *meta;                         /* JSON, UTF-8 */
};

/* One query point in one frame as files give it. */
struct tt_track_point {
    float x, y;       /* source pixels as displayed */
    float confidence; /* (1−σ(occlusion))(1−σ(expected_dist)), calibrated */
    bool occluded;    /* 1 − the raw confidence > threshold */
    bool refined;     /* found again at the video's own resolution; false where nobody tried */
};

/* Reads a block and converts it: points [queries][frames]. At a query's own frame x and y are the query's,
 * exactly. TT_RESTART_WORKER: a value that is not finite; the text says which. */
enum tt_status tt_tracks_points(const struct tt_tracks *tracks, int first_query, int queries,
                                int64_t first_frame, int frames, struct tt_track_point *points,
                                struct tt_error *err);

enum tt_track_format { TT_TRACKS_NPZ, TT_TRACKS_CSV, TT_TRACKS_JSONL, TT_TRACK_FORMATS };

extern const char *const tt_track_format_names[TT_TRACK_FORMATS];    /* "npz", "csv", "jsonl" */
extern const char *const tt_track_format_suffixes[TT_TRACK_FORMATS]; /* ".tracks.npz", ... */

/* Writes a track file: temporary name, fsync, rename. On failure there is no file and what had the name
 * before is untouched. Working memory: about 10 MB. */
enum tt_status tt_tracks_write(const char *path, enum tt_track_format format, enum tt_commit mode,
                               const struct tt_tracks *tracks, struct tt_error *err);

/* The same into a file that the caller commits or abandons. Borrows file. */
enum tt_status tt_tracks_write_file(struct tt_file *file, enum tt_track_format format,
                                    const struct tt_tracks *tracks, struct tt_error *err);

/* A source that reads a finished stitch. Borrows stitch (as long as the source is used). */
struct tt_stitch;
struct tt_track_source tt_tracks_from_stitch(struct tt_stitch *stitch);

/* An .npz track file, open for reading. */
struct tt_trackfile;

/* Opens and checks everything but the values: TT_BAD_INPUT names the file, the array and what is wrong with
 * it. Numbers in the file are not believed before they fit together; compressed members are read too. */
enum tt_status tt_trackfile_open(struct tt_trackfile **file, const char *path, struct tt_error *err);

/* What the file says; borrowed (until tt_trackfile_close). */
const struct tt_queries *tt_trackfile_queries(const struct tt_trackfile *file);
int64_t tt_trackfile_frames(const struct tt_trackfile *file);
void tt_trackfile_size(const struct tt_trackfile *file, int *width, int *height);
const double *tt_trackfile_times(const struct tt_trackfile *file); /* [frames] */
const char *tt_trackfile_meta(const struct tt_trackfile *file);    /* UTF-8 */
bool tt_trackfile_refined(const struct tt_trackfile *file); /* whether it says which positions were refined */

/* Reads whole rows: points [queries][frames]. Ascending calls read the file once; going back starts again. */
enum tt_status tt_trackfile_rows(struct tt_trackfile *file, int first_query, int queries,
                                 struct tt_track_point *points, struct tt_error *err);

void tt_trackfile_close(struct tt_trackfile *file); /* NULL is allowed */

#endif

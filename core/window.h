/* core/window.h: long videos: overlapping windows of frames, and the stitching of their results.
 *
 *     tt_windows_open(&windows, clip_frames, overlap, read, user, err)
 *     tt_stitch_open(&stitch, queries, spill_directory, err)
 *     while (tt_windows_next(windows, &window, err) == TT_OK && window.clip.frames > 0) {
 *         backend features(&window.clip, window.overlap)
 *         tt_stitch_begin(stitch, &window, err)
 *         for blocks of queries:
 *             tt_stitch_init(stitch, first, count, init)
 *             backend track(init -> result)
 *             tt_stitch_doubt(stitch, first, count, believed, result, err)
 *             tt_stitch_add(stitch, first, count, result)
 *     }
 *     tt_stitch_finish(stitch, err)
 *     tt_stitch_read(stitch, ...)     any block of queries and frames
 *
 * Windows of clip_frames, as a rule 47. The first is [0,47). Each next one starts `overlap` frames before the
 * end of the one before. The last one slides back so that it is whole: a video of 48 frames has [0,47) and
 * [1,48). A video shorter than 47 frames is one short window. The length of the video is not known before its
 * end.
 *
 * Stitching. (What a window loses is tried once more before it is added: core/seam.h.) Where a window shares
 * n frames with what is stitched so far (n = window.overlap), its values have the weight (i+1)/(n+1) in the
 * i-th shared frame, i from 0, and the stitched ones the rest; x, y and both logits alike. But where the two
 * contradict each other in one of these frames, more than TT_STITCH_APART pixels apart and both with
 * conf > 0.5 (as in core/seam.h), nothing is mixed, for the point is not in between: the stitched values
 * stand up to the frame from which on the window's are more confident in the sum, and the window's from
 * there.
 *
 * A return that is refuted. A point that was out of sight and that one window alone has found again may be
 * another place that looks alike. The next window refutes that where it contradicts it in every shared frame,
 * its mean conf there is above TT_STITCH_CERTAIN, and the stitched values give way in all of them. Nobody can
 * then say where the point was since that return; but it was there with no more than the chance that the next
 * window is wrong. So expected_dist of these frames becomes logit(that mean conf) at least, which is: the
 * point counts as hidden there, and does not jump in sight. Their positions stay.
 *
 * Where windows overlap by more than half a window frames are stitched more than once, in the order of the
 * windows. Frames before the start of the newest window are final, but for such a return in the window
 * before: they and their times go to files without names, one tile [queries][frames] a window. Memory:
 * queries × 47 estimates, whatever the video's length.
 */
#ifndef TT_CORE_WINDOW_H
#define TT_CORE_WINDOW_H

#include "core/backend.h"
#include "core/clip.h"
#include "core/status.h"

#include <stdbool.h>
#include <stdint.h>

/* A window. Borrows clip.rgb and time_s (until the next call for these windows). */
struct tt_window {
    struct tt_clip clip;  /* clip.frames is 0 behind the end of the video */
    const double *time_s; /* [clip.frames] presentation times */
    int overlap; /* first frames of this window that were in the one before; 0 for the first window */
};

/* Reads the next `wanted` frames: rgb [wanted][256][256][3] and time_s [wanted] are filled, *got says how
 * many there were; fewer than wanted: the video has ended. */
typedef enum tt_status tt_frames_read(void *user, uint8_t *rgb, double *time_s, int wanted, int *got,
                                      struct tt_error *err);

struct tt_windows;

/* clip_frames: of a whole window, 1..TT_CLIP_FRAMES. overlap: 0..clip_frames-1. TT_REFUSE outside. read:
 * called from tt_windows_next only. Memory: at most 18.5 MB. */
enum tt_status tt_windows_open(struct tt_windows **windows, int clip_frames, int overlap,
                               tt_frames_read *read, void *user, struct tt_error *err);

/* The next window; behind the last one clip.frames is 0 (at once for a video without frames). A failure of
 * read is passed on and ends the windows. */
enum tt_status tt_windows_next(struct tt_windows *windows, struct tt_window *window, struct tt_error *err);

/* Instead of the first calls of tt_windows_next: reads up to the whole window that begins at first_frame, so
 * that the next call gives the one behind it, as if those before had been asked for. TT_RETRY_LATER: the
 * video has no such window (any more). A failure ends the windows. */
enum tt_status tt_windows_resume(struct tt_windows *windows, int64_t first_frame, struct tt_error *err);

/* Frames read so far: the video's length once tt_windows_next gave an empty window. */
int64_t tt_windows_frames(const struct tt_windows *windows);

void tt_windows_close(struct tt_windows *windows); /* NULL is allowed */

/* A frame's place within a window, -1 where it lies in another: tt_track_request's query_frame. */
static inline int tt_window_place(const struct tt_window *window, int64_t frame)
{
    int64_t place = frame - window->clip.first_frame;

    return place >= 0 && place < window->clip.frames ? (int)place : -1;
}

/* A cross-fade over 8 frames that begins with less moves a point by less than a pixel a frame. */
enum { TT_STITCH_APART = 8 };
#define TT_STITCH_CERTAIN 0.95

struct tt_stitch;

/* queries: at least 1. directory: where the spill files may grow (16 bytes a query and frame). */
enum tt_status tt_stitch_open(struct tt_stitch **stitch, int queries, const char *directory,
                              struct tt_error *err);

/* Goes on to a window: what lies before it is spilled. Windows must follow each other as tt_windows_next
 * gives them, and every query must have been added to the one before (TT_REFUSE otherwise). TT_RETRY_LATER:
 * no space left. After a failure only tt_stitch_close is allowed. */
enum tt_status tt_stitch_begin(struct tt_stitch *stitch, const struct tt_window *window,
                               struct tt_error *err);

/* What is known already of queries first..first+count-1 in the window begun: init [count][clip.frames],
 * stitched values in the overlap, NaN in x behind it. Must be asked before these queries are added. Returns
 * the number of frames known, 0 for the first window (then tt_track_request.init can be NULL). */
int tt_stitch_init(const struct tt_stitch *stitch, int first, int count, struct tt_estimate *init);

/* The first of the frames that are sure, conf > 0.5 in core/seam.h's words, without a gap up to the newest
 * window; that window's first frame where the one before it is not. */
int64_t tt_stitch_sure_since(const struct tt_stitch *stitch, int query);

/* Adds the window's results [count][clip.frames] of queries first..first+count-1. Blocks must come in order:
 * first is where the block before ended. */
void tt_stitch_add(struct tt_stitch *stitch, int first, int count, const struct tt_estimate *result);

/* Before these queries are added: refutes their returns where the results do. believed: [count] those whose
 * query lies in the window or is joined to it by sure frames; they are left alone. What was done once can be
 * done again and changes nothing. Fails as the disk does. */
enum tt_status tt_stitch_doubt(struct tt_stitch *stitch, int first, int count, const bool *believed,
                               const struct tt_estimate *result, struct tt_error *err);

/* Whether a window refutes what is stitched of its shared frames [overlap]; *expected_dist: out, the least
 * for a return that these belong to. */
bool tt_stitch_refutes(const struct tt_estimate *stitched, const struct tt_estimate *fresh, int overlap,
                       float *expected_dist);

/* What tt_stitch_add does to a query's shared frames: [overlap] stitched ones and those of the window. */
void tt_stitch_blend(struct tt_estimate *stitched, const struct tt_estimate *fresh, int overlap);

/* Spills the last window. Afterwards only tt_stitch_read, _times, _frames and _close. */
enum tt_status tt_stitch_finish(struct tt_stitch *stitch, struct tt_error *err);

int64_t tt_stitch_frames(const struct tt_stitch *stitch); /* finished frames */

/* Reads finished estimates, clip pixels: rows [queries][frames]. These are the network's own values also at a
 * query's frame: core/trackfile sets the track to the query there. */
enum tt_status tt_stitch_read(struct tt_stitch *stitch, int first_query, int queries, int64_t first_frame,
                              int frames, struct tt_estimate *rows, struct tt_error *err);

/* Reads presentation times: time_s [frames]. */
enum tt_status tt_stitch_times(struct tt_stitch *stitch, int64_t first_frame, int frames, double *time_s,
                               struct tt_error *err);

void tt_stitch_close(struct tt_stitch *stitch); /* NULL is allowed */

#endif

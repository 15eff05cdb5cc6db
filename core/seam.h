/* core/seam.h: a second try within a window for the tracks that it loses.
 *
 * A query's own surroundings stop resembling the point once it has turned or changed too much; the network
 * then says itself that it is not sure. Where a track was sure before, in the frames that windows share or
 * later in the window, supports are taken there, at the anchor, and what lies behind is tracked once more
 * with them. The more confident of both is kept. A window always begins with the query's own supports, so
 * what a chain of anchors drifts does not last: as soon as these are sure again they alone count. Nothing is
 * carried from one window to the next but the stitched track, so a resumed job needs nothing more than its
 * checkpoint.
 *
 * The rule, per query, with conf = (1−σ(occlusion))(1−σ(expected_dist)); docs/LONG_VIDEOS.md says why:
 *
 *  1. row: the window's result; in shared frames the stitched estimate where that is more confident.
 *  2. The track is left where conf > TT_SEAM_SURE for more than half of the shared stitched frames, and in
 * more than half of these the result is elsewhere, by more than TT_SEAM_REACH, or has conf < 0.5. If the
 * stitched track is unbroken, conf > 0.5 in all frames since the query, it is believed and not the result.
 * (If it is broken, the result may be the point's return.)
 *  3. The anchor is the latest frame with TT_SEAM_STEADY neighbours on either side, all with conf >
 * TT_SEAM_SURE, at least TT_SEAM_BORDER pixels within the clip, not before the query's frame; of the shared
 * frames, if 2 holds.
 *  4. Where 2 holds, or where the mean conf of the frames behind these neighbours is at most TT_SEAM_SURE,
 * the window is tracked again: supports from the anchor, initialised with the row up to its neighbours where
 * conf > 0.5.
 *  5. That counts if it stays within TT_SEAM_REACH pixels of the row in the anchor and its neighbours, and
 * its mean conf behind them is greater by TT_SEAM_GAIN; or, where 2 holds, not less by more than
 * TT_SEAM_LOSS. Then it is taken from there on, cross-faded over the anchor and its neighbours, and the row
 * before.
 *  6. It does not count against a return: where the row is sure again behind the anchor, conf > TT_SEAM_SURE,
 * and in more than half of these frames is elsewhere, by more than TT_SEAM_REACH, than a second try that no
 * chain of frames with conf > 0.5 leads to from the query. What was held on to meanwhile may be another
 * thing.
 *  7. Where nothing is lost at the end, a dip is tried in the same way: what lies between two steady
 * stretches, each of 2 × TT_SEAM_STEADY + 1 frames with conf > TT_SEAM_SURE or more, if the point is in sight
 * throughout, conf > 0.5 in all its frames, and their mean conf is at most TT_SEAM_SURE; of several, where
 * the sum of 1 − conf is largest. (Where it is hidden, a second try would hold on to what hides it.) The
 * anchor is in the first stretch's end. It counts as in 5 and 6, and only if it arrives: within
 * TT_SEAM_ARRIVAL pixels of the row in the second stretch's first frames, which it is not told of. Then it is
 * taken up to there, and cross-faded there as well.
 *
 * A result that nothing was gained for is left as it is, bit for bit.
 */
#ifndef TT_CORE_SEAM_H
#define TT_CORE_SEAM_H

#include "core/backend.h"
#include "core/status.h"

/* ARRIVAL: a cross-fade over a steady stretch that ends with less moves a point by less than a pixel a frame.
 */
enum { TT_SEAM_STEADY = 3, TT_SEAM_BORDER = 16, TT_SEAM_REACH = 3, TT_SEAM_ARRIVAL = 8 };
#define TT_SEAM_SURE 0.95
#define TT_SEAM_GAIN 0.05
#define TT_SEAM_LOSS 0.02

struct tt_seam;

/* block: most queries of a call. Borrows backend (until close). TT_RETRY_LATER: no memory for block supports
 * and 2 × 47 estimates a query. */
enum tt_status tt_seam_open(struct tt_seam **seam, const struct tt_backend_ops *ops,
                            struct tt_backend *backend, int block, struct tt_error *err);

/* A block of queries in the clip that the backend holds. Borrows everything (until tt_seam_hold returns). */
struct tt_seam_block {
    int queries, frames;
    int overlap;          /* first frames that are known */
    const int *place;     /* [queries] the query's frame in the clip, or -1 */
    const bool *unbroken; /* [queries] its query lies behind, and the stitched track was sure since */
    const struct tt_estimate *known; /* [queries][frames] stitched estimates; read in the overlap */
};

/* Looks through a block's results [queries][frames] and betters them where it can. On failure, which is the
 * backend's, they are untouched. */
enum tt_status tt_seam_hold(struct tt_seam *seam, const struct tt_seam_block *block,
                            struct tt_estimate *result, struct tt_error *err);

void tt_seam_close(struct tt_seam *seam); /* NULL is allowed */

#endif

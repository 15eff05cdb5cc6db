/* core/refine/refine.h: tracks at the source's own resolution: around each estimate the query's patch is
 * found again, to a fraction of a stored pixel. docs/REFINE.md says how and why so.
 *
 *     tt_refine_open
 *     tt_refine_sample    for every frame that holds query points: takes their patches
 *     tt_refine_follow    for every frame from the first on
 *     tt_refine_close
 *
 * Positions are in pixels as they are stored (before pixel aspect, rotation and mirroring), raster
 * convention. Memory: a few patches a point and level, whatever the length of the video.
 */
#ifndef TT_CORE_REFINE_H
#define TT_CORE_REFINE_H

#include "core/decoder.h"
#include "core/status.h"

#include <stdbool.h>
#include <stdint.h>

/* Cuts patches out of the current frame: patches [count][TT_CUT_SIZE][TT_CUT_SIZE]. */
typedef enum tt_status tt_refine_cut(void *user, const struct tt_cut_place *places, int count,
                                     uint8_t *patches, struct tt_error *err);

/* What the tracker says of a point in the current frame. */
struct tt_refine_guess {
    float x, y;
    bool is_visible;
    bool is_query; /* this is the point's own frame, and x and y are the query's */
};

struct tt_refine_point {
    float x, y;
    bool is_refined; /* otherwise x and y are the guess's */
};

struct tt_refine;

/* width, height: of the frames as they are stored. threads: at least 1. TT_RETRY_LATER: no memory or threads.
 */
enum tt_status tt_refine_open(struct tt_refine **refine, int points, int width, int height, int threads,
                              struct tt_error *err);
void tt_refine_close(struct tt_refine *refine); /* NULL is allowed */

/* Takes the patches of the points whose own frame this is. guesses: [points]. Fails as cut does. */
enum tt_status tt_refine_sample(struct tt_refine *refine, const struct tt_refine_guess *guesses,
                                tt_refine_cut *cut, void *user, struct tt_error *err);

/* Refines all points in the next frame: guesses, result: [points]. Frames come in the video's order, each
 * once. A result is refined only where the query's patch fits better there than at the guess, and well.
 * Results do not depend on the number of threads or on the other points. Fails as cut does. */
enum tt_status tt_refine_follow(struct tt_refine *refine, const struct tt_refine_guess *guesses,
                                tt_refine_cut *cut, void *user, struct tt_refine_point *result,
                                struct tt_error *err);

#endif

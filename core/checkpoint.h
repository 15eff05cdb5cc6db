/* core/checkpoint.h: stitches whose files have names, so that a job that was interrupted goes on from its
 * last whole window.
 *
 *     PATH.tiles    estimates that are final, as core/window.c spills them
 *     PATH.times    presentation times
 *     PATH.state    how far these are valid, the newest window's estimates, and since when each track is
 * sure; replaced as a whole, with a checksum, after what it speaks of is durable
 *
 * The state carries an identity: whatever the results depend on, hashed by the caller. A state of another
 * identity, a damaged one, or one whose files are too short is as good as none.
 */
#ifndef TT_CORE_CHECKPOINT_H
#define TT_CORE_CHECKPOINT_H

#include "core/sha256.h"
#include "core/status.h"
#include "core/window.h"

#include <stdbool.h>
#include <stdint.h>

/* Opens a stitch on PATH's files. Where PATH.state is of this identity, *window is the last window that it
 * holds (clip.first_frame and clip.frames; no pixels, no times) and the stitch is as it was when that
 * window's queries were all added; otherwise clip.frames is 0, and the files are empty. queries: at least 1.
 */
enum tt_status tt_checkpoint_open(struct tt_stitch **stitch, int queries, const char *path,
                                  const char identity[TT_SHA256_HEX], struct tt_window *window,
                                  struct tt_error *err);

/* Makes everything up to the newest window durable; all queries must have been added to it (TT_REFUSE
 * otherwise). On failure the state before is still good. */
enum tt_status tt_checkpoint_save(struct tt_stitch *stitch, const char *path,
                                  const char identity[TT_SHA256_HEX], struct tt_error *err);

/* Removes PATH's files, the state first. None there is no failure. */
void tt_checkpoint_remove(const char *path);

/* For a job that has failed: where the disk is full and PATH's files are what fills it (16 MiB or more),
 * removes them, so that the daemon can write down what became of the job; its next attempt begins at the
 * first frame. The files must be closed. */
void tt_checkpoint_make_room(const char *path);

#endif

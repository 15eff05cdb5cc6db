/* core/export/npz.h: an uncompressed .npz of arrays that are made piece by piece. */
#ifndef TT_CORE_EXPORT_NPZ_H
#define TT_CORE_EXPORT_NPZ_H

#include "core/fsio.h"
#include "core/status.h"
#include "core/trackfile_parts.h"

/* An array; its bytes are `parts` pieces of equal size. */
struct tt_npz_array {
    const char *member; /* "pred_tracks.npy" */
    struct tt_npy npy;
    int64_t parts;
    enum tt_status (*make)(void *user, int64_t part, void *bytes, struct tt_error *err);
};

/* Writes the arrays in their order, each from its first part to its last. Memory: one part at a time. Borrows
 * everything (until it returns). */
enum tt_status tt_npz_write(struct tt_file *file, const struct tt_npz_array *arrays, int count, void *user,
                            struct tt_error *err);

#endif

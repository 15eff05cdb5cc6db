/* core/npz.h: an uncompressed .npz of arrays that are made piece by piece. */
#ifndef TT_CORE_NPZ_H
#define TT_CORE_NPZ_H

#include "core/fsio.h"
#include "core/status.h"
#include "core/trackfile_parts.h"

/* An array; its bytes are `parts` pieces of equal size, of which at most `at_a_time` are made at a time. */
struct tt_npz_array {
    const char *member; /* "pred_tracks.npy" */
    struct tt_npy npy;
    int64_t parts;
    int at_a_time;
    /* bytes [count] × part; calls ascend, and may begin again from the first */
    enum tt_status (*make)(void *user, int64_t first_part, int count, void *bytes, struct tt_error *err);
};

/* Writes the arrays in their order. Memory: at_a_time parts of one array. Members are stored, not compressed,
 * so that they can be mapped; times are fixed: equal data gives equal bytes. Borrows everything (until it
 * returns). */
enum tt_status tt_npz_write(struct tt_file *file, const struct tt_npz_array *arrays, int count, void *user,
                            struct tt_error *err);

#endif

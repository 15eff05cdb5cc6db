/* core/window_parts.h: what core/window.c and core/checkpoint.c share: the inside of a stitch. */
#ifndef TT_CORE_WINDOW_PARTS_H
#define TT_CORE_WINDOW_PARTS_H

#include "core/window.h"

#include <stdbool.h>

enum { TT_STITCH_SCRATCH = 4096 }; /* estimates; a tile's row has at most TT_CLIP_FRAMES of them */

struct tt_stitch {
    int queries;
    int tile_fd, time_fd;
    int64_t first;            /* first frame of the newest window */
    int frames;               /* of the newest window; 0: none yet */
    int overlap;              /* its first frames that are known from before */
    int added;                /* queries whose results in it are in */
    int shift;                /* frames of the newest tile, behind which the newest window begins */
    int step;                 /* frames of all tiles but the last two; 0: not known yet */
    bool slid;                /* the newest window slid back, so it is the last */
    int64_t finished;         /* frames, once finished */
    struct tt_estimate *held; /* [queries][TT_CLIP_FRAMES] */
    int64_t *since;           /* [queries] tt_stitch_sure_since */
    struct tt_estimate scratch[TT_STITCH_SCRATCH];
};

/* A stitch without files. */
enum tt_status tt_stitch_new(struct tt_stitch **stitch, int queries, struct tt_error *err);

/* Every query was added to the newest window, and the stitch is not finished. TT_REFUSE otherwise. */
enum tt_status tt_stitch_check_whole(const struct tt_stitch *stitch, struct tt_error *err);

#endif

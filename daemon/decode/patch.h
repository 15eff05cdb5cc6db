/* daemon/decode/patch.h: patches of a decoded frame as it is stored: neither turned nor resized. */
#ifndef TT_DECODE_PATCH_H
#define TT_DECODE_PATCH_H

#include "core/decoder_wire.h"

#include <libavutil/frame.h>

struct SwsContext;

/* Begin with {0}. */
struct tt_cutter {
    const uint8_t *grey; /* the frame's luma; borrowed from the frame, or pixels (until the next frame) */
    int width, height, stride;
    struct SwsContext *sws; /* where the luma does not lie there as bytes: into pixels */
    int format;
    uint8_t *pixels;
};

/* Takes a frame, which must live as long as patches are cut from it. A negative AVERROR where libswscale
 * cannot convert it: AVERROR(ENOMEM), or a pixel format that it does not read. */
int tt_cutter_frame(struct tt_cutter *cutter, const AVFrame *frame);

/* patch: out, [TT_CUT_SIZE][TT_CUT_SIZE]. False: no such level. */
bool tt_cutter_cut(const struct tt_cutter *cutter, const struct tt_cut_place *place, uint8_t *patch);

#endif

/* daemon/decode/whole.h: a decoded frame as it is displayed, in its own size. */
#ifndef TT_DECODE_WHOLE_H
#define TT_DECODE_WHOLE_H

#include "daemon/decode/scale.h"

/* Begin with {.width, .height, .orientation}. */
struct tt_whole {
    int width, height; /* as displayed: of what comes out */
    struct tt_orientation orientation;
    struct SwsContext *sws; /* for frames of the following properties */
    int frame_width, frame_height, format;
    enum AVChromaLocation chroma;
    struct tt_colour colour;
    uint8_t *rgb; /* displayed size, not turned: [rgb_height][stride] */
    int rgb_width, rgb_height, stride;
};

/* Converts and turns a frame; one of another size than the first is stretched over the same picture. out:
 * [height][width][3]. A negative AVERROR as tt_scaler_frame. */
int tt_whole_frame(struct tt_whole *whole, const AVFrame *frame, uint8_t *out);

#endif

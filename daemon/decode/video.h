/* daemon/decode/video.h: decodes a video into the ring. */
#ifndef TT_DECODE_VIDEO_H
#define TT_DECODE_VIDEO_H

#include "daemon/decode/input.h"
#include "daemon/decode/link.h"

/* Sends info, every frame, warnings and the end. TT_BAD_INPUT: nothing can be decoded, or a limit is passed.
 */
enum tt_status tt_video_decode(struct tt_input *input, struct tt_link *link,
                               const struct tt_wire_request *request, struct tt_error *err);

/* Decodes a PNG into the ring as a mask, one byte a pixel, and sends its size. */
enum tt_status tt_mask_decode(struct tt_input *input, struct tt_link *link,
                              const struct tt_wire_request *request, struct tt_error *err);

#endif

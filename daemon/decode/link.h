/* daemon/decode/link.h: the child's end of the messages of core/decoder_wire.h.
 *
 * All calls work on the descriptors TT_CHILD_CONTROL and TT_CHILD_RING. A parent that is gone ends the child
 * (exit code 0: nobody is left to tell).
 */
#ifndef TT_DECODE_LINK_H
#define TT_DECODE_LINK_H

#include "core/decoder_wire.h"

struct tt_link {
    uint8_t
        *ring; /* [TT_DECODER_SLOTS][TT_FRAME_BYTES], a mask, [TT_CUT_BATCH][TT_CUT_BYTES], or a picture */
    size_t ring_bytes;
    int credits; /* slots that may be written */
    int warnings;
    int64_t frames; /* that were sent */
};

/* Reads the request, which waits on the descriptor since before the child began. */
enum tt_status tt_link_request(struct tt_wire_request *request, struct tt_error *err);

/* Maps the ring. *link: out; its map lives as long as the process. */
enum tt_status tt_link_open(struct tt_link *link, const struct tt_wire_request *request,
                            struct tt_error *err);

void tt_link_hello(struct tt_link *link);
void tt_link_info(struct tt_link *link, const struct tt_video_info *info);
void tt_link_end(struct tt_link *link, bool truncated);
void tt_link_mask(struct tt_link *link, int width, int height);
void tt_link_error(struct tt_link *link, const struct tt_error *err);

/* One line for people; beyond TT_WIRE_MAX_WARNINGS they are dropped. */
void tt_link_warn(struct tt_link *link, const char *format, ...) __attribute__((format(printf, 2, 3)));

/* The next frame's place, [256][256][3]; waits for a free slot. Borrowed (until tt_link_frame). */
uint8_t *tt_link_slot(struct tt_link *link);

/* Hands over the frame that was written into the slot. */
void tt_link_frame(struct tt_link *link, double time_s);

/* Says that the next frame may be cut. */
void tt_link_picture(struct tt_link *link, double time_s, int width, int height);

/* Waits for the next order. A parent that sends something else gets no more of this child. */
void tt_link_order(struct tt_wire_order *order);

/* Says that the ring holds so many patches of the last picture. */
void tt_link_patches(struct tt_link *link, int count);

#endif

/* core/decoder_parts.h: what core/decoder.c and core/decoder_patches.c share: the inside of a decoder. */
#ifndef TT_CORE_DECODER_PARTS_H
#define TT_CORE_DECODER_PARTS_H

#include "core/decoder.h"
#include "core/decoder_wire.h"

enum tt_decoder_task { TT_DECODE_VIDEO, TT_DECODE_MASK, TT_DECODE_PATCHES, TT_DECODE_WHOLE };

struct tt_decoder {
    struct tt_decoder_options options;
    pid_t pid; /* 0 once reaped */
    int control;
    uint8_t *ring; /* mapped read-only */
    size_t ring_bytes;
    struct tt_wire_state wire;
    struct tt_video_info info;
    int used; /* slots that are read and not given back yet */
    bool truncated;
    char *warnings[TT_WIRE_MAX_WARNINGS];
    struct tt_error failure; /* .status is TT_OK as long as nothing failed */
};

/* Starts a child; its first message is still to come. */
enum tt_status tt_decoder_start(struct tt_decoder **decoder, int fd, const struct tt_decoder_options *options,
                                enum tt_decoder_task task, struct tt_error *err);

/* Kills the child if it has not ended by itself, and reaps it. Returns its wait status; -1: somebody else
 * reaped it. A child that is already dying keeps the status that it is dying of. */
int tt_decoder_reap(struct tt_decoder *decoder);

/* The next message that is neither hello nor a warning. Errors of the child become this call's. On any
 * failure the child is dead and the failure is kept. */
enum tt_status tt_decoder_news(struct tt_decoder *decoder, struct tt_wire_message *message,
                               struct tt_error *err);

#endif

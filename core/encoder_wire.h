/* core/encoder_wire.h: the messages between core/encoder.c and tiletrack-encode.
 *
 * Each is one packet of a SOCK_SEQPACKET pair, exactly struct tt_encode_message.
 *
 *     parent -> child   REQUEST (FRAME)* END
 *     child -> parent   HELLO (FREE)* (END | ERROR)
 *
 * Frame n lies in slot n % TT_ENCODER_SLOTS of the ring, [height][width][3]; FREE n gives that slot back.
 * HELLO comes when the encoder is open and the child confined; END when the file is whole.
 */
#ifndef TT_CORE_ENCODER_WIRE_H
#define TT_CORE_ENCODER_WIRE_H

#include "core/child.h"
#include "core/encoder.h"

enum {
    TT_ENCODE_MAGIC = 0x32455454, /* "TTE2" in memory: raised with every change of this file */
    TT_ENCODE_TEXT_BYTES = 256,
    TT_ENCODE_TICKS = 120000, /* of a second: frames of all usual rates last whole numbers of them */
    TT_ENCODE_FRAMES_MAX = 1 << 24,
};

enum tt_encode_type {
    TT_ENCODE_REQUEST = 1,
    TT_ENCODE_HELLO,
    TT_ENCODE_FRAME,
    TT_ENCODE_FREE,
    TT_ENCODE_END,
    TT_ENCODE_ERROR,
};

/* What a type does not name is 0. */
struct tt_encode_message {
    uint32_t magic, type;
    int64_t number;        /* FRAME, FREE: of the frame; REQUEST: bytes of the ring */
    int64_t frames;        /* REQUEST: at most so many will come */
    int64_t ticks;         /* FRAME: its time; REQUEST: a usual frame's duration */
    int32_t width, height; /* REQUEST */
    int32_t kind, threads, parent_pid;
    int32_t status;                  /* ERROR: enum tt_status */
    char text[TT_ENCODE_TEXT_BYTES]; /* ERROR: why; REQUEST: the codec, or ""; HELLO: the codec */
};

#endif

/* core/encoder.h: the parent's side of tiletrack-encode, the confined child that makes a video or a picture
 * of frames, through libav.
 *
 * One encoder is one child and one file. Frames are written by the caller into memory that both share; the
 * child may be TT_ENCODER_SLOTS frames behind. An encoder is used by one thread at a time, and its child dies
 * with the thread that opened it.
 *
 *     tt_encoder_open -> (tt_encoder_slot -> tt_encoder_put)* -> tt_encoder_finish -> tt_encoder_close
 */
#ifndef TT_CORE_ENCODER_H
#define TT_CORE_ENCODER_H

#include "core/status.h"

#include <stdint.h>
#include <sys/types.h>

enum { TT_ENCODER_SLOTS = 3, TT_ENCODER_SIDE_MAX = 16384 };

enum tt_encoder_kind {
    TT_ENCODE_MP4, /* H.264 where this libav has it; yuv420p, so odd sides get one pixel more */
    TT_ENCODE_PNG, /* one frame */
};

/* What will be put. */
struct tt_encoder_frames {
    int width, height;
    int64_t count;  /* at most so many: MP4 keeps room for its index in front of them */
    double frame_s; /* a usual frame's duration, for rate control and for the last frame; 0: not known */
};

struct tt_encoder_options {
    const char *program; /* NULL: tiletrack-encode, as core/install.h finds it */
    const char *codec;   /* libav's name of an encoder, "libx264"; NULL: the best that is there */
    int interrupt_fd;  /* becomes readable when the caller wants to stop; -1: none. Borrowed (until close) */
    int threads;       /* of the encoder; 0: as many as it likes */
    int stall_seconds; /* longest wait for a free slot or for the end, by the clock */
};

#define TT_ENCODER_DEFAULTS ((struct tt_encoder_options){.interrupt_fd = -1, .stall_seconds = 120})

struct tt_encoder;

/* Starts the child. file_fd: open for writing, empty; borrowed (until close), its position counts for
 * nothing. TT_REFUSE: no encoder program or codec, or a kernel that cannot confine it; TT_BAD_INPUT: no
 * picture of that size, or not so many, can be encoded; TT_RETRY_LATER; TT_INTERRUPTED. */
enum tt_status tt_encoder_open(struct tt_encoder **encoder, int file_fd, enum tt_encoder_kind kind,
                               const struct tt_encoder_frames *frames,
                               const struct tt_encoder_options *options, struct tt_error *err);

/* The encoder that was chosen, by libav's name. Borrowed (until close). */
const char *tt_encoder_codec(const struct tt_encoder *encoder);

/* Where the next frame is to be written, [height][width][3] RGB; waits until a slot is free. Borrowed (until
 * tt_encoder_put). TT_RETRY_LATER: the disk is full, the child died or stands still; TT_INTERRUPTED. After a
 * failure only close makes sense. */
enum tt_status tt_encoder_slot(struct tt_encoder *encoder, uint8_t **rgb, struct tt_error *err);

/* Hands it over; no more than were announced. time_s counts from the first frame's, whatever that is; times
 * that do not grow are moved on by the least that the file can say. */
enum tt_status tt_encoder_put(struct tt_encoder *encoder, double time_s, struct tt_error *err);

/* Ends the file and waits until all of it is written (not synced). Errors as tt_encoder_slot. */
enum tt_status tt_encoder_finish(struct tt_encoder *encoder, struct tt_error *err);

/* Kills the child if it still runs, and reaps it. NULL is allowed. */
void tt_encoder_close(struct tt_encoder *encoder);

/* The child's process id, for tests and logs; 0 once it is reaped. */
pid_t tt_encoder_pid(const struct tt_encoder *encoder);

#endif

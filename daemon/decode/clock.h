/* daemon/decode/clock.h: from the timestamps that a file has to the times that its frames get. */
#ifndef TT_DECODE_CLOCK_H
#define TT_DECODE_CLOCK_H

#include <stdbool.h>
#include <stdint.h>

/* Earlier than the frame before by more than this many frames: the file's clock was set back. */
enum { TT_CLOCK_BACK_FRAMES = 4 };

/* Begin with {.frame_s = ...}. */
struct tt_clock {
    double frame_s; /* one frame's duration, from the frame rate */
    bool begun;
    double last_s;   /* of the frame before */
    double offset_s; /* added to the file's timestamps since its clock was set back */
    double anchor_s; /* made-up times count from here */
    int64_t since_anchor;
    int64_t made_up, clamped, jumps; /* frames */
};

/* The next frame's time in seconds, never less than the one before.
 * Without a timestamp: one frame duration after the one before. Earlier than the one before by up to
 * TT_CLOCK_BACK_FRAMES: the same as the one before. Earlier by more: the file's clock was set back (joined
 * files); it goes on one frame duration after the one before, and all that follow move along. */
double tt_clock_next(struct tt_clock *clock, bool has_timestamp, double timestamp_s);

#endif

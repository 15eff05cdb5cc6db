/* daemon/decode/clock.c: presentation times that never decrease. Pure arithmetic; cannot fail. */
#include "daemon/decode/clock.h"

double tt_clock_next(struct tt_clock *clock, bool has_timestamp, double timestamp_s)
{
    double time_s = timestamp_s + clock->offset_s;

    if (!has_timestamp) {
        clock->made_up++;
        clock->since_anchor += clock->begun;
        time_s = clock->anchor_s + (double)clock->since_anchor * clock->frame_s;
    } else if (clock->begun && time_s < clock->last_s - TT_CLOCK_BACK_FRAMES * clock->frame_s) {
        clock->jumps++;
        clock->offset_s += clock->last_s + clock->frame_s - time_s;
        time_s = clock->last_s + clock->frame_s;
    } else if (clock->begun && time_s < clock->last_s) {
        clock->clamped++;
        time_s = clock->last_s;
    }
    if (has_timestamp) {
        clock->anchor_s = time_s;
        clock->since_anchor = 0;
    }
    clock->begun = true;
    clock->last_s = time_s;
    return time_s;
}

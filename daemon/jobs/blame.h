/* daemon/jobs/blame.h: whose fault it is that a job failed: the input's or the device's.
 *
 * A worker that dies is charged to the input only if the input has failed before, on another device or before
 * a restart. A device whose jobs fail one after another with different inputs is sick: it is retired, and
 * what it charged is given back. Pure bookkeeping in memory; who charges and refunds is the caller
 * (daemon/jobs/jobs.c).
 */
#ifndef TT_DAEMON_JOBS_BLAME_H
#define TT_DAEMON_JOBS_BLAME_H

#include "daemon/spool/manifest.h"

#include <stdbool.h>

enum {
    TT_BLAME_SICK = 3,     /* different inputs that failed in a row */
    TT_BLAME_SLOTS = 1024, /* more than any machine has devices */
    TT_BLAME_ENTRIES = 8,  /* of one job; the oldest are forgotten */
};

/* Where an input has failed. All zero: nowhere. */
struct tt_suspicion {
    int count;
    struct {
        short slot;
        bool charged;
    } entries[TT_BLAME_ENTRIES];
};

/* The inputs that failed on a device since the last one that did not. All zero: none. */
struct tt_streak {
    int count; /* stays at TT_BLAME_SICK */
    char jobs[TT_BLAME_SICK][TT_JOB_ID_BYTES];
};

void tt_suspicion_add(struct tt_suspicion *suspicion, int slot, bool charged);

/* Whether the input has failed on this device. */
bool tt_suspicion_on(const struct tt_suspicion *suspicion, int slot);

/* Forgets what happened on this device; returns how many charges are to be given back. */
int tt_suspicion_clear(struct tt_suspicion *suspicion, int slot);

/* The job failed there. True: the device is sick. */
bool tt_streak_add(struct tt_streak *streak, const char *job);
void tt_streak_end(struct tt_streak *streak); /* a job did not fail */
bool tt_streak_is_sick(const struct tt_streak *streak);

#endif

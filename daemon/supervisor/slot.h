/* daemon/supervisor/slot.h: what the supervisor's own files share. */
#ifndef TT_DAEMON_SUPERVISOR_SLOT_H
#define TT_DAEMON_SUPERVISOR_SLOT_H

#include "daemon/supervisor/supervisor.h"

#include <limits.h>

struct tt_supervisor {
    uv_loop_t *loop;
    const struct tt_config *config; /* borrowed */
    struct tt_log *log;             /* borrowed */
    struct tt_supervisor_hooks hooks;
    char program[PATH_MAX];
    bool stopping;
    int count;
    struct tt_slot slots[];
};

/* The state's timer. */
void tt_slot_arm(struct tt_slot *slot, int64_t wait_ms);
void tt_slot_enter(struct tt_slot *slot, enum tt_slot_state state, int64_t wait_ms);

/* Starts a process; where that fails the slot waits for another try. */
void tt_slot_spawn(struct tt_slot *slot);

/* How long a slot without a process waits for the next. */
int64_t tt_slot_wait_ms(const struct tt_slot *slot);

/* Sends what needs no answer; a worker that does not listen is killed and ends the usual way. */
void tt_slot_say(struct tt_slot *slot, const struct tt_message *message);

/* Asks the process to end, and sees to it that it does. */
void tt_slot_end(struct tt_slot *slot, bool stop_job);

/* The same for one that does not read messages. */
void tt_slot_terminate(struct tt_slot *slot);

/* Takes no jobs until a later try succeeds; said once for each cause. */
void tt_slot_put_out(struct tt_slot *slot, const char *cause, int64_t retry_ms);

bool tt_supervisor_any_process(const struct tt_supervisor *supervisor);

#endif

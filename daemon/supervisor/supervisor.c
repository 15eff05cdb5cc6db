/* daemon/supervisor/supervisor.c: what others ask of slots, and of all of them.
 *
 * Fails only at creation; a worker that does not listen is ended and tells of that as of any other death.
 */
#include "daemon/supervisor/slot.h"

#include "core/install.h"
#include "daemon/clock.h"

#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* --- what others ask for ----------------------------------------------------------------------------------
 */

struct tt_message_decoder tt_decoder_message(void)
{
    const struct tt_decoder_options options = TT_DECODER_DEFAULTS;

    return (struct tt_message_decoder){.threads = options.threads,
                                       .resize = options.resize,
                                       .max_pixels = options.max_pixels,
                                       .max_frames = options.max_frames,
                                       .memory_bytes = options.memory_bytes,
                                       .cpu_seconds = options.cpu_seconds,
                                       .stall_seconds = options.stall_seconds};
}

enum tt_status tt_slot_run(struct tt_slot *slot, const struct tt_message_job *job, struct tt_error *err)
{
    const struct tt_message message = {.type = TT_MESSAGE_JOB, .body.job = *job};
    enum tt_status status = tt_link_send(slot->link, &message, err);

    if (status == TT_RESTART_WORKER)
        tt_slot_terminate(slot);
    if (status)
        return status;
    slot->has_job = slot->had_job = true;
    snprintf(slot->job, sizeof slot->job, "%s", job->id);
    slot->job_began_ms = slot->heard_ms = tt_clock_ms();
    slot->stage = TT_JOB_OPENING;
    slot->frames = slot->expected_frames = 0;
    slot->ping_open = false;
    slot->last_words[0] = slot->cause[0] = '\0';
    tt_slot_enter(slot, TT_SLOT_BUSY, slot->supervisor->config->workers.stall_ms);
    return TT_OK;
}

void tt_slot_prefetch(struct tt_slot *slot, const struct tt_message_prefetch *prefetch)
{
    const struct tt_message_prefetch none = {.id = "", .video = "", .decoder = tt_decoder_message()};
    const struct tt_message message = {.type = TT_MESSAGE_PREFETCH,
                                       .body.prefetch = prefetch ? *prefetch : none};

    if (tt_slot_in_service(slot))
        tt_slot_say(slot, &message);
}

void tt_slot_cancel(struct tt_slot *slot)
{
    const struct tt_message message = {.type = TT_MESSAGE_CANCEL, .body.cancel = {.id = slot->job}};

    if (slot->has_job)
        tt_slot_say(slot, &message);
}

void tt_slot_retire(struct tt_slot *slot, const char *cause)
{
    slot->retirements++;
    tt_slot_put_out(slot, cause, tt_slot_wait_ms(slot));
    slot->expected = true;
    if (slot->state == TT_SLOT_IDLE)
        tt_slot_end(slot, true);
    else if (slot->state == TT_SLOT_DOWN)
        tt_slot_arm(slot, tt_slot_wait_ms(slot));
}

void tt_supervisor_configure(struct tt_supervisor *supervisor, const struct tt_config *config, bool renew)
{
    supervisor->config = config;
    for (int i = 0; renew && i < supervisor->count; i++) {
        struct tt_slot *slot = &supervisor->slots[i];

        slot->renew = slot->link != NULL;
        if (slot->state == TT_SLOT_IDLE || slot->state == TT_SLOT_STARTING) {
            slot->expected = true;
            if (slot->state == TT_SLOT_IDLE)
                tt_slot_end(slot, false);
            else
                tt_slot_terminate(slot);
        }
    }
}

void tt_supervisor_reopen_logs(struct tt_supervisor *supervisor)
{
    const struct tt_message message = {.type = TT_MESSAGE_REOPEN_LOG};

    for (int i = 0; i < supervisor->count; i++)
        tt_slot_say(&supervisor->slots[i], &message);
}

static void stop_slot(struct tt_slot *slot, enum tt_stop how)
{
    if (!slot->link) {
        uv_timer_stop(&slot->timer);
        return;
    }
    if (how == TT_STOP_DRAIN && slot->state == TT_SLOT_BUSY)
        return;
    slot->expected = true;
    if (how == TT_STOP_KILL)
        tt_link_signal(slot->link, SIGKILL);
    else if (slot->state == TT_SLOT_STARTING)
        tt_slot_terminate(slot);
    else if (slot->state != TT_SLOT_ENDING)
        tt_slot_end(slot, true);
}

void tt_supervisor_stop(struct tt_supervisor *supervisor, enum tt_stop how)
{
    supervisor->stopping = true;
    for (int i = 0; i < supervisor->count; i++)
        stop_slot(&supervisor->slots[i], how);
    if (!tt_supervisor_any_process(supervisor))
        supervisor->hooks.gone(supervisor->hooks.user);
}

/* --- creation ---------------------------------------------------------------------------------------------
 */

enum tt_status tt_supervisor_create(struct tt_supervisor **supervisor, uv_loop_t *loop,
                                    const struct tt_config *config, struct tt_log *log,
                                    const struct tt_device_choice *choices, int count,
                                    const struct tt_supervisor_hooks *hooks, struct tt_error *err)
{
    struct tt_supervisor *made = calloc(1, sizeof *made + (size_t)count * sizeof *made->slots);
    enum tt_status status;

    if (!made)
        return tt_fail_errno(err, TT_RETRY_LATER, ENOMEM, "supervisor");
    made->loop = loop;
    made->config = config;
    made->log = log;
    made->hooks = *hooks;
    made->count = count;
    status = tt_install_program(made->program, sizeof made->program, "tiletrack-worker", err);
    if (status) {
        free(made);
        return status;
    }
    for (int i = 0; i < count; i++) {
        struct tt_slot *slot = &made->slots[i];

        slot->supervisor = made;
        slot->index = i;
        slot->choice = choices[i];
        uv_timer_init(loop, &slot->timer);
        slot->timer.data = slot;
    }
    *supervisor = made;
    return TT_OK;
}

void tt_supervisor_start(struct tt_supervisor *supervisor)
{
    for (int i = 0; i < supervisor->count; i++)
        tt_slot_spawn(&supervisor->slots[i]);
}

void tt_supervisor_free(struct tt_supervisor *supervisor)
{
    free(supervisor);
}

bool tt_supervisor_warms_up(const struct tt_supervisor *supervisor)
{
    for (int i = 0; i < supervisor->count; i++)
        if (supervisor->slots[i].state == TT_SLOT_STARTING)
            return true;
    return false;
}

int tt_supervisor_count(const struct tt_supervisor *supervisor)
{
    return supervisor->count;
}

struct tt_slot *tt_supervisor_slot(struct tt_supervisor *supervisor, int index)
{
    return &supervisor->slots[index];
}

/* daemon/supervisor/slot.c: the life of one worker: started, heard, ended, started again.
 *
 * Invariants: a slot has at most one process; a job that tt_slot_run took is reported exactly once, and where
 * its process had to die, after that is gone, so that nobody writes into the job's directory any more. Each
 * state that can last too long has its timer. A slot never gives up: it waits, longer and longer.
 */
#include "daemon/supervisor/slot.h"

#include "daemon/clock.h"
#include "daemon/spool/queue.h"

#include <errno.h>
#include <jansson.h>
#include <limits.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum {
    EARLY_DEATHS = 3,                /* in a row, before a first job: out of service */
    BUSY_TRIES = 3,                  /* before a busy device counts as out of service */
    PING_MS = 10000,                 /* of an idle worker */
    LATE_MS = 2000,                  /* a timer that is later than this: we were stopped, not the worker */
    RETIRED_MAX_MS = 30 * 60 * 1000, /* longest wait of a sick device */
    HEARTBEAT_MS = 1000,
};

const char *const tt_slot_state_names[TT_SLOT_STATES] = {"down", "starting", "idle", "busy", "ending"};

static void on_timer(uv_timer_t *timer);

/* --- small parts ------------------------------------------------------------------------------------------
 */

void tt_slot_arm(struct tt_slot *slot, int64_t wait_ms)
{
    uv_update_time(slot->supervisor->loop);
    slot->due_ms = tt_clock_ms() + wait_ms;
    uv_timer_start(&slot->timer, on_timer, (uint64_t)(wait_ms > 0 ? wait_ms : 0), 0);
}

void tt_slot_enter(struct tt_slot *slot, enum tt_slot_state state, int64_t wait_ms)
{
    slot->state = state;
    tt_slot_arm(slot, wait_ms);
}

bool tt_slot_in_service(const struct tt_slot *slot)
{
    return slot->state == TT_SLOT_IDLE || slot->state == TT_SLOT_BUSY;
}

bool tt_slot_is_free(const struct tt_slot *slot)
{
    return slot->state == TT_SLOT_IDLE && !slot->renew && !slot->supervisor->stopping;
}

void tt_slot_put_out(struct tt_slot *slot, const char *cause, int64_t retry_ms)
{
    if (!slot->out_of_service || strcmp(slot->cause, cause) != 0)
        tt_log(slot->supervisor->log, TT_LOG_ERROR, "device_out_of_service",
               TT_STR("worker", slot->choice.name),
               TT_STR("device", slot->device[0] ? slot->device : slot->choice.select), TT_STR("cause", cause),
               TT_INT("retry_ms", retry_ms));
    slot->out_of_service = true;
    if (cause != slot->cause)
        snprintf(slot->cause, sizeof slot->cause, "%s", cause);
}

/* Sends what needs no answer; a worker that does not listen is killed and ends the usual way. */
void tt_slot_say(struct tt_slot *slot, const struct tt_message *message)
{
    struct tt_error err;

    if (slot->link && tt_link_send(slot->link, message, &err))
        tt_link_signal(slot->link, SIGKILL);
}

/* Asks the process to end, and sees to it that it does. */
void tt_slot_end(struct tt_slot *slot, bool stop_job)
{
    const struct tt_message message = {.type = TT_MESSAGE_SHUTDOWN, .body.shutdown = {.now = stop_job}};

    tt_slot_enter(slot, TT_SLOT_ENDING, slot->supervisor->config->workers.kill_ms);
    tt_slot_say(slot, &message);
}

/* The same for one that does not read messages. */
void tt_slot_terminate(struct tt_slot *slot)
{
    tt_slot_enter(slot, TT_SLOT_ENDING, slot->supervisor->config->workers.kill_ms);
    tt_link_signal(slot->link, SIGTERM);
}

/* --- starting ---------------------------------------------------------------------------------------------
 */

static void say_setup(struct tt_slot *slot)
{
    const struct tt_supervisor *supervisor = slot->supervisor;
    const struct tt_config *config = supervisor->config;
    const struct tt_device_choice *choice = &slot->choice;
    int64_t heartbeat_ms = config->workers.stall_ms / 4;
    char lock[PATH_MAX];
    struct tt_message message = {.type = TT_MESSAGE_SETUP};

    snprintf(lock, sizeof lock, "%s/device-%s.lock", config->daemon.runtime_dir, choice->name);
    message.body.setup = (struct tt_message_setup){
        .worker = choice->name,
        .supervisor = getpid(),
        .backend = choice->gpu ? "cuda" : "cpu",
        .select = choice->select,
        .arch = choice->sm_75 ? "sm_75" : "",
        .threads = choice->threads,
        .precision = choice->precision,
        .tile_queries = choice->tile_queries,
        .tile_frames = choice->tile_frames,
        .model = config->tracker.model,
        .lock = lock,
        .heartbeat_ms = heartbeat_ms < HEARTBEAT_MS ? heartbeat_ms : HEARTBEAT_MS,
        .log_level = config->log.level,
        .log_format = config->log.format,
        .log_file = config->log.file ? config->log.file : "",
        .log_burst = config->log.burst,
    };
    tt_slot_say(slot, &message);
}

static void on_message(void *user, const struct tt_message *message);
static void on_ended(void *user, const struct tt_link_end *end);

int64_t tt_slot_wait_ms(const struct tt_slot *slot)
{
    const struct tt_config *config = slot->supervisor->config;

    if (slot->retirements > 0)
        return tt_backoff_ms(slot->retirements, config->workers.respawn_max_ms, RETIRED_MAX_MS, 0);
    if (slot->out_of_service)
        return config->workers.respawn_max_ms;
    return tt_backoff_ms(slot->deaths > 0 ? slot->deaths : 1, config->workers.respawn_ms,
                         config->workers.respawn_max_ms, 0);
}

void tt_slot_spawn(struct tt_slot *slot)
{
    struct tt_supervisor *supervisor = slot->supervisor;
    const struct tt_link_hooks hooks = {.message = on_message, .ended = on_ended, .user = slot};
    struct tt_error err;

    slot->expected = slot->refused = slot->had_job = slot->ping_open = slot->renew = false;
    slot->last_words[0] = '\0';
    if (tt_link_start(&slot->link, supervisor->loop, supervisor->program, &hooks, &err)) {
        int64_t wait_ms;

        slot->deaths++;
        wait_ms = tt_slot_wait_ms(slot);
        tt_slot_put_out(slot, err.text, wait_ms);
        tt_slot_enter(slot, TT_SLOT_DOWN, wait_ms);
        return;
    }
    tt_slot_enter(slot, TT_SLOT_STARTING, supervisor->config->workers.start_ms);
    say_setup(slot);
}

/* --- what workers say -------------------------------------------------------------------------------------
 */

/* A name for people out of the description that the backend gave. */
static void note_device(struct tt_slot *slot, const struct tt_message_hello *hello)
{
    json_t *json = json_loads(hello->device, 0, NULL);
    const char *name = json_string_value(json_object_get(json, "device"));

    snprintf(slot->device, sizeof slot->device, "%s", name ? name : hello->backend);
    json_decref(json);
    snprintf(slot->plan, sizeof slot->plan, "%lldx%lld", (long long)hello->tile_queries,
             (long long)hello->tile_frames);
    slot->start_ms = hello->start_ms;
}

static void on_hello(struct tt_slot *slot, const struct tt_message_hello *hello)
{
    struct tt_supervisor *supervisor = slot->supervisor;

    if (slot->state != TT_SLOT_STARTING)
        return;
    if (hello->status != TT_OK) {
        slot->refused = true;
        /* A device that is busy may be held by the last process that had it, which is on its way out. */
        slot->busy_tries = hello->status == TT_RETRY_LATER ? slot->busy_tries + 1 : BUSY_TRIES;
        if (slot->busy_tries >= BUSY_TRIES)
            tt_slot_put_out(slot, hello->text, supervisor->config->workers.respawn_max_ms);
        tt_slot_terminate(slot);
        return;
    }
    slot->busy_tries = 0;
    note_device(slot, hello);
    if (supervisor->stopping) {
        slot->expected = true;
        tt_slot_end(slot, true);
        return;
    }
    tt_log(supervisor->log, TT_LOG_INFO, "device_ready", TT_STR("worker", slot->choice.name),
           TT_STR("device", slot->device), TT_STR("precision", hello->precision == TT_FP16 ? "fp16" : "fp32"),
           TT_STR("plan", slot->plan), TT_INT("start_ms", hello->start_ms));
    slot->out_of_service = false;
    slot->cause[0] = '\0';
    tt_slot_enter(slot, TT_SLOT_IDLE, PING_MS);
    supervisor->hooks.changed(supervisor->hooks.user);
}

/* The job is over; the process lives. */
static void become_free(struct tt_slot *slot)
{
    slot->has_job = false;
    if (slot->state == TT_SLOT_ENDING)
        return;
    tt_slot_enter(slot, TT_SLOT_IDLE, PING_MS);
    if (slot->supervisor->stopping || slot->renew) {
        slot->expected = true;
        tt_slot_end(slot, false);
    }
}

static void report(struct tt_slot *slot, const struct tt_report *report_of_job)
{
    struct tt_supervisor *supervisor = slot->supervisor;

    supervisor->hooks.ended(supervisor->hooks.user, slot, report_of_job);
    supervisor->hooks.changed(supervisor->hooks.user);
}

static void on_done(struct tt_slot *slot, const struct tt_message_done *done)
{
    const struct tt_report made = {
        .kind = TT_REPORT_DONE, .done = done, .text = "", .last_words = slot->last_words};

    slot->deaths = slot->retirements = 0;
    slot->early_deaths = 0;
    slot->jobs_done++;
    become_free(slot);
    report(slot, &made);
}

static void on_failed(struct tt_slot *slot, const struct tt_message_failed *failed)
{
    const struct tt_report made = {.kind = TT_REPORT_FAILED,
                                   .status = (enum tt_status)failed->status,
                                   .cause = (enum tt_failed_cause)failed->cause,
                                   .text = failed->text,
                                   .last_words = slot->last_words};

    if (slot->state == TT_SLOT_ENDING && !slot->expected && failed->cause == TT_FAILED_SHUTDOWN)
        return; /* it stalled and heard our SIGTERM all the same: its end will be told */
    become_free(slot);
    if (failed->status == TT_RESTART_WORKER && slot->state == TT_SLOT_IDLE)
        tt_slot_enter(slot, TT_SLOT_ENDING,
                      slot->supervisor->config->workers.kill_ms); /* it exits by itself */
    report(slot, &made);
}

static void on_progress(struct tt_slot *slot, const struct tt_message_progress *progress)
{
    slot->stage = (enum tt_job_stage)progress->stage;
    slot->frames = progress->frames;
    if (progress->expected > slot->expected_frames)
        slot->expected_frames = progress->expected;
}

static void on_started(struct tt_slot *slot, const struct tt_message_started *started)
{
    struct tt_supervisor *supervisor = slot->supervisor;

    snprintf(slot->plan, sizeof slot->plan, "%lldx%lld", (long long)started->tile_queries,
             (long long)started->tile_frames);
    if (started->frames_hint > slot->expected_frames)
        slot->expected_frames = started->frames_hint;
    supervisor->hooks.started(supervisor->hooks.user, slot, started);
}

static bool is_its_job(const struct tt_slot *slot, const char *id)
{
    return slot->has_job && strcmp(slot->job, id) == 0;
}

static void on_message(void *user, const struct tt_message *message)
{
    struct tt_slot *slot = user;

    slot->heard_ms = tt_clock_ms();
    switch (message->type) {
    case TT_MESSAGE_HELLO:
        on_hello(slot, &message->body.hello);
        break;
    case TT_MESSAGE_STARTED:
        if (is_its_job(slot, message->body.started.id))
            on_started(slot, &message->body.started);
        break;
    case TT_MESSAGE_PROGRESS:
        if (is_its_job(slot, message->body.progress.id))
            on_progress(slot, &message->body.progress);
        break;
    case TT_MESSAGE_WARNING:
        if (is_its_job(slot, message->body.warning.id))
            tt_log(slot->supervisor->log, TT_LOG_WARNING, "job_warning", TT_STR("job", slot->job),
                   TT_STR("worker", slot->choice.name), TT_STR("cause", message->body.warning.text));
        snprintf(slot->last_words, sizeof slot->last_words, "%s", message->body.warning.text);
        break;
    case TT_MESSAGE_DONE:
        if (is_its_job(slot, message->body.done.id))
            on_done(slot, &message->body.done);
        break;
    case TT_MESSAGE_FAILED:
        if (is_its_job(slot, message->body.failed.id))
            on_failed(slot, &message->body.failed);
        break;
    case TT_MESSAGE_PONG:
        slot->ping_open = slot->ping_open && message->body.ping.serial != slot->ping;
        break;
    default:
        break;
    }
}

/* --- ends -------------------------------------------------------------------------------------------------
 */

static void describe_end(const struct tt_slot *slot, const struct tt_link_end *ended, char *text,
                         size_t bytes)
{
    if (slot->cause[0] && slot->state == TT_SLOT_ENDING && !slot->out_of_service)
        snprintf(text, bytes, "%s", slot->cause); /* why we ended it */
    else if (ended->problem[0])
        snprintf(text, bytes, "the worker broke the protocol: %s", ended->problem);
    else if (ended->signal)
        snprintf(text, bytes, "the worker was killed by signal %d (%s)", ended->signal,
                 strsignal(ended->signal));
    else
        snprintf(text, bytes, "the worker exited with status %d", ended->exit_status);
}

bool tt_supervisor_any_process(const struct tt_supervisor *supervisor)
{
    for (int i = 0; i < supervisor->count; i++)
        if (supervisor->slots[i].link)
            return true;
    return false;
}

/* What comes after a process. */
static void wait_or_go(struct tt_slot *slot)
{
    struct tt_supervisor *supervisor = slot->supervisor;

    if (supervisor->stopping) {
        uv_timer_stop(&slot->timer);
        slot->state = TT_SLOT_DOWN;
    } else if (slot->expected && slot->retirements == 0) {
        slot->state = TT_SLOT_DOWN;
        tt_slot_spawn(slot);
    } else {
        tt_slot_enter(slot, TT_SLOT_DOWN, tt_slot_wait_ms(slot));
    }
    if (supervisor->stopping && !tt_supervisor_any_process(supervisor))
        supervisor->hooks.gone(supervisor->hooks.user);
}

static void on_ended(void *user, const struct tt_link_end *ended)
{
    struct tt_slot *slot = user;
    int pid = tt_link_pid(slot->link);
    bool was_busy = slot->has_job;
    char text[TT_ERROR_TEXT_BYTES];

    describe_end(slot, ended, text, sizeof text);
    slot->link = NULL;
    slot->has_job = false;
    slot->exits++;
    if (!slot->expected && !slot->refused) {
        slot->deaths++;
        slot->early_deaths = slot->had_job ? 0 : slot->early_deaths + 1;
        if (slot->early_deaths >= EARLY_DEATHS)
            tt_slot_put_out(slot, text, slot->supervisor->config->workers.respawn_max_ms);
        else if (!slot->out_of_service)
            slot->cause[0] = '\0';
        tt_log(slot->supervisor->log, TT_LOG_WARNING, "worker_exited", TT_STR("worker", slot->choice.name),
               TT_INT("pid", pid), TT_INT("status", ended->exit_status), TT_INT("signal", ended->signal),
               TT_STR("cause", text), TT_INT("respawn_ms", tt_slot_wait_ms(slot)));
    }
    slot->state = TT_SLOT_DOWN;
    if (was_busy)
        report(slot, &(struct tt_report){.kind = slot->expected ? TT_REPORT_STOPPED : TT_REPORT_LOST,
                                         .status = TT_RESTART_WORKER,
                                         .text = text,
                                         .last_words = slot->last_words});
    wait_or_go(slot);
}

/* --- what lasts too long ----------------------------------------------------------------------------------
 */

/* When the job is late by our own clock: the worker keeps the deadline itself, this is for one that hangs. */
static int64_t job_due_ms(const struct tt_slot *slot)
{
    const struct tt_config *config = slot->supervisor->config;
    int64_t frames = slot->frames > slot->expected_frames ? slot->frames : slot->expected_frames;
    int64_t limit_ms;

    if (__builtin_mul_overflow(frames, config->jobs.deadline_frame_ms, &limit_ms) ||
        __builtin_add_overflow(limit_ms, config->jobs.deadline_ms + config->workers.stall_ms, &limit_ms) ||
        __builtin_add_overflow(limit_ms, slot->job_began_ms, &limit_ms))
        return INT64_MAX;
    return limit_ms;
}

static void stop_stalled(struct tt_slot *slot, int64_t now_ms, const char *why)
{
    snprintf(slot->cause, sizeof slot->cause, "%s", why);
    tt_log(slot->supervisor->log, TT_LOG_ERROR, "worker_stalled", TT_STR("job", slot->job),
           TT_STR("worker", slot->choice.name), TT_INT("pid", tt_link_pid(slot->link)), TT_STR("cause", why),
           TT_INT("stall_ms", now_ms - slot->heard_ms));
    tt_slot_terminate(slot);
}

static void check_busy(struct tt_slot *slot, int64_t now_ms)
{
    int64_t stall_ms = slot->supervisor->config->workers.stall_ms, stalled_ms = slot->heard_ms + stall_ms;
    int64_t late_ms = job_due_ms(slot);
    char text[96];

    if (now_ms >= stalled_ms) {
        snprintf(text, sizeof text, "the worker gave no sign of progress for %lld s",
                 (long long)((now_ms - slot->heard_ms) / 1000));
        stop_stalled(slot, now_ms, text);
    } else if (now_ms >= late_ms) {
        stop_stalled(slot, now_ms, "the job's deadline is over and the worker did not stop");
    } else {
        tt_slot_arm(slot, (stalled_ms < late_ms ? stalled_ms : late_ms) - now_ms);
    }
}

static void check_idle(struct tt_slot *slot, int64_t now_ms)
{
    const struct tt_message message = {.type = TT_MESSAGE_PING, .body.ping = {.serial = slot->ping + 1}};

    if (slot->ping_open && now_ms - slot->heard_ms >= slot->supervisor->config->workers.stall_ms) {
        snprintf(slot->cause, sizeof slot->cause, "the idle worker did not answer");
        tt_slot_terminate(slot);
        return;
    }
    if (!slot->ping_open) {
        slot->heard_ms = now_ms;
        slot->ping_open = true;
        slot->ping++;
        tt_slot_say(slot, &message);
    }
    tt_slot_arm(slot, PING_MS);
}

static void on_timer(uv_timer_t *timer)
{
    struct tt_slot *slot = timer->data;
    int64_t now_ms = tt_clock_ms();

    if (now_ms - slot->due_ms > LATE_MS) /* nobody could be heard meanwhile */
        slot->heard_ms = now_ms;
    switch (slot->state) {
    case TT_SLOT_DOWN:
        tt_slot_spawn(slot);
        break;
    case TT_SLOT_STARTING:
        snprintf(slot->cause, sizeof slot->cause, "the worker was not ready after workers.start_ms");
        tt_slot_terminate(slot);
        break;
    case TT_SLOT_IDLE:
        check_idle(slot, now_ms);
        break;
    case TT_SLOT_BUSY:
        check_busy(slot, now_ms);
        break;
    case TT_SLOT_ENDING:
        tt_link_signal(slot->link, SIGKILL);
        tt_slot_arm(slot, LATE_MS); /* for one that cannot die yet */
        break;
    case TT_SLOT_STATES:
        break;
    }
}

/* daemon/jobs/dispatch.c: which job goes to which device.
 *
 * Invariants: no free device waits while a job that it may take is there, be it reserved for another; a job
 * that failed on a device goes to another one where there is any. Fails: nothing; what the spool cannot do
 * now is done later.
 */
#include "daemon/jobs/jobs.h"

#include "daemon/jobs/overrides.h"

#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum {
    LOOK_AHEAD = 8,     /* jobs that are tried for one that suits a device */
    PUT_ASIDE_MS = 250, /* for those that did not, while no other device is free */
    CHECKPOINT_MS = 10000,
};

/* --- choosing ---------------------------------------------------------------------------------------------
 */

static bool suits(const struct tt_task *task, const struct tt_slot *slot)
{
    return !tt_suspicion_on(&task->suspicion, slot->index);
}

/* Whether another device could take what this one has failed; free: at once. */
static bool suits_elsewhere(const struct tt_jobs *jobs, const struct tt_task *task,
                            const struct tt_slot *slot, bool free)
{
    struct tt_supervisor *supervisor = jobs->daemon->supervisor;

    for (int i = 0; i < tt_supervisor_count(supervisor); i++) {
        const struct tt_slot *other = tt_supervisor_slot(supervisor, i);

        if (other != slot && (free ? tt_slot_is_free(other) : tt_slot_in_service(other)) &&
            suits(task, other))
            return true;
    }
    return false;
}

/* The next job of the queue, claimed. NULL: there is none. */
static struct tt_task *take_one(struct tt_jobs *jobs)
{
    struct tt_daemon *daemon = jobs->daemon;
    struct tt_spool_job *job;
    struct tt_error err;
    struct tt_task *task;

    do { /* an ending that is being tried again may have left its place in the queue */
        enum tt_take take = tt_intake_take(daemon->intake, tt_clock_ms(), &job, &err);

        jobs->paused_seen |= tt_spool_paused(daemon->spool)->paused;
        if (take == TT_TAKE_BUSY)
            tt_daemon_wake(daemon);
        if (take != TT_TAKE_JOB)
            return NULL;
        task = tt_jobs_task(jobs, job);
    } while (task && task->state != TT_TASK_WAITING);
    if (task)
        return task;
    tt_log(daemon->log, TT_LOG_INFO, "job_claimed", TT_STR("job", job->manifest.id),
           TT_STR("file", job->manifest.source), TT_INT("input_bytes", job->manifest.claimed.size_bytes),
           TT_STR("output", tt_manifest_output(&job->manifest)));
    daemon->metrics.claimed++;
    return tt_jobs_add(jobs, job); /* without memory for it, tt_jobs_adopt finds it later */
}

/* A job for this slot, out of the queue. */
static struct tt_task *take_for(struct tt_jobs *jobs, const struct tt_slot *slot)
{
    struct tt_task *aside[LOOK_AHEAD], *task = NULL;
    int count = 0, chosen = -1;

    while (count < LOOK_AHEAD && (task = take_one(jobs)) && !suits(task, slot))
        aside[count++] = task;
    if (count == LOOK_AHEAD)
        task = NULL;
    for (int i = 0; !task && chosen < 0 && i < count; i++)
        if (!suits_elsewhere(jobs, aside[i], slot, false))
            chosen = i;
    for (int i = 0; i < count; i++)
        if (i != chosen)
            tt_task_wait(jobs, aside[i],
                         tt_clock_ms() + (suits_elsewhere(jobs, aside[i], slot, true) ? 0 : PUT_ASIDE_MS));
    return task ? task : chosen >= 0 ? aside[chosen] : NULL;
}

static bool has_priority(const struct tt_task *task)
{
    return tt_path_has_priority(task->job->manifest.source);
}

/* Whether what waits goes ahead of a reserved job. */
static bool is_overtaken(const struct tt_jobs *jobs, const struct tt_task *task)
{
    struct tt_queue *queue = jobs->daemon->queue;
    tt_entry_id next = tt_queue_next(queue, tt_clock_ms());

    return !has_priority(task) && next != TT_ENTRY_NONE && tt_queue_entry(queue, next)->priority &&
           !tt_spool_paused(jobs->daemon->spool)->paused;
}

/* A job that was meant for a slot that is busy. */
static struct tt_task *take_over(struct tt_jobs *jobs, const struct tt_slot *slot)
{
    for (struct tt_task *task = jobs->tasks; task; task = task->next)
        if (task->state == TT_TASK_RESERVED && task->slot != slot && suits(task, slot)) {
            tt_slot_prefetch(task->slot, NULL);
            return task;
        }
    return NULL;
}

static struct tt_task *choose(struct tt_jobs *jobs, struct tt_slot *slot)
{
    struct tt_task *task = tt_jobs_on(jobs, slot, TT_TASK_RESERVED);

    if (task && is_overtaken(jobs, task)) {
        tt_task_wait(jobs, task, tt_clock_ms());
        task = NULL;
    }
    if (!task)
        task = take_for(jobs, slot);
    if (!task)
        task = take_over(jobs, slot);
    return task;
}

/* --- starting ---------------------------------------------------------------------------------------------
 */

/* Everything that JOB says; paths are owned by the caller. */
struct order {
    struct tt_message_job message;
    char *video, *queries, *mask, *checkpoint, *results[TT_OUTPUTS];
};

static void order_free(struct order *order)
{
    free(order->video);
    free(order->queries);
    free(order->mask);
    free(order->checkpoint);
    for (int i = 0; i < TT_OUTPUTS; i++)
        free(order->results[i]);
}

_Static_assert((int)TT_OUTPUTS <= (int)TT_MESSAGE_OUTPUTS, "a job may have all formats");

/* False: memory. */
static bool order_results(struct order *order, const struct tt_spool_job *job)
{
    struct tt_message_job *message = &order->message;

    for (int i = 0; i < TT_MESSAGE_OUTPUTS; i++)
        message->output[i].path = "";
    for (int i = 0; i < TT_OUTPUTS; i++) {
        if (!job->manifest.output[i])
            continue;
        order->results[i] = tt_spool_job_result(job, (enum tt_output)i);
        if (!order->results[i])
            return false;
        message->output[message->outputs++] =
            (struct tt_message_output){.format = i, .path = order->results[i]};
    }
    return true;
}

static enum tt_status make_order(struct order *order, const struct tt_daemon *daemon,
                                 const struct tt_spool_job *job, const struct tt_overrides *overrides,
                                 struct tt_error *err)
{
    const struct tt_config *config = daemon->config;

    *order = (struct order){.video = tt_spool_job_video(job),
                            .queries = tt_spool_job_sidecar(job, TT_SPOOL_QUERIES_CSV),
                            .mask = tt_spool_job_sidecar(job, TT_SPOOL_MASK_PNG)};
    if (!order->queries)
        order->queries = tt_spool_job_sidecar(job, TT_SPOOL_QUERIES_JSON);
    if (asprintf(&order->checkpoint, "%s/checkpoint", job->directory) < 0)
        order->checkpoint = NULL;
    if (!order->video || !order->checkpoint)
        return tt_fail_errno(err, TT_RETRY_LATER, ENOMEM, "job %s", job->manifest.id);
    order->message = (struct tt_message_job){
        .id = job->manifest.id,
        .video = order->video,
        .queries = order->queries ? order->queries : "",
        .mask = order->mask && !order->queries ? order->mask : "",
        .model = overrides->model,
        .grid = overrides->grid,
        .clip_frames = overrides->clip_frames,
        .overlap_frames = overrides->overlap_frames,
        .occlusion_threshold = overrides->occlusion_threshold,
        .refine = overrides->refine,
        .temporary_directory = "",
        .checkpoint = order->checkpoint,
        .checkpoint_ms = CHECKPOINT_MS,
        .decoder = tt_decoder_message(),
        .deadline_ms = config->jobs.deadline_ms,
        .deadline_frame_ms = config->jobs.deadline_frame_ms,
    };
    if (!order_results(order, job))
        return tt_fail_errno(err, TT_RETRY_LATER, ENOMEM, "job %s", job->manifest.id);
    return TT_OK;
}

static enum tt_status run(struct tt_jobs *jobs, struct tt_task *task, struct tt_slot *slot,
                          struct tt_error *err)
{
    struct tt_daemon *daemon = jobs->daemon;
    struct tt_overrides overrides;
    struct order order = {.video = NULL};
    enum tt_status status = tt_overrides_read(&overrides, daemon->config, task->job->manifest.source, err);

    if (!status)
        status = tt_spool_attempt_begin(daemon->spool, task->job, overrides.formats, err);
    if (!status)
        status = make_order(&order, daemon, task->job, &overrides, err);
    if (!status)
        status = tt_slot_run(slot, &order.message, err);
    if (!status)
        task->formats = overrides.formats;
    if (!status)
        snprintf(task->model, sizeof task->model, "%.255s",
                 overrides.model[0] ? overrides.model : daemon->config->tracker.model);
    order_free(&order);
    return status;
}

static void start(struct tt_jobs *jobs, struct tt_task *task, struct tt_slot *slot)
{
    struct tt_error err;
    enum tt_status status = run(jobs, task, slot, &err);
    bool input = status == TT_BAD_INPUT || status == TT_REFUSE;

    snprintf(task->worker, sizeof task->worker, "%s", slot->choice.name);
    if (status == TT_OK) {
        task->state = TT_TASK_RUNNING;
        task->slot = slot;
        return;
    }
    task->postponed += !input;
    tt_task_end(jobs, task, input ? TT_ENDING_FAIL : TT_ENDING_RELEASE, true, status, err.text, NULL);
}

static void reserve(struct tt_jobs *jobs, struct tt_slot *slot)
{
    struct tt_task *task = take_for(jobs, slot);
    char *video = task ? tt_spool_job_video(task->job) : NULL;

    if (!task)
        return;
    if (video) {
        const struct tt_message_prefetch prefetch = {
            .id = task->job->manifest.id, .video = video, .decoder = tt_decoder_message()};

        tt_slot_prefetch(slot, &prefetch);
    }
    task->state = TT_TASK_RESERVED;
    task->slot = slot;
    free(video);
}

static bool can_reserve(const struct tt_jobs *jobs, const struct tt_slot *slot)
{
    return slot->state == TT_SLOT_BUSY && !slot->renew && slot->retirements == 0 && slot->user &&
           !tt_jobs_on(jobs, slot, TT_TASK_RESERVED);
}

bool tt_jobs_wanted(const struct tt_jobs *jobs)
{
    struct tt_supervisor *supervisor = jobs->daemon->supervisor;

    if (jobs->daemon->phase != TT_PHASE_RUNNING)
        return false;
    for (int i = 0; i < tt_supervisor_count(supervisor); i++) {
        const struct tt_slot *slot = tt_supervisor_slot(supervisor, i);

        if (tt_slot_is_free(slot) || can_reserve(jobs, slot))
            return true;
    }
    return false;
}

/* Every free slot gets a job. */
bool tt_jobs_dispatch(struct tt_jobs *jobs)
{
    struct tt_supervisor *supervisor = jobs->daemon->supervisor;
    bool any = false;

    for (int i = 0; i < tt_supervisor_count(supervisor); i++) {
        struct tt_slot *slot = tt_supervisor_slot(supervisor, i);
        struct tt_task *task = tt_slot_is_free(slot) ? choose(jobs, slot) : NULL;

        if (task)
            start(jobs, task, slot);
        any |= task != NULL;
    }
    return any;
}

/* One busy slot gets its next job. */
bool tt_jobs_reserve_one(struct tt_jobs *jobs)
{
    struct tt_supervisor *supervisor = jobs->daemon->supervisor;

    for (int i = 0; i < tt_supervisor_count(supervisor); i++) {
        struct tt_slot *slot = tt_supervisor_slot(supervisor, i);

        if (can_reserve(jobs, slot)) {
            reserve(jobs, slot);
            if (tt_jobs_on(jobs, slot, TT_TASK_RESERVED))
                return true;
        }
    }
    return false;
}

/* What was meant for a slot that is out goes back. */
void tt_jobs_release_reserved(struct tt_jobs *jobs)
{
    for (struct tt_task *task = jobs->tasks; task; task = task->next)
        if (task->state == TT_TASK_RESERVED &&
            (!tt_slot_in_service(task->slot) || task->slot->retirements > 0))
            tt_task_wait(jobs, task, tt_clock_ms());
}

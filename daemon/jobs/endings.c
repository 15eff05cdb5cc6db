/* daemon/jobs/endings.c: carries out how jobs end, through the spool, and says so.
 *
 * Invariants: a task in state ENDING stays so until the spool has done what was decided; when it cannot (a
 * full disk) the same is tried again a second later. Each ending is logged once, when it is done.
 */
#include "daemon/jobs/jobs.h"

#include "daemon/jobs/hook.h"

#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>

enum { AGAIN_MS = 1000 };

uint32_t tt_jobs_random(void)
{
    uint32_t random = 0;

    if (getrandom(&random, sizeof random, GRND_NONBLOCK) != sizeof random)
        random = 0;
    return random;
}

void tt_task_end(struct tt_jobs *jobs, struct tt_task *task, enum tt_ending ending, bool refund,
                 enum tt_status status, const char *cause, const char *last_words)
{
    free(task->cause);
    free(task->last_words);
    task->state = TT_TASK_ENDING;
    task->slot = NULL;
    task->ending = ending;
    task->ending_due_ms = 0;
    task->turn = ++jobs->turns;
    task->refund = refund;
    task->status = status;
    task->cause = strdup(cause ? cause : "");
    task->last_words = last_words && last_words[0] ? strdup(last_words) : NULL;
}

static const char *cause_of(const struct tt_task *task)
{
    return task->cause ? task->cause : "";
}

/* --- what is said -----------------------------------------------------------------------------------------
 */

/* "npz, csv" */
static const char *format_names(unsigned formats, char *text, size_t bytes)
{
    size_t used = 0;

    text[0] = '\0';
    for (int i = 0; i < TT_OUTPUTS && used < bytes; i++)
        if (formats & 1u << i)
            used += (size_t)snprintf(text + used, bytes - used, "%s%s", used ? ", " : "", tt_output_names[i]);
    return text;
}

static void run_hook(struct tt_daemon *daemon, const struct tt_manifest *manifest)
{
    char *paths[TT_OUTPUTS + 1] = {NULL};
    int count = 0;

    for (int i = 0; i < TT_OUTPUTS; i++)
        if (manifest->output[i] && (paths[count] = tt_spool_output_path(daemon->spool, manifest->output[i])))
            count++;
    tt_hook_run(daemon->hook, daemon->config->on_done, manifest->id, manifest->source, paths);
    while (count > 0)
        free(paths[--count]);
}

static void say_done(struct tt_jobs *jobs, const struct tt_task *task, const struct tt_manifest *manifest)
{
    struct tt_daemon *daemon = jobs->daemon;
    const struct tt_message_done *figures = &task->figures;
    const unsigned written = tt_manifest_formats(manifest);
    char formats[192], missing[192];
    int64_t bytes = 0;

    for (int i = 0; i < figures->outputs; i++)
        bytes += figures->output_bytes[i];
    tt_log(daemon->log, TT_LOG_INFO, "job_done", TT_STR("job", manifest->id), TT_STR("worker", task->worker),
           TT_STR("file", manifest->source), TT_STR("outcome", tt_outcome_name(task->outcome)),
           TT_INT("frames", figures->frames), TT_INT("queries", figures->queries),
           TT_INT("decode_ms", figures->decode_ms), TT_INT("track_ms", figures->track_ms),
           TT_INT("refine_ms", figures->refine_ms), TT_INT("total_ms", figures->total_ms),
           TT_STR("output", tt_manifest_output(manifest)),
           TT_STR("formats", format_names(written, formats, sizeof formats)), TT_INT("output_bytes", bytes),
           TT_STR("missing", task->formats & ~written
                                 ? format_names(task->formats & ~written, missing, sizeof missing)
                                 : NULL));
    tt_metrics_job_done(&daemon->metrics, task->outcome == TT_OUTCOME_TRUNCATED, figures,
                        manifest->seen.size_bytes);
    if (daemon->config->on_done)
        run_hook(daemon, manifest);
}

static void say_failed(struct tt_jobs *jobs, const struct tt_task *task, const struct tt_manifest *manifest)
{
    struct tt_daemon *daemon = jobs->daemon;

    tt_log(daemon->log, TT_LOG_ERROR, "job_quarantined", TT_STR("job", manifest->id),
           TT_STR("worker", task->worker[0] ? task->worker : NULL), TT_STR("file", manifest->source),
           TT_STR("cause", cause_of(task)), TT_INT("attempts", manifest->attempts));
    daemon->metrics.jobs[task->cancelled ? TT_METRIC_CANCELLED : TT_METRIC_FAILED]++;
}

static void say_put_back(struct tt_jobs *jobs, const struct tt_task *task, const struct tt_manifest *manifest)
{
    tt_log(jobs->daemon->log, TT_LOG_INFO, "job_put_back", TT_STR("job", manifest->id),
           TT_STR("file", manifest->source), TT_STR("cause", cause_of(task)));
    jobs->daemon->put_back++;
}

void tt_jobs_recovered(void *user, const struct tt_manifest *manifest)
{
    struct tt_daemon *daemon = user;
    bool committed = manifest->state == TT_JOB_COMMITTING;

    if (!committed && manifest->state != TT_JOB_FAILING)
        return;
    tt_log(daemon->log, TT_LOG_INFO, "job_recovered", TT_STR("job", manifest->id),
           TT_STR("file", manifest->source), TT_STR("outcome", tt_outcome_name(manifest->outcome)),
           TT_STR("output", committed ? tt_manifest_output(manifest) : NULL),
           TT_STR("cause", manifest->cause));
    if (committed && daemon->config->on_done)
        run_hook(daemon, manifest);
}

/* The spool has ended the job. */
static void say_ended(struct tt_jobs *jobs, const struct tt_task *task)
{
    const struct tt_manifest *manifest = tt_spool_ended(jobs->daemon->spool);

    if (task->ending == TT_ENDING_COMMIT)
        say_done(jobs, task, manifest);
    else if (task->ending == TT_ENDING_RETURN)
        say_put_back(jobs, task, manifest);
    else if (task->ending != TT_ENDING_FINISH || manifest->state == TT_JOB_FAILING)
        say_failed(jobs, task, manifest);
}

/* --- what is done -----------------------------------------------------------------------------------------
 */

/* The job waits for another attempt. */
static void requeue(struct tt_jobs *jobs, struct tt_task *task)
{
    struct tt_daemon *daemon = jobs->daemon;
    const struct tt_config *config = daemon->config;
    uint32_t random = tt_jobs_random();
    int64_t wait_ms = tt_spool_job_delay_ms(daemon->spool, task->job, random), postponed_ms = 0;

    if (task->postponed > 0)
        postponed_ms =
            tt_backoff_ms(task->postponed, config->jobs.backoff_ms, config->jobs.backoff_max_ms, random);
    if (postponed_ms > wait_ms)
        wait_ms = postponed_ms;
    tt_log(daemon->log, TT_LOG_WARNING, "job_retry", TT_STR("job", task->job->manifest.id),
           TT_STR("worker", task->worker), TT_STR("file", task->job->manifest.source),
           TT_STR("cause", cause_of(task)), TT_INT("attempt", task->job->manifest.attempts),
           TT_INT("backoff_ms", wait_ms));
    daemon->metrics.retries++;
    task->state = TT_TASK_WAITING;
    if (tt_intake_put_job(daemon->intake, task->job, tt_clock_ms() + wait_ms, NULL)) { /* no memory */
        task->state = TT_TASK_ENDING;
        task->ending_due_ms = tt_clock_ms() + AGAIN_MS;
    }
}

static void say_changed(struct tt_jobs *jobs, const struct tt_task *task)
{
    tt_log(jobs->daemon->log, TT_LOG_INFO, "input_changed", TT_STR("job", task->job->manifest.id),
           TT_STR("file", task->job->manifest.source));
}

/* TT_INTERRUPTED: the job goes on, in another state. */
static enum tt_status commit(struct tt_jobs *jobs, struct tt_task *task, struct tt_error *err)
{
    bool changed = false;
    enum tt_status status = tt_spool_commit(jobs->daemon->spool, task->job, task->outcome, &changed, err);

    if (status == TT_BAD_INPUT) {
        tt_task_end(jobs, task, TT_ENDING_RELEASE, false, TT_BAD_INPUT, err->text, NULL);
        return TT_INTERRUPTED;
    }
    if (status || !changed)
        return status;
    say_changed(jobs, task);
    tt_task_end(jobs, task, TT_ENDING_RELEASE, true, TT_OK, "the input changed while it was tracked", NULL);
    return TT_INTERRUPTED;
}

static enum tt_status release(struct tt_jobs *jobs, struct tt_task *task, struct tt_error *err)
{
    struct tt_spool *spool = jobs->daemon->spool;
    enum tt_status status = TT_OK;

    if (task->job->manifest.running)
        status = tt_spool_attempt_end(spool, task->job, task->refund, err);
    if (status)
        return status;
    if (!task->refund && tt_spool_exhausted(spool, task->job))
        task->ending = TT_ENDING_FAIL;
    else
        requeue(jobs, task);
    return TT_INTERRUPTED;
}

static enum tt_status carry_out(struct tt_jobs *jobs, struct tt_task *task, struct tt_error *err)
{
    struct tt_spool *spool = jobs->daemon->spool;

    if (task->job->manifest.state != TT_JOB_CLAIMED)
        return tt_spool_finish(spool, task->job, err);
    switch (task->ending) {
    case TT_ENDING_COMMIT:
        return commit(jobs, task, err);
    case TT_ENDING_FAIL:
        return tt_spool_fail(spool, task->job, cause_of(task),
                             task->cancelled ? "cancelled" : tt_status_name(task->status), task->last_words,
                             err);
    case TT_ENDING_RELEASE:
        return release(jobs, task, err);
    case TT_ENDING_RETURN:
        return tt_spool_return(spool, task->job, err);
    case TT_ENDING_KEEP:
        return task->job->manifest.running ? tt_spool_attempt_end(spool, task->job, true, err) : TT_OK;
    case TT_ENDING_FINISH:
        break;
    }
    return tt_spool_finish(spool, task->job, err);
}

/* Somebody has taken the name that the result was to have, and it got another. was: NULL where there is none.
 */
static void say_renamed(struct tt_jobs *jobs, const char *was)
{
    const struct tt_manifest *manifest = tt_spool_ended(jobs->daemon->spool);

    if (was && strcmp(was, tt_manifest_output(manifest)) != 0)
        tt_log(jobs->daemon->log, TT_LOG_WARNING, "output_renamed", TT_STR("job", manifest->id),
               TT_STR("file", manifest->source), TT_STR("claimed", was),
               TT_STR("output", tt_manifest_output(manifest)));
}

static void end_task(struct tt_jobs *jobs, struct tt_task *task)
{
    const char *output = tt_manifest_output(&task->job->manifest);
    char *was = task->ending == TT_ENDING_COMMIT && output ? strdup(output) : NULL;
    struct tt_error err;
    enum tt_status status = carry_out(jobs, task, &err);

    if (status == TT_OK && task->ending == TT_ENDING_KEEP) {
        say_put_back(jobs, task, &task->job->manifest);
        tt_jobs_drop(jobs, task);
    } else if (status == TT_OK) {
        say_renamed(jobs, was);
        say_ended(jobs, task);
        tt_jobs_drop(jobs, task);
    } else if (status != TT_INTERRUPTED) {
        task->ending_due_ms = tt_clock_ms() + AGAIN_MS;
    }
    free(was);
}

bool tt_jobs_end_one(struct tt_jobs *jobs)
{
    int64_t now_ms = tt_clock_ms();
    struct tt_task *first = NULL;

    for (struct tt_task *task = jobs->tasks; task; task = task->next)
        if (task->state == TT_TASK_ENDING && task->ending_due_ms <= now_ms &&
            (!first || task->turn < first->turn))
            first = task;
    if (first)
        end_task(jobs, first);
    return first != NULL;
}

int64_t tt_jobs_due_ms(const struct tt_jobs *jobs)
{
    int64_t due_ms = INT64_MAX;

    for (const struct tt_task *task = jobs->tasks; task; task = task->next)
        if (task->state == TT_TASK_ENDING && task->ending_due_ms < due_ms)
            due_ms = task->ending_due_ms;
    return due_ms;
}

int tt_jobs_endings(const struct tt_jobs *jobs)
{
    int count = 0;

    for (const struct tt_task *task = jobs->tasks; task; task = task->next)
        count += task->state == TT_TASK_ENDING;
    return count;
}

/* daemon/jobs/jobs.c: tasks, and whose fault a failure is.
 *
 * Invariants: a task is in exactly one state, and its spool job has exactly one task. Only the input's own
 * faults and repeated failures count against it (daemon/jobs/blame.h). Fails: nothing here; what the spool
 * cannot do now is done later.
 */
#include "daemon/jobs/jobs.h"

#include <dirent.h>
#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

enum {
    JOB_DESCRIPTORS = 64
}; /* more than a job and the next one's decoder need together, with every format */

static const int64_t short_bytes = (int64_t)256 << 20; /* free space below which a failure may be its lack */

/* --- tasks ------------------------------------------------------------------------------------------------
 */

enum tt_status tt_jobs_create(struct tt_jobs **jobs, struct tt_daemon *daemon, struct tt_error *err)
{
    *jobs = calloc(1, sizeof **jobs);
    if (!*jobs)
        return tt_fail_errno(err, TT_RETRY_LATER, ENOMEM, "jobs");
    (*jobs)->daemon = daemon;
    return TT_OK;
}

struct tt_task *tt_jobs_task(struct tt_jobs *jobs, struct tt_spool_job *job)
{
    for (struct tt_task *task = jobs->tasks; task; task = task->next)
        if (task->job == job)
            return task;
    return NULL;
}

struct tt_task *tt_jobs_add(struct tt_jobs *jobs, struct tt_spool_job *job)
{
    struct tt_task *task = calloc(1, sizeof *task);

    if (!task)
        return NULL;
    task->job = job;
    task->next = jobs->tasks;
    jobs->tasks = task;
    return task;
}

void tt_jobs_drop(struct tt_jobs *jobs, struct tt_task *task)
{
    struct tt_task **at = &jobs->tasks;

    while (*at != task)
        at = &(*at)->next;
    *at = task->next;
    free(task->cause);
    free(task->last_words);
    free(task);
}

void tt_jobs_free(struct tt_jobs *jobs)
{
    if (!jobs)
        return;
    while (jobs->tasks)
        tt_jobs_drop(jobs, jobs->tasks);
    free(jobs);
}

struct tt_task *tt_jobs_on(const struct tt_jobs *jobs, const struct tt_slot *slot, enum tt_task_state state)
{
    for (struct tt_task *task = jobs->tasks; task; task = task->next)
        if (task->state == state && task->slot == slot)
            return task;
    return NULL;
}

/* Into the queue; where that fails (memory) the task is an ending that does nothing but try again. */
void tt_task_wait(struct tt_jobs *jobs, struct tt_task *task, int64_t due_ms)
{
    task->slot = NULL;
    task->state = TT_TASK_WAITING;
    if (tt_intake_put_job(jobs->daemon->intake, task->job, due_ms, NULL))
        tt_task_end(jobs, task, TT_ENDING_RELEASE, true, TT_RETRY_LATER, "memory is short", NULL);
}

void tt_jobs_adopt(struct tt_jobs *jobs)
{
    struct tt_daemon *daemon = jobs->daemon;

    for (struct tt_spool_job *job = tt_spool_jobs(daemon->spool); job; job = job->next) {
        struct tt_task *task = tt_jobs_task(jobs, job);

        if (task || !(task = tt_jobs_add(jobs, job)))
            continue;
        if (job->manifest.state == TT_JOB_CLAIMED)
            tt_task_wait(jobs, task,
                         tt_clock_ms() + tt_spool_job_delay_ms(daemon->spool, job, tt_jobs_random()));
        else
            tt_task_end(jobs, task, TT_ENDING_FINISH, false, TT_OK, job->manifest.cause, NULL);
    }
    tt_daemon_wake(daemon);
}

/* --- turns ----------------------------------------------------------------------------------------------
 */

bool tt_jobs_step(struct tt_jobs *jobs)
{
    bool running = jobs->daemon->phase == TT_PHASE_RUNNING, more = false;

    tt_jobs_release_reserved(jobs);
    if (jobs->paused_seen && !tt_spool_paused(jobs->daemon->spool)->paused) {
        jobs->paused_seen = false;
        tt_jobs_adopt(jobs);
    }
    if (running)
        more |= tt_jobs_dispatch(jobs);
    more |= tt_jobs_end_one(jobs);
    if (running && !more)
        more |= tt_jobs_reserve_one(jobs);
    return more;
}

/* --- what workers tell ------------------------------------------------------------------------------------
 */

void tt_jobs_started(struct tt_jobs *jobs, struct tt_slot *slot, const struct tt_message_started *started)
{
    struct tt_task *task = tt_jobs_on(jobs, slot, TT_TASK_RUNNING);
    const struct tt_manifest *manifest = task ? &task->job->manifest : NULL;

    if (!task || slot->user == task) /* again, with smaller tiles: the worker says so itself */
        return;
    slot->user = task;
    tt_log(jobs->daemon->log, TT_LOG_INFO, "job_started", TT_STR("job", manifest->id),
           TT_STR("worker", slot->choice.name), TT_STR("file", manifest->source),
           TT_STR("device", slot->device), TT_STR("model", task->model), TT_STR("plan", slot->plan),
           TT_INT("attempt", manifest->serial), TT_INT("resumed_frames", started->resumed_frames),
           TT_BOOL("prefetched", started->prefetched));
}

/* The device is at fault: what it charged is given back. */
static void retire(struct tt_jobs *jobs, struct tt_slot *slot, const char *text)
{
    char cause[TT_ERROR_TEXT_BYTES];

    for (struct tt_task *task = jobs->tasks; task; task = task->next)
        for (int charges = tt_suspicion_clear(&task->suspicion, slot->index); charges > 0; charges--)
            if (task->job->manifest.state == TT_JOB_CLAIMED)
                tt_spool_refund(jobs->daemon->spool, task->job, NULL);
    snprintf(cause, sizeof cause, "%d different inputs failed on it one after another, the last: %.900s",
             TT_BLAME_SICK, text);
    tt_slot_retire(slot, cause);
}

/* A failure that may be the device's or the input's. */
static void suspect(struct tt_jobs *jobs, struct tt_task *task, struct tt_slot *slot, bool first_is_free,
                    const struct tt_report *report)
{
    bool refund = first_is_free && task->suspicion.count == 0;
    bool sick = tt_streak_add(&slot->streak, task->job->manifest.id);

    task->postponed += refund || sick;
    if (!sick)
        tt_suspicion_add(&task->suspicion, slot->index, !refund);
    tt_task_end(jobs, task, TT_ENDING_RELEASE, refund || sick, report->status, report->text,
                report->last_words);
    if (sick)
        retire(jobs, slot, report->text);
}

/* The worker says that the video is bad. Somebody may still be writing it. */
static void bad_input(struct tt_jobs *jobs, struct tt_task *task, const struct tt_report *report)
{
    enum tt_look look = tt_spool_look(jobs->daemon->spool, task->job);
    bool again = look == TT_LOOK_CHANGED || look == TT_LOOK_HELD;

    if (look == TT_LOOK_CHANGED)
        tt_log(jobs->daemon->log, TT_LOG_INFO, "input_changed", TT_STR("job", task->job->manifest.id),
               TT_STR("file", task->job->manifest.source));
    task->postponed += look == TT_LOOK_CHANGED;
    tt_task_end(jobs, task, again ? TT_ENDING_RELEASE : TT_ENDING_FAIL, look == TT_LOOK_CHANGED,
                report->status, report->text, report->last_words);
}

/* Whether this user may start a process: where we may not, a worker could not start its decoder either. */
static bool can_start_processes(void)
{
    pid_t pid = vfork();

    if (pid == 0)
        _exit(0);
    return pid > 0 && waitpid(pid, NULL, 0) == pid;
}

/* Whether the worker can have so few descriptors more that one may have been lacking for a job. How many a
 * job needs depends on no input. */
static bool lacks_descriptors(const struct tt_slot *slot)
{
    struct rlimit limit;
    rlim_t used = 0;
    char path[64];
    DIR *directory;

    if (!slot->link || prlimit(tt_link_pid(slot->link), RLIMIT_NOFILE, NULL, &limit) < 0)
        return false;
    snprintf(path, sizeof path, "/proc/%d/fd", tt_link_pid(slot->link));
    directory = opendir(path);
    if (!directory)
        return errno == EMFILE || errno == ENFILE;
    while (readdir(directory)) /* "." and "..", too */
        used++;
    closedir(directory);
    return limit.rlim_cur < used + JOB_DESCRIPTORS;
}

/* Whether the host was so short of space, processes or descriptors that the failure says nothing of the job.
 */
static bool host_is_short(struct tt_jobs *jobs, const struct tt_slot *slot)
{
    struct tt_spool *spool = jobs->daemon->spool;
    int64_t free_bytes = tt_spool_free_bytes(spool);

    jobs->paused_seen = true;
    return tt_spool_probe(spool, NULL) != TT_OK || (free_bytes >= 0 && free_bytes < short_bytes) ||
           !can_start_processes() || lacks_descriptors(slot);
}

static void failed(struct tt_jobs *jobs, struct tt_task *task, struct tt_slot *slot,
                   const struct tt_report *report)
{
    if (report->status == TT_BAD_INPUT) {
        tt_streak_end(&slot->streak);
        bad_input(jobs, task, report);
    } else if (report->status == TT_INTERRUPTED && report->cause != TT_FAILED_DEADLINE) {
        tt_task_end(jobs, task, TT_ENDING_RELEASE, true, report->status, report->text, NULL);
    } else if (report->status == TT_RETRY_LATER && host_is_short(jobs, slot)) {
        task->postponed++;
        tt_task_end(jobs, task, TT_ENDING_RELEASE, true, report->status, report->text, NULL);
    } else {
        suspect(jobs, task, slot, report->status == TT_RESTART_WORKER || report->status == TT_REFUSE, report);
    }
}

/* A job that was cut off as the daemon ends: what it has done so far is kept where there is a checkpoint. */
static void put_back(struct tt_jobs *jobs, struct tt_task *task, const char *cause)
{
    char path[PATH_MAX];
    bool keep = task->job->manifest.attempts > (task->job->manifest.running ? 1 : 0);

    snprintf(path, sizeof path, "%s/checkpoint.state", task->job->directory);
    keep = keep || access(path, F_OK) == 0;
    tt_task_end(jobs, task, keep ? TT_ENDING_KEEP : TT_ENDING_RETURN, true, TT_INTERRUPTED, cause, NULL);
}

void tt_jobs_ended(struct tt_jobs *jobs, struct tt_slot *slot, const struct tt_report *report)
{
    struct tt_task *task = tt_jobs_on(jobs, slot, TT_TASK_RUNNING);

    slot->user = NULL;
    if (!task)
        return;
    if (report->kind == TT_REPORT_DONE) {
        tt_streak_end(&slot->streak);
        task->figures = *report->done;
        task->figures.id = NULL;
        task->outcome = report->done->truncated ? TT_OUTCOME_TRUNCATED : TT_OUTCOME_DONE;
        tt_task_end(jobs, task, TT_ENDING_COMMIT, false, TT_OK, NULL, NULL);
    } else if (task->cancelled) {
        tt_task_end(jobs, task, TT_ENDING_FAIL, false, TT_INTERRUPTED, "cancelled", report->last_words);
    } else if (report->kind == TT_REPORT_STOPPED ||
               (report->kind == TT_REPORT_FAILED && report->cause == TT_FAILED_SHUTDOWN)) {
        if (jobs->daemon->phase >= TT_PHASE_DRAINING)
            put_back(jobs, task, "the daemon ended before the job did");
        else
            tt_task_end(jobs, task, TT_ENDING_RELEASE, true, TT_INTERRUPTED, "the worker was stopped", NULL);
    } else if (report->kind == TT_REPORT_LOST) {
        suspect(jobs, task, slot, true, report);
    } else {
        failed(jobs, task, slot, report);
    }
    tt_daemon_wake(jobs->daemon);
}

/* --- what people ask for ----------------------------------------------------------------------------------
 */

static void cancel_task(struct tt_jobs *jobs, struct tt_task *task)
{
    task->cancelled = true;
    if (task->state == TT_TASK_RUNNING) {
        tt_slot_cancel(task->slot);
        return;
    }
    if (task->state == TT_TASK_RESERVED)
        tt_slot_prefetch(task->slot, NULL);
    tt_task_end(jobs, task, TT_ENDING_FAIL, false, TT_INTERRUPTED, "cancelled", NULL);
    tt_daemon_wake(jobs->daemon);
}

/* One that waits in incoming/. */
static enum tt_status cancel_file(struct tt_jobs *jobs, const char *file, struct tt_error *err)
{
    enum tt_status status = tt_spool_cancel_waiting(jobs->daemon->spool, file, err);

    if (status)
        return status;
    tt_log(jobs->daemon->log, TT_LOG_INFO, "input_cancelled", TT_STR("file", file));
    jobs->daemon->metrics.jobs[TT_METRIC_CANCELLED]++;
    return TT_OK;
}

enum tt_status tt_jobs_cancel(struct tt_jobs *jobs, const char *name, struct tt_error *err)
{
    struct tt_spool *spool = jobs->daemon->spool;
    struct tt_spool_job *job = tt_spool_find(spool, name);
    struct tt_task *task = job ? tt_jobs_task(jobs, job) : NULL;
    char priority[PATH_MAX];
    enum tt_status status;

    if (task && (task->state != TT_TASK_ENDING || task->ending == TT_ENDING_RELEASE)) {
        cancel_task(jobs, task);
        return TT_OK;
    }
    if (job)
        return tt_fail(err, TT_BAD_INPUT, "'%s' is being ended already", name);
    status = cancel_file(jobs, name, err);
    if (status != TT_BAD_INPUT)
        return status;
    snprintf(priority, sizeof priority, "%s/%.3000s", TT_PRIORITY_DIRECTORY, name);
    return cancel_file(jobs, priority, err) == TT_OK
               ? TT_OK
               : tt_fail(err, TT_BAD_INPUT, "no job and no file in incoming/ is called '%s'", name);
}

void tt_jobs_put_back(struct tt_jobs *jobs)
{
    for (struct tt_task *task = jobs->tasks; task; task = task->next)
        if (task->state == TT_TASK_WAITING || task->state == TT_TASK_RESERVED ||
            (task->state == TT_TASK_ENDING && task->ending == TT_ENDING_RELEASE))
            put_back(jobs, task, "the daemon ends");
}

/* daemon/report/report.c: status, and the requests of the control socket.
 *
 * Nothing here changes the daemon but through tt_spool_retry and tt_jobs_cancel. Without memory a client is
 * cut off.
 */
#include "daemon/report/report.h"

#include "daemon/jobs/jobs.h"

#include <jansson.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { WAITING_MAX = 100 };

static const char *const phase_names[] = {"starting", "running", "draining", "stopping"};

static const char *state_of(const struct tt_slot *slot)
{
    return slot->out_of_service ? "out_of_service" : tt_slot_state_names[slot->state];
}

static int64_t oldest_ms(const struct tt_queue_counts *counts)
{
    struct timespec wall;
    int64_t age_ns;

    if (counts->oldest_age_ns == INT64_MAX)
        return 0;
    clock_gettime(CLOCK_REALTIME, &wall);
    age_ns = (int64_t)wall.tv_sec * 1000000000 + wall.tv_nsec - counts->oldest_age_ns;
    return age_ns > 0 ? age_ns / 1000000 : 0;
}

static struct tt_queue_counts count(const struct tt_daemon *daemon)
{
    tt_queue_next(daemon->queue, tt_clock_ms()); /* what has become ready counts as that */
    return tt_queue_count(daemon->queue);
}

static int count_tasks(const struct tt_daemon *daemon, enum tt_task_state state)
{
    int tasks = 0;

    for (const struct tt_task *task = daemon->jobs->tasks; task; task = task->next)
        tasks += task->state == state;
    return tasks;
}

/* "1 of 3 devices (1 warming up, 1 out of service)" */
static void summarise_devices(const struct tt_daemon *daemon, char *text, size_t bytes)
{
    int slots = tt_supervisor_count(daemon->supervisor), good = 0, warming = 0, out = 0;
    char rest[64] = "";

    for (int i = 0; i < slots; i++) {
        const struct tt_slot *slot = tt_supervisor_slot(daemon->supervisor, i);

        good += tt_slot_in_service(slot);
        out += slot->out_of_service;
        warming += slot->state == TT_SLOT_STARTING && !slot->out_of_service;
    }
    if (warming > 0)
        snprintf(rest, sizeof rest, "%d warming up%s", warming, out > 0 ? ", " : "");
    if (out > 0)
        snprintf(rest + strlen(rest), sizeof rest - strlen(rest), "%d out of service", out);
    snprintf(text, bytes, "%d of %d devices%s%s%s", good, slots, rest[0] ? " (" : "", rest,
             rest[0] ? ")" : "");
}

void tt_report_summary(const struct tt_daemon *daemon, char *text, size_t bytes)
{
    static const char *const prefixes[] = {"starting: ", "", "ending: ", "ending: "};
    struct tt_queue_counts counts = count(daemon);
    bool paused = tt_spool_paused(daemon->spool)->paused;
    char devices[96];

    summarise_devices(daemon, devices, sizeof devices);
    snprintf(text, bytes, "%s%s, %d running, %lld waiting%s%s", prefixes[daemon->phase], devices,
             count_tasks(daemon, TT_TASK_RUNNING),
             (long long)(counts.ready + counts.settling + counts.deferred + counts.jobs),
             paused ? ", paused: " : "", paused ? tt_spool_paused(daemon->spool)->text : "");
}

/* --- status -----------------------------------------------------------------------------------------------
 */

/* Bytes as text for people; null where there is none. */
static json_t *text_json(const char *bytes)
{
    char *text = bytes && bytes[0] ? tt_name_text(bytes) : NULL;
    json_t *json = text ? json_string(text) : json_null();

    free(text);
    return json ? json : json_null();
}

/* The names of the results, relative to tracks/, as they are to be. */
static json_t *outputs_json(const struct tt_manifest *manifest)
{
    json_t *json = json_array();

    for (int i = 0; i < TT_OUTPUTS; i++)
        if (manifest->output[i])
            json_array_append_new(json, text_json(manifest->output[i]));
    return json;
}

static json_t *device_json(struct tt_daemon *daemon, const struct tt_slot *slot)
{
    const struct tt_spool_job *job = slot->has_job ? tt_spool_find(daemon->spool, slot->job) : NULL;
    int64_t wait_ms = slot->due_ms - tt_clock_ms();
    json_t *json = json_object();

    json_object_set_new(json, "worker", text_json(slot->choice.name));
    json_object_set_new(json, "state", json_string(state_of(slot)));
    json_object_set_new(json, "device", text_json(slot->device));
    json_object_set_new(json, "cause", text_json(slot->cause));
    json_object_set_new(json, "pid", slot->link ? json_integer(tt_link_pid(slot->link)) : json_null());
    json_object_set_new(json, "jobs_done", json_integer(slot->jobs_done));
    if (slot->state == TT_SLOT_DOWN)
        json_object_set_new(json, "retry_ms", json_integer(wait_ms > 0 ? wait_ms : 0));
    if (!slot->has_job)
        return json;
    json_object_set_new(json, "job", text_json(slot->job));
    json_object_set_new(json, "file", text_json(job ? job->manifest.source : NULL));
    json_object_set_new(json, "outputs", job ? outputs_json(&job->manifest) : json_array());
    json_object_set_new(json, "stage", json_string(tt_job_stage_names[slot->stage]));
    json_object_set_new(json, "frames", json_integer(slot->frames));
    json_object_set_new(json, "frames_expected", json_integer(slot->expected_frames));
    return json;
}

static json_t *devices_json(struct tt_daemon *daemon)
{
    json_t *json = json_array();

    for (int i = 0; i < tt_supervisor_count(daemon->supervisor); i++)
        json_array_append_new(json, device_json(daemon, tt_supervisor_slot(daemon->supervisor, i)));
    return json;
}

static json_t *waiting_json(struct tt_daemon *daemon)
{
    static const char *const names[] = {"retry", "reserved", "running", "ending"};
    json_t *json = json_array();

    for (const struct tt_task *task = daemon->jobs->tasks; task; task = task->next) {
        const struct tt_manifest *manifest = &task->job->manifest;
        json_t *item;

        if (task->state == TT_TASK_RUNNING || json_array_size(json) >= WAITING_MAX)
            continue;
        item = json_object();
        json_object_set_new(item, "job", text_json(manifest->id));
        json_object_set_new(item, "file", text_json(manifest->source));
        json_object_set_new(item, "outputs", outputs_json(manifest));
        json_object_set_new(item, "state", json_string(names[task->state]));
        json_object_set_new(item, "attempts", json_integer(manifest->attempts));
        json_object_set_new(item, "cause", text_json(task->cause));
        json_array_append_new(json, item);
    }
    return json;
}

static json_t *queue_json(struct tt_daemon *daemon)
{
    struct tt_queue_counts counts = count(daemon);

    return json_pack("{s:I, s:I, s:I, s:I, s:i, s:f}", "ready", (json_int_t)counts.ready, "settling",
                     (json_int_t)counts.settling, "deferred", (json_int_t)counts.deferred, "retry",
                     (json_int_t)counts.jobs, "running", count_tasks(daemon, TT_TASK_RUNNING),
                     "oldest_seconds", (double)oldest_ms(&counts) / 1000);
}

static json_t *jobs_json(const struct tt_daemon *daemon)
{
    const struct tt_metrics *metrics = &daemon->metrics;

    return json_pack("{s:I, s:I, s:I, s:I, s:I}", "done", (json_int_t)metrics->jobs[TT_METRIC_DONE],
                     "truncated", (json_int_t)metrics->jobs[TT_METRIC_TRUNCATED], "failed",
                     (json_int_t)metrics->jobs[TT_METRIC_FAILED], "cancelled",
                     (json_int_t)metrics->jobs[TT_METRIC_CANCELLED], "retries", (json_int_t)metrics->retries);
}

static json_t *status_json(struct tt_daemon *daemon)
{
    const struct tt_spool_pause *pause = tt_spool_paused(daemon->spool);
    const char *state =
        daemon->phase == TT_PHASE_RUNNING && pause->paused ? "paused" : phase_names[daemon->phase];
    json_t *json = json_object();

    json_object_set_new(json, "ok", json_true());
    json_object_set_new(json, "version", json_string(TT_VERSION));
    json_object_set_new(json, "pid", json_integer(getpid()));
    json_object_set_new(json, "uptime_seconds", json_integer((tt_clock_ms() - daemon->began_ms) / 1000));
    json_object_set_new(json, "state", json_string(state));
    json_object_set_new(json, "paused", pause->paused ? text_json(pause->text) : json_null());
    json_object_set_new(json, "spool", text_json(daemon->config->spool.root));
    json_object_set_new(json, "queue", queue_json(daemon));
    json_object_set_new(json, "jobs", jobs_json(daemon));
    json_object_set_new(json, "devices", devices_json(daemon));
    json_object_set_new(json, "waiting", waiting_json(daemon));
    return json;
}

/* --- requests ---------------------------------------------------------------------------------------------
 */

static json_t *failure(const struct tt_error *err)
{
    json_t *json = json_object();

    json_object_set_new(json, "ok", json_false());
    json_object_set_new(json, "status", json_string(tt_status_name(err->status)));
    json_object_set_new(json, "error", text_json(err->text));
    return json;
}

/* Takes the answer of a request that names a file. */
static json_t *act(struct tt_daemon *daemon, const char *command, const char *encoded)
{
    char *name = encoded ? tt_name_decode(encoded) : NULL;
    struct tt_error err;
    enum tt_status status;

    if (!name || !name[0])
        status = tt_fail(&err, TT_BAD_INPUT, "%s needs a name", command);
    else if (daemon->phase >= TT_PHASE_DRAINING)
        status = tt_fail(&err, TT_RETRY_LATER, "the daemon is ending");
    else if (strcmp(command, "retry") == 0)
        status = tt_spool_retry(daemon->spool, name, &err);
    else
        status = tt_jobs_cancel(daemon->jobs, name, &err);
    free(name);
    daemon->jobs->paused_seen = true; /* what could not be ended is taken up when that clears */
    tt_daemon_wake(daemon);
    return status ? failure(&err) : json_pack("{s:b}", "ok", 1);
}

static json_t *answer(struct tt_daemon *daemon, const json_t *request)
{
    const char *command = json_string_value(json_object_get(request, "command"));
    struct tt_error err;

    if (command && strcmp(command, "status") == 0)
        return status_json(daemon);
    if (command && (strcmp(command, "retry") == 0 || strcmp(command, "cancel") == 0))
        return act(daemon, command, json_string_value(json_object_get(request, "name")));
    tt_fail(&err, TT_BAD_INPUT, "the commands are status, retry and cancel");
    return failure(&err);
}

char *tt_report_answer(void *user, const char *line)
{
    json_t *request = json_loads(line, JSON_REJECT_DUPLICATES, NULL), *json;
    struct tt_error err;
    char *text;

    if (request) {
        json = answer(user, request);
    } else {
        tt_fail(&err, TT_BAD_INPUT, "a request is a JSON object in one line");
        json = failure(&err);
    }
    text = json_dumps(json, JSON_COMPACT);
    json_decref(json);
    json_decref(request);
    return text;
}

/* --- metrics ----------------------------------------------------------------------------------------------
 */

void tt_report_metrics(struct tt_daemon *daemon)
{
    static const char *const states[] = {"down",   "starting",       "idle", "busy",
                                         "ending", "out_of_service", NULL};
    struct tt_metric_device devices[TT_BLAME_SLOTS];
    struct tt_queue_counts counts = count(daemon);
    struct timespec wall;
    struct tt_metric_now now = {.ready = counts.ready,
                                .settling = counts.settling,
                                .deferred = counts.deferred,
                                .retry = counts.jobs,
                                .running = count_tasks(daemon, TT_TASK_RUNNING),
                                .oldest_seconds = (double)oldest_ms(&counts) / 1000,
                                .free_bytes = tt_spool_free_bytes(daemon->spool),
                                .states = states,
                                .devices = devices,
                                .count = tt_supervisor_count(daemon->supervisor)};
    struct tt_error err;
    enum tt_status status;

    if (!daemon->config->metrics.textfile)
        return;
    clock_gettime(CLOCK_REALTIME, &wall);
    now.start_seconds = wall.tv_sec - (tt_clock_ms() - daemon->began_ms) / 1000;
    for (int i = 0; i < now.count; i++) {
        const struct tt_slot *slot = tt_supervisor_slot(daemon->supervisor, i);

        devices[i] = (struct tt_metric_device){.worker = slot->choice.name,
                                               .state = state_of(slot),
                                               .jobs = slot->jobs_done,
                                               .exits = slot->exits};
    }
    status = tt_metrics_write(daemon->config->metrics.textfile, &daemon->metrics, &now, &err);
    if (status && !daemon->metrics_failed)
        tt_log(daemon->log, TT_LOG_WARNING, "metrics_failed",
               TT_STR("file", daemon->config->metrics.textfile), TT_STR("cause", err.text));
    daemon->metrics_failed = status != TT_OK;
}

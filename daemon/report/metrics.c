/* daemon/report/metrics.c: the Prometheus text. Fails only where the file cannot be written; then the one
 * before stays. */
#include "daemon/report/metrics.h"

#include "core/fsio.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

static const int64_t bounds_ms[TT_METRIC_BUCKETS] = {10,   25,   50,    100,   250,   500,    1000,
                                                     2500, 5000, 10000, 30000, 60000, 300000, 1800000};
static const char *const outcome_names[TT_METRIC_OUTCOMES] = {"done", "truncated", "failed", "cancelled"};
static const char *const stage_names[TT_METRIC_STAGES] = {"decode", "track", "refine", "write", "all"};

void tt_histogram_add(struct tt_histogram *histogram, int64_t ms)
{
    int bucket = 0;

    while (bucket < TT_METRIC_BUCKETS && ms > bounds_ms[bucket])
        bucket++;
    histogram->buckets[bucket]++;
    histogram->count++;
    histogram->sum_ms += ms;
}

void tt_metrics_job_done(struct tt_metrics *metrics, bool truncated, const struct tt_message_done *done,
                         int64_t input_bytes)
{
    metrics->jobs[truncated ? TT_METRIC_TRUNCATED : TT_METRIC_DONE]++;
    metrics->frames += done->frames;
    metrics->input_bytes += input_bytes;
    for (int i = 0; i < done->outputs; i++)
        metrics->output_bytes += done->output_bytes[i];
    tt_histogram_add(&metrics->stages[TT_METRIC_DECODE], done->decode_ms);
    tt_histogram_add(&metrics->stages[TT_METRIC_TRACK], done->track_ms);
    if (done->refine_ms > 0)
        tt_histogram_add(&metrics->stages[TT_METRIC_REFINE], done->refine_ms);
    tt_histogram_add(&metrics->stages[TT_METRIC_WRITE], done->write_ms);
    tt_histogram_add(&metrics->stages[TT_METRIC_ALL], done->total_ms);
}

/* --- text -------------------------------------------------------------------------------------------------
 */

static void head(FILE *file, const char *name, const char *type, const char *help)
{
    fprintf(file, "# HELP tiletrack_%s %s\n# TYPE tiletrack_%s %s\n", name, help, name, type);
}

static void print_one(FILE *file, const char *name, const char *type, const char *help, int64_t value)
{
    head(file, name, type, help);
    fprintf(file, "tiletrack_%s %lld\n", name, (long long)value);
}

/* A label's value: worker names hold none of the letters that would need it, but this is cheap. */
static void print_label(FILE *file, const char *value)
{
    for (; *value; value++) {
        if (*value == '\\' || *value == '"')
            putc('\\', file);
        putc(*value == '\n' ? ' ' : *value, file);
    }
}

static void print_stage(FILE *file, enum tt_metric_stage stage, const struct tt_histogram *histogram)
{
    const char *name = stage_names[stage];
    int64_t below = 0;

    for (int i = 0; i < TT_METRIC_BUCKETS; i++) {
        below += histogram->buckets[i];
        fprintf(file, "tiletrack_job_stage_seconds_bucket{stage=\"%s\",le=\"%g\"} %lld\n", name,
                (double)bounds_ms[i] / 1000, (long long)below);
    }
    fprintf(file,
            "tiletrack_job_stage_seconds_bucket{stage=\"%s\",le=\"+Inf\"} %lld\n"
            "tiletrack_job_stage_seconds_sum{stage=\"%s\"} %.3f\n"
            "tiletrack_job_stage_seconds_count{stage=\"%s\"} %lld\n",
            name, (long long)histogram->count, name, (double)histogram->sum_ms / 1000, name,
            (long long)histogram->count);
}

static void print_devices(FILE *file, const struct tt_metric_now *now)
{
    head(file, "device_state", "gauge", "1 for the state that the device is in.");
    for (int i = 0; i < now->count; i++)
        for (const char *const *state = now->states; *state; state++) {
            fputs("tiletrack_device_state{worker=\"", file);
            print_label(file, now->devices[i].worker);
            fprintf(file, "\",state=\"%s\"} %d\n", *state, strcmp(*state, now->devices[i].state) == 0);
        }
    head(file, "device_jobs_total", "counter", "Jobs that the device has finished.");
    for (int i = 0; i < now->count; i++) {
        fputs("tiletrack_device_jobs_total{worker=\"", file);
        print_label(file, now->devices[i].worker);
        fprintf(file, "\"} %lld\n", (long long)now->devices[i].jobs);
    }
    head(file, "worker_exits_total", "counter", "Ends of worker processes, wanted or not.");
    for (int i = 0; i < now->count; i++) {
        fputs("tiletrack_worker_exits_total{worker=\"", file);
        print_label(file, now->devices[i].worker);
        fprintf(file, "\"} %lld\n", (long long)now->devices[i].exits);
    }
}

static void print_queue(FILE *file, const struct tt_metric_now *now)
{
    head(file, "queue_jobs", "gauge",
         "What waits: ready, not known to be whole yet, put off, or for another attempt.");
    fprintf(file,
            "tiletrack_queue_jobs{state=\"ready\"} %lld\n"
            "tiletrack_queue_jobs{state=\"settling\"} %lld\n"
            "tiletrack_queue_jobs{state=\"deferred\"} %lld\n"
            "tiletrack_queue_jobs{state=\"retry\"} %lld\n",
            (long long)now->ready, (long long)now->settling, (long long)now->deferred, (long long)now->retry);
    head(file, "queue_oldest_age_seconds", "gauge", "Age of the oldest that waits, 0 where nothing does.");
    fprintf(file, "tiletrack_queue_oldest_age_seconds %.3f\n", now->oldest_seconds);
    print_one(file, "jobs_running", "gauge", "Jobs that run.", now->running);
    if (now->free_bytes >= 0)
        print_one(file, "spool_free_bytes", "gauge", "Free space on the spool's file system.",
                  now->free_bytes);
}

void tt_metrics_print(FILE *file, const struct tt_metrics *metrics, const struct tt_metric_now *now)
{
    head(file, "build_info", "gauge", "1, with the version.");
    fputs("tiletrack_build_info{version=\"" TT_VERSION "\"} 1\n", file);
    print_one(file, "start_time_seconds", "gauge", "When the daemon was started, in Unix time.",
              now->start_seconds);
    head(file, "jobs_total", "counter", "Jobs that ended, by how.");
    for (int i = 0; i < TT_METRIC_OUTCOMES; i++)
        fprintf(file, "tiletrack_jobs_total{outcome=\"%s\"} %lld\n", outcome_names[i],
                (long long)metrics->jobs[i]);
    print_one(file, "jobs_claimed_total", "counter", "Videos that were taken out of incoming/.",
              metrics->claimed);
    print_one(file, "job_retries_total", "counter", "Attempts that another one follows.", metrics->retries);
    print_one(file, "frames_total", "counter", "Frames of finished jobs.", metrics->frames);
    print_one(file, "input_bytes_total", "counter", "Bytes of the videos of finished jobs.",
              metrics->input_bytes);
    print_one(file, "output_bytes_total", "counter", "Bytes of the results of finished jobs.",
              metrics->output_bytes);
    print_one(file, "on_done_failures_total", "counter", "Failures of the program of on_done.",
              metrics->on_done_failures);
    print_one(file, "config_reloads_total", "counter", "Configurations that were taken up while running.",
              metrics->reloads);
    print_one(file, "claiming_paused", "gauge", "1 while no job is started because of the disk.",
              metrics->paused);
    head(file, "job_stage_seconds", "histogram", "Time of finished jobs, by what it went into.");
    for (int i = 0; i < TT_METRIC_STAGES; i++)
        print_stage(file, (enum tt_metric_stage)i, &metrics->stages[i]);
    print_queue(file, now);
    print_devices(file, now);
}

enum tt_status tt_metrics_write(const char *path, const struct tt_metrics *metrics,
                                const struct tt_metric_now *now, struct tt_error *err)
{
    char *text = NULL;
    size_t bytes = 0;
    FILE *stream = open_memstream(&text, &bytes);
    struct tt_file *file = NULL;
    enum tt_status status;

    if (!stream)
        return tt_fail_errno(err, TT_RETRY_LATER, errno, "metrics");
    tt_metrics_print(stream, metrics, now);
    if (fclose(stream) != 0) {
        status = tt_fail_errno(err, TT_RETRY_LATER, ENOMEM, "metrics");
        goto done;
    }
    status = tt_file_create(&file, path, err);
    if (status)
        goto done;
    status = tt_file_write(file, text, bytes, err);
    if (status)
        tt_file_abandon(file);
    else
        status = tt_file_commit(file, TT_REPLACE, err);
done:
    free(text);
    return status;
}

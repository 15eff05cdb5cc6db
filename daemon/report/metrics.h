/* daemon/report/metrics.h: counters, and a text file of them for the textfile collector of Prometheus' node
 * exporter.
 *
 * Counters begin at 0 with the daemon. Names and units follow Prometheus' conventions: seconds, bytes,
 * `_total` behind what only grows. `promtool check metrics` accepts the text.
 */
#ifndef TT_DAEMON_REPORT_METRICS_H
#define TT_DAEMON_REPORT_METRICS_H

#include "core/message.h"
#include "core/status.h"

#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>

enum tt_metric_outcome {
    TT_METRIC_DONE,
    TT_METRIC_TRUNCATED,
    TT_METRIC_FAILED,
    TT_METRIC_CANCELLED,
    TT_METRIC_OUTCOMES
};

enum tt_metric_stage {
    TT_METRIC_DECODE, /* that tracking waited for frames */
    TT_METRIC_TRACK,
    TT_METRIC_REFINE, /* of jobs that were refined only */
    TT_METRIC_WRITE,
    TT_METRIC_ALL, /* from the worker's start of the job to its end */
    TT_METRIC_STAGES
};

enum { TT_METRIC_BUCKETS = 14 };

struct tt_histogram {
    int64_t buckets[TT_METRIC_BUCKETS + 1]; /* each: not in those before; the last: beyond all bounds */
    int64_t count, sum_ms;
};

/* All zero at first. */
struct tt_metrics {
    int64_t jobs[TT_METRIC_OUTCOMES];
    int64_t claimed, retries, frames, input_bytes, output_bytes, on_done_failures, reloads;
    struct tt_histogram stages[TT_METRIC_STAGES];
    bool paused;
};

/* What is so now. Borrowed. */
struct tt_metric_device {
    const char *worker, *state;
    int64_t jobs, exits;
};

struct tt_metric_now {
    int64_t start_seconds;                    /* wall clock */
    int64_t ready, settling, deferred, retry; /* waiting, by why */
    int64_t running;
    double oldest_seconds;     /* age of the oldest that waits; 0: nothing waits */
    int64_t free_bytes;        /* -1: not known */
    const char *const *states; /* all there are, NULL at the end */
    const struct tt_metric_device *devices;
    int count;
};

void tt_histogram_add(struct tt_histogram *histogram, int64_t ms);
void tt_metrics_job_done(struct tt_metrics *metrics, bool truncated, const struct tt_message_done *done,
                         int64_t input_bytes);

/* The exposition format, to a stream. */
void tt_metrics_print(FILE *file, const struct tt_metrics *metrics, const struct tt_metric_now *now);

/* Replaces the file at path, atomically. TT_RETRY_LATER or TT_REFUSE: it cannot be written. */
enum tt_status tt_metrics_write(const char *path, const struct tt_metrics *metrics,
                                const struct tt_metric_now *now, struct tt_error *err);

#endif

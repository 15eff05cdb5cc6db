/* tests/unit/test_metrics.c: the text for Prometheus. promtool judges it in tests/e2e. */
#include "daemon/report/metrics.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <cmocka.h>

static const char *const states[] = {"idle", "busy", NULL};
static const struct tt_metric_device devices[] = {
    {.worker = "gpu\"0", .state = "busy", .jobs = 5, .exits = 1}};
static const struct tt_metric_now now = {
    .ready = 3, .oldest_seconds = 1.5, .free_bytes = -1, .states = states, .devices = devices, .count = 1};

/* Owned by the caller. */
static char *text_of(const struct tt_metrics *metrics)
{
    char *text = NULL;
    size_t bytes;
    FILE *stream = open_memstream(&text, &bytes);

    assert_non_null(stream);
    tt_metrics_print(stream, metrics, &now);
    fclose(stream);
    return text;
}

static void has(const char *text, const char *line)
{
    if (!strstr(text, line))
        fail_msg("there is no line %s in\n%s", line, text);
}

static void a_histogram_is_cumulative(void **state)
{
    struct tt_metrics metrics = {0};
    struct tt_message_done done = {.frames = 40, .decode_ms = 10, .track_ms = 11, .total_ms = 9999999};
    char *text;

    (void)state;
    done.outputs = 2;
    done.output_bytes[0] = 400;
    done.output_bytes[1] = 300;
    tt_metrics_job_done(&metrics, false, &done, 1000);
    done.track_ms = 60;
    done.refine_ms = 26;
    tt_metrics_job_done(&metrics, true, &done, 1000);
    text = text_of(&metrics);
    has(text, "\ntiletrack_jobs_total{outcome=\"done\"} 1\n");
    has(text, "\ntiletrack_jobs_total{outcome=\"truncated\"} 1\n");
    has(text, "\ntiletrack_frames_total 80\n");
    has(text, "\ntiletrack_input_bytes_total 2000\n");
    has(text, "\ntiletrack_output_bytes_total 1400\n");
    has(text, "stage=\"decode\",le=\"0.01\"} 2\n"); /* a bound belongs to its bucket */
    has(text, "stage=\"track\",le=\"0.01\"} 0\n");
    has(text, "stage=\"track\",le=\"0.025\"} 1\n");
    has(text, "stage=\"track\",le=\"0.05\"} 1\n");
    has(text, "stage=\"track\",le=\"0.1\"} 2\n");
    has(text, "stage=\"refine\",le=\"0.025\"} 0\n"); /* one of the two was refined */
    has(text, "stage=\"refine\",le=\"0.05\"} 1\n");
    has(text, "job_stage_seconds_count{stage=\"refine\"} 1\n");
    has(text, "stage=\"all\",le=\"1800\"} 0\n");
    has(text, "stage=\"all\",le=\"+Inf\"} 2\n");
    has(text, "tiletrack_job_stage_seconds_sum{stage=\"track\"} 0.071\n");
    free(text);
}

static void gauges_and_labels(void **state)
{
    struct tt_metrics metrics = {.paused = true};
    char *text = text_of(&metrics);

    (void)state;
    has(text, "tiletrack_device_state{worker=\"gpu\\\"0\",state=\"busy\"} 1\n");
    has(text, "tiletrack_device_state{worker=\"gpu\\\"0\",state=\"idle\"} 0\n");
    has(text, "tiletrack_queue_jobs{state=\"ready\"} 3\n");
    has(text, "tiletrack_queue_oldest_age_seconds 1.500\n");
    has(text, "tiletrack_claiming_paused 1\n");
    assert_null(strstr(text, "free_bytes")); /* not known, so not said */
    free(text);
}

static void the_file_is_replaced_whole(void **state)
{
    struct tt_metrics metrics = {0};
    struct tt_error err;
    char path[] = "/tmp/tt-metrics-XXXXXX", missing[] = "/nowhere/at/all.prom", first[64] = "";
    FILE *file;

    (void)state;
    close(mkstemp(path));
    assert_int_equal(tt_metrics_write(path, &metrics, &now, &err), TT_OK);
    file = fopen(path, "r");
    assert_non_null(fgets(first, sizeof first, file));
    assert_string_equal(first, "# HELP tiletrack_build_info 1, with the version.\n");
    fclose(file);
    unlink(path);
    assert_int_not_equal(tt_metrics_write(missing, &metrics, &now, &err), TT_OK);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_histogram_is_cumulative),
        cmocka_unit_test(gauges_and_labels),
        cmocka_unit_test(the_file_is_replaced_whole),
    };
    return cmocka_run_group_tests_name("metrics", tests, NULL, NULL);
}

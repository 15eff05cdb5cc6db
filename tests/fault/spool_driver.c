/* tests/fault/spool_driver.c: a daemon without devices: recovers, scans, claims, "tracks", ends jobs, until
 * nothing is left; then exits with 0. Made to be killed.
 *
 *     spool_driver ROOT KEEP_INPUTS SEED [FOREVER]
 *
 * What happens to a job is drawn by lot from the seed, except that a video whose text begins with "bad"
 * always fails. Results are npz and csv; in every third job a directory's own configuration wants jsonl as
 * well. Their text is "of " and the video's text, so the test can tell what was tracked.
 * FOREVER: waits for more instead of exiting.
 */
#include "daemon/spool/scan.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { VIDEO_BYTES = 4096 };

struct driver {
    struct tt_config *config;
    struct tt_spool *spool;
    struct tt_queue *queue;
    struct tt_watch *watch;
    struct tt_intake *intake;
    int64_t now_ms;
    struct tt_error err;
};

static void check(struct driver *driver, enum tt_status status, const char *what)
{
    if (!status)
        return;
    fprintf(stderr, "spool_driver: %s: %s: %s\n", what, tt_status_name(status), driver->err.text);
    exit(2);
}

static bool one_in(int n)
{
    return rand() % n == 0;
}

static void open_all(struct driver *driver, char **arguments)
{
    check(driver, tt_config_new(&driver->config, &driver->err), "config");
    free(driver->config->spool.root);
    driver->config->spool.root = strdup(arguments[1]);
    driver->config->spool.keep_inputs = atoi(arguments[2]);
    driver->config->spool.recursive = true;
    driver->config->spool.reserve_bytes = 0;
    driver->config->output.formats = 1u << TT_OUTPUT_NPZ | 1u << TT_OUTPUT_CSV;
    srand((unsigned)atoi(arguments[3]));
    check(driver, tt_spool_open(&driver->spool, driver->config, "host", &driver->err), "open");
    check(driver, tt_queue_create(&driver->queue, &driver->err), "queue");
    check(driver, tt_watch_open(&driver->watch, &driver->err), "watch");
    check(driver,
          tt_intake_create(&driver->intake, driver->spool, driver->queue, driver->watch, NULL, NULL,
                           &driver->err),
          "intake");
}

static void put_job(struct driver *driver, struct tt_spool_job *job)
{
    check(driver, tt_intake_put_job(driver->intake, job, driver->now_ms, &driver->err), "queue");
}

static void write_result(struct driver *driver, struct tt_spool_job *job, enum tt_output format,
                         const char *text, size_t bytes)
{
    char *path = tt_spool_job_result(job, format);
    struct tt_file *file;

    check(driver, tt_file_create(&file, path, &driver->err), "result");
    check(driver, tt_file_write(file, text, bytes, &driver->err), "result");
    check(driver, tt_file_commit(file, TT_NO_REPLACE, &driver->err), "result");
    free(path);
}

/* The worker's part: reads the video, writes its results. */
static void track(struct driver *driver, struct tt_spool_job *job)
{
    char *video = tt_spool_job_video(job), text[VIDEO_BYTES + 4] = "of ";
    int fd = open(video, O_RDONLY | O_CLOEXEC);
    ssize_t got = fd < 0 ? -1 : read(fd, text + 3, VIDEO_BYTES);

    if (got < 0) {
        perror(video);
        exit(2);
    }
    close(fd);
    for (int i = 0; i < TT_OUTPUTS; i++)
        if (job->manifest.output[i])
            write_result(driver, job, (enum tt_output)i, text, (size_t)got + 3);
    free(video);
}

/* Somebody still writes to the video that was claimed. */
static void append(struct tt_spool_job *job)
{
    char *video = tt_spool_job_video(job);
    int fd = open(video, O_WRONLY | O_APPEND | O_CLOEXEC);

    if (fd < 0 || write(fd, "+", 1) != 1) {
        perror(video);
        exit(2);
    }
    close(fd);
    free(video);
}

static bool is_bad(struct tt_spool_job *job)
{
    char *video = tt_spool_job_video(job), text[3] = "";
    int fd = open(video, O_RDONLY | O_CLOEXEC);
    bool bad = fd >= 0 && read(fd, text, 3) == 3 && memcmp(text, "bad", 3) == 0;

    close(fd);
    free(video);
    return bad;
}

static void run(struct driver *driver, struct tt_spool_job *job)
{
    enum tt_outcome outcome = one_in(4) ? TT_OUTCOME_TRUNCATED : TT_OUTCOME_DONE;
    unsigned formats = driver->config->output.formats | (one_in(3) ? 1u << TT_OUTPUT_JSONL : 0);
    bool changed;

    if (one_in(8)) { /* the daemon drains */
        check(driver, tt_spool_return(driver->spool, job, &driver->err), "return");
        return;
    }
    check(driver, tt_spool_attempt_begin(driver->spool, job, formats, &driver->err), "begin");
    if (is_bad(job)) {
        check(driver, tt_spool_fail(driver->spool, job, "it is bad", "bad_input", "ouch", &driver->err),
              "fail");
        return;
    }
    if (one_in(6)) { /* the worker died */
        check(driver, tt_spool_attempt_end(driver->spool, job, one_in(2), &driver->err), "end");
        put_job(driver, job);
        return;
    }
    track(driver, job);
    if (one_in(6))
        append(job);
    check(driver, tt_spool_commit(driver->spool, job, outcome, &changed, &driver->err), "commit");
    if (changed)
        put_job(driver, job);
}

/* Everything that is there now; false: there was nothing. */
static bool work(struct driver *driver)
{
    struct tt_spool_job *job;
    bool done = false, any = false;

    while (!done)
        check(driver, tt_intake_scan(driver->intake, 1000, driver->now_ms, &done, &driver->err), "scan");
    driver->now_ms += 3600000; /* everything is whole by now */
    for (enum tt_take take = TT_TAKE_JOB; take == TT_TAKE_JOB;) {
        take = tt_intake_take(driver->intake, driver->now_ms, &job, &driver->err);
        if (take == TT_TAKE_PAUSED)
            check(driver, TT_RETRY_LATER, "take");
        if (take == TT_TAKE_JOB) {
            any = true;
            run(driver, job);
        }
    }
    return any;
}

int main(int count, char **arguments)
{
    struct driver driver = {.now_ms = 1};
    struct tt_recovery recovery;

    if (count < 4)
        return 2;
    open_all(&driver, arguments);
    check(&driver, tt_spool_recover(driver.spool, &recovery, &driver.err), "recover");
    for (struct tt_spool_job *job = tt_spool_jobs(driver.spool); job; job = job->next)
        put_job(&driver, job);
    if (one_in(2)) { /* somebody believes that it will work the second time */
        if (tt_spool_retry(driver.spool, "bad.mp4", &driver.err) == TT_RETRY_LATER ||
            tt_spool_retry(driver.spool, "side-bad.mp4", &driver.err) == TT_RETRY_LATER)
            check(&driver, TT_RETRY_LATER, "retry");
    }
    while (work(&driver) || count > 4)
        ;
    tt_intake_free(driver.intake);
    tt_queue_free(driver.queue);
    tt_watch_close(driver.watch);
    tt_spool_close(driver.spool);
    tt_config_free(driver.config);
    return 0;
}

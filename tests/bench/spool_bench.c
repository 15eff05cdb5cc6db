/* tests/bench/spool_bench.c: what 100,000 waiting files cost.
 *
 *     spool_bench [FILES [DIRECTORY]]
 *
 * Names are 255 bytes long in one half of the files. Prints the time of the first scan, of a rescan when all
 * is ready, of the longest step of either (1,000 names), of a claim and of a whole job, and the memory that
 * the queue took. Exits with 1 where 100,000 files take more than 2 s or 100 MB, or a claim more than 100 ms.
 */
#include "daemon/spool/scan.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

enum { STEP_NAMES = 1000, JOBS = 200 };

struct bench {
    struct tt_config *config;
    struct tt_spool *spool;
    struct tt_queue *queue;
    struct tt_watch *watch;
    struct tt_intake *intake;
    struct tt_error err;
};

static double now_s(void)
{
    struct timespec now;

    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec + (double)now.tv_nsec * 1e-9;
}

static void check(struct bench *bench, enum tt_status status)
{
    if (status) {
        fprintf(stderr, "spool_bench: %s\n", bench->err.text);
        exit(2);
    }
}

static double resident_mb(void)
{
    FILE *file = fopen("/proc/self/statm", "r");
    long pages = 0;

    if (!file || fscanf(file, "%*d %ld", &pages) != 1)
        exit(2);
    fclose(file);
    return (double)pages * (double)sysconf(_SC_PAGESIZE) / 1e6;
}

static void make_files(const char *root, int files)
{
    char path[512], pad[256];
    int directory;

    snprintf(path, sizeof path, "%s/incoming", root);
    directory = open(path, O_RDONLY | O_DIRECTORY);
    memset(pad, 'x', sizeof pad);
    for (int i = 0; i < files; i++) {
        char name[256];
        int fd;

        snprintf(name, sizeof name, "%06d%.*s.mp4", i, i % 2 ? 245 : 0, pad);
        fd = openat(directory, name, O_WRONLY | O_CREAT, 0644);
        if (fd < 0 || write(fd, "x", 1) != 1) {
            perror(name);
            exit(2);
        }
        close(fd);
    }
    close(directory);
}

/* *longest_s: of its steps. */
static double scan(struct bench *bench, int64_t now_ms, double *longest_s)
{
    double start = now_s();
    bool done = false;

    *longest_s = 0;
    while (!done) {
        double step = now_s();

        check(bench, tt_intake_scan(bench->intake, STEP_NAMES, now_ms, &done, &bench->err));
        step = now_s() - step;
        if (step > *longest_s)
            *longest_s = step;
    }
    return now_s() - start;
}

static double run_jobs(struct bench *bench, int64_t now_ms, double *worst_claim_s, double *claim_s)
{
    double start = now_s();

    *worst_claim_s = *claim_s = 0;
    for (int i = 0; i < JOBS; i++) {
        struct tt_spool_job *job;
        double took = now_s();
        struct tt_file *file;
        char *path;
        bool changed;

        if (tt_intake_take(bench->intake, now_ms, &job, &bench->err) != TT_TAKE_JOB)
            exit(2);
        took = now_s() - took;
        *claim_s += took / JOBS;
        if (took > *worst_claim_s)
            *worst_claim_s = took;
        check(bench, tt_spool_attempt_begin(bench->spool, job, 1u << TT_OUTPUT_NPZ, &bench->err));
        path = tt_spool_job_result(job, TT_OUTPUT_NPZ);
        check(bench, tt_file_create(&file, path, &bench->err));
        check(bench, tt_file_write(file, "result", 6, &bench->err));
        check(bench, tt_file_commit(file, TT_NO_REPLACE, &bench->err));
        free(path);
        check(bench, tt_spool_commit(bench->spool, job, TT_OUTCOME_DONE, &changed, &bench->err));
    }
    return (now_s() - start) / JOBS;
}

int main(int count, char **arguments)
{
    int files = count > 1 ? atoi(arguments[1]) : 100000;
    char root[256], command[300];
    struct bench bench = {0};
    int64_t now_ms = 1000000, ready_ms;
    double before_mb, first_s, again_s, step_s, step_again_s, promote_s, job_s, claim_s, worst_s, memory_mb;
    bool good;

    snprintf(root, sizeof root, "%s/tt-bench-XXXXXX", count > 2 ? arguments[2] : "/tmp");
    if (!mkdtemp(root))
        return 2;
    check(&bench, tt_config_new(&bench.config, &bench.err));
    free(bench.config->spool.root);
    bench.config->spool.root = strdup(root);
    bench.config->spool.reserve_bytes = 0;
    check(&bench, tt_spool_open(&bench.spool, bench.config, "host", &bench.err));
    make_files(root, files);
    before_mb = resident_mb();
    check(&bench, tt_queue_create(&bench.queue, &bench.err));
    check(&bench, tt_watch_open(&bench.watch, &bench.err));
    check(&bench,
          tt_intake_create(&bench.intake, bench.spool, bench.queue, bench.watch, NULL, NULL, &bench.err));
    first_s = scan(&bench, now_ms, &step_s);
    ready_ms = now_ms + bench.config->spool.settle_blind_ms;
    promote_s = now_s();
    if (tt_queue_next(bench.queue, ready_ms) == TT_ENTRY_NONE)
        return 2;
    promote_s = now_s() - promote_s;
    again_s = scan(&bench, ready_ms, &step_again_s);
    memory_mb = resident_mb() - before_mb;
    job_s = run_jobs(&bench, ready_ms, &worst_s, &claim_s);
    printf("files %d\nfirst_scan_ms %.1f\nfirst_scan_longest_step_ms %.2f\nall_become_ready_ms "
           "%.1f\nrescan_ms %.1f\n"
           "rescan_longest_step_ms %.2f\nmemory_mb %.1f\nclaim_mean_ms %.2f\nclaim_worst_ms "
           "%.2f\njob_mean_ms %.2f\n",
           files, first_s * 1e3, step_s * 1e3, promote_s * 1e3, again_s * 1e3, step_again_s * 1e3, memory_mb,
           claim_s * 1e3, worst_s * 1e3, job_s * 1e3);
    good = first_s < 2 && memory_mb < 100 && worst_s < 0.1;
    tt_intake_free(bench.intake);
    tt_queue_free(bench.queue);
    tt_watch_close(bench.watch);
    tt_spool_close(bench.spool);
    tt_config_free(bench.config);
    snprintf(command, sizeof command, "rm -rf %s", root);
    return system(command) != 0 || !good;
}

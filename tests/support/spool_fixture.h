/* tests/support/spool_fixture.h: a spool in a temporary directory, and shorthand for files in it. For cmocka
 * tests: whatever goes wrong fails the test. Paths are relative to the spool's root. */
#ifndef TT_TESTS_SPOOL_FIXTURE_H
#define TT_TESTS_SPOOL_FIXTURE_H

#include "daemon/spool/internal.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#include <cmocka.h>

struct fixture {
    struct tt_config *config;
    struct tt_spool *spool;
    struct tt_error err;
    char *root;
};

static inline void fixture_open_spool(struct fixture *f)
{
    if (tt_spool_open(&f->spool, f->config, "host", &f->err))
        fail_msg("tt_spool_open: %s", f->err.text);
}

/* root: NULL for a new temporary directory. */
static inline struct fixture *fixture_new(const char *root)
{
    struct fixture *f = calloc(1, sizeof *f);
    char made[] = "/tmp/tt-spool-XXXXXX";

    assert_non_null(f);
    assert_int_equal(tt_config_new(&f->config, &f->err), TT_OK);
    if (!root)
        assert_non_null(root = mkdtemp(made));
    free(f->config->spool.root);
    f->root = f->config->spool.root = strdup(root);
    f->config->spool.settle_ms = 2000;
    f->config->spool.settle_blind_ms = 10000;
    f->config->spool.reserve_bytes = 0;
    return f;
}

/* Until a file that is changed now has another time than what was changed before: they tick every few
 * milliseconds. */
static inline void next_tick(const struct fixture *f)
{
    char path[PATH_MAX];
    struct stat first, now;
    int fd;

    snprintf(path, sizeof path, "%s/tick", f->root);
    fd = open(path, O_WRONLY | O_CREAT | O_CLOEXEC, 0600);
    assert_int_equal(write(fd, "", 1), 1);
    assert_int_equal(fstat(fd, &first), 0);
    do {
        usleep(1000);
        assert_int_equal(write(fd, "", 1), 1);
        assert_int_equal(fstat(fd, &now), 0);
    } while (now.st_ctim.tv_sec == first.st_ctim.tv_sec && now.st_ctim.tv_nsec == first.st_ctim.tv_nsec);
    close(fd);
    assert_int_equal(unlink(path), 0);
}

static inline int fixture_start(void **state)
{
    struct fixture *f = fixture_new(NULL);

    fixture_open_spool(f);
    *state = f;
    return 0;
}

static inline int fixture_stop(void **state)
{
    struct fixture *f = *state;
    char command[PATH_MAX];
    int result;

    tt_spool_close(f->spool);
    snprintf(command, sizeof command, "rm -rf '%s'", f->root);
    result = system(command);
    tt_config_free(f->config);
    free(f);
    return result;
}

/* A path of the spool; good until the fourth call after this one. */
static inline const char *at(struct fixture *f, const char *path)
{
    static char paths[4][2 * PATH_MAX];
    static int next;
    char *made = paths[next++ % 4];

    snprintf(made, sizeof *paths, "%s/%s", f->root, path);
    return made;
}

static inline void put(struct fixture *f, const char *path, const char *text)
{
    int fd = open(at(f, path), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);

    if (fd < 0)
        fail_msg("%s: %s", at(f, path), strerror(errno));
    assert_int_equal(write(fd, text, strlen(text)), strlen(text));
    close(fd);
}

static inline bool there(struct fixture *f, const char *path)
{
    struct stat st;

    return lstat(at(f, path), &st) == 0;
}

/* Borrowed until the next call. */
static inline const char *text_of(struct fixture *f, const char *path)
{
    static char text[65536];
    int fd = open(at(f, path), O_RDONLY | O_CLOEXEC);
    ssize_t got;

    if (fd < 0)
        fail_msg("%s: %s", at(f, path), strerror(errno));
    got = read(fd, text, sizeof text - 1);
    assert_true(got >= 0);
    text[got] = '\0';
    close(fd);
    return text;
}

/* Entries of a directory that are not hidden. */
static inline int count_in(struct fixture *f, const char *path)
{
    DIR *listing = opendir(at(f, path));
    struct dirent *item;
    int count = 0;

    if (!listing)
        return 0;
    while ((item = readdir(listing)))
        count += item->d_name[0] != '.';
    closedir(listing);
    return count;
}

/* Jobs in work/: what is there but the lock. */
static inline int jobs_in_work(struct fixture *f)
{
    return count_in(f, "work/host") - 1;
}

static inline struct tt_spool_job *claim(struct fixture *f, const char *source)
{
    struct tt_spool_job *job = NULL;

    if (tt_spool_claim(f->spool, source, NULL, &job, &f->err) != TT_CLAIM_TAKEN)
        fail_msg("%s: not claimed: %s", source, f->err.text);
    return job;
}

static inline struct tt_spool_job *put_and_claim(struct fixture *f, const char *source, const char *text)
{
    char path[PATH_MAX];

    snprintf(path, sizeof path, "incoming/%s", source);
    put(f, path, text);
    return claim(f, source);
}

static inline void begin(struct fixture *f, struct tt_spool_job *job)
{
    if (tt_spool_attempt_begin(f->spool, job, f->config->output.formats, &f->err))
        fail_msg("attempt: %s", f->err.text);
}

/* What a worker does: a result in each format, whole and durable. */
static inline void write_format(struct fixture *f, struct tt_spool_job *job, enum tt_output format,
                                const char *text)
{
    char *path = tt_spool_job_result(job, format);
    struct tt_file *file;

    if (tt_file_create(&file, path, &f->err) || tt_file_write(file, text, strlen(text), &f->err) ||
        tt_file_commit(file, TT_NO_REPLACE, &f->err))
        fail_msg("result: %s", f->err.text);
    free(path);
}

static inline void write_result(struct fixture *f, struct tt_spool_job *job, const char *text)
{
    for (int i = 0; i < TT_OUTPUTS; i++)
        if (job->manifest.output[i])
            write_format(f, job, (enum tt_output)i, text);
}

static inline void commit(struct fixture *f, struct tt_spool_job *job)
{
    bool changed = true;

    if (tt_spool_commit(f->spool, job, TT_OUTCOME_DONE, &changed, &f->err))
        fail_msg("commit: %s", f->err.text);
    assert_false(changed);
}

/* Claim, attempt, result, commit. */
static inline void run_job(struct fixture *f, const char *source, const char *text, const char *result)
{
    struct tt_spool_job *job = put_and_claim(f, source, text);

    begin(f, job);
    write_result(f, job, result);
    commit(f, job);
}

/* Everything is closed and opened again, as after a crash; recovers. */
static inline struct tt_recovery restart(struct fixture *f)
{
    struct tt_recovery recovery;

    tt_spool_close(f->spool);
    fixture_open_spool(f);
    if (tt_spool_recover(f->spool, &recovery, &f->err))
        fail_msg("recover: %s", f->err.text);
    return recovery;
}

#endif

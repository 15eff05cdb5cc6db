/* tests/unit/test_spool_recover.c: what a start makes of what it finds; troubles and their clearing; pruning.
 * (tests/fault kills the process at every step; here stand the cases that kills do not make.) */
#include "tests/support/spool_fixture.h"

#include <sched.h>
#include <sys/mount.h>
#include <sys/wait.h>

/* --- recovery ---------------------------------------------------------------------------------------------
 */

static void resumes_claimed_jobs(void **state)
{
    struct fixture *f = *state;
    struct tt_spool_job *job;
    struct tt_recovery recovery;

    put(f, "incoming/bear.queries.csv", "0,1,1");
    job = put_and_claim(f, "bear.mp4", "video");
    begin(f, job);
    write_result(f, job, "of a dead attempt");
    put_and_claim(f, "cub.mp4", "cub");
    recovery = restart(f);
    assert_int_equal(recovery.resumed, 2);
    job = tt_spool_find(f->spool, "bear.mp4");
    assert_non_null(job);
    assert_int_equal(job->manifest.attempts, 0); /* not the input's fault */
    assert_int_equal(job->manifest.interruptions, 1);
    assert_true(job->manifest.has_sidecar[TT_SPOOL_QUERIES_CSV]);
    assert_string_equal(job->manifest.output[TT_OUTPUT_NPZ], "bear.tracks.npz");
    begin(f, job);
    assert_int_equal(job->manifest.serial, 2);
    assert_int_equal(count_in(f, "tracks"), 0);
    write_result(f, job, "of the second");
    commit(f, job);
    assert_string_equal(text_of(f, "tracks/bear.tracks.npz"), "of the second");
    recovery = restart(f);
    assert_int_equal(recovery.resumed, 1);
    assert_int_equal(tt_spool_recover(f->spool, &recovery, &f->err), TT_OK); /* once more: nothing new */
    assert_int_equal(recovery.resumed, 0);
    assert_int_equal(jobs_in_work(f), 1);
}

static void one_that_is_interrupted_again_and_again_waits(void **state)
{
    struct fixture *f = *state;
    struct tt_spool_job *job = put_and_claim(f, "bear.mp4", "video");

    for (int i = 1; i <= 5; i++) {
        begin(f, job);
        restart(f);
        job = tt_spool_find(f->spool, "bear.mp4");
        assert_int_equal(job->manifest.interruptions, i);
        assert_int_equal(job->manifest.attempts, 0);
        if (i <= 2)
            assert_int_equal(tt_spool_job_delay_ms(f->spool, job, 0), 0);
        else
            assert_int_equal(tt_spool_job_delay_ms(f->spool, job, 0), f->config->jobs.backoff_ms << (i - 3));
    }
}

static void a_checkpoint_stays_while_the_input_does(void **state)
{
    struct fixture *f = *state;
    struct tt_spool_job *job = put_and_claim(f, "bear.mp4", "video");
    char path[PATH_MAX];

    begin(f, job);
    snprintf(path, sizeof path, "work/host/%s/checkpoint.3", job->manifest.id);
    put(f, path, "windows");
    restart(f);
    job = tt_spool_find(f->spool, "bear.mp4");
    begin(f, job);
    assert_true(there(f, path));
    snprintf(path, sizeof path, "work/host/%s/video", job->manifest.id);
    put(f, path, "other video");
    snprintf(path, sizeof path, "work/host/%s/checkpoint.3", job->manifest.id);
    assert_int_equal(tt_spool_look(f->spool, job), TT_LOOK_CHANGED);
    assert_int_equal(tt_spool_attempt_end(f->spool, job, false, &f->err), TT_OK);
    begin(f, job);
    assert_false(there(f, path));
    assert_int_equal(tt_spool_look(f->spool, job), TT_LOOK_SAME);
}

/* What a sick device charged is given back, durably, and never more than was charged. */
static void refunds(void **state)
{
    struct fixture *f = *state;
    struct tt_spool_job *job = put_and_claim(f, "bear.mp4", "video");

    assert_int_equal(tt_spool_refund(f->spool, job, &f->err), TT_OK); /* nothing was charged */
    assert_int_equal(job->manifest.attempts, 0);
    for (int i = 0; i < 2; i++) {
        begin(f, job);
        assert_int_equal(tt_spool_attempt_end(f->spool, job, false, &f->err), TT_OK);
    }
    assert_int_equal(tt_spool_refund(f->spool, job, NULL), TT_OK);
    assert_int_equal(job->manifest.attempts, 1);
    restart(f);
    job = tt_spool_find(f->spool, "bear.mp4");
    assert_int_equal(job->manifest.attempts, 1);
    assert_int_equal(job->manifest.serial, 2); /* attempts begun are never forgotten */

    begin(f, job); /* the charge of the attempt that runs is not what a device is given back */
    assert_int_equal(tt_spool_refund(f->spool, job, &f->err), TT_OK);
    assert_int_equal(tt_spool_refund(f->spool, job, &f->err), TT_OK);
    assert_int_equal(job->manifest.attempts, 1);
    assert_true(job->manifest.running);

    f->config->jobs.max_attempts = 1;
    assert_int_equal(tt_spool_attempt_end(f->spool, job, false, &f->err), TT_OK);
    assert_true(tt_spool_exhausted(f->spool, job));
    assert_int_equal(tt_spool_refund(f->spool, job, &f->err), TT_OK);
    assert_false(tt_spool_exhausted(f->spool, job));
}

/* Where the manifest cannot be written nothing is given back: memory and disk say the same. */
static void a_refund_that_fails_changes_nothing(void **state)
{
    struct fixture *f = *state;
    struct tt_spool_job *job = put_and_claim(f, "bear.mp4", "video");
    char *directory = strdup(job->directory), away[PATH_MAX];

    begin(f, job);
    assert_int_equal(tt_spool_attempt_end(f->spool, job, false, &f->err), TT_OK);
    snprintf(away, sizeof away, "%s.away", directory);
    assert_int_equal(rename(directory, away), 0);
    assert_int_equal(tt_spool_refund(f->spool, job, &f->err), TT_RETRY_LATER);
    assert_int_equal(job->manifest.attempts, 1);
    assert_int_equal(rename(away, directory), 0);
    assert_int_equal(tt_spool_refund(f->spool, job, &f->err), TT_OK);
    assert_int_equal(job->manifest.attempts, 0);
    free(directory);
}

static void ignores_what_is_not_a_job(void **state)
{
    struct fixture *f = *state;
    struct tt_recovery recovery;

    put(f, "work/host/somebody's file", "x");
    mkdir(at(f, "work/host/20240101T000000Z-00000000"), 0700); /* a claim cut short */
    assert_int_equal(symlink("/etc", at(f, "work/host/link")), 0);
    recovery = restart(f);
    assert_int_equal(recovery.removed, 1);
    assert_int_equal(recovery.resumed + recovery.damaged + recovery.returned, 0);
    assert_true(there(f, "work/host/somebody's file"));
}

static void salvages_inputs_without_a_manifest(void **state)
{
    struct fixture *f = *state;
    struct tt_recovery recovery;
    struct tt_spool_job *job;
    char path[PATH_MAX], id[TT_JOB_ID_BYTES];

    put(f, "incoming/bear.queries.csv", "0,1,1");
    job = put_and_claim(f, "bear.mp4", "video");
    strcpy(id, job->manifest.id);
    snprintf(path, sizeof path, "work/host/%s/" TT_MANIFEST_NAME, id);
    put(f, path, "{\"version\": 1, \"job");
    recovery = restart(f);
    assert_int_equal(recovery.damaged, 1);
    assert_int_equal(jobs_in_work(f), 0);
    snprintf(path, sizeof path, "failed/%s.video", id);
    assert_string_equal(text_of(f, path), "video");
    snprintf(path, sizeof path, "failed/%s.queries.csv", id);
    assert_string_equal(text_of(f, path), "0,1,1");
    assert_int_equal(count_in(f, "failed"), 3);
}

static void a_foreign_manifest_is_not_believed(void **state)
{
    struct fixture *f = *state;
    struct tt_spool_job *job = put_and_claim(f, "bear.mp4", "video");
    char from[PATH_MAX];

    snprintf(from, sizeof from, "work/host/%s", job->manifest.id);
    assert_int_equal(rename(at(f, from), at(f, "work/host/20000101T000000Z-12345678")), 0);
    assert_int_equal(restart(f).damaged, 1);
    assert_string_equal(text_of(f, "failed/20000101T000000Z-12345678.video"), "video");
}

static void a_published_result_that_was_fetched_counts(void **state)
{
    struct fixture *f = *state;
    struct tt_spool_job *job = put_and_claim(f, "bear.mp4", "video");
    char result[64];

    /* As a crash after the rename leaves it, and then somebody takes the result away. */
    begin(f, job);
    job->manifest.state = TT_JOB_COMMITTING;
    job->manifest.outcome = TT_OUTCOME_DONE;
    job->manifest.target = strdup("bear.mp4");
    assert_int_equal(tt_job_save(f->spool, job, &f->err), TT_OK);
    snprintf(result, sizeof result, "work/host/%s/result.1.npz", job->manifest.id);
    assert_false(there(f, result));
    assert_int_equal(restart(f).committed, 1);
    assert_int_equal(count_in(f, "tracks"), 0);
    assert_string_equal(text_of(f, "done/bear.mp4"), "video");
}

/* --- troubles ---------------------------------------------------------------------------------------------
 */

static void keeps_bytes_in_reserve(void **state)
{
    struct fixture *f = *state;
    const struct tt_spool_pause *pause = tt_spool_paused(f->spool);
    struct tt_spool_job *job;

    put(f, "incoming/bear.mp4", "video");
    f->config->spool.reserve_bytes = INT64_MAX / 4;
    for (int i = 0; i < 3; i++)
        assert_int_equal(tt_spool_claim(f->spool, "bear.mp4", NULL, &job, &f->err), TT_CLAIM_PAUSED);
    assert_int_equal(pause->changes, 1); /* said once */
    assert_true(pause->paused);
    assert_non_null(strstr(pause->text, "reserve"));
    assert_int_equal(tt_spool_probe(f->spool, &f->err), TT_RETRY_LATER);
    assert_int_equal(pause->changes, 1);
    f->config->spool.reserve_bytes = 0;
    assert_int_equal(tt_spool_claim(f->spool, "bear.mp4", NULL, &job, &f->err), TT_CLAIM_PAUSED);
    assert_int_equal(tt_spool_probe(f->spool, &f->err), TT_OK);
    assert_int_equal(pause->changes, 2);
    assert_false(pause->paused);
    claim(f, "bear.mp4");
}

static void removed_directories_come_back(void **state)
{
    struct fixture *f = *state;
    struct tt_spool_job *job = put_and_claim(f, "bear.mp4", "video"), *other;

    assert_int_equal(rmdir(at(f, "tracks")), 0);
    assert_int_equal(rmdir(at(f, "done")), 0);
    begin(f, job);
    write_result(f, job, "r");
    commit(f, job);
    assert_string_equal(text_of(f, "tracks/bear.tracks.npz"), "r");
    assert_true(there(f, "done/bear.mp4"));
    assert_int_equal(rmdir(at(f, "incoming/priority")), 0);
    assert_int_equal(rmdir(at(f, "incoming")), 0);
    assert_int_equal(tt_spool_claim(f->spool, "a.mp4", NULL, &other, &f->err), TT_CLAIM_PAUSED);
    assert_int_equal(tt_spool_probe(f->spool, &f->err), TT_RETRY_LATER);
    assert_non_null(strstr(f->err.text, "incoming"));
    assert_int_equal(mkdir(at(f, "incoming"), 0755), 0);
    assert_int_equal(rmdir(at(f, "failed")), 0); /* ours: made again */
    assert_int_equal(tt_spool_probe(f->spool, &f->err), TT_OK);
    assert_true(there(f, "failed"));
    assert_int_equal(unlink(at(f, "work/host/lock")), 0); /* the lock is taken again */
    assert_int_equal(tt_spool_probe(f->spool, &f->err), TT_OK);
    assert_true(there(f, "work/host/lock"));
}

/* Runs a test in a child with a mount namespace of its own, where it may mount. Without the right to that the
 * test is skipped. */
static void in_namespace(void **state, void (*test)(struct fixture *f))
{
    pid_t child = fork();
    int status;

    if (child == 0) {
        if (unshare(CLONE_NEWNS) < 0 || mount("none", "/", NULL, MS_REC | MS_PRIVATE, NULL) < 0)
            _exit(77);
        test(*state);
        _exit(0);
    }
    assert_int_equal(waitpid(child, &status, 0), child);
    if (WIFEXITED(status) && WEXITSTATUS(status) == 77) {
        print_message("skipped: no right to mount\n");
        skip();
    }
    assert_true(WIFEXITED(status) && WEXITSTATUS(status) == 0);
}

/* In the child cmocka's asserts cannot be used. */
#define MUST(condition)                                                                                      \
    do {                                                                                                     \
        if (!(condition)) {                                                                                  \
            fprintf(stderr, "%s:%d: %s (%s)\n", __FILE__, __LINE__, #condition, f->err.text);                \
            _exit(1);                                                                                        \
        }                                                                                                    \
    } while (0)

static void mounted_elsewhere(struct fixture *f)
{
    struct tt_spool *other = NULL;

    MUST(mount("tmpfs", at(f, "done"), "tmpfs", 0, "size=1m") == 0);
    MUST(mount(at(f, "failed"), at(f, "failed"), NULL, MS_BIND, NULL) ==
         0); /* the same device, another mount */
    MUST(tt_spool_open(&other, f->config, "second", &f->err) == TT_REFUSE);
    MUST(strstr(f->err.text, "/done, ") && strstr(f->err.text, "/failed"));
    MUST(!strstr(f->err.text, "/tracks"));
}

static void names_directories_of_other_file_systems(void **state)
{
    in_namespace(state, mounted_elsewhere);
}

/* A spool on a small tmpfs of its own. */
static struct fixture *small_spool(struct fixture *f, const char *options)
{
    struct fixture *small;

    MUST(mkdir(at(f, "small"), 0755) == 0);
    MUST(mount("tmpfs", at(f, "small"), "tmpfs", 0, options) == 0);
    small = fixture_new(at(f, "small"));
    MUST(tt_spool_open(&small->spool, small->config, "host", &f->err) == TT_OK);
    return small;
}

static void fill(struct fixture *f)
{
    static const char block[4096];
    int fd = open(at(f, "ballast"), O_WRONLY | O_CREAT | O_APPEND, 0600);

    while (write(fd, block, sizeof block) > 0)
        ;
    close(fd);
}

static void disk_full(struct fixture *outer)
{
    struct fixture *f = small_spool(outer, "size=512k");
    struct tt_spool_job *job, *other;
    bool changed;

    put(f, "incoming/bear.mp4", "video");
    put(f, "incoming/cub.mp4", "cub");
    MUST(tt_spool_claim(f->spool, "bear.mp4", NULL, &job, &f->err) == TT_CLAIM_TAKEN);
    MUST(tt_spool_attempt_begin(f->spool, job, 1u << TT_OUTPUT_NPZ, &f->err) == TT_OK);
    write_result(f, job, "result");
    fill(f);
    MUST(tt_spool_claim(f->spool, "cub.mp4", NULL, &other, &f->err) == TT_CLAIM_PAUSED);
    MUST(there(f, "incoming/cub.mp4"));
    MUST(jobs_in_work(f) == 1);
    MUST(tt_spool_probe(f->spool, &f->err) == TT_RETRY_LATER);
    MUST(tt_spool_commit(f->spool, job, TT_OUTCOME_DONE, &changed, &f->err) == TT_RETRY_LATER);
    MUST(tt_spool_commit(f->spool, job, TT_OUTCOME_DONE, &changed, &f->err) == TT_RETRY_LATER);
    MUST(job->manifest.state == TT_JOB_CLAIMED && tt_spool_jobs(f->spool) == job);
    MUST(tt_spool_paused(f->spool)->changes == 1);
    MUST(unlink(at(f, "ballast")) == 0);
    MUST(tt_spool_probe(f->spool, &f->err) == TT_OK);
    MUST(tt_spool_paused(f->spool)->changes == 2);
    MUST(tt_spool_commit(f->spool, job, TT_OUTCOME_DONE, &changed, &f->err) == TT_OK && !changed);
    MUST(tt_spool_claim(f->spool, "cub.mp4", NULL, &other, &f->err) == TT_CLAIM_TAKEN);
    MUST(count_in(f, "done") == 1 && count_in(f, "tracks") == 1);
}

static void survives_a_full_disk(void **state)
{
    in_namespace(state, disk_full);
}

static void read_only(struct fixture *outer)
{
    struct fixture *f = small_spool(outer, "size=512k");
    struct tt_spool_job *job, *other;
    struct tt_recovery recovery;
    bool changed;

    put(f, "incoming/bear.mp4", "video");
    put(f, "incoming/cub.mp4", "cub");
    MUST(tt_spool_claim(f->spool, "bear.mp4", NULL, &job, &f->err) == TT_CLAIM_TAKEN);
    MUST(tt_spool_attempt_begin(f->spool, job, 1u << TT_OUTPUT_NPZ, &f->err) == TT_OK);
    write_result(f, job, "result");
    MUST(mount(NULL, f->root, NULL, MS_REMOUNT | MS_RDONLY, NULL) == 0);
    MUST(tt_spool_claim(f->spool, "cub.mp4", NULL, &other, &f->err) == TT_CLAIM_PAUSED);
    MUST(strstr(tt_spool_paused(f->spool)->text, strerror(EROFS)));
    MUST(tt_spool_probe(f->spool, &f->err) == TT_RETRY_LATER);
    MUST(tt_spool_commit(f->spool, job, TT_OUTCOME_DONE, &changed, &f->err) == TT_RETRY_LATER);
    MUST(mount(NULL, f->root, NULL, MS_REMOUNT, NULL) == 0);
    MUST(tt_spool_probe(f->spool, &f->err) == TT_OK);
    tt_spool_close(f->spool); /* and if it was killed meanwhile */
    MUST(tt_spool_open(&f->spool, f->config, "host", &f->err) == TT_OK);
    MUST(tt_spool_recover(f->spool, &recovery, &f->err) == TT_OK);
    MUST(recovery.resumed == 1 && tt_spool_find(f->spool, "bear.mp4")->manifest.attempts == 0);
    MUST(tt_spool_claim(f->spool, "cub.mp4", NULL, &other, &f->err) == TT_CLAIM_TAKEN);
}

static void survives_a_read_only_disk(void **state)
{
    in_namespace(state, read_only);
}

/* As nobody, who meets refusals that root does not. */
static void forbidden(struct fixture *f)
{
    struct tt_spool_job *job;

    put(f, "incoming/secret.mp4", "x");
    put(f, "incoming/bear.mp4", "video");
    MUST(chmod(at(f, "incoming/secret.mp4"), 0600) == 0);
    {
        char command[PATH_MAX];

        snprintf(command, sizeof command, "chown -R 65534 '%s' && chown 0 '%s/incoming/secret.mp4'", f->root,
                 f->root);
        MUST(system(command) == 0);
    }
    MUST(seteuid(65534) == 0);
    MUST(tt_spool_open(&f->spool, f->config, "host", &f->err) == TT_OK);
    MUST(tt_spool_claim(f->spool, "secret.mp4", NULL, &job, &f->err) == TT_CLAIM_DEFERRED); /* it alone */
    MUST(strstr(f->err.text, "secret.mp4") && !tt_spool_paused(f->spool)->paused);
    MUST(chmod(at(f, "incoming"), 0555) == 0);
    MUST(tt_spool_claim(f->spool, "bear.mp4", NULL, &job, &f->err) == TT_CLAIM_PAUSED); /* all */
    MUST(strstr(tt_spool_paused(f->spool)->text, strerror(EACCES)));
    MUST(jobs_in_work(f) == 0);
    MUST(tt_spool_probe(f->spool, &f->err) == TT_RETRY_LATER);
    MUST(chmod(at(f, "incoming"), 0755) == 0);
    MUST(tt_spool_probe(f->spool, &f->err) == TT_OK);
    MUST(tt_spool_claim(f->spool, "bear.mp4", NULL, &job, &f->err) == TT_CLAIM_TAKEN);
    MUST(chmod(at(f, "failed"), 0555) == 0);
    MUST(tt_spool_fail(f->spool, job, "x", "bad_input", NULL, &f->err) == TT_RETRY_LATER);
    MUST(job->manifest.state == TT_JOB_FAILING); /* decided, not done */
    MUST(chmod(at(f, "failed"), 0755) == 0);
    MUST(tt_spool_probe(f->spool, &f->err) == TT_OK);
    MUST(tt_spool_finish(f->spool, job, &f->err) == TT_OK);
    MUST(there(f, "failed/bear.mp4") && there(f, "failed/bear.mp4.reason.json") && jobs_in_work(f) == 0);
    MUST(seteuid(0) == 0);
}

/* Directories, but no lock: the child takes it. */
static int start_closed(void **state)
{
    struct fixture *f;

    fixture_start(state);
    f = *state;
    tt_spool_close(f->spool);
    f->spool = NULL;
    return 0;
}

static void one_forbidden_file_blocks_nobody(void **state)
{
    if (geteuid() != 0) {
        print_message("skipped: must be root to become somebody else\n");
        skip();
    }
    in_namespace(state, forbidden);
}

/* --- pruning ----------------------------------------------------------------------------------------------
 */

static void prunes_what_is_old(void **state)
{
    const int64_t day_ns = 86400 * INT64_C(1000000000);
    struct fixture *f = *state;
    int64_t removed, now_ns = tt_spool_wall_ns();

    mkdir(at(f, "done/sub"), 0755);
    put(f, "done/sub/a.mp4", "a");
    put(f, "failed/b.mp4", "b");
    put(f, "failed/b.mp4.reason.json", "{}");
    put(f, "tracks/a.tracks.npz", "r");
    put(f, "incoming/c.mp4", "c");
    assert_int_equal(tt_spool_prune(f->spool, now_ns + 1000 * day_ns, &removed, &f->err), TT_OK);
    assert_int_equal(removed, 0); /* keep_days: 0 keeps for ever */
    f->config->spool.keep_days = 3;
    assert_int_equal(tt_spool_prune(f->spool, now_ns + 2 * day_ns, &removed, &f->err), TT_OK);
    assert_int_equal(removed, 0);
    f->spool->clock_offset_ns -= 2 * 3600 * INT64_C(1000000000); /* as if the clock had been set meanwhile */
    assert_int_equal(tt_spool_prune(f->spool, now_ns + 4 * day_ns, &removed, &f->err), TT_RETRY_LATER);
    assert_non_null(strstr(f->err.text, "the clock was set by 7"));
    assert_int_equal(removed, 0);
    f->spool->clock_offset_ns += 2 * 3600 * INT64_C(1000000000);
    assert_int_equal(tt_spool_prune(f->spool, now_ns + 4 * day_ns, &removed, &f->err), TT_OK);
    assert_int_equal(removed, 3);
    assert_int_equal(count_in(f, "done/sub") + count_in(f, "failed"), 0);
    assert_true(there(f, "tracks/a.tracks.npz") && there(f, "incoming/c.mp4"));
}

#define SPOOL_TEST(name) cmocka_unit_test_setup_teardown(name, fixture_start, fixture_stop)

int main(void)
{
    const struct CMUnitTest tests[] = {
        SPOOL_TEST(resumes_claimed_jobs),
        SPOOL_TEST(one_that_is_interrupted_again_and_again_waits),
        SPOOL_TEST(a_checkpoint_stays_while_the_input_does),
        SPOOL_TEST(refunds),
        SPOOL_TEST(a_refund_that_fails_changes_nothing),
        SPOOL_TEST(ignores_what_is_not_a_job),
        SPOOL_TEST(salvages_inputs_without_a_manifest),
        SPOOL_TEST(a_foreign_manifest_is_not_believed),
        SPOOL_TEST(a_published_result_that_was_fetched_counts),
        SPOOL_TEST(keeps_bytes_in_reserve),
        SPOOL_TEST(removed_directories_come_back),
        SPOOL_TEST(names_directories_of_other_file_systems),
        SPOOL_TEST(survives_a_full_disk),
        SPOOL_TEST(survives_a_read_only_disk),
        cmocka_unit_test_setup_teardown(one_forbidden_file_blocks_nobody, start_closed, fixture_stop),
        SPOOL_TEST(prunes_what_is_old),
    };
    return cmocka_run_group_tests_name("spool_recover", tests, NULL, NULL);
}

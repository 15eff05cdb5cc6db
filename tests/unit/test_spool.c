/* tests/unit/test_spool.c: claims, names, commits, failures, retries on real directories. */
#include "tests/support/spool_fixture.h"

#include <jansson.h>
#include <sys/wait.h>

/* --- opening ----------------------------------------------------------------------------------------------
 */

static void makes_directories_and_locks(void **state)
{
    struct fixture *f = *state;
    struct tt_spool *other = NULL;
    char pid[32];

    assert_true(there(f, "incoming/priority"));
    assert_true(there(f, "tracks") && there(f, "done") && there(f, "failed") && there(f, "work/host/lock"));
    assert_int_equal(tt_spool_open(&other, f->config, "host", &f->err), TT_REFUSE);
    snprintf(pid, sizeof pid, "process %ld", (long)getpid());
    assert_non_null(strstr(f->err.text, pid));
    assert_null(other);
    assert_int_equal(tt_spool_open(&other, f->config, "other", &f->err), TT_OK); /* another host may */
    tt_spool_close(other);
    assert_int_equal(tt_spool_open(&other, f->config, "../x", &f->err), TT_REFUSE);
    tt_spool_close(f->spool);
    fixture_open_spool(f);
}

static void refuses_a_directory_that_is_a_link(void **state)
{
    struct fixture *f = *state;

    tt_spool_close(f->spool);
    f->spool = NULL;
    assert_int_equal(rmdir(at(f, "done")), 0);
    assert_int_equal(symlink("/tmp", at(f, "done")), 0);
    assert_int_equal(tt_spool_open(&f->spool, f->config, "host", &f->err), TT_REFUSE);
    assert_non_null(strstr(f->err.text, "/done"));
}

/* --- names ------------------------------------------------------------------------------------------------
 */

static void expect_output(struct fixture *f, const char *source, const char *output)
{
    struct tt_spool_job *job = put_and_claim(f, source, source);

    assert_string_equal(job->manifest.output[TT_OUTPUT_NPZ], output);
    begin(f, job);
    write_result(f, job, output);
    commit(f, job);
}

static void repeats_are_numbered(void **state)
{
    struct fixture *f = *state;

    expect_output(f, "bear.mp4", "bear.tracks.npz");
    expect_output(f, "bear.mp4", "bear~2.tracks.npz");
    expect_output(f, "bear.mp4", "bear~3.tracks.npz");
    expect_output(f, "priority/bear.mp4", "bear~4.tracks.npz");
    assert_string_equal(text_of(f, "tracks/bear.tracks.npz"), "bear.tracks.npz");
    assert_string_equal(text_of(f, "tracks/bear~3.tracks.npz"), "bear~3.tracks.npz");
    assert_string_equal(text_of(f, "done/bear~4.mp4"), "priority/bear.mp4");
    assert_int_equal(count_in(f, "tracks"), 4);
    assert_int_equal(count_in(f, "done"), 4);
    assert_int_equal(jobs_in_work(f), 0);
}

static void stems_that_collide_get_whole_names(void **state)
{
    struct fixture *f = *state;
    struct tt_spool_job *first, *second, *third;

    put(f, "incoming/bear.MOV", "mov");
    first = put_and_claim(f, "bear.mp4", "mp4"); /* the other waits */
    assert_string_equal(first->manifest.output[TT_OUTPUT_NPZ], "bear.mp4.tracks.npz");
    second = claim(f, "bear.MOV"); /* the other runs */
    assert_string_equal(second->manifest.output[TT_OUTPUT_NPZ], "bear.MOV.tracks.npz");
    third = put_and_claim(f, "bear.mp4", "again");
    assert_string_equal(third->manifest.output[TT_OUTPUT_NPZ], "bear.mp4~2.tracks.npz");
    expect_output(f, "whale.mp4", "whale.tracks.npz");
    expect_output(f, "whale.mkv", "whale.mkv.tracks.npz"); /* the other is done */
    assert_string_equal(put_and_claim(f, "sub.mp4", "x")->manifest.output[TT_OUTPUT_NPZ], "sub.tracks.npz");
}

static void two_running_jobs_share_no_name(void **state)
{
    struct fixture *f = *state;
    struct tt_spool_job *a = put_and_claim(f, "bear.mp4", "1"), *b = put_and_claim(f, "bear.mp4", "2");

    assert_string_equal(a->manifest.output[TT_OUTPUT_NPZ], "bear.tracks.npz");
    assert_string_equal(b->manifest.output[TT_OUTPUT_NPZ], "bear~2.tracks.npz");
    begin(f, a);
    begin(f, b);
    write_result(f, b, "two");
    commit(f, b);
    write_result(f, a, "one");
    commit(f, a);
    assert_string_equal(text_of(f, "tracks/bear.tracks.npz"), "one");
    assert_string_equal(text_of(f, "tracks/bear~2.tracks.npz"), "two");
    assert_string_equal(text_of(f, "done/bear.mp4"), "2"); /* who finishes first keeps the name */
    assert_string_equal(text_of(f, "done/bear~2.mp4"), "1");
}

static void names_are_bytes(void **state)
{
    static const char *const names[] = {"with blank.mp4", "-dash.mp4", "new\nline.mp4", "\xff\xfe.mp4",
                                        "100%.mp4",       "no~2.mp4",  "a.b.c.mp4",     "ending.MP4",
                                        "\xc3\xa4.mp4",   "'\"$`.mp4", "work.mp4",      "manifest.json.mp4"};
    struct fixture *f = *state;
    char name[256], path[300];

    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        run_job(f, names[i], names[i], "r");
        snprintf(path, sizeof path, "done/%s", names[i]);
        assert_string_equal(text_of(f, path), names[i]);
    }
    memset(name, 'x', 251);
    strcpy(name + 251, ".mp4"); /* 255 bytes */
    run_job(f, name, "first", "r1");
    run_job(f, name, "second", "r2");
    snprintf(path, sizeof path, "done/%s", name);
    assert_string_equal(text_of(f, path), "first");
    strcpy(path + 5 + 249, "~2.mp4");
    assert_string_equal(text_of(f, path), "second");
    snprintf(path, sizeof path, "tracks/%.*s.tracks.npz", 241, name);
    assert_string_equal(text_of(f, path), "r1");
    snprintf(path, sizeof path, "tracks/%.*s~2.tracks.npz", 239, name);
    assert_string_equal(text_of(f, path), "r2");
}

static void long_names_fail_and_come_back(void **state)
{
    struct fixture *f = *state;
    char name[256], path[300];
    struct tt_spool_job *job;

    memset(name, 'y', 251);
    strcpy(name + 251, ".mp4");
    snprintf(path, sizeof path, "incoming/%.*s.queries.csv", 243, name);
    put(f, path, "0,1,1"); /* the longest side-car's name that goes with it */
    job = put_and_claim(f, name, "long");
    assert_true(job->manifest.has_sidecar[TT_SPOOL_QUERIES_CSV]);
    assert_int_equal(tt_spool_fail(f->spool, job, "x", "bad_input", NULL, &f->err), TT_OK);
    assert_int_equal(count_in(f, "failed"), 3);
    assert_int_equal(tt_spool_retry(f->spool, name, &f->err), TT_OK);
    assert_int_equal(count_in(f, "failed"), 0);
    assert_string_equal(text_of(f, path), "0,1,1");
}

static void sub_directories_are_mirrored(void **state)
{
    struct fixture *f = *state;

    mkdir(at(f, "incoming/a"), 0755);
    mkdir(at(f, "incoming/a/b"), 0755);
    mkdir(at(f, "incoming/priority/a"), 0755);
    run_job(f, "a/b/bear.mp4", "deep", "deep result");
    run_job(f, "priority/a/cub.mp4", "ahead", "ahead result");
    assert_string_equal(text_of(f, "tracks/a/b/bear.tracks.npz"), "deep result");
    assert_string_equal(text_of(f, "done/a/b/bear.mp4"), "deep");
    assert_string_equal(text_of(f, "tracks/a/cub.tracks.npz"), "ahead result");
    assert_string_equal(text_of(f, "done/a/cub.mp4"), "ahead");
}

/* --- claims -----------------------------------------------------------------------------------------------
 */

static void sidecars_travel_with_their_video(void **state)
{
    struct fixture *f = *state;
    struct tt_spool_job *job;
    char *path;

    put(f, "incoming/bear.queries.csv", "0,1,1");
    put(f, "incoming/bear.mask.png", "png");
    put(f, "incoming/other.queries.csv", "not ours");
    job = put_and_claim(f, "bear.mp4", "video");
    path = tt_spool_job_sidecar(job, TT_SPOOL_QUERIES_CSV);
    assert_non_null(path);
    assert_int_equal(access(path, R_OK), 0);
    free(path);
    assert_null(tt_spool_job_sidecar(job, TT_SPOOL_QUERIES_JSON));
    assert_int_equal(count_in(f, "incoming"), 2); /* priority/ and the other's */
    begin(f, job);
    write_result(f, job, "r");
    commit(f, job);
    assert_string_equal(text_of(f, "done/bear.queries.csv"), "0,1,1");
    assert_string_equal(text_of(f, "done/bear.mask.png"), "png");
    put(f, "incoming/bear.queries.csv", "0,2,2");
    run_job(f, "bear.mp4", "again", "r");
    assert_string_equal(text_of(f, "done/bear~2.queries.csv"), "0,2,2");
    assert_string_equal(text_of(f, "done/bear~2.mp4"), "again");
}

static void videos_of_one_stem_share_a_sidecar(void **state)
{
    struct fixture *f = *state;
    struct tt_spool_job *mp4, *mov;

    put(f, "incoming/bear.queries.csv", "0,1,1");
    put(f, "incoming/bear.mov", "mov");
    mp4 = put_and_claim(f, "bear.mp4", "mp4");
    mov = claim(f, "bear.mov");
    assert_true(mp4->manifest.has_sidecar[TT_SPOOL_QUERIES_CSV]);
    assert_true(mov->manifest.has_sidecar[TT_SPOOL_QUERIES_CSV]);
    assert_false(there(f, "incoming/bear.queries.csv"));
    begin(f, mp4);
    write_result(f, mp4, "1");
    commit(f, mp4);
    begin(f, mov);
    write_result(f, mov, "2");
    commit(f, mov);
    assert_int_equal(count_in(f, "done"), 3);
}

static enum tt_claim try_claim(struct fixture *f, const char *source, const struct tt_identity *expected)
{
    struct tt_spool_job *job;

    return tt_spool_claim(f->spool, source, expected, &job, &f->err);
}

static void takes_only_files_that_are_as_expected(void **state)
{
    struct fixture *f = *state;
    struct tt_identity seen;
    struct stat st;

    assert_int_equal(try_claim(f, "none.mp4", NULL), TT_CLAIM_GONE);
    assert_int_equal(try_claim(f, "none/none.mp4", NULL), TT_CLAIM_GONE);
    assert_int_equal(try_claim(f, "../done/x.mp4", NULL), TT_CLAIM_GONE);
    assert_int_equal(try_claim(f, "priority", NULL), TT_CLAIM_GONE);
    put(f, "incoming/a.mp4", "a");
    assert_int_equal(symlink(at(f, "incoming/a.mp4"), at(f, "incoming/link.mp4")), 0);
    assert_int_equal(try_claim(f, "link.mp4", NULL), TT_CLAIM_GONE);
    assert_true(there(f, "incoming/link.mp4"));
    assert_int_equal(symlink(at(f, "done"), at(f, "incoming/dir")), 0);
    put(f, "done/x.mp4", "x");
    assert_int_equal(try_claim(f, "dir/x.mp4", NULL), TT_CLAIM_GONE); /* not through a link */
    assert_true(there(f, "done/x.mp4"));
    assert_int_equal(lstat(at(f, "incoming/a.mp4"), &st), 0);
    seen = tt_identity_of(&st);
    next_tick(f);
    put(f, "incoming/a.mp4", "b");
    assert_int_equal(try_claim(f, "a.mp4", &seen), TT_CLAIM_CHANGED);
    assert_string_equal(text_of(f, "incoming/a.mp4"), "b");
    assert_int_equal(jobs_in_work(f), 0);
    assert_false(tt_spool_paused(f->spool)->paused);
}

static void special_files_are_refused(void **state)
{
    struct fixture *f = *state;

    assert_int_equal(mkfifo(at(f, "incoming/pipe.mp4"), 0644), 0);
    assert_int_equal(try_claim(f, "pipe.mp4", NULL), TT_CLAIM_REFUSED);
    assert_true(there(f, "failed/pipe.mp4"));
    assert_non_null(strstr(text_of(f, "failed/pipe.mp4.reason.json"), "a fifo, not a video file"));
    assert_int_equal(jobs_in_work(f), 0);
}

static void hard_links_stay(void **state)
{
    struct fixture *f = *state;

    put(f, "original", "video");
    assert_int_equal(link(at(f, "original"), at(f, "incoming/a.mp4")), 0);
    assert_int_equal(link(at(f, "original"), at(f, "incoming/b.mp4")), 0);
    for (int i = 0; i < 2; i++) {
        struct tt_spool_job *job = claim(f, i ? "b.mp4" : "a.mp4");

        begin(f, job);
        write_result(f, job, "r");
        commit(f, job);
    }
    assert_string_equal(text_of(f, "original"), "video");
    assert_string_equal(text_of(f, "done/a.mp4"), "video");
    assert_string_equal(text_of(f, "done/b.mp4"), "video");
}

/* --- endings ----------------------------------------------------------------------------------------------
 */

static void an_input_that_grew_is_tracked_again(void **state)
{
    struct fixture *f = *state;
    struct tt_spool_job *job;
    bool changed = false;
    int writer;

    put(f, "incoming/bear.mp4", "first half");
    writer = open(at(f, "incoming/bear.mp4"), O_WRONLY | O_APPEND);
    job = claim(f, "bear.mp4");
    begin(f, job);
    write_result(f, job, "of the first half");
    assert_int_equal(write(writer, ", second half", 13), 13); /* somebody still had it open */
    assert_int_equal(tt_spool_commit(f->spool, job, TT_OUTCOME_DONE, &changed, &f->err), TT_OK);
    assert_true(changed);
    assert_int_equal(count_in(f, "tracks"), 0);
    assert_int_equal(job->manifest.attempts, 0); /* nobody's fault */
    assert_true(tt_spool_job_delay_ms(f->spool, job, 0) >= f->config->spool.settle_blind_ms);
    close(writer);
    begin(f, job);
    assert_int_equal(job->manifest.serial, 2);
    write_result(f, job, "of both");
    commit(f, job);
    assert_string_equal(text_of(f, "tracks/bear.tracks.npz"), "of both");
    assert_string_equal(text_of(f, "done/bear.mp4"), "first half, second half");
}

static void inputs_need_not_be_kept(void **state)
{
    struct fixture *f = *state;
    struct tt_spool_job *job;
    int writer;

    f->config->spool.keep_inputs = false;
    put(f, "incoming/a.queries.csv", "0,1,1");
    run_job(f, "a.mp4", "a", "r");
    assert_int_equal(count_in(f, "done"), 0);
    assert_int_equal(count_in(f, "tracks"), 1);
    assert_int_equal(jobs_in_work(f), 0);
    put(f, "incoming/b.mp4", "b");
    writer = open(at(f, "incoming/b.mp4"), O_WRONLY | O_APPEND);
    job = claim(f, "b.mp4");
    begin(f, job);
    write_result(f, job, "r");
    commit(f, job);
    assert_string_equal(text_of(f, "done/b.mp4"), "b"); /* what is still written is not thrown away */
    close(writer);
}

static void others_files_are_never_overwritten(void **state)
{
    struct fixture *f = *state;
    struct tt_spool_job *job = put_and_claim(f, "bear.mp4", "video");

    begin(f, job);
    write_result(f, job, "ours");
    put(f, "tracks/bear.tracks.npz", "theirs");
    put(f, "tracks/bear~2.tracks.npz", "theirs too");
    put(f, "done/bear.mp4", "their video");
    commit(f, job);
    assert_string_equal(text_of(f, "tracks/bear.tracks.npz"), "theirs");
    assert_string_equal(text_of(f, "tracks/bear~2.tracks.npz"), "theirs too");
    assert_string_equal(text_of(f, "tracks/bear~3.tracks.npz"), "ours");
    assert_string_equal(text_of(f, "done/bear.mp4"), "their video");
    assert_string_equal(text_of(f, "done/bear~2.mp4"), "video");
}

static void no_result_is_no_commit(void **state)
{
    struct fixture *f = *state;
    struct tt_spool_job *job = put_and_claim(f, "bear.mp4", "video");
    bool changed;

    begin(f, job);
    assert_int_equal(tt_spool_commit(f->spool, job, TT_OUTCOME_DONE, &changed, &f->err), TT_BAD_INPUT);
    write_result(f, job, "");
    assert_int_equal(tt_spool_commit(f->spool, job, TT_OUTCOME_DONE, &changed, &f->err), TT_BAD_INPUT);
    assert_int_equal(job->manifest.state, TT_JOB_CLAIMED);
    assert_int_equal(count_in(f, "tracks"), 0);
    assert_false(tt_spool_paused(f->spool)->paused);
}

static void attempts_are_counted_and_given_back(void **state)
{
    struct fixture *f = *state;
    struct tt_spool_job *job = put_and_claim(f, "bear.mp4", "video");

    f->config->jobs.max_attempts = 2;
    f->config->jobs.backoff_ms = 1000;
    assert_int_equal(tt_spool_job_delay_ms(f->spool, job, 0), 0);
    begin(f, job);
    assert_int_equal(tt_spool_attempt_end(f->spool, job, false, &f->err), TT_OK);
    assert_false(tt_spool_exhausted(f->spool, job));
    assert_int_equal(tt_spool_job_delay_ms(f->spool, job, 0), 1000);
    begin(f, job);
    assert_int_equal(tt_spool_attempt_end(f->spool, job, true, &f->err), TT_OK); /* a sick device */
    assert_int_equal(tt_spool_attempt_end(f->spool, job, true, &f->err), TT_OK); /* only once */
    assert_int_equal(job->manifest.attempts, 1);
    begin(f, job);
    assert_true(tt_spool_exhausted(f->spool, job));
    assert_int_equal(job->manifest.serial, 3);
}

static void failures_say_why_and_can_be_retried(void **state)
{
    struct fixture *f = *state;
    struct tt_spool_job *job;
    json_t *reason;

    put(f, "incoming/bear.queries.csv", "0,1,1");
    job = put_and_claim(f, "priority/bear.mp4", "video");
    assert_false(job->manifest.has_sidecar[TT_SPOOL_QUERIES_CSV]); /* of another directory */
    begin(f, job);
    assert_int_equal(tt_spool_fail(f->spool, job, "no video stream", "bad_input", "last\nwords", &f->err),
                     TT_OK);
    assert_int_equal(jobs_in_work(f), 0);
    assert_string_equal(text_of(f, "failed/bear.mp4"), "video");
    reason = json_loads(text_of(f, "failed/bear.mp4.reason.json"), 0, NULL);
    assert_string_equal(json_string_value(json_object_get(reason, "cause")), "no video stream");
    assert_string_equal(json_string_value(json_object_get(reason, "status")), "bad_input");
    assert_string_equal(json_string_value(json_object_get(reason, "last_words")), "last\nwords");
    assert_string_equal(json_string_value(json_object_get(reason, "retry")), "tiletrack retry bear.mp4");
    assert_int_equal(json_integer_value(json_object_get(reason, "attempts")), 1);
    json_decref(reason);
    assert_int_equal(tt_spool_retry(f->spool, "bear.mp4", &f->err), TT_OK);
    assert_int_equal(count_in(f, "failed"), 0);
    assert_string_equal(text_of(f, "incoming/priority/bear.mp4"), "video"); /* where it came from */
    assert_int_equal(tt_spool_retry(f->spool, "bear.mp4", &f->err), TT_BAD_INPUT);
    assert_int_equal(tt_spool_retry(f->spool, "../incoming/priority/bear.mp4", &f->err), TT_BAD_INPUT);
    assert_int_equal(tt_spool_retry(f->spool, "/etc/passwd", &f->err), TT_BAD_INPUT);
}

static void a_retry_overwrites_nothing(void **state)
{
    struct fixture *f = *state;

    for (int i = 0; i < 2; i++) {
        put(f, "incoming/bear.queries.csv", i ? "second" : "first");
        tt_spool_fail(f->spool, put_and_claim(f, "bear.mp4", i ? "second" : "first"), "x", "bad_input", NULL,
                      &f->err);
    }
    assert_string_equal(text_of(f, "failed/bear~2.mp4"), "second");
    assert_string_equal(text_of(f, "failed/bear~2.queries.csv"), "second");
    put(f, "incoming/bear.mp4", "third");
    assert_int_equal(tt_spool_retry(f->spool, "bear~2.mp4", &f->err), TT_OK);
    assert_string_equal(text_of(f, "incoming/bear~2.mp4"), "second");
    assert_string_equal(text_of(f, "incoming/bear~2.queries.csv"), "second");
    assert_int_equal(tt_spool_retry(f->spool, "bear.mp4", &f->err), TT_OK);
    assert_string_equal(text_of(f, "incoming/bear.mp4"), "third");
    assert_int_equal(count_in(f, "failed"), 0);
    assert_int_equal(count_in(f, "incoming"), 6);
}

static void what_is_put_back_is_as_it_was(void **state)
{
    struct fixture *f = *state;
    struct tt_spool_job *job;

    put(f, "incoming/bear.mask.png", "png");
    job = put_and_claim(f, "bear.mp4", "video");
    begin(f, job);
    write_result(f, job, "half");
    assert_int_equal(tt_spool_return(f->spool, job, &f->err), TT_OK);
    assert_string_equal(text_of(f, "incoming/bear.mp4"), "video");
    assert_string_equal(text_of(f, "incoming/bear.mask.png"), "png");
    assert_int_equal(jobs_in_work(f), 0);
    job = claim(f, "bear.mp4");
    put(f, "incoming/bear.mp4", "newer");
    assert_int_equal(tt_spool_return(f->spool, job, &f->err), TT_OK);
    assert_string_equal(text_of(f, "incoming/bear.mp4"), "newer");
    assert_string_equal(text_of(f, "incoming/bear~2.mp4"), "video");
    assert_string_equal(text_of(f, "incoming/bear~2.mask.png"), "png");
}

static void what_waits_can_be_cancelled(void **state)
{
    struct fixture *f = *state;

    put(f, "incoming/bear.mp4", "video");
    assert_int_equal(tt_spool_cancel_waiting(f->spool, "bear.mp4", &f->err), TT_OK);
    assert_string_equal(text_of(f, "failed/bear.mp4"), "video");
    assert_non_null(strstr(text_of(f, "failed/bear.mp4.reason.json"), "\"cancelled\""));
    assert_int_equal(tt_spool_cancel_waiting(f->spool, "bear.mp4", &f->err), TT_BAD_INPUT);
}

static void a_job_whose_directory_is_gone_ends(void **state)
{
    struct fixture *f = *state;
    struct tt_spool_job *job = put_and_claim(f, "bear.mp4", "video");
    char command[PATH_MAX];
    bool changed;

    begin(f, job);
    snprintf(command, sizeof command, "rm -rf %s/work/host/2*", f->root);
    assert_int_equal(system(command), 0);
    assert_int_equal(tt_spool_commit(f->spool, job, TT_OUTCOME_DONE, &changed, &f->err), TT_BAD_INPUT);
    assert_int_equal(tt_spool_finish(f->spool, job, &f->err), TT_OK);
    assert_null(tt_spool_jobs(f->spool));
}

#define SPOOL_TEST(name) cmocka_unit_test_setup_teardown(name, fixture_start, fixture_stop)

int main(void)
{
    const struct CMUnitTest tests[] = {
        SPOOL_TEST(makes_directories_and_locks),
        SPOOL_TEST(refuses_a_directory_that_is_a_link),
        SPOOL_TEST(repeats_are_numbered),
        SPOOL_TEST(stems_that_collide_get_whole_names),
        SPOOL_TEST(two_running_jobs_share_no_name),
        SPOOL_TEST(names_are_bytes),
        SPOOL_TEST(long_names_fail_and_come_back),
        SPOOL_TEST(sub_directories_are_mirrored),
        SPOOL_TEST(sidecars_travel_with_their_video),
        SPOOL_TEST(videos_of_one_stem_share_a_sidecar),
        SPOOL_TEST(takes_only_files_that_are_as_expected),
        SPOOL_TEST(special_files_are_refused),
        SPOOL_TEST(hard_links_stay),
        SPOOL_TEST(an_input_that_grew_is_tracked_again),
        SPOOL_TEST(inputs_need_not_be_kept),
        SPOOL_TEST(others_files_are_never_overwritten),
        SPOOL_TEST(no_result_is_no_commit),
        SPOOL_TEST(attempts_are_counted_and_given_back),
        SPOOL_TEST(failures_say_why_and_can_be_retried),
        SPOOL_TEST(a_retry_overwrites_nothing),
        SPOOL_TEST(what_is_put_back_is_as_it_was),
        SPOOL_TEST(what_waits_can_be_cancelled),
        SPOOL_TEST(a_job_whose_directory_is_gone_ends),
    };
    return cmocka_run_group_tests_name("spool", tests, NULL, NULL);
}

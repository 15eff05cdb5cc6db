/* tests/unit/test_spool_formats.c: jobs with results in several formats, and the names that results get. */
#include "tests/support/spool_fixture.h"

enum { NPZ = 1 << TT_OUTPUT_NPZ, CSV = 1 << TT_OUTPUT_CSV, JSONL = 1 << TT_OUTPUT_JSONL };

static struct tt_spool_job *start(struct fixture *f, const char *source, unsigned formats)
{
    struct tt_spool_job *job = put_and_claim(f, source, source);

    if (tt_spool_attempt_begin(f->spool, job, formats, &f->err))
        fail_msg("attempt: %s", f->err.text);
    return job;
}

static void all_of_them_are_committed(void **state)
{
    struct fixture *f = *state;
    struct tt_spool_job *job;

    f->config->output.formats = NPZ | CSV | JSONL;
    job = put_and_claim(f, "bear.mp4", "video");
    begin(f, job);
    write_format(f, job, TT_OUTPUT_NPZ, "one");
    write_format(f, job, TT_OUTPUT_CSV, "two");
    write_format(f, job, TT_OUTPUT_JSONL, "three");
    commit(f, job);
    assert_string_equal(text_of(f, "tracks/bear.tracks.npz"), "one");
    assert_string_equal(text_of(f, "tracks/bear.tracks.csv"), "two");
    assert_string_equal(text_of(f, "tracks/bear.tracks.jsonl"), "three");
    assert_int_equal(jobs_in_work(f), 0);
}

/* "bear.nk" and the others stand for one result, and are moved together. */
static void formats_of_other_programs(void **state)
{
    struct fixture *f = *state;
    struct tt_spool_job *job;

    put(f, "tracks/bear.nk", "theirs");
    job = start(f, "bear.mp4", (1u << TT_OUTPUTS) - 1);
    for (int i = 0; i < TT_OUTPUTS; i++) {
        char name[64];

        snprintf(name, sizeof name, "bear~2%s", tt_output_suffixes[i]);
        assert_string_equal(job->manifest.output[i], name);
    }
    write_result(f, job, "ours");
    commit(f, job);
    assert_int_equal(count_in(f, "tracks"), TT_OUTPUTS + 1);
    assert_string_equal(text_of(f, "tracks/bear~2.nk"), "ours");
    assert_int_equal(jobs_in_work(f), 0);
}

static void all_or_none(void **state)
{
    struct fixture *f = *state;
    struct tt_spool_job *job = start(f, "bear.mp4", NPZ | CSV);
    bool changed;

    write_format(f, job, TT_OUTPUT_NPZ, "one");
    assert_int_equal(tt_spool_commit(f->spool, job, TT_OUTCOME_DONE, &changed, &f->err), TT_BAD_INPUT);
    assert_non_null(strstr(f->err.text, ".csv"));
    write_format(f, job, TT_OUTPUT_CSV, "");
    assert_int_equal(tt_spool_commit(f->spool, job, TT_OUTCOME_DONE, &changed, &f->err), TT_BAD_INPUT);
    assert_int_equal(job->manifest.state, TT_JOB_CLAIMED);
    assert_int_equal(count_in(f, "tracks"), 0);
}

/* The worker could not make one: the tracks are committed all the same, and never an export without them. */
static void what_cannot_be_made_may_be_missing(void **state)
{
    static const enum tt_output spare[] = {TT_OUTPUT_OVERLAY, TT_OUTPUT_NUKE, TT_OUTPUT_CSV_WIDE};
    struct fixture *f = *state;
    bool changed;

    for (int i = 0; i < 3; i++) {
        const unsigned formats = NPZ | 1u << TT_OUTPUT_JSON | 1u << spare[i];
        char source[16], result[32];
        struct tt_spool_job *job;

        snprintf(source, sizeof source, "bear%d.mp4", i);
        snprintf(result, sizeof result, "tracks/bear%d.tracks.npz", i);
        job = start(f, source, formats);
        assert_non_null(job->manifest.output[spare[i]]);
        write_format(f, job, TT_OUTPUT_JSON, "json");
        assert_int_equal(tt_spool_commit(f->spool, job, TT_OUTCOME_DONE, &changed, &f->err), TT_BAD_INPUT);
        job = tt_spool_jobs(f->spool);
        assert_int_equal(tt_spool_attempt_begin(f->spool, job, formats, &f->err), TT_OK);
        write_format(f, job, TT_OUTPUT_NPZ, "tracks");
        write_format(f, job, TT_OUTPUT_JSON, "json");
        commit(f, job);
        assert_int_equal(tt_manifest_formats(tt_spool_ended(f->spool)), formats & ~(1u << spare[i]));
        assert_string_equal(text_of(f, result), "tracks");
        assert_int_equal(count_in(f, "tracks"), 2 * (i + 1));
        assert_int_equal(jobs_in_work(f), 0);
    }
}

static void not_all_may_be_missing(void **state)
{
    struct fixture *f = *state;
    struct tt_spool_job *job = start(f, "cub.mp4", 1 << TT_OUTPUT_OVERLAY | 1 << TT_OUTPUT_NUKE);
    bool changed;

    assert_int_equal(tt_spool_commit(f->spool, job, TT_OUTCOME_DONE, &changed, &f->err), TT_BAD_INPUT);
    assert_int_equal(count_in(f, "tracks"), 0);
}

/* A directory's own configuration is read when an attempt begins. */
static void an_attempt_decides_the_formats(void **state)
{
    struct fixture *f = *state;
    struct tt_spool_job *job = put_and_claim(f, "bear.mp4", "video");

    assert_int_equal(tt_manifest_formats(&job->manifest), NPZ);
    assert_int_equal(tt_spool_attempt_begin(f->spool, job, CSV | JSONL, &f->err), TT_OK);
    assert_null(job->manifest.output[TT_OUTPUT_NPZ]);
    assert_string_equal(tt_manifest_output(&job->manifest), "bear.tracks.csv");
    assert_int_equal(tt_spool_attempt_end(f->spool, job, true, &f->err), TT_OK);
    restart(f);
    job = tt_spool_jobs(f->spool);
    assert_int_equal(tt_manifest_formats(&job->manifest), CSV | JSONL); /* it was durable */
    assert_int_equal(tt_spool_attempt_begin(f->spool, job, NPZ, &f->err), TT_OK);
    write_result(f, job, "result");
    commit(f, job);
    assert_string_equal(text_of(f, "tracks/bear.tracks.npz"), "result");
    assert_int_equal(count_in(f, "tracks"), 1);
}

/* "bear.tracks.csv" beside "bear.tracks.npz" would look like one result. */
static void a_name_is_free_in_every_format_or_not_at_all(void **state)
{
    struct fixture *f = *state;
    struct tt_spool_job *job;

    put(f, "tracks/bear.tracks.csv", "theirs");
    job = start(f, "bear.mp4", NPZ);
    assert_string_equal(job->manifest.output[TT_OUTPUT_NPZ], "bear~2.tracks.npz");
    job = start(f, "bear.mp4", JSONL);
    assert_string_equal(job->manifest.output[TT_OUTPUT_JSONL], "bear~3.tracks.jsonl");
}

static void a_name_taken_meanwhile_moves_all_results(void **state)
{
    struct fixture *f = *state;
    struct tt_spool_job *job = start(f, "bear.mp4", NPZ | CSV | JSONL);

    write_result(f, job, "ours");
    put(f, "tracks/bear.tracks.jsonl", "theirs");
    commit(f, job);
    assert_string_equal(text_of(f, "tracks/bear.tracks.jsonl"), "theirs");
    assert_string_equal(text_of(f, "tracks/bear~2.tracks.npz"), "ours");
    assert_string_equal(text_of(f, "tracks/bear~2.tracks.csv"), "ours");
    assert_string_equal(text_of(f, "tracks/bear~2.tracks.jsonl"), "ours");
    assert_int_equal(count_in(f, "tracks"), 4);
    assert_string_equal(tt_manifest_output(tt_spool_ended(f->spool)), "bear~2.tracks.npz");
    assert_int_equal(tt_manifest_formats(tt_spool_ended(f->spool)), NPZ | CSV | JSONL);
}

/* Killed between two renames, and then somebody takes the name of the result that is left. */
static void what_is_published_stays_where_it_is(void **state)
{
    struct fixture *f = *state;
    struct tt_spool_job *job = start(f, "bear.mp4", NPZ | CSV);
    char *npz = tt_spool_job_result(job, TT_OUTPUT_NPZ);
    struct tt_recovery recovery;

    write_result(f, job, "ours");
    job->manifest.state = TT_JOB_COMMITTING;
    job->manifest.outcome = TT_OUTCOME_DONE;
    assert_int_equal(tt_manifest_set(&job->manifest.target, "bear.mp4", &f->err), TT_OK);
    assert_int_equal(tt_job_save(f->spool, job, &f->err), TT_OK);
    assert_int_equal(rename(npz, at(f, "tracks/bear.tracks.npz")), 0);
    put(f, "tracks/bear.tracks.csv", "theirs");
    recovery = restart(f);
    assert_int_equal(recovery.committed, 1);
    assert_string_equal(text_of(f, "tracks/bear.tracks.npz"), "ours");
    assert_string_equal(text_of(f, "tracks/bear.tracks.csv"), "theirs");
    assert_string_equal(text_of(f, "tracks/bear~2.tracks.csv"), "ours");
    assert_int_equal(count_in(f, "tracks"), 3);
    assert_true(there(f, "done/bear.mp4"));
    free(npz);
}

static void long_names_are_cut_alike(void **state)
{
    struct fixture *f = *state;
    char name[TT_NAME_BYTES + 1], path[TT_NAME_BYTES + 16];
    struct tt_spool_job *job;

    memset(name, 'x', TT_NAME_BYTES);
    strcpy(name + TT_NAME_BYTES - 4, ".mp4");
    job = start(f, name, NPZ | 1 << TT_OUTPUT_COTRACKER);
    assert_int_equal(strlen(job->manifest.output[TT_OUTPUT_COTRACKER]), TT_NAME_BYTES);
    assert_int_equal(strcspn(job->manifest.output[TT_OUTPUT_COTRACKER], "."),
                     strcspn(job->manifest.output[TT_OUTPUT_NPZ], "."));
    write_result(f, job, "ours");
    commit(f, job);
    snprintf(path, sizeof path, "tracks/%s", tt_spool_ended(f->spool)->output[TT_OUTPUT_COTRACKER]);
    assert_string_equal(text_of(f, path), "ours");
}

#define SPOOL_TEST(name) cmocka_unit_test_setup_teardown(name, fixture_start, fixture_stop)

int main(void)
{
    const struct CMUnitTest tests[] = {
        SPOOL_TEST(all_of_them_are_committed),
        SPOOL_TEST(formats_of_other_programs),
        SPOOL_TEST(all_or_none),
        SPOOL_TEST(what_cannot_be_made_may_be_missing),
        SPOOL_TEST(not_all_may_be_missing),
        SPOOL_TEST(an_attempt_decides_the_formats),
        SPOOL_TEST(a_name_is_free_in_every_format_or_not_at_all),
        SPOOL_TEST(a_name_taken_meanwhile_moves_all_results),
        SPOOL_TEST(what_is_published_stays_where_it_is),
        SPOOL_TEST(long_names_are_cut_alike),
    };
    return cmocka_run_group_tests_name("spool_formats", tests, NULL, NULL);
}

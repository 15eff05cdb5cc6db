/* tests/unit/test_spool_scan.c: what becomes a job and when, by a made-up clock and real files. */
#include "tests/support/spool_fixture.h"

#include "daemon/spool/scan.h"

enum { SETTLE = 2000, BLIND = 10000 };

struct scan_fixture {
    struct fixture *f;
    struct tt_queue *queue;
    struct tt_watch *watch;
    struct tt_intake *intake;
    int64_t now_ms;
    int notices[3];
    char notice[TT_ERROR_TEXT_BYTES];
    bool wants_scan;
};

static void note(void *user, enum tt_notice kind, const char *file, const char *text)
{
    struct scan_fixture *s = user;

    s->notices[kind]++;
    snprintf(s->notice, sizeof s->notice, "%s: %.900s", file, text);
}

static int start(void **state)
{
    struct scan_fixture *s = calloc(1, sizeof *s);
    struct tt_error err;

    s->f = fixture_new(NULL);
    fixture_open_spool(s->f);
    assert_int_equal(tt_queue_create(&s->queue, &err), TT_OK);
    assert_int_equal(tt_watch_open(&s->watch, &err), TT_OK);
    assert_int_equal(tt_intake_create(&s->intake, s->f->spool, s->queue, s->watch, note, s, &err), TT_OK);
    s->now_ms = 1000000;
    *state = s;
    return 0;
}

static int stop(void **state)
{
    struct scan_fixture *s = *state;
    void *inner = s->f;

    tt_intake_free(s->intake);
    tt_queue_free(s->queue);
    tt_watch_close(s->watch);
    free(s);
    return fixture_stop(&inner);
}

static void scan(struct scan_fixture *s)
{
    bool done = false;

    while (!done)
        if (tt_intake_scan(s->intake, 3, s->now_ms, &done, &s->f->err))
            fail_msg("scan: %s", s->f->err.text);
}

static void take_event(void *user, const struct tt_watch_event *event)
{
    struct scan_fixture *s = user;

    s->wants_scan |= tt_intake_event(s->intake, event, s->now_ms);
}

static void hear(struct scan_fixture *s)
{
    s->wants_scan = false;
    while (tt_watch_read(s->watch, 64, take_event, s))
        ;
}

/* The next job's source, or "" where nothing is ready. The job is failed, so that its name is free again. */
static const char *next(struct scan_fixture *s)
{
    static char source[PATH_MAX];
    struct tt_spool_job *job;
    enum tt_take take = tt_intake_take(s->intake, s->now_ms, &job, &s->f->err);

    if (take != TT_TAKE_JOB) {
        assert_int_equal(take, TT_TAKE_NOTHING);
        return "";
    }
    strcpy(source, job->manifest.source);
    assert_int_equal(tt_spool_fail(s->f->spool, job, "x", "x", NULL, &s->f->err), TT_OK);
    return source;
}

/* --- what -------------------------------------------------------------------------------------------------
 */

static void only_videos_are_jobs(void **state)
{
    static const char *const names[] = {
        ".hidden.mp4",   ".bear.mp4.Xa8c1d", "bear.mp4.part",  "bear.mp4.filepart", "bear.queries.csv",
        "bear.mask.png", "notes.txt",        "tiletrack.yaml", "bear.mp4~",         "mp4",
    };
    struct scan_fixture *s = *state;
    char path[300];

    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        snprintf(path, sizeof path, "incoming/%s", names[i]);
        put(s->f, path, "x");
    }
    put(s->f, "incoming/UPPER.MP4", "x");
    mkdir(at(s->f, "incoming/sub"), 0755);
    put(s->f, "incoming/sub/not scanned.mp4", "x");
    mkdir(at(s->f, "incoming/directory.mp4"), 0755);
    assert_int_equal(symlink("/etc/passwd", at(s->f, "incoming/link.mp4")), 0);
    assert_int_equal(mkfifo(at(s->f, "incoming/pipe.mp4"), 0644), 0);
    scan(s);
    assert_int_equal(tt_intake_counts(s->intake).symlinks, 1);
    assert_int_equal(s->notices[TT_NOTICE_REFUSED], 1); /* the link: somebody may wait for it */
    assert_non_null(strstr(s->notice, "link.mp4: a symbolic link"));
    scan(s);
    assert_int_equal(s->notices[TT_NOTICE_REFUSED], 1);     /* said once */
    assert_int_equal(tt_queue_count(s->queue).settling, 2); /* UPPER and the pipe */
    assert_int_equal(tt_queue_count(s->queue).sidecars, 2);
    s->now_ms += BLIND;
    assert_string_equal(next(s), "UPPER.MP4");
    assert_string_equal(next(s), "");
    assert_int_equal(s->notices[TT_NOTICE_REFUSED], 2);
    assert_true(there(s->f, "failed/pipe.mp4"));
    assert_true(there(s->f, "incoming/link.mp4"));
}

static void patterns_are_configurable(void **state)
{
    struct scan_fixture *s = *state;
    char *all[] = {"*"}, *skipped[] = {"*.bak.*", ".tmp"};
    struct tt_config_list patterns = s->f->config->spool.patterns, ignore = s->f->config->spool.ignore;

    s->f->config->spool.patterns = (struct tt_config_list){all, 1};
    s->f->config->spool.ignore = (struct tt_config_list){skipped, 2};
    put(s->f, "incoming/no ending", "x");
    put(s->f, "incoming/a.bak.mp4", "x");
    put(s->f, "incoming/b.mp4.tmp", "x");
    put(s->f, "incoming/c.mp4.part", "x");
    put(s->f, "incoming/c.queries.json", "x");
    scan(s);
    s->now_ms += BLIND;
    assert_string_equal(next(s), "no ending");
    assert_string_equal(next(s), "");
    s->f->config->spool.patterns = patterns;
    s->f->config->spool.ignore = ignore;
}

static void sub_directories_if_asked(void **state)
{
    struct scan_fixture *s = *state;

    s->f->config->spool.recursive = true;
    mkdir(at(s->f, "incoming/a"), 0755);
    mkdir(at(s->f, "incoming/a/b"), 0755);
    mkdir(at(s->f, "incoming/.rsync-partial"), 0755);
    assert_int_equal(symlink(at(s->f, "done"), at(s->f, "incoming/loop")), 0);
    put(s->f, "incoming/a/b/deep.mp4", "x");
    put(s->f, "incoming/.rsync-partial/half.mp4", "x");
    put(s->f, "done/old.mp4", "x");
    scan(s);
    assert_int_equal(tt_watch_count(s->watch), 4); /* incoming, priority, a, a/b */
    assert_int_equal(tt_queue_count(s->queue).settling, 1);
    s->now_ms += BLIND;
    assert_string_equal(next(s), "a/b/deep.mp4");
    assert_true(there(s->f, "failed/a/b/deep.mp4"));
    mkdir(at(s->f, "incoming/new"), 0755);
    put(s->f, "incoming/new/one.mp4", "x");
    hear(s);
    assert_true(s->wants_scan);
    scan(s);
    assert_int_equal(tt_queue_count(s->queue).settling, 1);
}

/* --- in which order ---------------------------------------------------------------------------------------
 */

static void the_oldest_first_and_priority_ahead(void **state)
{
    static const char *const names[] = {"z.mp4", "m.mp4", "a.mp4", "priority/p.mp4"};
    const struct timespec old[2] = {{1000, 0}, {1000, 0}};
    struct scan_fixture *s = *state;
    char path[64];

    for (int i = 0; i < 4; i++) {
        snprintf(path, sizeof path, "incoming/%s", names[i]);
        put(s->f, path, "x");
        if (i == 2) /* an old modification time, as cp -p brings it, does not jump the queue */
            assert_int_equal(utimensat(AT_FDCWD, at(s->f, path), old, 0), 0);
        next_tick(s->f);
    }
    scan(s);
    s->now_ms += BLIND;
    assert_string_equal(next(s), "priority/p.mp4");
    assert_string_equal(next(s), "z.mp4");
    assert_string_equal(next(s), "m.mp4");
    assert_string_equal(next(s), "a.mp4");
}

static void waiting_jobs_keep_their_place(void **state)
{
    struct scan_fixture *s = *state;
    struct tt_spool_job *first, *job;

    put(s->f, "incoming/a.mp4", "x");
    next_tick(s->f);
    put(s->f, "incoming/b.mp4", "x");
    scan(s);
    s->now_ms += BLIND;
    assert_int_equal(tt_intake_take(s->intake, s->now_ms, &first, &s->f->err), TT_TAKE_JOB);
    assert_string_equal(first->manifest.source, "a.mp4");
    assert_int_equal(tt_intake_put_job(s->intake, first, s->now_ms + 500, &s->f->err), TT_OK);
    s->now_ms += 500;
    assert_int_equal(tt_intake_take(s->intake, s->now_ms, &job, &s->f->err), TT_TAKE_JOB);
    assert_ptr_equal(job, first); /* b is younger */
    assert_int_equal(tt_intake_put_job(s->intake, first, s->now_ms + 500, &s->f->err), TT_OK);
    assert_int_equal(tt_intake_take(s->intake, s->now_ms, &job, &s->f->err), TT_TAKE_JOB);
    assert_string_equal(job->manifest.source, "b.mp4"); /* does not wait for a's backoff */
    put(s->f, "incoming/c.mp4", "x");
    scan(s);
    s->now_ms += BLIND;
    s->f->config->spool.reserve_bytes = INT64_MAX / 4; /* paused: attempts go on, claims do not */
    assert_int_equal(tt_intake_put_job(s->intake, job, s->now_ms, &s->f->err), TT_OK);
    assert_int_equal(tt_intake_take(s->intake, s->now_ms, &job, &s->f->err), TT_TAKE_JOB);
    assert_int_equal(tt_intake_take(s->intake, s->now_ms, &job, &s->f->err), TT_TAKE_JOB);
    assert_int_equal(tt_intake_take(s->intake, s->now_ms, &job, &s->f->err), TT_TAKE_PAUSED);
    assert_true(there(s->f, "incoming/c.mp4"));
}

/* --- when -------------------------------------------------------------------------------------------------
 */

static void unseen_files_wait_the_blind_time(void **state)
{
    struct scan_fixture *s = *state;

    put(s->f, "incoming/bear.mp4", "x");
    scan(s);
    assert_int_equal(tt_queue_next_due_ms(s->queue), s->now_ms + BLIND);
    s->now_ms += BLIND - 1;
    scan(s); /* looking does not start the clock anew */
    assert_string_equal(next(s), "");
    s->now_ms += 1;
    assert_string_equal(next(s), "bear.mp4");
}

static void closed_files_wait_less(void **state)
{
    struct scan_fixture *s = *state;

    scan(s); /* watches */
    put(s->f, "incoming/bear.mp4", "x");
    put(s->f, "incoming/half.mp4.part", "x");
    hear(s);
    assert_int_equal(tt_queue_next_due_ms(s->queue), s->now_ms + SETTLE);
    s->now_ms += 1000;
    assert_int_equal(rename(at(s->f, "incoming/half.mp4.part"), at(s->f, "incoming/half.mp4")), 0);
    hear(s);
    s->now_ms += SETTLE - 1000;
    assert_string_equal(next(s), "bear.mp4");
    assert_string_equal(next(s), "");
    s->now_ms += 1000;
    assert_string_equal(next(s), "half.mp4");
}

/* Opens and closes between writes, each pause shorter than settle_ms. */
static void a_writer_that_comes_back_is_waited_for(void **state)
{
    struct scan_fixture *s = *state;
    int fd;

    scan(s);
    for (int i = 0; i < 5; i++) {
        fd = open(at(s->f, "incoming/bear.mp4"), O_WRONLY | O_CREAT | O_APPEND, 0644);
        assert_int_equal(write(fd, "x", 1), 1);
        close(fd);
        hear(s);
        s->now_ms += SETTLE - 1;
        assert_string_equal(next(s), "");
    }
    s->now_ms += 1;
    assert_string_equal(next(s), "bear.mp4");
}

/* Closed once (a preallocating tool), then written slowly through another descriptor: no event tells. */
static void growth_that_no_event_tells_of_is_seen(void **state)
{
    struct scan_fixture *s = *state;
    int fd;

    scan(s);
    put(s->f, "incoming/bear.mp4", "");
    hear(s);
    fd = open(at(s->f, "incoming/bear.mp4"), O_WRONLY | O_APPEND);
    for (int i = 0; i < 4; i++) {
        next_tick(s->f);
        assert_int_equal(write(fd, "x", 1), 1);
        scan(s);
        s->now_ms += BLIND - 1; /* long pauses */
        assert_string_equal(next(s), "");
    }
    next_tick(s->f);
    assert_int_equal(write(fd, "x", 1), 1);
    s->now_ms += 1;
    assert_string_equal(next(s), ""); /* it is due, but the claim finds it changed */
    s->now_ms += BLIND;
    assert_string_equal(next(s), "bear.mp4");
    close(fd);
}

static void files_that_vanish_are_forgotten(void **state)
{
    struct scan_fixture *s = *state;

    put(s->f, "incoming/a.mp4", "x");
    put(s->f, "incoming/b.mp4", "x");
    put(s->f, "incoming/c.mp4", "x");
    scan(s);
    unlink(at(s->f, "incoming/a.mp4"));
    hear(s);
    assert_int_equal(tt_queue_count(s->queue).settling, 2);
    s->now_ms += BLIND;
    unlink(at(s->f, "incoming/b.mp4")); /* and the event is not heard */
    assert_string_equal(next(s), "c.mp4");
    scan(s);
    assert_int_equal(tt_queue_count(s->queue).ready + tt_queue_count(s->queue).settling, 0);
}

static void sidecars_are_waited_for(void **state)
{
    struct scan_fixture *s = *state;

    scan(s);
    put(s->f, "incoming/bear.mp4", "x");
    hear(s);
    s->now_ms += SETTLE - 1;
    put(s->f, "incoming/bear.queries.csv", "0,1,1");
    hear(s);
    s->now_ms += 1;
    assert_string_equal(next(s), ""); /* the video is whole, its side-car is not */
    s->now_ms += SETTLE - 1;
    assert_string_equal(next(s), "bear.mp4");
    assert_string_equal(text_of(s->f, "failed/bear.queries.csv"), "0,1,1");
    put(s->f, "incoming/cub.mask.png", "x"); /* first the side-car, as submit does */
    put(s->f, "incoming/cub.mp4", "x");
    hear(s);
    s->now_ms += SETTLE;
    assert_string_equal(next(s), "cub.mp4");
    put(s->f, "incoming/owl.mp4", "x");
    hear(s);
    s->now_ms += SETTLE;
    put(s->f, "incoming/owl.mask.png",
        "x"); /* the event was not heard yet: found by the look before the claim */
    assert_string_equal(next(s), "");
    s->now_ms += BLIND;
    assert_string_equal(next(s), "owl.mp4");
    assert_true(there(s->f, "failed/owl.mask.png"));
}

/* --- what goes wrong --------------------------------------------------------------------------------------
 */

static void incoming_may_vanish_and_come_back(void **state)
{
    struct scan_fixture *s = *state;
    bool done;

    put(s->f, "incoming/bear.mp4", "x");
    scan(s);
    assert_int_equal(rename(at(s->f, "incoming"), at(s->f, "elsewhere")), 0);
    hear(s);
    assert_true(s->wants_scan);
    assert_int_equal(tt_intake_scan(s->intake, 100, s->now_ms, &done, &s->f->err), TT_RETRY_LATER);
    assert_true(done && tt_spool_paused(s->f->spool)->paused);
    assert_int_equal(tt_queue_count(s->queue).settling, 0);
    assert_int_equal(rename(at(s->f, "elsewhere"), at(s->f, "incoming")), 0);
    assert_int_equal(tt_spool_probe(s->f->spool, &s->f->err), TT_OK);
    scan(s);
    assert_int_equal(tt_queue_count(s->queue).settling, 1);
    put(s->f, "incoming/cub.mp4", "x"); /* watched again */
    hear(s);
    s->now_ms += SETTLE;
    assert_string_equal(next(s), "cub.mp4");
}

/* As nobody, who may not read somebody's file. */
static void one_file_that_cannot_be_taken_is_put_off(void **state)
{
    struct scan_fixture *s = *state;

    if (geteuid() != 0) {
        print_message("skipped: must be root to become somebody else\n");
        skip();
    }
    put(s->f, "incoming/secret.mp4", "x");
    next_tick(s->f);
    put(s->f, "incoming/bear.mp4", "x");
    assert_int_equal(chmod(at(s->f, "incoming/secret.mp4"), 0), 0);
    scan(s);
    s->now_ms += BLIND;
    assert_int_equal(chown(s->f->root, 65534, 65534), 0);
    {
        char command[PATH_MAX];

        snprintf(command, sizeof command, "chown -R 65534 '%s'; chown 0 '%s/incoming/secret.mp4'", s->f->root,
                 s->f->root);
        assert_int_equal(system(command), 0);
    }
    scan(s); /* the change of owner is a change */
    assert_int_equal(seteuid(65534), 0);
    s->now_ms += BLIND;
    hear(s);
    s->now_ms += BLIND;
    assert_string_equal(next(s), "bear.mp4");
    assert_string_equal(next(s), "");
    assert_int_equal(s->notices[TT_NOTICE_DEFERRED], 1);
    assert_non_null(strstr(s->notice, "secret.mp4"));
    assert_int_equal(tt_queue_count(s->queue).deferred, 1);
    for (int i = 0; i < 5; i++) {
        s->now_ms += s->f->config->jobs.backoff_max_ms;
        assert_string_equal(next(s), "");
    }
    assert_int_equal(s->notices[TT_NOTICE_DEFERRED], 1); /* said once */
    assert_int_equal(seteuid(0), 0);
    assert_int_equal(chown(at(s->f, "incoming/secret.mp4"), 65534, 65534), 0);
    assert_int_equal(chmod(at(s->f, "incoming/secret.mp4"), 0600), 0);
    assert_int_equal(seteuid(65534), 0);
    scan(s);
    s->now_ms += BLIND;
    assert_string_equal(next(s), "secret.mp4");
    assert_int_equal(seteuid(0), 0);
}

static void a_rescan_finds_what_events_did_not_tell(void **state)
{
    struct scan_fixture *s = *state;
    enum { MANY = 10000 };
    char path[64];

    scan(s);
    for (int i = 0; i < MANY; i++) { /* as if stopped meanwhile: more than the kernel's queue holds */
        snprintf(path, sizeof path, "incoming/%05d.mp4", i);
        put(s->f, path, "x");
    }
    hear(s);
    assert_true(s->wants_scan);
    scan(s);
    assert_int_equal(tt_queue_count(s->queue).settling, MANY);
}

#define SCAN_TEST(name) cmocka_unit_test_setup_teardown(name, start, stop)

int main(void)
{
    const struct CMUnitTest tests[] = {
        SCAN_TEST(only_videos_are_jobs),
        SCAN_TEST(patterns_are_configurable),
        SCAN_TEST(sub_directories_if_asked),
        SCAN_TEST(the_oldest_first_and_priority_ahead),
        SCAN_TEST(waiting_jobs_keep_their_place),
        SCAN_TEST(unseen_files_wait_the_blind_time),
        SCAN_TEST(closed_files_wait_less),
        SCAN_TEST(a_writer_that_comes_back_is_waited_for),
        SCAN_TEST(growth_that_no_event_tells_of_is_seen),
        SCAN_TEST(files_that_vanish_are_forgotten),
        SCAN_TEST(sidecars_are_waited_for),
        SCAN_TEST(incoming_may_vanish_and_come_back),
        SCAN_TEST(one_file_that_cannot_be_taken_is_put_off),
        SCAN_TEST(a_rescan_finds_what_events_did_not_tell),
    };
    return cmocka_run_group_tests_name("spool_scan", tests, NULL, NULL);
}

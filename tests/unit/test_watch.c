/* tests/unit/test_watch.c: the settle rule by a made-up clock; inotify's events on real directories. */
#include "daemon/spool/watch.h"

#include <dirent.h>
#include <fcntl.h>
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

enum { SETTLE = 2000, BLIND = 10000 };

static const struct tt_identity empty = {1, 0, 100, 100}, grown = {1, 50, 200, 200},
                                touched = {1, 50, 200, 300}, replaced = {2, 50, 200, 200};

static int64_t due(const struct tt_settle *settle)
{
    return tt_settle_due_ms(settle, SETTLE, BLIND);
}

static void a_file_that_nobody_closed_waits_long(void **state)
{
    struct tt_settle settle = {0};

    (void)state;
    assert_true(tt_settle_look(&settle, &empty, false, 1000));
    assert_int_equal(due(&settle), 1000 + BLIND);
    assert_false(tt_settle_look(&settle, &empty, false, 5000)); /* still: the clock runs on */
    assert_int_equal(due(&settle), 1000 + BLIND);
    assert_true(tt_settle_look(&settle, &grown, false, 6000));
    assert_int_equal(due(&settle), 6000 + BLIND);
    assert_true(tt_settle_look(&settle, &replaced, false, 7000)); /* another inode under the name */
    assert_int_equal(due(&settle), 7000 + BLIND);
}

static void a_close_makes_it_short(void **state)
{
    struct tt_settle settle = {0};

    (void)state;
    tt_settle_look(&settle, &empty, false, 0);
    assert_true(tt_settle_look(&settle, &grown, true, 1000));
    assert_int_equal(due(&settle), 1000 + SETTLE);
    assert_true(tt_settle_look(&settle, &grown, true, 1500)); /* opened and closed once more */
    assert_int_equal(due(&settle), 1500 + SETTLE);
    assert_true(tt_settle_look(&settle, &touched, false, 2000)); /* chmod: short again, from now on */
    assert_int_equal(due(&settle), 2000 + SETTLE);
}

static void writing_after_a_close_makes_it_long_again(void **state)
{
    struct tt_settle settle = {0};

    (void)state;
    tt_settle_look(&settle, &empty, true, 0);
    assert_int_equal(due(&settle), SETTLE);
    assert_true(tt_settle_look(&settle, &grown, false, 1000));
    assert_int_equal(due(&settle), 1000 + BLIND);
    assert_true(tt_settle_look(&settle, &grown, true, 3000));
    assert_int_equal(due(&settle), 3000 + SETTLE);
}

/* --- inotify ----------------------------------------------------------------------------------------------
 */

struct fixture {
    char directory[64];
    int fd;
    struct tt_watch *watch;
    char seen[4096]; /* "kind:directory/name " of every event */
};

static void note(void *user, const struct tt_watch_event *event)
{
    static const char *const kinds[] = {"closed",    "arrived", "touched", "gone",
                                        "directory", "lost",    "overflow"};
    struct fixture *f = user;
    size_t used = strlen(f->seen);

    snprintf(f->seen + used, sizeof f->seen - used, "%s:%s/%s ", kinds[event->kind],
             event->directory ? event->directory : "-", event->name);
}

static const char *events(struct fixture *f)
{
    f->seen[0] = '\0';
    while (tt_watch_read(f->watch, 100, note, f))
        ;
    return f->seen;
}

static int start(void **state)
{
    struct fixture *f = calloc(1, sizeof *f);
    struct tt_error err;

    strcpy(f->directory, "/tmp/tt-watch-XXXXXX");
    assert_non_null(mkdtemp(f->directory));
    f->fd = open(f->directory, O_RDONLY | O_DIRECTORY);
    assert_int_equal(tt_watch_open(&f->watch, &err), TT_OK);
    assert_int_equal(tt_watch_directory(f->watch, f->fd, "", &err), TT_OK);
    *state = f;
    return 0;
}

static int stop(void **state)
{
    struct fixture *f = *state;
    char command[128];
    int result;

    tt_watch_close(f->watch);
    close(f->fd);
    snprintf(command, sizeof command, "rm -rf %s", f->directory);
    result = system(command);
    free(f);
    return result;
}

static void write_file(int fd, const char *name)
{
    int file = openat(fd, name, O_WRONLY | O_CREAT, 0600);

    assert_true(file >= 0);
    assert_int_equal(write(file, "x", 1), 1);
    close(file);
}

static void tells_what_happens_to_files(void **state)
{
    struct fixture *f = *state;

    write_file(f->fd, "a.mp4");
    assert_non_null(strstr(events(f), "closed:/a.mp4 "));
    renameat(f->fd, "a.mp4", f->fd, "b.mp4");
    assert_string_equal(events(f), "gone:/a.mp4 arrived:/b.mp4 ");
    fchmodat(f->fd, "b.mp4", 0644, 0);
    assert_string_equal(events(f), "touched:/b.mp4 ");
    unlinkat(f->fd, "b.mp4", 0);
    assert_non_null(strstr(events(f), "gone:/b.mp4 "));
    assert_string_equal(events(f), "");
}

static void follows_sub_directories(void **state)
{
    struct fixture *f = *state;
    struct tt_error err;
    int below;

    mkdirat(f->fd, "sub", 0700);
    assert_string_equal(events(f), "directory:/sub ");
    below = openat(f->fd, "sub", O_RDONLY | O_DIRECTORY);
    assert_int_equal(tt_watch_directory(f->watch, below, "sub", &err), TT_OK);
    assert_int_equal(tt_watch_directory(f->watch, below, "sub", &err), TT_OK);
    assert_int_equal(tt_watch_count(f->watch), 2);
    write_file(below, "c.mp4");
    assert_non_null(strstr(events(f), "closed:sub/c.mp4 "));
    renameat(f->fd, "sub", f->fd, "moved"); /* its label would lie now */
    assert_non_null(strstr(events(f), "lost:sub/ "));
    assert_int_equal(tt_watch_count(f->watch), 1);
    assert_int_equal(tt_watch_directory(f->watch, below, "moved", &err), TT_OK);
    unlinkat(below, "c.mp4", 0);
    assert_non_null(strstr(events(f), "gone:moved/c.mp4 "));
    close(below);
    unlinkat(f->fd, "moved", AT_REMOVEDIR);
    assert_non_null(strstr(events(f), "lost:moved/ "));
    assert_int_equal(tt_watch_count(f->watch), 1);
}

static void sweeps_what_is_not_wanted(void **state)
{
    struct fixture *f = *state;
    struct tt_error err;
    int below;

    mkdirat(f->fd, "sub", 0700);
    below = openat(f->fd, "sub", O_RDONLY | O_DIRECTORY);
    assert_int_equal(tt_watch_directory(f->watch, below, "sub", &err), TT_OK);
    tt_watch_sweep(f->watch);
    assert_int_equal(tt_watch_count(f->watch), 2);
    assert_int_equal(tt_watch_directory(f->watch, f->fd, "", &err), TT_OK);
    tt_watch_sweep(f->watch);
    assert_int_equal(tt_watch_count(f->watch), 1);
    events(f);
    write_file(below, "c.mp4");
    assert_string_equal(events(f), "");
    close(below);
}

static void says_when_events_were_lost(void **state)
{
    struct fixture *f = *state;
    FILE *limit = fopen("/proc/sys/fs/inotify/max_queued_events", "r");
    int queued = 0;

    assert_non_null(limit);
    assert_int_equal(fscanf(limit, "%d", &queued), 1);
    fclose(limit);
    if (queued > 100000)
        skip();
    for (int i = 0; i <= queued / 2; i++) {
        char name[32];

        snprintf(name, sizeof name, "%d.mp4", i);
        write_file(f->fd, name); /* two events each */
    }
    f->seen[0] = '\0';
    for (bool more = true; more;) {
        more = tt_watch_read(f->watch, 100, note, f);
        if (!strstr(f->seen, "overflow:-/ ") && more)
            f->seen[0] = '\0';
    }
    assert_non_null(strstr(f->seen, "overflow:-/ "));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_file_that_nobody_closed_waits_long),
        cmocka_unit_test(a_close_makes_it_short),
        cmocka_unit_test(writing_after_a_close_makes_it_long_again),
        cmocka_unit_test_setup_teardown(tells_what_happens_to_files, start, stop),
        cmocka_unit_test_setup_teardown(follows_sub_directories, start, stop),
        cmocka_unit_test_setup_teardown(sweeps_what_is_not_wanted, start, stop),
        cmocka_unit_test_setup_teardown(says_when_events_were_lost, start, stop),
    };
    return cmocka_run_group_tests_name("watch", tests, NULL, NULL);
}

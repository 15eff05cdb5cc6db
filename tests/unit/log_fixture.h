/* tests/unit/log_fixture.h: a log that writes to a pipe or a file, and what reads its lines, for test_log*.c.
 */
#ifndef TT_TESTS_LOG_FIXTURE_H
#define TT_TESTS_LOG_FIXTURE_H

#include "core/log.h"

#include <errno.h>
#include <fcntl.h>
#include <jansson.h>
#include <poll.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>
#include <cmocka.h>

/* The clocks of this program: the log's windows pass without waiting, and its dates can be chosen. */
static int64_t monotonic_ahead_ms __attribute__((unused));
static int64_t realtime_ms = -1; /* fixed, where it is not -1 */

int clock_gettime(clockid_t clock, struct timespec *now)
{
    int result = (int)syscall(SYS_clock_gettime, clock, now);

    if (clock == CLOCK_REALTIME && realtime_ms >= 0)
        *now = (struct timespec){realtime_ms / 1000, realtime_ms % 1000 * 1000000};
    if (clock == CLOCK_MONOTONIC)
        now->tv_sec += monotonic_ahead_ms / 1000;
    return result;
}

enum { TEXT_BYTES = 1 << 20 };

struct fixture {
    int read_fd, write_fd; /* a pipe */
    struct tt_log_options options;
    struct tt_log *log;
    char folder[32], file[64], other[64];
    char *text; /* TEXT_BYTES */
};

static inline int set_up(void **state)
{
    struct fixture *fixture = calloc(1, sizeof *fixture);
    int fds[2];

    unsetenv("JOURNAL_STREAM");
    unsetenv("NO_COLOR");
    setenv("TERM", "xterm", 1);
    signal(SIGPIPE, SIG_IGN);
    signal(SIGXFSZ, SIG_IGN);
    realtime_ms = -1;
    assert_int_equal(pipe2(fds, O_CLOEXEC), 0);
    fixture->read_fd = fds[0];
    fixture->write_fd = fds[1];
    strcpy(fixture->folder, "/tmp/tt-log-XXXXXX");
    assert_non_null(mkdtemp(fixture->folder));
    snprintf(fixture->file, sizeof fixture->file, "%s/log", fixture->folder);
    snprintf(fixture->other, sizeof fixture->other, "%s/other", fixture->folder);
    fixture->text = calloc(1, TEXT_BYTES);
    fixture->options = (struct tt_log_options){.program = "test", .level = TT_LOG_INFO, .fd = fds[1]};
    *state = fixture;
    return 0;
}

static inline int tear_down(void **state)
{
    struct fixture *fixture = *state;

    tt_log_close(fixture->log);
    close(fixture->read_fd);
    close(fixture->write_fd);
    unlink(fixture->file);
    unlink(fixture->other);
    rmdir(fixture->folder);
    free(fixture->text);
    free(fixture);
    return 0;
}

static inline void open_log(struct fixture *fixture)
{
    struct tt_error err;

    if (tt_log_open(&fixture->log, &fixture->options, &err) != TT_OK)
        fail_msg("%s", err.text);
}

/* What can be read from fd at once, or until its end, as text. */
static inline char *take(struct fixture *fixture, int fd)
{
    size_t used = 0;
    ssize_t got = 1;
    struct pollfd ready = {.fd = fd, .events = POLLIN};

    while (got > 0 && used < TEXT_BYTES - 1 && poll(&ready, 1, 0) == 1) {
        got = read(fd, fixture->text + used, TEXT_BYTES - 1 - used);
        used += got > 0 ? (size_t)got : 0;
    }
    fixture->text[used] = 0;
    return fixture->text;
}

static inline char *take_file(struct fixture *fixture, const char *path)
{
    int fd = open(path, O_RDONLY | O_CLOEXEC);

    assert_true(fd >= 0);
    take(fixture, fd);
    close(fd);
    return fixture->text;
}

/* The next line at *text as JSON, and *text behind it; NULL at the end. Fails on anything but an object. */
static inline json_t *next_line(char **text)
{
    char *end = strchr(*text, '\n');
    json_error_t error;
    json_t *json;

    if (!**text)
        return NULL;
    assert_non_null(end);
    assert_true(end - *text < TT_LOG_LINE_BYTES);
    json = json_loadb(*text, (size_t)(end - *text), JSON_REJECT_DUPLICATES, &error);
    if (!json)
        fail_msg("%s in: %.*s", error.text, (int)(end - *text), *text);
    *text = end + 1;
    return json;
}

static inline const char *string_of(json_t *json, const char *name)
{
    return json_string_value(json_object_get(json, name));
}

static inline int64_t number_of(json_t *json, const char *name)
{
    return json_integer_value(json_object_get(json, name));
}

/* Lines of this event in text, all of which must be whole. */
static inline int count_events(char *text, const char *event)
{
    int count = 0;
    json_t *json;

    while ((json = next_line(&text))) {
        count += strcmp(string_of(json, "event"), event) == 0;
        json_decref(json);
    }
    return count;
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, set_up, tear_down)

#endif

/* tests/unit/test_link.c: a worker process and its stream. The worker is this program itself, started again
 * by the link; the environment says what it does. */
#include "daemon/supervisor/link.h"

#include <errno.h>
#include <fcntl.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <linux/close_range.h>
#include <unistd.h>
#include <cmocka.h>

#define ACT "TT_TEST_LINK_ACT"

/* --- the worker -------------------------------------------------------------------------------------------
 */

static void pong(int64_t serial)
{
    const struct tt_message message = {.type = TT_MESSAGE_PONG, .body.ping = {.serial = serial}};

    tt_message_send(TT_MESSAGE_FD, &message, NULL);
}

/* Descriptors beyond those that a worker is given. */
static int foreign_descriptors(void)
{
    int count = 0;

    for (int fd = TT_MESSAGE_FD + 1; fd < 256; fd++)
        count += fcntl(fd, F_GETFD) >= 0;
    return count;
}

static int act(const char *what)
{
    static struct tt_inbox inbox;
    struct tt_message message;

    signal(SIGPIPE, SIG_IGN);
    if (strcmp(what, "count") == 0) {
        pong(foreign_descriptors());
        return 0;
    }
    if (strcmp(what, "burst") == 0) { /* much at the very end */
        for (int i = 0; i < 1000; i++)
            pong(i);
        return 5;
    }
    if (strcmp(what, "garbage") == 0) {
        if (write(TT_MESSAGE_FD, "this is no message", 18) != 18)
            return 1;
        sleep(60);
    }
    if (strcmp(what, "forbidden") == 0) {
        const struct tt_message cancel = {.type = TT_MESSAGE_CANCEL, .body.cancel = {.id = "x"}};

        tt_message_send(TT_MESSAGE_FD, &cancel, NULL);
        sleep(60);
    }
    if (strcmp(what, "lives_on") == 0) {
        close(TT_MESSAGE_FD);
        sleep(60);
    }
    if (strcmp(what, "deaf") == 0)
        sleep(60);
    while (!tt_message_receive(TT_MESSAGE_FD, &inbox, &message, NULL) && message.type == TT_MESSAGE_PING)
        pong(message.body.ping.serial + 100);
    return message.type == TT_MESSAGE_NONE ? 7 : 8; /* 7: the stream ended */
}

/* --- the supervisor's side --------------------------------------------------------------------------------
 */

static uv_loop_t loop;
static int messages, ends;
static int64_t last_serial;
static struct tt_link_end end;
static char problem[TT_ERROR_TEXT_BYTES];

static void on_message(void *user, const struct tt_message *message)
{
    assert_ptr_equal(user, &loop);
    assert_int_equal(message->type, TT_MESSAGE_PONG);
    assert_int_equal(ends, 0);
    messages++;
    last_serial = message->body.ping.serial;
}

static void on_ended(void *user, const struct tt_link_end *ended)
{
    assert_ptr_equal(user, &loop);
    ends++;
    end = *ended;
    snprintf(problem, sizeof problem, "%s", ended->problem);
}

static struct tt_link *begin(const char *what)
{
    const struct tt_link_hooks hooks = {.message = on_message, .ended = on_ended, .user = &loop};
    struct tt_link *link = NULL;
    struct tt_error err;

    messages = ends = 0;
    setenv(ACT, what, 1);
    if (tt_link_start(&link, &loop, "/proc/self/exe", &hooks, &err))
        fail_msg("%s", err.text);
    return link;
}

static void run_to_end(void)
{
    uv_run(&loop, UV_RUN_DEFAULT);
    assert_int_equal(ends, 1);
}

static enum tt_status ping(struct tt_link *link, int64_t serial)
{
    const struct tt_message message = {.type = TT_MESSAGE_PING, .body.ping = {.serial = serial}};

    return tt_link_send(link, &message, NULL);
}

static void messages_go_both_ways(void **state)
{
    struct tt_link *link = begin("echo");

    (void)state;
    assert_true(tt_link_pid(link) > 0);
    for (int i = 0; i < 50; i++)
        assert_int_equal(ping(link, i), TT_OK);
    while (messages < 50)
        uv_run(&loop, UV_RUN_ONCE);
    assert_int_equal(last_serial, 149);
    tt_link_signal(link, SIGTERM);
    run_to_end();
    assert_int_equal(end.signal, SIGTERM);
    assert_string_equal(problem, "");
}

static void the_last_words_come_before_the_end(void **state)
{
    (void)state;
    begin("burst");
    run_to_end();
    assert_int_equal(messages, 1000);
    assert_int_equal(last_serial, 999);
    assert_int_equal(end.exit_status, 5);
    assert_int_equal(end.signal, 0);
}

static void nothing_else_is_inherited(void **state)
{
    int ours = open("/dev/null", O_RDONLY | O_CLOEXEC);

    (void)state;
    begin("count");
    run_to_end();
    close(ours);
    assert_int_equal(messages, 1);
    assert_int_equal(last_serial, 0);
}

static void who_breaks_the_protocol_is_killed(void **state)
{
    (void)state;
    begin("garbage");
    run_to_end();
    assert_int_equal(end.signal, SIGKILL);
    assert_non_null(strstr(problem, "no message begins with"));
    begin("forbidden");
    run_to_end();
    assert_int_equal(end.signal, SIGKILL);
    assert_non_null(strstr(problem, "only a supervisor may"));
    begin("lives_on");
    run_to_end();
    assert_int_equal(end.signal, SIGKILL);
    assert_non_null(strstr(problem, "closed its stream"));
}

static void who_does_not_read_is_found_out(void **state)
{
    struct tt_link *link = begin("deaf");
    enum tt_status status = TT_OK;
    int sent = 0;

    (void)state;
    for (; !status && sent < 1000000; sent++)
        status = ping(link, sent);
    assert_int_equal(status, TT_RESTART_WORKER);
    assert_true(sent > 1000);
    tt_link_signal(link, SIGKILL);
    run_to_end();
}

static void what_cannot_be_said_is_refused(void **state)
{
    static char longer[TT_MESSAGE_TEXT_MAX + 2];
    struct tt_link *link = begin("echo");
    struct tt_message message = {.type = TT_MESSAGE_CANCEL, .body.cancel = {.id = longer}};

    (void)state;
    memset(longer, 'x', sizeof longer - 1);
    assert_int_equal(tt_link_send(link, &message, NULL), TT_REFUSE);
    assert_int_equal(ping(link, 1), TT_OK);
    while (messages < 1)
        uv_run(&loop, UV_RUN_ONCE);
    assert_int_equal(last_serial, 101);
    tt_link_signal(link, SIGKILL);
    run_to_end();
}

static void a_program_that_is_not_there(void **state)
{
    const struct tt_link_hooks hooks = {.message = on_message, .ended = on_ended, .user = &loop};
    struct tt_link *link = NULL;
    struct tt_error err;

    (void)state;
    ends = 0;
    assert_int_equal(tt_link_start(&link, &loop, "/nowhere/at/all", &hooks, &err), TT_REFUSE);
    assert_non_null(strstr(err.text, "/nowhere/at/all"));
    assert_null(link);
    uv_run(&loop, UV_RUN_DEFAULT);
    assert_int_equal(ends, 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(messages_go_both_ways),
        cmocka_unit_test(the_last_words_come_before_the_end),
        cmocka_unit_test(nothing_else_is_inherited),
        cmocka_unit_test(who_breaks_the_protocol_is_killed),
        cmocka_unit_test(who_does_not_read_is_found_out),
        cmocka_unit_test(what_cannot_be_said_is_refused),
        cmocka_unit_test(a_program_that_is_not_there),
    };
    int failed;

    if (getenv(ACT))
        return act(getenv(ACT));
    signal(SIGPIPE, SIG_IGN);
    close_range(TT_MESSAGE_FD, ~0u, CLOSE_RANGE_CLOEXEC); /* what ctest left open, as the daemon does */
    uv_loop_init(&loop);
    failed = cmocka_run_group_tests_name("link", tests, NULL, NULL);
    return uv_loop_close(&loop) == 0 ? failed : 1; /* busy: a handle was forgotten */
}

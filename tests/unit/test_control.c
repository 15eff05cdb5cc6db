/* tests/unit/test_control.c: the control socket's lines, and clients that misbehave. */
#include "daemon/report/control.h"

#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>
#include <cmocka.h>

static uv_loop_t loop;
static struct tt_control *control;
static char path[64];
static int answered;

/* Echoes; "hang up" is not answered, "long" with much. */
static char *answer(void *user, const char *line)
{
    char *text;

    answered++;
    assert_ptr_equal(user, &loop);
    if (strcmp(line, "hang up") == 0)
        return NULL;
    if (strcmp(line, "long") == 0) {
        text = calloc(1, 1000001);
        memset(text, 'x', 1000000);
        return text;
    }
    return asprintf(&text, "<%s>", line) < 0 ? NULL : text;
}

static int start(void **state)
{
    struct tt_error err;

    (void)state;
    snprintf(path, sizeof path, "/tmp/tt-control-%ld", (long)getpid());
    answered = 0;
    uv_loop_init(&loop);
    if (tt_control_open(&control, &loop, path, answer, &loop, &err))
        fail_msg("%s", err.text);
    return 0;
}

static int stop(void **state)
{
    (void)state;
    tt_control_close(control);
    uv_run(&loop, UV_RUN_DEFAULT);
    assert_int_equal(uv_loop_close(&loop), 0); /* nothing was forgotten */
    assert_int_not_equal(access(path, F_OK), 0);
    return 0;
}

static int connect_to(void)
{
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);

    snprintf(address.sun_path, sizeof address.sun_path, "%s", path);
    assert_int_equal(connect(fd, (struct sockaddr *)&address, sizeof address), 0);
    return fd;
}

static void turn(void)
{
    for (int i = 0; i < 20; i++)
        uv_run(&loop, UV_RUN_NOWAIT);
}

static void send_text(int fd, const char *text, size_t bytes)
{
    assert_int_equal(send(fd, text, bytes, MSG_NOSIGNAL), bytes);
    turn();
}

/* What has come: a text, or NULL where the client was cut off. */
static const char *received(int fd)
{
    static char text[4096];
    ssize_t got;

    turn();
    got = recv(fd, text, sizeof text - 1, 0);
    if (got == 0)
        return NULL;
    text[got > 0 ? got : 0] = '\0';
    return text;
}

static void lines_are_answered_in_order(void **state)
{
    int fd = connect_to();

    (void)state;
    send_text(fd, "one\ntwo\nthr", 11);
    assert_string_equal(received(fd), "<one>\n<two>\n");
    send_text(fd, "ee\n\n", 4);
    assert_string_equal(received(fd), "<three>\n<>\n");
    assert_int_equal(tt_control_clients(control), 1);
    close(fd);
    turn();
    assert_int_equal(tt_control_clients(control), 0);
}

static void a_line_that_is_too_long_or_no_text_is_cut_off(void **state)
{
    static char many[TT_CONTROL_LINE_MAX + 1];
    int fd = connect_to();

    (void)state;
    memset(many, 'y', sizeof many);
    many[TT_CONTROL_LINE_MAX - 1] = '\n'; /* the longest that is allowed */
    send_text(fd, many, TT_CONTROL_LINE_MAX);
    assert_non_null(received(fd));
    close(fd);
    turn();
    many[TT_CONTROL_LINE_MAX - 1] = 'y';
    fd = connect_to();
    send_text(fd, many, TT_CONTROL_LINE_MAX);
    assert_null(received(fd));
    close(fd);
    fd = connect_to();
    send_text(fd, "a\0b\n", 4);
    assert_null(received(fd));
    close(fd);
    fd = connect_to();
    send_text(fd, "hang up\n", 8);
    assert_null(received(fd));
    close(fd);
    assert_int_equal(answered, 2);
}

static void who_does_not_read_is_not_heard(void **state)
{
    int fd = connect_to();

    (void)state;
    for (int i = 0; i < 50; i++)
        send_text(fd, "long\n", 5);
    assert_int_equal(answered, 1); /* the others wait until that is on its way */
    close(fd);
    turn();
    assert_int_equal(tt_control_clients(control), 0);
}

static void the_most_silent_makes_room(void **state)
{
    int fds[TT_CONTROL_CLIENTS + 1];

    (void)state;
    for (int i = 0; i < TT_CONTROL_CLIENTS; i++) {
        fds[i] = connect_to();
        turn();
    }
    send_text(fds[0], "still here\n", 11);
    assert_string_equal(received(fds[0]), "<still here>\n");
    fds[TT_CONTROL_CLIENTS] = connect_to();
    turn();
    assert_int_equal(tt_control_clients(control), TT_CONTROL_CLIENTS);
    assert_null(received(fds[1]));
    send_text(fds[0], "and now\n", 8);
    assert_string_equal(received(fds[0]), "<and now>\n");
    for (int i = 0; i <= TT_CONTROL_CLIENTS; i++)
        close(fds[i]);
}

static void the_place(void **state)
{
    struct tt_control *other = NULL;
    struct tt_error err;
    struct stat st;
    char file[] = "/tmp/tt-control-XXXXXX", longer[300];

    (void)state;
    assert_int_equal(stat(path, &st), 0);
    assert_int_equal(st.st_mode & 0777, 0660);
    assert_int_equal(tt_control_open(&other, &loop, path, answer, NULL, &err), TT_REFUSE);
    assert_non_null(strstr(err.text, "another daemon"));
    close(mkstemp(file));
    assert_int_equal(tt_control_open(&other, &loop, file, answer, NULL, &err), TT_REFUSE);
    assert_non_null(strstr(err.text, "something else"));
    assert_int_equal(access(file, F_OK), 0);
    unlink(file);
    memset(longer, 'p', sizeof longer);
    longer[0] = '/';
    longer[sizeof longer - 1] = '\0';
    assert_int_equal(tt_control_open(&other, &loop, longer, answer, NULL, &err), TT_REFUSE);
    assert_int_equal(tt_control_open(&other, &loop, "/nowhere/at/all", answer, NULL, &err), TT_REFUSE);
    assert_null(other);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(lines_are_answered_in_order, start, stop),
        cmocka_unit_test_setup_teardown(a_line_that_is_too_long_or_no_text_is_cut_off, start, stop),
        cmocka_unit_test_setup_teardown(who_does_not_read_is_not_heard, start, stop),
        cmocka_unit_test_setup_teardown(the_most_silent_makes_room, start, stop),
        cmocka_unit_test_setup_teardown(the_place, start, stop),
    };

    signal(SIGPIPE, SIG_IGN);
    return cmocka_run_group_tests_name("control", tests, NULL, NULL);
}

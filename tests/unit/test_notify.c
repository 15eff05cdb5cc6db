/* tests/unit/test_notify.c: what goes to systemd's socket. */
#include "daemon/report/notify.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>
#include <cmocka.h>

static int server = -1;

/* What was sent last; "": nothing. */
static const char *heard(void)
{
    static char text[4096];
    ssize_t got = recv(server, text, sizeof text - 1, MSG_DONTWAIT);

    text[got > 0 ? got : 0] = '\0';
    return text;
}

static void each_message(void **state)
{
    (void)state;
    tt_notify_ready("1 of 1 devices");
    assert_string_equal(heard(), "READY=1\nSTATUS=1 of 1 devices");
    tt_notify_status("busy");
    assert_string_equal(heard(), "STATUS=busy");
    tt_notify_watchdog();
    assert_string_equal(heard(), "WATCHDOG=1");
    tt_notify_stopping("ending");
    assert_string_equal(heard(), "STOPPING=1\nSTATUS=ending");
    tt_notify_extend(1500);
    assert_string_equal(heard(), "EXTEND_TIMEOUT_USEC=1500000");
    tt_notify_reloading();
    assert_non_null(strstr(heard(), "RELOADING=1\nMONOTONIC_USEC="));
    assert_string_equal(heard(), "");
}

static void the_watchdogs_period(void **state)
{
    char pid[32];

    (void)state;
    assert_int_equal(tt_notify_watchdog_ms(), 0);
    setenv("WATCHDOG_USEC", "30000000", 1);
    assert_int_equal(tt_notify_watchdog_ms(), 10000);
    snprintf(pid, sizeof pid, "%ld", (long)getpid());
    setenv("WATCHDOG_PID", pid, 1);
    assert_int_equal(tt_notify_watchdog_ms(), 10000);
    setenv("WATCHDOG_PID", "1", 1); /* it is meant for another process */
    assert_int_equal(tt_notify_watchdog_ms(), 0);
    unsetenv("WATCHDOG_PID");
    setenv("WATCHDOG_USEC", "1", 1);
    assert_int_equal(tt_notify_watchdog_ms(), 1);
}

static void without_systemd_nothing_happens(void **state)
{
    (void)state;
    unsetenv("NOTIFY_SOCKET");
    tt_notify_ready("x");
    tt_notify_watchdog();
    assert_string_equal(heard(), "");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(each_message),
        cmocka_unit_test(the_watchdogs_period),
        cmocka_unit_test(without_systemd_nothing_happens),
    };
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    char folder[] = "/tmp/tt-notify-XXXXXX";
    int failed;

    if (!mkdtemp(folder))
        return 1;
    snprintf(address.sun_path, sizeof address.sun_path, "%s/socket", folder);
    server = socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0);
    if (bind(server, (struct sockaddr *)&address, sizeof address) < 0)
        return 1;
    setenv("NOTIFY_SOCKET", address.sun_path, 1);
    failed = cmocka_run_group_tests_name("notify", tests, NULL, NULL);
    unlink(address.sun_path);
    rmdir(folder);
    return failed;
}

/* daemon/cli/stop.c: a signal asks the work to stop, so that it unwinds and leaves no partial files.
 *
 * The handler only sets a flag and writes to an eventfd, both of which are safe there. The first signal is
 * kept to be raised again once everything is put away.
 */
#include "daemon/cli/cli.h"

#include <errno.h>
#include <signal.h>
#include <sys/eventfd.h>
#include <unistd.h>

static atomic_bool stop_flag;
static atomic_int stop_signal;
static int stop_fd = -1;

static void on_signal(int number)
{
    int saved_errno = errno;
    const uint64_t one = 1;

    if (atomic_exchange(&stop_flag, true) && number == SIGINT) {
        signal(SIGINT, SIG_DFL);
        raise(SIGINT);
        return;
    }
    atomic_store(&stop_signal, number);
    if (write(stop_fd, &one, sizeof one) < 0) {
        /* The flag is set all the same; the eventfd only wakes a read that is waiting. */
    }
    errno = saved_errno;
}

enum tt_status cli_stop_install(struct tt_error *err)
{
    static const int numbers[] = {SIGINT, SIGTERM, SIGHUP};
    struct sigaction action = {.sa_handler = on_signal};

    stop_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    if (stop_fd < 0)
        return tt_fail_errno(err, tt_status_of_errno(errno), errno, "eventfd");
    sigemptyset(&action.sa_mask);
    for (size_t i = 0; i < sizeof numbers / sizeof numbers[0]; i++) {
        struct sigaction before;

        /* What was ignored stays ignored (nohup). */
        if (sigaction(numbers[i], NULL, &before) == 0 && before.sa_handler != SIG_IGN)
            sigaction(numbers[i], &action, NULL);
    }
    signal(SIGPIPE, SIG_IGN); /* a write to a closed pipe fails instead */
    signal(SIGXFSZ, SIG_IGN); /* so does one beyond the file size limit */
    return TT_OK;
}

const atomic_bool *cli_stop_flag(void)
{
    return &stop_flag;
}

int cli_stop_fd(void)
{
    return stop_fd;
}

void cli_stop_reraise(void)
{
    int number = atomic_load(&stop_signal);

    if (number) {
        signal(number, SIG_DFL);
        raise(number);
    }
}

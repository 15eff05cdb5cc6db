/* tests/fault/step.c: tt_step of test builds: ends the process with SIGKILL at the step that was asked for.
 *
 * TT_KILL_AT: the number of the step, from 1; without it steps only count. The step's name goes to descriptor
 * 3 first, where the test listens.
 */
#include "daemon/spool/step.h"

#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

void tt_step(const char *name)
{
    static long kill_at = -1, steps;

    if (kill_at < 0) {
        const char *text = getenv("TT_KILL_AT");

        kill_at = text ? atol(text) : 0;
    }
    if (++steps != kill_at)
        return;
    if (write(3, name, strlen(name)) < 0)
        _exit(3);
    kill(getpid(), SIGKILL);
}

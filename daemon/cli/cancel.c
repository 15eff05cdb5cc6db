/* daemon/cli/cancel.c: tiletrack cancel: a waiting or running job is given up. */
#include "daemon/cli/ask.h"

static int run(int argc, char **argv)
{
    return cli_ask_names(&cli_cancel, "cancelled; the video goes to failed/", argc, argv);
}

const struct cli_command cli_cancel = {
    .name = "cancel",
    .summary = "give up waiting or running jobs",
    .help = "Usage: tiletrack cancel [OPTION]... NAME...\n"
            "\n"
            "Give up jobs: the video goes to the spool's failed/, from where `tiletrack retry` brings it "
            "back. A\n"
            "running tiletrackd does it. NAME is a job's id, or the video's name or path below incoming/.\n"
            "\n"
            "  --config FILE   the daemon's configuration (default " TT_CONFIG_PATH ")\n"
            "  --socket PATH   its control socket\n"
            "\n"
            "Exit status: 0 done, 1 there is no such job, 2 usage.\n",
    .run = run,
};

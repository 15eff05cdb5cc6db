/* daemon/cli/retry.c: tiletrack retry: an input of failed/ is tried again. */
#include "daemon/cli/ask.h"

static int run(int argc, char **argv)
{
    return cli_ask_names(&cli_retry, "back in incoming/", argc, argv);
}

const struct cli_command cli_retry = {
    .name = "retry",
    .summary = "give videos of failed/ another try",
    .help =
        "Usage: tiletrack retry [OPTION]... NAME...\n"
        "\n"
        "Move videos from the spool's failed/ back to incoming/, with their side-cars. A running tiletrackd\n"
        "does it. NAME is the video's path below failed/.\n"
        "\n"
        "  --config FILE   the daemon's configuration (default " TT_CONFIG_PATH ")\n"
        "  --socket PATH   its control socket\n"
        "\n"
        "Exit status: 0 done, 1 at least one could not be moved, 2 usage.\n",
    .run = run,
};

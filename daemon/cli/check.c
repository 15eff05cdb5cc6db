/* daemon/cli/check.c: tiletrack check: is this configuration file right? */
#include "config/config.h"
#include "daemon/cli/cli.h"

#include <getopt.h>
#include <stdio.h>

static bool check_file(const char *path)
{
    static struct tt_config_problems problems;
    struct tt_config *config = NULL;
    struct tt_error err;

    if (tt_config_load(&config, path, &problems, &err)) {
        if (problems.count > 0)
            tt_config_problems_print(stderr, path, &problems);
        else
            fprintf(stderr, "tiletrack check: %s\n", err.text);
        return false;
    }
    printf("%s: good\n", path);
    tt_config_free(config);
    return true;
}

static int run(int argc, char **argv)
{
    static const struct option options[] = {{"help", no_argument, NULL, 'h'}, {0}};
    bool good = true;
    int option;

    while ((option = getopt_long(argc, argv, "h", options, NULL)) != -1) {
        if (option != 'h')
            return cli_usage_error(&cli_check, "see above");
        fputs(cli_check.help, stdout);
        return EXIT_ALL_DONE;
    }
    if (optind == argc)
        return check_file(TT_CONFIG_PATH) ? EXIT_ALL_DONE : EXIT_SOME_FAILED;
    for (; optind < argc; optind++)
        good &= check_file(argv[optind]);
    return good ? EXIT_ALL_DONE : EXIT_SOME_FAILED;
}

const struct cli_command cli_check = {
    .name = "check",
    .summary = "check a configuration of tiletrackd",
    .help = "Usage: tiletrack check [FILE]...\n"
            "\n"
            "Read configurations of tiletrackd (default " TT_CONFIG_PATH ") as the daemon would,\n"
            "and name everything that is wrong with its line and column. Nothing is started.\n"
            "\n"
            "Exit status: 0 good, 1 something is wrong, 2 usage.\n",
    .run = run,
};

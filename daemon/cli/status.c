/* daemon/cli/status.c: tiletrack status: what the daemon does now, for people or as JSON. */
#include "daemon/cli/ask.h"

#include <getopt.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static long long number(const json_t *json, const char *key)
{
    return (long long)json_integer_value(json_object_get(json, key));
}

/* What came from the daemon may hold control characters of somebody's file name. */
static void print_text(const json_t *json, const char *key, const char *before)
{
    const char *value = json_string_value(json_object_get(json, key));
    char *printable = value ? cli_printable(value) : NULL;

    if (printable)
        printf("%s%s", before, printable);
    free(printable);
}

static void print_device(const json_t *device)
{
    long long frames = number(device, "frames"), expected = number(device, "frames_expected");

    printf("  %-12s %-14s", json_string_value(json_object_get(device, "worker")),
           json_string_value(json_object_get(device, "state")));
    print_text(device, "device", "");
    if (json_string_value(json_object_get(device, "file"))) {
        print_text(device, "file", "  ");
        if (expected > 0)
            printf("  %lld/%lld frames", frames, expected);
        else
            printf("  %lld frames", frames);
    }
    if (json_object_get(device, "retry_ms"))
        printf("  tried again in %lld s", (number(device, "retry_ms") + 999) / 1000);
    print_text(device, "cause", "  ");
    putchar('\n');
}

static void print_status(const json_t *status)
{
    const json_t *queue = json_object_get(status, "queue"), *jobs = json_object_get(status, "jobs"), *item;
    size_t i;

    printf("tiletrackd %s, process %lld, %s", json_string_value(json_object_get(status, "version")),
           number(status, "pid"), json_string_value(json_object_get(status, "state")));
    print_text(status, "paused", ": ");
    print_text(status, "spool", "\nspool    ");
    printf("\nqueue    %lld ready, %lld being written, %lld put off, %lld to be tried again\n",
           number(queue, "ready"), number(queue, "settling"), number(queue, "deferred"),
           number(queue, "retry"));
    printf("jobs     %lld running, %lld done, %lld truncated, %lld failed, %lld cancelled\ndevices\n",
           number(queue, "running"), number(jobs, "done"), number(jobs, "truncated"), number(jobs, "failed"),
           number(jobs, "cancelled"));
    json_array_foreach(json_object_get(status, "devices"), i, item) print_device(item);
    if (json_array_size(json_object_get(status, "waiting")) > 0)
        puts("waiting");
    json_array_foreach(json_object_get(status, "waiting"), i, item)
    {
        printf("  %-9s", json_string_value(json_object_get(item, "state")));
        print_text(item, "file", " ");
        print_text(item, "cause", "  ");
        putchar('\n');
    }
}

static int run(int argc, char **argv)
{
    static const struct option options[] = {{"config", required_argument, NULL, 'c'},
                                            {"socket", required_argument, NULL, 's'},
                                            {"json", no_argument, NULL, 'j'},
                                            {"help", no_argument, NULL, 'h'},
                                            {0}};
    const char *config_path = NULL, *socket = NULL;
    bool as_json = false;
    json_t *request, *status = NULL;
    struct tt_error err;
    int option;

    while ((option = getopt_long(argc, argv, "h", options, NULL)) != -1) {
        if (option == 'c')
            config_path = optarg;
        else if (option == 's')
            socket = optarg;
        else if (option == 'j')
            as_json = true;
        else if (option != 'h')
            return cli_usage_error(&cli_status, "see above");
        else {
            fputs(cli_status.help, stdout);
            return EXIT_ALL_DONE;
        }
    }
    if (optind < argc)
        return cli_usage_error(&cli_status, "'%s' is one word too many", argv[optind]);
    request = json_pack("{s:s}", "command", "status");
    if (cli_ask(&status, socket, config_path, request, &err)) {
        fprintf(stderr, "tiletrack status: %s\n", err.text);
        json_decref(request);
        return EXIT_SOME_FAILED;
    }
    if (as_json) {
        json_dumpf(status, stdout, JSON_INDENT(2));
        putchar('\n');
    } else {
        print_status(status);
    }
    json_decref(request);
    json_decref(status);
    return EXIT_ALL_DONE;
}

const struct cli_command cli_status = {
    .name = "status",
    .summary = "say what tiletrackd does now",
    .help = "Usage: tiletrack status [OPTION]...\n"
            "\n"
            "Ask a running tiletrackd for its queue, its devices and what they do.\n"
            "\n"
            "  --json          everything that the daemon says, for scripts\n"
            "  --config FILE   the daemon's configuration (default " TT_CONFIG_PATH ")\n"
            "  --socket PATH   its control socket\n"
            "\n"
            "Exit status: 0 it answered, 1 no daemon runs, 2 usage.\n",
    .run = run,
};

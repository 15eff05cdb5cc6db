/* daemon/cli/selftest.c: tiletrack selftest: does this device compute what it should? */
#include "daemon/cli/cli.h"

#include "core/selftest.h"

#include <getopt.h>
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { OPT_JSON = 256 };

static const struct option long_options[] = {
    CLI_DEVICE_OPTIONS,
    {"json", no_argument, NULL, OPT_JSON},
    {"help", no_argument, NULL, 'h'},
    {0},
};

static const char help[] =
    "Usage: tiletrack selftest [OPTION]...\n"
    "\n"
    "Track a tiny clip that is made on the spot and compare the result with the answer that is known for\n"
    "these weights. Takes a second or two. With weights of your own the device is tried with weights made\n"
    "from a formula instead, and the report says so.\n"
    "\n" CLI_DEVICE_HELP "  --json              for scripts\n"
    "\n"
    "Exit status: 0 the answer is right, 1 it is wrong or could not be had, 2 usage.\n";

struct selftest_options {
    struct cli_device_options device;
    bool json, help;
};

static int parse_options(struct selftest_options *options, int argc, char **argv)
{
    int option, index = 0;

    optind = 1;
    while ((option = getopt_long(argc, argv, "h", long_options, &index)) != -1) {
        switch (option) {
        case 'h':
            options->help = true;
            break;
        case OPT_JSON:
            options->json = true;
            break;
        default:
            if (option < CLI_OPT_DEVICE)
                return EXIT_USAGE;
            if (!cli_device_take(&options->device, option, optarg))
                return cli_usage_error(&cli_selftest, "--%s: '%s' is not a value it can have",
                                       long_options[index].name, optarg);
        }
    }
    if (optind < argc)
        return cli_usage_error(&cli_selftest, "takes no file: '%s'", argv[optind]);
    return -1;
}

static void print_json(enum tt_status status, const struct tt_selftest_report *report, const char *backend,
                       const char *text)
{
    json_t *root = json_pack("{s:s, s:s, s:b, s:f, s:f, s:f, s:f, s:s}", "status", tt_status_name(status),
                             "backend", backend, "weights_known", report->weights_known, "position_px",
                             report->position_px, "position_bound_px", report->position_bound, "logit",
                             report->logit, "logit_bound", report->logit_bound, "text", text);
    char *line = json_dumps(root, JSON_COMPACT | JSON_ENSURE_ASCII);

    if (line)
        puts(line);
    free(line);
    json_decref(root);
}

static int run(int argc, char **argv)
{
    struct selftest_options options = {.device = {.model = "tiletrack-small", .device = "auto"}};
    struct tt_selftest_report report = {0};
    struct tt_backend_options backend = {0};
    const struct tt_backend_ops *ops = NULL;
    struct tt_weights *weights = NULL;
    struct tt_error err = {.text = ""};
    enum tt_status status;
    int code = parse_options(&options, argc, argv);

    if (code >= 0)
        return code;
    if (options.help) {
        fputs(help, stdout);
        return EXIT_ALL_DONE;
    }
    status = cli_backend_choose(&ops, &backend, &options.device, &err);
    if (status == TT_OK)
        status = cli_weights_open(&weights, options.device.model, &err);
    if (status == TT_OK)
        status = tt_selftest_run(ops, &backend, weights, &report, &err);
    if (options.json)
        print_json(status, &report, ops ? ops->name : options.device.device, err.text);
    else if (status == TT_OK)
        printf("%s: right%s: positions within %.4f px (%.4f allowed), logits within %.4f (%.4f allowed)\n",
               ops->name,
               report.weights_known ? ""
                                    : ", with weights from a formula (these weights have no known answer)",
               report.position_px, report.position_bound, report.logit, report.logit_bound);
    if (status)
        fprintf(stderr, "tiletrack selftest: %s\n", err.text);
    tt_weights_close(weights);
    return cli_exit_code(status);
}

const struct cli_command cli_selftest = {
    .name = "selftest",
    .summary = "check that this device computes what it should",
    .help = help,
    .run = run,
};

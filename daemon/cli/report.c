/* daemon/cli/report.c: tiletrack report: everything about a machine that its owner would send us.
 *
 * The machine, its driver, the device, the plan, the times of the stages on a made-up clip, and the
 * self-test. What cannot be had is said in its place and makes the exit status 1; everything else is still
 * there.
 */
#include "daemon/cli/cli.h"
#include "daemon/cli/plan.h"

#include "core/formula.h"
#include "core/selftest.h"

#include <getopt.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/utsname.h>
#include <time.h>

enum { OPT_JSON = 256, OPT_QUERIES, GRID = 16, MOST_QUERIES = GRID * GRID, RUNS = 3 };

static const struct option long_options[] = {
    CLI_DEVICE_OPTIONS,
    {"queries", required_argument, NULL, OPT_QUERIES},
    {"json", no_argument, NULL, OPT_JSON},
    {"help", no_argument, NULL, 'h'},
    {0},
};

static const char help[] =
    "Usage: tiletrack report [OPTION]...\n"
    "\n"
    "Print what is needed to understand this machine's speed: system, driver, device, plan, the times of "
    "each\n"
    "stage on a clip that is made on the spot, and the self-test. Nothing is sent anywhere.\n"
    "\n" CLI_DEVICE_HELP "  --queries N         query points of the timed clip, 1 to 256 (default 256)\n"
    "  --json              for scripts\n"
    "\n"
    "Exit status: 0 everything could be had and the self-test is right, 1 otherwise, 2 usage.\n";

struct report_options {
    struct cli_device_options device;
    int queries;
    bool json, help;
};

static int parse_options(struct report_options *options, int argc, char **argv)
{
    int option, index = 0;
    int64_t n = 0;
    bool ok = true;

    optind = 1;
    while ((option = getopt_long(argc, argv, "h", long_options, &index)) != -1) {
        if (option == '?')
            return EXIT_USAGE;
        if (option == 'h')
            options->help = true;
        else if (option == OPT_JSON)
            options->json = true;
        else if (option == OPT_QUERIES)
            ok = cli_parse_int(optarg, 1, MOST_QUERIES, &n);
        else
            ok = cli_device_take(&options->device, option, optarg);
        if (!ok)
            return cli_usage_error(&cli_report, "--%s: '%s' is not a value it can have",
                                   long_options[index].name, optarg);
    }
    if (n)
        options->queries = (int)n;
    if (optind < argc)
        return cli_usage_error(&cli_report, "takes no file: '%s'", argv[optind]);
    return -1;
}

/* The first line of a file, without its end; "" where there is none. */
static void first_line(char *text, size_t bytes, const char *path)
{
    FILE *file = fopen(path, "r");

    text[0] = 0;
    if (file && !fgets(text, (int)bytes, file))
        text[0] = 0;
    if (file)
        fclose(file);
    text[strcspn(text, "\n")] = 0;
}

static json_t *describe_system(void)
{
    struct utsname name = {.sysname = ""};
    char driver[256];

    uname(&name);
    first_line(driver, sizeof driver, "/proc/driver/nvidia/version");
    return json_pack("{s:s, s:s, s:s, s:s, s:o}", "tiletrack", TT_VERSION, "system", name.sysname, "release",
                     name.release, "machine", name.machine, "nvidia_driver",
                     driver[0] ? json_string(driver) : json_null());
}

static double now_ms(void)
{
    struct timespec now;

    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec * 1e3 + (double)now.tv_nsec / 1e6;
}

/* Features, supports and tracks of a made-up clip, once to warm up and then RUNS times (the CPU: once); the
 * least of each, ms. */
static enum tt_status time_stages(const struct cli_device *device, int queries, json_t *times,
                                  struct tt_error *err)
{
    static float xy[2 * MOST_QUERIES];
    static int frame[MOST_QUERIES];
    static const char *const names[] = {"features_ms", "supports_ms", "track_ms"};
    const struct tt_backend_ops *ops = device->ops;
    uint8_t *rgb = malloc(TT_CLIP_BYTES);
    struct tt_estimate *result = malloc((size_t)queries * TT_CLIP_FRAMES * sizeof *result);
    void *supports = malloc((size_t)queries * ops->support_bytes);
    const struct tt_clip clip = {.rgb = rgb, .frames = TT_CLIP_FRAMES};
    const struct tt_track_request request = {
        .queries = queries, .supports = supports, .query_frame = frame, .query_xy = xy};
    double least[3] = {1e300, 1e300, 1e300};
    enum tt_status status = rgb && result && supports ? TT_OK : tt_fail(err, TT_RETRY_LATER, "no memory");

    for (int q = 0; q < queries; q++)
        xy[2 * q] = (float)(q % GRID * 16 + 8), xy[2 * q + 1] = (float)(q / GRID * 16 + 8);
    if (!status)
        tt_formula_clip(rgb, TT_CLIP_FRAMES);
    for (int run = ops == &tt_backend_cpu ? 1 : 0; run <= (ops == &tt_backend_cpu ? 1 : RUNS) && !status;
         run++) {
        double at[4] = {now_ms()};

        status = ops->features(device->backend, &clip, 0, err);
        at[1] = now_ms();
        if (!status)
            status = ops->sample(device->backend, queries, frame, xy, supports, err);
        at[2] = now_ms();
        if (!status)
            status = ops->track(device->backend, &request, result, err);
        at[3] = now_ms();
        for (int s = 0; s < 3 && run; s++)
            if (at[s + 1] - at[s] < least[s])
                least[s] = at[s + 1] - at[s];
    }
    for (int s = 0; s < 3 && !status; s++)
        json_object_set_new(times, names[s], json_real(least[s]));
    json_object_set_new(times, "queries", json_integer(queries));
    json_object_set_new(times, "frames", json_integer(TT_CLIP_FRAMES));
    free(supports);
    free(result);
    free(rgb);
    return status;
}

static json_t *test(const struct cli_device *device, enum tt_status *status, struct tt_error *err)
{
    struct tt_selftest_report r = {0};

    *status = tt_selftest_run(device->ops, &device->options, device->weights, &r, err);
    return json_pack("{s:s, s:b, s:f, s:f, s:f, s:f}", "status", tt_status_name(*status), "weights_known",
                     r.weights_known, "position_px", (double)r.position_px, "position_bound_px",
                     (double)r.position_bound, "logit", (double)r.logit, "logit_bound",
                     (double)r.logit_bound);
}

/* Fills in root; what went wrong is its "error". */
static enum tt_status make_report(json_t *root, const struct report_options *options)
{
    struct cli_device device = {0};
    struct tt_error err = {.text = ""};
    double begin = now_ms();
    json_t *times = json_object(), *described;
    enum tt_status status, tested = TT_OK;

    json_object_set_new(root, "machine", describe_system());
    status = cli_device_open(&device, &options->device, &err);
    if (!status) {
        json_object_set_new(times, "open_ms", json_real(now_ms() - begin));
        described = json_loads(device.ops->describe(device.backend), 0, NULL);
        json_object_set_new(root, "backend", json_string(device.ops->name));
        json_object_set_new(root, "device", described ? described : json_null());
        json_object_set_new(root, "model", json_string(tt_weights_name(device.weights)));
        json_object_set_new(
            root, "plan", cli_plan_json(device.ops->plan(device.backend), tt_weights_shape(device.weights)));
        status = time_stages(&device, options->queries, times, &err);
        json_object_set(root, "times", times);
    }
    if (!status) {
        json_object_set_new(root, "selftest", test(&device, &tested, &err));
        status = tested;
    }
    if (status)
        json_object_set_new(root, "error", json_string(err.text));
    cli_device_close(&device);
    json_decref(times);
    return status;
}

/* "name: value" lines, the names of objects in objects joined by dots; arrays are left out. */
static void print_lines(const json_t *object, const char *prefix)
{
    const char *name;
    json_t *value;

    json_object_foreach((json_t *)object, name, value)
    {
        char path[128];

        snprintf(path, sizeof path, "%s%s%s", prefix, *prefix ? "." : "", name);
        if (json_is_object(value)) {
            print_lines(value, path);
        } else if (!json_is_array(value)) {
            char *text = json_dumps(value, JSON_ENCODE_ANY | JSON_REAL_PRECISION(6));

            printf("%-36s %s\n", path, text ? text : "");
            free(text);
        }
    }
}

static int run(int argc, char **argv)
{
    struct report_options options = {.device = {.device = "auto", .model = "tiletrack-small"},
                                     .queries = MOST_QUERIES};
    int code = parse_options(&options, argc, argv);
    enum tt_status status;
    json_t *root;
    char *text;

    if (code >= 0)
        return code;
    if (options.help) {
        fputs(help, stdout);
        return EXIT_ALL_DONE;
    }
    root = json_object();
    status = make_report(root, &options);
    text = options.json ? json_dumps(root, JSON_INDENT(2) | JSON_ENSURE_ASCII) : NULL;
    if (text)
        puts(text);
    else
        print_lines(root, "");
    free(text);
    json_decref(root);
    return cli_exit_code(status);
}

const struct cli_command cli_report = {
    .name = "report",
    .summary = "print device, plan, times and self-test, to send to us",
    .help = help,
    .run = run,
};

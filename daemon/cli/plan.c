/* daemon/cli/plan.c: tiletrack plan: what a device would do with a clip, by arithmetic alone. */
#include "daemon/cli/cli.h"
#include "daemon/cli/plan.h"

#include "core/plan.h"
#include "core/query.h"

#include <getopt.h>
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum {
    OPT_DEVICE = 256,
    OPT_MODEL,
    OPT_PRECISION,
    OPT_QUERIES,
    OPT_FRAMES,
    OPT_TILE_QUERIES,
    OPT_TILE_FRAMES,
    OPT_BENCH,
    OPT_JSON
};

static const struct option long_options[] = {
    {"device", required_argument, NULL, OPT_DEVICE},
    {"model", required_argument, NULL, OPT_MODEL},
    {"precision", required_argument, NULL, OPT_PRECISION},
    {"queries", required_argument, NULL, OPT_QUERIES},
    {"frames", required_argument, NULL, OPT_FRAMES},
    {"tile-queries", required_argument, NULL, OPT_TILE_QUERIES},
    {"tile-frames", required_argument, NULL, OPT_TILE_FRAMES},
    {"bench", required_argument, NULL, OPT_BENCH},
    {"json", no_argument, NULL, OPT_JSON},
    {"help", no_argument, NULL, 'h'},
    {0},
};

static const char help[] =
    "Usage: tiletrack plan [OPTION]...\n"
    "\n"
    "Show how a clip would be cut into tiles on a device, and the bytes and operations of each stage.\n"
    "Nothing is run and no device is needed; the figures are counted, not measured.\n"
    "\n"
    "  --device D          cpu (default), t4, a100, h200, or a JSON file that describes a device\n"
    "  --model small|base  the network's size (default small)\n"
    "  --precision P       fp32 or fp16 (default: fp32 on the CPU, fp16 elsewhere)\n"
    "  --queries N         query points (default 256)\n"
    "  --frames N          frames of the clip, 1 to 47 (default 47)\n"
    "  --tile-queries N    ask for this tile instead of the planned one\n"
    "  --tile-frames N\n"
    "  --bench FILE        also project the time on a T4 from what `benchkern --json` measured of the T4's "
    "code\n"
    "                      on another card (a projection, not a measurement)\n"
    "  --json              for scripts, with every kernel of a GPU\n"
    "\n"
    "Exit status: 0 done, 1 such a tile does not fit (the largest that does is named), 2 usage.\n";

struct plan_options {
    const char *device, *precision, *bench;
    const struct tt_model_shape *shape;
    struct tt_tile tile;
    int queries, frames;
    bool json;
};

static bool parse_model(const char *name, const struct tt_model_shape **shape)
{
    *shape = strcmp(name, "small") == 0 ? &tt_model_small : strcmp(name, "base") == 0 ? &tt_model_base : NULL;
    return *shape != NULL;
}

static bool take_option(struct plan_options *options, int option, const char *arg)
{
    int64_t n = 0;
    bool ok = true;

    switch (option) {
    case OPT_DEVICE:
        options->device = arg;
        break;
    case OPT_MODEL:
        ok = parse_model(arg, &options->shape);
        break;
    case OPT_PRECISION:
        options->precision = arg;
        ok = strcmp(arg, "fp32") == 0 || strcmp(arg, "fp16") == 0;
        break;
    case OPT_QUERIES:
        ok = cli_parse_int(arg, 1, TT_QUERIES_MAX, &n);
        options->queries = (int)n;
        break;
    case OPT_FRAMES:
        ok = cli_parse_int(arg, 1, TT_CLIP_FRAMES, &n);
        options->frames = (int)n;
        break;
    case OPT_TILE_QUERIES:
        ok = cli_parse_int(arg, 1, TT_QUERIES_MAX, &n);
        options->tile.queries = (int)n;
        break;
    case OPT_TILE_FRAMES:
        ok = cli_parse_int(arg, 1, TT_CLIP_FRAMES, &n);
        options->tile.frames = (int)n;
        break;
    case OPT_BENCH:
        options->bench = arg;
        break;
    case OPT_JSON:
        options->json = true;
        break;
    }
    return ok;
}

static void add_kernel(void *context, const struct tt_plan_kernel *kernel)
{
    json_array_append_new(context,
                          json_pack("{s:s, s:s, s:f, s:f, s:f, s:f}", "name", kernel->name, "stage",
                                    tt_stage_names[kernel->stage], "launches", kernel->launches, "flop",
                                    kernel->flop, "bytes", kernel->bytes, "kept_bytes", kernel->kept));
}

json_t *cli_plan_json(const struct tt_plan *plan, const struct tt_model_shape *shape)
{
    json_t *stages = json_object(), *kernels;
    json_t *root =
        json_pack("{s:s, s:s, s:s, s:i, s:i, s:{s:i, s:i}, s:i, s:I, s:o}", "device", plan->device.name,
                  "precision", plan->precision == TT_FP16 ? "fp16" : "fp32", "model", shape->name, "queries",
                  plan->queries, "frames", plan->frames, "tile", "queries", plan->tile.queries, "frames",
                  plan->tile.frames, "volume_queries", plan->volume_queries, "memory_bytes",
                  (json_int_t)plan->memory_bytes, "stages", stages);

    for (int s = 0; s < TT_STAGES; s++)
        json_object_set_new(
            stages, tt_stage_names[s],
            json_pack("{s:f, s:f}", "flop", plan->stage_flop[s], "bytes", plan->stage_bytes[s]));
    if (plan->device.kind == TT_DEVICE_CUDA) {
        kernels = json_array();
        tt_plan_each_kernel(plan, shape, add_kernel, kernels);
        json_object_set_new(root, "kernels", kernels);
    }
    return root;
}

static void print_text(const struct tt_plan *plan, const char *model)
{
    double flop = 0, bytes = 0;

    printf("%s, %s: LocoTrack %s, %d query points, %d frames\n", plan->device.name,
           plan->precision == TT_FP16 ? "fp16" : "fp32", model, plan->queries, plan->frames);
    printf("tile: %d query points x %d frames", plan->tile.queries, plan->tile.frames);
    if (plan->device.kind == TT_DEVICE_CUDA && plan->volume_queries < plan->tile.queries)
        printf(", volumes of %d query points", plan->volume_queries);
    printf("; memory %.0f MB\n\n", (double)plan->memory_bytes / 1e6);
    printf("%-12s %12s %12s\n", "stage", "GFLOP", "MB moved");
    for (int s = 0; s < TT_STAGES; s++) {
        printf("%-12s %12.1f %12.1f\n", tt_stage_names[s], plan->stage_flop[s] / 1e9,
               plan->stage_bytes[s] / 1e6);
        flop += plan->stage_flop[s];
        bytes += plan->stage_bytes[s];
    }
    printf("%-12s %12.1f %12.1f\n", "all", flop / 1e9, bytes / 1e6);
}

static void print_json(const struct tt_plan *plan, const struct tt_model_shape *shape,
                       const struct cli_projection *projection)
{
    json_t *root = cli_plan_json(plan, shape);
    char *text;

    if (projection)
        json_object_set_new(root, "t4_projection_s", json_real(projection->seconds));
    text = json_dumps(root, JSON_INDENT(2));
    if (text)
        puts(text);
    free(text);
    json_decref(root);
}

static void print_projection(const struct cli_projection *projection)
{
    printf("\nprojected on a T4, not measured: %.1f ms\n", projection->seconds * 1e3);
    for (int s = 0; s < TT_STAGES; s++)
        printf("%-12s %12.1f ms\n", tt_stage_names[s], projection->stage_seconds[s] * 1e3);
}

static int run(int argc, char **argv)
{
    struct plan_options options = {
        .device = "cpu", .shape = &tt_model_small, .queries = 256, .frames = TT_CLIP_FRAMES};
    struct tt_device device;
    struct tt_error err;
    struct tt_plan plan;
    struct cli_projection projection;
    enum tt_precision precision;
    int option, index;

    optind = 1;
    while ((option = getopt_long(argc, argv, "h", long_options, &index)) != -1) {
        if (option == 'h') {
            fputs(help, stdout);
            return EXIT_ALL_DONE;
        }
        if (option == '?')
            return cli_usage_error(&cli_plan, "see above");
        if (!take_option(&options, option, optarg))
            return cli_usage_error(&cli_plan, "--%s: '%s' is not a value it can have",
                                   long_options[index].name, optarg);
    }
    if (optind < argc)
        return cli_usage_error(&cli_plan, "takes no file: '%s'", argv[optind]);
    if (tt_device_describe(&device, options.device, &err)) {
        fprintf(stderr, "tiletrack plan: %s\n", err.text);
        return EXIT_SOME_FAILED;
    }
    precision = device.kind == TT_DEVICE_CPU ? TT_FP32 : TT_FP16;
    if (options.precision)
        precision = strcmp(options.precision, "fp16") == 0 ? TT_FP16 : TT_FP32;
    if (tt_plan_make(&plan, options.shape, &device, precision, options.tile, options.queries, options.frames,
                     &err)) {
        fprintf(stderr, "tiletrack plan: %s\n", err.text);
        return EXIT_SOME_FAILED;
    }
    if (options.bench && cli_project_t4(&projection, &plan, options.shape, options.bench, &err)) {
        fprintf(stderr, "tiletrack plan: %s\n", err.text);
        return EXIT_SOME_FAILED;
    }
    if (options.json) {
        print_json(&plan, options.shape, options.bench ? &projection : NULL);
        return EXIT_ALL_DONE;
    }
    print_text(&plan, options.shape->name);
    if (options.bench)
        print_projection(&projection);
    return EXIT_ALL_DONE;
}

const struct cli_command cli_plan = {
    .name = "plan",
    .summary = "show tiles, bytes and operations for a device",
    .help = help,
    .run = run,
};

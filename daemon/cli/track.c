/* daemon/cli/track.c: tiletrack track: one job after another, each with its own outcome.
 *
 * Everything that can be wrong with the command line is found before the first video is opened. A video that
 * fails does not keep the next from being tracked. Outputs appear whole or not at all.
 */
#include "daemon/cli/cli.h"
#include "daemon/cli/outputs.h"

#include "core/job.h"

#include <getopt.h>
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct track_options {
    struct tt_job job;
    struct cli_device_options device;
    const char *output;
    enum tt_output formats[TT_JOB_MAX_OUTPUTS];
    int format_count;
    bool json, quiet, help;
};

enum {
    OPT_QUERIES = 256,
    OPT_GRID,
    OPT_FRAME,
    OPT_MASK,
    OPT_MAX_FRAMES,
    OPT_OVERLAP,
    OPT_FORMAT,
    OPT_JSON,
    OPT_MAX_PIXELS,
    OPT_MAX_MEMORY,
    OPT_STALL,
    OPT_RESIZE,
    OPT_REFINE,
};

static const struct option long_options[] = {
    {"output", required_argument, NULL, 'o'},
    {"queries", required_argument, NULL, OPT_QUERIES},
    {"grid", required_argument, NULL, OPT_GRID},
    {"frame", required_argument, NULL, OPT_FRAME},
    {"mask", required_argument, NULL, OPT_MASK},
    CLI_DEVICE_OPTIONS,
    {"max-frames", required_argument, NULL, OPT_MAX_FRAMES},
    {"overlap", required_argument, NULL, OPT_OVERLAP},
    {"format", required_argument, NULL, OPT_FORMAT},
    {"json", no_argument, NULL, OPT_JSON},
    {"quiet", no_argument, NULL, 'q'},
    {"max-pixels", required_argument, NULL, OPT_MAX_PIXELS},
    {"max-decoder-memory", required_argument, NULL, OPT_MAX_MEMORY},
    {"stall-seconds", required_argument, NULL, OPT_STALL},
    {"resize", required_argument, NULL, OPT_RESIZE},
    {"refine", required_argument, NULL, OPT_REFINE},
    {"help", no_argument, NULL, 'h'},
    {0},
};

static const char help[] =
    "Usage: tiletrack track [OPTION]... VIDEO...\n"
    "\n"
    "Track points through videos. Writes VIDEO.tracks.npz beside each video: for every query point\n"
    "its position, confidence and occlusion in every frame (man tiletrack-tracks; opens with numpy.load).\n"
    "\n"
    "Which points:\n"
    "  --queries FILE      points to track: csv (frame,x,y[,label]) or json, pixels of the video as "
    "displayed.\n"
    "                      Default: VIDEO.queries.csv or .queries.json beside the video, if there is one\n"
    "  --mask PNG          points inside this image's non-zero pixels. Default: VIDEO.mask.png beside the "
    "video\n"
    "  --grid N            otherwise: N x N points spread over the frame (default 16)\n"
    "  --frame F           the frame that grid or mask points lie in, from 0 (default 0)\n"
    "\n"
    "What comes out:\n"
    "  -o, --output PATH   a file for one video, a directory for many (default: beside each video)\n"
    "  --format FORMAT     npz (default), csv, jsonl, overlay, or a format of `tiletrack export`; may be "
    "given\n"
    "                      several times\n"
    "  --json              a JSON line on standard output for each video\n"
    "  -q, --quiet         no progress bar and no summary; errors are still told\n"
    "\n"
    "How it runs:\n" CLI_DEVICE_HELP "  --max-frames N      stop after N frames of each video\n"
    "  --overlap N         frames that successive 47-frame windows share (default 8)\n"
    "  --max-pixels N      refuse larger frames (default 67108864)\n"
    "  --max-decoder-memory BYTES  memory of the decoder process\n"
    "  --stall-seconds S   give up when no frame comes for so long\n"
    "  --resize R          how frames become 256x256: area (default) or bilinear\n"
    "  --refine R          native: move the tracks to where the points' patches fit best in the frames as\n"
    "                      they are, not reduced to 256x256, in a last pass; off (default)\n"
    "  --                  what follows are file names, even with a leading dash\n"
    "\n"
    "Examples:\n"
    "  tiletrack track bear.mp4\n"
    "  tiletrack track --grid 32 --frame 10 -o out/ *.mp4\n"
    "  tiletrack track --queries points.csv --format npz --format csv -o out/ bear.mp4\n"
    "\n"
    "Exit status: 0 all videos done, 1 some failed, 2 the command line is wrong, 3 all are tracked, but a\n"
    "format cannot hold the tracks of one or its overlay cannot be drawn: a warning says which and why.\n";

static bool add_format(struct track_options *options, const char *name)
{
    enum tt_output format = tt_output_find(name);

    if (format == TT_OUTPUTS)
        return false;
    for (int i = 0; i < options->format_count; i++)
        if (options->formats[i] == format)
            return true;
    options->formats[options->format_count++] = format;
    return true;
}

static bool ends_in(const char *path, const char *ending)
{
    size_t length = strlen(path), bytes = strlen(ending);

    return length > bytes && strcmp(path + length - bytes, ending) == 0;
}

/* The format that a single output's name asks for: out.nk is Nuke's, and out.csv is CSV. */
static enum tt_output format_of_path(const char *path)
{
    const char *dot = strrchr(path, '.');
    enum tt_output format = dot ? tt_output_find(dot + 1) : TT_OUTPUTS;

    for (int i = 0; i < TT_OUTPUTS; i++)
        if (ends_in(path, tt_output_suffixes[i]))
            return (enum tt_output)i;
    return format < TT_OUTPUTS ? format : TT_OUTPUT_NPZ;
}

static bool parse_resize(const char *name, enum tt_resize *resize)
{
    *resize = strcmp(name, "bilinear") == 0 ? TT_RESIZE_BILINEAR : TT_RESIZE_AREA;
    return *resize == TT_RESIZE_BILINEAR || strcmp(name, "area") == 0;
}

static bool parse_refine(const char *name, bool *refine)
{
    *refine = strcmp(name, "native") == 0;
    return *refine || strcmp(name, "off") == 0;
}

/* One option; an exit code, or -1 to go on. */
static int take_option(struct track_options *o, int option, const char *arg, const char *name)
{
    int64_t n = 0;
    bool ok = true;

    switch (option) {
    case 'o':
        o->output = arg;
        break;
    case 'q':
        o->quiet = true;
        break;
    case 'h':
        o->help = true;
        break;
    case OPT_QUERIES:
        o->job.queries = arg;
        break;
    case OPT_MASK:
        o->job.mask = arg;
        break;
    case OPT_GRID:
        ok = cli_parse_int(arg, 1, 512, &n);
        o->job.grid = (int)n;
        o->job.ignore_sidecars = true;
        break;
    case OPT_FRAME:
        ok = cli_parse_int(arg, 0, INT64_MAX, &o->job.frame);
        break;
    case OPT_MAX_FRAMES:
        ok = cli_parse_int(arg, 1, INT64_MAX, &o->job.max_frames);
        break;
    case OPT_OVERLAP:
        ok = cli_parse_int(arg, 0, TT_CLIP_FRAMES - 1, &n);
        o->job.overlap_frames = (int)n;
        break;
    case OPT_FORMAT:
        ok = add_format(o, arg);
        break;
    case OPT_JSON:
        o->json = true;
        break;
    case OPT_MAX_PIXELS:
        ok = cli_parse_int(arg, 1, INT64_MAX, &o->job.decoder.max_pixels);
        break;
    case OPT_MAX_MEMORY:
        ok = cli_parse_int(arg, 1, INT64_MAX, &o->job.decoder.memory_bytes);
        break;
    case OPT_STALL:
        ok = cli_parse_int(arg, 1, 86400, &n);
        o->job.decoder.stall_seconds = (int)n;
        break;
    case OPT_RESIZE:
        ok = parse_resize(arg, &o->job.decoder.resize);
        break;
    case OPT_REFINE:
        ok = parse_refine(arg, &o->job.refine);
        break;
    default:
        if (option < CLI_OPT_DEVICE) {
            fputs("Try: tiletrack track --help\n", stderr);
            return EXIT_USAGE;
        }
        ok = cli_device_take(&o->device, option, arg);
    }
    if (!ok)
        return cli_usage_error(&cli_track, "--%s: '%s' is not a value it can have", name, arg);
    return -1;
}

/* Fills *options from the command line; videos begin at argv[optind]. An exit code, or -1 to go on. */
static int parse_options(struct track_options *options, int argc, char **argv)
{
    int option, index = 0, code;

    optind = 1;
    while ((option = getopt_long(argc, argv, "o:qh", long_options, &index)) != -1) {
        code = take_option(options, option, optarg, option >= OPT_QUERIES ? long_options[index].name : "");
        if (code >= 0)
            return code;
    }
    if (options->help) {
        fputs(help, stdout);
        return EXIT_ALL_DONE;
    }
    if (optind == argc)
        return cli_usage_error(&cli_track, "no video was given");
    if (options->job.queries && (options->job.ignore_sidecars || options->job.mask))
        return cli_usage_error(&cli_track,
                               "--queries gives the points; --grid and --mask cannot be given as well");
    if ((options->job.queries || options->job.mask) && argc - optind > 1)
        return cli_usage_error(&cli_track,
                               "--queries and --mask belong to one video; put NAME.queries.csv or "
                               "NAME.mask.png beside each of several videos");
    if (options->format_count == 0)
        options->formats[options->format_count++] =
            argc - optind == 1 && options->output ? format_of_path(options->output) : TT_OUTPUT_NPZ;
    return -1;
}

static bool is_written(const struct tt_job *job, int output, const struct tt_job_report *report)
{
    return !(report->missing & 1u << job->output[output].format);
}

static void print_json(const char *video, const struct tt_job *job, enum tt_status status,
                       const struct tt_job_report *report, const struct tt_error *err)
{
    json_t *line = json_object(), *outputs = json_array(), *missing = json_array();
    char *text;

    json_object_set_new(line, "video", json_string(video));
    json_object_set_new(line, "status", json_string(tt_status_name(status)));
    if (status == TT_OK) {
        for (int i = 0; i < job->outputs; i++) {
            char *path = is_written(job, i, report) ? cli_printable(job->output[i].path) : NULL;

            if (path)
                json_array_append_new(outputs, json_string(path));
            if (!is_written(job, i, report))
                json_array_append_new(missing, json_string(tt_output_names[job->output[i].format]));
            free(path);
        }
        json_object_set(line, "outputs", outputs);
        if (report->missing)
            json_object_set(line, "missing", missing);
        json_object_set_new(line, "frames", json_integer(report->frames));
        json_object_set_new(line, "queries", json_integer(report->queries));
        json_object_set_new(line, "truncated", json_boolean(report->truncated));
        json_object_set_new(line, "decode_ms", json_integer(report->decode_ms));
        json_object_set_new(line, "track_ms", json_integer(report->track_ms));
        if (job->refine) {
            json_object_set_new(line, "refined", json_boolean(report->refined));
            json_object_set_new(line, "positions_refined", json_integer(report->points_refined));
            json_object_set_new(line, "refine_ms", json_integer(report->refine_ms));
        }
        json_object_set_new(line, "total_ms", json_integer(report->total_ms));
        json_object_set_new(line, "warnings", json_string(report->warnings));
    } else {
        json_object_set_new(line, "error", json_string(err->text));
    }
    text = json_dumps(line, JSON_COMPACT | JSON_ENSURE_ASCII);
    if (text)
        puts(text);
    free(text);
    json_decref(outputs);
    json_decref(missing);
    json_decref(line);
}

static void print_warnings(const char *video, const struct tt_job_report *report)
{
    const char *warning = report->warnings;

    while (*warning) {
        int length = (int)strcspn(warning, "\n");

        fprintf(stderr, "tiletrack: %s: warning: %.*s\n", video, length, warning);
        warning += length + (warning[length] != 0);
    }
}

static void print_summary(const char *video, const struct tt_job *job, const struct tt_job_report *report)
{
    printf("%s: %d query points through %lld frames%s in %.1f s", video, report->queries,
           (long long)report->frames, report->truncated ? " (the file ends early)" : "",
           (double)report->total_ms / 1000.0);
    for (int i = 0, told = 0; i < job->outputs; i++) {
        char *path = is_written(job, i, report) ? cli_printable(job->output[i].path) : NULL;

        if (path)
            printf("%s%s", told++ == 0 ? " -> " : ", ", path);
        free(path);
    }
    putchar('\n');
}

static void show_progress(void *user, const struct tt_job_progress *progress)
{
    if ((progress->stage == TT_JOB_REFINING && progress->frames == 0) ||
        (progress->stage == TT_JOB_DRAWING && progress->frames == 1))
        cli_progress_again(user);
    if (progress->stage >= TT_JOB_TRACKING)
        cli_progress_update(user, progress->frames, progress->expected);
}

/* *incomplete: out, set where an output is missing. */
static enum tt_status track_one(const struct track_options *options, struct cli_device *device,
                                const char *video, char *const *paths, bool *incomplete)
{
    char *name = cli_printable(video);
    struct cli_progress progress;
    struct tt_job job = options->job;
    struct tt_job_report report = {0};
    struct tt_error err = {0};
    enum tt_status status;

    if (!name)
        return TT_RETRY_LATER;
    job.video = video;
    job.outputs = options->format_count;
    for (int i = 0; i < job.outputs; i++)
        job.output[i] = (struct tt_job_output){options->formats[i], paths[i]};
    job.progress = show_progress;
    job.user = &progress;
    cli_progress_begin(&progress, !options->quiet, name);
    do
        status = tt_job_run(&job, device->ops, device->backend, device->weights, &report, &err);
    while (status == TT_SHRINK_TILE && (status = cli_device_shrink(device, &err)) == TT_OK);
    cli_progress_end(&progress);
    print_warnings(name, &report);
    if (options->json)
        print_json(name, &job, status, &report, &err);
    else if (status == TT_OK && !options->quiet)
        print_summary(name, &job, &report);
    if (status != TT_OK && status != TT_INTERRUPTED)
        fprintf(stderr, "tiletrack: %s: %s\n", name, err.text);
    fflush(stdout);
    free(name);
    *incomplete |= status == TT_OK && report.missing;
    return status;
}

static int track_all(struct track_options *options, char *const *videos, int count)
{
    struct cli_outputs outputs = {0};
    struct cli_device device = {0};
    struct tt_error err = {0};
    bool incomplete = false;
    int code = EXIT_ALL_DONE;

    if (cli_outputs_decide(&outputs, options->output, videos, count, options->formats, options->format_count,
                           &err)) {
        code = cli_usage_error(&cli_track, "%s", err.text);
        goto out;
    }
    options->job.decoder.interrupt_fd = cli_stop_fd();
    if (cli_device_open(&device, &options->device, &err)) {
        fprintf(stderr, "tiletrack: %s\n", err.text);
        code = EXIT_SOME_FAILED;
        goto out;
    }
    for (int i = 0; i < count; i++) {
        enum tt_status status =
            track_one(options, &device, videos[i], outputs.path + i * outputs.formats, &incomplete);

        if (status != TT_OK)
            code = EXIT_SOME_FAILED;
        if (status == TT_INTERRUPTED || status == TT_RESTART_WORKER || !device.backend)
            break;
    }
    if (code == EXIT_ALL_DONE && incomplete)
        code = EXIT_INCOMPLETE;
out:
    cli_device_close(&device);
    cli_outputs_free(&outputs);
    cli_stop_reraise();
    return code;
}

static int run(int argc, char **argv)
{
    struct track_options options = {
        .job = {.grid = 16, .overlap_frames = 8, .occlusion_threshold = 0.5f, .stop = cli_stop_flag()},
        .device = {.device = "auto", .model = "tiletrack-small", .stop = cli_stop_flag()},
    };
    struct tt_error err;
    int code;

    options.job.decoder = TT_DECODER_DEFAULTS;
    code = parse_options(&options, argc, argv);
    if (code >= 0)
        return code;
    if (cli_stop_install(&err)) {
        fprintf(stderr, "tiletrack: %s\n", err.text);
        return EXIT_SOME_FAILED;
    }
    return track_all(&options, argv + optind, argc - optind);
}

const struct cli_command cli_track = {
    .name = "track",
    .summary = "track points through videos and write track files",
    .help = help,
    .run = run,
};

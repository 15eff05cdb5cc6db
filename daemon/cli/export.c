/* daemon/cli/export.c: tiletrack export: a track file in another program's format.
 *
 * Everything that can be wrong with the command line is found before the track file is opened. The output
 * appears whole or not at all, and never in the place of the track file itself.
 */
#include "daemon/cli/cli.h"

#include "core/export.h"

#include <getopt.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { LABELS_MOST = 64 };

struct export_options {
    struct tt_export_options export;
    const char *labels[LABELS_MOST];
    const struct tt_export_format *format;
    const char *output;
    bool quiet, help, list;
};

enum { OPT_ONLY_VISIBLE = 256, OPT_MIN_CONFIDENCE, OPT_LABELS, OPT_FPS, OPT_FRAME_OFFSET, OPT_LIST };

static const struct option long_options[] = {
    {"to", required_argument, NULL, 't'},
    {"output", required_argument, NULL, 'o'},
    {"only-visible", no_argument, NULL, OPT_ONLY_VISIBLE},
    {"min-confidence", required_argument, NULL, OPT_MIN_CONFIDENCE},
    {"labels", required_argument, NULL, OPT_LABELS},
    {"fps", required_argument, NULL, OPT_FPS},
    {"frame-offset", required_argument, NULL, OPT_FRAME_OFFSET},
    {"list", no_argument, NULL, OPT_LIST},
    {"quiet", no_argument, NULL, 'q'},
    {"help", no_argument, NULL, 'h'},
    {0},
};

static const char help[] =
    "Usage: tiletrack export TRACKS.npz --to FORMAT [OPTION]...\n"
    "\n"
    "Write tracks in another program's format, by its own conventions: which corner is the origin,\n"
    "where a pixel's centre lies, what the first frame is called. A sample always keeps its frame:\n"
    "where a point is hidden there is a gap, or a flag that says so.\n"
    "\n"
    "Formats:\n"
    "  csv            a row for each point and frame\n"
    "  csv-wide       a row for each frame, columns for each point\n"
    "  json           one JSON object\n"
    "  napari         CSV for napari's tracks layer\n"
    "  tapvid         query_points, target_points, occluded for TAP-Vid's evaluators (256x256)\n"
    "  cotracker      pred_tracks [1,T,N,2] and pred_visibility, as CoTracker returns them\n"
    "  nuke           a Tracker4 node; in Nuke: File > Insert Comp Nodes, or paste the text\n"
    "  3de            3DEqualizer4 2D tracks\n"
    "  after-effects  keyframes of Point Controls: copy the text, paste it onto a layer\n"
    "  blender        a script: blender --python OUT.py -- VIDEO\n"
    "  colmap         a database; then: colmap sequential_matcher, colmap mapper\n"
    "\n"
    "Which samples:\n"
    "  --only-visible      leave out hidden samples (nuke, 3de, after-effects, blender and colmap always "
    "do)\n"
    "  --min-confidence C  count a sample as hidden where its confidence is below C, 0 to 1\n"
    "  --labels PATTERN    only tracks whose label matches the shell pattern; may be given several times\n"
    "\n"
    "Numbers:\n"
    "  --fps R             frame rate, 25 or 30000/1001 (default: from the video's times); for csv,\n"
    "                      csv-wide, json and after-effects\n"
    "  --frame-offset N    add N to the format's frame numbers: 1000 makes Nuke's first frame 1001\n"
    "\n"
    "  -o, --output FILE   default: beside TRACKS.npz, with the format's own ending\n"
    "      --list          formats, their endings and options, one a line\n"
    "  -q, --quiet         no summary\n"
    "\n"
    "Examples:\n"
    "  tiletrack export bear.tracks.npz --to nuke --frame-offset 1000\n"
    "  tiletrack export bear.tracks.npz --to csv --only-visible --labels 'left *' -o left.csv\n"
    "\n"
    "Exit status: 0 written, 1 failed, 2 the command line is wrong. docs/FORMATS.md has every convention.\n";

/* A positive number, or a fraction of two. */
static bool parse_rate(const char *text, double *rate)
{
    char *end;
    double over = strtod(text, &end), under = 1;

    if (end == text)
        return false;
    if (*end == '/') {
        const char *second = end + 1;

        under = strtod(second, &end);
        if (end == second)
            return false;
    }
    *rate = over / under;
    return *end == '\0' && isfinite(*rate) && *rate > 0;
}

/* One option; an exit code, or -1 to go on. */
static int take_option(struct export_options *o, int option, const char *arg, const char *name)
{
    double value = 0;
    bool ok = true;

    switch (option) {
    case 't':
        o->format = tt_export_find(arg);
        if (!o->format)
            return cli_usage_error(&cli_export, "--to: no format is called '%s'", arg);
        break;
    case 'o':
        o->output = arg;
        break;
    case 'q':
        o->quiet = true;
        break;
    case 'h':
        o->help = true;
        break;
    case OPT_LIST:
        o->list = true;
        break;
    case OPT_ONLY_VISIBLE:
        o->export.only_visible = true;
        break;
    case OPT_MIN_CONFIDENCE:
        ok = cli_parse_real(arg, 0, 1, &value);
        o->export.min_confidence = (float)value;
        break;
    case OPT_LABELS:
        if (o->export.label_count == LABELS_MOST)
            return cli_usage_error(&cli_export, "--labels: at most %d times", LABELS_MOST);
        o->labels[o->export.label_count++] = arg;
        break;
    case OPT_FPS:
        ok = parse_rate(arg, &o->export.fps);
        break;
    case OPT_FRAME_OFFSET:
        ok = cli_parse_int(arg, INT32_MIN, INT32_MAX, &o->export.frame_offset);
        break;
    default:
        fputs("Try: tiletrack export --help\n", stderr);
        return EXIT_USAGE;
    }
    if (!ok)
        return cli_usage_error(&cli_export, "--%s: '%s' is not a value it can have", name, arg);
    return -1;
}

static int list_formats(void)
{
    static const struct {
        unsigned option;
        const char *name;
    } names[] = {{TT_EXPORT_ONLY_VISIBLE, " --only-visible"},
                 {TT_EXPORT_MIN_CONFIDENCE, " --min-confidence"},
                 {TT_EXPORT_LABELS, " --labels"},
                 {TT_EXPORT_FPS, " --fps"},
                 {TT_EXPORT_FRAME_OFFSET, " --frame-offset"}};

    for (int i = 0; tt_export_formats[i]; i++) {
        const struct tt_export_format *format = tt_export_formats[i];

        printf("%-13s NAME%-15s", format->name, format->suffix);
        for (size_t o = 0; o < sizeof names / sizeof names[0]; o++)
            if (format->options & names[o].option)
                fputs(names[o].name, stdout);
        putchar('\n');
    }
    return EXIT_ALL_DONE;
}

/* Fills *options; the track file is argv[optind]. An exit code, or -1 to go on. */
static int parse_options(struct export_options *options, int argc, char **argv)
{
    struct tt_error err;
    int option, index = 0, code;

    optind = 1;
    while ((option = getopt_long(argc, argv, "t:o:qh", long_options, &index)) != -1) {
        code =
            take_option(options, option, optarg, option >= OPT_ONLY_VISIBLE ? long_options[index].name : "");
        if (code >= 0)
            return code;
    }
    if (options->help) {
        fputs(help, stdout);
        return EXIT_ALL_DONE;
    }
    if (options->list)
        return list_formats();
    if (argc - optind != 1)
        return cli_usage_error(&cli_export,
                               optind == argc ? "no track file was given" : "one track file at a time");
    if (!options->format)
        return cli_usage_error(&cli_export, "--to FORMAT says what to write");
    if (options->output && !*options->output)
        return cli_usage_error(&cli_export, "-o: the path is empty");
    if (tt_export_check(options->format, &options->export, &err))
        return cli_usage_error(&cli_export, "%s", err.text);
    return -1;
}

/* "a/bear.tracks.npz" becomes "a/bear.nk". Owned by the caller (free); NULL: no memory. */
static char *default_output(const char *tracks, const char *suffix)
{
    static const char own[] = ".tracks.npz";
    size_t length = strlen(tracks);
    char *stem, *path;

    if (strlen(tt_path_name(tracks)) <= strlen(own) || strcmp(tracks + length - strlen(own), own) != 0)
        return tt_path_sibling(tracks, NULL, suffix);
    stem = strdup(tracks);
    if (!stem)
        return NULL;
    strcpy(stem + length - strlen(own), ".x"); /* an ending to take off, since the stem may have dots */
    path = tt_path_sibling(stem, NULL, suffix);
    free(stem);
    return path;
}

static void print_summary(const struct export_options *options, const struct tt_export_report *report,
                          const char *input, const char *output)
{
    char *from = cli_printable(input), *to = cli_printable(output);

    printf("%s: %d tracks as %s -> %s\n", from ? from : "", report->tracks, options->format->name,
           to ? to : "");
    if (report->unseen > 0)
        printf("%s: %d more are visible in no frame, and left out\n", from ? from : "", report->unseen);
    free(from);
    free(to);
}

static enum tt_status export_file(const struct export_options *options, const char *input, const char *output,
                                  struct tt_export_report *report, struct tt_error *err)
{
    struct tt_trackfile *file;
    struct tt_export_source source;
    enum tt_status status = tt_trackfile_open(&file, input, err);

    if (status)
        return status;
    source = tt_export_from_trackfile(file);
    status = tt_export_write(output, options->format, TT_REPLACE, &source, &options->export, report, err);
    tt_trackfile_close(file);
    return status;
}

static int run(int argc, char **argv)
{
    struct export_options options = {.export = {.stop = cli_stop_flag()}};
    struct tt_export_report report;
    struct tt_error err;
    enum tt_status status;
    char *output;
    int code;

    options.export.labels = options.labels;
    code = parse_options(&options, argc, argv);
    if (code >= 0)
        return code;
    output = options.output ? strdup(options.output) : default_output(argv[optind], options.format->suffix);
    if (!output) {
        fputs("tiletrack export: no memory\n", stderr);
        return EXIT_SOME_FAILED;
    }
    if (cli_is_same_file(argv[optind], output)) {
        code = cli_usage_error(&cli_export, "the output would overwrite the track file; use -o");
        goto done;
    }
    status = cli_stop_install(&err);
    if (!status)
        status = export_file(&options, argv[optind], output, &report, &err);
    if (!status && !options.quiet)
        print_summary(&options, &report, argv[optind], output);
    if (status && status != TT_INTERRUPTED)
        fprintf(stderr, "tiletrack export: %s\n", err.text);
    code = cli_exit_code(status);
    cli_stop_reraise();
done:
    free(output);
    return code;
}

const struct cli_command cli_export = {
    .name = "export",
    .summary = "write a track file in another program's format",
    .help = help,
    .run = run,
};

/* daemon/cli/overlay.c: tiletrack overlay: a video with its tracks drawn into it, and a contact sheet.
 *
 * Everything that can be wrong with the command line is found before a file is opened. What is written
 * appears whole or not at all, under temporary names until all of it is there, and never in the place of the
 * video or of its tracks.
 */
#include "daemon/cli/cli.h"

#include "core/overlay.h"

#include <errno.h>
#include <getopt.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { LABELS_MOST = 64 };

struct overlay_options {
    struct tt_overlay_options overlay;
    const char *labels[LABELS_MOST];
    const char *video, *tracks; /* NULL: beside the video */
    const char *output, *sheet; /* NULL: not given */
    bool any_video, quiet, help;
};

enum {
    OPT_STYLE = 256,
    OPT_TAIL,
    OPT_SHEET,
    OPT_MIN_CONFIDENCE,
    OPT_LABELS,
    OPT_ENCODER,
    OPT_ANY_VIDEO,
};

static const struct option long_options[] = {
    {"output", required_argument, NULL, 'o'},
    {"style", required_argument, NULL, OPT_STYLE},
    {"tail", required_argument, NULL, OPT_TAIL},
    {"sheet", required_argument, NULL, OPT_SHEET},
    {"min-confidence", required_argument, NULL, OPT_MIN_CONFIDENCE},
    {"labels", required_argument, NULL, OPT_LABELS},
    {"encoder", required_argument, NULL, OPT_ENCODER},
    {"any-video", no_argument, NULL, OPT_ANY_VIDEO},
    {"quiet", no_argument, NULL, 'q'},
    {"help", no_argument, NULL, 'h'},
    {0},
};

static const char help[] =
    "Usage: tiletrack overlay [OPTION]... VIDEO [TRACKS.npz]\n"
    "\n"
    "Draw tracks into their video, to look at them: an MP4 of the video's size and times, turned as the\n"
    "video says, without sound. Each point keeps its colour in every run; a filled disc is a visible\n"
    "point, a ring a hidden one. TRACKS.npz is VIDEO.tracks.npz beside the video where it is not given.\n"
    "\n"
    "What is drawn:\n"
    "  --style STYLE       tails (default): points and their way of the last moments\n"
    "                      dots: points alone\n"
    "                      grid: lines between neighbours, which show how a surface bends\n"
    "                      heat: spots that are blue where a point rests and yellow where it is fast\n"
    "  --tail S            length of a tail in seconds (default 0.6)\n"
    "  --min-confidence C  count a point as hidden where its confidence is below C, 0 to 1\n"
    "  --labels PATTERN    only tracks whose label matches the shell pattern; may be given several times\n"
    "  --any-video         draw into VIDEO although it is not the file that was tracked (by its SHA-256),\n"
    "                      such as a copy that was encoded again\n"
    "\n"
    "What comes out:\n"
    "  -o, --output FILE   default: VIDEO.overlay.mp4 beside the tracks, unless --sheet is given alone\n"
    "  --sheet FILE        a contact sheet, PNG: twelve frames of the overlay with their numbers\n"
    "  --encoder NAME      libav's name of an encoder (default: libx264, or else the best that is there)\n"
    "  -q, --quiet         no progress bar and no summary\n"
    "\n"
    "Examples:\n"
    "  tiletrack overlay bear.mp4\n"
    "  tiletrack overlay bear.mp4 out/bear.tracks.npz --style grid -o bear-grid.mp4\n"
    "  tiletrack overlay bear.mp4 --sheet bear.png\n"
    "\n"
    "Exit status: 0 written, 1 failed, 2 the command line is wrong.\n";

static bool parse_style(const char *name, enum tt_overlay_style *style)
{
    for (int i = 0; i < TT_OVERLAY_STYLES; i++)
        if (strcmp(tt_overlay_style_names[i], name) == 0)
            return *style = (enum tt_overlay_style)i, true;
    return false;
}

/* One option; an exit code, or -1 to go on. */
static int take_option(struct overlay_options *o, int option, const char *arg, const char *name)
{
    double value = 0;
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
    case OPT_ANY_VIDEO:
        o->any_video = true;
        break;
    case OPT_SHEET:
        o->sheet = arg;
        break;
    case OPT_STYLE:
        ok = parse_style(arg, &o->overlay.style);
        break;
    case OPT_TAIL:
        ok = cli_parse_real(arg, 0.001, 3600, &o->overlay.tail_s);
        break;
    case OPT_MIN_CONFIDENCE:
        ok = cli_parse_real(arg, 0, 1, &value);
        o->overlay.min_confidence = (float)value;
        break;
    case OPT_LABELS:
        if (o->overlay.label_count == LABELS_MOST)
            return cli_usage_error(&cli_overlay, "--labels: at most %d times", LABELS_MOST);
        o->labels[o->overlay.label_count++] = arg;
        break;
    case OPT_ENCODER:
        o->overlay.encoder.codec = arg;
        ok = *arg && strlen(arg) < 64;
        break;
    default:
        fputs("Try: tiletrack overlay --help\n", stderr);
        return EXIT_USAGE;
    }
    if (!ok)
        return cli_usage_error(&cli_overlay, "--%s: '%s' is not a value it can have", name, arg);
    return -1;
}

/* Fills *options. An exit code, or -1 to go on. */
static int parse_options(struct overlay_options *options, int argc, char **argv)
{
    int option, index = 0, code;

    optind = 1;
    while ((option = getopt_long(argc, argv, "o:qh", long_options, &index)) != -1) {
        code = take_option(options, option, optarg, option >= OPT_STYLE ? long_options[index].name : "");
        if (code >= 0)
            return code;
    }
    if (options->help) {
        fputs(help, stdout);
        return EXIT_ALL_DONE;
    }
    if (argc == optind)
        return cli_usage_error(&cli_overlay, "no video was given");
    if (argc - optind > 2)
        return cli_usage_error(&cli_overlay, "one video and its tracks at a time");
    if ((options->output && !*options->output) || (options->sheet && !*options->sheet))
        return cli_usage_error(&cli_overlay, "the path of the output is empty");
    options->video = argv[optind];
    options->tracks = argc - optind == 2 ? argv[optind + 1] : NULL;
    return -1;
}

/* --- paths --- */

/* All paths, owned; NULL where there is none. */
struct paths {
    char *tracks, *output, *sheet, *folder; /* folder: for spilled points */
};

static char *default_output(const char *video, const char *tracks)
{
    char *folder = tt_path_folder(tracks);
    char *path = folder ? tt_path_sibling(video, folder, ".overlay.mp4") : NULL;

    free(folder);
    return path;
}

/* False: no memory. */
static bool make_paths(struct paths *paths, const struct overlay_options *options)
{
    paths->tracks =
        options->tracks ? strdup(options->tracks) : tt_path_sibling(options->video, NULL, ".tracks.npz");
    if (!paths->tracks)
        return false;
    if (options->sheet && !(paths->sheet = strdup(options->sheet)))
        return false;
    if (options->output)
        paths->output = strdup(options->output);
    else if (!options->sheet)
        paths->output = default_output(options->video, paths->tracks);
    if ((options->output || !options->sheet) && !paths->output)
        return false;
    paths->folder = tt_path_folder(paths->output ? paths->output : paths->sheet);
    return paths->folder != NULL;
}

static void free_paths(struct paths *paths)
{
    free(paths->tracks);
    free(paths->output);
    free(paths->sheet);
    free(paths->folder);
}

/* An exit code, or -1 to go on. */
static int check_paths(const struct paths *paths, const char *video)
{
    const char *const written[] = {paths->output, paths->sheet};

    for (int i = 0; i < 2; i++) {
        if (written[i] && cli_is_same_file(written[i], video))
            return cli_usage_error(&cli_overlay, "the output would overwrite the video; use -o");
        if (written[i] && cli_is_same_file(written[i], paths->tracks))
            return cli_usage_error(&cli_overlay, "the output would overwrite the track file; use -o");
    }
    if (paths->output && paths->sheet && cli_is_same_file(paths->output, paths->sheet))
        return cli_usage_error(&cli_overlay, "-o and --sheet name the same file");
    return -1;
}

/* --- the work --- */

static enum tt_status show_progress(void *user, int64_t frames, int64_t expected, struct tt_error *err)
{
    (void)err;
    cli_progress_update(user, frames, expected);
    return TT_OK;
}

/* Both or none get their names. */
static enum tt_status write_files(const struct overlay_options *options, const struct paths *paths,
                                  int video_fd, const struct stat *opened, struct tt_trackfile *tracks,
                                  struct tt_overlay_report *report, struct tt_error *err)
{
    const struct tt_export_source source = tt_export_from_trackfile(tracks);
    struct tt_file *output = NULL, *sheet = NULL;
    enum tt_status status = TT_OK;

    if (paths->output)
        status = tt_file_create(&output, paths->output, err);
    if (!status && paths->sheet)
        status = tt_file_create(&sheet, paths->sheet, err);
    if (!status)
        status = tt_overlay_write(output, sheet, video_fd, &source, &options->overlay, report, err);
    if (!status && !tt_is_unchanged(video_fd, opened))
        status = tt_fail(err, TT_RETRY_LATER, "the video was changed while the tracks were drawn into it");
    if (!status && output) {
        status = tt_file_commit(output, TT_REPLACE, err);
        output = NULL;
    }
    if (!status && sheet) {
        status = tt_file_commit(sheet, TT_REPLACE, err);
        sheet = NULL;
    }
    tt_file_abandon(output);
    tt_file_abandon(sheet);
    return status;
}

static enum tt_status check_video(const struct overlay_options *options, int video_fd,
                                  const struct tt_trackfile *tracks, struct tt_error *err)
{
    enum tt_status status =
        tt_overlay_check_video(video_fd, tt_trackfile_meta(tracks), options->overlay.stop, err);

    if (status == TT_BAD_INPUT)
        status = tt_fail(err, status, "%s; --any-video draws the tracks into it all the same", err->text);
    return status;
}

static enum tt_status draw(const struct overlay_options *options, const struct paths *paths,
                           struct tt_overlay_report *report, struct tt_error *err)
{
    struct tt_trackfile *tracks = NULL;
    struct stat opened;
    int video_fd = -1;
    enum tt_status status = tt_trackfile_open(&tracks, paths->tracks, err);

    if (status)
        return status;
    status = tt_decoder_open_path(options->video, &video_fd, err);
    if (!status && fstat(video_fd, &opened) < 0)
        status = tt_fail_errno(err, tt_status_of_errno(errno), errno, "%s", options->video);
    if (!status && !options->any_video)
        status = check_video(options, video_fd, tracks, err);
    if (!status)
        status = write_files(options, paths, video_fd, &opened, tracks, report, err);
    if (video_fd >= 0)
        close(video_fd);
    tt_trackfile_close(tracks);
    return status;
}

static void print_summary(const struct overlay_options *options, const struct paths *paths,
                          const struct tt_overlay_report *report)
{
    char *video = cli_printable(options->video), *output = cli_printable(paths->output ? paths->output : "");
    char *sheet = cli_printable(paths->sheet ? paths->sheet : "");

    printf("%s: %d tracks in %lld frames", video ? video : "", report->tracks, (long long)report->frames);
    if (paths->output)
        printf(" -> %s (%s)", output ? output : "", report->codec);
    if (paths->sheet)
        printf("%s %s", paths->output ? "," : " ->", sheet ? sheet : "");
    putchar('\n');
    free(video);
    free(output);
    free(sheet);
}

static void print_notes(const struct overlay_options *options, const struct tt_overlay_report *report)
{
    if (report->video_goes_on)
        fprintf(stderr,
                "tiletrack overlay: the video goes on behind frame %lld, the last that has tracks; "
                "the overlay ends there\n",
                (long long)report->frames - 1);
    if (!options->overlay.encoder.codec && report->codec[0] && strcmp(report->codec, "libx264") != 0)
        fprintf(stderr, "tiletrack overlay: this libav has no libx264; the video was encoded by %s\n",
                report->codec);
}

static int draw_and_tell(struct overlay_options *options, const struct paths *paths)
{
    struct tt_overlay_report report = {0};
    struct cli_progress progress;
    struct tt_error err = {0};
    enum tt_status status = cli_stop_install(&err);
    char *name = cli_printable(options->video);

    options->overlay.spill_folder = paths->folder;
    options->overlay.decoder.interrupt_fd = options->overlay.encoder.interrupt_fd = cli_stop_fd();
    options->overlay.progress = show_progress;
    options->overlay.user = &progress;
    cli_progress_begin(&progress, !options->quiet, name ? name : "");
    if (!status)
        status = draw(options, paths, &report, &err);
    cli_progress_end(&progress);
    if (!status && !options->quiet) {
        print_summary(options, paths, &report);
        print_notes(options, &report);
    }
    if (status && status != TT_INTERRUPTED)
        fprintf(stderr, "tiletrack overlay: %s: %s\n", name ? name : "", err.text);
    free(name);
    return cli_exit_code(status);
}

static int run(int argc, char **argv)
{
    struct overlay_options options = {.overlay = {.style = TT_OVERLAY_TAILS,
                                                  .decoder = TT_DECODER_DEFAULTS,
                                                  .encoder = TT_ENCODER_DEFAULTS,
                                                  .stop = cli_stop_flag()}};
    struct paths paths = {0};
    int code;

    options.overlay.labels = options.labels;
    code = parse_options(&options, argc, argv);
    if (code >= 0)
        return code;
    if (!make_paths(&paths, &options)) {
        fputs("tiletrack overlay: no memory\n", stderr);
        code = EXIT_SOME_FAILED;
        goto done;
    }
    code = check_paths(&paths, options.video);
    if (code < 0)
        code = draw_and_tell(&options, &paths);
done:
    free_paths(&paths);
    cli_stop_reraise();
    return code;
}

const struct cli_command cli_overlay = {
    .name = "overlay",
    .summary = "draw tracks into their video",
    .help = help,
    .run = run,
};

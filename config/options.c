/* config/options.c: the table of options. To add one: a member in struct tt_config, a line here, and
 * `tiletrack-config-doc yaml > config/tiletrack.yaml`.
 *
 * Everything else (parsing, checks, --print-config, suggestions, the manual page) follows. A member of the
 * wrong type does not compile: OPTION takes its offset through a _Generic selection of the type that the
 * parser will store.
 */
#include "config/options.h"

#include "core/clip.h"

#include <inttypes.h>
#include <string.h>

/* The C type behind each enum tt_option_type. Enums are unsigned int to gcc and clang. */
#define TYPE_BOOL    bool
#define TYPE_INT     int64_t
#define TYPE_MS      int64_t
#define TYPE_BYTES   int64_t
#define TYPE_REAL    double
#define TYPE_CHOICE  unsigned int
#define TYPE_CHOICES unsigned int
#define TYPE_PATH    char *
#define TYPE_MODEL   char *
#define TYPE_GPU     char *
#define TYPE_LIST    struct tt_config_list

#define PLACE(parent, member, kind, name)                                                                    \
    .path = name, .type = TT_OPTION_##kind,                                                                  \
    .offset = offsetof(struct parent, member) + _Generic(&((struct parent *)0)->member, TYPE_##kind *        \
                                                         : (size_t)0)
#define OPTION(kind, member)       PLACE(tt_config, member, kind, #member)
#define DEVICE(kind, member, name) PLACE(tt_config_device, member, kind, name)
#define WORDS(...)                                                                                           \
    .choices = (const char *const[])                                                                         \
    {                                                                                                        \
        __VA_ARGS__, NULL                                                                                    \
    }
#define RANGE(low, high) .min = (low), .max = (high)

enum { HOUR_MS = 3600000, DAY_MS = 24 * HOUR_MS };
#define BYTES_MAX (INT64_C(1) << 50)

enum { RESTART = TT_OPTION_RESTART, DIRECTORY = TT_OPTION_DIRECTORY };
enum { NULLABLE = TT_OPTION_NULL, AUTO = TT_OPTION_AUTO };

const struct tt_section tt_sections[] = {
    {"spool", "Where videos are taken from, and when."},
    {"tracker", "What is tracked, and how."},
    {"output", "What is written for a finished job."},
    {"jobs", "How often a job is tried, and how long it may take."},
    {"devices", "What computes: one worker process for each."},
    {"workers", "How worker processes are watched."},
    {"daemon", "The daemon itself."},
    {"log", "Log lines."},
    {"metrics", "Figures for Prometheus, in a file for the textfile collector of its node exporter."},
    {"on_done", "What is run for a finished job."},
};
const int tt_sections_count = sizeof tt_sections / sizeof tt_sections[0];

const struct tt_option tt_options[] = {
    {OPTION(PATH, spool.root), .initial = "/var/spool/tiletrack", .flags = RESTART,
     .help =
         "The spool: `incoming`, `work`, `tracks`, `done` and `failed` lie in it, all on one file system."},
    {OPTION(BOOL, spool.recursive), .initial = "false",
     .help = "Whether sub-directories of `incoming` are scanned as well. They are mirrored in `tracks`."},
    {OPTION(LIST, spool.patterns),
     .initial =
         "[.mp4, .mov, .m4v, .mkv, .webm, .avi, .mpg, .mpeg, .ts, .mts, .m2ts, .wmv, .flv, .ogv, .3gp]",
     .help = "Which files are videos. A pattern that begins with a dot is an ending; any other is a glob for "
             "the whole name and must stand in quotes. Case does not count."},
    {OPTION(LIST, spool.ignore),
     .initial = "[.part, .filepart, .partial, .crdownload, .download, .tmp, \"*~\"]",
     .help =
         "Which files are left alone even if they match `patterns`. Names that begin with a dot always are."},
    {OPTION(MS, spool.settle_ms), RANGE(0, HOUR_MS), .initial = "2000",
     .help = "How long a file must have been still, after it was closed, before it is taken."},
    {OPTION(MS, spool.settle_blind_ms), RANGE(0, HOUR_MS), .initial = "10000",
     .help = "The same for a file whose closing was not seen, as on a network file system. Not below "
             "`settle_ms`."},
    {OPTION(MS, spool.rescan_ms), RANGE(100, HOUR_MS), .initial = "5000",
     .help = "How often `incoming` is read whole, whatever the kernel said of changes in it."},
    {OPTION(BOOL, spool.keep_inputs), .initial = "true",
     .help = "Whether the video of a finished job goes to `done`. Otherwise it is deleted."},
    {OPTION(INT, spool.keep_days), RANGE(0, 36500), .initial = "0",
     .help =
         "After how many days files in `done` and `failed` are deleted. 0 keeps them for ever. Nothing in "
         "`incoming` or `tracks` is ever deleted."},
    {OPTION(BYTES, spool.reserve_bytes), RANGE(0, BYTES_MAX), .initial = "1G",
     .help = "No job is started while less than this is free on the file system of the spool."},

    {OPTION(MODEL, tracker.model), .initial = "tiletrack-small", .flags = DIRECTORY,
     .help = "The weights: the name of an installed model, or the absolute path of a safetensors file. Below "
             "`incoming` only a name is allowed."},
    {OPTION(INT, tracker.clip_frames), RANGE(8, TT_CLIP_FRAMES), .initial = "47", .flags = DIRECTORY,
     .help = "How many frames are tracked together. A longer video is cut into windows of this length. The "
             "models' figures of accuracy are measured with 47."},
    {OPTION(INT, tracker.overlap_frames), RANGE(0, TT_CLIP_FRAMES - 1), .initial = "8", .flags = DIRECTORY,
     .help = "How many frames a window shares with the one before it. Less than `clip_frames`."},
    {OPTION(INT, tracker.grid), RANGE(1, 128), .initial = "16", .flags = DIRECTORY,
     .help = "For a video without query points of its own: how many points the grid in its first frame has "
             "along each side."},
    {OPTION(REAL, tracker.occlusion_threshold), RANGE(0, 1), .initial = "0.5", .flags = DIRECTORY,
     .help = "A point counts as occluded where the model gives occlusion a higher probability than this."},

    {OPTION(CHOICE, tracker.refine), WORDS("off", "native"), .initial = "off", .flags = DIRECTORY,
     .help = "`native` looks for each point's patch again in the frames as they are, not reduced to 256x256, "
             "and moves its track to where that fits best: a last pass over the video, on the CPU."},

    {OPTION(CHOICES, output.formats),
     WORDS("npz", "csv", "jsonl", "csv-wide", "json", "napari", "tapvid", "cotracker", "nuke", "3de",
           "after-effects", "blender", "colmap"),
     .initial = "[npz]", .flags = DIRECTORY,
     .help =
         "The formats of the result: one file for each, whose names differ in their ending only. The first "
         "three are track files; the others are written as `tiletrack export` writes them, without options; "
         "one that cannot hold a video's tracks is left out, and a warning says why."},
    {OPTION(BOOL, output.overlay), .initial = "false", .flags = DIRECTORY,
     .help = "Whether a video with the tracks drawn into it is written as well, as `tiletrack overlay` makes "
             "it. Where "
             "that fails the tracks are committed without it, and a warning says why."},

    {OPTION(INT, jobs.max_attempts), RANGE(1, 100), .initial = "3",
     .help = "How often a job is tried before its video goes to `failed`."},
    {OPTION(MS, jobs.backoff_ms), RANGE(0, DAY_MS), .initial = "5000",
     .help = "How long a job that failed once waits. The wait doubles with each attempt, give or take some "
             "chance."},
    {OPTION(MS, jobs.backoff_max_ms), RANGE(0, DAY_MS), .initial = "300000",
     .help = "The longest such wait. Not below `backoff_ms`."},
    {OPTION(MS, jobs.deadline_ms), RANGE(1000, 30 * (int64_t)DAY_MS), .initial = "600000",
     .help = "How long a job may take, to which `deadline_frame_ms` is added for each frame of its video."},
    {OPTION(MS, jobs.deadline_frame_ms), RANGE(0, DAY_MS), .initial = "2000", .help = "See `deadline_ms`."},

    {.path = "devices",
     .type = TT_OPTION_DEVICES,
     .offset = offsetof(struct tt_config, devices),
     .initial = "auto",
     .flags = RESTART,
     .help =
         "`auto` takes every GPU, or the CPU where there is none. Otherwise a list; a device that is named "
         "and missing is an error."},

    {OPTION(MS, workers.start_ms), RANGE(1000, DAY_MS), .initial = "300000",
     .help = "How long a worker may take to become ready: loading the model and passing its self-test."},
    {OPTION(MS, workers.stall_ms), RANGE(1000, DAY_MS), .initial = "120000",
     .help = "A worker at a job that gives no sign of progress for this long is ended."},
    {OPTION(MS, workers.kill_ms), RANGE(0, HOUR_MS), .initial = "5000",
     .help = "How long a worker that was asked to end may take before it is killed."},
    {OPTION(MS, workers.respawn_ms), RANGE(0, DAY_MS), .initial = "1000",
     .help = "How long a dead worker's device waits for a new one. The wait doubles with each death before a "
             "finished job."},
    {OPTION(MS, workers.respawn_max_ms), RANGE(0, DAY_MS), .initial = "60000",
     .help = "The longest such wait. Not below `respawn_ms`."},

    {OPTION(PATH, daemon.runtime_dir), .initial = "/run/tiletrack", .flags = RESTART,
     .help = "The directory of sockets and lock files."},
    {OPTION(PATH, daemon.socket), .initial = "null", .flags = RESTART | NULLABLE,
     .help = "The control socket. Null is `control.sock` in `runtime_dir`. At most 107 bytes."},
    {OPTION(MS, daemon.drain_ms), RANGE(0, DAY_MS), .initial = "60000",
     .help =
         "How long running jobs may go on when the daemon is asked to end. Those that are not finished by "
         "then are put back."},

    {OPTION(CHOICE, log.level), WORDS("debug", "info", "warning", "error"), .initial = "info",
     .help = "The least important lines that are written."},
    {OPTION(CHOICE, log.format), WORDS("json", "text"), .initial = "json",
     .help = "`json` writes one JSON object a line, `text` is for people. The journal always gets its own "
             "fields."},
    {OPTION(PATH, log.file), .initial = "null", .flags = NULLABLE,
     .help = "The file that lines are appended to. Null is the standard error output."},
    {OPTION(INT, log.burst), RANGE(0, 1000000), .initial = "1000",
     .help =
         "How many lines of one event are written in any 10 seconds. The others are counted. 0 writes all."},

    {OPTION(PATH, metrics.textfile), .initial = "/var/lib/tiletrack/tiletrack.prom", .flags = NULLABLE,
     .help = "The file, whose name must end in .prom for the collector. Null writes none."},
    {OPTION(MS, metrics.interval_ms), RANGE(1000, HOUR_MS), .initial = "15000",
     .help = "How often the file is written."},

    {OPTION(PATH, on_done), .initial = "null", .flags = NULLABLE,
     .help = "A program that is run with the path of the result, or with one for each of `output.formats`, "
             "as its arguments. Null runs nothing."},
};
const int tt_options_count = sizeof tt_options / sizeof tt_options[0];

const struct tt_option tt_device_options[] = {
    {DEVICE(GPU, gpu, "gpu"), .initial = "null", .flags = NULLABLE,
     .help =
         "A GPU: its index, its UUID as `nvidia-smi -L` prints it, or its PCI address. Indices may change "
         "when the machine starts anew."},
    {DEVICE(INT, cpu_threads, "cpu"), RANGE(1, 1024), .initial = "null", .flags = NULLABLE | AUTO,
     .help = "The CPU: how many threads. `auto` takes all. A device has either `gpu` or `cpu`."},
    {DEVICE(CHOICE, precision, "precision"), WORDS("auto", "fp16", "fp32"), .initial = "auto",
     .help = "Sums are always in fp32. `auto` is fp16 on a GPU and fp32 on the CPU, which has no fp16."},
    {DEVICE(INT, tile.queries, "tile.queries"), RANGE(1, 4096), .initial = "auto", .flags = AUTO,
     .help = "How many query points are worked on together. `auto` fits the caches of the device."},
    {DEVICE(INT, tile.frames, "tile.frames"), RANGE(1, TT_CLIP_FRAMES), .initial = "auto", .flags = AUTO,
     .help = "How many frames are worked on together."},
    {DEVICE(CHOICE, arch, "arch"), WORDS("native", "sm_75"), .initial = "native",
     .help = "`sm_75` runs what a T4 runs, within its 64 KiB of shared memory, on a newer GPU: for tests."},
};
const int tt_device_options_count = sizeof tt_device_options / sizeof tt_device_options[0];

const char *tt_option_key(const struct tt_option *option)
{
    const char *dot = strchr(option->path, '.');

    return dot ? dot + 1 : option->path;
}

const char *tt_option_number(const struct tt_option *option, int64_t value, char *text, size_t bytes)
{
    static const char *const suffixes[] = {"", "K", "M", "G", "T"};
    int power = 0;

    while (option->type == TT_OPTION_BYTES && power < 4 && value != 0 && value % 1024 == 0) {
        value /= 1024;
        power++;
    }
    snprintf(text, bytes, "%" PRId64 "%s", value, suffixes[power]);
    return text;
}

static void print_expects(const struct tt_option *option, char *text, size_t bytes)
{
    char low[24], high[24];
    size_t used;

    tt_option_number(option, option->min, low, sizeof low);
    tt_option_number(option, option->max, high, sizeof high);
    switch (option->type) {
    case TT_OPTION_BOOL:
        snprintf(text, bytes, "true or false");
        break;
    case TT_OPTION_INT:
        snprintf(text, bytes, "a whole number, %s to %s", low, high);
        break;
    case TT_OPTION_MS:
        snprintf(text, bytes, "milliseconds as a whole number, %s to %s", low, high);
        break;
    case TT_OPTION_BYTES:
        snprintf(text, bytes, "bytes, as a whole number with K, M, G or T behind it, %s to %s", low, high);
        break;
    case TT_OPTION_REAL:
        snprintf(text, bytes, "a number, %s to %s", low, high);
        break;
    case TT_OPTION_CHOICE:
    case TT_OPTION_CHOICES:
        snprintf(text, bytes, option->type == TT_OPTION_CHOICE ? "one of" : "a list of the words");
        for (int i = 0; option->choices[i]; i++) {
            used = strlen(text);
            snprintf(text + used, bytes - used, "%s %s", i ? "," : "", option->choices[i]);
        }
        break;
    case TT_OPTION_PATH:
        snprintf(text, bytes, "an absolute path");
        break;
    case TT_OPTION_MODEL:
        snprintf(text, bytes, "a model's name, or an absolute path");
        break;
    case TT_OPTION_GPU:
        snprintf(text, bytes, "an index, a UUID or a PCI address");
        break;
    case TT_OPTION_LIST:
        snprintf(text, bytes, "a list of patterns");
        break;
    case TT_OPTION_DEVICES:
        snprintf(text, bytes, "auto, or a list of devices");
        break;
    }
}

const char *tt_option_expects(const struct tt_option *option, char *text, size_t bytes)
{
    size_t used;

    print_expects(option, text, bytes);
    used = strlen(text);
    snprintf(text + used, bytes - used, "%s%s", option->flags & TT_OPTION_AUTO ? ", or auto" : "",
             option->flags & TT_OPTION_NULL ? ", or null" : "");
    return text;
}

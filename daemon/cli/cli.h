/* daemon/cli/cli.h: the command line's own small parts. */
#ifndef TT_DAEMON_CLI_CLI_H
#define TT_DAEMON_CLI_CLI_H

#include "core/backend.h"
#include "core/status.h"

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

/* Exit codes that scripts rely on. */
enum {
    EXIT_ALL_DONE = 0,
    EXIT_SOME_FAILED = 1,
    EXIT_USAGE = 2,
    EXIT_INCOMPLETE = 3, /* all tracked, but an output cannot be made of the tracks */
};

struct cli_command {
    const char *name;
    const char *summary;
    const char *help;                  /* what `tiletrack NAME --help` prints */
    int (*run)(int argc, char **argv); /* argv[0] is the command's name; returns an exit code */
};

extern const struct cli_command cli_track, cli_plan, cli_selftest, cli_submit, cli_status, cli_retry,
    cli_cancel, cli_check, cli_report, cli_export, cli_overlay;

/* Prints "tiletrack COMMAND: text" and where to read more, and returns EXIT_USAGE. */
int cli_usage_error(const struct cli_command *command, const char *format, ...)
    __attribute__((format(printf, 2, 3)));

/* Reads a whole number in [least, most]; false: text is no such number. */
bool cli_parse_int(const char *text, int64_t least, int64_t most, int64_t *value);

/* Reads a real number in [least, most]; false: text is no such number. */
bool cli_parse_real(const char *text, double least, double most, double *value);

/* Whether two paths lead to one file; those that lead nowhere do where they are equal. */
bool cli_is_same_file(const char *a, const char *b);

/* A file name for a terminal or a JSON string: control characters and bytes that are no UTF-8 become \\xNN, a
 * backslash becomes two. Owned by the caller (free); NULL: no memory. */
char *cli_printable(const char *name);

/* A status as an exit code of the program. */
int cli_exit_code(enum tt_status status);

/* --- progress.c: a bar on a terminal, nothing elsewhere --- */

struct cli_progress {
    bool shown;
    const char *label;
    int64_t start_ms, drawn_ms;
};

void cli_progress_begin(struct cli_progress *progress, bool wanted, const char *label);
/* expected: frames in the whole video, or 0 where nobody knows. */
void cli_progress_update(struct cli_progress *progress, int64_t frames, int64_t expected);
/* Another pass over the same frames begins: rate and time left are of it alone. */
void cli_progress_again(struct cli_progress *progress);
/* Takes the bar off the terminal, so that the next line starts clean. */
void cli_progress_end(struct cli_progress *progress);

/* --- device.c: the backend that a command asked for --- */

struct cli_device {
    const struct tt_backend_ops *ops;
    struct tt_weights *weights;
    struct tt_backend *backend;
    struct tt_backend_options options;
};

struct cli_device_options {
    const char *device;    /* "auto", "cpu", "cuda", "cuda:WHICH" or "MIG-..." */
    const char *model;     /* name or path */
    const char *arch;      /* NULL or "sm_75" */
    const char *precision; /* NULL: fp16 on a GPU, fp32 on the CPU */
    struct tt_tile tile;
    int threads; /* 0: all */
    const atomic_bool *stop;
};

/* The options of every command that opens a device, for its table of long options; their help; and what takes
 * one. cli_device_take returns false where the value is none that the option can have. */
enum {
    CLI_OPT_DEVICE = 512,
    CLI_OPT_MODEL,
    CLI_OPT_PRECISION,
    CLI_OPT_ARCH,
    CLI_OPT_TILE_QUERIES,
    CLI_OPT_TILE_FRAMES,
    CLI_OPT_THREADS
};
/* clang-format off */
#define CLI_DEVICE_OPTIONS                                                                                   \
    {"device", required_argument, NULL, CLI_OPT_DEVICE},                                                     \
    {"model", required_argument, NULL, CLI_OPT_MODEL},                                                       \
    {"precision", required_argument, NULL, CLI_OPT_PRECISION},                                               \
    {"arch", required_argument, NULL, CLI_OPT_ARCH},                                                         \
    {"tile-queries", required_argument, NULL, CLI_OPT_TILE_QUERIES},                                         \
    {"tile-frames", required_argument, NULL, CLI_OPT_TILE_FRAMES},                                           \
    {"threads", required_argument, NULL, CLI_OPT_THREADS}
/* clang-format on */
#define CLI_DEVICE_HELP                                                                                      \
    "  --model NAME|FILE   weights (default tiletrack-small)\n"                                              \
    "  --device D          auto (default), cpu, cuda, or one GPU: cuda:0, cuda:GPU-UUID, "                   \
    "cuda:PCI-ADDRESS,\n"                                                                                    \
    "                      MIG-UUID\n"                                                                       \
    "  --precision P       fp16 or fp32 (default: fp16 on a GPU, fp32 on the CPU)\n"                         \
    "  --arch sm_75        run what a T4 runs, with its 64 KiB of shared memory, on a newer GPU\n"           \
    "  --tile-queries N, --tile-frames N  instead of the planned tile\n"                                     \
    "  --threads N         CPU threads (default: all)\n"

bool cli_device_take(struct cli_device_options *options, int option, const char *arg);

/* The backend that options->device means; `auto` takes CUDA where a driver and the plug-in are there,
 * otherwise the CPU. backend: out, what it is to be opened with; borrows from options. */
enum tt_status cli_backend_choose(const struct tt_backend_ops **ops, struct tt_backend_options *backend,
                                  const struct cli_device_options *options, struct tt_error *err);

/* Weights by name or path. */
enum tt_status cli_weights_open(struct tt_weights **weights, const char *model, struct tt_error *err);

/* Opens weights and backend; with smaller tiles, and a line on standard error, where device memory is short.
 * options: borrows (until close). */
enum tt_status cli_device_open(struct cli_device *device, const struct cli_device_options *options,
                               struct tt_error *err);
/* Opens the backend again with smaller tiles, after a TT_SHRINK_TILE. */
enum tt_status cli_device_shrink(struct cli_device *device, struct tt_error *err);
void cli_device_close(struct cli_device *device);

/* --- stop.c: Ctrl-C --- */

/* After this SIGINT, SIGTERM and SIGHUP ask to stop: the flag is set and the descriptor becomes readable. A
 * second SIGINT ends the program at once. */
enum tt_status cli_stop_install(struct tt_error *err);
const atomic_bool *cli_stop_flag(void);
int cli_stop_fd(void);
/* Ends the process by the signal that came, as the shell expects; returns where none came. */
void cli_stop_reraise(void);

#endif

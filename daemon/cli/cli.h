/* daemon/cli/cli.h: the command line's own small parts. */
#ifndef TT_DAEMON_CLI_CLI_H
#define TT_DAEMON_CLI_CLI_H

#include "core/backend.h"
#include "core/status.h"

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

/* Exit codes that scripts rely on. */
enum { EXIT_ALL_DONE = 0, EXIT_SOME_FAILED = 1, EXIT_USAGE = 2 };

struct cli_command {
    const char *name;
    const char *summary;
    const char *help;                  /* what `tiletrack NAME --help` prints */
    int (*run)(int argc, char **argv); /* argv[0] is the command's name; returns an exit code */
};

extern const struct cli_command cli_track, cli_plan, cli_selftest, cli_submit, cli_status, cli_retry,
    cli_cancel, cli_check;

/* Prints "tiletrack COMMAND: text" and where to read more, and returns EXIT_USAGE. */
int cli_usage_error(const struct cli_command *command, const char *format, ...)
    __attribute__((format(printf, 2, 3)));

/* Reads a whole number in [least, most]; false: text is no such number. */
bool cli_parse_int(const char *text, int64_t least, int64_t most, int64_t *value);

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
/* Takes the bar off the terminal, so that the next line starts clean. */
void cli_progress_end(struct cli_progress *progress);

/* --- device.c: the backend that a command asked for --- */

struct cli_device {
    const struct tt_backend_ops *ops;
    struct tt_weights *weights;
    struct tt_backend *backend;
};

struct cli_device_options {
    const char *backend; /* "auto", "cpu" or "cuda" */
    const char *model;   /* name or path */
    int threads;         /* 0: all */
    const atomic_bool *stop;
};

/* The backend of that name; `auto` takes CUDA where a driver and the plug-in are there, otherwise the CPU. */
enum tt_status cli_backend_choose(const struct tt_backend_ops **ops, const char *name, struct tt_error *err);

/* Weights by name or path. */
enum tt_status cli_weights_open(struct tt_weights **weights, const char *model, struct tt_error *err);

/* Opens weights and backend. */
enum tt_status cli_device_open(struct cli_device *device, const struct cli_device_options *options,
                               struct tt_error *err);
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

/* core/log.h: structured log lines, for the programs. Libraries do not log.
 *
 *     tt_log(log, TT_LOG_INFO, "job_done", TT_STR("job", id), TT_BYTES("file", name, length),
 *            TT_INT("frames", frames), TT_REAL("track_ms", ms));
 *
 * A line is a JSON object, or text for people, or an entry of the journal with fields of its own;
 * docs/LOGS.md describes all three and lists every event with its fields. A test holds that list against the
 * calls, so event and field names are literals: small letters, digits and "_", units at the end ("track_ms").
 *
 * A line is at most TT_LOG_LINE_BYTES long and goes out in one write(2), so lines of several threads and
 * processes never mix. Nothing is allocated once the log is open. A log may be used from any thread, not from
 * a signal handler. Logging does not fail: a line that cannot be written is counted, and the count is written
 * when the next line can be (`log_lost`). The program must ignore SIGPIPE, and SIGXFSZ where it has a limit.
 */
#ifndef TT_CORE_LOG_H
#define TT_CORE_LOG_H

#include "core/status.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum tt_log_level { TT_LOG_DEBUG, TT_LOG_INFO, TT_LOG_WARNING, TT_LOG_ERROR };

enum tt_log_format { TT_LOG_JSON, TT_LOG_TEXT };

/* PIPE_BUF: what a pipe takes in one piece. The newline is included. */
enum { TT_LOG_LINE_BYTES = 4096, TT_LOG_BURST_WINDOW_MS = 10000 };

struct tt_log; /* one per process */

/* Borrows its strings (until tt_log_open or tt_log_configure returns). */
struct tt_log_options {
    const char *program; /* "tiletrackd": SYSLOG_IDENTIFIER in the journal */
    const char *worker;  /* NULL, or the `worker` field of every line that has none */
    enum tt_log_level level;
    enum tt_log_format format;
    const char *file; /* NULL: fd */
    int fd;           /* STDERR_FILENO; where it is the journal's stream, entries go to the journal instead */
    int64_t burst;    /* lines of one event in TT_LOG_BURST_WINDOW_MS; 0: no limit */
    const char *journal; /* NULL: the journal's socket, /run/systemd/journal/socket */
};

/* log: owns; tt_log_close it. TT_REFUSE or TT_RETRY_LATER, by errno: the file cannot be opened. */
enum tt_status tt_log_open(struct tt_log **log, const struct tt_log_options *options, struct tt_error *err);

/* Writes what was suppressed or lost, and closes. Takes log, which may be NULL. */
void tt_log_close(struct tt_log *log);

/* Opens the file by its name again, for logrotate. On failure the log goes on with the file it has. Does
 * nothing where lines do not go to a file. */
enum tt_status tt_log_reopen(struct tt_log *log, struct tt_error *err);

/* Takes up other options while running, whole or not at all. */
enum tt_status tt_log_configure(struct tt_log *log, const struct tt_log_options *options,
                                struct tt_error *err);

/* Writes the counts of lines that were suppressed in windows that have ended, or in all if `all` is set.
 * Lines of any event do the same; a program calls this now and then so that a count is not late. */
void tt_log_flush(struct tt_log *log, bool all);

/* Whether a line of this level would be written. */
bool tt_log_enabled(const struct tt_log *log, enum tt_log_level level);

enum tt_log_type { TT_LOG_STRING, TT_LOG_INTEGER, TT_LOG_UNSIGNED, TT_LOG_DOUBLE, TT_LOG_BOOLEAN };

/* Made by the macros below only. */
struct tt_log_field {
    const char *name;
    enum tt_log_type type;
    union {
        struct {
            const char *text; /* borrowed until tt_log returns; NULL: null */
            size_t bytes;
        } string;
        int64_t integer;
        double real;
    } value;
};

/* A text that ends in a NUL, or NULL. */
#define TT_STR(name, s)                                                                                      \
    ((struct tt_log_field){"" name "", TT_LOG_STRING, {.string = {(s), TT_LOG_UNTIL_NUL}}})

/* A text of that many bytes: any bytes. */
#define TT_BYTES(name, text, length)                                                                         \
    ((struct tt_log_field){"" name "", TT_LOG_STRING, {.string = {(text), (length)}}})

/* A whole number of any integer type. A real number or a pointer does not compile. */
#define TT_INT(name, n) ((struct tt_log_field){"" name "", TT_LOG_TYPE_OF(n), {.integer = (int64_t)(n)}})

/* clang-format off */
#define TT_LOG_TYPE_OF(n)                                                                                    \
    _Generic((n), unsigned long: TT_LOG_UNSIGNED, unsigned long long: TT_LOG_UNSIGNED,                       \
             bool: TT_LOG_INTEGER, char: TT_LOG_INTEGER, signed char: TT_LOG_INTEGER,                        \
             unsigned char: TT_LOG_INTEGER, short: TT_LOG_INTEGER, unsigned short: TT_LOG_INTEGER,           \
             int: TT_LOG_INTEGER, unsigned: TT_LOG_INTEGER, long: TT_LOG_INTEGER, long long: TT_LOG_INTEGER)
/* clang-format on */

/* A real number; null where it is not finite. */
#define TT_REAL(name, x) ((struct tt_log_field){"" name "", TT_LOG_DOUBLE, {.real = (x)}})

#define TT_BOOL(name, b) ((struct tt_log_field){"" name "", TT_LOG_BOOLEAN, {.integer = (b) ? 1 : 0}})

#define TT_LOG_UNTIL_NUL ((size_t)-1)

/* Writes one line. log may be NULL: then nothing is written. Fields may be none; they are evaluated only if
 * the level is written. `job`, `worker` and `file` come first in the line, wherever they stand here. */
#define tt_log(log, level, event, ...)                                                                       \
    do {                                                                                                     \
        struct tt_log *tt_log_to = (log);                                                                    \
        const enum tt_log_level tt_log_at = (level);                                                         \
        if (tt_log_enabled(tt_log_to, tt_log_at)) {                                                          \
            const struct tt_log_field tt_log_list[] = {{.name = NULL}, ##__VA_ARGS__};                       \
            tt_log_write(tt_log_to, tt_log_at, "" event "", tt_log_list + 1,                                 \
                         (int)(sizeof tt_log_list / sizeof tt_log_list[0]) - 1);                             \
        }                                                                                                    \
    } while (0)

/* What tt_log calls. */
void tt_log_write(struct tt_log *log, enum tt_log_level level, const char *event,
                  const struct tt_log_field *fields, int count);

#endif

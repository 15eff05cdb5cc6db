/* core/log.c: where lines go, how many, and what becomes of those that cannot be written.
 *
 * Invariants: one mutex guards everything but the level; a line goes out in one write(2) of at most PIPE_BUF
 * bytes, and a descriptor is polled before, so that a reader who has stopped holds the program up for WAIT_MS
 * once and then not again until it reads on; nothing is allocated outside open, reopen and configure.
 *
 * Logging has no result. A line that cannot be written is counted and `log_lost` tells of it later; a line in
 * excess of the burst is counted and `log_suppressed` tells of it when its window has ended. A piece of a
 * line that a full disk left in a file is taken back, as long as nobody has written behind it.
 */
#include "core/log.h"

#include "core/logline.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/time.h>
#include <sys/un.h>
#include <time.h>
#include <unistd.h>

enum { WAIT_MS = 200, EVENTS_MAX = 256 };

#define JOURNAL_SOCKET "/run/systemd/journal/socket"

/* Where lines go, and what is the same in all of them: the options, opened. Owns its strings. */
struct sink {
    char *program, *worker, *file;
    enum tt_log_format format;
    int64_t burst;
    int fd;      /* the sink's own where file is set */
    int journal; /* -1: lines go to fd */
    struct sockaddr_un journal_address;
    bool colour;
};

/* What one event has written in its window. Events beyond EVENTS_MAX are not limited. */
struct limit {
    const char *event; /* a literal; NULL: free */
    enum tt_log_level level;
    int64_t since_ms; /* monotonic */
    int64_t written, suppressed;
};

struct tt_log {
    pthread_mutex_t mutex;
    atomic_int level;
    struct sink sink;
    struct limit limits[EVENTS_MAX]; /* by a hash of the event, probed linearly */
    int suppressing;                 /* of them have a count to tell of */
    int64_t lost;
    int lost_errno;
    char data[TT_LOG_JOURNAL_BYTES];
};

static int64_t now_ms(clockid_t clock)
{
    struct timespec now;

    clock_gettime(clock, &now);
    return (int64_t)now.tv_sec * 1000 + now.tv_nsec / 1000000;
}

/* Whether fd is the stream that systemd connected to the journal: JOURNAL_STREAM is "device:inode". */
static bool is_journal_stream(int fd)
{
    const char *stream = getenv("JOURNAL_STREAM");
    unsigned long long device, inode;
    struct stat stat;
    char end;

    return stream && sscanf(stream, "%llu:%llu%c", &device, &inode, &end) == 2 && fstat(fd, &stat) == 0 &&
           stat.st_dev == (dev_t)device && stat.st_ino == (ino_t)inode;
}

static bool wants_colour(int fd)
{
    const char *no_color = getenv("NO_COLOR"), *term = getenv("TERM");

    return isatty(fd) && !(no_color && *no_color) && !(term && strcmp(term, "dumb") == 0);
}

/* Append mode: what several processes write does not mix. */
static int open_file(const char *path)
{
    return open(path, O_WRONLY | O_APPEND | O_CREAT | O_CLOEXEC | O_NOCTTY, 0640);
}

static void close_sink(struct sink *sink)
{
    if (sink->file && sink->fd >= 0)
        close(sink->fd);
    if (sink->journal >= 0)
        close(sink->journal);
    free(sink->program);
    free(sink->worker);
    free(sink->file);
}

static enum tt_status open_journal(struct sink *sink, const char *path, struct tt_error *err)
{
    const struct timeval wait = {.tv_usec = WAIT_MS * 1000};

    if (strlen(path) >= sizeof sink->journal_address.sun_path)
        return tt_fail(err, TT_REFUSE, "log: the journal's path %s is too long", path);
    sink->journal_address.sun_family = AF_UNIX;
    strcpy(sink->journal_address.sun_path, path);
    sink->journal = socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0);
    if (sink->journal < 0)
        return tt_fail_errno(err, tt_status_of_errno(errno), errno, "log: socket for the journal");
    setsockopt(sink->journal, SOL_SOCKET, SO_SNDTIMEO, &wait, sizeof wait);
    return TT_OK;
}

static enum tt_status open_sink(struct sink *sink, const struct tt_log_options *options, struct tt_error *err)
{
    struct sink made = {.format = options->format, .burst = options->burst, .fd = options->fd, .journal = -1};
    enum tt_status status = TT_OK;

    if (options->file)
        made.fd = -1;
    made.program = strdup(options->program);
    made.worker = options->worker ? strdup(options->worker) : NULL;
    made.file = options->file ? strdup(options->file) : NULL;
    if (!made.program || (options->worker && !made.worker) || (options->file && !made.file)) {
        status = tt_fail_errno(err, TT_RETRY_LATER, ENOMEM, "log");
    } else if (options->file) {
        made.fd = open_file(options->file);
        if (made.fd < 0)
            status = tt_fail_errno(err, tt_status_of_errno(errno), errno, "log file %s", options->file);
    } else if (is_journal_stream(options->fd)) {
        status = open_journal(&made, options->journal ? options->journal : JOURNAL_SOCKET, err);
    }
    if (status != TT_OK) {
        close_sink(&made);
        return status;
    }
    made.colour = wants_colour(made.fd);
    *sink = made;
    return TT_OK;
}

/* The journal takes what is too large for a datagram as a sealed memory file. */
static int send_sealed(struct tt_log *log, size_t bytes)
{
    union {
        char bytes[CMSG_SPACE(sizeof(int))];
        struct cmsghdr align;
    } control = {.bytes = {0}};
    struct msghdr message = {.msg_name = &log->sink.journal_address,
                             .msg_namelen = sizeof log->sink.journal_address,
                             .msg_control = control.bytes,
                             .msg_controllen = sizeof control.bytes};
    struct cmsghdr *header = CMSG_FIRSTHDR(&message);
    int fd = memfd_create("tiletrack-journal", MFD_CLOEXEC | MFD_ALLOW_SEALING), failure = 0;

    if (fd < 0)
        return errno;
    header->cmsg_level = SOL_SOCKET;
    header->cmsg_type = SCM_RIGHTS;
    header->cmsg_len = CMSG_LEN(sizeof fd);
    memcpy(CMSG_DATA(header), &fd, sizeof fd);
    if (write(fd, log->data, bytes) != (ssize_t)bytes ||
        fcntl(fd, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_WRITE | F_SEAL_SEAL) != 0 ||
        sendmsg(log->sink.journal, &message, MSG_NOSIGNAL) < 0)
        failure = errno ? errno : EIO;
    close(fd);
    return failure;
}

/* Returns 0 or an errno. */
static int send_journal(struct tt_log *log, size_t bytes)
{
    int flags = MSG_NOSIGNAL | (log->lost > 0 ? MSG_DONTWAIT : 0);

    if (sendto(log->sink.journal, log->data, bytes, flags, (struct sockaddr *)&log->sink.journal_address,
               sizeof log->sink.journal_address) >= 0)
        return 0;
    return errno == EMSGSIZE || errno == ENOBUFS ? send_sealed(log, bytes) : errno;
}

/* Takes back the piece of a line that was written at the end of a file. Another process may have written
 * behind it: then it stays, closed with a newline if there is room for one. */
static void take_back(int fd, size_t written)
{
    off_t end = lseek(fd, 0, SEEK_CUR);
    struct stat stat;

    if (fstat(fd, &stat) != 0 || !S_ISREG(stat.st_mode))
        return;
    if (stat.st_size == end && end >= (off_t)written && ftruncate(fd, end - (off_t)written) == 0 &&
        lseek(fd, end - (off_t)written, SEEK_SET) >= 0)
        return;
    if (write(fd, "\n", 1) != 1)
        return;
}

/* Returns 0 or an errno. */
static int write_line(struct tt_log *log, size_t bytes)
{
    int fd = log->sink.fd, failure = 0;
    size_t written = 0;

    while (written < bytes && failure == 0) {
        struct pollfd ready = {.fd = fd, .events = POLLOUT};
        ssize_t n;

        if (poll(&ready, 1, log->lost > 0 ? 0 : WAIT_MS) == 0)
            failure = EAGAIN;
        else if ((n = write(fd, log->data + written, bytes - written)) >= 0)
            written += (size_t)n;
        else if (errno != EINTR)
            failure = errno;
    }
    if (failure && written > 0)
        take_back(fd, written);
    return failure;
}

/* Writes an entry, or counts it as lost. Returns whether it was written. */
static bool emit(struct tt_log *log, const char *event, enum tt_log_level level,
                 const struct tt_log_field *fields, int count)
{
    struct tt_log_entry entry = {.level = level,
                                 .event = event,
                                 .program = log->sink.program,
                                 .worker = log->sink.worker,
                                 .time_ms = now_ms(CLOCK_REALTIME),
                                 .fields = fields,
                                 .count = count};
    int failure;

    if (log->sink.journal >= 0)
        failure = send_journal(log, tt_logline_journal(log->data, &entry));
    else if (log->sink.format == TT_LOG_TEXT)
        failure = write_line(log, tt_logline_text(log->data, &entry, log->sink.colour));
    else
        failure = write_line(log, tt_logline_json(log->data, &entry));
    if (failure)
        log->lost_errno = failure;
    return failure == 0;
}

/* An event of the log's own. A test reads the literals here as it reads those of tt_log. */
#define TT_LOG_OWN(log, level, event, ...)                                                                   \
    emit((log), "" event "", (level), (const struct tt_log_field[]){__VA_ARGS__},                            \
         (int)(sizeof((const struct tt_log_field[]){__VA_ARGS__}) / sizeof(struct tt_log_field)))

/* Tells of lost lines. Returns whether nothing is left to be told. */
static bool emit_lost(struct tt_log *log)
{
    if (log->lost > 0 && TT_LOG_OWN(log, TT_LOG_WARNING, "log_lost", TT_INT("lines", log->lost),
                                    TT_STR("cause", strerrordesc_np(log->lost_errno))))
        log->lost = 0;
    return log->lost == 0;
}

static void emit_counted(struct tt_log *log, const char *event, enum tt_log_level level,
                         const struct tt_log_field *fields, int count)
{
    if (!emit_lost(log) || !emit(log, event, level, fields, count))
        log->lost++;
}

/* Begins a new window for an event, and tells what was suppressed in the last. */
static void end_window(struct tt_log *log, struct limit *limit, int64_t now)
{
    int64_t suppressed = limit->suppressed;

    limit->since_ms = now;
    limit->written = limit->suppressed = 0;
    if (suppressed == 0)
        return;
    log->suppressing--;
    if (!emit_lost(log) ||
        !TT_LOG_OWN(log, limit->level, "log_suppressed", TT_STR("suppressed_event", limit->event),
                    TT_INT("lines", suppressed), TT_INT("window_ms", TT_LOG_BURST_WINDOW_MS)))
        log->lost += suppressed + 1;
}

static void flush(struct tt_log *log, bool all)
{
    int64_t now = log->suppressing > 0 ? now_ms(CLOCK_MONOTONIC) : 0;

    for (int i = 0; i < EVENTS_MAX && log->suppressing > 0; i++)
        if (log->limits[i].suppressed > 0 && (all || now - log->limits[i].since_ms >= TT_LOG_BURST_WINDOW_MS))
            end_window(log, &log->limits[i], now);
}

static struct limit *find_limit(struct tt_log *log, const char *event)
{
    uint32_t hash = 2166136261u; /* FNV-1a */

    for (const char *c = event; *c; c++)
        hash = (hash ^ (unsigned char)*c) * 16777619u;
    for (uint32_t i = 0; i < EVENTS_MAX; i++) {
        struct limit *limit = &log->limits[(hash + i) % EVENTS_MAX];

        if (!limit->event || strcmp(limit->event, event) == 0)
            return limit;
    }
    return NULL;
}

/* Whether a line of this event may be written; otherwise it is counted. */
static bool within_burst(struct tt_log *log, const char *event, enum tt_log_level level)
{
    struct limit *limit = log->sink.burst > 0 ? find_limit(log, event) : NULL;
    int64_t now;

    if (!limit)
        return true;
    now = now_ms(CLOCK_MONOTONIC);
    if (!limit->event || now - limit->since_ms >= TT_LOG_BURST_WINDOW_MS) {
        limit->event = event;
        end_window(log, limit, now);
    }
    if (limit->written < log->sink.burst) {
        limit->written++;
        return true;
    }
    if (limit->suppressed++ == 0) {
        limit->level = level;
        log->suppressing++;
    }
    limit->level = level > limit->level ? level : limit->level;
    return false;
}

bool tt_log_enabled(const struct tt_log *log, enum tt_log_level level)
{
    return log && (int)level >= atomic_load_explicit(&log->level, memory_order_relaxed);
}

void tt_log_write(struct tt_log *log, enum tt_log_level level, const char *event,
                  const struct tt_log_field *fields, int count)
{
    int errno_before = errno;

    pthread_mutex_lock(&log->mutex);
    flush(log, false);
    if (within_burst(log, event, level))
        emit_counted(log, event, level, fields, count);
    pthread_mutex_unlock(&log->mutex);
    errno = errno_before;
}

void tt_log_flush(struct tt_log *log, bool all)
{
    pthread_mutex_lock(&log->mutex);
    flush(log, all);
    emit_lost(log);
    pthread_mutex_unlock(&log->mutex);
}

enum tt_status tt_log_configure(struct tt_log *log, const struct tt_log_options *options,
                                struct tt_error *err)
{
    struct sink sink, old;
    enum tt_status status = open_sink(&sink, options, err);

    if (status != TT_OK)
        return status;
    pthread_mutex_lock(&log->mutex);
    flush(log, true); /* to where they were suppressed */
    old = log->sink;
    log->sink = sink;
    atomic_store(&log->level, (int)options->level);
    pthread_mutex_unlock(&log->mutex);
    close_sink(&old);
    return TT_OK;
}

enum tt_status tt_log_open(struct tt_log **log, const struct tt_log_options *options, struct tt_error *err)
{
    struct tt_log *made = calloc(1, sizeof *made);
    enum tt_status status;

    if (!made)
        return tt_fail_errno(err, TT_RETRY_LATER, ENOMEM, "log");
    status = open_sink(&made->sink, options, err);
    if (status != TT_OK) {
        free(made);
        return status;
    }
    atomic_init(&made->level, (int)options->level);
    pthread_mutex_init(&made->mutex, NULL);
    *log = made;
    return TT_OK;
}

enum tt_status tt_log_reopen(struct tt_log *log, struct tt_error *err)
{
    enum tt_status status = TT_OK;
    int fd = -1;

    pthread_mutex_lock(&log->mutex);
    if (log->sink.file) {
        fd = open_file(log->sink.file);
        if (fd < 0) {
            status = tt_fail_errno(err, tt_status_of_errno(errno), errno, "log file %s", log->sink.file);
        } else {
            close(log->sink.fd);
            log->sink.fd = fd;
        }
    }
    pthread_mutex_unlock(&log->mutex);
    return status;
}

void tt_log_close(struct tt_log *log)
{
    if (!log)
        return;
    tt_log_flush(log, true);
    close_sink(&log->sink);
    pthread_mutex_destroy(&log->mutex);
    free(log);
}

/* core/decoder.c: starts tiletrack-decode, listens to it, takes frames out of the ring, and ends it.
 *
 * Invariants. The child is started with six descriptors and a nearly empty environment. The ring's size is
 * sealed before the child gets it, so that the child cannot make the parent's map fault; the parent maps it
 * read-only. Every message goes through tt_wire_accept. Every wait has a deadline. After any failure the
 * child is dead and reaped.
 *
 * Failures. The first one is kept and returned by every later call. A death is told from its wait status; who
 * could have caused it decides between TT_BAD_INPUT and TT_RETRY_LATER (see tell_death).
 */
#include "core/decoder.h"
#include "core/decoder_parts.h"

#include "core/child.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

enum { CREDIT_BATCH = 8 }; /* slots given back in one message */

static int64_t nanoseconds(clockid_t clock)
{
    struct timespec t;

    if (clock_gettime(clock, &t))
        return 0;
    return (int64_t)t.tv_sec * 1000000000 + t.tv_nsec;
}

/* Processor time that the child has used so far. */
static int64_t child_nanoseconds(pid_t pid)
{
    clockid_t clock;

    return clock_getcpuclockid(pid, &clock) ? 0 : nanoseconds(clock);
}

/* ---- starting ------------------------------------------------------------------------------------------ */

static enum tt_status check_file(int fd, struct tt_error *err)
{
    struct stat st;
    int flags = fcntl(fd, F_GETFL);

    if (flags < 0 || fstat(fd, &st))
        return tt_fail_errno(err, TT_BAD_INPUT, errno, "look at the file");
    if (S_ISDIR(st.st_mode))
        return tt_fail(err, TT_BAD_INPUT, "is a directory, not a video");
    if (!S_ISREG(st.st_mode))
        return tt_fail(err, TT_BAD_INPUT, "is not a regular file (%s)",
                       S_ISFIFO(st.st_mode)   ? "a fifo"
                       : S_ISSOCK(st.st_mode) ? "a socket"
                                              : "a device");
    if (st.st_size == 0)
        return tt_fail(err, TT_BAD_INPUT, "is empty");
    if ((flags & O_ACCMODE) != O_RDONLY)
        return tt_fail(err, TT_REFUSE, "the descriptor for the decoder is not read-only");
    return TT_OK;
}

enum tt_status tt_decoder_open_path(const char *path, int *fd, struct tt_error *err)
{
    int opened = open(path, O_RDONLY | O_CLOEXEC | O_NOCTTY | O_NONBLOCK);
    enum tt_status status;

    if (opened < 0) {
        status = tt_status_of_errno(errno) == TT_RETRY_LATER ? TT_RETRY_LATER : TT_BAD_INPUT;
        return tt_fail_errno(err, status, errno, "open");
    }
    status = check_file(opened, err);
    if (status) {
        close(opened);
        return status;
    }
    *fd = opened;
    return TT_OK;
}

static enum tt_status send_request(struct tt_decoder *d, struct tt_error *err)
{
    struct tt_wire_message message;
    size_t bytes = tt_wire_begin(&message, TT_WIRE_REQUEST);

    message.body.request = (struct tt_wire_request){
        .max_pixels = d->options.max_pixels,
        .max_frames = d->options.max_frames,
        .memory_bytes = d->options.memory_bytes,
        .ring_bytes = (int64_t)d->ring_bytes,
        .parent_pid = getpid(),
        .mask = d->wire.mask,
        .threads = d->options.threads,
        .resize = d->options.resize,
        .cpu_seconds = d->options.cpu_seconds,
        .patches = d->wire.patches,
        .whole = d->wire.whole,
    };
    if (send(d->control, &message, bytes, MSG_NOSIGNAL | MSG_DONTWAIT) != (ssize_t)bytes)
        return tt_fail_errno(err, TT_RETRY_LATER, errno, "send the request to the decoder");
    return TT_OK;
}

static enum tt_status check_options(const struct tt_decoder_options *o, struct tt_error *err)
{
    if (o->threads < 1 || o->threads > 16 || o->max_pixels < 1 || o->max_pixels > INT32_MAX ||
        o->max_frames < 1 || o->memory_bytes < 1 || o->cpu_seconds < 1 || o->stall_seconds < 1 ||
        o->stall_seconds > 1000000 || (o->resize != TT_RESIZE_AREA && o->resize != TT_RESIZE_BILINEAR))
        return tt_fail(err, TT_REFUSE, "a decoder option is out of its range");
    return TT_OK;
}

static size_t ring_bytes(const struct tt_decoder_options *options, enum tt_decoder_task task)
{
    switch (task) {
    case TT_DECODE_MASK:
        return (size_t)options->max_pixels;
    case TT_DECODE_PATCHES:
        return (size_t)TT_CUT_BATCH * TT_CUT_BYTES;
    case TT_DECODE_WHOLE:
        return (size_t)options->max_pixels * 3;
    case TT_DECODE_VIDEO:
        break;
    }
    return (size_t)TT_DECODER_SLOTS * TT_FRAME_BYTES;
}

enum tt_status tt_decoder_start(struct tt_decoder **decoder, int fd, const struct tt_decoder_options *options,
                                enum tt_decoder_task task, struct tt_error *err)
{
    char program[PATH_MAX];
    int pair[2] = {-1, -1}, ring = -1, rc;
    struct tt_decoder *d = calloc(1, sizeof *d);
    enum tt_status status;

    if (!d)
        return tt_fail(err, TT_RETRY_LATER, "no memory for a decoder");
    d->options = options ? *options : TT_DECODER_DEFAULTS;
    d->control = -1;
    d->wire = (struct tt_wire_state){.mask = task == TT_DECODE_MASK,
                                     .patches = task == TT_DECODE_PATCHES || task == TT_DECODE_WHOLE,
                                     .whole = task == TT_DECODE_WHOLE,
                                     .max_pixels = d->options.max_pixels,
                                     .max_frames = d->options.max_frames};
    d->ring_bytes = ring_bytes(&d->options, task);
    d->wire.ring_bytes = (int64_t)d->ring_bytes;
    if ((status = check_options(&d->options, err)) || (status = check_file(fd, err)) ||
        (status = tt_child_program(program, "tiletrack-decode", d->options.program, err)) ||
        (status = tt_child_ring(&ring, &d->ring, d->ring_bytes, PROT_READ, err)))
        goto out;
    if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, pair)) {
        status = tt_fail_errno(err, tt_status_of_errno(errno), errno, "socketpair");
        goto out;
    }
    d->control = pair[0];
    rc = tt_child_spawn(&d->pid, program, "tiletrack-decode", (const int[]){fd, pair[1], ring});
    if (rc) {
        d->pid = 0;
        status = tt_fail_errno(err, tt_status_of_errno(rc), rc, "start %s", program);
        goto out;
    }
    status = send_request(d, err);
out:
    if (ring >= 0)
        close(ring);
    if (pair[1] >= 0)
        close(pair[1]);
    if (status)
        tt_decoder_close(d);
    else
        *decoder = d;
    return status;
}

/* ---- ending -------------------------------------------------------------------------------------------- */

int tt_decoder_reap(struct tt_decoder *d)
{
    int wait_status = -1;

    if (d->pid) {
        kill(d->pid, SIGKILL);
        while (waitpid(d->pid, &wait_status, 0) < 0)
            if (errno != EINTR) {
                wait_status = -1;
                break;
            }
        d->pid = 0;
    }
    return wait_status;
}

/* Why the child is gone although it had more to say. Before hello it had read nothing, so the input cannot be
 * at fault; SIGKILL comes from outside (it cannot send it to itself, and its own limits send others). */
static enum tt_status tell_death(struct tt_decoder *d, struct tt_error *err)
{
    int how = tt_decoder_reap(d);
    enum tt_status blame = d->wire.hello ? TT_BAD_INPUT : TT_REFUSE;
    int signal_number;

    if (how == -1)
        return tt_fail(err, TT_RETRY_LATER, "the decoder is gone and somebody else reaped it");
    if (WIFEXITED(how))
        return tt_fail(err, blame, "the decoder ended without a word (exit code %d)%s", WEXITSTATUS(how),
                       d->wire.hello ? "" : ", before it read the file");
    signal_number = WTERMSIG(how);
    switch (signal_number) {
    case SIGSYS:
        return tt_fail(err, blame, "the decoder was killed: it tried a forbidden system call (SIGSYS)");
    case SIGXCPU:
        return tt_fail(err, blame, "decoding takes more than %d s of processor time (limit cpu_seconds)",
                       d->options.cpu_seconds);
    case SIGKILL:
        return tt_fail(err, TT_RETRY_LATER, "the decoder was killed from outside (SIGKILL; memory short?)");
    default:
        return tt_fail(err, blame, "the decoder crashed: SIG%s", sigabbrev_np(signal_number));
    }
}

static enum tt_status tell_stall(struct tt_decoder *d, int64_t cpu_ns, struct tt_error *err)
{
    double cpu_s = (double)(child_nanoseconds(d->pid) - cpu_ns) * 1e-9;
    const char *what = d->wire.mask ? "mask" : "frame";

    tt_decoder_reap(d);
    if (cpu_s < 0.1 * d->options.stall_seconds)
        return tt_fail(err, TT_RETRY_LATER,
                       "the decoder gave no %s for %d s and hardly ran (%.1f s): storage or host stand still",
                       what, d->options.stall_seconds, cpu_s);
    return tt_fail(err, TT_BAD_INPUT, "the decoder hangs: no %s for %d s (limit stall_seconds)", what,
                   d->options.stall_seconds);
}

void tt_decoder_close(struct tt_decoder *d)
{
    if (!d)
        return;
    tt_decoder_reap(d);
    if (d->control >= 0)
        close(d->control);
    if (d->ring)
        munmap(d->ring, d->ring_bytes);
    for (int i = 0; i < TT_WIRE_MAX_WARNINGS; i++)
        free(d->warnings[i]);
    free(d);
}

/* ---- listening ----------------------------------------------------------------------------------------- */

static enum tt_status receive(struct tt_decoder *d, short events, struct tt_wire_message *message, bool *got,
                              struct tt_error *err)
{
    uint8_t packet[sizeof *message + 1];
    ssize_t bytes = recv(d->control, packet, sizeof packet, MSG_DONTWAIT | MSG_TRUNC);

    *got = false;
    if (bytes < 0 && (errno == EAGAIN || errno == EINTR || errno == ECONNRESET))
        return TT_OK; /* ECONNRESET: the child died with credits unread; its last messages are still there */
    if (bytes < 0)
        return tt_fail_errno(err, TT_RETRY_LATER, errno, "hear the decoder");
    if (bytes == 0 && (events & POLLHUP))
        return tell_death(d, err);
    *got = true;
    return tt_wire_accept(&d->wire, packet, (size_t)bytes, message, err);
}

/* The next message of the child, waiting until deadline_ns of the monotonic clock. */
static enum tt_status next_message(struct tt_decoder *d, int64_t deadline_ns, int64_t cpu_ns,
                                   struct tt_wire_message *message, struct tt_error *err)
{
    enum tt_status status;
    bool got = false;

    while (!got) {
        struct pollfd fds[2] = {{.fd = d->control, .events = POLLIN},
                                {.fd = d->options.interrupt_fd, .events = POLLIN}};
        int64_t left_ms = (deadline_ns - nanoseconds(CLOCK_MONOTONIC) + 999999) / 1000000;
        int ready = poll(fds, 2, left_ms > 0 ? (int)left_ms : 0);

        if (ready < 0 && errno != EINTR)
            return tt_fail_errno(err, TT_RETRY_LATER, errno, "poll");
        if (ready > 0 && fds[1].revents)
            return tt_fail(err, TT_INTERRUPTED, "interrupted");
        if (ready == 0 && left_ms <= 0)
            return tell_stall(d, cpu_ns, err);
        if (ready > 0 && (status = receive(d, fds[0].revents, message, &got, err)))
            return status;
    }
    return TT_OK;
}

static enum tt_status keep_warning(struct tt_decoder *d, const char *text, struct tt_error *err)
{
    char *copy = strdup(text);

    if (!copy)
        return tt_fail(err, TT_RETRY_LATER, "no memory for a warning");
    d->warnings[d->wire.warnings - 1] = copy;
    return TT_OK;
}

enum tt_status tt_decoder_news(struct tt_decoder *d, struct tt_wire_message *message, struct tt_error *err)
{
    int64_t deadline_ns = nanoseconds(CLOCK_MONOTONIC) + (int64_t)d->options.stall_seconds * 1000000000;
    int64_t cpu_ns = child_nanoseconds(d->pid);
    enum tt_status status;

    do {
        status = next_message(d, deadline_ns, cpu_ns, message, &d->failure);
        if (!status && message->header.type == TT_WIRE_WARNING)
            status = keep_warning(d, message->body.text.text, &d->failure);
    } while (!status && (message->header.type == TT_WIRE_WARNING || message->header.type == TT_WIRE_HELLO));
    if (!status && message->header.type == TT_WIRE_ERROR)
        status =
            tt_fail(&d->failure, (enum tt_status)message->body.text.status, "%s", message->body.text.text);
    if (status) {
        tt_decoder_reap(d);
        if (err)
            *err = d->failure;
    }
    return status;
}

/* Gives the slots that were read back to the child. A child that is gone no longer wants them. */
static enum tt_status give_credit(struct tt_decoder *d, struct tt_error *err)
{
    int32_t credit = d->used;

    if (send(d->control, &credit, sizeof credit, MSG_NOSIGNAL | MSG_DONTWAIT) < 0) {
        if (errno == EAGAIN || errno == ENOBUFS) {
            tt_decoder_reap(d);
            return tt_fail(err, TT_BAD_INPUT, "the decoder does not take what is sent to it");
        }
        if (errno != EPIPE && errno != ECONNRESET && errno != ECONNREFUSED)
            return tt_fail_errno(err, TT_RETRY_LATER, errno, "send to the decoder");
    }
    d->wire.in_flight -= d->used;
    d->used = 0;
    return TT_OK;
}

static enum tt_status open_task(struct tt_decoder **decoder, int video_fd,
                                const struct tt_decoder_options *options, enum tt_decoder_task task,
                                struct tt_error *err)
{
    struct tt_decoder *d;
    struct tt_wire_message message;
    enum tt_status status = tt_decoder_start(&d, video_fd, options, task, err);

    if (status)
        return status;
    status = tt_decoder_news(d, &message, err);
    if (status) {
        tt_decoder_close(d);
        return status;
    }
    d->info = message.body.info; /* tt_wire_accept lets nothing else come first */
    *decoder = d;
    return TT_OK;
}

enum tt_status tt_decoder_open(struct tt_decoder **decoder, int video_fd,
                               const struct tt_decoder_options *options, struct tt_error *err)
{
    return open_task(decoder, video_fd, options, TT_DECODE_VIDEO, err);
}

enum tt_status tt_decoder_open_patches(struct tt_decoder **decoder, int video_fd,
                                       const struct tt_decoder_options *options, struct tt_error *err)
{
    return open_task(decoder, video_fd, options, TT_DECODE_PATCHES, err);
}

enum tt_status tt_decoder_open_whole(struct tt_decoder **decoder, int video_fd,
                                     const struct tt_decoder_options *options, struct tt_error *err)
{
    return open_task(decoder, video_fd, options, TT_DECODE_WHOLE, err);
}

const uint8_t *tt_decoder_rgb(const struct tt_decoder *d)
{
    return d->wire.whole && d->wire.frames > 0 ? d->ring : NULL;
}

enum tt_status tt_decoder_read(struct tt_decoder *d, uint8_t *rgb, double *time_s, int wanted, int *got,
                               struct tt_error *err)
{
    struct tt_wire_message message;
    enum tt_status status;

    *got = 0;
    if (d->failure.status) {
        if (err)
            *err = d->failure;
        return d->failure.status;
    }
    while (*got < wanted && !d->wire.over) {
        status = tt_decoder_news(d, &message, err);
        if (status)
            return status;
        if (message.header.type == TT_WIRE_END) {
            d->truncated = message.body.end.truncated;
            break;
        }
        memcpy(rgb + (size_t)*got * TT_FRAME_BYTES,
               d->ring + (size_t)(message.body.frame.index % TT_DECODER_SLOTS) * TT_FRAME_BYTES,
               TT_FRAME_BYTES);
        time_s[(*got)++] = message.body.frame.time_s;
        if (++d->used >= CREDIT_BATCH && (status = give_credit(d, &d->failure))) {
            if (err)
                *err = d->failure;
            return status;
        }
    }
    return TT_OK;
}

const struct tt_video_info *tt_decoder_info(const struct tt_decoder *d)
{
    return &d->info;
}

bool tt_decoder_truncated(const struct tt_decoder *d)
{
    return d->truncated;
}

const char *const *tt_decoder_warnings(const struct tt_decoder *d, int *count)
{
    *count = d->wire.warnings;
    return (const char *const *)d->warnings;
}

pid_t tt_decoder_pid(const struct tt_decoder *d)
{
    return d->pid;
}

enum tt_status tt_decoder_mask(int png_fd, const struct tt_decoder_options *options, uint8_t **mask,
                               int *width, int *height, struct tt_error *err)
{
    struct tt_decoder *d;
    struct tt_wire_message message;
    uint8_t *copy;
    size_t pixels;
    enum tt_status status = tt_decoder_start(&d, png_fd, options, TT_DECODE_MASK, err);

    if (status)
        return status;
    status = tt_decoder_news(d, &message, err);
    if (status)
        goto out;
    pixels = (size_t)message.body.mask.width * (size_t)message.body.mask.height; /* <= ring_bytes */
    copy = malloc(pixels);
    if (!copy) {
        status = tt_fail(err, TT_RETRY_LATER, "no memory for a mask");
        goto out;
    }
    for (size_t i = 0; i < pixels; i++)
        copy[i] = d->ring[i] != 0;
    *mask = copy;
    *width = message.body.mask.width;
    *height = message.body.mask.height;
out:
    tt_decoder_close(d);
    return status;
}

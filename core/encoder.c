/* core/encoder.c: starts tiletrack-encode, gives it frames, and ends it.
 *
 * Invariants. Every wait has a deadline and ends where the caller wants to stop. A slot is written only while
 * the child has given it back. After any failure the child is dead and reaped.
 *
 * Fails: as the child says (a full disk, no such codec); where it dies or stands still, TT_RETRY_LATER, since
 * what it is given is our own.
 */
#include "core/encoder.h"

#include "core/encoder_wire.h"

#include <errno.h>
#include <limits.h>
#include <math.h>
#include <poll.h>
#include <signal.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

/* Of one frame: MP4 counts it in 32 bits. */
enum { LONGEST_TICKS = 10000 * TT_ENCODE_TICKS };

struct tt_encoder {
    struct tt_encoder_options options;
    pid_t pid; /* 0 once reaped */
    int control;
    uint8_t *ring; /* [TT_ENCODER_SLOTS][frame_bytes] */
    size_t frame_bytes, ring_bytes;
    int64_t put, freed; /* frames */
    int64_t last_ticks;
    double first_s;
    char codec[TT_ENCODE_TEXT_BYTES];
};

static int64_t now_ms(void)
{
    struct timespec now;

    clock_gettime(CLOCK_MONOTONIC, &now);
    return (int64_t)now.tv_sec * 1000 + now.tv_nsec / 1000000;
}

static int reap(struct tt_encoder *e)
{
    int how = -1;

    if (e->pid) {
        kill(e->pid, SIGKILL);
        while (waitpid(e->pid, &how, 0) < 0)
            if (errno != EINTR) {
                how = -1;
                break;
            }
        e->pid = 0;
    }
    return how;
}

static enum tt_status tell_death(struct tt_encoder *e, struct tt_error *err)
{
    int how = reap(e);

    if (how != -1 && WIFSIGNALED(how))
        return tt_fail(err, TT_RETRY_LATER, "the encoder was ended by SIG%s", sigabbrev_np(WTERMSIG(how)));
    return tt_fail(err, TT_RETRY_LATER, "the encoder ended without a word");
}

static enum tt_status send_message(struct tt_encoder *e, struct tt_encode_message *message,
                                   struct tt_error *err)
{
    message->magic = TT_ENCODE_MAGIC;
    if (send(e->control, message, sizeof *message, MSG_NOSIGNAL) == (ssize_t)sizeof *message ||
        errno == EPIPE || errno == ECONNRESET) /* it is gone: what it died of is the next news */
        return TT_OK;
    return tt_fail_errno(err, TT_RETRY_LATER, errno, "send to the encoder");
}

/* A whole packet, and one that may come now. */
static enum tt_status check(struct tt_encoder *e, struct tt_encode_message *message, ssize_t bytes,
                            struct tt_error *err)
{
    bool fits = bytes == (ssize_t)sizeof *message && message->magic == TT_ENCODE_MAGIC;

    if (!fits)
        return tt_fail(err, TT_REFUSE, "tiletrack-encode is of another version");
    message->text[TT_ENCODE_TEXT_BYTES - 1] = '\0';
    switch (message->type) {
    case TT_ENCODE_ERROR:
        if (message->status <= TT_OK || message->status > TT_INTERRUPTED)
            message->status = TT_RETRY_LATER;
        return tt_fail(err, (enum tt_status)message->status, "%s", message->text);
    case TT_ENCODE_FREE:
        if (message->number != e->freed || e->freed == e->put)
            break;
        e->freed++;
        return TT_OK;
    case TT_ENCODE_HELLO:
    case TT_ENCODE_END:
        return TT_OK;
    default:
        break;
    }
    return tt_fail(err, TT_RETRY_LATER, "the encoder sent a message that is wrong or out of order");
}

/* The child's next message. */
static enum tt_status hear(struct tt_encoder *e, struct tt_encode_message *message, struct tt_error *err)
{
    int64_t deadline_ms = now_ms() + (int64_t)e->options.stall_seconds * 1000;

    for (;;) {
        struct pollfd fds[2] = {{.fd = e->control, .events = POLLIN},
                                {.fd = e->options.interrupt_fd, .events = POLLIN}};
        int64_t left_ms = deadline_ms - now_ms();
        int ready = left_ms > 0 ? poll(fds, 2, (int)left_ms) : 0;
        ssize_t bytes;

        if (ready < 0 && errno != EINTR)
            return tt_fail_errno(err, TT_RETRY_LATER, errno, "poll");
        if (ready > 0 && fds[1].revents)
            return tt_fail(err, TT_INTERRUPTED, "interrupted");
        if (ready == 0)
            return tt_fail(err, TT_RETRY_LATER, "the encoder stands still: nothing for %d s",
                           e->options.stall_seconds);
        if (ready < 0 || !fds[0].revents)
            continue;
        bytes = recv(e->control, message, sizeof *message, MSG_DONTWAIT);
        if (bytes < 0 && (errno == EAGAIN || errno == EINTR || errno == ECONNRESET))
            continue; /* ECONNRESET: it ended with frames unread; its last message is still there */
        return bytes <= 0 ? tell_death(e, err) : check(e, message, bytes, err);
    }
}

/* Waits for a message of a type; FREE may come before it. */
static enum tt_status await(struct tt_encoder *e, enum tt_encode_type type, struct tt_encode_message *message,
                            struct tt_error *err)
{
    enum tt_status status;

    do
        status = hear(e, message, err);
    while (!status && message->type == TT_ENCODE_FREE && type != TT_ENCODE_FREE);
    if (!status && message->type != type)
        status = tt_fail(err, TT_RETRY_LATER, "the encoder sent a message that is out of order");
    return status;
}

static enum tt_status start(struct tt_encoder *e, int file_fd, struct tt_error *err)
{
    char program[PATH_MAX];
    int pair[2] = {-1, -1}, ring = -1, rc;
    enum tt_status status = tt_child_program(program, "tiletrack-encode", e->options.program, err);

    if (!status)
        status = tt_child_ring(&ring, &e->ring, e->ring_bytes, PROT_READ | PROT_WRITE, err);
    if (status)
        return status;
    if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, pair)) {
        close(ring);
        return tt_fail_errno(err, tt_status_of_errno(errno), errno, "socketpair");
    }
    e->control = pair[0];
    rc = tt_child_spawn(&e->pid, program, "tiletrack-encode", (const int[]){file_fd, pair[1], ring});
    close(ring);
    close(pair[1]);
    if (rc) {
        e->pid = 0;
        return tt_fail_errno(err, tt_status_of_errno(rc), rc, "start %s", program);
    }
    return TT_OK;
}

enum tt_status tt_encoder_open(struct tt_encoder **encoder, int file_fd, enum tt_encoder_kind kind,
                               const struct tt_encoder_frames *frames,
                               const struct tt_encoder_options *options, struct tt_error *err)
{
    const int width = frames->width, height = frames->height;
    const double frame_s = frames->frame_s;
    struct tt_encode_message message = {.type = TT_ENCODE_REQUEST,
                                        .frames = frames->count,
                                        .width = width,
                                        .height = height,
                                        .kind = kind,
                                        .threads = options->threads,
                                        .parent_pid = getpid()};
    struct tt_encoder *e;
    enum tt_status status;

    if (width < 1 || height < 1 || width > TT_ENCODER_SIDE_MAX || height > TT_ENCODER_SIDE_MAX)
        return tt_fail(err, TT_BAD_INPUT, "a picture of %dx%d cannot be encoded; at most %d pixels a side",
                       width, height, TT_ENCODER_SIDE_MAX);
    if (frames->count < 1 || frames->count > TT_ENCODE_FRAMES_MAX)
        return tt_fail(err, TT_BAD_INPUT, "%lld frames cannot be encoded; at most %d can",
                       (long long)frames->count, TT_ENCODE_FRAMES_MAX);
    e = calloc(1, sizeof *e);
    if (!e)
        return tt_fail(err, TT_RETRY_LATER, "no memory for an encoder");
    e->options = *options;
    e->control = -1;
    e->frame_bytes = (size_t)width * (size_t)height * 3;
    e->ring_bytes = e->frame_bytes * TT_ENCODER_SLOTS;
    message.number = (int64_t)e->ring_bytes;
    message.ticks = frame_s > 0 && frame_s < 1000 ? llround(frame_s * TT_ENCODE_TICKS) : TT_ENCODE_TICKS / 25;
    if (message.ticks < 1)
        message.ticks = 1;
    snprintf(message.text, sizeof message.text, "%s", options->codec ? options->codec : "");
    status = start(e, file_fd, err);
    if (!status)
        status = send_message(e, &message, err);
    if (!status)
        status = await(e, TT_ENCODE_HELLO, &message, err);
    if (status) {
        tt_encoder_close(e);
        return status;
    }
    memcpy(e->codec, message.text, sizeof e->codec);
    *encoder = e;
    return TT_OK;
}

const char *tt_encoder_codec(const struct tt_encoder *e)
{
    return e->codec;
}

enum tt_status tt_encoder_slot(struct tt_encoder *e, uint8_t **rgb, struct tt_error *err)
{
    struct tt_encode_message message;
    enum tt_status status = TT_OK;

    while (!status && e->put - e->freed == TT_ENCODER_SLOTS)
        status = await(e, TT_ENCODE_FREE, &message, err);
    if (!status)
        *rgb = e->ring + (size_t)(e->put % TT_ENCODER_SLOTS) * e->frame_bytes;
    return status;
}

enum tt_status tt_encoder_put(struct tt_encoder *e, double time_s, struct tt_error *err)
{
    struct tt_encode_message message = {.type = TT_ENCODE_FRAME, .number = e->put};

    if (e->put == 0)
        e->first_s = time_s;
    message.ticks = llround(fmin(time_s - e->first_s, 1e9) * TT_ENCODE_TICKS);
    if (e->put > 0 && message.ticks <= e->last_ticks)
        message.ticks = e->last_ticks + 1;
    if (message.ticks > e->last_ticks + LONGEST_TICKS)
        message.ticks = e->last_ticks + LONGEST_TICKS;
    e->last_ticks = message.ticks;
    e->put++;
    return send_message(e, &message, err);
}

enum tt_status tt_encoder_finish(struct tt_encoder *e, struct tt_error *err)
{
    struct tt_encode_message message = {.type = TT_ENCODE_END};
    enum tt_status status = send_message(e, &message, err);

    return status ? status : await(e, TT_ENCODE_END, &message, err);
}

void tt_encoder_close(struct tt_encoder *e)
{
    if (!e)
        return;
    reap(e);
    if (e->control >= 0)
        close(e->control);
    if (e->ring)
        munmap(e->ring, e->ring_bytes);
    free(e);
}

pid_t tt_encoder_pid(const struct tt_encoder *e)
{
    return e->pid;
}

/* daemon/supervisor/link.c: a worker process under libuv.
 *
 * Invariants: `ended` is called exactly once for every link that tt_link_start returned, after the last
 * message; the memory goes in the close callback of the last handle. What the worker sends is believed only
 * as far as core/message.c checks it; a worker that breaks the protocol is killed. Fails as the header says.
 */
#include "daemon/supervisor/link.h"

#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

enum {
    UNREAD_MAX = 1 << 20, /* bytes that wait for a worker that does not read */
    LINGER_MS = 1000,     /* from the end of the stream to the end of the process */
};

struct tt_link {
    uv_process_t process;
    uv_pipe_t pipe;
    uv_timer_t linger;
    int handles; /* that are not closed yet */
    struct tt_link_hooks hooks;
    bool silent; /* it never started: nobody is told */
    bool exited, at_end, closing;
    struct tt_link_end end;
    char problem[TT_ERROR_TEXT_BYTES];
    struct tt_inbox inbox;
};

struct parcel {
    uv_write_t request;
    uint8_t bytes[];
};

/* --- the end ----------------------------------------------------------------------------------------------
 */

static void on_closed(uv_handle_t *handle)
{
    struct tt_link *link = handle->data;

    if (--link->handles > 0)
        return;
    if (!link->silent)
        link->hooks.ended(link->hooks.user, &link->end);
    free(link);
}

static void close_all(struct tt_link *link)
{
    uv_handle_t *handles[] = {(uv_handle_t *)&link->process, (uv_handle_t *)&link->pipe,
                              (uv_handle_t *)&link->linger};

    if (link->closing)
        return;
    link->closing = true;
    for (size_t i = 0; i < sizeof handles / sizeof *handles; i++)
        uv_close(handles[i], on_closed);
}

/* The process is of no use any more. */
static void give_up(struct tt_link *link, const char *why)
{
    if (!link->problem[0])
        snprintf(link->problem, sizeof link->problem, "%s", why);
    link->at_end = true;
    uv_read_stop((uv_stream_t *)&link->pipe);
    tt_link_signal(link, SIGKILL);
}

static void on_linger(uv_timer_t *timer)
{
    give_up(timer->data, "it closed its stream and lived on");
}

/* --- what it says -----------------------------------------------------------------------------------------
 */

static void take_messages(struct tt_link *link)
{
    struct tt_message message;
    struct tt_error err;

    while (!link->at_end) {
        if (tt_inbox_next(&link->inbox, &message, &err)) {
            give_up(link, err.text);
            return;
        }
        if (message.type == TT_MESSAGE_NONE)
            return;
        if (message.type < TT_MESSAGE_HELLO) {
            give_up(link, "it sent what only a supervisor may");
            return;
        }
        link->hooks.message(link->hooks.user, &message);
    }
}

static void on_room(uv_handle_t *handle, size_t suggested, uv_buf_t *buffer)
{
    struct tt_link *link = handle->data;
    uint8_t *at;
    size_t bytes = tt_inbox_room(&link->inbox, &at);

    (void)suggested;
    *buffer = uv_buf_init((char *)at, (unsigned)bytes);
}

static void on_read(uv_stream_t *stream, ssize_t got, const uv_buf_t *buffer)
{
    struct tt_link *link = stream->data;

    (void)buffer;
    if (got > 0) {
        tt_inbox_filled(&link->inbox, (size_t)got);
        take_messages(link);
    } else if (got < 0) {
        link->at_end = true;
        uv_read_stop(stream);
        uv_timer_start(&link->linger, on_linger, LINGER_MS, 0);
    }
}

/* What a process that is gone has left in the stream. */
static void read_rest(struct tt_link *link)
{
    uv_os_fd_t fd;

    if (uv_fileno((uv_handle_t *)&link->pipe, &fd) < 0)
        return;
    while (!link->at_end) {
        uint8_t *at;
        size_t room = tt_inbox_room(&link->inbox, &at);
        ssize_t got = recv(fd, at, room, MSG_DONTWAIT);

        if (got < 0 && errno == EINTR)
            continue;
        if (got <= 0)
            break;
        tt_inbox_filled(&link->inbox, (size_t)got);
        take_messages(link);
    }
    link->at_end = true;
}

static void on_exit_of_process(uv_process_t *process, int64_t exit_status, int signal)
{
    struct tt_link *link = process->data;

    link->exited = true;
    read_rest(link);
    link->end =
        (struct tt_link_end){.exit_status = (int)exit_status, .signal = signal, .problem = link->problem};
    close_all(link);
}

/* --- starting, sending ------------------------------------------------------------------------------------
 */

static enum tt_status spawn(struct tt_link *link, uv_loop_t *loop, const char *program, struct tt_error *err)
{
    char *arguments[] = {(char *)program, NULL};
    uv_stdio_container_t stdio[TT_MESSAGE_FD + 1] = {
        [0] = {.flags = UV_IGNORE},
        [1] = {.flags = UV_INHERIT_FD, .data.fd = STDERR_FILENO},
        [2] = {.flags = UV_INHERIT_FD, .data.fd = STDERR_FILENO},
        [TT_MESSAGE_FD] = {.flags = UV_CREATE_PIPE | UV_READABLE_PIPE | UV_WRITABLE_PIPE,
                           .data.stream = (uv_stream_t *)&link->pipe},
    };
    uv_process_options_t options = {.exit_cb = on_exit_of_process,
                                    .file = program,
                                    .args = arguments,
                                    .stdio_count = TT_MESSAGE_FD + 1,
                                    .stdio = stdio};
    int problem = uv_spawn(loop, &link->process, &options);

    if (problem == 0)
        problem = uv_read_start((uv_stream_t *)&link->pipe, on_room, on_read);
    if (problem == 0)
        return TT_OK;
    return tt_fail_errno(err, tt_status_of_errno(-problem), -problem, "starting %s", program);
}

enum tt_status tt_link_start(struct tt_link **link, uv_loop_t *loop, const char *program,
                             const struct tt_link_hooks *hooks, struct tt_error *err)
{
    struct tt_link *made = calloc(1, sizeof *made);
    enum tt_status status;

    if (!made)
        return tt_fail_errno(err, TT_RETRY_LATER, ENOMEM, "starting %s", program);
    made->hooks = *hooks;
    made->handles = 3;
    uv_timer_init(loop, &made->linger);
    uv_pipe_init(loop, &made->pipe, 0);
    made->process.data = made->pipe.data = made->linger.data = made;
    status = spawn(made, loop, program, err); /* the process is a handle of the loop also where this fails */
    if (status) {
        made->silent = true;
        tt_link_signal(made, SIGKILL);
        close_all(made);
    } else {
        *link = made;
    }
    return status;
}

static void on_written(uv_write_t *request, int problem)
{
    (void)problem; /* a worker that is gone ends the link by itself */
    free(request->data);
}

enum tt_status tt_link_send(struct tt_link *link, const struct tt_message *message, struct tt_error *err)
{
    static uint8_t
        encoded[TT_MESSAGE_BYTES_MAX]; /* too large for the stack; only the loop's thread is here */
    struct parcel *parcel;
    uv_buf_t buffer;
    size_t size;
    enum tt_status status = tt_message_encode(message, encoded, &size, err);
    int problem;

    if (status)
        return status;
    if (link->at_end || uv_stream_get_write_queue_size((uv_stream_t *)&link->pipe) > UNREAD_MAX)
        return tt_fail(err, TT_RESTART_WORKER, "the worker does not read what it is told");
    parcel = malloc(sizeof *parcel + size);
    if (!parcel)
        return tt_fail_errno(err, TT_RESTART_WORKER, ENOMEM, "message %s", tt_message_names[message->type]);
    memcpy(parcel->bytes, encoded, size);
    parcel->request.data = parcel;
    buffer = uv_buf_init((char *)parcel->bytes, (unsigned)size);
    problem = uv_write(&parcel->request, (uv_stream_t *)&link->pipe, &buffer, 1, on_written);
    if (problem == 0)
        return TT_OK;
    free(parcel);
    return tt_fail_errno(err, TT_RESTART_WORKER, -problem, "message %s", tt_message_names[message->type]);
}

void tt_link_signal(struct tt_link *link, int signal)
{
    if (!link->exited && uv_is_active((uv_handle_t *)&link->process))
        uv_process_kill(&link->process, signal);
}

int tt_link_pid(const struct tt_link *link)
{
    return uv_process_get_pid(&link->process);
}

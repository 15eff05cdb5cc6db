/* daemon/report/control.c: clients of the control socket.
 *
 * Invariants: of each client at most one line is held and one answer is on its way; while it is, nothing is
 * read from it. A client's memory goes when its handles are closed. Fails: only tt_control_open does; a
 * client in trouble is cut off.
 */
#include "daemon/report/control.h"

#include <errno.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

enum { BACKLOG = 500, PATH_BYTES = sizeof(((struct sockaddr_un *)0)->sun_path) - 1 };

struct client {
    struct tt_control *control;
    struct client *next, **link; /* in the list; at its end: the one that was silent for longest */
    uv_pipe_t pipe;
    uv_timer_t limit;
    uv_write_t write;
    int handles;
    bool closing;
    char *answer; /* that is on its way */
    size_t used;
    char line[TT_CONTROL_LINE_MAX + 1];
};

struct tt_control {
    uv_loop_t *loop;
    uv_pipe_t listener;
    tt_control_answer *answer;
    void *user;
    struct client *clients;
    int count;
};

/* --- clients ----------------------------------------------------------------------------------------------
 */

static void unlink_client(struct client *client)
{
    *client->link = client->next;
    if (client->next)
        client->next->link = client->link;
}

static void link_client(struct client *client)
{
    struct tt_control *control = client->control;

    client->next = control->clients;
    client->link = &control->clients;
    if (client->next)
        client->next->link = &client->next;
    control->clients = client;
}

static void on_closed(uv_handle_t *handle)
{
    struct client *client = handle->data;

    if (--client->handles == 0) {
        free(client->answer);
        free(client);
    }
}

static void cut_off(struct client *client)
{
    if (client->closing)
        return;
    client->closing = true;
    unlink_client(client);
    client->control->count--;
    uv_close((uv_handle_t *)&client->pipe, on_closed);
    uv_close((uv_handle_t *)&client->limit, on_closed);
}

static void on_limit(uv_timer_t *timer)
{
    cut_off(timer->data);
}

/* It did something: its time begins anew. */
static void is_alive(struct client *client)
{
    unlink_client(client);
    link_client(client);
    uv_timer_start(&client->limit, on_limit, TT_CONTROL_WAIT_MS, 0);
}

static void on_room(uv_handle_t *handle, size_t suggested, uv_buf_t *buffer);
static void on_read(uv_stream_t *stream, ssize_t got, const uv_buf_t *buffer);
static void answer_next(struct client *client);

static void on_written(uv_write_t *write, int problem)
{
    struct client *client = write->data;

    free(client->answer);
    client->answer = NULL;
    if (client->closing)
        return;
    if (problem) {
        cut_off(client);
        return;
    }
    is_alive(client);
    answer_next(client);
}

/* Takes answer, to which a newline is put. */
static void send_answer(struct client *client, char *answer)
{
    size_t bytes = strlen(answer);
    uv_buf_t buffer = uv_buf_init(answer, (unsigned)bytes + 1);

    answer[bytes] = '\n'; /* in place of its NUL: the length is kept */
    client->answer = answer;
    client->write.data = client;
    uv_read_stop((uv_stream_t *)&client->pipe);
    if (uv_write(&client->write, (uv_stream_t *)&client->pipe, &buffer, 1, on_written))
        cut_off(client);
}

static bool read_on(struct client *client)
{
    uv_stream_t *stream = (uv_stream_t *)&client->pipe;

    return uv_is_active((uv_handle_t *)stream) || uv_read_start(stream, on_room, on_read) == 0;
}

/* Answers the first whole line that is held, or reads on. */
static void answer_next(struct client *client)
{
    char *newline = memchr(client->line, '\n', client->used), *answer;
    size_t taken;

    if (!newline) {
        if (client->used == TT_CONTROL_LINE_MAX || !read_on(client))
            cut_off(client);
        return;
    }
    *newline = '\0';
    taken = (size_t)(newline - client->line) + 1;
    answer = strlen(client->line) == taken - 1 ? client->control->answer(client->control->user, client->line)
                                               : NULL; /* a NUL within a line is no text */
    memmove(client->line, newline + 1, client->used - taken);
    client->used -= taken;
    if (answer)
        send_answer(client, answer);
    else
        cut_off(client);
}

static void on_room(uv_handle_t *handle, size_t suggested, uv_buf_t *buffer)
{
    struct client *client = handle->data;

    (void)suggested;
    *buffer = uv_buf_init(client->line + client->used, (unsigned)(TT_CONTROL_LINE_MAX - client->used));
}

static void on_read(uv_stream_t *stream, ssize_t got, const uv_buf_t *buffer)
{
    struct client *client = stream->data;

    (void)buffer;
    if (got < 0) {
        cut_off(client);
    } else if (got > 0) {
        client->used += (size_t)got;
        is_alive(client);
        answer_next(client);
    }
}

static void cut_off_oldest(struct tt_control *control)
{
    struct client *client = control->clients;

    while (client->next)
        client = client->next;
    cut_off(client);
}

static void on_client(uv_stream_t *stream, int problem)
{
    struct tt_control *control = stream->data;
    struct client *client = problem ? NULL : calloc(1, sizeof *client);

    if (!client)
        return;
    if (control->count == TT_CONTROL_CLIENTS)
        cut_off_oldest(control);
    client->control = control;
    client->handles = 2;
    uv_pipe_init(control->loop, &client->pipe, 0);
    uv_timer_init(control->loop, &client->limit);
    client->pipe.data = client->limit.data = client;
    link_client(client);
    control->count++;
    uv_timer_start(&client->limit, on_limit, TT_CONTROL_WAIT_MS, 0);
    if (uv_accept(stream, (uv_stream_t *)&client->pipe) || !read_on(client))
        cut_off(client);
}

/* --- the listener -----------------------------------------------------------------------------------------
 */

/* Whether somebody listens there. */
static bool is_in_use(const char *path)
{
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    bool used;

    if (fd < 0)
        return false;
    snprintf(address.sun_path, sizeof address.sun_path, "%s", path);
    used = connect(fd, (const struct sockaddr *)&address, sizeof address) == 0 || errno == EAGAIN;
    close(fd);
    return used;
}

/* Removes a socket that a dead daemon has left. Nothing else is removed. */
static enum tt_status make_room(const char *path, struct tt_error *err)
{
    struct stat st;

    if (lstat(path, &st) < 0)
        return TT_OK;
    if (!S_ISSOCK(st.st_mode))
        return tt_fail(err, TT_REFUSE, "control socket %s: there is something else", path);
    if (is_in_use(path))
        return tt_fail(err, TT_REFUSE, "control socket %s: another daemon listens there", path);
    if (unlink(path) < 0)
        return tt_fail_errno(err, TT_REFUSE, errno, "control socket %s", path);
    return TT_OK;
}

static void on_listener_closed(uv_handle_t *handle)
{
    free(handle->data);
}

enum tt_status tt_control_open(struct tt_control **control, uv_loop_t *loop, const char *path,
                               tt_control_answer *answer, void *user, struct tt_error *err)
{
    struct tt_control *made;
    mode_t mask;
    int problem;
    enum tt_status status;

    if (strlen(path) > PATH_BYTES)
        return tt_fail(err, TT_REFUSE, "control socket %s: the path is longer than %d bytes", path,
                       PATH_BYTES);
    status = make_room(path, err);
    if (status)
        return status;
    made = calloc(1, sizeof *made);
    if (!made)
        return tt_fail_errno(err, TT_RETRY_LATER, ENOMEM, "control socket");
    made->loop = loop;
    made->answer = answer;
    made->user = user;
    uv_pipe_init(loop, &made->listener, 0);
    made->listener.data = made;
    mask = umask(0117);
    problem = uv_pipe_bind(&made->listener, path);
    umask(mask);
    if (!problem)
        problem = uv_listen((uv_stream_t *)&made->listener, BACKLOG, on_client);
    if (problem) {
        uv_close((uv_handle_t *)&made->listener, on_listener_closed);
        return tt_fail_errno(err, TT_REFUSE, -problem, "control socket %s", path);
    }
    *control = made;
    return TT_OK;
}

int tt_control_clients(const struct tt_control *control)
{
    return control->count;
}

void tt_control_close(struct tt_control *control)
{
    if (!control)
        return;
    while (control->clients)
        cut_off(control->clients);
    uv_close((uv_handle_t *)&control->listener, on_listener_closed); /* removes the socket, too */
}

/* daemon/jobs/hook.c: the program of on_done under libuv.
 *
 * Invariants: at most RUNNING_MAX run and WAITING_MAX wait; what is more is dropped and said. Each is killed
 * after LIMIT_MS. A call's memory goes when its handles are closed.
 */
#include "daemon/jobs/hook.h"

#include <errno.h>
#include <signal.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { RUNNING_MAX = 4, WAITING_MAX = 10000, LIMIT_MS = 60000 };

struct call {
    struct tt_hook *hook;
    struct call *next;
    uv_process_t process;
    uv_timer_t limit;
    int handles;
    bool late;
    char *program, *job, *file;
    char *arguments[TT_OUTPUTS + 2]; /* the program, its results, NULL */
};

struct tt_hook {
    uv_loop_t *loop;
    struct tt_log *log;
    int64_t *failures;
    struct call *first, **last; /* that wait */
    struct call *running;       /* a list too */
    int waiting, active;
};

static void start_next(struct tt_hook *hook);

static void free_call(struct call *call)
{
    free(call->program);
    free(call->job);
    free(call->file);
    for (int i = 0; i < TT_OUTPUTS; i++)
        free(call->arguments[i + 1]);
    free(call);
}

static void say_failed(const struct call *call, int status, int signal, const char *cause)
{
    ++*call->hook->failures;
    tt_log(call->hook->log, TT_LOG_WARNING, "on_done_failed", TT_STR("job", call->job),
           TT_STR("file", call->file), TT_INT("status", status), TT_INT("signal", signal),
           TT_STR("cause", cause));
}

static void on_closed(uv_handle_t *handle)
{
    struct call *call = handle->data;
    struct tt_hook *hook = call->hook;

    if (--call->handles > 0)
        return;
    for (struct call **at = &hook->running; *at; at = &(*at)->next)
        if (*at == call) {
            *at = call->next;
            break;
        }
    hook->active--;
    free_call(call);
    start_next(hook);
}

static void close_call(struct call *call)
{
    uv_close((uv_handle_t *)&call->process, on_closed);
    uv_close((uv_handle_t *)&call->limit, on_closed);
}

static void on_ended(uv_process_t *process, int64_t status, int signal)
{
    struct call *call = process->data;

    if (status != 0 || signal != 0)
        say_failed(call, (int)status, signal, call->late ? "it took too long" : "it failed");
    close_call(call);
}

static void on_limit(uv_timer_t *timer)
{
    struct call *call = timer->data;

    call->late = true;
    uv_process_kill(&call->process, SIGKILL);
}

static void start_call(struct call *call)
{
    struct tt_hook *hook = call->hook;
    uv_stdio_container_t stdio[3] = {{.flags = UV_IGNORE},
                                     {.flags = UV_INHERIT_FD, .data.fd = STDERR_FILENO},
                                     {.flags = UV_INHERIT_FD, .data.fd = STDERR_FILENO}};
    uv_process_options_t options = {.exit_cb = on_ended,
                                    .file = call->program,
                                    .args = call->arguments,
                                    .stdio_count = 3,
                                    .stdio = stdio};
    int problem;

    call->next = hook->running;
    hook->running = call;
    hook->active++;
    call->handles = 2;
    call->process.data = call->limit.data = call;
    uv_timer_init(hook->loop, &call->limit);
    problem = uv_spawn(hook->loop, &call->process, &options);
    if (problem) {
        say_failed(call, -1, 0, uv_strerror(problem));
        close_call(call);
        return;
    }
    uv_timer_start(&call->limit, on_limit, LIMIT_MS, 0);
}

static void start_next(struct tt_hook *hook)
{
    while (hook->first && hook->active < RUNNING_MAX) {
        struct call *call = hook->first;

        hook->first = call->next;
        if (!hook->first)
            hook->last = &hook->first;
        hook->waiting--;
        start_call(call);
    }
}

void tt_hook_run(struct tt_hook *hook, const char *program, const char *job, const char *file,
                 char *const *results)
{
    struct call *call = calloc(1, sizeof *call);
    bool complete;

    if (!call)
        return;
    *call = (struct call){.hook = hook, .program = strdup(program), .job = strdup(job), .file = strdup(file)};
    complete = call->program && call->job && call->file;
    call->arguments[0] = call->program;
    for (int i = 0; i < TT_OUTPUTS && results[i]; i++)
        complete &= (call->arguments[i + 1] = strdup(results[i])) != NULL;
    if (!complete || hook->waiting >= WAITING_MAX) {
        say_failed(call, -1, 0, complete ? "too many wait to be run" : "memory is short");
        free_call(call);
        return;
    }
    *hook->last = call;
    hook->last = &call->next;
    hook->waiting++;
    start_next(hook);
}

int tt_hook_busy(const struct tt_hook *hook)
{
    return hook->active + hook->waiting;
}

static void drop_waiting(struct tt_hook *hook)
{
    while (hook->first) {
        struct call *call = hook->first;

        hook->first = call->next;
        free_call(call);
    }
    hook->last = &hook->first;
    hook->waiting = 0;
}

void tt_hook_stop(struct tt_hook *hook)
{
    drop_waiting(hook);
    for (struct call *call = hook->running; call; call = call->next)
        if (uv_is_active((uv_handle_t *)&call->process))
            uv_process_kill(&call->process, SIGKILL);
}

enum tt_status tt_hook_create(struct tt_hook **hook, uv_loop_t *loop, struct tt_log *log, int64_t *failures,
                              struct tt_error *err)
{
    struct tt_hook *made = calloc(1, sizeof *made);

    if (!made)
        return tt_fail_errno(err, TT_RETRY_LATER, ENOMEM, "hook");
    *made = (struct tt_hook){.loop = loop, .log = log, .failures = failures};
    made->last = &made->first;
    *hook = made;
    return TT_OK;
}

void tt_hook_free(struct tt_hook *hook)
{
    if (!hook)
        return;
    drop_waiting(hook);
    free(hook);
}

/* daemon/worker/main.c: tiletrack-worker: one device, one job at a time, for tiletrackd.
 *
 * Started by the supervisor with the stream that core/message.h describes as descriptor TT_MESSAGE_FD. It
 * opens its device, says hello, and serves jobs until it is told to stop or nobody is there any more. It
 * links neither libav* (videos are opened by tiletrack-decode) nor libuv nor libyaml. What it can lose is its
 * own: results appear whole or not at all, and a job's input is never touched.
 *
 * Three threads beside the backend's: the work loop (this one), control.c, prefetch.c.
 */
#include "daemon/worker/serve.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <time.h>
#include <unistd.h>

static int64_t now_ms(void)
{
    struct timespec now;

    clock_gettime(CLOCK_MONOTONIC, &now);
    return (int64_t)now.tv_sec * 1000 + now.tv_nsec / 1000000;
}

/* No more rights than it has, no core files, no life without the supervisor; a Ctrl-C at the terminal is the
 * supervisor's business. */
static enum tt_status confine(struct tt_error *err)
{
    static const int ignored[] = {SIGINT, SIGHUP, SIGPIPE, SIGXFSZ, SIGUSR1, SIGUSR2};
    const struct rlimit none = {0, 0};
    sigset_t term;

    for (size_t i = 0; i < sizeof ignored / sizeof ignored[0]; i++)
        signal(ignored[i], SIG_IGN);
    sigemptyset(&term);
    sigaddset(&term, SIGTERM);
    sigprocmask(SIG_BLOCK, &term, NULL);
    if (prctl(PR_SET_PDEATHSIG, SIGKILL) < 0 || prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) < 0 ||
        setrlimit(RLIMIT_CORE, &none) < 0 || fcntl(TT_MESSAGE_FD, F_SETFD, FD_CLOEXEC) < 0)
        return tt_fail_errno(err, TT_REFUSE, errno, "confine the worker");
    return TT_OK;
}

/* A supervisor of another version learns of it from this message's header. */
static void refuse(const struct tt_error *err)
{
    const struct tt_message message = {
        .type = TT_MESSAGE_HELLO, .body.hello = {.pid = getpid(), .status = err->status, .text = err->text}};

    tt_message_send(TT_MESSAGE_FD, &message, NULL);
}

/* SETUP, which is the first message. Its texts borrow `first`; what came behind it goes to `rest`. */
static enum tt_status hear_setup(struct tt_inbox *first, struct tt_inbox *rest, struct tt_message *message,
                                 struct tt_error *err)
{
    enum tt_status status = tt_message_receive(TT_MESSAGE_FD, first, message, err);
    uint8_t *at;

    if (status == TT_REFUSE)
        refuse(err);
    if (status)
        return status;
    tt_inbox_room(rest, &at);
    memcpy(at, first->bytes + first->begin, first->end - first->begin);
    tt_inbox_filled(rest, first->end - first->begin);
    if (message->type != TT_MESSAGE_SETUP)
        return tt_fail(err, TT_RESTART_WORKER, "the first message is %s, not setup",
                       tt_message_names[message->type]);
    if (message->body.setup.supervisor != getppid()) /* it died before PR_SET_PDEATHSIG */
        return tt_fail(err, TT_RESTART_WORKER, "the supervisor is not the parent process");
    return TT_OK;
}

static struct tt_log_options log_options(const struct tt_message_setup *setup)
{
    return (struct tt_log_options){
        .program = "tiletrack-worker",
        .worker = setup->worker,
        .level = (enum tt_log_level)setup->log_level,
        .format = (enum tt_log_format)setup->log_format,
        .file = setup->log_file[0] ? setup->log_file : NULL,
        .fd = STDERR_FILENO,
        .burst = setup->log_burst,
    };
}

/* What the worker needs before its device. The inbox goes to the control's thread. */
static enum tt_status start(struct tt_worker *worker, struct tt_inbox *inbox, struct tt_error *err)
{
    struct tt_log_options options = log_options(worker->setup);
    enum tt_status status = tt_log_open(&worker->log, &options, err);

    if (status)
        return status;
    worker->fd = TT_MESSAGE_FD;
    worker->stop_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    if (worker->stop_fd < 0)
        return tt_fail_errno(err, TT_RETRY_LATER, errno, "eventfd");
    status = tt_prefetch_start(&worker->prefetch, worker->stop_fd, worker->log, err);
    if (!status)
        status = tt_control_start(&worker->control, worker->fd, worker->stop_fd, inbox, worker->prefetch,
                                  worker->log, err);
    return status;
}

/* Opens the device and says hello, whatever came of it. */
static enum tt_status say_hello(struct tt_worker *worker, int64_t since_ms)
{
    struct tt_slot *slot = &worker->slot;
    struct tt_error err = {.text = ""};
    enum tt_selftest_outcome selftest;
    struct tt_message message = {.type = TT_MESSAGE_HELLO};
    struct tt_message_hello *hello = &message.body.hello;
    enum tt_status status =
        tt_slot_open(slot, worker->setup, tt_control_stop_flag(worker->control), &selftest, &err);

    *hello = (struct tt_message_hello){.pid = getpid(),
                                       .status = status,
                                       .text = err.text,
                                       .selftest = selftest,
                                       .backend = worker->setup->backend,
                                       .start_ms = now_ms() - since_ms};
    if (status == TT_OK) {
        const struct tt_plan *plan = slot->ops->plan(slot->backend);

        snprintf(worker->model, sizeof worker->model, "%s", worker->setup->model);
        hello->device = slot->ops->describe(slot->backend);
        hello->model = tt_weights_name(slot->weights);
        hello->model_sha256 = tt_weights_sha256(slot->weights);
        hello->precision = plan->precision;
        hello->tile_queries = plan->tile.queries;
        hello->tile_frames = plan->tile.frames;
        hello->memory_bytes = plan->memory_bytes;
        if (slot->shrunk)
            tt_log(worker->log, TT_LOG_WARNING, "tile_shrunk", TT_INT("queries", plan->tile.queries),
                   TT_INT("frames", plan->tile.frames));
    }
    tt_worker_send(worker, &message);
    return status;
}

static enum tt_worker_exit serve_all(struct tt_worker *worker)
{
    struct tt_message message;

    for (;;) {
        tt_control_next(worker->control, &message);
        if (message.type == TT_MESSAGE_NONE)
            return tt_control_exit(worker->control);
        if (message.type == TT_MESSAGE_PING) {
            message.type = TT_MESSAGE_PONG;
            tt_worker_send(worker, &message);
            continue;
        }
        if (tt_worker_serve(worker, &message.body.job) == TT_RESTART_WORKER)
            return TT_WORKER_LOST;
    }
}

int main(int argc, char **argv)
{
    static struct tt_inbox first, inbox;
    struct tt_worker worker = {.stop_fd = -1};
    struct tt_message setup;
    struct tt_error err = {.text = ""};
    enum tt_worker_exit code;
    int64_t since_ms = now_ms();
    enum tt_status status;

    if (argc == 2 && strcmp(argv[1], "--version") == 0) {
        printf("tiletrack-worker %s, protocol %d\n", TT_VERSION, TT_MESSAGE_VERSION);
        return 0;
    }
    status = confine(&err);
    if (!status)
        status = hear_setup(&first, &inbox, &setup, &err);
    worker.setup = &setup.body.setup;
    if (!status)
        status = start(&worker, &inbox, &err);
    if (status) {
        fprintf(stderr, "tiletrack-worker is started by tiletrackd, not by hand (%s)\n", err.text);
        return TT_WORKER_PROTOCOL;
    }
    status = say_hello(&worker, since_ms);
    if (status == TT_OK)
        code = serve_all(&worker);
    else
        code = status == TT_INTERRUPTED ? tt_control_exit(worker.control) : TT_WORKER_UNUSABLE;
    tt_control_end(worker.control);
    tt_prefetch_stop(worker.prefetch);
    if (code != TT_WORKER_LOST) /* a lost device may not come back from close */
        tt_slot_close(&worker.slot);
    tt_log_close(worker.log);
    _exit(code); /* nothing of a lost device's library runs any more */
}

/* daemon/worker/control.c: reads what the supervisor says.
 *
 * Invariants: one mutex guards the orders; the stop flag and the stop descriptor change together. The thread
 * ends when the stream does, at SIGTERM, SHUTDOWN or the first message that makes no sense; from then on
 * tt_control_next gives nothing. A job's texts live in an inbox of their own, because the thread reads on.
 * SIGTERM has a handler, for libraries (OpenBLAS) start threads before main that do not block it: whichever
 * thread takes it, an eventfd tells ours.
 */
#include "daemon/worker/control.h"

#include <errno.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

enum { NO_PING = -1 };

static int term_fd = -1; /* of the process: readable once SIGTERM has come */

struct tt_control {
    int fd, stop_fd;
    struct tt_inbox *inbox;
    struct tt_prefetch *prefetch;
    struct tt_log *log;
    pthread_t thread;

    atomic_bool stop;
    pthread_mutex_t mutex; /* of all below */
    pthread_cond_t changed;
    enum tt_failed_cause cause; /* while stop is set */
    bool over;                  /* no more jobs */
    enum tt_worker_exit exit;
    int64_t ping; /* serial, or NO_PING */
    bool job_waits, job_runs;
    struct tt_message job;
    int turn; /* of the two: the one before may still be told of when the next comes */
    struct tt_inbox job_inbox[2];
};

/* With the mutex held. */
static void stop_job(struct tt_control *c, enum tt_failed_cause cause)
{
    static const uint64_t one = 1;

    if (atomic_exchange(&c->stop, true))
        return;
    c->cause = cause;
    if (write(c->stop_fd, &one, sizeof one) < 0) {
        /* The flag is set all the same; the descriptor only wakes a read that is waiting. */
    }
}

/* With the mutex held. */
static void end(struct tt_control *c, enum tt_worker_exit code, bool now)
{
    if (!c->over)
        c->exit = code;
    c->over = true;
    if (now)
        stop_job(c, TT_FAILED_SHUTDOWN);
    pthread_cond_broadcast(&c->changed);
}

static void break_off(struct tt_control *c, const char *cause)
{
    tt_log(c->log, TT_LOG_ERROR, "protocol_broken", TT_STR("cause", cause));
    end(c, TT_WORKER_PROTOCOL, true);
}

/* Keeps the job's texts in an inbox of its own. */
static void keep_job(struct tt_control *c, const struct tt_message *message)
{
    struct tt_inbox *inbox;
    uint8_t *at;
    size_t size;

    if (c->job_waits || c->job_runs) {
        break_off(c, "a job before the one before it was over");
        return;
    }
    c->turn = !c->turn;
    inbox = &c->job_inbox[c->turn];
    inbox->begin = inbox->end = 0;
    tt_inbox_room(inbox, &at);
    if (tt_message_encode(message, at, &size, NULL) == TT_OK) {
        tt_inbox_filled(inbox, size);
        tt_inbox_next(inbox, &c->job, NULL);
        c->job_waits = true;
        pthread_cond_broadcast(&c->changed);
    }
}

/* With the mutex held. */
static void take(struct tt_control *c, const struct tt_message *message)
{
    switch (message->type) {
    case TT_MESSAGE_JOB:
        keep_job(c, message);
        break;
    case TT_MESSAGE_CANCEL:
        if ((c->job_waits || c->job_runs) && strcmp(message->body.cancel.id, c->job.body.job.id) == 0)
            stop_job(c, TT_FAILED_CANCELLED);
        break;
    case TT_MESSAGE_PING:
        c->ping = message->body.ping.serial;
        pthread_cond_broadcast(&c->changed);
        break;
    case TT_MESSAGE_SHUTDOWN:
        end(c, TT_WORKER_ENDED, message->body.shutdown.now);
        break;
    case TT_MESSAGE_PREFETCH:
        tt_prefetch_ask(c->prefetch, &message->body.prefetch);
        break;
    case TT_MESSAGE_REOPEN_LOG:
        tt_log_reopen(c->log, NULL);
        break;
    default:
        break_off(c, tt_message_names[message->type]);
    }
}

/* Takes all messages that are whole. */
static void take_all(struct tt_control *c)
{
    struct tt_message message;
    struct tt_error err;

    pthread_mutex_lock(&c->mutex);
    do {
        if (tt_inbox_next(c->inbox, &message, &err))
            break_off(c, err.text);
        else if (message.type != TT_MESSAGE_NONE)
            take(c, &message);
    } while (message.type != TT_MESSAGE_NONE && !(c->over && c->exit == TT_WORKER_PROTOCOL));
    pthread_mutex_unlock(&c->mutex);
}

static void hear(struct tt_control *c)
{
    uint8_t *at;
    size_t room = tt_inbox_room(c->inbox, &at);
    ssize_t got = read(c->fd, at, room);

    if (got > 0) {
        tt_inbox_filled(c->inbox, (size_t)got);
        take_all(c);
    } else if (got == 0 || errno != EINTR) {
        tt_control_give_up(c, TT_WORKER_ENDED);
    }
}

static bool is_over(struct tt_control *c)
{
    bool over;

    pthread_mutex_lock(&c->mutex);
    over =
        c->over && atomic_load(&c->stop); /* a SHUTDOWN that waits for the job may become one that does not */
    pthread_mutex_unlock(&c->mutex);
    return over;
}

static void on_term(int number)
{
    static const uint64_t one = 1;
    int kept = errno;

    (void)number;
    if (write(term_fd, &one, sizeof one) < 0) {
        /* It is full: it has been told often enough. */
    }
    errno = kept;
}

/* From here on this thread takes the signal, and one that waited. */
static void unblock_term(void)
{
    sigset_t term;

    sigemptyset(&term);
    sigaddset(&term, SIGTERM);
    pthread_sigmask(SIG_UNBLOCK, &term, NULL);
}

static void *run(void *user)
{
    struct tt_control *c = user;

    unblock_term();
    take_all(c);
    while (!is_over(c)) {
        struct pollfd fds[] = {{.fd = c->fd, .events = POLLIN}, {.fd = term_fd, .events = POLLIN}};

        if (poll(fds, 2, -1) < 0)
            continue;
        if (fds[1].revents)
            tt_control_give_up(c, TT_WORKER_ENDED);
        else if (fds[0].revents)
            hear(c);
    }
    return NULL;
}

enum tt_status tt_control_start(struct tt_control **control, int fd, int stop_fd, struct tt_inbox *inbox,
                                struct tt_prefetch *prefetch, struct tt_log *log, struct tt_error *err)
{
    struct tt_control *made = calloc(1, sizeof *made);
    const struct sigaction told = {.sa_handler = on_term, .sa_flags = SA_RESTART};
    int rc;

    if (!made)
        return tt_fail_errno(err, TT_RETRY_LATER, ENOMEM, "control");
    made->fd = fd;
    made->stop_fd = stop_fd;
    made->inbox = inbox;
    made->prefetch = prefetch;
    made->log = log;
    made->ping = NO_PING;
    pthread_mutex_init(&made->mutex, NULL);
    pthread_cond_init(&made->changed, NULL);
    term_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    rc = term_fd < 0 || sigaction(SIGTERM, &told, NULL) < 0 ? errno
                                                            : pthread_create(&made->thread, NULL, run, made);
    if (rc) {
        free(made);
        return tt_fail_errno(err, TT_RETRY_LATER, rc, "control");
    }
    *control = made;
    return TT_OK;
}

void tt_control_next(struct tt_control *c, struct tt_message *message)
{
    *message = (struct tt_message){.type = TT_MESSAGE_NONE};
    pthread_mutex_lock(&c->mutex);
    while (!c->job_waits && !c->over && c->ping == NO_PING)
        pthread_cond_wait(&c->changed, &c->mutex);
    if (c->ping != NO_PING) {
        message->type = TT_MESSAGE_PING;
        message->body.ping.serial = c->ping;
        c->ping = NO_PING;
    } else if (c->job_waits) {
        c->job_waits = false;
        c->job_runs = true;
        *message = c->job;
    }
    pthread_mutex_unlock(&c->mutex);
}

bool tt_control_ping(struct tt_control *c, int64_t *serial)
{
    bool came;

    pthread_mutex_lock(&c->mutex);
    came = c->ping != NO_PING;
    *serial = c->ping;
    c->ping = NO_PING;
    pthread_mutex_unlock(&c->mutex);
    return came;
}

const atomic_bool *tt_control_stop_flag(const struct tt_control *c)
{
    return &c->stop;
}

void tt_control_stop_job(struct tt_control *c, enum tt_failed_cause cause)
{
    pthread_mutex_lock(&c->mutex);
    stop_job(c, cause);
    pthread_mutex_unlock(&c->mutex);
}

void tt_control_give_up(struct tt_control *c, enum tt_worker_exit code)
{
    pthread_mutex_lock(&c->mutex);
    end(c, code, true);
    pthread_mutex_unlock(&c->mutex);
}

enum tt_failed_cause tt_control_job_over(struct tt_control *c)
{
    enum tt_failed_cause cause;
    uint64_t count;

    pthread_mutex_lock(&c->mutex);
    cause = atomic_load(&c->stop) ? c->cause : TT_FAILED_ERROR;
    c->job_runs = false;
    if (!c->over && atomic_exchange(&c->stop, false) && read(c->stop_fd, &count, sizeof count) < 0) {
        /* Nothing was in it. */
    }
    pthread_mutex_unlock(&c->mutex);
    return cause;
}

enum tt_worker_exit tt_control_exit(struct tt_control *c)
{
    enum tt_worker_exit code;

    pthread_mutex_lock(&c->mutex);
    code = c->exit;
    pthread_mutex_unlock(&c->mutex);
    return code;
}

void tt_control_end(struct tt_control *c)
{
    tt_control_give_up(c, TT_WORKER_ENDED);
    shutdown(c->fd, SHUT_RD); /* wakes the thread's poll */
    pthread_join(c->thread, NULL);
}

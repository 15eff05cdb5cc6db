/* daemon/worker/serve.h: one job: its message in, its messages out. */
#ifndef TT_DAEMON_WORKER_SERVE_H
#define TT_DAEMON_WORKER_SERVE_H

#include "core/log.h"
#include "core/message.h"
#include "daemon/worker/control.h"
#include "daemon/worker/device.h"

/* What a worker is made of. Borrows everything. */
struct tt_worker {
    int fd, stop_fd;
    const struct tt_message_setup *setup;
    struct tt_log *log;
    struct tt_slot slot;
    char model[TT_MESSAGE_TEXT_MAX + 1]; /* that the slot holds, as it was asked for; "": none */
    struct tt_prefetch *prefetch;
    struct tt_control *control;
};

/* Sends; when the supervisor cannot be reached, the control is told to give up. */
void tt_worker_send(struct tt_worker *worker, const struct tt_message *message);

/* Runs a job to its DONE or FAILED. TT_RESTART_WORKER: told already; this process must end. */
enum tt_status tt_worker_serve(struct tt_worker *worker, const struct tt_message_job *order);

#endif

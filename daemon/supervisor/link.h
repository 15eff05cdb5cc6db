/* daemon/supervisor/link.h: one worker process and the stream of messages to it (core/message.h).
 *
 * A link lives as long as its process: it ends once, after the process was reaped and everything that it had
 * written was read. Only the loop's thread may use it.
 */
#ifndef TT_DAEMON_SUPERVISOR_LINK_H
#define TT_DAEMON_SUPERVISOR_LINK_H

#include "core/message.h"
#include "core/status.h"

#include <uv.h>

struct tt_link;

/* How the process ended. Borrowed (until the hook returns). */
struct tt_link_end {
    int exit_status;     /* meaningless where signal is not 0 */
    int signal;          /* that killed it; 0: it exited */
    const char *problem; /* why it was killed by the link; "": it was not */
};

/* Both may send and kill, and neither may free anything of the link's. */
struct tt_link_hooks {
    void (*message)(void *user, const struct tt_message *message); /* borrowed until it returns */
    void (*ended)(void *user, const struct tt_link_end *end);      /* the link is gone when it returns */
    void *user;
};

/* Starts program with its end of the stream as descriptor TT_MESSAGE_FD, /dev/null as stdin and our stderr as
 * stdout and stderr; no other descriptor of ours reaches it. *link: owned by itself until `ended`. Borrows
 * program (until it returns). TT_RETRY_LATER: the host is short of processes, descriptors or memory;
 * TT_REFUSE: the program cannot be run. */
enum tt_status tt_link_start(struct tt_link **link, uv_loop_t *loop, const char *program,
                             const struct tt_link_hooks *hooks, struct tt_error *err);

/* Queues a message; never waits. TT_REFUSE: it cannot be said in this protocol (a text is too long);
 * TT_RESTART_WORKER: the worker is gone or does not read. */
enum tt_status tt_link_send(struct tt_link *link, const struct tt_message *message, struct tt_error *err);

/* Nothing happens where the process is gone already. */
void tt_link_signal(struct tt_link *link, int signal);

int tt_link_pid(const struct tt_link *link);

#endif

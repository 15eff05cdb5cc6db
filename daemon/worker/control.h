/* daemon/worker/control.h: the thread that hears the supervisor while the work loop works.
 *
 * It reads messages and SIGTERM; it takes orders, sets the stop flag and answers nothing itself. All that is
 * sent is sent by the work loop, so that an answer means that the work goes on.
 */
#ifndef TT_DAEMON_WORKER_CONTROL_H
#define TT_DAEMON_WORKER_CONTROL_H

#include "core/log.h"
#include "core/message.h"
#include "daemon/worker/prefetch.h"

#include <stdatomic.h>
#include <stdbool.h>

struct tt_control;

/* Starts the thread. stop_fd: an eventfd, non-blocking, that becomes readable when the job shall stop. inbox:
 * what was read behind SETUP; borrows it, log and prefetch (until tt_control_end).
 * SIGTERM should be blocked in the threads that are ours, so that it interrupts none of them. Once a process.
 */
enum tt_status tt_control_start(struct tt_control **control, int fd, int stop_fd, struct tt_inbox *inbox,
                                struct tt_prefetch *prefetch, struct tt_log *log, struct tt_error *err);

/* Waits for a JOB or a PING; TT_MESSAGE_NONE: there will be no more, exit with tt_control_exit. The message's
 * texts are borrowed (until the call after the next). */
void tt_control_next(struct tt_control *control, struct tt_message *message);

/* A PING that came meanwhile; false: none. */
bool tt_control_ping(struct tt_control *control, int64_t *serial);

/* Set while the job that runs shall stop. Borrowed. */
const atomic_bool *tt_control_stop_flag(const struct tt_control *control);

/* Stops the job that runs, from the work loop. The first cause stays. */
void tt_control_stop_job(struct tt_control *control, enum tt_failed_cause cause);

/* The supervisor cannot be reached any more: stops the job and ends the waiting. */
void tt_control_give_up(struct tt_control *control, enum tt_worker_exit code);

/* The job that tt_control_next gave is over; called before that is told, since the next may come at once.
 * Returns what it was stopped for, TT_FAILED_ERROR if it was not. */
enum tt_failed_cause tt_control_job_over(struct tt_control *control);

enum tt_worker_exit tt_control_exit(struct tt_control *control);

/* Stops everything and waits for the thread; nothing more is read from the stream. control can still be
 * asked.
 */
void tt_control_end(struct tt_control *control);

#endif

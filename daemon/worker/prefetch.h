/* daemon/worker/prefetch.h: opens the next job's video while the work loop is busy or idle, in a thread of
 * its own, so that its decoder has a whole window ready when the job begins.
 *
 * A decoder child lives as long as the thread that opened it, so this thread lives as long as the process.
 */
#ifndef TT_DAEMON_WORKER_PREFETCH_H
#define TT_DAEMON_WORKER_PREFETCH_H

#include "core/job.h"
#include "core/log.h"
#include "core/message.h"

struct tt_prefetch;

/* stop_fd: readable while what runs shall stop; borrows it and log (until tt_prefetch_stop). */
enum tt_status tt_prefetch_start(struct tt_prefetch **prefetch, int stop_fd, struct tt_log *log,
                                 struct tt_error *err);

/* Opens the video of a job to come; drops what was opened for another. Does not wait. */
void tt_prefetch_ask(struct tt_prefetch *prefetch, const struct tt_message_prefetch *wanted);

/* The decoder that was opened for this job, waiting while it is being opened; none where there is none, where
 * it failed, or where the job has other options or another file than it was asked with. *ahead: out, owns. */
void tt_prefetch_take(struct tt_prefetch *prefetch, const struct tt_message_job *job,
                      struct tt_job_decoder *ahead);

/* stop_fd must be readable, so that the thread does not wait for a video. NULL is allowed. */
void tt_prefetch_stop(struct tt_prefetch *prefetch);

/* core/decoder.h's options from a message's. */
struct tt_decoder_options tt_worker_decoder(const struct tt_message_decoder *decoder, int stop_fd);

#endif

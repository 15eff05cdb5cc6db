/* daemon/jobs/hook.h: on_done: a program that is run with the paths of each job's results.
 *
 * Without a shell, in the order of the results, a few at a time, each for a bounded time. What it does never
 * concerns the job: a failure is logged. Not durable: a daemon that dies forgets what it has not run yet.
 */
#ifndef TT_DAEMON_JOBS_HOOK_H
#define TT_DAEMON_JOBS_HOOK_H

#include "core/log.h"
#include "core/status.h"
#include "core/output.h"

#include <stdint.h>
#include <uv.h>

struct tt_hook;

/* loop, log: borrowed. failures: counts what failed; borrowed. */
enum tt_status tt_hook_create(struct tt_hook **hook, uv_loop_t *loop, struct tt_log *log, int64_t *failures,
                              struct tt_error *err);

/* results: the program's arguments, NULL at their end; at most TT_OUTPUTS. Copies its texts. */
void tt_hook_run(struct tt_hook *hook, const char *program, const char *job, const char *file,
                 char *const *results);

/* Whether something runs or waits. */
int tt_hook_busy(const struct tt_hook *hook);

/* Drops what waits and kills what runs. */
void tt_hook_stop(struct tt_hook *hook);

/* When nothing runs and the loop has closed its handles. Takes hook, which may be NULL. */
void tt_hook_free(struct tt_hook *hook);

#endif

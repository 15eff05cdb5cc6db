/* core/cpu/pool.h: a few threads that share the jobs of one loop.
 *
 * Which thread takes which job is left to chance; a job's result must depend on its number alone.
 */
#ifndef TT_CORE_CPU_POOL_H
#define TT_CORE_CPU_POOL_H

#include "core/status.h"

struct tt_pool;

/* threads: 1 or more, the caller's own among them. TT_RETRY_LATER: no more threads or memory. */
enum tt_status tt_pool_create(struct tt_pool **pool, int threads, struct tt_error *err);
void tt_pool_destroy(struct tt_pool *pool);

/* Calls job(context, number, worker) for number 0..jobs-1, on all threads, and returns when all are done.
 * worker: 0..threads-1, no two at a time with the same. One run at a time. */
void tt_pool_run(struct tt_pool *pool, int jobs, void (*job)(void *context, int number, int worker),
                 void *context);

#endif

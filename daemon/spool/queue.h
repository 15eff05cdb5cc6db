/* daemon/spool/queue.h: what waits: files in incoming/ that are not whole yet, whole ones, and claimed jobs
 * that wait for another attempt; who is next.
 *
 * Pure bookkeeping in memory: no file is touched and no clock is read. Order: priority, then age, then name.
 * About 100 bytes an entry and its name, so 100,000 files take some 15 MB. Not for use by two threads at
 * once.
 */
#ifndef TT_DAEMON_SPOOL_QUEUE_H
#define TT_DAEMON_SPOOL_QUEUE_H

#include "daemon/spool/watch.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum tt_entry_kind {
    TT_ENTRY_VIDEO,   /* a file in incoming/ that may become a job */
    TT_ENTRY_SIDECAR, /* a file in incoming/ that goes with one; never next */
    TT_ENTRY_JOB,     /* a claimed job; its name is the job id */
};

enum tt_entry_state {
    TT_ENTRY_IDLE,    /* in no order: side-cars */
    TT_ENTRY_WAITING, /* until due_ms: to be still long enough, or for the backoff to end */
    TT_ENTRY_READY,
};

/* A position in the queue; valid until the entry is removed. */
typedef uint32_t tt_entry_id;
#define TT_ENTRY_NONE UINT32_MAX

/* Owned by the queue. Callers write `settle`, `failures` and `noticed` only. */
struct tt_entry {
    char *name;     /* relative to incoming/, or a job id */
    int64_t age_ns; /* ctime or time of the claim (wall clock) */
    int64_t due_ms; /* monotonic */
    struct tt_settle settle;
    uint32_t chain;      /* of its hash bucket */
    uint32_t place;      /* in its heap */
    uint32_t generation; /* of the last scan that saw it */
    uint8_t kind, state;
    bool priority;
    uint8_t failures; /* attempts to claim it that failed */
};

struct tt_queue;

struct tt_queue_counts {
    int64_t ready, settling, deferred; /* videos */
    int64_t jobs;                      /* claimed jobs that wait */
    int64_t sidecars;
    int64_t oldest_age_ns; /* of what is ready or will be; INT64_MAX: nothing is */
};

/* TT_RETRY_LATER: memory. */
enum tt_status tt_queue_create(struct tt_queue **queue, struct tt_error *err);
void tt_queue_free(struct tt_queue *queue); /* takes queue, which may be NULL */

tt_entry_id tt_queue_find(const struct tt_queue *queue, enum tt_entry_kind kind, const char *name);

/* Borrowed (until the next tt_queue_add or tt_queue_remove). */
struct tt_entry *tt_queue_entry(struct tt_queue *queue, tt_entry_id id);

/* Adds an entry (name is copied) that no other of this kind and name may exist for; it is idle at first.
 * TT_ENTRY_NONE: memory. */
tt_entry_id tt_queue_add(struct tt_queue *queue, enum tt_entry_kind kind, const char *name, bool priority,
                         int64_t age_ns);
void tt_queue_remove(struct tt_queue *queue, tt_entry_id id);

/* The entry becomes ready at due_ms (again, or sooner, or later than was said). */
void tt_queue_wait(struct tt_queue *queue, tt_entry_id id, int64_t due_ms);

/* The entry has arrived at age_ns after all: it may have another place in the order. */
void tt_queue_set_age(struct tt_queue *queue, tt_entry_id id, int64_t age_ns);

/* Who is next at now_ms; it stays in the queue. TT_ENTRY_NONE: nobody is ready. */
tt_entry_id tt_queue_next(struct tt_queue *queue, int64_t now_ms);

/* The same among claimed jobs only. */
tt_entry_id tt_queue_next_job(struct tt_queue *queue, int64_t now_ms);

/* When somebody who is waiting now will be ready; INT64_MAX: nobody waits. */
int64_t tt_queue_next_due_ms(const struct tt_queue *queue);

/* Marks an entry as seen by the current scan; tt_queue_sweep ends the scan and removes the videos and
 * side-cars that it did not see. Returns how many. Entries added during a scan count as seen. */
void tt_queue_saw(struct tt_queue *queue, tt_entry_id id);
int64_t tt_queue_sweep(struct tt_queue *queue);

struct tt_queue_counts tt_queue_count(const struct tt_queue *queue);

/* Calls each for every video and job that waits or is ready, in no order, until it returns false. */
void tt_queue_each(const struct tt_queue *queue, bool (*each)(void *user, const struct tt_entry *entry),
                   void *user);

/* How long to wait after failure number `failures` (from 1): base_ms doubled for each further one, at most
 * max_ms, of which up to a half is taken off by `random`. Pure. */
int64_t tt_backoff_ms(int failures, int64_t base_ms, int64_t max_ms, uint32_t random);

#endif

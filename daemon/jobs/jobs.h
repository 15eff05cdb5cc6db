/* daemon/jobs/jobs.h: claimed jobs: to which device they go, and what their ends mean.
 *
 * docs/RELIABILITY.md has the table of ends. In memory there is a task for each job that is claimed, which is
 * one or two for each device and those that wait for another attempt.
 */
#ifndef TT_DAEMON_JOBS_JOBS_H
#define TT_DAEMON_JOBS_JOBS_H

#include "daemon/daemon.h"

enum tt_task_state {
    TT_TASK_WAITING,  /* in the queue */
    TT_TASK_RESERVED, /* the slot's next one */
    TT_TASK_RUNNING,
    TT_TASK_ENDING, /* decided; to be carried out by the spool */
};

enum tt_ending {
    TT_ENDING_COMMIT,
    TT_ENDING_FAIL,
    TT_ENDING_RELEASE, /* end of an attempt; another follows, unless there were too many */
    TT_ENDING_RETURN,  /* back to incoming/ */
    TT_ENDING_KEEP,    /* end of an attempt at the daemon's end; it stays in work/ */
    TT_ENDING_FINISH,  /* was decided before */
};

struct tt_task {
    struct tt_task *next;
    struct tt_spool_job *job; /* the spool's */
    enum tt_task_state state;
    struct tt_slot *slot; /* RESERVED, RUNNING */
    char worker[64];      /* of the last attempt */
    char model[256];      /* that it was started with; cut where its path is longer */
    unsigned formats;     /* that the last attempt was to write */
    struct tt_suspicion suspicion;
    int postponed; /* attempts that were given back, for the backoff */
    bool cancelled;

    enum tt_ending ending; /* ENDING */
    int64_t turn;          /* the lowest is carried out first */
    int64_t ending_due_ms;
    enum tt_outcome outcome;
    bool refund;
    enum tt_status status; /* of the failure */
    char *cause, *last_words;
    struct tt_message_done figures; /* COMMIT; no texts */
};

struct tt_jobs {
    struct tt_daemon *daemon;
    struct tt_task *tasks;
    int64_t turns;
    bool paused_seen; /* to look for jobs that a failed claim left */
};

enum tt_status tt_jobs_create(struct tt_jobs **jobs, struct tt_daemon *daemon, struct tt_error *err);
void tt_jobs_free(struct tt_jobs *jobs); /* takes jobs, which may be NULL; the spool keeps its own */

/* Takes up what the spool holds and nobody cares for: after recovery, after troubles. */
void tt_jobs_adopt(struct tt_jobs *jobs);

/* A dead daemon had decided how this job ends, and the spool has carried that out now: says so, and runs
 * on_done. user: struct tt_daemon. */
void tt_jobs_recovered(void *user, const struct tt_manifest *manifest);

/* Does one piece of work. True: there may be more. */
bool tt_jobs_step(struct tt_jobs *jobs);

/* Whether a job that became ready now could be used. */
bool tt_jobs_wanted(const struct tt_jobs *jobs);

/* When an ending is to be tried again; INT64_MAX: none is. */
int64_t tt_jobs_due_ms(const struct tt_jobs *jobs);

/* What the supervisor tells. */
void tt_jobs_started(struct tt_jobs *jobs, struct tt_slot *slot, const struct tt_message_started *started);
void tt_jobs_ended(struct tt_jobs *jobs, struct tt_slot *slot, const struct tt_report *report);

/* name: a job's id, or the name or path of a file in incoming/, now or when it was claimed. The input goes to
 * failed/, at once or as soon as the worker has let go. TT_BAD_INPUT: there is no such thing. */
enum tt_status tt_jobs_cancel(struct tt_jobs *jobs, const char *name, struct tt_error *err);

/* The daemon ends: what does not run is put back, or stays in work/ where that saves work. */
void tt_jobs_put_back(struct tt_jobs *jobs);

/* Endings that wait to be carried out. */
int tt_jobs_endings(const struct tt_jobs *jobs);

/* --- dispatch.c, for jobs.c --------------------------------------------------------------------------------
 */

/* Every free slot gets a job. True: one did. */
bool tt_jobs_dispatch(struct tt_jobs *jobs);

/* One busy slot gets its next job, so that its video is opened ahead. True: one did. */
bool tt_jobs_reserve_one(struct tt_jobs *jobs);

/* What was reserved for a slot that is out goes back. */
void tt_jobs_release_reserved(struct tt_jobs *jobs);

/* --- endings.c, for jobs.c ---------------------------------------------------------------------------------
 */

/* The task's job is over. cause, last_words: copied; NULL: none. */
void tt_task_end(struct tt_jobs *jobs, struct tt_task *task, enum tt_ending ending, bool refund,
                 enum tt_status status, const char *cause, const char *last_words);

/* Carries out one ending that is due. True: there was one. */
bool tt_jobs_end_one(struct tt_jobs *jobs);

struct tt_task *tt_jobs_task(struct tt_jobs *jobs, struct tt_spool_job *job); /* NULL: none */
struct tt_task *tt_jobs_add(struct tt_jobs *jobs, struct tt_spool_job *job);  /* NULL: memory */

/* The task of a slot that is in this state; NULL: none. */
struct tt_task *tt_jobs_on(const struct tt_jobs *jobs, const struct tt_slot *slot, enum tt_task_state state);

/* Puts the task into the queue, to be ready at due_ms. */
void tt_task_wait(struct tt_jobs *jobs, struct tt_task *task, int64_t due_ms);

void tt_jobs_drop(struct tt_jobs *jobs, struct tt_task *task);
uint32_t tt_jobs_random(void);

#endif

/* daemon/spool/spool.h: the spool: claims, commits, failures, and what is left of them after a crash.
 *
 * docs/SPOOL.md is the protocol. Every call leaves the disk in a state that tt_spool_recover reads, at
 * whatever instant the process is killed. Calls on one spool come from one thread at a time; they wait for
 * the disk (fsync). Times: now_ms is CLOCK_MONOTONIC, always the caller's; the wall clock is read here where
 * it goes into a file.
 */
#ifndef TT_DAEMON_SPOOL_SPOOL_H
#define TT_DAEMON_SPOOL_SPOOL_H

#include "config/config.h"
#include "core/status.h"
#include "daemon/spool/manifest.h"

#include <stdbool.h>
#include <stdint.h>

struct tt_spool;

/* A claimed job. Owned by the spool until the call that ends it (commit, fail, return, finish) succeeds. */
struct tt_spool_job {
    struct tt_manifest manifest; /* read only for others than the spool */
    char *directory;             /* its absolute path */
    bool unsaved;                /* an ending was decided but is not on disk yet */
    struct tt_spool_job *next;   /* of tt_spool_jobs, in no order */
};

/* --- the spool as a whole ----------------------------------------------------------------------------------
 */

/* Creates what directories are missing, checks that all lie on one file system, takes the lock of work/HOST.
 * host: NULL for this machine's name. config: borrows (until tt_spool_configure or tt_spool_close).
 * TT_REFUSE: another daemon holds the lock; directories that do not lie on the root's file system (all are
 * named); a file system that knows neither RENAME_NOREPLACE nor hard links; no permission. */
enum tt_status tt_spool_open(struct tt_spool **spool, const struct tt_config *config, const char *host,
                             struct tt_error *err);

/* A new configuration of the same root. */
void tt_spool_configure(struct tt_spool *spool, const struct tt_config *config);

/* Gives the lock back; jobs stay on disk as they are. Takes spool, which may be NULL. */
void tt_spool_close(struct tt_spool *spool);

/* Why nothing is claimed. Every call that meets a trouble of the spool as a whole pauses it (and returns
 * TT_RETRY_LATER); only tt_spool_probe ends that. `changes` counts both, so that each is said once. */
struct tt_spool_pause {
    bool paused;
    unsigned changes;
    char text[TT_ERROR_TEXT_BYTES]; /* of the last trouble */
};

/* Borrowed (until tt_spool_close). */
const struct tt_spool_pause *tt_spool_paused(const struct tt_spool *spool);

/* Tries everything that claims need: directories, lock, free space, a file written and synced. TT_OK: all is
 * well and the spool is not paused (any more). TT_RETRY_LATER: it is, err says why. */
enum tt_status tt_spool_probe(struct tt_spool *spool, struct tt_error *err);

int64_t tt_spool_free_bytes(const struct tt_spool *spool); /* what may be used by us; -1: not known */

/* --- claims ------------------------------------------------------------------------------------------------
 */

enum tt_claim {
    TT_CLAIM_TAKEN,
    TT_CLAIM_GONE,     /* it is not there any more, or is a directory or symbolic link */
    TT_CLAIM_CHANGED,  /* it is not as it was last looked at */
    TT_CLAIM_DEFERRED, /* this file cannot be taken now (err says why); others can */
    TT_CLAIM_REFUSED,  /* it is a fifo, socket or device and went to failed/ (err says so) */
    TT_CLAIM_PAUSED,   /* no file can be taken now (err says why) */
};

/* Takes source (relative to incoming/) out of incoming/, with its side-cars. expected: the look that showed
 * it to be whole; NULL: take it as it is. *job: out, only for TT_CLAIM_TAKEN. */
enum tt_claim tt_spool_claim(struct tt_spool *spool, const char *source, const struct tt_identity *expected,
                             struct tt_spool_job **job, struct tt_error *err);

/* --- jobs --------------------------------------------------------------------------------------------------
 */

/* All claimed jobs, also those that could not be ended yet. Borrowed (until the next call that ends one). */
struct tt_spool_job *tt_spool_jobs(const struct tt_spool *spool);

/* By job id, source or name of the source; NULL: none. */
struct tt_spool_job *tt_spool_find(const struct tt_spool *spool, const char *name);

/* Absolute paths, owned by the caller (free); NULL: no memory. result is of the attempt that runs, in one of
 * its formats. The worker makes it whole or not at all (tt_file_commit). output: of a manifest. */
char *tt_spool_job_video(const struct tt_spool_job *job);
char *tt_spool_job_sidecar(const struct tt_spool_job *job,
                           enum tt_spool_sidecar kind); /* NULL too: it has none */
char *tt_spool_job_result(const struct tt_spool_job *job, enum tt_output format);
char *tt_spool_output_path(const struct tt_spool *spool, const char *output);

/* Charges an attempt and starts it. formats: of its results, 1 << enum tt_output, at least one.
 * TT_BAD_INPUT: the video is missing or no regular file: fail the job. */
enum tt_status tt_spool_attempt_begin(struct tt_spool *spool, struct tt_spool_job *job, unsigned formats,
                                      struct tt_error *err);

/* Ends an attempt without a result. refund: it was not the input's fault (the device was sick, the daemon
 * drains). */
enum tt_status tt_spool_attempt_end(struct tt_spool *spool, struct tt_spool_job *job, bool refund,
                                    struct tt_error *err);

/* Gives back the charge of an attempt that ended: it was not the input's fault after all. */
enum tt_status tt_spool_refund(struct tt_spool *spool, struct tt_spool_job *job, struct tt_error *err);

/* No attempts are left. */
bool tt_spool_exhausted(const struct tt_spool *spool, const struct tt_spool_job *job);

/* How long a job waits before its next attempt: after charged attempts, changes of the input, or
 * interruptions (from the third). 0: no wait. */
int64_t tt_spool_job_delay_ms(const struct tt_spool *spool, const struct tt_spool_job *job, uint32_t random);

enum tt_look {
    TT_LOOK_SAME,
    TT_LOOK_CHANGED, /* since the attempt began */
    TT_LOOK_HELD,    /* the same, but another process holds it open for writing (where the kernel tells us) */
    TT_LOOK_MISSING,
};

/* Looks at the input again. Before a bad input is given up, ask: one that changed is tracked again, one that
 * is still held open deserves another attempt. */
enum tt_look tt_spool_look(const struct tt_spool *spool, const struct tt_spool_job *job);

/* --- endings -----------------------------------------------------------------------------------------------
 */
/* Each takes job when it returns TT_OK; the job is gone then. TT_RETRY_LATER: the spool is paused; the job
 * stays what it is, or is already decided (state not TT_JOB_CLAIMED): call tt_spool_finish when things are
 * well. */

/* What became of the job that was ended last: names it got, outcome, attempts. Borrowed (until a call ends
 * another one). */
const struct tt_manifest *tt_spool_ended(const struct tt_spool *spool);

/* Publishes the results of the running attempt; under which names says tt_spool_ended, for somebody may have
 * taken those of the claim. outcome: TT_OUTCOME_DONE or TT_OUTCOME_TRUNCATED. *changed:
 * out; true: the input changed meanwhile: nothing was committed, the results are gone, the attempt was given
 * back, and the job (still the spool's) waits for another attempt. TT_BAD_INPUT: a result is missing. */
enum tt_status tt_spool_commit(struct tt_spool *spool, struct tt_spool_job *job, enum tt_outcome outcome,
                               bool *changed, struct tt_error *err);

/* Gives the input up: to failed/, with reason.json. cause: for people; status: a stable word (tt_status_name,
 * "cancelled"); last_words: of the worker, or NULL. Borrows them. */
enum tt_status tt_spool_fail(struct tt_spool *spool, struct tt_spool_job *job, const char *cause,
                             const char *status, const char *last_words, struct tt_error *err);

/* Puts the input back into incoming/. */
enum tt_status tt_spool_return(struct tt_spool *spool, struct tt_spool_job *job, struct tt_error *err);

/* Ends a job whose end is decided. */
enum tt_status tt_spool_finish(struct tt_spool *spool, struct tt_spool_job *job, struct tt_error *err);

/* --- start, retry, prune -----------------------------------------------------------------------------------
 */

struct tt_recovery {
    int resumed, committed, failed, returned; /* jobs */
    int removed;                              /* empty directories of claims that never happened */
    int damaged;    /* directories without a readable manifest; inputs went to failed/ */
    int unfinished; /* could not be ended yet; among tt_spool_jobs */
};

/* ended: called for each job that is ended from now on, with what became of it (borrowed until it returns);
 * NULL: nobody hears. user: borrowed. */
void tt_spool_hear(struct tt_spool *spool, void (*ended)(void *user, const struct tt_manifest *manifest),
                   void *user);

/* Reads work/HOST and ends or resumes what is there; jobs that are known already are left alone, so it can be
 * called again. Afterwards every job of tt_spool_jobs in state TT_JOB_CLAIMED waits for an attempt.
 * *recovery: out, also on failure. TT_RETRY_LATER: something could not be ended. */
enum tt_status tt_spool_recover(struct tt_spool *spool, struct tt_recovery *recovery, struct tt_error *err);

/* failed/NAME back to incoming/, with its side-cars. TT_BAD_INPUT: there is no such file, or its name leads
 * out of failed/. */
enum tt_status tt_spool_retry(struct tt_spool *spool, const char *name, struct tt_error *err);

/* A file that waits in incoming/ goes to failed/ as cancelled. (A job: tt_spool_fail.) */
enum tt_status tt_spool_cancel_waiting(struct tt_spool *spool, const char *source, struct tt_error *err);

/* Removes files from done/ and failed/ that were moved there more than spool.keep_days before wall_ns.
 * *removed: out, also on failure. Does nothing where keep_days is 0.
 * TT_RETRY_LATER: also where the wall clock was set, so that ages say nothing. */
enum tt_status tt_spool_prune(struct tt_spool *spool, int64_t wall_ns, int64_t *removed,
                              struct tt_error *err);

#endif

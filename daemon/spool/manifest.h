/* daemon/spool/manifest.h: what is known of a claimed job, as it lies in the job's directory (docs/SPOOL.md).
 *
 * Paths are bytes and relative: source to incoming/, outputs to tracks/, target to done/, failed/ or
 * incoming/, as the state says.
 */
#ifndef TT_DAEMON_SPOOL_MANIFEST_H
#define TT_DAEMON_SPOOL_MANIFEST_H

#include "core/status.h"
#include "daemon/spool/name.h"
#include "daemon/spool/watch.h"

#include <stdbool.h>
#include <stdint.h>

#define TT_MANIFEST_NAME "manifest.json"
#define TT_REASON_NAME   "reason.json"

enum { TT_JOB_ID_BYTES = 32 };

enum tt_job_state {
    TT_JOB_CLAIMED,    /* the video is in the directory, or the claim never happened */
    TT_JOB_COMMITTING, /* results to tracks/, input to done/ */
    TT_JOB_FAILING,    /* input to failed/, with its reason */
    TT_JOB_RETURNING,  /* input back to incoming/ */
    TT_JOB_RETRYING,   /* an input of failed/ (origin) back to incoming/; it is not in the directory */
};

enum tt_outcome { TT_OUTCOME_NONE, TT_OUTCOME_DONE, TT_OUTCOME_TRUNCATED, TT_OUTCOME_FAILED };

/* Owns its strings; all zero is empty. */
struct tt_manifest {
    char id[TT_JOB_ID_BYTES];
    enum tt_job_state state;
    enum tt_outcome outcome;
    char *source;
    char *output[TT_OUTPUTS];                /* NULL where there will be none */
    char *origin;                            /* relative to failed/; NULL but for retries */
    char *target;                            /* NULL: not decided, or (committing) the input is removed */
    struct tt_identity claimed;              /* at the claim; ctime: when it arrived (the move changes it) */
    struct tt_identity seen;                 /* at the start of the last attempt */
    bool has_sidecar[TT_SPOOL_SIDECARS];     /* it came with the video */
    int attempts;                            /* charged */
    int serial;                              /* begun; numbers results and is never used again */
    bool running;                            /* the last attempt has not ended */
    int changes;                             /* times that the input was found changed */
    int interruptions;                       /* attempts that the daemon's own end cut off */
    int64_t claimed_at_ns;                   /* wall clock */
    char *cause, *cause_status, *last_words; /* of the failure; NULL: none */
};

/* The formats of its outputs: 1 << enum tt_output. */
unsigned tt_manifest_formats(const struct tt_manifest *manifest);

/* The first of its outputs; NULL: there are none. */
const char *tt_manifest_output(const struct tt_manifest *manifest);

/* Words for JSON and logs. */
const char *tt_job_state_name(enum tt_job_state state);
const char *tt_outcome_name(enum tt_outcome outcome);

/* A new job id: the UTC time and 32 random bits. TT_RETRY_LATER: no random numbers. */
enum tt_status tt_manifest_new_id(char *id, int64_t wall_ns, struct tt_error *err);

/* Replaces DIRECTORY/manifest.json durably. TT_RETRY_LATER and TT_REFUSE as the disk says. */
enum tt_status tt_manifest_write(const struct tt_manifest *manifest, const char *directory,
                                 struct tt_error *err);

/* Fills in *manifest (overwritten, not freed; untouched on failure). TT_BAD_INPUT: not there, damaged, of
 * another version, or with paths that lead out of their directories. */
enum tt_status tt_manifest_read(struct tt_manifest *manifest, const char *directory, struct tt_error *err);

/* Writes DIRECTORY/reason.json durably: why the input was given up, in words for people and for `retry`. */
enum tt_status tt_reason_write(const struct tt_manifest *manifest, const char *directory,
                               struct tt_error *err);

/* What `retry` needs of a reason file: where the input came from, and with which side-cars. *source: owned by
 * the caller (free); has_sidecar: out, [TT_SPOOL_SIDECARS]. TT_BAD_INPUT: not there or damaged. */
enum tt_status tt_reason_read(char **source, bool *has_sidecar, const char *path, struct tt_error *err);

/* Replaces a string of a manifest by a copy (NULL: by nothing). TT_RETRY_LATER: memory; then it stays. */
enum tt_status tt_manifest_set(char **field, const char *value, struct tt_error *err);

void tt_manifest_free(struct tt_manifest *manifest); /* its strings; it is empty afterwards */

#endif

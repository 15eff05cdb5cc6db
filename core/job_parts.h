/* core/job_parts.h: one run of a job, as core/job.c and core/job_output.c share it. */
#ifndef TT_CORE_JOB_PARTS_H
#define TT_CORE_JOB_PARTS_H

#include "core/job.h"
#include "core/seam.h"
#include "core/sha256.h"
#include "core/window.h"

struct tt_refined; /* core/job_refine.c */

struct tt_run {
    const struct tt_job *job;
    const struct tt_backend_ops *ops;
    struct tt_backend *backend;
    const struct tt_weights *weights;

    int video_fd;
    struct stat opened; /* of video_fd, when it was opened */
    struct tt_decoder *decoder;
    struct tt_video_info info;
    struct tt_queries queries;
    float *query_xy;  /* [queries][2], clip pixels */
    int *query_place; /* [queries] frame within the current clip, or -1 */
    void *supports;   /* [queries] × ops->support_bytes */
    bool supports_sampled;
    struct tt_windows *windows;
    struct tt_stitch *stitch;
    struct tt_refined *refined;        /* what is written instead of the stitch's positions; NULL: nothing */
    int clip_frames;                   /* of a whole window */
    int block;                         /* query points that are tracked at a time */
    struct tt_estimate *init, *result; /* [block][TT_CLIP_FRAMES] */
    bool *unbroken;                    /* [block] sure since its query, which lies behind */
    struct tt_seam *seam;
    enum tt_job_stage reading; /* what frames are read for */
    int64_t frames_read;       /* of the current pass */
    int64_t frames_tracked;

    bool resumed;           /* from a checkpoint, and the backend does not hold its window's features */
    int64_t resumed_at;     /* first frame of the checkpoint's window */
    int64_t resumed_frames; /* that it holds */
    char identity[TT_SHA256_HEX];
    int64_t kept_ms; /* when the last checkpoint was written, or the run began */

    int64_t decode_ms, track_ms, refine_ms, write_ms;
    bool truncated;
    unsigned missing; /* as in struct tt_job_report */
    char warnings[TT_JOB_WARNING_BYTES];
};

int64_t tt_run_now_ms(void); /* CLOCK_MONOTONIC */

/* Between two pieces of work: tells where the job is. TT_INTERRUPTED: it shall stop. */
enum tt_status tt_run_go_on(const struct tt_run *run, enum tt_job_stage stage, int64_t frames,
                            struct tt_error *err);

/* The video as run->decoder, or the one that the job brings along. */
enum tt_status tt_run_open_video(struct tt_run *run, struct tt_error *err);

/* Begins the video again. */
enum tt_status tt_run_rewind_video(struct tt_run *run, struct tt_error *err);

/* Adds a line to the run's warnings, as far as there is room. */
__attribute__((format(printf, 2, 3))) void tt_run_warn(struct tt_run *run, const char *format, ...);
/* The decoder's: a broken file can be the cause of many, so those that would leave no room for what the job
 * itself has to say of its results are counted only. */
void tt_run_warn_all(struct tt_run *run, const char *const *warnings, int count);

/* Reads frames up to the job's own limit, a few between two heartbeats. A tt_frames_read; user: the run. */
enum tt_status tt_run_read_frames(void *user, uint8_t *rgb, double *time_s, int wanted, int *got,
                                  struct tt_error *err);

/* Refines a finished stitch's positions. Afterwards run->refined is set, or, where the video is no longer the
 * one that was tracked, a warning is. directory: for a nameless file (8 bytes a query and frame). */
enum tt_status tt_run_refine(struct tt_run *run, const char *directory, struct tt_error *err);

/* What is to be written: the stitch's estimates with refined positions. Borrows run (as long as it is used).
 */
struct tt_track_source tt_run_source(struct tt_run *run);

/* Of queries × frames: how many are visible, and how many were refined. */
void tt_run_refined_counts(const struct tt_run *run, int64_t *refined, int64_t *visible);
void tt_run_refined_free(struct tt_run *run);

/* Writes all outputs of a finished stitch, but for those that cannot be made of it, or none. */
enum tt_status tt_run_write_outputs(struct tt_run *run, struct tt_error *err);

#endif

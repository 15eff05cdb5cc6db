/* core/job.h: one video from its descriptor to its track files: decode -> windows -> backend -> stitch ->
 * write.
 *
 * The command line and the worker run the same job. Nothing here knows of spools, terminals or logs: progress
 * and warnings go out through the hooks and the report, a stop comes in through a flag.
 */
#ifndef TT_CORE_JOB_H
#define TT_CORE_JOB_H

#include "core/backend.h"
#include "core/decoder.h"
#include "core/output.h"
#include "core/query.h"
#include "core/status.h"

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <sys/stat.h>

enum { TT_JOB_MAX_OUTPUTS = TT_OUTPUTS };

/* Where in a job the work is. */
enum tt_job_stage {
    TT_JOB_OPENING,  /* waits for the first frame */
    TT_JOB_SUPPORTS, /* a first pass, up to the last query point's frame */
    TT_JOB_SKIPPING, /* passes over what a checkpoint holds already */
    TT_JOB_DECODING, /* waits for frames */
    TT_JOB_TRACKING,
    TT_JOB_REFINING, /* a last pass at the source's resolution */
    TT_JOB_WRITING,
    TT_JOB_DRAWING, /* the overlay: the video once more */
    TT_JOB_STAGES
};

extern const char *const tt_job_stage_names[TT_JOB_STAGES]; /* "opening", ... */

struct tt_job_progress {
    enum tt_job_stage stage;
    int64_t frames;   /* tracked; SUPPORTS, SKIPPING: decoded; REFINING: refined */
    int64_t expected; /* 0: nobody knows */
};

/* What is known once the query points are. */
struct tt_job_start {
    int width, height; /* of the video, as displayed */
    int64_t frames_expected;
    int queries;
    int64_t resumed_frames; /* that a checkpoint holds */
};

/* A decoder that was opened ahead, and the descriptor that it was opened on. */
struct tt_job_decoder {
    struct tt_decoder *decoder; /* NULL: none */
    int video_fd;
    struct stat file; /* of video_fd, before anything was read */
};

struct tt_job_output {
    enum tt_output format;
    const char *path; /* replaced durably, or not touched at all */
};

/* Borrows everything (until tt_job_run returns), but takes `ahead`. */
struct tt_job {
    const char *video;    /* path: opened for reading, named in messages */
    const char *queries;  /* query file, or NULL */
    const char *mask;     /* mask image, or NULL */
    bool ignore_sidecars; /* do not look for NAME.queries.csv and the like beside the video */
    int grid;             /* query points a side where no query file is given */
    int64_t frame;        /* frame of grid and mask points */
    int64_t max_frames;   /* track at most so many; 0: all */
    int clip_frames;      /* of a window, 1..TT_CLIP_FRAMES; 0: TT_CLIP_FRAMES */
    int overlap_frames;   /* of successive windows, less than that */
    float occlusion_threshold;
    bool refine; /* at the source's own resolution: docs/REFINE.md */
    int outputs;
    struct tt_job_output output[TT_JOB_MAX_OUTPUTS];
    struct tt_decoder_options decoder;
    struct tt_job_decoder ahead;     /* of this video, with these decoder options */
    const char *temporary_directory; /* for spilled results; NULL: the first output's directory */

    /* NULL, or what the names of checkpoint files begin with (core/checkpoint.h): the job goes on from its
     * last whole window if they are there. They stay, also when the job is done. */
    const char *checkpoint;
    int64_t checkpoint_ms; /* least time between two */

    /* NULL, or called between two pieces of work; nothing lasts longer than the features of a window, or
     * decoding eight frames. */
    void (*progress)(void *user, const struct tt_job_progress *progress);
    void (*started)(void *user, const struct tt_job_start *start); /* NULL, or called once */
    void *user;
    const atomic_bool *stop;         /* NULL, or set from elsewhere or by a hook: TT_INTERRUPTED soon after */
    const atomic_bool *stop_drawing; /* NULL, or the same for the overlay alone: the job ends without it */
};

enum { TT_JOB_WARNING_BYTES = 12288 }; /* 2 KiB of the decoder's, and room for one of each output */

struct tt_job_report {
    int64_t frames;
    int queries;
    int64_t resumed_frames;                 /* that a checkpoint held */
    bool truncated;                         /* the file ends early: the tracks cover the frames it has */
    unsigned missing;                       /* 1 << enum tt_output: not made, a warning says why */
    bool refined;                           /* all frames were; otherwise a warning says why */
    int64_t points_visible, points_refined; /* of queries × frames, where refined */
    int64_t decode_ms, track_ms, refine_ms, write_ms, total_ms;
    char warnings[TT_JOB_WARNING_BYTES]; /* a line each */
};

/* Starts a decoder for a job to come, so that it decodes the first window ahead, and waits for the first
 * frame. Errors as tt_job_run. */
enum tt_status tt_job_open_ahead(struct tt_job_decoder *ahead, const char *video,
                                 const struct tt_decoder_options *options, struct tt_error *err);

/* Ends it; none is allowed. */
void tt_job_close_ahead(struct tt_job_decoder *ahead);

/* Fills *report; on failure no output exists that did not exist before. An overlay that cannot be made, or a
 * format of core/export.h that cannot hold these tracks, does not fail a job that has other outputs: it is
 * missing, what had its name is untouched, and a warning says why. TT_BAD_INPUT: the video, its query file or
 * mask is at fault and the text names which. Other statuses come from the backend or the host. */
enum tt_status tt_job_run(const struct tt_job *job, const struct tt_backend_ops *ops,
                          struct tt_backend *backend, const struct tt_weights *weights,
                          struct tt_job_report *report, struct tt_error *err);

#endif

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
#include "core/query.h"
#include "core/status.h"
#include "core/trackfile.h"

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

enum { TT_JOB_MAX_OUTPUTS = 3 };

struct tt_job_output {
    enum tt_track_format format;
    const char *path; /* replaced durably, or not touched at all */
};

/* Borrows everything (until tt_job_run returns). */
struct tt_job {
    const char *video;    /* path: opened for reading, named in messages */
    const char *queries;  /* query file, or NULL */
    const char *mask;     /* mask image, or NULL */
    bool ignore_sidecars; /* do not look for NAME.queries.csv and the like beside the video */
    int grid;             /* query points a side where no query file is given */
    int64_t frame;        /* frame of grid and mask points */
    int64_t max_frames;   /* track at most so many; 0: all */
    int overlap_frames;   /* of successive windows, 0..TT_CLIP_FRAMES-1 */
    float occlusion_threshold;
    int outputs;
    struct tt_job_output output[TT_JOB_MAX_OUTPUTS];
    struct tt_decoder_options decoder;
    const char *temporary_directory; /* for spilled results; NULL: the first output's directory */

    void (*progress)(void *user, int64_t frames, int64_t expected); /* NULL, or called after each window */
    void *user;
    const atomic_bool *stop; /* NULL, or set from elsewhere: TT_INTERRUPTED soon after */
};

enum { TT_JOB_WARNING_BYTES = 2048 };

struct tt_job_report {
    int64_t frames;
    int queries;
    bool truncated; /* the file ends early: the tracks cover the frames it has */
    int64_t decode_ms, track_ms, write_ms, total_ms;
    char warnings[TT_JOB_WARNING_BYTES]; /* a line each */
};

/* Fills *report; on failure no output exists that did not exist before. TT_BAD_INPUT: the video, its query
 * file or mask is at fault and the text names which. Other statuses come from the backend or the host. */
enum tt_status tt_job_run(const struct tt_job *job, const struct tt_backend_ops *ops,
                          struct tt_backend *backend, const struct tt_weights *weights,
                          struct tt_job_report *report, struct tt_error *err);

#endif

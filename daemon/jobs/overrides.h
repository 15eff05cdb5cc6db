/* daemon/jobs/overrides.h: what `tracker` and `output` are for a video: the configuration's, or those of a
 * tiletrack.yaml that lies in its sub-directory of incoming/. */
#ifndef TT_DAEMON_JOBS_OVERRIDES_H
#define TT_DAEMON_JOBS_OVERRIDES_H

#include "config/config.h"
#include "core/status.h"

#include <limits.h>
#include <stdint.h>

struct tt_overrides {
    unsigned formats; /* 1 << enum tt_output */
    int64_t grid, clip_frames, overlap_frames;
    double occlusion_threshold;
    bool refine;
    char model[PATH_MAX]; /* "": the configuration's own, which workers are set up with */
};

/* source: the video's path relative to incoming/. Only the directory that the video lies in counts, and only
 * where spool.recursive is set; for one in priority/DIRECTORY without such a file, DIRECTORY. TT_BAD_INPUT:
 * that file is wrong (the text says where), or wants a model that is not installed. */
enum tt_status tt_overrides_read(struct tt_overrides *overrides, const struct tt_config *config,
                                 const char *source, struct tt_error *err);

#endif

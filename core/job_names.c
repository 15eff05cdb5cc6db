/* core/job_names.c: a job's stages in words; apart from core/job.c because the supervisor needs no more. */
#include "core/job.h"

const char *const tt_job_stage_names[TT_JOB_STAGES] = {"opening",  "supports", "skipping", "decoding",
                                                       "tracking", "refining", "writing",  "drawing"};

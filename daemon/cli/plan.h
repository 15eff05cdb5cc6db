/* daemon/cli/plan.h: a plan as JSON, and what it projects for a T4. */
#ifndef TT_DAEMON_CLI_PLAN_H
#define TT_DAEMON_CLI_PLAN_H

#include "core/plan.h"
#include "core/status.h"

#include <jansson.h>

/* Owned by the caller. */
json_t *cli_plan_json(const struct tt_plan *plan, const struct tt_model_shape *shape);

/* A projection, in seconds: no T4 was measured. */
struct cli_projection {
    double seconds, stage_seconds[TT_STAGES];
};

/* For every kernel of the plan (a T4's, fp16) the larger of operations / (24 TFLOP/s × e) and bytes / (256
 * GB/s). e: the share of the pure m16n8k8 loop that the kernel reached in the file, which benchkern --json
 * wrote on the path of sm_75; bytes: the plan's, without what it keeps in L2. TT_REFUSE: another plan, or a
 * line of the file that is missing or wrong. */
enum tt_status cli_project_t4(struct cli_projection *projection, const struct tt_plan *plan,
                              const struct tt_model_shape *shape, const char *file, struct tt_error *err);

#endif

/* core/plan_parts.h: what the two halves of the plan share. Inside core/ only. */
#ifndef TT_CORE_PLAN_PARTS_H
#define TT_CORE_PLAN_PARTS_H

#include "core/plan.h"

/* Chooses tiles and fills in memory, operations and bytes. TT_REFUSE names the largest tile that fits. */
enum tt_status tt_plan_cuda(struct tt_plan *plan, const struct tt_model_shape *shape, struct tt_tile wanted,
                            struct tt_error *err);

/* Weights of one level's encoder; operations of one patch in one orientation, taps in the padding left out.
 */
double tt_plan_encoder_weights(const struct tt_model_shape *shape);
double tt_plan_encoder_flop(const struct tt_model_shape *shape);
/* Parameters of the mixer that its products read. */
double tt_plan_mixer_weights(const struct tt_model_shape *shape);

/* The first tile that fits, from plan->tile downwards: fewer query points first, `step` at a time, then fewer
 * frames. needs(plan): bytes with plan->tile. Fills in the text of the refusal where even the least does not
 * fit, or because plan->tile does not. */
enum tt_status tt_plan_refuse(const struct tt_plan *plan, const struct tt_model_shape *shape, int step,
                              int64_t (*needs)(const struct tt_plan *, const struct tt_model_shape *),
                              struct tt_error *err);

static inline int tt_plan_between(int64_t value, int low, int high)
{
    return value < low ? low : value > high ? high : (int)value;
}

#endif

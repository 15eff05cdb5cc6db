/* core/formula.h: weights and a clip that no file need carry, for self-tests: every number comes from a
 * formula.
 *
 * docs/MODEL.md, "Weights from a formula", defines the weights; the golden tensors of the base model were
 * made with them. The clip is noise that drifts, with a disc of other noise that moves across it.
 */
#ifndef TT_CORE_FORMULA_H
#define TT_CORE_FORMULA_H

#include "core/model.h"

#include <stddef.h>
#include <stdint.h>

/* A whole safetensors file (FP32) in memory; the caller frees it. NULL: no memory. */
void *tt_formula_weights(const struct tt_model_shape *shape, uint64_t seed, size_t *size);

/* rgb: out, [frames][256][256][3]. */
void tt_formula_clip(uint8_t *rgb, int frames);

#endif

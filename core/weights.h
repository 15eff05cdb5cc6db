/* core/weights.h: safetensors files: map, check, bind.
 *
 * A weight file is mapped read-only and shared: every worker of a machine uses the same pages. Tensors carry
 * the names of the public state_dict and may be F16 or F32. Everything about the file is checked before a
 * tensor is handed out: header length, JSON, offsets, overlaps, shapes, that every weight of the model is
 * there and finite.
 */
#ifndef TT_CORE_WEIGHTS_H
#define TT_CORE_WEIGHTS_H

#include "core/model.h"
#include "core/status.h"

#include <stdint.h>

enum tt_dtype { TT_F32, TT_F16, TT_U8, TT_I32, TT_I64 };

struct tt_tensor {
    const void *data; /* borrows the map (until tt_weights_close) */
    enum tt_dtype dtype;
    int rank;
    int64_t shape[5];
    int64_t count; /* elements */
};

struct tt_weights;

/* Maps and checks a weight file. Its size (small or base) is found from its tensors;
 * TT_BAD_INPUT names the file, the tensor and what is wrong with it. */
enum tt_status tt_weights_open(struct tt_weights **weights, const char *path, struct tt_error *err);
void tt_weights_close(struct tt_weights *weights);

const struct tt_model_shape *tt_weights_shape(const struct tt_weights *weights);
const char *
tt_weights_sha256(const struct tt_weights *weights); /* of the whole file, hexadecimal; borrowed */
const char *
tt_weights_name(const struct tt_weights *weights); /* file name without directory and ending; borrowed */

/* NULL where no tensor has that name. */
const struct tt_tensor *tt_weights_find(const struct tt_weights *weights, const char *name);

/* A copy as FP32; the caller frees it. NULL: no memory. */
float *tt_tensor_to_f32(const struct tt_tensor *tensor);

/* A safetensors file of any content (golden tensors, tests): no model is expected in it. */
enum tt_status tt_tensors_open(struct tt_weights **tensors, const char *path, struct tt_error *err);

#endif

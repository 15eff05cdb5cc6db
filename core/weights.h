/* core/weights.h: safetensors files: map, check, bind.
 *
 * A weight file is mapped read-only and shared: every worker of a machine uses the same pages. Tensors carry
 * the names of the public state_dict and may be F16 or F32. Everything about the file is checked before a
 * tensor is handed out: header length, JSON, offsets, overlaps and gaps, shapes; for a model also that every
 * weight is there, that nothing else is, and that all values are finite; and its map of confidences, where
 * its metadata holds one.
 */
#ifndef TT_CORE_WEIGHTS_H
#define TT_CORE_WEIGHTS_H

#include "core/calibration.h"
#include "core/model.h"
#include "core/status.h"

#include <stddef.h>
#include <stdint.h>

enum tt_dtype { TT_F32, TT_F16, TT_U8, TT_I32, TT_I64 };

enum { TT_TENSOR_RANK = 5 }; /* at most */

struct tt_tensor {
    const void *data; /* little-endian, at any alignment; borrows the map (until tt_weights_close) */
    enum tt_dtype dtype;
    int rank;
    int64_t shape[TT_TENSOR_RANK]; /* 1 beyond rank */
    int64_t count;                 /* elements */
};

struct tt_weights;

/* Maps and checks a weight file. Its size (small or base) is found from its tensors.
 * TT_BAD_INPUT names the file, the tensor and what is wrong with it; a file that cannot be opened gives
 * TT_REFUSE (missing, no right) or TT_RETRY_LATER (the host is short of something). */
enum tt_status tt_weights_open(struct tt_weights **weights, const char *path, struct tt_error *err);
void tt_weights_close(struct tt_weights *weights);

/* The same from memory; name stands for the path. Borrows data (until tt_weights_close). */
enum tt_status tt_weights_from_memory(struct tt_weights **weights, const char *name, const void *data,
                                      size_t size, struct tt_error *err);

/* NULL for tensors that are not a model's. */
const struct tt_model_shape *tt_weights_shape(const struct tt_weights *weights);
/* SHA-256 of the whole file, hexadecimal; "" for tensors that are not a model's. Borrowed (until close). */
const char *tt_weights_sha256(const struct tt_weights *weights);
/* File name without directory and ending. Borrowed (until close). */
const char *tt_weights_name(const struct tt_weights *weights);

/* The file's map of confidences, the identity where it has none. Borrowed (until close). */
const struct tt_calibration *tt_weights_calibration(const struct tt_weights *weights);

/* NULL where no tensor has that name. Borrowed (until close). */
const struct tt_tensor *tt_weights_find(const struct tt_weights *weights, const char *name);

/* Writes all elements of an F32 or F16 tensor to out [count] as FP32. */
void tt_tensor_read_f32(const struct tt_tensor *tensor, float *out);

/* A copy as FP32; the caller frees it. NULL: no memory, or neither F32 nor F16. */
float *tt_tensor_to_f32(const struct tt_tensor *tensor);

/* A safetensors file of any content (golden tensors, tests): no model is expected in it. */
enum tt_status tt_tensors_open(struct tt_weights **tensors, const char *path, struct tt_error *err);
enum tt_status tt_tensors_from_memory(struct tt_weights **tensors, const char *name, const void *data,
                                      size_t size, struct tt_error *err);

#endif

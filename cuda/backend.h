/* cuda/backend.h: the CUDA backend. Programs get it by tt_backend_load("cuda"); tests link it. */
#ifndef TT_CUDA_BACKEND_H
#define TT_CUDA_BACKEND_H

#include "core/backend.h"

extern const struct tt_backend_ops tt_backend_cuda;

/* For tests: a held frame's features of a level, [size][size][channels], as FP32. */
enum tt_status tt_cuda_features(struct tt_backend *backend, int frame, int level, float *out,
                                struct tt_error *err);

/* For tests and measurements: the device side. Borrowed (until close). */
struct tt_gpu;
struct tt_gpu *tt_cuda_gpu(struct tt_backend *backend);

#endif

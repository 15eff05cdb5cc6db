/* tests/cuda/fake_runtime.h: a CUDA runtime of two devices without a GPU, whose calls fail when they are told
 * to.
 *
 * Only what cuda/backend.c and cuda/device.c call. Device memory is host memory. Kernels do nothing.
 */
#ifndef TT_TESTS_FAKE_RUNTIME_H
#define TT_TESTS_FAKE_RUNTIME_H

#include <cuda_runtime_api.h>

enum fake_call {
    FAKE_COUNT,
    FAKE_SELECT,
    FAKE_CONTEXT,
    FAKE_MALLOC,
    FAKE_SYNCHRONISE,
    FAKE_KERNEL,
    FAKE_CALLS
};

struct fake_runtime {
    cudaError_t fails[FAKE_CALLS]; /* what a call returns */
    int devices, driver;           /* driver: its CUDA version, 0: there is none */
    int selected;                  /* by cudaSetDevice */
    size_t memory;                 /* cudaMalloc fails beyond it; 0: no limit */
    size_t taken;
};

extern struct fake_runtime fake;

#endif

/* tests/cuda/fake_runtime.h: a CUDA runtime of two devices without a GPU, whose calls fail when they are told
 * to.
 *
 * Only what the backend and cuda/device.c call. Device memory is host memory. Kernels and copies do
 * nothing, but what is queued and waited for is written down, in order.
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

/* What was queued on a stream, or waited for by the host (FAKE_HOST_WAIT). */
enum fake_kind { FAKE_COPY, FAKE_RECORD, FAKE_WAIT, FAKE_STAGE, FAKE_HOST_WAIT };

struct fake_step {
    enum fake_kind kind;
    const void *stream, *event; /* NULL where there is none */
    const void *to, *from;      /* FAKE_COPY */
    size_t bytes;
    int stage, first; /* FAKE_STAGE: enum tt_gpu_stage, and its first number */
};

enum { FAKE_STEPS = 1024 };

struct fake_runtime {
    cudaError_t fails[FAKE_CALLS]; /* what a call returns */
    int devices, driver;           /* driver: its CUDA version, 0: there is none */
    int selected;                  /* by cudaSetDevice */
    size_t memory;                 /* cudaMalloc fails beyond it; 0: no limit */
    size_t taken;
    int streams, events; /* made so far */
    struct fake_step step[FAKE_STEPS];
    int steps;
};

extern struct fake_runtime fake;

#endif

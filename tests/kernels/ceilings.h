/* tests/kernels/ceilings.h: micro-benchmarks of what the device can do at most, and random fills. */
#ifndef TT_TESTS_CEILINGS_H
#define TT_TESTS_CEILINGS_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

enum ceiling {
    CEILING_MMA_K8,  /* mma m16n8k8 on registers, 16 independent accumulators a warp */
    CEILING_MMA_K16, /* m16n8k16; sm_80 and later */
    CEILING_TILE_K8, /* the 64×64 warp tile: A by ldmatrix, B by 16-byte loads through L1 (tile_f16.cuh) */
    CEILING_TILE_K16,
    CEILING_SHARED_K8, /* the same tile with B, too, by ldmatrix */
    CEILING_SHARED_K16,
    CEILING_FFMA, /* FP32 multiply-add on registers */
    CEILINGS
};

/* Queues `blocks` blocks of `warps` warps that run `steps` steps; returns the operations of the launch (a
 * multiply-add counts two), or 0 where this build has no such instruction. packed: 64 KB or more. */
double ceiling_run(enum ceiling which, int blocks, int warps, int steps, const void *packed, float *sink,
                   void *stream);
const char *ceiling_name(enum ceiling which);
/* Copies bytes (a multiple of 16) by 16-byte loads and stores. */
int ceiling_copy(void *to, const void *from, size_t bytes, void *stream);
/* Uniform in [-scale, scale). */
int fill_f32(float *x, size_t n, float scale, uint32_t seed, void *stream);
int fill_f16(uint16_t *x, size_t n, float scale, uint32_t seed, void *stream);
int fill_u8(uint8_t *x, size_t n, uint32_t seed, void *stream);

#ifdef __cplusplus
}
#endif

#endif

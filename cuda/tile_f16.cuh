/* cuda/tile_f16.cuh: the inner step of every FP16 tensor-core kernel here: one warp, 64 rows × 64 columns
 * × 16.
 *
 * A (rows × k) comes from shared memory by ldmatrix; its row addresses are arbitrary, so a convolution's taps
 * are offsets. B (k × columns) comes from global memory, packed in the order in which lanes hold it (pack.h):
 * four 16-byte loads a lane and step, shared by L1 among the warps of a block, no shared memory and no
 * barrier. Both are fetched one step ahead. Accumulators: 128 registers; sums run along k in order, two (K16:
 * one) instructions a step.
 */
#ifndef TT_CUDA_TILE_F16_CUH
#define TT_CUDA_TILE_F16_CUH

#include "cuda/common.cuh"

/* c[row tile][column tile]: rows 16·i + lane / 4 (+ 8), columns 8·j + 2·(lane % 4) (+ 1). */
typedef float tt_acc[4][8][4];

struct tt_frag_a {
    uint32_t r[4][4];
};
struct tt_frag_b {
    uint4 r[4];
};

/* address: of this lane's row (lane % 16) and half (lane / 16) in row tile 0; tiles lie tile_bytes apart. */
__device__ __forceinline__ void tt_load_a(tt_frag_a &a, uint32_t address, uint32_t tile_bytes)
{
#pragma unroll
    for (int i = 0; i < 4; i++)
        tt_ldmatrix4(a.r[i], address + i * tile_bytes);
}

/* packed: this lane's first 16 bytes of the step; a step is 2048 bytes. */
__device__ __forceinline__ void tt_load_b(tt_frag_b &b, const uint4 *packed)
{
#pragma unroll
    for (int i = 0; i < 4; i++)
        b.r[i] = __ldg(packed + i * 32);
}

template <bool K16> __device__ __forceinline__ void tt_step(tt_acc &c, const tt_frag_a &a, const tt_frag_b &b)
{
#pragma unroll
    for (int j = 0; j < 4; j++) {
#pragma unroll
        for (int i = 0; i < 4; i++) {
            tt_mma<K16>(c[i][2 * j], a.r[i], b.r[j].x, b.r[j].y);
            tt_mma<K16>(c[i][2 * j + 1], a.r[i], b.r[j].z, b.r[j].w);
        }
    }
}

#endif

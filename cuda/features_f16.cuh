/* cuda/features_f16.cuh: how FP16 features lie in memory: [pixel][channel], but in odd columns the two
 * 64-byte halves of each 128 bytes change places.
 *
 * Every product with them takes 16 bytes a lane, four lanes a pixel and eight neighbouring pixels. The 128
 * bytes that L1 gives in a pass are then of two neighbours, whose pieces would lie in the same banks. Maps
 * begin at multiples of 128 bytes. On the host: tt_pack_swap_features_f16.
 */
#ifndef TT_CUDA_FEATURES_F16_CUH
#define TT_CUDA_FEATURES_F16_CUH

#include "cuda/common.cuh"

/* Where channel c of a pixel in column x lies. */
__device__ __forceinline__ int tt_feature_place(int c, int x)
{
    return c ^ (x & 1) * 32;
}

/* Eight channels of a pixel: piece i of 32 channels, of the place that `first` is in piece 0. */
__device__ __forceinline__ const __half *tt_feature_piece(const __half *first, int i)
{
    return reinterpret_cast<const __half *>(reinterpret_cast<uintptr_t>(first) ^ (uintptr_t)(i & 1) * 64) +
           (i & ~1) * 32;
}

#endif

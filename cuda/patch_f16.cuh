/* cuda/patch_f16.cuh: a warp's patches in several frames: where their features lie, and the bilinear weights.
 *
 * Of embed_f16.cu and embed_base_f16.cu. Lane 4·g + q holds pixel column g and channels 8·q of each 32. Loads
 * are ordinary ones (not through __ldg), for the reason that embed_correlation_f16.cuh gives.
 */
#ifndef TT_CUDA_PATCH_F16_CUH
#define TT_CUDA_PATCH_F16_CUH

#include "cuda/features_f16.cuh"
#include "cuda/kernels.h"
#include "cuda/tile_f16.cuh"

namespace
{

enum { SIDE = 7 };

/* A lane's 16 bytes of a pixel in T frames. */
template <int T> struct pixels {
    uint4 v[T];
};

/* T frames' patches: where in the map (bytes: pointers would take a register more each) the next 16 bytes of
 * this lane's column and channels lie, of the nearest pixel that lies in the frame; bit 9·frame + y: whether
 * row y lies in it; bilinear weights as operands, zero for columns outside. */
template <int T> struct patch {
    const unsigned char *grid;
    unsigned at[T];
    unsigned rows;
    uint32_t weight[T][2];
};

/* Bytes of a row of the support: eight of them lie in different banks. */
__device__ __forceinline__ int pitch(int channels)
{
    return 2 * channels + 16;
}

/* l: a level of either size. */
template <int T, class L>
__device__ __forceinline__ void place(patch<T> &p, const L &l, const float *state, int first, int frames)
{
    const int g = threadIdx.x % 32 / 4, q = threadIdx.x % 4, size = l.size;
    p.rows = 0;
    p.grid = (const unsigned char *)l.grid;
#pragma unroll
    for (int j = 0; j < T; j++) {
        const int f = min(first + j, frames - 1);
        const float x = state[f * 4] * l.scale - 0.5f, y = state[f * 4 + 1] * l.scale - 0.5f;
        const float floor_x = floorf(x), floor_y = floorf(y), fx = x - floor_x, fy = y - floor_y;
        const int x0 = (int)fminf(fmaxf(floor_x, -20.0f), (float)size + 20.0f) - 3;
        const int y0 = (int)fminf(fmaxf(floor_y, -20.0f), (float)size + 20.0f) - 3;
#pragma unroll
        for (int r = 0; r < 8; r++)
            p.rows |= (unsigned)((unsigned)(y0 + r) < (unsigned)size) << (9 * j + r);
        const int column = min(max(x0 + g, 0), size - 1), row = min(max(y0, 0), size - 1);
        p.at[j] =
            (unsigned)((((f * size + row) * size + column) * l.channels + tt_feature_place(q * 8, column)) *
                       2);
        /* row of the matrix: pixel 2q, 2q + 1; column: position g */
        const bool in0 = g < SIDE && (unsigned)(x0 + 2 * q) < (unsigned)size,
                   in1 = g < SIDE && (unsigned)(x0 + 2 * q + 1) < (unsigned)size;
        const float w0 = !in0 ? 0.0f : 2 * q == g ? 1.0f - fx : 2 * q == g + 1 ? fx : 0.0f;
        const float w1 = !in1 ? 0.0f : 2 * q + 1 == g ? 1.0f - fx : 2 * q == g ? fx : 0.0f;
        p.weight[j][0] = tt_pack((1.0f - fy) * w0, (1.0f - fy) * w1);
        p.weight[j][1] = tt_pack(fy * w0, fy * w1);
    }
}

/* Piece i of 32 channels from p.at on; called for i in order, for an even number of them. */
template <int T> __device__ __forceinline__ void load(pixels<T> &b, patch<T> &p, int i)
{
#pragma unroll
    for (int j = 0; j < T; j++) {
        b.v[j] = *reinterpret_cast<const uint4 *>(p.grid + p.at[j] + i / 2 * 128);
        tt_flip_64(p.at[j]); /* features_f16.cuh */
    }
}

/* By so many channels; with `row`, so many more where both rows y and y + 1 lie in the frame. */
template <int T> __device__ __forceinline__ void advance(patch<T> &p, int by, int row, int y)
{
#pragma unroll
    for (int j = 0; j < T; j++)
        p.at[j] += 2 * by + ((p.rows >> (9 * j + y) & 3) == 3 ? 2 * row : 0);
}

} // namespace

#endif

/* cuda/row.cuh: layer norm of a row that a warp holds, for whatever reads normalised rows.
 *
 * A lane holds four columns of each 128. Two passes; sums over a lane's columns in order, then a butterfly.
 */
#ifndef TT_CUDA_ROW_CUH
#define TT_CUDA_ROW_CUH

#include "cuda/common.cuh"

template <int WIDTH> struct tt_row {
    enum { PARTS = WIDTH / 128 };
    float4 v[PARTS];

    /* from: the row's first column */
    __device__ __forceinline__ void load(const float *from)
    {
#pragma unroll
        for (int k = 0; k < PARTS; k++)
            v[k] = tt_load4(from + k * 128 + threadIdx.x % 32 * 4);
    }

    /* Of an affine norm with this scale and shift. */
    __device__ __forceinline__ void normalise(const tt_row &gamma, const tt_row &beta)
    {
        float sum = 0.0f, square = 0.0f;
#pragma unroll
        for (int k = 0; k < PARTS; k++)
            sum += (v[k].x + v[k].y) + (v[k].z + v[k].w);
        const float mean = tt_warp_sum(sum) * (1.0f / WIDTH);
#pragma unroll
        for (int k = 0; k < PARTS; k++) {
            v[k].x -= mean, v[k].y -= mean, v[k].z -= mean, v[k].w -= mean;
            square += fmaf(v[k].x, v[k].x, v[k].y * v[k].y) + fmaf(v[k].z, v[k].z, v[k].w * v[k].w);
        }
        const float scale = 1.0f / sqrtf(tt_warp_sum(square) * (1.0f / WIDTH) + 1e-5f);
#pragma unroll
        for (int k = 0; k < PARTS; k++) {
            const float4 w = gamma.v[k], s = beta.v[k];
            v[k] = make_float4(fmaf(v[k].x * scale, w.x, s.x), fmaf(v[k].y * scale, w.y, s.y),
                               fmaf(v[k].z * scale, w.z, s.z), fmaf(v[k].w * scale, w.w, s.w));
        }
    }

    __device__ __forceinline__ float dot(const tt_row &other) const
    {
        float sum = 0.0f;
#pragma unroll
        for (int k = 0; k < PARTS; k++) {
            const float4 a = v[k], b = other.v[k];
            sum = fmaf(a.w, b.w, fmaf(a.z, b.z, fmaf(a.y, b.y, fmaf(a.x, b.x, sum))));
        }
        return tt_warp_sum(sum);
    }
};

#endif

/* cuda/encoder_base_f16.cuh: embed_base_f16.cu's second half: base's encoder behind the sums of its first
 * convolution, for 16 patches of one orientation and four warps.
 *
 * 3×3 stride 2 (64 -> 128, 2 × 2 positions), 2×2 (128 -> 128, one), each convolution with group norm and
 * ReLU. Channels are the rows of the products and patches their columns, as in embed_f16.cu. A warp takes a
 * quarter of the channels, so that a group of 16 channels, over all positions, never leaves it. The activated
 * results, transposed 8 × 8 by 8 × 8, are the right operands of the next convolution and reach the other
 * warps through 32 KB of shared memory. Sums: taps in order, then k in packed order; norms over a lane's
 * values in order, then three butterflies.
 */
#ifndef TT_CUDA_ENCODER_BASE_F16_CUH
#define TT_CUDA_ENCODER_BASE_F16_CUH

#include "cuda/kernels.h"
#include "cuda/tile_f16.cuh"

namespace
{

enum {
    N = 2, /* eights of patches */
    OUT = 128,
    STEPS2 = 9 * 64 / 16,
    STEPS3 = 4 * 128 / 16,
    AHEAD = 3, /* steps for which weights are fetched ahead */
    MAPS = 8 * N * 16 * 64 * 2
};

/* Right operands of one step of k: two words of each eight patches. */
struct __align__(8 * N) values
{
    uint32_t v[2 * N];
};

__device__ __forceinline__ uint32_t transposed(float a, float b)
{
    return tt_transpose(tt_pack(a, b));
}

/* c[eight patches][..] += weights · values */
template <bool K16>
__device__ __forceinline__ void multiply(float (&c)[N][4], const uint4 &w, const values &b)
{
    const uint32_t a[4] = {w.x, w.y, w.z, w.w};
#pragma unroll
    for (int n = 0; n < N; n++)
        tt_mma<K16>(c[n], a, b.v[2 * n], b.v[2 * n + 1]);
}

/* Bias, norm of a group of 16 channels × P positions, ReLU. bias, gamma, beta: of the group. */
template <int P>
__device__ __forceinline__ void normalise(float (&acc)[P][N][4], const float *bias, const float *gamma,
                                          const float *beta)
{
    const int g = threadIdx.x % 32 / 4;
    const float b[2] = {bias[g], bias[8 + g]}, w[2] = {gamma[g], gamma[8 + g]}, s[2] = {beta[g], beta[8 + g]};
#pragma unroll
    for (int n = 0; n < N; n++)
#pragma unroll
        for (int e = 0; e < 2; e++) { /* one patch */
            float sum = 0.0f, square = 0.0f;
#pragma unroll
            for (int p = 0; p < P; p++)
#pragma unroll
                for (int r = 0; r < 2; r++) {
                    acc[p][n][2 * r + e] += b[r];
                    sum += acc[p][n][2 * r + e];
                }
            const float mean = tt_column_sum(sum) * (1.0f / (16.0f * P));
#pragma unroll
            for (int p = 0; p < P; p++)
#pragma unroll
                for (int r = 0; r < 2; r++) {
                    float *v = &acc[p][n][2 * r + e];
                    *v -= mean, square = fmaf(*v, *v, square);
                }
            const float scale = 1.0f / sqrtf(tt_column_sum(square) * (1.0f / (16.0f * P)) + 1e-5f);
#pragma unroll
            for (int p = 0; p < P; p++)
#pragma unroll
                for (int r = 0; r < 2; r++) {
                    float *v = &acc[p][n][2 * r + e];
                    *v = fmaxf(fmaf(*v * scale, w[r], s[r]), 0.0f);
                }
        }
}

/* To shared memory as right operands; positions lie `stride` lines of 32 apart. */
template <int P> __device__ __forceinline__ void put(values *shared, const float (&acc)[P][N][4], int stride)
{
#pragma unroll
    for (int p = 0; p < P; p++) {
        values x;
#pragma unroll
        for (int n = 0; n < N; n++)
#pragma unroll
            for (int r = 0; r < 2; r++)
                x.v[2 * n + r] = transposed(acc[p][n][2 * r], acc[p][n][2 * r + 1]);
        shared[p * stride * 32] = x;
    }
}

/* Weights of a step: 32 channels. */
struct weights {
    uint4 v[2];
};
__device__ __forceinline__ void load(weights &w, const uint4 *packed)
{
    w.v[0] = __ldg(packed);
    w.v[1] = __ldg(packed + 32);
}

/* Weights of the step at hand and the next AHEAD ones, of STEPS that begin at `packed`. */
template <int STEPS> struct weight_ring {
    weights w[AHEAD + 1];
    __device__ __forceinline__ void start(const uint4 *packed)
    {
#pragma unroll
        for (int s = 0; s < AHEAD; s++)
            load(w[s], packed + s * 128);
    }
    /* Fetches one more; those of step s */
    __device__ __forceinline__ const weights &at(int s, const uint4 *packed)
    {
        if (s + AHEAD < STEPS)
            load(w[(s + AHEAD) % (AHEAD + 1)], packed + (s + AHEAD) * 128);
        return w[s % (AHEAD + 1)];
    }
};

template <bool K16>
__device__ __forceinline__ void second_conv(float (&acc)[2][4][N][4], const values *shared,
                                            const uint4 *weight)
{
    weight_ring<STEPS2> ring;
    ring.start(weight);
#pragma unroll
    for (int s = 0; s < STEPS2; s++) {
        const int ky = s / 12, kx = s / 4 % 3;
        const weights &w = ring.at(s, weight);
#pragma unroll
        for (int p = 0; p < 4; p++) {
            const int y = p / 2 * 2 + ky, x = p % 2 * 2 + kx;
            if (y < 4 && x < 4) {
                const values v = shared[((y * 4 + x) * 4 + s % 4) * 32];
#pragma unroll
                for (int m = 0; m < 2; m++)
                    multiply<K16>(acc[m][p], w.v[m], v);
            }
        }
    }
}

template <bool K16>
__device__ __forceinline__ void third_conv(float (&acc)[2][1][N][4], const values *shared,
                                           const uint4 *weight)
{
    weight_ring<STEPS3> ring;
    ring.start(weight);
#pragma unroll
    for (int s = 0; s < STEPS3; s++) {
        const weights &w = ring.at(s, weight);
        const values v = shared[s * 32];
#pragma unroll
        for (int m = 0; m < 2; m++)
            multiply<K16>(acc[m][0], w.v[m], v);
    }
}

/* Norm of the third convolution for 32 channels from `channel` on, and the results: patch p of `patches` to
 * out + p·row. e: with bias, gamma and beta. */
template <class E>
__device__ __forceinline__ void third_norm(float (&acc)[2][1][N][4], const E &e, int channel, __half *out,
                                           int row, int patches)
{
    const int lane = threadIdx.x % 32;
    out += channel + 2 * (lane % 4);
#pragma unroll
    for (int m = 0; m < 2; m++) {
        const int c = channel + m * 16;
        normalise(acc[m], e.bias[2] + c, e.gamma[2] + c, e.beta[2] + c);
#pragma unroll
        for (int n = 0; n < N; n++)
#pragma unroll
            for (int r = 0; r < 2; r++) {
                const uint32_t x = transposed(acc[m][0][n][2 * r], acc[m][0][n][2 * r + 1]);
                const int p = lane / 4 + n * 8;
                if (p < patches)
                    *reinterpret_cast<uint32_t *>(out + (size_t)p * row + m * 16 + r * 8) = x;
            }
    }
}

} // namespace

#endif

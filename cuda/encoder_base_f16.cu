/* cuda/encoder_base_f16.cu: base's correlation encoder on tensor cores, three convolutions and norms in one
 * kernel.
 *
 * 3×3 stride 2 (49 -> 64, 4 × 4 positions), 3×3 stride 2 (64 -> 128, 2 × 2), 2×2 (128 -> 128, one), each with
 * group norm and ReLU. Channels are the rows of the products and patches (volumes of one orientation) their
 * columns, as in encoder_f16.cu. A block of eight warps takes 32 patches: warp w has 16 of them (w / 4) and a
 * quarter of the channels (w % 4), so that a group of 16 channels, over all positions, never leaves a warp.
 * First convolution: 128 accumulators a lane; the weights of the taps that meet an even, or an odd, row of
 * the patch wait in registers, and each value of the patch is read once and serves one, two or four taps;
 * what would meet the padding is left out. The activated results, transposed 8 × 8 by 8 × 8, are the right
 * operands of the next convolution and reach the other warps through 64 KB of shared memory. Sums: of the
 * first convolution even rows before odd ones, else taps in order, then k in packed order; norms over a
 * lane's values in order, then three butterflies.
 */
#include "cuda/kernels.h"
#include "cuda/tile_f16.cuh"

#include <limits.h>

namespace
{

enum {
    WARPS = 8,
    GROUPS = WARPS / 4,
    PATCHES = 16,
    AREA = 49,
    ROW = TT_K_VOLUME_ROW_F16,
    OUT = 128,
    STEPS2 = 9 * 64 / 16,
    STEPS3 = 4 * 128 / 16,
    AHEAD = 3, /* steps for which weights are fetched ahead */
    SHARED = GROUPS * 16 * 4 * 32 * (int)sizeof(uint4)
};

/* Over the eight lanes that hold the same patches. */
__device__ __forceinline__ float patch_sum(float x)
{
    x += __shfl_xor_sync(0xffffffffu, x, 4);
    x += __shfl_xor_sync(0xffffffffu, x, 8);
    return x + __shfl_xor_sync(0xffffffffu, x, 16);
}

__device__ __forceinline__ uint32_t transposed(float a, float b)
{
    return tt_transpose(tt_pack(a, b));
}

/* c[eight patches][..] += weights · values, for 16 patches. */
template <bool K16>
__device__ __forceinline__ void multiply(float (&c)[2][4], const uint4 &w, uint32_t v0, uint32_t v1,
                                         uint32_t v2, uint32_t v3)
{
    const uint32_t a[4] = {w.x, w.y, w.z, w.w};
    tt_mma<K16>(c[0], a, v0, v1);
    tt_mma<K16>(c[1], a, v2, v3);
}

/* What the even (ODD: odd) rows of the patches give to the 16 positions, in two steps of k. row0, row1: this
 * lane's two patches at its column. */
template <bool K16, int ODD>
__device__ __forceinline__ void first_rows(float (&acc)[16][2][4], const __half *row0, const __half *row1,
                                           const uint4 *weight)
{
    enum { TAPS = ODD ? 6 : 3, VALUES = (ODD ? 3 : 4) * 7 };
    uint4 w[TAPS][2];
#pragma unroll
    for (int t = 0; t < TAPS; t++)
#pragma unroll
        for (int s = 0; s < 2; s++)
            w[t][s] = __ldg(weight + (((ODD ? t / 3 * 2 : 1) * 3 + t % 3) * 4 + s) * 128);
#pragma unroll
    for (int i = 0; i < VALUES; i++) {
        const int y = i / 7 * 2 + ODD, x = i % 7;
        const uint4 u = *reinterpret_cast<const uint4 *>(row0 + (y * 7 + x) * ROW);
        const uint4 v = *reinterpret_cast<const uint4 *>(row1 + (y * 7 + x) * ROW);
#pragma unroll
        for (int s = 0; s < 2; s++)
#pragma unroll
            for (int t = 0; t < TAPS; t++) {
                const int oy = y + 1 - (ODD ? t / 3 * 2 : 1), ox = x + 1 - t % 3; /* doubled */
                if (ox % 2 == 0)
                    multiply<K16>(acc[oy / 2 * 4 + ox / 2], w[t][s], s ? u.z : u.x, s ? u.w : u.y,
                                  s ? v.z : v.x, s ? v.w : v.y);
            }
    }
}

/* Bias, norm of a group of 16 channels × P positions, ReLU. bias, gamma, beta: of the group. */
template <int P>
__device__ __forceinline__ void normalise(float (&acc)[P][2][4], const float *bias, const float *gamma,
                                          const float *beta)
{
    const int g = threadIdx.x % 32 / 4;
    const float b[2] = {bias[g], bias[8 + g]}, w[2] = {gamma[g], gamma[8 + g]}, s[2] = {beta[g], beta[8 + g]};
#pragma unroll
    for (int n = 0; n < 2; n++)
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
            const float mean = patch_sum(sum) * (1.0f / (16.0f * P));
#pragma unroll
            for (int p = 0; p < P; p++)
#pragma unroll
                for (int r = 0; r < 2; r++) {
                    float *v = &acc[p][n][2 * r + e];
                    *v -= mean, square = fmaf(*v, *v, square);
                }
            const float scale = 1.0f / sqrtf(patch_sum(square) * (1.0f / (16.0f * P)) + 1e-5f);
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
template <int P> __device__ __forceinline__ void put(uint4 *shared, const float (&acc)[P][2][4], int stride)
{
#pragma unroll
    for (int p = 0; p < P; p++) {
        const uint32_t x = transposed(acc[p][0][0], acc[p][0][1]);
        const uint32_t y = transposed(acc[p][0][2], acc[p][0][3]);
        const uint32_t z = transposed(acc[p][1][0], acc[p][1][1]);
        const uint32_t w = transposed(acc[p][1][2], acc[p][1][3]);
        shared[p * stride * 32] = make_uint4(x, y, z, w);
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

template <bool K16>
__device__ __forceinline__ void second_conv(float (&acc)[2][4][2][4], const uint4 *shared,
                                            const uint4 *weight)
{
    weights w[AHEAD + 1];
#pragma unroll
    for (int s = 0; s < AHEAD; s++)
        load(w[s], weight + s * 128);
#pragma unroll
    for (int s = 0; s < STEPS2; s++) {
        const int ky = s / 12, kx = s / 4 % 3;
        if (s + AHEAD < STEPS2)
            load(w[(s + AHEAD) % (AHEAD + 1)], weight + (s + AHEAD) * 128);
#pragma unroll
        for (int p = 0; p < 4; p++) {
            const int y = p / 2 * 2 + ky, x = p % 2 * 2 + kx;
            if (y < 4 && x < 4) {
                const uint4 v = shared[((y * 4 + x) * 4 + s % 4) * 32];
#pragma unroll
                for (int m = 0; m < 2; m++)
                    multiply<K16>(acc[m][p], w[s % (AHEAD + 1)].v[m], v.x, v.y, v.z, v.w);
            }
        }
    }
}

template <bool K16>
__device__ __forceinline__ void third_conv(float (&acc)[2][1][2][4], const uint4 *shared, const uint4 *weight)
{
    weights w[AHEAD + 1];
#pragma unroll
    for (int s = 0; s < AHEAD; s++)
        load(w[s], weight + s * 128);
#pragma unroll
    for (int s = 0; s < STEPS3; s++) {
        if (s + AHEAD < STEPS3)
            load(w[(s + AHEAD) % (AHEAD + 1)], weight + (s + AHEAD) * 128);
        const uint4 v = shared[s * 32];
#pragma unroll
        for (int m = 0; m < 2; m++)
            multiply<K16>(acc[m][0], w[s % (AHEAD + 1)].v[m], v.x, v.y, v.z, v.w);
    }
}

template <bool K16>
__global__ void __launch_bounds__(32 * WARPS, 1) encode_base(const struct tt_k_encode_base_f16 e)
{
    extern __shared__ __align__(16) unsigned char shared[];
    const int lane = threadIdx.x % 32, quarter = threadIdx.x / 32 % 4, group = threadIdx.x / 128;
    const int orientation = blockIdx.y, first = (blockIdx.x * GROUPS + group) * PATCHES;
    const int p0 = first + lane / 4, p1 = p0 + 8, base = orientation * e.rows, top = e.rows - 1;
    const int channel = quarter * 32; /* of the second and third convolution */
    uint4 *maps = reinterpret_cast<uint4 *>(shared) + lane;
    {
        const __half *volume = (const __half *)e.volume + lane % 4 * 8;
        const __half *row0 = volume + (size_t)(base + min(p0, top)) * AREA * ROW;
        const __half *row1 = volume + (size_t)(base + min(p1, top)) * AREA * ROW;
        const uint4 *weight = (const uint4 *)(orientation ? e.weight[1] : e.weight[0]) + quarter * 32 + lane;
        float acc[16][2][4] = {};
#pragma unroll 1
        for (int half = 0; half < 2; half++) {
            first_rows<K16, 0>(acc, row0, row1, weight);
            first_rows<K16, 1>(acc, row0, row1, weight);
            row0 += 32, row1 += 32, weight += 256;
        }
        normalise<16>(acc, e.bias[0] + quarter * 16, e.gamma[0] + quarter * 16, e.beta[0] + quarter * 16);
        put<16>(maps + (group * 64 + quarter) * 32, acc, 4);
    }
    __syncthreads();
    {
        float acc[2][4][2][4] = {};
        second_conv<K16>(acc, maps + group * 64 * 32,
                         (const uint4 *)e.weight2 + quarter / 2 * STEPS2 * 128 + quarter % 2 * 64 + lane);
        __syncthreads(); /* its operands give way to its results */
#pragma unroll
        for (int m = 0; m < 2; m++) {
            const int c = channel + m * 16;
            normalise<4>(acc[m], e.bias[1] + c, e.gamma[1] + c, e.beta[1] + c);
            put<4>(maps + (group * 32 + quarter * 2 + m) * 32, acc[m], 8);
        }
    }
    __syncthreads();
    float acc[2][1][2][4] = {};
    third_conv<K16>(acc, maps + group * 32 * 32,
                    (const uint4 *)e.weight3 + quarter / 2 * STEPS3 * 128 + quarter % 2 * 64 + lane);
    __half *out = (__half *)e.out + orientation * OUT + channel + 2 * (lane % 4);
#pragma unroll
    for (int m = 0; m < 2; m++) {
        const int c = channel + m * 16;
        normalise<1>(acc[m], e.bias[2] + c, e.gamma[2] + c, e.beta[2] + c);
#pragma unroll
        for (int n = 0; n < 2; n++)
#pragma unroll
            for (int r = 0; r < 2; r++) {
                const uint32_t x = transposed(acc[m][0][n][2 * r], acc[m][0][n][2 * r + 1]);
                const int p = n ? p1 : p0;
                if (p < e.rows)
                    *reinterpret_cast<uint32_t *>(out + (size_t)p * e.out_row + m * 16 + r * 8) = x;
            }
    }
}

template <class K> cudaError_t launch(K *kernel, const struct tt_k_encode_base_f16 *e, void *stream)
{
    const dim3 grid(tt_div_up(e->rows, PATCHES * GROUPS), 2);
    const cudaError_t error = tt_shared(kernel, SHARED);
    if (error != cudaSuccess)
        return error;
    kernel<<<grid, 32 * WARPS, SHARED, (cudaStream_t)stream>>>(*e);
    return cudaGetLastError();
}

} // namespace

extern "C" int tt_k_encode_base_f16(const struct tt_k_encode_base_f16 *e, enum tt_k_mma mma, void *stream)
{
    if (e->rows < 1 || e->rows > INT_MAX / (2 * AREA * ROW) || e->out_row % 2)
        return cudaErrorInvalidValue;
    return mma == TT_MMA_K16 ? launch(encode_base<true>, e, stream) : launch(encode_base<false>, e, stream);
}

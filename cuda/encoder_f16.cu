/* cuda/encoder_f16.cu: small's correlation encoder on tensor cores, both convolutions and norms in one
 * kernel.
 *
 * 5×5 stride 4 (49 -> 64, 2 × 2 positions), group norm, ReLU, 2×2 stride 2 (64 -> 128, one position), group
 * norm, ReLU. A warp takes 16 patches (volumes of one orientation): its first accumulators are 16 patches × 4
 * positions × 64 channels, so each of the 25 taps' weights serves all positions that the tap falls into; taps
 * in the padding are skipped. Patch rows come straight from memory, 16 bytes a lane; weights come packed
 * through L1. Group norms stay within four lanes. The activated result is, as it lies in registers, the A
 * operand of the second convolution. No shared memory, no barriers. Sums: taps in order, then k in packed
 * order; norms over a lane's values in order, then two butterflies.
 */
#include "cuda/kernels.h"
#include "cuda/tile_f16.cuh"

namespace
{

enum { WARPS = 4, PATCHES = 16, AREA = 49, ROW = TT_K_VOLUME_ROW_F16, CHANNELS = 64, OUT = 128 };

__device__ __forceinline__ float quad_sum(float x)
{
    x += __shfl_xor_sync(0xffffffffu, x, 1);
    return x + __shfl_xor_sync(0xffffffffu, x, 2);
}

/* First convolution: acc[position][column tile][..]; rows: this lane's two patches, column 8·(lane % 4). */
template <bool K16>
__device__ __forceinline__ void first_conv(tt_acc &acc, const __half *row0, const __half *row1,
                                           const uint4 *weight)
{
#pragma unroll 1
    for (int tap = 0; tap < 25; tap++) {
        const int ky = tap / 5, kx = tap - ky * 5;
        bool valid[4];
        int at[4];
#pragma unroll
        for (int p = 0; p < 4; p++) {
            const int y = 4 * (p / 2) + ky - 1, x = 4 * (p % 2) + kx - 1;
            valid[p] = (unsigned)y < 7 && (unsigned)x < 7;
            at[p] = (y * 7 + x) * ROW;
        }
#pragma unroll
        for (int half = 0; half < 2; half++) {
            tt_frag_b b[2];
            uint4 a[4][2];
            tt_load_b(b[0], weight);
            tt_load_b(b[1], weight + 128);
            weight += 256;
#pragma unroll
            for (int p = 0; p < 4; p++)
                if (valid[p]) {
                    a[p][0] = *reinterpret_cast<const uint4 *>(row0 + at[p] + half * 32);
                    a[p][1] = *reinterpret_cast<const uint4 *>(row1 + at[p] + half * 32);
                }
#pragma unroll
            for (int p = 0; p < 4; p++)
                if (valid[p]) {
                    const uint32_t a0[4] = {a[p][0].x, a[p][1].x, a[p][0].y, a[p][1].y};
                    const uint32_t a1[4] = {a[p][0].z, a[p][1].z, a[p][0].w, a[p][1].w};
#pragma unroll
                    for (int j = 0; j < 4; j++) {
                        tt_mma<K16>(acc[p][2 * j], a0, b[0].r[j].x, b[0].r[j].y);
                        tt_mma<K16>(acc[p][2 * j + 1], a0, b[0].r[j].z, b[0].r[j].w);
                    }
#pragma unroll
                    for (int j = 0; j < 4; j++) {
                        tt_mma<K16>(acc[p][2 * j], a1, b[1].r[j].x, b[1].r[j].y);
                        tt_mma<K16>(acc[p][2 * j + 1], a1, b[1].r[j].z, b[1].r[j].w);
                    }
                }
        }
    }
}

/* Bias, norm of each group of 16 channels × 4 positions, ReLU; a: FP16 operands of the second convolution,
 * step 4·position + group. */
__device__ __forceinline__ void first_norm(tt_acc &acc, uint32_t (&a)[16][4], const float *bias,
                                           const float *gamma, const float *beta)
{
    const int q = threadIdx.x % 4;
#pragma unroll
    for (int group = 0; group < 4; group++) {
        float2 b[2], w[2], s[2];
#pragma unroll
        for (int t = 0; t < 2; t++) {
            const int c = group * 16 + t * 8 + 2 * q;
            b[t] = *reinterpret_cast<const float2 *>(bias + c);
            w[t] = *reinterpret_cast<const float2 *>(gamma + c);
            s[t] = *reinterpret_cast<const float2 *>(beta + c);
        }
#pragma unroll
        for (int r = 0; r < 2; r++) {
            float sum = 0.0f, square = 0.0f;
#pragma unroll
            for (int p = 0; p < 4; p++)
#pragma unroll
                for (int t = 0; t < 2; t++) {
                    float *v = &acc[p][group * 2 + t][2 * r];
                    v[0] += b[t].x, v[1] += b[t].y;
                    sum += v[0] + v[1];
                }
            const float mean = quad_sum(sum) * (1.0f / 64.0f);
#pragma unroll
            for (int p = 0; p < 4; p++)
#pragma unroll
                for (int t = 0; t < 2; t++) {
                    float *v = &acc[p][group * 2 + t][2 * r];
                    v[0] -= mean, v[1] -= mean;
                    square = fmaf(v[0], v[0], square), square = fmaf(v[1], v[1], square);
                }
            const float scale = 1.0f / sqrtf(quad_sum(square) * (1.0f / 64.0f) + 1e-5f);
#pragma unroll
            for (int p = 0; p < 4; p++)
#pragma unroll
                for (int t = 0; t < 2; t++) {
                    const float *v = &acc[p][group * 2 + t][2 * r];
                    a[p * 4 + group][2 * t + r] = tt_pack(fmaxf(fmaf(v[0] * scale, w[t].x, s[t].x), 0.0f),
                                                          fmaxf(fmaf(v[1] * scale, w[t].y, s[t].y), 0.0f));
                }
        }
    }
}

/* Second convolution for 64 of the 128 channels, norm, ReLU, store. */
template <bool K16>
__device__ __forceinline__ void second_conv(const uint32_t (&a)[16][4], const uint4 *weight,
                                            const float *bias, const float *gamma, const float *beta,
                                            __half *out0, __half *out1)
{
    const int q = threadIdx.x % 4;
    float acc[8][4] = {};
    tt_frag_b b, b_next;
    tt_load_b(b, weight);
#pragma unroll
    for (int s = 0; s < 16; s++) {
        weight += 128;
        tt_load_b(b_next, weight);
#pragma unroll
        for (int j = 0; j < 4; j++) {
            tt_mma<K16>(acc[2 * j], a[s], b.r[j].x, b.r[j].y);
            tt_mma<K16>(acc[2 * j + 1], a[s], b.r[j].z, b.r[j].w);
        }
        b = b_next;
    }
#pragma unroll
    for (int group = 0; group < 4; group++)
#pragma unroll
        for (int r = 0; r < 2; r++) {
            float v[4], sum = 0.0f, square = 0.0f;
#pragma unroll
            for (int k = 0; k < 4; k++) {
                v[k] = acc[group * 2 + k / 2][2 * r + k % 2] + bias[group * 16 + k / 2 * 8 + 2 * q + k % 2];
                sum += v[k];
            }
            const float mean = quad_sum(sum) * (1.0f / 16.0f);
#pragma unroll
            for (int k = 0; k < 4; k++)
                v[k] -= mean, square = fmaf(v[k], v[k], square);
            const float scale = 1.0f / sqrtf(quad_sum(square) * (1.0f / 16.0f) + 1e-5f);
#pragma unroll
            for (int k = 0; k < 4; k++) {
                const int c = group * 16 + k / 2 * 8 + 2 * q + k % 2;
                v[k] = fmaxf(fmaf(v[k] * scale, gamma[c], beta[c]), 0.0f);
            }
            __half *out = r ? out1 : out0;
            if (out)
#pragma unroll
                for (int t = 0; t < 2; t++)
                    *reinterpret_cast<uint32_t *>(out + group * 16 + t * 8 + 2 * q) =
                        tt_pack(v[2 * t], v[2 * t + 1]);
        }
}

template <bool K16> __global__ void __launch_bounds__(32 * WARPS, 2) encode(const struct tt_k_encode_f16 e)
{
    const int lane = threadIdx.x % 32, orientation = blockIdx.y;
    const int first = (blockIdx.x * WARPS + threadIdx.x / 32) * PATCHES;
    if (first >= e.rows)
        return;
    const int p0 = first + lane / 4, p1 = p0 + 8;
    const __half *volume =
        (const __half *)e.volume + (size_t)orientation * e.rows * AREA * ROW + lane % 4 * 8;
    tt_acc acc = {};
    first_conv<K16>(acc, volume + (size_t)min(p0, e.rows - 1) * AREA * ROW,
                    volume + (size_t)min(p1, e.rows - 1) * AREA * ROW,
                    (const uint4 *)(orientation ? e.weight[1] : e.weight[0]) + lane);
    uint32_t a[16][4];
    first_norm(acc, a, e.bias[0], e.gamma[0], e.beta[0]);
    __half *out = (__half *)e.out + orientation * OUT;
    for (int n = 0; n < OUT; n += CHANNELS)
        second_conv<K16>(a, (const uint4 *)e.weight2 + n / CHANNELS * 16 * 128 + lane, e.bias[1] + n,
                         e.gamma[1] + n, e.beta[1] + n,
                         p0 < e.rows ? out + (size_t)p0 * e.out_row + n : nullptr,
                         p1 < e.rows ? out + (size_t)p1 * e.out_row + n : nullptr);
}

} // namespace

extern "C" int tt_k_encode_f16(const struct tt_k_encode_f16 *e, enum tt_k_mma mma, void *stream)
{
    const dim3 grid(tt_div_up(e->rows, PATCHES * WARPS), 2);
    if (e->rows < 1 || e->out_row % 2)
        return cudaErrorInvalidValue;
    if (mma == TT_MMA_K16)
        encode<true><<<grid, 32 * WARPS, 0, (cudaStream_t)stream>>>(*e);
    else
        encode<false><<<grid, 32 * WARPS, 0, (cudaStream_t)stream>>>(*e);
    return cudaGetLastError();
}

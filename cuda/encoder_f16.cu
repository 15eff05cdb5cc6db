/* cuda/encoder_f16.cu: small's correlation encoder on tensor cores, both convolutions and norms in one
 * kernel.
 *
 * 5×5 stride 4 (49 -> 64, 2 × 2 positions), group norm, ReLU, 2×2 stride 2 (64 -> 128, one position), group
 * norm, ReLU. Two warps take 16 patches (volumes of one orientation), each half of the channels: a warp's
 * first accumulators are 16 patches × 4 positions × 32 channels, so each of the 25 taps' weights serves all
 * positions that the tap falls into; taps in the padding are skipped. Patch rows come straight from memory,
 * 16 bytes a lane, half a tap ahead; weights come packed through L1, a step ahead. Group norms stay within
 * four lanes. The activated result is, as it lies in registers, the A operand of the second convolution; the
 * two warps exchange theirs through shared memory, 16 KB a block of four warps. Sums: taps in order, then k
 * in packed order; norms over a lane's values in order, then two butterflies.
 */
#include "cuda/kernels.h"
#include "cuda/tile_f16.cuh"

namespace
{

enum {
    WARPS = 4,
    GROUPS = WARPS / 2,
    PATCHES = 16,
    AREA = 49,
    ROW = TT_K_VOLUME_ROW_F16,
    HALF = 32,
    OUT = 128
};

/* c[position][column tile of 8 channels][..] */
typedef float half_acc[4][HALF / 8][4];

__device__ __forceinline__ float quad_sum(float x)
{
    x += __shfl_xor_sync(0xffffffffu, x, 1);
    return x + __shfl_xor_sync(0xffffffffu, x, 2);
}

/* Patch values of half a tap: two steps of k of each position, two rows. */
struct values {
    uint4 v[4][2];
};
/* Weights of one step of k, 32 channels. */
struct weights {
    uint4 v[2];
};

/* Whether a tap falls into the patch at each position. */
struct tap {
    int ky, kx;
    __device__ __forceinline__ explicit tap(int t) : ky(t / 5), kx(t - t / 5 * 5)
    {
    }
    __device__ __forceinline__ bool valid(int p) const
    {
        return (p / 2 ? ky < 4 : ky > 0) && (p % 2 ? kx < 4 : kx > 0);
    }
    /* Position p's row of a patch lies (28·(p / 2) + 4·(p % 2))·ROW behind. */
    __device__ __forceinline__ int at() const
    {
        return (ky * 7 + kx - 8) * ROW;
    }
};

/* row0, row1: where this lane's two patches begin, column 8·(lane % 4) of this half of the tap. */
__device__ __forceinline__ void load(values &a, tap t, const __half *volume, int row0, int row1)
{
    const __half *from0 = volume + (row0 + t.at()), *from1 = volume + (row1 + t.at());
#pragma unroll
    for (int p = 0; p < 4; p++)
        if (t.valid(p)) {
            const int position = (28 * (p / 2) + 4 * (p % 2)) * ROW;
            a.v[p][0] = *reinterpret_cast<const uint4 *>(from0 + position);
            a.v[p][1] = *reinterpret_cast<const uint4 *>(from1 + position);
        }
}

__device__ __forceinline__ void load(weights &b, const uint4 *packed)
{
    b.v[0] = __ldg(packed);
    b.v[1] = __ldg(packed + 32);
}

/* One step of k, the first (second: 0) or second of half a tap. */
template <bool K16>
__device__ __forceinline__ void multiply(half_acc &acc, const values &a, const weights &b, tap t, int second)
{
#pragma unroll
    for (int p = 0; p < 4; p++)
        if (t.valid(p)) {
            const uint4 u = a.v[p][0], v = a.v[p][1];
            const uint32_t f[4] = {second ? u.z : u.x, second ? v.z : v.x, second ? u.w : u.y,
                                   second ? v.w : v.y};
#pragma unroll
            for (int j = 0; j < 2; j++) {
                tt_mma<K16>(acc[p][2 * j], f, b.v[j].x, b.v[j].y);
                tt_mma<K16>(acc[p][2 * j + 1], f, b.v[j].z, b.v[j].w);
            }
        }
}

/* Patch values are fetched half a tap ahead, weights as soon as the step before has used its own. */
template <bool K16>
__device__ __forceinline__ void first_conv(half_acc &acc, const __half *volume, int row0, int row1,
                                           const uint4 *weight)
{
    values even, odd;
    weights b0, b1;
    load(even, tap(0), volume, row0, row1);
    load(b0, weight);
    load(b1, weight + 128);
#pragma unroll 1
    for (int i = 0; i < 25; i++) {
        const tap now(i), next(i < 24 ? i + 1 : 24); /* the last is read again, not used */
        load(odd, now, volume, row0 + 32, row1 + 32);
        multiply<K16>(acc, even, b0, now, 0);
        load(b0, weight + 256);
        multiply<K16>(acc, even, b1, now, 1);
        load(b1, weight + 384);
        weight += i < 24 ? 512 : 0;
        load(even, next, volume, row0, row1);
        multiply<K16>(acc, odd, b0, now, 0);
        load(b0, weight);
        multiply<K16>(acc, odd, b1, now, 1);
        load(b1, weight + 128);
    }
}

/* Bias, norm of each group of 16 channels × 4 positions, ReLU; a: FP16 operands of the second convolution,
 * step 4·position + group, to shared memory. bias, gamma, beta: of this warp's channels. */
__device__ __forceinline__ void first_norm(half_acc &acc, uint4 *shared, const float *bias,
                                           const float *gamma, const float *beta)
{
    const int q = threadIdx.x % 4;
#pragma unroll
    for (int group = 0; group < 2; group++) {
        uint32_t a[4][4];
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
                    a[p][2 * t + r] = tt_pack(fmaxf(fmaf(v[0] * scale, w[t].x, s[t].x), 0.0f),
                                              fmaxf(fmaf(v[1] * scale, w[t].y, s[t].y), 0.0f));
                }
        }
#pragma unroll
        for (int p = 0; p < 4; p++)
            shared[(p * 4 + group) * 32] = make_uint4(a[p][0], a[p][1], a[p][2], a[p][3]);
    }
}

/* Second convolution for 64 of the 128 channels, norm, ReLU, store. */
template <bool K16>
__device__ __forceinline__ void second_conv(const uint4 *shared, const uint4 *weight, const float *bias,
                                            const float *gamma, const float *beta, __half *out0, __half *out1)
{
    const int q = threadIdx.x % 4;
    float acc[8][4] = {};
    tt_frag_b b, b_next;
    tt_load_b(b, weight);
#pragma unroll
    for (int s = 0; s < 16; s++) {
        weight += 128;
        tt_load_b(b_next, weight);
        const uint4 v = shared[s * 32];
        const uint32_t a[4] = {v.x, v.y, v.z, v.w};
#pragma unroll
        for (int j = 0; j < 4; j++) {
            tt_mma<K16>(acc[2 * j], a, b.r[j].x, b.r[j].y);
            tt_mma<K16>(acc[2 * j + 1], a, b.r[j].z, b.r[j].w);
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

template <bool K16> __global__ void __launch_bounds__(32 * WARPS, 3) encode(const struct tt_k_encode_f16 e)
{
    __shared__ __align__(16) uint4 shared[GROUPS][16 * 32];
    const int lane = threadIdx.x % 32, group = threadIdx.x / 64, half = threadIdx.x / 32 % 2;
    const int orientation = blockIdx.y, first = (blockIdx.x * GROUPS + group) * PATCHES;
    const int p0 = first + lane / 4, p1 = p0 + 8;
    const int row0 = min(p0, e.rows - 1) * AREA * ROW + lane % 4 * 8,
              row1 = min(p1, e.rows - 1) * AREA * ROW + lane % 4 * 8;
    half_acc acc = {};
    first_conv<K16>(acc, (const __half *)e.volume + (size_t)orientation * e.rows * AREA * ROW, row0, row1,
                    (const uint4 *)(orientation ? e.weight[1] : e.weight[0]) + half * 64 + lane);
    first_norm(acc, shared[group] + half * 2 * 32 + lane, e.bias[0] + half * HALF, e.gamma[0] + half * HALF,
               e.beta[0] + half * HALF);
    __syncthreads();
    const int n = half * 64;
    __half *out = (__half *)e.out + orientation * OUT + n;
    second_conv<K16>(shared[group] + lane, (const uint4 *)e.weight2 + half * 16 * 128 + lane, e.bias[1] + n,
                     e.gamma[1] + n, e.beta[1] + n, p0 < e.rows ? out + (size_t)p0 * e.out_row : nullptr,
                     p1 < e.rows ? out + (size_t)p1 * e.out_row : nullptr);
}

} // namespace

extern "C" int tt_k_encode_f16(const struct tt_k_encode_f16 *e, enum tt_k_mma mma, void *stream)
{
    const dim3 grid(tt_div_up(e->rows, PATCHES * GROUPS), 2);
    if (e->rows < 1 || e->out_row % 2)
        return cudaErrorInvalidValue;
    if (mma == TT_MMA_K16)
        encode<true><<<grid, 32 * WARPS, 0, (cudaStream_t)stream>>>(*e);
    else
        encode<false><<<grid, 32 * WARPS, 0, (cudaStream_t)stream>>>(*e);
    return cudaGetLastError();
}

/* cuda/encoder_f16.cu: small's correlation encoder on tensor cores, both convolutions and norms in one
 * kernel.
 *
 * 5×5 stride 4 (49 -> 64, 2 × 2 positions), group norm, ReLU, 2×2 stride 2 (64 -> 128, one position), group
 * norm, ReLU. Channels are the rows of the products and patches (volumes of one orientation) their columns:
 * then the 16 bytes that a lane loads of a patch, and of the packed weights, are operands as they lie in
 * registers. (With patches as rows each instruction took four moves and waited for them.) Two warps take 16
 * patches, each half of the channels: a warp's first accumulators are 32 channels × 16 patches × 4 positions,
 * so each of the 25 taps' weights serves all positions that the tap falls into; taps in the padding are
 * skipped. Patch values come straight from memory half a tap ahead, weights through L1 a step ahead. Group
 * norms reduce over the eight lanes of a patch. The activated result, transposed 8 × 8 by 8 × 8, is the right
 * operand of the second convolution; the two warps exchange theirs through shared memory, 16 KB a block of
 * four warps. Sums: taps in order, then k in packed order; norms over a lane's values in order, then three
 * butterflies.
 */
#include "cuda/kernels.h"
#include "cuda/tile_f16.cuh"

#include <limits.h>

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

/* c[position][16 channels][8 patches][..]: channels g, g + 8, patches 2q, 2q + 1 of lane 4·g + q */
typedef float half_acc[4][2][2][4];

/* Over the eight lanes that hold the same patches. */
__device__ __forceinline__ float patch_sum(float x)
{
    x += __shfl_xor_sync(0xffffffffu, x, 4);
    x += __shfl_xor_sync(0xffffffffu, x, 8);
    return x + __shfl_xor_sync(0xffffffffu, x, 16);
}

/* Two values of a row of an 8×8 matrix in each lane become two of a row of its transpose. */
__device__ __forceinline__ uint32_t transposed(float a, float b)
{
    uint32_t x;
    asm volatile("movmatrix.sync.aligned.m8n8.trans.b16 %0, %1;" : "=r"(x) : "r"(tt_pack(a, b)));
    return x;
}

/* Patch values of half a tap: two steps of k of each position, two patches. */
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
    __device__ __forceinline__ tap next() const /* the last is its own */
    {
        return kx < 4 ? tap{ky, kx + 1} : ky < 4 ? tap{ky + 1, 0} : *this;
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
#pragma unroll
            for (int m = 0; m < 2; m++) {
                const uint32_t w[4] = {b.v[m].x, b.v[m].y, b.v[m].z, b.v[m].w};
#pragma unroll
                for (int n = 0; n < 2; n++) {
                    const uint4 u = a.v[p][n];
                    tt_mma<K16>(acc[p][m][n], w, second ? u.z : u.x, second ? u.w : u.y);
                }
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
    tap now = {0, 0};
    load(even, now, volume, row0, row1);
    load(b0, weight);
    load(b1, weight + 128);
#pragma unroll 1
    for (int i = 0; i < 25; i++) {
        const tap next = now.next(); /* the last is read again, not used */
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
        now = next;
    }
}

/* Bias, norm of each group of 16 channels × 4 positions, ReLU; to shared memory as operands of the second
 * convolution, step 4·position + group, both eights of patches. bias, gamma, beta: of this warp's channels.
 */
__device__ __forceinline__ void first_norm(half_acc &acc, uint4 *shared, const float *bias,
                                           const float *gamma, const float *beta)
{
    const int g = threadIdx.x % 32 / 4;
#pragma unroll
    for (int m = 0; m < 2; m++) {
        float scale[2][2];
#pragma unroll
        for (int n = 0; n < 2; n++)
#pragma unroll
            for (int e = 0; e < 2; e++) { /* one patch */
                float sum = 0.0f, square = 0.0f;
#pragma unroll
                for (int p = 0; p < 4; p++)
#pragma unroll
                    for (int r = 0; r < 2; r++) {
                        acc[p][m][n][2 * r + e] += bias[m * 16 + r * 8 + g];
                        sum += acc[p][m][n][2 * r + e];
                    }
                const float mean = patch_sum(sum) * (1.0f / 64.0f);
#pragma unroll
                for (int p = 0; p < 4; p++)
#pragma unroll
                    for (int r = 0; r < 2; r++) {
                        float *v = &acc[p][m][n][2 * r + e];
                        *v -= mean, square = fmaf(*v, *v, square);
                    }
                scale[n][e] = 1.0f / sqrtf(patch_sum(square) * (1.0f / 64.0f) + 1e-5f);
            }
        const float w[2] = {gamma[m * 16 + g], gamma[m * 16 + 8 + g]};
        const float s[2] = {beta[m * 16 + g], beta[m * 16 + 8 + g]};
#pragma unroll
        for (int p = 0; p < 4; p++) {
            uint32_t x[2][2];
#pragma unroll
            for (int n = 0; n < 2; n++)
#pragma unroll
                for (int r = 0; r < 2; r++) {
                    const float *v = &acc[p][m][n][2 * r];
                    x[n][r] = transposed(fmaxf(fmaf(v[0] * scale[n][0], w[r], s[r]), 0.0f),
                                         fmaxf(fmaf(v[1] * scale[n][1], w[r], s[r]), 0.0f));
                }
            shared[(p * 4 + m) * 32] = make_uint4(x[0][0], x[0][1], x[1][0], x[1][1]);
        }
    }
}

/* Second convolution for 64 of the 128 channels, norm, ReLU, store. out0, out1: of patches lane / 4 and
 * lane / 4 + 8, or NULL. */
template <bool K16>
__device__ __forceinline__ void second_conv(const uint4 *shared, const uint4 *weight, const float *bias,
                                            const float *gamma, const float *beta, __half *out0, __half *out1)
{
    const int g = threadIdx.x % 32 / 4, q = threadIdx.x % 4;
    float acc[4][2][4] = {};
    tt_frag_b w, w_next;
    tt_load_b(w, weight);
#pragma unroll
    for (int s = 0; s < 16; s++) {
        weight += 128;
        tt_load_b(w_next, weight);
        const uint4 v = shared[s * 32];
#pragma unroll
        for (int m = 0; m < 4; m++) {
            const uint32_t a[4] = {w.r[m].x, w.r[m].y, w.r[m].z, w.r[m].w};
            tt_mma<K16>(acc[m][0], a, v.x, v.y);
            tt_mma<K16>(acc[m][1], a, v.z, v.w);
        }
        w = w_next;
    }
#pragma unroll
    for (int m = 0; m < 4; m++) {
        const int c = m * 16 + g;
#pragma unroll
        for (int n = 0; n < 2; n++) {
#pragma unroll
            for (int e = 0; e < 2; e++) {
                float v0 = acc[m][n][e] + bias[c], v1 = acc[m][n][2 + e] + bias[c + 8];
                const float mean = patch_sum(v0 + v1) * (1.0f / 16.0f);
                v0 -= mean, v1 -= mean;
                const float scale = 1.0f / sqrtf(patch_sum(fmaf(v0, v0, v1 * v1)) * (1.0f / 16.0f) + 1e-5f);
                acc[m][n][e] = fmaxf(fmaf(v0 * scale, gamma[c], beta[c]), 0.0f);
                acc[m][n][2 + e] = fmaxf(fmaf(v1 * scale, gamma[c + 8], beta[c + 8]), 0.0f);
            }
            __half *out = n ? out1 : out0;
#pragma unroll
            for (int r = 0; r < 2; r++) {
                const uint32_t x = transposed(acc[m][n][2 * r], acc[m][n][2 * r + 1]);
                if (out)
                    *reinterpret_cast<uint32_t *>(out + m * 16 + r * 8 + 2 * q) = x;
            }
        }
    }
}

template <bool K16> __global__ void __launch_bounds__(32 * WARPS, 3) encode(const struct tt_k_encode_f16 e)
{
    __shared__ __align__(16) uint4 shared[GROUPS][16 * 32];
    const int lane = threadIdx.x % 32, group = threadIdx.x / 64, half = threadIdx.x / 32 % 2;
    const int orientation = blockIdx.y, first = (blockIdx.x * GROUPS + group) * PATCHES;
    const int p0 = first + lane / 4, p1 = p0 + 8;
    const int base = orientation * e.rows, top = e.rows - 1;
    const int row0 = (base + min(p0, top)) * AREA * ROW + lane % 4 * 8;
    const int row1 = (base + min(p1, top)) * AREA * ROW + lane % 4 * 8;
    half_acc acc = {};
    first_conv<K16>(acc, (const __half *)e.volume, row0, row1,
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
    if (e->rows < 1 || e->rows > INT_MAX / (2 * AREA * ROW) || e->out_row % 2)
        return cudaErrorInvalidValue;
    if (mma == TT_MMA_K16)
        encode<true><<<grid, 32 * WARPS, 0, (cudaStream_t)stream>>>(*e);
    else
        encode<false><<<grid, 32 * WARPS, 0, (cudaStream_t)stream>>>(*e);
    return cudaGetLastError();
}

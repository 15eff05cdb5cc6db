/* cuda/embed_encoder_f16.cuh: embed_f16.cu's second half: small's encoder, whose first convolution takes the
 * volumes row by row. Loads are where they are for the reason that embed_correlation_f16.cuh gives. Loops
 * over sums are written out each time: shared by a function they would become other machine code. */
#ifndef TT_CUDA_EMBED_ENCODER_F16_CUH
#define TT_CUDA_EMBED_ENCODER_F16_CUH

#include "cuda/embed_correlation_f16.cuh"

namespace
{

enum {
    OUT = 128,
    SCALARS = 3 * 64 + 3 * OUT, /* biases, gammas and betas of both convolutions */
    UNIT = 128,                 /* 16-byte words of a step of 64 channels */
    TAP = 3 * UNIT + UNIT / 2,  /* of a tap's three and a half */
};

/* c[py][16 channels][8 frames][..]: channels g, g + 8, frames 2q, 2q + 1 of lane 4·g + q */
typedef float window_acc[2][2][TILES][4];

/* Weights of up to four steps of k, 32 channels. */
struct weights {
    uint4 v[4][2];
};

/* [3][64] and [3][128]: bias, gamma, beta. */
__device__ __forceinline__ void load_scalars(float *to, const struct tt_k_embed_level &l)
{
    const int i = threadIdx.x % OUT, second = threadIdx.x / OUT;
    if (second) {
        to[192 + i] = l.bias[1][i];
        to[192 + OUT + i] = l.gamma[1][i];
        to[192 + 2 * OUT + i] = l.beta[1][i];
    } else if (i < 64) {
        to[i] = l.bias[0][i];
        to[64 + i] = l.gamma[0][i];
        to[128 + i] = l.beta[0][i];
    }
}

__device__ __forceinline__ void load(uint4 (&w)[2], const uint4 *packed)
{
    w[0] = packed[0];
    w[1] = packed[32];
}

template <bool K16>
__device__ __forceinline__ void step(float (&acc)[2][TILES][4], const uint4 (&w)[2],
                                     const uint32_t (&b)[TILES][2])
{
#pragma unroll
    for (int m = 0; m < 2; m++) {
        const uint32_t a[4] = {w[m].x, w[m].y, w[m].z, w[m].w};
#pragma unroll
        for (int t = 0; t < TILES; t++)
            tt_mma<K16>(acc[m][t], a, b[t][0], b[t][1]);
    }
}

/* Two windows of a neighbourhood position. */
__device__ __forceinline__ void load(uint32_t (&b)[2][TILES][2], uint32_t address)
{
#pragma unroll
    for (int t = 0; t < TILES; t++) {
        uint32_t r[4];
        tt_ldmatrix4(r, address + t * 8 * LINE);
        b[0][t][0] = r[0], b[0][t][1] = r[1];
        b[1][t][0] = r[2], b[1][t][1] = r[3];
    }
}

/* Weights of a tap, as `taps` uses them; odd: of the half step, from the tap's beginning. */
__device__ __forceinline__ void load_tap(weights &w, const uint4 *weight, int odd)
{
#pragma unroll
    for (int i = 0; i < 3; i++)
        load(w.v[i], weight + i * UNIT);
    w.v[3][0] = weight[odd];
}

/* Direct: four positions of a row under four taps, for the encoder position that acc belongs to. Three and a
 * half steps: windows 0 and 3, the eights of 2 and 1, their ninths. w: the first tap's, then `after`; weight:
 * of the first tap. windows, rest: of this lane's eight elements. */
template <bool K16>
__device__ __forceinline__ void taps(float (&acc)[2][TILES][4], weights &w, const uint4 *weight,
                                     const uint4 *after, int odd, uint32_t windows, uint32_t rest)
{
    uint32_t b[2][TILES][2], c[2][TILES][2];
    load(b, windows);
#pragma unroll 2
    for (int i = 0; i < 4; i++) {
        const uint4 *next = i < 3 ? weight + (i + 1) * TAP : after;
        windows += i < 3 ? COLUMN : 0; /* the last is read again, not used */
        step<K16>(acc, w.v[0], b[0]);
        load(w.v[0], next);
        step<K16>(acc, w.v[1], b[1]);
        load(w.v[1], next + UNIT);
        __syncwarp(); /* issued here */
        load(c, rest);
        load(b, windows);
        step<K16>(acc, w.v[2], c[0]);
        load(w.v[2], next + 2 * UNIT);
#pragma unroll
        for (int t = 0; t < TILES; t++) {
            tt_mma_half(acc[0][t], w.v[3][0].x, w.v[3][0].y, c[1][t][0]);
            tt_mma_half(acc[1][t], w.v[3][0].z, w.v[3][0].w, c[1][t][0]);
        }
        w.v[3][0] = next[odd];
        rest += COLUMN;
    }
}

/* Transposed: the seven positions of a row, each an input channel of both encoder positions of one px. Of two
 * neighbours, the elements under taps that both encoder positions have are one step, whose weights serve
 * both; the rest are a step of each. The seventh by itself: its windows are a step of each. w: of the first
 * two; weight: of the first two, then 5 steps each, then the seventh's, px. address: of lane's eight
 * elements: the next position's in lanes 8-15 and 24-31, the rest's in lanes 16-31. */
template <bool K16>
__device__ __forceinline__ void channels(window_acc &acc, weights &w, const uint4 *weight, int px,
                                         uint32_t pairs, uint32_t address)
{
    uint32_t b[2][TILES][2], c[2][TILES][2];
    load(b, pairs);
#pragma unroll(K16 ? 1 : 3) /* K16 has no registers left for it */
    for (int i = 0; i < 3; i++) {
        weight += 5 * UNIT;
        const uint4 *own = weight + (px * 2 + (i < 2)) * UNIT;
        const uint32_t rest = pairs + 16;
        pairs = i < 2 ? pairs + 2 * COLUMN : address + (SIDE - 1) * COLUMN;
        step<K16>(acc[0], w.v[0], b[0]);
        step<K16>(acc[1], w.v[0], b[1]);
        load(w.v[0], i < 2 ? weight : own);
        __syncwarp(); /* issued here */
        load(c, rest);
        load(b, pairs);
        step<K16>(acc[0], w.v[1], c[0]);
        load(w.v[1], i < 2 ? own : own + UNIT);
        step<K16>(acc[1], w.v[2], c[1]);
        load(w.v[2], own + UNIT);
    }
    step<K16>(acc[0], w.v[0], b[0]);
    step<K16>(acc[1], w.v[1], b[1]);
}

/* A row of neighbourhood positions through the first convolution, of one warp. */
struct row_of_weights {
    const uint4 *weight; /* this orientation's, this warp's channels and lane */
    int orientation, px, odd;

    __device__ __forceinline__ const uint4 *direct(int y, int py) const
    {
        return weight + ((y + 1 - 4 * py) * 5 + 1 - px) * TAP;
    }
    __device__ __forceinline__ const uint4 *transposed(int y) const
    {
        return weight + y * 19 * UNIT;
    }
    __device__ __forceinline__ void first(weights &w, int y) const
    {
        if (orientation) {
            load(w.v[0], transposed(y));
            load(w.v[1], transposed(y) + (1 + px * 2) * UNIT);
            load(w.v[2], transposed(y) + (2 + px * 2) * UNIT);
        } else {
            load_tap(w, direct(y, y > 3), odd);
        }
    }
};

/* address: of this lane's frame in the first column. */
template <bool K16>
__device__ __forceinline__ void first_conv(window_acc &acc, weights &w, const row_of_weights &r, int y,
                                           uint32_t address)
{
    const int eight = threadIdx.x % 32 / 8;
    if (r.orientation) {
        address += r.px * 64;
        channels<K16>(acc, w, r.transposed(y), r.px, address + eight % 2 * COLUMN + eight / 2 * 32,
                      address + eight * 16);
        return;
    }
    address += r.px * 3 * COLUMN;
    const uint32_t windows = address + eight * 16 + eight / 2 * 64;
    const uint32_t rest = address + (eight == 0 ? 64 : eight == 1 ? 32 : 128);
    if (y <= 3)
        taps<K16>(acc[0], w, r.direct(y, 0), r.direct(3, 1), r.odd, windows, rest);
    if (y >= 3) /* the last weights are read again, not used */
        taps<K16>(acc[1], w, r.direct(y, 1), r.direct(y, 1), r.odd, windows, rest);
}

/* Adds up the sums of both px's warps for twice 16 channels and this lane's frames, in a fixed order.
 * of_px: [2][2][FRAMES], for these two warps. Called by the whole block. */
__device__ __forceinline__ void exchange(float (&sum)[2][TILES][2], float *of_px, int px)
{
    const int lane = threadIdx.x % 32;
#pragma unroll
    for (int m = 0; m < 2; m++)
#pragma unroll
        for (int t = 0; t < TILES; t++)
#pragma unroll
            for (int e = 0; e < 2; e++) {
                sum[m][t][e] = tt_column_sum(sum[m][t][e]);
                if (lane < 4)
                    of_px[(px * 2 + m) * FRAMES + t * 8 + lane * 2 + e] = sum[m][t][e];
            }
    __syncthreads();
#pragma unroll
    for (int m = 0; m < 2; m++)
#pragma unroll
        for (int t = 0; t < TILES; t++)
#pragma unroll
            for (int e = 0; e < 2; e++) {
                const int i = m * FRAMES + t * 8 + lane % 4 * 2 + e;
                sum[m][t][e] = of_px[i] + of_px[2 * FRAMES + i];
            }
}

/* Bias, norm of each group of 16 channels × 4 positions, ReLU; to shared memory as operands of the second
 * convolution: step 4·(2·py + px) + group, eight frames, lane. to: of this orientation and lane; scratch: of
 * this orientation and half of the channels, [2][2][2][FRAMES]. */
__device__ __forceinline__ void first_norm(window_acc &acc, uint2 *to, float *scratch, const float *scalars,
                                           int px, int half)
{
    const float *bias = scalars, *gamma = scalars + 64, *beta = scalars + 128;
    const int g = threadIdx.x % 32 / 4;
    float sum[2][TILES][2], square[2][TILES][2];
#pragma unroll
    for (int m = 0; m < 2; m++)
#pragma unroll
        for (int t = 0; t < TILES; t++)
#pragma unroll
            for (int e = 0; e < 2; e++) {
                sum[m][t][e] = 0.0f;
#pragma unroll
                for (int k = 0; k < 4; k++) {
                    float *v = &acc[k / 2][m][t][k % 2 * 2 + e];
                    *v += bias[m * 16 + k % 2 * 8 + g];
                    sum[m][t][e] += *v;
                }
            }
    exchange(sum, scratch, px);
#pragma unroll
    for (int m = 0; m < 2; m++)
#pragma unroll
        for (int t = 0; t < TILES; t++)
#pragma unroll
            for (int e = 0; e < 2; e++) {
                square[m][t][e] = 0.0f;
#pragma unroll
                for (int k = 0; k < 4; k++) {
                    float *v = &acc[k / 2][m][t][k % 2 * 2 + e];
                    *v -= sum[m][t][e] * (1.0f / 64.0f);
                    square[m][t][e] = fmaf(*v, *v, square[m][t][e]);
                }
            }
    exchange(square, scratch + 4 * FRAMES, px);
#pragma unroll
    for (int m = 0; m < 2; m++)
#pragma unroll
        for (int t = 0; t < TILES; t++) {
            float scale[2];
#pragma unroll
            for (int e = 0; e < 2; e++)
                scale[e] = rsqrtf(square[m][t][e] * (1.0f / 64.0f) + 1e-5f);
#pragma unroll
            for (int py = 0; py < 2; py++) {
                uint32_t x[2];
#pragma unroll
                for (int r = 0; r < 2; r++) {
                    const float *v = &acc[py][m][t][2 * r];
                    const float w = gamma[m * 16 + r * 8 + g], s = beta[m * 16 + r * 8 + g];
                    x[r] = tt_transpose(tt_pack(fmaxf(fmaf(v[0] * scale[0], w, s), 0.0f),
                                                fmaxf(fmaf(v[1] * scale[1], w, s), 0.0f)));
                }
                to[(((2 * py + px) * 4 + half * 2 + m) * TILES + t) * 32] = make_uint2(x[0], x[1]);
            }
        }
}

/* Second convolution for 32 of the 128 channels, norm, ReLU, store. out: of the first frame, these
 * channels; n: frames to store. */
template <bool K16>
__device__ __forceinline__ void second_conv(const uint2 *from, const uint4 *weight, const float *scalars,
                                            __half *out, int out_row, int n)
{
    const float *bias = scalars, *gamma = scalars + OUT, *beta = scalars + 2 * OUT;
    const int g = threadIdx.x % 32 / 4, q = threadIdx.x % 4;
    float acc[2][TILES][4] = {};
#pragma unroll
    for (int s = 0; s < 16; s++) {
        uint4 w[2];
        uint32_t b[TILES][2];
        w[0] = __ldg(weight + s * UNIT); /* which may be loaded before the block's last barrier */
        w[1] = __ldg(weight + s * UNIT + 32);
#pragma unroll
        for (int t = 0; t < TILES; t++) {
            const uint2 v = from[(s * TILES + t) * 32];
            b[t][0] = v.x, b[t][1] = v.y;
        }
        step<K16>(acc, w, b);
    }
#pragma unroll
    for (int m = 0; m < 2; m++) {
        const int c = m * 16 + g;
#pragma unroll
        for (int t = 0; t < TILES; t++) {
#pragma unroll
            for (int e = 0; e < 2; e++) {
                float v0 = acc[m][t][e] + bias[c], v1 = acc[m][t][2 + e] + bias[c + 8];
                const float mean = tt_column_sum(v0 + v1) * (1.0f / 16.0f);
                v0 -= mean, v1 -= mean;
                const float scale = rsqrtf(tt_column_sum(fmaf(v0, v0, v1 * v1)) * (1.0f / 16.0f) + 1e-5f);
                acc[m][t][e] = fmaxf(fmaf(v0 * scale, gamma[c], beta[c]), 0.0f);
                acc[m][t][2 + e] = fmaxf(fmaf(v1 * scale, gamma[c + 8], beta[c + 8]), 0.0f);
            }
#pragma unroll
            for (int r = 0; r < 2; r++) {
                const uint32_t x = tt_transpose(tt_pack(acc[m][t][2 * r], acc[m][t][2 * r + 1]));
                if (t * 8 + g < n)
                    *reinterpret_cast<uint32_t *>(out + (size_t)(t * 8 + g) * out_row + m * 16 + r * 8 +
                                                  2 * q) = x;
            }
        }
    }
}

} // namespace

#endif

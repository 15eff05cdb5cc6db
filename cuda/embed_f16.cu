/* cuda/embed_f16.cu: small's correlation embeddings: local 4D correlation and its encoder in one kernel, so
 * that no volume leaves the chip.
 *
 * A block takes a query point at a level and 24 frames, and goes down the 8 rows of the patches. Frames are
 * columns of every product here.
 * 1. Products of the 8 pixels of a row with the support: each warp three frames. The 64 rows of the product
 *    are the 4×4 windows of support positions that the encoder's four positions (px, py) see, overlaps
 *    repeated. A lane's 16 bytes of a feature serve two steps of k as they lie in registers.
 * 2. Two rows of products, as halves, times a 16×8 matrix of bilinear weights give a row of neighbourhood
 *    positions; to shared memory as [x][frame][64 and 8].
 * 3. The first convolution, accumulated row by row, 48 sums a lane: four warps for each orientation, of which
 *    two take the encoder positions of either px, half of the channels each. Direct: a neighbourhood position
 *    falls under one tap of each encoder position that sees it; its inputs are the support positions.
 * Transposed: it is itself an input; the taps of an encoder position fall on its window. So each step of k is
 * elements of one window. After the last row: group norm and ReLU, second convolution, group norm, ReLU, out.
 *
 * Shared memory: 27,904 + 128·C bytes, 60,672 at C = 256. Features, support and the first convolution's
 * weights (0.56 MB, through L1, one neighbourhood position ahead) are read once a block. Sums: in the order
 * of the rows; a frame's do not depend on the others.
 */
#include "cuda/kernels.h"
#include "cuda/tile_f16.cuh"

namespace
{

enum {
    WARPS = 8,
    TILES = 3, /* of eight frames */
    FRAMES = 8 * TILES,
    SIDE = 7,
    OUT = 128,
    LINE = 144,                   /* of a frame's 64 products */
    COLUMN = FRAMES * LINE + 16,  /* of a neighbourhood position */
    VOLUME_BYTES = FRAMES * 1024, /* seven columns; later the second convolution's operands */
    SCALARS = 3 * 64 + 3 * OUT,   /* biases, gammas and betas of both convolutions */
    UNIT = 128,                   /* 16-byte words of a step of 64 channels */
    TAP = 3 * UNIT + UNIT / 2,    /* of a tap's three and a half */
};

/* c[py][16 channels][8 frames][..]: channels g, g + 8, frames 2q, 2q + 1 of lane 4·g + q */
typedef float window_acc[2][2][TILES][4];

/* Weights of up to four steps of k, 32 channels. */
struct weights {
    uint4 v[4][2];
};

/* A lane's 16 bytes of a pixel in three frames. */
struct pixels {
    uint4 v[TILES];
};

/* Three frames' patches: the next 16 bytes of this lane's column and channels to load; bit y: whether the
 * column's pixel of row y lies in the frame; bilinear weights as operands. */
struct patch {
    const __half *at[TILES];
    unsigned rows[TILES];
    uint32_t weight[TILES][2];
};

/* Over the eight lanes that hold the same frames. */
__device__ __forceinline__ float frame_sum(float x)
{
    x += __shfl_xor_sync(0xffffffffu, x, 4);
    x += __shfl_xor_sync(0xffffffffu, x, 8);
    return x + __shfl_xor_sync(0xffffffffu, x, 16);
}

/* c[16][8] += a[16][8] · b[8][8] */
__device__ __forceinline__ void half_step(float (&c)[4], uint32_t a0, uint32_t a1, uint32_t b)
{
    asm("mma.sync.aligned.m16n8k8.row.col.f32.f16.f16.f32 {%0,%1,%2,%3}, {%4,%5}, {%6}, {%0,%1,%2,%3};"
        : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
        : "r"(a0), "r"(a1), "r"(b));
}

/* ---- support and products ---- */

/* Bytes of a row of the support: eight of them lie in different banks. */
__device__ __forceinline__ int pitch(int channels)
{
    return 2 * channels + 16;
}

/* The support's position that row r stands for: unit r / 16 is encoder position (px, py); its first eight
 * elements fall under taps that all units have, in the order of tt_pack_embed_f16. */
__device__ __forceinline__ int position(int r)
{
    const int px = r / 32, py = r / 16 % 2, i = r % 16;
    if (i < 9)
        return (4 * py + i / 3) * SIDE + 4 * px + i % 3;
    if (i < 12)
        return 3 * SIDE + 4 * px + i - 9;
    return i < 15 ? (4 * py + i - 12) * SIDE + 3 : 3 * SIDE + 3;
}

/* Zero where there is nothing to load. A branch would keep the products around it apart. */
__device__ __forceinline__ uint4 load_if(bool there, const __half *from)
{
    uint4 v;
    asm volatile(
        "{ .reg .pred p; setp.ne.b32 p, %5, 0; mov.b32 %0, 0; mov.b32 %1, 0; mov.b32 %2, 0; mov.b32 %3, 0; "
        "@p ld.global.nc.v4.b32 {%0, %1, %2, %3}, [%4]; }"
        : "=&r"(v.x), "=&r"(v.y), "=&r"(v.z), "=&r"(v.w)
        : "l"(from), "r"((int)there));
    return v;
}

/* Rounded, and in an order of channels in which a lane's 16 bytes of a feature are four pairs of k. */
__device__ __forceinline__ void load_support(unsigned char *to, const float *support, int channels)
{
    const int bits = channels == 64 ? 4 : channels == 128 ? 5 : 6; /* of fours of channels */
#pragma unroll 4
    for (int i = threadIdx.x; i < 64 << bits; i += 32 * WARPS) {
        const int r = i >> bits, c = (i & ((1 << bits) - 1)) * 4;
        const int q = c % 32 / 8, s = c % 8 / 4;
        const float4 v = tt_load4(support + position(r) * channels + c);
        unsigned char *at = to + r * pitch(channels) + (c / 32 * 32 + s * 16 + 2 * q) * 2;
        *reinterpret_cast<uint32_t *>(at) = tt_pack(v.x, v.y);
        *reinterpret_cast<uint32_t *>(at + 16) = tt_pack(v.z, v.w);
    }
}

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

__device__ __forceinline__ void place(patch &p, const struct tt_k_embed_level &l, const float *state,
                                      int first, int frames)
{
    const int g = threadIdx.x % 32 / 4, q = threadIdx.x % 4;
#pragma unroll
    for (int j = 0; j < TILES; j++) {
        const int f = min(first + j, frames - 1);
        const float x = state[f * 4] * l.scale - 0.5f, y = state[f * 4 + 1] * l.scale - 0.5f;
        const float floor_x = floorf(x), floor_y = floorf(y), fx = x - floor_x, fy = y - floor_y;
        const int x0 = (int)fminf(fmaxf(floor_x, -20.0f), (float)l.size + 20.0f) - 3 + g;
        const int y0 = (int)fminf(fmaxf(floor_y, -20.0f), (float)l.size + 20.0f) - 3;
        p.rows[j] = 0;
#pragma unroll
        for (int r = 0; r < 8; r++)
            p.rows[j] |= (unsigned)((unsigned)x0 < (unsigned)l.size && (unsigned)(y0 + r) < (unsigned)l.size)
                         << r;
        p.at[j] = (const __half *)l.grid + (((ptrdiff_t)f * l.size + y0) * l.size + x0) * l.channels + q * 8;
        /* row of the matrix: pixel 2q, 2q + 1; column: position g */
        const float w0 = g == SIDE ? 0.0f : 2 * q == g ? 1.0f - fx : 2 * q == g + 1 ? fx : 0.0f;
        const float w1 = g == SIDE ? 0.0f : 2 * q + 1 == g ? 1.0f - fx : 2 * q == g ? fx : 0.0f;
        p.weight[j][0] = tt_pack((1.0f - fy) * w0, (1.0f - fy) * w1);
        p.weight[j][1] = tt_pack(fy * w0, fy * w1);
    }
}

/* Of row y of the patches (the eighth is not there), from `skip` behind the next on. */
__device__ __forceinline__ void load(pixels &b, const patch &p, int y, int skip)
{
#pragma unroll
    for (int j = 0; j < TILES; j++)
        b.v[j] = load_if(p.rows[j] >> y & 1, p.at[j] + skip);
}

__device__ __forceinline__ void advance(patch &p, int by)
{
#pragma unroll
    for (int j = 0; j < TILES; j++)
        p.at[j] += by;
}

/* 32 channels of the products. address: of this lane's row of unit 0, at these channels; unit: bytes. */
template <bool K16>
__device__ __forceinline__ void multiply(float (&acc)[4][TILES][4], const pixels &b, uint32_t address,
                                         int unit)
{
#pragma unroll
    for (int s = 0; s < 2; s++)
#pragma unroll
        for (int u = 0; u < 4; u++) {
            uint32_t a[4];
            tt_ldmatrix4(a, address + u * unit + s * 32);
#pragma unroll
            for (int j = 0; j < TILES; j++)
                tt_mma<K16>(acc[u][j], a, s ? b.v[j].z : b.v[j].x, s ? b.v[j].w : b.v[j].y);
        }
}

/* Row y of the products as halves; b0, b1: its first 64 channels, then those of row y + 1. */
template <bool K16>
__device__ __forceinline__ void products(uint32_t (&row)[TILES][4][2], pixels &b0, pixels &b1, patch &p,
                                         int channels, int size, uint32_t address, int y)
{
    const int unit = 16 * pitch(channels);
    float acc[4][TILES][4] = {};
#pragma unroll 1
    for (int c = 0; c < channels; c += 64) {
        const bool last = c + 64 == channels;
        const int next = last ? y + 1 : y;
        advance(p, last ? (size - 1) * channels + 64 : 64);
        multiply<K16>(acc, b0, address, unit);
        load(b0, p, next, 0);
        multiply<K16>(acc, b1, address + 64, unit);
        load(b1, p, next, 32);
        address += 128;
    }
#pragma unroll
    for (int j = 0; j < TILES; j++)
#pragma unroll
        for (int u = 0; u < 4; u++) {
            row[j][u][0] = tt_pack(acc[u][j][0], acc[u][j][1]);
            row[j][u][1] = tt_pack(acc[u][j][2], acc[u][j][3]);
        }
}

/* Bilinear weights on two rows of products. to: of this warp's first frame. The ninth elements of windows 1
 * and 2 are stored once more, behind the windows: an eighth of the direct convolution's steps less. */
template <bool K16>
__device__ __forceinline__ void blend(unsigned char *to, const uint32_t (&above)[TILES][4][2],
                                      const uint32_t (&below)[TILES][4][2], const patch &p)
{
    const int g = threadIdx.x % 32 / 4, q = threadIdx.x % 4;
#pragma unroll
    for (int j = 0; j < TILES; j++)
#pragma unroll
        for (int u = 0; u < 4; u++) {
            const uint32_t a[4] = {above[j][u][0], above[j][u][1], below[j][u][0], below[j][u][1]};
            float v[4] = {};
            tt_mma<K16>(v, a, p.weight[j][0], p.weight[j][1]);
#pragma unroll
            for (int h = 0; h < 2; h++) {
                const uint32_t x = tt_transpose(tt_pack(v[2 * h], v[2 * h + 1]));
                if (g < SIDE)
                    *reinterpret_cast<uint32_t *>(to + g * COLUMN + j * LINE + u * 32 + h * 16 + q * 4) = x;
                if (h && (u == 1 || u == 2) && q == 0 && g < SIDE)
                    *reinterpret_cast<uint16_t *>(to + g * COLUMN + j * LINE + 128 + (u - 1) * 2) =
                        (uint16_t)x;
            }
        }
}

/* ---- encoder ---- */

__device__ __forceinline__ void load(uint4 (&w)[2], const uint4 *packed)
{
    w[0] = __ldg(packed);
    w[1] = __ldg(packed + 32);
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
    w.v[3][0] = __ldg(weight + odd);
}

/* Direct: four positions of a row under four taps, for the encoder position that acc belongs to. Three and a
 * half steps: windows 0 and 3, the eights of 2 and 1, their ninths. w: the first tap's, then `after`; weight:
 * of the first tap. windows, rest: of this lane's eight elements. */
template <bool K16>
__device__ __forceinline__ void taps(float (&acc)[2][TILES][4], weights &w, const uint4 *weight,
                                     const uint4 *after, int odd, uint32_t windows, uint32_t rest)
{
#pragma unroll 1
    for (int i = 0; i < 4; i++) {
        const uint4 *next = i < 3 ? weight + (i + 1) * TAP : after;
        uint32_t b[2][TILES][2];
        load(b, windows);
        step<K16>(acc, w.v[0], b[0]);
        load(w.v[0], next);
        step<K16>(acc, w.v[1], b[1]);
        load(w.v[1], next + UNIT);
        load(b, rest);
        step<K16>(acc, w.v[2], b[0]);
        load(w.v[2], next + 2 * UNIT);
#pragma unroll
        for (int t = 0; t < TILES; t++) {
            half_step(acc[0][t], w.v[3][0].x, w.v[3][0].y, b[1][t][0]);
            half_step(acc[1][t], w.v[3][0].z, w.v[3][0].w, b[1][t][0]);
        }
        w.v[3][0] = __ldg(next + odd);
        windows += COLUMN, rest += COLUMN;
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
#pragma unroll 1
    for (int i = 0; i < 3; i++) {
        uint32_t b[2][2][TILES][2];
        weight += 5 * UNIT;
        const uint4 *own = weight + (px * 2 + (i < 2)) * UNIT;
        load(b[0], pairs);
        load(b[1], pairs + 32);
        step<K16>(acc[0], w.v[0], b[0][0]);
        step<K16>(acc[1], w.v[0], b[1][0]);
        load(w.v[0], i < 2 ? weight : own);
        step<K16>(acc[0], w.v[1], b[0][1]);
        load(w.v[1], i < 2 ? own : own + UNIT);
        step<K16>(acc[1], w.v[2], b[1][1]);
        load(w.v[2], own + UNIT);
        pairs += 2 * COLUMN;
    }
    uint32_t b[2][TILES][2];
    load(b, address + (SIDE - 1) * COLUMN);
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
        channels<K16>(acc, w, r.transposed(y), r.px, address + eight % 2 * COLUMN + eight / 2 * 16,
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
                sum[m][t][e] = frame_sum(sum[m][t][e]);
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
        load(w, weight + s * UNIT);
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
                const float mean = frame_sum(v0 + v1) * (1.0f / 16.0f);
                v0 -= mean, v1 -= mean;
                const float scale = rsqrtf(frame_sum(fmaf(v0, v0, v1 * v1)) * (1.0f / 16.0f) + 1e-5f);
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

template <bool K16> __global__ void __launch_bounds__(32 * WARPS, 1) embed(const struct tt_k_embed_f16 e)
{
    extern __shared__ __align__(16) unsigned char shared[];
    const struct tt_k_embed_level &l = e.level[blockIdx.z];
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, query = blockIdx.x,
              first = blockIdx.y * FRAMES;
    const int orientation = warp / 4, px = warp / 2 % 2, half = warp % 2;
    float *scalars = reinterpret_cast<float *>(shared + VOLUME_BYTES);
    unsigned char *support = shared + VOLUME_BYTES + SCALARS * 4;
    patch p;
    place(p, l, e.state + (size_t)query * e.frames * 4, first + warp * TILES, e.frames);
    pixels b0, b1;
    load(b0, p, 0, 0);
    load(b1, p, 0, 32);
    load_support(support, l.support + (size_t)query * e.row, l.channels);
    load_scalars(scalars, l);
    if (threadIdx.x < SIDE * FRAMES) /* behind the windows: two elements and six zeros */
        *reinterpret_cast<uint4 *>(shared + threadIdx.x / FRAMES * COLUMN + threadIdx.x % FRAMES * LINE +
                                   128) = make_uint4(0, 0, 0, 0);
    __syncthreads();

    const uint32_t row_address = tt_shared_address(support) + lane % 16 * pitch(l.channels) + lane / 16 * 16;
    const uint32_t volume_address = tt_shared_address(shared) + lane % 8 * LINE;
    const row_of_weights r = {(const uint4 *)l.weight[orientation] + half * 64 + lane, orientation, px,
                              3 * UNIT - half * 32};
    uint32_t above[TILES][4][2], below[TILES][4][2];
    window_acc acc = {};
#pragma unroll 1
    for (int y = -1; y < SIDE; y++) {
        products<K16>(below, b0, b1, p, l.channels, l.size, row_address, y + 1);
        if (y >= 0) {
            weights w;
            r.first(w, y);
            __syncthreads(); /* the row before has been read */
            blend<K16>(shared + warp * TILES * LINE, above, below, p);
            __syncthreads();
            first_conv<K16>(acc, w, r, y, volume_address);
        }
#pragma unroll
        for (int j = 0; j < TILES; j++)
#pragma unroll
            for (int u = 0; u < 4; u++)
                above[j][u][0] = below[j][u][0], above[j][u][1] = below[j][u][1];
    }

    uint2 *act = reinterpret_cast<uint2 *>(shared) + orientation * 16 * TILES * 32 + lane;
    first_norm(acc, act, reinterpret_cast<float *>(support) + (orientation * 2 + half) * 8 * FRAMES,
               scalars + half * 32, px, half);
    __syncthreads();
    const int quarter = warp % 4, c = quarter * 32;
    second_conv<K16>(act, (const uint4 *)l.weight2 + quarter / 2 * 16 * UNIT + quarter % 2 * 64 + lane,
                     scalars + 192 + c,
                     (__half *)l.out + ((size_t)query * e.frames + first) * e.out_row + orientation * OUT + c,
                     e.out_row, e.frames - first);
}

} // namespace

extern "C" int tt_k_embed_f16(const struct tt_k_embed_f16 *e, enum tt_k_mma mma, void *stream)
{
    int widest = 0;
    if (e->levels < 1 || e->levels > TT_K_EMBED_LEVELS || e->queries < 1 || e->frames < 1 || e->out_row % 2)
        return cudaErrorInvalidValue;
    for (int i = 0; i < e->levels; i++) {
        const int c = e->level[i].channels;
        if (c != 64 && c != 128 && c != 256)
            return cudaErrorInvalidValue;
        widest = c > widest ? c : widest;
    }
    const size_t bytes = VOLUME_BYTES + SCALARS * 4 + 64 * (2 * widest + 16);
    const dim3 grid(e->queries, tt_div_up(e->frames, FRAMES), e->levels);
    cudaError_t error = mma == TT_MMA_K16 ? tt_shared(embed<true>, bytes) : tt_shared(embed<false>, bytes);
    if (error)
        return error;
    if (mma == TT_MMA_K16)
        embed<true><<<grid, 32 * WARPS, bytes, (cudaStream_t)stream>>>(*e);
    else
        embed<false><<<grid, 32 * WARPS, bytes, (cudaStream_t)stream>>>(*e);
    return cudaGetLastError();
}

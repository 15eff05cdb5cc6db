/* cuda/tile_f16.cuh: the inner step of every FP16 tensor-core kernel here: one warp, 64 rows × 64 columns
 * × 16.
 *
 * A (rows × k) comes from shared memory by ldmatrix; its row addresses are arbitrary, so a convolution's taps
 * are offsets. B (k × columns) comes from global memory, packed in the order in which lanes hold it (pack.h):
 * four 16-byte loads a lane and step, shared by L1 among the warps of a block, no shared memory and no
 * barrier. Both are fetched one step ahead; a row tile of A into the registers that its last use has freed.
 * Accumulators: 128 registers; sums run along k in order, two (K16: one) instructions a step.
 */
#ifndef TT_CUDA_TILE_F16_CUH
#define TT_CUDA_TILE_F16_CUH

#include "cuda/common.cuh"

/* c[row tile][column tile]: rows 16·i + lane / 4 (+ 8), columns 8·j + 2·(lane % 4) (+ 1). */
typedef float tt_acc[4][8][4];

struct tt_frag_a {
    uint32_t r[4][4];
};
struct tt_frag_b {
    uint4 r[4];
};

/* address: of this lane's row (lane % 16) and half (lane / 16) in row tile 0; tiles lie tile_bytes apart. */
__device__ __forceinline__ void tt_load_a(tt_frag_a &a, uint32_t address, uint32_t tile_bytes)
{
#pragma unroll
    for (int i = 0; i < 4; i++)
        tt_ldmatrix4(a.r[i], address + i * tile_bytes);
}

/* packed: this lane's first 16 bytes of the step; a step is 2048 bytes. */
__device__ __forceinline__ void tt_load_b(tt_frag_b &b, const uint4 *packed)
{
#pragma unroll
    for (int i = 0; i < 4; i++)
        b.r[i] = __ldg(packed + i * 32);
}

template <bool K16> __device__ __forceinline__ void tt_step(tt_acc &c, const tt_frag_a &a, const tt_frag_b &b)
{
#pragma unroll
    for (int j = 0; j < 4; j++) {
#pragma unroll
        for (int i = 0; i < 4; i++) {
            tt_mma<K16>(c[i][2 * j], a.r[i], b.r[j].x, b.r[j].y);
            tt_mma<K16>(c[i][2 * j + 1], a.r[i], b.r[j].z, b.r[j].w);
        }
    }
}

/* The same, row tile by row tile, each of which is loaded for the next step once it has been used: no second
 * set of registers. next: as tt_load_a's address, of the next step. */
template <bool K16>
__device__ __forceinline__ void tt_step_load(tt_acc &c, tt_frag_a &a, const tt_frag_b &b, uint32_t next,
                                             uint32_t tile_bytes)
{
#pragma unroll
    for (int i = 0; i < 4; i++) {
#pragma unroll
        for (int j = 0; j < 4; j++) {
            tt_mma<K16>(c[i][2 * j], a.r[i], b.r[j].x, b.r[j].y);
            tt_mma<K16>(c[i][2 * j + 1], a.r[i], b.r[j].z, b.r[j].w);
        }
        tt_ldmatrix4(a.r[i], next + i * tile_bytes);
    }
}

/* Two lanes that differ in `bit` add their 2·HALF sums: the lower one keeps the first HALF, the upper the
 * others. */
template <int HALF> __device__ __forceinline__ void tt_halve(float2 (&v)[16], int lane, int bit)
{
    const bool upper = lane & bit;
#pragma unroll
    for (int j = 0; j < HALF; j++) {
        const float2 a = v[j], b = v[HALF + j];
        v[j].x = (upper ? b.x : a.x) + __shfl_xor_sync(0xffffffffu, upper ? a.x : b.x, bit);
        v[j].y = (upper ? b.y : a.y) + __shfl_xor_sync(0xffffffffu, upper ? a.y : b.y, bit);
    }
}

/* A warp's staging area in tt_store_warp: 32 pixels × 64 channels, lines of 144 bytes. */
enum { TT_STAGE_BYTES = 32 * 144 };

/* Adds the shortcut, rounds, stores 64 pixels × 64 channels and sums them for the next norm. out, add: at the
 * warp's first pixel and channel; line: halfs from one image row to the next. */
__device__ __forceinline__ void tt_store_warp(const tt_acc &c, unsigned char *stage, float2 *sums,
                                              __half *out, const __half *add, int channels, size_t line)
{
    const int lane = threadIdx.x % 32, g = lane / 4, q = lane % 4;
    float s[8][2] = {}, ss[8][2] = {};
#pragma unroll
    for (int h = 0; h < 2; h++) {
        if (add) {
#pragma unroll
            for (int i = 0; i < 8; i++) {
                const int p = i * 4 + lane / 8;
                const __half *from =
                    add + (2 * h + p / 16) * line + (size_t)(p % 16) * channels + lane % 8 * 8;
                *reinterpret_cast<uint4 *>(stage + p * 144 + lane % 8 * 16) =
                    *reinterpret_cast<const uint4 *>(from);
            }
            __syncwarp();
        }
#pragma unroll
        for (int i = 0; i < 2; i++)
#pragma unroll
            for (int j = 0; j < 8; j++)
#pragma unroll
                for (int r = 0; r < 2; r++) {
                    uint32_t *at =
                        reinterpret_cast<uint32_t *>(stage + (i * 16 + r * 8 + g) * 144 + j * 16 + q * 4);
                    const float2 old = add ? tt_unpack(*at) : make_float2(0.0f, 0.0f);
                    const float *v = &c[2 * h + i][j][2 * r];
                    const uint32_t rounded = tt_pack(v[0] + old.x, v[1] + old.y);
                    const float2 x = tt_unpack(rounded);
                    *at = rounded;
                    s[j][0] += x.x, s[j][1] += x.y;
                    ss[j][0] = fmaf(x.x, x.x, ss[j][0]), ss[j][1] = fmaf(x.y, x.y, ss[j][1]);
                }
        __syncwarp();
#pragma unroll
        for (int i = 0; i < 8; i++) {
            const int p = i * 4 + lane / 8;
            __half *to = out + (2 * h + p / 16) * line + (size_t)(p % 16) * channels + lane % 8 * 8;
            *reinterpret_cast<uint4 *>(to) =
                *reinterpret_cast<const uint4 *>(stage + p * 144 + lane % 8 * 16);
        }
        __syncwarp();
    }
    /* the eight lanes of a column's sums halve the columns among them three times: two are left to each */
    float2 v[16];
#pragma unroll
    for (int j = 0; j < 16; j++)
        v[j] = make_float2(s[j / 2][j % 2], ss[j / 2][j % 2]);
    tt_halve<8>(v, lane, 4);
    tt_halve<4>(v, lane, 8);
    tt_halve<2>(v, lane, 16);
    const int first = (g & 1) * 8 + (g & 2) * 2 + (g & 4) / 2;
#pragma unroll
    for (int j = 0; j < 2; j++)
        sums[(first + j) / 2 * 8 + q * 2 + (first + j) % 2] = v[j];
}

#endif

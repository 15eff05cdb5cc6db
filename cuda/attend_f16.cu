/* cuda/attend_f16.cu: attention over the frames of one query and what follows it, at width 256 and 384:
 *   h += heads(qkv) · weight + bias.
 *
 * A block takes one query, a warp one head and then 64 columns of the product. Queries, keys and values come
 * straight from memory, 16 bytes a lane: a lane's eight channels are operands of two steps of the scores as
 * they lie, in an order that queries and keys share; values are transposed 8 × 8 by 8 × 8 in registers, which
 * leaves each lane eight neighbouring channels of a result. Scores, softmax (FP32, what a head may not see is
 * skipped) and result of 16 frames stay in registers; the softmax's weights are rounded to FP16 before they
 * multiply the values, and divided by the sum of the unrounded ones afterwards. The heads meet in shared
 * memory, frames rounded up to 16, rows of 2·WIDTH + 16 bytes: 25,344 bytes at width 256 and 47 frames,
 * 50,176 at most; then the product begins with bias and residual. Sums: channels in packed order, keys in
 * order, k in order.
 */
#include "cuda/kernels.h"
#include "cuda/mixer_f16.cuh"

#include <math.h>

namespace
{

enum { HEAD = 64, MAX_HEADS = 6 };

struct slopes {
    float of[MAX_HEADS];
};

__device__ __forceinline__ float quad_max(float x)
{
    x = fmaxf(x, __shfl_xor_sync(0xffffffffu, x, 1));
    return fmaxf(x, __shfl_xor_sync(0xffffffffu, x, 2));
}
__device__ __forceinline__ float quad_sum(float x)
{
    x += __shfl_xor_sync(0xffffffffu, x, 1);
    return x + __shfl_xor_sync(0xffffffffu, x, 2);
}

/* 32 channels of a row of queries, keys or values: this lane's eight. */
__device__ __forceinline__ uint4 load(const __half *from)
{
    return *reinterpret_cast<const uint4 *>(from);
}

/* s [16 frames][keys] -> p, its softmax but for the division by total. */
template <int TILES>
__device__ __forceinline__ void softmax(float (&s)[2 * TILES][4], uint32_t (&p)[2 * TILES][2],
                                        float (&total)[2], int frame, int frames, bool ahead, float slope)
{
    float top[2] = {-INFINITY, -INFINITY};
#pragma unroll
    for (int t = 0; t < 2 * TILES; t++)
#pragma unroll
        for (int i = 0; i < 4; i++) {
            const int key = t * 8 + threadIdx.x % 4 * 2 + i % 2, here = frame + i / 2 * 8;
            const int distance = ahead ? key - here : here - key;
            s[t][i] =
                distance >= 0 && key < frames ? fmaf(s[t][i], 0.125f, -slope * (float)distance) : -INFINITY;
            top[i / 2] = fmaxf(top[i / 2], s[t][i]);
        }
#pragma unroll
    for (int r = 0; r < 2; r++) {
        top[r] = quad_max(top[r]);
        top[r] = top[r] == -INFINITY ? 0.0f : top[r]; /* frames past the last */
        total[r] = 0.0f;
#pragma unroll
        for (int t = 0; t < 2 * TILES; t++) {
            const float x = expf(s[t][2 * r] - top[r]), y = expf(s[t][2 * r + 1] - top[r]);
            total[r] += x + y;
            p[t][r] = tt_pack(x, y);
        }
        total[r] = quad_sum(total[r]);
    }
}

/* One head of one query, to its 64 columns of the shared rows. qkv: this lane's channels of the first frame's
 * queries; to: this lane's row and channels. */
template <bool K16, int WIDTH, int TILES>
__device__ __forceinline__ void run_head(unsigned char *to, const __half *qkv, int frames, bool ahead,
                                         float slope)
{
    enum { LINE = 2 * WIDTH + 16, KEYS = 2 * TILES };
    const int g = threadIdx.x % 32 / 4;
    uint4 k[KEYS][2];
    uint32_t v[KEYS][8];
#pragma unroll
    for (int t = 0; t < KEYS; t++)
#pragma unroll
        for (int h = 0; h < 2; h++) /* past the end: the last, with weight 0 */
            k[t][h] = load(qkv + (size_t)(min(t * 8 + g, frames - 1) * 3 + 1) * WIDTH + h * 32);
#pragma unroll
    for (int t = 0; t < KEYS; t++)
#pragma unroll
        for (int h = 0; h < 2; h++) {
            const uint4 u = load(qkv + (size_t)(min(t * 8 + g, frames - 1) * 3 + 2) * WIDTH + h * 32);
            v[t][h * 4] = tt_transpose(u.x), v[t][h * 4 + 1] = tt_transpose(u.y);
            v[t][h * 4 + 2] = tt_transpose(u.z), v[t][h * 4 + 3] = tt_transpose(u.w);
        }
#pragma unroll 1
    for (int i = 0; i < TILES; i++) {
        const int frame = i * 16 + g;
        float s[KEYS][4] = {}, o[8][4] = {}, total[2];
        uint32_t p[KEYS][2];
#pragma unroll
        for (int h = 0; h < 2; h++) {
            const uint4 a = load(qkv + (size_t)min(frame, frames - 1) * 3 * WIDTH + h * 32);
            const uint4 b = load(qkv + (size_t)min(frame + 8, frames - 1) * 3 * WIDTH + h * 32);
            const uint32_t a0[4] = {a.x, b.x, a.y, b.y}, a1[4] = {a.z, b.z, a.w, b.w};
#pragma unroll
            for (int t = 0; t < KEYS; t++)
                tt_mma<K16>(s[t], a0, k[t][h].x, k[t][h].y);
#pragma unroll
            for (int t = 0; t < KEYS; t++)
                tt_mma<K16>(s[t], a1, k[t][h].z, k[t][h].w);
        }
        softmax<TILES>(s, p, total, frame, frames, ahead, slope);
#pragma unroll
        for (int t = 0; t < TILES; t++) {
            const uint32_t a[4] = {p[2 * t][0], p[2 * t][1], p[2 * t + 1][0], p[2 * t + 1][1]};
#pragma unroll
            for (int c = 0; c < 8; c++)
                tt_mma<K16>(o[c], a, v[2 * t][c], v[2 * t + 1][c]);
        }
#pragma unroll
        for (int r = 0; r < 2; r++) {
            const float scale = total[r] > 0.0f ? 1.0f / total[r] : 0.0f;
#pragma unroll
            for (int h = 0; h < 2; h++) {
                uint32_t x[4];
#pragma unroll
                for (int c = 0; c < 4; c++)
                    x[c] = tt_pack(o[h * 4 + c][2 * r] * scale, o[h * 4 + c][2 * r + 1] * scale);
                *reinterpret_cast<uint4 *>(to + (i * 16 + r * 8) * LINE + h * 64) =
                    make_uint4(x[0], x[1], x[2], x[3]);
            }
        }
    }
}

template <bool K16, int WIDTH, int TILES>
__global__ void __launch_bounds__(WIDTH / 2, !K16 && WIDTH == 384 ? 1 : 2)
    attend(const struct tt_k_attend_f16 g, slopes slope)
{
    enum { HEADS = WIDTH / HEAD, LINE = 2 * WIDTH + 16, STEPS = WIDTH / 16, AHEAD = WIDTH == 256 ? 3 : 1 };
    extern __shared__ __align__(16) unsigned char shared[];
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, column = warp * 64 + lane % 4 * 2;
    const int first = blockIdx.x * g.frames, row = first + lane / 4;
    tt_let_next();
    tt_wait_previous();
    run_head<K16, WIDTH, TILES>(shared + lane / 4 * LINE + warp * 128 + lane % 4 * 16,
                                (const __half *)g.qkv + (size_t)first * 3 * WIDTH + warp * HEAD +
                                    lane % 4 * 8,
                                g.frames, warp >= HEADS / 2, slope.of[warp]);
    const uint4 *weight = tt_columns_of<8>(g.weight, warp, STEPS);
    const uint32_t base = tt_shared_address(shared) + lane % 16 * LINE + lane / 16 * 16;
    float acc[TILES][8][4];
    tt_rows<TILES, !K16 && WIDTH == 384> a;
    a.tile_bytes = 16 * LINE;
    tt_columns<8> b[AHEAD + 1];
#pragma unroll
    for (int s = 0; s < AHEAD; s++)
        b[s].load(weight + s * 128);
    tt_start(acc, g.bias + column);
    tt_add_rows<WIDTH>(acc, g.h, row, first + g.frames, column);
    __syncthreads();
    a.start(base);
#pragma unroll
    for (int s = 0; s < STEPS; s++) {
        if (s + AHEAD < STEPS)
            b[(s + AHEAD) % (AHEAD + 1)].load(weight + (s + AHEAD) * 128);
        a.template step<K16>(acc, b[s % (AHEAD + 1)], base + s * 32, base + (s + 1) % STEPS * 32);
    }
    tt_store_rows<WIDTH>(acc, g.h, row, first + g.frames, column);
}

template <bool K16, int WIDTH, int TILES>
cudaError_t launch(const struct tt_k_attend_f16 *g, const slopes &s, void *stream)
{
    const size_t bytes = 16 * TILES * (2 * WIDTH + 16);
    const cudaError_t e = tt_shared(attend<K16, WIDTH, TILES>, bytes);
    if (e != cudaSuccess)
        return e;
    return tt_launch(attend<K16, WIDTH, TILES>, dim3(g->queries), WIDTH / 2, bytes, stream, *g, s);
}

template <bool K16, int WIDTH> cudaError_t choose(const struct tt_k_attend_f16 *g, void *stream)
{
    enum { HALF = WIDTH / HEAD / 2 };
    slopes s = {};
    for (int i = 0; i < 2 * HALF; i++)
        s.of[i] = (float)pow(24.0, -(double)(i % HALF + 1) / HALF);
    switch ((g->frames + 15) / 16) {
    case 1:
        return launch<K16, WIDTH, 1>(g, s, stream);
    case 2:
        return launch<K16, WIDTH, 2>(g, s, stream);
    case 3:
        return launch<K16, WIDTH, 3>(g, s, stream);
    }
    return cudaErrorInvalidValue;
}

} // namespace

extern "C" int tt_k_attend_f16(const struct tt_k_attend_f16 *g, enum tt_k_mma mma, void *stream)
{
    if (g->queries < 1 || g->frames < 1 || (g->width != 256 && g->width != 384))
        return cudaErrorInvalidValue;
    if (mma == TT_MMA_K16)
        return g->width == 256 ? choose<true, 256>(g, stream) : choose<true, 384>(g, stream);
    return g->width == 256 ? choose<false, 256>(g, stream) : choose<false, 384>(g, stream);
}

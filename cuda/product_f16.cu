/* cuda/product_f16.cu: the mixer's matrix products on tensor cores, in two shapes, at width 256 and 384.
 *
 * A block makes 48 rows × all columns, WIDTH at a time, with eight warps of 48 × 32 (width 256) or six of
 * 48 × 64 (384; 256 streamed with the older instructions: four warps); two blocks a multiprocessor, so that
 * one multiplies while the other waits. B is read one to three steps of k ahead. Sums run along k in order,
 * beginning with the bias (mixer_f16.cuh).
 *
 * normed: A is layer_norm(h), FP32 h, made once in shared memory (25,344 and 37,632 bytes); then the warps
 * run through the columns of the product without barriers. FP16 out.
 *
 * streamed: A is FP16, streamed in chunks of 128 (64) columns through two buffers (26,112 and 13,824 bytes),
 * the next chunk waiting in registers; out = A · weight + bias, FP32.
 */
#include "cuda/kernels.h"
#include "cuda/mixer_f16.cuh"

#include <limits.h>

namespace
{

/* A warp's tile is 16·TILES × 8·N; AHEAD: steps for which `normed` fetches B ahead. */
template <int WIDTH_, int TILES_, int N_, int AHEAD_ = WIDTH_ == 256 ? 3 : 2> struct tile {
    enum {
        WIDTH = WIDTH_,
        TILES = TILES_,
        N = N_,
        AHEAD = AHEAD_,
        WARPS = WIDTH / (8 * N),
        THREADS = 32 * WARPS,
        ROWS = 16 * TILES,
        BLOCKS = 2, /* on a multiprocessor */
        CHUNK = WIDTH == 256 ? 128 : 64,
        NORMED = ROWS * (2 * WIDTH + 16), /* bytes of shared memory */
        STREAMED = 2 * ROWS * (2 * CHUNK + 16)
    };
    /* two would not leave the older instructions enough registers at width 384 */
    static constexpr int streamed_blocks(bool k16)
    {
        return k16 || WIDTH == 256 ? 2 : 1;
    }
};

/* Rounds and stores 16 rows × 8·N columns; two lanes swap halves of two column tiles: whole sectors. */
template <int N>
__device__ __forceinline__ void store_half(const struct tt_k_product_f16 &g, const float (&c)[N][4], int row,
                                           int column)
{
    const bool odd = threadIdx.x & 1;
#pragma unroll
    for (int r = 0; r < 2; r++) {
        const bool inside = row + 8 * r < g.rows;
#pragma unroll
        for (int j = 0; j < N; j += 2) {
            const uint32_t p = tt_pack(c[j][2 * r], c[j][2 * r + 1]);
            const uint32_t q = tt_pack(c[j + 1][2 * r], c[j + 1][2 * r + 1]);
            const uint32_t other = __shfl_xor_sync(0xffffffffu, odd ? p : q, 1);
            const uint2 u = odd ? make_uint2(other, q) : make_uint2(p, other);
            if (inside)
                *reinterpret_cast<uint2 *>(g.half + (size_t)(row + 8 * r) * g.n + column + j * 8 +
                                           (odd ? 6 : 0)) = u;
        }
    }
}

template <bool K16, class t>
__global__ void __launch_bounds__(t::THREADS, t::BLOCKS) product_normed(const struct tt_k_product_f16 g)
{
    enum {
        WIDTH = t::WIDTH,
        TILES = t::TILES,
        N = t::N,
        LINE = 2 * WIDTH + 16,
        STEPS = WIDTH / 16,
        AHEAD = t::AHEAD,
        RING = AHEAD + 1 /* divides STEPS: it goes on from part to part */
    };
    extern __shared__ __align__(16) unsigned char shared[];
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    const int row0 = blockIdx.x * t::ROWS;
    /* blocks begin at different columns, so that they do not all ask L2 for the same lines */
    const int parts = g.n / WIDTH, first = blockIdx.x / t::BLOCKS % parts;
    const uint4 *packed = tt_columns_of<N>(g.weight, warp, STEPS);
    const uint4 *weight = packed + (size_t)first * (WIDTH / 64) * STEPS * 128;
    tt_columns<N> b[RING];
#pragma unroll
    for (int s = 0; s < AHEAD; s++)
        b[s].load(weight + s * 128);
    tt_let_next();
    tt_wait_previous();
    tt_norm_rows<WIDTH, t::ROWS, t::WARPS>(shared, g.h, g.gamma, g.beta, row0, g.rows);
    __syncthreads();
    const uint32_t base = tt_shared_address(shared) + lane % 16 * LINE + lane / 16 * 16;
    tt_rows<TILES, !K16 && t::WIDTH == 384> a;
    a.tile_bytes = 16 * LINE;
    a.start(base);
    int part = first;
#pragma unroll 1
    for (int n = 0; n < parts; n++) {
        const int column = part * WIDTH + warp * 8 * N + lane % 4 * 2;
        part = part + 1 < parts ? part + 1 : 0;
        const uint4 *after =
            packed + (size_t)part * (WIDTH / 64) * STEPS * 128; /* after the last: not used */
        float acc[TILES][N][4];
        tt_start(acc, g.bias + column);
#pragma unroll
        for (int s = 0; s < STEPS; s++) {
            b[(s + AHEAD) % RING].load(s + AHEAD < STEPS ? weight + (s + AHEAD) * 128
                                                         : after + (s + AHEAD - STEPS) * 128);
            a.template step<K16>(acc, b[s % RING], base + s * 32, base + (s + 1) % STEPS * 32);
        }
        weight = after;
#pragma unroll
        for (int i = 0; i < TILES; i++)
            store_half<N>(g, acc[i], row0 + i * 16 + lane / 4, column);
    }
}

template <bool K16, class t>
__global__ void __launch_bounds__(t::THREADS, t::streamed_blocks(K16))
    product_streamed(const struct tt_k_product_f16 g)
{
    enum {
        TILES = t::TILES,
        N = t::N,
        CHUNK = t::CHUNK,
        LINE = 2 * CHUNK + 16,
        STEPS = CHUNK / 16,
        BUFFER = t::ROWS * LINE,
        AT_ONCE = t::THREADS / (CHUNK / 8), /* rows of one load of all threads */
        LOADS = (t::ROWS + AT_ONCE - 1) / AT_ONCE,
        AHEAD = K16 ? 2 : 1,
        RING = 2 * AHEAD
    };
    extern __shared__ __align__(16) unsigned char shared[];
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    const int row0 = blockIdx.x * t::ROWS, steps = g.k / 16;
    const uint4 *weight = tt_columns_of<N>(g.weight, warp, steps);
    const int part = threadIdx.x % (CHUNK / 8), first = threadIdx.x / (CHUNK / 8);
    unsigned char *a_to = shared + first * LINE + part * 16;
    const uint32_t base = tt_shared_address(shared) + lane % 16 * LINE + lane / 16 * 16;
    uint4 wait[LOADS];
    /* columns past k are zero: chunks are whole; rows past the end are the last row */
    auto fetch = [&](int k0) {
#pragma unroll
        for (int i = 0; i < LOADS; i++) {
            const int row = min(row0 + first + i * AT_ONCE, g.rows - 1), column = k0 + part * 8;
            wait[i] = make_uint4(0, 0, 0, 0);
            if (column < g.k)
                wait[i] = *reinterpret_cast<const uint4 *>(g.a + (row * g.k + column));
        }
    };
    auto put = [&](int buffer) {
#pragma unroll
        for (int i = 0; i < LOADS; i++)
            if (t::ROWS % AT_ONCE == 0 || first + i * AT_ONCE < t::ROWS)
                *reinterpret_cast<uint4 *>(a_to + buffer * BUFFER + i * AT_ONCE * LINE) = wait[i];
    };

    const int column = warp * 8 * N + lane % 4 * 2, row = row0 + lane / 4;
    float acc[TILES][N][4];
    tt_rows<TILES, !K16 && t::WIDTH == 384> a;
    a.tile_bytes = 16 * LINE;
    tt_columns<N> b[RING];
#pragma unroll
    for (int s = 0; s < AHEAD; s++)
        b[s].load(weight + min(s, steps - 1) * 128);
    tt_start(acc, g.bias + column);
    tt_let_next();
    tt_wait_previous();
    fetch(0);
    put(0);
    __syncthreads();
#pragma unroll 1
    for (int s0 = 0; s0 < steps; s0 += STEPS) {
        const int buffer = s0 / STEPS & 1;
        const uint32_t at = base + buffer * BUFFER;
        a.start(at);
        if (s0 + STEPS < steps)
            fetch((s0 + STEPS) * 16);
#pragma unroll
        for (int s = 0; s < STEPS; s++) {
            b[(s + AHEAD) % RING].load(weight + min(s0 + s + AHEAD, steps - 1) * 128);
            a.template step<K16>(acc, b[s % RING], at + s * 32, at + (s + 1) % STEPS * 32);
        }
        if (s0 + STEPS < steps)
            put(buffer ^ 1);
        __syncthreads();
    }
    tt_store_rows<t::WIDTH>(acc, g.out, row, g.rows, column);
}

template <class K>
cudaError_t launch(K *kernel, int rows, int threads, size_t bytes, const struct tt_k_product_f16 *g,
                   void *stream)
{
    const cudaError_t e = tt_shared(kernel, bytes);
    if (e != cudaSuccess)
        return e;
    return tt_launch(kernel, dim3(tt_div_up(g->rows, rows)), threads, bytes, stream, *g);
}

template <class t> cudaError_t choose(const struct tt_k_product_f16 *g, enum tt_k_mma mma, void *stream)
{
    if (g->h) {
        if (g->n % t::WIDTH || g->n < t::WIDTH || !g->half)
            return cudaErrorInvalidValue;
        return launch(mma == TT_MMA_K16 ? product_normed<true, t> : product_normed<false, t>, t::ROWS,
                      t::THREADS, t::NORMED, g, stream);
    }
    if (g->k % 32 || g->k < 32 || g->n != t::WIDTH || !g->out)
        return cudaErrorInvalidValue;
    return launch(mma == TT_MMA_K16 ? product_streamed<true, t> : product_streamed<false, t>, t::ROWS,
                  t::THREADS, t::STREAMED, g, stream);
}

} // namespace

extern "C" int tt_k_product_f16(const struct tt_k_product_f16 *g, enum tt_k_mma mma, void *stream)
{
    if (g->rows < 1 || (int64_t)g->rows * g->k > INT_MAX)
        return cudaErrorInvalidValue;
    const bool k16 = mma == TT_MMA_K16;
    if (g->width == 256)
        return !k16 && !g->h ? choose<tile<256, 3, 8>>(g, mma, stream)
                             : choose<tile<256, 3, 4>>(g, mma, stream);
    if (g->width == 384)
        return k16 ? choose<tile<384, 3, 8>>(g, mma, stream) : choose<tile<384, 3, 8, 1>>(g, mma, stream);
    return cudaErrorInvalidValue;
}

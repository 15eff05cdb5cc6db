/* cuda/product_f16.cu: the mixer's matrix products on tensor cores, in two shapes, at width 256 and 384.
 *
 * A block makes 16·TILES·2 rows × all columns, WIDTH at a time, with 2 × WIDTH / 64 warps of 16·TILES × 64
 * each: 96 rows at width 256, 64 at width 384. B is read once for these rows, two or three steps of k ahead.
 *   normed: A is layer_norm(h), FP32 h, made once in shared memory (50,688 and 50,176 bytes); then the warps
 * run through the columns of the product without barriers. FP16 out. added: A is FP16, streamed in chunks of
 * 128 columns through two buffers (52,224 and 34,816 bytes), the next chunk waiting in registers; out = A ·
 * weight + bias [+ out], FP32. Sums run along k in order, beginning with the bias, and the residual where
 * there is one (mixer_f16.cuh).
 */
#include "cuda/kernels.h"
#include "cuda/mixer_f16.cuh"

namespace
{

template <int WIDTH, int MW> struct tile {
    enum {
        TILES = WIDTH == 256 ? 3 : 2,
        NW = WIDTH / 64,
        WARPS = MW * NW,
        THREADS = 32 * WARPS,
        ROWS = 16 * TILES * MW,
        CHUNK = WIDTH == 256 ? 128 : 64,
        NORMED = ROWS * (2 * WIDTH + 16), /* bytes of shared memory */
        ADDED = 2 * ROWS * (2 * CHUNK + 16)
    };
};

/* Rounds and stores 16 rows × 64 columns; two lanes swap halves of two column tiles: whole sectors. */
__device__ __forceinline__ void store_half(const struct tt_k_product_f16 &g, const float (&c)[8][4], int row,
                                           int column)
{
    const bool odd = threadIdx.x & 1;
#pragma unroll
    for (int r = 0; r < 2; r++) {
        const bool inside = row + 8 * r < g.rows;
#pragma unroll
        for (int j = 0; j < 8; j += 2) {
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

template <bool K16, int WIDTH, int MW>
__global__ void __launch_bounds__(tile<WIDTH, MW>::THREADS, MW == 1 ? 2 : 1)
    product_normed(const struct tt_k_product_f16 g)
{
    typedef tile<WIDTH, MW> t;
    enum { TILES = t::TILES, LINE = 2 * WIDTH + 16, STEPS = WIDTH / 16, AHEAD = WIDTH == 256 ? 3 : 2 };
    extern __shared__ __align__(16) unsigned char shared[];
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, wm = warp % MW, wn = warp / MW;
    const int row0 = blockIdx.x * t::ROWS;
    /* blocks begin at different columns, so that they do not all ask L2 for the same lines */
    const int parts = g.n / WIDTH, first = blockIdx.x % parts;
    const uint4 *packed = reinterpret_cast<const uint4 *>(g.weight) + (size_t)wn * STEPS * 128 + lane;
    const uint4 *weight = packed + (size_t)first * t::NW * STEPS * 128;
    tt_frag_b b[AHEAD + 1];
#pragma unroll
    for (int s = 0; s < AHEAD; s++)
        tt_load_b(b[s], weight + s * 128);
    tt_norm_rows<WIDTH, t::ROWS, t::WARPS>(shared, g.h, g.gamma, g.beta, row0, g.rows);
    __syncthreads();
    const uint32_t base = tt_shared_address(shared) + (wm * 16 * TILES + lane % 16) * LINE + lane / 16 * 16;
    uint32_t a[TILES][4];
#pragma unroll
    for (int i = 0; i < TILES; i++)
        tt_ldmatrix4(a[i], base + i * 16 * LINE);
    int part = first;
#pragma unroll 1
    for (int n = 0; n < parts; n++) {
        const int column = part * WIDTH + wn * 64 + lane % 4 * 2;
        part = part + 1 < parts ? part + 1 : 0;
        const uint4 *after = packed + (size_t)part * t::NW * STEPS * 128; /* after the last: not used */
        float acc[TILES][8][4];
        tt_start(acc, g.bias + column);
#pragma unroll
        for (int s = 0; s < STEPS; s++) {
            tt_load_b(b[(s + AHEAD) % (AHEAD + 1)],
                      s + AHEAD < STEPS ? weight + (s + AHEAD) * 128 : after + (s + AHEAD - STEPS) * 128);
            tt_step_rows<K16>(acc, a, b[s % (AHEAD + 1)], base + (s + 1) % STEPS * 32, 16 * LINE);
        }
        weight = after;
#pragma unroll
        for (int i = 0; i < TILES; i++)
            store_half(g, acc[i], row0 + (wm * TILES + i) * 16 + lane / 4, column);
    }
}

template <bool K16, int WIDTH, int MW>
__global__ void __launch_bounds__(tile<WIDTH, MW>::THREADS, MW == 1 ? 2 : 1)
    product_added(const struct tt_k_product_f16 g)
{
    typedef tile<WIDTH, MW> t;
    enum {
        TILES = t::TILES,
        CHUNK = t::CHUNK,
        LINE = 2 * CHUNK + 16,
        STEPS = CHUNK / 16,
        BUFFER = t::ROWS * LINE,
        AT_ONCE = t::THREADS / (CHUNK / 8), /* rows of one load of all threads */
        LOADS = (t::ROWS + AT_ONCE - 1) / AT_ONCE,
        AHEAD = 2,
        RING = 4
    };
    extern __shared__ __align__(16) unsigned char shared[];
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, wm = warp % MW, wn = warp / MW;
    const int row0 = blockIdx.x * t::ROWS;
    const uint4 *weight = reinterpret_cast<const uint4 *>(g.weight) + (size_t)wn * (g.k / 16) * 128 + lane;
    const int part = threadIdx.x % (CHUNK / 8), first = threadIdx.x / (CHUNK / 8);
    unsigned char *a_to = shared + first * LINE + part * 16;
    const uint32_t base = tt_shared_address(shared) + (wm * 16 * TILES + lane % 16) * LINE + lane / 16 * 16;
    uint4 wait[LOADS];
    /* columns past k are zero: chunks are whole; rows past the end are the last row */
    auto fetch = [&](int k0) {
#pragma unroll
        for (int i = 0; i < LOADS; i++) {
            const int row = min(row0 + first + i * AT_ONCE, g.rows - 1), column = k0 + part * 8;
            wait[i] = make_uint4(0, 0, 0, 0);
            if (column < g.k)
                wait[i] = *reinterpret_cast<const uint4 *>(g.a + (size_t)row * g.k + column);
        }
    };
    auto put = [&](int buffer) {
#pragma unroll
        for (int i = 0; i < LOADS; i++)
            if (t::ROWS % AT_ONCE == 0 || first + i * AT_ONCE < t::ROWS)
                *reinterpret_cast<uint4 *>(a_to + buffer * BUFFER + i * AT_ONCE * LINE) = wait[i];
    };

    const int column = wn * 64 + lane % 4 * 2, row = row0 + wm * TILES * 16 + lane / 4;
    float acc[TILES][8][4];
    uint32_t a[TILES][4];
    tt_frag_b b[RING];
    const int steps = g.k / 16;
    fetch(0);
#pragma unroll
    for (int s = 0; s < AHEAD; s++)
        tt_load_b(b[s], weight + min(s, steps - 1) * 128);
    tt_start(acc, g.bias + column);
    if (g.add)
        tt_add_rows<WIDTH>(acc, g.out, row, g.rows, column);
    put(0);
    __syncthreads();
#pragma unroll 1
    for (int s0 = 0; s0 < steps; s0 += STEPS) {
        const int buffer = s0 / STEPS & 1;
        const uint32_t at = base + buffer * BUFFER;
#pragma unroll
        for (int i = 0; i < TILES; i++)
            tt_ldmatrix4(a[i], at + i * 16 * LINE);
        if (s0 + STEPS < steps)
            fetch((s0 + STEPS) * 16);
#pragma unroll
        for (int s = 0; s < STEPS; s++) {
            tt_load_b(b[(s + AHEAD) % RING], weight + min(s0 + s + AHEAD, steps - 1) * 128);
            tt_step_rows<K16>(acc, a, b[s % RING], at + (s + 1) % STEPS * 32, 16 * LINE);
        }
        if (s0 + STEPS < steps)
            put(buffer ^ 1);
        __syncthreads();
    }
    tt_store_rows<WIDTH>(acc, g.out, row, g.rows, column);
}

template <class K>
cudaError_t launch(K *kernel, int rows, int threads, size_t bytes, const struct tt_k_product_f16 *g,
                   void *stream)
{
    const cudaError_t e = tt_shared(kernel, bytes);
    if (e != cudaSuccess)
        return e;
    kernel<<<tt_div_up(g->rows, rows), threads, bytes, (cudaStream_t)stream>>>(*g);
    return cudaGetLastError();
}

template <int WIDTH, int MW>
cudaError_t choose(const struct tt_k_product_f16 *g, enum tt_k_mma mma, void *stream)
{
    typedef tile<WIDTH, MW> t;
    if (g->h) {
        if (g->n % WIDTH || g->n < WIDTH || !g->half)
            return cudaErrorInvalidValue;
        return launch(mma == TT_MMA_K16 ? product_normed<true, WIDTH, MW> : product_normed<false, WIDTH, MW>,
                      t::ROWS, t::THREADS, t::NORMED, g, stream);
    }
    if (g->k % 32 || g->k < 32 || g->n != WIDTH || !g->out)
        return cudaErrorInvalidValue;
    return launch(mma == TT_MMA_K16 ? product_added<true, WIDTH, MW> : product_added<false, WIDTH, MW>,
                  t::ROWS, t::THREADS, t::ADDED, g, stream);
}

} // namespace

extern "C" int tt_k_product_f16(const struct tt_k_product_f16 *g, enum tt_k_mma mma, void *stream)
{
    if (g->rows < 1)
        return cudaErrorInvalidValue;
    if (g->width == 256)
        return g->half_blocks ? choose<256, 1>(g, mma, stream) : choose<256, 2>(g, mma, stream);
    if (g->width == 384)
        return g->half_blocks ? choose<384, 1>(g, mma, stream) : choose<384, 2>(g, mma, stream);
    return cudaErrorInvalidValue;
}

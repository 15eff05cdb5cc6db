/* cuda/product_f16.cu: the mixer's matrix products on tensor cores at width 256, in two shapes.
 *
 * A block makes 96 rows × 256 columns with 2 × 4 warps of 48 × 64 each: 126 blocks for 256 points
 * and 47 frames, and B is read once for 96 rows. B comes packed from L1/L2 (tile_f16.cuh), two or
 * three steps of k ahead; A by ldmatrix from shared memory, rows of it 16 bytes longer than what they hold.
 *   normed: A is layer_norm(h), FP32 h of 256 columns, made once in shared memory (50,688 bytes); then the
 *     warps run through the columns of the product, 256 at a time, without barriers. [GELU], FP16 out.
 *   added: A is FP16, streamed in chunks of 128 columns through two buffers (52,224 bytes), the next chunk
 *     waiting in registers; h [+]= A · weight + bias.
 * Sums run along k in order, beginning with the bias, and the residual where there is one; layer norm as in
 * norm.cu: two passes, lanes hold eight columns each, a butterfly. GELU is the erf form, with erfc by
 * Abramowitz and Stegun 7.1.26 and the hardware's reciprocal and power: 3e-7 absolute, before rounding to
 * FP16.
 */
#include "cuda/kernels.h"
#include "cuda/tile_f16.cuh"

namespace
{

enum { WIDTH = 256, MW = 2, NW = 4, TILES = 3, WARPS = MW * NW, ROWS = 16 * TILES * MW, COLUMNS = 64 * NW };

typedef float warp_acc[TILES][8][4];

/* max(x, 0) - |x|·Φ(-|x|), Φ(-z√2) = erfc(z) / 2. */
__device__ __forceinline__ float gelu(float x)
{
    const float z = fabsf(x);
    float t, e;
    asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(t) : "f"(fmaf(0.3275911f * 0.70710678f, z, 1.0f)));
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(e) : "f"(x * x * -0.72134752f));
    const float poly =
        fmaf(t, fmaf(t, fmaf(t, fmaf(t, 0.5307027145f, -0.7265760135f), 0.7107068705f), -0.142248368f),
             0.127414796f);
    return fmaf(-z, poly * t * e, fmaxf(x, 0.0f));
}

/* A step of k: B fragment `b` against three row tiles of A, each loaded for the next step once it is used. */
template <bool K16>
__device__ __forceinline__ void step(warp_acc &c, uint32_t (&a)[TILES][4], const tt_frag_b &b, uint32_t next,
                                     uint32_t tile_bytes)
{
#pragma unroll
    for (int i = 0; i < TILES; i++) {
#pragma unroll
        for (int j = 0; j < 4; j++) {
            tt_mma<K16>(c[i][2 * j], a[i], b.r[j].x, b.r[j].y);
            tt_mma<K16>(c[i][2 * j + 1], a[i], b.r[j].z, b.r[j].w);
        }
        tt_ldmatrix4(a[i], next + i * tile_bytes);
    }
}

/* GELU and rounding of 16 rows × 64 columns; two lanes swap halves of two column tiles: whole sectors. */
__device__ __forceinline__ void store_half(const struct tt_k_product_f16 &g, const float (&c)[8][4], int row,
                                           int column)
{
    const bool odd = threadIdx.x & 1;
#pragma unroll
    for (int r = 0; r < 2; r++) {
        const bool inside = row + 8 * r < g.rows;
        uint32_t packed[8];
#pragma unroll
        for (int j = 0; j < 8; j++) {
            float x = c[j][2 * r], y = c[j][2 * r + 1];
            if (g.gelu)
                x = gelu(x), y = gelu(y);
            packed[j] = tt_pack(x, y);
        }
#pragma unroll
        for (int j = 0; j < 8; j += 2) {
            const uint32_t other = __shfl_xor_sync(0xffffffffu, odd ? packed[j] : packed[j + 1], 1);
            const uint2 u = odd ? make_uint2(other, packed[j + 1]) : make_uint2(packed[j], other);
            if (inside)
                *reinterpret_cast<uint2 *>(g.half + (size_t)(row + 8 * r) * g.n + column + j * 8 +
                                           (odd ? 6 : 0)) = u;
        }
    }
}

/* bias: at this lane's first column. */
__device__ __forceinline__ void start(warp_acc &acc, const float *bias)
{
#pragma unroll
    for (int j = 0; j < 8; j++) {
        const float2 v = *reinterpret_cast<const float2 *>(bias + j * 8);
#pragma unroll
        for (int i = 0; i < TILES; i++)
            acc[i][j][0] = acc[i][j][2] = v.x, acc[i][j][1] = acc[i][j][3] = v.y;
    }
}

/* Layer norm of this block's rows into shared memory; a warp takes 12 rows, six in flight. */
__device__ __forceinline__ void norm_rows(unsigned char *shared, const struct tt_k_product_f16 &g, int row0)
{
    enum { LINE = 2 * WIDTH + 16, PER_WARP = ROWS / WARPS, BATCH = 6 };
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    float w[8], s[8];
#pragma unroll
    for (int k = 0; k < 8; k++)
        w[k] = g.gamma[lane * 8 + k], s[k] = g.beta[lane * 8 + k];
#pragma unroll 1
    for (int i0 = 0; i0 < PER_WARP; i0 += BATCH) {
        float v[BATCH][8];
#pragma unroll
        for (int i = 0; i < BATCH; i++) {
            const int row = min(row0 + warp * PER_WARP + i0 + i, g.rows - 1);
#pragma unroll
            for (int k = 0; k < 8; k += 4) {
                const float4 u = tt_load4(g.h + (size_t)row * WIDTH + lane * 8 + k);
                v[i][k] = u.x, v[i][k + 1] = u.y, v[i][k + 2] = u.z, v[i][k + 3] = u.w;
            }
        }
#pragma unroll
        for (int i = 0; i < BATCH; i++) {
            float sum = 0.0f, square = 0.0f;
#pragma unroll
            for (int k = 0; k < 8; k++)
                sum += v[i][k];
            const float mean = tt_warp_sum(sum) * (1.0f / WIDTH);
#pragma unroll
            for (int k = 0; k < 8; k++)
                v[i][k] -= mean, square = fmaf(v[i][k], v[i][k], square);
            const float scale = 1.0f / sqrtf(tt_warp_sum(square) * (1.0f / WIDTH) + 1e-5f);
            uint32_t p[4];
#pragma unroll
            for (int k = 0; k < 4; k++)
                p[k] = tt_pack(fmaf(v[i][2 * k] * scale, w[2 * k], s[2 * k]),
                               fmaf(v[i][2 * k + 1] * scale, w[2 * k + 1], s[2 * k + 1]));
            *reinterpret_cast<uint4 *>(shared + (warp * PER_WARP + i0 + i) * LINE + lane * 16) =
                make_uint4(p[0], p[1], p[2], p[3]);
        }
    }
}

template <bool K16>
__global__ void __launch_bounds__(32 * WARPS, 1) product_normed(const struct tt_k_product_f16 g)
{
    enum { LINE = 2 * WIDTH + 16, STEPS = WIDTH / 16, AHEAD = 3 };
    extern __shared__ __align__(16) unsigned char shared[];
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, wm = warp % MW, wn = warp / MW;
    const int row0 = blockIdx.x * ROWS;
    /* blocks begin at different columns, so that they do not all ask L2 for the same lines */
    const int tiles = g.n / COLUMNS, first = blockIdx.x % tiles;
    const uint4 *packed = reinterpret_cast<const uint4 *>(g.weight) + (size_t)wn * STEPS * 128 + lane;
    const uint4 *weight = packed + (size_t)first * NW * STEPS * 128;
    tt_frag_b b[AHEAD + 1];
#pragma unroll
    for (int s = 0; s < AHEAD; s++)
        tt_load_b(b[s], weight + s * 128);
    norm_rows(shared, g, row0);
    __syncthreads();
    const uint32_t base = tt_shared_address(shared) + (wm * 16 * TILES + lane % 16) * LINE + lane / 16 * 16;
    uint32_t a[TILES][4];
#pragma unroll
    for (int i = 0; i < TILES; i++)
        tt_ldmatrix4(a[i], base + i * 16 * LINE);
    int tile = first;
#pragma unroll 1
    for (int t = 0; t < tiles; t++) {
        const int column = tile * COLUMNS + wn * 64 + lane % 4 * 2;
        tile = tile + 1 < tiles ? tile + 1 : 0;
        const uint4 *after = packed + (size_t)tile * NW * STEPS * 128; /* after the last: not used */
        warp_acc acc;
        start(acc, g.bias + column);
#pragma unroll
        for (int s = 0; s < STEPS; s++) {
            tt_load_b(b[(s + AHEAD) % (AHEAD + 1)],
                      s + AHEAD < STEPS ? weight + (s + AHEAD) * 128 : after + (s + AHEAD - STEPS) * 128);
            step<K16>(acc, a, b[s % (AHEAD + 1)], base + (s + 1) % STEPS * 32, 16 * LINE);
        }
        weight = after;
#pragma unroll
        for (int i = 0; i < TILES; i++)
            store_half(g, acc[i], row0 + (wm * TILES + i) * 16 + lane / 4, column);
    }
}

/* acc += out; row, column: this lane's first. Rows past the end add the last one, and are not written. */
__device__ __forceinline__ void add_rows(warp_acc &acc, const struct tt_k_product_f16 &g, int row, int column)
{
#pragma unroll
    for (int i = 0; i < TILES; i++)
#pragma unroll
        for (int r = 0; r < 2; r++) {
            const float *from = g.out + (size_t)min(row + i * 16 + 8 * r, g.rows - 1) * WIDTH + column;
#pragma unroll
            for (int j = 0; j < 8; j++) {
                const float2 v = *reinterpret_cast<const float2 *>(from + j * 8);
                acc[i][j][2 * r] += v.x, acc[i][j][2 * r + 1] += v.y;
            }
        }
}

template <bool K16>
__global__ void __launch_bounds__(32 * WARPS, 1) product_added(const struct tt_k_product_f16 g)
{
    enum {
        CHUNK = 128,
        LINE = 2 * CHUNK + 16,
        STEPS = CHUNK / 16,
        BUFFER = ROWS * LINE,
        LOADS = ROWS * 16 / 256,
        AHEAD = 2,
        RING = 4
    };
    extern __shared__ __align__(16) unsigned char shared[];
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, wm = warp % MW, wn = warp / MW;
    const int row0 = blockIdx.x * ROWS;
    const uint4 *weight = reinterpret_cast<const uint4 *>(g.weight) + (size_t)wn * (g.k / 16) * 128 + lane;
    const int part = threadIdx.x % 16, first = threadIdx.x / 16;
    unsigned char *a_to = shared + first * LINE + part * 16;
    const uint32_t base = tt_shared_address(shared) + (wm * 16 * TILES + lane % 16) * LINE + lane / 16 * 16;
    uint4 wait[LOADS];
    /* columns past k are zero: chunks are whole; rows past the end are the last row */
    auto fetch = [&](int k0) {
#pragma unroll
        for (int i = 0; i < LOADS; i++) {
            const int row = min(row0 + first + i * 16, g.rows - 1), column = k0 + part * 8;
            wait[i] = make_uint4(0, 0, 0, 0);
            if (column < g.k)
                wait[i] = *reinterpret_cast<const uint4 *>(g.a + (size_t)row * g.k + column);
        }
    };
    auto put = [&](int buffer) {
#pragma unroll
        for (int i = 0; i < LOADS; i++)
            *reinterpret_cast<uint4 *>(a_to + buffer * BUFFER + i * 16 * LINE) = wait[i];
    };

    const int column = wn * 64 + lane % 4 * 2;
    warp_acc acc;
    uint32_t a[TILES][4];
    tt_frag_b b[RING];
    const int steps = g.k / 16;
    fetch(0);
#pragma unroll
    for (int s = 0; s < AHEAD; s++)
        tt_load_b(b[s], weight + min(s, steps - 1) * 128);
    start(acc, g.bias + column);
    if (g.add)
        add_rows(acc, g, row0 + wm * TILES * 16 + lane / 4, column);
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
            step<K16>(acc, a, b[s % RING], at + (s + 1) % STEPS * 32, 16 * LINE);
        }
        if (s0 + STEPS < steps)
            put(buffer ^ 1);
        __syncthreads();
    }
#pragma unroll
    for (int i = 0; i < TILES; i++)
#pragma unroll
        for (int r = 0; r < 2; r++) {
            const int row = row0 + (wm * TILES + i) * 16 + lane / 4 + 8 * r;
            if (row < g.rows)
#pragma unroll
                for (int j = 0; j < 8; j++)
                    *reinterpret_cast<float2 *>(g.out + (size_t)row * WIDTH + column + j * 8) =
                        make_float2(acc[i][j][2 * r], acc[i][j][2 * r + 1]);
        }
}

template <class K> cudaError_t launch(K *kernel, size_t bytes, const struct tt_k_product_f16 *g, void *stream)
{
    const cudaError_t e = tt_shared(kernel, bytes);
    if (e != cudaSuccess)
        return e;
    kernel<<<tt_div_up(g->rows, ROWS), 32 * WARPS, bytes, (cudaStream_t)stream>>>(*g);
    return cudaGetLastError();
}

} // namespace

extern "C" int tt_k_product_f16(const struct tt_k_product_f16 *g, enum tt_k_mma mma, void *stream)
{
    if (g->rows < 1)
        return cudaErrorInvalidValue;
    if (g->h) {
        if (g->n % COLUMNS || g->n < COLUMNS || !g->half)
            return cudaErrorInvalidValue;
        return mma == TT_MMA_K16 ? launch(product_normed<true>, ROWS * (2 * WIDTH + 16), g, stream)
                                 : launch(product_normed<false>, ROWS * (2 * WIDTH + 16), g, stream);
    }
    if (g->k % 32 || g->k < 32 || !g->out)
        return cudaErrorInvalidValue;
    return mma == TT_MMA_K16 ? launch(product_added<true>, 2 * ROWS * (2 * 128 + 16), g, stream)
                             : launch(product_added<false>, 2 * ROWS * (2 * 128 + 16), g, stream);
}

/* cuda/gemm_f16.cu: matrix product on tensor cores for the mixer, with bias, exact GELU and residual fused.
 *
 * out = [gelu](a · b + bias) [+ add]. A block makes 64·MW rows × 64·NW columns with MW × NW warps of 64 × 64;
 * a goes through two shared buffers in chunks of 32 columns (the next chunk waits in registers while one is
 * in use), b comes packed from L1/L2 (tile_f16.cuh). Rows past the end are read as zero and not written.
 * Shared memory: 2 × 64·MW rows × 80 bytes, 20.5 KB at MW = 2. Sums run along k in order; bias, GELU and
 * residual are FP32. n: a multiple of 64·NW, k of 32.
 */
#include "cuda/kernels.h"
#include "cuda/tile_f16.cuh"

namespace
{

enum { CHUNK = 32, ROW = 2 * CHUNK + 16 };

/* Bias, GELU, residual; 16 rows × 64 columns of one warp. Everything is read before anything is written: out
 * may be add, and a compiler that cannot know that waits for each line otherwise. */
__device__ __forceinline__ void store_tile(const struct tt_k_gemm_f16 &g, const float (&c)[8][4],
                                           const float2 (&bias)[8], int row, int column)
{
    float2 v[2][8];
#pragma unroll
    for (int r = 0; r < 2; r++) {
        const bool inside = row + 8 * r < g.rows;
        const size_t at = (size_t)(row + 8 * r) * g.n + column;
#pragma unroll
        for (int j = 0; j < 8; j++)
            v[r][j] = g.add && inside ? *reinterpret_cast<const float2 *>(g.add + at + j * 8)
                                      : make_float2(0.0f, 0.0f);
    }
#pragma unroll
    for (int r = 0; r < 2; r++) {
        const bool inside = row + 8 * r < g.rows;
        const size_t at = (size_t)(row + 8 * r) * g.n + column;
        uint32_t packed[8];
#pragma unroll
        for (int j = 0; j < 8; j++) {
            float x = c[j][2 * r] + bias[j].x, y = c[j][2 * r + 1] + bias[j].y;
            if (g.gelu)
                x = tt_gelu(x), y = tt_gelu(y);
            x += v[r][j].x, y += v[r][j].y;
            if (g.out && inside)
                *reinterpret_cast<float2 *>(g.out + at + j * 8) = make_float2(x, y);
            packed[j] = tt_pack(x, y);
        }
        if (!g.out_half)
            continue;
        /* two lanes swap halves of two column tiles: eight bytes a lane, whole sectors of 32 bytes a row */
        const bool odd = threadIdx.x & 1;
#pragma unroll
        for (int j = 0; j < 8; j += 2) {
            const uint32_t other = __shfl_xor_sync(0xffffffffu, odd ? packed[j] : packed[j + 1], 1);
            const uint2 u = odd ? make_uint2(other, packed[j + 1]) : make_uint2(packed[j], other);
            if (inside)
                *reinterpret_cast<uint2 *>(g.out_half + at + j * 8 + (odd ? 6 : 0)) = u;
        }
    }
}

template <bool K16, int MW, int NW>
__global__ void __launch_bounds__(32 * MW * NW, MW *NW == 4 ? 2 : 1) gemm_f16(const struct tt_k_gemm_f16 g)
{
    enum { THREADS = 32 * MW * NW, ROWS = 64 * MW, LOADS = ROWS * 4 / THREADS, BUFFER = ROWS * ROW };
    __shared__ __align__(16) unsigned char shared[2 * BUFFER];
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, wm = warp % MW, wn = warp / MW;
    const int row0 = blockIdx.y * ROWS, n0 = (blockIdx.x * NW + wn) * 64;
    const uint4 *weight =
        reinterpret_cast<const uint4 *>(g.weight) + (size_t)(n0 / 64) * (g.k / 16) * 128 + lane;
    const int part = threadIdx.x % 4, first = threadIdx.x / 4;
    const uint16_t *a_from = g.a + (size_t)(row0 + first) * g.k + part * 8;
    unsigned char *a_to = shared + first * ROW + part * 16;
    const uint32_t base = tt_shared_address(shared) + (wm * 64 + lane % 16) * ROW + lane / 16 * 16;

    uint4 wait[LOADS];
    auto fetch = [&](int k0) {
#pragma unroll
        for (int i = 0; i < LOADS; i++) {
            const int r = i * (THREADS / 4);
            wait[i] = make_uint4(0, 0, 0, 0);
            if (row0 + first + r < g.rows)
                wait[i] = *reinterpret_cast<const uint4 *>(a_from + (size_t)r * g.k + k0);
        }
    };
    auto put = [&](int buffer) {
#pragma unroll
        for (int i = 0; i < LOADS; i++)
            *reinterpret_cast<uint4 *>(a_to + buffer * BUFFER + i * (THREADS / 4) * ROW) = wait[i];
    };

    tt_acc acc = {};
    tt_frag_a a;
    tt_frag_b b, b_next;
    tt_load_b(b, weight);
    fetch(0);
    put(0);
    __syncthreads();
    const int chunks = g.k / CHUNK;
#pragma unroll 1
    for (int i = 0; i < chunks; i++) {
        const uint32_t at = base + (i & 1) * BUFFER;
        tt_load_a(a, at, 16 * ROW);
        if (i + 1 < chunks)
            fetch((i + 1) * CHUNK);
#pragma unroll
        for (int s = 0; s < CHUNK / 16; s++) {
            weight += 128;
            tt_load_b(b_next, weight);
            /* the last step of a chunk reads its first again; the next chunk is not there yet */
            tt_step_load<K16>(acc, a, b, at + (s + 1) % (CHUNK / 16) * 32, 16 * ROW);
            b = b_next;
        }
        if (i + 1 < chunks)
            put((i + 1) & 1);
        __syncthreads();
    }
    const int column = n0 + lane % 4 * 2;
    float2 bias[8];
#pragma unroll
    for (int j = 0; j < 8; j++)
        bias[j] = *reinterpret_cast<const float2 *>(g.bias + column + j * 8);
#pragma unroll
    for (int i = 0; i < 4; i++)
        store_tile(g, acc[i], bias, row0 + wm * 64 + i * 16 + lane / 4, column);
}

template <bool K16, int MW, int NW> cudaError_t launch(const struct tt_k_gemm_f16 *g, void *stream)
{
    if (g->k % CHUNK || g->n % (64 * NW) || g->rows < 1)
        return cudaErrorInvalidValue;
    const dim3 grid(g->n / (64 * NW), tt_div_up(g->rows, 64 * MW));
    gemm_f16<K16, MW, NW><<<grid, 32 * MW * NW, 0, (cudaStream_t)stream>>>(*g);
    return cudaGetLastError();
}

template <bool K16> cudaError_t choose(const struct tt_k_gemm_f16 *g, void *stream)
{
    switch (g->variant) {
    case TT_GEMM_128x128:
        return launch<K16, 2, 2>(g, stream);
    case TT_GEMM_256x64:
        return launch<K16, 4, 1>(g, stream);
    case TT_GEMM_128x64:
        return launch<K16, 2, 1>(g, stream);
    case TT_GEMM_64x128:
        return launch<K16, 1, 2>(g, stream);
    }
    return cudaErrorInvalidValue;
}

} // namespace

extern "C" int tt_k_gemm_f16(const struct tt_k_gemm_f16 *g, enum tt_k_mma mma, void *stream)
{
    return mma == TT_MMA_K16 ? choose<true>(g, stream) : choose<false>(g, stream);
}

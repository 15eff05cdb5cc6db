/* cuda/correlation_f16.cu: local 4D correlation on tensor cores.
 *
 * One warp makes one query in one frame: the 8×8 patch (64 rows) times the 7×7 support (56 columns, 7 of them
 * zero) over the channels, 112 accumulators a lane. The patch comes straight from the feature map, 16 bytes a
 * lane: a lane's eight channels serve two steps of k, and the support lies in shared memory in that order.
 * Row tile i holds patch rows 2i and 2i + 1, a lane's rows are patch column lane / 4: so the bilinear weights
 * along y act within a lane and along x on the lane four further on, in FP32. A block of four warps takes one
 * query and a run of frames. Shared memory: 56 × (2·C + 16) bytes, 29.6 KB at C = 256. Sums: channels in an
 * order that is fixed but not ascending (pack.h, tt_pack_encoder_base_f16).
 *
 * Volumes are written as the encoder reads them, [orientation][query·frames][49][64] halfs:
 *   [0] row: neighbourhood position 7·y + x; column 16·q + 2·j + e: support position 8·j + 2·q + e
 *   [1] row: support position;               column 8·x + y: neighbourhood position 7·y + x
 * with zeros in columns that stand for no position.
 */
#include "cuda/features_f16.cuh"
#include "cuda/kernels.h"
#include "cuda/tile_f16.cuh"

namespace
{

enum {
    WARPS = 4,
    COLUMNS = 56,
    AREA = 49,
    ROW = TT_K_VOLUME_ROW_F16,
    BLOCKS = 264 /* that a large device holds: two a multiprocessor */
};

/* Where channel c (even) and the next go within their 32, so that a lane's 16 bytes are four pairs of k. */
__device__ __forceinline__ int permuted(int c)
{
    const int q = c % 32 / 8, s = c % 8 / 4, h = c % 4 / 2;
    return c / 32 * 32 + s * 16 + h * 8 + 2 * q;
}

template <int C> __device__ __forceinline__ void load_support(unsigned char *shared, const float *support)
{
    enum { LINE = 2 * C + 16 };
#pragma unroll 8
    for (int i = threadIdx.x; i < COLUMNS * C / 2; i += 32 * WARPS) {
        const int r = i / (C / 2), c = i % (C / 2) * 2;
        float2 v = make_float2(0.0f, 0.0f);
        if (r < AREA)
            v = *reinterpret_cast<const float2 *>(support + r * C + c);
        *reinterpret_cast<uint32_t *>(shared + r * LINE + permuted(c) * 2) = tt_pack(v.x, v.y);
    }
}

/* products[row tile][column tile][..] of one patch; at: the patch's corner pixel, this lane's channels */
template <bool K16, int C>
__device__ __forceinline__ void products(float (&acc)[4][7][4], uint32_t b_address, const __half *grid,
                                         int x0, int y0, int size)
{
    const int x = x0 + (threadIdx.x % 32) / 4;
    const __half *from = grid + ((ptrdiff_t)y0 * size + x) * C + threadIdx.x % 4 * 8;
    const int swap = tt_feature_place(0, x);
    uint32_t inside = 0;
#pragma unroll
    for (int r = 0; r < 8; r++)
        inside |= (uint32_t)((unsigned)(y0 + r) < (unsigned)size && (unsigned)x < (unsigned)size) << r;
#pragma unroll 1
    for (int c = 0; c < C; c += 32) {
        uint4 a[8];
#pragma unroll
        for (int r = 0; r < 8; r++) {
            a[r] = make_uint4(0, 0, 0, 0);
            if (inside >> r & 1)
                a[r] = __ldg(reinterpret_cast<const uint4 *>(from + (ptrdiff_t)r * size * C + (c ^ swap)));
        }
#pragma unroll
        for (int j = 0; j < 7; j++) {
            uint32_t b[4];
            tt_ldmatrix4(b, b_address + j * 8 * (2 * C + 16) + c * 2);
#pragma unroll
            for (int i = 0; i < 4; i++) {
                const uint32_t a0[4] = {a[2 * i].x, a[2 * i + 1].x, a[2 * i].y, a[2 * i + 1].y};
                const uint32_t a1[4] = {a[2 * i].z, a[2 * i + 1].z, a[2 * i].w, a[2 * i + 1].w};
                tt_mma<K16>(acc[i][j], a0, b[0], b[1]);
                tt_mma<K16>(acc[i][j], a1, b[2], b[3]);
            }
        }
    }
}

/* Bilinear weights on the products, both layouts stored. */
__device__ __forceinline__ void store(float (&acc)[4][7][4], float fx, float fy, __half *direct,
                                      __half *transposed)
{
    const int lane = threadIdx.x % 32, g = lane / 4, q = lane % 4;
    uint32_t pairs[7][8];
#pragma unroll
    for (int j = 0; j < 7; j++) {
        float v[2][7];
#pragma unroll
        for (int e = 0; e < 2; e++) {
#pragma unroll
            for (int y = 0; y < 7; y++) {
                const float here = acc[y / 2][j][y % 2 * 2 + e],
                            below = acc[(y + 1) / 2][j][(y + 1) % 2 * 2 + e];
                const float t = (1.0f - fy) * here + fy * below;
                v[e][y] = (1.0f - fx) * t + fx * __shfl_down_sync(0xffffffffu, t, 4);
                v[e][y] = g < 7 ? v[e][y] : 0.0f;
            }
            const int s = j * 8 + 2 * q + e;
            if (s < AREA)
                *reinterpret_cast<uint4 *>(transposed + s * ROW + g * 8) =
                    make_uint4(tt_pack(v[e][0], v[e][1]), tt_pack(v[e][2], v[e][3]),
                               tt_pack(v[e][4], v[e][5]), tt_pack(v[e][6], 0.0f));
        }
#pragma unroll
        for (int y = 0; y < 7; y++)
            pairs[y][j] = tt_pack(v[0][y], v[1][y]);
    }
    if (g < 7)
#pragma unroll
        for (int y = 0; y < 7; y++) {
            uint4 *to = reinterpret_cast<uint4 *>(direct + (y * 7 + g) * ROW + q * 16);
            to[0] = make_uint4(pairs[y][0], pairs[y][1], pairs[y][2], pairs[y][3]);
            to[1] = make_uint4(pairs[y][4], pairs[y][5], pairs[y][6], 0);
        }
}

template <bool K16, int C>
__global__ void __launch_bounds__(32 * WARPS, 2)
    correlate(const __half *grid, const float *support, const float *state, __half *volume, int frames,
              int run, int row, int size, float scale)
{
    enum { LINE = 2 * C + 16 };
    __shared__ __align__(16) unsigned char shared[COLUMNS * LINE];
    const int q = blockIdx.x, warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    tt_let_next();
    tt_wait_previous();
    load_support<C>(shared, support + (size_t)q * row);
    __syncthreads();
    const uint32_t b_address = tt_shared_address(shared) + lane % 8 * LINE + lane / 8 * 16;
    const int last = min(frames, (int)(blockIdx.y + 1) * run);
    for (int f = blockIdx.y * run + warp; f < last; f += WARPS) {
        const size_t item = (size_t)q * frames + f;
        const float px = state[item * 4] * scale - 0.5f, py = state[item * 4 + 1] * scale - 0.5f;
        const float floor_x = floorf(px), floor_y = floorf(py);
        const int x0 = (int)fminf(fmaxf(floor_x, -20.0f), (float)size + 20.0f) - 3;
        const int y0 = (int)fminf(fmaxf(floor_y, -20.0f), (float)size + 20.0f) - 3;
        float acc[4][7][4] = {};
        products<K16, C>(acc, b_address, grid + (size_t)f * size * size * C, x0, y0, size);
        __half *direct = volume + item * AREA * ROW;
        store(acc, px - floor_x, py - floor_y, direct, direct + (size_t)gridDim.x * frames * AREA * ROW);
    }
}

template <bool K16>
cudaError_t launch(const __half *grid, const float *support, const float *state, __half *volume, int queries,
                   int frames, int row, int size, int channels, float scale, cudaStream_t stream)
{
    /* frames of a block, whole turns of its warps: few blocks load a query's support again, but so many that
     * those of a small tile fill a large device once */
    const int few = queries < 128 ? 12 : 24,
              filled = max(4, min(24, (queries * frames / BLOCKS + 4) / 4 * 4));
    const int run = K16 ? filled : few;
    const dim3 blocks(queries, tt_div_up(frames, run));
    if (channels != 64 && channels != 128 && channels != 256)
        return cudaErrorInvalidValue;
    return tt_launch(channels == 64    ? correlate<K16, 64>
                     : channels == 128 ? correlate<K16, 128>
                                       : correlate<K16, 256>,
                     blocks, 32 * WARPS, 0, stream, grid, support, state, volume, frames, run, row, size,
                     scale);
}

} // namespace

extern "C" int tt_k_correlate_f16(const uint16_t *grid, const float *support, const float *state,
                                  uint16_t *volume, int queries, int frames, int row, int size, int channels,
                                  float scale, enum tt_k_mma mma, void *stream)
{
    const __half *g = (const __half *)grid;
    __half *v = (__half *)volume;
    cudaStream_t s = (cudaStream_t)stream;
    return mma == TT_MMA_K16
               ? launch<true>(g, support, state, v, queries, frames, row, size, channels, scale, s)
               : launch<false>(g, support, state, v, queries, frames, row, size, channels, scale, s);
}

/* cuda/correlation.cu: local 4D correlation in FP32.
 *
 * A position's bilinear 7×7 neighbourhood lies within an 8×8 integer patch, and the dot product is linear:
 * the patch times the support (64 × 49 products over the channels) is made first, then four weighted shifts
 * give the 49 × 49 volume. Features outside the frame count as zero.
 *
 * A block of 128 threads makes one query in one frame, 4 × 7 products a thread; channels in chunks of 32,
 * each summed in order, then the chunks. Shared memory: 32 × 68 + 32 × 60 + 64 × 57 floats, 31.0 KB.
 */
#include "cuda/kernels.h"
#include "cuda/common.cuh"

namespace
{

enum { CHUNK = 32, LDP = 68, LDS = 60, LDD = 57, ROW = TT_K_VOLUME_ROW };

__global__ void __launch_bounds__(128)
    correlate(const float *grid, const float *support, const float *state, float *volume, int frames, int row,
              int size, int channels, float scale)
{
    __shared__ __align__(16) float ps[CHUNK][LDP];
    __shared__ float ss[CHUNK][LDS];
    __shared__ float ds[64][LDD];
    const int frame = blockIdx.x, q = blockIdx.y, t = threadIdx.x;
    const size_t item = (size_t)q * frames + frame;
    const float px = state[item * 4] * scale - 0.5f, py = state[item * 4 + 1] * scale - 0.5f;
    const float floor_x = floorf(px), floor_y = floorf(py), fx = px - floor_x, fy = py - floor_y;
    const int x0 = (int)fminf(fmaxf(floor_x, -20.0f), (float)size + 20.0f) - 3;
    const int y0 = (int)fminf(fmaxf(floor_y, -20.0f), (float)size + 20.0f) - 3;
    grid += (size_t)frame * size * size * channels;
    support += (size_t)q * row;
    const int ty = t / 8 * 4, tx = t % 8 * 7;
    float acc[4][7] = {};
    for (int i = t; i < CHUNK * LDS; i += 128)
        ss[i / LDS][i % LDS] = 0.0f;
    for (int c0 = 0; c0 < channels; c0 += CHUNK) {
        __syncthreads();
        for (int i = t; i < 64 * 8; i += 128) {
            const int p = i / 8, c = i % 8 * 4, y = y0 + p / 8, x = x0 + p % 8;
            float4 v = make_float4(0, 0, 0, 0);
            if ((unsigned)y < (unsigned)size && (unsigned)x < (unsigned)size)
                v = tt_load4(grid + (size_t)(y * size + x) * channels + c0 + c);
            ps[c][p] = v.x, ps[c + 1][p] = v.y, ps[c + 2][p] = v.z, ps[c + 3][p] = v.w;
        }
        for (int i = t; i < 49 * 8; i += 128) {
            const int p = i / 8, c = i % 8 * 4;
            const float4 v = tt_load4(support + (size_t)p * channels + c0 + c);
            ss[c][p] = v.x, ss[c + 1][p] = v.y, ss[c + 2][p] = v.z, ss[c + 3][p] = v.w;
        }
        __syncthreads();
        float part[4][7] = {};
#pragma unroll 4
        for (int k = 0; k < CHUNK; k++) {
            float a[4], b[7];
            *reinterpret_cast<float4 *>(a) = tt_load4(&ps[k][ty]);
#pragma unroll
            for (int j = 0; j < 7; j++)
                b[j] = ss[k][tx + j];
#pragma unroll
            for (int i = 0; i < 4; i++)
#pragma unroll
                for (int j = 0; j < 7; j++)
                    part[i][j] = fmaf(a[i], b[j], part[i][j]);
        }
#pragma unroll
        for (int i = 0; i < 4; i++)
#pragma unroll
            for (int j = 0; j < 7; j++)
                acc[i][j] += part[i][j];
    }
#pragma unroll
    for (int i = 0; i < 4; i++)
#pragma unroll
        for (int j = 0; j < 7; j++)
            ds[ty + i][tx + j] = acc[i][j];
    __syncthreads();
    const float w00 = (1.0f - fy) * (1.0f - fx), w01 = (1.0f - fy) * fx, w10 = fy * (1.0f - fx),
                w11 = fy * fx;
    float *direct = volume + item * 49 * ROW;
    float *transposed = direct + (size_t)gridDim.x * gridDim.y * 49 * ROW;
    for (int i = t; i < 49 * ROW; i += 128) {
        const int r = i / ROW, c = i % ROW;
        const int at = r / 7 * 8 + r % 7; /* direct: neighbourhood position r, support position c */
        direct[i] = ((w00 * ds[at][c] + w01 * ds[at + 1][c]) + w10 * ds[at + 8][c]) + w11 * ds[at + 9][c];
        const int to = c / 7 * 8 + c % 7; /* transposed: support position r, neighbourhood position c */
        transposed[i] =
            c < 49 ? ((w00 * ds[to][r] + w01 * ds[to + 1][r]) + w10 * ds[to + 8][r]) + w11 * ds[to + 9][r]
                   : 0.0f;
    }
}

} // namespace

extern "C" int tt_k_correlate_f32(const float *grid, const float *support, const float *state, float *volume,
                                  int queries, int frames, int row, int size, int channels, float scale,
                                  void *stream)
{
    if (channels % CHUNK)
        return cudaErrorInvalidValue;
    correlate<<<dim3(frames, queries), 128, 0, (cudaStream_t)stream>>>(grid, support, state, volume, frames,
                                                                       row, size, channels, scale);
    return cudaGetLastError();
}

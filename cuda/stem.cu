/* cuda/stem.cu: the first convolution: 7×7, stride 2, 3 -> 64 channels, padding 2 before and 3 behind.
 *
 * A block of 128 threads makes 8 × 16 output pixels, one a thread, all 64 channels in registers; input window
 * 21 × 37 × 3 and weights 147 × 64 lie in shared memory (9.3 KB and 37.6 KB), weights are read as broadcasts.
 * Sums run over ky, kx, colour in order. The input is scaled to [-1, 1] as x·(2/255) - 1; padding is zero.
 */
#include "cuda/kernels.h"
#include "cuda/common.cuh"

namespace
{

enum { TH = 8, TW = 16, IH = 2 * TH + 5, IW = 2 * TW + 5 };

__global__ void __launch_bounds__(128) stem(const uint8_t *rgb, const float *weight, float *out, int size)
{
    __shared__ __align__(16) float w[147 * 64];
    __shared__ float in[IH * IW * 3];
    const int t = threadIdx.x, half = size / 2;
    const int y0 = blockIdx.y * TH, x0 = blockIdx.x * TW;
    const uint8_t *frame = rgb + (size_t)blockIdx.z * size * size * 3;
    for (int i = t * 4; i < 147 * 64; i += 512)
        tt_store4(w + i, tt_load4(weight + i));
    for (int i = t; i < IH * IW * 3; i += 128) {
        const int r = i / (IW * 3), c = i - r * (IW * 3);
        const int y = 2 * y0 - 2 + r, x3 = (2 * x0 - 2) * 3 + c;
        const bool inside = y >= 0 && y < size && x3 >= 0 && x3 < size * 3;
        in[i] = inside ? fmaf((float)frame[(size_t)y * size * 3 + x3], 2.0f / 255.0f, -1.0f) : 0.0f;
    }
    __syncthreads();
    const int ty = t / TW, tx = t % TW;
    float acc[64] = {};
#pragma unroll 1
    for (int ky = 0; ky < 7; ky++) {
        const float *row = in + ((2 * ty + ky) * IW + 2 * tx) * 3;
#pragma unroll 3
        for (int k = 0; k < 21; k++) {
            const float a = row[k];
            const float *b = w + (ky * 21 + k) * 64;
#pragma unroll
            for (int j = 0; j < 64; j += 4) {
                const float4 v = tt_load4(b + j);
                acc[j] = fmaf(a, v.x, acc[j]);
                acc[j + 1] = fmaf(a, v.y, acc[j + 1]);
                acc[j + 2] = fmaf(a, v.z, acc[j + 2]);
                acc[j + 3] = fmaf(a, v.w, acc[j + 3]);
            }
        }
    }
    float *o = out + (((size_t)blockIdx.z * half + y0 + ty) * half + x0 + tx) * 64;
#pragma unroll
    for (int j = 0; j < 64; j += 4)
        tt_store4(o + j, make_float4(acc[j], acc[j + 1], acc[j + 2], acc[j + 3]));
}

} // namespace

extern "C" int tt_k_stem_f32(const uint8_t *rgb, const float *weight, float *out, int frames, int size,
                             void *stream)
{
    if (size % 32 || frames < 1)
        return cudaErrorInvalidValue;
    const dim3 grid(size / 2 / TW, size / 2 / TH, frames);
    stem<<<grid, 128, 0, (cudaStream_t)stream>>>(rgb, weight, out, size);
    return cudaGetLastError();
}

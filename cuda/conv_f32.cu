/* cuda/conv_f32.cu: convolution and matrix product in FP32.
 *
 * Implicit GEMM: M = output pixels of all frames, N = output channels, K = (ky, kx, input channel). A block
 * of 128 threads makes 128 pixels × 64 channels, 8 × 8 a thread, in steps of 8 along K, which never cross a
 * tap (in_c is a multiple of 8). Each thread loads the 8 channels of one pixel, normalises them (scale,
 * shift, ReLU; padding stays zero) and stores them transposed. Shared memory: 2 × (8 × 132 + 8 × 64)
 * floats, 12.3 KB. Sums run along K in order, one FFMA after another. Fails only as launches do, and with
 * cudaErrorInvalidValue where a channel count does not fit.
 */
#include "cuda/kernels.h"
#include "cuda/common.cuh"

namespace
{

enum { BM = 128, BN = 64, BK = 8, LDA = BM + 4 };

struct pixel {
    int frame, y, x; /* y, x: of the window's corner in the input, may lie outside */
    bool valid;
};

__device__ __forceinline__ void load_a(float (&v)[8], const struct tt_k_conv_f32 &c, const pixel &p, int k0)
{
    const int tap = k0 / c.in_c, channel = k0 - tap * c.in_c;
    const int ky = tap / c.kernel, kx = tap - ky * c.kernel;
    const int y = p.y + ky, x = p.x + kx;
#pragma unroll
    for (int i = 0; i < 8; i++)
        v[i] = 0.0f;
    if (!p.valid || (unsigned)y >= (unsigned)c.in_h || (unsigned)x >= (unsigned)c.in_w)
        return;
    const float *in = c.in + (((size_t)p.frame * c.in_h + y) * c.in_w + x) * c.in_c + channel;
    const float4 a = tt_load4(in), b = tt_load4(in + 4);
    v[0] = a.x, v[1] = a.y, v[2] = a.z, v[3] = a.w, v[4] = b.x, v[5] = b.y, v[6] = b.z, v[7] = b.w;
    if (c.norm) {
        const float *norm = c.norm + ((size_t)p.frame * c.in_c + channel) * 2;
#pragma unroll
        for (int i = 0; i < 4; i++) {
            const float4 s = tt_load4(norm + 4 * i);
            v[2 * i] = fmaxf(fmaf(v[2 * i], s.x, s.y), 0.0f);
            v[2 * i + 1] = fmaxf(fmaf(v[2 * i + 1], s.z, s.w), 0.0f);
        }
    }
}

__global__ void __launch_bounds__(128) conv_f32(const struct tt_k_conv_f32 c)
{
    __shared__ float as[2][BK][LDA];
    __shared__ float bs[2][BK][BN];
    const int t = threadIdx.x, n0 = blockIdx.y * BN;
    const int area = c.out_h * c.out_w, rows = c.frames * area;
    const int m = blockIdx.x * BM + t;
    pixel p;
    p.valid = m < rows;
    p.frame = m / area;
    const int in_frame = m - p.frame * area, oy = in_frame / c.out_w;
    p.y = oy * c.stride - c.pad;
    p.x = (in_frame - oy * c.out_w) * c.stride - c.pad;

    const int bk = t / 16, bn = t % 16 * 4; /* the thread's float4 of each weight step */
    const float *weight = c.weight + (size_t)bk * c.out_c + n0 + bn;
    const int steps = c.kernel * c.kernel * c.in_c / BK;

    float acc[8][8] = {};
    float va[8];
    load_a(va, c, p, 0);
    float4 vb = tt_load4(weight);
    const int ty = t / 8 * 4, tx = t % 8 * 4;
    for (int s = 0; s < steps; s++) {
        const int buf = s & 1;
#pragma unroll
        for (int i = 0; i < 8; i++)
            as[buf][i][t] = va[i];
        *reinterpret_cast<float4 *>(&bs[buf][bk][bn]) = vb;
        __syncthreads();
        if (s + 1 < steps) {
            load_a(va, c, p, (s + 1) * BK);
            vb = tt_load4(weight + (size_t)(s + 1) * BK * c.out_c);
        }
#pragma unroll
        for (int k = 0; k < BK; k++) {
            float a[8], b[8];
            *reinterpret_cast<float4 *>(&a[0]) = tt_load4(&as[buf][k][ty]);
            *reinterpret_cast<float4 *>(&a[4]) = tt_load4(&as[buf][k][64 + ty]);
            *reinterpret_cast<float4 *>(&b[0]) = tt_load4(&bs[buf][k][tx]);
            *reinterpret_cast<float4 *>(&b[4]) = tt_load4(&bs[buf][k][32 + tx]);
#pragma unroll
            for (int i = 0; i < 8; i++)
#pragma unroll
                for (int j = 0; j < 8; j++)
                    acc[i][j] = fmaf(a[i], b[j], acc[i][j]);
        }
    }
#pragma unroll
    for (int i = 0; i < 8; i++) {
        const int row = blockIdx.x * BM + (i / 4) * 64 + ty + i % 4;
        if (row >= rows)
            continue;
#pragma unroll
        for (int j = 0; j < 8; j += 4) {
            const int col = n0 + (j / 4) * 32 + tx;
            float4 v = make_float4(acc[i][j], acc[i][j + 1], acc[i][j + 2], acc[i][j + 3]);
            if (c.bias) {
                const float4 b = tt_load4(c.bias + col);
                v.x += b.x, v.y += b.y, v.z += b.z, v.w += b.w;
            }
            if (c.gelu)
                v = make_float4(tt_gelu(v.x), tt_gelu(v.y), tt_gelu(v.z), tt_gelu(v.w));
            const size_t at = (size_t)row * c.out_c + col;
            if (c.add) {
                const float4 r = tt_load4(c.add + at);
                v.x += r.x, v.y += r.y, v.z += r.z, v.w += r.w;
            }
            tt_store4(c.out + at, v);
        }
    }
}

} // namespace

extern "C" int tt_k_conv_f32(const struct tt_k_conv_f32 *c, void *stream)
{
    if (c->in_c % BK || c->out_c % BN || c->frames < 1)
        return cudaErrorInvalidValue;
    const dim3 grid(tt_div_up(c->frames * c->out_h * c->out_w, BM), c->out_c / BN);
    conv_f32<<<grid, 128, 0, (cudaStream_t)stream>>>(*c);
    return cudaGetLastError();
}

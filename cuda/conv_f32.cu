/* cuda/conv_f32.cu: convolution and matrix product in FP32.
 *
 * Implicit GEMM: M = output pixels of all frames, N = output channels, K = (ky, kx, input channel). A block
 * of 128 threads makes 128 pixels × 64 channels, 8 × 8 a thread, in steps of 8 along K, which never cross a
 * tap (in_c is a multiple of 8). Each thread loads the 8 channels of one pixel, normalises them (scale,
 * shift, ReLU; padding stays zero) and stores them transposed. Shared memory: 2 × (8 × 132 + 8 × 64)
 * floats, 12.3 KB. Sums run along K in order, beginning with the bias, one FFMA after another; those of long
 * matrix products in parts of 256, which are then added to the output in memory: the mixer multiplies what
 * rounding does to its sums, more than the backbone and the encoder do (docs/KERNELS.md). Fails only as
 * launches do, and with cudaErrorInvalidValue where a channel count does not fit.
 */
#include "cuda/kernels.h"
#include "cuda/common.cuh"

namespace
{

enum { BM = 128, BN = 64, BK = 8, LDA = BM + 4, PART = 256 / BK };

/* Where a thread reads: one output pixel's window, at one tap and channel. Advances by BK channels, no
 * divisions. */
struct cursor {
    const float *in, *norm; /* of the tap's pixel (may lie outside) and of the frame, at the channel */
    int y, x, kx, channel;  /* the tap's pixel; its column; */
    bool valid;
    __device__ __forceinline__ void next(const struct tt_k_conv_f32 &c)
    {
        in += BK, norm += 2 * BK, channel += BK;
        if (channel < c.in_c)
            return;
        channel = 0, norm -= 2 * c.in_c;
        x++; /* in is at the next pixel already */
        if (++kx == c.kernel) {
            kx = 0, x -= c.kernel, y++;
            in += (ptrdiff_t)(c.in_w - c.kernel) * c.in_c;
        }
    }
};

__device__ __forceinline__ void load_a(float (&v)[8], const struct tt_k_conv_f32 &c, const cursor &p)
{
#pragma unroll
    for (int i = 0; i < 8; i++)
        v[i] = 0.0f;
    if (!p.valid || (unsigned)p.y >= (unsigned)c.in_h || (unsigned)p.x >= (unsigned)c.in_w)
        return;
    const float4 a = tt_load4(p.in), b = tt_load4(p.in + 4);
    v[0] = a.x, v[1] = a.y, v[2] = a.z, v[3] = a.w, v[4] = b.x, v[5] = b.y, v[6] = b.z, v[7] = b.w;
    if (c.norm) {
#pragma unroll
        for (int i = 0; i < 4; i++) {
            const float4 s = tt_load4(p.norm + 4 * i);
            v[2 * i] = fmaxf(fmaf(v[2 * i], s.x, s.y), 0.0f);
            v[2 * i + 1] = fmaxf(fmaf(v[2 * i + 1], s.z, s.w), 0.0f);
        }
    }
}

/* Four rows: adds a part of the sums to what is in memory, the residual or the parts before it, and begins
 * anew.
 */
__device__ __forceinline__ void add_part(const struct tt_k_conv_f32 &c, float (*acc)[8], int row, int rows,
                                         int column, const float *from)
{
    asm volatile("" : "+r"(row)); /* or addresses would be kept in registers that the loop needs */
#pragma unroll
    for (int i = 0; i < 4; i++)
#pragma unroll
        for (int j = 0; j < 2; j++) {
            const size_t at = (size_t)(row + i) * c.out_c + column + j * 32;
            float4 v = from && row + i < rows ? tt_load4(from + at) : make_float4(0, 0, 0, 0);
            float *part = acc[i] + 4 * j;
            v.x += part[0], v.y += part[1], v.z += part[2], v.w += part[3];
            if (row + i < rows)
                tt_store4(c.out + at, v);
            part[0] = part[1] = part[2] = part[3] = 0.0f;
        }
}

/* Four rows; the residual is read before anything is written, since out may be it. */
__device__ __forceinline__ void store_rows(const struct tt_k_conv_f32 &c, const float (*acc)[8], int row,
                                           int rows, int column)
{
    float4 residual[4][2];
#pragma unroll
    for (int j = 0; j < 2; j++)
#pragma unroll
        for (int i = 0; i < 4; i++)
            residual[i][j] = c.add && row + i < rows
                                 ? tt_load4(c.add + (size_t)(row + i) * c.out_c + column + j * 32)
                                 : make_float4(0, 0, 0, 0);
#pragma unroll
    for (int i = 0; i < 4; i++)
#pragma unroll
        for (int j = 0; j < 2; j++) {
            float4 v = make_float4(acc[i][4 * j], acc[i][4 * j + 1], acc[i][4 * j + 2], acc[i][4 * j + 3]);
            if (c.gelu)
                v = make_float4(tt_gelu(v.x), tt_gelu(v.y), tt_gelu(v.z), tt_gelu(v.w));
            v.x += residual[i][j].x, v.y += residual[i][j].y, v.z += residual[i][j].z,
                v.w += residual[i][j].w;
            if (row + i < rows)
                tt_store4(c.out + (size_t)(row + i) * c.out_c + column + j * 32, v);
        }
}

/* IN_PARTS: of a matrix product without GELU. */
template <bool IN_PARTS> __global__ void __launch_bounds__(128, 4) conv_f32(const struct tt_k_conv_f32 c)
{
    __shared__ float as[2][BK][LDA];
    __shared__ float bs[2][BK][BN];
    const int t = threadIdx.x, n0 = blockIdx.y * BN;
    const int area = c.out_h * c.out_w, rows = c.frames * area;
    const int m = blockIdx.x * BM + t;
    cursor p;
    const int frame = m / area, in_frame = m - frame * area, oy = in_frame / c.out_w;
    p.valid = m < rows;
    p.y = oy * c.stride - c.pad;
    p.x = (in_frame - oy * c.out_w) * c.stride - c.pad;
    p.kx = p.channel = 0;
    p.in = c.in + (((ptrdiff_t)frame * c.in_h + p.y) * c.in_w + p.x) * c.in_c;
    p.norm = c.norm + (size_t)frame * c.in_c * 2;

    const int bk = t / 16, bn = t % 16 * 4; /* the thread's float4 of each weight step */
    const float *weight = c.weight + (size_t)bk * c.out_c + n0 + bn;
    const int steps = c.kernel * c.kernel * c.in_c / BK;

    const int ty = t / 8 * 4, tx = t % 8 * 4;
    float acc[8][8];
#pragma unroll
    for (int j = 0; j < 8; j++) { /* sums begin with the bias */
        const float bias = c.bias ? c.bias[n0 + tx + j / 4 * 32 + j % 4] : 0.0f;
#pragma unroll
        for (int i = 0; i < 8; i++)
            acc[i][j] = bias;
    }
    float va[8];
    load_a(va, c, p);
    float4 vb = tt_load4(weight);
    for (int s = 0; s < steps; s++) {
        const int buf = s & 1;
#pragma unroll
        for (int i = 0; i < 8; i++)
            as[buf][i][t] = va[i];
        *reinterpret_cast<float4 *>(&bs[buf][bk][bn]) = vb;
        __syncthreads();
        if (s + 1 < steps) {
            p.next(c);
            load_a(va, c, p);
            weight += (size_t)BK * c.out_c;
            vb = tt_load4(weight);
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
        if (IN_PARTS && (s % PART == PART - 1 || s + 1 == steps))
#pragma unroll
            for (int i = 0; i < 8; i += 4)
                add_part(c, acc + i, blockIdx.x * BM + i * 16 + ty, rows, n0 + tx, s < PART ? c.add : c.out);
    }
#pragma unroll
    for (int i = 0; i < 8 && !IN_PARTS; i += 4)
        store_rows(c, acc + i, blockIdx.x * BM + i * 16 + ty, rows, n0 + tx);
}

} // namespace

extern "C" int tt_k_conv_f32(const struct tt_k_conv_f32 *c, void *stream)
{
    if (c->in_c % BK || c->out_c % BN || c->frames < 1)
        return cudaErrorInvalidValue;
    const dim3 grid(tt_div_up(c->frames * c->out_h * c->out_w, BM), c->out_c / BN);
    if (c->kernel == 1 && c->out_h * c->out_w == 1 && c->in_c > PART * BK && !c->gelu)
        conv_f32<true><<<grid, 128, 0, (cudaStream_t)stream>>>(*c);
    else
        conv_f32<false><<<grid, 128, 0, (cudaStream_t)stream>>>(*c);
    return cudaGetLastError();
}

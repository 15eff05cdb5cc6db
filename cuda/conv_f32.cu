/* cuda/conv_f32.cu: convolution and matrix product in FP32.
 *
 * Implicit GEMM: M = output pixels of all frames, N = output channels, K = (ky, kx, input channel). A block
 * of 128 threads makes 128 pixels × 64 channels, 8 × 8 a thread, in steps of BK along K, 16 or 8, which never
 * cross a tap (in_c is a multiple of 8). BK / 4 lanes load a pixel's channels, so that a warp's load touches
 * few lines, normalise them (scale, shift, ReLU; padding stays zero) and store them transposed. Of small
 * outputs (the encoder's) a block's pixels are the same position of 128 frames, and taps in the padding are
 * left out. Of four neighbouring lanes two read the same rows and two the same columns, so that shared memory
 * answers half a warp at a time. Shared memory: 2 × BK × (132 + 64) floats, 25.1 KB at most. Sums run along K
 * in order, beginning with the bias, one FFMA after another; those of long matrix products in parts of 256,
 * which are then added to the output in memory: the mixer multiplies what rounding does to its sums, more
 * than the backbone and the encoder do (docs/KERNELS.md). Fails only as launches do, and with
 * cudaErrorInvalidValue where a channel count or the kernel does not fit.
 */
#include "cuda/kernels.h"
#include "cuda/common.cuh"

namespace
{

enum { BM = 128, BN = 64, LDA = BM + 4, PART_K = 256, SMALL_OUTPUT = 16, MOST_TAPS = 32 };

/* The taps that a block goes through, and where it is. The same for all threads. */
struct walk {
    int kx_first, kx_last, kx, channel; /* columns of taps: from first up to last */
    int in, weight;                     /* offsets of the tap's channel, elements */
    int tap;                            /* ky·kernel + kx */
    template <int BK> __device__ __forceinline__ void next(const struct tt_k_conv_f32 &c)
    {
        in += BK, weight += BK * c.out_c, channel += BK;
        if (channel < c.in_c)
            return;
        channel = 0, tap++;
        if (++kx < kx_last)
            return;
        const int left_out = c.kernel - (kx_last - kx_first);
        kx = kx_first, tap += left_out;
        in += (c.in_w - (kx_last - kx_first)) * c.in_c;
        weight += left_out * c.in_c * c.out_c;
    }
};

/* An output pixel's window. */
struct pixel {
    int in, norm;  /* offsets of its first tap (may lie outside) and of its frame */
    unsigned taps; /* those within the frame, a bit each */
};

__device__ __forceinline__ unsigned taps_within(const struct tt_k_conv_f32 &c, int y, int x)
{
    unsigned taps = 0;
    for (int ky = c.kernel - 1; ky >= 0; ky--)
        for (int kx = c.kernel - 1; kx >= 0; kx--)
            taps =
                taps << 1 | ((unsigned)(y + ky) < (unsigned)c.in_h && (unsigned)(x + kx) < (unsigned)c.in_w);
    return taps;
}

__device__ __forceinline__ float4 load_a(const struct tt_k_conv_f32 &c, const pixel &p, const walk &w)
{
    if (!(p.taps >> w.tap & 1))
        return make_float4(0, 0, 0, 0);
    float4 v = tt_load4(c.in + (p.in + w.in));
    if (c.norm) {
        const float *norm = c.norm + (p.norm + 2 * w.channel);
        const float4 s = tt_load4(norm), u = tt_load4(norm + 4);
        v.x = fmaxf(fmaf(v.x, s.x, s.y), 0.0f);
        v.y = fmaxf(fmaf(v.y, s.z, s.w), 0.0f);
        v.z = fmaxf(fmaf(v.z, u.x, u.y), 0.0f);
        v.w = fmaxf(fmaf(v.w, u.z, u.w), 0.0f);
    }
    return v;
}

/* What a thread brings to the step at w: its pixels' channels, and its float4 of rows of weights. */
template <int PIXELS, int WEIGHTS>
__device__ __forceinline__ void fetch(float4 (&va)[PIXELS], float4 (&vb)[WEIGHTS],
                                      const struct tt_k_conv_f32 &c, const pixel (&p)[PIXELS], const walk &w,
                                      const float *weight)
{
#pragma unroll
    for (int i = 0; i < PIXELS; i++)
        va[i] = load_a(c, p[i], w);
#pragma unroll
    for (int i = 0; i < WEIGHTS; i++)
        vb[i] = tt_load4(weight + (w.weight + i * 8 * c.out_c));
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
                                           int rows, int factor, int position, int column)
{
    float4 residual[4][2];
#pragma unroll
    for (int j = 0; j < 2; j++)
#pragma unroll
        for (int i = 0; i < 4; i++)
            residual[i][j] =
                c.add && row + i < rows
                    ? tt_load4(c.add + (size_t)((row + i) * factor + position) * c.out_c + column + j * 32)
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
                tt_store4(c.out + (size_t)((row + i) * factor + position) * c.out_c + column + j * 32, v);
        }
}

/* IN_PARTS: of a matrix product without GELU. */
template <bool IN_PARTS, int BK>
__global__ void __launch_bounds__(128, 3) conv_f32(const struct tt_k_conv_f32 c, int blocks)
{
    enum {
        LANES = BK / 4,
        APART = 128 / LANES, /* pixels of a thread */
        PIXELS = BM / APART,
        PART = PART_K / BK,
        WEIGHTS = BK / 8 /* rows of a thread, eight apart */
    };
    __shared__ float as[2][BK][LDA];
    __shared__ float bs[2][BK][BN];
    const int t = threadIdx.x, n0 = blockIdx.y * BN, area = c.out_h * c.out_w;
    /* small outputs: `blocks` blocks for each position */
    const int position = blocks ? blockIdx.x / blocks : 0, factor = blocks ? area : 1;
    const int rows = blocks ? c.frames : c.frames * area;
    const int m0 = (blocks ? blockIdx.x % blocks : blockIdx.x) * BM;
    walk w = {};
    pixel p[PIXELS];
    int taps_y = c.kernel;
    w.kx_last = c.kernel;
    if (blocks) {
        const int y = position / c.out_w * c.stride - c.pad, x = position % c.out_w * c.stride - c.pad;
        const int ky = max(-y, 0);
        taps_y = min(c.kernel, c.in_h - y) - ky;
        w.kx = w.kx_first = max(-x, 0);
        w.kx_last = min(c.kernel, c.in_w - x);
        w.tap = ky * c.kernel + w.kx;
        w.in = (ky * c.in_w + w.kx) * c.in_c;
        w.weight = w.tap * c.in_c * c.out_c;
    }
#pragma unroll
    for (int i = 0; i < PIXELS; i++) {
        const int m = m0 + t / LANES + i * APART, frame = blocks ? m : m / area;
        const int in_frame = blocks ? position : m - frame * area, oy = in_frame / c.out_w;
        const int y = oy * c.stride - c.pad, x = (in_frame - oy * c.out_w) * c.stride - c.pad;
        p[i].in = ((frame * c.in_h + y) * c.in_w + x) * c.in_c + t % LANES * 4;
        p[i].taps = m < rows ? taps_within(c, y, x) : 0;
        p[i].norm = (frame * c.in_c + t % LANES * 4) * 2;
    }
    const int bk = t / 16, bn = t % 16 * 4; /* the thread's float4 of eight rows of weights */
    const float *weight = c.weight + bk * c.out_c + n0 + bn;
    const int steps = taps_y * (w.kx_last - w.kx_first) * c.in_c / BK;

    const int lane = t % 32, ty = t / 32 * 16 + (lane % 2 + lane / 16 * 2) * 4, tx = lane / 2 % 8 * 4;
    float acc[8][8];
#pragma unroll
    for (int j = 0; j < 8; j++) { /* sums begin with the bias */
        const float bias = c.bias ? c.bias[n0 + tx + j / 4 * 32 + j % 4] : 0.0f;
#pragma unroll
        for (int i = 0; i < 8; i++)
            acc[i][j] = bias;
    }
    float4 va[PIXELS], vb[WEIGHTS]; /* of the step at w */
    fetch(va, vb, c, p, w, weight);
    for (int s = 0; s < steps; s++) {
        const int buf = s & 1;
#pragma unroll
        for (int i = 0; i < PIXELS; i++) {
            float *to = &as[buf][t % LANES * 4][t / LANES + i * APART];
            to[0] = va[i].x, to[LDA] = va[i].y, to[2 * LDA] = va[i].z, to[3 * LDA] = va[i].w;
        }
#pragma unroll
        for (int i = 0; i < WEIGHTS; i++)
            tt_store4(&bs[buf][bk + i * 8][bn], vb[i]);
        __syncthreads();
        if (s + 1 < steps) {
            w.next<BK>(c);
            fetch(va, vb, c, p, w, weight);
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
                add_part(c, acc + i, m0 + i * 16 + ty, rows, n0 + tx, s < PART ? c.add : c.out);
    }
#pragma unroll
    for (int i = 0; i < 8 && !IN_PARTS; i += 4)
        store_rows(c, acc + i, m0 + i * 16 + ty, rows, factor, position, n0 + tx);
}

template <bool IN_PARTS> void launch(const struct tt_k_conv_f32 *c, cudaStream_t stream)
{
    const int area = c->out_h * c->out_w, blocks = area <= SMALL_OUTPUT ? tt_div_up(c->frames, BM) : 0;
    const dim3 grid(blocks ? area * blocks : tt_div_up(c->frames * area, BM), c->out_c / BN);
    if (c->in_c % 16)
        conv_f32<IN_PARTS, 8><<<grid, 128, 0, stream>>>(*c, blocks);
    else
        conv_f32<IN_PARTS, 16><<<grid, 128, 0, stream>>>(*c, blocks);
}

} // namespace

extern "C" int tt_k_conv_f32(const struct tt_k_conv_f32 *c, void *stream)
{
    if (c->in_c % 8 || c->out_c % BN || c->frames < 1 || c->kernel * c->kernel > MOST_TAPS)
        return cudaErrorInvalidValue;
    if (c->kernel == 1 && c->out_h * c->out_w == 1 && c->in_c > PART_K && !c->gelu)
        launch<true>(c, (cudaStream_t)stream);
    else
        launch<false>(c, (cudaStream_t)stream);
    return cudaGetLastError();
}

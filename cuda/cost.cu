/* cuda/cost.cu: the first estimate: cost maps of a query in a frame, their soft-argmax and statistics.
 *
 * Per query and frame: lowres costs (32×32, dot products over 256 channels), upsampled bilinearly to 64×64;
 * hires costs (64×64 over 128 channels); a 3×3 convolution of the two maps; softmax at temperature 20, whose
 * denominator cancels in the soft-argmax within radius 5 of the maximum; mean, max and min of both maps go
 * through occ_linear. The maps live in shared memory only.
 *
 * A block of 256 threads takes one frame and two queries, so features are read once for both. Four lanes
 * share a pixel's dot product. Shared memory: 2 × (32² + 64²) + 64² + 2 × 384 floats, 60.4 KB, and 1 KB.
 * Sums: channels in steps of 16 in order, then a butterfly over four lanes; map sums per thread in pixel
 * order, then butterfly, then warps in order. The maximum is the first of equals; around it costs and softmax
 * are made again in FP64.
 */
#include "cuda/kernels.h"
#include "cuda/common.cuh"

namespace
{

enum { LO = 32, HI = 64, LO_C = 256, HI_C = 128, QUERIES = 2, THREADS = 256, HI_WINDOW = 11, LO_WINDOW = 7 };

struct shared {
    float lo[QUERIES][LO * LO];
    float hi[QUERIES][HI * HI];
    float up[HI * HI]; /* upsampled lowres costs of the query in work */
    float q[QUERIES][LO_C + HI_C];
    float warp_value[8];
    int warp_index[8];
};

template <int C, int PIXELS>
__device__ __forceinline__ void dots(float (*map)[PIXELS], const float *grid, const float *q0,
                                     const float *q1)
{
    const int part = threadIdx.x % 4;
    for (int p = threadIdx.x / 4; p < PIXELS; p += THREADS / 4) {
        const float *g = grid + (size_t)p * C + part * 4;
        float a = 0.0f, b = 0.0f;
#pragma unroll 8
        for (int c = 0; c < C; c += 16) {
            const float4 v = tt_load4(g + c), u = tt_load4(q0 + c + part * 4),
                         w = tt_load4(q1 + c + part * 4);
            a = fmaf(v.x, u.x, a), a = fmaf(v.y, u.y, a), a = fmaf(v.z, u.z, a), a = fmaf(v.w, u.w, a);
            b = fmaf(v.x, w.x, b), b = fmaf(v.y, w.y, b), b = fmaf(v.z, w.z, b), b = fmaf(v.w, w.w, b);
        }
        a += __shfl_xor_sync(0xffffffffu, a, 1), b += __shfl_xor_sync(0xffffffffu, b, 1);
        a += __shfl_xor_sync(0xffffffffu, a, 2), b += __shfl_xor_sync(0xffffffffu, b, 2);
        if (part == 0)
            map[0][p] = a, map[1][p] = b;
    }
}

/* Upsampled by two, half-pixel centres, clamped at the border. */
__device__ __forceinline__ float upsample(const float *lo, int y, int x)
{
    const float sy = fmaxf(0.5f * (float)y - 0.25f, 0.0f), sx = fmaxf(0.5f * (float)x - 0.25f, 0.0f);
    const int y0 = (int)sy, x0 = (int)sx, y1 = min(y0 + 1, LO - 1), x1 = min(x0 + 1, LO - 1);
    const float fy = sy - (float)y0, fx = sx - (float)x0;
    const float top = (1.0f - fx) * lo[y0 * LO + x0] + fx * lo[y0 * LO + x1];
    const float low = (1.0f - fx) * lo[y1 * LO + x0] + fx * lo[y1 * LO + x1];
    return (1.0f - fy) * top + fy * low;
}

__device__ __forceinline__ float cost_conv(const float *up, const float *hi, const float *w, int y, int x)
{
    float sum = 0.0f;
#pragma unroll
    for (int k = 0; k < 9; k++) {
        const int yy = y + k / 3 - 1, xx = x + k % 3 - 1;
        if ((unsigned)yy < HI && (unsigned)xx < HI)
            sum = fmaf(w[2 * k + 1], hi[yy * HI + xx], fmaf(w[2 * k], up[yy * HI + xx], sum));
    }
    return sum;
}

/* Over the block, to every thread. */
template <class F> __device__ __forceinline__ float reduce(shared &s, float v, F combine)
{
#pragma unroll
    for (int i = 16; i > 0; i >>= 1)
        v = combine(v, __shfl_xor_sync(0xffffffffu, v, i));
    __syncthreads();
    if (threadIdx.x % 32 == 0)
        s.warp_value[threadIdx.x / 32] = v;
    __syncthreads();
    v = s.warp_value[0];
    for (int i = 1; i < THREADS / 32; i++)
        v = combine(v, s.warp_value[i]);
    return v;
}

/* Index of the largest, the first of equals; value: in and out. */
__device__ __forceinline__ int arg_max(shared &s, float &v, int index)
{
#pragma unroll
    for (int i = 16; i > 0; i >>= 1) {
        const float u = __shfl_xor_sync(0xffffffffu, v, i);
        const int j = __shfl_xor_sync(0xffffffffu, index, i);
        if (u > v || (u == v && j < index))
            v = u, index = j;
    }
    __syncthreads();
    if (threadIdx.x % 32 == 0)
        s.warp_value[threadIdx.x / 32] = v, s.warp_index[threadIdx.x / 32] = index;
    __syncthreads();
    v = s.warp_value[0], index = s.warp_index[0];
    for (int i = 1; i < THREADS / 32; i++)
        if (s.warp_value[i] > v || (s.warp_value[i] == v && s.warp_index[i] < index))
            v = s.warp_value[i], index = s.warp_index[i];
    return index;
}

struct add {
    __device__ float operator()(float a, float b) const
    {
        return a + b;
    }
};
struct larger {
    __device__ float operator()(float a, float b) const
    {
        return fmaxf(a, b);
    }
};
struct smaller {
    __device__ float operator()(float a, float b) const
    {
        return fminf(a, b);
    }
};

/* Mean, max and min of a 64×64 map into f[0], f[2], f[4]. */
__device__ __forceinline__ void statistics(shared &s, const float *map, float *f)
{
    float sum = 0.0f, top = map[threadIdx.x], low = top;
    for (int p = threadIdx.x; p < HI * HI; p += THREADS)
        sum += map[p], top = fmaxf(top, map[p]), low = fminf(low, map[p]);
    f[0] = reduce(s, sum, add()) / (float)(HI * HI);
    f[2] = reduce(s, top, larger());
    f[4] = reduce(s, low, smaller());
}

/* Costs around the maximum in FP64: lowres from (ly, lx) on, hires from (hy, hx); what lies outside a map is
 * the nearest pixel (lowres) or zero. */
struct window {
    double lo[LO_WINDOW * LO_WINDOW], hi[HI_WINDOW * HI_WINDOW];
    double sums[3][THREADS / 32];
    int ly, lx, hy, hx;
};

__device__ __forceinline__ double warp_sum(double x)
{
#pragma unroll
    for (int i = 16; i > 0; i >>= 1)
        x += __shfl_xor_sync(0xffffffffu, x, i);
    return x;
}

/* A warp's dot product of two features. */
template <int C> __device__ __forceinline__ double dot(const float *feature, const float *q)
{
    double sum = 0.0;
#pragma unroll
    for (int c = 0; c < C; c += 128) {
        const float4 v = tt_load4(feature + c + threadIdx.x % 32 * 4),
                     u = tt_load4(q + c + threadIdx.x % 32 * 4);
        sum += ((double)v.x * u.x + (double)v.y * u.y) + ((double)v.z * u.z + (double)v.w * u.w);
    }
    return warp_sum(sum);
}

__device__ __forceinline__ void fill(window &v, const float *lowres, const float *hires, const float *q)
{
    enum { LOS = LO_WINDOW * LO_WINDOW, HIS = HI_WINDOW * HI_WINDOW };
    for (int i = threadIdx.x / 32; i < LOS + HIS; i += THREADS / 32) {
        double d = 0.0;
        if (i < LOS) {
            const int y = min(max(v.ly + i / LO_WINDOW, 0), LO - 1),
                      x = min(max(v.lx + i % LO_WINDOW, 0), LO - 1);
            d = dot<LO_C>(lowres + (size_t)(y * LO + x) * LO_C, q);
        } else {
            const int y = v.hy + (i - LOS) / HI_WINDOW, x = v.hx + (i - LOS) % HI_WINDOW;
            if ((unsigned)y < HI && (unsigned)x < HI)
                d = dot<HI_C>(hires + (size_t)(y * HI + x) * HI_C, q + LO_C);
        }
        if (threadIdx.x % 32 == 0)
            v.lo[i] = d; /* hi follows */
    }
}

/* Of a pixel at least one from the window's border. */
__device__ __forceinline__ double heat(const window &v, const float *w, int y, int x)
{
    double sum = 0.0;
    for (int k = 0; k < 9; k++) {
        const int yy = y + k / 3 - 1, xx = x + k % 3 - 1;
        if ((unsigned)yy >= HI || (unsigned)xx >= HI)
            continue;
        const double *at = v.lo + ((yy + 1 >> 1) - 1 - v.ly) * LO_WINDOW + (xx + 1 >> 1) - 1 - v.lx;
        const double fy = yy % 2 ? 0.25 : 0.75, fx = xx % 2 ? 0.25 : 0.75; /* of the farther row and column */
        const double up = (1.0 - fy) * ((1.0 - fx) * at[0] + fx * at[1]) +
                          fy * ((1.0 - fx) * at[LO_WINDOW] + fx * at[LO_WINDOW + 1]);
        sum += w[2 * k] * up + w[2 * k + 1] * v.hi[(yy - v.hy) * HI_WINDOW + xx - v.hx];
    }
    return sum;
}

/* The softmax's weights come from costs in FP64: heats differ by tenths, their twentyfold goes into an
 * exponent, and the refinements multiply what is wrong. s.up gives way to the window. */
__device__ __forceinline__ float2 soft_argmax(shared &s, const float *map, const float *w,
                                              const float *lowres, const float *hires, const float *q)
{
    float best = -INFINITY;
    int at = HI * HI;
    for (int p = threadIdx.x; p < HI * HI; p += THREADS) {
        const float v = cost_conv(s.up, map, w, p / HI, p % HI);
        if (v > best)
            best = v, at = p;
    }
    at = min(arg_max(s, best, at), HI * HI - 1);
    window &v = *reinterpret_cast<window *>(s.up);
    const int top = at / HI, left = at % HI;
    if (threadIdx.x == 0) {
        v.hy = top - HI_WINDOW / 2, v.hx = left - HI_WINDOW / 2;
        v.ly = (v.hy + 1 >> 1) - 1, v.lx = (v.hx + 1 >> 1) - 1;
    }
    __syncthreads();
    fill(v, lowres, hires, q);
    __syncthreads();
    double e = 0.0;
    const int dy = (int)threadIdx.x / 9 - 4, dx = (int)threadIdx.x % 9 - 4, y = top + dy, x = left + dx;
    if (threadIdx.x < 81 && dy * dy + dx * dx < 25 && (unsigned)y < HI && (unsigned)x < HI)
        e = exp(20.0 * (heat(v, w, y, x) - heat(v, w, top, left)));
    const double sums[3] = {warp_sum(e), warp_sum(e * (x + 0.5)), warp_sum(e * (y + 0.5))};
    if (threadIdx.x % 32 == 0)
        for (int i = 0; i < 3; i++)
            v.sums[i][threadIdx.x / 32] = sums[i];
    __syncthreads();
    double all[3] = {};
    for (int i = 0; i < 3; i++)
        for (int k = 0; k < 3; k++) /* warps that hold pixels */
            all[i] += v.sums[i][k];
    return make_float2((float)(all[1] / all[0] * (256 / HI)), (float)(all[2] / all[0] * (256 / HI)));
}

__global__ void __launch_bounds__(THREADS) cost(const struct tt_k_cost c)
{
    extern __shared__ __align__(16) unsigned char memory[];
    shared &s = *reinterpret_cast<shared *>(memory);
    const int frame = blockIdx.x, first = blockIdx.y * QUERIES;
    for (int i = threadIdx.x; i < QUERIES * (LO_C + HI_C); i += THREADS) {
        const int k = i / (LO_C + HI_C), j = i % (LO_C + HI_C), q = min(first + k, c.queries - 1);
        s.q[k][j] = j < LO_C ? c.lowres_q[(size_t)q * c.row + j] : c.hires_q[(size_t)q * c.row + j - LO_C];
    }
    float w[18];
#pragma unroll
    for (int i = 0; i < 18; i++)
        w[i] = c.conv[i];
    __syncthreads();
    dots<LO_C, LO * LO>(s.lo, (const float *)c.lowres + (size_t)frame * LO * LO * LO_C, s.q[0], s.q[1]);
    dots<HI_C, HI * HI>(s.hi, (const float *)c.hires + (size_t)frame * HI * HI * HI_C, s.q[0] + LO_C,
                        s.q[1] + LO_C);
    __syncthreads();
    for (int k = 0; k < QUERIES && first + k < c.queries; k++) {
        const int q = first + k;
        for (int p = threadIdx.x; p < HI * HI; p += THREADS)
            s.up[p] = upsample(s.lo[k], p / HI, p % HI);
        __syncthreads();
        float f[6];
        statistics(s, s.up, f);
        statistics(s, s.hi[k], f + 1);
        float2 xy = soft_argmax(s, s.hi[k], w, (const float *)c.lowres + (size_t)frame * LO * LO * LO_C,
                                (const float *)c.hires + (size_t)frame * HI * HI * HI_C, s.q[k]);
        if (c.query_frame[q] == frame)
            xy = make_float2(c.query_xy[2 * q], c.query_xy[2 * q + 1]);
        if (threadIdx.x == 0) {
            float o[2];
            for (int i = 0; i < 2; i++) {
                o[i] = c.occ_b[i];
                for (int j = 0; j < 6; j++)
                    o[i] = fmaf(c.occ_w[6 * i + j], f[j], o[i]);
            }
            tt_store4(c.out + ((size_t)q * c.frames + frame) * 4, make_float4(xy.x, xy.y, o[0], o[1]));
        }
        __syncthreads();
    }
}

} // namespace

extern "C" int tt_k_cost_f32(const struct tt_k_cost *c, void *stream)
{
    const cudaError_t e = tt_shared(cost, sizeof(shared));
    if (e != cudaSuccess)
        return e;
    const dim3 grid(c->frames, tt_div_up(c->queries, QUERIES));
    cost<<<grid, THREADS, sizeof(shared), (cudaStream_t)stream>>>(*c);
    return cudaGetLastError();
}

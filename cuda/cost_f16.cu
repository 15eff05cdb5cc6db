/* cuda/cost_f16.cu: the first estimate from the cost volume, on tensor cores and streamed; see cost.cu for
 * what it is.
 *
 * A block of eight warps takes one frame and eight queries; all queries of a frame come before the next
 * frame, whose 1.5 MB of features stay in L2 meanwhile. Costs are pixels (16 a tile) × 8 queries; features
 * come straight from memory, 16 bytes a lane, the queries' features stay in registers as the B operand. The
 * lowres map of all eight queries stays in shared memory (32 KB, FP32); hires rows pass through a ring of ten
 * (20 KB), eight at a time, and behind them go convolution, mean, max, min and the maximum's place.
 * Upsampling and 3×3 convolution of the lowres map are one 3×3 stencil on it, whose weights depend on row and
 * column parity and on the border. Then each warp makes the 13 × 13 hires costs around one query's maximum
 * anew and the soft-argmax over them. Shared memory 57.8 KB. Sums: a thread's pixels in order, butterfly,
 * warps in order. The maximum is the first of equals.
 */
#include "cuda/kernels.h"
#include "cuda/tile_f16.cuh"

namespace
{

enum {
    LO = 32,
    HI = 64,
    LO_C = 256,
    HI_C = 128,
    QUERIES = 8,
    WARPS = 8,
    BAND = 8,
    RING = BAND + 2,
    SIDE = 13
};

struct total {
    float sum[2], top[2], low[2]; /* lowres upsampled, hires */
    float best;
    int at;
};

struct shared {
    float lo[LO * LO][QUERIES];
    union {
        float hi[RING][HI][QUERIES];
        struct {
            float window[WARPS][SIDE * SIDE + 7];
            float query[QUERIES][HI_C];
        };
    };
    total totals[WARPS][QUERIES];
    total final[QUERIES];
};

/* Query features as the B operand: lane (g, q) holds query g's channels 8q.. of each 32. */
template <int C>
__device__ __forceinline__ void load_queries(uint32_t (&b)[C / 32][4], const float *q, int row, int last)
{
    const int lane = threadIdx.x % 32;
    const float *from = q + (size_t)min(lane / 4, last) * row + lane % 4 * 8;
#pragma unroll
    for (int c = 0; c < C / 32; c++)
#pragma unroll
        for (int i = 0; i < 4; i++)
            b[c][i] = tt_pack(from[c * 32 + 2 * i], from[c * 32 + 2 * i + 1]);
}

/* Costs of 16 pixels and 8 queries; rows: this lane's pixel lane / 4, channels 8·(lane % 4). to:
 * [pixel][query]. */
template <bool K16, int C>
__device__ __forceinline__ void costs(float (*to)[QUERIES], const __half *rows,
                                      const uint32_t (&b)[C / 32][4])
{
    const int lane = threadIdx.x % 32;
    float acc[4] = {};
#pragma unroll
    for (int c0 = 0; c0 < C / 32; c0 += 4) {
        uint4 a[4][2];
#pragma unroll
        for (int c = 0; c < 4; c++)
#pragma unroll
            for (int r = 0; r < 2; r++)
                a[c][r] = __ldg(reinterpret_cast<const uint4 *>(rows + r * 8 * C + (c0 + c) * 32));
#pragma unroll
        for (int c = 0; c < 4; c++) {
            const uint32_t a0[4] = {a[c][0].x, a[c][1].x, a[c][0].y, a[c][1].y};
            const uint32_t a1[4] = {a[c][0].z, a[c][1].z, a[c][0].w, a[c][1].w};
            tt_mma<K16>(acc, a0, b[c0 + c][0], b[c0 + c][1]);
            tt_mma<K16>(acc, a1, b[c0 + c][2], b[c0 + c][3]);
        }
    }
    *reinterpret_cast<float2 *>(&to[lane / 4][lane % 4 * 2]) = make_float2(acc[0], acc[1]);
    *reinterpret_cast<float2 *>(&to[lane / 4 + 8][lane % 4 * 2]) = make_float2(acc[2], acc[3]);
}

/* v[k][a]: weight of lowres row i - 1 + a, i = y / 2, in upsampled row y + k - 1; zero outside the map. */
__device__ __forceinline__ void upsampling(float (&v)[3][3], int y)
{
#pragma unroll
    for (int k = 0; k < 3; k++) {
        const int yy = y + k - 1;
        const float s = fmaxf(0.5f * (float)yy - 0.25f, 0.0f), f = s - floorf(s);
        const int a0 = (int)s - y / 2 + 1, a1 = min((int)s + 1, LO - 1) - y / 2 + 1;
        const bool inside = (unsigned)yy < HI;
#pragma unroll
        for (int a = 0; a < 3; a++)
            v[k][a] = inside ? (a == a0 ? 1.0f - f : 0.0f) + (a == a1 ? f : 0.0f) : 0.0f;
    }
}

/* m[k][b] = sum over x of w[k][x] h[x][b] for the lowres part of the convolution */
__device__ __forceinline__ void columns(float (&m)[3][3], const float (&w)[9], const float (&h)[3][3])
{
#pragma unroll
    for (int k = 0; k < 3; k++)
#pragma unroll
        for (int b = 0; b < 3; b++)
            m[k][b] = w[3 * k] * h[0][b] + w[3 * k + 1] * h[1][b] + w[3 * k + 2] * h[2][b];
}

__device__ __forceinline__ void accumulate(float4 &sum, float w, float4 v)
{
    sum.x = fmaf(w, v.x, sum.x), sum.y = fmaf(w, v.y, sum.y);
    sum.z = fmaf(w, v.z, sum.z), sum.w = fmaf(w, v.w, sum.w);
}

/* Column x, queries 4·quad..: one pixel of row y into the four queries' totals. */
__device__ __forceinline__ void pixel(const shared &s, total (&t)[4], const float (&w_hi)[9],
                                      const float (&m)[3][3], const float (&h)[3][3], int y, int x, int quad)
{
    float v[3][3];
    upsampling(v, y);
    float4 pos = make_float4(0, 0, 0, 0), up = pos, here = pos;
#pragma unroll
    for (int a = 0; a < 3; a++)
#pragma unroll
        for (int b = 0; b < 3; b++) {
            const int yl = min(max(y / 2 - 1 + a, 0), LO - 1), xl = min(max(x / 2 - 1 + b, 0), LO - 1);
            const float4 lo = tt_load4(&s.lo[yl * LO + xl][quad * 4]);
            accumulate(pos, v[0][a] * m[0][b] + v[1][a] * m[1][b] + v[2][a] * m[2][b], lo);
            accumulate(up, v[1][a] * h[1][b], lo);
        }
#pragma unroll
    for (int k = 0; k < 9; k++) {
        const int yy = y + k / 3 - 1, xx = x + k % 3 - 1;
        if ((unsigned)yy < HI && (unsigned)xx < HI) {
            const float4 hi = tt_load4(&s.hi[yy % RING][xx][quad * 4]);
            accumulate(pos, w_hi[k], hi);
            if (k == 4)
                here = hi;
        }
    }
#pragma unroll
    for (int i = 0; i < 4; i++) {
        const float p = (&pos.x)[i], map[2] = {(&up.x)[i], (&here.x)[i]};
        if (p > t[i].best)
            t[i].best = p, t[i].at = y * HI + x;
#pragma unroll
        for (int k = 0; k < 2; k++) {
            t[i].sum[k] += map[k];
            t[i].top[k] = fmaxf(t[i].top[k], map[k]);
            t[i].low[k] = fminf(t[i].low[k], map[k]);
        }
    }
}

__device__ __forceinline__ void merge(total &t, const total &o)
{
#pragma unroll
    for (int k = 0; k < 2; k++) {
        t.sum[k] += o.sum[k];
        t.top[k] = fmaxf(t.top[k], o.top[k]);
        t.low[k] = fminf(t.low[k], o.low[k]);
    }
    if (o.best > t.best || (o.best == t.best && o.at < t.at))
        t.best = o.best, t.at = o.at;
}

__device__ __forceinline__ total shuffled(const total &t, int mask)
{
    total o;
#pragma unroll
    for (int k = 0; k < 2; k++) {
        o.sum[k] = __shfl_xor_sync(0xffffffffu, t.sum[k], mask);
        o.top[k] = __shfl_xor_sync(0xffffffffu, t.top[k], mask);
        o.low[k] = __shfl_xor_sync(0xffffffffu, t.low[k], mask);
    }
    o.best = __shfl_xor_sync(0xffffffffu, t.best, mask);
    o.at = __shfl_xor_sync(0xffffffffu, t.at, mask);
    return o;
}

/* All maps of the block's queries: s.final. */
template <bool K16>
__device__ __forceinline__ void stream_maps(shared &s, const __half *lowres, const __half *hires,
                                            const float *lo_q, const float *hi_q, int row, int last,
                                            const float (&w_lo)[9], const float (&w_hi)[9])
{
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    {
        uint32_t b[LO_C / 32][4];
        load_queries<LO_C>(b, lo_q, row, last);
#pragma unroll 1
        for (int p = warp * 16; p < LO * LO; p += WARPS * 16)
            costs<K16, LO_C>(s.lo + p, lowres + (size_t)(p + lane / 4) * LO_C + lane % 4 * 8, b);
    }
    uint32_t b[HI_C / 32][4];
    load_queries<HI_C>(b, hi_q, row, last);
    const int phase = threadIdx.x / 128, x = threadIdx.x % 128 / 2, quad = threadIdx.x % 2;
    float h[3][3], m[3][3];
    upsampling(h, x);
    columns(m, w_lo, h);
    total t[4];
#pragma unroll
    for (int i = 0; i < 4; i++)
        t[i] = {{0.0f, 0.0f}, {-INFINITY, -INFINITY}, {INFINITY, INFINITY}, -INFINITY, HI * HI};
#pragma unroll 1
    for (int y0 = 0; y0 < HI; y0 += BAND) {
        const int y = y0 + warp;
        __syncthreads();
#pragma unroll 1
        for (int p = 0; p < HI; p += 16)
            costs<K16, HI_C>(s.hi[y % RING] + p,
                             hires + (size_t)(y * HI + p + lane / 4) * HI_C + lane % 4 * 8, b);
        __syncthreads();
        const int first = y0 ? y0 - 1 : 0, end = y0 + BAND < HI ? y0 + BAND - 1 : HI;
#pragma unroll 1
        for (int yy = first + phase; yy < end; yy += 2)
            pixel(s, t, w_hi, m, h, yy, x, quad);
    }
#pragma unroll
    for (int i = 0; i < 4; i++) {
#pragma unroll
        for (int mask = 2; mask < 32; mask *= 2)
            merge(t[i], shuffled(t[i], mask));
        if (lane < 2)
            s.totals[warp][lane * 4 + i] = t[i];
    }
    __syncthreads();
    if (threadIdx.x < QUERIES) {
        total f = s.totals[0][threadIdx.x];
        for (int w = 1; w < WARPS; w++)
            merge(f, s.totals[w][threadIdx.x]);
        f.at = min(f.at, HI * HI - 1);
        s.final[threadIdx.x] = f;
    }
    __syncthreads();
}

/* Convolved cost of query q at (y, x), hires costs from the warp's window whose corner is (top, left). */
__device__ __forceinline__ float convolved(const shared &s, const float *window, int q,
                                           const float (&w_lo)[9], const float (&w_hi)[9], int y, int x,
                                           int top, int left)
{
    float v[3][3], h[3][3], m[3][3], sum = 0.0f;
    upsampling(v, y);
    upsampling(h, x);
    columns(m, w_lo, h);
#pragma unroll
    for (int a = 0; a < 3; a++)
#pragma unroll
        for (int b = 0; b < 3; b++) {
            const int yl = min(max(y / 2 - 1 + a, 0), LO - 1), xl = min(max(x / 2 - 1 + b, 0), LO - 1);
            sum = fmaf(v[0][a] * m[0][b] + v[1][a] * m[1][b] + v[2][a] * m[2][b], s.lo[yl * LO + xl][q], sum);
        }
#pragma unroll
    for (int k = 0; k < 9; k++) {
        const int yy = y + k / 3 - 1, xx = x + k % 3 - 1;
        if ((unsigned)yy < HI && (unsigned)xx < HI)
            sum = fmaf(w_hi[k], window[(yy - top) * SIDE + xx - left], sum);
    }
    return sum;
}

/* Soft-argmax around query q's maximum, by one warp, in clip pixels. */
__device__ __forceinline__ float2 soft_argmax(shared &s, int q, const __half *hires, const float (&w_lo)[9],
                                              const float (&w_hi)[9])
{
    const int lane = threadIdx.x % 32, at = s.final[q].at, cy = at / HI, cx = at % HI;
    const int top = cy - SIDE / 2, left = cx - SIDE / 2;
    float *window = s.window[threadIdx.x / 32];
    /* eight lanes a pixel, eight channels each of either half */
    const int part = lane % 8 * 8;
    float u[2][8];
#pragma unroll
    for (int k = 0; k < 2; k++)
#pragma unroll
        for (int c = 0; c < 8; c++)
            u[k][c] = s.query[q][k * 64 + part + c];
#pragma unroll 2
    for (int p = lane / 8; p < SIDE * SIDE + 3; p += 4) {
        const int y = top + p / SIDE, x = left + p % SIDE;
        float sum = 0.0f;
        if ((unsigned)y < HI && (unsigned)x < HI && p < SIDE * SIDE) {
            const uint4 *f = reinterpret_cast<const uint4 *>(hires + (size_t)(y * HI + x) * HI_C + part);
#pragma unroll
            for (int k = 0; k < 2; k++) {
                const uint4 v = __ldg(f + k * 8);
                const uint32_t w[4] = {v.x, v.y, v.z, v.w};
#pragma unroll
                for (int c = 0; c < 4; c++) {
                    const float2 t = tt_unpack(w[c]);
                    sum = fmaf(t.x, u[k][2 * c], sum), sum = fmaf(t.y, u[k][2 * c + 1], sum);
                }
            }
        }
#pragma unroll
        for (int i = 1; i < 8; i *= 2)
            sum += __shfl_xor_sync(0xffffffffu, sum, i);
        if (part == 0 && p < SIDE * SIDE)
            window[p] = sum;
    }
    __syncwarp();
    const float best = convolved(s, window, q, w_lo, w_hi, cy, cx, top, left);
    float n = 0.0f, sx = 0.0f, sy = 0.0f;
    for (int p = lane; p < 121; p += 32) {
        const int dy = p / 11 - 5, dx = p % 11 - 5, y = cy + dy, x = cx + dx;
        if (dy * dy + dx * dx < 25 && (unsigned)y < HI && (unsigned)x < HI) {
            const float e = expf(20.0f * (convolved(s, window, q, w_lo, w_hi, y, x, top, left) - best));
            n += e, sx = fmaf(e, (float)x + 0.5f, sx), sy = fmaf(e, (float)y + 0.5f, sy);
        }
    }
    n = tt_warp_sum(n);
    return make_float2(tt_warp_sum(sx) / n * (256.0f / HI), tt_warp_sum(sy) / n * (256.0f / HI));
}

template <bool K16> __global__ void __launch_bounds__(32 * WARPS, 2) cost(const struct tt_k_cost c)
{
    extern __shared__ __align__(16) unsigned char memory[];
    shared &s = *reinterpret_cast<shared *>(memory);
    const int frame = blockIdx.y, first = blockIdx.x * QUERIES, last = min(QUERIES, c.queries - first) - 1;
    const __half *lowres = (const __half *)c.lowres + (size_t)frame * LO * LO * LO_C;
    const __half *hires = (const __half *)c.hires + (size_t)frame * HI * HI * HI_C;
    const float *hi_q = c.hires_q + (size_t)first * c.row;
    float w_lo[9], w_hi[9];
#pragma unroll
    for (int k = 0; k < 9; k++)
        w_lo[k] = c.conv[2 * k], w_hi[k] = c.conv[2 * k + 1];
    stream_maps<K16>(s, lowres, hires, c.lowres_q + (size_t)first * c.row, hi_q, c.row, last, w_lo, w_hi);
    for (int i = threadIdx.x; i < QUERIES * HI_C; i += 32 * WARPS)
        s.query[i / HI_C][i % HI_C] =
            __half2float(__float2half_rn(hi_q[(size_t)min(i / HI_C, last) * c.row + i % HI_C]));
    __syncthreads();
    const int q = threadIdx.x / 32;
    if (q > last)
        return;
    float2 xy = soft_argmax(s, q, hires, w_lo, w_hi);
    if (threadIdx.x % 32)
        return;
    if (c.query_frame[first + q] == frame)
        xy = make_float2(c.query_xy[2 * (first + q)], c.query_xy[2 * (first + q) + 1]);
    const total &f = s.final[q];
    float o[2];
#pragma unroll
    for (int i = 0; i < 2; i++) {
        o[i] = c.occ_b[i];
#pragma unroll
        for (int k = 0; k < 2; k++) {
            o[i] = fmaf(c.occ_w[6 * i + k], f.sum[k] / (float)(HI * HI), o[i]);
            o[i] = fmaf(c.occ_w[6 * i + 2 + k], f.top[k], o[i]);
            o[i] = fmaf(c.occ_w[6 * i + 4 + k], f.low[k], o[i]);
        }
    }
    tt_store4(c.out + ((size_t)(first + q) * c.frames + frame) * 4, make_float4(xy.x, xy.y, o[0], o[1]));
}

template <bool K16> cudaError_t launch(const struct tt_k_cost *c, void *stream)
{
    const cudaError_t e = tt_shared(cost<K16>, sizeof(shared));
    if (e != cudaSuccess)
        return e;
    cost<K16><<<dim3(tt_div_up(c->queries, QUERIES), c->frames), 32 * WARPS, sizeof(shared),
                (cudaStream_t)stream>>>(*c);
    return cudaGetLastError();
}

} // namespace

extern "C" int tt_k_cost_f16(const struct tt_k_cost *c, enum tt_k_mma mma, void *stream)
{
    return mma == TT_MMA_K16 ? launch<true>(c, stream) : launch<false>(c, stream);
}

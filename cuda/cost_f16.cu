/* cuda/cost_f16.cu: the first estimate from the cost volume, on tensor cores and streamed; see cost.cu for
 * what it is.
 *
 * A block of eight warps takes one frame and sixteen queries; all queries of a frame come before the next
 * frame, whose 1.5 MB of features stay in L2 meanwhile. Costs are 16 queries × 8 pixels a tile: the queries'
 * features lie in shared memory as operands (12 KB), a lane's 16 bytes of a pixel are two steps of k as they
 * come from memory. Maps pass through rings of six rows (46 KB, FP32): four hires and two lowres rows at a
 * time are made, and behind them go convolution, mean, max, min and the maximum's place, four rows of a
 * column and four queries a thread, so that a cost is read for all the rows that need it at once. Upsampling
 * and 3×3 convolution of the lowres map are one 3×3 stencil on it, whose weights depend on row and column
 * parity and on the border. Then each warp makes the costs around two queries' maxima anew (11 × 11 hires, 7
 * × 7 lowres) and the soft-argmax over them. Shared memory 63.1 KB. Sums: a thread's pixels in order,
 * butterfly, warps in order. The maximum is the first of equals.
 */
#include "cuda/features_f16.cuh"
#include "cuda/kernels.h"
#include "cuda/tile_f16.cuh"

namespace
{

enum {
    LO = 32,
    HI = 64,
    LO_C = 256,
    HI_C = 128,
    QUERIES = 16,
    STRIDE = QUERIES + 4, /* floats of a pixel: eight of them begin in different banks */
    WARPS = 8,
    BAND = 4,  /* hires rows */
    RING = 6,  /* rows of either map */
    REACH = 4, /* of the soft-argmax, in rows and columns */
    SIDE_HI = 2 * REACH + 3,
    SIDE_LO = REACH + 3,
    AREA_HI = SIDE_HI * SIDE_HI,
    AREA_LO = SIDE_LO * SIDE_LO
};

struct total {
    float sum[2], top[2], low[2]; /* lowres upsampled, hires */
    float best;
    int at;
};

struct working {
    uint4 operand[(LO_C + HI_C) / 16][32]; /* queries: lowres steps of k, then hires */
    float4 column[HI][3];                  /* of each x: m[3][3], h[3] as `rows` uses them */
    float4 row[HI][3];                     /* of each y: v[0..2][a] */
    union {
        struct {
            float lo[RING][LO][STRIDE], hi[RING][HI][STRIDE];
        };
        struct {
            total totals[WARPS][QUERIES], final[QUERIES];
            float window_hi[WARPS][(AREA_HI + 7) / 8 * 8], window_lo[WARPS][(AREA_LO + 7) / 8 * 8];
        };
    };
    float w_lo[9], w_hi[9];
};

/* Queries' features as the A operand: step 2·c + s of lane (g, q): queries g and g + 8, of channels 32·c +
 * 8·q the fours s. q: the first query's features. */
template <int C>
__device__ __forceinline__ void load_queries(uint4 (*to)[32], const float *q, int row, int last)
{
    for (int i = threadIdx.x; i < C / 16 * 32; i += 32 * WARPS) {
        const int lane = i % 32, step = i / 32, c = step / 2 * 32 + lane % 4 * 8 + step % 2 * 4;
        const float4 a = tt_load4(q + (size_t)min(lane / 4, last) * row + c);
        const float4 b = tt_load4(q + (size_t)min(lane / 4 + 8, last) * row + c);
        to[step][lane] =
            make_uint4(tt_pack(a.x, a.y), tt_pack(b.x, b.y), tt_pack(a.z, a.w), tt_pack(b.z, b.w));
    }
}

/* c[n]: costs of queries lane / 4 (+ 8) and pixels 2·(lane % 4) (+ 1) of N tiles of eight. at: this lane's
 * pixel lane / 4 of each, channels 8·(lane % 4). LOADS: of a lane at a time. */
template <bool K16, int C, int N, int LOADS>
__device__ __forceinline__ void costs(float (&c)[N][4], const __half *const (&at)[N],
                                      const uint4 (*operand)[32])
{
    enum { PIECES = LOADS / N };
    const int lane = threadIdx.x % 32;
#pragma unroll
    for (int n = 0; n < N; n++)
        c[n][0] = c[n][1] = c[n][2] = c[n][3] = 0.0f;
#pragma unroll
    for (int c0 = 0; c0 < C / 32; c0 += PIECES) {
        uint4 v[PIECES][N];
#pragma unroll
        for (int i = 0; i < PIECES; i++)
#pragma unroll
            for (int n = 0; n < N; n++)
                v[i][n] = __ldg(reinterpret_cast<const uint4 *>(tt_feature_piece(at[n], c0 + i)));
#pragma unroll
        for (int i = 0; i < PIECES; i++)
#pragma unroll
            for (int s = 0; s < 2; s++) {
                const uint4 w = operand[2 * (c0 + i) + s][lane];
                const uint32_t a[4] = {w.x, w.y, w.z, w.w};
#pragma unroll
                for (int n = 0; n < N; n++)
                    tt_mma<K16>(c[n], a, s ? v[i][n].z : v[i][n].x, s ? v[i][n].w : v[i][n].y);
            }
    }
}

/* Of N tiles of pixels that follow one another: [pixel][query]. from: the first pixel's features, in an even
 * column. */
template <bool K16, int C, int N>
__device__ __forceinline__ void stream(float (*to)[STRIDE], const __half *from, const uint4 (*operand)[32])
{
    const int g = threadIdx.x % 32 / 4, q = threadIdx.x % 4;
    const __half *at[N];
    float c[N][4];
#pragma unroll
    for (int n = 0; n < N; n++)
        at[n] = from + (n * 8 + g) * C + tt_feature_place(q * 8, g);
    costs<K16, C, N, 8>(c, at, operand);
#pragma unroll
    for (int n = 0; n < N; n++)
#pragma unroll
        for (int i = 0; i < 4; i++)
            to[n * 8 + 2 * q + i % 2][g + i / 2 * 8] = c[n][i];
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
__device__ __forceinline__ void columns(float (&m)[3][3], const float *w, const float (&h)[3][3])
{
#pragma unroll
    for (int k = 0; k < 3; k++)
#pragma unroll
        for (int b = 0; b < 3; b++)
            m[k][b] = w[3 * k] * h[0][b] + w[3 * k + 1] * h[1][b] + w[3 * k + 2] * h[2][b];
}

/* The convolution's weights, and what follows from them for each column. */
__device__ __forceinline__ void prepare(working &s, const float *conv)
{
    const int i = threadIdx.x;
    if (i < HI) {
        float w[9], h[3][3], m[3][3];
#pragma unroll
        for (int k = 0; k < 9; k++)
            w[k] = conv[2 * k];
        upsampling(h, i);
        columns(m, w, h);
        s.column[i][0] = make_float4(m[0][0], m[0][1], m[0][2], m[1][0]);
        s.column[i][1] = make_float4(m[1][1], m[1][2], m[2][0], m[2][1]);
        s.column[i][2] = make_float4(m[2][2], h[1][0], h[1][1], h[1][2]);
#pragma unroll
        for (int a = 0; a < 3; a++)
            s.row[i][a] = make_float4(h[0][a], h[1][a], h[2][a], 0.0f);
    } else if (i < HI + 9) {
        s.w_lo[i - HI] = conv[2 * (i - HI)];
        s.w_hi[i - HI] = conv[2 * (i - HI) + 1];
    }
}

__device__ __forceinline__ void accumulate(float4 &sum, float w, float4 v)
{
    sum.x = fmaf(w, v.x, sum.x), sum.y = fmaf(w, v.y, sum.y);
    sum.z = fmaf(w, v.z, sum.z), sum.w = fmaf(w, v.w, sum.w);
}

__device__ __forceinline__ void count(total (&t)[4], int map, float4 v)
{
#pragma unroll
    for (int i = 0; i < 4; i++) {
        const float x = (&v.x)[i];
        t[i].sum[map] += x;
        t[i].top[map] = fmaxf(t[i].top[map], x);
        t[i].low[map] = fminf(t[i].low[map], x);
    }
}

/* Column x, queries 4·quad..: rows y0 - 1 .. y0 + 2 into the four queries' totals. best_y: the maxima's rows,
 * a byte each; t's `at` is not touched. */
__device__ __forceinline__ void rows(const working &s, total (&t)[4], uint32_t &best_y, int y0, int x,
                                     int quad)
{
    const float4 c[3] = {s.column[x][0], s.column[x][1], s.column[x][2]};
    const float m[3][3] = {{c[0].x, c[0].y, c[0].z}, {c[0].w, c[1].x, c[1].y}, {c[1].z, c[1].w, c[2].x}};
    const float h[3] = {c[2].y, c[2].z, c[2].w};
    float4 pos[BAND], up[BAND];
#pragma unroll
    for (int i = 0; i < BAND; i++)
        pos[i] = up[i] = make_float4(0, 0, 0, 0);
#pragma unroll
    for (int r = 0; r < BAND / 2 + 3; r++) { /* lowres rows y0 / 2 - 2 + r */
        const int yl = min(max(y0 / 2 - 2 + r, 0), LO - 1);
        float4 lo[3];
#pragma unroll
        for (int b = 0; b < 3; b++)
            lo[b] = tt_load4(&s.lo[yl % RING][min(max(x / 2 - 1 + b, 0), LO - 1)][quad * 4]);
        float4 sum = make_float4(0, 0, 0, 0);
#pragma unroll
        for (int b = 0; b < 3; b++)
            accumulate(sum, h[b], lo[b]);
#pragma unroll
        for (int i = 0; i < BAND; i++) {
            const int a = r - (i + 1) / 2; /* y / 2 = y0 / 2 - 1 + (i + 1) / 2 */
            if (a < 0 || a > 2)
                continue;
            const float4 v = s.row[min(max(y0 - 1 + i, 0), HI - 1)][a];
            accumulate(up[i], v.y, sum);
#pragma unroll
            for (int b = 0; b < 3; b++)
                accumulate(pos[i], v.x * m[0][b] + v.y * m[1][b] + v.z * m[2][b], lo[b]);
            if (a == 2 && (unsigned)(y0 - 1 + i) < HI)
                count(t, 0, up[i]);
        }
    }
#pragma unroll
    for (int r = 0; r < BAND + 2; r++) { /* hires rows y0 - 2 + r */
        const int yy = y0 - 2 + r;
        if ((unsigned)yy >= HI)
            continue;
#pragma unroll
        for (int k = 0; k < 3; k++) {
            const int xx = x + k - 1;
            if ((unsigned)xx >= HI)
                continue;
            const float4 hi = tt_load4(&s.hi[yy % RING][xx][quad * 4]);
#pragma unroll
            for (int i = 0; i < BAND; i++)
                if (r - i >= 0 && r - i < 3)
                    accumulate(pos[i], s.w_hi[(r - i) * 3 + k], hi);
            if (k == 1 && r > 0 && r <= BAND)
                count(t, 1, hi);
        }
    }
#pragma unroll
    for (int i = 0; i < BAND; i++) {
        const int y = y0 - 1 + i;
        if ((unsigned)y >= HI)
            continue;
#pragma unroll
        for (int k = 0; k < 4; k++) {
            const float p = (&pos[i].x)[k];
            if (p > t[k].best)
                t[k].best = p, best_y = (best_y & ~(255u << 8 * k)) | (uint32_t)y << 8 * k;
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
    o.at = (int)__shfl_xor_sync(0xffffffffu, (uint32_t)t.at, mask);
    return o;
}

/* All maps of the block's queries: s.final. */
template <bool K16>
__device__ __forceinline__ void stream_maps(working &s, const __half *lowres, const __half *hires)
{
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    const int x = warp * 8 + lane % 8, quad = lane / 8;
    total t[4];
#pragma unroll
    for (int i = 0; i < 4; i++)
        t[i] = {{0.0f, 0.0f}, {-INFINITY, -INFINITY}, {INFINITY, INFINITY}, -INFINITY, 0};
    uint32_t best_y = ~0u;
#pragma unroll 1
    for (int y0 = 0; y0 <= HI; y0 += BAND) {
        /* lowres one row ahead */
        const int yl = y0 ? y0 / 2 + 1 + warp / 4 : warp / 4, yh = y0 + warp / 2;
        if (yl < LO)
            stream<K16, LO_C, 1>(&s.lo[yl % RING][warp % 4 * 8], lowres + (yl * LO + warp % 4 * 8) * LO_C,
                                 s.operand);
        if (y0 == 0 && warp < 4)
            stream<K16, LO_C, 1>(&s.lo[2][warp * 8], lowres + (2 * LO + warp * 8) * LO_C, s.operand);
        if (yh < HI)
            stream<K16, HI_C, 4>(&s.hi[yh % RING][warp % 2 * 32], hires + (yh * HI + warp % 2 * 32) * HI_C,
                                 s.operand + LO_C / 16);
        __syncthreads();
        rows(s, t, best_y, y0, x, quad);
        __syncthreads();
    }
#pragma unroll
    for (int i = 0; i < 4; i++) {
        t[i].at = (int)(best_y >> 8 * i & 255) * HI + x;
#pragma unroll
        for (int mask = 1; mask < 8; mask *= 2)
            merge(t[i], shuffled(t[i], mask));
        if (lane % 8 == 0)
            s.totals[warp][quad * 4 + i] = t[i];
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

/* Costs of query warp + 8·second in the square of SIDE × SIDE pixels whose corner is (top, left); what lies
 * outside the map of SIZE × SIZE is of the nearest pixel inside. */
template <bool K16, int C, int SIZE, int SIDE, int N>
__device__ __forceinline__ void window(float *to, const __half *map, const uint4 (*operand)[32], int top,
                                       int left, int second)
{
    const int g = threadIdx.x % 32 / 4, q = threadIdx.x % 4, warp = threadIdx.x / 32;
#pragma unroll 1
    for (int p0 = 0; p0 < SIDE * SIDE; p0 += 8 * N) {
        const __half *at[N];
        float c[N][4];
#pragma unroll
        for (int n = 0; n < N; n++) {
            const int p = p0 + n * 8 + g, y = min(max(top + p / SIDE, 0), SIZE - 1),
                      x = min(max(left + p % SIDE, 0), SIZE - 1);
            at[n] = map + (y * SIZE + x) * C + tt_feature_place(q * 8, x);
        }
        costs<K16, C, N, 8>(c, at, operand);
#pragma unroll
        for (int n = 0; n < N; n++)
            if (g == warp && p0 + n * 8 < SIDE * SIDE) {
                to[p0 + n * 8 + 2 * q] = second ? c[n][2] : c[n][0];
                to[p0 + n * 8 + 2 * q + 1] = second ? c[n][3] : c[n][1];
            }
    }
}

/* Convolved cost at (y, x), costs from the warp's windows around (cy, cx). */
__device__ __forceinline__ float convolved(const float *lo, const float *hi, const float *w_lo,
                                           const float *w_hi, int y, int x, int cy, int cx)
{
    const int top = ((cy - REACH) >> 1) - 1, left = ((cx - REACH) >> 1) - 1;
    float v[3][3], h[3][3], m[3][3], sum = 0.0f;
    upsampling(v, y);
    upsampling(h, x);
    columns(m, w_lo, h);
#pragma unroll
    for (int a = 0; a < 3; a++)
#pragma unroll
        for (int b = 0; b < 3; b++) {
            const int yl = min(max(y / 2 - 1 + a, 0), LO - 1), xl = min(max(x / 2 - 1 + b, 0), LO - 1);
            sum = fmaf(v[0][a] * m[0][b] + v[1][a] * m[1][b] + v[2][a] * m[2][b],
                       lo[(yl - top) * SIDE_LO + xl - left], sum);
        }
#pragma unroll
    for (int k = 0; k < 9; k++) {
        const int yy = y + k / 3 - 1, xx = x + k % 3 - 1;
        if ((unsigned)yy < HI && (unsigned)xx < HI)
            sum = fmaf(w_hi[k], hi[(yy - cy + REACH + 1) * SIDE_HI + xx - cx + REACH + 1], sum);
    }
    return sum;
}

/* Soft-argmax around the maximum of query warp + 8·second, by one warp, in clip pixels. */
template <bool K16>
__device__ __forceinline__ float2 soft_argmax(working &s, int second, const __half *lowres,
                                              const __half *hires)
{
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, at = s.final[warp + 8 * second].at;
    const int cy = at / HI, cx = at % HI;
    float *lo = s.window_lo[warp], *hi = s.window_hi[warp];
    window<K16, LO_C, LO, SIDE_LO, 1>(lo, lowres, s.operand, ((cy - REACH) >> 1) - 1, ((cx - REACH) >> 1) - 1,
                                      second);
    window<K16, HI_C, HI, SIDE_HI, 4>(hi, hires, s.operand + LO_C / 16, cy - REACH - 1, cx - REACH - 1,
                                      second);
    __syncwarp();
    const float best = convolved(lo, hi, s.w_lo, s.w_hi, cy, cx, cy, cx);
    float n = 0.0f, sx = 0.0f, sy = 0.0f;
    for (int p = lane; p < (2 * REACH + 1) * (2 * REACH + 1); p += 32) {
        const int dy = p / (2 * REACH + 1) - REACH, dx = p % (2 * REACH + 1) - REACH, y = cy + dy,
                  x = cx + dx;
        if (dy * dy + dx * dx < 25 && (unsigned)y < HI && (unsigned)x < HI) {
            const float e = expf(20.0f * (convolved(lo, hi, s.w_lo, s.w_hi, y, x, cy, cx) - best));
            n += e, sx = fmaf(e, (float)x + 0.5f, sx), sy = fmaf(e, (float)y + 0.5f, sy);
        }
    }
    __syncwarp();
    n = tt_warp_sum(n);
    return make_float2(tt_warp_sum(sx) / n * (256.0f / HI), tt_warp_sum(sy) / n * (256.0f / HI));
}

/* By one lane. */
__device__ __forceinline__ void finish(const struct tt_k_cost &c, const total &f, float2 xy, int query,
                                       int frame)
{
    float o[2];
    if (c.query_frame[query] == frame)
        xy = make_float2(c.query_xy[2 * query], c.query_xy[2 * query + 1]);
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
    tt_store4(c.out + ((size_t)query * c.frames + frame) * 4, make_float4(xy.x, xy.y, o[0], o[1]));
}

template <bool K16> __global__ void __launch_bounds__(32 * WARPS, 2) cost(const struct tt_k_cost c)
{
    extern __shared__ __align__(16) unsigned char shared[];
    working &s = *reinterpret_cast<working *>(shared);
    const int frame = blockIdx.y, first = blockIdx.x * QUERIES,
              last = min((int)QUERIES, c.queries - first) - 1;
    const __half *lowres = (const __half *)c.lowres + (size_t)frame * LO * LO * LO_C;
    const __half *hires = (const __half *)c.hires + (size_t)frame * HI * HI * HI_C;
    tt_let_next();
    prepare(s, c.conv);
    tt_wait_previous();
    load_queries<LO_C>(s.operand, c.lowres_q + (size_t)first * c.row, c.row, last);
    load_queries<HI_C>(s.operand + LO_C / 16, c.hires_q + (size_t)first * c.row, c.row, last);
    __syncthreads();
    stream_maps<K16>(s, lowres, hires);
#pragma unroll 1
    for (int second = 0; second < 2; second++) {
        const int q = threadIdx.x / 32 + 8 * second;
        if (q > last)
            break;
        const float2 xy = soft_argmax<K16>(s, second, lowres, hires);
        if (threadIdx.x % 32 == 0)
            finish(c, s.final[q], xy, first + q, frame);
    }
}

template <bool K16> cudaError_t launch(const struct tt_k_cost *c, void *stream)
{
    const size_t bytes = sizeof(working);
    const dim3 blocks(tt_div_up(c->queries, QUERIES), c->frames);
    const cudaError_t e = tt_shared(cost<K16>, bytes);
    if (e != cudaSuccess)
        return e;
    return tt_launch(cost<K16>, blocks, 32 * WARPS, bytes, stream, *c);
}

} // namespace

extern "C" int tt_k_cost_f16(const struct tt_k_cost *c, enum tt_k_mma mma, void *stream)
{
    return mma == TT_MMA_K16 ? launch<true>(c, stream) : launch<false>(c, stream);
}

/* cuda/winograd_f16.cu: 3×3 convolution, stride 1, with two thirds of the products: F(2,3) along x.
 *
 * Two neighbouring outputs of a row need four products a channel and kernel row instead of six: of d0 - d2,
 * d1 + d2, d2 - d1, d1 - d3 (FP16) with g0, (g0 + g1 + g2) / 2, (g0 - g1 + g2) / 2, g2 (FP16, pack.h); their
 * FP32 sums m0..m3 over channels and kernel rows give m0 + m1 + m2 and m1 - m2 - m3. A block makes 4 rows ×
 * 32 columns × 64 channels with four warps of 16 channels, all four m in registers: a transformed row is read
 * once for the three output rows that need it. Channels come in chunks of 16 through two buffers: while one
 * is multiplied, the next is fetched, normalised (as conv_f16.cu does), transformed and put into the other,
 * without branches, so that the compiler can mix it with the products. Rows of a chunk: [6][4][16 pairs][16
 * channels], the halves of a pair's 32 bytes swapped where its number has bit 2, so that ldmatrix is free of
 * bank conflicts. Shared memory: 24.6 KB and 8 bytes a channel. Sums run over (chunk, kernel row, channel) in
 * order.
 */
#include "cuda/kernels.h"
#include "cuda/tile_f16.cuh"

namespace
{

enum {
    THREADS = 128,
    CK = 16,
    HIGH = 4, /* rows and columns of a block */
    WIDE = 32,
    ROWS = HIGH + 2,
    ROW = 4 * 16 * CK * 2, /* bytes of a transformed row */
    BUFFER = ROWS * ROW,
    LINE = 144,        /* bytes of a pixel on its way out */
    NORM = 2 * BUFFER, /* where the norm lies */
};
static_assert(HIGH * WIDE * LINE <= NORM, "outputs fit into the buffers");

__device__ __forceinline__ uint32_t plus(uint32_t a, uint32_t b)
{
    const __half2 h = __hadd2(*reinterpret_cast<__half2 *>(&a), *reinterpret_cast<__half2 *>(&b));
    return *reinterpret_cast<const uint32_t *>(&h);
}
__device__ __forceinline__ uint32_t minus(uint32_t a, uint32_t b)
{
    const __half2 h = __hsub2(*reinterpret_cast<__half2 *>(&a), *reinterpret_cast<__half2 *>(&b));
    return *reinterpret_cast<const uint32_t *>(&h);
}

__device__ __forceinline__ uint4 plus(uint4 a, uint4 b)
{
    return make_uint4(plus(a.x, b.x), plus(a.y, b.y), plus(a.z, b.z), plus(a.w, b.w));
}
__device__ __forceinline__ uint4 minus(uint4 a, uint4 b)
{
    return make_uint4(minus(a.x, b.x), minus(a.y, b.y), minus(a.z, b.z), minus(a.w, b.w));
}

/* max(a, 0), max(b, 0) in FP16 */
__device__ __forceinline__ uint32_t pack_relu(float a, float b)
{
#if __CUDA_ARCH__ >= 800
    uint32_t r;
    asm("cvt.rn.relu.f16x2.f32 %0, %1, %2;" : "=r"(r) : "f"(b), "f"(a));
    return r;
#else
    return tt_pack(fmaxf(a, 0.0f), fmaxf(b, 0.0f));
#endif
}

/* Six neighbouring pixels of a row, eight channels: what two pairs need. */
struct piece {
    uint4 v[6];
    const __half *at; /* the first pixel in the next chunk */
    unsigned inside;  /* a bit a pixel: not padding */

    static __device__ __forceinline__ int number()
    {
        int t = threadIdx.x + blockIdx.x * 32; /* the idle warp is another in each block */
        asm volatile("" : "+r"(t));            /* hidden: what follows from it is not kept in registers */
        return t % THREADS;
    }
    static __device__ __forceinline__ bool idle()
    {
        return number() >= ROWS * 16;
    }
    /* in: of the frame; (top, left): the tile's first pixel */
    __device__ __forceinline__ void place(const __half *in, int size, int channels, int top, int left)
    {
        const int n = number(), y = top + n / 16, x = left + n / 2 % 8 * 4;
        at = in + (y * size + x) * channels + n % 2 * 8;
        inside = 0;
#pragma unroll
        for (int i = 0; i < 6; i++)
            inside |= (unsigned)((unsigned)(x + i) < (unsigned)size) << i;
        if ((unsigned)y >= (unsigned)size || idle())
            inside = 0;
    }
    __device__ __forceinline__ void fetch(int channels, bool more)
    {
#pragma unroll
        for (int i = 0; i < 6; i++) {
            v[i] = make_uint4(0, 0, 0, 0);
            if (more && inside >> i & 1)
                v[i] = *reinterpret_cast<const uint4 *>(at + i * channels);
        }
        at += CK;
    }
    /* norm: of the chunk, in shared memory */
    __device__ __forceinline__ void normalise(const float *norm)
    {
        norm += number() % 2 * 16;
        half(norm, &uint4::x, &uint4::y);
        half(norm + 8, &uint4::z, &uint4::w);
    }
    __device__ __forceinline__ void half(const float *norm, unsigned uint4::*first, unsigned uint4::*second)
    {
        const float4 f = tt_load4(norm), g = tt_load4(norm + 4);
#pragma unroll
        for (int i = 0; i < 6; i++) {
            const float2 a = tt_unpack(v[i].*first), b = tt_unpack(v[i].*second);
            const uint32_t mask = 0u - (inside >> i & 1);
            v[i].*first = pack_relu(fmaf(a.x, f.x, f.y), fmaf(a.y, f.z, f.w)) & mask;
            v[i].*second = pack_relu(fmaf(b.x, g.x, g.y), fmaf(b.y, g.z, g.w)) & mask;
        }
    }
    __device__ __forceinline__ void put(unsigned char *buffer) const
    {
        const int n = number(), pair = n / 2 % 8 * 2;
        unsigned char *to = buffer + n / 16 * ROW + pair * 32 + (n % 2 ^ (pair >> 2 & 1)) * 16;
        if (idle())
            return;
#pragma unroll
        for (int p = 0; p < 2; p++) {
            const uint4 *d = v + 2 * p;
            uint4 *at_f = reinterpret_cast<uint4 *>(to + p * 32); /* of f = 0; they lie 512 bytes apart */
            at_f[0] = minus(d[0], d[2]);
            at_f[32] = plus(d[1], d[2]);
            at_f[64] = minus(d[2], d[1]);
            at_f[96] = minus(d[1], d[3]);
        }
    }
};

/* m[f][output row][column tile] */
typedef float sums[4][4][2][4];

template <bool K16>
__device__ __forceinline__ void multiply(float (&c)[2][4], const uint32_t (&a)[4], uint4 b)
{
    tt_mma<K16>(c[0], a, b.x, b.y);
    tt_mma<K16>(c[1], a, b.z, b.w);
}

/* Inverse transform, shortcut, rounding, statistics, stores. */
__device__ __forceinline__ void finish_block(const struct tt_k_conv_f16 &c, const sums &m,
                                             unsigned char *stage)
{
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, g = lane / 4, q = lane % 4;
    const int across = c.out_size / WIDE, oy = blockIdx.x / across * HIGH, ox = blockIdx.x % across * WIDE;
    const int frame = blockIdx.z, n0 = blockIdx.y * 64;
    const size_t first = (((size_t)frame * c.out_size + oy) * c.out_size + ox) * c.out_c + n0;
    if (c.add) {
        const __half *add = reinterpret_cast<const __half *>(c.add) + first;
#pragma unroll
        for (int i = 0; i < 8; i++) {
            const int p = (threadIdx.x + i * THREADS) / 8, piece = threadIdx.x % 8;
            *reinterpret_cast<uint4 *>(stage + p * LINE + piece * 16) = *reinterpret_cast<const uint4 *>(
                add + (size_t)(p / WIDE * c.out_size + p % WIDE) * c.out_c + piece * 8);
        }
        __syncthreads();
    }
    float s[2][2] = {}, ss[2][2] = {};
    unsigned char *own = stage + g * 2 * LINE + warp * 32 + q * 4;
#pragma unroll
    for (int o = 0; o < 4; o++)
#pragma unroll
        for (int n = 0; n < 2; n++)
#pragma unroll
            for (int r = 0; r < 2; r++)
#pragma unroll
                for (int odd = 0; odd < 2; odd++) {
                    float y[2];
#pragma unroll
                    for (int k = 0; k < 2; k++) {
                        const int i = 2 * r + k;
                        y[k] = odd ? m[1][o][n][i] - m[2][o][n][i] - m[3][o][n][i]
                                   : m[0][o][n][i] + m[1][o][n][i] + m[2][o][n][i];
                    }
                    uint32_t *at =
                        reinterpret_cast<uint32_t *>(own + (o * WIDE + r * 16 + odd) * LINE + n * 16);
                    const float2 old = c.add ? tt_unpack(*at) : make_float2(0.0f, 0.0f);
                    const uint32_t rounded = tt_pack(y[0] + old.x, y[1] + old.y);
                    const float2 x = tt_unpack(rounded);
                    *at = rounded;
                    s[n][0] += x.x, s[n][1] += x.y;
                    ss[n][0] = fmaf(x.x, x.x, ss[n][0]), ss[n][1] = fmaf(x.y, x.y, ss[n][1]);
                }
#pragma unroll
    for (int n = 0; n < 2; n++)
#pragma unroll
        for (int k = 0; k < 2; k++)
#pragma unroll
            for (int i = 4; i < 32; i *= 2) {
                s[n][k] += __shfl_xor_sync(0xffffffffu, s[n][k], i);
                ss[n][k] += __shfl_xor_sync(0xffffffffu, ss[n][k], i);
            }
    if (c.partial && g == 0) {
        const size_t tile = (size_t)frame * gridDim.x + blockIdx.x;
        float *to = c.partial + (tile * c.out_c + n0 + warp * 16 + q * 2) * 2;
#pragma unroll
        for (int n = 0; n < 2; n++)
            tt_store4(to + n * 16, make_float4(s[n][0], ss[n][0], s[n][1], ss[n][1]));
    }
    __syncthreads();
    __half *out = reinterpret_cast<__half *>(c.out) + first;
#pragma unroll
    for (int i = 0; i < 8; i++) {
        const int p = (threadIdx.x + i * THREADS) / 8, piece = threadIdx.x % 8;
        *reinterpret_cast<uint4 *>(out + (size_t)(p / WIDE * c.out_size + p % WIDE) * c.out_c + piece * 8) =
            *reinterpret_cast<const uint4 *>(stage + p * LINE + piece * 16);
    }
}

template <bool K16> __global__ void __launch_bounds__(THREADS, 2) winograd(const struct tt_k_conv_f16 c)
{
    extern __shared__ __align__(16) unsigned char shared[];
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    const int across = c.out_size / WIDE, oy = blockIdx.x / across * HIGH, ox = blockIdx.x % across * WIDE;
    const int frame = blockIdx.z;
    const int steps = 12 * c.in_c / CK;
    const uint4 *weight =
        reinterpret_cast<const uint4 *>(c.weight) + ((size_t)blockIdx.y * steps * 4 + warp) * 32 + lane;
    /* this lane's row of A: pair lane % 16, half lane / 16, of the first row */
    const uint32_t base = tt_shared_address(shared) + lane % 16 * 32 + (lane / 16 ^ (lane >> 2 & 1)) * 16;
    sums m = {};
    uint4 b[2][3];
    float *norm = reinterpret_cast<float *>(shared + NORM);
    piece next;
    next.place(reinterpret_cast<const __half *>(c.in) + (size_t)frame * c.in_size * c.in_size * c.in_c,
               c.in_size, c.in_c, oy - 1, ox - 1);
    next.fetch(c.in_c, true);
    for (int i = threadIdx.x * 4; i < c.in_c * 2; i += THREADS * 4)
        tt_store4(norm + i, tt_load4(c.norm + (size_t)frame * c.in_c * 2 + i));
#pragma unroll
    for (int f = 0; f < 2; f++)
#pragma unroll
        for (int ky = 0; ky < 3; ky++)
            b[f][ky] = __ldg(weight + (f * 3 + ky) * 128);
    __syncthreads();
    next.normalise(norm);
    next.put(shared);
    __syncthreads();
    uint32_t from = base, to = BUFFER;
#pragma unroll 1
    for (int c0 = 0; c0 < c.in_c; c0 += CK) {
        const bool more = c0 + CK < c.in_c;
        const float *norm_next = norm + 2 * (more ? c0 + CK : c0);
        next.fetch(c.in_c, more);
        const uint4 *const here = weight;
        weight += more ? 12 * 128 : 0; /* behind the last there is nothing to read ahead */
        uint32_t a[3][4];
#pragma unroll
        for (int i = 0; i < 3; i++)
            tt_ldmatrix4(a[i], from + i * ROW);
#pragma unroll
        for (int f = 0; f < 4; f++) {
#pragma unroll
            for (int r = 0; r < 6; r++) {
#pragma unroll
                for (int ky = 0; ky < 3; ky++)
                    if (r - ky >= 0 && r - ky < 4)
                        multiply<K16>(m[f][r - ky], a[r % 3], b[f % 2][ky]);
                const int ahead = f * 6 + r + 3; /* six is twice three: the row's registers are free */
                if (ahead < 24)
                    tt_ldmatrix4(a[r % 3], from + ahead % 6 * ROW + ahead / 6 * 512);
                if (r >= 3)
                    b[f % 2][r - 3] = f < 2 ? __ldg(here + ((f + 2) * 3 + r - 3) * 128)
                                            : __ldg(weight + ((f - 2) * 3 + r - 3) * 128);
            }
            if (f == 2)
                next.normalise(norm_next);
            if (f == 3)
                next.put(shared + to);
        }
        from = base + to, to = BUFFER - to;
        __syncthreads();
    }
    finish_block(c, m, shared);
}

template <bool K16> cudaError_t launch(const struct tt_k_conv_f16 *c, void *stream)
{
    if (c->out_size % WIDE || c->out_c % 64 || c->in_c % CK || c->proj_c || c->in_size != c->out_size)
        return cudaErrorInvalidValue;
    auto *kernel = winograd<K16>;
    const int bytes = NORM + 8 * c->in_c;
    const cudaError_t e = tt_shared(kernel, bytes);
    if (e != cudaSuccess)
        return e;
    const dim3 grid(c->out_size / WIDE * (c->out_size / HIGH), c->out_c / 64, c->frames);
    kernel<<<grid, THREADS, bytes, (cudaStream_t)stream>>>(*c);
    return cudaGetLastError();
}

} // namespace

extern "C" int tt_k_winograd_f16(const struct tt_k_conv_f16 *c, enum tt_k_mma mma, void *stream)
{
    return mma == TT_MMA_K16 ? launch<true>(c, stream) : launch<false>(c, stream);
}

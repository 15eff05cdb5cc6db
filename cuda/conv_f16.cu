/* cuda/conv_f16.cu: 3×3 convolution on tensor cores, FP16 storage, FP32 accumulation.
 *
 * Implicit GEMM over NHWC. A block makes 16 × (4·MW) output pixels × 64·NW channels with MW × NW warps of 64
 * × 64 each; warp MW·n + m has image rows 4·m to 4·m + 3 and channels 64·n to 64·n + 63. Blocks: x: tiles of
 * a frame, row by row; y: channels; z: frames. Input channels go through shared memory in chunks of CK, so
 * that two blocks share a multiprocessor: 32 on a T4, 64 natively. The tile with its halo is loaded once,
 * normalised (FP32 scale, shift, ReLU; padding is zero after the ReLU), and read by ldmatrix once for each of
 * the nine taps. Stride 2 keeps even and odd columns apart, so that eight neighbouring output pixels are
 * neighbours in shared memory; a pixel takes 2·CK + 16 bytes there, which keeps ldmatrix free of bank
 * conflicts. Where the tile's pixels lie in the image is found once and kept in shared memory: loading a
 * chunk has no branches. A residual block's 1×1 projection is a last run of k over the block's own input
 * (centre tap); its identity shortcut is added in FP32 before rounding. The epilogue goes through shared
 * memory for 16-byte stores and sums the rounded outputs and their squares for the next instance norm: lanes
 * by halves, warps in order. Shared memory: the larger of tile and 4.6 KB a warp, 512·NW·MW bytes, and the
 * places: at most 50.1 KB. Sums run over (chunk, tap, channel), then the projection's channels, in order.
 */
#include "cuda/kernels.h"
#include "cuda/tile_f16.cuh"

namespace
{

enum { TW = 16 }; /* pixels of a tile's row */

/* BATCH: pieces that a thread has on their way at once. */
template <int MW_, int NW_, int CK_, int STRIDE_, int BATCH_> struct shape {
    enum {
        MW = MW_,
        NW = NW_,
        CK = CK_,
        STRIDE = STRIDE_,
        BATCH = BATCH_,
        THREADS = 32 * MW * NW,
        TH = 4 * MW,                            /* rows of output pixels */
        IH = STRIDE == 1 ? TH + 2 : 2 * TH + 1, /* of input pixels, with the halo */
        IW = STRIDE == 1 ? TW + 2 : 2 * TW + 1,
        PIXEL = 2 * CK + 16, /* bytes of a pixel in shared memory */
        GROUPS = CK / 8,     /* 16-byte pieces of a pixel */
        STEPS = CK / 16,
        AHEAD = THREADS / GROUPS, /* pixels that the block loads at once */
        PIXELS = IH * IW,
        PLACES = (PIXELS + BATCH * AHEAD - 1) / (BATCH * AHEAD) * BATCH * AHEAD,
        TILE = PIXELS * PIXEL,
        STAGES = MW * NW * TT_STAGE_BYTES, /* of the epilogue: staging */
        SUMS = MW * NW * 64 * 8,           /* and sums */
        MAIN = TILE > STAGES ? TILE : STAGES,
        BYTES = MAIN + SUMS + PLACES * 4,
    };
    static_assert(TILE + IW * PIXEL <= BYTES, "a row behind the tile is read, though not used");
};

/* Scale, shift and ReLU of eight channels. */
template <bool FUSED> struct affine {
    float4 v[4]; /* scale and shift of two channels */
    __device__ __forceinline__ void load(const float *norm)
    {
#pragma unroll
        for (int i = 0; i < 4; i++)
            v[i] = tt_load4(norm + 4 * i);
    }
    __device__ __forceinline__ uint32_t pair(uint32_t u, int i) const
    {
        const float2 x = tt_unpack(u);
        return tt_pack_relu<FUSED>(fmaf(x.x, v[i].x, v[i].y), fmaf(x.y, v[i].z, v[i].w));
    }
    __device__ __forceinline__ uint4 operator()(uint4 u) const
    {
        return make_uint4(pair(u.x, 0), pair(u.y, 1), pair(u.z, 2), pair(u.w, 3));
    }
};

/* Byte offset of input tile pixel (y, x). */
template <class S> __device__ __forceinline__ int pixel_at(int y, int x)
{
    return (y * S::IW + (S::STRIDE == 1 ? x : (x & 1) * (TW + 1) + (x >> 1))) * S::PIXEL;
}

/* threadIdx.x, hidden from the compiler, which would otherwise compute every address of a tile once and keep
 * them all in registers across the loop over chunks, and spill. */
__device__ __forceinline__ int thread()
{
    int t = threadIdx.x;
    asm volatile("" : "+r"(t));
    return t;
}

/* Where in the image the tile's pixels lie, in the order in which they lie in shared memory: the index of the
 * first channel, or -1 outside the image, where shared memory is zero from now on. */
template <class S>
__device__ __forceinline__ void find_places(int *places, unsigned char *shared, int size, int channels,
                                            int top, int left)
{
    for (int i = threadIdx.x; i < S::PLACES; i += S::THREADS) {
        const int y = i / S::IW, r = i - y * S::IW;
        const int x = S::STRIDE == 1 ? r : r <= TW ? 2 * r : 2 * (r - TW) - 1;
        const int iy = top + y, ix = left + x;
        const bool inside = i < S::PIXELS && (unsigned)iy < (unsigned)size && (unsigned)ix < (unsigned)size;
        places[i] = inside ? (iy * size + ix) * channels : -1;
        if (!inside && i < S::PIXELS)
#pragma unroll
            for (int k = 0; k < S::GROUPS; k++)
                *reinterpret_cast<uint4 *>(shared + i * S::PIXEL + k * 16) = make_uint4(0, 0, 0, 0);
    }
}

/* Loads and normalises one chunk of the tile. in, norm: of the frame and chunk. */
template <class S, bool K16>
__device__ __forceinline__ void load_tile(unsigned char *shared, const __half *in, const float *norm,
                                          const int *places)
{
    enum { BATCH = S::BATCH, AHEAD = S::AHEAD };
    const int group = threadIdx.x % S::GROUPS;
    affine<K16> f;
    f.load(norm + group * 16);
    in += group * 8;
    shared += group * 16;
#pragma unroll 1
    for (int p = thread() / S::GROUPS; p < S::PLACES; p += BATCH * AHEAD) {
        uint4 v[BATCH];
        int at[BATCH];
#pragma unroll
        for (int i = 0; i < BATCH; i++)
            at[i] = places[p + i * AHEAD];
#pragma unroll
        for (int i = 0; i < BATCH; i++)
            v[i] = *reinterpret_cast<const uint4 *>(in + max(at[i], 0));
#pragma unroll
        for (int i = 0; i < BATCH; i++) {
            v[i] = f(v[i]);
            if (at[i] >= 0)
                *reinterpret_cast<uint4 *>(shared + (p + i * AHEAD) * S::PIXEL) = v[i];
        }
    }
}

/* The same for a chunk of the projection's input, of whose pixels each stride-th is under the tile's: one for
 * each output pixel, the first at (oy, ox) · stride. */
template <class S, bool K16>
__device__ __forceinline__ void load_centre(unsigned char *shared, const __half *in, const float *norm,
                                            int size, int channels, int oy, int ox, int stride)
{
    enum { COUNT = S::TH * TW / S::AHEAD };
    const int group = threadIdx.x % S::GROUPS;
    affine<K16> f;
    f.load(norm + group * 16);
    const int first = thread() / S::GROUPS;
    uint4 v[COUNT];
#pragma unroll
    for (int i = 0; i < COUNT; i++) {
        const int p = first + i * S::AHEAD, y = oy + p / TW, x = ox + p % TW;
        v[i] = *reinterpret_cast<const uint4 *>(in + (size_t)(y * size + x) * stride * channels + group * 8);
    }
#pragma unroll
    for (int i = 0; i < COUNT; i++) {
        const int p = first + i * S::AHEAD;
        *reinterpret_cast<uint4 *>(shared + pixel_at<S>(p / TW + 1, p % TW + 1) + group * 16) = f(v[i]);
    }
}

/* Adds the shortcut, rounds and stores a block's sums, and sums what it stored for the next norm: lanes by a
 * butterfly, warps in order. (wm, wn): this warp's; (oy, ox), n0: the block's first pixel and channel.
 * shared: S::STAGES bytes; sums: S::SUMS. */
template <class S>
__device__ __forceinline__ void store_block(const tt_acc &acc, const struct tt_k_conv_f16 &c,
                                            unsigned char *shared, float2 *sums, int wm, int wn, int oy,
                                            int ox, int n0)
{
    const int warp = threadIdx.x / 32, frame = blockIdx.z;
    const size_t line = (size_t)c.out_size * c.out_c;
    const size_t first =
        ((size_t)frame * c.out_size + oy + wm * 4) * line + (size_t)ox * c.out_c + n0 + wn * 64;
    tt_store_warp(acc, shared + warp * TT_STAGE_BYTES, sums + (wm * S::NW + wn) * 64,
                  reinterpret_cast<__half *>(c.out) + first,
                  c.add ? reinterpret_cast<const __half *>(c.add) + first : nullptr, c.out_c, line);
    __syncthreads();
    if (c.partial && threadIdx.x < S::NW * 64) {
        float2 total = sums[threadIdx.x];
        for (int i = 1; i < S::MW; i++) {
            const float2 v = sums[i * S::NW * 64 + threadIdx.x];
            total.x += v.x, total.y += v.y;
        }
        reinterpret_cast<float2 *>(
            c.partial)[((size_t)frame * gridDim.x + blockIdx.x) * c.out_c + n0 + threadIdx.x] = total;
    }
}

template <class S, bool PROJ, bool K16>
__global__ void __launch_bounds__(S::THREADS, 2) conv_f16(const struct tt_k_conv_f16 c)
{
    extern __shared__ __align__(16) unsigned char shared[];
    tt_let_next();
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, wm = warp % S::MW, wn = warp / S::MW;
    const int across = c.out_size / TW, tile_y = blockIdx.x / across, tile_x = blockIdx.x - tile_y * across;
    const int oy = tile_y * S::TH, ox = tile_x * TW, frame = blockIdx.z, n0 = blockIdx.y * S::NW * 64;
    const int pad = S::STRIDE == 1 ? 1 : 0;
    const int steps = (9 * c.in_c + (PROJ ? c.proj_c : 0)) / 16;
    const uint4 *weight =
        reinterpret_cast<const uint4 *>(c.weight) + (size_t)(n0 / 64 + wn) * steps * 128 + lane;
    /* this lane's row of A: pixel lane % 16 of image row 4·wm, half lane / 16 of a k step */
    const uint32_t base =
        tt_shared_address(shared) + lane / 16 * 16 + (S::STRIDE * wm * 4 * S::IW + lane % 16) * S::PIXEL;
    const uint32_t row_tile = S::STRIDE * S::IW * S::PIXEL;

    tt_acc acc = {};
    tt_frag_a a;
    tt_frag_b b, b_next;
    tt_load_b(b, weight);
    const __half *in =
        reinterpret_cast<const __half *>(c.in) + (size_t)frame * c.in_size * c.in_size * c.in_c;
    const float *norm = c.norm + (size_t)frame * c.in_c * 2;
    int *places = reinterpret_cast<int *>(shared + S::MAIN + S::SUMS);
    find_places<S>(places, shared, c.in_size, c.in_c, oy * S::STRIDE - pad, ox * S::STRIDE - pad);
    tt_wait_previous();
    for (int c0 = 0; c0 < c.in_c; c0 += S::CK) {
        __syncthreads();
        load_tile<S, K16>(shared, in + c0, norm + 2 * c0, places);
        __syncthreads();
        tt_load_a(a, base, row_tile);
        uint32_t at = base;
#pragma unroll 1
        for (int ky = 0; ky < 3; ky++) {
#pragma unroll
            for (int i = 0; i < 3 * S::STEPS; i++) {
                const int next = i + 1;
                if (next == 3 * S::STEPS)
                    at += S::IW * S::PIXEL; /* behind the last row: read but not used */
                weight += 128;
                tt_load_b(b_next, weight);
                tt_step_load<K16>(acc, a, b, at + pixel_at<S>(0, next / S::STEPS % 3) + next % S::STEPS * 32,
                                  row_tile);
                b = b_next;
            }
        }
    }
    if (PROJ) {
        const int stride = c.proj_size / c.out_size;
        in = reinterpret_cast<const __half *>(c.proj_in) +
             (size_t)frame * c.proj_size * c.proj_size * c.proj_c;
        norm = c.proj_norm + (size_t)frame * c.proj_c * 2;
        for (int c0 = 0; c0 < c.proj_c; c0 += S::CK) {
            __syncthreads();
            load_centre<S, K16>(shared, in + c0, norm + 2 * c0, c.proj_size, c.proj_c, oy, ox, stride);
            __syncthreads();
#pragma unroll
            for (int i = 0; i < S::STEPS; i++) {
                tt_load_a(a, base + pixel_at<S>(1, 1) + i * 32, row_tile);
                weight += 128;
                tt_load_b(b_next, weight);
                tt_step<K16>(acc, a, b);
                b = b_next;
            }
        }
    }
    __syncthreads();
    store_block<S>(acc, c, shared, reinterpret_cast<float2 *>(shared + S::MAIN), wm, wn, oy, ox, n0);
}

/* Whether whole tiles, and whole chunks of channels, make the convolution. */
template <class S> bool fits(const struct tt_k_conv_f16 *c)
{
    return c->out_size % TW == 0 && c->out_size % S::TH == 0 && c->out_c % (64 * S::NW) == 0 &&
           c->in_c >= S::CK && c->in_c % S::CK == 0 && c->proj_c % S::CK == 0 &&
           c->in_size == c->out_size * S::STRIDE && (c->proj_c == 0 || S::STRIDE == 1);
}

template <class S, bool K16> cudaError_t launch(const struct tt_k_conv_f16 *c, void *stream)
{
    auto *kernel = c->proj_c ? conv_f16<S, S::STRIDE == 1, K16> : conv_f16<S, false, K16>;
    const cudaError_t e = fits<S>(c) ? tt_shared(kernel, S::BYTES) : cudaErrorInvalidValue;
    if (e != cudaSuccess)
        return e;
    const dim3 blocks(c->out_size / TW * (c->out_size / S::TH), c->out_c / (64 * S::NW), c->frames);
    return tt_launch(kernel, blocks, S::THREADS, S::BYTES, stream, *c);
}

struct tile {
    int pixels, chunk;
};
const tile tiles[TT_CONV_VARIANTS] = {{256, 32}, {128, 32}, {128, 32}, {256, 64}, {128, 64}};

} // namespace

extern "C" int tt_k_conv_f16_chunk(enum tt_k_conv_variant variant)
{
    return tiles[variant].chunk;
}

extern "C" int tt_k_conv_f16_tiles(enum tt_k_conv_variant variant, int out_size)
{
    return out_size * out_size / tiles[variant].pixels;
}

extern "C" int tt_k_conv_f16(const struct tt_k_conv_f16 *c, enum tt_k_mma mma, void *stream)
{
    const bool k16 = mma == TT_MMA_K16;
    if (c->variant == TT_CONV_S2_128x128_C32) {
        typedef shape<2, 2, 32, 2, 9> wide;
        return k16 ? launch<wide, true>(c, stream) : launch<wide, false>(c, stream);
    }
    if (!k16 && c->variant == TT_CONV_256x64_C32)
        return launch<shape<4, 1, 32, 1, 11>, false>(c, stream);
    if (!k16 && c->variant == TT_CONV_128x128_C32)
        return launch<shape<2, 2, 32, 1, 6>, false>(c, stream);
    if (k16 && c->variant == TT_CONV_256x64_C64)
        return launch<shape<4, 1, 64, 1, 11>, true>(c, stream);
    if (k16 && c->variant == TT_CONV_128x128_C64)
        return launch<shape<2, 2, 64, 1, 4>, true>(c, stream);
    return cudaErrorInvalidValue;
}

/* cuda/conv_f16.cu: 3×3 convolution on a T4's tensor cores (m16n8k8), FP16 storage, FP32 accumulation.
 *
 * Implicit GEMM over NHWC. A block makes 16 × (4·MW) output pixels × 64·NW channels with MW × NW warps of 64
 * × 64 each. Input channels go through shared memory in chunks of CK: the tile with its halo is loaded once,
 * normalised (FP32 scale, shift, ReLU; padding is zero after the ReLU), and read by ldmatrix once for each of
 * the nine taps. Stride 2 keeps even and odd columns apart, so that eight neighbouring output pixels are
 * neighbours in shared memory; a pixel takes 2·CK + 16 bytes there, which keeps ldmatrix free of bank
 * conflicts. A residual block's 1×1 projection is a last run of k over the block's own input (centre tap);
 * its identity shortcut is added in FP32 before rounding. The epilogue goes through shared memory for 16-byte
 * stores and sums the rounded outputs and their squares for the next instance norm: lanes by a butterfly,
 * warps in order. Shared memory: the larger of tile and 4.6 KB a warp, and 512·NW·MW bytes: at most 48.7 KB.
 * Sums run over (chunk, tap, channel), then the projection's channels, in order.
 */
#include "cuda/conv_f16.cuh"

namespace
{

/* BATCH: pieces that a thread has on their way at once. */
template <int MW, int NW, int CK_, int STRIDE, int BATCH_> struct shape : block_shape<MW, NW, STRIDE> {
    typedef block_shape<MW, NW, STRIDE> block;
    enum {
        CK = CK_,
        BATCH = BATCH_,
        PIXEL = 2 * CK + 16, /* bytes of a pixel in shared memory */
        GROUPS = CK / 8,     /* 16-byte pieces of a pixel */
        TILE = block::IH * block::IW * PIXEL,
        MAIN = TILE > block::STAGES ? TILE : block::STAGES,
        BYTES = MAIN + block::SUMS,
        STEPS = CK / 16,
        AHEAD = block::THREADS / GROUPS, /* pixels that the block loads at once */
    };
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

/* Loads rows × cols pixels of one chunk into shared memory: tile pixel (y, x) is image pixel
 * (top + step·y, left + step·x) and goes to tile position (y + shift, x + shift). in: of the frame and chunk.
 */
template <class S>
__device__ __forceinline__ void load_tile(unsigned char *shared, const __half *in, const float *norm,
                                          int size, int channels, int rows, int cols, int top, int left,
                                          int step, int shift)
{
    enum { BATCH = S::BATCH, AHEAD = S::AHEAD };
    const int group = threadIdx.x % S::GROUPS;
    affine<false> f;
    f.load(norm + group * 16);
    in += group * 8;
    const int pixels = rows * cols;
    for (int p0 = thread() / S::GROUPS; p0 < pixels; p0 += BATCH * AHEAD) {
        uint4 v[BATCH];
        bool inside[BATCH];
#pragma unroll
        for (int i = 0; i < BATCH; i++) {
            const int p = p0 + i * AHEAD, y = p / cols, x = p - y * cols;
            const int iy = top + step * y, ix = left + step * x;
            inside[i] = p < pixels && (unsigned)iy < (unsigned)size && (unsigned)ix < (unsigned)size;
            v[i] = make_uint4(0, 0, 0, 0);
            if (inside[i])
                v[i] = *reinterpret_cast<const uint4 *>(in + (size_t)(iy * size + ix) * channels);
        }
#pragma unroll
        for (int i = 0; i < BATCH; i++) {
            const int p = p0 + i * AHEAD, y = p / cols, x = p - y * cols;
            if (p < pixels)
                *reinterpret_cast<uint4 *>(shared + pixel_at<S>(y + shift, x + shift) + group * 16) =
                    inside[i] ? f(v[i]) : v[i];
        }
    }
}

template <class S, bool PROJ>
__global__ void __launch_bounds__(S::THREADS, S::THREADS == 128 ? 2 : 1)
    conv_f16(const struct tt_k_conv_f16 c)
{
    extern __shared__ __align__(16) unsigned char shared[];
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
    for (int c0 = 0; c0 < c.in_c; c0 += S::CK) {
        __syncthreads();
        load_tile<S>(shared, in + c0, norm + 2 * c0, c.in_size, c.in_c, S::IH, S::IW, oy * S::STRIDE - pad,
                     ox * S::STRIDE - pad, 1, 0);
        __syncthreads();
        tt_load_a(a, base, row_tile);
#pragma unroll 1
        for (int ky = 0; ky < 3; ky++) {
            const uint32_t at = base + ky * S::IW * S::PIXEL;
            const uint32_t below = ky < 2 ? at + S::IW * S::PIXEL : base; /* base: read but not used */
#pragma unroll
            for (int i = 0; i < 3 * S::STEPS; i++) {
                const int next = i + 1, kx = next / S::STEPS % 3, down = next / (3 * S::STEPS);
                weight += 128;
                tt_load_b(b_next, weight);
                tt_step_load<false>(
                    acc, a, b, (down ? below : at) + pixel_at<S>(0, kx) + next % S::STEPS * 32, row_tile);
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
            load_tile<S>(shared, in + c0, norm + 2 * c0, c.proj_size, c.proj_c, S::TH, TW, oy * stride,
                         ox * stride, stride, 1);
            __syncthreads();
#pragma unroll
            for (int i = 0; i < S::STEPS; i++) {
                tt_load_a(a, base + pixel_at<S>(1, 1) + i * 32, row_tile);
                weight += 128;
                tt_load_b(b_next, weight);
                tt_step<false>(acc, a, b);
                b = b_next;
            }
        }
    }
    __syncthreads();
    store_block<S>(acc, c, shared, reinterpret_cast<float2 *>(shared + S::MAIN), wm, wn, oy, ox, n0);
}

template <class S> cudaError_t launch(const struct tt_k_conv_f16 *c, void *stream)
{
    auto *kernel = c->proj_c ? conv_f16<S, S::STRIDE == 1> : conv_f16<S, false>;
    const cudaError_t e = fits<S>(c, S::CK, S::CK) ? tt_shared(kernel, S::BYTES) : cudaErrorInvalidValue;
    if (e != cudaSuccess)
        return e;
    const dim3 grid = blocks_of<S>(c);
    kernel<<<grid, S::THREADS, S::BYTES, (cudaStream_t)stream>>>(*c);
    return cudaGetLastError();
}

struct tile {
    int pixels, chunk;
};
const tile tiles[TT_CONV_VARIANTS] = {{256, 32}, {128, 32}, {128, 32}, {256, 16}, {128, 16}, {128, 16}};

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
    if (mma == TT_MMA_K16)
        return tt_k_conv_ring_f16(c, stream);
    switch (c->variant) {
    case TT_CONV_256x64_C32:
        return launch<shape<4, 1, 32, 1, 11>>(c, stream);
    case TT_CONV_128x128_C32:
        return launch<shape<2, 2, 32, 1, 6>>(c, stream);
    case TT_CONV_S2_128x128_C32:
        return launch<shape<2, 2, 32, 2, 9>>(c, stream);
    default:
        return cudaErrorInvalidValue;
    }
}

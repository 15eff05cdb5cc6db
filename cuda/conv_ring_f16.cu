/* cuda/conv_ring_f16.cu: 3×3 convolution on tensor cores whose operands come through rings in shared memory.
 *
 * Implicit GEMM over NHWC. A block makes 16 × (4·MW) output pixels × 64·NW channels with MW × NW warps of 64
 * × 64 each. Input channels come in chunks of 16; a stage is a kernel row of a chunk: three steps of 16 along
 * k. Weights of a stage (6 KB·NW, as pack.h lays them out) go to a ring of RING stages, the tile of a chunk
 * with its halo to one of two buffers, a pixel 32 bytes, whose halves change places where its number has bit
 * 2, so that ldmatrix is free of bank conflicts. Stride 2 keeps even and odd columns apart. One barrier a
 * stage, within its last step, whose operands are in registers by then: what the barrier frees is filled for
 * stage + RING at once, and the operands of the next stage are read behind it.
 *
 * Pieces arrive by cp.async and are normalised (FP32 scale and shift, ReLU; padding stays zero) in place by
 * the thread that fetched them, two stages later. A residual block's 1×1 projection is a last run of k over
 * the block's own input (centre tap). The epilogue is store_block (conv_f16.cuh). Shared memory: two tiles,
 * the ring, the norm (8 bytes a channel): at most 61.5 KB. For m16n8k16 and cp.async, which a T4 does not
 * have: conv_f16.cu is faster without them. Sums run over (chunk, tap, channel), then the projection's
 * channels, in order.
 */
#include "cuda/conv_f16.cuh"

namespace
{

enum { CK = 16, STEP = 128 }; /* STEP: 16-byte pieces of 64 columns of weights */

template <int MW, int NW, int STRIDE, int RING_> struct shape : block_shape<MW, NW, STRIDE> {
    typedef block_shape<MW, NW, STRIDE> block;
    enum {
        RING = RING_,
        TILE = block::IH * block::IW * 32,
        /* pieces of a tile that a thread takes */
        TURNS = (block::IH * block::IW * 2 + block::THREADS - 1) / block::THREADS,
        WEIGHTS = 3 * STEP * NW, /* pieces of a stage */
        SLOTS = 2 * TILE,        /* where the ring lies */
        NORM = SLOTS + RING * WEIGHTS * 16,
        PROJ_CK = 64, /* channels of a chunk of the projection */
        PROJ_PIXEL = 2 * PROJ_CK + 16,
        PROJ_GROUPS = PROJ_CK / 8,
    };
    static_assert(64 * MW * PROJ_PIXEL <= NORM, "the projection's tile fits");
    static_assert((int)block::STAGES + (int)block::SUMS <= NORM, "the epilogue fits");
};

/* What a thread brings: pieces threadIdx.x / 2 + turn · THREADS / 2 of each tile, half threadIdx.x % 2. */
template <class S> struct carrier {
    int offset[S::TURNS];     /* of a piece in the image, in halfs */
    unsigned inside, swapped; /* a bit a turn: not padding; halves change places */

    /* (top, left): the tile's first pixel */
    __device__ __forceinline__ void place(int size, int channels, int top, int left)
    {
        inside = swapped = 0;
#pragma unroll
        for (int i = 0; i < S::TURNS; i++) {
            const int p = threadIdx.x / 2 + i * (S::THREADS / 2), y = p / S::IW, at = p - y * S::IW;
            const int x = S::STRIDE == 1 ? at : at <= TW ? 2 * at : 2 * (at - TW - 1) + 1;
            const bool in = p < S::IH * S::IW && (unsigned)(top + y) < (unsigned)size &&
                            (unsigned)(left + x) < (unsigned)size;
            offset[i] = in ? ((top + y) * size + left + x) * channels + threadIdx.x % 2 * 8 : 0;
            inside |= (unsigned)in << i;
            swapped |= (unsigned)(at >> 2 & 1) << i;
        }
    }
    __device__ __forceinline__ bool has(int i) const
    {
        return (i + 1) * (S::THREADS / 2) <= S::IH * S::IW ||
               threadIdx.x / 2 + i * (S::THREADS / 2) < S::IH * S::IW;
    }
    __device__ __forceinline__ unsigned char *at(unsigned char *tile, int i) const
    {
        return tile + i * S::THREADS * 16 + threadIdx.x / 2 * 32 +
               ((threadIdx.x & 1) ^ (swapped >> i & 1)) * 16;
    }
    /* in: of the frame and chunk */
    __device__ __forceinline__ void fetch_tile(unsigned char *tile, const __half *in) const
    {
#pragma unroll
        for (int i = 0; i < S::TURNS; i++)
            if (has(i))
                tt_copy_async(at(tile, i), in + offset[i], inside >> i & 1);
    }
    /* Every second piece from `first` on; padding stays zero. norm: of the chunk. */
    __device__ __forceinline__ void normalise(unsigned char *tile, const float *norm, int first) const
    {
        affine<true> f;
        f.load(norm + threadIdx.x % 2 * 16);
#pragma unroll
        for (int i = first; i < S::TURNS; i += 2) {
            uint4 *to = reinterpret_cast<uint4 *>(at(tile, i));
            if (inside >> i & 1)
                *to = f(*to);
        }
    }
    /* from: of the block's first 64 columns and the stage; others lie `columns` pieces apart */
    __device__ __forceinline__ void fetch_weights(unsigned char *slot, const uint4 *from, int columns) const
    {
#pragma unroll
        for (int i = 0; i < S::WEIGHTS / S::THREADS; i++) {
            const int p = threadIdx.x + i * S::THREADS;
            tt_copy_async(slot + p * 16, from + p + (S::NW > 1 && p >= 3 * STEP ? columns - 3 * STEP : 0),
                          true);
        }
    }
};

/* Operands of a step in registers: all of A, of B the first or the second 32 columns, or both. */
struct operands {
    tt_frag_a a;
    uint4 b[4];

    __device__ __forceinline__ void columns(const unsigned char *from, int half)
    {
        b[2 * half] = *reinterpret_cast<const uint4 *>(from + half * 1024);
        b[2 * half + 1] = *reinterpret_cast<const uint4 *>(from + half * 1024 + 512);
    }
    __device__ __forceinline__ void multiply(tt_acc &acc, int i, int half) const
    {
#pragma unroll
        for (int j = 2 * half; j < 2 * half + 2; j++) {
            tt_mma<true>(acc[i][2 * j], a.r[i], b[j].x, b[j].y);
            tt_mma<true>(acc[i][2 * j + 1], a.r[i], b[j].z, b[j].w);
        }
    }
    /* The first half of a step, whose second half of B lies at `from`. */
    __device__ __forceinline__ void first(tt_acc &acc, const unsigned char *from)
    {
        columns(from, 1);
#pragma unroll
        for (int i = 0; i < 4; i++)
            multiply(acc, i, 0);
    }
    /* The second; then A and the first half of B are the next step's, at `next` and `from`. */
    __device__ __forceinline__ void second(tt_acc &acc, uint32_t next, uint32_t row,
                                           const unsigned char *from)
    {
        columns(from, 0);
#pragma unroll
        for (int i = 0; i < 4; i++) {
            multiply(acc, i, 1);
            tt_ldmatrix4(a.r[i], next + i * row);
        }
    }
};

/* The projection: tiles of 16 × TH pixels of PROJ_CK channels, weights from memory. */
template <class S>
__device__ __forceinline__ void project(tt_acc &acc, const struct tt_k_conv_f16 &c, unsigned char *shared,
                                        int oy, int ox)
{
    enum { PIECES = 64 * S::MW * S::PROJ_GROUPS / S::THREADS, BATCH = 8 };
    const int t = tt_thread(), lane = t % 32, wm = t / 32 % S::MW, group = t % S::PROJ_GROUPS;
    const int stride = c.proj_size / c.out_size, first = t / S::PROJ_GROUPS;
    const __half *in =
        reinterpret_cast<const __half *>(c.proj_in) +
        (((size_t)blockIdx.z * c.proj_size + oy * stride) * c.proj_size + ox * stride) * c.proj_c + group * 8;
    const float *norm = c.proj_norm + ((size_t)blockIdx.z * c.proj_c + group * 8) * 2;
    const uint32_t base = tt_shared_address(shared) + lane / 16 * 16 + (wm * 64 + lane % 16) * S::PROJ_PIXEL;
    const uint4 *weight =
        reinterpret_cast<const uint4 *>(c.weight) + lane +
        ((size_t)(blockIdx.y * S::NW + t / 32 / S::MW) * (9 * c.in_c + c.proj_c) + 9 * c.in_c) / 16 * STEP;
    tt_frag_a a;
    tt_frag_b b, next;
    tt_load_b(b, weight);
    for (int c0 = 0; c0 < c.proj_c; c0 += S::PROJ_CK) {
        affine<true> f;
        f.load(norm + 2 * c0);
        __syncthreads();
#pragma unroll 1
        for (int i0 = 0; i0 < PIECES; i0 += BATCH) {
            uint4 v[BATCH];
#pragma unroll
            for (int i = 0; i < BATCH; i++) {
                const int p = first + (i0 + i) * (S::THREADS / S::PROJ_GROUPS);
                v[i] = *reinterpret_cast<const uint4 *>(
                    in + c0 + (size_t)((p / TW * c.proj_size + p % TW) * stride) * c.proj_c);
            }
#pragma unroll
            for (int i = 0; i < BATCH; i++) {
                const int p = first + (i0 + i) * (S::THREADS / S::PROJ_GROUPS);
                *reinterpret_cast<uint4 *>(shared + p * S::PROJ_PIXEL + group * 16) = f(v[i]);
            }
        }
        __syncthreads();
#pragma unroll
        for (int i = 0; i < S::PROJ_CK / 16; i++) {
            tt_load_a(a, base + i * 32, TW * S::PROJ_PIXEL);
            weight += STEP;
            tt_load_b(next, weight);
            tt_step<true>(acc, a, b);
            b = next;
        }
    }
}

template <class S, bool PROJ>
__global__ void __launch_bounds__(S::THREADS, 2) conv_ring(const struct tt_k_conv_f16 c)
{
    extern __shared__ __align__(128) unsigned char shared[];
    tt_let_next();
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, wm = warp % S::MW, wn = warp / S::MW;
    const int across = c.out_size / TW, tile_y = blockIdx.x / across, tile_x = blockIdx.x - tile_y * across;
    const int oy = tile_y * S::TH, ox = tile_x * TW, frame = blockIdx.z, n0 = blockIdx.y * S::NW * 64;
    const int chunks = c.in_c / CK, columns = (9 * c.in_c + (PROJ ? c.proj_c : 0)) / 16 * STEP;
    const uint4 *const weight = reinterpret_cast<const uint4 *>(c.weight) + (size_t)(n0 / 64) * columns;
    const __half *in =
        reinterpret_cast<const __half *>(c.in) + (size_t)frame * c.in_size * c.in_size * c.in_c;
    float *norm = reinterpret_cast<float *>(shared + S::NORM);
    carrier<S> carry;
    carry.place(c.in_size, c.in_c, oy * S::STRIDE - (S::STRIDE == 1), ox * S::STRIDE - (S::STRIDE == 1));
    unsigned char *const ring = shared + S::SLOTS;
#pragma unroll
    for (int s = 0; s < S::RING; s++)
        carry.fetch_weights(ring + s * S::WEIGHTS * 16, weight + s * 3 * STEP, columns);
    tt_wait_previous();
    for (int i = threadIdx.x * 4; i < c.in_c * 2; i += S::THREADS * 4)
        tt_store4(norm + i, tt_load4(c.norm + (size_t)frame * c.in_c * 2 + i));
    carry.fetch_tile(shared, in);
    tt_commit();
#pragma unroll
    for (int s = 1; s < S::RING; s++) /* the groups that the loop counts */
        tt_commit();
    tt_wait<S::RING - 1>();
    __syncthreads();
    carry.normalise(shared, norm, 0);
    carry.normalise(shared, norm, 1);
    __syncthreads();

    /* this lane's row of A: pixel lane % 16 of image row 4·wm, half lane / 16 of a step, for each kx */
    uint32_t from[3];
#pragma unroll
    for (int kx = 0; kx < 3; kx++) {
        const int x = lane % 16 + (S::STRIDE == 1 ? kx : kx % 2 * (TW + 1) + kx / 2);
        from[kx] = tt_shared_address(shared) + (S::STRIDE * wm * 4 * S::IW + x) * 32 +
                   (lane / 16 ^ (x >> 2 & 1)) * 16;
    }
    enum { ROW = S::IW * 32, BETWEEN = S::STRIDE * ROW };
    const unsigned char *const own = ring + (wn * 3 * STEP + lane) * 16;
    tt_acc acc = {};
    operands now;
    tt_load_a(now.a, from[0], BETWEEN);
    now.columns(own, 0);
    int here = 0, there = S::TILE; /* the chunk's tile and the next one's */
    const uint4 *ahead = weight + S::RING * 3 * STEP;
#pragma unroll 1
    for (int chunk = 0; chunk < chunks; chunk++) {
        const bool more = chunk + 1 < chunks;
        const float *const norm_next = norm + (chunk + 1) * 2 * CK;
        in += more ? CK : 0;
#pragma unroll
        for (int ky = 0; ky < 3; ky++) {
            const int odd = S::RING == 2 ? (chunk + ky) % 2 : ky;
            const int slot = odd * S::WEIGHTS * 16, slot_next = (odd + 1) % S::RING * S::WEIGHTS * 16;
            if (ky == 2) {
                tt_wait<S::RING - 2>();
                if (more)
                    carry.normalise(shared + there, norm_next, 0);
            }
            now.first(acc, own + slot);
            now.second(acc, from[1] + here + ky * ROW, BETWEEN, own + slot + STEP * 16);
            if (ky == 2 && more)
                carry.normalise(shared + there, norm_next, 1);
            now.first(acc, own + slot + STEP * 16);
            now.second(acc, from[2] + here + ky * ROW, BETWEEN, own + slot + 2 * STEP * 16);
            now.first(acc, own + slot + 2 * STEP * 16);
            tt_wait<S::RING - 2>();
            __syncthreads();
            if (more || (S::RING == 2 && ky == 0)) /* not behind the last stage */
                carry.fetch_weights(ring + slot, ahead, columns);
            if (ky == 0 && more)
                carry.fetch_tile(shared + there, in);
            tt_commit();
            ahead += 3 * STEP;
            now.second(acc, ky < 2 ? from[0] + here + (ky + 1) * ROW : from[0] + there, BETWEEN,
                       own + slot_next);
        }
        const int swap = here;
        here = there, there = swap;
    }
    if (PROJ)
        project<S>(acc, c, shared, oy, ox);
    __syncthreads();
    store_block<S>(acc, c, shared, reinterpret_cast<float2 *>(shared + S::STAGES), wm, wn, oy, ox, n0);
}

template <class S> cudaError_t launch(const struct tt_k_conv_f16 *c, void *stream)
{
    auto *kernel = c->proj_c ? conv_ring<S, S::STRIDE == 1> : conv_ring<S, false>;
    const int bytes = S::NORM + 8 * c->in_c;
    const cudaError_t e = fits<S>(c, CK, S::PROJ_CK) ? tt_shared(kernel, bytes) : cudaErrorInvalidValue;
    if (e != cudaSuccess)
        return e;
    return tt_launch(kernel, blocks_of<S>(c), S::THREADS, bytes, stream, *c);
}

} // namespace

extern "C" int tt_k_conv_ring_f16(const struct tt_k_conv_f16 *c, void *stream)
{
    switch (c->variant) {
    case TT_CONV_RING_256x64:
        return launch<shape<4, 1, 1, 3>>(c, stream);
    case TT_CONV_RING_128x128:
        return launch<shape<2, 2, 1, 3>>(c, stream);
    case TT_CONV_RING_S2_128x128:
        return launch<shape<2, 2, 2, 2>>(c, stream);
    default:
        return cudaErrorInvalidValue;
    }
}

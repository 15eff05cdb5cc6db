/* cuda/embed_base_f16.cu: base's correlation embeddings: local 4D correlation and its encoder in one kernel,
 * so that no volume leaves the chip.
 *
 * A block takes a query point at a level and 16 frames, and goes down the 8 rows of the patches, as
 * embed_f16.cu does. Frames are columns of every product.
 * 1. Products of the 8 pixels of a row with the 49 support positions (rows; 64 with zeros): each warp two
 *    frames.
 * 2. Two rows of products, as halves, times a 16×8 matrix of bilinear weights give a row of seven
 *    neighbourhood positions, which goes to shared memory twice: [x][frame][support position] and
 *    [support position][frame][x].
 * 3. The first convolution (3×3, stride 2, 16 positions), accumulated row by row: four warps for each
 *    orientation, a quarter of the channels each, 128 sums a lane. Direct: a row of positions falls under one
 *    row of taps of one or two rows of encoder positions; its inputs are the support positions, three steps
 * of k and one channel. Transposed: the row's seven positions are inputs, half a step of k; each support
 *    position falls under one, two or four taps. What would meet the padding is left out.
 * After the last row the rest of the encoder as in encoder_base_f16.cuh, each orientation for itself.
 *
 * Shared memory: 64 KB; rows 29,568 bytes, support 1,024 + 128·C, in their place the convolutions' operands.
 * Sums: in the order of the rows; a frame's do not depend on the others. Loads are where they are for the
 * reason that embed_correlation_f16.cuh gives.
 */
#include "cuda/encoder_base_f16.cuh"
#include "cuda/patch_f16.cuh"

namespace
{

enum {
    WARPS = 8,
    FRAMES = 8 * N,
    AREA = 49,
    LINE = 144,                  /* of a frame's 64 products */
    COLUMN = FRAMES * LINE + 16, /* of a neighbourhood position */
    SPOT = FRAMES * 16 + 16,     /* of a support position */
    SPOTS_AT = SIDE * COLUMN,
    SUPPORT_AT = SPOTS_AT + AREA * SPOT,
    UNIT = 128,                         /* 16-byte words of 64 channels × 16 */
    KERNEL_ROW = 3 * 3 * UNIT + 3 * 64, /* of three taps: three steps, and the 49th channel */
    BYTES = 2 * MAPS
};

/* [16 positions][eight frames][..] of 16 channels */
typedef float sums[16][N][4];

/* Rounded, 64 rows of which those beyond the support are zeros, in an order of channels in which a lane's 16
 * bytes of a feature are four pairs of k. channels: 4 << bits. */
__device__ __forceinline__ void load_support(unsigned char *to, const float *support, int bits)
{
    enum { TURNS = 4 };
    const int channels = 4 << bits;
#pragma unroll 1
    for (int first = threadIdx.x; first < 64 << bits; first += 32 * WARPS * TURNS) {
        float4 v[TURNS];
#pragma unroll
        for (int k = 0; k < TURNS; k++) {
            const int i = first + k * 32 * WARPS;
            v[k] = tt_load4(support + min(i >> bits, AREA - 1) * channels + i % (1 << bits) * 4);
        }
#pragma unroll
        for (int k = 0; k < TURNS; k++) {
            const int i = first + k * 32 * WARPS, c = i % (1 << bits) * 4, q = c % 32 / 8, s = c % 8 / 4;
            unsigned char *at = to + (i >> bits) * pitch(channels) + (c / 32 * 32 + s * 16 + 2 * q) * 2;
            const bool there = i >> bits < AREA;
            *reinterpret_cast<uint32_t *>(at) = there ? tt_pack(v[k].x, v[k].y) : 0;
            *reinterpret_cast<uint32_t *>(at + 16) = there ? tt_pack(v[k].z, v[k].w) : 0;
        }
    }
}

/* A step of k of the four units of 16 support positions; address: of this lane's row of the first. */
template <bool K16>
__device__ __forceinline__ void support_step(float (&acc)[4][N][4], uint32_t address, int unit,
                                             const uint32_t (&b)[N][2])
{
#pragma unroll
    for (int u = 0; u < 4; u++) {
        uint32_t a[4];
        tt_ldmatrix4(a, address + u * unit);
#pragma unroll
        for (int j = 0; j < N; j++)
            tt_mma<K16>(acc[u][j], a, b[j][0], b[j][1]);
    }
}

/* Row y of the products as halves; address: of the support; b: its first 64 channels, then those of row y
 * + 1. */
template <bool K16>
__device__ __forceinline__ void products(uint32_t (&row)[N][4][2], pixels<N> (&b)[2], patch<N> &p,
                                         int channels, int size, uint32_t address, int y)
{
    const int unit = 16 * pitch(channels), lane = tt_thread() % 32;
    float acc[4][N][4] = {};
    address += lane % 16 * pitch(channels) + lane / 16 * 16;
#pragma unroll 1
    for (int c = 0; c < channels; c += 64) {
        const bool last = c + 64 == channels;
        advance(p, last ? 64 - channels : 64, last ? size * channels : 0, y);
#pragma unroll
        for (int i = 0; i < 2; i++) {
            const uint32_t even[N][2] = {{b[i].v[0].x, b[i].v[0].y}, {b[i].v[1].x, b[i].v[1].y}},
                           odd[N][2] = {{b[i].v[0].z, b[i].v[0].w}, {b[i].v[1].z, b[i].v[1].w}};
            support_step<K16>(acc, address + 2 * c + i * 64, unit, even);
            support_step<K16>(acc, address + 2 * c + i * 64 + 32, unit, odd);
            load(b[i], p, i);
            __syncwarp(); /* issued here */
        }
    }
#pragma unroll
    for (int j = 0; j < N; j++)
#pragma unroll
        for (int u = 0; u < 4; u++) {
            row[j][u][0] = tt_pack(acc[u][j][0], acc[u][j][1]);
            row[j][u][1] = tt_pack(acc[u][j][2], acc[u][j][3]);
        }
}

/* Bilinear weights on two rows of products; first: of this warp's frames. */
template <bool K16>
__device__ __forceinline__ void blend(unsigned char *shared, int first, const uint32_t (&above)[N][4][2],
                                      const uint32_t (&below)[N][4][2], const patch<N> &p, int y)
{
    const int g = threadIdx.x % 32 / 4, q = threadIdx.x % 4;
    unsigned char *column = shared + g * COLUMN + first * LINE + q * 4,
                  *spot = shared + SPOTS_AT + g * SPOT + first * 16 + q * 4;
#pragma unroll
    for (int j = 0; j < N; j++) {
        const uint32_t w0 = p.rows >> (9 * j + y) & 1 ? p.weight[j][0] : 0;
        const uint32_t w1 = p.rows >> (9 * j + y) & 2 ? p.weight[j][1] : 0;
#pragma unroll
        for (int u = 0; u < 4; u++) {
            const uint32_t a[4] = {above[j][u][0], above[j][u][1], below[j][u][0], below[j][u][1]};
            float v[4] = {};
            tt_mma<K16>(v, a, w0, w1);
#pragma unroll
            for (int h = 0; h < 2; h++) {
                const int eight = 2 * u + h;
                const uint32_t x = tt_pack(v[2 * h], v[2 * h + 1]);
                if (eight > AREA / 8)
                    continue;
                const uint32_t turned = tt_transpose(x);
                if (eight < AREA / 8 || g == 0)
                    *reinterpret_cast<uint32_t *>(spot + eight * 8 * SPOT + j * 16) = x;
                if (g < SIDE)
                    *reinterpret_cast<uint32_t *>(column + j * LINE + eight * 16) = turned;
            }
        }
    }
}

template <bool K16>
__device__ __forceinline__ void tap(float (&acc)[N][4], const uint4 &w, const uint32_t (&b)[4])
{
    const uint32_t a[4] = {w.x, w.y, w.z, w.w};
    tt_mma<K16>(acc[0], a, b[0], b[1]);
    tt_mma<K16>(acc[1], a, b[2], b[3]);
}
__device__ __forceinline__ void half_tap(float (&acc)[N][4], const uint2 &w, uint32_t b0, uint32_t b1)
{
    tt_mma_half(acc[0], w.x, w.y, b0);
    tt_mma_half(acc[1], w.x, w.y, b1);
}

__device__ __forceinline__ void load_taps(uint4 *w, const uint4 *weight)
{
#pragma unroll
    for (int kx = 0; kx < 3; kx++)
        w[kx] = weight[kx * UNIT];
}

/* Direct: a row of neighbourhood positions under a row of taps of encoder positions (PY, 0..3). weight: of
 * this row of taps, in w its first step; then, with MORE, that at `next`. eights: the 49th channels, of the
 * same row of taps. columns: of this lane's frame and eight elements. */
template <bool K16, int PY, bool MORE>
__device__ __forceinline__ void direct(sums &acc, uint4 (&w)[3], const uint4 *weight, const uint4 *next,
                                       const uint2 *eights, uint32_t columns, uint32_t last)
{
    uint2 e[3];
#pragma unroll
    for (int s = 0; s < 3; s++) {
        uint4 now[3];
#pragma unroll
        for (int kx = 0; kx < 3; kx++)
            now[kx] = w[kx];
        if (s < 2)
            load_taps(w, weight + (s + 1) * 3 * UNIT);
        else if (MORE)
            load_taps(w, next);
        if (s == 1)
#pragma unroll
            for (int kx = 0; kx < 3; kx++)
                e[kx] = eights[kx * UNIT];
        __syncwarp(); /* issued here */
#pragma unroll
        for (int x = 0; x < SIDE; x++) {
            uint32_t b[4];
            tt_ldmatrix4(b, columns + x * COLUMN + s * 32);
            if (x % 2 == 0) {
                tap<K16>(acc[PY * 4 + x / 2], now[1], b);
            } else {
                tap<K16>(acc[PY * 4 + x / 2 + 1], now[0], b);
                tap<K16>(acc[PY * 4 + x / 2], now[2], b);
            }
        }
    }
#pragma unroll
    for (int x = 0; x < SIDE; x += 2) {
        uint32_t b[4];
        tt_ldmatrix4(b, last + x * COLUMN); /* of the next position too */
        half_tap(acc[PY * 4 + x / 2], e[1], b[0], b[1]);
        if (x < SIDE - 1) {
            half_tap(acc[PY * 4 + x / 2 + 1], e[0], b[2], b[3]);
            half_tap(acc[PY * 4 + x / 2], e[2], b[2], b[3]);
        }
    }
}

/* Transposed: rows of support positions from ODD on, every other one, each position's seven inputs under its
 * taps, of the middle row or the outer ones. w: two taps of a word of 16 bytes. spots: of this lane's frame;
 * the next position's in lanes 16-31. */
template <int ODD> __device__ __forceinline__ void transposed(sums &acc, const uint4 (&w)[3], uint32_t spots)
{
#pragma unroll
    for (int sy = ODD; sy < SIDE; sy += 2) {
        uint32_t b[4];
#pragma unroll
        for (int sx = 0; sx < SIDE; sx++) {
            if (sx % 2 == 0)
                tt_ldmatrix4(b, spots + (sy * SIDE + sx) * SPOT);
#pragma unroll
            for (int t = 0; t < (ODD ? 6 : 3); t++) {
                const int oy = sy + 1 - (ODD ? t / 3 * 2 : 1), ox = sx + 1 - t % 3; /* doubled */
                const uint2 a =
                    t % 2 ? make_uint2(w[t / 2].z, w[t / 2].w) : make_uint2(w[t / 2].x, w[t / 2].y);
                if (ox % 2 == 0 && ox >= 0 && ox < 8)
                    half_tap(acc[oy / 2 * 4 + ox / 2], a, b[sx % 2 * 2], b[sx % 2 * 2 + 1]);
            }
        }
        __syncwarp(); /* no operands of the next row before here */
    }
}

/* The first convolution of one warp: its channels and lane of the weights, one orientation. */
struct first_conv {
    const unsigned char *weight, *eights;
    uint32_t columns, last, spots;
    int orientation;

    __device__ __forceinline__ const uint4 *taps(int ky) const
    {
        return reinterpret_cast<const uint4 *>(weight) + ky * KERNEL_ROW;
    }
    __device__ __forceinline__ const uint4 *inputs(int y) const
    {
        return reinterpret_cast<const uint4 *>(weight) + y * 5 * UNIT;
    }
    __device__ __forceinline__ void begin(uint4 (&w)[3], int y) const
    {
        if (orientation) {
            w[0] = inputs(y)[0];
            w[1] = inputs(y)[UNIT];
        } else {
            load_taps(w, taps(y % 2 ? 2 : 1));
        }
    }
    /* Row Y, which falls under the middle taps of one row of encoder positions or the outer ones of two. */
    template <bool K16, int Y> __device__ __forceinline__ void direct_row(sums &acc, uint4 (&w)[3]) const
    {
        const uint2 *e = reinterpret_cast<const uint2 *>(eights);
        if (Y % 2 == 0) {
            direct<K16, Y / 2, false>(acc, w, taps(1), NULL, e + KERNEL_ROW * 2, columns, last);
        } else {
            direct<K16, Y / 2, true>(acc, w, taps(2), taps(0), e + 2 * KERNEL_ROW * 2, columns, last);
            direct<K16, (Y + 1) / 2, false>(acc, w, taps(0), NULL, e, columns, last);
        }
    }
    template <bool K16> __device__ __forceinline__ void row(sums &acc, uint4 (&w)[3], int y) const
    {
        if (orientation) {
            uint4 outer[3];
            load_taps(outer, inputs(y) + 2 * UNIT);
            __syncwarp(); /* issued here */
            transposed<0>(acc, w, spots);
            transposed<1>(acc, outer, spots);
        } else if (y == 0)
            direct_row<K16, 0>(acc, w);
        else if (y == 1)
            direct_row<K16, 1>(acc, w);
        else if (y == 2)
            direct_row<K16, 2>(acc, w);
        else if (y == 3)
            direct_row<K16, 3>(acc, w);
        else if (y == 4)
            direct_row<K16, 4>(acc, w);
        else if (y == 5)
            direct_row<K16, 5>(acc, w);
        else
            direct_row<K16, 6>(acc, w);
    }
};

/* Found anew for each row, so that no registers are kept for it. */
__device__ __forceinline__ first_conv first_of(const struct tt_k_embed_base_level &l, uint32_t shared)
{
    const int thread = tt_thread(), lane = thread % 32, own = thread % 128; /* quarter and lane */
    const int orientation = thread / 128, frame = lane % 8 + lane / 8 % 2 * 8;
    const unsigned char *weight = (const unsigned char *)(orientation ? l.weight[1] : l.weight[0]);
    return {weight + own * 16,
            weight + 9 * UNIT * 16 + own * 8,
            shared + (lane % 8 + lane / 16 * 8) * LINE + lane / 8 % 2 * 16,
            shared + lane / 16 * COLUMN + frame * LINE + AREA / 8 * 16,
            shared + SPOTS_AT + lane / 16 * SPOT + frame * 16,
            orientation};
}

/* The sums of the first convolution of 16 channels. */
template <bool K16>
__device__ __forceinline__ void first_sums(sums &acc, unsigned char *shared,
                                           const struct tt_k_embed_base_level &l,
                                           const struct tt_k_embed_base_f16 &e)
{
    const int query = blockIdx.x, warp = threadIdx.x / 32;
    patch<N> p;
    pixels<N> b[2];
    place(p, l, e.state + (size_t)query * e.frames * 4, blockIdx.y * FRAMES + warp * N, e.frames);
    load(b[0], p, 0);
    load(b[1], p, 1);
    load_support(shared + SUPPORT_AT, l.support + (size_t)query * e.row,
                 l.channels == 64    ? 4
                 : l.channels == 128 ? 5
                                     : 6);
    __syncthreads();

    uint32_t above[N][4][2], below[N][4][2];
#pragma unroll 1
    for (int y = -1; y < SIDE; y++) {
        products<K16>(below, b, p, l.channels, l.size, tt_shared_address(shared) + SUPPORT_AT, y + 1);
        if (y >= 0) {
            const first_conv c = first_of(l, tt_shared_address(shared));
            uint4 w[3];
            c.begin(w, y);
            __syncthreads(); /* the row before has been read */
            blend<K16>(shared, tt_thread() / 32 * N, above, below, p, y);
            __syncthreads();
            c.row<K16>(acc, w, y);
        }
#pragma unroll
        for (int j = 0; j < N; j++)
#pragma unroll
            for (int u = 0; u < 4; u++)
                above[j][u][0] = below[j][u][0], above[j][u][1] = below[j][u][1];
    }
}

template <bool K16>
__global__ void __launch_bounds__(32 * WARPS, 1) embed_base(const struct tt_k_embed_base_f16 e)
{
    extern __shared__ __align__(16) unsigned char shared[];
    const struct tt_k_embed_base_level &l = e.level[blockIdx.z];
    const int lane = threadIdx.x % 32, orientation = threadIdx.x / 128, quarter = threadIdx.x / 32 % 4;
    const int channel = quarter * 32; /* of the second and third convolution */
    tt_let_next();
    tt_wait_previous();
    values *maps = reinterpret_cast<values *>(shared + orientation * MAPS) + lane;
    {
        sums acc = {};
        first_sums<K16>(acc, shared, l, e);
        normalise(acc, l.bias[0] + quarter * 16, l.gamma[0] + quarter * 16, l.beta[0] + quarter * 16);
        __syncthreads(); /* the last row has been read */
        put(maps + quarter * 32, acc, 4);
    }
    __syncthreads();
    {
        float acc[2][4][N][4] = {};
        second_conv<K16>(acc, maps,
                         (const uint4 *)l.weight2 + quarter / 2 * STEPS2 * 128 + quarter % 2 * 64 + lane);
        __syncthreads(); /* its operands give way to its results */
#pragma unroll
        for (int m = 0; m < 2; m++) {
            const int c = channel + m * 16;
            normalise(acc[m], l.bias[1] + c, l.gamma[1] + c, l.beta[1] + c);
            put(maps + (quarter * 2 + m) * 32, acc[m], 8);
        }
    }
    __syncthreads();
    float acc[2][1][N][4] = {};
    third_conv<K16>(acc, maps,
                    (const uint4 *)l.weight3 + quarter / 2 * STEPS3 * 128 + quarter % 2 * 64 + lane);
    const int first = blockIdx.y * FRAMES;
    third_norm(acc, l, channel,
               (__half *)l.out + ((size_t)blockIdx.x * e.frames + first) * e.out_row + orientation * OUT,
               e.out_row, e.frames - first);
}

} // namespace

extern "C" int tt_k_embed_base_f16(const struct tt_k_embed_base_f16 *e, enum tt_k_mma mma, void *stream)
{
    if (e->levels < 1 || e->levels > TT_K_EMBED_LEVELS || e->queries < 1 || e->frames < 1 || e->out_row % 2)
        return cudaErrorInvalidValue;
    for (int i = 0; i < e->levels; i++) {
        const int c = e->level[i].channels;
        if (c != 64 && c != 128 && c != 256)
            return cudaErrorInvalidValue;
    }
    const dim3 grid(e->queries, tt_div_up(e->frames, FRAMES), e->levels);
    cudaError_t error =
        mma == TT_MMA_K16 ? tt_shared(embed_base<true>, BYTES) : tt_shared(embed_base<false>, BYTES);
    if (error)
        return error;
    return tt_launch(mma == TT_MMA_K16 ? embed_base<true> : embed_base<false>, grid, 32 * WARPS, BYTES,
                     stream, *e);
}

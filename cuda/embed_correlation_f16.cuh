/* cuda/embed_correlation_f16.cuh: embed_f16.cu's first half: products of the patches with the support, and
 * the row of volumes that bilinear weights make of them.
 *
 * Who loads what, and when: ptxas moves a load behind all products that do not need it, to where it is
 * waited for in full, but not over a __syncwarp, nor what it loads from shared memory behind one to before
 * it. So features come by ordinary loads (not through __ldg) with a __syncwarp behind them, 128 channels
 * ahead (64 at C = 64), and the products' other operands, a step of k ahead, behind it.
 */
#ifndef TT_CUDA_EMBED_CORRELATION_F16_CUH
#define TT_CUDA_EMBED_CORRELATION_F16_CUH

#include "cuda/patch_f16.cuh"

namespace
{

enum {
    WARPS = 8,
    TILES = 3, /* of eight frames */
    FRAMES = 8 * TILES,
    AHEAD = 4,                    /* pieces of 32 channels that are loaded before they are needed */
    LINE = 144,                   /* of a frame's 64 products */
    COLUMN = FRAMES * LINE + 16,  /* of a neighbourhood position */
    VOLUME_BYTES = FRAMES * 1024, /* seven columns; later the second convolution's operands */
};

/* The support's position that row r stands for: unit r / 16 is encoder position (px, py); its first eight
 * elements fall under taps that all units have, in the order of tt_pack_embed_f16. */
__device__ __forceinline__ int position(int r)
{
    const int px = r / 32, py = r / 16 % 2, i = r % 16;
    const int own = (4 * py + i / 3) * SIDE + 4 * px + i % 3;
    const int right = (4 * py + i - 12) * SIDE + 3, below = 3 * SIDE + 4 * px + i - 9;
    return i < 9 ? own : i < 12 ? below : i < 15 ? right : 3 * SIDE + 3;
}

/* Rounded, and in an order of channels in which a lane's 16 bytes of a feature are four pairs of k. N loads
 * of a thread at a time, of 4 << bits channels. */
template <int N>
__device__ __forceinline__ void load_support(unsigned char *to, const float *support, int bits)
{
    const int channels = 4 << bits;
#pragma unroll 1
    for (int first = threadIdx.x; first < 64 << bits; first += 32 * WARPS * N) {
        float4 v[N];
#pragma unroll
        for (int k = 0; k < N; k++) {
            const int i = first + k * 32 * WARPS;
            v[k] = tt_load4(support + position(i >> bits) * channels + i % (1 << bits) * 4);
        }
#pragma unroll
        for (int k = 0; k < N; k++) {
            const int i = first + k * 32 * WARPS, c = i % (1 << bits) * 4, q = c % 32 / 8, s = c % 8 / 4;
            unsigned char *at = to + (i >> bits) * pitch(channels) + (c / 32 * 32 + s * 16 + 2 * q) * 2;
            *reinterpret_cast<uint32_t *>(at) = tt_pack(v[k].x, v[k].y);
            *reinterpret_cast<uint32_t *>(at + 16) = tt_pack(v[k].z, v[k].w);
        }
    }
}

/* A step of k of the four units. address: of this lane's row of unit 0; unit: bytes. */
__device__ __forceinline__ void load(uint32_t (&a)[4][4], uint32_t address, int unit)
{
#pragma unroll
    for (int u = 0; u < 4; u++)
        tt_ldmatrix4(a[u], address + u * unit);
}

/* 32 channels of the products. a: their first step, then that at `next`. */
template <bool K16>
__device__ __forceinline__ void multiply(float (&acc)[4][TILES][4], uint32_t (&a)[4][4],
                                         const pixels<TILES> &b, uint32_t address, uint32_t next, int unit)
{
    uint32_t second[4][4];
    load(second, address + 32, unit);
#pragma unroll
    for (int u = 0; u < 4; u++)
#pragma unroll
        for (int j = 0; j < TILES; j++)
            tt_mma<K16>(acc[u][j], a[u], b.v[j].x, b.v[j].y);
    load(a, next, unit);
#pragma unroll
    for (int u = 0; u < 4; u++)
#pragma unroll
        for (int j = 0; j < TILES; j++)
            tt_mma<K16>(acc[u][j], second[u], b.v[j].z, b.v[j].w);
}

/* N pieces of 32 channels of row y, `last` if its last. b: they, then the next N; a: their first step of k,
 * then that at `next`. */
template <bool K16, int N>
__device__ __forceinline__ void pieces(float (&acc)[4][TILES][4], uint32_t (&a)[4][4],
                                       pixels<TILES> (&b)[AHEAD], patch<TILES> &p, int channels, int size,
                                       uint32_t address, uint32_t next, bool last, int y)
{
    const int unit = 16 * pitch(channels);
    advance(p, last ? 32 * N - channels : 32 * N, last ? size * channels : 0, y);
#pragma unroll
    for (int i = 0; i < N; i++) {
        multiply<K16>(acc, a, b[i], address + i * 64, i < N - 1 ? address + i * 64 + 64 : next, unit);
        load(b[i], p, i);
        __syncwarp(); /* issued here */
    }
}

/* Row y of the products as halves; b: its first channels, then those of row y + 1. */
template <bool K16>
__device__ __forceinline__ void products(uint32_t (&row)[TILES][4][2], pixels<TILES> (&b)[AHEAD],
                                         patch<TILES> &p, int channels, int size, uint32_t address, int y)
{
    float acc[4][TILES][4] = {};
    uint32_t a[4][4];
    load(a, address, 16 * pitch(channels));
    if (channels == 64) {
        pieces<K16, 2>(acc, a, b, p, channels, size, address, address, true, y);
    } else {
#pragma unroll 1
        for (int c = 0; c < channels; c += 32 * AHEAD) {
            const bool last = c + 32 * AHEAD == channels;
            const uint32_t here = address + 2 * c;
            pieces<K16, AHEAD>(acc, a, b, p, channels, size, here, last ? address : here + 64 * AHEAD, last,
                               y);
        }
    }
#pragma unroll
    for (int j = 0; j < TILES; j++)
#pragma unroll
        for (int u = 0; u < 4; u++) {
            row[j][u][0] = tt_pack(acc[u][j][0], acc[u][j][1]);
            row[j][u][1] = tt_pack(acc[u][j][2], acc[u][j][3]);
        }
}

/* Bilinear weights on two rows of products. to: of this warp's first frame. The ninth elements of windows 1
 * and 2 are stored once more, behind the windows: an eighth of the direct convolution's steps less. */
template <bool K16>
__device__ __forceinline__ void blend(unsigned char *to, const uint32_t (&above)[TILES][4][2],
                                      const uint32_t (&below)[TILES][4][2], const patch<TILES> &p, int y)
{
    const int g = threadIdx.x % 32 / 4, q = threadIdx.x % 4;
#pragma unroll
    for (int j = 0; j < TILES; j++) {
        const uint32_t w0 = p.rows >> (9 * j + y) & 1 ? p.weight[j][0] : 0;
        const uint32_t w1 = p.rows >> (9 * j + y) & 2 ? p.weight[j][1] : 0;
#pragma unroll
        for (int u = 0; u < 4; u++) {
            const uint32_t a[4] = {above[j][u][0], above[j][u][1], below[j][u][0], below[j][u][1]};
            float v[4] = {};
            tt_mma<K16>(v, a, w0, w1);
#pragma unroll
            for (int h = 0; h < 2; h++) {
                const uint32_t x = tt_transpose(tt_pack(v[2 * h], v[2 * h + 1]));
                if (g < SIDE)
                    *reinterpret_cast<uint32_t *>(to + g * COLUMN + j * LINE + u * 32 + h * 16 + q * 4) = x;
                if (h && (u == 1 || u == 2) && q == 0 && g < SIDE)
                    *reinterpret_cast<uint16_t *>(to + g * COLUMN + j * LINE + 128 + (u - 1) * 2) =
                        (uint16_t)x;
            }
        }
    }
}

} // namespace

#endif

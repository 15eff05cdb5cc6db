/* cuda/stem_f16.cu: the first convolution on tensor cores: 7×7, stride 2, 3 -> 64 channels.
 *
 * A block of four warps makes 16 × 16 output pixels; its 37 × 37 input pixels go to shared memory as x -
 * 127.5, which FP16 holds exactly (the scale 2/255 is in the weights), padding as zero. The 21 values of a
 * kernel row are three pieces of 8 along k (the last three have weight zero), read as pairs straight from the
 * interleaved colours. Shared memory: 37 × 240 bytes and 18.4 KB of staging; 27.3 KB. Sums run over kernel
 * rows and k in order.
 */
#include "cuda/kernels.h"
#include "cuda/tile_f16.cuh"

namespace
{

enum { SIDE = 37, EIGHTS = 15, LINE = EIGHTS * 16, STEPS = 11, TILE = SIDE * LINE, SUMS = 4 * 64 * 8 };

/* Two of the bytes of x, less 127.5: as 1024 + byte first, which FP16 holds exactly too. */
__device__ __forceinline__ uint32_t centred(uint32_t x, uint32_t which)
{
    const uint32_t u = __byte_perm(x, 0x64646464u, which);
    const __half2 h = __hsub2(__hsub2(*reinterpret_cast<const __half2 *>(&u), __float2half2_rn(1024.0f)),
                              __float2half2_rn(127.5f));
    return *reinterpret_cast<const uint32_t *>(&h);
}

template <bool K16>
__global__ void __launch_bounds__(128, 2)
    stem(const uint8_t *rgb, const uint4 *weight, __half *out, float2 *partial, int size)
{
    __shared__ __align__(16) unsigned char shared[TILE + 4 * TT_STAGE_BYTES + SUMS];
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, half = size / 2, across = half / 16;
    const int oy = blockIdx.x / across * 16, ox = blockIdx.x % across * 16, frame = blockIdx.y;
    tt_let_next();
    tt_wait_previous();
    rgb += (size_t)frame * size * size * 3;
    /* eight values from two before the tile's first on: rows and their eights begin at multiples of eight */
    const uint8_t *from8 = rgb + (size_t)(2 * oy - 2) * size * 3 + 6 * ox - 8;
#pragma unroll 5
    for (int i = threadIdx.x; i < SIDE * EIGHTS; i += 128) {
        const int r = i / EIGHTS, c = (i - r * EIGHTS) * 8, y = 2 * oy - 2 + r, x = 6 * ox - 8 + c;
        const bool there = (unsigned)y < (unsigned)size && (unsigned)x < (unsigned)size * 3;
        uint2 v = make_uint2(0, 0);
        if (there)
            v = *reinterpret_cast<const uint2 *>(from8 + r * size * 3 + c);
        uint4 h = make_uint4(centred(v.x, 0x4140), centred(v.x, 0x4342), centred(v.y, 0x4140),
                             centred(v.y, 0x4342));
        *reinterpret_cast<uint4 *>(shared + r * LINE + c * 2) = there ? h : make_uint4(0, 0, 0, 0);
    }
    __syncthreads();
    /* this lane's pixel column lane / 4 (+ 8), values 2·(lane % 4) of each piece, in the warp's first row */
    const unsigned char *from = shared + 4 + warp * 8 * LINE + lane / 4 * 12 + lane % 4 * 4;
    tt_acc acc = {};
    weight += lane;
#pragma unroll 1
    for (int t = 0; t < STEPS; t += 3) /* three steps are two kernel rows */
#pragma unroll
        for (int s = 0; s < 3; s++) {
            if (t + s >= STEPS)
                break;
            tt_frag_a a;
            tt_frag_b b;
            tt_load_b(b, weight + (t + s) * 128);
#pragma unroll
            for (int i = 0; i < 4; i++)
#pragma unroll
                for (int h = 0; h < 2; h++) { /* the last piece, an eighth row, has weight zero */
                    const int row = 2 * (t / 3) + (2 * s + h) / 3;
                    const unsigned char *at = from + (2 * i + min(row, 6)) * LINE + (2 * s + h) % 3 * 16;
                    a.r[i][2 * h] = *reinterpret_cast<const uint32_t *>(at);
                    a.r[i][2 * h + 1] = *reinterpret_cast<const uint32_t *>(at + 8 * 12);
                }
            tt_step<K16>(acc, a, b);
        }
    const size_t line = (size_t)half * 64;
    float2 *sums = reinterpret_cast<float2 *>(shared + TILE + 4 * TT_STAGE_BYTES);
    tt_store_warp(acc, shared + TILE + warp * TT_STAGE_BYTES, sums + warp * 64,
                  out + ((size_t)frame * half + oy + warp * 4) * line + (size_t)ox * 64, nullptr, 64, line);
    __syncthreads();
    if (threadIdx.x < 64) {
        float2 total = sums[threadIdx.x];
        for (int i = 1; i < 4; i++)
            total.x += sums[i * 64 + threadIdx.x].x, total.y += sums[i * 64 + threadIdx.x].y;
        partial[((size_t)frame * gridDim.x + blockIdx.x) * 64 + threadIdx.x] = total;
    }
}

} // namespace

extern "C" int tt_k_stem_f16(const uint8_t *rgb, const uint16_t *weight, uint16_t *out, float *partial,
                             int frames, int size, enum tt_k_mma mma, void *stream)
{
    if (size % 32 || frames < 1)
        return cudaErrorInvalidValue;
    const dim3 grid(size / 32 * (size / 32), frames);
    return tt_launch(mma == TT_MMA_K16 ? stem<true> : stem<false>, grid, 128, 0, stream, rgb,
                     (const uint4 *)weight, (__half *)out, (float2 *)partial, size);
}

/* cuda/conv_f16.cuh: what the two 3×3 convolutions on tensor cores share: a block's tile, norm and ReLU of
 * what they read, and the epilogue.
 *
 * A block makes TW × TH output pixels × 64·NW channels with MW × NW warps of 64 pixels × 64 channels each;
 * warp MW·n + m has image rows 4·m to 4·m + 3 and channels 64·n to 64·n + 63. Blocks: x: tiles of a frame,
 * row by row; y: channels; z: frames.
 */
#ifndef TT_CUDA_CONV_F16_CUH
#define TT_CUDA_CONV_F16_CUH

#include "cuda/kernels.h"
#include "cuda/tile_f16.cuh"

namespace
{

enum { TW = 16 }; /* pixels of a tile's row */

template <int MW_, int NW_, int STRIDE_> struct block_shape {
    enum {
        MW = MW_,
        NW = NW_,
        STRIDE = STRIDE_,
        THREADS = 32 * MW * NW,
        TH = 4 * MW,                            /* rows of output pixels */
        IH = STRIDE == 1 ? TH + 2 : 2 * TH + 1, /* of input pixels, with the halo */
        IW = STRIDE == 1 ? TW + 2 : 2 * TW + 1,
        STAGES = MW * NW * TT_STAGE_BYTES, /* bytes of shared memory of the epilogue: staging */
        SUMS = MW * NW * 64 * 8,           /* and sums */
    };
};

/* Rounds max(a, 0) and max(b, 0) to FP16. FUSED: in one instruction, from sm_80 on. */
template <bool FUSED> __device__ __forceinline__ uint32_t pack_relu(float a, float b)
{
#if __CUDA_ARCH__ >= 800
    if (FUSED) {
        uint32_t r;
        asm("cvt.rn.relu.f16x2.f32 %0, %1, %2;" : "=r"(r) : "f"(b), "f"(a));
        return r;
    }
#endif
    return tt_pack(fmaxf(a, 0.0f), fmaxf(b, 0.0f));
}

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
        return pack_relu<FUSED>(fmaf(x.x, v[i].x, v[i].y), fmaf(x.y, v[i].z, v[i].w));
    }
    __device__ __forceinline__ uint4 operator()(uint4 u) const
    {
        return make_uint4(pair(u.x, 0), pair(u.y, 1), pair(u.z, 2), pair(u.w, 3));
    }
};

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

/* Whether whole tiles, and whole chunks of channels, make the convolution. */
template <class S> bool fits(const struct tt_k_conv_f16 *c, int chunk, int proj_chunk)
{
    return c->out_size % TW == 0 && c->out_size % S::TH == 0 && c->out_c % (64 * S::NW) == 0 &&
           c->in_c >= chunk && c->in_c % chunk == 0 && c->proj_c % proj_chunk == 0 &&
           c->in_size == c->out_size * S::STRIDE && (c->proj_c == 0 || S::STRIDE == 1);
}

template <class S> dim3 blocks_of(const struct tt_k_conv_f16 *c)
{
    return dim3(c->out_size / TW * (c->out_size / S::TH), c->out_c / (64 * S::NW), c->frames);
}

} // namespace

#endif

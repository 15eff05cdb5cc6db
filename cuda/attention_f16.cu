/* cuda/attention_f16.cu: attention over the frames of one query on tensor cores; FP16 in and out.
 *
 * The same function as attention.cu: softmax in FP32, what a head may not see is skipped. A block takes one
 * query and one head, a warp 16 query frames: scores (16 × frames) and outputs (16 × 64) stay in registers;
 * the softmax runs over four lanes by butterflies. Weights are rounded to FP16 before they multiply the
 * values, and divided by the sum of the unrounded ones afterwards. Shared memory: q, k, v, frames rounded up
 * to 16, rows of 144 bytes: 20.7 KB at 47 frames. Sums: channels and keys in order.
 */
#include "cuda/kernels.h"
#include "cuda/tile_f16.cuh"

#include <math.h>

namespace
{

enum { HEAD = 64, LINE = 2 * HEAD + 16, MAX_HEADS = 8 };

struct slopes {
    float of[MAX_HEADS];
};

__device__ __forceinline__ void ldmatrix4_transposed(uint32_t (&r)[4], uint32_t address)
{
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3}, [%4];"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
                 : "r"(address));
}

__device__ __forceinline__ float quad_max(float x)
{
    x = fmaxf(x, __shfl_xor_sync(0xffffffffu, x, 1));
    return fmaxf(x, __shfl_xor_sync(0xffffffffu, x, 2));
}
__device__ __forceinline__ float quad_sum(float x)
{
    x += __shfl_xor_sync(0xffffffffu, x, 1);
    return x + __shfl_xor_sync(0xffffffffu, x, 2);
}

/* TILES: frames / 16, rounded up. */
template <bool K16, int TILES>
__global__ void __launch_bounds__(32 * TILES)
    attention(const __half *qkv, __half *out, int frames, int heads, slopes slope)
{
    enum { FRAMES = 16 * TILES, MATRIX = FRAMES * LINE };
    __shared__ __align__(16) unsigned char shared[3 * MATRIX];
    const int head = blockIdx.x, warp = threadIdx.x / 32, lane = threadIdx.x % 32, g = lane / 4, q = lane % 4;
    const int width = heads * HEAD;
    const bool ahead = head >= heads / 2;
    qkv += (size_t)blockIdx.y * frames * 3 * width + head * HEAD;
    out += (size_t)blockIdx.y * frames * width + head * HEAD;
    for (int i = threadIdx.x; i < 3 * FRAMES * 8; i += 32 * TILES) {
        const int f = i / 24, part = i % 24 / 8, c = i % 8;
        uint4 v = make_uint4(0, 0, 0, 0);
        if (f < frames)
            v = *reinterpret_cast<const uint4 *>(qkv + ((size_t)f * 3 + part) * width + c * 8);
        *reinterpret_cast<uint4 *>(shared + part * MATRIX + f * LINE + c * 16) = v;
    }
    __syncthreads();
    const uint32_t base = tt_shared_address(shared);

    float s[2 * TILES][4] = {};
#pragma unroll
    for (int k = 0; k < HEAD; k += 16) {
        uint32_t a[4];
        tt_ldmatrix4(a, base + (warp * 16 + lane % 16) * LINE + lane / 16 * 16 + k * 2);
#pragma unroll
        for (int t = 0; t < TILES; t++) { /* keys 16t.. as columns: rows of k, two halves of k each */
            uint32_t b[4];
            tt_ldmatrix4(b, base + MATRIX + (t * 16 + lane / 16 * 8 + lane % 8) * LINE + lane / 8 % 2 * 16 +
                                k * 2);
            tt_mma<K16>(s[2 * t], a, b[0], b[1]);
            tt_mma<K16>(s[2 * t + 1], a, b[2], b[3]);
        }
    }
    float top[2] = {-INFINITY, -INFINITY}, total[2] = {0.0f, 0.0f};
#pragma unroll
    for (int t = 0; t < 2 * TILES; t++)
#pragma unroll
        for (int i = 0; i < 4; i++) {
            const int key = t * 8 + 2 * q + i % 2, frame = warp * 16 + g + i / 2 * 8;
            const int distance = ahead ? key - frame : frame - key;
            s[t][i] = distance >= 0 && key < frames ? fmaf(s[t][i], 0.125f, -slope.of[head] * (float)distance)
                                                    : -INFINITY;
            top[i / 2] = fmaxf(top[i / 2], s[t][i]);
        }
    uint32_t p[2 * TILES][2];
#pragma unroll
    for (int r = 0; r < 2; r++) {
        top[r] = quad_max(top[r]);
        top[r] = top[r] == -INFINITY ? 0.0f : top[r]; /* rows past the last frame */
#pragma unroll
        for (int t = 0; t < 2 * TILES; t++) {
            const float x = expf(s[t][2 * r] - top[r]), y = expf(s[t][2 * r + 1] - top[r]);
            total[r] += x + y;
            p[t][r] = tt_pack(x, y);
        }
        total[r] = quad_sum(total[r]);
    }
    float o[8][4] = {};
#pragma unroll
    for (int t = 0; t < TILES; t++) {
        const uint32_t a[4] = {p[2 * t][0], p[2 * t][1], p[2 * t + 1][0], p[2 * t + 1][1]};
#pragma unroll
        for (int c = 0; c < 4; c++) { /* channels 16c..: rows are keys, so transposed */
            uint32_t b[4];
            ldmatrix4_transposed(b,
                                 base + 2 * MATRIX + (t * 16 + lane % 16) * LINE + lane / 16 * 16 + c * 32);
            tt_mma<K16>(o[2 * c], a, b[0], b[1]);
            tt_mma<K16>(o[2 * c + 1], a, b[2], b[3]);
        }
    }
#pragma unroll
    for (int r = 0; r < 2; r++) {
        const int frame = warp * 16 + g + r * 8;
        if (frame < frames)
#pragma unroll
            for (int c = 0; c < 8; c++)
                *reinterpret_cast<uint32_t *>(out + (size_t)frame * width + c * 8 + 2 * q) =
                    tt_pack(o[c][2 * r] / total[r], o[c][2 * r + 1] / total[r]);
    }
}

template <bool K16>
cudaError_t launch(const __half *qkv, __half *out, int queries, int frames, int heads, cudaStream_t stream)
{
    if (frames < 1 || frames > 64 || heads > MAX_HEADS || heads % 2)
        return cudaErrorInvalidValue;
    slopes s = {};
    for (int i = 0; i < heads; i++)
        s.of[i] = (float)pow(24.0, -(double)(i % (heads / 2) + 1) / (heads / 2));
    const dim3 grid(heads, queries);
    switch ((frames + 15) / 16) {
    case 1:
        attention<K16, 1><<<grid, 32, 0, stream>>>(qkv, out, frames, heads, s);
        break;
    case 2:
        attention<K16, 2><<<grid, 64, 0, stream>>>(qkv, out, frames, heads, s);
        break;
    case 3:
        attention<K16, 3><<<grid, 96, 0, stream>>>(qkv, out, frames, heads, s);
        break;
    default:
        attention<K16, 4><<<grid, 128, 0, stream>>>(qkv, out, frames, heads, s);
    }
    return cudaGetLastError();
}

} // namespace

extern "C" int tt_k_attention_f16(const uint16_t *qkv, uint16_t *out, int queries, int frames, int heads,
                                  enum tt_k_mma mma, void *stream)
{
    const __half *in = (const __half *)qkv;
    __half *to = (__half *)out;
    return mma == TT_MMA_K16 ? launch<true>(in, to, queries, frames, heads, (cudaStream_t)stream)
                             : launch<false>(in, to, queries, frames, heads, (cudaStream_t)stream);
}

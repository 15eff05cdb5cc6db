/* cuda/attention.cu: attention over the frames of one query, FP32 arithmetic.
 *
 * Heads 0..h/2-1 look back (keys <= query frame), the others ahead; what a head may not see is skipped, not
 * biased. The ALiBi bias is slope·-distance, slope of head i of a half: 24^(-(i + 1) / (h / 2)).
 * A block of 128 threads takes one query and one head; a warp takes a query frame in turn: lanes hold the
 * scores of keys l and l + 32, then output channels l and l + 32. Sums: every fourth channel in order, then
 * the four; softmax by butterfly; keys in order. Shared memory: frames × (65 + 64) floats, 33 KB at 64
 * frames.
 */
#include "cuda/kernels.h"
#include "cuda/common.cuh"

#include <math.h>

namespace
{

enum { HEAD = 64, MAX_FRAMES = 64, MAX_HEADS = 8, LDK = HEAD + 1 };

struct slopes {
    float of[MAX_HEADS];
};

__global__ void __launch_bounds__(128)
    attention(const float *qkv, float *out, int frames, int heads, slopes slope)
{
    __shared__ float ks[MAX_FRAMES][LDK];
    __shared__ float vs[MAX_FRAMES][HEAD];
    const int head = blockIdx.x, warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    const int width = heads * HEAD;
    const bool ahead = head >= heads / 2;
    qkv += (size_t)blockIdx.y * frames * 3 * width + head * HEAD;
    out += (size_t)blockIdx.y * frames * width + head * HEAD;
    for (int i = threadIdx.x; i < frames * HEAD; i += 128) {
        const float *row = qkv + (size_t)(i / HEAD) * 3 * width + i % HEAD;
        ks[i / HEAD][i % HEAD] = row[width];
        vs[i / HEAD][i % HEAD] = row[2 * width];
    }
    __syncthreads();
    for (int f = warp; f < frames; f += 4) {
        const float *q = qkv + (size_t)f * 3 * width;
        float s[4] = {}, u[4] = {};
        const int k0 = min(lane, frames - 1), k1 = min(lane + 32, frames - 1);
#pragma unroll 4
        for (int c = 0; c < HEAD; c += 4) {
            const float4 v = tt_load4(q + c);
            s[0] = fmaf(v.x, ks[k0][c], s[0]), u[0] = fmaf(v.x, ks[k1][c], u[0]);
            s[1] = fmaf(v.y, ks[k0][c + 1], s[1]), u[1] = fmaf(v.y, ks[k1][c + 1], u[1]);
            s[2] = fmaf(v.z, ks[k0][c + 2], s[2]), u[2] = fmaf(v.z, ks[k1][c + 2], u[2]);
            s[3] = fmaf(v.w, ks[k0][c + 3], s[3]), u[3] = fmaf(v.w, ks[k1][c + 3], u[3]);
        }
        float s0 = (s[0] + s[1]) + (s[2] + s[3]), s1 = (u[0] + u[1]) + (u[2] + u[3]);
        const int d0 = ahead ? lane - f : f - lane, d1 = ahead ? lane + 32 - f : f - lane - 32;
        const bool see0 = d0 >= 0 && lane < frames, see1 = d1 >= 0 && lane + 32 < frames;
        s0 = see0 ? fmaf(s0, 0.125f, -slope.of[head] * (float)d0) : -INFINITY;
        s1 = see1 ? fmaf(s1, 0.125f, -slope.of[head] * (float)d1) : -INFINITY;
        float top = fmaxf(s0, s1);
#pragma unroll
        for (int i = 16; i > 0; i >>= 1)
            top = fmaxf(top, __shfl_xor_sync(0xffffffffu, top, i));
        const float e0 = see0 ? expf(s0 - top) : 0.0f, e1 = see1 ? expf(s1 - top) : 0.0f;
        const float total = tt_warp_sum(e0 + e1);
        float o0 = 0.0f, o1 = 0.0f;
        const int first = ahead ? f : 0, last = ahead ? frames - 1 : f;
        for (int k = first; k <= last; k++) {
            const float p = __shfl_sync(0xffffffffu, k < 32 ? e0 : e1, k % 32);
            o0 = fmaf(p, vs[k][lane], o0), o1 = fmaf(p, vs[k][lane + 32], o1);
        }
        out[(size_t)f * width + lane] = (o0 / total);
        out[(size_t)f * width + lane + 32] = (o1 / total);
    }
}

} // namespace

extern "C" int tt_k_attention_f32(const float *qkv, float *out, int queries, int frames, int heads,
                                  void *stream)
{
    if (frames < 1 || frames > MAX_FRAMES || heads > MAX_HEADS || heads % 2)
        return cudaErrorInvalidValue;
    slopes s = {};
    for (int i = 0; i < heads; i++)
        s.of[i] = (float)pow(24.0, -(double)(i % (heads / 2) + 1) / (heads / 2));
    attention<<<dim3(heads, queries), 128, 0, (cudaStream_t)stream>>>(qkv, out, frames, heads, s);
    return cudaGetLastError();
}

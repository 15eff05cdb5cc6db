/* cuda/mixer.cu: what the transformer reads and what its outputs change; one warp a row (query and frame).
 *
 * Everything here is FP32: positions, logits, layer norm. No shared memory; sums by butterfly.
 */
#include "cuda/kernels.h"
#include "cuda/common.cuh"

namespace
{

enum { MOTION = 770, SINES = MOTION + 4, COSINES = SINES + 40, END = COSINES + 40 };

__global__ void __launch_bounds__(128) state_init(const float4 *init, const int *query_frame,
                                                  const float2 *query_xy, float4 *state, int rows, int frames)
{
    const int i = blockIdx.x * 128 + threadIdx.x, q = i / frames;
    if (i >= rows || isnan(init[i].x))
        return;
    float4 s = init[i];
    if (query_frame[q] == i % frames)
        s.x = query_xy[q].x, s.y = query_xy[q].y;
    state[i] = s;
}

/* Column c of a row's tokens, outside the correlation embeddings. */
__device__ __forceinline__ float token(int c, float4 self, const float (&motion)[4])
{
    if (c < 2)
        return c ? self.w : self.z;
    if (c >= END)
        return 0.0f;
    const int part = (c - MOTION) % 4;
    const float m = part < 2 ? (part ? motion[1] : motion[0]) : (part == 2 ? motion[2] : motion[3]);
    if (c < SINES)
        return m;
    const int octave = (c - SINES) % 40 / 4;
    const float x = m * (float)(1 << octave);
    return sinf(c < COSINES ? x : x + 1.57079632679f);
}

template <class T>
__global__ void __launch_bounds__(128) tokens(const float4 *state, T *out, int rows, int frames)
{
    const int row = blockIdx.x * 4 + threadIdx.x / 32, lane = threadIdx.x % 32;
    if (row >= rows)
        return;
    const int frame = row % frames;
    const float4 self = state[row];
    float motion[4] = {};
    if (frame + 1 < frames) {
        const float4 next = state[row + 1];
        motion[0] = (self.x - next.x) * (1.0f / 256.0f), motion[1] = (self.y - next.y) * (1.0f / 256.0f);
    }
    if (frame > 0) {
        const float4 before = state[row - 1];
        motion[2] = (self.x - before.x) * (1.0f / 256.0f), motion[3] = (self.y - before.y) * (1.0f / 256.0f);
    }
    out += (size_t)row * TT_K_TOKEN;
    if (lane < 2)
        out[lane] = (T)token(lane, self, motion);
    for (int c = MOTION + lane; c < TT_K_TOKEN; c += 32)
        out[c] = (T)token(c, self, motion);
}

__global__ void __launch_bounds__(128)
    head(const float *h, const float *gamma, const float *beta, const float *weight, const float *bias,
         float4 *state, int rows, int width)
{
    const int row = blockIdx.x * 4 + threadIdx.x / 32, lane = threadIdx.x % 32;
    if (row >= rows)
        return;
    h += (size_t)row * width;
    float v[16], sum = 0.0f, square = 0.0f;
#pragma unroll
    for (int i = 0; i < 16; i++) {
        v[i] = lane + 32 * i < width ? h[lane + 32 * i] : 0.0f;
        sum += v[i];
    }
    const float mean = tt_warp_sum(sum) / (float)width;
#pragma unroll
    for (int i = 0; i < 16; i++) {
        const float d = lane + 32 * i < width ? v[i] - mean : 0.0f;
        square = fmaf(d, d, square);
    }
    const float scale = 1.0f / sqrtf(tt_warp_sum(square) / (float)width + 1e-5f);
    float o[4] = {};
#pragma unroll
    for (int i = 0; i < 16; i++) {
        const int c = lane + 32 * i;
        if (c < width) {
            const float x = fmaf((v[i] - mean) * scale, gamma[c], beta[c]);
#pragma unroll
            for (int k = 0; k < 4; k++)
                o[k] = fmaf(x, weight[k * width + c], o[k]);
        }
    }
#pragma unroll
    for (int k = 0; k < 4; k++)
        o[k] = tt_warp_sum(o[k]);
    if (lane == 0) {
        float4 s = state[row];
        s.x += o[0] + bias[0], s.y += o[1] + bias[1], s.z += o[2] + bias[2], s.w += o[3] + bias[3];
        state[row] = s;
    }
}

template <class T> int tokens_launch(const float *state, T *out, int queries, int frames, void *stream)
{
    const int rows = queries * frames;
    tokens<T><<<tt_div_up(rows, 4), 128, 0, (cudaStream_t)stream>>>((const float4 *)state, out, rows, frames);
    return cudaGetLastError();
}

} // namespace

extern "C" int tt_k_state_init(const float *init, const int *query_frame, const float *query_xy, float *state,
                               int queries, int frames, void *stream)
{
    const int rows = queries * frames;
    state_init<<<tt_div_up(rows, 128), 128, 0, (cudaStream_t)stream>>>(
        (const float4 *)init, query_frame, (const float2 *)query_xy, (float4 *)state, rows, frames);
    return cudaGetLastError();
}

extern "C" int tt_k_tokens_f32(const float *state, float *out, int queries, int frames, void *stream)
{
    return tokens_launch(state, out, queries, frames, stream);
}

extern "C" int tt_k_tokens_f16(const float *state, uint16_t *out, int queries, int frames, void *stream)
{
    return tokens_launch(state, (__half *)out, queries, frames, stream);
}

extern "C" int tt_k_head_f32(const float *h, const float *gamma, const float *beta, const float *weight,
                             const float *bias, float *state, int rows, int width, void *stream)
{
    if (width > 512)
        return cudaErrorInvalidValue;
    head<<<tt_div_up(rows, 4), 128, 0, (cudaStream_t)stream>>>(h, gamma, beta, weight, bias, (float4 *)state,
                                                               rows, width);
    return cudaGetLastError();
}

/* cuda/mixer.cu: what the transformer reads and what its outputs change; warps take rows (query and frame).
 *
 * Everything here is FP32: positions, logits, layer norm. No shared memory; sums by butterfly.
 */
#include "cuda/kernels.h"
#include "cuda/row.cuh"

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
    tt_let_next();
    tt_wait_previous();
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

/* A warp takes ROWS rows, two at a time. */
template <int WIDTH>
__global__ void __launch_bounds__(128) head(const float *h, const float *gamma, const float *beta,
                                            const float *weight, const float4 *bias, float4 *state, int rows)
{
    enum { ROWS = 8, BATCH = 2 };
    const int first = (blockIdx.x * 4 + threadIdx.x / 32) * ROWS;
    tt_row<WIDTH> w, s, out[4];
    w.load(gamma);
    s.load(beta);
#pragma unroll
    for (int k = 0; k < 4; k++)
        out[k].load(weight + k * WIDTH);
    const float4 b = *bias;
    tt_let_next();
    tt_wait_previous();
#pragma unroll 1
    for (int row = first; row < first + ROWS && row < rows; row += BATCH) {
        tt_row<WIDTH> r[BATCH];
#pragma unroll
        for (int i = 0; i < BATCH; i++)
            r[i].load(h + (size_t)min(row + i, rows - 1) * WIDTH);
#pragma unroll
        for (int i = 0; i < BATCH; i++) {
            r[i].normalise(w, s);
            const float x = r[i].dot(out[0]), y = r[i].dot(out[1]), z = r[i].dot(out[2]),
                        u = r[i].dot(out[3]);
            if (threadIdx.x % 32 == 0 && row + i < rows) {
                const float4 old = state[row + i];
                state[row + i] =
                    make_float4(old.x + (x + b.x), old.y + (y + b.y), old.z + (z + b.z), old.w + (u + b.w));
            }
        }
    }
}

template <class T> int tokens_launch(const float *state, T *out, int queries, int frames, void *stream)
{
    const int rows = queries * frames;
    return tt_launch(tokens<T>, dim3(tt_div_up(rows, 4)), 128, 0, stream, (const float4 *)state, out, rows,
                     frames);
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
    if (width != 256 && width != 384)
        return cudaErrorInvalidValue;
    return tt_launch(width == 256 ? head<256> : head<384>, dim3(tt_div_up(rows, 32)), 128, 0, stream, h,
                     gamma, beta, weight, (const float4 *)bias, (float4 *)state, rows);
}

/* cuda/norm.cu: instance, group, layer and L2 norms.
 *
 * Statistics are FP32 over at most 256 values and FP64 above that; every sum has a fixed order: lanes by a
 * butterfly, partial sums from first to last. Shared memory: 8 KB at most. Nothing fails but the launch.
 */
#include "cuda/features_f16.cuh"
#include "cuda/kernels.h"
#include "cuda/row.cuh"

namespace
{

/* Block: one chunk of 256 pixels × 64 channels of one frame. 16 lanes of pixels × 16 threads of 4 channels;
 * a thread sums its 16 pixels in order, then one thread a channel sums the 16 lanes in order. */
template <class T>
__global__ void __launch_bounds__(256) norm_partial(const T *in, float *partial, int pixels, int channels)
{
    __shared__ __align__(16) float sums[2][16][64];
    const int c4 = threadIdx.x % 16 * 4, lane = threadIdx.x / 16, frame = blockIdx.z;
    const int p0 = blockIdx.x * TT_K_NORM_CHUNK;
    in += ((size_t)frame * pixels + p0) * channels + blockIdx.y * 64 + c4;
    float4 s = make_float4(0, 0, 0, 0), q = s;
    for (int i = lane; i < TT_K_NORM_CHUNK && p0 + i < pixels; i += 16) {
        const float4 v = tt_load4(in + (size_t)i * channels);
        s.x += v.x, s.y += v.y, s.z += v.z, s.w += v.w;
        q.x = fmaf(v.x, v.x, q.x), q.y = fmaf(v.y, v.y, q.y);
        q.z = fmaf(v.z, v.z, q.z), q.w = fmaf(v.w, v.w, q.w);
    }
    tt_store4(&sums[0][lane][c4], s);
    tt_store4(&sums[1][lane][c4], q);
    __syncthreads();
    if (threadIdx.x < 128) {
        const int c = threadIdx.x / 2, which = threadIdx.x % 2;
        float total = 0.0f;
        for (int i = 0; i < 16; i++)
            total += sums[which][i][c];
        partial[(((size_t)frame * gridDim.x + blockIdx.x) * channels + blockIdx.y * 64 + c) * 2 + which] =
            total;
    }
}

/* Block: 64 channels of one frame. Four threads a channel sum every fourth chunk in order, then one of them
 * the four, in FP64. */
__global__ void __launch_bounds__(256)
    norm_finish(const float2 *partial, const float *gamma, const float *beta, float2 *norm, int chunks,
                int pixels, int channels, float epsilon)
{
    __shared__ double sums[4][64], squares[4][64];
    const int lane = threadIdx.x % 64, part = threadIdx.x / 64, c = blockIdx.x * 64 + lane,
              frame = blockIdx.y;
    double s = 0.0, q = 0.0;
    tt_let_next();
    tt_wait_previous();
#pragma unroll 4
    for (int i = part; i < chunks; i += 4) {
        const float2 v = partial[((size_t)frame * chunks + i) * channels + c];
        s += v.x, q += v.y;
    }
    sums[part][lane] = s, squares[part][lane] = q;
    __syncthreads();
    if (part)
        return;
    for (int i = 1; i < 4; i++)
        s += sums[i][lane], q += squares[i][lane];
    const double mean = s / pixels, variance = fmax(q / pixels - mean * mean, 0.0);
    const double scale = gamma[c] / sqrt(variance + epsilon);
    norm[(size_t)frame * channels + c] = make_float2((float)scale, (float)(beta[c] - mean * scale));
}

/* One warp a patch and group of 16 channels; two passes. */
__global__ void __launch_bounds__(128)
    group_norm(const float *in, const float *gamma, const float *beta, float2 *norm, int patches,
               int positions, int channels, float epsilon)
{
    const int groups = channels / 16, warp = blockIdx.x * 4 + threadIdx.x / 32, lane = threadIdx.x % 32;
    if (warp >= patches * groups)
        return;
    const int patch = warp / groups, c = (warp - patch * groups) * 16 + lane % 16;
    in += (size_t)patch * positions * channels + c;
    float sum = 0.0f;
    for (int i = lane / 16; i < positions; i += 2)
        sum += in[(size_t)i * channels];
    const float n = (float)(positions * 16), mean = tt_warp_sum(sum) / n;
    float square = 0.0f;
    for (int i = lane / 16; i < positions; i += 2) {
        const float d = in[(size_t)i * channels] - mean;
        square = fmaf(d, d, square);
    }
    const float scale = gamma[c] / sqrtf(tt_warp_sum(square) / n + epsilon);
    if (lane < 16)
        norm[(size_t)patch * channels + c] = make_float2(scale, fmaf(-mean, scale, beta[c]));
}

__global__ void __launch_bounds__(128) relu_mean(const float *in, const float2 *norm, float *out, int patches,
                                                 int per_group, int row, int positions, int channels)
{
    const int i = blockIdx.x * 128 + threadIdx.x;
    if (i >= patches * channels)
        return;
    const int patch = i / channels, c = i - patch * channels, group = patch / per_group;
    const float2 s = norm[i];
    float sum = 0.0f;
    for (int p = 0; p < positions; p++)
        sum += fmaxf(fmaf(in[((size_t)patch * positions + p) * channels + c], s.x, s.y), 0.0f);
    out[(size_t)(patch - group * per_group) * row + group * channels + c] = sum / (float)positions;
}

/* FP16 goes out as features_f16.cuh says. C / PIECE lanes a pixel, PIECE = 16 bytes of channels each; sums: a
 * lane's channels in order, then butterfly. */
template <class T, int C> __global__ void __launch_bounds__(256) l2(const T *in, T *out, int64_t pixels)
{
    enum { PIECE = 16 / sizeof(T), LANES = C / PIECE < 32 ? C / PIECE : 32, TURNS = C / PIECE / LANES };
    const int64_t pixel = ((int64_t)blockIdx.x * 256 + threadIdx.x) / LANES;
    const int channel = threadIdx.x % LANES * PIECE;
    const size_t at = (size_t)min(pixel, pixels - 1) * C + channel;
    /* rows are even: a pixel's number is as odd as its column */
    const size_t to = sizeof(T) == 2 ? at - channel + tt_feature_place(channel, (int)pixel) : at;
    struct __align__(16) piece
    {
        T v[PIECE];
    }
    x[TURNS];
    float sum = 0.0f;
    tt_let_next();
    tt_wait_previous();
#pragma unroll
    for (int t = 0; t < TURNS; t++) {
        x[t] = *reinterpret_cast<const piece *>(in + at + t * LANES * PIECE);
#pragma unroll
        for (int i = 0; i < PIECE; i++)
            sum = fmaf((float)x[t].v[i], (float)x[t].v[i], sum);
    }
#pragma unroll
    for (int i = 1; i < LANES; i *= 2)
        sum += __shfl_xor_sync(0xffffffffu, sum, i);
    const float scale = 1.0f / sqrtf(fmaxf(sum, 1e-12f));
    if (pixel >= pixels)
        return;
#pragma unroll
    for (int t = 0; t < TURNS; t++) {
#pragma unroll
        for (int i = 0; i < PIECE; i++)
            x[t].v[i] = (T)((float)x[t].v[i] * scale);
        *reinterpret_cast<piece *>(out + to + t * LANES * PIECE) = x[t];
    }
}

template <class T, int C> cudaError_t l2_start(const T *in, T *out, int64_t pixels, void *stream)
{
    const int64_t pieces = pixels * (C * (int)sizeof(T) / 16 < 32 ? C * (int)sizeof(T) / 16 : 32);
    return tt_launch(l2<T, C>, dim3((int)((pieces + 255) / 256)), 256, 0, stream, in, out, pixels);
}

template <class T> int l2_launch(const T *in, T *out, int64_t pixels, int channels, void *stream)
{
    if (channels == 64)
        return l2_start<T, 64>(in, out, pixels, stream);
    if (channels == 128)
        return l2_start<T, 128>(in, out, pixels, stream);
    return channels == 256 ? l2_start<T, 256>(in, out, pixels, stream) : cudaErrorInvalidValue;
}

/* One warp a row. */
template <int WIDTH>
__global__ void __launch_bounds__(128)
    layer_norm(const float *in, const float *gamma, const float *beta, float *out, int rows)
{
    const int row = blockIdx.x * 4 + threadIdx.x / 32;
    if (row >= rows)
        return;
    tt_row<WIDTH> r, w, s;
    r.load(in + (size_t)row * WIDTH);
    w.load(gamma);
    s.load(beta);
    r.normalise(w, s);
#pragma unroll
    for (int k = 0; k < WIDTH / 128; k++)
        tt_store4(out + (size_t)row * WIDTH + k * 128 + threadIdx.x % 32 * 4, r.v[k]);
}

} // namespace

template <class T>
static int norm_partial_launch(const T *in, float *partial, int frames, int pixels, int channels,
                               void *stream)
{
    if (channels % 64)
        return cudaErrorInvalidValue;
    const dim3 grid(tt_div_up(pixels, TT_K_NORM_CHUNK), channels / 64, frames);
    norm_partial<<<grid, 256, 0, (cudaStream_t)stream>>>(in, partial, pixels, channels);
    return cudaGetLastError();
}

extern "C" int tt_k_norm_partial_f32(const float *in, float *partial, int frames, int pixels, int channels,
                                     void *stream)
{
    return norm_partial_launch(in, partial, frames, pixels, channels, stream);
}

extern "C" int tt_k_norm_partial_f16(const uint16_t *in, float *partial, int frames, int pixels, int channels,
                                     void *stream)
{
    return norm_partial_launch((const __half *)in, partial, frames, pixels, channels, stream);
}

extern "C" int tt_k_norm_finish(const float *partial, const float *gamma, const float *beta, float *norm,
                                int frames, int chunks, int pixels, int channels, float epsilon, void *stream)
{
    if (channels % 64)
        return cudaErrorInvalidValue;
    return tt_launch(norm_finish, dim3(channels / 64, frames), 256, 0, stream, (const float2 *)partial, gamma,
                     beta, (float2 *)norm, chunks, pixels, channels, epsilon);
}

extern "C" int tt_k_group_norm_f32(const float *in, const float *gamma, const float *beta, float *norm,
                                   int patches, int positions, int channels, float epsilon, void *stream)
{
    if (channels % 16)
        return cudaErrorInvalidValue;
    group_norm<<<tt_div_up(patches * (channels / 16), 4), 128, 0, (cudaStream_t)stream>>>(
        in, gamma, beta, (float2 *)norm, patches, positions, channels, epsilon);
    return cudaGetLastError();
}

extern "C" int tt_k_relu_mean_f32(const float *in, const float *norm, float *out, int patches, int per_group,
                                  int row, int positions, int channels, void *stream)
{
    relu_mean<<<tt_div_up(patches * channels, 128), 128, 0, (cudaStream_t)stream>>>(
        in, (const float2 *)norm, out, patches, per_group, row, positions, channels);
    return cudaGetLastError();
}

extern "C" int tt_k_l2_f32(const float *in, float *out, int64_t pixels, int channels, void *stream)
{
    return l2_launch(in, out, pixels, channels, stream);
}

extern "C" int tt_k_l2_f16(const uint16_t *in, uint16_t *out, int64_t pixels, int channels, void *stream)
{
    return l2_launch((const __half *)in, (__half *)out, pixels, channels, stream);
}

extern "C" int tt_k_layer_norm_f32(const float *in, const float *gamma, const float *beta, float *out,
                                   int rows, int width, void *stream)
{
    cudaStream_t s = (cudaStream_t)stream;
    if (width == 256)
        layer_norm<256><<<tt_div_up(rows, 4), 128, 0, s>>>(in, gamma, beta, out, rows);
    else if (width == 384)
        layer_norm<384><<<tt_div_up(rows, 4), 128, 0, s>>>(in, gamma, beta, out, rows);
    else
        return cudaErrorInvalidValue;
    return cudaGetLastError();
}

/* cuda/sample.cu: 7×7 supports around query points, bilinear, clamped at the border.
 *
 * map_coordinates_3d with padding 'border' of the public code: a position is q·scale - 0.5 + offset, clamped
 * to [0, size - 1]; the frame is an integer. One block a query, a warp a support position in turn, lanes over
 * channels. The four products are added in the order (y0,x0), (y0,x1), (y1,x0), (y1,x1). No shared memory.
 */
#include "cuda/features_f16.cuh"
#include "cuda/kernels.h"

namespace
{

/* Channels c, even, and c + 1 of the pixel in column x. */
__device__ __forceinline__ float2 pair(const float *pixel, int c, int)
{
    return *reinterpret_cast<const float2 *>(pixel + c);
}
__device__ __forceinline__ float2 pair(const __half *pixel, int c, int x)
{
    return __half22float2(*reinterpret_cast<const __half2 *>(pixel + tt_feature_place(c, x)));
}

template <class T>
__global__ void __launch_bounds__(224) support(const T *grid, const int *frame, const float *xy, float *out,
                                               int row, int frames, int size, int channels, float scale)
{
    const int q = blockIdx.x, warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    tt_let_next();
    tt_wait_previous();
    const int f = min(max(frame[q], 0), frames - 1);
    const float top = (float)(size - 1);
    const float qx = xy[2 * q] * scale - 0.5f, qy = xy[2 * q + 1] * scale - 0.5f;
    grid += (size_t)f * size * size * channels;
    out += (size_t)q * row;
    for (int s = warp; s < 49; s += 7) {
        const float y = fminf(fmaxf(qy + (float)(s / 7 - 3), 0.0f), top);
        const float x = fminf(fmaxf(qx + (float)(s % 7 - 3), 0.0f), top);
        const int y0 = (int)y, x0 = (int)x, y1 = min(y0 + 1, size - 1), x1 = min(x0 + 1, size - 1);
        const float fy = y - (float)y0, fx = x - (float)x0;
        const float w00 = (1.0f - fy) * (1.0f - fx), w01 = (1.0f - fy) * fx, w10 = fy * (1.0f - fx),
                    w11 = fy * fx;
        for (int c = lane * 2; c < channels; c += 64) {
            const float2 a = pair(grid + (size_t)(y0 * size + x0) * channels, c, x0);
            const float2 b = pair(grid + (size_t)(y0 * size + x1) * channels, c, x1);
            const float2 d = pair(grid + (size_t)(y1 * size + x0) * channels, c, x0);
            const float2 e = pair(grid + (size_t)(y1 * size + x1) * channels, c, x1);
            *reinterpret_cast<float2 *>(out + (size_t)s * channels + c) =
                make_float2(((w00 * a.x + w01 * b.x) + w10 * d.x) + w11 * e.x,
                            ((w00 * a.y + w01 * b.y) + w10 * d.y) + w11 * e.y);
        }
    }
}

template <class T> int launch(const struct tt_k_support *s, void *stream)
{
    if (s->channels % 2)
        return cudaErrorInvalidValue;
    return tt_launch(support<T>, dim3(s->queries), 224, 0, stream, (const T *)s->grid, s->frame, s->xy,
                     s->out, s->row, s->frames, s->size, s->channels, s->scale);
}

} // namespace

extern "C" int tt_k_support_f32(const struct tt_k_support *s, void *stream)
{
    return launch<float>(s, stream);
}

extern "C" int tt_k_support_f16(const struct tt_k_support *s, void *stream)
{
    return launch<__half>(s, stream);
}

/* tests/kernels/ceilings.cu: see ceilings.h. Results are added to a sink so that nothing is optimised away.
 */
#include "tests/kernels/ceilings.h"

#include "cuda/tile_f16.cuh"

namespace
{

/* 16 accumulators of 16 × 8; one step is 16 products with k = 16. */
template <bool K16> __global__ void mma_loop(float *sink, int steps)
{
    float c[16][4] = {};
    const uint32_t seed = threadIdx.x * 0x01010101u & 0x03ff03ffu;
    uint32_t a[4] = {seed | 0x30003000u, seed | 0x2c003000u, seed | 0x30002c00u, seed | 0x28002800u};
    const uint32_t b0 = seed | 0x2c002c00u, b1 = seed | 0xac003000u;
    for (int s = 0; s < steps; s++)
#pragma unroll
        for (int i = 0; i < 16; i++)
            tt_mma<K16>(c[i], a, b0, b1);
    float sum = 0.0f;
#pragma unroll
    for (int i = 0; i < 16; i++)
        sum += c[i][0] + c[i][1] + c[i][2] + c[i][3];
    if (sum == 12345.0f)
        *sink = sum;
}

/* As conv_f16's inner loop, on a window of 18 KB of shared memory and 32 KB of packed weights. */
template <bool K16>
__global__ void __launch_bounds__(128, 2) tile_loop(const uint4 *packed, float *sink, int steps)
{
    __shared__ __align__(16) unsigned char shared[18432];
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    for (int i = threadIdx.x; i < 18432 / 16; i += blockDim.x)
        reinterpret_cast<uint4 *>(shared)[i] = packed[i];
    __syncthreads();
    const uint32_t base = tt_shared_address(shared) + (lane % 16) * 144 + lane / 16 * 16;
    tt_acc acc = {};
    tt_frag_a a;
    tt_frag_b b, b_next;
    tt_load_a(a, base, 2304);
    tt_load_b(b, packed + lane);
#pragma unroll 1
    for (int s = 0; s < steps; s += 4) {
#pragma unroll
        for (int i = 0; i < 4; i++) {
            const int next = s + i + 1;
            tt_load_b(b_next, packed + (next % 16) * 128 + lane);
            tt_step_load<K16>(acc, a, b, base + ((warp + s / 4) % 4) * 2304 + (i + 1) % 4 * 32, 2304);
            b = b_next;
        }
    }
    float sum = 0.0f;
    for (int i = 0; i < 128; i++)
        sum += (&acc[0][0][0])[i];
    if (sum == 12345.0f)
        *sink = sum;
}

template <bool K16>
__global__ void __launch_bounds__(128, 2) shared_loop(const uint4 *packed, float *sink, int steps)
{
    __shared__ __align__(16) unsigned char shared[2 * 18432];
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    for (int i = threadIdx.x; i < 2 * 18432 / 16; i += blockDim.x)
        reinterpret_cast<uint4 *>(shared)[i] = packed[i];
    __syncthreads();
    const uint32_t base = tt_shared_address(shared) + (lane % 16) * 144 + lane / 16 * 16;
    tt_acc acc = {};
    tt_frag_a a, a_next, b, b_next;
    tt_load_a(a, base, 2304);
    tt_load_a(b, base + 18432, 2304);
#pragma unroll 1
    for (int s = 0; s < steps; s += 4) {
#pragma unroll
        for (int i = 0; i < 4; i++) {
            const uint32_t at = base + ((warp + s / 4) % 4) * 2304 + (i + 1) % 4 * 32;
            tt_load_a(a_next, at, 2304);
            tt_load_a(b_next, base + 9216 + (i + 1) % 4 * 32, 2304);
#pragma unroll
            for (int j = 0; j < 4; j++)
#pragma unroll
                for (int k = 0; k < 4; k++) {
                    tt_mma<K16>(acc[k][2 * j], a.r[k], b.r[j][0], b.r[j][2]);
                    tt_mma<K16>(acc[k][2 * j + 1], a.r[k], b.r[j][1], b.r[j][3]);
                }
            a = a_next, b = b_next;
        }
    }
    float sum = 0.0f;
    for (int i = 0; i < 128; i++)
        sum += (&acc[0][0][0])[i];
    if (sum == 12345.0f)
        *sink = sum;
}

__global__ void ffma_loop(float *sink, int steps)
{
    float c[32], a = (float)threadIdx.x * 1e-3f, b = 0.999f;
#pragma unroll
    for (int i = 0; i < 32; i++)
        c[i] = a + (float)i;
    for (int s = 0; s < steps; s++)
#pragma unroll
        for (int i = 0; i < 32; i++)
            c[i] = fmaf(c[i], b, a);
    float sum = 0.0f;
#pragma unroll
    for (int i = 0; i < 32; i++)
        sum += c[i];
    if (sum == 12345.0f)
        *sink = sum;
}

__global__ void __launch_bounds__(256) copy(uint4 *to, const uint4 *from, size_t n)
{
    const size_t step = (size_t)gridDim.x * 256;
    for (size_t i = (size_t)blockIdx.x * 256 + threadIdx.x; i < n; i += step * 4) {
        uint4 v[4];
#pragma unroll
        for (int k = 0; k < 4; k++)
            if (i + k * step < n)
                v[k] = from[i + k * step];
#pragma unroll
        for (int k = 0; k < 4; k++)
            if (i + k * step < n)
                to[i + k * step] = v[k];
    }
}

__device__ __forceinline__ uint32_t hash(uint32_t x)
{
    x ^= x >> 16, x *= 0x7feb352du, x ^= x >> 15, x *= 0x846ca68bu;
    return x ^ x >> 16;
}
template <class T> __global__ void fill(T *x, size_t n, float scale, uint32_t seed)
{
    for (size_t i = (size_t)blockIdx.x * blockDim.x + threadIdx.x; i < n; i += (size_t)gridDim.x * blockDim.x)
        x[i] = (T)(scale * ((float)(hash((uint32_t)i ^ seed * 0x9e3779b9u) >> 8) / 8388608.0f - 1.0f));
}
__global__ void fill_bytes(uint8_t *x, size_t n, uint32_t seed)
{
    for (size_t i = (size_t)blockIdx.x * blockDim.x + threadIdx.x; i < n; i += (size_t)gridDim.x * blockDim.x)
        x[i] = (uint8_t)hash((uint32_t)i ^ seed * 0x9e3779b9u);
}

} // namespace

extern "C" double ceiling_run(enum ceiling which, int blocks, int warps, int steps, const void *packed,
                              float *sink, void *stream)
{
    cudaStream_t s = (cudaStream_t)stream;
    const uint4 *p = (const uint4 *)packed;
    const double per_warp = (double)steps * blocks * warps;
    const bool k16 = which == CEILING_MMA_K16 || which == CEILING_TILE_K16 || which == CEILING_SHARED_K16;
    if (k16 && !KERN_K16)
        return 0.0;
    switch (which) {
    case CEILING_MMA_K8:
        mma_loop<false><<<blocks, 32 * warps, 0, s>>>(sink, steps);
        return per_warp * 16 * 2 * 16 * 8 * 16;
    case CEILING_MMA_K16:
        mma_loop<true><<<blocks, 32 * warps, 0, s>>>(sink, steps);
        return per_warp * 16 * 2 * 16 * 8 * 16;
    case CEILING_TILE_K8:
        tile_loop<false><<<blocks, 32 * warps, 0, s>>>(p, sink, steps);
        return per_warp * 2 * 64 * 64 * 16;
    case CEILING_TILE_K16:
        tile_loop<true><<<blocks, 32 * warps, 0, s>>>(p, sink, steps);
        return per_warp * 2 * 64 * 64 * 16;
    case CEILING_SHARED_K8:
        shared_loop<false><<<blocks, 32 * warps, 0, s>>>(p, sink, steps);
        return per_warp * 2 * 64 * 64 * 16;
    case CEILING_SHARED_K16:
        shared_loop<true><<<blocks, 32 * warps, 0, s>>>(p, sink, steps);
        return per_warp * 2 * 64 * 64 * 16;
    case CEILING_FFMA:
        ffma_loop<<<blocks, 32 * warps, 0, s>>>(sink, steps);
        return per_warp * 32 * 32 * 2;
    default:
        return 0.0;
    }
}

extern "C" const char *ceiling_name(enum ceiling which)
{
    static const char *const names[CEILINGS] = {"mma m16n8k8, registers",
                                                "mma m16n8k16, registers",
                                                "warp tile, A ldmatrix, B L1, k8",
                                                "warp tile, A ldmatrix, B L1, k16",
                                                "warp tile, A and B ldmatrix, k8",
                                                "warp tile, A and B ldmatrix, k16",
                                                "FFMA, registers"};
    return names[which];
}

extern "C" int ceiling_copy(void *to, const void *from, size_t bytes, void *stream)
{
    copy<<<132 * 8, 256, 0, (cudaStream_t)stream>>>((uint4 *)to, (const uint4 *)from, bytes / 16);
    return cudaGetLastError();
}

extern "C" int fill_f32(float *x, size_t n, float scale, uint32_t seed, void *stream)
{
    fill<<<1024, 256, 0, (cudaStream_t)stream>>>(x, n, scale, seed);
    return cudaGetLastError();
}

extern "C" int fill_f16(uint16_t *x, size_t n, float scale, uint32_t seed, void *stream)
{
    fill<<<1024, 256, 0, (cudaStream_t)stream>>>((__half *)x, n, scale, seed);
    return cudaGetLastError();
}

extern "C" int fill_u8(uint8_t *x, size_t n, uint32_t seed, void *stream)
{
    fill_bytes<<<1024, 256, 0, (cudaStream_t)stream>>>(x, n, seed);
    return cudaGetLastError();
}

/* tests/kernels/emulate/cuda/common.cuh: stands in for cuda/common.cuh where a kernel's source is compiled
 * for the CPU (emulate.h): the same functions, with the language's extensions as macros.
 */
#ifndef TT_CUDA_COMMON_CUH
#define TT_CUDA_COMMON_CUH

#include <vector_functions.h>

#include <cuda_fp16.h>
#include <cuda_runtime_api.h>

#include "tests/kernels/emulate/emulate.h"

#include <algorithm>
#include <math.h>
#include <stdint.h>
#include <string.h>

#undef __global__
#undef __device__
#undef __shared__
#undef __forceinline__
#undef __launch_bounds__
#undef __align__
#define __global__ static
#define __device__
#define __shared__      static /* blocks run one after another */
#define __forceinline__ inline
#define __launch_bounds__(...)
#define __align__(n)                __attribute__((aligned(n)))
#define threadIdx                   emulate_thread
#define blockIdx                    emulate_block
#define gridDim                     emulate_grid
#define __syncthreads               emulate_syncthreads
#define __shfl_xor_sync(mask, x, i) emulate_shuffle(x, i)

using std::max;
using std::min;

static inline void __syncwarp()
{
    emulate_shuffle(0u, 0);
}

static inline float rsqrtf(float x)
{
    return 1.0f / sqrtf(x);
}

template <class T> static inline T __ldg(const T *p)
{
    emulate_counts.weights += sizeof(T) == 16;
    return *p;
}

enum { TT_SHARED_LIMIT = 65536 };

static inline int tt_div_up(int a, int b)
{
    return (a + b - 1) / b;
}

template <class K> static inline cudaError_t tt_shared(K *, size_t bytes)
{
    return bytes > TT_SHARED_LIMIT ? cudaErrorInvalidConfiguration : cudaSuccess;
}

static inline void tt_wait_previous()
{
}
static inline void tt_let_next()
{
}

template <class... P, class... A>
static inline cudaError_t tt_launch(void (*kernel)(P...), dim3 grid, int threads, size_t bytes, void *,
                                    A... arguments)
{
    emulate_launch(grid, threads, bytes, [=] { kernel(arguments...); });
    return cudaSuccess;
}

static inline float tt_reciprocal(float x)
{
    return 1.0f / x;
}

static inline float tt_power_of_2(float x)
{
    return exp2f(x);
}

static inline uint32_t tt_transpose(uint32_t x)
{
    return emulate_transpose(x);
}

static inline int tt_thread()
{
    return (int)threadIdx.x;
}

static inline void tt_flip_64(unsigned &p)
{
    p ^= 64;
}

static inline void tt_barrier(int number, int threads)
{
    emulate_barrier(number, threads);
}

static inline float tt_gelu(float x)
{
    return 0.5f * x * (1.0f + erff(x * 0.70710678118654752f));
}

static inline float tt_warp_sum(float x)
{
    for (int i = 16; i > 0; i >>= 1)
        x += emulate_shuffle(x, i);
    return x;
}

static inline float tt_column_sum(float x)
{
    for (int i = 4; i < 32; i *= 2)
        x += emulate_shuffle(x, i);
    return x;
}

static inline float4 tt_load4(const float *p)
{
    return *reinterpret_cast<const float4 *>(p);
}

static inline void tt_store4(float *p, float4 v)
{
    *reinterpret_cast<float4 *>(p) = v;
}

static inline uint32_t tt_pack(float a, float b)
{
    const __half2 h = __floats2half2_rn(a, b);
    uint32_t u;
    memcpy(&u, &h, sizeof(u));
    return u;
}

template <bool> static inline uint32_t tt_pack_relu(float a, float b)
{
    return tt_pack(a > 0.0f ? a : 0.0f, b > 0.0f ? b : 0.0f);
}

static inline float2 tt_unpack(uint32_t u)
{
    __half2 h;
    memcpy(&h, &u, sizeof(h));
    return __half22float2(h);
}

static inline uint32_t tt_shared_address(const void *p)
{
    return (uint32_t)((const unsigned char *)p - emulate_shared);
}

static inline void tt_ldmatrix4(uint32_t (&r)[4], uint32_t address)
{
    emulate_ldmatrix4(r, address);
}

template <bool K16> static inline void tt_mma(float (&c)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1)
{
    emulate_mma(c, a, b0, b1);
}

static inline void tt_mma_half(float (&c)[4], uint32_t a0, uint32_t a1, uint32_t b)
{
    const uint32_t a[4] = {a0, a1, 0, 0};
    emulate_mma(c, a, b, 0);
    emulate_counts.products--;
}

#endif

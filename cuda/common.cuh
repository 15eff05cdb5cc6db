/* cuda/common.cuh: what the kernels share: launch checks, FP16 vectors, tensor-core instructions. */
#ifndef TT_CUDA_COMMON_CUH
#define TT_CUDA_COMMON_CUH

#include <cuda_fp16.h>
#include <cuda_runtime.h>
#include <stdint.h>

/* A block never asks for more shared memory than a T4 has. */
enum { TT_SHARED_LIMIT = 65536 };

static inline int tt_div_up(int a, int b)
{
    return (a + b - 1) / b;
}

/* Raises a kernel's dynamic shared memory limit; refuses what no T4 could launch. */
template <class K> static inline cudaError_t tt_shared(K *kernel, size_t bytes)
{
    if (bytes > TT_SHARED_LIMIT)
        return cudaErrorInvalidConfiguration;
    return bytes <= 49152 ? cudaSuccess
                          : cudaFuncSetAttribute((const void *)kernel,
                                                 cudaFuncAttributeMaxDynamicSharedMemorySize, (int)bytes);
}

/* A kernel of Hopper's own code may begin while the one before it in the stream still runs: it calls
 * tt_wait_previous before it reads or writes anything but weights and shared memory, in every block that does
 * so; then all that went before has ended, since the one before has waited too. It allows its successor the
 * same with tt_let_next at its beginning, which takes effect once its last block has begun. Elsewhere neither
 * does anything, and kernels follow one another. */
__device__ __forceinline__ void tt_wait_previous()
{
#if __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.wait;" : : : "memory");
#endif
}
__device__ __forceinline__ void tt_let_next()
{
#if __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.launch_dependents;" : : : "memory");
#endif
}

/* Launches a kernel that does both. Which code of it the device runs decides whether it may begin early. */
template <class... P, class... A>
static inline cudaError_t tt_launch(void (*kernel)(P...), dim3 grid, int threads, size_t bytes, void *stream,
                                    A... arguments)
{
    cudaFuncAttributes code;
    cudaLaunchAttribute early = {};
    cudaLaunchConfig_t config = {};
    const cudaError_t e = cudaFuncGetAttributes(&code, (const void *)kernel);
    if (e != cudaSuccess)
        return e;
    early.id = cudaLaunchAttributeProgrammaticStreamSerialization;
    early.val.programmaticStreamSerializationAllowed = 1;
    config.gridDim = grid, config.blockDim = dim3(threads), config.dynamicSmemBytes = bytes;
    config.stream = (cudaStream_t)stream;
    config.attrs = &early, config.numAttrs = code.ptxVersion >= 90 ? 1 : 0;
    return cudaLaunchKernelEx(&config, kernel, static_cast<P>(arguments)...);
}

/* The hardware's approximations. */
__device__ __forceinline__ float tt_reciprocal(float x)
{
    float y;
    asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}
__device__ __forceinline__ float tt_power_of_2(float x)
{
    float y;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}

/* Two halfs of a row of an 8×8 matrix in each lane become two of a row of its transpose. */
__device__ __forceinline__ uint32_t tt_transpose(uint32_t x)
{
    uint32_t y;
    asm volatile("movmatrix.sync.aligned.m8n8.trans.b16 %0, %1;" : "=r"(y) : "r"(x));
    return y;
}

/* threadIdx.x, read anew: for what would otherwise be kept in registers across a loop that needs them. */
__device__ __forceinline__ int tt_thread()
{
    int x;
    asm volatile("mov.u32 %0, %%tid.x;" : "=r"(x));
    return x;
}

/* Inverts bit 6 of an offset, in its register. */
__device__ __forceinline__ void tt_flip_64(unsigned &p)
{
    asm("xor.b32 %0, %0, 64;" : "+r"(p));
}

/* A barrier of `threads` threads (whole warps) of a block; number: 1 to 15. */
__device__ __forceinline__ void tt_barrier(int number, int threads)
{
    asm volatile("bar.sync %0, %1;" : : "r"(number), "r"(threads) : "memory");
}

__device__ __forceinline__ float tt_gelu(float x)
{
    return 0.5f * x * (1.0f + erff(x * 0.70710678118654752f));
}

/* Sum over a warp in a fixed order (butterfly); every lane gets the same bits. */
__device__ __forceinline__ float tt_warp_sum(float x)
{
#pragma unroll
    for (int i = 16; i > 0; i >>= 1)
        x += __shfl_xor_sync(0xffffffffu, x, i);
    return x;
}

/* Sum over the eight lanes that hold the same columns of a product, in a fixed order; each gets the same
 * bits. */
__device__ __forceinline__ float tt_column_sum(float x)
{
    x += __shfl_xor_sync(0xffffffffu, x, 4);
    x += __shfl_xor_sync(0xffffffffu, x, 8);
    return x + __shfl_xor_sync(0xffffffffu, x, 16);
}

/* Four consecutive values as floats, from FP32 or FP16 memory (16- or 8-byte aligned). */
__device__ __forceinline__ float4 tt_load4(const float *p)
{
    return *reinterpret_cast<const float4 *>(p);
}
__device__ __forceinline__ float4 tt_load4(const __half *p)
{
    uint2 u = *reinterpret_cast<const uint2 *>(p);
    float2 a = __half22float2(*reinterpret_cast<__half2 *>(&u.x));
    float2 b = __half22float2(*reinterpret_cast<__half2 *>(&u.y));
    return make_float4(a.x, a.y, b.x, b.y);
}
__device__ __forceinline__ void tt_store4(float *p, float4 v)
{
    *reinterpret_cast<float4 *>(p) = v;
}
__device__ __forceinline__ void tt_store4(__half *p, float4 v)
{
    __half2 a = __floats2half2_rn(v.x, v.y), b = __floats2half2_rn(v.z, v.w);
    uint2 u;
    u.x = *reinterpret_cast<uint32_t *>(&a);
    u.y = *reinterpret_cast<uint32_t *>(&b);
    *reinterpret_cast<uint2 *>(p) = u;
}

__device__ __forceinline__ uint32_t tt_pack(float a, float b)
{
    __half2 h = __floats2half2_rn(a, b);
    return *reinterpret_cast<uint32_t *>(&h);
}

/* Rounds max(a, 0) and max(b, 0) to FP16. FUSED: in one instruction, from sm_80 on. */
template <bool FUSED> __device__ __forceinline__ uint32_t tt_pack_relu(float a, float b)
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
__device__ __forceinline__ float2 tt_unpack(uint32_t u)
{
    return __half22float2(*reinterpret_cast<__half2 *>(&u));
}

/* Address of shared memory for ldmatrix. */
__device__ __forceinline__ uint32_t tt_shared_address(const void *p)
{
    return (uint32_t)__cvta_generic_to_shared(p);
}

/* Four 8×8 FP16 matrices: lane l gives the address of row l % 8 of matrix l / 8; r[i]: matrix i, row l / 4,
 * columns 2·(l % 4) and the next. */
__device__ __forceinline__ void tt_ldmatrix4(uint32_t (&r)[4], uint32_t address)
{
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
                 : "r"(address));
}

/* c[16][8] += a[16][16] · b[16][8], FP16 in, FP32 out. K8: as two m16n8k8, which is what sm_75 has. */
template <bool K16>
__device__ __forceinline__ void tt_mma(float (&c)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1)
{
    if (K16) {
#if __CUDA_ARCH__ >= 800
        asm("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, "
            "{%0,%1,%2,%3};"
            : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
            : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
#else
        __trap(); /* the launchers never choose this on sm_75 */
#endif
    } else {
        asm("mma.sync.aligned.m16n8k8.row.col.f32.f16.f16.f32 {%0,%1,%2,%3}, {%4,%5}, {%6}, "
            "{%0,%1,%2,%3};"
            : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
            : "r"(a[0]), "r"(a[1]), "r"(b0));
        asm("mma.sync.aligned.m16n8k8.row.col.f32.f16.f16.f32 {%0,%1,%2,%3}, {%4,%5}, {%6}, "
            "{%0,%1,%2,%3};"
            : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
            : "r"(a[2]), "r"(a[3]), "r"(b1));
    }
}

/* c[16][8] += a[16][8] · b[8][8] */
__device__ __forceinline__ void tt_mma_half(float (&c)[4], uint32_t a0, uint32_t a1, uint32_t b)
{
    asm("mma.sync.aligned.m16n8k8.row.col.f32.f16.f16.f32 {%0,%1,%2,%3}, {%4,%5}, {%6}, {%0,%1,%2,%3};"
        : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
        : "r"(a0), "r"(a1), "r"(b));
}

#endif

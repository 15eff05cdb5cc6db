/* tests/kernels/emulate/checkemu.c: the checks of checkkern whose kernels can run on the CPU (emulate.h).
 *
 * The CUDA runtime's few functions that the checks call are here, over host memory.
 */
#include "tests/kernels/checks.h"
#include "tests/kernels/emulate/check_mixes.h"
#include "tests/kernels/kern.h"

#include <cuda_runtime_api.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

cudaError_t cudaMalloc(void **memory, size_t bytes)
{
    *memory = aligned_alloc(256, (bytes + 255) / 256 * 256);
    return *memory ? cudaSuccess : cudaErrorMemoryAllocation;
}

cudaError_t cudaFree(void *memory)
{
    free(memory);
    return cudaSuccess;
}

cudaError_t cudaMemcpy(void *to, const void *from, size_t bytes, enum cudaMemcpyKind kind)
{
    (void)kind;
    memcpy(to, from, bytes);
    return cudaSuccess;
}

cudaError_t cudaMemset(void *memory, int value, size_t bytes)
{
    memset(memory, value, bytes);
    return cudaSuccess;
}

cudaError_t cudaDeviceSynchronize(void)
{
    return cudaSuccess;
}

cudaError_t cudaGetLastError(void)
{
    return cudaSuccess;
}

const char *cudaGetErrorString(cudaError_t error)
{
    return error ? "error" : "no error";
}

const char *cudaGetErrorName(cudaError_t error)
{
    return cudaGetErrorString(error);
}

int main(void)
{
    kern_seed(1);
    check_conv_f16(TT_MMA_K8);
    check_conv_f16(TT_MMA_K16);
    check_product_f16(TT_MMA_K16);
    check_mlp_f16(TT_MMA_K16);
    check_attend_f16(TT_MMA_K16);
    check_embed_small_f16(TT_MMA_K16);
    check_cost_f16(TT_MMA_K16);
    check_embed_base_small_f16(TT_MMA_K16);
    const int unlike = check_mixes();
    printf("%d passed, %d failed\n", kern_passed() + MIXES - unlike, kern_failed() + unlike);
    return kern_failed() + unlike != 0;
}

/* tests/kernels/launching.c: see launching.h. The functions that nvcc's host code calls have no header; their
 * signatures are those of CUDA 13. A kernel beyond LAUNCHING_KERNELS is not known, its launch fails.
 */
#include "tests/kernels/launching.h"

#include <string.h>

static struct {
    const void *host;
    const char *name;
} kernels[LAUNCHING_KERNELS];
static int count;

static struct {
    dim3 grid, block;
    size_t shared;
    cudaStream_t stream;
} configuration;

int launching_count(void)
{
    return count;
}

const char *launching_name(int kernel)
{
    return kernels[kernel].name;
}

int launching_find(const void *host, const char *name)
{
    for (int i = 0; i < count; i++)
        if ((host && kernels[i].host == host) || (name && !strcmp(kernels[i].name, name)))
            return i;
    return -1;
}

void **__cudaRegisterFatBinary(void *binary);
void __cudaRegisterFatBinaryEnd(void **handle);
void __cudaUnregisterFatBinary(void **handle);
void __cudaRegisterFunction(void **handle, const char *host, char *device, const char *name, int threads,
                            uint3 *tid, uint3 *bid, dim3 *block, dim3 *grid, int *warp);
unsigned __cudaPushCallConfiguration(dim3 grid, dim3 block, size_t shared, cudaStream_t stream);
cudaError_t __cudaPopCallConfiguration(dim3 *grid, dim3 *block, size_t *shared, void *stream);
cudaError_t __cudaGetKernel(cudaKernel_t *kernel, const void *host);
cudaError_t __cudaLaunchKernel(cudaKernel_t kernel, dim3 grid, dim3 block, void **arguments, size_t shared,
                               cudaStream_t stream);

void **__cudaRegisterFatBinary(void *binary)
{
    static void *handle;

    (void)binary;
    return &handle;
}

void __cudaRegisterFatBinaryEnd(void **handle)
{
    (void)handle;
}

void __cudaUnregisterFatBinary(void **handle)
{
    (void)handle;
}

void __cudaRegisterFunction(void **handle, const char *host, char *device, const char *name, int threads,
                            uint3 *tid, uint3 *bid, dim3 *block, dim3 *grid, int *warp)
{
    (void)handle, (void)device, (void)threads, (void)tid, (void)bid, (void)block, (void)grid, (void)warp;
    if (count < LAUNCHING_KERNELS)
        kernels[count].host = host, kernels[count++].name = name;
}

unsigned __cudaPushCallConfiguration(dim3 grid, dim3 block, size_t shared, cudaStream_t stream)
{
    configuration.grid = grid, configuration.block = block;
    configuration.shared = shared, configuration.stream = stream;
    return 0;
}

cudaError_t __cudaPopCallConfiguration(dim3 *grid, dim3 *block, size_t *shared, void *stream)
{
    *grid = configuration.grid, *block = configuration.block, *shared = configuration.shared;
    *(cudaStream_t *)stream = configuration.stream;
    return cudaSuccess;
}

cudaError_t __cudaGetKernel(cudaKernel_t *kernel, const void *host)
{
    *kernel = (cudaKernel_t)host;
    return cudaSuccess;
}

cudaError_t __cudaLaunchKernel(cudaKernel_t kernel, dim3 grid, dim3 block, void **arguments, size_t shared,
                               cudaStream_t stream)
{
    return cudaLaunchKernel(kernel, grid, block, arguments, shared, stream);
}

cudaError_t cudaLaunchKernel(const void *host, dim3 grid, dim3 block, void **arguments, size_t shared,
                             cudaStream_t stream)
{
    const int kernel = launching_find(host, NULL);

    return kernel < 0 ? cudaErrorInvalidDeviceFunction
                      : launching_launch(kernel, grid, block, arguments, shared, stream);
}

cudaError_t cudaGetLastError(void)
{
    return cudaSuccess;
}

cudaError_t cudaLaunchKernelExC(const cudaLaunchConfig_t *c, const void *host, void **arguments)
{
    return cudaLaunchKernel(host, c->gridDim, c->blockDim, arguments, c->dynamicSmemBytes, c->stream);
}

cudaError_t cudaFuncGetAttributes(struct cudaFuncAttributes *a, const void *host)
{
    (void)host;
    *a = (struct cudaFuncAttributes){.ptxVersion = 75, .binaryVersion = 75};
    return cudaSuccess;
}

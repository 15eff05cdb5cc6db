/* cuda/device.c: which device, and what a CUDA error asks for.
 *
 * Memory that is short asks for smaller tiles; a driver, a device or code that is missing is configuration; a
 * device that another process holds in exclusive mode is busy; every other error means that the context is
 * lost.
 */
#include "cuda/gpu.h"

#include <cuda_runtime_api.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* The runtime says the same of a driver that is missing and of one that is too old. */
static enum tt_status fail_driver(const char *what, struct tt_error *err)
{
    int version = 0;

    if (cudaDriverGetVersion(&version) || !version)
        return tt_fail(err, TT_REFUSE, "%s: no NVIDIA driver is installed (libcuda.so.1 cannot be loaded)",
                       what);
    return tt_fail(err, TT_REFUSE,
                   "%s: the NVIDIA driver is too old: it is made for CUDA %d.%d, this build for CUDA %d.%d",
                   what, version / 1000, version % 1000 / 10, CUDART_VERSION / 1000,
                   CUDART_VERSION % 1000 / 10);
}

enum tt_status tt_gpu_status(int error, const char *what, struct tt_error *err)
{
    const char *text = cudaGetErrorString((cudaError_t)error);

    switch (error) {
    case cudaErrorMemoryAllocation:
        return tt_fail(err, TT_SHRINK_TILE, "%s: device memory is short", what);
    case cudaErrorDevicesUnavailable:
        return tt_fail(err, TT_RETRY_LATER, "%s: another process holds the device (exclusive mode)", what);
    case cudaErrorInsufficientDriver:
        return fail_driver(what, err);
    case cudaErrorSystemDriverMismatch:
        return tt_fail(
            err, TT_REFUSE,
            "%s: the NVIDIA driver's library and kernel module are of different versions; restart the "
            "machine after an upgrade",
            what);
    case cudaErrorNoDevice:
        return tt_fail(err, TT_REFUSE, "%s: no CUDA device is visible", what);
    case cudaErrorInvalidDevice:
        return tt_fail(err, TT_REFUSE, "%s: no such CUDA device", what);
    case cudaErrorNoKernelImageForDevice:
    case cudaErrorUnsupportedPtxVersion:
    case cudaErrorInvalidDeviceFunction:
        return tt_fail(err, TT_REFUSE,
                       "%s: this build has no code for the device (compute capability 7.5 or newer "
                       "is needed)",
                       what);
    default:
        return tt_fail(err, TT_RESTART_WORKER, "%s: %s", what, text);
    }
}

/* "GPU-" and the UUID in hexadecimal with dashes, as nvidia-smi prints it. */
static void uuid_text(const struct cudaDeviceProp *p, char text[48])
{
    const unsigned char *b = (const unsigned char *)p->uuid.bytes;

    snprintf(text, 48, "GPU-%02x%02x%02x%02x-%02x%02x-%02x%02x-%02x%02x-%02x%02x%02x%02x%02x%02x", b[0], b[1],
             b[2], b[3], b[4], b[5], b[6], b[7], b[8], b[9], b[10], b[11], b[12], b[13], b[14], b[15]);
}

static enum tt_status find(const char *select, int count, int *index, struct tt_error *err)
{
    char *end, text[48];

    *index = (int)strtol(select, &end, 10);
    if (*select && !*end)
        return *index >= 0 && *index < count
                   ? TT_OK
                   : tt_fail(err, TT_REFUSE, "no CUDA device %s: there are %d, numbered from 0", select,
                             count);
    if (!strncmp(select, "GPU-", 4)) {
        for (*index = 0; *index < count; ++*index) {
            struct cudaDeviceProp p;

            if (cudaGetDeviceProperties(&p, *index) == cudaSuccess) {
                uuid_text(&p, text);
                if (!strncmp(text, select, strlen(select)) && strlen(select) > 4)
                    return TT_OK;
            }
        }
    } else if (cudaDeviceGetByPCIBusId(index, select) == cudaSuccess) {
        return TT_OK;
    }
    cudaGetLastError();
    return tt_fail(err, TT_REFUSE, "no CUDA device %s (give an index, GPU-UUID, MIG-UUID or PCI address)",
                   select);
}

enum tt_status tt_gpu_select(const char *select, int *index, struct tt_error *err)
{
    int mig = select && !strncmp(select, "MIG-", 4), count = 0, chosen = 0, error;
    enum tt_status status;

    if (mig) /* a part of a GPU is only ever visible by itself, and before the first call */
        setenv("CUDA_VISIBLE_DEVICES", select, 1);
    error = cudaGetDeviceCount(&count);
    if (!error && !count)
        error = cudaErrorNoDevice;
    if (error == cudaErrorNoDevice && mig)
        return tt_fail(err, TT_REFUSE, "no CUDA device %s; nvidia-smi -L lists those that there are", select);
    if (error)
        return tt_gpu_status(error, "CUDA", err);
    status = select && !mig ? find(select, count, &chosen, err) : TT_OK;
    if (status)
        return status;
    error = cudaSetDevice(chosen);
    if (!error)
        error = cudaFree(NULL); /* makes the context now, where its failure can be told */
    if (error)
        return tt_gpu_status(error, "CUDA device", err);
    *index = chosen;
    return TT_OK;
}

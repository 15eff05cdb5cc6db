/* tests/cuda/fake_runtime.c: see fake_runtime.h. Also stands in for the network, which needs kernels. */
#include "tests/cuda/fake_runtime.h"

#include "cuda/network.h"

#include <stdlib.h>
#include <string.h>

struct fake_runtime fake;

static void write_down(struct fake_step step)
{
    if (fake.steps < FAKE_STEPS)
        fake.step[fake.steps++] = step;
}

cudaError_t cudaGetDeviceCount(int *count)
{
    *count = fake.devices;
    return fake.fails[FAKE_COUNT];
}

cudaError_t cudaDriverGetVersion(int *version)
{
    *version = fake.driver;
    return cudaSuccess;
}

cudaError_t cudaRuntimeGetVersion(int *version)
{
    *version = CUDART_VERSION;
    return cudaSuccess;
}

cudaError_t cudaSetDevice(int device)
{
    fake.selected = device;
    return fake.fails[FAKE_SELECT];
}

/* Device d: UUID of bytes 16·d, 16·d + 1 and so on; PCI bus 3 + d. */
cudaError_t cudaGetDeviceProperties(struct cudaDeviceProp *p, int device)
{
    memset(p, 0, sizeof *p);
    strcpy(p->name, "Fake T4");
    for (int i = 0; i < 16; i++)
        p->uuid.bytes[i] = (char)(16 * device + i);
    p->totalGlobalMem = (size_t)15 << 30;
    p->l2CacheSize = 4 << 20;
    p->sharedMemPerMultiprocessor = 64 << 10;
    p->multiProcessorCount = 40;
    p->major = 7, p->minor = 5;
    return cudaSuccess;
}

cudaError_t cudaDeviceGetByPCIBusId(int *device, const char *address)
{
    for (*device = 0; *device < fake.devices; ++*device) {
        static const char *const addresses[] = {"0000:03:00.0", "0000:04:00.0"};

        if (!strcmp(address, addresses[*device]) || !strcmp(address, addresses[*device] + 5))
            return cudaSuccess;
    }
    return cudaErrorInvalidDevice;
}

cudaError_t cudaMalloc(void **p, size_t bytes)
{
    if (fake.fails[FAKE_MALLOC])
        return fake.fails[FAKE_MALLOC];
    if (fake.memory && fake.taken + bytes > fake.memory)
        return cudaErrorMemoryAllocation;
    *p = malloc(bytes + 16);
    memcpy(*p, &bytes, sizeof bytes);
    fake.taken += bytes;
    return cudaSuccess;
}

cudaError_t cudaFree(void *p)
{
    size_t bytes = 0;

    if (!p)
        return fake.fails[FAKE_CONTEXT];
    memcpy(&bytes, p, sizeof bytes);
    fake.taken -= bytes;
    free(p);
    return cudaSuccess;
}

cudaError_t cudaMallocHost(void **p, size_t bytes)
{
    *p = malloc(bytes);
    return cudaSuccess;
}

cudaError_t cudaFreeHost(void *p)
{
    free(p);
    return cudaSuccess;
}

cudaError_t cudaGetLastError(void)
{
    return cudaSuccess;
}

const char *cudaGetErrorString(cudaError_t error)
{
    return error == cudaErrorIllegalAddress ? "an illegal memory access was encountered" : "some error";
}

cudaError_t cudaStreamCreateWithFlags(cudaStream_t *stream, unsigned flags)
{
    (void)flags;
    *stream = (cudaStream_t)((char *)&fake + 1 + fake.streams++);
    return cudaSuccess;
}

cudaError_t cudaStreamDestroy(cudaStream_t stream)
{
    (void)stream;
    return cudaSuccess;
}

cudaError_t cudaStreamSynchronize(cudaStream_t stream)
{
    (void)stream;
    return fake.fails[FAKE_SYNCHRONISE];
}

cudaError_t cudaMemcpyAsync(void *to, const void *from, size_t bytes, enum cudaMemcpyKind kind,
                            cudaStream_t stream)
{
    (void)kind;
    write_down(
        (struct fake_step){.kind = FAKE_COPY, .stream = stream, .to = to, .from = from, .bytes = bytes});
    return cudaSuccess;
}

cudaError_t cudaEventCreateWithFlags(cudaEvent_t *event, unsigned flags)
{
    (void)flags;
    *event = (cudaEvent_t)((char *)&fake + 100 + fake.events++);
    return cudaSuccess;
}

cudaError_t cudaEventDestroy(cudaEvent_t event)
{
    (void)event;
    return cudaSuccess;
}

cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream)
{
    write_down((struct fake_step){.kind = FAKE_RECORD, .stream = stream, .event = event});
    return cudaSuccess;
}

cudaError_t cudaStreamWaitEvent(cudaStream_t stream, cudaEvent_t event, unsigned flags)
{
    (void)flags;
    write_down((struct fake_step){.kind = FAKE_WAIT, .stream = stream, .event = event});
    return cudaSuccess;
}

cudaError_t cudaEventSynchronize(cudaEvent_t event)
{
    write_down((struct fake_step){.kind = FAKE_HOST_WAIT, .event = event});
    return fake.fails[FAKE_SYNCHRONISE];
}

/* ---- the network ---- */

void *tt_gpu_take(unsigned char *base, size_t *used, size_t bytes)
{
    void *p = base ? base + *used : NULL;

    *used += (bytes + 255) / 256 * 256;
    return p;
}

void tt_gpu_layout(struct tt_gpu *gpu)
{
    gpu->backbone.rgb = gpu->work_slab;
    gpu->work_bytes = ((size_t)gpu->frame_tile * 7 + (size_t)gpu->query_tile + 172) << 20;
}

int tt_gpu_supports(struct tt_gpu *gpu, int queries, int frames)
{
    (void)gpu, (void)queries, (void)frames;
    return fake.fails[FAKE_KERNEL];
}

const struct tt_gpu_network tt_gpu_network_f32 = {.value = sizeof(float)};
const struct tt_gpu_network tt_gpu_network_f16 = {.value = sizeof(uint16_t)};

enum tt_status tt_gpu_load(struct tt_gpu *gpu, const struct tt_weights *weights, struct tt_error *err)
{
    int error = cudaMalloc((void **)&gpu->weight_slab, gpu->weight_bytes = 16 << 20);

    (void)weights;
    return error ? tt_gpu_status(error, "weights", err) : TT_OK;
}

int tt_gpu_run(struct tt_gpu *gpu, enum tt_gpu_stage which, int a, int b)
{
    write_down(
        (struct fake_step){.kind = FAKE_STAGE, .stream = gpu->stream, .stage = (int)which, .first = a});
    (void)b;
    return fake.fails[FAKE_KERNEL];
}

void tt_gpu_drop_graphs(struct tt_gpu *gpu)
{
    (void)gpu;
}

int tt_k_state_init(const float *init, const int *query_frame, const float *query_xy, float *state,
                    int queries, int frames, void *stream)
{
    (void)init, (void)query_frame, (void)query_xy, (void)state, (void)queries, (void)frames, (void)stream;
    return 0;
}

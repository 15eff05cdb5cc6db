/* cuda/backend.c: the CUDA backend behind core/backend.h: opened, described and closed here; clip.c and
 * track.c do its work.
 *
 * Holds one device, the weights on it, and one work slab that never grows. Everything goes to the device and
 * back through pinned memory of its own, of which there are two of each kind: while the device works from
 * one, the other is filled. Two streams: pixels go to the device on `copies`; everything else is queued on
 * the stream of the kernels. After a status of TT_RESTART_WORKER the context is lost and only close may be
 * called. Device memory that is short is TT_SHRINK_TILE; open can then be tried again with smaller tiles.
 */
#include "cuda/backend_parts.h"

#include <cuda_runtime_api.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static void describe(struct tt_backend *b, int index, const struct cudaDeviceProp *p)
{
    int driver = 0, runtime = 0;

    cudaDriverGetVersion(&driver);
    cudaRuntimeGetVersion(&runtime);
    snprintf(b->description, sizeof b->description,
             "{\"device\": \"%s\", \"index\": %d, \"compute_capability\": \"%d.%d\", \"sm_count\": %d, "
             "\"l2_bytes\": %d, \"memory_bytes\": %zu, \"cuda_driver\": %d, \"cuda_runtime\": %d, "
             "\"precision\": \"%s\", \"mma\": \"%s\", \"device_bytes\": %zu, \"tile_queries\": %d, "
             "\"tile_frames\": %d, \"volume_queries\": %d}",
             p->name, index, p->major, p->minor, p->multiProcessorCount, p->l2CacheSize, p->totalGlobalMem,
             driver, runtime, b->gpu.precision == TT_FP16 ? "fp16" : "fp32",
             b->gpu.precision == TT_FP32 ? "none"
             : b->gpu.mma == TT_MMA_K16  ? "m16n8k16"
                                         : "m16n8k8",
             b->gpu.weight_bytes + b->gpu.work_bytes, b->gpu.query_tile, b->gpu.frame_tile,
             b->gpu.volume_tile);
}

enum { NOMINAL_QUERIES = 256 }; /* what the plan's figures are for */

/* Tiles for the device at hand, or for the one that the options describe. */
static enum tt_status make_plan(struct tt_backend *b, const struct cudaDeviceProp *p,
                                const struct tt_backend_options *options, struct tt_error *err)
{
    struct tt_device device = {.kind = TT_DEVICE_CUDA,
                               .memory_bytes = (int64_t)p->totalGlobalMem,
                               .l2_bytes = p->l2CacheSize,
                               .shared_bytes = (int32_t)p->sharedMemPerMultiprocessor,
                               .units = p->multiProcessorCount};
    enum tt_status status;

    snprintf(device.name, sizeof device.name, "%.63s", p->name);
    status = tt_plan_make(&b->plan, b->gpu.shape, options->device ? options->device : &device,
                          options->precision, options->tile, NOMINAL_QUERIES, TT_CLIP_FRAMES, err);
    if (status)
        return status;
    b->gpu.frame_tile = b->plan.tile.frames;
    b->gpu.first_tile = b->plan.first_frames;
    b->gpu.query_tile = b->plan.tile.queries;
    b->gpu.volume_tile = b->plan.volume_queries;
    return TT_OK;
}

/* Lays out the pinned memory; with a NULL slab it only counts. Returns bytes. */
static size_t layout_host(struct tt_backend *b)
{
    const size_t queries = (size_t)b->gpu.query_tile, rows = queries * TT_CLIP_FRAMES;
    size_t used = 0;

    for (int i = 0; i < 2; i++) {
        unsigned char *base = b->host_slab;

        b->host[i].rgb = tt_gpu_take(base, &used, TT_CLIP_BYTES);
        b->host[i].supports = tt_gpu_take(base, &used, queries * TT_SUPPORT_FLOATS * sizeof(float));
        b->host[i].xy = tt_gpu_take(base, &used, queries * 2 * sizeof(float));
        b->host[i].frame = tt_gpu_take(base, &used, queries * sizeof(int));
        b->host[i].init = tt_gpu_take(base, &used, rows * sizeof(struct tt_estimate));
        b->host[i].state = tt_gpu_take(base, &used, rows * sizeof(struct tt_estimate));
    }
    return used;
}

static int each_event(struct tt_backend *b, int (*act)(void **event))
{
    void **const events[] = {&b->consumed,    &b->arrived,     &b->rgb_read[0],
                             &b->rgb_read[1], &b->finished[0], &b->finished[1]};
    int error = 0;

    for (size_t i = 0; i < sizeof events / sizeof events[0] && !error; i++)
        error = act(events[i]);
    return error;
}

static int make_event(void **event)
{
    return cudaEventCreateWithFlags((cudaEvent_t *)event, cudaEventDisableTiming);
}

static int destroy_event(void **event)
{
    if (*event)
        cudaEventDestroy((cudaEvent_t)*event);
    return 0;
}

static void cuda_close(struct tt_backend *b)
{
    cudaStream_t streams[2];

    if (!b)
        return;
    streams[0] = (cudaStream_t)b->gpu.stream, streams[1] = (cudaStream_t)b->copies;
    for (int i = 0; i < 2; i++)
        if (streams[i])
            cudaStreamSynchronize(streams[i]);
    tt_gpu_drop_graphs(&b->gpu);
    cudaFreeHost(b->host_slab);
    cudaFree(b->gpu.work_slab);
    cudaFree(b->gpu.weight_slab);
    each_event(b, destroy_event);
    for (int i = 0; i < 2; i++)
        if (streams[i])
            cudaStreamDestroy(streams[i]);
    free(b);
}

/* Streams and events. A cudaError_t. */
static int make_streams(struct tt_backend *b)
{
    int error = cudaStreamCreateWithFlags((cudaStream_t *)&b->gpu.stream, cudaStreamNonBlocking);

    if (!error)
        error = cudaStreamCreateWithFlags((cudaStream_t *)&b->copies, cudaStreamNonBlocking);
    return error ? error : each_event(b, make_event);
}

static enum tt_status cuda_open(struct tt_backend **backend, const struct tt_backend_options *options,
                                const struct tt_weights *weights, struct tt_error *err)
{
    struct tt_backend *b;
    struct cudaDeviceProp properties;
    int index, error;
    enum tt_status status;

    if (options->arch && strcmp(options->arch, "sm_75"))
        return tt_fail(err, TT_REFUSE, "CUDA: arch %s is not known; sm_75 is", options->arch);
    status = tt_gpu_select(options->select, &index, err);
    if (status)
        return status;
    b = calloc(1, sizeof *b);
    if (!b)
        return tt_fail(err, TT_RETRY_LATER, "no memory for the CUDA backend");
    b->stop = options->stop;
    b->gpu.shape = tt_weights_shape(weights);
    b->gpu.precision = options->precision;
    b->gpu.network = options->precision == TT_FP16 ? &tt_gpu_network_f16 : &tt_gpu_network_f32;
    error = cudaGetDeviceProperties(&properties, index);
    if (!error)
        error = make_streams(b);
    status = error ? tt_gpu_status(error, "CUDA start", err) : make_plan(b, &properties, options, err);
    if (!status) {
        b->gpu.mma = options->arch || properties.major < 8 ? TT_MMA_K8 : TT_MMA_K16;
        tt_gpu_layout(&b->gpu);
        error = cudaMalloc((void **)&b->gpu.work_slab, b->gpu.work_bytes);
        if (!error)
            error = cudaMallocHost((void **)&b->host_slab, layout_host(b));
        status = error ? tt_gpu_status(error, "working memory", err) : tt_gpu_load(&b->gpu, weights, err);
    }
    if (status) {
        cuda_close(b);
        return status;
    }
    tt_gpu_layout(&b->gpu);
    layout_host(b);
    b->plan.memory_bytes = (int64_t)(b->gpu.weight_bytes + b->gpu.work_bytes);
    describe(b, index, &properties);
    *backend = b;
    return TT_OK;
}

static const char *cuda_describe(struct tt_backend *b)
{
    return b->description;
}

static const struct tt_plan *cuda_plan(struct tt_backend *b)
{
    return &b->plan;
}

enum tt_status tt_cuda_finish(struct tt_backend *b, int error, const char *what, struct tt_error *err)
{
    if (!error)
        error = cudaStreamSynchronize((cudaStream_t)b->gpu.stream);
    return error ? tt_gpu_status(error, what, err) : TT_OK;
}

int tt_cuda_download(struct tt_backend *b, void *to, const void *from, size_t bytes)
{
    return cudaMemcpyAsync(to, from, bytes, cudaMemcpyDeviceToHost, (cudaStream_t)b->gpu.stream);
}

struct tt_gpu *tt_cuda_gpu(struct tt_backend *b)
{
    return &b->gpu;
}

const struct tt_backend_ops tt_backend_cuda = {
    .name = "cuda",
    .open = cuda_open,
    .close = cuda_close,
    .describe = cuda_describe,
    .plan = cuda_plan,
    .support_bytes = TT_SUPPORT_FLOATS * sizeof(float),
    .features = tt_cuda_hold,
    .bring = tt_cuda_bring,
    .sample = tt_cuda_sample,
    .track = tt_cuda_track,
};

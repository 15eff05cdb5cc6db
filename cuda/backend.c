/* cuda/backend.c: the CUDA backend behind core/backend.h.
 *
 * Holds one device, the weights on it, and one work slab that never grows. Query points are worked on in
 * tiles; a point's result does not depend on the tile it is in. Everything goes to the device and back
 * through pinned memory of its own. features does not wait for what it has queued: while the backbone runs,
 * the caller goes on, and track copies supports for the device; an error in it is the next call's. After a
 * status of TT_RESTART_WORKER the context is lost and only close may be called. Device memory that is short
 * is TT_SHRINK_TILE; open can then be tried again with smaller tiles.
 */
#include "cuda/backend.h"
#include "cuda/gpu.h"
#include "cuda/pack.h"

#include <cuda_runtime_api.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct tt_backend {
    struct tt_gpu gpu;
    struct tt_plan plan;
    int frames; /* held; 0: none */
    struct {
        unsigned char *slab;  /* owned: pinned host memory */
        uint8_t *rgb;         /* [TT_CLIP_FRAMES][256][256][3] */
        float *supports, *xy; /* of a tile of query points, as in struct tt_gpu_track */
        int *frame;
        struct tt_estimate *init, *state;
    } host;
    int clip_queued; /* host.rgb may still be read */
    const atomic_bool *stop;
    char description[512];
};

static int stopped(const struct tt_backend *b)
{
    return b->stop && atomic_load_explicit(b->stop, memory_order_relaxed);
}

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
    b->gpu.query_tile = b->plan.tile.queries;
    b->gpu.volume_tile = b->plan.volume_queries;
    return TT_OK;
}

/* `queries` in as few tiles as there must be, all of one size but the last. */
static int even_tile(int queries, int largest)
{
    int tiles = (queries + largest - 1) / largest;

    return tiles ? (queries + tiles - 1) / tiles : 1;
}

/* Lays out the pinned memory; with a NULL slab it only counts. Returns bytes. */
static size_t layout_host(struct tt_backend *b)
{
    const size_t queries = (size_t)b->gpu.query_tile, rows = queries * TT_CLIP_FRAMES;
    unsigned char *base = b->host.slab;
    size_t used = 0;

    b->host.rgb = tt_gpu_take(base, &used, TT_CLIP_BYTES);
    b->host.supports = tt_gpu_take(base, &used, queries * TT_SUPPORT_FLOATS * sizeof(float));
    b->host.xy = tt_gpu_take(base, &used, queries * 2 * sizeof(float));
    b->host.frame = tt_gpu_take(base, &used, queries * sizeof(int));
    b->host.init = tt_gpu_take(base, &used, rows * sizeof(struct tt_estimate));
    b->host.state = tt_gpu_take(base, &used, rows * sizeof(struct tt_estimate));
    return used;
}

static void cuda_close(struct tt_backend *b)
{
    if (!b)
        return;
    if (b->gpu.stream)
        cudaStreamSynchronize((cudaStream_t)b->gpu.stream);
    tt_gpu_drop_graphs(&b->gpu);
    cudaFreeHost(b->host.slab);
    cudaFree(b->gpu.work_slab);
    cudaFree(b->gpu.weight_slab);
    if (b->gpu.stream)
        cudaStreamDestroy((cudaStream_t)b->gpu.stream);
    free(b);
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
        error = cudaStreamCreateWithFlags((cudaStream_t *)&b->gpu.stream, cudaStreamNonBlocking);
    status = error ? tt_gpu_status(error, "CUDA start", err) : make_plan(b, &properties, options, err);
    if (!status) {
        b->gpu.mma = options->arch || properties.major < 8 ? TT_MMA_K8 : TT_MMA_K16;
        b->gpu.network->layout(&b->gpu);
        error = cudaMalloc((void **)&b->gpu.work_slab, b->gpu.work_bytes);
        if (!error)
            error = cudaMallocHost((void **)&b->host.slab, layout_host(b));
        status = error ? tt_gpu_status(error, "working memory", err) : tt_gpu_load(&b->gpu, weights, err);
    }
    if (status) {
        cuda_close(b);
        return status;
    }
    b->gpu.network->layout(&b->gpu);
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

/* Waits for the stream; turns what went wrong before or during it into a status. */
static enum tt_status finish(struct tt_backend *b, int error, const char *what, struct tt_error *err)
{
    if (!error)
        error = cudaStreamSynchronize((cudaStream_t)b->gpu.stream);
    b->clip_queued = 0;
    return error ? tt_gpu_status(error, what, err) : TT_OK;
}

static size_t value_bytes(const struct tt_backend *b)
{
    return b->gpu.precision == TT_FP16 ? 2 : 4;
}

/* Moves the features of the last `reuse` frames to the front, where the two do not overlap. Returns how many.
 */
static int keep_features(struct tt_backend *b, int reuse, int *error)
{
    int from = b->frames - reuse;

    if (reuse <= 0 || from < reuse)
        return 0;
    for (int level = 0; level < TT_LEVELS && !*error; level++) {
        const struct tt_level_shape *s = &tt_level_shapes[level];
        size_t frame = (size_t)(s->size * s->size * s->channels) * value_bytes(b);

        *error =
            cudaMemcpyAsync(b->gpu.features[level], (char *)b->gpu.features[level] + (size_t)from * frame,
                            (size_t)reuse * frame, cudaMemcpyDeviceToDevice, (cudaStream_t)b->gpu.stream);
    }
    return reuse;
}

static enum tt_status cuda_features(struct tt_backend *b, const struct tt_clip *clip, int reuse,
                                    struct tt_error *err)
{
    int error = 0, first;
    enum tt_status status;

    if (clip->frames < 1 || clip->frames > TT_CLIP_FRAMES || reuse < 0 || reuse > clip->frames ||
        reuse > b->frames)
        return tt_fail(err, TT_REFUSE, "cuda: a clip of %d frames, %d of them reused from %d", clip->frames,
                       reuse, b->frames);
    status = b->clip_queued ? finish(b, 0, "features", err) : TT_OK;
    if (status)
        return status;
    first = keep_features(b, reuse, &error);
    b->frames = 0;
    for (int f = first, n; f < clip->frames && !error && !stopped(b); f += n) {
        size_t at = (size_t)f * TT_FRAME_BYTES;

        n = clip->frames - f < b->gpu.frame_tile ? clip->frames - f : b->gpu.frame_tile;
        memcpy(b->host.rgb + at, clip->rgb + at, (size_t)n * TT_FRAME_BYTES);
        error = tt_gpu_features(&b->gpu, b->host.rgb + at, f, n);
    }
    b->clip_queued = 1;
    if (error || stopped(b))
        status = finish(b, error, "features", err);
    if (!status && stopped(b))
        return tt_fail(err, TT_INTERRUPTED, "cuda: stopped");
    b->frames = status ? 0 : clip->frames;
    return status;
}

/* By way of `pinned`, which must not be in use. */
static int upload(struct tt_backend *b, void *to, void *pinned, const void *from, size_t bytes)
{
    memcpy(pinned, from, bytes);
    return cudaMemcpyAsync(to, pinned, bytes, cudaMemcpyHostToDevice, (cudaStream_t)b->gpu.stream);
}

static int download(struct tt_backend *b, void *to, const void *from, size_t bytes)
{
    return cudaMemcpyAsync(to, from, bytes, cudaMemcpyDeviceToHost, (cudaStream_t)b->gpu.stream);
}

static enum tt_status cuda_sample(struct tt_backend *b, int queries, const int *frame, const float *xy,
                                  void *supports, struct tt_error *err)
{
    struct tt_gpu_track *t = &b->gpu.track;
    const size_t bytes = TT_SUPPORT_FLOATS * sizeof(float);
    const int tile = even_tile(queries, b->gpu.query_tile);
    enum tt_status status = TT_OK;

    for (int q = 0; q < queries; q++)
        if (frame[q] < -1 || frame[q] >= b->frames ||
            (frame[q] >= 0 && !(isfinite(xy[2 * q]) && isfinite(xy[2 * q + 1]))))
            return tt_fail(err, TT_REFUSE, "cuda: query point %d: frame %d of %d, position %g, %g", q,
                           frame[q], b->frames, (double)xy[2 * q], (double)xy[2 * q + 1]);
    for (int q = 0; q < queries && !status; q += tile) {
        int n = queries - q < tile ? queries - q : tile;
        int error = upload(b, t->query_frame, b->host.frame, frame + q, (size_t)n * sizeof *frame);

        if (!error)
            error = upload(b, t->query_xy, b->host.xy, xy + 2 * q, (size_t)n * 2 * sizeof *xy);
        if (!error)
            error = b->gpu.network->supports(&b->gpu, n, b->frames);
        if (!error)
            error = download(b, b->host.supports, t->supports, (size_t)n * bytes);
        status = finish(b, error, "supports", err);
        for (int i = 0; i < n && !status; i++)
            if (frame[q + i] >= 0) /* those of other clips stay */
                memcpy((char *)supports + (size_t)(q + i) * bytes,
                       b->host.supports + (size_t)i * TT_SUPPORT_FLOATS, bytes);
    }
    return status;
}

/* One tile, into host.state; `all`: estimates of one whole stage. */
static int track_tile(struct tt_backend *b, const struct tt_track_request *r, int first, int n, size_t all)
{
    struct tt_gpu_track *t = &b->gpu.track;
    const size_t rows = (size_t)n * (size_t)b->frames, bytes = rows * sizeof(struct tt_estimate);
    const char *supports = (const char *)r->supports + (size_t)first * TT_SUPPORT_FLOATS * sizeof(float);
    struct tt_estimate *stage = r->stages ? r->stages + (size_t)first * (size_t)b->frames : NULL;
    int error;

    b->gpu.volume_tile = even_tile(n, b->plan.volume_queries);
    error = upload(b, t->supports, b->host.supports, supports, (size_t)n * TT_SUPPORT_FLOATS * sizeof(float));
    if (!error)
        error = upload(b, t->query_frame, b->host.frame, r->query_frame + first, (size_t)n * sizeof(int));
    if (!error)
        error = upload(b, t->query_xy, b->host.xy, r->query_xy + 2 * first, (size_t)n * 2 * sizeof(float));
    if (!error)
        error = tt_gpu_run(&b->gpu, TT_GPU_INITIALISE, n, b->frames);
    if (!error && r->init)
        error = upload(b, t->init, b->host.init, r->init + (size_t)first * (size_t)b->frames, bytes);
    if (!error && r->init)
        error = tt_k_state_init(t->init, t->query_frame, t->query_xy, t->state, n, b->frames, b->gpu.stream);
    for (int pass = 0; pass <= TT_REFINEMENTS && !error && !stopped(b); pass++) {
        if (pass)
            error = tt_gpu_run(&b->gpu, TT_GPU_REFINE, n, b->frames);
        if (!error && stage)
            error = download(b, stage + (size_t)pass * all, t->state, bytes);
    }
    return error ? error : download(b, b->host.state, t->state, bytes);
}

static enum tt_status cuda_track(struct tt_backend *b, const struct tt_track_request *r,
                                 struct tt_estimate *result, struct tt_error *err)
{
    const int tile = even_tile(r->queries, b->gpu.query_tile);
    enum tt_status status = TT_OK;

    if (b->frames < 1)
        return tt_fail(err, TT_REFUSE, "track: no clip is held");
    for (int q = 0; q < r->queries && !status && !stopped(b); q += tile) {
        int n = r->queries - q < tile ? r->queries - q : tile;
        int error = track_tile(b, r, q, n, (size_t)r->queries * (size_t)b->frames);

        status = finish(b, error, "track", err);
        if (!status && !stopped(b))
            memcpy(result + (size_t)q * (size_t)b->frames, b->host.state,
                   (size_t)n * (size_t)b->frames * sizeof *result);
    }
    return !status && stopped(b) ? tt_fail(err, TT_INTERRUPTED, "cuda: stopped") : status;
}

enum tt_status tt_cuda_features(struct tt_backend *b, int frame, int level, float *out, struct tt_error *err)
{
    const struct tt_level_shape *s = &tt_level_shapes[level];
    size_t n = (size_t)(s->size * s->size * s->channels), bytes = n * value_bytes(b);
    const char *from = (const char *)b->gpu.features[level] + (size_t)frame * bytes;
    enum tt_status status = finish(b, download(b, out, from, bytes), "features", err);

    if (!status && b->gpu.precision == TT_FP16)
        for (size_t i = n; i-- > 0;) {
            uint16_t half;

            memcpy(&half, (const char *)out + 2 * i, sizeof half);
            out[i] = tt_float_from_half(half);
        }
    return status;
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
    .features = cuda_features,
    .sample = cuda_sample,
    .track = cuda_track,
};

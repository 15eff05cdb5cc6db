/* cuda/backend.c: the CUDA backend behind core/backend.h.
 *
 * Holds one device, the weights on it, and one work slab that never grows. Query points are worked on in
 * tiles; a point's result does not depend on the tile it is in. Everything goes to the device and back
 * through pinned memory of its own, of which there are two of each kind: while the device works from one, the
 * other is filled.
 *
 * Two streams. Pixels go to the device on `copies`, a tile of frames at a time, behind the event `consumed`
 * (the backbone has read what was there); the backbone waits for `arrived`. A clip that bring is given
 * is copied and sent once the last tile of query points is queued. Everything else is queued on the stream
 * of the kernels: supports of a tile of query points, its kernels, its results; the host fills the next
 * tile's memory meanwhile and picks up a tile's results once the next one is queued. features does not wait
 * for what it has queued; an error in it is the next call's. After a status of TT_RESTART_WORKER the context
 * is lost and only close may be called. Device memory that is short is TT_SHRINK_TILE; open can then be tried
 * again with smaller tiles.
 */
#include "cuda/backend.h"
#include "cuda/gpu.h"
#include "cuda/pack.h"

#include <cuda_runtime_api.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* What the device reads and writes, for one clip and one tile of query points. */
struct host {
    uint8_t *rgb;         /* [TT_CLIP_FRAMES][256][256][3] */
    float *supports, *xy; /* of a tile of query points, as in struct tt_gpu_track */
    int *frame;
    struct tt_estimate *init, *state;
};

struct tt_backend {
    struct tt_gpu gpu;
    struct tt_plan plan;
    int frames;               /* held; 0: none */
    unsigned char *host_slab; /* owned: pinned host memory */
    struct host host[2];
    int clip, tile;           /* which of the two was filled last with pixels, with a tile of query points */
    void *copies;             /* owned, as the events: a stream */
    void *consumed, *arrived; /* the device's pixels, by the backbone; on the device */
    void *rgb_read[2], *finished[2]; /* host.rgb is free again; a tile's results are there */
    struct tt_clip brought;          /* 0 frames: none; no pixels once they are on their way */
    int brought_from;                /* its first frame on the device */
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
    b->gpu.first_tile = b->plan.first_frames;
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

/* Waits for the stream; turns what went wrong before or during it into a status. */
static enum tt_status finish(struct tt_backend *b, int error, const char *what, struct tt_error *err)
{
    if (!error)
        error = cudaStreamSynchronize((cudaStream_t)b->gpu.stream);
    return error ? tt_gpu_status(error, what, err) : TT_OK;
}

static size_t value_bytes(const struct tt_backend *b)
{
    return b->gpu.precision == TT_FP16 ? 2 : 4;
}

/* Frames whose features a clip can keep from the one that is held: none where the two places overlap. */
static int frames_kept(const struct tt_backend *b, int reuse)
{
    return b->frames - reuse < reuse ? 0 : reuse;
}

/* Moves the features of the last `kept` frames to the front. A cudaError_t. */
static int keep_features(struct tt_backend *b, int kept)
{
    int error = 0;

    for (int level = 0; level < TT_LEVELS && kept && !error; level++) {
        const struct tt_level_shape *s = &tt_level_shapes[level];
        size_t frame = (size_t)(s->size * s->size * s->channels) * value_bytes(b);

        error = cudaMemcpyAsync(b->gpu.features[level],
                                (char *)b->gpu.features[level] + (size_t)(b->frames - kept) * frame,
                                (size_t)kept * frame, cudaMemcpyDeviceToDevice, (cudaStream_t)b->gpu.stream);
    }
    return error;
}

static enum tt_status check_clip(const struct tt_backend *b, const struct tt_clip *clip, int reuse,
                                 struct tt_error *err)
{
    if (clip->frames < 1 || clip->frames > TT_CLIP_FRAMES || reuse < 0 || reuse > clip->frames ||
        reuse > b->frames)
        return tt_fail(err, TT_REFUSE, "cuda: a clip of %d frames, %d of them reused from %d", clip->frames,
                       reuse, b->frames);
    return TT_OK;
}

/* Before the pixels of a new clip: the other pinned memory, and the device's once the backbone has read it. A
 * cudaError_t. */
static int begin_pixels(struct tt_backend *b)
{
    int error;

    b->clip ^= 1;
    error = cudaEventSynchronize((cudaEvent_t)b->rgb_read[b->clip]);
    return error ? error : (int)cudaStreamWaitEvent((cudaStream_t)b->copies, (cudaEvent_t)b->consumed, 0);
}

/* Frames f to f + n, on `copies`. A cudaError_t. */
static int send_pixels(struct tt_backend *b, const uint8_t *rgb, int f, int n)
{
    const size_t at = (size_t)f * TT_FRAME_BYTES, bytes = (size_t)n * TT_FRAME_BYTES;
    uint8_t *pinned = b->host[b->clip].rgb + at;
    int error;

    memcpy(pinned, rgb + at, bytes);
    error = cudaMemcpyAsync(b->gpu.backbone.rgb + at, pinned, bytes, cudaMemcpyHostToDevice,
                            (cudaStream_t)b->copies);
    if (!error)
        error = cudaEventRecord((cudaEvent_t)b->arrived, (cudaStream_t)b->copies);
    return error ? error : (int)cudaEventRecord((cudaEvent_t)b->rgb_read[b->clip], (cudaStream_t)b->copies);
}

static int smaller(int a, int b)
{
    return a < b ? a : b;
}

static enum tt_status cuda_bring(struct tt_backend *b, const struct tt_clip *clip, int reuse,
                                 struct tt_error *err)
{
    enum tt_status status = check_clip(b, clip, reuse, err);

    if (status)
        return status;
    b->brought = *clip;
    b->brought_from = frames_kept(b, reuse);
    return TT_OK;
}

/* Sends the pixels that bring was given, if they are still here. A cudaError_t. */
static int send_brought(struct tt_backend *b)
{
    const struct tt_clip clip = b->brought;
    int error;

    if (!clip.frames || !clip.rgb)
        return 0;
    b->brought.rgb = NULL;
    error = begin_pixels(b);
    for (int f = b->brought_from, n; f < clip.frames && !error; f += n) {
        n = smaller(clip.frames - f, b->gpu.frame_tile);
        error = send_pixels(b, clip.rgb, f, n);
    }
    return error;
}

/* rgb: NULL where the pixels are on their way. A cudaError_t. */
static int queue_features(struct tt_backend *b, const uint8_t *rgb, int first, int frames)
{
    cudaStream_t stream = (cudaStream_t)b->gpu.stream;
    int error = keep_features(b, first);

    if (rgb && !error)
        error = begin_pixels(b);
    for (int f = first, n; f < frames && !error && !stopped(b); f += n) {
        n = smaller(frames - f, b->gpu.frame_tile);
        if (rgb)
            error = send_pixels(b, rgb, f, n);
        if (!error)
            error = cudaStreamWaitEvent(stream, (cudaEvent_t)b->arrived, 0);
        if (!error)
            error = tt_gpu_run(&b->gpu, TT_GPU_BACKBONE, f, n);
    }
    return error ? error : (int)cudaEventRecord((cudaEvent_t)b->consumed, stream);
}

static enum tt_status cuda_features(struct tt_backend *b, const struct tt_clip *clip, int reuse,
                                    struct tt_error *err)
{
    const int first = frames_kept(b, reuse);
    const struct tt_clip brought = b->brought;
    enum tt_status status = check_clip(b, clip, reuse, err);
    int error;

    if (!status && !clip->rgb &&
        (brought.frames != clip->frames || brought.first_frame != clip->first_frame ||
         b->brought_from != first))
        status = tt_fail(err, TT_REFUSE, "cuda: this clip was not brought before");
    if (status)
        return status;
    error = clip->rgb ? 0 : send_brought(b);
    b->brought.frames = 0;
    if (!error)
        error = queue_features(b, clip->rgb, first, clip->frames);
    b->frames = 0;
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
    const struct host *host = &b->host[b->tile]; /* nothing is queued that reads it */
    enum tt_status status = TT_OK;

    for (int q = 0; q < queries; q++)
        if (frame[q] < -1 || frame[q] >= b->frames ||
            (frame[q] >= 0 && !(isfinite(xy[2 * q]) && isfinite(xy[2 * q + 1]))))
            return tt_fail(err, TT_REFUSE, "cuda: query point %d: frame %d of %d, position %g, %g", q,
                           frame[q], b->frames, (double)xy[2 * q], (double)xy[2 * q + 1]);
    for (int q = 0; q < queries && !status; q += tile) {
        int n = queries - q < tile ? queries - q : tile;
        int error = upload(b, t->query_frame, host->frame, frame + q, (size_t)n * sizeof *frame);

        if (!error)
            error = upload(b, t->query_xy, host->xy, xy + 2 * q, (size_t)n * 2 * sizeof *xy);
        if (!error)
            error = tt_gpu_supports(&b->gpu, n, b->frames);
        if (!error)
            error = download(b, host->supports, t->supports, (size_t)n * bytes);
        status = finish(b, error, "supports", err);
        for (int i = 0; i < n && !status; i++)
            if (frame[q + i] >= 0) /* those of other clips stay */
                memcpy((char *)supports + (size_t)(q + i) * bytes,
                       host->supports + (size_t)i * TT_SUPPORT_FLOATS, bytes);
    }
    return status;
}

/* Queues one tile from and to host[tile]; `all`: estimates of one whole stage. A cudaError_t. */
static int queue_tile(struct tt_backend *b, const struct tt_track_request *r, int first, int n, size_t all)
{
    const struct host *host = &b->host[b->tile];
    struct tt_gpu_track *t = &b->gpu.track;
    const size_t rows = (size_t)n * (size_t)b->frames, bytes = rows * sizeof(struct tt_estimate);
    const char *supports = (const char *)r->supports + (size_t)first * TT_SUPPORT_FLOATS * sizeof(float);
    struct tt_estimate *stage = r->stages ? r->stages + (size_t)first * (size_t)b->frames : NULL;
    int error;

    b->gpu.volume_tile = even_tile(n, b->plan.volume_queries);
    error = upload(b, t->supports, host->supports, supports, (size_t)n * TT_SUPPORT_FLOATS * sizeof(float));
    if (!error)
        error = upload(b, t->query_frame, host->frame, r->query_frame + first, (size_t)n * sizeof(int));
    if (!error)
        error = upload(b, t->query_xy, host->xy, r->query_xy + 2 * first, (size_t)n * 2 * sizeof(float));
    if (!error)
        error = tt_gpu_run(&b->gpu, TT_GPU_INITIALISE, n, b->frames);
    if (!error && r->init)
        error = upload(b, t->init, host->init, r->init + (size_t)first * (size_t)b->frames, bytes);
    if (!error && r->init)
        error = tt_k_state_init(t->init, t->query_frame, t->query_xy, t->state, n, b->frames, b->gpu.stream);
    for (int pass = 0; pass <= TT_REFINEMENTS && !error && !stopped(b); pass++) {
        if (pass)
            error = tt_gpu_run(&b->gpu, TT_GPU_REFINE, n, b->frames);
        if (!error && stage)
            error = download(b, stage + (size_t)pass * all, t->state, bytes);
    }
    if (!error)
        error = download(b, host->state, t->state, bytes);
    return error ? error
                 : (int)cudaEventRecord((cudaEvent_t)b->finished[b->tile], (cudaStream_t)b->gpu.stream);
}

/* Waits for the results of the tile of `queries` in host[tile]. A cudaError_t. */
static int pick_up(struct tt_backend *b, int tile, int queries, struct tt_estimate *result)
{
    int error = cudaEventSynchronize((cudaEvent_t)b->finished[tile]);

    if (!error && !stopped(b))
        memcpy(result, b->host[tile].state, (size_t)queries * (size_t)b->frames * sizeof *result);
    return error;
}

static enum tt_status cuda_track(struct tt_backend *b, const struct tt_track_request *r,
                                 struct tt_estimate *result, struct tt_error *err)
{
    const int tile = even_tile(r->queries, b->gpu.query_tile), frames = b->frames;
    enum tt_status status;
    int error = 0, queued = 0, done = 0;

    if (frames < 1)
        return tt_fail(err, TT_REFUSE, "track: no clip is held");
    while (done < r->queries && !error && !stopped(b)) {
        int n = smaller(r->queries - queued, tile), before = smaller(r->queries - done, tile);

        if (n) {
            b->tile ^= 1;
            error = queue_tile(b, r, queued, n, (size_t)r->queries * (size_t)frames);
            queued += n;
            if (!error && queued == r->queries)
                error = send_brought(b);
        }
        if (!error && (queued - done > tile || !n)) {
            error = pick_up(b, n ? b->tile ^ 1 : b->tile, before, result + (size_t)done * (size_t)frames);
            done += before;
        }
    }
    if (b->brought.rgb) /* borrowed no longer */
        b->brought.frames = 0;
    status = error || stopped(b) ? finish(b, error, "track", err) : TT_OK;
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
    .bring = cuda_bring,
    .sample = cuda_sample,
    .track = cuda_track,
};

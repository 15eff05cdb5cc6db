/* tests/kernels/gpubench.c: one clip on the device, from its pixels to its tracks.
 *
 *     gpubench WEIGHTS [fp16|fp32] [--queries N] [--tile QUERIES,FRAMES] [--runs N] [--range] [--no-graphs]
 *              [--windows] [--volumes QUERIES]
 *
 * WEIGHTS: a file, or "small:SEED" or "base:SEED" for weights from the formula. The clip (47 frames of the
 * formula's) lies on the device, query points are a grid in the first frame. Prints one JSON object: medians
 * of device time over N runs (15), after two that warm up; the memory that the backend took beyond the
 * context; the plan's tiles. --range: warms up, then runs once between cudaProfilerStart and
 * cudaProfilerStop, for ncu's range replay; no times. --windows: instead, whole windows by the backend's
 * table, clips and supports in pageable memory, new frames in every window: windows a second, each brought
 * before the one before it is tracked, and each only afterwards. --volumes: volumes of at most so many query
 * points at a time (FP32 has them), no more than the plan says.
 */
#include "core/formula.h"
#include "cuda/backend.h"
#include "cuda/gpu.h"

#include <cuda_profiler_api.h>
#include <cuda_runtime_api.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { MOST_RUNS = 101 };

struct bench {
    const char *weights;
    struct tt_backend_options options;
    int queries, runs, range, no_graphs, windows, volume_queries;
    struct tt_gpu *gpu;
    uint8_t *rgb; /* on the device, as the following */
    int *frame;
    float *xy;
};

static void die(const char *what, const char *text)
{
    fprintf(stderr, "gpubench: %s: %s\n", what, text);
    exit(1);
}

static void check(int error, const char *what)
{
    if (error)
        die(what, cudaGetErrorString((cudaError_t)error));
}

static void must(enum tt_status status, const struct tt_error *err)
{
    if (status)
        die(tt_status_name(status), err->text);
}

static void *on_device(size_t bytes, const void *host)
{
    void *p;

    check(cudaMalloc(&p, bytes), "memory");
    check(cudaMemcpy(p, host, bytes, cudaMemcpyHostToDevice), "upload");
    return p;
}

static int parse(struct bench *b, int argc, char **argv)
{
    for (int i = 2; i < argc; i++) {
        const char *value = i + 1 < argc ? argv[i + 1] : "";

        if (!strcmp(argv[i], "fp16") || !strcmp(argv[i], "fp32"))
            b->options.precision = strcmp(argv[i], "fp16") ? TT_FP32 : TT_FP16;
        else if (!strcmp(argv[i], "--range"))
            b->range = 1;
        else if (!strcmp(argv[i], "--windows"))
            b->windows = 1;
        else if (!strcmp(argv[i], "--no-graphs"))
            b->no_graphs = 1;
        else if (!strcmp(argv[i], "--volumes") && ++i)
            b->volume_queries = atoi(value);
        else if (!strcmp(argv[i], "--queries") && ++i)
            b->queries = atoi(value);
        else if (!strcmp(argv[i], "--runs") && ++i)
            b->runs = atoi(value);
        else if (!strcmp(argv[i], "--tile") && ++i)
            sscanf(value, "%d,%d", &b->options.tile.queries, &b->options.tile.frames);
        else
            return 0;
    }
    return argc > 1 && b->queries > 0 && b->volume_queries >= 0 && b->runs > 0 && b->runs <= MOST_RUNS;
}

static struct tt_weights *open_weights(const char *name, void **formula)
{
    const struct tt_model_shape *shape = strncmp(name, "base:", 5) ? &tt_model_small : &tt_model_base;
    struct tt_weights *weights = NULL;
    struct tt_error err;
    size_t size;

    *formula = NULL;
    if (strncmp(name, "base:", 5) && strncmp(name, "small:", 6)) {
        must(tt_weights_open(&weights, name, &err), &err);
        return weights;
    }
    *formula = tt_formula_weights(shape, strtoull(strchr(name, ':') + 1, NULL, 10), &size);
    if (!*formula)
        die(name, "no memory");
    must(tt_weights_from_memory(&weights, name, *formula, size, &err), &err);
    return weights;
}

static void make_inputs(struct bench *b)
{
    int side = (int)ceil(sqrt(b->queries));
    uint8_t *rgb = malloc(TT_CLIP_BYTES);
    float *xy = malloc((size_t)b->queries * 2 * sizeof *xy);
    int *frame = calloc((size_t)b->queries, sizeof *frame);

    if (!rgb || !xy || !frame)
        die("inputs", "no memory");
    tt_formula_clip(rgb, TT_CLIP_FRAMES);
    for (int q = 0; q < b->queries; q++) {
        xy[2 * q] = ((float)(q % side) + 0.5f) * TT_CLIP_SIZE / (float)side;
        xy[2 * q + 1] = ((float)(q / side) + 0.5f) * TT_CLIP_SIZE / (float)side;
    }
    b->rgb = on_device(TT_CLIP_BYTES, rgb);
    b->frame = on_device((size_t)b->queries * sizeof *frame, frame);
    b->xy = on_device((size_t)b->queries * 2 * sizeof *xy, xy);
    free(rgb);
    free(xy);
    free(frame);
}

/* The stages in order, each between two of events [5]; the first estimate's includes the supports, of all
 * tiles. With more than one tile of query points the stages of tracking run in turn, so their times are those
 * of the last tile. */
static void run_clip(struct bench *b, cudaEvent_t *events)
{
    struct tt_gpu *gpu = b->gpu;
    cudaStream_t stream = (cudaStream_t)gpu->stream;
    int frames = gpu->frame_tile, tiles = (b->queries + gpu->query_tile - 1) / gpu->query_tile;
    int tile = (b->queries + tiles - 1) / tiles;

    check(cudaEventRecord(events[0], stream), "event");
    for (int f = 0; f < TT_CLIP_FRAMES; f += frames) {
        int n = TT_CLIP_FRAMES - f < frames ? TT_CLIP_FRAMES - f : frames;

        check(tt_gpu_features(gpu, b->rgb + (size_t)f * TT_FRAME_BYTES, f, n), "features");
    }
    check(cudaEventRecord(events[1], stream), "event");
    for (int q = 0; q < b->queries; q += tile) {
        int n = b->queries - q < tile ? b->queries - q : tile;
        int parts = (n + b->volume_queries - 1) / b->volume_queries;

        gpu->volume_tile = (n + parts - 1) / parts;
        check(cudaMemcpyAsync(gpu->track.query_frame, b->frame + q, (size_t)n * sizeof(int),
                              cudaMemcpyDeviceToDevice, stream),
              "query points");
        check(cudaMemcpyAsync(gpu->track.query_xy, b->xy + 2 * q, (size_t)n * 2 * sizeof(float),
                              cudaMemcpyDeviceToDevice, stream),
              "query points");
        check(tt_gpu_supports(gpu, n, TT_CLIP_FRAMES), "supports");
        check(tt_gpu_run(gpu, TT_GPU_INITIALISE, n, TT_CLIP_FRAMES), "first estimate");
        check(cudaEventRecord(events[2], stream), "event");
        for (int pass = 0; pass < TT_REFINEMENTS; pass++)
            check(tt_gpu_run(gpu, TT_GPU_REFINE, n, TT_CLIP_FRAMES), "refinement");
    }
    check(cudaEventRecord(events[3], stream), "event");
}

static int by_value(const void *a, const void *b)
{
    float x = *(const float *)a, y = *(const float *)b;

    return (x > y) - (x < y);
}

static float median(const float (*ms)[4], int runs, int stage)
{
    float column[MOST_RUNS];

    for (int i = 0; i < runs; i++)
        column[i] = ms[i][stage];
    qsort(column, (size_t)runs, sizeof *column, by_value);
    return column[runs / 2];
}

static void measure(struct bench *b, struct tt_backend *backend, size_t taken)
{
    static float ms[MOST_RUNS + 2][4];
    const struct tt_plan *plan = tt_backend_cuda.plan(backend);
    cudaEvent_t events[4];

    for (int i = 0; i < 4; i++)
        check(cudaEventCreate(&events[i]), "event");
    for (int i = 0; i < 2 + (b->range ? 0 : b->runs); i++) {
        run_clip(b, events);
        check(cudaEventSynchronize(events[3]), "clip");
        for (int s = 0; s < 3; s++)
            check(cudaEventElapsedTime(&ms[i][s], events[s], events[s + 1]), "event");
        check(cudaEventElapsedTime(&ms[i][3], events[0], events[3]), "event");
    }
    if (b->range) {
        check(cudaProfilerStart(), "range");
        run_clip(b, events);
        check(cudaDeviceSynchronize(), "range");
        check(cudaProfilerStop(), "range");
        return;
    }
    printf("{\"size\": \"%s\", \"precision\": \"%s\", \"path\": \"%s\", \"queries\": %d, \"tile\": [%d, %d], "
           "\"volumes\": %d, "
           "\"features_ms\": %.3f, \"estimate_ms\": %.3f, \"refine_ms\": %.3f, \"all_ms\": %.3f, "
           "\"device_bytes\": %zu, \"planned_bytes\": %lld}\n",
           b->gpu->shape->name, b->options.precision == TT_FP16 ? "fp16" : "fp32",
           b->options.arch ? b->options.arch : "native", b->queries, plan->tile.queries, plan->tile.frames,
           b->volume_queries, (double)median((const float(*)[4])ms + 2, b->runs, 0),
           (double)median((const float(*)[4])ms + 2, b->runs, 1),
           (double)median((const float(*)[4])ms + 2, b->runs, 2),
           (double)median((const float(*)[4])ms + 2, b->runs, 3), taken, (long long)plan->memory_bytes);
}

static double now_s(void)
{
    struct timespec now;

    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec + (double)now.tv_nsec / 1e9;
}

/* Windows a second, as core/job.c asks for them. clip: [2] windows, in turn. */
static double track_windows(const struct bench *b, struct tt_backend *backend, struct tt_clip *clip,
                            const struct tt_track_request *request, struct tt_estimate *result, int ahead)
{
    const struct tt_backend_ops *ops = &tt_backend_cuda;
    double start = now_s();
    struct tt_error err;

    for (int i = 0; i < b->runs; i++) {
        struct tt_clip next = clip[(i + 1) % 2], held = clip[i % 2];

        if (ahead && i)
            held.rgb = NULL;
        must(ops->features(backend, &held, 0, &err), &err);
        if (ahead)
            must(ops->bring(backend, &next, 0, &err), &err);
        must(ops->track(backend, request, result, &err), &err);
    }
    return b->runs / (now_s() - start);
}

static void measure_windows(const struct bench *b, struct tt_backend *backend)
{
    const size_t rows = (size_t)b->queries * TT_CLIP_FRAMES;
    uint8_t *rgb = malloc(2 * TT_CLIP_BYTES);
    int *frame = malloc((size_t)b->queries * sizeof *frame);
    float *xy = malloc((size_t)b->queries * 2 * sizeof *xy);
    void *supports = malloc((size_t)b->queries * tt_backend_cuda.support_bytes);
    struct tt_estimate *result = malloc(rows * sizeof *result);
    struct tt_clip clip[2];
    struct tt_error err;
    double apart, ahead;

    if (!rgb || !frame || !xy || !supports || !result)
        die("windows", "no memory");
    for (int i = 0; i < 2; i++) {
        clip[i] = (struct tt_clip){.rgb = rgb + (size_t)i * TT_CLIP_BYTES, .frames = TT_CLIP_FRAMES};
        tt_formula_clip(rgb + (size_t)i * TT_CLIP_BYTES, TT_CLIP_FRAMES);
    }
    check(cudaMemcpy(frame, b->frame, (size_t)b->queries * sizeof *frame, cudaMemcpyDeviceToHost),
          "download");
    check(cudaMemcpy(xy, b->xy, (size_t)b->queries * 2 * sizeof *xy, cudaMemcpyDeviceToHost), "download");
    must(tt_backend_cuda.features(backend, clip, 0, &err), &err);
    must(tt_backend_cuda.sample(backend, b->queries, frame, xy, supports, &err), &err);
    const struct tt_track_request request = {
        .queries = b->queries, .supports = supports, .query_frame = frame, .query_xy = xy};

    track_windows(b, backend, clip, &request, result, 1); /* warms up */
    apart = track_windows(b, backend, clip, &request, result, 0);
    ahead = track_windows(b, backend, clip, &request, result, 1);
    printf("{\"size\": \"%s\", \"precision\": \"%s\", \"path\": \"%s\", \"queries\": %d, "
           "\"windows_per_s\": %.1f, \"windows_per_s_ahead\": %.1f}\n",
           b->gpu->shape->name, b->options.precision == TT_FP16 ? "fp16" : "fp32",
           b->options.arch ? b->options.arch : "native", b->queries, apart, ahead);
    free(rgb);
    free(frame);
    free(xy);
    free(supports);
    free(result);
}

int main(int argc, char **argv)
{
    struct bench b = {.weights = argc > 1 ? argv[1] : NULL,
                      .options = {.precision = TT_FP16, .arch = KERN_K16 ? NULL : "sm_75"},
                      .queries = 256,
                      .runs = 15};
    struct tt_backend *backend;
    struct tt_weights *weights;
    size_t before, after, total;
    struct tt_error err;
    void *formula;
    int planned;

    if (!parse(&b, argc, argv)) {
        fprintf(stderr,
                "usage: gpubench WEIGHTS [fp16|fp32] [--queries N] [--tile QUERIES,FRAMES] [--runs N] "
                "[--range] [--no-graphs] [--windows] [--volumes QUERIES]\n");
        return 2;
    }
    weights = open_weights(b.weights, &formula);
    check(cudaFree(NULL), "context");
    check(cudaMemGetInfo(&before, &total), "memory");
    must(tt_backend_cuda.open(&backend, &b.options, weights, &err), &err);
    check(cudaMemGetInfo(&after, &total), "memory");
    b.gpu = tt_cuda_gpu(backend);
    planned = tt_backend_cuda.plan(backend)->volume_queries;
    if (!b.volume_queries || b.volume_queries > planned)
        b.volume_queries = planned;
    b.gpu->no_graphs = b.no_graphs;
    make_inputs(&b);
    if (b.windows)
        measure_windows(&b, backend);
    else
        measure(&b, backend, before - after);
    tt_backend_cuda.close(backend);
    tt_weights_close(weights);
    free(formula);
    return 0;
}

/* tests/kernels/goldenkern.c GOLDEN WEIGHTS [fp16]: the CUDA backend against tensors that the public code
 * wrote.
 *
 * WEIGHTS: a weight file, or "base:SEED" or "small:SEED" for weights from the formula. Features and supports
 * within 1e-4 of their length, tracks within 0.02 px and logits within 0.02 in every pass; the same bits
 * twice; within 0.01 px with other tiles and for each query point alone. In FP16: features and supports
 * within 2e-3 (twice that with weights from the formula, whose features multiply rounding four times as much:
 * 4e-6 against 1e-6 in FP32), points that the golden tensors call visible, or all where they call none so,
 * within 0.1 px (median) and 0.5 px (99th percentile), at most 0.5 % of the visibility flags flip, 0.05 px
 * between tiles. Then times: features of the clip, tracking of 256 points.
 */
#include "cuda/backend.h"
#include "cuda/gpu.h"
#include "tests/golden/golden.h"

#include <cuda_runtime_api.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { GRID = 16, SKIPPED = 77 };

static int fp16;

/* Features are fetched into one buffer. */
struct fetch {
    struct tt_backend *backend;
    float *map; /* of the largest level */
};

static const float *fetch_map(void *context, int frame, int level)
{
    const struct fetch *f = context;
    struct tt_error err;

    golden_must(tt_cuda_features(f->backend, frame, level, f->map, &err), &err);
    return f->map;
}

static double feature_bound(const struct golden *g)
{
    return !fp16 ? 1e-4 : g->formula ? 4e-3 : 2e-3;
}

static void check_features(const struct golden *g, struct tt_backend *b)
{
    struct fetch f = {b, golden_need(malloc(TT_FEATURE_FLOATS * sizeof *f.map), "features")};

    golden_features(g, fetch_map, &f, feature_bound(g));
    free(f.map);
}

static int by_value(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;

    return (x > y) - (x < y);
}

static double sigmoid(double x)
{
    return 1.0 / (1.0 + exp(-x));
}

static int visible(double occlusion, double expected)
{
    return (1.0 - sigmoid(occlusion)) * (1.0 - sigmoid(expected)) > 0.5;
}

/* Of each pass: distances of points that the golden tensors call visible (of all where they call none so),
 * and flags that flip. */
static void check_tracks_f16(const struct golden *g, const struct tt_estimate *stages)
{
    size_t count = (size_t)(g->queries * g->clip.frames);
    double *distance = golden_need(malloc(count * sizeof *distance), "distances");

    for (int pass = 0; pass <= TT_REFINEMENTS; pass++) {
        const struct tt_estimate *ours = stages + (size_t)pass * count;
        struct tt_estimate *theirs = golden_estimates(g, pass);
        char name[48];
        size_t n = 0, flips = 0, all = 0;

        for (size_t i = 0; i < count; i++)
            all += (size_t)visible(theirs[i].occlusion, theirs[i].expected_dist);
        for (size_t i = 0; i < count; i++) {
            int seen = visible(theirs[i].occlusion, theirs[i].expected_dist);

            flips += (size_t)(seen != visible(ours[i].occlusion, ours[i].expected_dist));
            if (seen || !all)
                distance[n++] = hypot(ours[i].x - theirs[i].x, ours[i].y - theirs[i].y);
        }
        qsort(distance, n, sizeof *distance, by_value);
        snprintf(name, sizeof name, "iter%d median px of %zu", pass, n);
        golden_bounded(name, n ? distance[n / 2] : 0, 0.1);
        snprintf(name, sizeof name, "iter%d 99th percentile px", pass);
        golden_bounded(name, n ? distance[n * 99 / 100] : 0, 0.5);
        snprintf(name, sizeof name, "iter%d flags that flip", pass);
        golden_bounded(name, (double)flips / (double)count, 0.005);
        free(theirs);
    }
    free(distance);
}

static void run(struct tt_backend *b, const struct golden *g, int first, int queries, float *supports,
                struct tt_estimate *stages, struct tt_estimate *result)
{
    struct tt_error err;
    struct tt_track_request r = {.queries = queries,
                                 .supports = supports + (size_t)first * TT_SUPPORT_FLOATS,
                                 .query_frame = g->frame + first,
                                 .query_xy = g->xy + 2 * first,
                                 .stages = stages};

    golden_must(
        tt_backend_cuda.sample(b, queries, g->frame + first, g->xy + 2 * first, (void *)r.supports, &err),
        &err);
    golden_must(tt_backend_cuda.track(b, &r, result, &err), &err);
}

static struct tt_backend *open_with(const struct golden *g, int queries, int frames)
{
    const struct tt_backend_options options = {
        .tile = {queries, frames}, .precision = fp16 ? TT_FP16 : TT_FP32, .arch = KERN_K16 ? NULL : "sm_75"};
    struct tt_backend *b;
    struct tt_error err;

    golden_must(tt_backend_cuda.open(&b, &options, g->weights, &err), &err);
    golden_must(tt_backend_cuda.features(b, &g->clip, 0, &err), &err);
    return b;
}

static void check_tiles(const struct golden *g, float *supports, const struct tt_estimate *whole)
{
    size_t count = (size_t)(g->queries * g->clip.frames);
    struct tt_estimate *other = golden_need(malloc(count * sizeof *other), "tracks");
    struct tt_backend *b = open_with(g, 5, 3);

    run(b, g, 0, g->queries, supports, NULL, other);
    golden_largest("tiles of 5 points, 3 frames", (float *)other, (const float *)whole, count * 4,
                   fp16 ? 0.05 : 0.01);
    for (int q = 0; q < g->queries; q++)
        run(b, g, q, 1, supports, NULL, other + q * g->clip.frames);
    golden_largest("each point alone", (float *)other, (const float *)whole, count * 4, fp16 ? 0.05 : 0.01);
    tt_backend_cuda.close(b);
    free(other);
}

static double now_ms(void)
{
    struct timespec t;

    clock_gettime(CLOCK_MONOTONIC, &t);
    return 1e3 * (double)t.tv_sec + 1e-6 * (double)t.tv_nsec;
}

static int run_features(struct tt_gpu *gpu, const struct golden *g, const uint8_t *rgb, int queries)
{
    int error = 0;

    (void)queries;
    for (int f = 0, n; f < g->clip.frames && !error; f += n) {
        n = g->clip.frames - f < gpu->frame_tile ? g->clip.frames - f : gpu->frame_tile;
        error = tt_gpu_features(gpu, rgb + (size_t)f * TT_FRAME_BYTES, f, n);
    }
    return error;
}

static int run_initialise(struct tt_gpu *gpu, const struct golden *g, const uint8_t *rgb, int queries)
{
    (void)rgb;
    return tt_gpu_run(gpu, TT_GPU_INITIALISE, queries, g->clip.frames);
}

static int run_refine(struct tt_gpu *gpu, const struct golden *g, const uint8_t *rgb, int queries)
{
    int error = 0;

    (void)rgb;
    for (int i = 0; i < TT_REFINEMENTS && !error; i++)
        error = tt_gpu_run(gpu, TT_GPU_REFINE, queries, g->clip.frames);
    return error;
}

/* Of the device alone, clip and supports being there; medians of 9 by events. Before it, a tile of `queries`
 * points must have been tracked; features come last, since they overwrite what tracking needs. */
static void measure_device(struct tt_backend *b, const struct golden *g, int queries, int graphs)
{
    static const struct {
        const char *name;
        int (*run)(struct tt_gpu *, const struct golden *, const uint8_t *, int);
    } stages[] = {{"initialise", run_initialise}, {"refine", run_refine}, {"features", run_features}};
    enum { RUNS = 9 };
    struct tt_gpu *gpu = tt_cuda_gpu(b);
    size_t bytes = (size_t)g->clip.frames * TT_FRAME_BYTES;
    uint8_t *rgb = NULL;
    double total = 0;
    cudaEvent_t start, stop;
    int error = cudaMalloc((void **)&rgb, bytes);

    gpu->no_graphs = !graphs;
    error |= cudaMemcpy(rgb, g->clip.rgb, bytes, cudaMemcpyHostToDevice);
    error |= cudaEventCreate(&start) | cudaEventCreate(&stop);
    for (int s = 0; s < 3 && !error; s++) {
        double ms[RUNS];

        for (int i = 0; i < RUNS + 1 && !error; i++) {
            float t = 0;

            error |= cudaEventRecord(start, (cudaStream_t)gpu->stream);
            error |= stages[s].run(gpu, g, rgb, queries);
            error |= cudaEventRecord(stop, (cudaStream_t)gpu->stream) | cudaEventSynchronize(stop);
            error |= cudaEventElapsedTime(&t, start, stop);
            ms[i ? i - 1 : 0] = t;
        }
        qsort(ms, RUNS, sizeof *ms, by_value);
        total += ms[RUNS / 2];
        printf("device %s %d points %-10s %8.3f ms%s\n", fp16 ? "fp16" : "fp32", queries, stages[s].name,
               ms[RUNS / 2], graphs ? "" : " without graphs");
    }
    printf("device %s %d points %-10s %8.3f ms%s\n", fp16 ? "fp16" : "fp32", queries, "all", total,
           graphs ? "" : " without graphs");
    if (error)
        golden_need(NULL, cudaGetErrorString((cudaError_t)error));
    cudaEventDestroy(start);
    cudaEventDestroy(stop);
    cudaFree(rgb);
}

/* 256 points of a grid in the first frame; medians of 7. Transfers of clip and supports are within the times.
 */
static void measure(const struct golden *g)
{
    enum { N = GRID * GRID, RUNS = 7 };
    struct golden grid = *g;
    struct tt_backend *b = open_with(g, N, 0);
    float *supports = golden_need(malloc((size_t)N * TT_SUPPORT_FLOATS * sizeof *supports), "supports");
    struct tt_estimate *result =
        golden_need(malloc((size_t)N * (size_t)g->clip.frames * sizeof *result), "result");
    double features[RUNS], track[RUNS];
    struct tt_error err;

    grid.frame = golden_need(calloc(N, sizeof *grid.frame), "grid");
    grid.xy = golden_need(malloc(2 * N * sizeof *grid.xy), "grid");
    for (int i = 0; i < N; i++)
        grid.xy[2 * i] = (float)(i % GRID * 16 + 8), grid.xy[2 * i + 1] = (float)(i / GRID * 16 + 8);
    run(b, &grid, 0, N, supports, NULL, result);
    for (int i = 0; i < RUNS; i++) {
        struct tt_track_request r = {
            .queries = N, .supports = supports, .query_frame = grid.frame, .query_xy = grid.xy};
        double start = now_ms();

        golden_must(tt_backend_cuda.features(b, &g->clip, 0, &err), &err);
        features[i] = now_ms() - start;
        start = now_ms();
        golden_must(tt_backend_cuda.track(b, &r, result, &err), &err);
        track[i] = now_ms() - start;
    }
    qsort(features, RUNS, sizeof *features, by_value);
    qsort(track, RUNS, sizeof *track, by_value);
    printf("%d frames, %d points: features %.2f ms, track %.2f ms\n%s\n", g->clip.frames, N,
           features[RUNS / 2], track[RUNS / 2], tt_backend_cuda.describe(b));
    measure_device(b, g, N, 0);
    measure_device(b, g, N, 1);
    tt_backend_cuda.close(b);
    free(grid.frame);
    free(grid.xy);
    free(supports);
    free(result);
}

int main(int argc, char **argv)
{
    struct golden g = {0};
    struct tt_backend *b;
    struct tt_estimate *stages, *again;
    float *supports;
    size_t count;

    fp16 = argc == 4 && !strcmp(argv[3], "fp16");
    if (argc < 3 || !golden_there(argv[1], argv[2])) {
        printf("skipped: usage: goldenkern GOLDEN WEIGHTS [fp16], and both must be there\n");
        return SKIPPED;
    }
    golden_open(&g, argv[1], argv[2]);
    count = (size_t)(g.queries * g.clip.frames);
    supports = golden_need(malloc((size_t)g.queries * TT_SUPPORT_FLOATS * sizeof *supports), "supports");
    stages = golden_need(malloc((1 + TT_REFINEMENTS) * count * sizeof *stages), "stages");
    again = golden_need(malloc(count * sizeof *again), "tracks");
    b = open_with(&g, 0, 0);
    check_features(&g, b);
    run(b, &g, 0, g.queries, supports, stages, again);
    golden_supports(&g, supports, feature_bound(&g));
    if (fp16)
        check_tracks_f16(&g, stages);
    else
        golden_stages(&g, stages, 0.02);
    run(b, &g, 0, g.queries, supports, NULL, again);
    golden_largest("the same bits twice", (float *)again, (float *)(stages + TT_REFINEMENTS * count),
                   count * 4, 0.0);
    tt_backend_cuda.close(b);
    check_tiles(&g, supports, again);
    measure(&g);
    free(again);
    free(stages);
    free(supports);
    golden_close(&g);
    printf("%d passed, %d failed\n", golden_passed(), golden_failed());
    return golden_failed() != 0;
}

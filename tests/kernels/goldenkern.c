/* tests/kernels/goldenkern.c GOLDEN WEIGHTS [fp16]: the CUDA backend against tensors that the public code
 * wrote.
 *
 * WEIGHTS: a weight file, or "base:SEED" for weights from the formula. Features and supports within 1e-4 of
 * their length, tracks within 0.02 px and logits within 0.02 in every pass; the same bits twice; within 0.01
 * px with other tiles and for each query point alone. In FP16: features and supports within
 * 2e-3, points that the golden tensors call visible within 0.1 px (median) and 0.5 px (99th percentile), at
 * most 0.5 % of the visibility flags flip, 0.05 px between tiles. Then times: features of the clip, tracking
 * of 256 points.
 */
#include "cuda/backend.h"
#include "core/formula.h"
#include "cuda/gpu.h"

#include <cuda_runtime_api.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

enum { GRID = 16, SKIPPED = 77 };

struct golden {
    struct tt_weights *file, *weights;
    void *formula;
    struct tt_clip clip;
    int queries;
    int *frame;
    float *xy;
};

static int passed, failed, fp16;

static void die(const char *what, const char *text)
{
    fprintf(stderr, "%s: %s\n", what, text);
    exit(1);
}

static void *need(void *p)
{
    if (!p)
        die("goldenkern", "no memory, or a golden tensor is missing");
    return p;
}

static void must(enum tt_status status, const struct tt_error *err)
{
    if (status)
        die(tt_status_name(status), err->text);
}

static float *tensor(const struct golden *g, const char *name)
{
    return need(tt_tensor_to_f32(need((void *)tt_weights_find(g->file, name))));
}

/* relative: of the length of theirs; otherwise the largest difference. */
static void verdict(const char *what, const float *ours, const float *theirs, size_t n, int relative,
                    double bound)
{
    double difference = 0, length = 0, largest = 0, reached;
    int bad = 0;

    for (size_t i = 0; i < n; i++) {
        double d = (double)ours[i] - (double)theirs[i];

        bad |= !isfinite(d);
        difference += d * d;
        length += (double)theirs[i] * (double)theirs[i];
        largest = fabs(d) > largest ? fabs(d) : largest;
    }
    reached = relative ? sqrt(difference / length) : largest;
    bad |= !(reached <= bound);
    bad ? failed++ : passed++;
    printf("%-4s %-28s %s %.2e of %.0e\n", bad ? "FAIL" : "ok", what, relative ? "relative" : "largest ",
           reached, bound);
}

static void check_features(const struct golden *g, struct tt_backend *b)
{
    static const char *const names[TT_LEVELS] = {"features.hires", "features.lowres", "features.highest"};
    const struct tt_tensor *frames = need((void *)tt_weights_find(g->file, "features.frames"));
    struct tt_error err;

    for (int level = 0; level < TT_LEVELS; level++) {
        const struct tt_tensor *t = need((void *)tt_weights_find(g->file, names[level]));
        int size = tt_level_shapes[level].size, channels = tt_level_shapes[level].channels;
        int step = size / (int)t->shape[1];
        float *theirs = tensor(g, names[level]), *ours = need(malloc((size_t)t->count * sizeof *ours)),
              *at = ours;
        float *map = need(malloc((size_t)(size * size * channels) * sizeof *map));

        for (int64_t i = 0; i < frames->count; i++) {
            int64_t frame;

            memcpy(&frame, (const char *)frames->data + 8 * i, sizeof frame);
            must(tt_cuda_features(b, (int)frame, level, map, &err), &err);
            for (int y = 0; y < size; y += step)
                for (int x = 0; x < size; x += step, at += channels)
                    memcpy(at, map + (y * size + x) * channels, (size_t)channels * sizeof *at);
        }
        verdict(names[level], ours, theirs, (size_t)t->count, 1, fp16 ? 2e-3 : 1e-4);
        free(theirs);
        free(ours);
        free(map);
    }
}

static void check_supports(const struct golden *g, const float *supports)
{
    static const char *const names[TT_LEVELS] = {"query.hires_supp", "query.lowres_supp",
                                                 "query.highest_supp"};

    for (int level = 0, offset = 0; level < TT_LEVELS; level++) {
        const struct tt_tensor *t = need((void *)tt_weights_find(g->file, names[level]));
        size_t floats = (size_t)(TT_SUPPORT_AREA * tt_level_shapes[level].channels);
        float *theirs = tensor(g, names[level]), *ours = need(malloc((size_t)t->count * sizeof *ours));

        for (int64_t q = 0; q < t->shape[0]; q++)
            memcpy(ours + (size_t)q * floats, supports + (size_t)q * TT_SUPPORT_FLOATS + offset,
                   floats * sizeof *ours);
        verdict(names[level], ours, theirs, (size_t)t->count, 1, fp16 ? 2e-3 : 1e-4);
        offset += (int)floats;
        free(theirs);
        free(ours);
    }
}

static void check_stages(const struct golden *g, const struct tt_estimate *stages)
{
    size_t count = (size_t)(g->queries * g->clip.frames);
    float *part = need(malloc(4 * count * sizeof *part));

    for (int pass = 0; pass <= TT_REFINEMENTS; pass++) {
        char name[48];
        float *tracks, *occlusion, *expected;

        snprintf(name, sizeof name, "iter%d.tracks", pass);
        tracks = tensor(g, name);
        for (size_t i = 0; i < count; i++)
            part[2 * i] = stages[pass * count + i].x, part[2 * i + 1] = stages[pass * count + i].y;
        verdict(name, part, tracks, 2 * count, 0, 0.02);
        snprintf(name, sizeof name, "iter%d.occlusion", pass);
        occlusion = tensor(g, name);
        snprintf(name, sizeof name, "iter%d.expected_dist", pass);
        expected = tensor(g, name);
        for (size_t i = 0; i < count; i++) {
            part[2 * i] = stages[pass * count + i].occlusion,
                     part[2 * i + 1] = stages[pass * count + i].expected_dist;
            part[2 * count + 2 * i] = occlusion[i], part[2 * count + 2 * i + 1] = expected[i];
        }
        snprintf(name, sizeof name, "iter%d logits", pass);
        verdict(name, part, part + 2 * count, 2 * count, 0, 0.02);
        free(tracks);
        free(occlusion);
        free(expected);
    }
    free(part);
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

static void bounded(const char *what, double reached, double bound)
{
    int bad = !(reached <= bound);

    bad ? failed++ : passed++;
    printf("%-4s %-28s %.3g of %.3g\n", bad ? "FAIL" : "ok", what, reached, bound);
}

/* Of each pass: distances of points that the golden tensors call visible, and flags that flip. */
static void check_tracks_f16(const struct golden *g, const struct tt_estimate *stages)
{
    size_t count = (size_t)(g->queries * g->clip.frames);
    double *distance = need(malloc(count * sizeof *distance));

    for (int pass = 0; pass <= TT_REFINEMENTS; pass++) {
        const struct tt_estimate *ours = stages + (size_t)pass * count;
        char name[48];
        float *tracks, *occlusion, *expected;
        size_t n = 0, flips = 0;

        snprintf(name, sizeof name, "iter%d.tracks", pass);
        tracks = tensor(g, name);
        snprintf(name, sizeof name, "iter%d.occlusion", pass);
        occlusion = tensor(g, name);
        snprintf(name, sizeof name, "iter%d.expected_dist", pass);
        expected = tensor(g, name);
        for (size_t i = 0; i < count; i++) {
            int seen = visible(occlusion[i], expected[i]);

            flips += (size_t)(seen != visible(ours[i].occlusion, ours[i].expected_dist));
            if (seen)
                distance[n++] = hypot(ours[i].x - tracks[2 * i], ours[i].y - tracks[2 * i + 1]);
        }
        qsort(distance, n, sizeof *distance, by_value);
        snprintf(name, sizeof name, "iter%d median px of %zu", pass, n);
        bounded(name, n ? distance[n / 2] : 0, 0.1);
        snprintf(name, sizeof name, "iter%d 99th percentile px", pass);
        bounded(name, n ? distance[n * 99 / 100] : 0, 0.5);
        snprintf(name, sizeof name, "iter%d flags that flip", pass);
        bounded(name, (double)flips / (double)count, 0.005);
        free(tracks);
        free(occlusion);
        free(expected);
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

    must(tt_backend_cuda.sample(b, queries, g->frame + first, g->xy + 2 * first, (void *)r.supports, &err),
         &err);
    must(tt_backend_cuda.track(b, &r, result, &err), &err);
}

static struct tt_backend *open_with(const struct golden *g, int queries, int frames)
{
    const struct tt_backend_options options = {
        .tile = {queries, frames}, .precision = fp16 ? TT_FP16 : TT_FP32, .arch = KERN_K16 ? NULL : "sm_75"};
    struct tt_backend *b;
    struct tt_error err;

    must(tt_backend_cuda.open(&b, &options, g->weights, &err), &err);
    must(tt_backend_cuda.features(b, &g->clip, 0, &err), &err);
    return b;
}

static void check_tiles(const struct golden *g, float *supports, const struct tt_estimate *whole)
{
    size_t count = (size_t)(g->queries * g->clip.frames);
    struct tt_estimate *other = need(malloc(count * sizeof *other));
    struct tt_backend *b = open_with(g, 5, 3);

    run(b, g, 0, g->queries, supports, NULL, other);
    verdict("tiles of 5 points, 3 frames", (float *)other, (const float *)whole, count * 4, 0,
            fp16 ? 0.05 : 0.01);
    for (int q = 0; q < g->queries; q++)
        run(b, g, q, 1, supports, NULL, other + q * g->clip.frames);
    verdict("each point alone", (float *)other, (const float *)whole, count * 4, 0, fp16 ? 0.05 : 0.01);
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
        die("device", cudaGetErrorString((cudaError_t)error));
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
    float *supports = need(malloc((size_t)N * TT_SUPPORT_FLOATS * sizeof *supports));
    struct tt_estimate *result = need(malloc((size_t)N * (size_t)g->clip.frames * sizeof *result));
    double features[RUNS], track[RUNS];
    struct tt_error err;

    grid.frame = need(calloc(N, sizeof *grid.frame));
    grid.xy = need(malloc(2 * N * sizeof *grid.xy));
    for (int i = 0; i < N; i++)
        grid.xy[2 * i] = (float)(i % GRID * 16 + 8), grid.xy[2 * i + 1] = (float)(i / GRID * 16 + 8);
    run(b, &grid, 0, N, supports, NULL, result);
    for (int i = 0; i < RUNS; i++) {
        struct tt_track_request r = {
            .queries = N, .supports = supports, .query_frame = grid.frame, .query_xy = grid.xy};
        double start = now_ms();

        must(tt_backend_cuda.features(b, &g->clip, 0, &err), &err);
        features[i] = now_ms() - start;
        start = now_ms();
        must(tt_backend_cuda.track(b, &r, result, &err), &err);
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

static void load(struct golden *g, const char *golden, const char *weights)
{
    struct tt_error err;
    const struct tt_tensor *clip;
    float *tyx;
    size_t size;

    must(tt_tensors_open(&g->file, golden, &err), &err);
    if (!strncmp(weights, "base:", 5)) {
        g->formula = tt_formula_weights(&tt_model_base, strtoull(weights + 5, NULL, 10), &size);
        must(tt_weights_from_memory(&g->weights, weights, g->formula, size, &err), &err);
    } else {
        must(tt_weights_open(&g->weights, weights, &err), &err);
    }
    clip = need((void *)tt_weights_find(g->file, "clip"));
    g->clip.rgb = clip->data;
    g->clip.frames = (int)clip->shape[0];
    tyx = tensor(g, "queries_tyx");
    g->queries = (int)tt_weights_find(g->file, "queries_tyx")->shape[0];
    g->frame = need(malloc((size_t)g->queries * sizeof *g->frame));
    g->xy = need(malloc((size_t)g->queries * 2 * sizeof *g->xy));
    for (int q = 0; q < g->queries; q++) {
        g->frame[q] = (int)lrintf(tyx[3 * q]);
        g->xy[2 * q] = tyx[3 * q + 2];
        g->xy[2 * q + 1] = tyx[3 * q + 1];
    }
    free(tyx);
}

int main(int argc, char **argv)
{
    struct golden g = {0};
    struct tt_backend *b;
    struct tt_estimate *stages, *again;
    float *supports;
    size_t count;

    fp16 = argc == 4 && !strcmp(argv[3], "fp16");
    if (argc < 3 || access(argv[1], R_OK) != 0) {
        printf("skipped: usage: goldenkern GOLDEN WEIGHTS [fp16], and both must be there\n");
        return SKIPPED;
    }
    load(&g, argv[1], argv[2]);
    count = (size_t)(g.queries * g.clip.frames);
    supports = need(malloc((size_t)g.queries * TT_SUPPORT_FLOATS * sizeof *supports));
    stages = need(malloc((1 + TT_REFINEMENTS) * count * sizeof *stages));
    again = need(malloc(count * sizeof *again));
    b = open_with(&g, 0, 0);
    check_features(&g, b);
    run(b, &g, 0, g.queries, supports, stages, again);
    check_supports(&g, supports);
    if (fp16)
        check_tracks_f16(&g, stages);
    else
        check_stages(&g, stages);
    run(b, &g, 0, g.queries, supports, NULL, again);
    verdict("the same bits twice", (float *)again, (float *)(stages + TT_REFINEMENTS * count), count * 4, 0,
            0.0);
    tt_backend_cuda.close(b);
    check_tiles(&g, supports, again);
    measure(&g);
    free(again);
    free(stages);
    free(supports);
    free(g.frame);
    free(g.xy);
    tt_weights_close(g.weights);
    tt_weights_close(g.file);
    free(g.formula);
    printf("%d passed, %d failed\n", passed, failed);
    return failed != 0;
}

/* tests/kernels/benchkern.c [--json] [GROUP...]: how fast the device can be, and how fast the kernels are.
 *
 * First the ceilings (tensor-core and FP32 instructions on registers, the warp tile on cached operands, a
 * device copy), then every kernel at the sizes of 47 frames and 256 query points. Times are medians of
 * events. Groups, all where none is named: ceilings small f32 conv product track embed mixes. --json: one
 * JSON object a line, with `name`, `ms`, `tflops` and `gbs` (0 where nothing is counted); the first has
 * `device` and `path`.
 */
#include "tests/kernels/bench.h"
#include "tests/kernels/ceilings.h"
#include "tests/kernels/kern.h"

#include <cuda_runtime_api.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { SAMPLES = 15, LAUNCHES = 4 };

static double ceiling_tflops;
static int json;

void bench_against(double tflops)
{
    ceiling_tflops = tflops;
}

static int by_value(const void *a, const void *b)
{
    const float x = *(const float *)a, y = *(const float *)b;
    return (x > y) - (x < y);
}

static double median_ms(const struct bench *b)
{
    cudaEvent_t start, stop;
    float ms[SAMPLES];
    int set = 0;
    kern_status(cudaEventCreate(&start), "event");
    kern_status(cudaEventCreate(&stop), "event");
    for (int i = 0; i < SAMPLES + 2; i++) {
        kern_status(cudaEventRecord(start, NULL), "event");
        for (int k = 0; k < LAUNCHES; k++)
            kern_status(b->launch(b->context, set++ % BENCH_SETS, NULL), "launch");
        kern_status(cudaEventRecord(stop, NULL), "event");
        kern_status(cudaEventSynchronize(stop), "kernel");
        kern_status(cudaEventElapsedTime(&ms[i < 2 ? 0 : i - 2], start, stop), "event");
    }
    cudaEventDestroy(start);
    cudaEventDestroy(stop);
    qsort(ms, SAMPLES, sizeof(*ms), by_value);
    return ms[SAMPLES / 2] / LAUNCHES;
}

static void print_json(const char *name, double ms, double tflops, double gbs)
{
    printf("{\"name\": \"%s\", \"ms\": %.6f, \"tflops\": %.3f, \"gbs\": %.3f}\n", name, ms, tflops, gbs);
    fflush(stdout);
}

void bench_run(const struct bench *b, const char *name, ...)
{
    char text[96];
    va_list args;
    va_start(args, name);
    vsnprintf(text, sizeof(text), name, args);
    va_end(args);
    const double ms = median_ms(b), tflops = b->flop / ms * 1e-9, gbs = b->bytes / ms * 1e-6;
    if (json) {
        print_json(text, ms, tflops, gbs);
        return;
    }
    printf("%-56s %8.4f ms %7.1f TFLOP/s %7.0f GB/s", text, ms, tflops, gbs);
    if (ceiling_tflops > 0.0 && b->flop > 0.0)
        printf("  %3.0f%%", 100.0 * tflops / ceiling_tflops);
    printf("\n");
    fflush(stdout);
}

struct ceiling_context {
    enum ceiling which;
    int blocks, warps, steps;
    const void *packed;
    float *sink;
};

static int launch_ceiling(const void *context, int set, void *stream)
{
    const struct ceiling_context *c = context;
    (void)set;
    ceiling_run(c->which, c->blocks, c->warps, c->steps, c->packed, c->sink, stream);
    return cudaGetLastError();
}

struct copy_context {
    unsigned char *to, *from;
    size_t bytes;
};

static int launch_copy(const void *context, int set, void *stream)
{
    const struct copy_context *c = context;
    return ceiling_copy(c->to + set * c->bytes, c->from + set * c->bytes, c->bytes, stream);
}

/* Prints the ceilings; fills in their TFLOP/s, the best over the warps tried. */
static void measure_ceilings(double tflops[CEILINGS], int units)
{
    uint16_t *packed = kern_device(1 << 16);
    float *sink = kern_device(16);
    char name[96];
    kern_status(fill_f16(packed, 1 << 15, 0.25f, 1, NULL), "fill");
    for (int i = 0; i < CEILINGS; i++) {
        const int tile = i >= CEILING_TILE_K8 && i <= CEILING_SHARED_K16;
        tflops[i] = 0.0;
        for (int warps = 4; warps <= (tile ? 4 : 16); warps *= 2) {
            const struct ceiling_context c = {
                (enum ceiling)i, units * (tile ? 2 : 1) * 4, warps, 2048, packed, sink};
            struct bench b = {.launch = launch_ceiling, .context = &c};
            b.flop = ceiling_run(c.which, c.blocks, c.warps, c.steps, packed, sink, NULL);
            if (b.flop == 0.0)
                continue;
            const double t = b.flop / median_ms(&b) * 1e-9;
            tflops[i] = t > tflops[i] ? t : tflops[i];
            if (!json)
                printf("ceiling: %-40s %2d warps a block %28.1f TFLOP/s\n", ceiling_name(c.which), warps, t);
        }
        if (json && tflops[i] > 0.0) {
            snprintf(name, sizeof(name), "ceiling: %s", ceiling_name((enum ceiling)i));
            print_json(name, 0.0, tflops[i], 0.0);
        }
    }
    struct copy_context copy = {kern_device((size_t)4 << 28), kern_device((size_t)4 << 28), (size_t)1 << 28};
    kern_status(fill_f16((uint16_t *)copy.from, (size_t)1 << 29, 1.0f, 7, NULL), "fill");
    const struct bench b = {.bytes = 2.0 * (double)copy.bytes, .launch = launch_copy, .context = &copy};
    bench_run(&b, "ceiling: device copy, bytes read and written");
    kern_free_all();
}

/* Whether a group is to run: it is named, or none is. */
static int wanted(int argc, char **argv, const char *group)
{
    for (int i = 1; i < argc; i++)
        if (!strcmp(argv[i], group))
            return 1;
    return argc < 2;
}

int main(int argc, char **argv)
{
    struct cudaDeviceProp device;
    double tflops[CEILINGS] = {0.0};
    json = argc > 1 && !strcmp(argv[1], "--json");
    argc -= json, argv += json;
    kern_status(cudaGetDeviceProperties(&device, 0), "device");
    if (json)
        printf("{\"device\": \"%s\", \"path\": \"%s\"}\n", device.name, KERN_K16 ? "native" : "sm_75");
    else
        printf("%s, sm_%d%d, %d SMs, %.0f MB L2\n", device.name, device.major, device.minor,
               device.multiProcessorCount, device.l2CacheSize / 1e6);
    if (wanted(argc, argv, "ceilings"))
        measure_ceilings(tflops, device.multiProcessorCount);
    bench_against(tflops[CEILING_FFMA]);
    if (wanted(argc, argv, "small"))
        bench_small();
    if (wanted(argc, argv, "f32")) {
        bench_conv_f32();
        bench_track_f32();
    }
    for (int k = 0; k <= KERN_K16; k++) {
        const enum tt_k_mma mma = k ? TT_MMA_K16 : TT_MMA_K8;
        bench_against(tflops[k ? CEILING_MMA_K16 : CEILING_MMA_K8]);
        if (wanted(argc, argv, "conv"))
            bench_conv_f16(mma);
        if (wanted(argc, argv, "product"))
            bench_product_f16(mma);
        if (wanted(argc, argv, "track"))
            bench_track_f16(mma);
        if (wanted(argc, argv, "embed"))
            bench_embed_f16(mma);
        if (wanted(argc, argv, "mixes"))
            bench_mixes(mma);
    }
    return 0;
}

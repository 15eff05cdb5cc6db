/* tests/kernels/record.c: what the CUDA backend says to the device, written down.
 *
 * Linked with everything under cuda/ and, in place of CUDA's runtime, with what is below and launching.c:
 * nothing runs, no GPU is needed. Goes through whole clips by the backend's table, in both sizes and
 * precisions, on an H200 and a T4, with the plan's tiles and with others, and prints a line for each call
 * that matters to the device, in order: launches with kernel, grid, block, shared memory and every argument;
 * copies, with a hash of what the host sends (weights among it); events, graphs, memory. Addresses are
 * offsets in the memory that they belong to; bytes that no member of an argument owns are left out. Two
 * builds that print the same say the same (same_code.py). Fails where a call of the backend does.
 *
 * record PARAMETERS: a file of lines: mangled name of a kernel, sizes of its parameters in bytes.
 */
#include "core/formula.h"
#include "cuda/backend.h"
#include "cuda/kernels.h"
#include "tests/kernels/launching.h"

#include <cuda_runtime_api.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { PARAMETERS = 16, MEMORIES = 16, QUERIES = 100 };

/* ---- memory: the device's is never touched ---- */

static struct memory {
    const char *kind;
    int number;
    const char *at;
    size_t bytes;
} memories[MEMORIES];
static int memories_made;
static char *const device_memory = (char *)0x100000000000;
static size_t device_used;

static void remember(const char *kind, void *at, size_t bytes)
{
    if (memories_made == MEMORIES)
        abort();
    memories[memories_made] = (struct memory){kind, memories_made, at, bytes};
    memories_made++;
}

static const struct memory *memory_of(const void *p)
{
    for (int i = 0; i < memories_made; i++)
        if ((const char *)p >= memories[i].at && (const char *)p < memories[i].at + memories[i].bytes)
            return &memories[i];
    return NULL;
}

static void print_address(const void *p)
{
    const struct memory *m = memory_of(p);

    if (m)
        printf(" %s%d+%zx", m->kind, m->number, (size_t)((const char *)p - m->at));
    else
        printf(" %s", p ? "host" : "null");
}

static uint64_t hash(const void *from, size_t bytes)
{
    const unsigned char *p = from;
    uint64_t h = UINT64_C(14695981039346656037);

    for (size_t i = 0; i < bytes; i++)
        h = (h ^ p[i]) * UINT64_C(1099511628211);
    return h;
}

cudaError_t cudaMalloc(void **p, size_t bytes)
{
    *p = device_memory + device_used;
    device_used += (bytes + 4095) / 4096 * 4096;
    remember("device", *p, bytes);
    printf("malloc %zu\n", bytes);
    return cudaSuccess;
}

cudaError_t cudaMallocHost(void **p, size_t bytes)
{
    *p = calloc(1, bytes);
    if (!*p)
        return cudaErrorMemoryAllocation;
    remember("pinned", *p, bytes);
    printf("malloc pinned %zu\n", bytes);
    return cudaSuccess;
}

cudaError_t cudaFree(void *p)
{
    if (p)
        printf("free"), print_address(p), printf("\n");
    return cudaSuccess;
}

cudaError_t cudaFreeHost(void *p)
{
    printf("free"), print_address(p), printf("\n");
    free(p);
    return cudaSuccess;
}

static void print_copy(const char *call, void *to, const void *from, size_t bytes, enum cudaMemcpyKind kind)
{
    printf("%s", call), print_address(to), print_address(from), printf(" %zu", bytes);
    if (kind == cudaMemcpyHostToDevice)
        printf(" %016llx", (unsigned long long)hash(from, bytes));
}

cudaError_t cudaMemcpy(void *to, const void *from, size_t bytes, enum cudaMemcpyKind kind)
{
    print_copy("copy", to, from, bytes, kind), printf("\n");
    return cudaSuccess;
}

/* ---- streams, events, graphs: numbers, from 1 ---- */

static int streams, events, graphs;

static void *numbered(int *made)
{
    return (void *)(intptr_t)++ * made;
}

static int number(const void *p)
{
    return (int)(intptr_t)p;
}

cudaError_t cudaMemcpyAsync(void *to, const void *from, size_t bytes, enum cudaMemcpyKind kind,
                            cudaStream_t stream)
{
    print_copy("copy", to, from, bytes, kind), printf(" stream %d\n", number(stream));
    return cudaSuccess;
}

cudaError_t cudaStreamCreateWithFlags(cudaStream_t *stream, unsigned flags)
{
    *stream = numbered(&streams);
    printf("make stream %d %u\n", number(*stream), flags);
    return cudaSuccess;
}

cudaError_t cudaStreamDestroy(cudaStream_t stream)
{
    printf("destroy stream %d\n", number(stream));
    return cudaSuccess;
}

cudaError_t cudaStreamSynchronize(cudaStream_t stream)
{
    printf("synchronise stream %d\n", number(stream));
    return cudaSuccess;
}

cudaError_t cudaEventCreateWithFlags(cudaEvent_t *event, unsigned flags)
{
    *event = numbered(&events);
    printf("make event %d %u\n", number(*event), flags);
    return cudaSuccess;
}

cudaError_t cudaEventDestroy(cudaEvent_t event)
{
    printf("destroy event %d\n", number(event));
    return cudaSuccess;
}

cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream)
{
    printf("record event %d stream %d\n", number(event), number(stream));
    return cudaSuccess;
}

cudaError_t cudaStreamWaitEvent(cudaStream_t stream, cudaEvent_t event, unsigned flags)
{
    printf("stream %d waits for event %d %u\n", number(stream), number(event), flags);
    return cudaSuccess;
}

cudaError_t cudaEventSynchronize(cudaEvent_t event)
{
    printf("host waits for event %d\n", number(event));
    return cudaSuccess;
}

cudaError_t cudaStreamBeginCapture(cudaStream_t stream, enum cudaStreamCaptureMode mode)
{
    printf("begin capture stream %d %d\n", number(stream), (int)mode);
    return cudaSuccess;
}

cudaError_t cudaStreamEndCapture(cudaStream_t stream, cudaGraph_t *graph)
{
    *graph = numbered(&graphs);
    printf("end capture stream %d graph %d\n", number(stream), number(*graph));
    return cudaSuccess;
}

cudaError_t cudaGraphInstantiate(cudaGraphExec_t *exec, cudaGraph_t graph, unsigned long long flags)
{
    *exec = (cudaGraphExec_t)graph;
    printf("instantiate graph %d %llu\n", number(graph), flags);
    return cudaSuccess;
}

cudaError_t cudaGraphDestroy(cudaGraph_t graph)
{
    (void)graph; /* the host's affair */
    return cudaSuccess;
}

cudaError_t cudaGraphExecDestroy(cudaGraphExec_t exec)
{
    printf("destroy graph %d\n", number(exec));
    return cudaSuccess;
}

cudaError_t cudaGraphLaunch(cudaGraphExec_t exec, cudaStream_t stream)
{
    printf("launch graph %d stream %d\n", number(exec), number(stream));
    return cudaSuccess;
}

/* ---- the device ---- */

static int major, minor;

cudaError_t cudaGetDeviceCount(int *n)
{
    *n = 1;
    return cudaSuccess;
}

cudaError_t cudaDriverGetVersion(int *version)
{
    *version = CUDART_VERSION;
    return cudaSuccess;
}

cudaError_t cudaRuntimeGetVersion(int *version)
{
    *version = CUDART_VERSION;
    return cudaSuccess;
}

cudaError_t cudaSetDevice(int device)
{
    printf("device %d\n", device);
    return cudaSuccess;
}

cudaError_t cudaGetDeviceProperties(struct cudaDeviceProp *p, int device)
{
    (void)device;
    memset(p, 0, sizeof *p);
    strcpy(p->name, "Recorder");
    p->totalGlobalMem = (size_t)16 << 30;
    p->l2CacheSize = 4 << 20;
    p->sharedMemPerMultiprocessor = 64 << 10;
    p->multiProcessorCount = 40;
    p->major = major, p->minor = minor;
    return cudaSuccess;
}

cudaError_t cudaDeviceGetByPCIBusId(int *device, const char *address)
{
    (void)device, (void)address;
    return cudaErrorInvalidDevice;
}

const char *cudaGetErrorString(cudaError_t error)
{
    static char text[16];

    snprintf(text, sizeof text, "error %d", (int)error);
    return text;
}

/* ---- launches ---- */

static struct {
    int count, bytes[PARAMETERS];
} parameters[LAUNCHING_KERNELS]; /* of each kernel */

/* Bytes of structs of kernels.h between or behind their members, which may hold anything; named as they are
 * in mangled names. */
#define BEHIND(type, member) (int)(offsetof(struct type, member) + sizeof(((struct type *)0)->member))
static const struct {
    const char *type;
    int from, to;
} holes[] = {
    {"13tt_k_conv_f32", BEHIND(tt_k_conv_f32, gelu), sizeof(struct tt_k_conv_f32)},
    {"13tt_k_conv_f16", BEHIND(tt_k_conv_f16, variant), sizeof(struct tt_k_conv_f16)},
    {"16tt_k_product_f16", BEHIND(tt_k_product_f16, n), sizeof(struct tt_k_product_f16)},
    {"12tt_k_mlp_f16", BEHIND(tt_k_mlp_f16, width), sizeof(struct tt_k_mlp_f16)},
    {"15tt_k_attend_f16", BEHIND(tt_k_attend_f16, width), sizeof(struct tt_k_attend_f16)},
    {"9tt_k_cost", BEHIND(tt_k_cost, row), sizeof(struct tt_k_cost)},
    {"14tt_k_embed_f16", BEHIND(tt_k_embed_f16, level[0].scale), offsetof(struct tt_k_embed_f16, level[1])},
    {"14tt_k_embed_f16", BEHIND(tt_k_embed_f16, level[1].scale), offsetof(struct tt_k_embed_f16, level[2])},
    {"14tt_k_embed_f16", BEHIND(tt_k_embed_f16, level[2].scale), offsetof(struct tt_k_embed_f16, state)},
    {"14tt_k_embed_f16", BEHIND(tt_k_embed_f16, out_row), sizeof(struct tt_k_embed_f16)},
    {"19tt_k_embed_base_f16", BEHIND(tt_k_embed_base_f16, level[0].scale),
     offsetof(struct tt_k_embed_base_f16, level[1])},
    {"19tt_k_embed_base_f16", BEHIND(tt_k_embed_base_f16, level[1].scale),
     offsetof(struct tt_k_embed_base_f16, level[2])},
    {"19tt_k_embed_base_f16", BEHIND(tt_k_embed_base_f16, level[2].scale),
     offsetof(struct tt_k_embed_base_f16, state)},
    {"19tt_k_embed_base_f16", BEHIND(tt_k_embed_base_f16, out_row), sizeof(struct tt_k_embed_base_f16)},
};

static int is_hole(const char *kernel, int at)
{
    for (size_t i = 0; i < sizeof holes / sizeof holes[0]; i++)
        if (at >= holes[i].from && at < holes[i].to && strstr(kernel, holes[i].type))
            return 1;
    return 0;
}

/* Word by word: an address, or four bytes. kernel: its name, where the argument may be a struct. */
static void print_argument(const char *kernel, const unsigned char *value, int bytes)
{
    printf(" |");
    for (int i = 0; i < bytes;) {
        uint64_t address = 0;
        uint32_t word = 0;

        if (i % 8 == 0 && i + 8 <= bytes)
            memcpy(&address, value + i, 8);
        if (address && memory_of((void *)(uintptr_t)address)) {
            print_address((void *)(uintptr_t)address);
            i += 8;
            continue;
        }
        memcpy(&word, value + i, bytes - i < 4 ? (size_t)(bytes - i) : 4);
        if (!is_hole(kernel, i))
            printf(" %x", word);
        i += 4;
    }
}

cudaError_t launching_launch(int kernel, dim3 grid, dim3 block, void **arguments, size_t shared,
                             cudaStream_t stream)
{
    const char *name = launching_name(kernel);

    if (!parameters[kernel].count)
        return cudaErrorInvalidDeviceFunction;
    printf("%s <%u %u %u> <%u %u %u> %zu stream %d", name, grid.x, grid.y, grid.z, block.x, block.y, block.z,
           shared, number(stream));
    for (int i = 0; i < parameters[kernel].count; i++)
        print_argument(i ? "" : name, arguments[i], parameters[kernel].bytes[i]);
    printf("\n");
    return cudaSuccess;
}

cudaError_t cudaFuncSetAttribute(const void *host, enum cudaFuncAttribute attribute, int value)
{
    printf("attribute %d of %s: %d\n", (int)attribute, launching_name(launching_find(host, NULL)), value);
    return cudaSuccess;
}

/* ---- what the backend is asked ---- */

struct clips {
    uint8_t *rgb;
    unsigned char *supports;
    int frame[QUERIES];
    float xy[2 * QUERIES];
    struct tt_estimate *init, *stages, *result;
};

static enum tt_status track(struct tt_backend *b, const struct clips *c, int passes, struct tt_error *err)
{
    const struct tt_track_request request = {.queries = QUERIES,
                                             .supports = c->supports,
                                             .query_frame = c->frame,
                                             .query_xy = c->xy,
                                             .init = passes ? NULL : c->init,
                                             .stages = passes ? c->stages : NULL};

    printf("-- track\n");
    return tt_backend_cuda.track(b, &request, c->result, err);
}

/* Two clips of 47 frames, of which the second overlaps the first and is brought while it is tracked, and one
 * of ten; every shape comes twice, so that its graphs are made. */
static enum tt_status run(struct tt_backend *b, const struct clips *c, struct tt_error *err)
{
    const struct tt_clip first = {.rgb = c->rgb, .frames = TT_CLIP_FRAMES};
    const struct tt_clip second = {.rgb = c->rgb, .frames = TT_CLIP_FRAMES, .first_frame = 39};
    const struct tt_clip brought = {.frames = TT_CLIP_FRAMES, .first_frame = 39};
    const struct tt_clip brief = {.rgb = c->rgb, .frames = 10, .first_frame = 86};
    enum tt_status status;

    printf("-- features\n");
    status = tt_backend_cuda.features(b, &first, 0, err);
    printf("-- sample\n");
    if (!status)
        status = tt_backend_cuda.sample(b, QUERIES, c->frame, c->xy, c->supports, err);
    if (!status)
        status = tt_backend_cuda.bring(b, &second, 8, err);
    if (!status)
        status = track(b, c, 1, err);
    printf("-- features, brought\n");
    if (!status)
        status = tt_backend_cuda.features(b, &brought, 8, err);
    if (!status)
        status = track(b, c, 0, err);
    for (int i = 0; i < 2 && !status; i++) {
        printf("-- features of ten\n");
        status = tt_backend_cuda.features(b, &brief, 0, err);
        if (!status)
            status = track(b, c, 0, err);
    }
    return status;
}

static enum tt_status record(const struct tt_model_shape *shape, const struct tt_backend_options *options,
                             const struct clips *c, struct tt_error *err)
{
    size_t size;
    void *file = tt_formula_weights(shape, 1, &size);
    struct tt_weights *weights = NULL;
    struct tt_backend *b = NULL;
    enum tt_status status = file ? tt_weights_from_memory(&weights, "formula", file, size, err)
                                 : tt_fail(err, TT_RETRY_LATER, "no memory");

    memories_made = streams = events = graphs = 0;
    device_used = 0;
    if (!status)
        status = tt_backend_cuda.open(&b, options, weights, err);
    if (!status) {
        printf("%s\n", tt_backend_cuda.describe(b));
        memset(c->supports, 7, QUERIES * tt_backend_cuda.support_bytes);
        status = run(b, c, err);
        tt_backend_cuda.close(b);
    }
    if (weights)
        tt_weights_close(weights);
    free(file);
    return status;
}

static enum tt_status record_all(const struct clips *c, struct tt_error *err)
{
    static const struct {
        const char *card, *arch;
        int major, minor;
        struct tt_tile tile;
    } devices[] = {{"h200", NULL, 9, 0, {0, 0}},
                   {"h200", "sm_75", 9, 0, {0, 0}},
                   {"t4", NULL, 7, 5, {0, 0}},
                   {"t4", NULL, 7, 5, {27, 5}},
                   {"a100", NULL, 8, 0, {33, 3}}};
    enum tt_status status = TT_OK;

    for (size_t i = 0; i < sizeof devices / sizeof devices[0] && !status; i++)
        for (int k = 0; k < 4 && !status; k++) {
            const struct tt_model_shape *shape = k % 2 ? &tt_model_base : &tt_model_small;
            struct tt_device device;
            struct tt_backend_options options = {.precision = k / 2 ? TT_FP16 : TT_FP32,
                                                 .device = &device,
                                                 .arch = devices[i].arch,
                                                 .tile = devices[i].tile};

            major = devices[i].major, minor = devices[i].minor;
            printf("== %s %s %s fp%d, tile %d x %d\n", devices[i].card,
                   devices[i].arch ? "as sm_75" : "native", shape->name, k / 2 ? 16 : 32,
                   devices[i].tile.queries, devices[i].tile.frames);
            status = tt_device_describe(&device, devices[i].card, err);
            if (!status)
                status = record(shape, &options, c, err);
        }
    return status;
}

static int read_parameters(const char *path)
{
    char line[1024];
    FILE *f = fopen(path, "r");

    if (!f)
        return -1;
    while (fgets(line, sizeof line, f)) {
        char *name = strtok(line, " \n"), *word;
        int kernel = name ? launching_find(NULL, name) : -1, n = 0;

        while (kernel >= 0 && n < PARAMETERS && (word = strtok(NULL, " \n")))
            parameters[kernel].bytes[n++] = atoi(word);
        if (kernel >= 0)
            parameters[kernel].count = n;
    }
    fclose(f);
    return 0;
}

int main(int argc, char **argv)
{
    const size_t estimates = QUERIES * TT_CLIP_FRAMES;
    struct clips c = {.rgb = malloc(TT_CLIP_BYTES),
                      .supports = malloc(QUERIES * tt_backend_cuda.support_bytes),
                      .init = calloc(estimates, sizeof *c.init),
                      .stages = calloc((1 + TT_REFINEMENTS) * estimates, sizeof *c.stages),
                      .result = calloc(estimates, sizeof *c.result)};
    struct tt_error err = {0};

    if (argc != 2 || read_parameters(argv[1]) || !c.rgb || !c.supports || !c.init || !c.stages || !c.result) {
        fprintf(stderr, "usage: record PARAMETERS\n");
        return 2;
    }
    for (size_t i = 0; i < TT_CLIP_BYTES; i++)
        c.rgb[i] = (uint8_t)(i * 37 >> 3);
    for (int q = 0; q < QUERIES; q++) {
        c.frame[q] = q % 9 - 1;
        c.xy[2 * q] = (float)q * 2.5f, c.xy[2 * q + 1] = 255.0f - (float)q * 2.25f;
    }
    if (record_all(&c, &err)) {
        fprintf(stderr, "record: %s\n", err.text);
        return 1;
    }
    free(c.rgb), free(c.supports), free(c.init), free(c.stages), free(c.result);
    return 0;
}

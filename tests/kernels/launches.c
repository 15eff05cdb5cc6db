/* tests/kernels/launches.c: which kernels a T4 would run, with which blocks and how much dynamic shared
 * memory.
 *
 * Linked with the kernels for sm_75 and, in place of CUDA's runtime, with launching.c and what is below:
 * launches are written down, nothing runs, no GPU is needed. Goes through a clip of 47 frames and 256 query
 * points with a T4's plan, both sizes and precisions. One line a kernel: mangled name, threads of a block,
 * dynamic shared memory in bytes, blocks of its smallest and largest launch, launches. Fails where a launch
 * asks for more than 64 KiB. ptxas-report.sh puts these lines beside what the compiler says.
 */
#include "core/formula.h"
#include "cuda/gpu.h"
#include "tests/kernels/launching.h"

#include <cuda_runtime_api.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { T4_SHARED = 65536 };

static struct {
    unsigned threads, least, most;
    size_t shared;
    int launches;
} kernels[LAUNCHING_KERNELS];
static int refused;

cudaError_t launching_launch(int kernel, dim3 grid, dim3 block, void **arguments, size_t shared,
                             cudaStream_t stream)
{
    unsigned blocks = grid.x * grid.y * grid.z, threads = block.x * block.y * block.z;

    (void)arguments, (void)stream;
    kernels[kernel].threads = threads > kernels[kernel].threads ? threads : kernels[kernel].threads;
    kernels[kernel].shared = shared > kernels[kernel].shared ? shared : kernels[kernel].shared;
    if (!kernels[kernel].launches || blocks < kernels[kernel].least)
        kernels[kernel].least = blocks;
    kernels[kernel].most = blocks > kernels[kernel].most ? blocks : kernels[kernel].most;
    kernels[kernel].launches++;
    refused += shared > T4_SHARED;
    return cudaSuccess;
}

cudaError_t cudaFuncSetAttribute(const void *kernel, enum cudaFuncAttribute attribute, int value)
{
    (void)kernel;
    return attribute == cudaFuncAttributeMaxDynamicSharedMemorySize && value > T4_SHARED
               ? cudaErrorInvalidValue
               : cudaSuccess;
}

/* ---- what the loading of weights calls ---- */

cudaError_t cudaMalloc(void **p, size_t bytes)
{
    *p = malloc(bytes);
    return *p ? cudaSuccess : cudaErrorMemoryAllocation;
}

cudaError_t cudaMemcpy(void *to, const void *from, size_t bytes, enum cudaMemcpyKind kind)
{
    (void)kind;
    memcpy(to, from, bytes);
    return cudaSuccess;
}

enum tt_status tt_gpu_status(int error, const char *what, struct tt_error *err)
{
    return tt_fail(err, TT_REFUSE, "%s: error %d", what, error);
}

/* ---- the clip ---- */

/* Queues the stages of a clip on memory that nobody reads. A cudaError_t. */
static int run(struct tt_gpu *gpu, int queries)
{
    int error = 0;

    for (int f = 0; f < TT_CLIP_FRAMES && !error; f += gpu->frame_tile)
        error = tt_gpu_backbone(gpu, f,
                                TT_CLIP_FRAMES - f < gpu->frame_tile ? TT_CLIP_FRAMES - f : gpu->frame_tile);
    for (int q = 0; q < queries && !error; q += gpu->query_tile) {
        int n = queries - q < gpu->query_tile ? queries - q : gpu->query_tile;

        error = tt_gpu_supports(gpu, n, TT_CLIP_FRAMES);
        if (!error)
            error = tt_gpu_initialise(gpu, n, TT_CLIP_FRAMES);
        for (int pass = 0; pass < TT_REFINEMENTS && !error; pass++)
            error = tt_gpu_refine(gpu, n, TT_CLIP_FRAMES);
    }
    return error;
}

static enum tt_status launch_all(const struct tt_model_shape *shape, enum tt_precision precision,
                                 struct tt_error *err)
{
    struct tt_gpu gpu = {.shape = shape, .precision = precision, .mma = TT_MMA_K8};
    const struct tt_tile any = {0, 0};
    struct tt_device t4;
    struct tt_plan plan;
    struct tt_weights *weights = NULL;
    size_t size;
    void *file = tt_formula_weights(shape, 1, &size);
    enum tt_status status = file ? tt_weights_from_memory(&weights, "formula", file, size, err)
                                 : tt_fail(err, TT_RETRY_LATER, "no memory");

    if (!status)
        status = tt_device_describe(&t4, "t4", err);
    if (!status)
        status = tt_plan_make(&plan, shape, &t4, precision, any, 256, TT_CLIP_FRAMES, err);
    if (!status) {
        gpu.network = precision == TT_FP16 ? &tt_gpu_network_f16 : &tt_gpu_network_f32;
        gpu.frame_tile = plan.tile.frames;
        gpu.first_tile = plan.first_frames;
        gpu.query_tile = plan.tile.queries;
        gpu.volume_tile = plan.volume_queries;
        status = tt_gpu_load(&gpu, weights, err);
    }
    if (!status) {
        int error;

        gpu.work_slab = (unsigned char *)4096; /* never read */
        tt_gpu_layout(&gpu);
        error = run(&gpu, plan.queries);
        status = error ? tt_fail(err, TT_REFUSE, "%s fp%d: a launch fails with error %d", shape->name,
                                 precision == TT_FP16 ? 16 : 32, error)
                       : TT_OK;
    }
    free(gpu.weight_slab);
    if (weights)
        tt_weights_close(weights);
    free(file);
    return status;
}

int main(void)
{
    struct tt_error err = {0};

    for (int i = 0; i < 4; i++)
        if (launch_all(i % 2 ? &tt_model_base : &tt_model_small, i / 2 ? TT_FP16 : TT_FP32, &err)) {
            fprintf(stderr, "launches: %s\n", err.text);
            return 1;
        }
    for (int i = 0; i < launching_count(); i++)
        if (kernels[i].launches)
            printf("%s\t%u\t%zu\t%u\t%u\t%d\n", launching_name(i), kernels[i].threads, kernels[i].shared,
                   kernels[i].least, kernels[i].most, kernels[i].launches);
    return refused != 0;
}

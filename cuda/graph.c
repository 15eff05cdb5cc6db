/* cuda/graph.c: a stage for one shape is queued once kernel by kernel, and from the second time on as a
 * graph.
 *
 * Everything that a stage reads and writes lies at fixed places of the slabs, so a graph depends on the stage
 * and two numbers only. A few shapes are kept, the one unused for longest goes first. The first time is not
 * captured: kernels are loaded then, and a shape that never comes again costs nothing. Fails with the
 * cudaError_t of what went wrong.
 */
#include "cuda/gpu.h"

#include <cuda_runtime_api.h>

/* One stage's kernels, in order. */
static int queue(struct tt_gpu *gpu, enum tt_gpu_stage stage, int a, int b)
{
    switch (stage) {
    case TT_GPU_BACKBONE:
        return tt_gpu_backbone(gpu, a, b);
    case TT_GPU_INITIALISE:
        return tt_gpu_initialise(gpu, a, b);
    case TT_GPU_REFINE:
        return tt_gpu_refine(gpu, a, b);
    }
    return cudaErrorInvalidValue;
}

static int capture(struct tt_gpu *gpu, struct tt_gpu_graph *g)
{
    cudaStream_t stream = (cudaStream_t)gpu->stream;
    cudaGraph_t graph = NULL;
    int error = cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal), end;

    if (error)
        return error;
    error = queue(gpu, g->stage, g->a, g->b);
    end = cudaStreamEndCapture(stream, &graph);
    if (!error)
        error = end;
    if (!error)
        error = cudaGraphInstantiate((cudaGraphExec_t *)&g->exec, graph, 0);
    if (graph)
        cudaGraphDestroy(graph);
    return error;
}

/* The entry of this shape, or the one to be given to it, emptied. */
static struct tt_gpu_graph *find(struct tt_gpu *gpu, enum tt_gpu_stage stage, int a, int b, int *error)
{
    struct tt_gpu_graph *oldest = &gpu->graphs[0];

    for (int i = 0; i < TT_GPU_GRAPHS; i++) {
        struct tt_gpu_graph *g = &gpu->graphs[i];

        if (g->used && g->stage == stage && g->a == a && g->b == b)
            return g;
        if (g->used < oldest->used)
            oldest = g;
    }
    if (oldest->exec) { /* it may still run */
        *error = cudaStreamSynchronize((cudaStream_t)gpu->stream);
        cudaGraphExecDestroy((cudaGraphExec_t)oldest->exec);
    }
    *oldest = (struct tt_gpu_graph){.stage = stage, .a = a, .b = b};
    return oldest;
}

int tt_gpu_run(struct tt_gpu *gpu, enum tt_gpu_stage stage, int a, int b)
{
    int error = 0;
    struct tt_gpu_graph *g;

    if (gpu->no_graphs)
        return queue(gpu, stage, a, b);
    g = find(gpu, stage, a, b, &error);
    if (!error && g->used && !g->exec)
        error = capture(gpu, g);
    g->used = ++gpu->graph_clock;
    if (error)
        return error;
    return g->exec ? (int)cudaGraphLaunch((cudaGraphExec_t)g->exec, (cudaStream_t)gpu->stream)
                   : queue(gpu, stage, a, b);
}

int tt_gpu_features(struct tt_gpu *gpu, const uint8_t *rgb, int first, int frames)
{
    int error =
        cudaMemcpyAsync(gpu->backbone.rgb + (size_t)first * TT_FRAME_BYTES, rgb,
                        (size_t)frames * TT_FRAME_BYTES, cudaMemcpyDefault, (cudaStream_t)gpu->stream);

    return error ? error : tt_gpu_run(gpu, TT_GPU_BACKBONE, first, frames);
}

void tt_gpu_drop_graphs(struct tt_gpu *gpu)
{
    for (int i = 0; i < TT_GPU_GRAPHS; i++)
        if (gpu->graphs[i].exec)
            cudaGraphExecDestroy((cudaGraphExec_t)gpu->graphs[i].exec);
}

/* cuda/track.c: supports of query points, and their tracks.
 *
 * Query points go in tiles of one size but the last; a point's result does not depend on the tile it is in.
 * All is queued on the stream of the kernels: a tile's supports and positions through one of two pinned
 * memories in turn, its kernels, its results. The host fills the next tile's memory meanwhile and picks up a
 * tile's results once the next one is queued; so results that were picked up stand, and the rest of `result`
 * is as it was, where a call fails.
 */
#include "cuda/backend_parts.h"

#include <cuda_runtime_api.h>
#include <math.h>
#include <string.h>

/* `queries` in as few tiles as there must be, all of one size but the last. */
static int even_tile(int queries, int largest)
{
    int tiles = (queries + largest - 1) / largest;

    return tiles ? (queries + tiles - 1) / tiles : 1;
}

/* By way of `pinned`, which must not be in use. */
static int upload(struct tt_backend *b, void *to, void *pinned, const void *from, size_t bytes)
{
    memcpy(pinned, from, bytes);
    return cudaMemcpyAsync(to, pinned, bytes, cudaMemcpyHostToDevice, (cudaStream_t)b->gpu.stream);
}

enum tt_status tt_cuda_sample(struct tt_backend *b, int queries, const int *frame, const float *xy,
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
            error = tt_cuda_download(b, host->supports, t->supports, (size_t)n * bytes);
        status = tt_cuda_finish(b, error, "supports", err);
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
    for (int pass = 0; pass <= TT_REFINEMENTS && !error && !tt_cuda_stopped(b); pass++) {
        if (pass)
            error = tt_gpu_run(&b->gpu, TT_GPU_REFINE, n, b->frames);
        if (!error && stage)
            error = tt_cuda_download(b, stage + (size_t)pass * all, t->state, bytes);
    }
    if (!error)
        error = tt_cuda_download(b, host->state, t->state, bytes);
    return error ? error
                 : (int)cudaEventRecord((cudaEvent_t)b->finished[b->tile], (cudaStream_t)b->gpu.stream);
}

/* Waits for the results of the tile of `queries` in host[tile]. A cudaError_t. */
static int pick_up(struct tt_backend *b, int tile, int queries, struct tt_estimate *result)
{
    int error = cudaEventSynchronize((cudaEvent_t)b->finished[tile]);

    if (!error && !tt_cuda_stopped(b))
        memcpy(result, b->host[tile].state, (size_t)queries * (size_t)b->frames * sizeof *result);
    return error;
}

enum tt_status tt_cuda_track(struct tt_backend *b, const struct tt_track_request *r,
                             struct tt_estimate *result, struct tt_error *err)
{
    const int tile = even_tile(r->queries, b->gpu.query_tile), frames = b->frames;
    enum tt_status status;
    int error = 0, queued = 0, done = 0;

    if (frames < 1)
        return tt_fail(err, TT_REFUSE, "track: no clip is held");
    while (done < r->queries && !error && !tt_cuda_stopped(b)) {
        int n = tt_cuda_smaller(r->queries - queued, tile), before = tt_cuda_smaller(r->queries - done, tile);

        if (n) {
            b->tile ^= 1;
            error = queue_tile(b, r, queued, n, (size_t)r->queries * (size_t)frames);
            queued += n;
            if (!error && queued == r->queries)
                error = tt_cuda_send_brought(b);
        }
        if (!error && (queued - done > tile || !n)) {
            error = pick_up(b, n ? b->tile ^ 1 : b->tile, before, result + (size_t)done * (size_t)frames);
            done += before;
        }
    }
    if (b->brought.rgb) /* borrowed no longer */
        b->brought.frames = 0;
    status = error || tt_cuda_stopped(b) ? tt_cuda_finish(b, error, "track", err) : TT_OK;
    return !status && tt_cuda_stopped(b) ? tt_fail(err, TT_INTERRUPTED, "cuda: stopped") : status;
}

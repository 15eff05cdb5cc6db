/* cuda/backend_parts.h: what the files of the CUDA backend share: backend.c opens and closes, clip.c holds
 * the features of a clip, track.c tracks query points through it. Each says what it does with streams and
 * memory.
 */
#ifndef TT_CUDA_BACKEND_PARTS_H
#define TT_CUDA_BACKEND_PARTS_H

#include "cuda/backend.h"
#include "cuda/network.h"

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

static inline int tt_cuda_stopped(const struct tt_backend *b)
{
    return b->stop && atomic_load_explicit(b->stop, memory_order_relaxed);
}

static inline int tt_cuda_smaller(int a, int b)
{
    return a < b ? a : b;
}

/* backend.c: waits for the stream; turns what went wrong before or during it (a cudaError_t) into a status.
 */
enum tt_status tt_cuda_finish(struct tt_backend *b, int error, const char *what, struct tt_error *err);
/* Queues a copy from the device, on the stream of the kernels. A cudaError_t. */
int tt_cuda_download(struct tt_backend *b, void *to, const void *from, size_t bytes);

/* clip.c: features and bring of core/backend.h. */
enum tt_status tt_cuda_hold(struct tt_backend *b, const struct tt_clip *clip, int reuse,
                            struct tt_error *err);
enum tt_status tt_cuda_bring(struct tt_backend *b, const struct tt_clip *clip, int reuse,
                             struct tt_error *err);
/* Sends the pixels that bring was given, if they are still here. A cudaError_t. */
int tt_cuda_send_brought(struct tt_backend *b);

/* track.c: sample and track of core/backend.h. */
enum tt_status tt_cuda_sample(struct tt_backend *b, int queries, const int *frame, const float *xy,
                              void *supports, struct tt_error *err);
enum tt_status tt_cuda_track(struct tt_backend *b, const struct tt_track_request *r,
                             struct tt_estimate *result, struct tt_error *err);

#endif

/* cuda/gpu.h: the network on one device: its weights, its memory, its stages. Used by backend.c and the
 * tests.
 *
 * Nothing here knows of requests or devices to choose from; functions queue work on gpu->stream and return a
 * cudaError_t as int. One slab holds the weights, another everything else: the features of one clip, and
 * below them a region that the backbone and the tracking of one tile of query points use in turn.
 */
#ifndef TT_CUDA_GPU_H
#define TT_CUDA_GPU_H

#include "core/backend.h"

struct tt_gpu_norm {
    float *gamma, *beta;
};

struct tt_gpu_block {
    float *conv[2], *proj; /* [3][3][in][out]; proj [in][out] or NULL */
    struct tt_gpu_norm norm[2];
};

struct tt_gpu_encoder_conv {
    float *weight, *bias; /* [kernel][kernel][in][out], in padded to a multiple of 8 */
    struct tt_gpu_norm norm;
};

struct tt_gpu_product {
    float *weight, *bias; /* [in][out] */
};

struct tt_gpu_layer {
    struct tt_gpu_norm norm[2];
    struct tt_gpu_product qkv, final, up, down;
};

struct tt_gpu_weights {
    float *stem; /* [7][7][3][64] */
    struct tt_gpu_block block[TT_RESNET_GROUPS][TT_RESNET_BLOCKS];
    float *cost_conv;     /* [3][3][2] */
    float *occ_w, *occ_b; /* [2][6], [2] */
    struct tt_gpu_encoder_conv encoder[TT_LEVELS][TT_ENCODER_CONVS];
    struct tt_gpu_product input;
    struct tt_gpu_layer layer[TT_MIXER_LAYERS];
    struct tt_gpu_norm norm_out;
    float *head_w, *head_b; /* [4][width], [4] */
};

/* What a tile of query points needs, one after another in the work region. */
struct tt_gpu_track {
    float *supports;                        /* [queries][TT_SUPPORT_FLOATS] */
    int *query_frame;                       /* [queries] */
    float *query_xy;                        /* [queries][2] */
    float *state, *init;                    /* [queries][frames][4] */
    float *tokens;                          /* [rows][TT_K_TOKEN] */
    float *h, *normed, *qkv, *mixed, *wide; /* [rows][width], ×1, ×3, ×1, ×4 */
    float *volume;                          /* [2][volume queries·frames][49][56] */
    float *maps[TT_ENCODER_CONVS];          /* [2·volume rows][positions][channels] */
    float *norm;                            /* [2·volume rows][channels][2] */
};

/* What a tile of frames needs. */
struct tt_gpu_backbone {
    float *x, *h, *shortcut;  /* [frames][128][128][64], the largest maps */
    float *partial, *norm[2]; /* [frames][64][64][2] sums; [frames][256][2] scale and shift */
    uint8_t *rgb;             /* [frames][256][256][3] */
};

struct tt_gpu {
    void *stream;
    const struct tt_model_shape *shape;
    int frame_tile, query_tile, volume_tile;
    struct tt_gpu_weights weights;
    unsigned char *weight_slab, *work_slab; /* owned: device memory */
    size_t weight_bytes, work_bytes;
    float *features[TT_LEVELS]; /* [47][size][size][channels] */
    struct tt_gpu_backbone backbone;
    struct tt_gpu_track track;
};

/* load.c: fills gpu->weights. TT_SHRINK_TILE where device memory is short, as tt_gpu_status says. */
enum tt_status tt_gpu_load(struct tt_gpu *gpu, const struct tt_weights *weights, struct tt_error *err);

/* network.c: lays out the work slab for the tiles in *gpu; with a NULL slab it only counts work_bytes. */
void tt_gpu_layout(struct tt_gpu *gpu);
/* Features of frames [first, first + frames) from rgb (host memory, [frames][256][256][3]). */
int tt_gpu_features(struct tt_gpu *gpu, const uint8_t *rgb, int first, int frames);
/* Supports of query points, gpu->track.query_frame and query_xy being filled in, into gpu->track.supports. */
int tt_gpu_supports(struct tt_gpu *gpu, int queries, int frames);
/* First estimate: gpu->track.state from supports, query_frame, query_xy. */
int tt_gpu_initialise(struct tt_gpu *gpu, int queries, int frames);
/* Where gpu->track.init has an x that is not NaN, it replaces the state. */
int tt_gpu_replace(struct tt_gpu *gpu, int queries, int frames);
/* One refinement of gpu->track.state. */
int tt_gpu_refine(struct tt_gpu *gpu, int queries, int frames);

/* device.c: what a cudaError_t asks for, with its text. */
enum tt_status tt_gpu_status(int error, const char *what, struct tt_error *err);
/* Chooses by index, UUID or PCI address (NULL: 0) and makes it current. */
enum tt_status tt_gpu_select(const char *select, int *index, struct tt_error *err);

/* Offset of a level's support within a query point's, floats. */
int tt_gpu_support_offset(int level);

#endif

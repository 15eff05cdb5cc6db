/* cuda/gpu.h: the network on one device: its weights, its memory, its stages. Used by the backend and the
 * tests.
 *
 * Nothing here knows of requests. One slab holds the weights, another everything else: the features of one
 * clip, and below them a region that the backbone and the tracking of one tile of query points use in turn.
 */
#ifndef TT_CUDA_GPU_H
#define TT_CUDA_GPU_H

#include "core/backend.h"
#include "cuda/kernels.h"

/* Matrices are FP32 as conv_f32.cu reads them, or FP16 packed as pack.h says; norms and biases are FP32. */
struct tt_gpu_norm {
    float *gamma, *beta;
};

struct tt_gpu_block {
    void *conv[2]; /* FP16: the second holds the projection too */
    float *proj;   /* FP32 only; NULL where there is none */
    struct tt_gpu_norm norm[2];
};

struct tt_gpu_encoder_conv {
    void *weight[2]; /* FP32: the first; FP16: of each orientation, or the first */
    float *bias;
    struct tt_gpu_norm norm;
};

struct tt_gpu_product {
    void *weight;
    float *bias;
};

struct tt_gpu_layer {
    struct tt_gpu_norm norm[2];
    struct tt_gpu_product qkv, final, up, down;
};

struct tt_gpu_weights {
    void *stem; /* FP32: [7][7][3][64] */
    struct tt_gpu_block block[TT_RESNET_GROUPS][TT_RESNET_BLOCKS];
    float *cost_conv;     /* [3][3][2] */
    float *occ_w, *occ_b; /* [2][6], [2] */
    struct tt_gpu_encoder_conv encoder[TT_LEVELS][TT_ENCODER_CONVS];
    struct tt_gpu_product input;
    struct tt_gpu_layer layer[TT_MIXER_LAYERS];
    struct tt_gpu_norm norm_out;
    float *head_w, *head_b; /* [4][width], [4] */
};

/* What a tile of query points needs, one after another in the work region. void: FP32 or FP16. */
struct tt_gpu_track {
    float *supports;               /* [queries][TT_SUPPORT_FLOATS] */
    int *query_frame;              /* [queries] */
    float *query_xy;               /* [queries][2] */
    float *state, *init;           /* [queries][frames][4] */
    void *tokens;                  /* [rows][TT_K_TOKEN] */
    float *h;                      /* [rows][width], the residual stream */
    void *qkv;                     /* [rows][3·width] */
    void *mixed, *normed, *wide;   /* FP32 only: [rows][width], the same, ×4 */
    void *volume;                  /* [2][volume queries·frames][49][56], FP16: 64 */
    float *maps[TT_ENCODER_CONVS]; /* FP32 only: [2·volume rows][positions][channels] */
    float *norm;                   /* FP32 only: [2·volume rows][channels][2] */
};

/* What a tile of frames needs. */
struct tt_gpu_backbone {
    void *x, *h, *shortcut;   /* [frames][128][128][64], the largest maps */
    float *partial, *norm[2]; /* [frames][64][64][2] sums; [frames][256][2] scale and shift */
    uint8_t *rgb;             /* [TT_CLIP_FRAMES][256][256][3], apart from all else */
};

struct tt_gpu;
struct tt_gpu_network; /* network.h: the launches of a precision */

extern const struct tt_gpu_network tt_gpu_network_f32; /* network_f32.c */
extern const struct tt_gpu_network tt_gpu_network_f16; /* network_f16.c */

/* network.c: the stages. Lays out the work slab for the tiles in *gpu; with a NULL slab it only counts
 * work_bytes. */
void tt_gpu_layout(struct tt_gpu *gpu);
/* All others queue work and return a cudaError_t.
 * Features of frames [first, first + frames) from backbone.rgb; at most frame_tile of them. */
int tt_gpu_backbone(struct tt_gpu *gpu, int first, int frames);
/* Supports of the query points in track.query_frame and query_xy, into track.supports. */
int tt_gpu_supports(struct tt_gpu *gpu, int queries, int frames);
/* First estimate: track.state from supports, query_frame, query_xy. */
int tt_gpu_initialise(struct tt_gpu *gpu, int queries, int frames);
/* One refinement of track.state. */
int tt_gpu_refine(struct tt_gpu *gpu, int queries, int frames);

/* A stage that a graph can be made of: its function above, called with two numbers. */
enum tt_gpu_stage { TT_GPU_BACKBONE, TT_GPU_INITIALISE, TT_GPU_REFINE };
enum { TT_GPU_GRAPHS = 12 };

struct tt_gpu_graph {
    enum tt_gpu_stage stage;
    int a, b;
    void *exec;    /* owned; NULL until the second time */
    uint64_t used; /* when last; 0: never */
};

struct tt_gpu {
    void *stream;
    const struct tt_model_shape *shape;
    const struct tt_gpu_network *network;
    enum tt_precision precision;
    enum tt_k_mma mma;
    int frame_tile, query_tile, volume_tile;
    int first_tile; /* frames of a tile that the backbone's first group takes at a time; 0: all */
    struct tt_gpu_weights weights;
    unsigned char *weight_slab, *work_slab; /* owned: device memory */
    size_t weight_bytes, work_bytes;
    void *features[TT_LEVELS]; /* [47][size][size][channels] */
    struct tt_gpu_backbone backbone;
    struct tt_gpu_track track;
    struct tt_gpu_graph graphs[TT_GPU_GRAPHS];
    uint64_t graph_clock;
    int no_graphs; /* for measurements */
};

/* graph.c: queues a stage. Returns a cudaError_t. */
int tt_gpu_run(struct tt_gpu *gpu, enum tt_gpu_stage stage, int a, int b);
/* The same for TT_GPU_BACKBONE after copying rgb (device or host memory, [frames][256][256][3]); for
 * measurements. */
int tt_gpu_features(struct tt_gpu *gpu, const uint8_t *rgb, int first, int frames);
void tt_gpu_drop_graphs(struct tt_gpu *gpu);

/* load.c: fills gpu->weights for gpu->precision. TT_SHRINK_TILE where device memory is short. */
enum tt_status tt_gpu_load(struct tt_gpu *gpu, const struct tt_weights *weights, struct tt_error *err);

/* The convolution variant of a layer, which decides how its weights are packed. */
enum tt_k_conv_variant tt_gpu_conv_variant(enum tt_k_mma mma, int stride, int out_channels);

/* network.c: a piece of a slab (NULL while counting), aligned to 256 bytes. */
void *tt_gpu_take(unsigned char *base, size_t *used, size_t bytes);

/* device.c: what a cudaError_t asks for, with its text. */
enum tt_status tt_gpu_status(int error, const char *what, struct tt_error *err);
/* Chooses by index, UUID or PCI address (NULL: 0) and makes it current. */
enum tt_status tt_gpu_select(const char *select, int *index, struct tt_error *err);

#endif

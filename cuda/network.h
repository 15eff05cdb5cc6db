/* cuda/network.h: what a precision brings to the network: the launches that network.c puts in order. */
#ifndef TT_CUDA_NETWORK_H
#define TT_CUDA_NETWORK_H

#include "cuda/gpu.h"

/* All functions queue work and return a cudaError_t. rows: of query points and frames. */
struct tt_gpu_network {
    size_t value;   /* bytes of an activation */
    int volume_row; /* values in a row of the 4D volumes; 0 where there are none in memory */
    /* backbone.x from frame `first` on of backbone.rgb. *chunks: out, parts of the sums of x in
     * backbone.partial, where the precision keeps them. */
    int (*stem)(struct tt_gpu *gpu, int first, int frames, int *chunks);
    /* One residual block of a group, its first or another. backbone.x: in and out; *chunks: in and out. */
    int (*block)(struct tt_gpu *gpu, const struct tt_gpu_block *w, const struct tt_resnet_group *group,
                 int first, int frames, int *chunks);
    /* Normalises backbone.x into features. */
    int (*l2)(struct tt_gpu *gpu, void *features, int64_t pixels, int channels);
    /* track.supports of one level. */
    int (*support)(const struct tt_k_support *support, void *stream);
    int (*cost)(struct tt_gpu *gpu, const struct tt_k_cost *cost);
    /* Correlation embeddings of all query points and levels, into track.tokens. */
    int (*embed)(struct tt_gpu *gpu, int queries, int frames);
    /* The other columns of track.tokens. */
    int (*tokens)(struct tt_gpu *gpu, int queries, int frames);
    /* track.h from track.tokens. */
    int (*input)(struct tt_gpu *gpu, const struct tt_gpu_product *w, int rows);
    int (*layer)(struct tt_gpu *gpu, const struct tt_gpu_layer *w, int queries, int frames);
};

/* For embed: tiles of query points whose volumes exist at a time, each level of each; encode: of `queries`
 * from number `first` on. */
int tt_gpu_each_volume(struct tt_gpu *gpu, int queries, int frames,
                       int (*encode)(struct tt_gpu *gpu, int level, int first, int queries, int frames));

/* Offset of a level's support within a query point's, floats. */
int tt_gpu_support_offset(int level);

#endif

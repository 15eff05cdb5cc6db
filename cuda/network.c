/* cuda/network.c: the order of the kernels, of both precisions.
 *
 * The backbone runs a tile of frames at a time, tracking a tile of query points; within it the 4D correlation
 * volumes of a smaller tile exist at a time, where there are volumes. Which kernel does a step is the
 * precision's (network.h). Work memory is laid out once; nothing here allocates. A CUDA error stops a stage
 * at once and is returned as it is.
 */
#include "cuda/network.h"

enum { MAP_VALUES = 128 * 128 * 64 }; /* the largest feature map */

void *tt_gpu_take(unsigned char *base, size_t *used, size_t bytes)
{
    void *p = base ? base + *used : NULL;

    *used += (bytes + 255) / 256 * 256;
    return p;
}

static size_t layout_features(struct tt_gpu *gpu, size_t value)
{
    size_t used = 0;

    for (int level = 0; level < TT_LEVELS; level++) {
        const struct tt_level_shape *s = &tt_level_shapes[level];

        gpu->features[level] = tt_gpu_take(
            gpu->work_slab, &used, value * TT_CLIP_FRAMES * (size_t)(s->size * s->size * s->channels));
    }
    gpu->backbone.rgb = tt_gpu_take(gpu->work_slab, &used, TT_CLIP_BYTES);
    return used;
}

static size_t layout_backbone(struct tt_gpu *gpu, size_t used, size_t value)
{
    struct tt_gpu_backbone *b = &gpu->backbone;
    unsigned char *base = gpu->work_slab;
    size_t frames = (size_t)gpu->frame_tile;

    b->x = tt_gpu_take(base, &used, frames * MAP_VALUES * value);
    b->h = tt_gpu_take(base, &used, frames * MAP_VALUES * value);
    b->shortcut = tt_gpu_take(base, &used, frames * MAP_VALUES * value);
    b->partial = tt_gpu_take(base, &used, frames * 64 * 64 * 2 * sizeof(float));
    for (int i = 0; i < 2; i++)
        b->norm[i] = tt_gpu_take(base, &used, frames * 256 * 2 * sizeof(float));
    return used;
}

/* 4D volumes and, in FP32, what the encoder makes of them. */
static size_t layout_volumes(struct tt_gpu *gpu, size_t used, size_t value, int volume_row)
{
    struct tt_gpu_track *t = &gpu->track;
    unsigned char *base = gpu->work_slab;
    size_t patches = (size_t)gpu->volume_tile * TT_CLIP_FRAMES * 2;

    t->volume = tt_gpu_take(base, &used, patches * (size_t)(TT_SUPPORT_AREA * volume_row) * value);
    if (gpu->precision == TT_FP16)
        return used;
    for (int i = 0; i < gpu->shape->encoder_convs; i++) {
        const struct tt_encoder_conv *c = &gpu->shape->encoder[i];
        size_t values = (size_t)(c->out_size * c->out_size * c->out_channels);

        t->maps[i] = tt_gpu_take(base, &used, patches * values * sizeof(float));
    }
    t->norm = tt_gpu_take(base, &used, patches * 128 * 2 * sizeof(float));
    return used;
}

/* The residual stream and what the kernels of a layer hand on. In FP32 the hidden layer takes the place of
 * queries, keys, values and heads, which are done with by then; in FP16 it is never in memory. */
static size_t layout_layers(struct tt_gpu *gpu, size_t used, size_t value)
{
    struct tt_gpu_track *t = &gpu->track;
    unsigned char *base = gpu->work_slab;
    size_t values = (size_t)gpu->query_tile * TT_CLIP_FRAMES * (size_t)gpu->shape->width;

    t->h = tt_gpu_take(base, &used, values * sizeof(float));
    t->qkv = tt_gpu_take(base, &used, values * 3 * value);
    if (gpu->precision == TT_FP32) {
        t->wide = t->qkv;
        t->mixed = tt_gpu_take(base, &used, values * value);
        t->normed = tt_gpu_take(base, &used, values * value);
    }
    return used;
}

static size_t layout_track(struct tt_gpu *gpu, size_t used, size_t value, int volume_row)
{
    struct tt_gpu_track *t = &gpu->track;
    unsigned char *base = gpu->work_slab;
    size_t queries = (size_t)gpu->query_tile, rows = queries * TT_CLIP_FRAMES, volumes, layers;

    t->supports = tt_gpu_take(base, &used, queries * TT_SUPPORT_FLOATS * sizeof(float));
    t->query_frame = tt_gpu_take(base, &used, queries * sizeof(int));
    t->query_xy = tt_gpu_take(base, &used, queries * 2 * sizeof(float));
    t->state = tt_gpu_take(base, &used, rows * 4 * sizeof(float));
    t->init = tt_gpu_take(base, &used, rows * 4 * sizeof(float));
    t->tokens = tt_gpu_take(base, &used, rows * TT_K_TOKEN * value);
    volumes = layout_volumes(gpu, used, value, volume_row);
    layers = layout_layers(gpu, used, value); /* in the place of the volumes, which are done with by then */
    return volumes > layers ? volumes : layers;
}

void tt_gpu_layout(struct tt_gpu *gpu)
{
    const size_t value = gpu->network->value, features = layout_features(gpu, value);
    const size_t backbone = layout_backbone(gpu, features, value);
    const size_t track = layout_track(gpu, features, value, gpu->network->volume_row);

    gpu->work_bytes = backbone > track ? backbone : track;
}

int tt_gpu_support_offset(int level)
{
    int offset = 0;

    for (int i = 0; i < level; i++)
        offset += TT_SUPPORT_AREA * tt_level_shapes[i].channels;
    return offset;
}

/* The stem and group 0, of a part of the tile after another, so that their maps stay in L2. */
static int first_group(struct tt_gpu *gpu, int first, int frames, int *chunks)
{
    const struct tt_gpu_network *launch = gpu->network;
    const struct tt_resnet_group *s = &tt_resnet_groups[0];
    const size_t map = MAP_VALUES * launch->value;
    const int part = gpu->first_tile ? gpu->first_tile : frames;
    struct tt_gpu_backbone *b = &gpu->backbone;
    const struct tt_gpu_backbone whole = *b;
    int error = 0;

    for (int f = 0; f < frames && !error; f += part) {
        int n = frames - f < part ? frames - f : part;

        b->x = whole.x, b->h = whole.h; /* of one part; what comes out, of all */
        b->shortcut = (char *)whole.shortcut + (size_t)f * map;
        b->partial = whole.partial + (size_t)f * 64 * 64 * 2;
        error = launch->stem(gpu, first + f, n, chunks);
        for (int i = 0; i < TT_RESNET_BLOCKS && !error; i++)
            error = launch->block(gpu, &gpu->weights.block[0][i], s, i == 0, n, chunks);
        if (!error)
            error = launch->l2(gpu, (char *)gpu->features[TT_HIGHEST] + (size_t)(first + f) * map,
                               (int64_t)n * s->out_size * s->out_size, s->out_channels);
    }
    *b = whole, b->x = whole.shortcut, b->shortcut = whole.x;
    return error;
}

int tt_gpu_backbone(struct tt_gpu *gpu, int first, int frames)
{
    static const int level_of_group[TT_RESNET_GROUPS] = {-1, TT_HIRES, -1, TT_LOWRES};
    const struct tt_gpu_network *launch = gpu->network;
    int chunks = 0, error = first_group(gpu, first, frames, &chunks);

    for (int g = 1; g < TT_RESNET_GROUPS && !error; g++) {
        const struct tt_resnet_group *s = &tt_resnet_groups[g];
        int64_t pixels = (int64_t)s->out_size * s->out_size;
        int level = level_of_group[g];

        for (int i = 0; i < TT_RESNET_BLOCKS && !error; i++)
            error = launch->block(gpu, &gpu->weights.block[g][i], s, i == 0, frames, &chunks);
        if (level >= 0 && !error)
            error = launch->l2(
                gpu, (char *)gpu->features[level] + first * pixels * s->out_channels * (int64_t)launch->value,
                frames * pixels, s->out_channels);
    }
    return error;
}

int tt_gpu_supports(struct tt_gpu *gpu, int queries, int frames)
{
    int error = 0;

    for (int level = 0; level < TT_LEVELS && !error; level++) {
        const struct tt_level_shape *s = &tt_level_shapes[level];
        const struct tt_k_support support = {.grid = gpu->features[level],
                                             .frame = gpu->track.query_frame,
                                             .xy = gpu->track.query_xy,
                                             .out = gpu->track.supports + tt_gpu_support_offset(level),
                                             .queries = queries,
                                             .row = TT_SUPPORT_FLOATS,
                                             .frames = frames,
                                             .size = s->size,
                                             .channels = s->channels,
                                             .scale = (float)s->size / TT_CLIP_SIZE};

        error = gpu->network->support(&support, gpu->stream);
    }
    return error;
}

int tt_gpu_initialise(struct tt_gpu *gpu, int queries, int frames)
{
    struct tt_gpu_track *t = &gpu->track;
    const struct tt_gpu_weights *w = &gpu->weights;
    const float *centre[TT_LEVELS];

    for (int level = 0; level < TT_LEVELS; level++)
        centre[level] = t->supports + tt_gpu_support_offset(level) +
                        TT_SUPPORT_AREA / 2 * tt_level_shapes[level].channels;
    const struct tt_k_cost c = {.lowres = gpu->features[TT_LOWRES],
                                .hires = gpu->features[TT_HIRES],
                                .lowres_q = centre[TT_LOWRES],
                                .hires_q = centre[TT_HIRES],
                                .conv = w->cost_conv,
                                .occ_w = w->occ_w,
                                .occ_b = w->occ_b,
                                .query_frame = t->query_frame,
                                .query_xy = t->query_xy,
                                .out = t->state,
                                .queries = queries,
                                .frames = frames,
                                .row = TT_SUPPORT_FLOATS};

    return gpu->network->cost(gpu, &c);
}

int tt_gpu_each_volume(struct tt_gpu *gpu, int queries, int frames,
                       int (*encode)(struct tt_gpu *gpu, int level, int first, int queries, int frames))
{
    const int parts = (queries + gpu->volume_tile - 1) / gpu->volume_tile;
    int error = 0;

    for (int i = 0; i < TT_LEVELS * parts && !error; i++) {
        int q = i % parts * gpu->volume_tile;
        int n = queries - q < gpu->volume_tile ? queries - q : gpu->volume_tile;

        error = encode(gpu, i / parts, q, n, frames);
    }
    return error;
}

int tt_gpu_refine(struct tt_gpu *gpu, int queries, int frames)
{
    const struct tt_gpu_network *launch = gpu->network;
    const struct tt_gpu_weights *w = &gpu->weights;
    int rows = queries * frames, error = launch->embed(gpu, queries, frames);

    if (!error)
        error = launch->tokens(gpu, queries, frames);
    if (!error)
        error = launch->input(gpu, &w->input, rows);
    for (int i = 0; i < TT_MIXER_LAYERS && !error; i++)
        error = launch->layer(gpu, &w->layer[i], queries, frames);
    return error ? error
                 : tt_k_head_f32(gpu->track.h, w->norm_out.gamma, w->norm_out.beta, w->head_w, w->head_b,
                                 gpu->track.state, rows, gpu->shape->width, gpu->stream);
}

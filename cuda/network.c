/* cuda/network.c: the order of the kernels, FP32.
 *
 * The backbone runs a tile of frames at a time, tracking a tile of query points; within it the 4D correlation
 * volumes of a smaller tile exist at a time. Work memory is laid out once; nothing here allocates. A CUDA
 * error stops a stage at once and is returned as it is.
 */
#include "cuda/gpu.h"
#include "cuda/kernels.h"

enum { MAP_VALUES = 128 * 128 * 64 }; /* the largest feature map */

void *tt_gpu_take(unsigned char *base, size_t *used, size_t bytes)
{
    void *p = base ? base + *used : NULL;

    *used += (bytes + 255) / 256 * 256;
    return p;
}

size_t tt_gpu_layout_features(struct tt_gpu *gpu, size_t value)
{
    size_t used = 0;

    for (int level = 0; level < TT_LEVELS; level++) {
        const struct tt_level_shape *s = &tt_level_shapes[level];

        gpu->features[level] = tt_gpu_take(
            gpu->work_slab, &used, value * TT_CLIP_FRAMES * (size_t)(s->size * s->size * s->channels));
    }
    return used;
}

size_t tt_gpu_layout_backbone(struct tt_gpu *gpu, size_t used, size_t value)
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
    b->rgb = tt_gpu_take(base, &used, frames * TT_FRAME_BYTES);
    return used;
}

size_t tt_gpu_layout_track(struct tt_gpu *gpu, size_t used, size_t value, int volume_row)
{
    struct tt_gpu_track *t = &gpu->track;
    unsigned char *base = gpu->work_slab;
    size_t queries = (size_t)gpu->query_tile, rows = queries * TT_CLIP_FRAMES;
    size_t width = (size_t)gpu->shape->width, patches = (size_t)gpu->volume_tile * TT_CLIP_FRAMES * 2, after;

    t->supports = tt_gpu_take(base, &used, queries * TT_SUPPORT_FLOATS * sizeof(float));
    t->query_frame = tt_gpu_take(base, &used, queries * sizeof(int));
    t->query_xy = tt_gpu_take(base, &used, queries * 2 * sizeof(float));
    t->state = tt_gpu_take(base, &used, rows * 4 * sizeof(float));
    t->init = tt_gpu_take(base, &used, rows * 4 * sizeof(float));
    t->tokens = tt_gpu_take(base, &used, rows * TT_K_TOKEN * value);
    t->h = tt_gpu_take(base, &used, rows * width * sizeof(float));
    /* the volumes are done with before the layers begin, qkv and mixed before wide is written */
    after = used;
    t->volume = tt_gpu_take(base, &used, patches * (size_t)(TT_SUPPORT_AREA * volume_row) * value);
    t->normed = tt_gpu_take(base, &after, rows * width * value);
    t->wide = t->qkv = tt_gpu_take(base, &after, rows * width * 3 * value);
    t->mixed = tt_gpu_take(base, &after, rows * width * value);
    return used > after ? used : after;
}

static void layout(struct tt_gpu *gpu)
{
    struct tt_gpu_track *t = &gpu->track;
    size_t features = tt_gpu_layout_features(gpu, sizeof(float));
    size_t backbone = tt_gpu_layout_backbone(gpu, features, sizeof(float));
    size_t track = tt_gpu_layout_track(gpu, features, sizeof(float), TT_K_VOLUME_ROW);
    size_t patches = (size_t)gpu->volume_tile * TT_CLIP_FRAMES * 2;

    for (int i = 0; i < gpu->shape->encoder_convs; i++) {
        const struct tt_encoder_conv *c = &gpu->shape->encoder[i];
        size_t values = (size_t)(c->out_size * c->out_size * c->out_channels);

        t->maps[i] = tt_gpu_take(gpu->work_slab, &track, patches * values * sizeof(float));
    }
    t->norm = tt_gpu_take(gpu->work_slab, &track, patches * 128 * 2 * sizeof(float));
    gpu->work_bytes = backbone > track ? backbone : track;
}

int tt_gpu_support_offset(int level)
{
    int offset = 0;

    for (int i = 0; i < level; i++)
        offset += TT_SUPPORT_AREA * tt_level_shapes[i].channels;
    return offset;
}

/* ---- backbone ---- */

static int instance_norm(struct tt_gpu *gpu, const float *x, const struct tt_gpu_norm *w, int which,
                         int frames, int size, int channels)
{
    struct tt_gpu_backbone *b = &gpu->backbone;
    int pixels = size * size, chunks = (pixels + TT_K_NORM_CHUNK - 1) / TT_K_NORM_CHUNK;
    int error = tt_k_norm_partial_f32(x, b->partial, frames, pixels, channels, gpu->stream);

    return error ? error
                 : tt_k_norm_finish(b->partial, w->gamma, w->beta, b->norm[which], frames, chunks, pixels,
                                    channels, TT_NORM_EPSILON, gpu->stream);
}

/* One residual block; gpu->backbone.x: in and out. */
static int block(struct tt_gpu *gpu, const struct tt_gpu_block *w, int frames, int in, int out, int in_size,
                 int out_size)
{
    struct tt_gpu_backbone *b = &gpu->backbone;
    int stride = in_size / out_size, error;
    struct tt_k_conv_f32 c = {.in = b->x,
                              .norm = b->norm[0],
                              .frames = frames,
                              .in_h = in_size,
                              .in_w = in_size,
                              .in_c = in,
                              .out_h = out_size,
                              .out_w = out_size,
                              .out_c = out,
                              .stride = stride};

    error = instance_norm(gpu, b->x, &w->norm[0], 0, frames, in_size, in);
    if (!error && w->proj) {
        c.weight = w->proj, c.kernel = 1, c.pad = 0, c.out = b->shortcut;
        error = tt_k_conv_f32(&c, gpu->stream);
    }
    if (!error) {
        c.weight = w->conv[0], c.kernel = 3, c.pad = stride == 1 ? 1 : 0, c.out = b->h;
        error = tt_k_conv_f32(&c, gpu->stream);
    }
    if (!error)
        error = instance_norm(gpu, b->h, &w->norm[1], 1, frames, out_size, out);
    if (!error) {
        void *sum = w->proj ? b->shortcut : b->x;

        c.in = b->h, c.norm = b->norm[1], c.weight = w->conv[1], c.in_h = c.in_w = out_size, c.in_c = out;
        c.stride = 1, c.pad = 1, c.add = sum, c.out = sum;
        error = tt_k_conv_f32(&c, gpu->stream);
        if (w->proj)
            b->shortcut = b->x, b->x = sum;
    }
    return error;
}

static int backbone(struct tt_gpu *gpu, int first, int frames)
{
    static const int level_of_group[TT_RESNET_GROUPS] = {TT_HIGHEST, TT_HIRES, -1, TT_LOWRES};
    struct tt_gpu_backbone *b = &gpu->backbone;
    int error = tt_k_stem_f32(b->rgb, gpu->weights.stem, b->x, frames, TT_CLIP_SIZE, gpu->stream);

    for (int g = 0; g < TT_RESNET_GROUPS && !error; g++) {
        const struct tt_resnet_group *s = &tt_resnet_groups[g];
        int level = level_of_group[g];

        for (int i = 0; i < TT_RESNET_BLOCKS && !error; i++)
            error = block(gpu, &gpu->weights.block[g][i], frames, i ? s->out_channels : s->in_channels,
                          s->out_channels, i ? s->out_size : s->in_size, s->out_size);
        if (level >= 0 && !error) {
            int64_t pixels = (int64_t)s->out_size * s->out_size;

            error = tt_k_l2_f32(b->x, (float *)gpu->features[level] + first * pixels * s->out_channels,
                                frames * pixels, s->out_channels, gpu->stream);
        }
    }
    return error;
}

/* ---- supports, first estimate ---- */

static int supports(struct tt_gpu *gpu, int queries, int frames)
{
    struct tt_gpu_track *t = &gpu->track;
    int error = 0;

    for (int level = 0; level < TT_LEVELS && !error; level++) {
        const struct tt_level_shape *s = &tt_level_shapes[level];

        error = tt_k_support_f32(gpu->features[level], t->query_frame, t->query_xy,
                                 t->supports + tt_gpu_support_offset(level), queries, TT_SUPPORT_FLOATS,
                                 frames, s->size, s->channels, (float)s->size / TT_CLIP_SIZE, gpu->stream);
    }
    return error;
}

static int initialise(struct tt_gpu *gpu, int queries, int frames)
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

    return tt_k_cost_f32(&c, gpu->stream);
}

/* ---- refinement ---- */

/* Correlation embeddings of `queries` query points from number `first` on, at one level. */
static int encode(struct tt_gpu *gpu, int level, int first, int queries, int frames)
{
    struct tt_gpu_track *t = &gpu->track;
    const struct tt_level_shape *s = &tt_level_shapes[level];
    int rows = queries * frames, patches = 2 * rows, positions = 0, channels = 0;
    int error = tt_k_correlate_f32(
        gpu->features[level], t->supports + (size_t)first * TT_SUPPORT_FLOATS + tt_gpu_support_offset(level),
        t->state + (size_t)first * frames * 4, t->volume, queries, frames, TT_SUPPORT_FLOATS, s->size,
        s->channels, (float)s->size / TT_CLIP_SIZE, gpu->stream);

    for (int i = 0; i < gpu->shape->encoder_convs && !error; i++) {
        const struct tt_encoder_conv *e = &gpu->shape->encoder[i];
        const struct tt_gpu_encoder_conv *w = &gpu->weights.encoder[level][i];
        const struct tt_k_conv_f32 c = {.in = i ? t->maps[i - 1] : t->volume,
                                        .norm = i ? t->norm : NULL,
                                        .weight = w->weight[0],
                                        .bias = w->bias,
                                        .out = t->maps[i],
                                        .frames = patches,
                                        .in_h = e->in_size,
                                        .in_w = e->in_size,
                                        .in_c = i ? e->in_channels : TT_K_VOLUME_ROW,
                                        .out_h = e->out_size,
                                        .out_w = e->out_size,
                                        .out_c = e->out_channels,
                                        .kernel = e->kernel,
                                        .stride = e->stride,
                                        .pad = e->pad_before};

        positions = e->out_size * e->out_size, channels = e->out_channels;
        error = tt_k_conv_f32(&c, gpu->stream);
        if (!error)
            error = tt_k_group_norm_f32(t->maps[i], w->norm.gamma, w->norm.beta, t->norm, patches, positions,
                                        channels, TT_NORM_EPSILON, gpu->stream);
    }
    return error ? error
                 : tt_k_relu_mean_f32(t->maps[gpu->shape->encoder_convs - 1], t->norm,
                                      (float *)t->tokens + (size_t)first * frames * TT_K_TOKEN + 2 +
                                          level * TT_LEVEL_EMBEDDING,
                                      patches, rows, TT_K_TOKEN, positions, channels, gpu->stream);
}

/* out = [gelu](in · weight + bias) [+ add] over rows. */
static int product(struct tt_gpu *gpu, const float *in, const struct tt_gpu_product *w, const float *add,
                   float *out, int rows, int in_width, int out_width, int gelu)
{
    const struct tt_k_conv_f32 c = {.in = in,
                                    .weight = w->weight,
                                    .bias = w->bias,
                                    .add = add,
                                    .out = out,
                                    .frames = rows,
                                    .in_h = 1,
                                    .in_w = 1,
                                    .in_c = in_width,
                                    .out_h = 1,
                                    .out_w = 1,
                                    .out_c = out_width,
                                    .kernel = 1,
                                    .stride = 1,
                                    .gelu = gelu};

    return tt_k_conv_f32(&c, gpu->stream);
}

static int layer(struct tt_gpu *gpu, const struct tt_gpu_layer *w, int queries, int frames)
{
    struct tt_gpu_track *t = &gpu->track;
    int rows = queries * frames, width = gpu->shape->width, wide = TT_MIXER_WIDENING * width;
    int error =
        tt_k_layer_norm_f32(t->h, w->norm[0].gamma, w->norm[0].beta, t->normed, rows, width, gpu->stream);

    if (!error)
        error = product(gpu, t->normed, &w->qkv, NULL, t->qkv, rows, width, 3 * width, 0);
    if (!error)
        error = tt_k_attention_f32(t->qkv, t->mixed, queries, frames, gpu->shape->heads, gpu->stream);
    if (!error)
        error = product(gpu, t->mixed, &w->final, t->h, t->h, rows, width, width, 0);
    if (!error)
        error =
            tt_k_layer_norm_f32(t->h, w->norm[1].gamma, w->norm[1].beta, t->normed, rows, width, gpu->stream);
    if (!error)
        error = product(gpu, t->normed, &w->up, NULL, t->wide, rows, width, wide, 1);
    if (!error)
        error = product(gpu, t->wide, &w->down, t->h, t->h, rows, wide, width, 0);
    return error;
}

static int refine(struct tt_gpu *gpu, int queries, int frames)
{
    struct tt_gpu_track *t = &gpu->track;
    const struct tt_gpu_weights *w = &gpu->weights;
    int rows = queries * frames, width = gpu->shape->width, error = 0;

    for (int q = 0; q < queries && !error; q += gpu->volume_tile) {
        int n = queries - q < gpu->volume_tile ? queries - q : gpu->volume_tile;

        for (int level = 0; level < TT_LEVELS && !error; level++)
            error = encode(gpu, level, q, n, frames);
    }
    if (!error)
        error = tt_k_tokens_f32(t->state, t->tokens, queries, frames, gpu->stream);
    if (!error)
        error = product(gpu, t->tokens, &w->input, NULL, t->h, rows, TT_K_TOKEN, width, 0);
    for (int i = 0; i < TT_MIXER_LAYERS && !error; i++)
        error = layer(gpu, &w->layer[i], queries, frames);
    return error ? error
                 : tt_k_head_f32(t->h, w->norm_out.gamma, w->norm_out.beta, w->head_w, w->head_b, t->state,
                                 rows, width, gpu->stream);
}

const struct tt_gpu_network tt_gpu_network_f32 = {
    .layout = layout,
    .backbone = backbone,
    .supports = supports,
    .initialise = initialise,
    .refine = refine,
};

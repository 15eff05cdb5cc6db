/* cuda/network_f32.c: the launches of the network in FP32: every tensor is, and no product is rounded to less
 * (no TF32). One kernel, conv_f32, serves every convolution and product. Fails as kernels.h says: the first
 * error ends a launch's work and is returned as it is.
 */
#include "cuda/network.h"

/* ---- backbone ---- */

static int stem(struct tt_gpu *gpu, int first, int frames, int *chunks)
{
    (void)chunks;
    return tt_k_stem_f32(gpu->backbone.rgb + (size_t)first * TT_FRAME_BYTES, gpu->weights.stem,
                         gpu->backbone.x, frames, TT_CLIP_SIZE, gpu->stream);
}

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

static int block(struct tt_gpu *gpu, const struct tt_gpu_block *w, const struct tt_resnet_group *group,
                 int first, int frames, int *chunks)
{
    struct tt_gpu_backbone *b = &gpu->backbone;
    int out = group->out_channels, in = first ? group->in_channels : out, out_size = group->out_size;
    int in_size = first ? group->in_size : out_size, stride = in_size / out_size, error;
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

    (void)chunks; /* the sums are made from the tensor */
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

static int l2(struct tt_gpu *gpu, void *features, int64_t pixels, int channels)
{
    return tt_k_l2_f32(gpu->backbone.x, features, pixels, channels, gpu->stream);
}

/* ---- first estimate ---- */

static int cost(struct tt_gpu *gpu, const struct tt_k_cost *c)
{
    return tt_k_cost_f32(c, gpu->stream);
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

static int embed(struct tt_gpu *gpu, int queries, int frames)
{
    return tt_gpu_each_volume(gpu, queries, frames, encode);
}

static int tokens(struct tt_gpu *gpu, int queries, int frames)
{
    return tt_k_tokens_f32(gpu->track.state, gpu->track.tokens, queries, frames, gpu->stream);
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

static int input(struct tt_gpu *gpu, const struct tt_gpu_product *w, int rows)
{
    return product(gpu, gpu->track.tokens, w, NULL, gpu->track.h, rows, TT_K_TOKEN, gpu->shape->width, 0);
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

const struct tt_gpu_network tt_gpu_network_f32 = {
    .value = sizeof(float),
    .volume_row = TT_K_VOLUME_ROW,
    .stem = stem,
    .block = block,
    .l2 = l2,
    .support = tt_k_support_f32,
    .cost = cost,
    .embed = embed,
    .tokens = tokens,
    .input = input,
    .layer = layer,
};

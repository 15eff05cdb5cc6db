/* cuda/network_f16.c: the launches of the network in FP16.
 *
 * Activations and features are FP16, correlation volumes never in memory; sums, norms, softmax, the mixer's
 * residual stream, positions and logits FP32. Instance norm statistics come from the convolution that writes
 * a tensor, a block's projection is part of its second convolution. Fails as kernels.h says: the first error
 * ends a launch's work and is returned as it is.
 */
#include "cuda/network.h"

/* ---- backbone ---- */

static int stem(struct tt_gpu *gpu, int first, int frames, int *chunks)
{
    struct tt_gpu_backbone *b = &gpu->backbone;

    *chunks = TT_CLIP_SIZE / 2 * TT_CLIP_SIZE / 2 / 256;
    return tt_k_stem_f16(b->rgb + (size_t)first * TT_FRAME_BYTES, gpu->weights.stem, b->x, b->partial, frames,
                         TT_CLIP_SIZE, gpu->mma, gpu->stream);
}

static int finish_norm(struct tt_gpu *gpu, const struct tt_gpu_norm *w, int which, int frames, int chunks,
                       int size, int channels)
{
    struct tt_gpu_backbone *b = &gpu->backbone;

    return tt_k_norm_finish(b->partial, w->gamma, w->beta, b->norm[which], frames, chunks, size * size,
                            channels, TT_NORM_EPSILON, gpu->stream);
}

static int block(struct tt_gpu *gpu, const struct tt_gpu_block *w, const struct tt_resnet_group *s, int first,
                 int frames, int *chunks)
{
    struct tt_gpu_backbone *b = &gpu->backbone;
    int out = s->out_channels, in = first ? s->in_channels : out, in_size = first ? s->in_size : s->out_size;
    struct tt_k_conv_f16 c = {.in = b->x,
                              .norm = b->norm[0],
                              .weight = w->conv[0],
                              .out = b->h,
                              .partial = b->partial,
                              .frames = frames,
                              .in_size = in_size,
                              .in_c = in,
                              .out_size = s->out_size,
                              .out_c = out,
                              .variant = tt_gpu_conv_variant(gpu->mma, in_size / s->out_size, out)};
    int error = finish_norm(gpu, &w->norm[0], 0, frames, *chunks, in_size, in);

    if (!error)
        error = tt_k_conv_f16(&c, gpu->mma, gpu->stream);
    if (!error)
        error = finish_norm(gpu, &w->norm[1], 1, frames, tt_k_conv_f16_tiles(c.variant, s->out_size),
                            s->out_size, out);
    if (error)
        return error;
    c.in = b->h, c.norm = b->norm[1], c.weight = w->conv[1], c.in_size = s->out_size, c.in_c = out;
    c.variant = tt_gpu_conv_variant(gpu->mma, 1, out);
    if (first) {
        c.proj_in = b->x, c.proj_norm = b->norm[0], c.proj_size = in_size, c.proj_c = in, c.out = b->shortcut;
        b->shortcut = b->x, b->x = c.out;
    } else {
        c.add = b->x, c.out = b->x;
    }
    *chunks = tt_k_conv_f16_tiles(c.variant, s->out_size);
    return tt_k_conv_f16(&c, gpu->mma, gpu->stream);
}

static int l2(struct tt_gpu *gpu, void *features, int64_t pixels, int channels)
{
    return tt_k_l2_f16(gpu->backbone.x, features, pixels, channels, gpu->stream);
}

/* ---- first estimate ---- */

static int cost(struct tt_gpu *gpu, const struct tt_k_cost *c)
{
    return tt_k_cost_f16(c, gpu->mma, gpu->stream);
}

/* ---- refinement ---- */

/* the longest first, so that the device's last blocks are short */
static const int embed_order[TT_LEVELS] = {TT_LOWRES, TT_HIRES, TT_HIGHEST};

static int embed_small(struct tt_gpu *gpu, int queries, int frames)
{
    struct tt_gpu_track *t = &gpu->track;
    struct tt_k_embed_f16 e = {.state = t->state,
                               .levels = TT_LEVELS,
                               .queries = queries,
                               .frames = frames,
                               .row = TT_SUPPORT_FLOATS,
                               .out_row = TT_K_TOKEN};

    for (int i = 0; i < TT_LEVELS; i++) {
        int level = embed_order[i];
        const struct tt_level_shape *s = &tt_level_shapes[level];
        const struct tt_gpu_encoder_conv *w = gpu->weights.encoder[level];

        e.level[i] = (struct tt_k_embed_level){.grid = gpu->features[level],
                                               .support = t->supports + tt_gpu_support_offset(level),
                                               .weight = {w[0].weight[0], w[0].weight[1]},
                                               .weight2 = w[1].weight[0],
                                               .bias = {w[0].bias, w[1].bias},
                                               .gamma = {w[0].norm.gamma, w[1].norm.gamma},
                                               .beta = {w[0].norm.beta, w[1].norm.beta},
                                               .out = (uint16_t *)t->tokens + 2 + level * TT_LEVEL_EMBEDDING,
                                               .size = s->size,
                                               .channels = s->channels,
                                               .scale = (float)s->size / TT_CLIP_SIZE};
    }
    return tt_k_embed_f16(&e, gpu->mma, gpu->stream);
}

static int embed_base(struct tt_gpu *gpu, int queries, int frames)
{
    struct tt_gpu_track *t = &gpu->track;
    struct tt_k_embed_base_f16 e = {.state = t->state,
                                    .levels = TT_LEVELS,
                                    .queries = queries,
                                    .frames = frames,
                                    .row = TT_SUPPORT_FLOATS,
                                    .out_row = TT_K_TOKEN};

    for (int i = 0; i < TT_LEVELS; i++) {
        int level = embed_order[i];
        const struct tt_level_shape *s = &tt_level_shapes[level];
        const struct tt_gpu_encoder_conv *w = gpu->weights.encoder[level];

        e.level[i] =
            (struct tt_k_embed_base_level){.grid = gpu->features[level],
                                           .support = t->supports + tt_gpu_support_offset(level),
                                           .weight = {w[0].weight[0], w[0].weight[1]},
                                           .weight2 = w[1].weight[0],
                                           .weight3 = w[2].weight[0],
                                           .bias = {w[0].bias, w[1].bias, w[2].bias},
                                           .gamma = {w[0].norm.gamma, w[1].norm.gamma, w[2].norm.gamma},
                                           .beta = {w[0].norm.beta, w[1].norm.beta, w[2].norm.beta},
                                           .out = (uint16_t *)t->tokens + 2 + level * TT_LEVEL_EMBEDDING,
                                           .size = s->size,
                                           .channels = s->channels,
                                           .scale = (float)s->size / TT_CLIP_SIZE};
    }
    return tt_k_embed_base_f16(&e, gpu->mma, gpu->stream);
}

/* Correlation embeddings of all query points and levels; no volume in memory. */
static int embed(struct tt_gpu *gpu, int queries, int frames)
{
    return gpu->shape->encoder_convs == 2 ? embed_small(gpu, queries, frames)
                                          : embed_base(gpu, queries, frames);
}

static int tokens(struct tt_gpu *gpu, int queries, int frames)
{
    return tt_k_tokens_f16(gpu->track.state, gpu->track.tokens, queries, frames, gpu->stream);
}

static int input(struct tt_gpu *gpu, const struct tt_gpu_product *w, int rows)
{
    const struct tt_k_product_f16 p = {.a = gpu->track.tokens,
                                       .weight = w->weight,
                                       .bias = w->bias,
                                       .out = gpu->track.h,
                                       .width = gpu->shape->width,
                                       .rows = rows,
                                       .k = TT_K_TOKEN,
                                       .n = gpu->shape->width};

    return tt_k_product_f16(&p, gpu->mma, gpu->stream);
}

static int layer(struct tt_gpu *gpu, const struct tt_gpu_layer *w, int queries, int frames)
{
    struct tt_gpu_track *t = &gpu->track;
    int rows = queries * frames, width = gpu->shape->width;
    const struct tt_k_product_f16 qkv = {.h = t->h,
                                         .gamma = w->norm[0].gamma,
                                         .beta = w->norm[0].beta,
                                         .weight = w->qkv.weight,
                                         .bias = w->qkv.bias,
                                         .half = t->qkv,
                                         .width = width,
                                         .rows = rows,
                                         .n = 3 * width};
    const struct tt_k_attend_f16 attend = {.qkv = t->qkv,
                                           .weight = w->final.weight,
                                           .bias = w->final.bias,
                                           .h = t->h,
                                           .queries = queries,
                                           .frames = frames,
                                           .width = width};
    const struct tt_k_mlp_f16 mlp = {.h = t->h,
                                     .gamma = w->norm[1].gamma,
                                     .beta = w->norm[1].beta,
                                     .up = w->up.weight,
                                     .down = w->down.weight,
                                     .up_bias = w->up.bias,
                                     .down_bias = w->down.bias,
                                     .rows = rows,
                                     .width = width};
    int error = tt_k_product_f16(&qkv, gpu->mma, gpu->stream);

    if (!error)
        error = tt_k_attend_f16(&attend, gpu->mma, gpu->stream);
    return error ? error : tt_k_mlp_f16(&mlp, gpu->mma, gpu->stream);
}

const struct tt_gpu_network tt_gpu_network_f16 = {
    .value = sizeof(uint16_t),
    .stem = stem,
    .block = block,
    .l2 = l2,
    .support = tt_k_support_f16,
    .cost = cost,
    .embed = embed,
    .tokens = tokens,
    .input = input,
    .layer = layer,
};

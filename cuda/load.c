/* cuda/load.c: weights from a safetensors file to the device, in the order in which the kernels read them.
 *
 * Two walks over the model: the first counts bytes, the second converts into a host copy of the slab, which
 * goes to the device in one piece. Convolutions become [ky][kx][in][out], matrices [in][out], input channels
 * padded with zeros. Fails with what tt_gpu_status makes of a CUDA error, or TT_RETRY_LATER without host
 * memory; a missing tensor cannot happen after tt_weights_open, and is TT_REFUSE.
 */
#include "cuda/gpu.h"
#include "cuda/pack.h"

#include <cuda_runtime_api.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct loader {
    const struct tt_weights *file;
    unsigned char *device, *host; /* NULL while counting */
    int half;                     /* matrices in FP16, packed */
    enum tt_k_mma mma;
    size_t used;
    enum tt_status status;
    struct tt_error *err;
};

/* Room for n bytes; *host: where to write them, NULL while counting. */
static void *reserve_bytes(struct loader *l, size_t n, void **host)
{
    void *device = l->device ? l->device + l->used : NULL;

    *host = l->host ? l->host + l->used : NULL;
    l->used += (n + 255) / 256 * 256;
    return device;
}

static float *reserve(struct loader *l, size_t n, float **host)
{
    void *at, *device = reserve_bytes(l, n * sizeof(float), &at);

    *host = at;
    return device;
}

/* Packed matrices are followed by 2 KB that kernels read ahead. */
static void *reserve_packed(struct loader *l, size_t n, void **host)
{
    return reserve_bytes(l, n * sizeof(uint16_t) + 2048, host);
}

static void check_memory(struct loader *l, int failed)
{
    if (failed && !l->status)
        l->status = tt_fail(l->err, TT_RETRY_LATER, "no memory for the weights");
}

/* The tensor as FP32 in new memory, or NULL (status set). */
static float *read_tensor(struct loader *l, int64_t count, const char *name)
{
    const struct tt_tensor *t = tt_weights_find(l->file, name);
    float *copy;

    if (!t || t->count != count) {
        l->status = tt_fail(l->err, TT_REFUSE, "weight %s is missing or of another size", name);
        return NULL;
    }
    copy = tt_tensor_to_f32(t);
    if (!copy)
        l->status = tt_fail(l->err, TT_RETRY_LATER, "no memory for the weights");
    return copy;
}

/* [out][in][taps] -> [taps][in_padded][columns], written at column `at`. */
static void put_taps(struct loader *l, float *to, int out, int in, int in_padded, int taps, int columns,
                     int at, const char *name)
{
    float *w;

    if (!to || l->status)
        return;
    w = read_tensor(l, (int64_t)out * in * taps, name);
    if (!w)
        return;
    for (int t = 0; t < taps; t++)
        for (int i = 0; i < in; i++)
            for (int o = 0; o < out; o++)
                to[((size_t)t * in_padded + i) * columns + at + o] = w[((size_t)o * in + i) * taps + t];
    free(w);
}

static float *conv(struct loader *l, int out, int in, int in_padded, int kernel, const char *name)
{
    float *host, *device = reserve(l, (size_t)kernel * kernel * in_padded * out, &host);

    put_taps(l, host, out, in, in_padded, kernel * kernel, out, 0, name);
    return device;
}

/* The first n elements as they are. */
static float *plain(struct loader *l, int n, int64_t of, const char *format, ...)
{
    char name[96];
    va_list args;
    float *host, *device = reserve(l, (size_t)n, &host), *w;

    va_start(args, format);
    vsnprintf(name, sizeof name, format, args);
    va_end(args);
    if (!host || l->status)
        return device;
    w = read_tensor(l, of, name);
    if (w)
        memcpy(host, w, (size_t)n * sizeof *w);
    free(w);
    return device;
}

static struct tt_gpu_norm norm(struct loader *l, int n, const char *prefix)
{
    struct tt_gpu_norm v = {plain(l, n, n, "%s.weight", prefix), plain(l, n, n, "%s.bias", prefix)};

    return v;
}

/* `parts` linear layers of the same input, side by side. */
static struct tt_gpu_product product(struct loader *l, int out, int in, int in_padded, int parts,
                                     const char *const *prefix)
{
    size_t n = (size_t)in_padded * (size_t)(out * parts);
    struct tt_gpu_product p;
    float *bias_host, *bias, *matrix = NULL;
    void *packed = NULL;
    char name[96];

    p.weight = l->half ? reserve_packed(l, n, &packed) : reserve(l, n, &matrix);
    p.bias = reserve(l, (size_t)(out * parts), &bias_host);
    if (packed)
        check_memory(l, !(matrix = calloc(n, sizeof *matrix)));
    for (int i = 0; i < parts; i++) {
        snprintf(name, sizeof name, "%s.weight", prefix[i]);
        put_taps(l, matrix, out, in, in_padded, 1, out * parts, out * i, name);
        snprintf(name, sizeof name, "%s.bias", prefix[i]);
        bias = bias_host && !l->status ? read_tensor(l, out, name) : NULL;
        if (bias)
            memcpy(bias_host + out * i, bias, (size_t)out * sizeof *bias);
        free(bias);
    }
    if (packed && !l->status)
        tt_pack_matrix_f16(packed, matrix, in_padded, out * parts);
    if (packed)
        free(matrix);
    return p;
}

enum tt_k_conv_variant tt_gpu_conv_variant(enum tt_k_mma mma, int stride, int out_channels)
{
    if (stride == 2)
        return TT_CONV_S2_128x128_C32;
    if (out_channels == 64)
        return mma == TT_MMA_K16 ? TT_CONV_256x64_C64 : TT_CONV_256x64_C32;
    return mma == TT_MMA_K16 ? TT_CONV_128x128_C64 : TT_CONV_128x128_C32;
}

/* A 3×3 convolution in FP16; proj: its projection's name, or NULL. */
static void *conv_f16(struct loader *l, int stride, int out, int in, int proj_in, const char *name,
                      const char *proj)
{
    int chunk = tt_k_conv_f16_chunk(tt_gpu_conv_variant(l->mma, stride, out));
    size_t n = (size_t)(9 * in + proj_in) * (size_t)out;
    void *host, *device = reserve_packed(l, n, &host);
    float *w, *p = NULL;

    if (!host || l->status)
        return device;
    w = read_tensor(l, (int64_t)out * in * 9, name);
    if (w && proj)
        p = read_tensor(l, (int64_t)out * proj_in, proj);
    if (w && (p || !proj))
        check_memory(l, tt_pack_conv_f16(host, w, p, out, in, proj_in, chunk));
    free(w);
    free(p);
    return device;
}

static void load_block(struct loader *l, struct tt_gpu_block *block, const struct tt_resnet_group *group,
                       int first, const char *prefix)
{
    int out = group->out_channels, in = first ? group->in_channels : out, stride = first ? group->stride : 1;
    char name[2][112], proj[112];

    for (int i = 0; i < 2; i++) {
        snprintf(name[i], sizeof name[i], "%s.bn_%d", prefix, i);
        block->norm[i] = norm(l, i ? out : in, name[i]);
        snprintf(name[i], sizeof name[i], "%s.conv_%d.weight", prefix, i);
    }
    snprintf(proj, sizeof proj, "%s.proj_conv.weight", prefix);
    block->proj = NULL;
    if (l->half) {
        block->conv[0] = conv_f16(l, stride, out, in, 0, name[0], NULL);
        block->conv[1] = conv_f16(l, 1, out, out, first ? in : 0, name[1], first ? proj : NULL);
        return;
    }
    block->conv[0] = conv(l, out, in, in, 3, name[0]);
    block->conv[1] = conv(l, out, out, out, 3, name[1]);
    if (first)
        block->proj = conv(l, out, in, in, 1, proj);
}

static const char stem_name[] = "resnet_torch.initial_conv.weight";

static void *stem_f16(struct loader *l)
{
    float taps[147 * TT_STEM_CHANNELS];
    void *host, *device = reserve_packed(l, 176 * TT_STEM_CHANNELS, &host);

    put_taps(l, host ? taps : NULL, TT_STEM_CHANNELS, 3, 3, 49, TT_STEM_CHANNELS, 0, stem_name);
    if (host && !l->status)
        check_memory(l, tt_pack_stem_f16(host, taps));
    return device;
}

static void load_backbone(struct loader *l, struct tt_gpu_weights *w)
{
    char prefix[80];

    w->stem = l->half ? stem_f16(l) : conv(l, TT_STEM_CHANNELS, 3, 3, TT_STEM_KERNEL, stem_name);
    for (int g = 0; g < TT_RESNET_GROUPS; g++)
        for (int b = 0; b < TT_RESNET_BLOCKS; b++) {
            snprintf(prefix, sizeof prefix, "resnet_torch.block_groups.%d.blocks.%d", g, b);
            load_block(l, &w->block[g][b], &tt_resnet_groups[g], b == 0, prefix);
        }
}

/* One convolution of the encoder in FP16; the first for each orientation of the volumes. */
static void load_encoder_f16(struct loader *l, struct tt_gpu_encoder_conv *e, const struct tt_encoder_conv *c,
                             int first, const char *name)
{
    static const size_t of_small[2] = {TT_EMBED_HALFS_0, TT_EMBED_HALFS_1},
                        of_base[2] = {TT_EMBED_BASE_HALFS_0, TT_EMBED_BASE_HALFS_1};
    int taps = c->kernel * c->kernel, in = c->in_channels, out = c->out_channels, is_small = c->kernel == 5;
    size_t n = (size_t)taps * (size_t)(in * out);
    void *host[2] = {NULL, NULL};
    float *w = NULL;

    for (int o = 0; o < 1 + first; o++)
        e->weight[o] = reserve_packed(l, !first ? n : is_small ? of_small[o] : of_base[o], &host[o]);
    if (!host[0] || l->status)
        return;
    if (first) {
        w = read_tensor(l, (int64_t)taps * out * in, name);
        for (int o = 0; o < 2 && w; o++)
            (is_small ? tt_pack_embed_f16 : tt_pack_embed_base_f16)(host[o], w, o);
    } else {
        w = calloc(n, sizeof *w);
        check_memory(l, !w);
        put_taps(l, w, out, in, in, taps, out, 0, name);
        if (!l->status)
            tt_pack_left_f16(host[0], w, taps * in, out);
    }
    free(w);
}

static void load_encoders(struct loader *l, struct tt_gpu_weights *w, const struct tt_model_shape *shape)
{
    char name[64];

    for (int level = 0; level < TT_LEVELS; level++)
        for (int i = 0; i < shape->encoder_convs; i++) {
            const struct tt_encoder_conv *c = &shape->encoder[i];
            struct tt_gpu_encoder_conv *e = &w->encoder[level][i];

            snprintf(name, sizeof name, "cmdtop.%d.conv.%d.0.weight", level, i);
            if (l->half)
                load_encoder_f16(l, e, c, i == 0, name);
            else
                e->weight[0] =
                    conv(l, c->out_channels, c->in_channels, (c->in_channels + 7) / 8 * 8, c->kernel, name);
            e->bias = plain(l, c->out_channels, c->out_channels, "cmdtop.%d.conv.%d.0.bias", level, i);
            snprintf(name, sizeof name, "cmdtop.%d.conv.%d.1", level, i);
            e->norm = norm(l, c->out_channels, name);
        }
}

static void load_mixer(struct loader *l, struct tt_gpu_weights *w, int width)
{
    static const char *const parts[] = {"attn.query_proj", "attn.key_proj", "attn.value_proj",
                                        "attn.final_proj", "dense.0",       "dense.2"};
    const char *input = "torch_pips_mixer.input_proj";

    w->input = product(l, width, TT_MIXER_INPUT, TT_K_TOKEN, 1, &input);
    for (int i = 0; i < TT_MIXER_LAYERS; i++) {
        struct tt_gpu_layer *layer = &w->layer[i];
        char names[6][96], norms[80];
        const char *at[6];

        for (int k = 0; k < 6; k++) {
            snprintf(names[k], sizeof names[k], "torch_pips_mixer.transformer.layers.%d.%s", i, parts[k]);
            at[k] = names[k];
        }
        for (int k = 0; k < 2; k++) {
            snprintf(norms, sizeof norms, "torch_pips_mixer.transformer.layers.%d.layer_norm%d", i, k + 1);
            layer->norm[k] = norm(l, width, norms);
        }
        layer->qkv = product(l, width, width, width, 3, at);
        layer->final = product(l, width, width, width, 1, at + 3);
        layer->up = product(l, TT_MIXER_WIDENING * width, width, width, 1, at + 4);
        layer->down = product(l, width, TT_MIXER_WIDENING * width, TT_MIXER_WIDENING * width, 1, at + 5);
    }
    w->norm_out = norm(l, width, "torch_pips_mixer.transformer.ln_out");
    w->head_w = plain(l, TT_MIXER_OUTPUT * width, (int64_t)TT_MIXER_OUTPUT_ROWS * width,
                      "torch_pips_mixer.output_proj.weight");
    w->head_b = plain(l, TT_MIXER_OUTPUT, TT_MIXER_OUTPUT_ROWS, "torch_pips_mixer.output_proj.bias");
}

static void load_all(struct loader *l, struct tt_gpu_weights *w, const struct tt_model_shape *shape)
{
    l->used = 0;
    load_backbone(l, w);
    w->cost_conv = conv(l, 1, 2, 2, 3, "cost_conv.weight");
    w->occ_w = plain(l, 12, 12, "occ_linear.weight");
    w->occ_b = plain(l, 2, 2, "occ_linear.bias");
    load_encoders(l, w, shape);
    load_mixer(l, w, shape->width);
}

enum tt_status tt_gpu_load(struct tt_gpu *gpu, const struct tt_weights *weights, struct tt_error *err)
{
    struct loader l = {.file = weights, .err = err, .half = gpu->precision == TT_FP16, .mma = gpu->mma};
    int error;

    load_all(&l, &gpu->weights, gpu->shape);
    gpu->weight_bytes = l.used;
    l.host = calloc(1, l.used);
    if (!l.host)
        return tt_fail(err, TT_RETRY_LATER, "no memory for the weights");
    error = cudaMalloc((void **)&gpu->weight_slab, l.used);
    if (!error) {
        l.device = gpu->weight_slab;
        load_all(&l, &gpu->weights, gpu->shape);
        if (!l.status)
            error = cudaMemcpy(gpu->weight_slab, l.host, l.used, cudaMemcpyHostToDevice);
    }
    free(l.host);
    return l.status ? l.status : error ? tt_gpu_status(error, "weights", err) : TT_OK;
}

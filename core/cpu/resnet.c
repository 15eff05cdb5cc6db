/* core/cpu/resnet.c: the backbone: one frame in, three levels of L2-normalised features out.
 *
 * docs/MODEL.md, "Backbone"; public code: models/nets.py, ResNet and BlockV2. A block keeps three maps: its
 * input (which becomes its output where there is no projection), the first convolution's output, and the
 * projection, to which the second convolution is added. Nothing here can fail.
 */
#include "core/cpu/cpu.h"
#include "core/cpu/sizes.h"
#include "core/cpu/vec.h"

#include <math.h>

enum {
    STEM_SIZE = 128,
    STEM_PAD = 2, /* zeros before the first row and column; three behind the last */
    PADDED = TT_PADDED_FRAME,
    STEM_TAPS = TT_STEM_TAPS,
};

/* Pixels as the network wants them, -1..1, in a frame of zeros: [PADDED][PADDED][3]. */
static void pad_frame(const uint8_t *rgb, float *padded)
{
    float value[256];

    for (int i = 0; i < 256; i++)
        value[i] = (float)i / 255.0f * 2.0f - 1.0f;
    memset(padded, 0, PADDED * PADDED * 3 * sizeof *padded);
    for (int y = 0; y < TT_CLIP_SIZE; y++) {
        float *to = padded + ((y + STEM_PAD) * PADDED + STEM_PAD) * 3;

        for (int i = 0; i < TT_CLIP_SIZE * 3; i++)
            to[i] = value[*rgb++];
    }
}

/* The 7×7 convolution of stride 2 on the frame: a matrix of patches and one product a row. */
static void run_stem(const struct tt_resnet *net, const uint8_t *rgb, struct tt_map *out,
                     struct tt_moments *moments, struct tt_scratch scratch)
{
    float *padded = tt_scratch_take(&scratch, PADDED * PADDED * 3);
    float *patches = tt_scratch_take(&scratch, STEM_SIZE * STEM_TAPS);

    pad_frame(rgb, padded);
    moments->pixels = 0;
    for (int y = 0; y < STEM_SIZE; y++) {
        float *row = out->data + y * STEM_SIZE * TT_STEM_CHANNELS;

        for (int x = 0; x < STEM_SIZE; x++)
            for (int ky = 0; ky < TT_STEM_KERNEL; ky++)
                memcpy(patches + x * STEM_TAPS + ky * TT_STEM_KERNEL * 3,
                       padded + ((2 * y + ky) * PADDED + 2 * x) * 3, TT_STEM_KERNEL * 3 * sizeof *patches);
        tt_gemm(STEM_SIZE, TT_STEM_CHANNELS, STEM_TAPS, patches, STEM_TAPS, net->stem, TT_STEM_CHANNELS, 0.0f,
                row, TT_STEM_CHANNELS);
        tt_moments_add(moments, row, STEM_SIZE, TT_STEM_CHANNELS);
    }
    out->size = STEM_SIZE;
    out->channels = TT_STEM_CHANNELS;
}

/* Each pixel's channels to length 1. */
TT_CLONES static void normalise_pixels(const float *from, int pixels, int channels, float *to)
{
    for (int p = 0; p < pixels; p++, from += channels, to += channels) {
        tt_vec sum = tt_splat(0.0f);
        float scale;

        for (int c = 0; c < channels; c += TT_LANES)
            sum += tt_load(from + c) * tt_load(from + c);
        scale = 1.0f / sqrtf(fmaxf(tt_sum(sum), TT_L2_EPSILON));
        for (int c = 0; c < channels; c += TT_LANES)
            tt_store(to + c, tt_load(from + c) * scale);
    }
}

/* maps[0]: the block's input, then its output; maps[1], maps[2]: free. moments: of maps[0]. */
static void run_block(const struct tt_block *block, struct tt_map maps[3], struct tt_moments *moments,
                      struct tt_scratch scratch)
{
    const struct tt_conv3 *first = &block->conv[0], *second = &block->conv[1];
    struct tt_map *in = &maps[0], *middle = &maps[1], *out = block->projection ? &maps[2] : in;
    struct tt_channel_norm norm;

    middle->size = in->size / first->stride;
    middle->channels = first->out;
    out->size = middle->size;
    out->channels = middle->channels;
    tt_moments_norm(moments, &block->norm[0], first->in, &norm);
    tt_conv3_run(first, block->projection, in, &norm, middle, 0, out, moments, scratch);
    tt_moments_norm(moments, &block->norm[1], second->in, &norm);
    tt_conv3_run(second, NULL, middle, &norm, out, 1, NULL, moments, scratch);
    if (block->projection) {
        struct tt_map swap = maps[0];

        maps[0] = maps[2];
        maps[2] = swap;
    }
}

void tt_resnet_run(const struct tt_resnet *net, const uint8_t *rgb, float *const features[TT_LEVELS],
                   struct tt_scratch scratch)
{
    static const int level_of_group[TT_RESNET_GROUPS] = {TT_HIGHEST, TT_HIRES, -1, TT_LOWRES};
    struct tt_moments moments;
    struct tt_map maps[3];

    for (int i = 0; i < 3; i++)
        maps[i].data = tt_scratch_take(&scratch, STEM_SIZE * STEM_SIZE * TT_STEM_CHANNELS);
    run_stem(net, rgb, &maps[0], &moments, scratch);
    for (int g = 0; g < TT_RESNET_GROUPS; g++) {
        int level = level_of_group[g];

        for (int b = 0; b < TT_RESNET_BLOCKS; b++)
            run_block(&net->block[g][b], maps, &moments, scratch);
        if (level >= 0)
            normalise_pixels(maps[0].data, maps[0].size * maps[0].size, maps[0].channels, features[level]);
    }
}

void tt_resnet_load(struct tt_resnet *net, struct tt_store *store)
{
    net->stem = tt_store_weight(store, "resnet_torch.initial_conv.weight");
    for (int g = 0; g < TT_RESNET_GROUPS; g++) {
        const struct tt_resnet_group *group = &tt_resnet_groups[g];

        for (int b = 0; b < TT_RESNET_BLOCKS; b++) {
            struct tt_block *block = &net->block[g][b];
            int in = b ? group->out_channels : group->in_channels, stride = b ? 1 : group->stride;

            for (int i = 0; i < 2; i++) {
                block->norm[i] =
                    tt_store_affine(store, "resnet_torch.block_groups.%d.blocks.%d.bn_%d", g, b, i);
                tt_conv3_load(
                    &block->conv[i], store, i ? group->out_channels : in, group->out_channels, i ? 1 : stride,
                    tt_store_weight(store, "resnet_torch.block_groups.%d.blocks.%d.conv_%d.weight", g, b, i));
            }
            block->projection =
                b ? NULL
                  : tt_store_weight(store, "resnet_torch.block_groups.%d.blocks.0.proj_conv.weight", g);
        }
    }
}

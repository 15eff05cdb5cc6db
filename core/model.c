/* core/model.c: the network's dimensions as tables, and the list of its weights.
 *
 * Names follow the public state_dict. Nothing here allocates or can fail.
 */
#include "core/model.h"

#include <stdarg.h>
#include <stdio.h>

const struct tt_level_shape tt_level_shapes[TT_LEVELS] = {
    [TT_HIRES] = {64, 128},
    [TT_LOWRES] = {32, 256},
    [TT_HIGHEST] = {128, 64},
};

const struct tt_resnet_group tt_resnet_groups[TT_RESNET_GROUPS] = {
    {64, 64, 1, 128, 128},
    {64, 128, 2, 128, 64},
    {128, 256, 2, 64, 32},
    {256, 256, 1, 32, 32},
};

const struct tt_model_shape tt_model_small = {
    .name = "small",
    .width = 256,
    .heads = 4,
    .encoder_convs = 2,
    .encoder = {{49, 64, 5, 4, 7, 2, 1}, {64, 128, 2, 2, 2, 1, 0}},
};

const struct tt_model_shape tt_model_base = {
    .name = "base",
    .width = 384,
    .heads = 6,
    .encoder_convs = 3,
    .encoder = {{49, 64, 3, 2, 7, 4, 1}, {64, 128, 3, 2, 4, 2, 0}, {128, 128, 2, 2, 2, 1, 0}},
};

struct walk {
    int (*visit)(void *context, const struct tt_weight_spec *spec);
    void *context;
    int result;      /* the first that was not 0 */
    char prefix[64]; /* of the names to come */
};

static void visit_one(struct walk *walk, const char *suffix, int rank, int a, int b, int c, int d)
{
    struct tt_weight_spec spec = {.rank = rank, .shape = {a, b, c, d}};

    if (walk->result)
        return;
    snprintf(spec.name, sizeof spec.name, "%s%s", walk->prefix, suffix);
    walk->result = walk->visit(walk->context, &spec);
}

__attribute__((format(printf, 2, 3))) static void enter(struct walk *walk, const char *format, ...)
{
    va_list args;

    va_start(args, format);
    vsnprintf(walk->prefix, sizeof walk->prefix, format, args);
    va_end(args);
}

static void visit_conv(struct walk *walk, const char *suffix, int out, int in, int kernel)
{
    visit_one(walk, suffix, 4, out, in, kernel, kernel);
}

static void visit_linear(struct walk *walk, int out, int in)
{
    visit_one(walk, "weight", 2, out, in, 0, 0);
    visit_one(walk, "bias", 1, out, 0, 0, 0);
}

static void visit_norm(struct walk *walk, int channels)
{
    visit_one(walk, "weight", 1, channels, 0, 0, 0);
    visit_one(walk, "bias", 1, channels, 0, 0, 0);
}

static void walk_resnet(struct walk *walk)
{
    enter(walk, "resnet_torch.");
    visit_conv(walk, "initial_conv.weight", TT_STEM_CHANNELS, 3, TT_STEM_KERNEL);
    for (int g = 0; g < TT_RESNET_GROUPS; g++) {
        const struct tt_resnet_group *group = &tt_resnet_groups[g];

        for (int b = 0; b < TT_RESNET_BLOCKS; b++) {
            int in = b ? group->out_channels : group->in_channels;

            enter(walk, "resnet_torch.block_groups.%d.blocks.%d.bn_0.", g, b);
            visit_norm(walk, in);
            enter(walk, "resnet_torch.block_groups.%d.blocks.%d.bn_1.", g, b);
            visit_norm(walk, group->out_channels);
            enter(walk, "resnet_torch.block_groups.%d.blocks.%d.", g, b);
            visit_conv(walk, "conv_0.weight", group->out_channels, in, 3);
            visit_conv(walk, "conv_1.weight", group->out_channels, group->out_channels, 3);
            if (b == 0)
                visit_conv(walk, "proj_conv.weight", group->out_channels, in, 1);
        }
    }
}

static void walk_encoders(struct walk *walk, const struct tt_model_shape *shape)
{
    for (int level = 0; level < TT_LEVELS; level++) {
        for (int i = 0; i < shape->encoder_convs; i++) {
            const struct tt_encoder_conv *conv = &shape->encoder[i];

            enter(walk, "cmdtop.%d.conv.%d.0.", level, i);
            visit_conv(walk, "weight", conv->out_channels, conv->in_channels, conv->kernel);
            visit_one(walk, "bias", 1, conv->out_channels, 0, 0, 0);
            enter(walk, "cmdtop.%d.conv.%d.1.", level, i);
            visit_norm(walk, conv->out_channels);
        }
    }
}

static void walk_mixer(struct walk *walk, const struct tt_model_shape *shape)
{
    static const char *const projections[] = {"query", "key", "value", "final"};
    int width = shape->width;

    enter(walk, "torch_pips_mixer.input_proj.");
    visit_linear(walk, width, TT_MIXER_INPUT);
    for (int layer = 0; layer < TT_MIXER_LAYERS; layer++) {
        for (int i = 0; i < 4; i++) {
            enter(walk, "torch_pips_mixer.transformer.layers.%d.attn.%s_proj.", layer, projections[i]);
            visit_linear(walk, width, width);
        }
        enter(walk, "torch_pips_mixer.transformer.layers.%d.dense.0.", layer);
        visit_linear(walk, TT_MIXER_WIDENING * width, width);
        enter(walk, "torch_pips_mixer.transformer.layers.%d.dense.2.", layer);
        visit_linear(walk, width, TT_MIXER_WIDENING * width);
        for (int i = 1; i <= 2; i++) {
            enter(walk, "torch_pips_mixer.transformer.layers.%d.layer_norm%d.", layer, i);
            visit_norm(walk, width);
        }
    }
    enter(walk, "torch_pips_mixer.transformer.ln_out.");
    visit_norm(walk, width);
    enter(walk, "torch_pips_mixer.output_proj.");
    visit_linear(walk, TT_MIXER_OUTPUT_ROWS, width);
}

int tt_model_each_weight(const struct tt_model_shape *shape,
                         int (*visit)(void *context, const struct tt_weight_spec *spec), void *context)
{
    struct walk walk = {.visit = visit, .context = context};

    walk_resnet(&walk);
    enter(&walk, "cost_conv.");
    visit_conv(&walk, "weight", 1, 2, 3);
    visit_one(&walk, "bias", 1, 1, 0, 0, 0);
    enter(&walk, "occ_linear.");
    visit_linear(&walk, 2, 6);
    walk_encoders(&walk, shape);
    walk_mixer(&walk, shape);
    return walk.result;
}

/* core/plan_cuda.c: the plan of a CUDA device: its tiles, and every kernel counted.
 *
 * A tile is as large as keeps what its kernels hand to each other in three quarters of the L2 cache, but
 * never so small that the blocks of its smallest launch would leave multiprocessors without work (of query
 * points: whole waves of the mixer's blocks, since a wave that is half full takes as long as one), and no
 * larger than the goal for the working set allows: 600 MB, of which the features of a clip take 172 (FP16) or
 * 345 (FP32). frames:         what a convolution reads and writes, two maps of 128×128×64 queries:        the
 * residual stream and the hidden layer of the mixer volume_queries: FP32's 4D correlation volumes of one
 * level, both orientations How many blocks a multiprocessor holds follows from its shared memory.
 *
 * What is counted: operations that the model asks for (multiply-adds are two; taps in the padding are left
 * out); bytes that pass between multiprocessors and L2, every halo and every block of columns anew. They are
 * "kept" where all that a kernel reads and writes fits into L2 together: then they neither come from device
 * memory nor go there. Weights always fit, and are not counted. Nothing here allocates. Fails with TT_REFUSE.
 */
#include "core/clip.h"
#include "core/plan_parts.h"

#include <math.h>
#include <stdarg.h>
#include <string.h>

#define GOAL_BYTES INT64_C(594000000) /* of 600 MB: allocations are rounded up, graphs take some */

enum {
    LARGEST_QUERIES = 4096,
    MAP_VALUES = 128 * 128 * 64, /* the backbone's largest map */
    TOKEN = 864,                 /* values of a row of the mixer's input, padded */
    FIRST_MAP_BLOCKS = 64,       /* of a convolution, of a frame's largest map */
    PRODUCT_ROWS = 96,           /* of the mixer's products on a multiprocessor: two blocks of 48 */
};

enum { T4_SHARED = 64 << 10 };

/* What depends on the precision. A device with no more shared memory than a T4 runs a T4's path, whose
 * convolutions take smaller chunks. */
struct kind {
    int value;            /* bytes of an activation */
    int conv_shared[2];   /* shared memory of a convolution's block: a T4's path, native */
    int conv_blocks;      /* that registers allow */
    int small_map_blocks; /* of one frame's 32×32×256 output */
    int least_shared;     /* what the largest block takes */
};

static const struct kind kinds[] = {
    [TT_FP32] = {4, {25088, 25088}, 3, 32, 60480},
    [TT_FP16] = {2, {29376, 50112}, 2, 16, T4_SHARED},
};

/* The 4D volumes of FP32 and the kernel with fewest blocks that works on them, the encoder. */
enum { VOLUME_ROW = 56, VOLUME_SHARED = 25088, VOLUME_BLOCKS = 3 };
#define VOLUME_BLOCKS_PER_QUERY (2 * TT_CLIP_FRAMES / 32.0)

static const struct kind *kind_of(const struct tt_plan *plan)
{
    return &kinds[plan->precision];
}

/* ---- tiles and memory ---- */

/* Features and pixels of a clip. */
static int64_t features_bytes(const struct tt_plan *plan)
{
    return (int64_t)kind_of(plan)->value * TT_CLIP_FRAMES * TT_FEATURE_FLOATS + TT_CLIP_BYTES;
}

/* In FP16 embeddings are made without volumes in memory. */
static int has_volumes(const struct tt_plan *plan)
{
    return plan->precision == TT_FP32;
}

static int64_t volume_bytes(void) /* of one query point and level */
{
    return (int64_t)2 * TT_CLIP_FRAMES * TT_SUPPORT_AREA * VOLUME_ROW * 4;
}

/* The mixer's residual stream and what its layers hand on, of one query point: queries, keys and values in
 * FP16, where the hidden layer never leaves the multiprocessor; the hidden layer in FP32. */
static int64_t hidden_bytes(const struct tt_plan *plan, const struct tt_model_shape *shape)
{
    int widths = plan->precision == TT_FP16 ? 3 : TT_MIXER_WIDENING;

    return (int64_t)TT_CLIP_FRAMES * shape->width * (4 + widths * kind_of(plan)->value);
}

static double backbone_weights(void)
{
    double weights = 147 * TT_STEM_CHANNELS;

    for (int g = 0; g < TT_RESNET_GROUPS; g++) {
        double in = tt_resnet_groups[g].in_channels, out = tt_resnet_groups[g].out_channels;

        weights += 10 * in * out + 27 * out * out;
    }
    return weights;
}

static int64_t weight_bytes(const struct tt_plan *plan, const struct tt_model_shape *shape)
{
    return (int64_t)(kind_of(plan)->value * (backbone_weights() + tt_plan_mixer_weights(shape) +
                                             TT_LEVELS * tt_plan_encoder_weights(shape)));
}

/* Of one query point while volumes exist, with the encoder's maps and norms. */
static int64_t volume_scratch(const struct tt_plan *plan, const struct tt_model_shape *shape)
{
    int64_t maps = 2 * 128;

    if (!has_volumes(plan))
        return 0;
    for (int i = 0; i < shape->encoder_convs; i++)
        maps += shape->encoder[i].out_size * shape->encoder[i].out_size * shape->encoder[i].out_channels;
    return volume_bytes() + 4 * 2 * TT_CLIP_FRAMES * maps;
}

/* As cuda/network.c lays it out: weights, features, and a region that the backbone and a tile of query points
 * use in turn. */
static int64_t memory(const struct tt_plan *plan, const struct tt_model_shape *shape)
{
    const int64_t value = kind_of(plan)->value, frames = TT_CLIP_FRAMES, width = shape->width;
    const int64_t backbone = plan->tile.frames * (3 * MAP_VALUES * value + 64 * 64 * 8 + 4096);
    const int64_t query = TT_SUPPORT_FLOATS * 4 + 12 + frames * (2 * 16 + TOKEN * value);
    const int64_t volumes = plan->volume_queries * volume_scratch(plan, shape),
                  layers = plan->tile.queries * frames * width *
                           (4 + (plan->precision == TT_FP16 ? 3 : 5) * value),
                  track = plan->tile.queries * query + (volumes > layers ? volumes : layers);

    return weight_bytes(plan, shape) + features_bytes(plan) + (backbone > track ? backbone : track);
}

/* Blocks that the device holds at once. */
static int64_t slots(const struct tt_plan *plan, int shared, int most)
{
    return (int64_t)plan->device.units * tt_plan_between(plan->device.shared_bytes / shared, 1, most);
}

/* `total` in as few tiles as `largest` allows, as even as they can be. */
static int even(int total, int64_t largest)
{
    int64_t tiles = (total + largest - 1) / largest;

    return (int)((total + tiles - 1) / tiles);
}

static int64_t larger(int64_t a, int64_t b)
{
    return a > b ? a : b;
}

static void choose(struct tt_plan *plan, const struct tt_model_shape *shape, struct tt_tile wanted)
{
    const struct kind *k = kind_of(plan);
    const int64_t cache = plan->device.l2_bytes * 3 / 4;
    const int64_t conv_slots =
        slots(plan, k->conv_shared[plan->device.shared_bytes > T4_SHARED], k->conv_blocks);
    int64_t frames = larger(cache / (2 * MAP_VALUES * k->value), conv_slots / k->small_map_blocks);
    const int64_t wave = larger((int64_t)plan->device.units * PRODUCT_ROWS / TT_CLIP_FRAMES, 1);
    int64_t queries = larger(cache / hidden_bytes(plan, shape), wave);
    int64_t volumes =
        larger(cache / volume_bytes(),
               (int64_t)((double)slots(plan, VOLUME_SHARED, VOLUME_BLOCKS) / VOLUME_BLOCKS_PER_QUERY));

    plan->tile.frames = wanted.frames ? tt_plan_between(wanted.frames, 1, TT_CLIP_FRAMES)
                                      : even(TT_CLIP_FRAMES, larger(frames, 1));
    /* what its first group's convolutions hand on stays in L2, where enough blocks for the device do */
    plan->first_frames =
        even(plan->tile.frames, cache / (2 * MAP_VALUES * k->value) * FIRST_MAP_BLOCKS >= conv_slots &&
                                        plan->precision == TT_FP16
                                    ? cache / (2 * MAP_VALUES * k->value)
                                    : plan->tile.frames);
    plan->tile.queries =
        tt_plan_between(wanted.queries ? wanted.queries : queries / wave * wave, 1, LARGEST_QUERIES);
    volumes =
        larger(plan->tile.queries / larger(volumes, 1), 1); /* now: parts of a tile, none of them small */
    plan->volume_queries =
        has_volumes(plan) ? (int)((plan->tile.queries + volumes - 1) / volumes) : plan->tile.queries;
}

/* Volumes of a tile that somebody asked for take what is left, where that is less. */
static int64_t memory_at_least(const struct tt_plan *plan, const struct tt_model_shape *shape)
{
    struct tt_plan least = *plan;

    least.volume_queries = 1;
    return memory(&least, shape);
}

/* FP32: volumes of fewer query points would leave the encoder's launches without two blocks of 128 × 64 for
 * every multiprocessor. */
static int least_volumes(const struct tt_plan *plan, const struct tt_model_shape *shape)
{
    const struct tt_encoder_conv *c = &shape->encoder[shape->encoder_convs - 2];
    const int values = 2 * TT_CLIP_FRAMES * c->out_size * c->out_size * c->out_channels;

    return tt_plan_between((int64_t)2 * plan->device.units * 128 * 64 / values, 1, LARGEST_QUERIES);
}

/* Makes what was not asked for smaller until it fits the goal, or else the device: first volumes, since the
 * mixer gains most from large tiles. */
static void fit(struct tt_plan *plan, const struct tt_model_shape *shape, struct tt_tile wanted)
{
    const int64_t there = plan->device.memory_bytes, goal = there < GOAL_BYTES ? there : GOAL_BYTES;

    while (memory(plan, shape) > goal) {
        struct tt_plan less = *plan;

        less.tile.queries = less.volume_queries = 1;
        if (memory(&less, shape) > goal && !wanted.frames &&
            plan->tile.frames > 1) /* not the queries' fault */
            plan->tile.frames--;
        else if (has_volumes(plan) && plan->volume_queries > least_volumes(plan, shape))
            plan->volume_queries--;
        else if (!wanted.queries && plan->tile.queries > plan->volume_queries)
            plan->tile.queries--;
        else if (plan->volume_queries > 1)
            plan->volume_queries--, plan->tile.queries -= !wanted.queries;
        else if (!wanted.frames && plan->tile.frames > 1)
            plan->tile.frames--;
        else
            break;
    }
    plan->volume_queries =
        has_volumes(plan) ? even(plan->tile.queries, plan->volume_queries) : plan->tile.queries;
    if (!wanted.frames)
        plan->tile.frames = even(TT_CLIP_FRAMES, plan->tile.frames);
}

/* ---- counting ---- */

struct counting {
    const struct tt_plan *plan;
    const struct tt_model_shape *shape;
    void (*visit)(void *context, const struct tt_plan_kernel *kernel);
    void *context;
};

/* work: bytes of all that one launch reads and writes; moved: of them, or more, over the clip. */
static void count(const struct counting *c, enum tt_stage stage, double launches, double flop, double work,
                  double moved, const char *format, ...) __attribute__((format(printf, 7, 8)));

static void count(const struct counting *c, enum tt_stage stage, double launches, double flop, double work,
                  double moved, const char *format, ...)
{
    int kept = work <= (double)c->plan->device.l2_bytes;
    struct tt_plan_kernel kernel = {.stage = stage,
                                    .launches = launches,
                                    .flop = flop,
                                    .bytes = kept ? 0 : moved,
                                    .kept = kept ? moved : 0};
    va_list args;

    va_start(args, format);
    vsnprintf(kernel.name, sizeof kernel.name, format, args);
    va_end(args);
    c->visit(c->context, &kernel);
}

/* That a launch of the backbone takes whose output has this size. */
static double frames_at_once(const struct tt_plan *plan, int out_size)
{
    return out_size == tt_resnet_groups[0].out_size && plan->first_frames < plan->tile.frames
               ? plan->first_frames
               : plan->tile.frames;
}

/* `times` 3×3 convolutions, whose output is added to where `add`; with the projection where `proj_in`. */
static void count_conv(const struct counting *c, int times, int in, int out, int stride, int out_size,
                       int proj_in, int add)
{
    const double value = kind_of(c->plan)->value, frames = c->plan->frames;
    const double at_once = frames_at_once(c->plan, out_size), tiles = ceil(frames / at_once);
    const double pixels = (double)out_size * out_size;
    const int columns = out > 64 ? 128 : 64; /* of a block, on 8×16 pixels or 16×16 */
    const double halo = stride == 2 ? 17.0 * 33 / 512 : out > 64 ? 10.0 * 18 / 128 : 18.0 * 18 / 256;
    const double input = pixels * stride * stride * in * value, output = pixels * out * value * (add ? 2 : 1),
                 proj = pixels * proj_in * value;

    count(c, TT_STAGE_BACKBONE, times * tiles, times * frames * 2 * pixels * out * (9.0 * in + proj_in),
          at_once * (input + output + proj),
          times * frames * (input * halo * (out / columns) + output + proj * (out / columns)),
          "conv %d: %d -> %d%s%s", out_size, in, out, stride == 2 ? " /2" : "",
          proj_in ? " proj"
          : add   ? " add"
                  : "");
}

static void count_backbone(const struct counting *c)
{
    const double value = kind_of(c->plan)->value, frames = c->plan->frames, map = 128 * 128 * 64 * value;
    const double tiles = (c->plan->frames + c->plan->tile.frames - 1) / c->plan->tile.frames;

    const double first = frames_at_once(c->plan, tt_resnet_groups[0].out_size);

    count(c, TT_STAGE_BACKBONE, ceil(frames / first), frames * 2 * 128 * 128 * 147.0 * 64, 1e18,
          frames * (TT_FRAME_BYTES + (first * map > (double)c->plan->device.l2_bytes ? map : 0)), "stem");
    for (int g = 0; g < TT_RESNET_GROUPS; g++) {
        const struct tt_resnet_group *s = &tt_resnet_groups[g];
        double pixels = (double)s->out_size * s->out_size * s->out_channels * value;
        double at_once = frames_at_once(c->plan, s->out_size);

        count_conv(c, 1, s->in_channels, s->out_channels, s->stride, s->out_size, 0, 0);
        count_conv(c, 1, s->out_channels, s->out_channels, 1, s->out_size, s->in_channels, 0);
        count_conv(c, 1, s->out_channels, s->out_channels, 1, s->out_size, 0, 0);
        count_conv(c, 1, s->out_channels, s->out_channels, 1, s->out_size, 0, 1);
        if (g != 2) /* features: what is written is not read soon */
            count(c, TT_STAGE_BACKBONE, ceil(frames / at_once), 0, 1e18,
                  frames * pixels * (2 * at_once * pixels > (double)c->plan->device.l2_bytes ? 2 : 1),
                  "l2 norm %d:%d", s->out_size, s->out_channels);
    }
    if (c->plan->precision == TT_FP32)
        for (int g = 0; g < TT_RESNET_GROUPS; g++) {
            const struct tt_resnet_group *s = &tt_resnet_groups[g];
            double pixels = (double)s->out_size * s->out_size * s->out_channels * value;

            count(c, TT_STAGE_BACKBONE, 4 * tiles, 0, c->plan->tile.frames * pixels, 4 * frames * pixels,
                  "norm %d:%d", s->out_size, s->out_channels);
        }
}

/* Correlation and encoder in one kernel of all levels: a block takes a query point, a level and 24 frames
 * (base: 16), and the point's support each time. */
static void count_embed(const struct counting *c, double passes)
{
    const double l2 = (double)c->plan->device.l2_bytes, rows = passes * c->plan->frames;
    const double blocks = ceil((double)c->plan->frames / (c->shape->encoder_convs == 3 ? 16 : 24));
    double values = 0, bytes = 0;

    for (int level = 0; level < TT_LEVELS; level++) {
        const struct tt_level_shape *s = &tt_level_shapes[level];
        double map = (double)TT_CLIP_FRAMES * s->size * s->size * s->channels * 2;

        values += TT_PATCH_AREA * TT_SUPPORT_AREA * (double)s->channels;
        bytes += map > l2 ? rows * TT_PATCH_AREA * s->channels * 2 : passes / c->plan->tile.queries * map;
        bytes += passes * blocks * TT_SUPPORT_AREA * s->channels * 4.0;
    }
    count(c, TT_STAGE_CORRELATION, passes / c->plan->tile.queries,
          rows * 2 * (values + TT_LEVELS * tt_plan_encoder_flop(c->shape)), 1e18,
          bytes + rows * TT_LEVELS * TT_LEVEL_EMBEDDING * 2, "embed");
}

static void count_correlation(const struct counting *c, double passes)
{
    const struct kind *k = kind_of(c->plan);
    const double l2 = (double)c->plan->device.l2_bytes, rows = passes * c->plan->frames;
    const double volume = (double)volume_bytes() / TT_CLIP_FRAMES;
    const int spilled = c->plan->volume_queries * (double)volume_bytes() > l2;
    const double parts = passes / c->plan->volume_queries;

    if (!has_volumes(c->plan)) {
        count_embed(c, passes);
        return;
    }
    for (int level = 0; level < TT_LEVELS; level++) {
        const struct tt_level_shape *s = &tt_level_shapes[level];
        double map = (double)TT_CLIP_FRAMES * s->size * s->size * s->channels * k->value;
        double patch = (double)TT_PATCH_AREA * s->channels * k->value,
               support = TT_SUPPORT_AREA * s->channels * 4.0 * 2; /* for two runs of frames */

        count(c, TT_STAGE_CORRELATION, parts, rows * 2 * TT_PATCH_AREA * TT_SUPPORT_AREA * s->channels, 1e18,
              (map > l2 ? rows * patch : parts * map) + passes * support + (spilled ? rows * volume : 0),
              "correlation %d:%d", s->size, s->channels);
    }
    count(c, TT_STAGE_ENCODER, TT_LEVELS * parts, rows * TT_LEVELS * 2 * tt_plan_encoder_flop(c->shape), 1e18,
          rows * TT_LEVELS * ((spilled ? volume : 0) + TT_LEVEL_EMBEDDING * (double)k->value), "encoder");
}

static void count_product(const struct counting *c, double launches, double rows, double in, double in_value,
                          double out, double out_value, const char *name)
{
    double hidden = c->plan->tile.queries * (double)hidden_bytes(c->plan, c->shape);

    count(c, TT_STAGE_MIXER, launches, rows * 2 * in * out, hidden, rows * (in * in_value + out * out_value),
          "%s", name);
}

static void count_mixer(const struct counting *c, double passes)
{
    const double value = kind_of(c->plan)->value, rows = passes * c->plan->frames, width = c->shape->width;
    const double launches = passes / c->plan->tile.queries, layers = TT_MIXER_LAYERS;
    const double hidden = c->plan->tile.queries * (double)hidden_bytes(c->plan, c->shape);
    const double wide = TT_MIXER_WIDENING * width;

    count(c, TT_STAGE_MIXER, launches, 0, hidden, rows * (16 + 94 * value), "tokens");
    count_product(c, launches, rows, TOKEN, value, width, 4, "product input");
    count_product(c, layers * launches, layers * rows, width, 4, 3 * width, value, "product qkv");
    if (c->plan->precision == TT_FP16) {
        count(c, TT_STAGE_MIXER, layers * launches,
              layers * rows * 2 * (2 * c->plan->frames * width + width * width), hidden,
              layers * rows * width * (3 * value + 8), "attend");
        count(c, TT_STAGE_MIXER, layers * launches, layers * rows * 2 * 2 * width * wide, hidden,
              layers * rows * width * 8, "mlp");
    } else {
        count(c, TT_STAGE_MIXER, 2 * layers * launches, 0, hidden, 2 * layers * rows * width * (4 + value),
              "layer norm");
        count(c, TT_STAGE_MIXER, layers * launches, layers * rows * 2 * 2 * c->plan->frames * width, hidden,
              layers * rows * 4 * width * value, "attention");
        count_product(c, layers * launches, layers * rows, width, value, width, 8, "product final");
        count_product(c, layers * launches, layers * rows, width, value, wide, value, "product up");
        count_product(c, layers * launches, layers * rows, wide, value, width, 8, "product down");
    }
    count(c, TT_STAGE_MIXER, launches, rows * 2 * width * TT_MIXER_OUTPUT, hidden, rows * (4 * width + 32),
          "head");
}

void tt_plan_each_kernel(const struct tt_plan *plan, const struct tt_model_shape *shape,
                         void (*visit)(void *context, const struct tt_plan_kernel *kernel), void *context)
{
    const struct counting c = {plan, shape, visit, context};
    const struct kind *k = kind_of(plan);
    const double frames = plan->frames, queries = plan->queries, tiles = queries / plan->tile.queries;
    const double maps = (32 * 32 * 256 + 64 * 64 * 128) * (double)k->value;

    count_backbone(&c);
    count(&c, TT_STAGE_SUPPORT, TT_LEVELS * tiles, queries * 7.0 * TT_SUPPORT_FLOATS, 1e18,
          queries * TT_SUPPORT_FLOATS * (4.0 * k->value + 4), "supports");
    /* sixteen query points a block (FP32: two), all of a frame before the next: its maps come once a tile */
    count(&c, TT_STAGE_COST, tiles, queries * frames * 2.0 * (64 * 64 * 128 + 32 * 32 * 256), 1e18,
          frames * maps *
              (maps > (double)plan->device.l2_bytes ? queries / (plan->precision == TT_FP16 ? 16 : 2)
               : tiles > 1                          ? tiles
                                                    : 1),
          "first estimate");
    count_correlation(&c, queries * TT_REFINEMENTS);
    count_mixer(&c, queries * TT_REFINEMENTS);
}

static void add_to_stage(void *context, const struct tt_plan_kernel *kernel)
{
    struct tt_plan *plan = context;

    plan->stage_flop[kernel->stage] += kernel->flop;
    plan->stage_bytes[kernel->stage] += kernel->bytes;
}

enum tt_status tt_plan_cuda(struct tt_plan *plan, const struct tt_model_shape *shape, struct tt_tile wanted,
                            struct tt_error *err)
{
    if (plan->device.shared_bytes < kind_of(plan)->least_shared)
        return tt_fail(err, TT_REFUSE, "%s: blocks take up to %d bytes of shared memory, %d are there",
                       plan->device.name, kind_of(plan)->least_shared, plan->device.shared_bytes);
    choose(plan, shape, wanted);
    fit(plan, shape, wanted);
    if (memory(plan, shape) > plan->device.memory_bytes)
        return tt_plan_refuse(plan, shape, 1, memory_at_least, err);
    plan->memory_bytes = memory(plan, shape);
    tt_plan_each_kernel(plan, shape, add_to_stage, plan);
    return TT_OK;
}

/* core/plan.c: what a device would do with a clip, counted. Here: descriptions of devices, and the CPU;
 * plan_cuda.c has the other half.
 *
 * The CPU: a thread takes a frame through the backbone, a tile of query points (a multiple of 16, the
 * vectors' lanes) through one frame's cost volume, and one query point at a time through its refinements,
 * correlation and encoder tile by tile of frames. The frame tile is the largest whose volumes and encoder
 * maps take three quarters of the L2 cache, evened out over the clip; the query tile is the smallest.
 * Operations are those that the products carry out: Winograd's, not the convolution's. Bytes are what has to
 * come into the L2 cache or leave it, every map and weight counted once a strip, tile or product that streams
 * it. Nothing here allocates (but for reading a device file). Fails with TT_REFUSE.
 */
#include "core/plan.h"

#include "core/clip.h"
#include "core/cpu/sizes.h"
#include "core/plan_parts.h"

#include <errno.h>
#include <jansson.h>
#include <sched.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

const char *const tt_stage_names[TT_STAGES] = {
    [TT_STAGE_BACKBONE] = "backbone",       [TT_STAGE_SUPPORT] = "support", [TT_STAGE_COST] = "cost",
    [TT_STAGE_CORRELATION] = "correlation", [TT_STAGE_ENCODER] = "encoder", [TT_STAGE_MIXER] = "mixer",
};

enum { FLOAT = 4 };

/* Cards by name: memory that a process can have, L2, shared memory of a block, multiprocessors. */
static const struct tt_device known[] = {
    {"t4", TT_DEVICE_CUDA, INT64_C(15) << 30, 4 << 20, 64 << 10, 40},
    {"a100", TT_DEVICE_CUDA, INT64_C(39) << 30, 40 << 20, 163 << 10, 108},
    {"h200", TT_DEVICE_CUDA, INT64_C(139) << 30, 60 << 20, 227 << 10, 132},
};

static int64_t positive_or(long value, int64_t otherwise)
{
    return value > 0 ? value : otherwise;
}

static void describe_cpu(struct tt_device *device)
{
    cpu_set_t allowed;
    int64_t pages = positive_or(sysconf(_SC_PHYS_PAGES), 1 << 20),
            page = positive_or(sysconf(_SC_PAGESIZE), 4096);

    memset(device, 0, sizeof *device);
    strcpy(device->name, "cpu");
    device->kind = TT_DEVICE_CPU;
    device->memory_bytes = pages * page;
    device->l2_bytes = positive_or(sysconf(_SC_LEVEL2_CACHE_SIZE), 256 << 10);
    device->shared_bytes = (int32_t)positive_or(sysconf(_SC_LEVEL1_DCACHE_SIZE), 32 << 10);
    device->units = (int32_t)positive_or(sysconf(_SC_NPROCESSORS_ONLN), 1);
    if (sched_getaffinity(0, sizeof allowed, &allowed) == 0)
        device->units = CPU_COUNT(&allowed);
}

static enum tt_status describe_file(struct tt_device *device, const char *path, struct tt_error *err)
{
    json_error_t fault;
    json_t *json = json_load_file(path, JSON_REJECT_DUPLICATES, &fault);
    const char *name = "", *kind = "";
    json_int_t memory = 0, l2 = 0, shared = 0, units = 0;
    enum tt_status status = TT_OK;

    if (!json)
        return tt_fail(err, TT_REFUSE, "%s: line %d: %s", path, fault.line, fault.text);
    if (json_unpack_ex(json, &fault, 0, "{s:s, s:s, s:I, s:I, s:I, s:I !}", "name", &name, "kind", &kind,
                       "memory_bytes", &memory, "l2_bytes", &l2, "shared_bytes", &shared, "units", &units))
        status = tt_fail(err, TT_REFUSE, "%s: %s", path, fault.text);
    else if (strlen(name) >= sizeof device->name || (strcmp(kind, "cpu") && strcmp(kind, "cuda")))
        status = tt_fail(err, TT_REFUSE, "%s: name has 1 to 63 bytes, kind is \"cpu\" or \"cuda\"", path);
    else if (memory < 1 || l2 < 1 || shared < 1 || shared > INT32_MAX || units < 1 || units > 1 << 20)
        status = tt_fail(err, TT_REFUSE, "%s: a size is not positive, or larger than any device has", path);
    if (!status) {
        memset(device, 0, sizeof *device);
        strcpy(device->name, name);
        device->kind = strcmp(kind, "cpu") ? TT_DEVICE_CUDA : TT_DEVICE_CPU;
        device->memory_bytes = memory;
        device->l2_bytes = l2;
        device->shared_bytes = (int32_t)shared;
        device->units = (int32_t)units;
    }
    json_decref(json);
    return status;
}

enum tt_status tt_device_describe(struct tt_device *device, const char *name, struct tt_error *err)
{
    size_t length = strlen(name);

    if (!strcmp(name, "cpu")) {
        describe_cpu(device);
        return TT_OK;
    }
    for (size_t i = 0; i < sizeof known / sizeof known[0]; i++)
        if (!strcmp(name, known[i].name)) {
            *device = known[i];
            return TT_OK;
        }
    if (strchr(name, '/') || (length > 5 && !strcmp(name + length - 5, ".json")))
        return describe_file(device, name, err);
    return tt_fail(err, TT_REFUSE,
                   "no device \"%s\": known are cpu, t4, a100, h200, or a file that ends in .json", name);
}

int tt_tile_shrink(struct tt_tile *tile)
{
    struct tt_tile t = {tile->queries > 0 ? tile->queries : 256, tile->frames > 0 ? tile->frames : 16};

    if (t.queries <= 1 && t.frames <= 1)
        return 0;
    tile->queries = t.queries > 1 ? t.queries / 2 : 1;
    tile->frames = t.frames > 1 ? t.frames / 2 : 1;
    return 1;
}

/* One 3×3 convolution of the backbone with its norm, over one frame. */
static void count_conv3(struct tt_plan *plan, int in, int out, int stride, int in_size, int add)
{
    double pixels = (double)(in_size / stride) * (in_size / stride);
    double rows = tt_conv3_rows(stride, in_size / stride), strips = in_size / stride / rows;
    double read = strips * (stride * rows + (stride == 1 ? 2 : 1)) * in_size * in;
    double weights = strips * in * out * (stride == 1 ? TT_WINOGRAD_POINTS : 9);

    plan->stage_flop[TT_STAGE_BACKBONE] += 2.0 * pixels * in * out * (stride == 1 ? 36.0 / 16.0 : 9.0);
    plan->stage_bytes[TT_STAGE_BACKBONE] += FLOAT * (read + weights + pixels * out * (add ? 2 : 1));
}

static void count_backbone(struct tt_plan *plan)
{
    double *flop = &plan->stage_flop[TT_STAGE_BACKBONE], *bytes = &plan->stage_bytes[TT_STAGE_BACKBONE];

    *flop = 2.0 * 128 * 128 * TT_STEM_TAPS * TT_STEM_CHANNELS;
    *bytes = TT_FRAME_BYTES + FLOAT * (128.0 * 128 * TT_STEM_CHANNELS + TT_STEM_TAPS * TT_STEM_CHANNELS);
    for (int g = 0; g < TT_RESNET_GROUPS; g++) {
        const struct tt_resnet_group *group = &tt_resnet_groups[g];
        double pixels = (double)group->out_size * group->out_size;

        *flop += 2.0 * pixels * group->in_channels * group->out_channels; /* projection */
        *bytes += FLOAT * pixels * group->out_channels;
        count_conv3(plan, group->in_channels, group->out_channels, group->stride, group->in_size, 0);
        for (int i = 1; i < 2 * TT_RESNET_BLOCKS; i++)
            count_conv3(plan, group->out_channels, group->out_channels, 1, group->out_size, i % 2);
    }
    *bytes += FLOAT * 2.0 * TT_FEATURE_FLOATS; /* the levels, read and written by their normalisation */
    *flop *= plan->frames;
    *bytes *= plan->frames;
}

double tt_plan_encoder_weights(const struct tt_model_shape *shape)
{
    double weights = 0;

    for (int i = 0; i < shape->encoder_convs; i++) {
        const struct tt_encoder_conv *c = &shape->encoder[i];

        weights += (double)c->kernel * c->kernel * c->in_channels * c->out_channels;
    }
    return weights;
}

double tt_plan_encoder_flop(const struct tt_model_shape *shape)
{
    double flop = 0;

    for (int i = 0; i < shape->encoder_convs; i++) {
        const struct tt_encoder_conv *c = &shape->encoder[i];
        int taps = 0; /* of all output positions in one direction */

        for (int o = 0; o < c->out_size; o++)
            for (int k = 0; k < c->kernel; k++) {
                int at = o * c->stride - c->pad_before + k;

                taps += at >= 0 && at < c->in_size;
            }
        flop += 2.0 * taps * taps * c->in_channels * c->out_channels;
    }
    return flop;
}

double tt_plan_mixer_weights(const struct tt_model_shape *shape)
{
    double width = shape->width;

    return width * TT_MIXER_INPUT + TT_MIXER_LAYERS * (4 + 2 * TT_MIXER_WIDENING) * width * width +
           width * TT_MIXER_OUTPUT;
}

static void count_queries(struct tt_plan *plan, const struct tt_model_shape *shape)
{
    double frames = plan->frames, queries = plan->queries, passes = queries * TT_REFINEMENTS;
    double query_tiles = (plan->queries + plan->tile.queries - 1) / plan->tile.queries;
    double frame_tiles = (plan->frames + plan->tile.frames - 1) / plan->tile.frames;
    double channels = 0, rows = tt_mixer_rows(plan->frames);

    for (int level = 0; level < TT_LEVELS; level++)
        channels += tt_level_shapes[level].channels;
    plan->stage_flop[TT_STAGE_SUPPORT] = queries * 7.0 * TT_SUPPORT_FLOATS;
    plan->stage_bytes[TT_STAGE_SUPPORT] = queries * FLOAT * (TT_PATCH_AREA * channels + TT_SUPPORT_FLOATS);

    plan->stage_flop[TT_STAGE_COST] =
        query_tiles * plan->tile.queries * frames * 2.0 * (64 * 64 * 128 + 32 * 32 * 256 + 64 * 64 * 18);
    plan->stage_bytes[TT_STAGE_COST] = query_tiles * frames * FLOAT * (64 * 64 * 128 + 32 * 32 * 256);

    plan->stage_flop[TT_STAGE_CORRELATION] =
        passes * frames * 2.0 * TT_PATCH_AREA * TT_SUPPORT_AREA * channels;
    plan->stage_bytes[TT_STAGE_CORRELATION] =
        passes * FLOAT * (frames * TT_PATCH_AREA * channels + frame_tiles * TT_SUPPORT_FLOATS);

    plan->stage_flop[TT_STAGE_ENCODER] = passes * frames * TT_LEVELS * 2.0 * tt_plan_encoder_flop(shape);
    plan->stage_bytes[TT_STAGE_ENCODER] =
        passes * FLOAT * TT_LEVELS *
        (frame_tiles * tt_plan_encoder_weights(shape) + frames * TT_LEVEL_EMBEDDING);

    plan->stage_flop[TT_STAGE_MIXER] =
        passes * 2.0 *
        (rows * tt_plan_mixer_weights(shape) + TT_MIXER_LAYERS * 2.0 * frames * frames * shape->width);
    plan->stage_bytes[TT_STAGE_MIXER] =
        passes * FLOAT * (tt_plan_mixer_weights(shape) + rows * TT_MIXER_INPUT);
}

/* Floats of the network in the CPU's layouts. */
static double cpu_weights(const struct tt_model_shape *shape)
{
    double floats = TT_STEM_TAPS * TT_STEM_CHANNELS + TT_LEVELS * tt_plan_encoder_weights(shape) +
                    tt_plan_mixer_weights(shape) +
                    384.0 * shape->width; /* the mixer's outputs that are not read */

    for (int g = 0; g < TT_RESNET_GROUPS; g++) {
        double in = tt_resnet_groups[g].in_channels, out = tt_resnet_groups[g].out_channels;

        floats += in * out * ((tt_resnet_groups[g].stride == 1 ? TT_WINOGRAD_POINTS : 9) + 1) +
                  3 * out * out * TT_WINOGRAD_POINTS;
    }
    return floats;
}

static int64_t cpu_memory(const struct tt_plan *plan, const struct tt_model_shape *shape)
{
    double floats = (double)TT_FEATURE_FLOATS * TT_CLIP_FRAMES + cpu_weights(shape) +
                    (double)plan->device.units *
                        (double)tt_cpu_scratch(shape, plan->tile.queries, plan->tile.frames, TT_CLIP_FRAMES) +
                    (double)plan->queries * (TT_SUPPORT_FLOATS + 2.0 * 4 * plan->frames);

    return (int64_t)(FLOAT * floats) + TT_CLIP_BYTES;
}

/* The encoder's volumes and maps of one frame, both orientations. */
static int64_t frame_bytes(const struct tt_model_shape *shape)
{
    return FLOAT * (int64_t)(tt_correlation_scratch(shape, 2) - tt_correlation_scratch(shape, 1));
}

enum tt_status tt_plan_refuse(const struct tt_plan *plan, const struct tt_model_shape *shape, int step,
                              int64_t (*needs)(const struct tt_plan *, const struct tt_model_shape *),
                              struct tt_error *err)
{
    struct tt_plan fit = *plan;
    long long there = plan->device.memory_bytes >> 20;

    fit.tile = (struct tt_tile){step, 1};
    if (needs(&fit, shape) > plan->device.memory_bytes)
        return tt_fail(err, TT_REFUSE, "%s: %lld MB are needed and %lld MB there, whatever the tile",
                       plan->device.name, (long long)(needs(&fit, shape) >> 20), there);
    for (fit = *plan; needs(&fit, shape) > plan->device.memory_bytes;)
        if (fit.tile.queries > step)
            fit.tile.queries -= step;
        else
            fit.tile.frames--;
    return tt_fail(err, TT_REFUSE,
                   "%s: a tile of %d query points and %d frames takes %lld MB of %lld MB; %d and %d fit",
                   plan->device.name, plan->tile.queries, plan->tile.frames,
                   (long long)(needs(plan, shape) >> 20), there, fit.tile.queries, fit.tile.frames);
}

static enum tt_status plan_cpu(struct tt_plan *plan, const struct tt_model_shape *shape,
                               struct tt_tile wanted, struct tt_error *err)
{
    int largest = tt_plan_between(plan->device.l2_bytes * 3 / 4 / frame_bytes(shape), 1, plan->frames);
    int tiles = (plan->frames + largest - 1) / largest;

    plan->tile.frames =
        wanted.frames ? tt_plan_between(wanted.frames, 1, plan->frames) : (plan->frames + tiles - 1) / tiles;
    plan->volume_queries = 1;
    plan->tile.queries = wanted.queries ? (tt_plan_between(wanted.queries, 1, 1 << 20) + TT_QUERY_LANES - 1) /
                                              TT_QUERY_LANES * TT_QUERY_LANES
                                        : TT_QUERY_LANES;
    plan->memory_bytes = cpu_memory(plan, shape);
    if (plan->memory_bytes > plan->device.memory_bytes)
        return tt_plan_refuse(plan, shape, TT_QUERY_LANES, cpu_memory, err);
    count_backbone(plan);
    count_queries(plan, shape);
    return TT_OK;
}

enum tt_status tt_plan_make(struct tt_plan *plan, const struct tt_model_shape *shape,
                            const struct tt_device *device, enum tt_precision precision,
                            struct tt_tile wanted, int queries, int frames, struct tt_error *err)
{
    struct tt_plan made = {.device = *device, .precision = precision, .queries = queries, .frames = frames};
    enum tt_status status;

    if (queries < 1 || frames < 1 || frames > TT_CLIP_FRAMES || wanted.queries < 0 || wanted.frames < 0)
        return tt_fail(err, TT_REFUSE, "no plan for %d query points and %d frames in tiles of %d and %d",
                       queries, frames, wanted.queries, wanted.frames);
    if (device->kind == TT_DEVICE_CPU && precision != TT_FP32)
        return tt_fail(err, TT_REFUSE, "%s: the CPU computes in fp32 only", device->name);
    status = device->kind == TT_DEVICE_CPU ? plan_cpu(&made, shape, wanted, err)
                                           : tt_plan_cuda(&made, shape, wanted, err);
    if (!status)
        *plan = made;
    return status;
}

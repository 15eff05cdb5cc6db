/* core/cpu/sizes.h: the CPU backend's fixed tiles, and the floats of scratch that its stages take.
 *
 * The plan (core/plan.c) counts memory with these, the backend allocates by the plan. Each figure is exactly
 * what the stage's function takes.
 */
#ifndef TT_CORE_CPU_SIZES_H
#define TT_CORE_CPU_SIZES_H

#include "core/clip.h"
#include "core/model.h"

#include <stddef.h>

enum {
    TT_WINOGRAD_TILE = 4,      /* outputs on a side of a tile */
    TT_WINOGRAD_POINTS = 36,   /* (4 + 2)² */
    TT_WINOGRAD_TILES = 64,    /* tiles of a strip: rows of a product */
    TT_WINOGRAD_GAP = 16,      /* floats between products' matrices, so that they do not share cache sets */
    TT_STRIDED_ROWS = 4,       /* output rows of a strip with stride 2 */
    TT_QUERY_LANES = 16,       /* query points side by side in the cost volume */
    TT_PADDED_FRAME = 256 + 5, /* a frame with the stem's zeros around it */
    TT_STEM_TAPS = 7 * 7 * 3,
    TT_PRODUCT_ROW = 64,        /* floats in a row of correlation products: 49, and room for whole vectors */
    TT_VOLUME_FLOATS = 49 * 49, /* one correlation volume: neighbourhood × support */
};

/* As tt_scratch_take rounds. */
static inline size_t tt_floats_taken(size_t count)
{
    return (count + 15) / 16 * 16;
}

/* Output rows of a strip. */
static inline int tt_conv3_rows(int stride, int out_size)
{
    return stride == 1 ? TT_WINOGRAD_TILES / (out_size / TT_WINOGRAD_TILE) * TT_WINOGRAD_TILE
                       : TT_STRIDED_ROWS;
}

static inline size_t tt_conv3_scratch(int in, int out, int stride, int in_size)
{
    int rows = stride * tt_conv3_rows(stride, in_size / stride) + (stride == 1 ? 2 : 1);
    size_t floats = tt_floats_taken((size_t)(rows * (in_size + 2) * in));

    if (stride == 1)
        floats += tt_floats_taken((size_t)(TT_WINOGRAD_POINTS * (TT_WINOGRAD_TILES * in + TT_WINOGRAD_GAP))) +
                  tt_floats_taken((size_t)(TT_WINOGRAD_POINTS * (TT_WINOGRAD_TILES * out + TT_WINOGRAD_GAP)));
    return floats;
}

/* One frame through the backbone. */
static inline size_t tt_resnet_scratch(void)
{
    size_t maps = 3 * (128 * 128 * TT_STEM_CHANNELS), most = 0;

    most = tt_floats_taken(TT_PADDED_FRAME * TT_PADDED_FRAME * 3) + tt_floats_taken(128 * TT_STEM_TAPS);
    for (int g = 0; g < TT_RESNET_GROUPS; g++) {
        const struct tt_resnet_group *group = &tt_resnet_groups[g];
        size_t first =
            tt_conv3_scratch(group->in_channels, group->out_channels, group->stride, group->in_size);
        size_t other = tt_conv3_scratch(group->out_channels, group->out_channels, 1, group->out_size);

        most = first > most ? first : most;
        most = other > most ? other : most;
    }
    return maps + most;
}

/* `tile` query points in one frame. */
static inline size_t tt_cost_scratch(int tile)
{
    return tt_floats_taken((size_t)(256 * tile)) + (size_t)((32 * 32 + 64 * 64) * tile) +
           2 * (64 * 64 * TT_QUERY_LANES);
}

/* One query point and level in a tile of frames. */
static inline size_t tt_correlation_scratch(const struct tt_model_shape *shape, int frames)
{
    size_t floats = TT_PATCH_AREA * 256 + TT_PATCH_AREA * TT_PRODUCT_ROW;

    floats += tt_floats_taken((size_t)(2 * frames * TT_VOLUME_FLOATS + 16));
    for (int i = 0; i < shape->encoder_convs; i++) {
        const struct tt_encoder_conv *conv = &shape->encoder[i];

        floats +=
            tt_floats_taken((size_t)(2 * frames * conv->out_size * conv->out_size * conv->out_channels));
    }
    return floats;
}

/* Rows of a mixer's matrices for a clip: its frames, rounded up; those beyond are of no account. */
static inline int tt_mixer_rows(int frames)
{
    return (frames + 15) & ~15;
}

static inline size_t tt_mixer_scratch(const struct tt_model_shape *shape, int frames)
{
    size_t rows = (size_t)tt_mixer_rows(frames), width = (size_t)shape->width;

    return rows * width * (3 + TT_MIXER_WIDENING) + rows * rows;
}

/* One query point's refinement: its supports, transposed, the mixer's input and output, and the larger of
 * correlation and mixer. */
static inline size_t tt_refine_scratch(const struct tt_model_shape *shape, int tile_frames, int frames)
{
    size_t rows = (size_t)tt_mixer_rows(frames), correlation = tt_correlation_scratch(shape, tile_frames);
    size_t mixer = tt_mixer_scratch(shape, frames);

    return TT_SUPPORT_FLOATS + tt_floats_taken(rows * TT_MIXER_INPUT) + rows * TT_MIXER_OUTPUT +
           (correlation > mixer ? correlation : mixer);
}

/* What a thread of the backend needs. */
static inline size_t tt_cpu_scratch(const struct tt_model_shape *shape, int tile_queries, int tile_frames,
                                    int frames)
{
    size_t most = tt_resnet_scratch(), cost = tt_cost_scratch(tile_queries);
    size_t refine = tt_refine_scratch(shape, tile_frames, frames);

    most = cost > most ? cost : most;
    return refine > most ? refine : most;
}

#endif

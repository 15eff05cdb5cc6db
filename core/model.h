/* core/model.h: the network's dimensions. docs/MODEL.md says what they mean.
 *
 * LocoTrack (arXiv 2407.15420; public code cvlab-kaist/locotrack, locotrack_pytorch), sizes small and base.
 * Only the correlation encoder and the mixer differ between the sizes.
 */
#ifndef TT_CORE_MODEL_H
#define TT_CORE_MODEL_H

enum {
    TT_LEVELS = 3,       /* feature levels */
    TT_SUPPORT_SIZE = 7, /* support: 7×7 positions around a query point */
    TT_SUPPORT_AREA = 49,
    TT_PATCH_SIZE = 8,        /* integer patch that holds a bilinear 7×7 neighbourhood */
    TT_REFINEMENTS = 4,       /* passes of the mixer */
    TT_LEVEL_EMBEDDING = 256, /* correlation embedding of one level: 128 for each of the two orientations */
    TT_POSITION_CODE = 84,    /* relative motion, forward and backward, and its sines */
    TT_MIXER_INPUT = 2 + TT_LEVELS * TT_LEVEL_EMBEDDING + TT_POSITION_CODE, /* 854 */
    TT_MIXER_OUTPUT = 4,        /* x, y, occlusion, expected distance; the other 384 are never read */
    TT_MIXER_OUTPUT_ROWS = 388, /* rows of output_proj in a weight file */
    TT_MIXER_LAYERS = 3,
    TT_HEAD_SIZE = 64,
    TT_COST_RADIUS = 5, /* soft-argmax window around the cost volume's maximum, pixels of the 64×64 map */
};

#define TT_SOFTMAX_TEMPERATURE 20.0f

/* Feature levels in the order of the weights cmdtop.0, cmdtop.1, cmdtop.2 and of the mixer's input. */
enum tt_level { TT_HIRES = 0, TT_LOWRES = 1, TT_HIGHEST = 2 };

struct tt_level_shape {
    int size;     /* feature map height and width */
    int channels; /* L2-normalised over these */
};

/* [HIRES] 64×64×128, [LOWRES] 32×32×256, [HIGHEST] 128×128×64 */
extern const struct tt_level_shape tt_level_shapes[TT_LEVELS];

/* Floats of one query point's supports: 49 × (128 + 256 + 64), laid out level after level, [7][7][C] each. */
enum { TT_SUPPORT_FLOATS = TT_SUPPORT_AREA * (128 + 256 + 64) };

struct tt_encoder_conv {
    int in_channels, out_channels, kernel, stride, in_size, out_size,
        pad_before; /* SAME padding; groups of 16 channels */
};

struct tt_model_shape {
    const char *name; /* "small" or "base" */
    int width;        /* mixer width: 256 or 384 */
    int heads;        /* 4 or 6, half of them look forward, half backward */
    int encoder_convs;
    struct tt_encoder_conv encoder[3];
};

extern const struct tt_model_shape tt_model_small, tt_model_base;

#endif

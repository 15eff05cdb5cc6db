/* core/model.h: the network's dimensions and the names and shapes of its weights. docs/MODEL.md says what
 * they mean.
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
    TT_PATCH_SIZE = 8, /* integer patch that holds a bilinear 7×7 neighbourhood */
    TT_PATCH_AREA = 64,
    TT_REFINEMENTS = 4,       /* passes of the mixer */
    TT_LEVEL_EMBEDDING = 256, /* correlation embedding of one level: 128 for each of the two orientations */
    TT_POSITION_CODE = 84,    /* relative motion, forward and backward, and its sines */
    TT_MIXER_INPUT = 2 + TT_LEVELS * TT_LEVEL_EMBEDDING + TT_POSITION_CODE, /* 854 */
    TT_MIXER_OUTPUT = 4,        /* x, y, occlusion, expected distance; the other 384 are never read */
    TT_MIXER_OUTPUT_ROWS = 388, /* rows of output_proj in a weight file */
    TT_MIXER_LAYERS = 3,
    TT_MIXER_WIDENING = 4, /* the dense layers are four times as wide as the mixer */
    TT_HEAD_SIZE = 64,
    TT_COST_RADIUS = 5,    /* soft-argmax window around the cost volume's maximum, pixels of the 64×64 map */
    TT_ENCODER_GROUP = 16, /* channels in one group of the encoder's group norms */
    TT_ENCODER_CONVS = 3,  /* at most */
    TT_RESNET_GROUPS = 4,
    TT_RESNET_BLOCKS = 2, /* in each group */
    TT_STEM_CHANNELS = 64,
    TT_STEM_KERNEL = 7,
};

#define TT_SOFTMAX_TEMPERATURE 20.0f
#define TT_NORM_EPSILON        1e-5f  /* instance, group and layer norms */
#define TT_L2_EPSILON          1e-12f /* least squared length of a feature vector */

/* Feature levels in the order of the weights cmdtop.0, cmdtop.1, cmdtop.2 and of the mixer's input. */
enum tt_level { TT_HIRES = 0, TT_LOWRES = 1, TT_HIGHEST = 2 };

struct tt_level_shape {
    int size;     /* feature map height and width */
    int channels; /* L2-normalised over these */
};

/* [HIRES] 64×64×128, [LOWRES] 32×32×256, [HIGHEST] 128×128×64 */
extern const struct tt_level_shape tt_level_shapes[TT_LEVELS];

/* Floats of one query point's supports: 49 × (128 + 256 + 64), level after level in the order of enum
 * tt_level, [7][7][C] each. */
enum { TT_SUPPORT_FLOATS = TT_SUPPORT_AREA * (128 + 256 + 64) };

/* Floats of one frame's features, all levels. */
enum { TT_FEATURE_FLOATS = 64 * 64 * 128 + 32 * 32 * 256 + 128 * 128 * 64 };

/* One group of the backbone: two residual blocks, the first with the stride and a projection. */
struct tt_resnet_group {
    int in_channels, out_channels, stride, in_size, out_size;
};

extern const struct tt_resnet_group tt_resnet_groups[TT_RESNET_GROUPS];

/* A convolution of the correlation encoder over in_size×in_size positions, SAME padding (pad_before zeros
 * before the first row and column). */
struct tt_encoder_conv {
    int in_channels, out_channels, kernel, stride, in_size, out_size, pad_before;
};

struct tt_model_shape {
    const char *name; /* "small" or "base" */
    int width;        /* mixer width: 256 or 384 */
    int heads;        /* 4 or 6; the first half sees the past, the second half the future */
    int encoder_convs;
    struct tt_encoder_conv encoder[TT_ENCODER_CONVS];
};

extern const struct tt_model_shape tt_model_small, tt_model_base;

/* One weight: its name in the public state_dict (without prefix) and its shape there. */
struct tt_weight_spec {
    char name[96];
    int rank; /* 1..4 */
    int shape[4];
};

/* Calls visit for every weight of the model, in a fixed order; stops at the first that returns something
 * other than 0 and returns that. spec: borrowed (until visit returns). */
int tt_model_each_weight(const struct tt_model_shape *shape,
                         int (*visit)(void *context, const struct tt_weight_spec *spec), void *context);

#endif

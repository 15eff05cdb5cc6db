/* daemon/decode/scale.h: from a decoded frame to 256×256 RGB as displayed. */
#ifndef TT_DECODE_SCALE_H
#define TT_DECODE_SCALE_H

#include "core/decoder_wire.h"

#include <libavutil/frame.h>

/* Which stored pixel is shown at (x, y). Sizes are equal here: 256×256.
 * swap: column from y and row from x; then the flips, in shown coordinates. */
struct tt_orientation {
    bool swap, flip_x, flip_y;
};

enum tt_matrix_kind { TT_MATRIX_RIGHT, TT_MATRIX_OBLIQUE, TT_MATRIX_NONSENSE };

/* Reads a display matrix (nine numbers, as libavutil/display.h has them). An oblique one gives the nearest of
 * the eight orientations, a singular one gives none at all: *orientation is set in each case. */
enum tt_matrix_kind tt_orientation_read(struct tt_orientation *orientation, const int32_t *matrix);

/* Clockwise rotation in degrees and mirroring (left to right, after it). */
void tt_orientation_describe(const struct tt_orientation *orientation, int *rotation, int *mirrored);

/* How the samples of a frame are meant. */
struct tt_colour {
    int matrix;      /* enum AVColorSpace, never unspecified */
    bool full_range; /* 0..255 rather than 16..235 */
};

/* What the frame says; where it does not, BT.601 below 720 lines and BT.709 from there on, and the range that
 * its pixel format has by itself. */
struct tt_colour tt_colour_of(const AVFrame *frame);

/* Whether libswscale has that matrix; it takes BT.601 for others (YCgCo, ICtCp, constant luminance). */
bool tt_colour_is_known(const struct tt_colour *colour);

struct SwsContext;

/* What converts frames like this one to RGB of a size, each sample as `colour` means it. *converter: out,
 * owns (sws_freeContext); a negative AVERROR. filter: SWS_AREA and the like. */
int tt_colour_converter(struct SwsContext **converter, const AVFrame *frame, const struct tt_colour *colour,
                        int width, int height, int filter);

/* libswscale takes grey for full range, whatever it is told: makes 16..235 fill 0..255. */
void tt_colour_expand_grey(uint8_t *rgb, size_t samples);

/* One axis of a resize to 256: output i is the sum of weight[i * most + k] × source first[i] + k, k <
 * count[i]. */
struct tt_axis {
    int first[TT_CLIP_SIZE], count[TT_CLIP_SIZE];
    int most;
    float *weight;
};

/* Begin with {.resize, .orientation}. */
struct tt_scaler {
    enum tt_resize resize;
    struct tt_orientation orientation;
    struct SwsContext *sws; /* for frames of the following properties */
    int width, height, format;
    enum AVChromaLocation chroma;
    struct tt_colour colour;
    uint8_t *rgb; /* what sws writes: [rgb_height][rgb_stride] */
    int rgb_width, rgb_height, rgb_stride;
    bool is_direct;               /* sws does the resize */
    struct tt_axis columns, rows; /* otherwise */
    float *line;                  /* one line of the source's width */
};

/* Scales, converts and turns a frame. out: [256][256][3].
 * A negative AVERROR where libswscale cannot do it: AVERROR(ENOMEM), or a pixel format that it does not read.
 */
int tt_scaler_frame(struct tt_scaler *scaler, const AVFrame *frame, uint8_t *out);

#endif

/* core/refine/align.h: registration of one patch of an image with another, to a fraction of a pixel.
 *
 * A template is a window of TT_ALIGN_SIDE pixels a side around a point of one image. An image is a patch as
 * the decoder cuts it, smoothed a little. Positions are in the patch's pixels, whole numbers at their
 * centres.
 *
 * Method: Gauss-Newton on the squared differences, inverse compositional (Baker and Matthews, "Lucas-Kanade
 * 20 years on", 2004, section 3.2), so that gradients and the Hessian belong to the template; differences are
 * weighted by a Gaussian around the point, and gain and offset of the brightness are estimated along with the
 * warp.
 */
#ifndef TT_CORE_REFINE_ALIGN_H
#define TT_CORE_REFINE_ALIGN_H

#include "core/decoder.h"

#include <stdbool.h>
#include <stdint.h>

enum {
    TT_ALIGN_HALF = 15,
    TT_ALIGN_SIDE = 2 * TT_ALIGN_HALF + 1,
    TT_ALIGN_ROW = 32, /* of a template in memory: whole vectors, zeros behind the window */
    TT_ALIGN_PARAMETERS = 8,
};

/* A patch, smoothed: each pixel and the one below it (below the last row: itself), so that the four around a
 * place lie side by side. */
struct tt_image {
    float pixels[TT_CUT_SIZE][TT_CUT_SIZE][2];
};

struct tt_template {
    float value[TT_ALIGN_SIDE][TT_ALIGN_ROW];
    float across[TT_ALIGN_SIDE][TT_ALIGN_ROW], down[TT_ALIGN_SIDE][TT_ALIGN_ROW]; /* gradient */
    float inverse[TT_ALIGN_PARAMETERS][TT_ALIGN_PARAMETERS];                      /* of the Hessian */
    float weights[TT_ALIGN_ROW]; /* the window's Gaussian along a row; zero behind the window */
    float mean, deviation;       /* weighted, of value */
    bool is_affine;              /* otherwise it is only shifted */
    bool is_textured;            /* in two directions, so that it can be placed at all */
};

/* The template's pixel (u, v) from its middle lies at (x, y) + a (u, v) of the image; a: row by row. */
struct tt_warp {
    float x, y;
    float a[4];
};

/* patch: [TT_CUT_SIZE][TT_CUT_SIZE]. */
void tt_align_smooth(const uint8_t *patch, struct tt_image *image);

/* Takes the window around (x, y), which should lie near the middle of the image. */
void tt_template_take(struct tt_template *made, const struct tt_image *image, float x, float y,
                      bool is_affine);

/* The correlation of template and image, weighted as above: 1 where they are the same up to gain and offset,
 * -1..1. */
float tt_align_likeness(const struct tt_template *wanted, const struct tt_image *image,
                        const struct tt_warp *warp);

/* Moves *warp to where the template fits best nearby. False where it runs away: the warp makes no sense or
 * leaves the patch; *warp is undefined then. */
bool tt_align(const struct tt_template *wanted, const struct tt_image *image, struct tt_warp *warp);

#endif

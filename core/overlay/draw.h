/* core/overlay/draw.h: discs, rings, lines and digits on an RGB picture, with soft edges.
 *
 * Positions are pixels in the raster convention (the centre of the first pixel is 0.5, 0.5); what lies
 * outside of the picture is cut off, whatever its coordinates are.
 */
#ifndef TT_CORE_OVERLAY_DRAW_H
#define TT_CORE_OVERLAY_DRAW_H

#include "core/overlay.h"

/* Borrows rgb. */
struct tt_canvas {
    uint8_t *rgb; /* [height][width][3] */
    int width, height;
};

struct tt_pen {
    struct tt_colour8 colour;
    float alpha; /* 1: covers all */
};

void tt_draw_disc(const struct tt_canvas *canvas, float x, float y, float radius, struct tt_pen pen);

/* From radius - width to radius. */
void tt_draw_ring(const struct tt_canvas *canvas, float x, float y, float radius, float width,
                  struct tt_pen pen);

/* A line with round ends. */
void tt_draw_line(const struct tt_canvas *canvas, const float from[2], const float to[2], float width,
                  struct tt_pen pen);

/* Full in the middle, nothing at radius. */
void tt_draw_spot(const struct tt_canvas *canvas, float x, float y, float radius, struct tt_pen pen);

/* Decimal digits, white on black, each pixel of their 3×5 font `size` wide, from the top left corner. */
void tt_draw_number(const struct tt_canvas *canvas, int x, int y, int size, int64_t number);

#endif

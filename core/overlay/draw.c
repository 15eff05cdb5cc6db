/* core/overlay/draw.c: shapes by their signed distance.
 *
 * A pixel's share is how far its centre lies inside the shape, over one pixel: edges are soft and a shape can
 * lie between pixels. Pure; cannot fail; coordinates that are not finite draw nothing.
 */
#include "core/overlay/draw.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

struct box {
    int left, top, right, bottom; /* the last two are beyond */
};

/* Pixels within `reach` of the box [x0, x1] × [y0, y1]. */
static struct box around(const struct tt_canvas *canvas, float x0, float y0, float x1, float y1, float reach)
{
    const float width = (float)canvas->width, height = (float)canvas->height;

    if (!isfinite(x0 + y0 + x1 + y1))
        return (struct box){0};
    return (struct box){
        (int)fmaxf(0, fminf(floorf(x0 - reach), width)), (int)fmaxf(0, fminf(floorf(y0 - reach), height)),
        (int)fmaxf(0, fminf(ceilf(x1 + reach), width)), (int)fmaxf(0, fminf(ceilf(y1 + reach), height))};
}

static float clamp01(float value)
{
    return fmaxf(0, fminf(value, 1));
}

static void blend(const struct tt_canvas *canvas, int x, int y, const struct tt_pen *pen, float share)
{
    uint8_t *at = canvas->rgb + ((size_t)y * (size_t)canvas->width + (size_t)x) * 3;
    const float alpha = pen->alpha * share;

    at[0] = (uint8_t)lrintf((float)at[0] + alpha * (float)(pen->colour.r - at[0]));
    at[1] = (uint8_t)lrintf((float)at[1] + alpha * (float)(pen->colour.g - at[1]));
    at[2] = (uint8_t)lrintf((float)at[2] + alpha * (float)(pen->colour.b - at[2]));
}

void tt_draw_disc(const struct tt_canvas *canvas, float x, float y, float radius, struct tt_pen pen)
{
    tt_draw_ring(canvas, x, y, radius, 2 * radius, pen);
}

void tt_draw_ring(const struct tt_canvas *canvas, float x, float y, float radius, float width,
                  struct tt_pen pen)
{
    const struct box box = around(canvas, x, y, x, y, radius + 1);

    for (int row = box.top; row < box.bottom; row++)
        for (int column = box.left; column < box.right; column++) {
            const float away = hypotf((float)column + 0.5f - x, (float)row + 0.5f - y);
            const float inside = fminf(radius - away, away - (radius - width));

            if (inside > -0.5f)
                blend(canvas, column, row, &pen, clamp01(inside + 0.5f));
        }
}

void tt_draw_line(const struct tt_canvas *canvas, const float from[2], const float to[2], float width,
                  struct tt_pen pen)
{
    const float dx = to[0] - from[0], dy = to[1] - from[1], square = dx * dx + dy * dy, half = width / 2;
    const struct box box = around(canvas, fminf(from[0], to[0]), fminf(from[1], to[1]), fmaxf(from[0], to[0]),
                                  fmaxf(from[1], to[1]), half + 1);

    for (int row = box.top; row < box.bottom; row++)
        for (int column = box.left; column < box.right; column++) {
            const float px = (float)column + 0.5f - from[0], py = (float)row + 0.5f - from[1];
            const float along = square > 0 ? clamp01((px * dx + py * dy) / square) : 0;
            const float inside = half - hypotf(px - along * dx, py - along * dy);

            if (inside > -0.5f)
                blend(canvas, column, row, &pen, clamp01(inside + 0.5f));
        }
}

void tt_draw_spot(const struct tt_canvas *canvas, float x, float y, float radius, struct tt_pen pen)
{
    const struct box box = around(canvas, x, y, x, y, radius);

    for (int row = box.top; row < box.bottom; row++)
        for (int column = box.left; column < box.right; column++) {
            const float dx = (float)column + 0.5f - x, dy = (float)row + 0.5f - y;
            const float left = 1 - (dx * dx + dy * dy) / (radius * radius);

            if (left > 0)
                blend(canvas, column, row, &pen, left * left);
        }
}

static void fill(const struct tt_canvas *canvas, int x, int y, int width, int height, uint8_t level)
{
    for (int row = y < 0 ? 0 : y; row < y + height && row < canvas->height; row++)
        for (int column = x < 0 ? 0 : x; column < x + width && column < canvas->width; column++)
            memset(canvas->rgb + ((size_t)row * (size_t)canvas->width + (size_t)column) * 3, level, 3);
}

void tt_draw_number(const struct tt_canvas *canvas, int x, int y, int size, int64_t number)
{
    static const uint8_t font[10][5] = {{7, 5, 5, 5, 7}, {2, 6, 2, 2, 7}, {7, 1, 7, 4, 7}, {7, 1, 7, 1, 7},
                                        {5, 5, 7, 1, 1}, {7, 4, 7, 1, 7}, {7, 4, 7, 5, 7}, {7, 1, 1, 1, 1},
                                        {7, 5, 7, 5, 7}, {7, 5, 7, 1, 7}};
    char text[24];
    int length = snprintf(text, sizeof text, "%lld", (long long)(number < 0 ? 0 : number));

    fill(canvas, x, y, (4 * length + 1) * size, 7 * size, 0);
    for (int i = 0; i < length; i++)
        for (int row = 0; row < 5; row++)
            for (int bit = 0; bit < 3; bit++)
                if (font[text[i] - '0'][row] & 4 >> bit)
                    fill(canvas, x + (4 * i + 1 + bit) * size, y + (row + 1) * size, size, size, 255);
}

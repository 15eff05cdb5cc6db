/* core/overlay/colour.c: a colour for each query point, and one for each speed. Pure; cannot fail.
 *
 * The eight are those of Okabe and Ito (Color Universal Design, 2008) but for black, which hidden in dark
 * pictures, and blue, which is lighter here for the same reason; white takes black's place. Behind them come
 * shades: towards white and towards black in turn, by amounts that split what is left between earlier ones.
 * Speeds go from blue over purple and orange to yellow, each step lighter than the one before (as
 * matplotlib's plasma), which is told apart without red and green.
 */
#include "core/overlay/parts.h"

enum { COLOURS = 8 };

/* v of n in base 2, mirrored at the point: 1/2, 1/4, 3/4, 1/8 ... */
static float radical(unsigned n)
{
    float value = 0, part = 0.5f;

    for (; n; n >>= 1, part /= 2)
        value += n & 1 ? part : 0;
    return value;
}

static uint8_t towards(uint8_t from, int to, float share)
{
    return (uint8_t)((float)from + share * (float)(to - from) + 0.5f);
}

struct tt_colour8 tt_overlay_colour(int query)
{
    static const struct tt_colour8 colours[COLOURS] = {
        {230, 159, 0}, {86, 180, 233}, {0, 178, 130},   {240, 228, 66},
        {213, 94, 0},  {70, 110, 235}, {204, 121, 167}, {255, 255, 255},
    };
    const unsigned round = (unsigned)query / COLOURS, index = (unsigned)query % COLOURS;
    struct tt_colour8 colour = colours[index];
    const bool is_white = index == COLOURS - 1, lighter = round % 2 == 0 && !is_white;
    const float share = (lighter ? 0.6f : 0.5f) * radical(is_white ? round : (round + 1) / 2);

    colour.r = towards(colour.r, lighter ? 255 : 0, share);
    colour.g = towards(colour.g, lighter ? 255 : 0, share);
    colour.b = towards(colour.b, lighter ? 255 : 0, share);
    return colour;
}

struct tt_colour8 tt_heat_colour(float heat)
{
    static const struct tt_colour8 stops[] = {
        {30, 20, 150}, {126, 3, 168}, {204, 71, 120}, {248, 149, 64}, {240, 249, 33}};
    const int last = sizeof stops / sizeof stops[0] - 1;
    const float at = (heat < 0 ? 0 : heat > 1 ? 1 : heat) * (float)last;
    const int below = (int)at < last ? (int)at : last - 1;
    const float share = at - (float)below;

    return (struct tt_colour8){towards(stops[below].r, stops[below + 1].r, share),
                               towards(stops[below].g, stops[below + 1].g, share),
                               towards(stops[below].b, stops[below + 1].b, share)};
}

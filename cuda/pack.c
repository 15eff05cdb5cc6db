/* cuda/pack.c: see pack.h. Pure functions; what they allocate they free. */
#include "cuda/pack.h"

#include <stdlib.h>
#include <string.h>

uint16_t tt_half_from_float(float x)
{
    uint32_t u;
    memcpy(&u, &x, sizeof(u));
    const uint32_t sign = u >> 16 & 0x8000, a = u & 0x7fffffff;
    if (a > 0x7f800000)
        return (uint16_t)(sign | 0x7e00);
    if (a >= 0x477ff000) /* rounds to 65536 or more */
        return (uint16_t)(sign | 0x7c00);
    if (a < 0x38800000) { /* subnormal: a multiple of 2^-24, found by adding 0.5 */
        float f;
        memcpy(&f, &a, sizeof(f));
        f += 0.5f;
        memcpy(&u, &f, sizeof(u));
        return (uint16_t)(sign | (u - 0x3f000000));
    }
    return (uint16_t)(sign | (a - 0x38000000 + 0xfff + (a >> 13 & 1)) >> 13);
}

float tt_float_from_half(uint16_t h)
{
    const uint32_t sign = (uint32_t)(h & 0x8000) << 16, exponent = h >> 10 & 31, fraction = h & 1023;
    uint32_t u;
    float f;
    if (exponent == 0) {
        f = (float)fraction * 0x1p-24f;
        return sign ? -f : f;
    }
    u = sign | (exponent == 31 ? 0x7f800000 : (exponent + 112) << 23) | fraction << 13;
    memcpy(&f, &u, sizeof(f));
    return f;
}

/* left: words in the order of a left operand. */
static void pack(uint16_t *packed, const float *matrix, int k, int n, int left)
{
    const int steps = k / 16;
    for (int i = 0; i < k; i++)
        for (int j = 0; j < n; j++) {
            const int step = i / 16, half = i % 16 / 8, q = i % 8 / 2, odd = i % 2;
            const int block = j / 64, pair = j % 64 / 16, second = j % 16 / 8, g = j % 8;
            const size_t unit = (((size_t)block * steps + step) * 4 + pair) * 32 + g * 4 + q;
            const int word = left ? half * 2 + second : second * 2 + half;
            packed[unit * 8 + word * 2 + odd] = tt_half_from_float(matrix[(size_t)i * n + j]);
        }
}

void tt_pack_matrix_f16(uint16_t *packed, const float *matrix, int k, int n)
{
    pack(packed, matrix, k, n, 0);
}

void tt_pack_left_f16(uint16_t *packed, const float *matrix, int k, int n)
{
    pack(packed, matrix, k, n, 1);
}

int tt_pack_conv_f16(uint16_t *packed, const float *weight, const float *projection, int out_c, int in_c,
                     int proj_c, int chunk)
{
    float *matrix = malloc(sizeof(float) * ((size_t)9 * in_c + proj_c) * out_c);
    if (!matrix)
        return -1;
    float *row = matrix;
    for (int c0 = 0; c0 < in_c; c0 += chunk)
        for (int tap = 0; tap < 9; tap++)
            for (int c = c0; c < c0 + chunk; c++, row += out_c)
                for (int o = 0; o < out_c; o++)
                    row[o] = weight[((size_t)o * in_c + c) * 9 + tap];
    for (int c = 0; c < proj_c; c++, row += out_c)
        for (int o = 0; o < out_c; o++)
            row[o] = projection[(size_t)o * proj_c + c];
    tt_pack_matrix_f16(packed, matrix, 9 * in_c + proj_c, out_c);
    free(matrix);
    return 0;
}

/* Tap of element i (0..15) of the window of encoder position (px, py): those that all four have, then its
 * own. */
static int tap_of(int i, int px, int py)
{
    const int ky = i < 9 ? i / 3 + 1 : i < 12 || i == 15 ? 4 - 4 * py : i - 11;
    const int kx = i < 9 ? i % 3 + 1 : i < 12 ? i - 8 : 4 - 4 * px;
    return ky * 5 + kx;
}

/* Support position that element i of encoder position (px, py)'s window is. */
static int position_of(int i, int px, int py)
{
    const int tap = tap_of(i, px, py);
    return (tap / 5 - 1 + 4 * py) * 7 + tap % 5 - 1 + 4 * px;
}

/* Orientation 0: of a tap, what channel row k of step `step` (0..3) is; -1: none. Windows 0 and 3, the eights
 * of windows 2 and 1, their ninths: each position once. */
static int direct_channel(int step, int k)
{
    if (step < 2)
        return step && k == 15 ? -1 : position_of(k, step, step);
    if (step == 2)
        return position_of(k % 8, k < 8, k >= 8);
    return k < 2 ? position_of(8, k == 1, k == 0) : -1;
}

/* Orientation 1: of a row of seven input channels, what channel and tap row k of step `step` (0..18) is:
 * three pairs (the eight elements that all windows have, of both; of each window the other eight, of both),
 * then the four windows of the seventh. */
static int transposed_channel(int step, int k, int *tap)
{
    const int single = step >= 15, unit = single ? step - 15 : step % 5 ? step % 5 - 1 : 0;
    *tap = tap_of(single ? k : k % 8 + (step % 5 ? 8 : 0), unit / 2, unit % 2);
    return single ? 6 : step / 5 * 2 + k / 8;
}

/* The first 8 rows of a step of 64 columns, without room for the others: word 2·(pair % 2) + second of 16
 * bytes of lane 4·g + q and half pair / 2. */
static void pack_half(uint16_t *packed, const float *matrix)
{
    for (int k = 0; k < 8; k++)
        for (int j = 0; j < 64; j++) {
            const int pair = j / 16, second = j % 16 / 8, lane = j % 8 * 4 + k / 2;
            packed[((pair / 2 * 32 + lane) * 4 + pair % 2 * 2 + second) * 2 + k % 2] =
                tt_half_from_float(matrix[k * 64 + j]);
        }
}

void tt_pack_embed_f16(uint16_t *packed, const float *weight, int orientation)
{
    const int groups = orientation ? 7 : 25, steps = orientation ? 19 : 4;
    float matrix[16 * 64];
    for (int i = 0; i < groups; i++)
        for (int step = 0; step < steps; step++) {
            for (int k = 0; k < 16; k++) {
                int tap = i, channel;
                if (orientation)
                    channel = i * 7 + transposed_channel(step, k, &tap);
                else
                    channel = direct_channel(step, k);
                for (int o = 0; o < 64; o++)
                    matrix[k * 64 + o] = channel < 0 ? 0.0f : weight[((size_t)o * 49 + channel) * 25 + tap];
            }
            const int half = !orientation && step == 3;
            if (half)
                pack_half(packed, matrix);
            else
                tt_pack_left_f16(packed, matrix, 16, 64);
            packed += half ? 512 : 1024;
        }
}

/* Eight rows k of 64 output channels as left operands: of the four quarters of channels two words a lane,
 * `words` words from one lane's to the next. channel: of the first row, `rows` of them there are. */
static void pack_eight(uint16_t *packed, const float *weight, int channel, int rows, int tap, int words)
{
    for (int o = 0; o < 64; o++)
        for (int k = 0; k < 8; k++) {
            const int lane = o % 8 * 4 + k / 2, second = o % 16 / 8;
            packed[(((size_t)(o / 16) * 32 + lane) * words + second) * 2 + k % 2] =
                k < rows ? tt_half_from_float(weight[((size_t)o * 49 + channel + k) * 9 + tap]) : 0;
        }
}

void tt_pack_embed_base_f16(uint16_t *packed, const float *weight, int orientation)
{
    float matrix[16 * 64];
    if (orientation) { /* of a row of seven input channels the middle taps and zeros, then the outer taps */
        static const int taps[10] = {3, 4, 5, -1, 0, 1, 2, 6, 7, 8};
        for (int y = 0; y < 7; y++)
            for (int i = 0; i < 10; i++)
                pack_eight(packed + (y * 5 + i / 2) * 1024 + i % 2 * 4, weight, y * 7, taps[i] < 0 ? 0 : 7,
                           taps[i], 4);
        return;
    }
    for (int ky = 0; ky < 3; ky++) { /* three steps of three taps; the 49th channel of three taps */
        for (int step = 0; step < 3; step++)
            for (int kx = 0; kx < 3; kx++, packed += 1024) {
                for (int k = 0; k < 16; k++)
                    for (int o = 0; o < 64; o++)
                        matrix[k * 64 + o] = weight[((size_t)o * 49 + step * 16 + k) * 9 + ky * 3 + kx];
                tt_pack_left_f16(packed, matrix, 16, 64);
            }
        for (int kx = 0; kx < 3; kx++, packed += 512)
            pack_eight(packed, weight, 48, 1, ky * 3 + kx, 2);
    }
}

int tt_pack_stem_f16(uint16_t *packed, const float *weight)
{
    enum { K = 176 };
    float *matrix = calloc((size_t)K * 64, sizeof(*matrix));
    if (!matrix)
        return -1;
    for (int k = 0; k < K; k++) {
        const int piece = k / 8, ky = piece / 3, column = piece % 3 * 8 + k % 8; /* column: 3·kx + colour */
        for (int o = 0; o < 64 && ky < 7 && column < 21; o++)
            matrix[k * 64 + o] = weight[(ky * 21 + column) * 64 + o] * (2.0f / 255.0f);
    }
    tt_pack_matrix_f16(packed, matrix, K, 64);
    free(matrix);
    return 0;
}

void tt_pack_swap_features_f16(uint16_t *features, size_t pixels, int channels)
{
    for (size_t p = 1; p < pixels; p += 2)
        for (int c = 0; c < channels; c++)
            if (c % 64 < 32) {
                uint16_t *a = features + p * (size_t)channels + c, *b = a + 32, x = *a;

                *a = *b, *b = x;
            }
}

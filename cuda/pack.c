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

int tt_pack_winograd_f16(uint16_t *packed, const float *weight, const float *projection, int out_c, int in_c,
                         int proj_c)
{
    const int k = 12 * in_c + 2 * proj_c;
    float *matrix = malloc(sizeof(float) * (size_t)k * out_c);
    if (!matrix)
        return -1;
    float *row = matrix;
    for (int c0 = 0; c0 < in_c; c0 += 16)
        for (int column = 0; column < 4; column++)
            for (int ky = 0; ky < 3; ky++)
                for (int c = c0; c < c0 + 16; c++, row += out_c)
                    for (int o = 0; o < out_c; o++) {
                        const float *g = weight + ((size_t)o * in_c + c) * 9 + ky * 3;
                        const float outer = g[0] + g[2];
                        row[o] = column == 0   ? g[0]
                                 : column == 3 ? g[2]
                                               : 0.5f * (column == 1 ? outer + g[1] : outer - g[1]);
                    }
    for (int c0 = 0; c0 < proj_c; c0 += 16)
        for (int column = 1; column < 3; column++)
            for (int c = c0; c < c0 + 16; c++, row += out_c)
                for (int o = 0; o < out_c; o++)
                    row[o] = (column == 1 ? 0.5f : -0.5f) * projection[(size_t)o * proj_c + c];
    tt_pack_matrix_f16(packed, matrix, k, out_c);
    free(matrix);
    return 0;
}

/* The volume's column that k (0..63) of a tap stands for, as the 16 bytes of a lane spread over the steps. */
static int column_of(int k)
{
    const int step = k / 16, half = k % 16 / 8, q = k % 8 / 2;
    return step / 2 * 32 + q * 8 + step % 2 * 4 + half * 2 + k % 2;
}

/* The input channel (position) of a column, or -1 where it stands for none. */
static int channel_of(int column, int orientation)
{
    int channel;
    if (orientation == 0) {
        channel = column % 16 / 2 * 8 + column / 16 * 2 + column % 2;
        return channel < 49 ? channel : -1;
    }
    return column / 8 < 7 && column % 8 < 7 ? column % 8 * 7 + column / 8 : -1;
}

static int pack_encoder(uint16_t *packed, const float *weight, int orientation, int taps)
{
    float *matrix = calloc((size_t)taps * 64 * 64, sizeof(*matrix));
    if (!matrix)
        return -1;
    for (int tap = 0; tap < taps; tap++)
        for (int k = 0; k < 64; k++) {
            const int channel = channel_of(column_of(k), orientation);
            for (int o = 0; o < 64 && channel >= 0; o++)
                matrix[((size_t)tap * 64 + k) * 64 + o] = weight[((size_t)o * 49 + channel) * taps + tap];
        }
    tt_pack_left_f16(packed, matrix, taps * 64, 64);
    free(matrix);
    return 0;
}

int tt_pack_encoder_f16(uint16_t *packed, const float *weight, int orientation)
{
    return pack_encoder(packed, weight, orientation, 25);
}

int tt_pack_encoder_base_f16(uint16_t *packed, const float *weight, int orientation)
{
    return pack_encoder(packed, weight, orientation, 9);
}

/* Elements of a window of encoder position (px, py): positions of the support, 4×4 from (3·py, 3·px) on. */
int tt_pack_embed_f16(uint16_t *packed, const float *weight, int orientation)
{
    const int n = orientation ? 49 : 25; /* taps, or input channels */
    float *matrix = calloc((size_t)n * 64 * 64, sizeof(*matrix));
    if (!matrix)
        return -1;
    for (int i = 0; i < n; i++) {
        int taken[49] = {0};
        for (int k = 0; k < 64; k++) {
            const int px = k / 32, py = k / 16 % 2, y = k / 4 % 4, x = k % 4;
            const int position = (3 * py + y) * 7 + 3 * px + x;
            const int channel = orientation ? i : position, tap = orientation ? (y + 1 - py) * 5 + x + 1 - px : i;
            if (!orientation && taken[position]++)
                continue; /* an element of several windows counts in the first */
            for (int o = 0; o < 64; o++)
                matrix[(i * 64 + k) * 64 + o] = weight[((size_t)o * 49 + channel) * 25 + tap];
        }
    }
    tt_pack_left_f16(packed, matrix, n * 64, 64);
    free(matrix);
    return 0;
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

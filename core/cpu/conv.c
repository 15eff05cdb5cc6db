/* core/cpu/conv.c: the backbone's 3×3 convolutions, with the instance norm and ReLU in front of them and the
 * sums for the norm behind them.
 *
 * A map is worked on in strips of rows. The rows that a strip reads are normalised once into a small padded
 * buffer (zeros around the map come after the ReLU), from which all consumers read.
 *
 * Stride 1 is Winograd's F(4×4, 3×3): 36 products [tiles][in]·[in][out] give 4×4 outputs a tile, with a
 * quarter of the multiplications. Stride 2 and the 1×1 projections are products straight from the strip; no
 * matrix of patches is made.
 *
 * Sums over a map run strip by strip, each strip about its own mean, and are joined in FP64 in the order of
 * the strips. A frame is one thread's work, so its bits depend on nothing else. Nothing here can fail.
 */
#include "core/cpu/cpu.h"
#include "core/cpu/sizes.h"
#include "core/cpu/vec.h"

#include <math.h>

enum { TILE = TT_WINOGRAD_TILE, SIDE = TILE + 2, POINTS = TT_WINOGRAD_POINTS };

/* Winograd's points: 0, ±NEAR, ±FAR and infinity. They, their squares and sums of these are exact in FP32,
 * and in FP32 they cost half the accuracy of the usual ±1 and ±2. */
#define NEAR  0.75f
#define FAR   1.5f
#define NEAR2 (NEAR * NEAR)
#define FAR2  (FAR * FAR)

/* Rows of relu(norm(map)), with one column of zeros on each side. */
struct strip {
    float *data; /* [rows][size + 2][channels] */
    int row_floats;
};

TT_CLONES static void normalise_row(const float *from, int pixels, int channels, const float *scale,
                                    const float *shift, float *to)
{
    for (int p = 0; p < pixels; p++, from += channels, to += channels)
        for (int c = 0; c < channels; c += TT_LANES)
            tt_store(to + c,
                     tt_max(tt_load(from + c) * tt_load(scale + c) + tt_load(shift + c), tt_splat(0.0f)));
}

/* Rows first..first+rows-1 of the map; rows outside it are zeros. */
static void fill_strip(struct strip *strip, const struct tt_map *map, const struct tt_channel_norm *norm,
                       int first, int rows)
{
    size_t channels = (size_t)map->channels;

    for (int r = 0; r < rows; r++) {
        float *row = strip->data + (size_t)r * (size_t)strip->row_floats;
        int y = first + r;

        if (y < 0 || y >= map->size) {
            memset(row, 0, (size_t)strip->row_floats * sizeof *row);
            continue;
        }
        memset(row, 0, channels * sizeof *row);
        normalise_row(map->data + (size_t)y * (size_t)map->size * channels, map->size, map->channels,
                      norm->scale, norm->shift, row + channels);
        memset(row + (size_t)strip->row_floats - channels, 0, channels * sizeof *row);
    }
}

/* Bᵀ·d: the values at the points of the polynomial with the coefficients d. */
TT_INLINE void to_points(const tt_vec d[SIDE], tt_vec o[SIDE])
{
    tt_vec near = d[4] - FAR2 * d[2], near_odd = NEAR * (d[3] - FAR2 * d[1]);
    tt_vec far = d[4] - NEAR2 * d[2], far_odd = FAR * (d[3] - NEAR2 * d[1]);

    o[0] = NEAR2 * FAR2 * d[0] - (NEAR2 + FAR2) * d[2] + d[4];
    o[1] = near + near_odd;
    o[2] = near - near_odd;
    o[3] = far + far_odd;
    o[4] = far - far_odd;
    o[5] = NEAR2 * FAR2 * d[1] - (NEAR2 + FAR2) * d[3] + d[5];
}

/* Aᵀ·m */
TT_INLINE void from_points(const tt_vec m[SIDE], tt_vec o[TILE])
{
    tt_vec near = m[1] + m[2], near_odd = NEAR * (m[1] - m[2]), far = m[3] + m[4],
           far_odd = FAR * (m[3] - m[4]);

    o[0] = m[0] + (near + far);
    o[1] = near_odd + far_odd;
    o[2] = NEAR2 * near + FAR2 * far;
    o[3] = NEAR2 * near_odd + FAR2 * far_odd + m[5];
}

/* One tile's 6×6 inputs -> its row in each of the 36 matrices. */
TT_CLONES static void transform_input(const float *from, int row_floats, int channels, float *to,
                                      size_t point_floats)
{
    for (int c = 0; c < channels; c += TT_LANES) {
        tt_vec half[SIDE][SIDE];

        for (int x = 0; x < SIDE; x++) {
            tt_vec column[SIDE], done[SIDE];

            for (int y = 0; y < SIDE; y++)
                column[y] = tt_load(from + y * row_floats + x * channels + c);
            to_points(column, done);
            for (int y = 0; y < SIDE; y++)
                half[y][x] = done[y];
        }
        for (int y = 0; y < SIDE; y++) {
            tt_vec done[SIDE];

            to_points(half[y], done);
            for (int x = 0; x < SIDE; x++)
                tt_store(to + (size_t)(SIDE * y + x) * point_floats + c, done[x]);
        }
    }
}

/* One tile's row in each of the 36 matrices -> its 4×4 outputs, added to what is there where add is not 0. */
TT_CLONES static void transform_output(const float *from, size_t point_floats, int channels, float *to,
                                       int row_floats, int add)
{
    for (int c = 0; c < channels; c += TT_LANES) {
        tt_vec half[TILE][SIDE];

        for (int x = 0; x < SIDE; x++) {
            tt_vec column[SIDE], done[TILE];

            for (int y = 0; y < SIDE; y++)
                column[y] = tt_load(from + (size_t)(SIDE * y + x) * point_floats + c);
            from_points(column, done);
            for (int y = 0; y < TILE; y++)
                half[y][x] = done[y];
        }
        for (int y = 0; y < TILE; y++) {
            tt_vec done[TILE];

            from_points(half[y], done);
            for (int x = 0; x < TILE; x++) {
                float *at = to + y * row_floats + x * channels + c;

                tt_store(at, add ? done[x] + tt_load(at) : done[x]);
            }
        }
    }
}

/* Output rows first..first+rows-1 (whole tiles) of a convolution of stride 1 from the strip of rows
 * first-1..first+rows. */
static void run_winograd(const struct tt_conv3 *conv, const struct strip *strip, int first, int rows,
                         struct tt_map *out, int add, float *inputs, float *products)
{
    int across = out->size / TILE, tiles = across * (rows / TILE);
    size_t in_floats = (size_t)(tiles * conv->in + TT_WINOGRAD_GAP),
           out_floats = (size_t)(tiles * conv->out + TT_WINOGRAD_GAP);
    int out_row = out->size * conv->out;

    for (int t = 0; t < tiles; t++)
        transform_input(strip->data + t / across * TILE * strip->row_floats + t % across * TILE * conv->in,
                        strip->row_floats, conv->in, inputs + (size_t)(t * conv->in), in_floats);
    for (int p = 0; p < POINTS; p++)
        tt_gemm(tiles, conv->out, conv->in, inputs + (size_t)p * in_floats, conv->in,
                conv->weight + (size_t)(p * conv->in * conv->out), conv->out, 0.0f,
                products + (size_t)p * out_floats, conv->out);
    for (int t = 0; t < tiles; t++)
        transform_output(products + (size_t)(t * conv->out), out_floats, conv->out,
                         out->data + (first + t / across * TILE) * out_row + t % across * TILE * conv->out,
                         out_row, add);
}

/* Output rows first..first+rows-1 of a convolution of stride 2 from the strip of rows 2·first..; the zeros
 * lie below and to the right. Of a kernel row's three taps two lie in one pair of pixels (K = 2·in), the
 * third begins the next: a product's rows may not overlap. */
static void run_strided(const struct tt_conv3 *conv, const struct strip *strip, int first, int rows,
                        struct tt_map *out)
{
    for (int r = 0; r < rows; r++)
        for (int ky = 0; ky < 3; ky++)
            for (int kx = 0; kx < 3; kx += 2)
                tt_gemm(out->size, conv->out, kx ? conv->in : 2 * conv->in,
                        strip->data + (size_t)((2 * r + ky) * strip->row_floats + (1 + kx) * conv->in),
                        2 * conv->in, conv->weight + (size_t)((ky * 3 + kx) * conv->in * conv->out),
                        conv->out, ky || kx ? 1.0f : 0.0f,
                        out->data + (size_t)((first + r) * out->size * conv->out), conv->out);
}

void tt_conv3_run(const struct tt_conv3 *conv, const float *projection, const struct tt_map *in,
                  const struct tt_channel_norm *norm, struct tt_map *out, int add, struct tt_map *shortcut,
                  struct tt_moments *moments, struct tt_scratch scratch)
{
    int stride = conv->stride, before = stride == 1; /* rows of padding above the map */
    int rows = tt_conv3_rows(stride, out->size), taken = stride * rows + 1 + before; /* rows of a strip */
    struct strip strip = {.row_floats = (in->size + 2) * conv->in};
    float *inputs = NULL, *products = NULL;

    strip.data = tt_scratch_take(&scratch, (size_t)(taken * strip.row_floats));
    if (stride == 1) {
        inputs =
            tt_scratch_take(&scratch, (size_t)(POINTS * (TT_WINOGRAD_TILES * conv->in + TT_WINOGRAD_GAP)));
        products =
            tt_scratch_take(&scratch, (size_t)(POINTS * (TT_WINOGRAD_TILES * conv->out + TT_WINOGRAD_GAP)));
    }
    moments->pixels = 0;
    for (int first = 0; first < out->size; first += rows) {
        float *out_rows = out->data + (size_t)(first * out->size * conv->out);

        fill_strip(&strip, in, norm, stride * first - before, taken);
        if (stride == 1)
            run_winograd(conv, &strip, first, rows, out, add, inputs, products);
        else
            run_strided(conv, &strip, first, rows, out);
        for (int r = 0; projection && r < rows; r++)
            tt_gemm(out->size, conv->out, conv->in,
                    strip.data + (size_t)((stride * r + before) * strip.row_floats + conv->in),
                    stride * conv->in, projection, conv->out, 0.0f,
                    shortcut->data + (size_t)((first + r) * out->size * conv->out), conv->out);
        tt_moments_add(moments, out_rows, rows * out->size, conv->out);
    }
}

/* Mean and squared deviations of sixteen channels over a run of pixels. */
TT_CLONES static void sum_channels(const float *rows, int pixels, int channels, float *mean, float *square)
{
    for (int c = 0; c < channels; c += TT_LANES) {
        tt_vec sum = tt_splat(0.0f), sum_square = tt_splat(0.0f), middle;

        for (int p = 0; p < pixels; p++)
            sum += tt_load(rows + (size_t)(p * channels + c));
        middle = sum / (float)pixels;
        for (int p = 0; p < pixels; p++) {
            tt_vec d = tt_load(rows + (size_t)(p * channels + c)) - middle;

            sum_square += d * d;
        }
        tt_store(mean + c, middle);
        tt_store(square + c, sum_square);
    }
}

void tt_moments_add(struct tt_moments *moments, const float *rows, int pixels, int channels)
{
    float mean[256], square[256];
    double before = moments->pixels, all = before + pixels;

    sum_channels(rows, pixels, channels, mean, square);
    for (int c = 0; c < channels; c++) {
        double old_mean = before > 0 ? moments->mean[c] : 0, old_square = before > 0 ? moments->square[c] : 0;
        double step = mean[c] - old_mean;

        moments->mean[c] = old_mean + step * pixels / all;
        moments->square[c] = old_square + square[c] + step * step * before * pixels / all;
    }
    moments->pixels = all;
}

void tt_moments_norm(const struct tt_moments *moments, const struct tt_affine *affine, int channels,
                     struct tt_channel_norm *norm)
{
    for (int c = 0; c < channels; c++) {
        double scale =
            affine->weight[c] / sqrt(moments->square[c] / moments->pixels + (double)TT_NORM_EPSILON);

        norm->scale[c] = (float)scale;
        norm->shift[c] = (float)(affine->bias[c] - moments->mean[c] * scale);
    }
}

/* G·g·Gᵀ for every pair of channels, in FP64. */
TT_CLONES static void transform_weight(const float *weight, size_t pairs, float *to)
{
    /* a point's powers over the product of its distances from the other points */
    const double near = 2.0 * NEAR2 * (NEAR2 - FAR2), far = 2.0 * FAR2 * (FAR2 - NEAR2);
    const double g[SIDE][3] = {{1.0 / (NEAR2 * FAR2), 0, 0},           {1 / near, NEAR / near, NEAR2 / near},
                               {1 / near, -NEAR / near, NEAR2 / near}, {1 / far, FAR / far, FAR2 / far},
                               {1 / far, -FAR / far, FAR2 / far},      {0, 0, 1}};

    for (int p = 0; p < POINTS; p++)
        for (size_t i = 0; i < pairs; i += 8) { /* channels come in sixteens */
            tt_dvec sum = {0};

            for (int k = 0; k < 9; k++)
                sum +=
                    g[p / SIDE][k / 3] * g[p % SIDE][k % 3] * tt_load_double(weight + (size_t)k * pairs + i);
            tt_store_double(to + (size_t)p * pairs + i, sum);
        }
}

void tt_conv3_load(struct tt_conv3 *conv, struct tt_store *store, int in, int out, int stride,
                   const float *weight)
{
    size_t pairs = (size_t)in * (size_t)out;
    float *transformed;

    *conv = (struct tt_conv3){.in = in, .out = out, .stride = stride, .weight = weight};
    if (stride != 1)
        return;
    transformed = tt_store_floats(store, POINTS * pairs);
    if (transformed && weight)
        transform_weight(weight, pairs, transformed);
    tt_store_drop(store, weight);
    conv->weight = transformed;
}

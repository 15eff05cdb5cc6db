/* core/cpu/correlation.c: supports, the local 4D correlation and its encoder.
 *
 * docs/MODEL.md, "Supports", "Local correlation", "Encoder"; public code: models/locotrack_model.py,
 * get_query_features and refine_pips, and models/cmdtop.py. For one query point and level, frame by frame:
 * the 8×8 pixels around the estimate are multiplied with the 7×7 support (one product 64×49×C), and the
 * bilinear weights are put on the products, which is the same as sampling first and far less work. A tile of
 * frames, in both orientations, then goes through the encoder while it is in the cache; taps that fall into
 * the padding are left out. Nothing here can fail.
 */
#include "core/cpu/cpu.h"
#include "core/cpu/sizes.h"
#include "core/cpu/vec.h"

#include <math.h>

enum { AREA = TT_SUPPORT_AREA, VOLUME = TT_VOLUME_FLOATS, PRODUCT_ROW = TT_PRODUCT_ROW };

/* The floor of a coordinate, held to where an 8×8 patch can still be placed; NaN goes far outside. */
static int floor_held(float coordinate, int size)
{
    float held =
        coordinate > -64.0f ? (coordinate < (float)size + 64.0f ? coordinate : (float)size + 64.0f) : -64.0f;

    return (int)floorf(held);
}

void tt_support_sample(const float *const features[TT_LEVELS], const float xy[2], float *support)
{
    for (int level = 0; level < TT_LEVELS; level++) {
        int size = tt_level_shapes[level].size, channels = tt_level_shapes[level].channels;
        float scale = (float)size / (float)TT_CLIP_SIZE, last = (float)(size - 1);

        for (int i = 0; i < AREA; i++, support += channels) {
            float y = fminf(fmaxf(xy[1] * scale - 0.5f + (float)(i / 7 - 3), 0.0f), last);
            float x = fminf(fmaxf(xy[0] * scale - 0.5f + (float)(i % 7 - 3), 0.0f), last);
            int y0 = (int)y, x0 = (int)x, y1 = y0 + (y0 < size - 1), x1 = x0 + (x0 < size - 1);
            float fy = y - (float)y0, fx = x - (float)x0;
            const float *a = features[level] + (y0 * size + x0) * channels;
            const float *b = features[level] + (y0 * size + x1) * channels;
            const float *c = features[level] + (y1 * size + x0) * channels;
            const float *d = features[level] + (y1 * size + x1) * channels;

            for (int k = 0; k < channels; k++)
                support[k] = a[k] * ((1 - fy) * (1 - fx)) + b[k] * ((1 - fy) * fx) + c[k] * (fy * (1 - fx)) +
                             d[k] * (fy * fx);
        }
    }
}

void tt_support_transpose(const float *support, int channels, float *transposed)
{
    for (int i = 0; i < AREA; i++)
        for (int c = 0; c < channels; c++)
            transposed[c * AREA + i] = support[i * channels + c];
}

/* The 8×8 pixels from (x0, y0) on: [64][C], zeros outside the map. */
static void gather_patch(const float *map, int size, int channels, int x0, int y0, float *patch)
{
    size_t row = (size_t)(TT_PATCH_SIZE * channels);
    int left = x0 < 0 ? -x0 : 0, right = x0 + TT_PATCH_SIZE > size ? x0 + TT_PATCH_SIZE - size : 0;
    size_t before, inside, after;

    left = left > TT_PATCH_SIZE ? TT_PATCH_SIZE : left;
    right = right > TT_PATCH_SIZE ? TT_PATCH_SIZE : right;
    before = (size_t)(left * channels);
    after = (size_t)(right * channels);
    inside = row - before - after;
    for (int r = 0; r < TT_PATCH_SIZE; r++, patch += row) {
        int y = y0 + r;

        if (y < 0 || y >= size || !inside) {
            memset(patch, 0, row * sizeof *patch);
            continue;
        }
        memset(patch, 0, before * sizeof *patch);
        memcpy(patch + before, map + (size_t)(y * size + x0 + left) * (size_t)channels,
               inside * sizeof *patch);
        memset(patch + before + inside, 0, after * sizeof *patch);
    }
}

/* products [8·8][PRODUCT_ROW] -> volume [7·7][49] (and up to 15 floats behind it). */
TT_CLONES static void interpolate(const float *products, float fx, float fy, float *volume)
{
    for (int y = 0; y < 7; y++) {
        tt_vec row[TT_PATCH_SIZE][4];

        for (int x = 0; x < TT_PATCH_SIZE; x++)
            for (int v = 0; v < 4; v++) {
                const float *at = products + (y * TT_PATCH_SIZE + x) * PRODUCT_ROW + v * TT_LANES;

                row[x][v] = tt_load(at) * (1.0f - fy) + tt_load(at + TT_PATCH_SIZE * PRODUCT_ROW) * fy;
            }
        for (int x = 0; x < 7; x++, volume += AREA)
            for (int v = 0; v < 4; v++)
                tt_store(volume + v * TT_LANES, row[x][v] * (1.0f - fx) + row[x + 1][v] * fx);
    }
}

static void transpose_volume(const float *volume, float *transposed)
{
    for (int i = 0; i < AREA; i++)
        for (int j = 0; j < AREA; j++)
            transposed[j * AREA + i] = volume[i * AREA + j];
}

/* One convolution of the encoder over `items` inputs [items][in_size²][in], out [items][out_size²][out],
 * without bias: for each output position and kernel row, one product over the taps that lie inside. */
static void convolve(const struct tt_encoder_conv *shape, const float *weight, int items, const float *in,
                     float *out)
{
    int in_item = shape->in_size * shape->in_size * shape->in_channels;
    int out_item = shape->out_size * shape->out_size * shape->out_channels;

    for (int oy = 0; oy < shape->out_size; oy++)
        for (int ox = 0; ox < shape->out_size; ox++) {
            int y0 = oy * shape->stride - shape->pad_before, x0 = ox * shape->stride - shape->pad_before;
            int from = x0 < 0 ? -x0 : 0;
            int to = x0 + shape->kernel > shape->in_size ? shape->in_size - x0 : shape->kernel;
            float keep = 0.0f;

            for (int ky = 0; ky < shape->kernel; ky++) {
                int y = y0 + ky;

                if (y < 0 || y >= shape->in_size)
                    continue;
                tt_gemm(items, shape->out_channels, (to - from) * shape->in_channels,
                        in + (y * shape->in_size + x0 + from) * shape->in_channels, in_item,
                        weight + (ky * shape->kernel + from) * shape->in_channels * shape->out_channels,
                        shape->out_channels, keep, out + (oy * shape->out_size + ox) * shape->out_channels,
                        out_item);
                keep = 1.0f;
            }
        }
}

/* relu(group norm(x + bias)) in place; x [items][positions][channels], groups of 16 channels over all
 * positions. */
TT_CLONES static void normalise(float *x, int items, int positions, int channels, const float *bias,
                                const struct tt_affine *affine)
{
    float count = (float)(positions * TT_ENCODER_GROUP);

    for (int i = 0; i < items; i++, x += positions * channels)
        for (int c = 0; c < channels; c += TT_ENCODER_GROUP) {
            tt_vec sum = tt_splat(0.0f), square = tt_splat(0.0f), scale;
            float mean;

            for (int p = 0; p < positions; p++) {
                tt_vec v = tt_load(x + p * channels + c) + tt_load(bias + c);

                tt_store(x + p * channels + c, v);
                sum += v;
            }
            mean = tt_sum(sum) / count;
            for (int p = 0; p < positions; p++) {
                tt_vec d = tt_load(x + p * channels + c) - mean;

                square += d * d;
            }
            scale = tt_load(affine->weight + c) / sqrtf(tt_sum(square) / count + TT_NORM_EPSILON);
            for (int p = 0; p < positions; p++) {
                float *at = x + p * channels + c;

                tt_store(at,
                         tt_max((tt_load(at) - mean) * scale + tt_load(affine->bias + c), tt_splat(0.0f)));
            }
        }
}

/* Both orientations of the tile's volumes [2·frames][49][49] -> embeddings. */
static void encode(const struct tt_encoder *encoder, const struct tt_model_shape *shape, int frames,
                   float *volumes, float *out, int ld, struct tt_scratch scratch)
{
    const float *in = volumes;
    float *map = NULL;
    int last = shape->encoder_convs - 1, channels = shape->encoder[last].out_channels;

    for (int i = 0; i <= last; i++) {
        const struct tt_encoder_conv *conv = &shape->encoder[i];
        int positions = conv->out_size * conv->out_size;

        map = tt_scratch_take(&scratch, (size_t)(2 * frames * positions * conv->out_channels));
        convolve(conv, encoder->conv[i].weight, 2 * frames, in, map);
        normalise(map, 2 * frames, positions, conv->out_channels, encoder->conv[i].bias,
                  &encoder->conv[i].norm);
        in = map;
    }
    /* the mean over positions that follows in the public code is over one position */
    for (int f = 0; f < frames; f++) {
        memcpy(out + (size_t)f * (size_t)ld, map + f * channels, (size_t)channels * sizeof *out);
        memcpy(out + (size_t)f * (size_t)ld + channels, map + (frames + f) * channels,
               (size_t)channels * sizeof *out);
    }
}

void tt_correlation_run(const struct tt_encoder *encoder, const struct tt_model_shape *shape, int level,
                        int frames, const float *const *features, const float *transposed,
                        const struct tt_estimate *estimate, float *out, int ld, struct tt_scratch scratch)
{
    int size = tt_level_shapes[level].size, channels = tt_level_shapes[level].channels;
    float scale = (float)size / (float)TT_CLIP_SIZE;
    float *patch = tt_scratch_take(&scratch, (size_t)(TT_PATCH_AREA * channels));
    float *products = tt_scratch_take(&scratch, TT_PATCH_AREA * PRODUCT_ROW);
    float *volumes = tt_scratch_take(&scratch, (size_t)(2 * frames * VOLUME + TT_LANES));

    memset(products, 0, TT_PATCH_AREA * PRODUCT_ROW * sizeof *products);
    for (int f = 0; f < frames; f++) {
        float x = estimate[f].x * scale - 0.5f, y = estimate[f].y * scale - 0.5f;
        int x0 = floor_held(x, size), y0 = floor_held(y, size);

        gather_patch(features[f], size, channels, x0 - 3, y0 - 3, patch);
        tt_gemm(TT_PATCH_AREA, AREA, channels, patch, channels, transposed, AREA, 0.0f, products,
                PRODUCT_ROW);
        interpolate(products, x - (float)x0, y - (float)y0, volumes + f * VOLUME);
    }
    for (int f = 0; f < frames; f++)
        transpose_volume(volumes + f * VOLUME, volumes + (frames + f) * VOLUME);
    encode(encoder, shape, frames, volumes, out, ld, scratch);
}

void tt_encoder_load(struct tt_encoder *encoder, const struct tt_model_shape *shape, int level,
                     struct tt_store *store)
{
    for (int i = 0; i < shape->encoder_convs; i++) {
        encoder->conv[i].weight = tt_store_weight(store, "cmdtop.%d.conv.%d.0.weight", level, i);
        encoder->conv[i].bias = tt_store_weight(store, "cmdtop.%d.conv.%d.0.bias", level, i);
        encoder->conv[i].norm = tt_store_affine(store, "cmdtop.%d.conv.%d.1", level, i);
    }
}

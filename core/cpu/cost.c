/* core/cpu/cost.c: where a query point is in a frame, from the correlation of its feature with every pixel's.
 *
 * docs/MODEL.md, "Cost volume"; public code: models/locotrack_model.py, tracks_from_cost_volume, and
 * models/utils.py, heatmaps_to_points. Sixteen query points go side by side: maps are [pixel][query], so that
 * every step is the same for all lanes and nothing is summed across them. Lanes without a query hold zeros.
 * Of the softmax only the neighbourhood of the maximum is needed: the denominator cancels, and the guard
 * against an empty sum (1e-12) cannot act, since the maximum's own share is at least 1/4096. Nothing here can
 * fail.
 */
#include "core/cpu/cpu.h"
#include "core/cpu/vec.h"

#include <math.h>

enum {
    LOW = 32,
    HIGH = 64,
    LOW_CHANNELS = 256,
    HIGH_CHANNELS = 128,
    CENTRE = TT_SUPPORT_AREA / 2, /* the support's middle is the query's own feature */
    WINDOW = 2 * TT_COST_RADIUS +
             1, /* holds what is nearer than the radius, and one pixel more for the 3×3 sums */
    LOW_WINDOW = WINDOW / 2 + 2, /* lowres pixels that such a window is upsampled from */
};

/* The nearest index from 0 to size - 1. */
static int held(int index, int size)
{
    return index < 0 ? 0 : index >= size ? size - 1 : index;
}

/* Sixteen query points' figures over one map. */
struct statistics {
    tt_vec mean, largest, smallest;
};

/* Lowres cost [32·32][16] -> [64·64][16], bilinear, pixel centres at 0.5, edges repeated. */
TT_CLONES static void upsample(const float *low, int ld, float *high)
{
    for (int y = 0; y < HIGH; y++) {
        int y0 = (y + 1) / 2 - 1, y1 = y0 + 1;
        float wy = y % 2 ? 0.25f : 0.75f; /* of the row below */

        y0 = y0 < 0 ? 0 : y0;
        y1 = y1 > LOW - 1 ? LOW - 1 : y1;
        for (int x = 0; x < HIGH; x++) {
            int x0 = (x + 1) / 2 - 1, x1 = x0 + 1;
            float wx = x % 2 ? 0.25f : 0.75f;
            tt_vec above, below;

            x0 = x0 < 0 ? 0 : x0;
            x1 = x1 > LOW - 1 ? LOW - 1 : x1;
            above =
                tt_load(low + (y0 * LOW + x0) * ld) * (1.0f - wx) + tt_load(low + (y0 * LOW + x1) * ld) * wx;
            below =
                tt_load(low + (y1 * LOW + x0) * ld) * (1.0f - wx) + tt_load(low + (y1 * LOW + x1) * ld) * wx;
            tt_store(high + (y * HIGH + x) * TT_LANES, above * (1.0f - wy) + below * wy);
        }
    }
}

TT_CLONES static void measure(const float *map, int ld, float *mean, float *largest, float *smallest)
{
    tt_vec top = tt_load(map), bottom = top, sum = tt_splat(0.0f);

    for (int y = 0; y < HIGH; y++) {
        tt_vec row = tt_splat(0.0f);

        for (int x = 0; x < HIGH; x++, map += ld) {
            tt_vec v = tt_load(map);

            row += v;
            top = tt_max(top, v);
            bottom = tt_min(bottom, v);
        }
        sum += row;
    }
    tt_store(mean, sum / (float)(HIGH * HIGH));
    tt_store(largest, top);
    tt_store(smallest, bottom);
}

/* heat [64·64][16] = 3×3 convolution over both maps, zeros around them. where: the first pixel of the
 * maximum. */
TT_CLONES static void convolve(const struct tt_cost *cost, const float *low, const float *high, int high_ld,
                               float *heat, int32_t *where)
{
    tt_vec top = tt_splat(-INFINITY);
    tt_ivec at = {0};

    for (int y = 0; y < HIGH; y++)
        for (int x = 0; x < HIGH; x++) {
            tt_vec sum = tt_splat(cost->conv_bias);
            tt_ivec better, here = (y * HIGH + x) - (tt_ivec){0};

            for (int ky = 0; ky < 3; ky++)
                for (int kx = 0; kx < 3; kx++) {
                    int yy = y + ky - 1, xx = x + kx - 1, k = ky * 3 + kx;

                    if (yy < 0 || yy >= HIGH || xx < 0 || xx >= HIGH)
                        continue;
                    sum += tt_load(low + (yy * HIGH + xx) * TT_LANES) * cost->conv[0][k] +
                           tt_load(high + (yy * HIGH + xx) * high_ld) * cost->conv[1][k];
                }
            tt_store(heat + (y * HIGH + x) * TT_LANES, sum);
            better = sum > top;
            top = tt_select(better, sum, top);
            at = (better & here) | (~better & at);
        }
    memcpy(where, &at, sizeof at);
}

/* The dot product of two feature vectors in FP64. */
TT_CLONES static double dot(const float *a, const float *b, int channels)
{
    tt_dvec sum = {0};
    double lane[8], all = 0;

    for (int c = 0; c < channels; c += 8)
        sum += tt_load_double(a + c) * tt_load_double(b + c);
    memcpy(lane, &sum, sizeof lane);
    for (int i = 0; i < 8; i++)
        all += lane[i];
    return all;
}

/* Costs of one query point around a pixel of the hires map, FP64: [lowres, upsampled; hires][WINDOW][WINDOW];
 * zeros outside the map. */
static void window_costs(const float *const features[TT_LEVELS], const float *support, int left, int top,
                         double cost[2][WINDOW][WINDOW])
{
    const float *low_query = support + TT_SUPPORT_AREA * HIGH_CHANNELS + CENTRE * LOW_CHANNELS;
    const float *high_query = support + CENTRE * HIGH_CHANNELS;
    int low_left = (left + 1) / 2 - 1, low_top = (top + 1) / 2 - 1;
    double low[LOW_WINDOW][LOW_WINDOW];

    for (int y = 0; y < LOW_WINDOW; y++)
        for (int x = 0; x < LOW_WINDOW; x++) {
            int ly = held(low_top + y, LOW), lx = held(low_left + x, LOW);

            low[y][x] = dot(features[TT_LOWRES] + (ly * LOW + lx) * LOW_CHANNELS, low_query, LOW_CHANNELS);
        }
    for (int y = 0; y < WINDOW; y++)
        for (int x = 0; x < WINDOW; x++) {
            int hy = top + y, hx = left + x, y0 = (hy + 1) / 2 - 1 - low_top,
                x0 = (hx + 1) / 2 - 1 - low_left;
            double wy = hy % 2 ? 0.25 : 0.75, wx = hx % 2 ? 0.25 : 0.75;

            if (hy < 0 || hx < 0 || hy >= HIGH || hx >= HIGH) {
                cost[0][y][x] = cost[1][y][x] = 0;
                continue;
            }
            cost[0][y][x] = (low[y0][x0] * (1 - wx) + low[y0][x0 + 1] * wx) * (1 - wy) +
                            (low[y0 + 1][x0] * (1 - wx) + low[y0 + 1][x0 + 1] * wx) * wy;
            cost[1][y][x] =
                dot(features[TT_HIRES] + (hy * HIGH + hx) * HIGH_CHANNELS, high_query, HIGH_CHANNELS);
        }
}

/* The softmax's mean position within five pixels of the maximum at pixel `where`; clip pixels. In FP64 from
 * the features on: a peak is a difference of exponents of some ten, which shows the rounding of FP32, and the
 * refinements multiply it. */
static void soft_argmax(const struct tt_cost *cost, const float *const features[TT_LEVELS],
                        const float *support, int where, struct tt_estimate *result)
{
    int px = where % HIGH, py = where / HIGH, left = px - TT_COST_RADIUS, top = py - TT_COST_RADIUS;
    double window[2][WINDOW][WINDOW], heat[WINDOW][WINDOW], weights = 0, sum_x = 0, sum_y = 0;

    window_costs(features, support, left, top, window);
    for (int y = 1; y < WINDOW - 1; y++)
        for (int x = 1; x < WINDOW - 1; x++) {
            heat[y][x] = 0;
            for (int k = 0; k < 9; k++)
                heat[y][x] += (double)cost->conv[0][k] * window[0][y + k / 3 - 1][x + k % 3 - 1] +
                              (double)cost->conv[1][k] * window[1][y + k / 3 - 1][x + k % 3 - 1];
        }
    for (int y = 1; y < WINDOW - 1; y++)
        for (int x = 1; x < WINDOW - 1; x++) {
            int hx = left + x, hy = top + y, distance = (hx - px) * (hx - px) + (hy - py) * (hy - py);
            double weight;

            if (hx < 0 || hy < 0 || hx >= HIGH || hy >= HIGH || distance >= TT_COST_RADIUS * TT_COST_RADIUS)
                continue;
            weight =
                exp((double)TT_SOFTMAX_TEMPERATURE * (heat[y][x] - heat[TT_COST_RADIUS][TT_COST_RADIUS]));
            weights += weight;
            sum_x += weight * (hx + 0.5);
            sum_y += weight * (hy + 0.5);
        }
    result->x = (float)(sum_x / weights * TT_CLIP_SIZE / HIGH);
    result->y = (float)(sum_y / weights * TT_CLIP_SIZE / HIGH);
}

/* Sixteen query points from their costs, [pixel][ld] each. */
static void locate(const struct tt_cost *cost, const float *const features[TT_LEVELS], int queries,
                   const float *supports, const float *low, const float *high, int ld, float *up, float *heat,
                   struct tt_estimate *result, size_t stride)
{
    float figures[6][TT_LANES]; /* mean, largest, smallest; lowres and hires of each */
    int32_t where[TT_LANES];

    upsample(low, ld, up);
    measure(up, TT_LANES, figures[0], figures[2], figures[4]);
    measure(high, ld, figures[1], figures[3], figures[5]);
    convolve(cost, up, high, ld, heat, where);
    for (int q = 0; q < queries; q++) {
        struct tt_estimate *e = &result[(size_t)q * stride];
        float logit[2];

        for (int o = 0; o < 2; o++) {
            logit[o] = cost->occlusion_bias[o];
            for (int i = 0; i < 6; i++)
                logit[o] += cost->occlusion[o][i] * figures[i][q];
        }
        soft_argmax(cost, features, supports + (size_t)q * TT_SUPPORT_FLOATS, where[q], e);
        e->occlusion = logit[0];
        e->expected_dist = logit[1];
    }
}

/* Queries' own features of one level as columns: [C][tile], zeros behind the last query. */
static void gather(const float *supports, int queries, int tile, int offset, int channels, float *columns)
{
    memset(columns, 0, (size_t)(channels * tile) * sizeof *columns);
    for (int q = 0; q < queries; q++)
        for (int c = 0; c < channels; c++)
            columns[c * tile + q] =
                supports[(size_t)q * TT_SUPPORT_FLOATS + (size_t)(offset + CENTRE * channels + c)];
}

void tt_cost_run(const struct tt_cost *cost, const float *const features[TT_LEVELS], int tile, int queries,
                 const float *supports, struct tt_estimate *result, size_t stride, struct tt_scratch scratch)
{
    float *columns = tt_scratch_take(&scratch, (size_t)(LOW_CHANNELS * tile));
    float *low = tt_scratch_take(&scratch, (size_t)(LOW * LOW * tile));
    float *high = tt_scratch_take(&scratch, (size_t)(HIGH * HIGH * tile));
    float *up = tt_scratch_take(&scratch, HIGH * HIGH * TT_LANES);
    float *heat = tt_scratch_take(&scratch, HIGH * HIGH * TT_LANES);

    gather(supports, queries, tile, TT_SUPPORT_AREA * HIGH_CHANNELS, LOW_CHANNELS, columns);
    tt_gemm(LOW * LOW, tile, LOW_CHANNELS, features[TT_LOWRES], LOW_CHANNELS, columns, tile, 0.0f, low, tile);
    gather(supports, queries, tile, 0, HIGH_CHANNELS, columns);
    tt_gemm(HIGH * HIGH, tile, HIGH_CHANNELS, features[TT_HIRES], HIGH_CHANNELS, columns, tile, 0.0f, high,
            tile);
    for (int q = 0; q < queries; q += TT_LANES)
        locate(cost, features, queries - q < TT_LANES ? queries - q : TT_LANES,
               supports + (size_t)q * TT_SUPPORT_FLOATS, low + q, high + q, tile, up, heat,
               result + (size_t)q * stride, stride);
}

void tt_cost_load(struct tt_cost *cost, struct tt_store *store)
{
    const float *conv = tt_store_weight(store, "cost_conv.weight"); /* [3][3][2][1] */
    const float *conv_bias = tt_store_weight(store, "cost_conv.bias");
    const float *linear = tt_store_weight(store, "occ_linear.weight"); /* [6][2] */
    const float *linear_bias = tt_store_weight(store, "occ_linear.bias");

    if (store->status)
        return;
    for (int k = 0; k < 9; k++)
        for (int map = 0; map < 2; map++)
            cost->conv[map][k] = conv[2 * k + map];
    cost->conv_bias = *conv_bias;
    for (int o = 0; o < 2; o++) {
        for (int i = 0; i < 6; i++)
            cost->occlusion[o][i] = linear[2 * i + o];
        cost->occlusion_bias[o] = linear_bias[o];
    }
}

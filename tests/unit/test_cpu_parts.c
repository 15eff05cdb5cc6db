/* tests/unit/test_cpu_parts.c: the CPU backend's parts against plain loops in FP64. */
#include "core/cpu/cpu.h"
#include "core/cpu/pool.h"
#include "core/cpu/sizes.h"
#include "core/cpu/vec.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

static uint64_t random_state = 1;

static float uniform(void)
{
    random_state = random_state * UINT64_C(6364136223846793005) + 1442695040888963407;
    return (float)(random_state >> 40) / 8388608.0f - 1.0f;
}

static float *random_floats(size_t count, float scale)
{
    float *floats = tt_floats(count);

    assert_non_null(floats);
    for (size_t i = 0; i < count; i++)
        floats[i] = uniform() * scale;
    return floats;
}

/* ‖a−b‖/‖b‖ */
static double distance(const float *a, const double *b, size_t count)
{
    double difference = 0, length = 0;

    for (size_t i = 0; i < count; i++) {
        difference += (a[i] - b[i]) * (a[i] - b[i]);
        length += b[i] * b[i];
    }
    return sqrt(difference / length);
}

static void exp_and_erf_are_exact_enough(void **state)
{
    double worst_exp = 0, worst_erf = 0;

    (void)state;
    for (float x = -86.9f; x < 87.9f; x += 0.0137f) {
        float lane[TT_LANES];

        tt_store(lane, tt_exp(tt_splat(x)));
        worst_exp = fmax(worst_exp, fabs(lane[5] / exp((double)x) - 1));
    }
    for (float x = -6; x < 6; x += 0.00037f) {
        float lane[TT_LANES];

        tt_store(lane, tt_erf(tt_splat(x)));
        worst_erf = fmax(worst_erf, fabs(lane[5] - erf((double)x)));
    }
    assert_true(worst_exp < 2e-7);
    assert_true(worst_erf < 2e-7);
    {
        static const float odd[TT_LANES] = {-INFINITY, INFINITY, -1e30f, 1e30f, 0, -0.0f,
                                            1,         -1,       4,      -4,    5, -5};
        float lane[TT_LANES];

        tt_store(lane, tt_erf(tt_load(odd)));
        for (int i = 0; i < TT_LANES; i++)
            assert_true(fabs(lane[i] - erf((double)odd[i])) < 2e-7);
        tt_store(lane, tt_exp(tt_load(odd)));
        assert_true(lane[0] > 0 && lane[0] < 1e-37f && lane[1] > 1e38f && isfinite(lane[1]) && lane[4] == 1);
    }
}

struct tally {
    _Atomic int done[1000];
    _Atomic int holds[8]; /* of each worker: jobs it is in */
    _Atomic int clashes;
};

static void count_job(void *context, int number, int worker)
{
    struct tally *tally = context;

    if (tally->holds[worker]++)
        tally->clashes++;
    tally->done[number]++;
    tally->holds[worker]--;
}

static void pool_does_every_job_once(void **state)
{
    (void)state;
    for (int threads = 1; threads <= 4; threads++) {
        struct tt_pool *pool;
        struct tt_error err;

        assert_int_equal(tt_pool_create(&pool, threads, &err), TT_OK);
        for (int jobs = 0; jobs < 1000; jobs = jobs * 2 + 1) {
            struct tally *tally = calloc(1, sizeof *tally);

            tt_pool_run(pool, jobs, count_job, tally);
            assert_int_equal(tally->clashes, 0);
            for (int i = 0; i < 1000; i++)
                assert_int_equal(tally->done[i], i < jobs);
            free(tally);
        }
        tt_pool_destroy(pool);
    }
}

static double held(double v)
{
    return v > 0 ? v : 0;
}

/* relu(norm(in)) at a pixel, 0 outside. */
static double normed(const struct tt_map *in, const struct tt_channel_norm *norm, int y, int x, int c)
{
    if (y < 0 || x < 0 || y >= in->size || x >= in->size)
        return 0;
    return held((double)in->data[(y * in->size + x) * in->channels + c] * norm->scale[c] + norm->shift[c]);
}

static void check_conv(int in_channels, int out_channels, int stride, int size, int project, int add)
{
    int out_size = size / stride, pad = stride == 1, pixels = out_size * out_size;
    struct tt_store store = {0};
    struct tt_channel_norm norm;
    struct tt_moments moments;
    struct tt_conv3 conv;
    size_t weights = (size_t)(9 * in_channels * out_channels), outs = (size_t)(pixels * out_channels);
    struct tt_map in = {random_floats((size_t)(size * size * in_channels), 2), size, in_channels};
    struct tt_map out = {random_floats(outs, 1), out_size, out_channels},
                  shortcut = {random_floats(outs, 1), 0, 0};
    float *weight = tt_store_floats(&store, weights), *plain = random_floats(weights, 0.1f);
    float *projection = random_floats((size_t)(in_channels * out_channels), 0.1f);
    size_t floats = tt_conv3_scratch(in_channels, out_channels, stride, size);
    float *memory = tt_floats(floats);
    double *expected = calloc(outs, sizeof *expected), *projected = calloc(outs, sizeof *projected);

    for (int c = 0; c < in_channels; c++) {
        norm.scale[c] = 1 + 0.3f * uniform();
        norm.shift[c] = uniform();
    }
    for (size_t i = 0; add && i < outs; i++)
        expected[i] = out.data[i];
    for (int y = 0; y < out_size; y++)
        for (int x = 0; x < out_size; x++)
            for (int o = 0; o < out_channels; o++) {
                size_t at = (size_t)((y * out_size + x) * out_channels + o);

                for (int c = 0; c < in_channels; c++) {
                    for (int k = 0; k < 9; k++)
                        expected[at] +=
                            normed(&in, &norm, y * stride + k / 3 - pad, x * stride + k % 3 - pad, c) *
                            plain[(k * in_channels + c) * out_channels + o];
                    projected[at] +=
                        normed(&in, &norm, y * stride, x * stride, c) * projection[c * out_channels + o];
                }
            }
    memcpy(weight, plain, weights * sizeof *weight);
    tt_conv3_load(&conv, &store, in_channels, out_channels, stride, weight);
    assert_int_equal(store.status, TT_OK);
    tt_conv3_run(&conv, project ? projection : NULL, &in, &norm, &out, add, &shortcut, &moments,
                 (struct tt_scratch){memory, floats});
    assert_true(distance(out.data, expected, outs) < 5e-6);
    if (project)
        assert_true(distance(shortcut.data, projected, outs) < 1e-6);
    for (int o = 0; o < out_channels; o++) {
        double mean = 0, square = 0;

        for (int p = 0; p < pixels; p++)
            mean += out.data[p * out_channels + o] / (double)pixels;
        for (int p = 0; p < pixels; p++)
            square += pow(out.data[p * out_channels + o] - mean, 2);
        assert_true(fabs(moments.mean[o] - mean) < 5e-6 * sqrt(square / pixels));
        assert_true(fabs(moments.square[o] / square - 1) < 1e-5);
    }
    free(in.data);
    free(out.data);
    free(shortcut.data);
    free(plain);
    free(projection);
    free(memory);
    free(expected);
    free(projected);
    tt_store_free(&store);
}

static void convolves(void **state)
{
    (void)state;
    check_conv(16, 32, 1, 32, 1, 0);
    check_conv(32, 16, 1, 64, 0, 1);
    check_conv(16, 16, 1, 128, 0, 0);
    check_conv(16, 32, 2, 64, 1, 0);
    check_conv(32, 16, 2, 128, 0, 0);
}

/* A mean far from zero must not eat the variance. */
static void norms_survive_a_large_mean(void **state)
{
    static const float ones[16] = {1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1}, zeros[16];
    struct tt_affine affine = {ones, zeros};
    struct tt_moments moments = {.pixels = 0};
    struct tt_channel_norm norm;
    float *rows = random_floats(16 * 4096, 1e-2f);
    double square = 0, mean = 0;

    (void)state;
    for (int i = 0; i < 16 * 4096; i++)
        rows[i] += 100.0f;
    for (int p = 0; p < 4096; p++)
        mean += rows[16 * p + 3] / 4096.0;
    for (int p = 0; p < 4096; p++)
        square += pow(rows[16 * p + 3] - mean, 2);
    for (int strip = 0; strip < 8; strip++)
        tt_moments_add(&moments, rows + strip * 512 * 16, 512, 16);
    tt_moments_norm(&moments, &affine, 16, &norm);
    assert_true(fabs(norm.scale[3] * sqrt(square / 4096 + 1e-5) - 1) < 1e-3);
    free(rows);
}

/* One map's costs, upsampled where it is the lowres one. */
static void cost_map(const float *map, int size, const float *query, int channels, double *high)
{
    double *low = calloc((size_t)(size * size), sizeof *low);

    for (int p = 0; p < size * size; p++)
        for (int c = 0; c < channels; c++)
            low[p] += (double)map[p * channels + c] * query[c];
    for (int y = 0; y < 64; y++)
        for (int x = 0; x < 64; x++) {
            double sy = fmax((y + 0.5) * size / 64 - 0.5, 0), sx = fmax((x + 0.5) * size / 64 - 0.5, 0);
            int y0 = (int)sy, x0 = (int)sx, y1 = y0 + (y0 < size - 1), x1 = x0 + (x0 < size - 1);
            double fy = sy - y0, fx = sx - x0;

            high[y * 64 + x] = (1 - fy) * ((1 - fx) * low[y0 * size + x0] + fx * low[y0 * size + x1]) +
                               fy * ((1 - fx) * low[y1 * size + x0] + fx * low[y1 * size + x1]);
        }
    free(low);
}

/* As docs/MODEL.md has it, with the whole softmax. */
static struct tt_estimate plain_cost(const struct tt_cost *cost, const double map[2][4096])
{
    double *heat = calloc(4096, sizeof *heat), figures[6] = {0}, all = 0, w = 0, wx = 0, wy = 0, logit[2];
    int best = 0;

    for (int m = 0; m < 2; m++) {
        figures[2 + m] = figures[4 + m] = map[m][0];
        for (int p = 0; p < 4096; p++) {
            figures[m] += map[m][p] / 4096;
            figures[2 + m] = fmax(figures[2 + m], map[m][p]);
            figures[4 + m] = fmin(figures[4 + m], map[m][p]);
            for (int k = 0; k < 9; k++) {
                int y = p / 64 + k / 3 - 1, x = p % 64 + k % 3 - 1;

                if (y >= 0 && x >= 0 && y < 64 && x < 64)
                    heat[p] += cost->conv[m][k] * map[m][y * 64 + x];
            }
        }
    }
    for (int p = 0; p < 4096; p++)
        best = heat[p] > heat[best] ? p : best;
    for (int p = 0; p < 4096; p++)
        all += exp(20 * (heat[p] - heat[best]));
    for (int p = 0; p < 4096; p++)
        if (pow(p % 64 - best % 64, 2) + pow(p / 64 - best / 64, 2) < 25) {
            double share = exp(20 * (heat[p] - heat[best])) / all;

            w += share;
            wx += share * (p % 64 + 0.5);
            wy += share * (p / 64 + 0.5);
        }
    for (int o = 0; o < 2; o++) {
        logit[o] = cost->occlusion_bias[o];
        for (int i = 0; i < 6; i++)
            logit[o] += cost->occlusion[o][i] * figures[i];
    }
    free(heat);
    return (struct tt_estimate){(float)(wx / fmax(w, 1e-12) * 4), (float)(wy / fmax(w, 1e-12) * 4),
                                (float)logit[0], (float)logit[1]};
}

static void finds_the_cost_volumes_maximum(void **state)
{
    enum { QUERIES = 19 };
    static const int sizes[] = {[TT_HIRES] = 64 * 64 * 128, [TT_LOWRES] = 32 * 32 * 256};
    float *high = random_floats((size_t)sizes[TT_HIRES], 0.1f),
          *low = random_floats((size_t)sizes[TT_LOWRES], 0.1f);
    float *supports = random_floats((size_t)QUERIES * TT_SUPPORT_FLOATS, 0.1f);
    const float *features[TT_LEVELS] = {[TT_HIRES] = high, [TT_LOWRES] = low};
    size_t floats = tt_cost_scratch(32);
    float *memory = tt_floats(floats);
    double(*maps)[4096] = malloc(2 * sizeof *maps);
    struct tt_estimate result[QUERIES * 2];
    struct tt_cost cost;

    (void)state;
    for (int k = 0; k < 9; k++) {
        cost.conv[0][k] = uniform() + 1;
        cost.conv[1][k] = uniform() + 1;
    }
    for (int i = 0; i < 12; i++)
        cost.occlusion[i / 6][i % 6] = uniform();
    cost.conv_bias = 0.5f; /* adds the same everywhere */
    cost.occlusion_bias[0] = 0.1f;
    cost.occlusion_bias[1] = -0.2f;
    for (int q = 0; q < 4; q++) { /* look like what is in the four corners */
        int y = q / 2 * 63, x = q % 2 * 63;

        memcpy(supports + q * TT_SUPPORT_FLOATS + 24 * 128, high + (y * 64 + x) * 128, 128 * sizeof *high);
        memcpy(supports + q * TT_SUPPORT_FLOATS + 49 * 128 + 24 * 256, low + (y / 2 * 32 + x / 2) * 256,
               256 * sizeof *low);
    }
    tt_cost_run(&cost, features, 32, QUERIES, supports, result, 2, (struct tt_scratch){memory, floats});
    for (int q = 0; q < QUERIES; q++) {
        struct tt_estimate *ours = &result[2 * q], plain;

        cost_map(low, 32, supports + q * TT_SUPPORT_FLOATS + 49 * 128 + 24 * 256, 256, maps[0]);
        cost_map(high, 64, supports + q * TT_SUPPORT_FLOATS + 24 * 128, 128, maps[1]);
        plain = plain_cost(&cost, (const double(*)[4096])maps);
        assert_true(fabsf(ours->x - plain.x) < 1e-3f && fabsf(ours->y - plain.y) < 1e-3f);
        assert_true(fabsf(ours->occlusion - plain.occlusion) < 1e-5f);
        assert_true(fabsf(ours->expected_dist - plain.expected_dist) < 1e-5f);
        if (q < 4)
            assert_true(fabsf(ours->x - (q % 2 ? 254.0f : 2.0f)) < 8 &&
                        fabsf(ours->y - (q / 2 ? 254.0f : 2.0f)) < 8);
    }
    free(high);
    free(low);
    free(supports);
    free(memory);
    free(maps);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(exp_and_erf_are_exact_enough),
        cmocka_unit_test(pool_does_every_job_once),
        cmocka_unit_test(convolves),
        cmocka_unit_test(norms_survive_a_large_mean),
        cmocka_unit_test(finds_the_cost_volumes_maximum),
    };
    return cmocka_run_group_tests_name("cpu parts", tests, NULL, NULL);
}

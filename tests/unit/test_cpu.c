/* tests/unit/test_cpu.c: what a query point's result may depend on, and what not: threads, tiles, other query
 * points, reused features; how the initialisation is given; what is refused. Short clips and weights from the
 * formula. */
#include "core/backend.h"
#include "core/cpu/cpu.h"
#include "core/formula.h"

#include <jansson.h>
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

enum { FRAMES = 4, QUERIES = 5 };

static const struct tt_backend_ops *const ops = &tt_backend_cpu;
static const int query_frame[QUERIES] = {0, 2, 3, 0, 1};
static const float query_xy[2 * QUERIES] = {30.5f, 40.25f, 128, 128, 250.75f, 3, 0, 256, 77, 199.5f};

static struct tt_weights *weights;
static void *weight_file;
static uint8_t *video; /* 2·FRAMES frames */

static int set_up(void **state)
{
    struct tt_error err;
    size_t size;

    (void)state;
    weight_file = tt_formula_weights(&tt_model_small, 3, &size);
    video = malloc((size_t)2 * FRAMES * TT_FRAME_BYTES);
    for (int f = 0; f < 2 * FRAMES; f++)
        for (int y = 0; y < 256; y++)
            for (int x = 0; x < 256; x++)
                for (int c = 0; c < 3; c++)
                    video[((f * 256 + y) * 256 + x) * 3 + c] =
                        (uint8_t)(128 + 50 * sin((x - 2 * f) * 0.11 + c) +
                                  40 * cos((y + f) * 0.07 * (c + 1)) + (x * 7 + y * 13 + x * y / 16) % 31);
    return tt_weights_from_memory(&weights, "formula", weight_file, size, &err) ? -1 : 0;
}

static int tear_down(void **state)
{
    (void)state;
    tt_weights_close(weights);
    free(weight_file);
    free(video);
    return 0;
}

static struct tt_backend *open_with(int threads, int tile_queries, int tile_frames)
{
    struct tt_backend_options options = {.threads = threads, .tile = {tile_queries, tile_frames}};
    struct tt_backend *backend = NULL;
    struct tt_error err;

    if (ops->open(&backend, &options, weights, &err))
        fail_msg("%s", err.text);
    return backend;
}

static void hold(struct tt_backend *backend, int first, int frames, int reuse)
{
    struct tt_clip clip = {
        .rgb = video + (size_t)first * TT_FRAME_BYTES, .frames = frames, .first_frame = first};
    struct tt_error err;

    if (ops->features(backend, &clip, reuse, &err))
        fail_msg("%s", err.text);
}

/* Supports of the query points and their tracks through the held clip; the caller frees the tracks. */
static struct tt_estimate *track(struct tt_backend *backend, int queries, const int *frame, const float *xy,
                                 const struct tt_estimate *init, struct tt_estimate *stages, int frames)
{
    float *supports = malloc((size_t)queries * ops->support_bytes);
    struct tt_estimate *result = malloc((size_t)(queries * frames) * sizeof *result);
    struct tt_track_request request = {queries, supports, frame, xy, init, stages};
    struct tt_error err;

    if (ops->sample(backend, queries, frame, xy, supports, &err) ||
        ops->track(backend, &request, result, &err))
        fail_msg("%s", err.text);
    free(supports);
    return result;
}

static void same_bits_for_any_threads(void **state)
{
    struct tt_estimate *first = NULL;

    (void)state;
    for (int threads = 1; threads <= 3; threads++) {
        struct tt_backend *backend = open_with(threads, 0, 0);
        struct tt_estimate *result;

        hold(backend, 0, FRAMES, 0);
        result = track(backend, QUERIES, query_frame, query_xy, NULL, NULL, FRAMES);
        if (first)
            assert_memory_equal(result, first, QUERIES * FRAMES * sizeof *result);
        else
            first = result;
        if (result != first)
            free(result);
        ops->close(backend);
    }
    for (int i = 0; i < QUERIES * FRAMES; i++)
        assert_true(isfinite(first[i].x) && isfinite(first[i].occlusion));
    free(first);
}

static void same_bits_whoever_else_is_tracked(void **state)
{
    struct tt_backend *backend = open_with(2, 0, 0);
    struct tt_estimate *all, *crowd;
    int frames[40];
    float xy[80];

    (void)state;
    hold(backend, 0, FRAMES, 0);
    all = track(backend, QUERIES, query_frame, query_xy, NULL, NULL, FRAMES);
    for (int q = 0; q < QUERIES; q++) {
        struct tt_estimate *alone = track(backend, 1, query_frame + q, query_xy + 2 * q, NULL, NULL, FRAMES);

        assert_memory_equal(alone, all + q * FRAMES, FRAMES * sizeof *alone);
        free(alone);
    }
    for (int i = 0; i < 40; i++) { /* the same ones in other places of several tiles */
        int q = (i * 3 + 1) % QUERIES;

        frames[i] = query_frame[q];
        memcpy(xy + 2 * i, query_xy + 2 * q, 2 * sizeof *xy);
    }
    crowd = track(backend, 40, frames, xy, NULL, NULL, FRAMES);
    for (int i = 0; i < 40; i++)
        assert_memory_equal(crowd + i * FRAMES, all + (i * 3 + 1) % QUERIES * FRAMES, FRAMES * sizeof *crowd);
    free(crowd);
    free(all);
    ops->close(backend);
}

static void same_tracks_for_any_tile(void **state)
{
    static const struct tt_tile tiles[] = {{16, 1}, {48, 3}, {32, 4}};
    struct tt_estimate *first = NULL;

    (void)state;
    for (size_t i = 0; i < sizeof tiles / sizeof tiles[0]; i++) {
        struct tt_backend *backend = open_with(2, tiles[i].queries, tiles[i].frames);
        struct tt_estimate *result;

        assert_int_equal(ops->plan(backend)->tile.queries, tiles[i].queries);
        assert_int_equal(ops->plan(backend)->tile.frames, tiles[i].frames);
        hold(backend, 0, FRAMES, 0);
        result = track(backend, QUERIES, query_frame, query_xy, NULL, NULL, FRAMES);
        if (!first)
            first = result;
        for (int k = 0; k < QUERIES * FRAMES; k++) {
            assert_true(fabsf(result[k].x - first[k].x) <= 0.005f &&
                        fabsf(result[k].y - first[k].y) <= 0.005f);
            assert_true(fabsf(result[k].occlusion - first[k].occlusion) <= 0.005f);
        }
        if (result != first)
            free(result);
        ops->close(backend);
    }
    free(first);
}

static void reused_features_are_the_same(void **state)
{
    struct tt_backend *fresh = open_with(2, 0, 0), *reusing = open_with(2, 0, 0);

    (void)state;
    hold(reusing, 0, FRAMES, 0);
    for (int first = 2; first <= 4; first += 2) { /* two steps, so that slots come out of order */
        hold(reusing, first, FRAMES, 2);
        hold(fresh, first, FRAMES, 0);
        for (int f = 0; f < FRAMES; f++)
            for (int level = 0; level < TT_LEVELS; level++) {
                const struct tt_level_shape *shape = &tt_level_shapes[level];

                assert_memory_equal(tt_cpu_features(reusing, f, level), tt_cpu_features(fresh, f, level),
                                    (size_t)(shape->size * shape->size * shape->channels) * sizeof(float));
            }
    }
    hold(reusing, 5, 3, 3); /* all frames reused */
    assert_memory_equal(tt_cpu_features(reusing, 0, TT_LOWRES), tt_cpu_features(fresh, 1, TT_LOWRES), 4096);
    ops->close(fresh);
    ops->close(reusing);
}

static void takes_the_initialisation_it_is_given(void **state)
{
    struct tt_backend *backend = open_with(2, 0, 0);
    struct tt_estimate init[QUERIES * FRAMES], stages[(1 + TT_REFINEMENTS) * QUERIES * FRAMES], *plain,
        *other;
    static const int elsewhere[QUERIES] = {-1, -1, -1, -1, -1};

    (void)state;
    hold(backend, 0, FRAMES, 0);
    for (int i = 0; i < QUERIES * FRAMES; i++)
        init[i] = (struct tt_estimate){NAN, NAN, NAN, NAN};
    plain = track(backend, QUERIES, query_frame, query_xy, NULL, NULL, FRAMES);
    other = track(backend, QUERIES, query_frame, query_xy, init, stages, FRAMES);
    assert_memory_equal(other, plain, QUERIES * FRAMES * sizeof *plain); /* NaN: nothing is known better */
    assert_memory_equal(other, stages + TT_REFINEMENTS * QUERIES * FRAMES, QUERIES * FRAMES * sizeof *plain);
    for (int q = 0; q < QUERIES; q++) {
        assert_true(stages[q * FRAMES + query_frame[q]].x == query_xy[2 * q]);
        assert_true(stages[q * FRAMES + query_frame[q]].y == query_xy[2 * q + 1]);
    }
    free(other);

    for (int i = 0; i < QUERIES * FRAMES; i += 2)
        init[i] = (struct tt_estimate){(float)(i * 8), 256.0f - (float)i, 0.5f, -0.5f};
    other = track(backend, QUERIES, query_frame, query_xy, init, stages, FRAMES);
    for (int i = 0; i < QUERIES * FRAMES; i++) {
        int own = query_frame[i / FRAMES] == i % FRAMES;

        if (i % 2 == 0 && !own)
            assert_memory_equal(&stages[i], &init[i], sizeof init[i]);
        else if (own)
            assert_true(stages[i].x == query_xy[2 * (i / FRAMES)]);
    }
    free(other);
    free(plain);

    /* a query of another clip has no frame here: nothing is pinned */
    {
        float *supports = malloc(QUERIES * ops->support_bytes);
        struct tt_track_request request = {QUERIES, supports, elsewhere, query_xy, NULL, stages};
        struct tt_estimate result[QUERIES * FRAMES];
        struct tt_error err;

        assert_int_equal(ops->sample(backend, QUERIES, query_frame, query_xy, supports, &err), TT_OK);
        assert_int_equal(ops->track(backend, &request, result, &err), TT_OK);
        for (int q = 0; q < QUERIES; q++)
            assert_true(stages[q * FRAMES + query_frame[q]].x != query_xy[2 * q]);
        /* and sample leaves its supports as they are */
        memset(supports, 0x55, ops->support_bytes);
        assert_int_equal(ops->sample(backend, 1, elsewhere, query_xy, supports, &err), TT_OK);
        assert_int_equal(((uint8_t *)supports)[100], 0x55);
        free(supports);
    }
    ops->close(backend);
}

static void tracks_far_outside_the_frame(void **state)
{
    struct tt_backend *backend = open_with(2, 0, 0);
    struct tt_estimate init[FRAMES], *result;

    (void)state;
    hold(backend, 0, FRAMES, 0);
    for (int f = 0; f < FRAMES; f++)
        init[f] = (struct tt_estimate){f % 2 ? 1e30f : -1e9f, f < 2 ? 1e12f : -5000.0f, 0, 0};
    result = track(backend, 1, query_frame, query_xy, init, NULL, FRAMES);
    for (int f = 0; f < FRAMES; f++)
        assert_true(isfinite(result[f].occlusion));
    free(result);
    ops->close(backend);
}

static void works_on_one_frame(void **state)
{
    struct tt_backend *backend = open_with(2, 0, 0);
    struct tt_estimate *result;

    (void)state;
    hold(backend, 2, 1, 0);
    result = track(backend, 1, query_frame, query_xy, NULL, NULL, 1);
    assert_true(isfinite(result[0].x) && isfinite(result[0].y));
    free(result);
    ops->close(backend);
}

static void stops_when_asked(void **state)
{
    atomic_bool stop = false;
    struct tt_backend_options options = {.threads = 2, .stop = &stop};
    struct tt_backend *backend;
    struct tt_clip clip = {.rgb = video, .frames = FRAMES};
    struct tt_estimate result = {1, 2, 3, 4};
    float *supports = calloc(1, ops->support_bytes);
    struct tt_track_request request = {1, supports, query_frame, query_xy, NULL, NULL};
    struct tt_error err;

    (void)state;
    assert_int_equal(ops->open(&backend, &options, weights, &err), TT_OK);
    assert_int_equal(ops->features(backend, &clip, 0, &err), TT_OK);
    stop = true;
    assert_int_equal(ops->track(backend, &request, &result, &err), TT_INTERRUPTED);
    assert_true(result.x == 1 && result.expected_dist == 4);
    assert_int_equal(ops->features(backend, &clip, 0, &err), TT_INTERRUPTED);
    stop = false;
    assert_int_equal(ops->track(backend, &request, &result, &err), TT_REFUSE); /* no clip is held any more */
    free(supports);
    ops->close(backend);
}

static void refuses_what_makes_no_sense(void **state)
{
    struct tt_backend_options half = {.precision = TT_FP16};
    struct tt_backend *backend = NULL;
    struct tt_clip clip = {.rgb = video, .frames = 0};
    float *supports = calloc(1, ops->support_bytes), nowhere[2] = {NAN, 3};
    int beyond = FRAMES;
    struct tt_error err;

    (void)state;
    assert_int_equal(ops->open(&backend, &half, weights, &err), TT_REFUSE);
    assert_null(backend);
    backend = open_with(1, 0, 0);
    assert_int_equal(ops->features(backend, &clip, 0, &err), TT_REFUSE);
    clip.frames = TT_CLIP_FRAMES + 1;
    assert_int_equal(ops->features(backend, &clip, 0, &err), TT_REFUSE);
    clip.frames = 2;
    assert_int_equal(ops->features(backend, &clip, 1, &err), TT_REFUSE); /* nothing is held to reuse */
    hold(backend, 0, 2, 0);
    beyond = 2;
    assert_int_equal(ops->sample(backend, 1, &beyond, query_xy, supports, &err), TT_REFUSE);
    assert_int_equal(ops->sample(backend, 1, query_frame, nowhere, supports, &err), TT_REFUSE);
    free(supports);
    ops->close(backend);
}

static void describes_itself(void **state)
{
    struct tt_backend *backend = open_with(3, 0, 0);
    json_t *json = json_loads(ops->describe(backend), 0, NULL);

    (void)state;
    assert_non_null(json);
    assert_string_equal(json_string_value(json_object_get(json, "backend")), "cpu");
    assert_int_equal(json_integer_value(json_object_get(json, "threads")), 3);
    json_decref(json);
    ops->close(backend);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(same_bits_for_any_threads),
        cmocka_unit_test(same_bits_whoever_else_is_tracked),
        cmocka_unit_test(same_tracks_for_any_tile),
        cmocka_unit_test(reused_features_are_the_same),
        cmocka_unit_test(takes_the_initialisation_it_is_given),
        cmocka_unit_test(tracks_far_outside_the_frame),
        cmocka_unit_test(works_on_one_frame),
        cmocka_unit_test(stops_when_asked),
        cmocka_unit_test(refuses_what_makes_no_sense),
        cmocka_unit_test(describes_itself),
    };
    return cmocka_run_group_tests_name("cpu", tests, set_up, tear_down);
}

/* tests/unit/test_calibration.c: the map of confidences is monotone, the identity where there is none,
 * refused where it is wrong, and changes nothing but the confidence. */
#include "core/calibration.h"
#include "core/formula.h"
#include "core/trackfile.h"
#include "core/weights.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

static double sigmoid(double x)
{
    return 1 / (1 + exp(-x));
}

static struct tt_calibration parsed(const char *text)
{
    struct tt_calibration map;
    struct tt_error err = {0};

    if (tt_calibration_parse(&map, text, "x", &err))
        fail_msg("%s: %s", text, err.text);
    return map;
}

static void without_a_map_nothing_changes(void **state)
{
    const struct tt_calibration none = {.knots = 0};

    (void)state;
    for (int i = 0; i <= 1000; i++) {
        float raw = (float)i / 1000;

        assert_true(tt_calibrate(NULL, raw) == raw);
        assert_true(tt_calibrate(&none, raw) == raw);
    }
}

static void is_linear_between_logits_and_parallel_beyond(void **state)
{
    struct tt_calibration map = parsed("[[-2,-3],[0,0.5],[4,1.5]]");

    (void)state;
    assert_float_equal(tt_calibrate(&map, sigmoid(-2)), sigmoid(-3), 1e-6);
    assert_float_equal(tt_calibrate(&map, sigmoid(-1)), sigmoid(-1.25), 1e-6);
    assert_float_equal(tt_calibrate(&map, sigmoid(0)), sigmoid(0.5), 1e-6);
    assert_float_equal(tt_calibrate(&map, sigmoid(1)), sigmoid(0.75), 1e-6);
    assert_float_equal(tt_calibrate(&map, sigmoid(4)), sigmoid(1.5), 1e-6);
    assert_float_equal(tt_calibrate(&map, sigmoid(6)), sigmoid(3.5), 1e-6);
    assert_float_equal(tt_calibrate(&map, sigmoid(-5)), sigmoid(-6), 1e-6);
}

static void is_monotone_from_0_to_1(void **state)
{
    struct tt_calibration map = parsed("[[-2,-3],[-1.5,-2.9],[0,0.5],[4,0.6]]");
    float before = -1;

    (void)state;
    for (int i = 0; i <= 10000; i++) {
        float now = tt_calibrate(&map, i / 10000.0);

        assert_true(now >= before && now >= 0 && now <= 1);
        before = now;
    }
    assert_true(tt_calibrate(&map, 0) < 1e-9f && tt_calibrate(&map, 1) > 0.999999f);
}

static void refuses_what_is_no_map(void **state)
{
    char many[2000] = "[";
    static const struct {
        const char *text, *because;
    } wrong[] = {{"", "not JSON"},
                 {"[[0,0],[1,NaN]]", "not JSON"},
                 {"[[0,0],[1,1e999]]", "not JSON"},
                 {"[[0,0],[1,1]", "not JSON"},
                 {"{}", "not a list of 2 to 64 pairs"},
                 {"[]", "not a list of 2 to 64 pairs"},
                 {"[[0,0]]", "not a list of 2 to 64 pairs"},
                 {"[[0,0],[1]]", "not a pair of numbers"},
                 {"[[0,0],[1,2,3]]", "not a pair of numbers"},
                 {"[[0,0],5]", "not a pair of numbers"},
                 {"[[0,0],[1,\"2\"]]", "not a pair of numbers"},
                 {"[[0,0],[1,null]]", "not a pair of numbers"},
                 {"[[0,0],[31,1]]", "beyond 30"},
                 {"[[0,-1e300],[1,1]]", "beyond 30"},
                 {"[[0,0],[1,0]]", "not monotone"},
                 {"[[0,0],[1,-0.5]]", "not monotone"},
                 {"[[1,0],[1,1]]", "not monotone"},
                 {"[[1,0],[0,1]]", "not monotone"}};

    (void)state;
    for (int i = 0; i < 65; i++)
        sprintf(many + strlen(many), "%s[%d,%d]", i ? "," : "", i - 33, i - 33);
    strcat(many, "]");
    for (size_t i = 0; i <= sizeof wrong / sizeof wrong[0]; i++) {
        int last = i == sizeof wrong / sizeof wrong[0];
        const char *text = last ? many : wrong[i].text, *because = last ? "2 to 64" : wrong[i].because;
        struct tt_calibration map = {.knots = 7};
        struct tt_error err = {0};

        assert_int_equal(tt_calibration_parse(&map, text, "a file", &err), TT_BAD_INPUT);
        assert_int_equal(map.knots, 7);
        if (!strstr(err.text, because) || strncmp(err.text, "a file: confidence_map: ", 24))
            fail_msg("%s: \"%s\" does not say \"%s\"", text, err.text, because);
    }
}

/* The formula's weights with an entry in their metadata. */
static enum tt_status open_with(struct tt_weights **weights, void **file, const char *entry,
                                struct tt_error *err)
{
    static const char before[] = "{\"__metadata__\":{\"format\":\"pt\",\"confidence_map\":";
    size_t size, length = 0, extra = strlen(before) + strlen(entry) + 1;
    uint8_t *plain = tt_formula_weights(&tt_model_small, 1, &size), *whole = malloc(size + extra);

    assert_true(plain && whole);
    for (int i = 0; i < 8; i++)
        length |= (size_t)plain[i] << (8 * i);
    for (int i = 0; i < 8; i++)
        whole[i] = (uint8_t)((length + extra) >> (8 * i));
    sprintf((char *)whole + 8, "%s%s}", before, entry);
    whole[8 + extra] = ',';
    memcpy(whole + 9 + extra, plain + 9, size - 9); /* behind the header's brace */
    free(plain);
    *file = whole;
    return tt_weights_from_memory(weights, "w.safetensors", whole, size + extra, err);
}

static void weight_files_carry_a_map(void **state)
{
    struct tt_weights *weights = NULL;
    struct tt_error err = {0};
    void *file;

    (void)state;
    if (open_with(&weights, &file, "\"[[-1, -1.5], [2, 1]]\"", &err))
        fail_msg("%s", err.text);
    assert_int_equal(tt_weights_calibration(weights)->knots, 2);
    assert_true(tt_weights_calibration(weights)->calibrated[0] == -1.5);
    tt_weights_close(weights);
    free(file);
    assert_int_equal(open_with(&weights, &file, "\"[[-1, -1.5], [2, -9]]\"", &err), TT_BAD_INPUT);
    assert_non_null(strstr(err.text, "w.safetensors: confidence_map: not monotone"));
    free(file);
    assert_int_equal(open_with(&weights, &file, "[[-1, -1.5], [2, 1]]", &err), TT_BAD_INPUT);
    assert_non_null(strstr(err.text, "confidence_map: not a text"));
    free(file);
}

enum { FRAMES = 41 };

static enum tt_status rows(void *user, int first_query, int queries, int64_t first_frame, int frames,
                           struct tt_estimate *out, struct tt_error *err)
{
    (void)user;
    (void)first_query;
    (void)queries;
    (void)err;
    for (int t = 0; t < frames; t++) /* from surely seen to surely hidden */
        out[t] = (struct tt_estimate){1, 2, ((float)(first_frame + t) - 20) / 4, -3};
    return TT_OK;
}

static void only_the_confidence_changes(void **state)
{
    struct tt_calibration map = parsed("[[-1,-3],[1,-1]]");
    struct tt_query point = {.x = 1, .y = 2};
    struct tt_queries queries = {.count = 1, .points = &point};
    struct tt_tracks tracks = {.source = {.rows = rows},
                               .queries = &queries,
                               .frames = FRAMES,
                               .width = 256,
                               .height = 256,
                               .occlusion_threshold = 0.5f};
    struct tt_track_point raw[FRAMES], calibrated[FRAMES];
    struct tt_error err = {0};
    int unlike = 0;

    (void)state;
    assert_int_equal(tt_tracks_points(&tracks, 0, 1, 0, FRAMES, raw, &err), TT_OK);
    tracks.calibration = &map;
    assert_int_equal(tt_tracks_points(&tracks, 0, 1, 0, FRAMES, calibrated, &err), TT_OK);
    for (int t = 0; t < FRAMES; t++) {
        double share = sigmoid(-(t - 20) / 4.0) * sigmoid(3);

        assert_true(raw[t].x == calibrated[t].x && raw[t].y == calibrated[t].y);
        assert_float_equal(raw[t].confidence, share, 1e-6);
        assert_int_equal(raw[t].occluded, 1.0f - (float)share > 0.5f);
        assert_int_equal(raw[t].occluded, calibrated[t].occluded);
        assert_float_equal(calibrated[t].confidence, sigmoid(log(share / (1 - share)) - 2), 1e-6);
        unlike += calibrated[t].occluded != (calibrated[t].confidence < 0.5f);
    }
    assert_true(unlike > 0); /* some are called visible with a confidence below a half */
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(without_a_map_nothing_changes),
        cmocka_unit_test(is_linear_between_logits_and_parallel_beyond),
        cmocka_unit_test(is_monotone_from_0_to_1),
        cmocka_unit_test(refuses_what_is_no_map),
        cmocka_unit_test(weight_files_carry_a_map),
        cmocka_unit_test(only_the_confidence_changes),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}

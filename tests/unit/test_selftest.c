/* tests/unit/test_selftest.c: the known answer is found again, and one wrong weight is noticed. */
#include "core/formula.h"
#include "core/selftest.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

static const struct tt_backend_options options = {.threads = 2};

static void finds_the_answer_of_our_weights(void **state)
{
    const char *source = getenv("TILETRACK_SOURCE");
    struct tt_selftest_report report;
    struct tt_weights *weights;
    struct tt_error err;
    char path[4096];

    (void)state;
    if (!source)
        skip();
    snprintf(path, sizeof path, "%s/models/tiletrack-small.safetensors", source);
    assert_int_equal(tt_weights_open(&weights, path, &err), TT_OK);
    if (tt_selftest_run(&tt_backend_cpu, &options, weights, &report, &err))
        fail_msg("%s", err.text);
    assert_true(report.weights_known);
    assert_true(report.position_px <= report.position_bound && report.logit <= report.logit_bound);
    tt_weights_close(weights);
}

static void tries_the_backend_where_weights_are_unknown(void **state)
{
    const struct tt_model_shape *const shapes[] = {&tt_model_small, &tt_model_base};

    (void)state;
    for (int i = 0; i < 2; i++) {
        struct tt_selftest_report report;
        struct tt_weights *weights;
        struct tt_error err;
        size_t size;
        void *file = tt_formula_weights(shapes[i], 99, &size);

        assert_int_equal(tt_weights_from_memory(&weights, "mine", file, size, &err), TT_OK);
        if (tt_selftest_run(&tt_backend_cpu, &options, weights, &report, &err))
            fail_msg("%s", err.text);
        assert_false(report.weights_known);
        tt_weights_close(weights);
        free(file);
    }
}

/* One element of one tensor changes by `step`; the file bears a known name. */
static void perturb(const char *tensor, int64_t element, float step)
{
    struct tt_selftest_report report;
    struct tt_weights *weights;
    struct tt_error err;
    size_t size;
    uint8_t *file = tt_formula_weights(&tt_model_small, 1, &size), *at;
    float value;

    assert_int_equal(tt_weights_from_memory(&weights, "formula small", file, size, &err), TT_OK);
    at = file + ((const uint8_t *)tt_weights_find(weights, tensor)->data - file) + 4 * element;
    memcpy(&value, at, sizeof value);
    value += step;
    memcpy(at, &value, sizeof value);
    tt_weights_close(weights);
    assert_int_equal(tt_weights_from_memory(&weights, "formula small", file, size, &err), TT_OK);
    if (tt_selftest_run(&tt_backend_cpu, &options, weights, &report, &err) != TT_REFUSE)
        fail_msg("%s[%d] + %g: %g px, %g", tensor, (int)element, (double)step, (double)report.position_px,
                 (double)report.logit);
    assert_true(report.weights_known);
    assert_true(report.position_px > report.position_bound || report.logit > report.logit_bound);
    tt_weights_close(weights);
    free(file);
}

/* Too little to show in any track, but these are not the known weights. */
static void notices_a_damaged_file(void **state)
{
    struct tt_selftest_report report;
    struct tt_weights *weights;
    struct tt_error err;
    size_t size;
    uint8_t *file = tt_formula_weights(&tt_model_small, 1, &size);

    (void)state;
    file[size - 4] ^= 1;
    assert_int_equal(tt_weights_from_memory(&weights, "formula small", file, size, &err), TT_OK);
    assert_int_equal(tt_selftest_run(&tt_backend_cpu, &options, weights, &report, &err), TT_REFUSE);
    assert_non_null(strstr(err.text, "SHA-256"));
    tt_weights_close(weights);
    free(file);
}

static void notices_one_wrong_weight(void **state)
{
    (void)state;
    perturb("resnet_torch.initial_conv.weight", 5000, 0.5f);
    perturb("resnet_torch.block_groups.3.blocks.1.conv_1.weight", 12345, 0.5f);
    perturb("cmdtop.0.conv.0.0.weight", 777, 0.5f);
    perturb("cmdtop.2.conv.1.1.bias", 100, 0.1f);
    perturb("torch_pips_mixer.transformer.layers.1.attn.key_proj.weight", 4242, 0.5f);
    perturb("torch_pips_mixer.output_proj.bias", 1, 0.001f);
    perturb("cost_conv.weight", 4, 0.1f);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(finds_the_answer_of_our_weights),
        cmocka_unit_test(tries_the_backend_where_weights_are_unknown),
        cmocka_unit_test(notices_one_wrong_weight),
        cmocka_unit_test(notices_a_damaged_file),
    };
    return cmocka_run_group_tests_name("self-test", tests, NULL, NULL);
}

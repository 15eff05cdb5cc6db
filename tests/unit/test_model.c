/* tests/unit/test_model.c: the network's tables agree with one another and with what is known of it. */
#include "core/model.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#include <cmocka.h>

struct count {
    int64_t parameters;
    int weights, stop_after;
};

static int add(void *context, const struct tt_weight_spec *spec)
{
    struct count *count = context;
    int64_t elements = 1;

    assert_true(spec->rank >= 1 && spec->rank <= 4);
    for (int d = 0; d < spec->rank; d++)
        elements *= spec->shape[d];
    assert_true(elements > 0);
    assert_true(strlen(spec->name) < sizeof spec->name - 1); /* nothing was cut */
    count->parameters += elements;
    count->weights++;
    return count->weights == count->stop_after ? 42 : 0;
}

static void counts_the_known_parameters(void **state)
{
    struct count small = {0}, base = {0}, stopped = {.stop_after = 3};

    (void)state;
    assert_int_equal(tt_model_each_weight(&tt_model_small, add, &small), 0);
    assert_int_equal(small.parameters, 8236133); /* as the public code counts them */
    assert_int_equal(tt_model_each_weight(&tt_model_base, add, &base), 0);
    assert_int_equal(base.parameters, 11519717);
    assert_int_equal(base.weights, small.weights + 3 * 4);
    assert_int_equal(tt_model_each_weight(&tt_model_small, add, &stopped), 42);
    assert_int_equal(stopped.weights, 3);
}

static void chains_convolutions(void **state)
{
    const struct tt_model_shape *const shapes[] = {&tt_model_small, &tt_model_base};

    (void)state;
    for (int i = 0; i < 2; i++) {
        int channels = TT_SUPPORT_AREA, size = TT_SUPPORT_SIZE;

        for (int c = 0; c < shapes[i]->encoder_convs; c++) {
            const struct tt_encoder_conv *conv = &shapes[i]->encoder[c];
            int padding = (conv->out_size - 1) * conv->stride + conv->kernel - conv->in_size;

            assert_int_equal(conv->in_channels, channels);
            assert_int_equal(conv->in_size, size);
            assert_int_equal(conv->out_size, (size + conv->stride - 1) / conv->stride);
            assert_int_equal(conv->pad_before, padding / 2);
            assert_int_equal(conv->out_channels % TT_ENCODER_GROUP, 0);
            channels = conv->out_channels;
            size = conv->out_size;
        }
        assert_int_equal(size, 1);
        assert_int_equal(2 * channels, TT_LEVEL_EMBEDDING);
        assert_int_equal(shapes[i]->width, shapes[i]->heads * TT_HEAD_SIZE);
    }
    for (int g = 1; g < TT_RESNET_GROUPS; g++) {
        assert_int_equal(tt_resnet_groups[g].in_channels, tt_resnet_groups[g - 1].out_channels);
        assert_int_equal(tt_resnet_groups[g].in_size, tt_resnet_groups[g - 1].out_size);
    }
}

static void levels_add_up(void **state)
{
    int channels = 0, floats = 0;

    (void)state;
    for (int l = 0; l < TT_LEVELS; l++) {
        channels += tt_level_shapes[l].channels;
        floats += tt_level_shapes[l].size * tt_level_shapes[l].size * tt_level_shapes[l].channels;
    }
    assert_int_equal(TT_SUPPORT_FLOATS, TT_SUPPORT_AREA * channels);
    assert_int_equal(TT_FEATURE_FLOATS, floats);
    assert_int_equal(TT_MIXER_INPUT, 854);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(counts_the_known_parameters),
        cmocka_unit_test(chains_convolutions),
        cmocka_unit_test(levels_add_up),
    };
    return cmocka_run_group_tests_name("model", tests, NULL, NULL);
}

/* tests/unit/test_plan.c: plans follow from their device, count what they should, and refuse what cannot fit.
 */
#include "core/plan.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <cmocka.h>

static const struct tt_device desk = {"desk", TT_DEVICE_CPU, INT64_C(8) << 30, 1 << 20, 32 << 10, 2};
static const struct tt_tile any = {0, 0};

static void plans_the_cpu_from_its_cache(void **state)
{
    struct tt_device small_cache = desk;
    struct tt_plan plan;
    struct tt_error err;

    (void)state;
    assert_int_equal(tt_plan_make(&plan, &tt_model_small, &desk, TT_FP32, any, 256, 47, &err), TT_OK);
    assert_int_equal(plan.tile.queries, 16);
    assert_int_equal(plan.tile.frames, 24); /* 47 frames in two even tiles */
    assert_true(plan.memory_bytes < INT64_C(700) << 20);
    small_cache.l2_bytes = 256 << 10;
    assert_int_equal(tt_plan_make(&plan, &tt_model_small, &small_cache, TT_FP32, any, 256, 47, &err), TT_OK);
    assert_int_equal(plan.tile.frames, 8);
    small_cache.l2_bytes = 1;
    assert_int_equal(tt_plan_make(&plan, &tt_model_base, &small_cache, TT_FP32, any, 1, 1, &err), TT_OK);
    assert_int_equal(plan.tile.frames, 1);
}

static void counts_operations(void **state)
{
    struct tt_plan one, two;
    struct tt_error err;
    double queries = 0;

    (void)state;
    assert_int_equal(tt_plan_make(&one, &tt_model_small, &desk, TT_FP32, any, 256, 47, &err), TT_OK);
    assert_int_equal(tt_plan_make(&two, &tt_model_small, &desk, TT_FP32, any, 512, 47, &err), TT_OK);
    /* 14 convolutions of stride 1, 604 M multiplications each, take a quarter of that; the rest is 959 M */
    assert_true(fabs(one.stage_flop[TT_STAGE_BACKBONE] / 47 / 2e6 - (14 * 603.98 / 4 + 959.45)) < 1);
    for (int s = TT_STAGE_SUPPORT; s < TT_STAGES; s++) {
        queries += one.stage_flop[s];
        assert_true(one.stage_flop[s] > 0 && one.stage_bytes[s] > 0);
        assert_true(fabs(two.stage_flop[s] / one.stage_flop[s] - 2) < 1e-6);
    }
    assert_true(queries / 256 > 2.0e9 && queries / 256 < 2.4e9); /* 2.2 GFLOP a query point */
    assert_true(two.stage_flop[TT_STAGE_BACKBONE] == one.stage_flop[TT_STAGE_BACKBONE]);
    /* correlation: 64×49×448 products a frame and pass */
    assert_true(one.stage_flop[TT_STAGE_CORRELATION] == 256.0 * 47 * 4 * 2 * 64 * 49 * 448);
}

static void follows_wishes(void **state)
{
    struct tt_tile wanted = {33, 100};
    struct tt_plan plan;
    struct tt_error err;

    (void)state;
    assert_int_equal(tt_plan_make(&plan, &tt_model_small, &desk, TT_FP32, wanted, 256, 47, &err), TT_OK);
    assert_int_equal(plan.tile.queries, 48); /* whole vectors */
    assert_int_equal(plan.tile.frames, 47);
}

static void refuses_what_cannot_fit(void **state)
{
    struct tt_tile wanted = {1 << 18, 47}, named = {0, 0};
    struct tt_device tiny = desk;
    struct tt_plan plan, before;
    struct tt_error err;
    const char *tail;

    (void)state;
    memset(&plan, 7, sizeof plan);
    before = plan;
    assert_int_equal(tt_plan_make(&plan, &tt_model_small, &desk, TT_FP32, wanted, 256, 47, &err), TT_REFUSE);
    tail = strstr(err.text, " MB; ");
    assert_non_null(tail);
    assert_int_equal(sscanf(tail, " MB; %d and %d fit", &named.queries, &named.frames), 2);
    assert_int_equal(tt_plan_make(&plan, &tt_model_small, &desk, TT_FP32, named, 256, 47, &err), TT_OK);
    named.queries += 16; /* the named tile is the largest */
    assert_int_equal(tt_plan_make(&plan, &tt_model_small, &desk, TT_FP32, named, 256, 47, &err), TT_REFUSE);
    plan = before;
    tiny.memory_bytes = 64 << 20;
    assert_int_equal(tt_plan_make(&plan, &tt_model_small, &tiny, TT_FP32, any, 256, 47, &err), TT_REFUSE);
    assert_non_null(strstr(err.text, "whatever the tile"));
    assert_int_equal(tt_plan_make(&plan, &tt_model_small, &desk, TT_FP16, any, 256, 47, &err), TT_REFUSE);
    assert_int_equal(tt_plan_make(&plan, &tt_model_small, &desk, TT_FP32, any, 0, 47, &err), TT_REFUSE);
    assert_int_equal(tt_plan_make(&plan, &tt_model_small, &desk, TT_FP32, any, 1, 48, &err), TT_REFUSE);
    assert_memory_equal(&plan, &before, sizeof plan);
}

static void describes_devices(void **state)
{
    struct tt_device device;
    struct tt_error err;

    (void)state;
    assert_int_equal(tt_device_describe(&device, "cpu", &err), TT_OK);
    assert_int_equal(device.kind, TT_DEVICE_CPU);
    assert_true(device.units >= 1 && device.l2_bytes > 0 && device.memory_bytes > 0);
    assert_int_equal(tt_device_describe(&device, "t4", &err), TT_OK);
    assert_int_equal(device.kind, TT_DEVICE_CUDA);
    assert_int_equal(device.units, 40);
    assert_int_equal(device.l2_bytes, 4 << 20);
    assert_int_equal(tt_device_describe(&device, "t5", &err), TT_REFUSE);
    assert_non_null(strstr(err.text, "a100"));
}

static void describe_text(const char *text, enum tt_status status, const char *because)
{
    char path[] = "/tmp/tt-device-XXXXXX";
    struct tt_device device;
    struct tt_error err;
    int fd = mkstemp(path);

    assert_true(fd >= 0);
    assert_int_equal(write(fd, text, strlen(text)), strlen(text));
    close(fd);
    assert_int_equal(tt_device_describe(&device, path, &err), status);
    unlink(path);
    if (status && !strstr(err.text, because))
        fail_msg("\"%s\" does not say \"%s\"", err.text, because);
    if (!status) {
        assert_string_equal(device.name, "L4");
        assert_int_equal(device.shared_bytes, 101376);
    }
}

static void reads_device_files(void **state)
{
    (void)state;
#define L4(kind, units)                                                                                      \
    "{\"name\":\"L4\",\"kind\":" kind                                                                        \
    ",\"memory_bytes\":24000000000,\"l2_bytes\":50331648,\"shared_bytes\":101376,"                           \
    "\"units\":" units "}"
    describe_text(L4("\"cuda\"", "58"), TT_OK, NULL);
    describe_text(L4("\"tpu\"", "58"), TT_REFUSE, "kind");
    describe_text(L4("\"cuda\"", "0"), TT_REFUSE, "not positive");
    describe_text(L4("\"cuda\"", "58,\"more\":1"), TT_REFUSE, "more");
    describe_text(L4("7", "58"), TT_REFUSE, "string");
    describe_text("{\"name\":\"L4\"\n,}", TT_REFUSE, "line 2");
#undef L4
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(plans_the_cpu_from_its_cache),
        cmocka_unit_test(counts_operations),
        cmocka_unit_test(follows_wishes),
        cmocka_unit_test(refuses_what_cannot_fit),
        cmocka_unit_test(describes_devices),
        cmocka_unit_test(reads_device_files),
    };
    return cmocka_run_group_tests_name("plan", tests, NULL, NULL);
}

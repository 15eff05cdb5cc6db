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

static void plan_on(struct tt_plan *plan, const struct tt_device *device, enum tt_precision precision)
{
    struct tt_error err;

    assert_int_equal(tt_plan_make(plan, &tt_model_small, device, precision, any, 256, 47, &err), TT_OK);
}

static void plans_cuda_from_l2_and_shared_memory(void **state)
{
    struct tt_device device;
    struct tt_plan t4, other;
    struct tt_error err;

    (void)state;
    assert_int_equal(tt_device_describe(&device, "t4", &err), TT_OK);
    plan_on(&t4, &device, TT_FP16);
    assert_int_equal(t4.first_frames, t4.tile.frames); /* one frame's two maps are more than its L2 */
    assert_true(t4.tile.frames >= 1 && t4.tile.frames < 16 && t4.tile.queries > 1 && t4.tile.queries < 256);
    assert_true(t4.volume_queries >= 1 && t4.volume_queries <= t4.tile.queries);
    device.l2_bytes = 40 << 20; /* room for more frames, more hidden layer, more volumes, less traffic */
    plan_on(&other, &device, TT_FP16);
    assert_true(other.tile.frames > t4.tile.frames && other.tile.queries > t4.tile.queries);
    assert_true(other.volume_queries > t4.volume_queries);
    for (int s = 0; s < TT_STAGES; s++)
        assert_true(other.stage_flop[s] == t4.stage_flop[s] && other.stage_bytes[s] <= t4.stage_bytes[s]);
    assert_true(other.stage_bytes[TT_STAGE_BACKBONE] < t4.stage_bytes[TT_STAGE_BACKBONE]);
    device.l2_bytes = 4 << 20;
    device.units = 80; /* more blocks are needed to fill it */
    plan_on(&other, &device, TT_FP16);
    assert_true(other.tile.frames > t4.tile.frames && other.tile.queries > t4.tile.queries);
    device.shared_bytes = 80 << 10; /* one block of the native path's convolution, not two */
    plan_on(&t4, &device, TT_FP16);
    device.shared_bytes = 100 << 10;
    plan_on(&other, &device, TT_FP16);
    assert_true(t4.tile.frames < other.tile.frames);
    device.units = 40;
    plan_on(&t4, &device, TT_FP32);
    assert_true(t4.tile.queries < 256);
    device.shared_bytes = 48 << 10; /* blocks of the first estimate do not fit */
    assert_int_equal(tt_plan_make(&other, &tt_model_small, &device, TT_FP16, any, 256, 47, &err), TT_REFUSE);
    assert_non_null(strstr(err.text, "shared memory"));
}

/* Whole waves of the mixer's blocks, two of 48 rows a multiprocessor; in FP32 volumes shrink before that tile
 * does. Tiles of frames are as even as they can be. */
static void tiles_cuda_evenly(void **state)
{
    static const char *const names[] = {"t4", "a100", "h200"};
    struct tt_device device;
    struct tt_error err;

    (void)state;
    for (int i = 0; i < 6; i++) {
        const enum tt_precision precision = i % 2 ? TT_FP16 : TT_FP32;
        struct tt_plan p;
        int wave, tiles;

        assert_int_equal(tt_device_describe(&device, names[i / 2], &err), TT_OK);
        plan_on(&p, &device, precision);
        wave = device.units * 96 / 47;
        assert_int_equal(p.tile.queries % wave, 0);
        tiles = (47 + p.tile.frames - 1) / p.tile.frames;
        assert_int_equal(p.tile.frames, (47 + tiles - 1) / tiles);
        if (precision == TT_FP32 && device.units > 100)
            assert_true(p.volume_queries < p.tile.queries && p.volume_queries * 4 > p.tile.queries);
    }
}

/* One clip and 256 query points in at most 0.6 GB; ten thousand in at most 2 GB, since tiles bound it. */
static void keeps_cuda_memory_within_the_goal(void **state)
{
    static const char *const names[] = {"t4", "a100", "h200"};
    const struct tt_model_shape *const shapes[] = {&tt_model_small, &tt_model_base};
    struct tt_device device;
    struct tt_error err;

    (void)state;
    for (int i = 0; i < 12; i++) {
        struct tt_plan few, many;

        assert_int_equal(tt_device_describe(&device, names[i / 4], &err), TT_OK);
        assert_int_equal(
            tt_plan_make(&few, shapes[i % 2], &device, (enum tt_precision)(i / 2 % 2), any, 256, 47, &err),
            TT_OK);
        assert_int_equal(
            tt_plan_make(&many, shapes[i % 2], &device, (enum tt_precision)(i / 2 % 2), any, 10000, 47, &err),
            TT_OK);
        assert_true(few.memory_bytes <= INT64_C(600000000));
        assert_true(many.memory_bytes <= INT64_C(2000000000));
    }
}

/* In FP16 no volume is in memory, in either size: what correlation and encoder move are features, supports
 * and embeddings, of which base's blocks of 16 frames read supports three times a clip, small's of 24 twice.
 */
static void keeps_cuda_volumes_on_the_chip(void **state)
{
    static const char *const names[] = {"t4", "a100", "h200"};
    const double supports = 4.0 * 256 * 49 * (64 + 128 + 256) * 4; /* of four refinements, read once each */
    struct tt_device device;
    struct tt_error err;

    (void)state;
    for (int i = 0; i < 3; i++) {
        struct tt_plan small, base;
        double more;

        assert_int_equal(tt_device_describe(&device, names[i], &err), TT_OK);
        assert_int_equal(tt_plan_make(&small, &tt_model_small, &device, TT_FP16, any, 256, 47, &err), TT_OK);
        assert_int_equal(tt_plan_make(&base, &tt_model_base, &device, TT_FP16, small.tile, 256, 47, &err),
                         TT_OK);
        assert_int_equal(base.volume_queries, base.tile.queries);
        assert_true(base.stage_bytes[TT_STAGE_ENCODER] == 0 && base.stage_flop[TT_STAGE_ENCODER] == 0);
        assert_true(base.stage_flop[TT_STAGE_CORRELATION] > small.stage_flop[TT_STAGE_CORRELATION]);
        more = base.stage_bytes[TT_STAGE_CORRELATION] - small.stage_bytes[TT_STAGE_CORRELATION];
        assert_true(fabs(more - supports) < 1e-6 * supports);
    }
}

static void refuses_cuda_tiles_that_cannot_fit(void **state)
{
    struct tt_tile wanted = {4096, 47}, named = {0, 0};
    struct tt_device device;
    struct tt_plan plan;
    struct tt_error err;
    const char *tail;

    (void)state;
    assert_int_equal(tt_device_describe(&device, "t4", &err), TT_OK);
    device.memory_bytes = 1 << 30;
    assert_int_equal(tt_plan_make(&plan, &tt_model_small, &device, TT_FP16, wanted, 256, 47, &err),
                     TT_REFUSE);
    tail = strstr(err.text, " MB; ");
    assert_non_null(tail);
    assert_int_equal(sscanf(tail, " MB; %d and %d fit", &named.queries, &named.frames), 2);
    assert_int_equal(tt_plan_make(&plan, &tt_model_small, &device, TT_FP16, named, 256, 47, &err), TT_OK);
    assert_int_equal(plan.tile.queries, named.queries);
    assert_true(plan.memory_bytes <= device.memory_bytes);
    named.queries++;
    assert_int_equal(tt_plan_make(&plan, &tt_model_small, &device, TT_FP16, named, 256, 47, &err), TT_REFUSE);
    device.memory_bytes = 64 << 20;
    assert_int_equal(tt_plan_make(&plan, &tt_model_small, &device, TT_FP16, any, 256, 47, &err), TT_REFUSE);
    assert_non_null(strstr(err.text, "whatever the tile"));
}

static void ranks_traffic_by_frame_tile(void **state)
{
    const int tiles[] = {16, 24, 47};
    double before = 0;
    struct tt_device device;
    struct tt_error err;

    (void)state;
    assert_int_equal(tt_device_describe(&device, "h200", &err), TT_OK);
    for (int i = 0; i < 3; i++) {
        struct tt_tile tile = {256, tiles[i]};
        struct tt_plan plan;

        assert_int_equal(tt_plan_make(&plan, &tt_model_small, &device, TT_FP16, tile, 256, 47, &err), TT_OK);
        assert_true(plan.stage_bytes[TT_STAGE_BACKBONE] > before);
        before = plan.stage_bytes[TT_STAGE_BACKBONE];
        /* two maps of 2 MB a frame stay in three quarters of 60 MB */
        assert_true(plan.first_frames >= 8 && plan.first_frames <= 11);
    }
}

static void add_flop(void *context, const struct tt_plan_kernel *kernel)
{
    *(double *)context += kernel->flop;
    assert_true(kernel->launches > 0 && kernel->name[0] && kernel->bytes >= 0 && kernel->kept >= 0);
}

/* 3×3 convolutions, projections and the stem: 885 GFLOP; all of small at 256 query points: 1.43 TFLOP */
static void counts_cuda_operations(void **state)
{
    struct tt_device device;
    struct tt_plan plan;
    struct tt_error err;
    double all = 0, stages = 0;

    (void)state;
    assert_int_equal(tt_device_describe(&device, "t4", &err), TT_OK);
    plan_on(&plan, &device, TT_FP16);
    assert_true(fabs(plan.stage_flop[TT_STAGE_BACKBONE] - 885e9) < 1e9);
    tt_plan_each_kernel(&plan, &tt_model_small, add_flop, &all);
    for (int s = 0; s < TT_STAGES; s++)
        stages += plan.stage_flop[s];
    assert_true(fabs(all - stages) < 1 && fabs(all - 1.43e12) < 0.01e12);
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
        cmocka_unit_test(plans_cuda_from_l2_and_shared_memory),
        cmocka_unit_test(tiles_cuda_evenly),
        cmocka_unit_test(keeps_cuda_memory_within_the_goal),
        cmocka_unit_test(keeps_cuda_volumes_on_the_chip),
        cmocka_unit_test(refuses_cuda_tiles_that_cannot_fit),
        cmocka_unit_test(ranks_traffic_by_frame_tile),
        cmocka_unit_test(counts_cuda_operations),
        cmocka_unit_test(describes_devices),
        cmocka_unit_test(reads_device_files),
    };
    return cmocka_run_group_tests_name("plan", tests, NULL, NULL);
}

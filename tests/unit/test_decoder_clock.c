/* tests/unit/test_decoder_clock.c: times never decrease, whatever the timestamps do. */
#include "daemon/decode/clock.c" /* part of tiletrack-decode, which is no library */

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <cmocka.h>

static void check(struct tt_clock *clock, bool has_timestamp, double timestamp_s, double wanted_s)
{
    double time_s = tt_clock_next(clock, has_timestamp, timestamp_s);

    assert_true(time_s > wanted_s - 1e-9 && time_s < wanted_s + 1e-9);
}

static void good_timestamps_are_kept(void **unused)
{
    struct tt_clock clock = {.frame_s = 0.04};

    (void)unused;
    check(&clock, true, -0.08, -0.08);
    check(&clock, true, 3.5, 3.5);
    check(&clock, true, 3.5, 3.5);
    check(&clock, true, 100, 100);
    assert_int_equal(clock.made_up + clock.clamped + clock.jumps, 0);
}

static void missing_ones_follow_from_the_rate(void **unused)
{
    struct tt_clock clock = {.frame_s = 0.04};

    (void)unused;
    for (int n = 0; n < 100000; n++)
        check(&clock, false, 0, n * 0.04);
    check(&clock, true, 5000, 5000);
    check(&clock, false, 0, 5000.04);
    check(&clock, false, 0, 5000.08);
    assert_int_equal(clock.made_up, 100002);
}

static void small_steps_back_wait(void **unused)
{
    struct tt_clock clock = {.frame_s = 0.04};

    (void)unused;
    check(&clock, true, 1, 1);
    check(&clock, true, 0.9, 1);
    check(&clock, true, 0.85, 1);
    check(&clock, true, 1.04, 1.04);
    assert_int_equal(clock.clamped, 2);
}

static void a_clock_that_is_set_back_goes_on(void **unused)
{
    struct tt_clock clock = {.frame_s = 0.04};

    (void)unused;
    check(&clock, true, 10, 10);
    check(&clock, true, 0, 10.04);
    check(&clock, true, 0.04, 10.08);
    check(&clock, true, 0.5, 10.54);
    check(&clock, true, 0, 10.58);
    assert_int_equal(clock.jumps, 2);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(good_timestamps_are_kept),
        cmocka_unit_test(missing_ones_follow_from_the_rate),
        cmocka_unit_test(small_steps_back_wait),
        cmocka_unit_test(a_clock_that_is_set_back_goes_on),
    };
    return cmocka_run_group_tests_name("decoder_clock", tests, NULL, NULL);
}

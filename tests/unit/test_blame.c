/* tests/unit/test_blame.c: whose fault it was. */
#include "daemon/jobs/blame.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <cmocka.h>

static void charges_are_counted_by_device(void **state)
{
    struct tt_suspicion suspicion = {0};

    (void)state;
    assert_false(tt_suspicion_on(&suspicion, 0));
    tt_suspicion_add(&suspicion, 0, false);
    tt_suspicion_add(&suspicion, 1, true);
    tt_suspicion_add(&suspicion, 0, true);
    assert_true(tt_suspicion_on(&suspicion, 0));
    assert_false(tt_suspicion_on(&suspicion, 2));
    assert_int_equal(tt_suspicion_clear(&suspicion, 0), 1);
    assert_false(tt_suspicion_on(&suspicion, 0));
    assert_true(tt_suspicion_on(&suspicion, 1));
    assert_int_equal(tt_suspicion_clear(&suspicion, 0), 0);
    assert_int_equal(tt_suspicion_clear(&suspicion, 1), 1);
    assert_int_equal(suspicion.count, 0);
}

static void the_oldest_is_forgotten(void **state)
{
    struct tt_suspicion suspicion = {0};

    (void)state;
    for (int slot = 0; slot <= TT_BLAME_ENTRIES; slot++)
        tt_suspicion_add(&suspicion, slot, true);
    assert_int_equal(suspicion.count, TT_BLAME_ENTRIES);
    assert_false(tt_suspicion_on(&suspicion, 0));
    assert_true(tt_suspicion_on(&suspicion, 1));
    assert_true(tt_suspicion_on(&suspicion, TT_BLAME_ENTRIES));
}

static void different_inputs_in_a_row_make_a_device_sick(void **state)
{
    struct tt_streak streak = {0};

    (void)state;
    assert_false(tt_streak_add(&streak, "a"));
    assert_false(tt_streak_add(&streak, "b"));
    for (int i = 0; i < 10; i++) /* one poisonous input, again and again */
        assert_false(tt_streak_add(&streak, "a"));
    tt_streak_end(&streak); /* a job went well */
    assert_false(tt_streak_add(&streak, "c"));
    assert_false(tt_streak_add(&streak, "d"));
    assert_true(tt_streak_add(&streak, "e"));
    assert_true(tt_streak_add(&streak, "e"));
    assert_true(tt_streak_add(&streak, "f"));
    assert_true(tt_streak_is_sick(&streak));
    tt_streak_end(&streak);
    assert_false(tt_streak_is_sick(&streak));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(charges_are_counted_by_device),
        cmocka_unit_test(the_oldest_is_forgotten),
        cmocka_unit_test(different_inputs_in_a_row_make_a_device_sick),
    };
    return cmocka_run_group_tests_name("blame", tests, NULL, NULL);
}

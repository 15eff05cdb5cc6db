/* tests/unit/test_status.c: error texts are whole, cut visibly, and keep their status on the way up. */
#include "core/status.h"

#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#include <cmocka.h>

static void fills_in_status_and_text(void **state)
{
    struct tt_error err;

    (void)state;
    assert_int_equal(tt_fail(&err, TT_BAD_INPUT, "%s: line %d", "a.csv", 3), TT_BAD_INPUT);
    assert_int_equal(err.status, TT_BAD_INPUT);
    assert_string_equal(err.text, "a.csv: line 3");
    assert_int_equal(tt_fail_errno(&err, TT_RETRY_LATER, ENOSPC, "write x"), TT_RETRY_LATER);
    assert_string_equal(err.text, "write x: No space left on device");
    assert_int_equal(tt_fail_within(&err, "job %d", 7), TT_RETRY_LATER);
    assert_string_equal(err.text, "job 7: write x: No space left on device");
    assert_int_equal(tt_fail(NULL, TT_REFUSE, "nobody reads this"), TT_REFUSE);
}

static void cuts_long_text_visibly(void **state)
{
    char text[3 * TT_ERROR_TEXT_BYTES];
    struct tt_error err;

    (void)state;
    memset(text, 'x', sizeof text);
    text[sizeof text - 1] = 0;
    tt_fail(&err, TT_REFUSE, "%s", text);
    assert_int_equal(strlen(err.text), TT_ERROR_TEXT_BYTES - 1);
    assert_string_equal(err.text + TT_ERROR_TEXT_BYTES - 4, "...");
    tt_fail_within(&err, "again");
    assert_int_equal(strncmp(err.text, "again: xxx", 10), 0);
    assert_string_equal(err.text + TT_ERROR_TEXT_BYTES - 4, "...");
}

static void names_every_status(void **state)
{
    (void)state;
    for (int s = TT_OK; s <= TT_INTERRUPTED; s++)
        assert_string_not_equal(tt_status_name(s), "unknown");
    assert_int_equal(tt_status_of_errno(EDQUOT), TT_RETRY_LATER);
    assert_int_equal(tt_status_of_errno(EACCES), TT_REFUSE);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(fills_in_status_and_text),
        cmocka_unit_test(cuts_long_text_visibly),
        cmocka_unit_test(names_every_status),
    };
    return cmocka_run_group_tests_name("status", tests, NULL, NULL);
}

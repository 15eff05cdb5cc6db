/* tests/unit/test_job_warnings.c: what a job has to say is not lost behind what its decoder said. */
#include "core/decoder_wire.h"
#include "core/job_parts.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

static int lines_of(const char *text)
{
    int lines = 1;

    for (; *text; text++)
        lines += *text == '\n';
    return lines;
}

static void few_are_kept_as_they_are(void **state)
{
    const char *const said[] = {"first", "second"};
    struct tt_run *run = calloc(1, sizeof *run);

    (void)state;
    assert_non_null(run);
    tt_run_warn_all(run, said, 2);
    tt_run_warn(run, "no %s: %s", "nuke", "cause");
    assert_string_equal(run->warnings, "first\nsecond\nno nuke: cause");
    free(run);
}

static void many_of_the_decoder_leave_room_for_every_output(void **state)
{
    char texts[TT_WIRE_MAX_WARNINGS][TT_WIRE_TEXT_BYTES], cause[480];
    const char *said[TT_WIRE_MAX_WARNINGS];
    struct tt_run *run = calloc(1, sizeof *run);
    const char *own;

    (void)state;
    assert_non_null(run);
    for (int i = 0; i < TT_WIRE_MAX_WARNINGS; i++) {
        memset(texts[i], 'a' + i % 26, TT_WIRE_TEXT_BYTES - 1);
        texts[i][TT_WIRE_TEXT_BYTES - 1] = '\0';
        said[i] = texts[i];
    }
    tt_run_warn_all(run, said, TT_WIRE_MAX_WARNINGS);
    assert_int_equal(lines_of(run->warnings), 5); /* four whole, and how many more */
    assert_non_null(strstr(run->warnings, "\n60 more warnings of the decoder"));
    memset(cause, 'x', sizeof cause - 1);
    cause[sizeof cause - 1] = '\0';
    own = run->warnings + strlen(run->warnings);
    for (int i = 0; i < TT_JOB_MAX_OUTPUTS; i++)
        tt_run_warn(run, "no format-%02d: %s", i, cause);
    assert_int_equal(strlen(own), (size_t)TT_JOB_MAX_OUTPUTS * (strlen("\nno format-00: ") + strlen(cause)));
    free(run);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(few_are_kept_as_they_are),
        cmocka_unit_test(many_of_the_decoder_leave_room_for_every_output),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}

/* tests/unit/config_fixture.h: texts that must be read, and texts that must be refused, for test_config*.c.
 */
#ifndef TT_TESTS_CONFIG_FIXTURE_H
#define TT_TESTS_CONFIG_FIXTURE_H

#include "config/config.h"
#include "config/options.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

/* A text that is refused with one problem. */
struct wrong {
    const char *text;
    int line, column;
    const char *cause; /* a part of the problem's text */
};

static inline struct tt_config *parse_good(const char *text)
{
    struct tt_config *config = NULL;
    struct tt_config_problems problems;
    struct tt_error err;

    if (tt_config_parse(&config, text, strlen(text), "test.yaml", &problems, &err) != TT_OK)
        fail_msg("%s\nrefused: %s", text, err.text);
    assert_int_equal(problems.total, 0);
    return config;
}

/* Returns the problems of a text that must be refused. */
static inline struct tt_config_problems parse_bad(const char *text, size_t bytes)
{
    struct tt_config *config = (struct tt_config *)&config;
    struct tt_config_problems problems;
    struct tt_error err;

    if (tt_config_parse(&config, text, bytes, "test.yaml", &problems, &err) != TT_REFUSE)
        fail_msg("%s\nwas not refused", text);
    assert_ptr_equal(config, &config);
    assert_true(problems.total > 0);
    assert_int_equal(err.status, TT_REFUSE);
    assert_non_null(strstr(err.text, problems.items[0].text));
    return problems;
}

#endif

/* tests/unit/test_log.c: log lines are whole, readable by a JSON parser whatever bytes are in them, cut where
 * they are too long, and counted where they are too many.
 */
#include "tests/unit/log_fixture.h"

#include <inttypes.h>
#include <math.h>

/* Counts allocations, where no sanitizer does it already. */
static long allocations;
#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__) && !defined(__clang__)
#define COUNTS_ALLOCATIONS 1
#pragma GCC visibility push(default) /* for libc and libyaml as well */
void *__libc_malloc(size_t bytes);
void *malloc(size_t bytes)
{
    allocations++;
    return __libc_malloc(bytes);
}
#pragma GCC visibility pop
#else
#define COUNTS_ALLOCATIONS 0
#endif

/* Undoes what docs/LOGS.md says of bytes in values; returns the length. */
static size_t undo(const char *text, char *bytes)
{
    size_t used = 0;
    unsigned value;

    while (*text) {
        if (text[0] == '\\' && text[1] == 'x' && sscanf(text + 2, "%2x", &value) == 1) {
            bytes[used++] = (char)value;
            text += 4;
        } else {
            text += text[0] == '\\';
            bytes[used++] = *text++;
        }
    }
    return used;
}

static void a_line_is_an_object_in_a_fixed_order(void **state)
{
    struct fixture *fixture = *state;

    realtime_ms = INT64_C(1764530075123);
    fixture->options.worker = "gpu0";
    open_log(fixture);
    tt_log(fixture->log, TT_LOG_INFO, "job_done", TT_INT("frames", 82), TT_STR("file", "bear.mp4"),
           TT_REAL("decode_ms", 210.5), TT_STR("job", "k3v9"));
    assert_string_equal(take(fixture, fixture->read_fd),
                        "{\"ts\":\"2025-11-30T19:14:35.123Z\",\"level\":\"info\",\"event\":\"job_done\","
                        "\"job\":\"k3v9\",\"worker\":\"gpu0\",\"file\":\"bear.mp4\",\"frames\":82,"
                        "\"decode_ms\":210.5}\n");
    tt_log(fixture->log, TT_LOG_WARNING, "worker_exited", TT_STR("worker", "cpu1"));
    assert_string_equal(
        take(fixture, fixture->read_fd),
        "{\"ts\":\"2025-11-30T19:14:35.123Z\",\"level\":\"warning\",\"event\":\"worker_exited\","
        "\"worker\":\"cpu1\"}\n");
    tt_log(fixture->log, TT_LOG_ERROR, "nothing");
    assert_non_null(
        strstr(take(fixture, fixture->read_fd), "\"level\":\"error\",\"event\":\"nothing\",\"worker\""));
    tt_log((struct tt_log *)NULL, TT_LOG_ERROR, "nobody_listens");
}

static void every_type_is_written_as_json_has_it(void **state)
{
    struct fixture *fixture = *state;
    char *text;

    open_log(fixture);
    tt_log(fixture->log, TT_LOG_INFO, "types", TT_INT("a", INT64_MIN), TT_INT("b", UINT64_MAX),
           TT_INT("c", (char)1), TT_INT("d", (size_t)7), TT_INT("e", TT_LOG_ERROR), TT_BOOL("f", 5 > 4),
           TT_BOOL("g", false), TT_REAL("h", 0.1), TT_REAL("i", NAN), TT_REAL("j", -INFINITY),
           TT_REAL("k", 1e300), TT_STR("l", NULL), TT_STR("m", ""), TT_BYTES("n", "abc", 2),
           TT_INT("o", INT64_MAX), TT_REAL("p", 84.0e9));
    text = take(fixture, fixture->read_fd);
    assert_non_null(strstr(text,
                           "\"a\":-9223372036854775808,\"b\":18446744073709551615,\"c\":1,\"d\":7,\"e\":3,"
                           "\"f\":true,\"g\":false,\"h\":0.1,\"i\":null,\"j\":null,\"k\":1e+300,\"l\":null,"
                           "\"m\":\"\",\"n\":\"ab\",\"o\":9223372036854775807,\"p\":8.4e+10}\n"));
}

static void any_bytes_can_be_had_back(void **state)
{
    struct fixture *fixture = *state;
    static const char *const hostile[] = {"\"}\n{\"event\":\"forged\"",
                                          "\\",
                                          "\\\\x41",
                                          "\x1b[2J",
                                          "\xe2\x80\xa8",
                                          "\xc2\x85",
                                          "\xed\xa0\x80",
                                          "\xf4\x90\x80\x80",
                                          "\xc3",
                                          "\xe2\x80\xae",
                                          "caf\xc3\xa9 \xf0\x9f\x90\xbb",
                                          "-rf",
                                          "\xef\xbb\xbf"};
    char name[256], back[256];

    open_log(fixture);
    srand(1);
    for (int i = 0; i < 4000; i++) {
        size_t length = i < 13 ? strlen(hostile[i]) : i < 300 ? 1 : (size_t)rand() % 256;
        char *text;
        json_t *json;

        for (size_t c = 0; c < length; c++)
            name[c] = (char)(i < 13    ? hostile[i][c]
                             : i < 300 ? i - 13
                             : i % 2   ? rand() % 256
                                       : "\\\"\n\xc3\xa9 "[rand() % 6]);
        tt_log(fixture->log, TT_LOG_INFO, "bytes", TT_BYTES("file", name, length));
        text = take(fixture, fixture->read_fd);
        for (char *c = text; c[1]; c++)
            assert_true((unsigned char)*c >= ' ' && *c != 0x7f);
        json = next_line(&text);
        assert_int_equal(*text, 0);
        assert_null(json_object_get(json, "cut"));
        assert_int_equal(undo(string_of(json, "file"), back), length);
        assert_memory_equal(back, name, length);
        json_decref(json);
    }
}

static void long_lines_are_cut_and_say_so(void **state)
{
    struct fixture *fixture = *state;
    static char long_text[20000];
    char *text;
    json_t *json;

    open_log(fixture);
    for (size_t length = 1900; length < 2100; length++) {
        memset(long_text, 'x', sizeof long_text);
        memcpy(long_text + length - 2, "\xf0\x9f\x90\xbb", 4);
        tt_log(fixture->log, TT_LOG_INFO, "long", TT_BYTES("cause", long_text, length + 2),
               TT_INT("after_ms", 5));
        text = take(fixture, fixture->read_fd);
        json = next_line(&text);
        assert_int_equal(number_of(json, "after_ms"), 5);
        if (json_object_get(json, "cut"))
            assert_non_null(strstr(string_of(json, "cause"), "x..."));
        else
            assert_int_equal(strlen(string_of(json, "cause")), length + 2);
        json_decref(json);
    }
    for (size_t length = 0; length < 4096; length += 7) {
        memset(long_text, "x\\\xff\n"[length % 4], sizeof long_text);
        tt_log(fixture->log, TT_LOG_INFO, "longer", TT_BYTES("a", long_text, length),
               TT_BYTES("b", long_text, length), TT_BYTES("c", long_text, length), TT_INT("d", 1));
        text = take(fixture, fixture->read_fd);
        json = next_line(&text);
        assert_int_equal(*text, 0);
        if (length > 2100) { /* a meets the limit of a value, b that of the line, and nothing is left for c */
            assert_true(json_is_true(json_object_get(json, "cut")));
            for (int i = 0; i < 2; i++) {
                const char *value = string_of(json, i == 0 ? "a" : "b");
                assert_string_equal(value + strlen(value) - 3, "...");
            }
        }
        json_decref(json);
    }
    fixture->options.format = TT_LOG_TEXT;
    assert_int_equal(tt_log_configure(fixture->log, &fixture->options, NULL), TT_OK);
    memset(long_text, '"', sizeof long_text - 1);
    long_text[sizeof long_text - 1] = 0;
    tt_log(fixture->log, TT_LOG_INFO, "longer", TT_STR("a", long_text), TT_STR("b", long_text),
           TT_STR("c", long_text));
    text = take(fixture, fixture->read_fd);
    assert_true(strlen(text) <= TT_LOG_LINE_BYTES);
    assert_string_equal(text + strlen(text) - strlen("...\" cut=true\n"), "...\" cut=true\n");
}

static int calls;

static int count_call(void)
{
    return ++calls;
}

static void lower_levels_cost_nothing(void **state)
{
    struct fixture *fixture = *state;

    fixture->options.level = TT_LOG_WARNING;
    open_log(fixture);
    calls = 0;
    tt_log(fixture->log, TT_LOG_INFO, "quiet", TT_INT("n", count_call()));
    assert_string_equal(take(fixture, fixture->read_fd), "");
    assert_int_equal(calls, 0);
    tt_log(fixture->log, TT_LOG_WARNING, "loud", TT_INT("n", count_call()));
    assert_int_equal(calls, 1);
    assert_non_null(strstr(take(fixture, fixture->read_fd), "\"n\":1"));
}

static void dates_are_those_of_gmtime(void **state)
{
    struct fixture *fixture = *state;
    static const int64_t some[] = {0, 951782399999, 951782400000, 951868800000, 4107542399999, 1735689599999};

    open_log(fixture);
    srand(2);
    for (int i = 0; i < 500; i++) {
        int64_t time_ms = i < 6 ? some[i] : ((int64_t)rand() << 11 ^ rand()) % INT64_C(7258118400000);
        time_t seconds = time_ms / 1000;
        char wanted[64];
        struct tm tm;
        size_t used;

        realtime_ms = time_ms;
        tt_log(fixture->log, TT_LOG_INFO, "date");
        used = strftime(wanted, sizeof wanted, "{\"ts\":\"%Y-%m-%dT%H:%M:%S", gmtime_r(&seconds, &tm));
        snprintf(wanted + used, sizeof wanted - used, ".%03dZ\"", (int)(time_ms % 1000));
        take(fixture, fixture->read_fd)[strlen(wanted)] = 0;
        assert_string_equal(fixture->text, wanted);
    }
}

static void bursts_are_counted(void **state)
{
    struct fixture *fixture = *state;
    char *text;
    json_t *json;

    fixture->options.burst = 5;
    open_log(fixture);
    for (int i = 0; i < 12; i++)
        tt_log(fixture->log, i == 9 ? TT_LOG_ERROR : TT_LOG_INFO, "often", TT_INT("i", i));
    tt_log(fixture->log, TT_LOG_INFO, "seldom");
    tt_log_flush(fixture->log, false);
    assert_int_equal(count_events(take(fixture, fixture->read_fd), "often"), 5);
    assert_null(strstr(fixture->text, "log_suppressed"));
    assert_non_null(strstr(fixture->text, "seldom"));

    /* The window ends: a line of another event brings the count, once. */
    monotonic_ahead_ms += TT_LOG_BURST_WINDOW_MS;
    tt_log(fixture->log, TT_LOG_INFO, "seldom");
    tt_log(fixture->log, TT_LOG_INFO, "often");
    text = take(fixture, fixture->read_fd);
    json = next_line(&text);
    assert_string_equal(string_of(json, "event"), "log_suppressed");
    assert_string_equal(string_of(json, "level"), "error");
    assert_string_equal(string_of(json, "suppressed_event"), "often");
    assert_int_equal(number_of(json, "lines"), 7);
    assert_int_equal(number_of(json, "window_ms"), TT_LOG_BURST_WINDOW_MS);
    json_decref(json);
    assert_int_equal(count_events(text, "log_suppressed"), 0);
    assert_int_equal(count_events(text, "often"), 1);

    /* The event itself brings it too, and closing brings what is left. */
    for (int i = 0; i < 7; i++)
        tt_log(fixture->log, TT_LOG_INFO, "often");
    monotonic_ahead_ms += TT_LOG_BURST_WINDOW_MS;
    for (int i = 0; i < 6; i++)
        tt_log(fixture->log, TT_LOG_INFO, "often");
    assert_int_equal(count_events(take(fixture, fixture->read_fd), "often"), 4 + 5);
    assert_int_equal(count_events(fixture->text, "log_suppressed"), 1);
    assert_non_null(strstr(fixture->text, "\"lines\":3"));
    tt_log_close(fixture->log);
    fixture->log = NULL;
    assert_non_null(strstr(take(fixture, fixture->read_fd), "\"lines\":1"));
}

static void no_burst_is_no_limit(void **state)
{
    struct fixture *fixture = *state;

    open_log(fixture);
    for (int i = 0; i < 300; i++)
        tt_log(fixture->log, TT_LOG_INFO, "often");
    assert_int_equal(count_events(take(fixture, fixture->read_fd), "often"), 300);
}

static void text_is_for_people(void **state)
{
    struct fixture *fixture = *state;

    realtime_ms = INT64_C(1764530075123);
    fixture->options.format = TT_LOG_TEXT;
    open_log(fixture);
    tt_log(fixture->log, TT_LOG_WARNING, "job_retry", TT_STR("cause", "say \"no\", \x1b[2J"),
           TT_STR("file", "a b.mp4"), TT_STR("job", "k3v9"), TT_STR("empty", ""), TT_STR("sum", "a=b"),
           TT_INT("attempt", 2));
    assert_string_equal(take(fixture, fixture->read_fd),
                        "2025-11-30 19:14:35.123Z WARN  job_retry job=k3v9 file=\"a b.mp4\" "
                        "cause=\"say \\\"no\\\", \\x1b[2J\" empty=\"\" sum=\"a=b\" attempt=2\n");
}

static void nothing_is_allocated_for_a_line(void **state)
{
    struct fixture *fixture = *state;
    long before;

    if (!COUNTS_ALLOCATIONS)
        skip();
    fixture->options.burst = 2;
    open_log(fixture);
    before = allocations;
    for (int i = 0; i < 10; i++) {
        tt_log(fixture->log, TT_LOG_INFO, "frugal", TT_REAL("a_ms", 1.0 / 3), TT_STR("file", "b\xff"),
               TT_INT("n", i));
        monotonic_ahead_ms += 3000;
    }
    assert_int_equal(allocations, before);
    assert_true(count_events(take(fixture, fixture->read_fd), "frugal") > 4);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(a_line_is_an_object_in_a_fixed_order),
        TEST(every_type_is_written_as_json_has_it),
        TEST(any_bytes_can_be_had_back),
        TEST(long_lines_are_cut_and_say_so),
        TEST(lower_levels_cost_nothing),
        TEST(dates_are_those_of_gmtime),
        TEST(bursts_are_counted),
        TEST(no_burst_is_no_limit),
        TEST(text_is_for_people),
        TEST(nothing_is_allocated_for_a_line),
    };
    return cmocka_run_group_tests_name("log", tests, NULL, NULL);
}

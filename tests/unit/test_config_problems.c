/* tests/unit/test_config_problems.c: wrong files are refused whole, with all places, causes and ways out at
 * once.
 */
#include "tests/unit/config_fixture.h"

#include <inttypes.h>

static const struct wrong wrongs[] = {
    {"spool:\n  setle_ms: 1\n", 2, 3, "unknown key `setle_ms`: did you mean `settle_ms`?"},
    {"spool:\n  Settle-MS: 1\n", 2, 3, "did you mean `settle_ms`?"},
    {"tracker: {gird: 3}\n", 1, 11, "did you mean `grid`?"},
    {"traker: {}\n", 1, 1, "did you mean `tracker`?"},
    {"tracker: {}\nsettle_ms: 5\n", 2, 1, "write `settle_ms` in the section `spool`"},
    {"spool.settle_ms: 5\n", 1, 1, "write `settle_ms` in the section `spool`"},
    {"output: {zebra: 1}\n", 1, 10, "here belong `formats`, `overlay`"},
    {"'': 1\n", 1, 1, "unknown key ``"},
    {"\"a\\0b\": 1\n", 1, 1, "unknown key `a?b`"},
    {"<<: {grid: 1}\n", 1, 1, "unknown key `<<`"},
    {"? [a]\n: 1\n", 1, 3, "a key must be a word"},
    {"log: {level: info}\nspool: {}\nlog: {file: null}\n", 3, 1, "given twice, first on line 1"},
    {"spool:\n  keep_days: 1\n  root: /a\n  keep_days: 1\n", 4, 3,
     "`keep_days` is given twice, first on line 2"},
    {"spool: [1]\n", 1, 8, "`spool` is a section"},
    {"spool: null\n", 1, 8, "`spool` is a section"},
    {"spool: {settle_ms: 2s}\n", 1, 20, "leave the unit away and write milliseconds"},
    {"spool: {settle_ms: -1}\n", 1, 20, "0 to 3600000"},
    {"spool: {settle_ms: 99999999999999999999}\n", 1, 20, "0 to 3600000"},
    {"spool: {settle_ms: 1.5}\n", 1, 20, "milliseconds as a whole number"},
    {"spool: {settle_ms: \"2000\"}\n", 1, 20, "take the quotes away"},
    {"spool: {settle_ms: 0100}\n", 1, 20, "without a zero in front"},
    {"spool: {settle_ms: 0x10}\n", 1, 20, "without a zero in front"},
    {"spool: {settle_ms: {a: 1}}\n", 1, 20, "is a section, but milliseconds"},
    {"spool: {settle_ms: [1]}\n", 1, 20, "is a list, but milliseconds"},
    {"spool:\n  settle_ms:\n", 2, 13, "leave the key away to take the default"},
    {"spool: {settle_ms: null}\n", 1, 20, "is `null`, but milliseconds"},
    {"spool: {keep_inputs: yes}\n", 1, 22, "write true"},
    {"spool: {keep_inputs: \"true\"}\n", 1, 22, "true or false is expected"},
    {"spool: {reserve_bytes: 1.5G}\n", 1, 24, "next smaller suffix"},
    {"spool: {reserve_bytes: 1GB}\n", 1, 24, "with K, M, G or T behind it"},
    {"spool: {reserve_bytes: 9999999T}\n", 1, 24, "0 to 1024T"},
    {"spool: {reserve_bytes: 9999999999999999T}\n", 1, 24, "0 to 1024T"},
    {"spool: {root: spool}\n", 1, 15, "an absolute path is expected"},
    {"spool: {root: ~/spool}\n", 1, 15, "home directory must be written out"},
    {"spool: {root: $HOME/spool}\n", 1, 15, "environment variables are not read"},
    {"spool: {root: \"/a\\0b\"}\n", 1, 15, "an absolute path is expected"},
    {"spool: {root: null}\n", 1, 15, "an absolute path is expected"},
    {"spool: {patterns: .mp4}\n", 1, 19, "put it in square brackets"},
    {"spool: {patterns: [a/b]}\n", 1, 20, "without a slash"},
    {"spool: {patterns: [*.mp4]}\n", 1, 21, "put it in quotes"},
    {"tracker: {model: ../secret}\n", 1, 18, "a model's name"},
    {"tracker: {model: a.safetensors}\n", 1, 18, "a model's name"},
    {"tracker: {occlusion_threshold: 1.01}\n", 1, 32, "a number, 0 to 1"},
    {"tracker: {occlusion_threshold: 0,5}\n", 1, 34, "unknown key `5`"},
    {"tracker: {occlusion_threshold: nan}\n", 1, 32, "a number, 0 to 1"},
    {"output: {overlay: yes}\n", 1, 19, "true or false"},
    {"tracker: {clip_frames: 48}\n", 1, 24, "8 to 47"},
    {"tracker:\n  clip_frames: 20\n  overlap_frames: 20\n", 3, 19, "less than `tracker.clip_frames`"},
    {"tracker:\n  clip_frames: 8\n", 2, 16, "less than `tracker.clip_frames`"},
    {"spool: {settle_ms: 20000}\n", 1, 20, "must not be below `spool.settle_ms`"},
    {"jobs: {backoff_ms: 400000}\n", 1, 20, "must not be below `jobs.backoff_ms`"},
    {"workers: {respawn_ms: 70000}\n", 1, 23, "must not be below `workers.respawn_ms`"},
    {"metrics: {textfile: /a.txt}\n", 1, 21, "must end in .prom"},
    {"output: {formats: npz}\n", 1, 19, "put it in square brackets"},
    {"output: {formats: [npy]}\n", 1, 20, "did you mean `npz`?"},
    {"output: {formats: []}\n", 1, 19, "it may not be empty"},
    {"log: {level: warn}\n", 1, 14, "one of debug, info, warning, error is expected"},
    {"log: {level: inof}\n", 1, 14, "did you mean `info`?"},
    {"devices: []\n", 1, 10, "1 to 64 of them"},
    {"devices: {gpu: 0}\n", 1, 10, "put `- ` before each device"},
    {"devices: all\n", 1, 10, "auto, or a list of devices"},
    {"devices: [0]\n", 1, 11, "such as {gpu: 0} or {cpu: 4}"},
    {"devices:\n  - {precision: fp16}\n", 2, 5, "a device needs `gpu` or `cpu`"},
    {"devices:\n  - {gpu: null}\n", 2, 5, "a device needs `gpu` or `cpu`"},
    {"devices:\n  - {gpu: 0, cpu: 1}\n", 2, 5, "either `gpu` or `cpu`"},
    {"devices:\n  - {cpu: 1, precision: fp16}\n", 2, 25, "the CPU computes in fp32 only"},
    {"devices:\n  - {gpu: tesla}\n", 2, 11, "an index, a UUID or a PCI address"},
    {"devices:\n  - {gpu: 0}\n  - {gpu: 0}\n", 3, 5, "GPU 0 is listed twice"},
    {"devices:\n  - {gpu: 0, tile: {querys: 3}}\n", 2, 21, "did you mean `queries`?"},
    {"devices:\n  - {gpu: 0, queries: 3}\n", 2, 14, "write `queries` in the section `tile`"},
    {"devices:\n  - {gpu: 0, tile: {frames: 48}}\n", 2, 29, "1 to 47, or auto"},
    /* YAML itself */
    {"spool:\n\troot: /a\n", 2, 1, "a tab: YAML is indented with blanks"},
    {"\xef\xbb\xbf@: 1\n", 1, 1, "put the value in quotes"},
    {"# \u00e9\r\nspool:\r\n\troot: /a\r\n", 3, 1, "a tab: YAML is indented with blanks"},
    {"spool:\n  root: /a\n keep_days: 1\n", 3, 2, "indented by the same number of blanks"},
    {"tracker: {grid: 3\nlog: {}\n", 2, 4, "is a bracket or a comma missing?"},
    {"log:\n  file: \"/a\n", 3, 1, "is a closing quote missing?"},
    {"on_done: /a: b\n", 1, 12, "in quotes"},
    {"on_done: @x\n", 1, 10, "put the value in quotes"},
    {"log: &l {level: info}\n", 1, 6, "the anchor `&l` is not understood"},
    {"log: {file: *name}\n", 1, 13, "`*name` is an alias"},
    {"on_done: !!str /a\n", 1, 10, "the tag `tag:yaml.org,2002:str` is not understood"},
    {"on_done: null\n---\nlog: {}\n", 2, 1, "a second document begins here"},
    {"[[[[[[[[[[1]]]]]]]]]]\n", 1, 9, "more than 8 deep"},
    {"- a\n", 1, 1, "`section:` lines"},
    {"hello\n", 1, 1, "`section:` lines"},
    {"", 1, 1, "nothing is set here: write {}"},
    {"# only a comment\n\n", 1, 1, "nothing is set here: write {}"},
    {"---\n", 1, 1, "nothing is set here: write {}"},
    {"log: {}\nspool: {root: /\xff}\n", 2, 16, "byte 0xFF is not UTF-8"},
    {"# \xc3\xa9\xc3\xa9 \xc0\xaf\n", 1, 6, "byte 0xC0 is not UTF-8"},
    {"# \xed\xa0\x80\n", 1, 3, "byte 0xED is not UTF-8"},
    {"log: {}\r\n# \x1b[31m\r\n", 2, 3, "control character U+001B"},
    {"\xff\xfel\0o\0g\0", 1, 1, "byte 0xFF is not UTF-8"},
};

static void refuses_with_place_cause_and_way_out(void **state)
{
    int failures = 0;

    (void)state;
    for (size_t i = 0; i < sizeof wrongs / sizeof wrongs[0]; i++) {
        const struct wrong *wrong = &wrongs[i];
        struct tt_config_problems problems = parse_bad(wrong->text, strlen(wrong->text));
        const struct tt_config_problem *first = &problems.items[0];

        if (problems.total == 1 && first->line == wrong->line && first->column == wrong->column &&
            strstr(first->text, wrong->cause))
            continue;
        failures++;
        print_error("%s", wrong->text);
        tt_config_problems_print(stderr, "found", &problems);
        print_error("wanted:%d:%d: %s\n", wrong->line, wrong->column, wrong->cause);
    }
    assert_int_equal(failures, 0);
}

static void a_nul_in_the_text_is_refused(void **state)
{
    struct tt_config_problems problems = parse_bad("log: {}\n\0\n", 10);

    (void)state;
    assert_int_equal(problems.items[0].line, 2);
    assert_non_null(strstr(problems.items[0].text, "control character U+0000"));
}

static void all_problems_are_reported_at_once_and_in_order(void **state)
{
    static const char text[] = "log: {level: loud}\ntracker:\n  grid: 0\n  overlap_frames: &x 3\nbogus: 1\n"
                               "devices: [{gpu: 0}, {gpu: x, tile: {q: 1}}]\nspool:\n\troot: /a\n";
    static const int lines[] = {1, 3, 4, 5, 6, 6, 8};
    struct tt_config_problems problems = parse_bad(text, strlen(text));

    (void)state;
    assert_int_equal(problems.total, 7);
    for (int i = 0; i < 7; i++)
        assert_int_equal(problems.items[i].line, lines[i]);
}

static void the_list_of_problems_is_cut(void **state)
{
    char text[1024] = "", *printed = NULL;
    struct tt_config_problems problems;
    size_t bytes;
    FILE *file = open_memstream(&printed, &bytes);

    (void)state;
    for (int i = 0; i < 33; i++)
        sprintf(text + strlen(text), "bogus_option_%d: 1\n", i);
    problems = parse_bad(text, strlen(text));
    assert_int_equal(problems.count, TT_CONFIG_PROBLEMS_MAX);
    assert_int_equal(problems.total, 33);
    tt_config_problems_print(file, "a.yaml", &problems);
    fclose(file);
    assert_non_null(strstr(printed, "a.yaml:20:1: unknown key `bogus_option_19`"));
    assert_non_null(strstr(printed, "\na.yaml: and 13 more\n"));
    assert_null(strstr(printed, "bogus_option_20"));
    free(printed);
}

static void what_a_file_says_cannot_garble_a_terminal(void **state)
{
    static const char text[] = "log: {level: \"\\e[31m\\u202e\\n\", file: \"" /* and a long one */
                               "xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx\"}\n";
    struct tt_config_problems problems = parse_bad(text, strlen(text));

    (void)state;
    assert_non_null(strstr(problems.items[0].text, "`log.level` is \"?[31m??\","));
    assert_non_null(strstr(problems.items[1].text, "xxxx...\","));
}

/* "a.b" with this value, as YAML. */
static void one_option(char *text, size_t bytes, const char *path, const char *key, const char *value)
{
    size_t section = strcspn(path, ".");

    if (path[section])
        snprintf(text, bytes, "%.*s: {%s: %s}\n", (int)section, path, key, value);
    else
        snprintf(text, bytes, "%s: %s\n", key, value);
}

static bool is_number(const struct tt_option *option)
{
    return option->type == TT_OPTION_INT || option->type == TT_OPTION_MS || option->type == TT_OPTION_BYTES ||
           option->type == TT_OPTION_REAL;
}

static void limits_of_the_table_hold(void **state)
{
    char text[256], value[32];

    (void)state;
    for (int i = 0; i < tt_options_count; i++) {
        const struct tt_option *option = &tt_options[i];

        for (int side = 0; side < 4 && is_number(option); side++) {
            int64_t number = (int64_t[]){option->min - 1, option->min, option->max, option->max + 1}[side];
            bool inside = side == 1 || side == 2;
            struct tt_config *config = NULL;
            struct tt_config_problems problems;

            snprintf(value, sizeof value, "%" PRId64, number);
            one_option(text, sizeof text, option->path, tt_option_key(option), value);
            tt_config_parse(&config, text, strlen(text), "t", &problems, NULL);
            /* A value inside may still not fit to another option. */
            if (inside ? problems.total > 0 && strstr(problems.items[0].text, "is expected")
                       : problems.total != 1 || !strstr(problems.items[0].text, "is expected"))
                fail_msg("%s: %s %s", option->path, value, inside ? "is refused" : "is not refused");
            tt_config_free(config);
        }
    }
}

static void every_option_refuses_another_type(void **state)
{
    char text[256];

    (void)state;
    for (int i = 0; i < tt_options_count; i++) {
        const struct tt_option *option = &tt_options[i];
        bool list = option->type == TT_OPTION_LIST || option->type == TT_OPTION_CHOICES;
        struct tt_config_problems problems;

        one_option(text, sizeof text, option->path, tt_option_key(option), list ? "{a: [b]}" : "[{a: b}]");
        problems = parse_bad(text, strlen(text));
        if (option->type != TT_OPTION_DEVICES)
            assert_non_null(strstr(problems.items[0].text, option->path));
        if (!(option->flags & TT_OPTION_NULL)) {
            one_option(text, sizeof text, option->path, tt_option_key(option), "null");
            problems = parse_bad(text, strlen(text));
            assert_non_null(strstr(problems.items[0].text, option->path));
        }
    }
}

static void every_key_is_suggested_for_a_slip_of_the_pen(void **state)
{
    char text[256], key[64], wanted[96];

    (void)state;
    for (int i = 0; i < tt_options_count; i++) {
        const struct tt_option *option = &tt_options[i];
        struct tt_config_problems problems;

        snprintf(key, sizeof key, "%s", tt_option_key(option));
        memmove(key + 1, key + 2, strlen(key + 2) + 1); /* the second letter is missing */
        one_option(text, sizeof text, option->path, key, "1");
        problems = parse_bad(text, strlen(text));
        snprintf(wanted, sizeof wanted, "unknown key `%s`: did you mean `%s`?", key, tt_option_key(option));
        assert_string_equal(problems.items[0].text, wanted);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(refuses_with_place_cause_and_way_out),
        cmocka_unit_test(a_nul_in_the_text_is_refused),
        cmocka_unit_test(all_problems_are_reported_at_once_and_in_order),
        cmocka_unit_test(the_list_of_problems_is_cut),
        cmocka_unit_test(what_a_file_says_cannot_garble_a_terminal),
        cmocka_unit_test(limits_of_the_table_hold),
        cmocka_unit_test(every_option_refuses_another_type),
        cmocka_unit_test(every_key_is_suggested_for_a_slip_of_the_pen),
    };
    return cmocka_run_group_tests_name("config problems", tests, NULL, NULL);
}

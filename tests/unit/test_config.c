/* tests/unit/test_config.c: every option is read, checked, printed, suggested and documented by its line in
 * the table; wrong files are refused whole, with all places and causes at once.
 */
#include "config/config.h"
#include "config/options.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#include <cmocka.h>

static struct tt_config *parse_good(const char *text)
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
static struct tt_config_problems parse_bad(const char *text, size_t bytes)
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

static char *print_with(void (*print)(FILE *, const struct tt_config *), const struct tt_config *config)
{
    char *text = NULL;
    size_t bytes;
    FILE *file = open_memstream(&text, &bytes);

    print(file, config);
    assert_int_equal(fclose(file), 0);
    return text;
}

static char *read_file(const char *path)
{
    FILE *file = fopen(path, "r");
    char *text = calloc(1, 1 << 18);

    if (!file)
        fail_msg("%s: %s", path, strerror(errno));
    assert_true(fread(text, 1, (1 << 18) - 1, file) > 0);
    fclose(file);
    return text;
}

static void defaults_are_those_of_the_design(void **state)
{
    struct tt_config *config = NULL, *empty = parse_good("{}"), *sections = parse_good("spool:\nlog:\n");

    (void)state;
    assert_int_equal(tt_config_new(&config, NULL), TT_OK);
    assert_string_equal(config->spool.root, "/var/spool/tiletrack");
    assert_int_equal(config->spool.settle_ms, 2000);
    assert_int_equal(config->spool.settle_blind_ms, 10000);
    assert_int_equal(config->spool.rescan_ms, 5000);
    assert_true(config->spool.keep_inputs);
    assert_false(config->spool.recursive);
    assert_int_equal(config->spool.reserve_bytes, INT64_C(1) << 30);
    assert_string_equal(config->tracker.model, "tiletrack-small");
    assert_int_equal(config->tracker.clip_frames, 47);
    assert_int_equal(config->tracker.overlap_frames, 8);
    assert_true(config->tracker.occlusion_threshold == 0.5);
    assert_int_equal(config->output.formats, 1u << TT_OUTPUT_NPZ);
    assert_int_equal(config->jobs.max_attempts, 3);
    assert_true(config->devices.automatic);
    assert_int_equal(config->log.level, TT_LOG_INFO);
    assert_int_equal(config->log.format, TT_LOG_JSON);
    assert_null(config->log.file);
    assert_null(config->on_done);
    assert_string_equal(config->metrics.textfile, "/var/lib/tiletrack/tiletrack.prom");
    assert_int_equal(tt_config_diff(config, empty, NULL, 0), 0);
    assert_int_equal(tt_config_diff(config, sections, NULL, 0), 0);
    tt_config_free(config);
    tt_config_free(empty);
    tt_config_free(sections);
    tt_config_free(NULL);
}

static const char example[] =
    "spool:   {root: /var/spool/tiletrack, settle_ms: 2000, settle_blind_ms: 10000, rescan_ms: 5000,\n"
    "          keep_inputs: true, keep_days: 0, reserve_bytes: 1G}\n"
    "tracker: {model: tiletrack-small, clip_frames: 47, overlap_frames: 8, grid: 16, occlusion_threshold: "
    "0.5}\n"
    "output:  {formats: [npz], overlay: false}\n"
    "devices:\n"
    "  - {gpu: 0, precision: fp16, tile: {queries: auto, frames: auto}}\n"
    "  - {gpu: GPU-8f6c0b12, precision: fp32, tile: {queries: 32, frames: 4}}\n"
    "  - {cpu: 2}\n"
    "  - gpu: 0000:3b:00.0\n"
    "log:     {level: info, format: json, file: null}      # null: stderr, so the journal\n"
    "on_done: null\n"
    "metrics: {textfile: /var/lib/tiletrack/tiletrack.prom}\n";

static void reads_the_example_of_the_design(void **state)
{
    struct tt_config *config = parse_good(example);
    const struct tt_config_device *devices = config->devices.items;

    (void)state;
    assert_false(config->devices.automatic);
    assert_int_equal(config->devices.count, 4);
    assert_string_equal(devices[0].gpu, "0");
    assert_int_equal(devices[0].cpu_threads, -1);
    assert_int_equal(devices[0].tile.queries, 0);
    assert_int_equal(tt_config_device_precision(&devices[0]), TT_FP16);
    assert_string_equal(devices[1].gpu, "GPU-8f6c0b12");
    assert_int_equal(tt_config_device_precision(&devices[1]), TT_FP32);
    assert_int_equal(devices[1].tile.queries, 32);
    assert_int_equal(devices[1].tile.frames, 4);
    assert_null(devices[2].gpu);
    assert_int_equal(devices[2].cpu_threads, 2);
    assert_int_equal(tt_config_device_precision(&devices[2]), TT_FP32);
    assert_string_equal(devices[3].gpu, "0000:3b:00.0");
    assert_int_equal(tt_config_device_precision(&devices[3]), TT_FP16);
    tt_config_free(config);
}

/* No value in it is a default. */
static const char unusual[] =
    "spool:\n"
    "  root: \"/srv/a b \\\"c\\\" \\\\ \\u00e9\\u0085#: \"\n"
    "  recursive: true\n  patterns: [\"*.MP4\", '.x y', \"[ab]?.mov\", \"null\", \"-\"]\n  ignore: []\n"
    "  settle_ms: 0\n  settle_blind_ms: 1\n  rescan_ms: 3600000\n  keep_inputs: false\n  keep_days: 7\n"
    "  reserve_bytes: 1536M\n"
    "tracker: {model: /m/base.safetensors, clip_frames: 32, overlap_frames: 31, grid: 3, "
    "occlusion_threshold: 0.1}\n"
    "output: {overlay: true, formats: [npz]}\n"
    "jobs: {max_attempts: 1, backoff_ms: 0, backoff_max_ms: 5, deadline_ms: 1000, deadline_frame_ms: 0}\n"
    "devices: [{cpu: auto, tile: {queries: 4096, frames: 47}}, {gpu: \"1\", precision: fp32}]\n"
    "workers: {start_ms: 1000, stall_ms: 2000, kill_ms: 0, respawn_ms: 0, respawn_max_ms: 1}\n"
    "daemon: {runtime_dir: /tmp/r, socket: /tmp/s, drain_ms: 1}\n"
    "log: {level: error, format: text, file: /var/log/x.log, burst: 0}\n"
    "metrics: {textfile: null, interval_ms: 1000}\n"
    "on_done: '/usr/bin/it''s done'\n";

static void prints_what_it_reads_back(void **state)
{
    struct tt_config *config = parse_good(unusual), *initial = parse_good("{}"), *again;
    const struct tt_option *changed[64];
    void (*const prints[])(FILE *, const struct tt_config *) = {tt_config_print, tt_config_print_commented};

    (void)state;
    assert_string_equal(config->spool.root, "/srv/a b \"c\" \\ \u00e9\xc2\x85#: ");
    assert_string_equal(config->on_done, "/usr/bin/it's done");
    /* Only output.formats has no other value. */
    assert_int_equal(tt_config_diff(config, initial, changed, 64), tt_options_count - 1);
    for (int i = 0; i < 2; i++) {
        char *text = print_with(prints[i], config);
        again = parse_good(text);
        if (tt_config_diff(config, again, changed, 64) > 0)
            fail_msg("%s: not read back from:\n%s", changed[0]->path, text);
        tt_config_free(again);
        free(text);
    }
    again = parse_good(example);
    assert_true(tt_config_diff(again, config, NULL, 0) > 0);
    tt_config_free(config);
    config = again;
    char *text = print_with(tt_config_print, config);
    again = parse_good(text);
    assert_int_equal(tt_config_diff(config, again, NULL, 0), 0);
    free(text);
    tt_config_free(again);
    tt_config_free(config);
    tt_config_free(initial);
}

static void default_file_is_the_table(void **state)
{
    struct tt_config *config = parse_good("{}"), *shipped;
    char path[4096], *text, *wanted = print_with(tt_config_print_commented, config);

    (void)state;
    snprintf(path, sizeof path, "%s/config/tiletrack.yaml", getenv("TILETRACK_SOURCE"));
    text = read_file(path);
    if (strcmp(text, wanted) != 0)
        fail_msg("config/tiletrack.yaml is not what the table says: tiletrack-config-doc yaml > "
                 "config/tiletrack.yaml");
    shipped = parse_good(text);
    assert_int_equal(tt_config_diff(config, shipped, NULL, 0), 0);
    tt_config_free(shipped);
    tt_config_free(config);
    free(text);
    free(wanted);
}

static const struct wrong {
    const char *text;
    int line, column;
    const char *cause; /* a part of the problem's text */
} wrongs[] = {
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
    {"tracker: {occlusion_threshold: 1.01}\n", 1, 32, "a number, 0 to 1"},
    {"tracker: {occlusion_threshold: 0,5}\n", 1, 34, "unknown key `5`"},
    {"tracker: {occlusion_threshold: nan}\n", 1, 32, "a number, 0 to 1"},
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

static void a_byte_order_mark_is_not_in_the_way(void **state)
{
    struct tt_config *config = parse_good("\xef\xbb\xbflog: {level: debug}\n");

    (void)state;
    assert_int_equal(config->log.level, TT_LOG_DEBUG);
    tt_config_free(config);
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

static void diff_names_what_changed_and_what_needs_a_restart(void **state)
{
    struct tt_config *before = parse_good("{}");
    struct tt_config *after =
        parse_good("log: {level: debug}\nspool: {root: /b, ignore: [.x]}\ndevices: [{cpu: 1}]\n");
    struct tt_config *more = parse_good("log: {level: debug}\nspool: {root: /b, ignore: [.x]}\n"
                                        "devices: [{cpu: 1, tile: {frames: 3}}]\n");
    const struct tt_option *changed[4] = {NULL};

    (void)state;
    assert_int_equal(tt_config_diff(before, after, changed, 4), 4);
    assert_string_equal(changed[0]->path, "spool.root");
    assert_string_equal(changed[1]->path, "spool.ignore");
    assert_string_equal(changed[2]->path, "devices");
    assert_string_equal(changed[3]->path, "log.level");
    assert_true(changed[0]->flags & TT_OPTION_RESTART);
    assert_false(changed[1]->flags & TT_OPTION_RESTART);
    assert_true(changed[2]->flags & TT_OPTION_RESTART);
    assert_false(changed[3]->flags & TT_OPTION_RESTART);
    assert_int_equal(tt_config_diff(after, more, changed, 1), 1);
    assert_string_equal(changed[0]->path, "devices");
    tt_config_free(before);
    tt_config_free(after);
    tt_config_free(more);
}

static void the_environment_is_not_read(void **state)
{
    struct tt_config *config;

    (void)state;
    setenv("TILETRACK_SPOOL_ROOT", "/elsewhere", 1);
    setenv("TILETRACK_LOG_LEVEL", "debug", 1);
    config = parse_good("{}");
    assert_string_equal(config->spool.root, "/var/spool/tiletrack");
    assert_int_equal(config->log.level, TT_LOG_INFO);
    tt_config_free(config);
}

static void a_directory_overrides_tracker_and_output_only(void **state)
{
    static const struct wrong refused[] = {
        {"spool: {keep_inputs: false}\n", 1, 1, "`spool` has no place in a directory's file"},
        {"on_done: /bin/sh\n", 1, 1, "`on_done` has no place"},
        {"devices: auto\n", 1, 1, "`devices` has no place"},
        {"tracker: {model: /etc/shadow}\n", 1, 18, "may not be a path below incoming"},
        {"tracker: {grit: 3}\n", 1, 11, "did you mean `grid`?"},
        {"sool: {}\n", 1, 1, "here belong `tracker`, `output`"},
        {"tracker: {clip_frames: 10}\n", 1, 24, "less than"},
    };
    struct tt_config *base =
        parse_good("tracker: {grid: 4, overlap_frames: 20}\nspool: {root: /a, patterns: [.q]}\n");
    struct tt_config *config = NULL;
    static const char good[] = "tracker: {clip_frames: 30, model: tiletrack-base}\noutput: {overlay: true}\n";

    (void)state;
    assert_int_equal(tt_config_parse_directory(&config, base, good, strlen(good), "d", NULL, NULL), TT_OK);
    assert_int_equal(config->tracker.clip_frames, 30);
    assert_int_equal(config->tracker.overlap_frames, 20);
    assert_int_equal(config->tracker.grid, 4);
    assert_string_equal(config->tracker.model, "tiletrack-base");
    assert_true(config->output.overlay);
    assert_string_equal(config->spool.root, "/a");
    assert_string_equal(config->spool.patterns.items[0], ".q");
    assert_int_equal(tt_config_diff(base, config, NULL, 0), 3);
    tt_config_free(config);
    for (size_t i = 0; i < sizeof refused / sizeof refused[0]; i++) {
        struct tt_config_problems problems;
        const char *text = refused[i].text;

        config = NULL;
        assert_int_equal(tt_config_parse_directory(&config, base, text, strlen(text), "d", &problems, NULL),
                         TT_REFUSE);
        assert_null(config);
        if (problems.total != 1 || problems.items[0].line != refused[i].line ||
            problems.items[0].column != refused[i].column ||
            !strstr(problems.items[0].text, refused[i].cause))
            fail_msg("%s: %d:%d: %s", text, problems.items[0].line, problems.items[0].column,
                     problems.items[0].text);
    }
    tt_config_free(base);
}

static void write_file(const char *path, const char *text, size_t bytes)
{
    FILE *file = fopen(path, "w");

    assert_non_null(file);
    assert_int_equal(fwrite(text, 1, bytes, file), bytes);
    fclose(file);
}

static void loads_files(void **state)
{
    char folder[] = "/tmp/tt-config-XXXXXX", path[64];
    static char large[(1 << 20) + 1];
    struct tt_config *base = parse_good("{}"), *config = NULL;
    struct tt_config_problems problems;
    struct tt_error err;
    int fd;

    (void)state;
    assert_non_null(mkdtemp(folder));
    snprintf(path, sizeof path, "%s/tiletrack.yaml", folder);
    fd = open(folder, O_RDONLY | O_DIRECTORY);

    assert_int_equal(tt_config_load(&config, path, &problems, &err), TT_REFUSE);
    assert_non_null(strstr(err.text, "tiletrack.yaml: No such file or directory"));
    assert_int_equal(tt_config_load(&config, folder, &problems, &err), TT_REFUSE);
    assert_non_null(strstr(err.text, "Is a directory"));
    assert_null(config);
    config = base;
    assert_int_equal(tt_config_load_directory(&config, base, fd, "sub", &problems, &err), TT_OK);
    assert_null(config);

    memset(large, '#', sizeof large);
    write_file(path, large, sizeof large);
    assert_int_equal(tt_config_load(&config, path, &problems, &err), TT_REFUSE);
    assert_non_null(strstr(err.text, "larger than 1024 KiB"));
    write_file(path, large, (1 << 16) + 1);
    assert_int_equal(tt_config_load_directory(&config, base, fd, "sub", &problems, &err), TT_REFUSE);
    assert_non_null(strstr(err.text, "larger than 64 KiB"));

    write_file(path, "tracker:\n  grid: 5\n", 19);
    assert_int_equal(tt_config_load(&config, path, &problems, &err), TT_OK);
    assert_int_equal(config->tracker.grid, 5);
    tt_config_free(config);
    assert_int_equal(tt_config_load_directory(&config, base, fd, "sub", &problems, &err), TT_OK);
    assert_int_equal(config->tracker.grid, 5);
    tt_config_free(config);
    config = NULL;
    write_file(path, "tracker:\n  grid: 500\n", 21);
    assert_int_equal(tt_config_load_directory(&config, base, fd, "sub/tiletrack.yaml", &problems, &err),
                     TT_REFUSE);
    assert_non_null(strstr(err.text, "sub/tiletrack.yaml:2:9: `tracker.grid` is `500`"));

    assert_int_equal(rename(path, "/tmp/tt-config-other.yaml"), 0);
    assert_int_equal(symlink("/tmp/tt-config-other.yaml", path), 0);
    assert_int_equal(tt_config_load_directory(&config, base, fd, "sub", &problems, &err), TT_REFUSE);
    assert_non_null(strstr(err.text, "a symbolic link, which is not followed"));
    unlink(path);
    unlink("/tmp/tt-config-other.yaml");
    assert_int_equal(mkfifo(path, 0600), 0);
    assert_int_equal(tt_config_load_directory(&config, base, fd, "sub", &problems, &err), TT_REFUSE);
    assert_non_null(strstr(err.text, "not a regular file"));
    assert_null(config);
    unlink(path);
    close(fd);
    rmdir(folder);
    tt_config_free(base);
}

static void patterns_match_endings_and_globs(void **state)
{
    struct tt_config *config = parse_good("spool: {patterns: [.mp4, \"shot-*.mov\"]}\n");
    const struct tt_config_list *list = &config->spool.patterns;

    (void)state;
    assert_true(tt_config_matches(list, "bear.mp4"));
    assert_true(tt_config_matches(list, "BEAR.MP4"));
    assert_true(tt_config_matches(list, "\xff\n.mp4"));
    assert_true(tt_config_matches(list, "Shot-1.mov"));
    assert_false(tt_config_matches(list, "a shot-1.mov"));
    assert_false(tt_config_matches(list, "mp4"));
    assert_false(tt_config_matches(list, "bear.mp4.part"));
    assert_false(tt_config_matches(list, ""));
    assert_true(tt_config_matches(&config->spool.ignore, "bear.mp4.part"));
    assert_true(tt_config_matches(&config->spool.ignore, "bear.mp4~"));
    assert_false(tt_config_matches(&config->spool.ignore, "bear.mp4"));
    tt_config_free(config);
}

static void manual_is_well_formed_and_whole(void **state)
{
    char path[] = "/tmp/tt-manual-XXXXXX", command[128], line[512], *text;
    int fd = mkstemp(path);
    FILE *file = fdopen(fd, "w");

    (void)state;
    tt_config_print_manual(file);
    assert_int_equal(fclose(file), 0);
    text = read_file(path);
    for (int i = 0; i < tt_options_count + tt_device_options_count; i++) {
        snprintf(line, sizeof line, "\n.It Cm %s\n",
                 i < tt_options_count ? tt_options[i].path : tt_device_options[i - tt_options_count].path);
        if (!strstr(text, line))
            fail_msg("missing: %s", line);
    }
    free(text);
    if (system("command -v mandoc >/dev/null") != 0) {
        print_message("mandoc is not installed: the manual's form is not checked\n");
    } else {
        snprintf(command, sizeof command, "mandoc -T lint -W style %s", path);
        file = popen(command, "r");
        assert_non_null(file);
        while (fgets(line, sizeof line, file))
            if (!strstr(line, "referenced manual not found")) /* ours are not installed here */
                fail_msg("%s", line);
        pclose(file);
    }
    unlink(path);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(defaults_are_those_of_the_design),
        cmocka_unit_test(reads_the_example_of_the_design),
        cmocka_unit_test(prints_what_it_reads_back),
        cmocka_unit_test(default_file_is_the_table),
        cmocka_unit_test(refuses_with_place_cause_and_way_out),
        cmocka_unit_test(a_nul_in_the_text_is_refused),
        cmocka_unit_test(a_byte_order_mark_is_not_in_the_way),
        cmocka_unit_test(all_problems_are_reported_at_once_and_in_order),
        cmocka_unit_test(the_list_of_problems_is_cut),
        cmocka_unit_test(what_a_file_says_cannot_garble_a_terminal),
        cmocka_unit_test(limits_of_the_table_hold),
        cmocka_unit_test(every_option_refuses_another_type),
        cmocka_unit_test(every_key_is_suggested_for_a_slip_of_the_pen),
        cmocka_unit_test(diff_names_what_changed_and_what_needs_a_restart),
        cmocka_unit_test(the_environment_is_not_read),
        cmocka_unit_test(a_directory_overrides_tracker_and_output_only),
        cmocka_unit_test(loads_files),
        cmocka_unit_test(patterns_match_endings_and_globs),
        cmocka_unit_test(manual_is_well_formed_and_whole),
    };
    return cmocka_run_group_tests_name("config", tests, NULL, NULL);
}

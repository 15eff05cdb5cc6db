/* tests/unit/test_config.c: every option is read, printed, compared and documented by its line in the table;
 * files are loaded whole or not at all, also for want of memory.
 */
#include "tests/unit/config_fixture.h"

#include <errno.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

/* Makes an allocation fail, where no sanitizer has taken the allocator. */
static long allocations_left = -1, blocks; /* -1: none fails; blocks: not freed yet */
#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__) && !defined(__clang__)
#define FAILS_ALLOCATIONS 1
#pragma GCC visibility push(default) /* for libc and libyaml as well */
void *__libc_malloc(size_t bytes);
void *__libc_calloc(size_t count, size_t bytes);
void *__libc_realloc(void *block, size_t bytes);
void __libc_free(void *block);

static bool refuse_memory(void)
{
    if (allocations_left == 0) {
        errno = ENOMEM;
        return true;
    }
    allocations_left -= allocations_left > 0;
    return false;
}

void *malloc(size_t bytes)
{
    void *block = refuse_memory() ? NULL : __libc_malloc(bytes);

    blocks += block != NULL;
    return block;
}

void *calloc(size_t count, size_t bytes)
{
    void *block = refuse_memory() ? NULL : __libc_calloc(count, bytes);

    blocks += block != NULL;
    return block;
}

void *realloc(void *old, size_t bytes)
{
    void *block = refuse_memory() ? NULL : __libc_realloc(old, bytes);

    blocks += block && !old;
    return block;
}

void free(void *block)
{
    blocks -= block != NULL;
    __libc_free(block);
}
#pragma GCC visibility pop
#else
#define FAILS_ALLOCATIONS 0
#endif

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
    assert_int_equal(config->tracker.refine, TT_REFINE_OFF);
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
    "occlusion_threshold: 0.1, refine: native}\n"
    "output: {overlay: true, formats: [jsonl, npz]}\n"
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
    assert_int_equal(tt_config_diff(config, initial, changed, 64), tt_options_count);
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

static void a_byte_order_mark_is_not_in_the_way(void **state)
{
    struct tt_config *config = parse_good("\xef\xbb\xbflog: {level: debug}\n");

    (void)state;
    assert_int_equal(config->log.level, TT_LOG_DEBUG);
    tt_config_free(config);
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
    static const char good[] =
        "tracker: {clip_frames: 30, model: tiletrack-base}\noutput: {formats: [csv]}\n";

    (void)state;
    assert_int_equal(tt_config_parse_directory(&config, base, good, strlen(good), "d", NULL, NULL), TT_OK);
    assert_int_equal(config->tracker.clip_frames, 30);
    assert_int_equal(config->tracker.overlap_frames, 20);
    assert_int_equal(config->tracker.grid, 4);
    assert_string_equal(config->tracker.model, "tiletrack-base");
    assert_int_equal(config->output.formats, 1u << TT_OUTPUT_CSV);
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
    char folder[] = "/tmp/tt-config-XXXXXX", path[64], other[64];
    static char large[(1 << 20) + 1];
    struct tt_config *base = parse_good("{}"), *config = NULL;
    struct tt_config_problems problems;
    struct tt_error err;
    int fd;

    (void)state;
    assert_non_null(mkdtemp(folder));
    snprintf(path, sizeof path, "%s/tiletrack.yaml", folder);
    snprintf(other, sizeof other, "%s/other.yaml", folder);
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

    assert_int_equal(rename(path, other), 0);
    assert_int_equal(symlink(other, path), 0);
    assert_int_equal(tt_config_load_directory(&config, base, fd, "sub", &problems, &err), TT_REFUSE);
    assert_non_null(strstr(err.text, "a symbolic link, which is not followed"));
    unlink(path);
    unlink(other);
    assert_int_equal(mkfifo(path, 0600), 0);
    assert_int_equal(tt_config_load_directory(&config, base, fd, "sub", &problems, &err), TT_REFUSE);
    assert_non_null(strstr(err.text, "not a regular file"));
    assert_null(config);
    unlink(path);
    close(fd);
    rmdir(folder);
    tt_config_free(base);
}

static void want_of_memory_leaves_nothing_behind(void **state)
{
    struct tt_config *base, *config = NULL;
    struct tt_config_problems problems;
    enum tt_status status = TT_RETRY_LATER;
    struct tt_error err;

    (void)state;
    if (!FAILS_ALLOCATIONS)
        skip();
    base = parse_good(unusual);
    for (int way = 0; way < 3; way++) {
        long n = 0, before = 0;

        for (status = TT_RETRY_LATER; status == TT_RETRY_LATER; n++) {
            before = blocks;
            allocations_left = n;
            if (way == 0)
                status = tt_config_parse(&config, unusual, sizeof unusual - 1, "t", &problems, &err);
            else if (way == 1)
                status = tt_config_parse(&config, example, sizeof example - 1, "t", &problems, &err);
            else
                status = tt_config_parse_directory(&config, base, "output: {formats: [csv]}\n", 25, "t",
                                                   &problems, &err);
            allocations_left = -1;
            if (status == TT_RETRY_LATER) {
                assert_null(config);
                assert_int_equal(blocks, before);
                assert_non_null(strstr(err.text, "Cannot allocate memory"));
            }
        }
        assert_int_equal(status, TT_OK);
        assert_true(n > 20);
        tt_config_free(config);
        config = NULL;
        assert_int_equal(blocks, before);
    }
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
        cmocka_unit_test(a_byte_order_mark_is_not_in_the_way),
        cmocka_unit_test(diff_names_what_changed_and_what_needs_a_restart),
        cmocka_unit_test(the_environment_is_not_read),
        cmocka_unit_test(a_directory_overrides_tracker_and_output_only),
        cmocka_unit_test(loads_files),
        cmocka_unit_test(want_of_memory_leaves_nothing_behind),
        cmocka_unit_test(patterns_match_endings_and_globs),
        cmocka_unit_test(manual_is_well_formed_and_whole),
    };
    return cmocka_run_group_tests_name("config", tests, NULL, NULL);
}

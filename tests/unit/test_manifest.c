/* tests/unit/test_manifest.c: names are bytes and stay what they are; manifests are read back as written, and
 * damaged ones are refused. */
#include "daemon/spool/manifest.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <jansson.h>
#include <cmocka.h>

static char directory[64];

static int start(void **state)
{
    (void)state;
    strcpy(directory, "/tmp/tt-manifest-XXXXXX");
    return mkdtemp(directory) ? 0 : -1;
}

static int stop(void **state)
{
    char command[128];

    (void)state;
    snprintf(command, sizeof command, "rm -rf %s", directory);
    return system(command);
}

static const char *const odd_names[] = {
    "bear.mp4",
    "with blank.mp4",
    "-dash.mp4",
    "new\nline\t.mp4",
    "\xff\xfe invalid\x80.mp4",
    "100%.mp4",
    "%41.mp4",
    "b\xc3\xa4r \xf0\x9f\x90\xbb.mp4",
    "'quote\".mp4",
    "back\\slash.mp4",
    "$(rm).mp4",
};

enum { ODD_NAMES = sizeof odd_names / sizeof *odd_names };

static void names_survive_encoding(void **state)
{
    char every[256];

    (void)state;
    for (int i = 0; i < 255; i++)
        every[i] = (char)(i + 1);
    every[255] = '\0';
    for (int i = 0; i <= ODD_NAMES; i++) {
        const char *name = i < ODD_NAMES ? odd_names[i] : every;
        char *text = tt_name_encode(name), *back = tt_name_decode(text);

        assert_string_equal(back, name);
        for (const char *c = text; *c; c++)
            assert_true(*c > ' ' && *c < 0x7f);
        free(text);
        free(back);
    }
    assert_null(tt_name_decode("a%0"));
    assert_null(tt_name_decode("a%zz"));
    assert_null(tt_name_decode("a%00b"));
}

/* The shell itself says whether a word means the name. */
static void names_survive_the_shell(void **state)
{
    (void)state;
    for (int i = 0; i < ODD_NAMES; i++) {
        char *word = tt_name_shell(odd_names[i]), *command, got[512] = "";
        FILE *shell;

        assert_true(asprintf(&command, "printf %%s %s", word) > 0);
        setenv("TT_COMMAND", command, 1);
        shell = popen("bash -c \"$TT_COMMAND\"", "r");
        assert_non_null(shell);
        got[fread(got, 1, sizeof got - 1, shell)] = '\0';
        assert_int_equal(pclose(shell), 0);
        assert_string_equal(got, odd_names[i]);
        free(command);
        free(word);
    }
}

static void joined_names_fit(void **state)
{
    char base[400], name[TT_NAME_BYTES + 1];

    (void)state;
    tt_name_join(name, "bear.mp4", 4, 1, ".tracks.npz");
    assert_string_equal(name, "bear.tracks.npz");
    tt_name_join(name, "bear.mp4", 4, 12, ".mp4");
    assert_string_equal(name, "bear~12.mp4");
    memset(base, 'x', sizeof base);
    tt_name_join(name, base, 255, 2, ".tracks.npz");
    assert_int_equal(strlen(name), TT_NAME_BYTES);
    assert_string_equal(name + 255 - 13, "~2.tracks.npz");
    for (size_t i = 0; i + 2 < sizeof base; i += 3) /* characters of three bytes: none is split */
        memcpy(base + i, "\xe2\x82\xac", 3);
    for (int number = 1; number < 2000; number *= 10) {
        size_t stem;

        tt_name_join(name, base, 399, number, ".tracks.npz");
        stem = strcspn(name, "~.");
        assert_int_equal(stem % 3, 0);
        assert_true(strlen(name) > TT_NAME_BYTES - 3 && strlen(name) <= TT_NAME_BYTES);
    }
    memset(base, '\xff', sizeof base); /* not UTF-8: cut anywhere */
    tt_name_join(name, base, 255, 1, ".tracks.npz");
    assert_int_equal(strlen(name), TT_NAME_BYTES);
}

static void knows_what_is_no_job(void **state)
{
    (void)state;
    assert_true(tt_name_is_reserved(".bear.mp4.Xa81c2"));
    assert_true(tt_name_is_reserved("bear.mp4.part"));
    assert_true(tt_name_is_reserved("bear.mp4.filepart"));
    assert_true(tt_name_is_reserved("bear.queries.csv"));
    assert_true(tt_name_is_reserved("bear.queries.json"));
    assert_true(tt_name_is_reserved("bear.mask.png"));
    assert_true(tt_name_is_reserved("tiletrack.yaml"));
    assert_false(tt_name_is_reserved("bear.mp4"));
    assert_false(tt_name_is_reserved("part"));
    assert_int_equal(tt_name_stem("bear.mp4"), 4);
    assert_int_equal(tt_name_stem("bear"), 4);
    assert_int_equal(tt_name_stem("a.b.mp4"), 3);
}

static void paths_stay_where_they_are(void **state)
{
    char *deep = malloc(5000);

    (void)state;
    assert_true(tt_path_is_safe("a.mp4"));
    assert_true(tt_path_is_safe("a/b/..c/.d"));
    assert_false(tt_path_is_safe(""));
    assert_false(tt_path_is_safe("/etc/passwd"));
    assert_false(tt_path_is_safe("a//b"));
    assert_false(tt_path_is_safe("a/"));
    assert_false(tt_path_is_safe("../a"));
    assert_false(tt_path_is_safe("a/../../b"));
    assert_false(tt_path_is_safe("a/./b"));
    memset(deep, 'a', 4999);
    deep[4999] = '\0';
    assert_false(tt_path_is_safe(deep)); /* a component of more than 255 bytes */
    for (int i = 1; i < 4999; i += 2)
        deep[i] = '/';
    assert_false(tt_path_is_safe(deep)); /* longer than PATH_MAX */
    free(deep);
    assert_string_equal(tt_path_mirrored("priority/a/b.mp4"), "a/b.mp4");
    assert_string_equal(tt_path_mirrored("a/priority/b.mp4"), "a/priority/b.mp4");
    assert_string_equal(tt_path_mirrored("priority.mp4"), "priority.mp4");
}

/* --- manifests --------------------------------------------------------------------------------------------
 */

static struct tt_manifest sample(const char *name)
{
    struct tt_manifest manifest = {
        .id = "20240131T120501Z-4f2a9c01",
        .state = TT_JOB_FAILING,
        .outcome = TT_OUTCOME_FAILED,
        .source = strdup(name),
        .output =
            {[TT_OUTPUT_NPZ] = strdup("sub/x.tracks.npz"), [TT_OUTPUT_JSONL] = strdup("sub/y.tracks.jsonl")},
        .target = strdup(name),
        .claimed = {UINT64_C(0xfffffffffffffff0), 123456789012, -5, 7},
        .seen = {3, 0, 1, 2},
        .has_sidecar = {true, false, true},
        .attempts = 2,
        .serial = 5,
        .running = true,
        .changes = 1,
        .interruptions = 4,
        .claimed_at_ns = INT64_C(1706702701000000001),
        .cause = strdup("no \"video\" stream\x01 in it\xff"),
        .last_words = strdup(""),
    };

    return manifest;
}

static void reads_back_what_was_written(void **state)
{
    (void)state;
    for (int i = 0; i < ODD_NAMES; i++) {
        struct tt_manifest written = sample(odd_names[i]), read;
        struct tt_error err;

        assert_int_equal(tt_manifest_write(&written, directory, &err), TT_OK);
        assert_int_equal(tt_manifest_read(&read, directory, &err), TT_OK);
        assert_string_equal(read.id, written.id);
        assert_int_equal(read.state, written.state);
        assert_int_equal(read.outcome, written.outcome);
        assert_string_equal(read.source, written.source);
        assert_string_equal(read.output[TT_OUTPUT_NPZ], written.output[TT_OUTPUT_NPZ]);
        assert_null(read.output[TT_OUTPUT_CSV]);
        assert_string_equal(read.output[TT_OUTPUT_JSONL], written.output[TT_OUTPUT_JSONL]);
        assert_int_equal(tt_manifest_formats(&read), 1u << TT_OUTPUT_NPZ | 1u << TT_OUTPUT_JSONL);
        assert_string_equal(tt_manifest_output(&read), "sub/x.tracks.npz");
        assert_string_equal(read.target, written.target);
        assert_true(tt_identity_equal(&read.claimed, &written.claimed));
        assert_true(tt_identity_equal(&read.seen, &written.seen));
        assert_memory_equal(read.has_sidecar, written.has_sidecar, sizeof read.has_sidecar);
        assert_int_equal(read.attempts, 2);
        assert_int_equal(read.serial, 5);
        assert_true(read.running);
        assert_int_equal(read.changes, 1);
        assert_int_equal(read.interruptions, 4);
        assert_int_equal(read.claimed_at_ns, written.claimed_at_ns);
        assert_string_equal(read.cause, "no \"video\" stream\x01 in it\xef\xbf\xbd");
        assert_null(read.cause_status);
        assert_string_equal(read.last_words, "");
        tt_manifest_free(&read);
        tt_manifest_free(&written);
    }
}

/* Writes a manifest with one key replaced (NULL: removed) and expects it to be refused. */
static void refused_with(const char *key, json_t *value)
{
    struct tt_manifest manifest = sample("a.mp4"), read = {.attempts = 77};
    struct tt_error err = {0};
    char path[128];
    json_t *object;

    assert_int_equal(tt_manifest_write(&manifest, directory, &err), TT_OK);
    snprintf(path, sizeof path, "%s/" TT_MANIFEST_NAME, directory);
    object = json_load_file(path, 0, NULL);
    assert_non_null(object);
    if (value)
        json_object_set_new(object, key, value);
    else
        json_object_del(object, key);
    assert_int_equal(json_dump_file(object, path, 0), 0);
    json_decref(object);
    assert_int_equal(tt_manifest_read(&read, directory, &err), TT_BAD_INPUT);
    assert_non_null(strstr(err.text, key));
    assert_int_equal(read.attempts, 77); /* untouched */
    tt_manifest_free(&manifest);
}

/* The text names the format that is wrong. */
static void refused_npz(const char *bytes)
{
    struct tt_manifest manifest = sample("a.mp4"), read;
    struct tt_error err = {0};
    char path[128];
    json_t *object;

    assert_int_equal(tt_manifest_write(&manifest, directory, &err), TT_OK);
    snprintf(path, sizeof path, "%s/" TT_MANIFEST_NAME, directory);
    object = json_load_file(path, 0, NULL);
    json_object_set_new(object, "outputs", json_pack("{s{ss}}", "npz", "bytes", bytes));
    assert_int_equal(json_dump_file(object, path, 0), 0);
    json_decref(object);
    assert_int_equal(tt_manifest_read(&read, directory, &err), TT_BAD_INPUT);
    assert_non_null(strstr(err.text, "\"npz\""));
    tt_manifest_free(&manifest);
}

static void refuses_damaged_manifests(void **state)
{
    static const char *const keys[] = {"version", "job",      "state",         "outcome",       "source",
                                       "outputs", "sidecars", "claimed",       "seen",          "attempts",
                                       "serial",  "changes",  "interruptions", "claimed_at_ns", "target"};
    struct tt_manifest read;
    struct tt_error err;
    char path[128];
    FILE *file;

    (void)state;
    for (size_t i = 0; i < sizeof keys / sizeof *keys; i++) {
        refused_with(keys[i], NULL);
        refused_with(keys[i], json_real(1.5));
    }
    refused_with("outputs", json_real(1.5));
    refused_with("version", json_integer(1));
    refused_with("origin", json_integer(2));
    refused_with("state", json_string("eaten"));
    refused_with("attempts", json_integer(-1));
    refused_with("source", json_pack("{ss}", "bytes", "../../etc/passwd"));
    refused_with("target", json_pack("{ss}", "bytes", "/etc/passwd"));
    refused_with("outputs", json_pack("{s{ss}}", "gif", "bytes", "a.tracks.gif"));
    refused_with("outputs", json_pack("{s{ss}, s{ss}}", "npz", "bytes", "a/x.tracks.npz", "csv", "bytes",
                                      "b/x.tracks.csv"));
    refused_npz("a%00b");
    refused_npz("../a.tracks.npz");
    refused_with("sidecars", json_pack("[s]", "video"));
    snprintf(path, sizeof path, "%s/" TT_MANIFEST_NAME, directory);
    file = fopen(path, "w");
    fputs("{\"version\": 2, \"jo", file);
    fclose(file);
    assert_int_equal(tt_manifest_read(&read, directory, &err), TT_BAD_INPUT);
    unlink(path);
    assert_int_equal(tt_manifest_read(&read, directory, &err), TT_BAD_INPUT);
}

static void ids_are_new(void **state)
{
    char a[TT_JOB_ID_BYTES], b[TT_JOB_ID_BYTES];
    struct tt_error err;

    (void)state;
    assert_int_equal(tt_manifest_new_id(a, INT64_C(1706702701) * 1000000000, &err), TT_OK);
    assert_int_equal(tt_manifest_new_id(b, INT64_C(1706702701) * 1000000000, &err), TT_OK);
    assert_int_equal(strncmp(a, "20240131T120501Z-", 17), 0);
    assert_string_not_equal(a, b);
    assert_true(tt_path_is_safe(a));
}

static void reasons_say_how_to_retry(void **state)
{
    struct tt_manifest manifest = sample("-a b.mp4");
    bool has_sidecar[TT_SPOOL_SIDECARS];
    struct tt_error err;
    char path[128], *source;
    json_t *object;

    (void)state;
    snprintf(path, sizeof path, "%s/" TT_REASON_NAME, directory);
    assert_int_equal(tt_reason_write(&manifest, directory, &err), TT_OK);
    object = json_load_file(path, 0, NULL);
    assert_string_equal(json_string_value(json_object_get(object, "retry")), "tiletrack retry '-a b.mp4'");
    assert_int_equal(json_integer_value(json_object_get(object, "attempts")), 2);
    json_decref(object);
    assert_int_equal(tt_reason_read(&source, has_sidecar, path, &err), TT_OK);
    assert_string_equal(source, "-a b.mp4");
    assert_memory_equal(has_sidecar, manifest.has_sidecar, sizeof has_sidecar);
    free(source);
    tt_manifest_free(&manifest);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(names_survive_encoding),    cmocka_unit_test(names_survive_the_shell),
        cmocka_unit_test(joined_names_fit),          cmocka_unit_test(knows_what_is_no_job),
        cmocka_unit_test(paths_stay_where_they_are), cmocka_unit_test(reads_back_what_was_written),
        cmocka_unit_test(refuses_damaged_manifests), cmocka_unit_test(ids_are_new),
        cmocka_unit_test(reasons_say_how_to_retry),
    };
    return cmocka_run_group_tests_name("manifest", tests, start, stop);
}

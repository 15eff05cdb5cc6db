/* daemon/spool/manifest.c: manifest.json and reason.json.
 *
 * Invariants: what is written is read back to the same values; a manifest is there whole or not at all
 * (core/fsio). Names stand twice: "bytes" exact and "text" for people; only "bytes" is read.
 * Fails: as the disk does; on want of memory; on files that this program did not write.
 */
#include "daemon/spool/manifest.h"

#include "daemon/spool/step.h"

#include <errno.h>
#include <jansson.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <time.h>

enum { MANIFEST_VERSION = 2, REASON_VERSION = 1, MANIFEST_BYTES_MAX = 1 << 20, WORDS_BYTES_MAX = 8192 };

static const char *const state_names[] = {"claimed", "committing", "failing", "returning", "retrying"};
static const char *const outcome_names[] = {"none", "done", "truncated", "failed"};

const char *tt_job_state_name(enum tt_job_state state)
{
    return state_names[state];
}

const char *tt_outcome_name(enum tt_outcome outcome)
{
    return outcome_names[outcome];
}

unsigned tt_manifest_formats(const struct tt_manifest *manifest)
{
    unsigned formats = 0;

    for (int i = 0; i < TT_OUTPUTS; i++)
        formats |= manifest->output[i] ? 1u << i : 0;
    return formats;
}

const char *tt_manifest_output(const struct tt_manifest *manifest)
{
    for (int i = 0; i < TT_OUTPUTS; i++)
        if (manifest->output[i])
            return manifest->output[i];
    return NULL;
}

static void utc(char *text, size_t bytes, const char *format, int64_t wall_ns)
{
    time_t seconds = (time_t)(wall_ns / 1000000000);
    struct tm parts;

    if (!gmtime_r(&seconds, &parts) || strftime(text, bytes, format, &parts) == 0)
        snprintf(text, bytes, "%lld", (long long)seconds);
}

enum tt_status tt_manifest_new_id(char *id, int64_t wall_ns, struct tt_error *err)
{
    char when[TT_JOB_ID_BYTES - 10];
    uint32_t random;

    if (getrandom(&random, sizeof random, 0) != sizeof random)
        return tt_fail_errno(err, TT_RETRY_LATER, errno, "random numbers for a job id");
    utc(when, sizeof when, "%Y%m%dT%H%M%SZ", wall_ns);
    snprintf(id, TT_JOB_ID_BYTES, "%s-%08x", when, random);
    return TT_OK;
}

enum tt_status tt_manifest_set(char **field, const char *value, struct tt_error *err)
{
    char *copy = value ? strdup(value) : NULL;

    if (value && !copy)
        return tt_fail_errno(err, TT_RETRY_LATER, ENOMEM, "manifest");
    free(*field);
    *field = copy;
    return TT_OK;
}

void tt_manifest_free(struct tt_manifest *manifest)
{
    free(manifest->source);
    for (int i = 0; i < TT_OUTPUTS; i++)
        free(manifest->output[i]);
    free(manifest->origin);
    free(manifest->target);
    free(manifest->cause);
    free(manifest->cause_status);
    free(manifest->last_words);
    *manifest = (struct tt_manifest){0};
}

/* --- writing -----------------------------------------------------------------------------------------------
 */

/* Objects are built without checks: a part that could not be made is NULL, json_object_set_new refuses it,
 * and `bad` notes that. */
static void put(json_t *object, const char *key, json_t *value, bool *bad)
{
    if (json_object_set_new(object, key, value) != 0)
        *bad = true;
}

static json_t *words_json(const char *words)
{
    char *cut = words ? strndup(words, WORDS_BYTES_MAX) : NULL;
    char *text = cut ? tt_name_text(cut) : NULL;
    json_t *value = words ? (text ? json_string(text) : NULL) : json_null();

    free(cut);
    free(text);
    return value;
}

static json_t *name_json(const char *name)
{
    json_t *value;
    char *bytes, *text;
    bool bad = false;

    if (!name)
        return json_null();
    value = json_object();
    bytes = tt_name_encode(name);
    text = tt_name_text(name);
    put(value, "text", text ? json_string(text) : NULL, &bad);
    put(value, "bytes", bytes ? json_string(bytes) : NULL, &bad);
    free(bytes);
    free(text);
    if (bad) {
        json_decref(value);
        return NULL;
    }
    return value;
}

/* {"npz": NAME, ...} */
static json_t *outputs_json(const struct tt_manifest *manifest)
{
    json_t *value = json_object();
    bool bad = false;

    for (int i = 0; i < TT_OUTPUTS; i++)
        if (manifest->output[i])
            put(value, tt_output_names[i], name_json(manifest->output[i]), &bad);
    if (bad) {
        json_decref(value);
        return NULL;
    }
    return value;
}

static json_t *identity_json(const struct tt_identity *identity)
{
    return json_pack("{sI, sI, sI, sI}", "inode", (json_int_t)identity->inode, "size_bytes",
                     (json_int_t)identity->size_bytes, "mtime_ns", (json_int_t)identity->mtime_ns, "ctime_ns",
                     (json_int_t)identity->ctime_ns);
}

static json_t *sidecars_json(const struct tt_manifest *manifest)
{
    json_t *list = json_array();

    for (int kind = 0; kind < TT_SPOOL_SIDECARS; kind++)
        if (manifest->has_sidecar[kind] &&
            json_array_append_new(list, json_string(tt_spool_sidecar_names[kind])) != 0) {
            json_decref(list);
            return NULL;
        }
    return list;
}

/* Takes object, which may be NULL or `bad`. */
static enum tt_status write_json(json_t *object, bool bad, const char *directory, const char *name,
                                 struct tt_error *err)
{
    char *text = bad ? NULL : json_dumps(object, JSON_INDENT(2) | JSON_ENSURE_ASCII);
    char path[PATH_MAX];
    struct tt_file *file;
    enum tt_status status;

    json_decref(object);
    if (!text)
        return tt_fail_errno(err, TT_RETRY_LATER, ENOMEM, "%s", name);
    snprintf(path, sizeof path, "%s/%s", directory, name);
    status = tt_file_create(&file, path, err);
    if (!status) {
        status = tt_file_write(file, text, strlen(text), err);
        if (!status)
            status = tt_file_write(file, "\n", 1, err);
        TT_STEP("file-written");
        if (status)
            tt_file_abandon(file);
        else
            status = tt_file_commit(file, TT_REPLACE, err);
    }
    free(text);
    return status;
}

enum tt_status tt_manifest_write(const struct tt_manifest *manifest, const char *directory,
                                 struct tt_error *err)
{
    json_t *object = json_object();
    char when[32];
    bool bad = false;

    utc(when, sizeof when, "%Y-%m-%dT%H:%M:%SZ", manifest->claimed_at_ns);
    put(object, "version", json_integer(MANIFEST_VERSION), &bad);
    put(object, "job", json_string(manifest->id), &bad);
    put(object, "state", json_string(state_names[manifest->state]), &bad);
    put(object, "outcome", json_string(outcome_names[manifest->outcome]), &bad);
    put(object, "source", name_json(manifest->source), &bad);
    put(object, "outputs", outputs_json(manifest), &bad);
    put(object, "origin", name_json(manifest->origin), &bad);
    put(object, "target", name_json(manifest->target), &bad);
    put(object, "sidecars", sidecars_json(manifest), &bad);
    put(object, "claimed", identity_json(&manifest->claimed), &bad);
    put(object, "seen", identity_json(&manifest->seen), &bad);
    put(object, "claimed_at", json_string(when), &bad);
    put(object, "claimed_at_ns", json_integer(manifest->claimed_at_ns), &bad);
    put(object, "attempts", json_integer(manifest->attempts), &bad);
    put(object, "serial", json_integer(manifest->serial), &bad);
    put(object, "running", json_boolean(manifest->running), &bad);
    put(object, "changes", json_integer(manifest->changes), &bad);
    put(object, "interruptions", json_integer(manifest->interruptions), &bad);
    put(object, "cause", words_json(manifest->cause), &bad);
    put(object, "cause_status", words_json(manifest->cause_status), &bad);
    put(object, "last_words", words_json(manifest->last_words), &bad);
    return write_json(object, bad, directory, TT_MANIFEST_NAME, err);
}

static json_t *retry_json(const char *target)
{
    char *word = tt_name_shell(target), *command = NULL;
    json_t *value = NULL;

    if (word && asprintf(&command, "tiletrack retry %s%s", word[0] == '-' ? "-- " : "", word) >= 0)
        value = json_string(command);
    free(word);
    free(command);
    return value;
}

enum tt_status tt_reason_write(const struct tt_manifest *manifest, const char *directory,
                               struct tt_error *err)
{
    json_t *object = json_object();
    struct timespec now;
    char when[32];
    bool bad = false;

    clock_gettime(CLOCK_REALTIME, &now);
    utc(when, sizeof when, "%Y-%m-%dT%H:%M:%SZ", (int64_t)now.tv_sec * 1000000000);
    put(object, "version", json_integer(REASON_VERSION), &bad);
    put(object, "job", json_string(manifest->id), &bad);
    put(object, "outcome", json_string(outcome_names[TT_OUTCOME_FAILED]), &bad);
    put(object, "cause", words_json(manifest->cause), &bad);
    put(object, "status", words_json(manifest->cause_status), &bad);
    put(object, "attempts", json_integer(manifest->attempts), &bad);
    put(object, "last_words", words_json(manifest->last_words), &bad);
    put(object, "failed_at", json_string(when), &bad);
    put(object, "size_bytes", json_integer(manifest->claimed.size_bytes), &bad);
    put(object, "source", name_json(manifest->source), &bad);
    put(object, "file", name_json(manifest->target), &bad);
    put(object, "sidecars", sidecars_json(manifest), &bad);
    put(object, "retry", retry_json(manifest->target), &bad);
    return write_json(object, bad, directory, TT_REASON_NAME, err);
}

/* --- reading -----------------------------------------------------------------------------------------------
 */

/* Everything below notes in `bad` a key that is missing or wrong. */
static int64_t read_integer(json_t *object, const char *key, int64_t min, const char **bad)
{
    json_t *value = json_object_get(object, key);

    if (!json_is_integer(value) || json_integer_value(value) < min) {
        *bad = key;
        return 0;
    }
    return json_integer_value(value);
}

static int read_count(json_t *object, const char *key, const char **bad)
{
    int64_t value = read_integer(object, key, 0, bad);

    if (value > INT_MAX)
        *bad = key;
    return (int)(value & INT_MAX);
}

/* May be null where `optional`. */
static char *read_words(json_t *object, const char *key, bool optional, const char **bad)
{
    json_t *value = json_object_get(object, key);
    char *words = json_is_string(value) ? strdup(json_string_value(value)) : NULL;

    if (!words && !(optional && json_is_null(value)))
        *bad = key;
    return words;
}

static char *read_path(json_t *object, const char *key, bool optional, const char **bad)
{
    json_t *value = json_object_get(object, key);
    json_t *bytes = json_object_get(value, "bytes");
    char *path = json_is_string(bytes) ? tt_name_decode(json_string_value(bytes)) : NULL;

    if (path && !tt_path_is_safe(path)) {
        free(path);
        path = NULL;
    }
    if (!path && !(optional && json_is_null(value)))
        *bad = key;
    return path;
}

/* All of a job lie in one directory. */
static void read_outputs(char **outputs, json_t *object, const char **bad)
{
    json_t *list = json_object_get(object, "outputs");
    const char *first = NULL;
    size_t known = 0;

    for (int i = 0; i < TT_OUTPUTS; i++) {
        if (!json_object_get(list, tt_output_names[i]))
            continue;
        known++;
        outputs[i] = read_path(list, tt_output_names[i], false, bad);
        if (!outputs[i])
            continue;
        first = first ? first : outputs[i];
        if (tt_path_directory(first) != tt_path_directory(outputs[i]) ||
            strncmp(first, outputs[i], tt_path_directory(first)) != 0)
            *bad = "outputs";
    }
    if (!json_is_object(list) || known != json_object_size(list))
        *bad = "outputs";
}

static int read_word(json_t *object, const char *key, const char *const *words, int count, const char **bad)
{
    const char *value = json_string_value(json_object_get(object, key));

    for (int i = 0; value && i < count; i++)
        if (strcmp(value, words[i]) == 0)
            return i;
    *bad = key;
    return 0;
}

static void read_identity(struct tt_identity *identity, json_t *object, const char *key, const char **bad)
{
    json_t *value = json_object_get(object, key);
    const char *inner = NULL;

    identity->inode = (uint64_t)read_integer(value, "inode", INT64_MIN, &inner);
    identity->size_bytes = read_integer(value, "size_bytes", 0, &inner);
    identity->mtime_ns = read_integer(value, "mtime_ns", INT64_MIN, &inner);
    identity->ctime_ns = read_integer(value, "ctime_ns", INT64_MIN, &inner);
    if (inner)
        *bad = key;
}

static void read_sidecars(bool *has_sidecar, json_t *object, const char **bad)
{
    json_t *list = json_object_get(object, "sidecars"), *item;
    size_t index;

    if (!json_is_array(list))
        *bad = "sidecars";
    json_array_foreach(list, index, item)
    {
        int kind = 0;

        while (kind < TT_SPOOL_SIDECARS &&
               (!json_is_string(item) || strcmp(json_string_value(item), tt_spool_sidecar_names[kind]) != 0))
            kind++;
        if (kind == TT_SPOOL_SIDECARS)
            *bad = "sidecars";
        else
            has_sidecar[kind] = true;
    }
}

/* *object: owned by the caller (json_decref). */
static enum tt_status load_json(json_t **object, const char *path, int version, struct tt_error *err)
{
    json_error_t problem;
    const char *bad = NULL;
    char *text;
    size_t bytes;
    enum tt_status status = tt_file_read(&text, &bytes, path, MANIFEST_BYTES_MAX, err);
    json_t *loaded;

    if (status)
        return status;
    loaded = json_loadb(text, bytes, JSON_REJECT_DUPLICATES, &problem);
    free(text);
    if (!loaded)
        return tt_fail(err,
                       json_error_code(&problem) == json_error_out_of_memory ? TT_RETRY_LATER : TT_BAD_INPUT,
                       "%s: line %d: %s", path, problem.line, problem.text);
    if (read_integer(loaded, "version", 1, &bad) != version) {
        json_decref(loaded);
        return tt_fail(err, TT_BAD_INPUT, "%s: not of version %d", path, version);
    }
    *object = loaded;
    return TT_OK;
}

enum tt_status tt_manifest_read(struct tt_manifest *manifest, const char *directory, struct tt_error *err)
{
    struct tt_manifest made = {0};
    const char *bad = NULL;
    char path[PATH_MAX], *id;
    json_t *object;
    enum tt_status status;

    snprintf(path, sizeof path, "%s/" TT_MANIFEST_NAME, directory);
    status = load_json(&object, path, MANIFEST_VERSION, err);
    if (status)
        return status;
    made.state = (enum tt_job_state)read_word(object, "state", state_names, TT_JOB_RETRYING + 1, &bad);
    made.outcome = (enum tt_outcome)read_word(object, "outcome", outcome_names, TT_OUTCOME_FAILED + 1, &bad);
    made.source = read_path(object, "source", false, &bad);
    read_outputs(made.output, object, &bad);
    made.origin = read_path(object, "origin", true, &bad);
    made.target = read_path(object, "target", true, &bad);
    read_sidecars(made.has_sidecar, object, &bad);
    read_identity(&made.claimed, object, "claimed", &bad);
    read_identity(&made.seen, object, "seen", &bad);
    made.claimed_at_ns = read_integer(object, "claimed_at_ns", INT64_MIN, &bad);
    made.attempts = read_count(object, "attempts", &bad);
    made.serial = read_count(object, "serial", &bad);
    made.running = json_is_true(json_object_get(object, "running"));
    made.changes = read_count(object, "changes", &bad);
    made.interruptions = read_count(object, "interruptions", &bad);
    made.cause = read_words(object, "cause", true, &bad);
    made.cause_status = read_words(object, "cause_status", true, &bad);
    made.last_words = read_words(object, "last_words", true, &bad);
    id = read_words(object, "job", false, &bad);
    if (id && strlen(id) < sizeof made.id)
        strcpy(made.id, id);
    else
        bad = "job";
    if (!tt_manifest_output(&made) && (made.state == TT_JOB_CLAIMED || made.state == TT_JOB_COMMITTING))
        bad = "outputs";
    if (!made.origin && made.state == TT_JOB_RETRYING)
        bad = "origin";
    if (!made.target && made.state != TT_JOB_CLAIMED && made.state != TT_JOB_COMMITTING)
        bad = "target";
    free(id);
    json_decref(object);
    if (bad) {
        tt_manifest_free(&made);
        return tt_fail(err, TT_BAD_INPUT, "%s: \"%s\" is missing or wrong", path, bad);
    }
    *manifest = made;
    return TT_OK;
}

enum tt_status tt_reason_read(char **source, bool *has_sidecar, const char *path, struct tt_error *err)
{
    bool found[TT_SPOOL_SIDECARS] = {false};
    const char *bad = NULL;
    json_t *object;
    char *made;
    enum tt_status status = load_json(&object, path, REASON_VERSION, err);

    if (status)
        return status;
    made = read_path(object, "source", false, &bad);
    read_sidecars(found, object, &bad);
    json_decref(object);
    if (bad) {
        free(made);
        return tt_fail(err, TT_BAD_INPUT, "%s: \"%s\" is missing or wrong", path, bad);
    }
    memcpy(has_sidecar, found, sizeof found);
    *source = made;
    return TT_OK;
}

/* core/weights.c: safetensors files: eight bytes of header length, a JSON header, then the tensors' bytes.
 *
 * Invariants: a tensor that was handed out lies wholly inside the map, has the number of bytes that its dtype
 * and shape ask for, and shares no byte with another; together the tensors cover all bytes behind the header.
 * Data may lie at any address (the header's length decides), so elements are read through memcpy.
 * Fails with TT_BAD_INPUT and a text that names file, tensor and fault; the file itself is never changed. A
 * file that another process shortens while it is mapped raises SIGBUS, as any map does: replace weight files
 * by renaming.
 */
#include "core/weights.h"

#include "core/sha256.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <jansson.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

enum { LARGEST_HEADER = 16 << 20 };

static const struct {
    const char *name;
    int64_t bytes;
} dtypes[] = {[TT_F32] = {"F32", 4},
              [TT_F16] = {"F16", 2},
              [TT_U8] = {"U8", 1},
              [TT_I32] = {"I32", 4},
              [TT_I64] = {"I64", 8}};

struct entry {
    const char *name; /* borrows the JSON tree */
    uint64_t begin, end;
    struct tt_tensor tensor;
};

struct tt_weights {
    char *path; /* as texts name the file; owned */
    char *name; /* owned */
    const uint8_t *data;
    size_t size;
    int mapped; /* data is a map of ours */
    json_t *header;
    json_t *metadata;      /* NULL without any */
    struct entry *entries; /* sorted by name once parsed; owned */
    size_t count;
    const struct tt_model_shape *shape;
    char sha256[TT_SHA256_HEX];
    struct tt_calibration calibration;
};

static enum tt_status bad(const struct tt_weights *w, const char *tensor, struct tt_error *err,
                          const char *what)
{
    return tt_fail(err, TT_BAD_INPUT, "%s: tensor \"%s\": %s", w->path, tensor, what);
}

/* Whole numbers from 0; false for anything else. */
static int read_size(const json_t *value, uint64_t *out)
{
    if (!json_is_integer(value) || json_integer_value(value) < 0)
        return 0;
    *out = (uint64_t)json_integer_value(value);
    return 1;
}

static enum tt_status parse_shape(struct tt_weights *w, struct entry *e, const json_t *shape,
                                  struct tt_error *err)
{
    struct tt_tensor *t = &e->tensor;

    if (!json_is_array(shape) || json_array_size(shape) > TT_TENSOR_RANK)
        return bad(w, e->name, err, "its shape is not a list of at most 5 numbers");
    t->rank = (int)json_array_size(shape);
    t->count = 1;
    for (int i = 0; i < TT_TENSOR_RANK; i++) {
        uint64_t extent = 1;

        if (i < t->rank && (!read_size(json_array_get(shape, (size_t)i), &extent) || extent > INT32_MAX))
            return bad(w, e->name, err, "its shape holds something other than a number from 0 to 2^31 - 1");
        t->shape[i] = (int64_t)extent;
        if (__builtin_mul_overflow(t->count, t->shape[i], &t->count))
            return bad(w, e->name, err, "its shape has more elements than any file holds");
    }
    return TT_OK;
}

static enum tt_status parse_entry(struct tt_weights *w, struct entry *e, const json_t *value,
                                  uint64_t data_size, struct tt_error *err)
{
    const json_t *offsets = json_object_get(value, "data_offsets");
    const char *dtype = json_string_value(json_object_get(value, "dtype"));
    size_t kind = 0;
    int64_t bytes;
    enum tt_status status;

    if (!json_is_object(value) || !dtype)
        return bad(w, e->name, err, "it has no dtype");
    while (kind < sizeof dtypes / sizeof dtypes[0] && strcmp(dtype, dtypes[kind].name))
        kind++;
    if (kind == sizeof dtypes / sizeof dtypes[0])
        return tt_fail(err, TT_BAD_INPUT, "%s: tensor \"%s\": dtype %.16s is none of F32, F16, U8, I32, I64",
                       w->path, e->name, dtype);
    e->tensor.dtype = (enum tt_dtype)kind;
    status = parse_shape(w, e, json_object_get(value, "shape"), err);
    if (status)
        return status;
    if (json_array_size(offsets) != 2 || !read_size(json_array_get(offsets, 0), &e->begin) ||
        !read_size(json_array_get(offsets, 1), &e->end))
        return bad(w, e->name, err, "its data_offsets are not two numbers from 0");
    if (e->begin > e->end || e->end > data_size)
        return tt_fail(err, TT_BAD_INPUT,
                       "%s: tensor \"%s\": bytes %" PRIu64 " to %" PRIu64 " do not lie in the %" PRIu64
                       " bytes of data (is the file whole?)",
                       w->path, e->name, e->begin, e->end, data_size);
    if (__builtin_mul_overflow(e->tensor.count, dtypes[kind].bytes, &bytes) ||
        (uint64_t)bytes != e->end - e->begin)
        return tt_fail(err, TT_BAD_INPUT,
                       "%s: tensor \"%s\": its shape and dtype do not fit %" PRIu64 " bytes", w->path,
                       e->name, e->end - e->begin);
    return TT_OK;
}

static int by_offset(const void *a, const void *b)
{
    const struct entry *x = a, *y = b;

    if (x->begin != y->begin)
        return x->begin < y->begin ? -1 : 1;
    return (x->end > y->end) - (x->end < y->end);
}

static int by_name(const void *a, const void *b)
{
    return strcmp(((const struct entry *)a)->name, ((const struct entry *)b)->name);
}

/* Bytes that two tensors share, or that none has, mean that the file is not what its header says. */
static enum tt_status check_cover(struct tt_weights *w, uint64_t data_size, struct tt_error *err)
{
    uint64_t at = 0;

    qsort(w->entries, w->count, sizeof w->entries[0], by_offset);
    for (size_t i = 0; i < w->count; i++) {
        const struct entry *e = &w->entries[i];

        if (e->begin != at)
            return bad(w, e->name, err,
                       e->begin < at ? "it overlaps another tensor" : "there is a gap before it");
        at = e->end;
    }
    if (at != data_size)
        return tt_fail(err, TT_BAD_INPUT, "%s: %" PRIu64 " bytes behind the last tensor belong to none",
                       w->path, data_size - at);
    return TT_OK;
}

static enum tt_status parse_header(struct tt_weights *w, struct tt_error *err)
{
    uint64_t header_size = 0, data_size;
    const char *key;
    json_t *value;
    json_error_t fault;
    enum tt_status status;

    for (int i = 0; w->size >= 8 && i < 8; i++)
        header_size |= (uint64_t)w->data[i] << (8 * i);
    if (w->size < 8 || header_size > LARGEST_HEADER || header_size > w->size - 8)
        return tt_fail(err, TT_BAD_INPUT,
                       "%s: not a safetensors file: of its %zu bytes the header would take %" PRIu64
                       " (is the file whole?)",
                       w->path, w->size, header_size);
    w->header = json_loadb((const char *)w->data + 8, (size_t)header_size, JSON_REJECT_DUPLICATES, &fault);
    if (!w->header || !json_is_object(w->header))
        return tt_fail(err, TT_BAD_INPUT, "%s: its header is not a JSON object: %s", w->path,
                       w->header ? "another kind of value" : fault.text);
    w->metadata = json_incref(json_object_get(w->header, "__metadata__"));
    json_object_del(w->header, "__metadata__");
    data_size = w->size - 8 - header_size;
    w->entries = calloc(json_object_size(w->header) + 1, sizeof w->entries[0]);
    if (!w->entries)
        return tt_fail(err, TT_RETRY_LATER, "%s: no memory for its header", w->path);
    json_object_foreach(w->header, key, value)
    {
        struct entry *e = &w->entries[w->count++];

        e->name = key;
        status = parse_entry(w, e, value, data_size, err);
        if (status)
            return status;
        e->tensor.data = w->data + 8 + header_size + e->begin;
    }
    status = check_cover(w, data_size, err);
    qsort(w->entries, w->count, sizeof w->entries[0], by_name);
    return status;
}

/* FP16 bits to FP32; exact. */
static float half_to_float(uint16_t half)
{
    uint32_t sign = (uint32_t)(half & 0x8000) << 16, exponent = half >> 10 & 31, fraction = half & 1023, bits;
    float value;

    if (exponent == 0) {
        value = (float)fraction * 0x1p-24f;
        return sign ? -value : value;
    }
    bits = sign | (exponent == 31 ? 255u : exponent + 112) << 23 | fraction << 13;
    memcpy(&value, &bits, sizeof value);
    return value;
}

static float element(const struct tt_tensor *t, int64_t i)
{
    float value;
    uint16_t half;

    if (t->dtype == TT_F32) {
        memcpy(&value, (const char *)t->data + 4 * i, sizeof value);
        return value;
    }
    memcpy(&half, (const char *)t->data + 2 * i, sizeof half);
    return half_to_float(half);
}

void tt_tensor_read_f32(const struct tt_tensor *tensor, float *out)
{
    if (tensor->dtype == TT_F32 && tensor->count)
        memcpy(out, tensor->data, (size_t)tensor->count * sizeof *out);
    else
        for (int64_t i = 0; i < tensor->count; i++)
            out[i] = element(tensor, i);
}

float *tt_tensor_to_f32(const struct tt_tensor *tensor)
{
    float *out;

    if (tensor->dtype != TT_F32 && tensor->dtype != TT_F16)
        return NULL;
    out = malloc((size_t)(tensor->count ? tensor->count : 1) * sizeof *out);
    if (out)
        tt_tensor_read_f32(tensor, out);
    return out;
}

struct check {
    const struct tt_weights *weights;
    struct tt_error *err;
    size_t found;
};

/* One weight of the model: there, of the right shape, F16 or F32, finite. Returns an enum tt_status. */
static int check_weight(void *context, const struct tt_weight_spec *spec)
{
    struct check *check = context;
    const struct tt_weights *w = check->weights;
    const struct tt_tensor *t = tt_weights_find(w, spec->name);
    int same;

    if (!t)
        return (int)tt_fail(check->err, TT_BAD_INPUT, "%s: no tensor \"%s\" (LocoTrack %s has one)", w->path,
                            spec->name, w->shape->name);
    same = t->rank == spec->rank;
    for (int i = 0; same && i < spec->rank; i++)
        same = t->shape[i] == spec->shape[i];
    if (!same)
        return (int)tt_fail(check->err, TT_BAD_INPUT,
                            "%s: tensor \"%s\": not of the shape that LocoTrack %s has", w->path, spec->name,
                            w->shape->name);
    if (t->dtype != TT_F32 && t->dtype != TT_F16)
        return (int)bad(w, spec->name, check->err, "neither F32 nor F16");
    for (int64_t i = 0; i < t->count; i++)
        if (!isfinite(element(t, i)))
            return (int)tt_fail(check->err, TT_BAD_INPUT,
                                "%s: tensor \"%s\": element %" PRId64 " is not finite", w->path, spec->name,
                                i);
    check->found++;
    return 0;
}

static int expect_weight(void *context, const struct tt_weight_spec *spec)
{
    return !strcmp(spec->name, context);
}

static enum tt_status check_model(struct tt_weights *w, struct tt_error *err)
{
    const struct tt_tensor *input = tt_weights_find(w, "torch_pips_mixer.input_proj.weight");
    const json_t *map = json_object_get(w->metadata, TT_CALIBRATION_KEY);
    struct check check = {.weights = w, .err = err};
    struct tt_sha256 sha;
    enum tt_status status;

    if (!input)
        return tt_fail(err, TT_BAD_INPUT,
                       "%s: not a LocoTrack model (no tensor torch_pips_mixer.input_proj.weight)", w->path);
    w->shape = input->shape[0] == tt_model_base.width ? &tt_model_base : &tt_model_small;
    status = (enum tt_status)tt_model_each_weight(w->shape, check_weight, &check);
    if (status)
        return status;
    for (size_t i = 0; check.found != w->count && i < w->count; i++)
        if (!tt_model_each_weight(w->shape, expect_weight, (void *)w->entries[i].name))
            return tt_fail(err, TT_BAD_INPUT, "%s: tensor \"%s\" is no part of LocoTrack %s", w->path,
                           w->entries[i].name, w->shape->name);
    if (map && !json_is_string(map))
        return tt_fail(err, TT_BAD_INPUT, "%s: " TT_CALIBRATION_KEY ": not a text", w->path);
    status = map ? tt_calibration_parse(&w->calibration, json_string_value(map), w->path, err) : TT_OK;
    if (status)
        return status;
    tt_sha256_begin(&sha);
    tt_sha256_add(&sha, w->data, w->size);
    tt_sha256_end(&sha, w->sha256);
    return TT_OK;
}

static char *stem_of(const char *path)
{
    const char *base = strrchr(path, '/') ? strrchr(path, '/') + 1 : path, *dot = strrchr(base, '.');

    return strndup(base, dot && dot != base ? (size_t)(dot - base) : strlen(base));
}

static enum tt_status map_file(struct tt_weights *w, struct tt_error *err)
{
    enum tt_status status = TT_OK;
    struct stat st;
    void *map = NULL;
    int fd = open(w->path, O_RDONLY | O_CLOEXEC | O_NOCTTY | O_NONBLOCK);

    if (fd < 0 || fstat(fd, &st)) {
        status = tt_fail_errno(err, tt_status_of_errno(errno), errno, "%s", w->path);
        goto out;
    }
    if (!S_ISREG(st.st_mode) || st.st_size == 0) {
        status = tt_fail(err, TT_BAD_INPUT, "%s: %s", w->path, S_ISREG(st.st_mode) ? "empty" : "not a file");
        goto out;
    }
    map = mmap(NULL, (size_t)st.st_size, PROT_READ, MAP_SHARED, fd, 0);
    if (map == MAP_FAILED) {
        status = tt_fail_errno(err, tt_status_of_errno(errno), errno, "%s: map", w->path);
        goto out;
    }
    w->data = map;
    w->size = (size_t)st.st_size;
    w->mapped = 1;
out:
    if (fd >= 0)
        close(fd);
    return status;
}

static enum tt_status open_any(struct tt_weights **out, const char *path, const void *data, size_t size,
                               int model, struct tt_error *err)
{
    struct tt_weights *w = calloc(1, sizeof *w);
    enum tt_status status = TT_OK;

    if (w) {
        w->path = strdup(path);
        w->name = stem_of(path);
    }
    if (!w || !w->path || !w->name)
        status = tt_fail(err, TT_RETRY_LATER, "%s: no memory", path);
    else if (data) {
        w->data = data;
        w->size = size;
    } else {
        status = map_file(w, err);
    }
    if (!status)
        status = parse_header(w, err);
    if (!status && model)
        status = check_model(w, err);
    if (status)
        tt_weights_close(w);
    else
        *out = w;
    return status;
}

enum tt_status tt_weights_open(struct tt_weights **weights, const char *path, struct tt_error *err)
{
    return open_any(weights, path, NULL, 0, 1, err);
}

enum tt_status tt_weights_from_memory(struct tt_weights **weights, const char *name, const void *data,
                                      size_t size, struct tt_error *err)
{
    return open_any(weights, name, data, size, 1, err);
}

enum tt_status tt_tensors_open(struct tt_weights **tensors, const char *path, struct tt_error *err)
{
    return open_any(tensors, path, NULL, 0, 0, err);
}

enum tt_status tt_tensors_from_memory(struct tt_weights **tensors, const char *name, const void *data,
                                      size_t size, struct tt_error *err)
{
    return open_any(tensors, name, data, size, 0, err);
}

void tt_weights_close(struct tt_weights *weights)
{
    if (!weights)
        return;
    if (weights->mapped)
        munmap((void *)weights->data, weights->size);
    json_decref(weights->metadata);
    json_decref(weights->header);
    free(weights->entries);
    free(weights->path);
    free(weights->name);
    free(weights);
}

const struct tt_model_shape *tt_weights_shape(const struct tt_weights *weights)
{
    return weights->shape;
}

const char *tt_weights_sha256(const struct tt_weights *weights)
{
    return weights->sha256;
}

const char *tt_weights_name(const struct tt_weights *weights)
{
    return weights->name;
}

const struct tt_calibration *tt_weights_calibration(const struct tt_weights *weights)
{
    return &weights->calibration;
}

const struct tt_tensor *tt_weights_find(const struct tt_weights *weights, const char *name)
{
    const struct entry wanted = {.name = name};
    const struct entry *found =
        bsearch(&wanted, weights->entries, weights->count, sizeof weights->entries[0], by_name);

    return found ? &found->tensor : NULL;
}

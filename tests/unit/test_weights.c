/* tests/unit/test_weights.c: whole weight files open, and every way in which one can be wrong is named. */
#include "core/formula.h"
#include "core/sha256.h"
#include "core/weights.h"

#include <fcntl.h>
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <cmocka.h>

/* A file of this header and `size` bytes of data 0, 1, 2, ...; the caller frees it. */
static uint8_t *make_file(const char *header, size_t size, size_t *whole)
{
    size_t length = strlen(header);
    uint8_t *file = calloc(1, 8 + length + size + 1);

    assert_non_null(file);
    for (int i = 0; i < 8; i++)
        file[i] = (uint8_t)(length >> (8 * i));
    memcpy(file + 8, header, length);
    for (size_t i = 0; i < size; i++)
        file[8 + length + i] = (uint8_t)i;
    *whole = 8 + length + size;
    return file;
}

static void refuses(const char *header, size_t size, const char *because)
{
    struct tt_weights *tensors = NULL;
    struct tt_error err;
    size_t whole;
    uint8_t *file = make_file(header, size, &whole);

    assert_int_equal(tt_tensors_from_memory(&tensors, "x.safetensors", file, whole, &err), TT_BAD_INPUT);
    assert_null(tensors);
    if (!strstr(err.text, because))
        fail_msg("\"%s\" does not say \"%s\"", err.text, because);
    assert_non_null(strstr(err.text, "x.safetensors"));
    free(file);
}

static void reads_tensors_at_any_alignment(void **state)
{
    static const char *const padding[] = {"", " ", "  ", "   "};

    (void)state;
    for (int i = 0; i < 4; i++) {
        struct tt_weights *tensors;
        const struct tt_tensor *t;
        struct tt_error err;
        char header[256];
        uint8_t *file;
        size_t whole;
        float *copy;

        snprintf(
            header, sizeof header,
            "{\"b\":{\"dtype\":\"U8\",\"shape\":[],\"data_offsets\":[0,1]},\"__metadata__\":{\"k\":\"v\"},"
            "\"a\":{\"dtype\":\"F16\",\"shape\":[2,1],\"data_offsets\":[1,5]},"
            "\"none\":{\"dtype\":\"F32\",\"shape\":[3,0],\"data_offsets\":[5,5]}}%s",
            padding[i]);
        file = make_file(header, 5, &whole);
        assert_int_equal(tt_tensors_from_memory(&tensors, "dir/t.x.safetensors", file, whole, &err), TT_OK);
        assert_string_equal(tt_weights_name(tensors), "t.x");
        assert_null(tt_weights_find(tensors, "__metadata__"));
        assert_null(tt_weights_find(tensors, "c"));
        assert_null(tt_weights_shape(tensors));
        t = tt_weights_find(tensors, "b");
        assert_int_equal(t->rank, 0);
        assert_int_equal(t->count, 1);
        assert_null(tt_tensor_to_f32(t));
        assert_int_equal(tt_weights_find(tensors, "none")->count, 0);
        t = tt_weights_find(tensors, "a");
        assert_int_equal(t->shape[0], 2);
        copy = tt_tensor_to_f32(t); /* halves 0x0201 and 0x0403, below 2^-14 and just above */
        assert_true(copy[0] == 513 * 0x1p-24f);
        assert_true(copy[1] == (1024 + 3) * 0x1p-24f);
        free(copy);
        tt_weights_close(tensors);
        free(file);
    }
}

static void reads_every_half_exactly(void **state)
{
    struct tt_weights *tensors;
    struct tt_error err;
    size_t whole;
    uint8_t *file = make_file("{\"a\":{\"dtype\":\"F16\",\"shape\":[65536],\"data_offsets\":[0,131072]}}",
                              131072, &whole);
    float *copy;

    (void)state;
    for (int i = 0; i < 65536; i++) {
        file[whole - 131072 + 2 * (size_t)i] = (uint8_t)i;
        file[whole - 131072 + 2 * (size_t)i + 1] = (uint8_t)(i >> 8);
    }
    assert_int_equal(tt_tensors_from_memory(&tensors, "h", file, whole, &err), TT_OK);
    copy = tt_tensor_to_f32(tt_weights_find(tensors, "a"));
    for (int i = 0; i < 65536; i++) {
        int exponent = i >> 10 & 31, fraction = i & 1023;
        double value = exponent ? ldexp(1024 + fraction, exponent - 25) : ldexp(fraction, -24);

        if (exponent == 31)
            assert_true(fraction ? isnan(copy[i]) : isinf(copy[i]));
        else
            assert_true((double)copy[i] == (i & 0x8000 ? -value : value));
    }
    free(copy);
    tt_weights_close(tensors);
    free(file);
}

static void refuses_broken_headers(void **state)
{
    struct tt_weights *tensors;
    struct tt_error err;
    uint8_t file[16] = {0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, '{', '}'};

    (void)state;
    assert_int_equal(tt_tensors_from_memory(&tensors, "f", file, 16, &err), TT_BAD_INPUT);
    assert_int_equal(tt_tensors_from_memory(&tensors, "f", file, 7, &err), TT_BAD_INPUT);
    assert_int_equal(tt_tensors_from_memory(&tensors, "f", file, 8, &err), TT_BAD_INPUT);
    memset(file, 0, 8);
    assert_int_equal(tt_tensors_from_memory(&tensors, "f", file, 8, &err), TT_BAD_INPUT);
    refuses("", 0, "JSON");
    refuses("{", 0, "JSON");
    refuses("[]", 0, "JSON");
    refuses("{}x", 0, "JSON");
    refuses("{\"a\":1}", 0, "dtype");
    refuses("{\"a\":{}}", 0, "dtype");
    refuses("{\"a\":{\"dtype\":\"F32\",\"shape\":[0],\"data_offsets\":[0,0]},"
            "\"a\":{\"dtype\":\"F32\",\"shape\":[0],\"data_offsets\":[0,0]}}",
            0, "duplicate");
    refuses("{\"a\":{\"dtype\":\"F64\",\"shape\":[1],\"data_offsets\":[0,8]}}", 8, "F64");
}

static void refuses_shapes_and_offsets_that_lie(void **state)
{
    (void)state;
#define A(shape, offsets) "{\"a\":{\"dtype\":\"F32\",\"shape\":" shape ",\"data_offsets\":" offsets "}}"
    refuses(A("[1]", "[0,8]"), 8, "do not fit");
    refuses(A("[2]", "[0,8]"), 4, "do not lie");
    refuses(A("[2]", "[8,0]"), 8, "do not lie");
    refuses(A("[2]", "[-8,0]"), 8, "data_offsets");
    refuses(A("[2]", "[0,8.0]"), 8, "data_offsets");
    refuses(A("[2]", "[0]"), 8, "data_offsets");
    refuses(A("[2]", "[0,8,8]"), 8, "data_offsets");
    refuses(A("[2]", "null"), 8, "data_offsets");
    refuses(A("[2]", "[0,18446744073709551615]"), 8, "JSON");
    refuses(A("[2]", "[9223372036854775807,9223372036854775807]"), 8, "do not lie");
    refuses(A("2", "[0,8]"), 8, "shape");
    refuses(A("[-2]", "[0,8]"), 8, "shape");
    refuses(A("[1,1,1,1,1,2]", "[0,8]"), 8, "shape");
    refuses(A("[2147483647,2147483647,2147483647]", "[0,8]"), 8, "more elements");
    refuses(A("[2147483647,2147483647,1]", "[0,8]"), 8, "do not fit");
    refuses(A("[1]", "[4,8]"), 8, "gap");
    refuses(A("[1]", "[0,4]"), 8, "belong to none");
#undef A
    refuses("{\"a\":{\"dtype\":\"U8\",\"shape\":[4],\"data_offsets\":[0,4]},"
            "\"b\":{\"dtype\":\"U8\",\"shape\":[4],\"data_offsets\":[3,7]}}",
            7, "overlaps");
    refuses("{\"a\":{\"dtype\":\"U8\",\"shape\":[4],\"data_offsets\":[0,4]},"
            "\"b\":{\"dtype\":\"U8\",\"shape\":[4],\"data_offsets\":[0,4]}}",
            4, "overlaps");
}

static void opens_both_models(void **state)
{
    const struct tt_model_shape *const shapes[] = {&tt_model_small, &tt_model_base};

    (void)state;
    for (int i = 0; i < 2; i++) {
        struct tt_weights *weights;
        struct tt_error err;
        size_t size;
        uint8_t *file = tt_formula_weights(shapes[i], 1, &size);

        assert_int_equal(tt_weights_from_memory(&weights, "m", file, size, &err), TT_OK);
        assert_ptr_equal(tt_weights_shape(weights), shapes[i]);
        assert_int_equal(strlen(tt_weights_sha256(weights)), 64);
        assert_int_equal(tt_weights_find(weights, "torch_pips_mixer.input_proj.weight")->shape[1],
                         TT_MIXER_INPUT);
        tt_weights_close(weights);
        free(file);
    }
}

static void refuses_truncated_models(void **state)
{
    struct tt_error err;
    size_t size;
    uint8_t *file = tt_formula_weights(&tt_model_small, 1, &size);

    (void)state;
    for (size_t cut = 0; cut < size; cut += cut < 32 ? 1 : size / 61) {
        struct tt_weights *weights = NULL;

        assert_int_equal(tt_weights_from_memory(&weights, "m", file, cut, &err), TT_BAD_INPUT);
        assert_null(weights);
    }
    free(file);
}

/* Changes `from` to `to` (of the same length) in the header and expects the file to be refused because of
 * that. */
static void refuses_changed(const char *from, const char *to, const char *because)
{
    struct tt_weights *weights = NULL;
    struct tt_error err;
    size_t size;
    uint8_t *file = tt_formula_weights(&tt_model_small, 1, &size),
            *at = memmem(file, size, from, strlen(from));

    assert_int_equal(strlen(from), strlen(to));
    assert_non_null(at);
    memcpy(at, to, strlen(to));
    assert_int_equal(tt_weights_from_memory(&weights, "m", file, size, &err), TT_BAD_INPUT);
    assert_null(weights);
    if (!strstr(err.text, because))
        fail_msg("\"%s\" does not say \"%s\"", err.text, because);
    free(file);
}

static void refuses_models_that_are_none(void **state)
{
    struct tt_weights *weights = NULL;
    struct tt_error err;
    size_t size, whole;
    uint8_t *file = tt_formula_weights(&tt_model_small, 1, &size);
    const struct tt_tensor *t;
    static const float infinite = INFINITY;
    uint8_t *other = make_file("{\"a\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[0,4]}}", 4, &whole);

    (void)state;
    refuses_changed("\"occ_linear.bias\"", "\"occ_linear.bios\"", "no tensor \"occ_linear.bias\"");
    refuses_changed("\"occ_linear.weight\":{\"dtype\":\"F32\",\"shape\":[2,6]",
                    "\"occ_linear.weight\":{\"dtype\":\"F32\",\"shape\":[6,2]",
                    "occ_linear.weight\": not of the shape");
    refuses_changed("\"occ_linear.bias\":{\"dtype\":\"F32\"", "\"occ_linear.bias\":{\"dtype\":\"I32\"",
                    "neither F32 nor F16");
    assert_int_equal(tt_weights_from_memory(&weights, "m", other, whole, &err), TT_BAD_INPUT);
    assert_non_null(strstr(err.text, "not a LocoTrack model"));
    free(other);

    assert_int_equal(tt_weights_from_memory(&weights, "m", file, size, &err), TT_OK);
    t = tt_weights_find(weights, "cmdtop.1.conv.0.0.weight");
    memcpy(file + ((const uint8_t *)t->data - file) + 4 * 17, &infinite, sizeof infinite);
    tt_weights_close(weights);
    assert_int_equal(tt_weights_from_memory(&weights, "m", file, size, &err), TT_BAD_INPUT);
    assert_non_null(strstr(err.text, "cmdtop.1.conv.0.0.weight\": element 17 is not finite"));
    free(file);
}

/* The weights of a model, and one more. */
static void refuses_a_tensor_too_many(void **state)
{
    static const char more[] = ",\"extra.bias\":{\"dtype\":\"F32\",\"shape\":[0],\"data_offsets\":[0,0]}}";
    struct tt_weights *weights = NULL;
    struct tt_error err;
    size_t size, header = 0, added = sizeof more - 2;
    uint8_t *file = tt_formula_weights(&tt_model_small, 1, &size), *longer = malloc(size + added);

    (void)state;
    assert_non_null(longer);
    for (int i = 0; i < 8; i++)
        header |= (size_t)file[i] << (8 * i);
    memcpy(longer, file, 8 + header - 1);
    memcpy(longer + 8 + header - 1, more, added + 1);
    memcpy(longer + 8 + header + added, file + 8 + header, size - 8 - header);
    for (int i = 0; i < 8; i++)
        longer[i] = (uint8_t)((header + added) >> (8 * i));
    assert_int_equal(tt_weights_from_memory(&weights, "m", longer, size + added, &err), TT_BAD_INPUT);
    assert_non_null(strstr(err.text, "\"extra.bias\" is no part of LocoTrack small"));
    free(longer);
    free(file);
}

static void says_what_is_wrong_with_a_path(void **state)
{
    struct tt_weights *weights = NULL;
    struct tt_error err;
    char path[] = "/tmp/tt-weights-XXXXXX";
    int fd = mkstemp(path);

    (void)state;
    assert_true(fd >= 0);
    assert_int_equal(tt_weights_open(&weights, path, &err), TT_BAD_INPUT);
    assert_non_null(strstr(err.text, "empty"));
    assert_int_equal(tt_weights_open(&weights, "/", &err), TT_BAD_INPUT);
    assert_non_null(strstr(err.text, "not a file"));
    close(fd);
    unlink(path);
    assert_int_equal(tt_weights_open(&weights, path, &err), TT_REFUSE);
    assert_non_null(strstr(err.text, path));
    assert_null(weights);
}

static void knows_our_weights(void **state)
{
    const char *source = getenv("TILETRACK_SOURCE");
    struct tt_weights *weights;
    struct tt_error err;
    char path[4096];

    (void)state;
    if (!source)
        skip();
    snprintf(path, sizeof path, "%s/models/tiletrack-small.safetensors", source);
    assert_int_equal(tt_weights_open(&weights, path, &err), TT_OK);
    assert_string_equal(tt_weights_name(weights), "tiletrack-small");
    assert_string_equal(tt_weights_shape(weights)->name, "small");
    tt_weights_close(weights);
}

static void hashes_as_the_standard_says(void **state)
{
    struct tt_sha256 sha;
    char hex[TT_SHA256_HEX], block[1000];
    size_t done = 0;

    (void)state;
    tt_sha256_begin(&sha);
    tt_sha256_end(&sha, hex);
    assert_string_equal(hex, "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855");
    tt_sha256_begin(&sha);
    tt_sha256_add(&sha, "abc", 3);
    tt_sha256_end(&sha, hex);
    assert_string_equal(hex, "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
    memset(block, 'a', sizeof block);
    tt_sha256_begin(&sha);
    for (size_t piece = 1; done < 1000000; piece = piece * 7 % 997) {
        size_t size = piece < 1000000 - done ? piece : 1000000 - done;

        tt_sha256_add(&sha, block, size);
        done += size;
    }
    tt_sha256_end(&sha, hex);
    assert_string_equal(hex, "cdc76e5c9914fb9281a1c7e284d73e67f1809a48a497200e046d39ccc7112cd0");
    for (size_t length = 55; length <= 65;
         length++) { /* lengths at which the padding needs one block or two */
        char once[TT_SHA256_HEX];

        tt_sha256_begin(&sha);
        tt_sha256_add(&sha, block, length);
        tt_sha256_end(&sha, once);
        tt_sha256_begin(&sha);
        tt_sha256_add(&sha, block, 1);
        tt_sha256_add(&sha, block, length - 1);
        tt_sha256_end(&sha, hex);
        assert_string_equal(hex, once);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(reads_tensors_at_any_alignment),
        cmocka_unit_test(reads_every_half_exactly),
        cmocka_unit_test(refuses_broken_headers),
        cmocka_unit_test(refuses_shapes_and_offsets_that_lie),
        cmocka_unit_test(opens_both_models),
        cmocka_unit_test(refuses_truncated_models),
        cmocka_unit_test(refuses_models_that_are_none),
        cmocka_unit_test(refuses_a_tensor_too_many),
        cmocka_unit_test(says_what_is_wrong_with_a_path),
        cmocka_unit_test(knows_our_weights),
        cmocka_unit_test(hashes_as_the_standard_says),
    };
    return cmocka_run_group_tests_name("weights", tests, NULL, NULL);
}

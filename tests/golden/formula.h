/* tests/golden/formula.h: weights that no file need carry: every parameter comes from its name, its shape and
 * a seed (docs/MODEL.md, "Weights from a formula"), put together as a safetensors file in memory. */
#ifndef TT_TESTS_GOLDEN_FORMULA_H
#define TT_TESTS_GOLDEN_FORMULA_H

#include "core/model.h"

#include <math.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct formula_file {
    uint64_t seed;
    char *header;
    size_t header_size;
    uint8_t *data;
    size_t data_size;
};

static inline double formula_uniform(uint64_t state, uint64_t i)
{
    uint64_t z = state + i * UINT64_C(0x9E3779B97F4A7C15);

    z = (z ^ z >> 30) * UINT64_C(0xBF58476D1CE4E5B9);
    z = (z ^ z >> 27) * UINT64_C(0x94D049BB133111EB);
    z ^= z >> 31;
    return (double)(z >> 40) / 8388608.0 - 1.0;
}

static inline void formula_fill(const struct tt_weight_spec *spec, uint64_t seed, float *out, size_t count)
{
    uint64_t hash = UINT64_C(0xcbf29ce484222325);
    double fan = 1;
    size_t length = strlen(spec->name);
    int is_weight = length >= 6 && !strcmp(spec->name + length - 6, "weight");

    for (const char *c = spec->name; *c; c++)
        hash = (hash ^ (uint8_t)*c) * UINT64_C(0x100000001b3);
    for (int d = 1; d < spec->rank; d++)
        fan *= spec->shape[d];
    for (size_t i = 0; i < count; i++) {
        double u = formula_uniform(hash ^ seed, i + 1);

        if (!strcmp(spec->name, "cost_conv.weight"))
            u = fabs(u) / sqrt(fan);
        else if (spec->rank >= 2)
            u = u / sqrt(fan);
        else
            u = is_weight ? 1 + 0.1 * u : 0.1 * u;
        out[i] = (float)u;
    }
}

static inline int formula_add(void *context, const struct tt_weight_spec *spec)
{
    struct formula_file *file = context;
    size_t count = 1;
    char shape[64] = "", line[256];
    int used;

    for (int d = 0; d < spec->rank; d++) {
        count *= (size_t)spec->shape[d];
        snprintf(shape + strlen(shape), sizeof shape - strlen(shape), "%s%d", d ? "," : "", spec->shape[d]);
    }
    used =
        snprintf(line, sizeof line, "%s\"%s\":{\"dtype\":\"F32\",\"shape\":[%s],\"data_offsets\":[%zu,%zu]}",
                 file->data_size ? "," : "", spec->name, shape, file->data_size, file->data_size + 4 * count);
    file->header = realloc(file->header, file->header_size + (size_t)used);
    file->data = realloc(file->data, file->data_size + 4 * count);
    if (!file->header || !file->data)
        abort();
    memcpy(file->header + file->header_size, line, (size_t)used);
    file->header_size += (size_t)used;
    formula_fill(spec, file->seed, (float *)(void *)(file->data + file->data_size), count);
    file->data_size += 4 * count;
    return 0;
}

/* A whole file; the caller frees it. */
static inline void *formula_weights(const struct tt_model_shape *shape, uint64_t seed, size_t *size)
{
    struct formula_file file = {.seed = seed};
    uint8_t *whole;

    tt_model_each_weight(shape, formula_add, &file);
    *size = 8 + 2 + file.header_size + file.data_size;
    whole = malloc(*size);
    if (!whole)
        abort();
    for (int i = 0; i < 8; i++)
        whole[i] = (uint8_t)((file.header_size + 2) >> (8 * i));
    whole[8] = '{';
    memcpy(whole + 9, file.header, file.header_size);
    whole[9 + file.header_size] = '}';
    memcpy(whole + 10 + file.header_size, file.data, file.data_size);
    free(file.header);
    free(file.data);
    return whole;
}

#endif

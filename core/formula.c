/* core/formula.c: weights from names and a seed, and a clip from integers, the same on every machine.
 *
 * Fails only for want of memory (NULL).
 */
#include "core/formula.h"

#include "core/clip.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* A safetensors file in the making; both parts owned. */
struct file {
    uint64_t seed;
    char *header;
    size_t header_size, header_room;
    uint8_t *data;
    size_t data_size, data_room;
};

/* splitmix64's i-th output (from 1) as a number in [−1, 1). */
static double uniform(uint64_t state, uint64_t i)
{
    uint64_t z = state + i * UINT64_C(0x9E3779B97F4A7C15);

    z = (z ^ z >> 30) * UINT64_C(0xBF58476D1CE4E5B9);
    z = (z ^ z >> 27) * UINT64_C(0x94D049BB133111EB);
    z ^= z >> 31;
    return (double)(z >> 40) / 8388608.0 - 1.0;
}

static void fill(const struct tt_weight_spec *spec, uint64_t seed, uint8_t *out, size_t count)
{
    uint64_t hash = UINT64_C(0xcbf29ce484222325); /* FNV-1a of the name */
    size_t length = strlen(spec->name);
    int is_weight = length >= 6 && !strcmp(spec->name + length - 6, "weight");
    double fan = 1;

    for (const char *c = spec->name; *c; c++)
        hash = (hash ^ (uint8_t)*c) * UINT64_C(0x100000001b3);
    for (int d = 1; d < spec->rank; d++)
        fan *= spec->shape[d];
    for (size_t i = 0; i < count; i++) {
        double u = uniform(hash ^ seed, i + 1);
        float value;

        if (!strcmp(spec->name, "cost_conv.weight"))
            u = fabs(u) / sqrt(fan);
        else if (spec->rank >= 2)
            u = u / sqrt(fan);
        else
            u = is_weight ? 1 + 0.1 * u : 0.1 * u;
        value = (float)u;
        memcpy(out + sizeof value * i, &value, sizeof value);
    }
}

/* Room for `more` bytes behind `size`; 0: no memory. */
static int grow(void **block, size_t *room, size_t size, size_t more)
{
    size_t wanted = *room ? *room : 1 << 16;
    void *grown;

    if (size + more <= *room)
        return 1;
    while (wanted < size + more)
        wanted *= 2;
    grown = realloc(*block, wanted);
    if (!grown)
        return 0;
    *block = grown;
    *room = wanted;
    return 1;
}

static int add_weight(void *context, const struct tt_weight_spec *spec)
{
    struct file *file = context;
    size_t count = 1, bytes;
    char shape[64] = "", line[256];
    int used, at = 0;

    for (int d = 0; d < spec->rank; d++) {
        count *= (size_t)spec->shape[d];
        at += snprintf(shape + at, sizeof shape - (size_t)at, "%s%d", d ? "," : "", spec->shape[d]);
    }
    bytes = count * sizeof(float);
    used =
        snprintf(line, sizeof line, "%c\"%s\":{\"dtype\":\"F32\",\"shape\":[%s],\"data_offsets\":[%zu,%zu]}",
                 file->data_size ? ',' : '{', spec->name, shape, file->data_size, file->data_size + bytes);
    if (!grow((void **)&file->header, &file->header_room, file->header_size, (size_t)used + 1) ||
        !grow((void **)&file->data, &file->data_room, file->data_size, bytes))
        return -1;
    memcpy(file->header + file->header_size, line, (size_t)used);
    file->header_size += (size_t)used;
    fill(spec, file->seed, file->data + file->data_size, count);
    file->data_size += bytes;
    return 0;
}

void *tt_formula_weights(const struct tt_model_shape *shape, uint64_t seed, size_t *size)
{
    struct file file = {.seed = seed};
    uint8_t *whole = NULL;

    if (tt_model_each_weight(shape, add_weight, &file) == 0) {
        file.header[file.header_size++] = '}';
        whole = malloc(8 + file.header_size + file.data_size);
    }
    if (whole) {
        for (int i = 0; i < 8; i++)
            whole[i] = (uint8_t)(file.header_size >> (8 * i));
        memcpy(whole + 8, file.header, file.header_size);
        memcpy(whole + 8 + file.header_size, file.data, file.data_size);
        *size = 8 + file.header_size + file.data_size;
    }
    free(file.header);
    free(file.data);
    return whole;
}

/* 0..255 of a lattice point. */
static int lattice(uint32_t x, uint32_t y, uint32_t kind)
{
    uint32_t h = x * 73856093u ^ y * 19349663u ^ kind * 83492791u;

    h = (h ^ h >> 13) * 2654435761u;
    return (int)(h >> 24);
}

/* Lattice noise, bilinear between points that are `cell` (a power of two) pixels apart: 0..255. */
static int noise(int x, int y, int cell, uint32_t kind)
{
    uint32_t i = (uint32_t)(x / cell), j = (uint32_t)(y / cell);
    int u = x % cell, v = y % cell;
    int above = lattice(i, j, kind) * (cell - u) + lattice(i + 1, j, kind) * u;
    int below = lattice(i, j + 1, kind) * (cell - u) + lattice(i + 1, j + 1, kind) * u;

    return (above * (cell - v) + below * v) / (cell * cell);
}

void tt_formula_clip(uint8_t *rgb, int frames)
{
    for (int f = 0; f < frames; f++)
        for (int y = 0; y < TT_CLIP_SIZE; y++)
            for (int x = 0; x < TT_CLIP_SIZE; x++) {
                int dx = x - (96 + 6 * f), dy = y - (120 + 3 * f), in = dx * dx + dy * dy < 44 * 44;
                int px = in ? dx + 1024 : x + 2 * f + 64, py = in ? dy + 1024 : y + f + 64;

                for (uint32_t c = 0; c < 3; c++) {
                    uint32_t kind = c + (in ? 3 : 0);

                    *rgb++ = (uint8_t)((noise(px, py, 32, kind) * 2 + noise(px, py, 8, kind + 6)) / 3);
                }
            }
}

/* core/cpu/load.c: memory for the CPU backend, and weights as FP32 in its layouts.
 *
 * Invariant: every block is 64-byte aligned and belongs to one store. Fails with TT_RETRY_LATER for want of
 * memory; that all weights are there and well shaped is core/weights.c's promise.
 */
#include "core/cpu/cpu.h"

#include <assert.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>

float *tt_floats(size_t count)
{
    return aligned_alloc(64, (count * sizeof(float) + 63) / 64 * 64);
}

float *tt_scratch_take(struct tt_scratch *scratch, size_t count)
{
    size_t taken = (count + 15) / 16 * 16;
    float *start = scratch->next;

    assert(taken <= scratch->left); /* else core/cpu/sizes.h counts wrongly */
    scratch->next += taken;
    scratch->left -= taken;
    return start;
}

float *tt_store_floats(struct tt_store *store, size_t count)
{
    float *block = NULL;

    if (!store->status && store->blocks < TT_STORE_BLOCKS)
        block = tt_floats(count);
    if (block)
        store->block[store->blocks++] = block;
    else if (!store->status)
        store->status = tt_fail(store->err, TT_RETRY_LATER, "no memory for the network's weights");
    return block;
}

/* [out][in][area] -> [area][in][out] */
static void permute(const float *from, float *to, size_t out, size_t in, size_t area)
{
    for (size_t o = 0; o < out; o++)
        for (size_t i = 0; i < in; i++)
            for (size_t k = 0; k < area; k++)
                to[(k * in + i) * out + o] = from[(o * in + i) * area + k];
}

static float *read_weight(struct tt_store *store, const char *name)
{
    const struct tt_tensor *tensor = tt_weights_find(store->weights, name);
    float *copy, *plain;

    if (store->status)
        return NULL;
    if (!tensor) {
        store->status = tt_fail(store->err, TT_BAD_INPUT, "no weight %s", name);
        return NULL;
    }
    copy = tt_store_floats(store, (size_t)tensor->count);
    plain = tt_tensor_to_f32(tensor);
    if (copy && plain) {
        size_t out = (size_t)tensor->shape[0], in = (size_t)tensor->shape[1];

        permute(plain, copy, out, in, (size_t)tensor->count / (out * in));
    } else if (copy) {
        store->status = tt_fail(store->err, TT_RETRY_LATER, "no memory for the network's weights");
        copy = NULL;
    }
    free(plain);
    return copy;
}

float *tt_store_weight(struct tt_store *store, const char *format, ...)
{
    char name[128];
    va_list args;

    va_start(args, format);
    vsnprintf(name, sizeof name, format, args);
    va_end(args);
    return read_weight(store, name);
}

struct tt_affine tt_store_affine(struct tt_store *store, const char *format, ...)
{
    char prefix[96], name[128];
    struct tt_affine affine;
    va_list args;

    va_start(args, format);
    vsnprintf(prefix, sizeof prefix, format, args);
    va_end(args);
    snprintf(name, sizeof name, "%s.weight", prefix);
    affine.weight = read_weight(store, name);
    snprintf(name, sizeof name, "%s.bias", prefix);
    affine.bias = read_weight(store, name);
    return affine;
}

void tt_store_drop(struct tt_store *store, const float *block)
{
    for (int i = 0; block && i < store->blocks; i++)
        if (store->block[i] == block) {
            free(store->block[i]);
            store->block[i] = store->block[--store->blocks];
            return;
        }
}

void tt_store_free(struct tt_store *store)
{
    for (int i = 0; i < store->blocks; i++)
        free(store->block[i]);
    store->blocks = 0;
}

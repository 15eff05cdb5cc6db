/* tests/golden/golden.c: see golden.h. */
#include "tests/golden/golden.h"

#include "core/formula.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static int passed, failed;

void golden_must(enum tt_status status, const struct tt_error *err)
{
    if (!status)
        return;
    fprintf(stderr, "%s: %s\n", tt_status_name(status), err->text);
    exit(1);
}

void *golden_need(void *p, const char *what)
{
    if (p)
        return p;
    fprintf(stderr, "%s: no memory, or it is not there\n", what);
    exit(1);
}

const struct tt_tensor *golden_tensor(const struct golden *g, const char *name)
{
    return golden_need((void *)tt_weights_find(g->file, name), name);
}

float *golden_f32(const struct golden *g, const char *name)
{
    return golden_need(tt_tensor_to_f32(golden_tensor(g, name)), name);
}

struct tt_estimate *golden_estimates(const struct golden *g, int pass)
{
    size_t n = (size_t)(g->queries * g->clip.frames);
    struct tt_estimate *e = golden_need(malloc(n * sizeof *e), "estimates");
    char name[48];
    float *xy, *occlusion, *expected;

    snprintf(name, sizeof name, "iter%d.tracks", pass);
    xy = golden_f32(g, name);
    snprintf(name, sizeof name, "iter%d.occlusion", pass);
    occlusion = golden_f32(g, name);
    snprintf(name, sizeof name, "iter%d.expected_dist", pass);
    expected = golden_f32(g, name);
    for (size_t i = 0; i < n; i++)
        e[i] = (struct tt_estimate){xy[2 * i], xy[2 * i + 1], occlusion[i], expected[i]};
    free(xy);
    free(occlusion);
    free(expected);
    return e;
}

static void verdict(const char *what, const char *how, double reached, double bound)
{
    int bad = !(reached <= bound); /* NaN is bad */

    bad ? failed++ : passed++;
    printf("%-4s %-28s %s%.3g of %.3g\n", bad ? "FAIL" : "ok", what, how, reached, bound);
}

void golden_bounded(const char *what, double reached, double bound)
{
    verdict(what, "", reached, bound);
}

void golden_relative(const char *what, const float *ours, const float *theirs, size_t n, double bound)
{
    double difference = 0, length = 0;

    for (size_t i = 0; i < n; i++) {
        double d = (double)ours[i] - (double)theirs[i];

        difference += d * d;
        length += (double)theirs[i] * (double)theirs[i];
    }
    verdict(what, "relative ", sqrt(difference / length), bound);
}

void golden_largest(const char *what, const float *ours, const float *theirs, size_t n, double bound)
{
    double largest = 0;

    for (size_t i = 0; i < n; i++) {
        double d = fabs((double)ours[i] - (double)theirs[i]);

        largest = isfinite(d) ? fmax(d, largest) : INFINITY;
        if (!isfinite(largest))
            break;
    }
    verdict(what, "largest ", largest, bound);
}

void golden_features(const struct golden *g, const float *(*map)(void *context, int frame, int level),
                     void *context, double bound)
{
    static const char *const names[TT_LEVELS] = {"features.hires", "features.lowres", "features.highest"};
    const struct tt_tensor *frames = golden_tensor(g, "features.frames");

    for (int level = 0; level < TT_LEVELS; level++) {
        const struct tt_tensor *t = golden_tensor(g, names[level]);
        int size = tt_level_shapes[level].size, channels = tt_level_shapes[level].channels;
        int step = size / (int)t->shape[1];
        float *theirs = golden_f32(g, names[level]);
        float *ours = golden_need(malloc((size_t)t->count * sizeof *ours), names[level]), *at = ours;

        for (int64_t i = 0; i < frames->count; i++) {
            const float *from;
            int64_t frame;

            memcpy(&frame, (const char *)frames->data + 8 * i, sizeof frame);
            from = map(context, (int)frame, level);
            for (int y = 0; y < size; y += step)
                for (int x = 0; x < size; x += step, at += channels)
                    memcpy(at, from + (y * size + x) * channels, (size_t)channels * sizeof *at);
        }
        golden_relative(names[level], ours, theirs, (size_t)t->count, bound);
        free(theirs);
        free(ours);
    }
}

void golden_supports(const struct golden *g, const float *supports, double bound)
{
    static const char *const names[TT_LEVELS] = {"query.hires_supp", "query.lowres_supp",
                                                 "query.highest_supp"};

    for (int level = 0, offset = 0; level < TT_LEVELS; level++) {
        const struct tt_tensor *t = golden_tensor(g, names[level]);
        size_t floats = (size_t)(TT_SUPPORT_AREA * tt_level_shapes[level].channels);
        float *theirs = golden_f32(g, names[level]);
        float *ours = golden_need(malloc((size_t)t->count * sizeof *ours), names[level]);

        for (int64_t q = 0; q < t->shape[0]; q++)
            memcpy(ours + (size_t)q * floats, supports + (size_t)q * TT_SUPPORT_FLOATS + offset,
                   floats * sizeof *ours);
        golden_relative(names[level], ours, theirs, (size_t)t->count, bound);
        offset += (int)floats;
        free(theirs);
        free(ours);
    }
}

void golden_stages(const struct golden *g, const struct tt_estimate *stages, double bound)
{
    size_t n = (size_t)(g->queries * g->clip.frames);
    float *part = golden_need(malloc(4 * n * sizeof *part), "stages");

    for (int pass = 0; pass <= TT_REFINEMENTS; pass++) {
        struct tt_estimate *theirs = golden_estimates(g, pass);
        char name[32];

        for (int logits = 0; logits < 2; logits++) {
            for (size_t i = 0; i < n; i++) {
                const struct tt_estimate *o = &stages[(size_t)pass * n + i], *t = &theirs[i];

                part[2 * i] = logits ? o->occlusion : o->x;
                part[2 * i + 1] = logits ? o->expected_dist : o->y;
                part[2 * (n + i)] = logits ? t->occlusion : t->x;
                part[2 * (n + i) + 1] = logits ? t->expected_dist : t->y;
            }
            snprintf(name, sizeof name, "iter%d %s", pass, logits ? "logits" : "tracks");
            golden_largest(name, part, part + 2 * n, 2 * n, bound);
        }
        free(theirs);
    }
    free(part);
}

int golden_passed(void)
{
    return passed;
}

int golden_failed(void)
{
    return failed;
}

static const struct tt_model_shape *formula_shape(const char *weights)
{
    return !strncmp(weights, "base:", 5)    ? &tt_model_base
           : !strncmp(weights, "small:", 6) ? &tt_model_small
                                            : NULL;
}

int golden_there(const char *file, const char *weights)
{
    return !access(file, R_OK) && (formula_shape(weights) || !access(weights, R_OK));
}

void golden_open(struct golden *g, const char *file, const char *weights)
{
    const struct tt_model_shape *shape = formula_shape(weights);
    const struct tt_tensor *clip;
    struct tt_error err;
    float *tyx;
    size_t size;

    *g = (struct golden){0};
    golden_must(tt_tensors_open(&g->file, file, &err), &err);
    if (shape) {
        g->formula = tt_formula_weights(shape, strtoull(strchr(weights, ':') + 1, NULL, 10), &size);
        golden_need(g->formula, weights);
        golden_must(tt_weights_from_memory(&g->weights, weights, g->formula, size, &err), &err);
    } else {
        golden_must(tt_weights_open(&g->weights, weights, &err), &err);
    }
    g->clip.frames = (int)golden_tensor(g, "iter0.tracks")->shape[1];
    clip = tt_weights_find(g->file, "clip");
    if (!clip) {
        g->made = golden_need(malloc((size_t)g->clip.frames * TT_FRAME_BYTES), "clip");
        tt_formula_clip(g->made, g->clip.frames);
    }
    g->clip.rgb = clip ? clip->data : g->made;
    g->queries = (int)golden_tensor(g, "queries_tyx")->shape[0];
    tyx = golden_f32(g, "queries_tyx");
    g->frame = golden_need(malloc((size_t)g->queries * sizeof *g->frame), "query points");
    g->xy = golden_need(malloc((size_t)g->queries * 2 * sizeof *g->xy), "query points");
    for (int q = 0; q < g->queries; q++) {
        g->frame[q] = (int)lrintf(tyx[3 * q]);
        g->xy[2 * q] = tyx[3 * q + 2];
        g->xy[2 * q + 1] = tyx[3 * q + 1];
    }
    free(tyx);
}

void golden_close(struct golden *g)
{
    tt_weights_close(g->weights);
    tt_weights_close(g->file);
    free(g->formula);
    free(g->made);
    free(g->frame);
    free(g->xy);
}

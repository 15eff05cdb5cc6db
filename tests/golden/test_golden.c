/* tests/golden/test_golden.c FILE WEIGHTS: the CPU backend against tensors that the public code wrote.
 *
 * FILE: golden tensors (README.md lists them); where it has no clip, that is the formula's. WEIGHTS: a weight
 * file, or "base:SEED" or "small:SEED" for weights from the formula. Every stage is fed with what the public
 * code fed it, then the whole is run. The bounds are the project's: features and supports 1e-4 of their
 * length, embeddings and mixer 1e-3, tracks 0.02 px and logits 0.02 everywhere, before the query's frame is
 * pinned. Exit code 77: a file is not there.
 */
#include "core/backend.h"
#include "core/cpu/cpu.h"
#include "core/cpu/sizes.h"
#include "core/formula.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { SKIPPED = 77, THREADS = 2 };

static int failures;

struct golden {
    struct tt_weights *file, *weights;
    void *formula; /* weights in memory */
    struct tt_backend *backend;
    const struct tt_backend_ops *ops;
    int frames, queries;
    int *query_frame;
    float *query_xy;
    float *supports;
};

static void die(const char *what, const struct tt_error *err)
{
    fprintf(stderr, "%s: %s\n", what, err->text);
    exit(1);
}

static const struct tt_tensor *need(const struct golden *g, const char *name)
{
    const struct tt_tensor *t = tt_weights_find(g->file, name);

    if (!t) {
        fprintf(stderr, "no golden tensor %s\n", name);
        exit(1);
    }
    return t;
}

static float *need_f32(const struct golden *g, const char *name)
{
    float *copy = tt_tensor_to_f32(need(g, name));

    if (!copy) {
        fprintf(stderr, "golden tensor %s is not F32\n", name);
        exit(1);
    }
    return copy;
}

static int64_t integer(const struct tt_tensor *t, int64_t i)
{
    int64_t value;

    memcpy(&value, (const char *)t->data + 8 * i, sizeof value);
    return value;
}

/* Compares ours with theirs: relative length of the difference where relative > 0, largest difference
 * otherwise. */
static void compare(const char *what, const float *ours, const float *theirs, size_t count, double relative,
                    double absolute)
{
    double difference = 0, length = 0, largest = 0, bound = relative > 0 ? relative : absolute, reached;
    int bad = 0;

    for (size_t i = 0; i < count; i++) {
        double d = (double)ours[i] - (double)theirs[i];

        bad |= !isfinite(d);
        difference += d * d;
        length += (double)theirs[i] * (double)theirs[i];
        largest = fabs(d) > largest ? fabs(d) : largest;
    }
    reached = relative > 0 ? sqrt(difference / length) : largest;
    bad |= !(reached <= bound);
    failures += bad;
    printf("%-24s %s %.2e of %.0e%s\n", what, relative > 0 ? "relative" : "largest ", reached, bound,
           bad ? "  FAILED" : "");
}

/* Frames' features, thinned as the golden tensors are. */
static void check_features(const struct golden *g)
{
    static const char *const names[TT_LEVELS] = {"features.hires", "features.lowres", "features.highest"};
    const struct tt_tensor *frames = need(g, "features.frames");

    for (int level = 0; level < TT_LEVELS; level++) {
        const struct tt_tensor *t = need(g, names[level]);
        float *theirs = need_f32(g, names[level]), *ours = malloc((size_t)t->count * sizeof *ours),
              *at = ours;
        int size = tt_level_shapes[level].size, channels = tt_level_shapes[level].channels;
        int step = size / (int)t->shape[1];

        for (int64_t i = 0; i < frames->count; i++) {
            const float *map = tt_cpu_features(g->backend, (int)integer(frames, i), level);

            for (int y = 0; y < size; y += step)
                for (int x = 0; x < size; x += step, at += channels)
                    memcpy(at, map + (y * size + x) * channels, (size_t)channels * sizeof *at);
        }
        compare(names[level], ours, theirs, (size_t)t->count, 1e-4, 0);
        free(theirs);
        free(ours);
    }
}

static void check_supports(const struct golden *g)
{
    static const char *const names[TT_LEVELS] = {"query.hires_supp", "query.lowres_supp",
                                                 "query.highest_supp"};

    for (int level = 0, offset = 0; level < TT_LEVELS; level++) {
        const struct tt_tensor *t = need(g, names[level]);
        size_t floats = (size_t)(TT_SUPPORT_AREA * tt_level_shapes[level].channels);
        float *theirs = need_f32(g, names[level]), *ours = malloc((size_t)t->count * sizeof *ours);

        for (int64_t q = 0; q < t->shape[0]; q++)
            memcpy(ours + (size_t)q * floats, g->supports + (size_t)q * TT_SUPPORT_FLOATS + offset,
                   floats * sizeof *ours);
        compare(names[level], ours, theirs, (size_t)t->count, 1e-4, 0);
        offset += (int)floats;
        free(theirs);
        free(ours);
    }
}

/* The public code's estimates of a stage: [queries][frames]. */
static struct tt_estimate *estimates(const struct golden *g, const char *stage)
{
    struct tt_estimate *e = malloc((size_t)(g->queries * g->frames) * sizeof *e);
    char name[64];
    float *xy, *occlusion, *expected;

    snprintf(name, sizeof name, "%s.tracks", stage);
    xy = need_f32(g, name);
    snprintf(name, sizeof name, "%s.occlusion", stage);
    occlusion = need_f32(g, name);
    snprintf(name, sizeof name, "%s.expected_dist", stage);
    expected = need_f32(g, name);
    for (int i = 0; i < g->queries * g->frames; i++)
        e[i] = (struct tt_estimate){xy[2 * i], xy[2 * i + 1], occlusion[i], expected[i]};
    free(xy);
    free(occlusion);
    free(expected);
    return e;
}

static struct tt_scratch scratch_for(const struct golden *g, float **memory)
{
    size_t floats =
        tt_cpu_scratch(tt_weights_shape(g->weights), TT_QUERY_LANES, TT_CLIP_FRAMES, TT_CLIP_FRAMES);

    *memory = tt_floats(floats);
    return (struct tt_scratch){*memory, floats};
}

/* Correlation embeddings of the first refinement, from the public code's initialisation. */
static void check_embeddings(const struct golden *g)
{
    struct tt_estimate *init = estimates(g, "iter0");
    const struct tt_model_shape *shape = tt_weights_shape(g->weights);
    float *memory, *transposed = tt_floats(TT_SUPPORT_FLOATS);
    struct tt_scratch scratch = scratch_for(g, &memory);

    for (int level = 0, offset = 0; level < TT_LEVELS; level++) {
        char name[32];
        const struct tt_tensor *t;
        const float *maps[TT_CLIP_FRAMES];
        float *theirs, *ours;

        snprintf(name, sizeof name, "iter0.cmdtop%d", level);
        t = need(g, name);
        theirs = need_f32(g, name);
        ours = malloc((size_t)t->count * sizeof *ours);
        for (int f = 0; f < g->frames; f++)
            maps[f] = tt_cpu_features(g->backend, f, level);
        for (int q = 0; q < (int)t->shape[0]; q++) {
            tt_support_transpose(g->supports + (size_t)q * TT_SUPPORT_FLOATS + offset,
                                 tt_level_shapes[level].channels, transposed);
            tt_correlation_run(tt_cpu_encoder(g->backend, level), shape, level, g->frames, maps, transposed,
                               init + q * g->frames, ours + q * g->frames * TT_LEVEL_EMBEDDING,
                               TT_LEVEL_EMBEDDING, scratch);
        }
        offset += TT_SUPPORT_AREA * tt_level_shapes[level].channels;
        compare(name, ours, theirs, (size_t)t->count, 1e-3, 0);
        free(theirs);
        free(ours);
    }
    free(transposed);
    free(memory);
    free(init);
}

/* The mixer's input columns that are not embeddings, and its output from the public code's whole input. */
static void check_mixer(const struct golden *g)
{
    const struct tt_tensor *t = need(g, "iter0.mixer_in");
    struct tt_estimate *init = estimates(g, "iter0");
    float *in = need_f32(g, "iter0.mixer_in"), *out = need_f32(g, "iter0.mixer_out"), *memory;
    struct tt_scratch scratch = scratch_for(g, &memory);
    int rows = tt_mixer_rows(g->frames), queries = (int)t->shape[0];
    float *input = tt_floats((size_t)(rows * TT_MIXER_INPUT)),
          *output = tt_floats((size_t)(rows * TT_MIXER_OUTPUT));
    float *ours = malloc((size_t)(queries * g->frames * TT_MIXER_OUTPUT) * sizeof *ours);
    float *theirs = malloc((size_t)(queries * g->frames * TT_MIXER_OUTPUT) * sizeof *theirs);
    float *states = malloc((size_t)t->count * sizeof *states);

    for (int q = 0; q < queries; q++) {
        size_t used = (size_t)(g->frames * TT_MIXER_INPUT);

        memset(input, 0, (size_t)(rows * TT_MIXER_INPUT) * sizeof *input);
        memcpy(input, in + (size_t)q * used, used * sizeof *input);
        tt_mixer_state(init + q * g->frames, g->frames, input);
        memcpy(states + (size_t)q * used, input, used * sizeof *input);
        memcpy(input, in + (size_t)q * used, used * sizeof *input);
        tt_mixer_run(tt_cpu_mixer(g->backend), g->frames, input, output, scratch);
        for (int f = 0; f < g->frames; f++) {
            size_t row = (size_t)(q * g->frames + f);

            memcpy(ours + row * TT_MIXER_OUTPUT, output + f * TT_MIXER_OUTPUT,
                   TT_MIXER_OUTPUT * sizeof *ours);
            memcpy(theirs + row * TT_MIXER_OUTPUT, out + row * TT_MIXER_OUTPUT_ROWS,
                   TT_MIXER_OUTPUT * sizeof *theirs);
        }
    }
    compare("position code", states, in, (size_t)t->count, 1e-4, 0);
    compare("mixer", ours, theirs, (size_t)(queries * g->frames * TT_MIXER_OUTPUT), 1e-3, 0);
    free(states);
    free(ours);
    free(theirs);
    free(input);
    free(output);
    free(memory);
    free(in);
    free(out);
    free(init);
}

static void check_tracks(const struct golden *g)
{
    size_t count = (size_t)(g->queries * g->frames);
    struct tt_estimate *stages = malloc((1 + TT_REFINEMENTS) * count * sizeof *stages);
    struct tt_estimate *result = malloc(count * sizeof *result);
    struct tt_track_request request = {.queries = g->queries,
                                       .supports = g->supports,
                                       .query_frame = g->query_frame,
                                       .query_xy = g->query_xy,
                                       .stages = stages};
    struct tt_error err;

    if (g->ops->track(g->backend, &request, result, &err))
        die("track", &err);
    if (memcmp(result, stages + TT_REFINEMENTS * count, count * sizeof *result)) {
        puts("the last pass is not the result  FAILED");
        failures++;
    }
    for (int pass = 0; pass <= TT_REFINEMENTS; pass++) {
        float *part = malloc(2 * count * 2 * sizeof *part);
        struct tt_estimate *theirs;
        char name[32];

        snprintf(name, sizeof name, "iter%d", pass);
        theirs = estimates(g, name);
        for (int logits = 0; logits < 2; logits++) {
            for (size_t i = 0; i < count; i++) {
                const struct tt_estimate *o = &stages[(size_t)pass * count + i], *t = &theirs[i];

                part[2 * i] = logits ? o->occlusion : o->x;
                part[2 * i + 1] = logits ? o->expected_dist : o->y;
                part[2 * (count + i)] = logits ? t->occlusion : t->x;
                part[2 * (count + i) + 1] = logits ? t->expected_dist : t->y;
            }
            snprintf(name, sizeof name, "iter%d %s", pass, logits ? "logits" : "tracks");
            compare(name, part, part + 2 * count, 2 * count, 0, 0.02);
        }
        free(theirs);
        free(part);
    }
    free(stages);
    free(result);
}

static void load_weights(struct golden *g, const char *source)
{
    struct tt_error err;
    const struct tt_model_shape *shape = !strncmp(source, "base:", 5)    ? &tt_model_base
                                         : !strncmp(source, "small:", 6) ? &tt_model_small
                                                                         : NULL;
    size_t size;

    if (shape) {
        g->formula = tt_formula_weights(shape, strtoull(strchr(source, ':') + 1, NULL, 10), &size);
        if (tt_weights_from_memory(&g->weights, source, g->formula, size, &err))
            die("formula", &err);
    } else if (tt_weights_open(&g->weights, source, &err)) {
        die("weights", &err);
    }
}

static void prepare(struct golden *g)
{
    struct tt_backend_options options = {.threads = THREADS};
    const struct tt_tensor *clip = tt_weights_find(g->file, "clip"), *queries = need(g, "queries_tyx");
    float *tyx = need_f32(g, "queries_tyx");
    uint8_t *made = NULL;
    struct tt_clip input = {.rgb = clip ? clip->data : NULL,
                            .frames = (int)need(g, "iter0.tracks")->shape[1]};
    struct tt_error err;

    if (!clip) {
        made = malloc((size_t)input.frames * TT_FRAME_BYTES);
        if (!made)
            exit(1);
        tt_formula_clip(made, input.frames);
        input.rgb = made;
    }
    g->ops = &tt_backend_cpu;
    g->frames = input.frames;
    g->queries = (int)queries->shape[0];
    g->query_frame = malloc((size_t)g->queries * sizeof *g->query_frame);
    g->query_xy = malloc((size_t)g->queries * 2 * sizeof *g->query_xy);
    for (int q = 0; q < g->queries; q++) {
        g->query_frame[q] = (int)lrintf(tyx[3 * q]);
        g->query_xy[2 * q] = tyx[3 * q + 2];
        g->query_xy[2 * q + 1] = tyx[3 * q + 1];
    }
    free(tyx);
    g->supports = malloc((size_t)g->queries * g->ops->support_bytes);
    if (g->ops->open(&g->backend, &options, g->weights, &err))
        die("open", &err);
    puts(g->ops->describe(g->backend));
    if (g->ops->features(g->backend, &input, 0, &err))
        die("features", &err);
    free(made);
    if (g->ops->sample(g->backend, g->queries, g->query_frame, g->query_xy, g->supports, &err))
        die("sample", &err);
}

int main(int argc, char **argv)
{
    struct golden g = {0};
    struct tt_error err;

    if (argc != 3) {
        fprintf(stderr, "usage: test_golden FILE WEIGHTS\n");
        return 2;
    }
    if (access(argv[1], R_OK) || (!strchr(argv[2], ':') && access(argv[2], R_OK))) {
        printf("skipped: %s or %s is not there\n", argv[1], argv[2]);
        return SKIPPED;
    }
    if (tt_tensors_open(&g.file, argv[1], &err))
        die("golden", &err);
    load_weights(&g, argv[2]);
    prepare(&g);
    check_features(&g);
    check_supports(&g);
    check_embeddings(&g);
    check_mixer(&g);
    check_tracks(&g);
    g.ops->close(g.backend);
    tt_weights_close(g.weights);
    tt_weights_close(g.file);
    free(g.formula);
    free(g.query_frame);
    free(g.query_xy);
    free(g.supports);
    printf("%s\n", failures ? "FAILED" : "all within bounds");
    return failures != 0;
}

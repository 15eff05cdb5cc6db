/* tests/golden/test_golden.c FILE WEIGHTS: the CPU backend against tensors that the public code wrote.
 *
 * FILE: golden tensors (README.md lists them); where it has no clip, that is the formula's. WEIGHTS: a weight
 * file, or "base:SEED" or "small:SEED" for weights from the formula. Every stage is fed with what the public
 * code fed it, then the whole is run. The bounds are the project's: features and supports 1e-4 of their
 * length, embeddings and mixer 1e-3, tracks 0.02 px and logits 0.02 everywhere, before the query's frame is
 * pinned. Exit code 77: a file is not there.
 */
#include "core/cpu/cpu.h"
#include "core/cpu/sizes.h"
#include "tests/golden/golden.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { SKIPPED = 77, THREADS = 2 };

struct run {
    struct golden golden;
    struct tt_backend *backend;
    float *supports; /* [queries][TT_SUPPORT_FLOATS] */
};

static const float *features_of(void *context, int frame, int level)
{
    const struct run *r = context;

    return tt_cpu_features(r->backend, frame, level);
}

static struct tt_scratch scratch_for(const struct golden *g, float **memory)
{
    size_t floats =
        tt_cpu_scratch(tt_weights_shape(g->weights), TT_QUERY_LANES, TT_CLIP_FRAMES, TT_CLIP_FRAMES);

    *memory = tt_floats(floats);
    return (struct tt_scratch){*memory, floats};
}

/* Correlation embeddings of the first refinement, from the public code's initialisation. */
static void check_embeddings(const struct run *r)
{
    const struct golden *g = &r->golden;
    struct tt_estimate *init = golden_estimates(g, 0);
    const struct tt_model_shape *shape = tt_weights_shape(g->weights);
    float *memory, *transposed = tt_floats(TT_SUPPORT_FLOATS);
    struct tt_scratch scratch = scratch_for(g, &memory);

    for (int level = 0, offset = 0; level < TT_LEVELS; level++) {
        char name[32];
        const struct tt_tensor *t;
        const float *maps[TT_CLIP_FRAMES];
        float *theirs, *ours;

        snprintf(name, sizeof name, "iter0.cmdtop%d", level);
        t = golden_tensor(g, name);
        theirs = golden_f32(g, name);
        ours = malloc((size_t)t->count * sizeof *ours);
        for (int f = 0; f < g->clip.frames; f++)
            maps[f] = tt_cpu_features(r->backend, f, level);
        for (int q = 0; q < (int)t->shape[0]; q++) {
            tt_support_transpose(r->supports + (size_t)q * TT_SUPPORT_FLOATS + offset,
                                 tt_level_shapes[level].channels, transposed);
            tt_correlation_run(tt_cpu_encoder(r->backend, level), shape, level, g->clip.frames, maps,
                               transposed, init + q * g->clip.frames,
                               ours + q * g->clip.frames * TT_LEVEL_EMBEDDING, TT_LEVEL_EMBEDDING, scratch);
        }
        offset += TT_SUPPORT_AREA * tt_level_shapes[level].channels;
        golden_relative(name, ours, theirs, (size_t)t->count, 1e-3);
        free(theirs);
        free(ours);
    }
    free(transposed);
    free(memory);
    free(init);
}

/* The mixer's input columns that are not embeddings, and its output from the public code's whole input. */
static void check_mixer(const struct run *r)
{
    const struct golden *g = &r->golden;
    const struct tt_tensor *t = golden_tensor(g, "iter0.mixer_in");
    struct tt_estimate *init = golden_estimates(g, 0);
    float *in = golden_f32(g, "iter0.mixer_in"), *out = golden_f32(g, "iter0.mixer_out"), *memory;
    struct tt_scratch scratch = scratch_for(g, &memory);
    int rows = tt_mixer_rows(g->clip.frames), queries = (int)t->shape[0];
    float *input = tt_floats((size_t)(rows * TT_MIXER_INPUT)),
          *output = tt_floats((size_t)(rows * TT_MIXER_OUTPUT));
    float *ours = malloc((size_t)(queries * g->clip.frames * TT_MIXER_OUTPUT) * sizeof *ours);
    float *theirs = malloc((size_t)(queries * g->clip.frames * TT_MIXER_OUTPUT) * sizeof *theirs);
    float *states = malloc((size_t)t->count * sizeof *states);

    for (int q = 0; q < queries; q++) {
        size_t used = (size_t)(g->clip.frames * TT_MIXER_INPUT);

        memset(input, 0, (size_t)(rows * TT_MIXER_INPUT) * sizeof *input);
        memcpy(input, in + (size_t)q * used, used * sizeof *input);
        tt_mixer_state(init + q * g->clip.frames, g->clip.frames, input);
        memcpy(states + (size_t)q * used, input, used * sizeof *input);
        memcpy(input, in + (size_t)q * used, used * sizeof *input);
        tt_mixer_run(tt_cpu_mixer(r->backend), g->clip.frames, input, output, scratch);
        for (int f = 0; f < g->clip.frames; f++) {
            size_t row = (size_t)(q * g->clip.frames + f);

            memcpy(ours + row * TT_MIXER_OUTPUT, output + f * TT_MIXER_OUTPUT,
                   TT_MIXER_OUTPUT * sizeof *ours);
            memcpy(theirs + row * TT_MIXER_OUTPUT, out + row * TT_MIXER_OUTPUT_ROWS,
                   TT_MIXER_OUTPUT * sizeof *theirs);
        }
    }
    golden_relative("position code", states, in, (size_t)t->count, 1e-4);
    golden_relative("mixer", ours, theirs, (size_t)(queries * g->clip.frames * TT_MIXER_OUTPUT), 1e-3);
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

static void check_tracks(const struct run *r)
{
    const struct golden *g = &r->golden;
    size_t count = (size_t)(g->queries * g->clip.frames);
    struct tt_estimate *stages = golden_need(malloc((1 + TT_REFINEMENTS) * count * sizeof *stages), "stages");
    struct tt_estimate *result = golden_need(malloc(count * sizeof *result), "tracks");
    const struct tt_track_request request = {.queries = g->queries,
                                             .supports = r->supports,
                                             .query_frame = g->frame,
                                             .query_xy = g->xy,
                                             .stages = stages};
    struct tt_error err;

    golden_must(tt_backend_cpu.track(r->backend, &request, result, &err), &err);
    golden_largest("the last pass is the result", (float *)result, (float *)(stages + TT_REFINEMENTS * count),
                   4 * count, 0);
    golden_stages(g, stages, 0.02);
    free(stages);
    free(result);
}

static void prepare(struct run *r)
{
    const struct tt_backend_options options = {.threads = THREADS};
    const struct golden *g = &r->golden;
    struct tt_error err;

    r->supports = golden_need(malloc((size_t)g->queries * tt_backend_cpu.support_bytes), "supports");
    golden_must(tt_backend_cpu.open(&r->backend, &options, g->weights, &err), &err);
    puts(tt_backend_cpu.describe(r->backend));
    golden_must(tt_backend_cpu.features(r->backend, &g->clip, 0, &err), &err);
    golden_must(tt_backend_cpu.sample(r->backend, g->queries, g->frame, g->xy, r->supports, &err), &err);
}

int main(int argc, char **argv)
{
    struct run r = {0};

    if (argc != 3) {
        fprintf(stderr, "usage: test_golden FILE WEIGHTS\n");
        return 2;
    }
    if (!golden_there(argv[1], argv[2])) {
        printf("skipped: %s or %s is not there\n", argv[1], argv[2]);
        return SKIPPED;
    }
    golden_open(&r.golden, argv[1], argv[2]);
    prepare(&r);
    golden_features(&r.golden, features_of, &r, 1e-4);
    golden_supports(&r.golden, r.supports, 1e-4);
    check_embeddings(&r);
    check_mixer(&r);
    check_tracks(&r);
    tt_backend_cpu.close(r.backend);
    golden_close(&r.golden);
    free(r.supports);
    printf("%d passed, %d failed\n", golden_passed(), golden_failed());
    return golden_failed() != 0;
}

/* core/cpu/backend.c: the CPU backend: the reference for every other.
 *
 * Three kinds of jobs go to the pool: a frame through the backbone; a tile of query points in one frame
 * through the cost volume; one query point through its four refinements. A job writes only what is its own,
 * and works on shapes that the plan and the clip's length fix, so the same plan gives the same bits whatever
 * the threads and the other query points are. Features stand in slots, one a frame; frames that a clip shares
 * with the last one keep theirs. open fails with TT_RETRY_LATER (memory, threads), TT_REFUSE (precision,
 * tile) or TT_BAD_INPUT; features and track with TT_INTERRUPTED when asked to stop, features then hold no
 * clip. OpenBLAS is set to one thread for the whole process: the pool is what runs in parallel.
 */
#include "core/backend.h"
#include "core/cpu/cpu.h"
#include "core/cpu/pool.h"
#include "core/cpu/sizes.h"

#include <jansson.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

/* OpenBLAS as distributions build it serves this many callers at a time; a clip has fewer frames. */
enum { MOST_THREADS = 64 };

struct tt_backend {
    struct tt_plan plan;
    const struct tt_model_shape *shape;
    const atomic_bool *stop;
    char *description;

    struct tt_store store;
    struct tt_resnet resnet;
    struct tt_cost cost;
    struct tt_encoder encoder[TT_LEVELS];
    struct tt_mixer mixer;

    struct tt_pool *pool;
    int threads;
    float **scratch; /* [threads], scratch_floats each */
    size_t scratch_floats;

    int frames;                                 /* of the held clip; 0: none */
    int slot[TT_CLIP_FRAMES];                   /* of each frame */
    float *features[TT_CLIP_FRAMES][TT_LEVELS]; /* of each slot; [0] owns the slot's memory */
};

static struct tt_scratch scratch_of(const struct tt_backend *b, int worker)
{
    return (struct tt_scratch){b->scratch[worker], b->scratch_floats};
}

static int stopped(const struct tt_backend *b)
{
    return b->stop && atomic_load_explicit(b->stop, memory_order_relaxed);
}

static void features_of(const struct tt_backend *b, int frame, const float *features[TT_LEVELS])
{
    for (int level = 0; level < TT_LEVELS; level++)
        features[level] = b->features[b->slot[frame]][level];
}

static void close_backend(struct tt_backend *b)
{
    if (!b)
        return;
    tt_pool_destroy(b->pool);
    for (int i = 0; b->scratch && i < b->threads; i++)
        free(b->scratch[i]);
    free(b->scratch);
    for (int i = 0; i < TT_CLIP_FRAMES; i++)
        free(b->features[i][0]);
    tt_store_free(&b->store);
    free(b->description);
    free(b);
}

static enum tt_status load_network(struct tt_backend *b, const struct tt_weights *weights,
                                   struct tt_error *err)
{
    b->store.weights = weights;
    b->store.err = err;
    tt_resnet_load(&b->resnet, &b->store);
    tt_cost_load(&b->cost, &b->store);
    for (int level = 0; level < TT_LEVELS; level++)
        tt_encoder_load(&b->encoder[level], b->shape, level, &b->store);
    tt_mixer_load(&b->mixer, b->shape, &b->store);
    b->store.err = NULL;
    return b->store.status;
}

static enum tt_status take_memory(struct tt_backend *b, struct tt_error *err)
{
    b->scratch_floats = tt_cpu_scratch(b->shape, b->plan.tile.queries, b->plan.tile.frames, TT_CLIP_FRAMES);
    b->scratch = calloc((size_t)b->threads, sizeof b->scratch[0]);
    for (int i = 0; b->scratch && i < b->threads; i++)
        if (!(b->scratch[i] = tt_floats(b->scratch_floats)))
            return tt_fail(err, TT_RETRY_LATER, "cpu: no memory for %d threads", b->threads);
    for (int i = 0; i < TT_CLIP_FRAMES; i++) {
        float *at = tt_floats(TT_FEATURE_FLOATS);

        if (!at)
            return tt_fail(err, TT_RETRY_LATER, "cpu: no memory for the features of %d frames",
                           TT_CLIP_FRAMES);
        for (int level = 0; level < TT_LEVELS; level++) {
            const struct tt_level_shape *shape = &tt_level_shapes[level];

            b->features[i][level] = at;
            at += shape->size * shape->size * shape->channels;
        }
    }
    return b->scratch ? TT_OK : tt_fail(err, TT_RETRY_LATER, "cpu: no memory for %d threads", b->threads);
}

static enum tt_status describe_self(struct tt_backend *b, struct tt_error *err)
{
    json_t *json =
        json_pack("{s:s, s:s, s:s, s:s, s:i, s:{s:i, s:i}}", "backend", "cpu", "device", b->plan.device.name,
                  "precision", "fp32", "blas", openblas_get_corename(), "threads", b->threads, "tile",
                  "queries", b->plan.tile.queries, "frames", b->plan.tile.frames);

    b->description = json ? json_dumps(json, JSON_COMPACT) : NULL;
    json_decref(json);
    return b->description ? TT_OK : tt_fail(err, TT_RETRY_LATER, "cpu: no memory");
}

static enum tt_status open_backend(struct tt_backend **out, const struct tt_backend_options *options,
                                   const struct tt_weights *weights, struct tt_error *err)
{
    struct tt_backend *b = NULL;
    struct tt_device device;
    enum tt_status status = TT_OK;

    if (!tt_weights_shape(weights))
        return tt_fail(err, TT_BAD_INPUT, "cpu: these tensors are no model");
    if (options->device)
        device = *options->device;
    else
        status = tt_device_describe(&device, "cpu", err);
    if (status)
        return status;
    if (options->threads > 0)
        device.units = options->threads;
    if (device.units > MOST_THREADS)
        device.units = MOST_THREADS;
    b = calloc(1, sizeof *b);
    if (!b)
        return tt_fail(err, TT_RETRY_LATER, "cpu: no memory");
    b->shape = tt_weights_shape(weights);
    b->stop = options->stop;
    status = tt_plan_make(&b->plan, b->shape, &device, options->precision, options->tile, 256, TT_CLIP_FRAMES,
                          err);
    if (status)
        goto out;
    b->threads = b->plan.device.units;
    openblas_set_num_threads(1);
    status = load_network(b, weights, err);
    if (!status)
        status = take_memory(b, err);
    if (!status)
        status = tt_pool_create(&b->pool, b->threads, err);
    if (!status)
        status = describe_self(b, err);
    if (status)
        goto out;
    *out = b;
    b = NULL;
out:
    close_backend(b);
    return status;
}

static const char *describe(struct tt_backend *b)
{
    return b->description;
}

static const struct tt_plan *plan(struct tt_backend *b)
{
    return &b->plan;
}

struct clip_job {
    struct tt_backend *backend;
    const struct tt_clip *clip;
    int first; /* frame of job 0 */
};

static void frame_job(void *context, int number, int worker)
{
    const struct clip_job *job = context;
    struct tt_backend *b = job->backend;
    int frame = job->first + number;

    if (!stopped(b))
        tt_resnet_run(&b->resnet, job->clip->rgb + (size_t)frame * TT_FRAME_BYTES,
                      b->features[b->slot[frame]], scratch_of(b, worker));
}

static enum tt_status compute_features(struct tt_backend *b, const struct tt_clip *clip, int reuse,
                                       struct tt_error *err)
{
    struct clip_job job = {b, clip, reuse};
    int slot[TT_CLIP_FRAMES], taken[TT_CLIP_FRAMES] = {0}, free_slot = 0;

    if (clip->frames < 1 || clip->frames > TT_CLIP_FRAMES || reuse < 0 || reuse > clip->frames ||
        reuse > b->frames)
        return tt_fail(err, TT_REFUSE, "cpu: a clip of %d frames, %d of them reused from %d", clip->frames,
                       reuse, b->frames);
    for (int f = 0; f < clip->frames; f++) {
        if (f < reuse) {
            slot[f] = b->slot[b->frames - reuse + f];
            taken[slot[f]] = 1;
            continue;
        }
        while (taken[free_slot])
            free_slot++;
        slot[f] = free_slot++;
    }
    memcpy(b->slot, slot, sizeof slot);
    b->frames = 0;
    tt_pool_run(b->pool, clip->frames - reuse, frame_job, &job);
    if (stopped(b))
        return tt_fail(err, TT_INTERRUPTED, "cpu: stopped");
    b->frames = clip->frames;
    return TT_OK;
}

static enum tt_status sample(struct tt_backend *b, int queries, const int *frame, const float *xy,
                             void *supports, struct tt_error *err)
{
    for (int q = 0; q < queries; q++)
        if (frame[q] < -1 || frame[q] >= b->frames ||
            (frame[q] >= 0 && !(isfinite(xy[2 * q]) && isfinite(xy[2 * q + 1]))))
            return tt_fail(err, TT_REFUSE, "cpu: query point %d: frame %d of %d, position %g, %g", q,
                           frame[q], b->frames, (double)xy[2 * q], (double)xy[2 * q + 1]);
    for (int q = 0; q < queries; q++) {
        const float *features[TT_LEVELS];

        if (frame[q] < 0)
            continue;
        features_of(b, frame[q], features);
        tt_support_sample(features, xy + 2 * q, (float *)supports + (size_t)q * TT_SUPPORT_FLOATS);
    }
    return TT_OK;
}

struct track_job {
    struct tt_backend *backend;
    const struct tt_track_request *request;
    struct tt_estimate *state; /* [queries][frames]: the latest estimates */
};

/* The query's own position, and whatever the caller knows better, over what the cost volume gave. */
static void apply_init(const struct track_job *job, int q, int frame)
{
    const struct tt_track_request *request = job->request;
    size_t i = (size_t)q * (size_t)job->backend->frames + (size_t)frame;

    if (request->init && !isnan(request->init[i].x))
        job->state[i] = request->init[i];
    if (request->query_frame[q] == frame) {
        job->state[i].x = request->query_xy[2 * q];
        job->state[i].y = request->query_xy[2 * q + 1];
    }
}

static int needs_cost(const struct track_job *job, int first, int queries, int frame)
{
    const struct tt_estimate *init = job->request->init;

    for (int q = first; q < first + queries; q++)
        if (!init || isnan(init[(size_t)q * (size_t)job->backend->frames + (size_t)frame].x))
            return 1;
    return 0;
}

/* A tile of query points in one frame. */
static void cost_job(void *context, int number, int worker)
{
    const struct track_job *job = context;
    struct tt_backend *b = job->backend;
    int tile = b->plan.tile.queries, frame = number % b->frames, first = number / b->frames * tile;
    int queries = job->request->queries - first < tile ? job->request->queries - first : tile;
    const float *supports = (const float *)job->request->supports + (size_t)first * TT_SUPPORT_FLOATS;
    const float *features[TT_LEVELS];

    if (stopped(b))
        return;
    features_of(b, frame, features);
    if (needs_cost(job, first, queries, frame))
        tt_cost_run(&b->cost, features, tile, queries, supports,
                    job->state + (size_t)first * (size_t)b->frames + frame, (size_t)b->frames,
                    scratch_of(b, worker));
    for (int q = first; q < first + queries; q++)
        apply_init(job, q, frame);
}

static void keep_stage(const struct track_job *job, int stage, int q)
{
    size_t frames = (size_t)job->backend->frames, queries = (size_t)job->request->queries;

    if (job->request->stages)
        memcpy(job->request->stages + ((size_t)stage * queries + (size_t)q) * frames,
               job->state + (size_t)q * frames, frames * sizeof *job->state);
}

/* Correlation embeddings of one level in all frames, tile by tile, into the mixer's input. */
static void embed(const struct tt_backend *b, int level, const float *transposed,
                  const struct tt_estimate *state, float *input, struct tt_scratch scratch)
{
    const float *maps[TT_CLIP_FRAMES];

    for (int f = 0; f < b->frames; f++)
        maps[f] = b->features[b->slot[f]][level];
    for (int f = 0; f < b->frames; f += b->plan.tile.frames) {
        int frames = b->frames - f < b->plan.tile.frames ? b->frames - f : b->plan.tile.frames;

        tt_correlation_run(&b->encoder[level], b->shape, level, frames, maps + f, transposed, state + f,
                           input + f * TT_MIXER_INPUT + 2 + level * TT_LEVEL_EMBEDDING, TT_MIXER_INPUT,
                           scratch);
    }
}

/* The four refinements of one query point. */
static void refine_job(void *context, int number, int worker)
{
    const struct track_job *job = context;
    struct tt_backend *b = job->backend;
    const float *support = (const float *)job->request->supports + (size_t)number * TT_SUPPORT_FLOATS;
    struct tt_estimate *state = job->state + (size_t)number * (size_t)b->frames;
    struct tt_scratch scratch = scratch_of(b, worker);
    size_t rows = (size_t)tt_mixer_rows(b->frames);
    float *transposed = tt_scratch_take(&scratch, TT_SUPPORT_FLOATS);
    float *input = tt_scratch_take(&scratch, rows * TT_MIXER_INPUT);
    float *output = tt_scratch_take(&scratch, rows * TT_MIXER_OUTPUT);

    keep_stage(job, 0, number);
    for (int level = 0, at = 0; level < TT_LEVELS; at += TT_SUPPORT_AREA * tt_level_shapes[level++].channels)
        tt_support_transpose(support + at, tt_level_shapes[level].channels, transposed + at);
    memset(input, 0, rows * TT_MIXER_INPUT * sizeof *input);
    for (int pass = 0; pass < TT_REFINEMENTS && !stopped(b); pass++) {
        for (int level = 0, at = 0; level < TT_LEVELS;
             at += TT_SUPPORT_AREA * tt_level_shapes[level++].channels)
            embed(b, level, transposed + at, state, input, scratch);
        tt_mixer_state(state, b->frames, input);
        tt_mixer_run(&b->mixer, b->frames, input, output, scratch);
        for (int f = 0; f < b->frames; f++) {
            state[f].x += output[f * TT_MIXER_OUTPUT];
            state[f].y += output[f * TT_MIXER_OUTPUT + 1];
            state[f].occlusion += output[f * TT_MIXER_OUTPUT + 2];
            state[f].expected_dist += output[f * TT_MIXER_OUTPUT + 3];
        }
        keep_stage(job, 1 + pass, number);
    }
}

static enum tt_status track(struct tt_backend *b, const struct tt_track_request *request,
                            struct tt_estimate *result, struct tt_error *err)
{
    struct track_job job = {.backend = b, .request = request};
    size_t estimates = (size_t)request->queries * (size_t)b->frames;
    int tiles = (request->queries + b->plan.tile.queries - 1) / b->plan.tile.queries;

    if (b->frames == 0)
        return tt_fail(err, TT_REFUSE, "cpu: no clip to track through");
    if (request->queries == 0)
        return TT_OK;
    job.state = malloc(estimates * sizeof *job.state);
    if (!job.state)
        return tt_fail(err, TT_RETRY_LATER, "cpu: no memory for %d query points", request->queries);
    tt_pool_run(b->pool, tiles * b->frames, cost_job, &job);
    tt_pool_run(b->pool, request->queries, refine_job, &job);
    if (!stopped(b))
        memcpy(result, job.state, estimates * sizeof *result);
    free(job.state);
    return stopped(b) ? tt_fail(err, TT_INTERRUPTED, "cpu: stopped") : TT_OK;
}

const float *tt_cpu_features(const struct tt_backend *backend, int frame, enum tt_level level)
{
    return backend->features[backend->slot[frame]][level];
}

const struct tt_encoder *tt_cpu_encoder(const struct tt_backend *backend, enum tt_level level)
{
    return &backend->encoder[level];
}

const struct tt_mixer *tt_cpu_mixer(const struct tt_backend *backend)
{
    return &backend->mixer;
}

const struct tt_backend_ops tt_backend_cpu = {
    .name = "cpu",
    .open = open_backend,
    .close = close_backend,
    .describe = describe,
    .plan = plan,
    .support_bytes = TT_SUPPORT_FLOATS * sizeof(float),
    .features = compute_features,
    .sample = sample,
    .track = track,
};

/* core/selftest.c: a known answer on a made-up clip.
 *
 * The answers (core/selftest_answers.h, written by tests/golden/selftest_answers.c from the CPU backend,
 * which the golden tests hold to the public code) are few: our own weights', and for each size those of
 * weights from the formula, with which a device can be tried whatever weights there are. Fails with TT_REFUSE
 * where the device computes something else, with the backend's statuses otherwise, TT_RETRY_LATER for want of
 * memory.
 */
#include "core/selftest.h"

#include "core/formula.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

struct answer {
    const char *name;   /* of the weight file, or "formula small", "formula base" */
    const char *sha256; /* of the weight file */
    struct tt_estimate estimate[TT_SELFTEST_QUERIES * TT_SELFTEST_FRAMES];
};

static const struct answer answers[] = {
#include "core/selftest_answers.h"
};

enum { FORMULA_SEED = 1 };

/* On the disc, beside it where it will cover, on the drifting ground, at the border. */
const int tt_selftest_frame[TT_SELFTEST_QUERIES] = {0, 1, 3, 2};
const float tt_selftest_xy[2 * TT_SELFTEST_QUERIES] = {104.5f,  112.25f, 160.0f, 120.5f,
                                                       200.75f, 60.0f,   3.25f,  250.5f};

enum tt_status tt_selftest_track(const struct tt_backend_ops *ops, const struct tt_backend_options *options,
                                 const struct tt_weights *weights, struct tt_estimate *result,
                                 struct tt_error *err)
{
    struct tt_clip clip = {.frames = TT_SELFTEST_FRAMES};
    uint8_t *rgb = malloc((size_t)TT_SELFTEST_FRAMES * TT_FRAME_BYTES);
    void *supports = malloc(TT_SELFTEST_QUERIES * ops->support_bytes);
    struct tt_track_request request = {.queries = TT_SELFTEST_QUERIES,
                                       .supports = supports,
                                       .query_frame = tt_selftest_frame,
                                       .query_xy = tt_selftest_xy};
    struct tt_backend *backend = NULL;
    enum tt_status status;

    if (!rgb || !supports) {
        status = tt_fail(err, TT_RETRY_LATER, "self-test: no memory");
        goto out;
    }
    tt_formula_clip(rgb, TT_SELFTEST_FRAMES);
    clip.rgb = rgb;
    status = ops->open(&backend, options, weights, err);
    if (!status)
        status = ops->features(backend, &clip, 0, err);
    if (!status)
        status = ops->sample(backend, TT_SELFTEST_QUERIES, tt_selftest_frame, tt_selftest_xy, supports, err);
    if (!status)
        status = ops->track(backend, &request, result, err);
    if (backend)
        ops->close(backend);
out:
    free(rgb);
    free(supports);
    return status;
}

static const struct answer *find_answer(const char *name, const char *sha256)
{
    for (size_t i = 0; i < sizeof answers / sizeof answers[0]; i++)
        if (!strcmp(answers[i].name, name) || !strcmp(answers[i].sha256, sha256))
            return &answers[i];
    return NULL;
}

/* NaN is the largest difference of all. */
static float larger(float a, float b)
{
    return b > a || isnan(b) ? b : a;
}

static enum tt_status compare(const struct answer *answer, const struct tt_estimate *result,
                              struct tt_selftest_report *report, struct tt_error *err)
{
    for (int i = 0; i < TT_SELFTEST_QUERIES * TT_SELFTEST_FRAMES; i++) {
        const struct tt_estimate *known = &answer->estimate[i], *found = &result[i];

        report->position_px = larger(report->position_px, fabsf(found->x - known->x));
        report->position_px = larger(report->position_px, fabsf(found->y - known->y));
        report->logit = larger(report->logit, fabsf(found->occlusion - known->occlusion));
        report->logit = larger(report->logit, fabsf(found->expected_dist - known->expected_dist));
    }
    if (report->position_px <= report->position_bound && report->logit <= report->logit_bound)
        return TT_OK;
    return tt_fail(
        err, TT_REFUSE,
        "self-test: with weights %s positions differ from the known answer by %g px (allowed: %g), logits by "
        "%g (allowed: %g)",
        answer->name, (double)report->position_px, (double)report->position_bound, (double)report->logit,
        (double)report->logit_bound);
}

enum tt_status tt_selftest_run(const struct tt_backend_ops *ops, const struct tt_backend_options *options,
                               const struct tt_weights *weights, struct tt_selftest_report *report,
                               struct tt_error *err)
{
    int half = options->precision == TT_FP16;
    struct tt_selftest_report made = {.position_bound = half ? 0.25f : 0.002f,
                                      .logit_bound = half ? 0.1f : 0.001f};
    struct tt_estimate result[TT_SELFTEST_QUERIES * TT_SELFTEST_FRAMES];
    const struct tt_model_shape *shape = tt_weights_shape(weights);
    const struct answer *answer = find_answer(tt_weights_name(weights), tt_weights_sha256(weights));
    struct tt_weights *formula = NULL;
    void *file = NULL;
    enum tt_status status = TT_OK;

    made.weights_known = answer != NULL;
    if (!answer) {
        size_t size = 0;

        answer = find_answer(shape == &tt_model_base ? "formula base" : "formula small", "");
        file = tt_formula_weights(shape, FORMULA_SEED, &size);
        status = file ? tt_weights_from_memory(&formula, answer->name, file, size, err)
                      : tt_fail(err, TT_RETRY_LATER, "self-test: no memory");
    }
    if (!status)
        status = tt_selftest_track(ops, options, formula ? formula : weights, result, err);
    if (!status) {
        status = compare(answer, result, &made, err);
        *report = made;
    }
    if (!status && made.weights_known && strcmp(answer->sha256, tt_weights_sha256(weights)))
        status = tt_fail(
            err, TT_REFUSE,
            "self-test: these are not the weights %s that are known, though their answer is near: SHA-256 "
            "%s instead of %s",
            answer->name, tt_weights_sha256(weights), answer->sha256);
    if (formula)
        tt_weights_close(formula);
    free(file);
    return status;
}

/* tests/golden/golden.h: tensors that the public code wrote, and comparisons with them. For backends on any
 * device.
 *
 * What fails ends the program with a message; what does not agree prints FAIL and is counted. The bounds are
 * the caller's.
 */
#ifndef TT_TESTS_GOLDEN_H
#define TT_TESTS_GOLDEN_H

#include "core/backend.h"

struct golden {
    struct tt_weights *file, *weights; /* owned, as all that follows */
    void *formula;                     /* weights in memory, or NULL */
    uint8_t *made;                     /* a clip that the file has not, or NULL */
    struct tt_clip clip;
    int queries;
    int *frame; /* [queries] */
    float *xy;  /* [queries][2] */
};

/* 1: both files are there; weights may also be "base:SEED" or "small:SEED", from the formula. */
int golden_there(const char *file, const char *weights);
/* Where the file has no clip, that is the formula's. */
void golden_open(struct golden *g, const char *file, const char *weights);
void golden_close(struct golden *g);

/* Ends the program unless status is TT_OK; p where it is not NULL. */
void golden_must(enum tt_status status, const struct tt_error *err);
void *golden_need(void *p, const char *what);

const struct tt_tensor *golden_tensor(const struct golden *g, const char *name);
float *golden_f32(const struct golden *g, const char *name); /* the caller frees it */
/* The public code's estimates after a pass, 0..TT_REFINEMENTS: [queries][frames]; the caller frees them. */
struct tt_estimate *golden_estimates(const struct golden *g, int pass);

/* Whether `reached` is at most `bound`. */
void golden_bounded(const char *what, double reached, double bound);
/* The difference's length as part of theirs, or the largest difference. */
void golden_relative(const char *what, const float *ours, const float *theirs, size_t n, double bound);
void golden_largest(const char *what, const float *ours, const float *theirs, size_t n, double bound);
/* Features, thinned as the tensors are; map: those of a frame and level, borrowed until the next call. */
void golden_features(const struct golden *g, const float *(*map)(void *context, int frame, int level),
                     void *context, double bound);
/* supports [queries][TT_SUPPORT_FLOATS] */
void golden_supports(const struct golden *g, const float *supports, double bound);
/* Tracks (pixels) and logits of every pass; stages [1 + TT_REFINEMENTS][queries][frames]. */
void golden_stages(const struct golden *g, const struct tt_estimate *stages, double bound);

int golden_passed(void);
int golden_failed(void);

#endif

/* core/selftest.h: does this device compute what it should? A made-up clip, a few query points, a known
 * answer. */
#ifndef TT_CORE_SELFTEST_H
#define TT_CORE_SELFTEST_H

#include "core/backend.h"
#include "core/status.h"
#include "core/weights.h"

#include <stdbool.h>

enum { TT_SELFTEST_FRAMES = 4, TT_SELFTEST_QUERIES = 4 };

struct tt_selftest_report {
    bool weights_known; /* the answer of these weights is known and was compared; otherwise the backend was
                           tried with weights from the formula, and nothing is known about the given ones */
    float position_px;  /* largest differences from the answer */
    float logit;
    float position_bound, logit_bound; /* what is allowed in this precision */
};

/* The clip's query points. */
extern const int tt_selftest_frame[TT_SELFTEST_QUERIES];
extern const float tt_selftest_xy[2 * TT_SELFTEST_QUERIES];

/* Opens a backend of its own, tracks, compares. The answer is that of the weights with this SHA-256 or this
 * name; a file that bears a known name must give its answer. TT_REFUSE: the result is not the answer, the
 * text says by how much (*report is filled in then too); other statuses are the backend's. */
enum tt_status tt_selftest_run(const struct tt_backend_ops *ops, const struct tt_backend_options *options,
                               const struct tt_weights *weights, struct tt_selftest_report *report,
                               struct tt_error *err);

/* What the self-test compares, for the program that writes down answers: result
 * [TT_SELFTEST_QUERIES][TT_SELFTEST_FRAMES], out. */
enum tt_status tt_selftest_track(const struct tt_backend_ops *ops, const struct tt_backend_options *options,
                                 const struct tt_weights *weights, struct tt_estimate *result,
                                 struct tt_error *err);

#endif

/* core/calibration.h: from the network's own estimate of its certainty to a share of points that holds.
 *
 * The network says (1−σ(occlusion))(1−σ(expected_dist)), the raw confidence; what a track file says is one
 * monotone function of it, so that of the positions with confidence c a share c lies within 6 px of 256×256
 * and is visible. The function is piecewise linear between the logits of both and goes on beyond its ends in
 * parallel to the identity. It is fitted by models/training/calibrate.py and stored in the weight file's
 * metadata. docs/CALIBRATION.md.
 */
#ifndef TT_CORE_CALIBRATION_H
#define TT_CORE_CALIBRATION_H

#include "core/status.h"

enum { TT_CALIBRATION_KNOTS = 64 };

/* The metadata entry of a weight file that holds one. */
#define TT_CALIBRATION_KEY "confidence_map"

struct tt_calibration {
    int knots; /* 0: the identity; else 2..TT_CALIBRATION_KNOTS */
    double raw[TT_CALIBRATION_KNOTS], calibrated[TT_CALIBRATION_KNOTS]; /* logits, both strictly ascending */
};

/* Reads [[raw, calibrated], ...], JSON. TT_BAD_INPUT names `name` and what is wrong. */
enum tt_status tt_calibration_parse(struct tt_calibration *calibration, const char *text, const char *name,
                                    struct tt_error *err);

/* 0..1 for a raw confidence of 0..1; NULL and the identity give raw itself, bit by bit. */
float tt_calibrate(const struct tt_calibration *calibration, double raw);

#endif

/* core/calibration.c: a monotone map of confidences.
 *
 * Invariant: a map that was accepted is strictly monotone over all of 0..1, so a larger raw confidence never
 * becomes a smaller one. Fails with TT_BAD_INPUT on a map that is not one.
 */
#include "core/calibration.h"

#include <jansson.h>
#include <math.h>

#define LARGEST_LOGIT 30.0 /* σ(30) is 1 in FP32 */

static double logit(double share)
{
    double x = log(share) - log1p(-share);

    return fmin(fmax(x, -LARGEST_LOGIT), LARGEST_LOGIT);
}

float tt_calibrate(const struct tt_calibration *calibration, double raw)
{
    const struct tt_calibration *c = calibration;
    double x, y;
    int last, i = 1;

    if (!c || c->knots == 0)
        return (float)raw;
    x = logit(raw);
    last = c->knots - 1;
    while (i < last && x > c->raw[i])
        i++;
    if (x <= c->raw[0])
        y = x + c->calibrated[0] - c->raw[0];
    else if (x >= c->raw[last])
        y = x + c->calibrated[last] - c->raw[last];
    else
        y = c->calibrated[i - 1] +
            (x - c->raw[i - 1]) / (c->raw[i] - c->raw[i - 1]) * (c->calibrated[i] - c->calibrated[i - 1]);
    return (float)(1 / (1 + exp(-y)));
}

static enum tt_status bad(struct tt_error *err, const char *name, const char *what)
{
    return tt_fail(err, TT_BAD_INPUT, "%s: " TT_CALIBRATION_KEY ": %s", name, what);
}

static enum tt_status read_knots(struct tt_calibration *map, const json_t *list, const char *name,
                                 struct tt_error *err)
{
    size_t knots = json_array_size(list); /* 0 for what is no list */

    if (knots < 2 || knots > TT_CALIBRATION_KNOTS)
        return tt_fail(err, TT_BAD_INPUT, "%s: " TT_CALIBRATION_KEY ": not a list of 2 to %d pairs", name,
                       TT_CALIBRATION_KNOTS);
    for (size_t i = 0; i < knots; i++) {
        const json_t *pair = json_array_get(list, i);
        const json_t *x = json_array_get(pair, 0), *y = json_array_get(pair, 1);

        if (json_array_size(pair) != 2 || !json_is_number(x) || !json_is_number(y))
            return bad(err, name, "an entry is not a pair of numbers");
        map->raw[i] = json_number_value(x);
        map->calibrated[i] = json_number_value(y);
        if (fabs(map->raw[i]) > LARGEST_LOGIT || fabs(map->calibrated[i]) > LARGEST_LOGIT)
            return bad(err, name, "a logit beyond 30");
        if (i > 0 && !(map->raw[i] > map->raw[i - 1] && map->calibrated[i] > map->calibrated[i - 1]))
            return bad(err, name, "not monotone: both numbers must grow from pair to pair");
    }
    map->knots = (int)knots;
    return TT_OK;
}

enum tt_status tt_calibration_parse(struct tt_calibration *calibration, const char *text, const char *name,
                                    struct tt_error *err)
{
    struct tt_calibration map = {.knots = 0};
    json_error_t fault;
    json_t *list = json_loads(text, JSON_REJECT_DUPLICATES, &fault);
    enum tt_status status;

    if (!list)
        return tt_fail(err, TT_BAD_INPUT, "%s: " TT_CALIBRATION_KEY ": not JSON: %s", name, fault.text);
    status = read_knots(&map, list, name, err);
    json_decref(list);
    if (!status)
        *calibration = map;
    return status;
}

/* tests/kernels/plankern.c: the plan's memory against what the backend lays out, for several devices, both
 * sizes and precisions. Needs no GPU. Within 2 %: the plan leaves out norms, biases and padding.
 */
#include "core/plan.h"
#include "cuda/gpu.h"

#include <stdio.h>
#include <stdlib.h>

enum { VISIBLE_PERCENT = 2 };

static int count_weights(void *context, const struct tt_weight_spec *spec)
{
    double values = 1;

    for (int i = 0; i < spec->rank; i++)
        values *= spec->shape[i];
    *(double *)context += values;
    return 0;
}

static int differs(const char *name, const struct tt_model_shape *shape, enum tt_precision precision)
{
    struct tt_gpu gpu = {.shape = shape, .precision = precision};
    const struct tt_tile any = {0, 0};
    struct tt_device device;
    struct tt_plan plan;
    struct tt_error err;
    double weights = 0, bytes;
    int bad;

    if (tt_device_describe(&device, name, &err) ||
        tt_plan_make(&plan, shape, &device, precision, any, 256, TT_CLIP_FRAMES, &err)) {
        printf("FAIL %s: %s\n", name, err.text);
        return 1;
    }
    gpu.network = precision == TT_FP16 ? &tt_gpu_network_f16 : &tt_gpu_network_f32;
    gpu.frame_tile = plan.tile.frames;
    gpu.query_tile = plan.tile.queries;
    gpu.volume_tile = plan.volume_queries;
    tt_gpu_layout(&gpu);
    tt_model_each_weight(shape, count_weights, &weights);
    bytes = (double)gpu.work_bytes + weights * (precision == TT_FP16 ? 2 : 4);
    bad = 100 * abs((int)((bytes - (double)plan.memory_bytes) / 1e3)) > VISIBLE_PERCENT * (int)(bytes / 1e3);
    printf("%-4s %s %s %s: %.1f MB laid out, %.1f MB planned\n", bad ? "FAIL" : "ok", name, shape->name,
           precision == TT_FP16 ? "fp16" : "fp32", bytes / 1e6, (double)plan.memory_bytes / 1e6);
    return bad;
}

int main(void)
{
    static const char *const devices[] = {"t4", "a100", "h200"};
    int failed = 0;

    for (int i = 0; i < 3; i++)
        for (int p = 0; p < 2; p++) {
            failed += differs(devices[i], &tt_model_small, p ? TT_FP16 : TT_FP32);
            failed += differs(devices[i], &tt_model_base, p ? TT_FP16 : TT_FP32);
        }
    printf("%d passed, %d failed\n", 12 - failed, failed);
    return failed != 0;
}

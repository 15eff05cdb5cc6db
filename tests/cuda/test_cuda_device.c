/* tests/cuda/test_cuda_device.c: which device, and what every failure of CUDA asks for, with its sentence. On
 * a fake runtime; tests/kernels has the real one.
 */
#include "core/formula.h"
#include "cuda/backend.h"
#include "cuda/gpu.h"
#include "tests/cuda/fake_runtime.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

static struct tt_weights *weights;
static void *formula;

static int set_up(void **state)
{
    struct tt_error err;
    size_t size;

    (void)state;
    formula = tt_formula_weights(&tt_model_small, 1, &size);
    return !formula || tt_weights_from_memory(&weights, "formula", formula, size, &err);
}

static int tear_down(void **state)
{
    (void)state;
    tt_weights_close(weights);
    free(formula);
    return 0;
}

static int reset(void **state)
{
    (void)state;
    memset(&fake, 0, sizeof fake);
    fake.devices = 2;
    fake.driver = CUDART_VERSION;
    unsetenv("CUDA_VISIBLE_DEVICES");
    return 0;
}

static enum tt_status open_device(const struct tt_backend_options *options, struct tt_error *err)
{
    struct tt_backend *backend = NULL;
    enum tt_status status = tt_backend_cuda.open(&backend, options, weights, err);

    if (status)
        assert_null(backend);
    else
        tt_backend_cuda.close(backend);
    assert_int_equal(fake.taken, 0);
    return status;
}

static void expect(enum tt_status status, const char *sentence)
{
    const struct tt_backend_options options = {.precision = TT_FP16};
    struct tt_error err = {0};

    assert_int_equal(open_device(&options, &err), status);
    if (!strstr(err.text, sentence))
        fail_msg("\"%s\" does not say \"%s\"", err.text, sentence);
}

static void chooses_devices(void **state)
{
    static const struct {
        const char *select;
        int device; /* -1: refused */
    } cases[] = {
        {NULL, 0},
        {"0", 0},
        {"1", 1},
        {"2", -1},
        {"-1", -1},
        {"1x", -1},
        {"GPU-10111213-1415-1617-1819-1a1b1c1d1e1f", 1},
        {"GPU-101112", 1},
        {"GPU-", -1},
        {"GPU-ffff", -1},
        {"0000:04:00.0", 1},
        {"03:00.0", 0},
        {"05:00.0", -1},
    };

    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        const struct tt_backend_options options = {.precision = TT_FP16, .select = cases[i].select};
        struct tt_error err = {0};

        fake.selected = -1;
        assert_int_equal(open_device(&options, &err), cases[i].device < 0 ? TT_REFUSE : TT_OK);
        assert_int_equal(fake.selected, cases[i].device);
        if (cases[i].device < 0)
            assert_non_null(strstr(err.text, cases[i].select));
    }
}

static void chooses_a_part_of_a_gpu(void **state)
{
    const struct tt_backend_options options = {.precision = TT_FP16, .select = "MIG-5c6e"};
    struct tt_error err = {0};

    (void)state;
    fake.devices = 1;
    assert_int_equal(open_device(&options, &err), TT_OK);
    assert_string_equal(getenv("CUDA_VISIBLE_DEVICES"), "MIG-5c6e");
    fake.fails[FAKE_COUNT] = cudaErrorNoDevice;
    assert_int_equal(open_device(&options, &err), TT_REFUSE);
    assert_non_null(strstr(err.text, "MIG-5c6e"));
}

static void says_what_is_wrong_with_the_driver(void **state)
{
    (void)state;
    fake.fails[FAKE_COUNT] = cudaErrorInsufficientDriver;
    fake.driver = 0;
    expect(TT_REFUSE, "no NVIDIA driver is installed");
    fake.driver = 11040;
    expect(TT_REFUSE, "too old: it is made for CUDA 11.4");
    fake.fails[FAKE_COUNT] = cudaErrorSystemDriverMismatch;
    expect(TT_REFUSE, "different versions");
    fake.fails[FAKE_COUNT] = cudaErrorNoDevice;
    expect(TT_REFUSE, "no CUDA device is visible");
    fake.fails[FAKE_COUNT] = cudaSuccess;
    fake.devices = 0;
    expect(TT_REFUSE, "no CUDA device is visible");
}

static void an_exclusive_device_is_busy(void **state)
{
    (void)state;
    fake.fails[FAKE_SELECT] = cudaErrorDevicesUnavailable;
    expect(TT_RETRY_LATER, "exclusive mode");
    fake.fails[FAKE_SELECT] = cudaSuccess;
    fake.fails[FAKE_CONTEXT] = cudaErrorDevicesUnavailable;
    expect(TT_RETRY_LATER, "exclusive mode");
}

static void short_memory_asks_for_smaller_tiles(void **state)
{
    struct tt_backend_options options = {.precision = TT_FP16};
    struct tt_error err = {0};
    int tries = 0;

    (void)state;
    expect(TT_OK, "");
    fake.memory = (size_t)220 << 20;
    while (open_device(&options, &err) == TT_SHRINK_TILE && tt_tile_shrink(&options.tile))
        tries++;
    assert_int_equal(open_device(&options, &err), TT_OK);
    assert_true(tries > 1 && options.tile.queries < 64);
    fake.fails[FAKE_MALLOC] = cudaErrorMemoryAllocation;
    expect(TT_SHRINK_TILE, "device memory is short");
}

/* features and sample on an open backend with what a kernel or the wait for it returns. */
static enum tt_status run_features(cudaError_t kernel, cudaError_t wait, struct tt_error *err)
{
    const struct tt_backend_options options = {.precision = TT_FP16};
    const struct tt_clip clip = {.rgb = formula, .frames = 1};
    const float xy[2] = {128, 128};
    const int frame = 0;
    void *supports = malloc(tt_backend_cuda.support_bytes);
    struct tt_backend *backend;
    enum tt_status status;

    assert_int_equal(tt_backend_cuda.open(&backend, &options, weights, err), TT_OK);
    fake.fails[FAKE_KERNEL] = kernel;
    fake.fails[FAKE_SYNCHRONISE] = wait;
    status = tt_backend_cuda.features(backend, &clip, 0, err);
    if (!status) /* an error in what was only queued is the next call's */
        status = tt_backend_cuda.sample(backend, 1, &frame, xy, supports, err);
    tt_backend_cuda.close(backend);
    free(supports);
    return status;
}

static void no_code_for_the_card_is_configuration(void **state)
{
    struct tt_error err = {0};

    (void)state;
    assert_int_equal(run_features(cudaErrorNoKernelImageForDevice, cudaSuccess, &err), TT_REFUSE);
    assert_non_null(strstr(err.text, "no code for the device"));
    assert_int_equal(run_features(cudaErrorUnsupportedPtxVersion, cudaSuccess, &err), TT_REFUSE);
    assert_non_null(strstr(err.text, "no code for the device"));
}

static void everything_else_is_a_lost_device(void **state)
{
    static const cudaError_t errors[] = {cudaErrorIllegalAddress,   cudaErrorLaunchFailure,
                                         cudaErrorECCUncorrectable, cudaErrorHardwareStackError,
                                         cudaErrorLaunchTimeout,    cudaErrorUnknown};
    struct tt_error err = {0};

    (void)state;
    for (size_t i = 0; i < sizeof errors / sizeof errors[0]; i++)
        assert_int_equal(run_features(cudaSuccess, errors[i], &err), TT_RESTART_WORKER);
    assert_int_equal(run_features(cudaSuccess, cudaErrorIllegalAddress, &err), TT_RESTART_WORKER);
    assert_non_null(strstr(err.text, "illegal memory access"));
}

static void takes_its_tiles_from_the_plan(void **state)
{
    struct tt_device h200;
    struct tt_backend_options options = {.precision = TT_FP16};
    struct tt_backend *backend;
    struct tt_tile own;
    struct tt_error err;

    (void)state;
    assert_int_equal(tt_backend_cuda.open(&backend, &options, weights, &err), TT_OK);
    own = tt_backend_cuda.plan(backend)->tile;
    assert_true(own.frames < 16 && own.queries < 256);
    assert_non_null(strstr(tt_backend_cuda.describe(backend), "Fake T4"));
    tt_backend_cuda.close(backend);
    assert_int_equal(tt_device_describe(&h200, "h200", &err), TT_OK);
    options.device = &h200;
    assert_int_equal(tt_backend_cuda.open(&backend, &options, weights, &err), TT_OK);
    assert_true(tt_backend_cuda.plan(backend)->tile.frames > own.frames);
    tt_backend_cuda.close(backend);
    options.tile = (struct tt_tile){4096, 47};
    h200.memory_bytes = INT64_C(1) << 30;
    assert_int_equal(open_device(&options, &err), TT_REFUSE);
    assert_non_null(strstr(err.text, " fit"));
}

/* The next step of a kind from *i on (stage: of FAKE_STAGE; stream: NULL for any); *i goes behind it. */
static const struct fake_step *next_step(int *i, enum fake_kind kind, int stage, const void *stream)
{
    while (*i < fake.steps) {
        const struct fake_step *s = &fake.step[(*i)++];

        if (s->kind == kind && (kind != FAKE_STAGE || s->stage == stage) && (!stream || s->stream == stream))
            return s;
    }
    return NULL;
}

static int is_pixels(const struct fake_step *s)
{
    return s->kind == FAKE_COPY && s->bytes % TT_FRAME_BYTES == 0;
}

/* A backend that holds the features of a clip, and two tiles of query points to track. */
struct tracking {
    struct tt_backend *backend;
    struct tt_clip clip, next;
    struct tt_track_request request;
    struct tt_estimate *result;
    int queries;
};

static void start_tracking(struct tracking *t, int *frame, float *xy)
{
    struct tt_backend_options options = {.precision = TT_FP16, .tile = {2, 4}};
    struct tt_error err;

    *t = (struct tracking){.queries = 4, .clip = {.frames = 10}, .next = {.frames = 10, .first_frame = 8}};
    t->clip.rgb = t->next.rgb = calloc(10, TT_FRAME_BYTES);
    t->result = malloc(4 * 10 * sizeof *t->result);
    assert_int_equal(tt_backend_cuda.open(&t->backend, &options, weights, &err), TT_OK);
    t->request = (struct tt_track_request){.queries = 4,
                                           .supports = calloc(4, tt_backend_cuda.support_bytes),
                                           .query_frame = frame,
                                           .query_xy = xy};
    fake.steps = 0;
    assert_int_equal(tt_backend_cuda.features(t->backend, &t->clip, 0, &err), TT_OK);
}

static void stop_tracking(struct tracking *t)
{
    tt_backend_cuda.close(t->backend);
    free((void *)t->request.supports);
    free((void *)t->clip.rgb);
    free(t->result);
}

/* Pixels go over on a stream of their own: behind the backbone that reads those before them, while tiles of
 * query points are computed; and the next backbone waits for them. */
static void brings_the_next_clip_while_one_is_tracked(void **state)
{
    int frame[4] = {0}, at = 0, queued, features;
    float xy[8] = {0};
    const struct fake_step *first, *consumed, *wait, *arrived = NULL, *pixels, *done;
    const void *kernels;
    struct tracking t;
    struct tt_error err;

    (void)state;
    start_tracking(&t, frame, xy);
    first = next_step(&at, FAKE_COPY, 0, NULL);
    assert_true(is_pixels(first));
    at = 0;
    for (int i = 0; i < 3; i++) /* tiles of 4, 4 and 2 frames */
        kernels = next_step(&at, FAKE_STAGE, TT_GPU_BACKBONE, NULL)->stream;
    assert_ptr_not_equal(kernels, first->stream);
    consumed = next_step(&at, FAKE_RECORD, 0, kernels);
    assert_non_null(consumed);
    queued = at = fake.steps;
    assert_int_equal(tt_backend_cuda.bring(t.backend, &t.next, 2, &err), TT_OK);
    assert_int_equal(tt_backend_cuda.track(t.backend, &t.request, t.result, &err), TT_OK);
    features = fake.steps;
    for (int pass = 0; pass < TT_REFINEMENTS; pass++)
        assert_non_null(next_step(&queued, FAKE_STAGE, TT_GPU_REFINE, kernels));
    wait = next_step(&at, FAKE_WAIT, 0, first->stream);
    assert_ptr_equal(wait->event, consumed->event);
    assert_true(at > queued);
    for (int i = 0; i < 2; i++) { /* 8 frames: two are kept */
        pixels = next_step(&at, FAKE_COPY, 0, first->stream);
        assert_true(is_pixels(pixels) && pixels->bytes == 4 * TT_FRAME_BYTES);
        assert_true((const char *)pixels->to == (const char *)first->to + (2 + 4 * i) * TT_FRAME_BYTES);
        assert_true((const char *)pixels->from - (2 + 4 * i) * TT_FRAME_BYTES != first->from);
        arrived = next_step(&at, FAKE_RECORD, 0, first->stream);
    }
    done = next_step(&queued, FAKE_RECORD, 0, kernels); /* of the first tile's results */
    for (int i = queued; i < at; i++)                   /* the host has not waited for them */
        assert_ptr_not_equal(fake.step[i].event, done->event);
    for (int i = 0; i < features; i++) /* nor anything of tracking for the pixels */
        assert_true(i < queued || fake.step[i].kind != FAKE_WAIT || fake.step[i].stream == first->stream);
    t.next.rgb = NULL;
    assert_int_equal(tt_backend_cuda.features(t.backend, &t.next, 2, &err), TT_OK);
    at = features;
    wait = next_step(&at, FAKE_WAIT, 0, kernels);
    assert_ptr_equal(wait->event, arrived->event);
    assert_int_equal(next_step(&at, FAKE_STAGE, TT_GPU_BACKBONE, kernels)->first, 2);
    for (int i = features; i < fake.steps; i++)
        assert_ptr_not_equal(fake.step[i].stream, first->stream);
    assert_int_equal(tt_backend_cuda.features(t.backend, &t.next, 2, &err), TT_REFUSE); /* it was used up */
    stop_tracking(&t);
}

/* The second tile of query points is queued, from other memory, before the host waits for the first. */
static void fills_the_next_tile_while_one_is_computed(void **state)
{
    int frame[4] = {0}, at, waited;
    float xy[8] = {0};
    const struct fake_step *first, *second, *done;
    struct tracking t;
    struct tt_error err;

    (void)state;
    start_tracking(&t, frame, xy);
    at = waited = fake.steps;
    assert_int_equal(tt_backend_cuda.track(t.backend, &t.request, t.result, &err), TT_OK);
    first = next_step(&at, FAKE_COPY, 0, NULL);
    next_step(&at, FAKE_STAGE, TT_GPU_REFINE, NULL);
    done = next_step(&at, FAKE_RECORD, 0, NULL);
    second = next_step(&at, FAKE_COPY, 0, NULL);
    assert_int_equal(second->bytes, 2 * tt_backend_cuda.support_bytes);
    assert_true(second->to == first->to && second->from != first->from);
    assert_non_null(next_step(&at, FAKE_STAGE, TT_GPU_REFINE, NULL));
    assert_non_null(next_step(&waited, FAKE_HOST_WAIT, 0, NULL));
    assert_true(waited > at);
    assert_ptr_equal(fake.step[waited - 1].event, done->event);
    stop_tracking(&t);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup(chooses_devices, reset),
        cmocka_unit_test_setup(chooses_a_part_of_a_gpu, reset),
        cmocka_unit_test_setup(says_what_is_wrong_with_the_driver, reset),
        cmocka_unit_test_setup(an_exclusive_device_is_busy, reset),
        cmocka_unit_test_setup(short_memory_asks_for_smaller_tiles, reset),
        cmocka_unit_test_setup(no_code_for_the_card_is_configuration, reset),
        cmocka_unit_test_setup(everything_else_is_a_lost_device, reset),
        cmocka_unit_test_setup(takes_its_tiles_from_the_plan, reset),
        cmocka_unit_test_setup(brings_the_next_clip_while_one_is_tracked, reset),
        cmocka_unit_test_setup(fills_the_next_tile_while_one_is_computed, reset),
    };

    return cmocka_run_group_tests_name("cuda device", tests, set_up, tear_down);
}

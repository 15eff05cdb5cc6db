/* tests/kernels/selftestkern.c PLUGIN [WEIGHTS]: the plug-in as programs use it, on the device.
 *
 * Loads the plug-in and, through its table alone: runs the self-test's known answers with the formula's
 * weights and with WEIGHTS, in each precision and on the path of sm_75; then what core/backend.h promises:
 * points of other clips keep their supports, an initialisation that is not NaN replaces the estimate but not
 * the query, a point's result is its own, kept features are the same, clips that are brought ahead change no
 * bit, refusals, and stopping. Tiles that
 * cannot fit and devices that are not there are refused. Last, in a process of its own, a kernel writes to an
 * illegal address: the device must be reported as lost.
 */
#include "core/backend.h"
#include "core/formula.h"
#include "core/selftest.h"

#include <dlfcn.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

enum { FRAMES = 6, QUERIES = 3, COUNT = QUERIES * FRAMES, SKIPPED = 77 };

static int passed, failed;

static void check(int good, const char *what, const char *detail)
{
    good ? passed++ : failed++;
    printf("%-4s %s%s%s\n", good ? "ok" : "FAIL", what, *detail ? ": " : "", detail);
}

static void *need(void *p)
{
    if (!p) {
        fprintf(stderr, "no memory, or no weights\n");
        exit(1);
    }
    return p;
}

static void run_selftest(const struct tt_backend_ops *ops, const struct tt_weights *weights,
                         enum tt_precision precision, const char *arch)
{
    const struct tt_backend_options options = {.precision = precision, .arch = arch};
    struct tt_selftest_report report = {0};
    struct tt_error err = {0};
    char text[128];
    enum tt_status status = tt_selftest_run(ops, &options, weights, &report, &err);

    snprintf(text, sizeof text, "self-test %s %s %s, weights %s: %.2g px of %.2g, logits %.2g of %.2g",
             tt_weights_name(weights), precision == TT_FP16 ? "fp16" : "fp32", arch ? arch : "native",
             report.weights_known ? "known" : "unknown", (double)report.position_px,
             (double)report.position_bound, (double)report.logit, (double)report.logit_bound);
    check(status == TT_OK, text, status ? err.text : "");
}

/* A clip, three query points (the second of another clip) and their supports, on an open backend. */
struct scene {
    const struct tt_backend_ops *ops;
    struct tt_backend *backend;
    struct tt_clip clip;
    int frame[QUERIES];
    float xy[2 * QUERIES];
    unsigned char *supports;
};

static enum tt_status track(struct scene *s, int first, int queries, const struct tt_estimate *init,
                            struct tt_estimate *stages, struct tt_estimate *result, struct tt_error *err)
{
    const struct tt_track_request r = {.queries = queries,
                                       .supports = s->supports + (size_t)first * s->ops->support_bytes,
                                       .query_frame = s->frame + first,
                                       .query_xy = s->xy + 2 * first,
                                       .init = init,
                                       .stages = stages};

    return s->ops->track(s->backend, &r, result, err);
}

static void check_samples(struct scene *s)
{
    size_t bytes = s->ops->support_bytes;
    unsigned char *alone = need(malloc(bytes));
    int kept = 1, bad = FRAMES;
    struct tt_error err;

    memset(s->supports, 0xa5, QUERIES * bytes);
    check(!s->ops->sample(s->backend, QUERIES, s->frame, s->xy, s->supports, &err), "sample", "");
    for (size_t i = 0; i < bytes; i++)
        kept &= s->supports[bytes + i] == 0xa5;
    check(kept, "supports of a point of another clip are left as they are", "");
    check(!s->ops->sample(s->backend, 1, s->frame + 2, s->xy + 4, alone, &err) &&
              !memcmp(alone, s->supports + 2 * bytes, bytes),
          "supports of the others are their own", "");
    check(s->ops->sample(s->backend, 1, &bad, s->xy, alone, &err) == TT_REFUSE,
          "a frame beyond the clip is refused", "");
    memcpy(s->supports + bytes, alone, bytes); /* as if the last point had been sampled in another clip */
    free(alone);
}

static void check_init(struct scene *s)
{
    struct tt_estimate plain[(1 + TT_REFINEMENTS) * COUNT], given[(1 + TT_REFINEMENTS) * COUNT];
    struct tt_estimate init[COUNT], result[COUNT], alone[FRAMES];
    struct tt_error err;
    int good = 1;

    for (int i = 0; i < COUNT; i++)
        init[i] = i % 2 ? (struct tt_estimate){NAN, 1, 2, 3}
                        : (struct tt_estimate){20.0f + (float)i, 30.0f, -1.0f, 0.5f};
    check(!track(s, 0, QUERIES, NULL, plain, result, &err), "track", "");
    check(!track(s, 2, 1, NULL, NULL, alone, &err) && !memcmp(alone, result + 2 * FRAMES, sizeof alone),
          "a point alone has the same bits", "");
    check(!track(s, 0, QUERIES, init, given, result, &err), "track with initialisation", "");
    for (int i = 0; i < COUNT; i++) {
        struct tt_estimate want = isnan(init[i].x) ? plain[i] : init[i];

        if (i % FRAMES == s->frame[i / FRAMES])
            want.x = s->xy[2 * (i / FRAMES)], want.y = s->xy[2 * (i / FRAMES) + 1];
        good &= !memcmp(&want, &given[i], sizeof want);
    }
    check(good, "an initialisation that is not NaN replaces the estimate, not the query", "");
}

static void check_features(struct scene *s)
{
    struct tt_estimate first[FRAMES], second[FRAMES];
    struct tt_error err;
    struct tt_clip moved = {.rgb = s->clip.rgb, .frames = 4};

    /* frames 2..5 of the clip, of which the first two were the last two of frames 0..3 */
    check(!s->ops->features(s->backend, &moved, 0, &err), "features of the first frames", "");
    moved.rgb = s->clip.rgb + 2 * TT_FRAME_BYTES;
    check(!s->ops->features(s->backend, &moved, 2, &err) && !track(s, 1, 1, NULL, NULL, first, &err) &&
              !s->ops->features(s->backend, &moved, 0, &err) && !track(s, 1, 1, NULL, NULL, second, &err) &&
              !memcmp(first, second, 4 * sizeof *first),
          "kept features are those that would be computed", "");
    check(s->ops->features(s->backend, &moved, 5, &err) == TT_REFUSE, "more frames kept than held is refused",
          "");
}

/* The next clip is brought while one is tracked: both have the bits that they have without. */
static void check_bring(struct scene *s)
{
    struct tt_estimate first[COUNT], second[COUNT], result[COUNT];
    struct tt_clip front = {.rgb = s->clip.rgb, .frames = 4},
                   back = {.rgb = s->clip.rgb + 2 * TT_FRAME_BYTES, .frames = 4, .first_frame = 2};
    uint8_t *copy = need(malloc((size_t)back.frames * TT_FRAME_BYTES));
    const size_t bytes = (size_t)QUERIES * 4 * sizeof *result;
    struct tt_error err;
    int good = 1;

    good &= !s->ops->features(s->backend, &front, 0, &err) && !track(s, 0, QUERIES, NULL, NULL, first, &err);
    good &= !s->ops->features(s->backend, &back, 2, &err) && !track(s, 0, QUERIES, NULL, NULL, second, &err);
    check(good, "two clips one after another", "");
    for (int reuse = 0; reuse <= 2; reuse += 2)
        for (int turn = 0; turn < 4; turn++) {
            struct tt_clip brought = back;

            memcpy(copy, back.rgb, (size_t)back.frames * TT_FRAME_BYTES);
            brought.rgb = copy;
            good &= !s->ops->features(s->backend, &front, 0, &err) &&
                    !s->ops->bring(s->backend, &brought, reuse, &err);
            brought.rgb = NULL;
            if (turn) { /* or features takes the pixels */
                good &= !track(s, 0, QUERIES, NULL, NULL, result, &err) && !memcmp(result, first, bytes);
                memset(copy, 0x55, (size_t)back.frames * TT_FRAME_BYTES); /* borrowed no longer */
            }
            good &= !s->ops->features(s->backend, &brought, reuse, &err) &&
                    !track(s, 0, QUERIES, NULL, NULL, result, &err) && !memcmp(result, second, bytes);
        }
    check(good, "a clip brought ahead, and the one tracked meanwhile, have the same bits", "");
    back.rgb = NULL;
    check(s->ops->features(s->backend, &back, 0, &err) == TT_REFUSE, "a clip that was not brought is refused",
          "");
    free(copy);
}

static void check_stop(struct scene *s, atomic_bool *stop)
{
    struct tt_estimate result[COUNT];
    struct tt_error err;

    memset(result, 0x5a, sizeof result);
    atomic_store(stop, true);
    check(track(s, 0, 1, NULL, NULL, result, &err) == TT_INTERRUPTED, "track stops", "");
    check(((unsigned char *)result)[0] == 0x5a, "a stopped track leaves the result", "");
    check(s->ops->features(s->backend, &s->clip, 0, &err) == TT_INTERRUPTED, "features stop", "");
    atomic_store(stop, false);
    check(track(s, 0, 1, NULL, NULL, result, &err) == TT_REFUSE, "and hold no clip then", "");
}

static void check_contract(const struct tt_backend_ops *ops, const struct tt_weights *weights,
                           enum tt_precision precision)
{
    atomic_bool stop = false;
    const struct tt_backend_options options = {.precision = precision, .stop = &stop};
    struct scene s = {
        .ops = ops, .frame = {0, -1, 3}, .xy = {104.5f, 112.25f, 160.0f, 120.5f, 200.75f, 60.0f}};
    uint8_t *rgb = need(malloc((size_t)FRAMES * TT_FRAME_BYTES));
    struct tt_error err = {0};

    tt_formula_clip(rgb, FRAMES);
    s.clip = (struct tt_clip){.rgb = rgb, .frames = FRAMES};
    s.supports = need(malloc(QUERIES * ops->support_bytes));
    if (ops->open(&s.backend, &options, weights, &err) || ops->features(s.backend, &s.clip, 0, &err)) {
        check(0, "open, features", err.text);
    } else {
        puts(ops->describe(s.backend));
        check_samples(&s);
        check_init(&s);
        check_features(&s);
        check_bring(&s);
        check_stop(&s, &stop);
    }
    if (s.backend)
        ops->close(s.backend);
    free(s.supports);
    free(rgb);
}

static void refused(const struct tt_backend_ops *ops, const struct tt_weights *weights,
                    struct tt_backend_options options, const char *because)
{
    struct tt_backend *backend = NULL;
    struct tt_error err = {0};
    enum tt_status status = ops->open(&backend, &options, weights, &err);

    check(status == TT_REFUSE && strstr(err.text, because), because, err.text);
    if (!status)
        ops->close(backend);
}

static void check_refusals(const struct tt_backend_ops *ops, const struct tt_weights *weights)
{
    struct tt_device small = {"small", TT_DEVICE_CUDA, INT64_C(100) << 20, 4 << 20, 65536, 40};

    refused(ops, weights, (struct tt_backend_options){.select = "99"}, "no CUDA device 99");
    refused(ops, weights, (struct tt_backend_options){.select = "GPU-0"}, "no CUDA device GPU-0");
    refused(ops, weights, (struct tt_backend_options){.select = "ffff:ff:1f.0"},
            "no CUDA device ffff:ff:1f.0");
    refused(ops, weights, (struct tt_backend_options){.arch = "sm_10"}, "arch sm_10");
    refused(ops, weights, (struct tt_backend_options){.device = &small}, "whatever the tile");
    small.memory_bytes = INT64_C(1) << 30;
    refused(ops, weights, (struct tt_backend_options){.device = &small, .tile = {4096, 47}}, " fit");
}

/* The driver's own functions, as far as an illegal address needs them. */
struct driver {
    int (*load)(void **module, const void *image);
    int (*function)(void **function, void *module, const char *name);
    int (*launch)(void *function, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned,
                  void *, void **, void **);
};

static const char illegal_ptx[] = ".version 6.3\n.target sm_75\n.address_size 64\n"
                                  ".visible .entry illegal()\n{\n"
                                  "    .reg .u64 %at;\n    .reg .u32 %one;\n"
                                  "    mov.u64 %at, 16;\n    mov.u32 %one, 1;\n"
                                  "    st.global.u32 [%at], %one;\n    ret;\n}\n";

/* Opens a device, lets a kernel write to address 16 in its context, and expects the next call to report it as
 * lost. Nothing is closed. */
static int lose_the_device(const struct tt_backend_ops *ops)
{
    const struct tt_backend_options options = {.precision = TT_FP16};
    size_t size = 0;
    void *file = need(tt_formula_weights(&tt_model_small, 1, &size)), *module, *function;
    uint8_t *rgb = need(malloc((size_t)FRAMES * TT_FRAME_BYTES));
    const struct tt_clip clip = {.rgb = rgb, .frames = FRAMES};
    void *library = dlopen("libcuda.so.1", RTLD_NOW);
    struct tt_weights *weights;
    struct tt_backend *backend;
    struct tt_error err = {0};
    struct driver d;
    enum tt_status status;

    if (!library)
        return 1;
    *(void **)&d.load = dlsym(library, "cuModuleLoadData");
    *(void **)&d.function = dlsym(library, "cuModuleGetFunction");
    *(void **)&d.launch = dlsym(library, "cuLaunchKernel");
    tt_formula_clip(rgb, FRAMES);
    if (tt_weights_from_memory(&weights, "formula", file, size, &err) ||
        ops->open(&backend, &options, weights, &err) || ops->features(backend, &clip, 0, &err)) {
        printf("%s\n", err.text);
        return 1;
    }
    if (d.load(&module, illegal_ptx) || d.function(&function, module, "illegal") ||
        d.launch(function, 1, 1, 1, 1, 1, 1, 0, NULL, NULL, NULL)) {
        printf("the kernel could not be launched\n");
        return 1;
    }
    status = ops->features(backend, &clip, 0, &err);
    if (!status) /* it was only queued */
        status = ops->sample(backend, 1, (const int[]){0}, (const float[]){128, 128},
                             need(malloc(ops->support_bytes)), &err);
    printf("     after an illegal address: %s: %s\n", tt_status_name(status), err.text);
    fflush(stdout);
    _exit(status != TT_RESTART_WORKER);
}

static void check_lost_device(const char *program, const char *plugin)
{
    int status = -1;
    pid_t child;

    fflush(stdout);
    child = fork();
    if (child == 0) {
        execl(program, program, plugin, "--lose", (char *)NULL);
        _exit(1);
    }
    waitpid(child, &status, 0);
    check(WIFEXITED(status) && WEXITSTATUS(status) == 0, "an illegal address is a lost device", "");
}

int main(int argc, char **argv)
{
    void *library = argc > 1 ? dlopen(argv[1], RTLD_NOW | RTLD_LOCAL) : NULL;
    const struct tt_plugin *plugin = library ? dlsym(library, TT_PLUGIN_SYMBOL) : NULL;
    const struct tt_model_shape *const shapes[] = {&tt_model_small, &tt_model_base};
    struct tt_error err = {0};

    if (!plugin) {
        printf("skipped: usage: selftestkern PLUGIN [WEIGHTS]: %s\n", argc > 1 ? dlerror() : "no plug-in");
        return SKIPPED;
    }
    if (argc > 2 && !strcmp(argv[2], "--lose"))
        return lose_the_device(plugin->ops);
    check(plugin->abi == TT_PLUGIN_ABI, "the plug-in's version", "");
    for (int i = 0; i < 2 + (argc > 2); i++) {
        struct tt_weights *weights = NULL;
        size_t size = 0;
        void *file = i < 2 ? need(tt_formula_weights(shapes[i], 1, &size)) : NULL;
        enum tt_status status = file ? tt_weights_from_memory(&weights, "formula", file, size, &err)
                                     : tt_weights_open(&weights, argv[2], &err);

        check(!status, i < 2 ? shapes[i]->name : argv[2], status ? err.text : "");
        for (int p = 0; p < 3 && !status; p++)
            run_selftest(plugin->ops, weights, p ? TT_FP16 : TT_FP32, p == 2 ? "sm_75" : NULL);
        if (!status && i == 0)
            for (int p = 0; p < 2; p++)
                check_contract(plugin->ops, weights, p ? TT_FP16 : TT_FP32);
        if (!status && i == 0)
            check_refusals(plugin->ops, weights);
        if (weights)
            tt_weights_close(weights);
        free(file);
    }
    check_lost_device(argv[0], argv[1]);
    printf("%d passed, %d failed\n", passed, failed);
    return failed != 0;
}

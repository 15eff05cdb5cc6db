/* tests/kernels/bench_cases.c: the kernels at the network's sizes: 47 frames, 256 query points, size small.
 */
#include "tests/kernels/bench.h"
#include "tests/kernels/ceilings.h"
#include "tests/kernels/kern.h"

enum { FRAMES = 47, QUERIES = 256, ROWS = FRAMES * QUERIES, WIDTH = 256, HEADS = 4 };

static float *random_f32(size_t n, float scale)
{
    float *x = kern_device(n * sizeof(*x));
    kern_status(fill_f32(x, n, scale, (uint32_t)n, NULL), "fill");
    return x;
}

static uint16_t *random_f16(size_t n, float scale)
{
    uint16_t *x = kern_device(n * sizeof(*x));
    kern_status(fill_f16(x, n, scale, (uint32_t)n, NULL), "fill");
    return x;
}

/* ---- convolutions ---- */

struct layer {
    const char *name;
    int in_size, in_c, out_size, out_c, stride;
};

static const struct layer layers[] = {
    {"group 0", 128, 64, 128, 64, 1},    {"group 1", 64, 128, 64, 128, 1},
    {"group 2, 3", 32, 256, 32, 256, 1}, {"group 1 /2", 128, 64, 64, 128, 2},
    {"group 2 /2", 64, 128, 32, 256, 2},
};
enum { LAYERS = sizeof(layers) / sizeof(*layers) };

static double layer_flop(const struct layer *l)
{
    return 2.0 * 9 * FRAMES * l->out_size * l->out_size * l->in_c * l->out_c;
}

static double layer_values(const struct layer *l)
{
    return (double)FRAMES *
           ((double)l->in_size * l->in_size * l->in_c + (double)l->out_size * l->out_size * l->out_c);
}

struct conv_f16_sets {
    struct tt_k_conv_f16 set[BENCH_SETS];
    enum tt_k_mma mma;
};

static int launch_conv_f16(const void *context, int set, void *stream)
{
    const struct conv_f16_sets *c = context;
    return tt_k_conv_f16(&c->set[set], c->mma, stream);
}

static void bench_conv_f16_layer(const struct layer *l, enum tt_k_mma mma, int add)
{
    const size_t in_n = (size_t)FRAMES * l->in_size * l->in_size * l->in_c;
    const size_t out_n = (size_t)FRAMES * l->out_size * l->out_size * l->out_c;
    struct conv_f16_sets c = {.mma = mma};
    for (int i = 0; i < BENCH_SETS; i++) {
        c.set[i] = (struct tt_k_conv_f16){.in = random_f16(in_n, 1.0f),
                                          .out = kern_device(out_n * 2),
                                          .frames = FRAMES,
                                          .in_size = l->in_size,
                                          .in_c = l->in_c,
                                          .out_size = l->out_size,
                                          .out_c = l->out_c};
        c.set[i].norm = random_f32((size_t)FRAMES * l->in_c * 2, 1.0f);
        c.set[i].weight = random_f16((size_t)9 * l->in_c * l->out_c + 1024, 0.05f);
        c.set[i].add = add ? random_f16(out_n, 1.0f) : NULL;
        c.set[i].partial = kern_device((size_t)FRAMES * l->out_c * 8 * (l->out_size * l->out_size / 128));
    }
    for (int v = 0; v < TT_CONV_VARIANTS; v++) {
        const int stride = v == TT_CONV_S2_128x128_C32 ? 2 : 1;
        if (stride != l->stride)
            continue;
        for (int i = 0; i < BENCH_SETS; i++)
            c.set[i].variant = (enum tt_k_conv_variant)v;
        if (tt_k_conv_f16(&c.set[0], mma, NULL) != 0)
            continue; /* this shape is not one of the variant's */
        static const char *const names[] = {"256x64 c32", "128x128 c32", "/2 128x128 c32", "256x64 c64",
                                            "128x128 c64"};
        const struct bench b = {.flop = layer_flop(l),
                                .bytes = 2.0 * (layer_values(l) + (add ? (double)out_n : 0.0)),
                                .launch = launch_conv_f16,
                                .context = &c};
        bench_run(&b, "conv_f16 k%d %s %s%s", mma == TT_MMA_K16 ? 16 : 8, l->name, names[v],
                  add ? " add" : "");
    }
    kern_free_all();
}

void bench_conv_f16(enum tt_k_mma mma)
{
    for (int i = 0; i < LAYERS; i++)
        bench_conv_f16_layer(&layers[i], mma, 0);
    bench_conv_f16_layer(&layers[0], mma, 1);
}

struct conv_f32_sets {
    struct tt_k_conv_f32 set[BENCH_SETS];
};

static int launch_conv_f32(const void *context, int set, void *stream)
{
    return tt_k_conv_f32(&((const struct conv_f32_sets *)context)->set[set], stream);
}

static void bench_conv_f32_shape(const struct tt_k_conv_f32 *shape, const char *name)
{
    struct conv_f32_sets c;
    const size_t in_n = (size_t)shape->frames * shape->in_h * shape->in_w * shape->in_c;
    const size_t out_n = (size_t)shape->frames * shape->out_h * shape->out_w * shape->out_c;
    const size_t taps = (size_t)shape->kernel * shape->kernel;
    for (int i = 0; i < BENCH_SETS; i++) {
        c.set[i] = *shape;
        c.set[i].in = random_f32(in_n, 1.0f);
        c.set[i].weight = random_f32(taps * shape->in_c * shape->out_c, 0.05f);
        c.set[i].bias = random_f32((size_t)shape->out_c, 1.0f);
        c.set[i].norm = taps == 9 ? random_f32((size_t)shape->frames * shape->in_c * 2, 1.0f) : NULL;
        c.set[i].out = kern_device(out_n * sizeof(float));
    }
    const struct bench b = {.flop = 2.0 * (double)out_n * (double)taps * shape->in_c,
                            .bytes = 4.0 * (double)(in_n + out_n),
                            .launch = launch_conv_f32,
                            .context = &c};
    bench_run(&b, "conv_f32 %s", name);
    kern_free_all();
}

void bench_conv_f32(void)
{
    for (int i = 0; i < LAYERS; i++) {
        const struct layer *l = &layers[i];
        const struct tt_k_conv_f32 shape = {.frames = FRAMES,
                                            .in_h = l->in_size,
                                            .in_w = l->in_size,
                                            .in_c = l->in_c,
                                            .out_h = l->out_size,
                                            .out_w = l->out_size,
                                            .out_c = l->out_c,
                                            .kernel = 3,
                                            .stride = l->stride,
                                            .pad = l->stride == 1};
        bench_conv_f32_shape(&shape, l->name);
    }
    const struct tt_k_conv_f32 product = {.frames = ROWS,
                                          .in_h = 1,
                                          .in_w = 1,
                                          .in_c = 256,
                                          .out_h = 1,
                                          .out_w = 1,
                                          .out_c = 1024,
                                          .kernel = 1,
                                          .stride = 1,
                                          .gelu = 1};
    bench_conv_f32_shape(&product, "product 256 -> 1024 gelu");
    const struct tt_k_conv_f32 encoder = {.frames = 2 * FRAMES * 64,
                                          .in_h = 7,
                                          .in_w = 7,
                                          .in_c = 56,
                                          .out_h = 2,
                                          .out_w = 2,
                                          .out_c = 64,
                                          .kernel = 5,
                                          .stride = 4,
                                          .pad = 1};
    bench_conv_f32_shape(&encoder, "encoder 5x5/4, 64 queries");
}

/* ---- matrix products ---- */

struct product_sets {
    struct tt_k_product_f16 set[BENCH_SETS];
    enum tt_k_mma mma;
};

static int launch_product(const void *context, int set, void *stream)
{
    const struct product_sets *c = context;
    return tt_k_product_f16(&c->set[set], c->mma, stream);
}

static void bench_product(int width, int k, int n, int normed, enum tt_k_mma mma)
{
    struct product_sets c = {.mma = mma};
    for (int i = 0; i < BENCH_SETS; i++)
        c.set[i] = (struct tt_k_product_f16){.h = normed ? random_f32((size_t)ROWS * k, 1.0f) : NULL,
                                             .gamma = random_f32((size_t)k, 1.0f),
                                             .beta = random_f32((size_t)k, 1.0f),
                                             .a = normed ? NULL : random_f16((size_t)ROWS * k, 1.0f),
                                             .weight = random_f16((size_t)k * n, 0.05f),
                                             .bias = random_f32((size_t)n, 1.0f),
                                             .half = normed ? kern_device((size_t)ROWS * n * 2) : NULL,
                                             .out = normed ? NULL : random_f32((size_t)ROWS * n, 1.0f),
                                             .width = width,
                                             .rows = ROWS,
                                             .k = k,
                                             .n = n};
    const double written = normed ? 2.0 : 4.0;
    const struct bench b = {.flop = 2.0 * ROWS * k * n,
                            .bytes = (normed ? 4.0 : 2.0) * ROWS * k + written * ROWS * n,
                            .launch = launch_product,
                            .context = &c};
    bench_run(&b, "product_f16 k%d %d -> %d%s", mma == TT_MMA_K16 ? 16 : 8, k, n, normed ? " normed" : "");
    kern_free_all();
}

struct mlp_sets {
    struct tt_k_mlp_f16 set[BENCH_SETS];
    enum tt_k_mma mma;
};

static int launch_mlp(const void *context, int set, void *stream)
{
    const struct mlp_sets *c = context;
    return tt_k_mlp_f16(&c->set[set], c->mma, stream);
}

static void bench_mlp(int width, enum tt_k_mma mma)
{
    const size_t weights = (size_t)4 * width * width;
    struct mlp_sets c = {.mma = mma};
    for (int i = 0; i < BENCH_SETS; i++)
        c.set[i] = (struct tt_k_mlp_f16){.h = random_f32((size_t)ROWS * width, 1.0f),
                                         .gamma = random_f32((size_t)width, 1.0f),
                                         .beta = random_f32((size_t)width, 1.0f),
                                         .up = random_f16(weights, 0.05f),
                                         .down = random_f16(weights, 0.001f),
                                         .up_bias = random_f32((size_t)4 * width, 1.0f),
                                         .down_bias = random_f32((size_t)width, 1.0f),
                                         .rows = ROWS,
                                         .width = width};
    const struct bench b = {.flop = 4.0 * ROWS * (double)weights,
                            .bytes = 8.0 * ROWS * width,
                            .launch = launch_mlp,
                            .context = &c};
    bench_run(&b, "mlp_f16 k%d width %d", mma == TT_MMA_K16 ? 16 : 8, width);
    kern_free_all();
}

struct attend_sets {
    struct tt_k_attend_f16 set[BENCH_SETS];
    enum tt_k_mma mma;
};

static int launch_attend(const void *context, int set, void *stream)
{
    const struct attend_sets *c = context;
    return tt_k_attend_f16(&c->set[set], c->mma, stream);
}

static void bench_attend(int width, enum tt_k_mma mma)
{
    struct attend_sets c = {.mma = mma};
    for (int i = 0; i < BENCH_SETS; i++)
        c.set[i] = (struct tt_k_attend_f16){.qkv = random_f16((size_t)ROWS * width * 3, 1.0f),
                                            .weight = random_f16((size_t)width * width, 0.05f),
                                            .bias = random_f32((size_t)width, 1.0f),
                                            .h = random_f32((size_t)ROWS * width, 1.0f),
                                            .queries = QUERIES,
                                            .frames = FRAMES,
                                            .width = width};
    const struct bench b = {.flop = 2.0 * ROWS * width * (2.0 * FRAMES + width),
                            .bytes = 14.0 * ROWS * width,
                            .launch = launch_attend,
                            .context = &c};
    bench_run(&b, "attend_f16 k%d width %d", mma == TT_MMA_K16 ? 16 : 8, width);
    kern_free_all();
}

void bench_product_f16(enum tt_k_mma mma)
{
    for (int width = 256; width <= 384; width += 128) {
        bench_product(width, TT_K_TOKEN, width, 0, mma);
        bench_product(width, width, 3 * width, 1, mma);
        bench_attend(width, mma);
        bench_mlp(width, mma);
    }
}

/* ---- stem, norms, mixer's small kernels ---- */

struct small {
    const void *in[BENCH_SETS];
    void *out[BENCH_SETS];
    const float *a, *b;
    float *state;
};

static int launch_stem_f32(const void *context, int set, void *stream)
{
    const struct small *s = context;
    return tt_k_stem_f32(s->in[set], s->a, s->out[set], FRAMES, 256, stream);
}
static int launch_stem_f16(const void *context, int set, void *stream)
{
    const struct small *s = context;
    return tt_k_stem_f16(s->in[set], (const uint16_t *)s->a, s->out[set], s->state, FRAMES, 256,
                         KERN_K16 ? TT_MMA_K16 : TT_MMA_K8, stream);
}
static int launch_partial_f16(const void *context, int set, void *stream)
{
    const struct small *s = context;
    return tt_k_norm_partial_f16(s->in[set], s->out[set], FRAMES, 16384, 64, stream);
}
static int launch_finish(const void *context, int set, void *stream)
{
    const struct small *s = context;
    return tt_k_norm_finish(s->in[set], s->a, s->b, s->out[set], FRAMES, 64, 16384, 64, 1e-5f, stream);
}
static int launch_l2_f16(const void *context, int set, void *stream)
{
    const struct small *s = context;
    return tt_k_l2_f16(s->in[set], s->out[set], (int64_t)FRAMES * 16384, 64, stream);
}
static int launch_layer_norm(const void *context, int set, void *stream)
{
    const struct small *s = context;
    return tt_k_layer_norm_f32(s->in[set], s->a, s->b, s->out[set], ROWS, WIDTH, stream);
}
static int launch_tokens(const void *context, int set, void *stream)
{
    const struct small *s = context;
    return tt_k_tokens_f16(s->state, s->out[set], QUERIES, FRAMES, stream);
}
static int launch_head(const void *context, int set, void *stream)
{
    const struct small *s = context;
    return tt_k_head_f32(s->in[set], s->a, s->b, s->a, s->b, s->state, ROWS, WIDTH, stream);
}
static int launch_attention_f32(const void *context, int set, void *stream)
{
    const struct small *s = context;
    return tt_k_attention_f32(s->in[set], s->out[set], QUERIES, FRAMES, HEADS, stream);
}
void bench_small(void)
{
    enum { BIG = FRAMES * 16384 * 64 };
    const double attention = 2.0 * 2 * ROWS * FRAMES * WIDTH;
    const struct {
        const char *name;
        int (*launch)(const void *, int, void *);
        double flop;
        size_t in_bytes, out_bytes;
    } cases[] = {
        {"stem_f32", launch_stem_f32, 2.0 * 147 * BIG, (size_t)FRAMES * 196608, (size_t)BIG * 4},
        {"stem_f16", launch_stem_f16, 2.0 * 147 * BIG, (size_t)FRAMES * 196608, (size_t)BIG * 2},
        {"norm_partial_f16 128x128:64", launch_partial_f16, 0, (size_t)BIG * 2, FRAMES * 64 * 64 * 8},
        {"norm_finish 64 chunks", launch_finish, 0, FRAMES * 64 * 64 * 8, FRAMES * 64 * 8},
        {"l2_f16 128x128:64", launch_l2_f16, 0, (size_t)BIG * 2, (size_t)BIG * 2},
        {"layer_norm_f32", launch_layer_norm, 0, (size_t)ROWS * WIDTH * 4, (size_t)ROWS * WIDTH * 4},
        {"tokens_f16", launch_tokens, 0, (size_t)ROWS * 16, (size_t)ROWS * TT_K_TOKEN * 2},
        {"head_f32", launch_head, 0, (size_t)ROWS * WIDTH * 4, (size_t)ROWS * 16},
        {"attention_f32", launch_attention_f32, attention, (size_t)ROWS * WIDTH * 12,
         (size_t)ROWS * WIDTH * 4},
    };
    for (size_t i = 0; i < sizeof(cases) / sizeof(*cases); i++) {
        struct small s = {.a = random_f32(1 << 16, 0.1f),
                          .b = random_f32(1 << 16, 0.1f),
                          .state = random_f32((size_t)FRAMES * 64 * 64 * 2, 100.0f)};
        for (int k = 0; k < BENCH_SETS; k++) {
            s.in[k] = cases[i].launch == launch_l2_f16 || cases[i].launch == launch_partial_f16
                          ? (void *)random_f16(cases[i].in_bytes / 2, 1.0f)
                          : (void *)random_f32(cases[i].in_bytes / 4, 1.0f);
            s.out[k] = kern_device(cases[i].out_bytes);
        }
        const struct bench b = {.flop = cases[i].flop,
                                .bytes = (double)(cases[i].in_bytes + cases[i].out_bytes),
                                .launch = cases[i].launch,
                                .context = &s};
        bench_run(&b, "%s", cases[i].name);
        kern_free_all();
    }
}

/* ---- cost volume and correlation ---- */

struct level {
    int size, channels;
    const float *grid, *support, *state;
    float *volume;
};

static int launch_correlate(const void *context, int set, void *stream)
{
    const struct level *l = context;
    (void)set;
    return tt_k_correlate_f32(l->grid, l->support, l->state, l->volume, 64, FRAMES, 49 * l->channels, l->size,
                              l->channels, (float)l->size / 256.0f, stream);
}

static int launch_cost_f32(const void *context, int set, void *stream)
{
    (void)set;
    return tt_k_cost_f32(context, stream);
}

void bench_track_f32(void)
{
    static const int sizes[] = {64, 32, 128}, channels[] = {128, 256, 64};
    for (int i = 0; i < 3; i++) {
        struct level l = {.size = sizes[i], .channels = channels[i]};
        const size_t rows = (size_t)64 * FRAMES;
        l.grid = random_f32((size_t)FRAMES * l.size * l.size * l.channels, 1.0f);
        l.support = random_f32((size_t)64 * 49 * l.channels, 1.0f);
        l.state = random_f32(rows * 4, 128.0f); /* a quarter of them inside the frame */
        l.volume = kern_device(rows * 2 * 49 * TT_K_VOLUME_ROW * 4);
        const struct bench b = {.flop = 2.0 * (double)rows * 64 * 49 * l.channels,
                                .bytes = (double)rows * 2 * 49 * TT_K_VOLUME_ROW * 4,
                                .launch = launch_correlate,
                                .context = &l};
        bench_run(&b, "correlate_f32 %d:%d, 64 queries", l.size, l.channels);
        kern_free_all();
    }
    const size_t lo = (size_t)FRAMES * 1024 * 256, hi = (size_t)FRAMES * 4096 * 128;
    const float *q = random_f32(QUERIES * 384, 0.1f);
    struct tt_k_cost c = {.lowres = random_f32(lo, 0.1f),
                          .hires = random_f32(hi, 0.1f),
                          .lowres_q = q,
                          .hires_q = q + 256,
                          .conv = random_f32(18, 0.3f),
                          .occ_w = random_f32(12, 1.0f),
                          .occ_b = random_f32(2, 1.0f),
                          .query_frame = kern_upload(kern_zeros(QUERIES * 4), QUERIES * 4),
                          .query_xy = random_f32(QUERIES * 2, 100.0f),
                          .out = kern_device((size_t)ROWS * 16),
                          .queries = QUERIES,
                          .frames = FRAMES,
                          .row = 384};
    const struct bench b = {.flop = 2.0 * ROWS * (1024.0 * 256 + 4096.0 * 128),
                            .bytes = 4.0 * (double)(lo + hi),
                            .launch = launch_cost_f32,
                            .context = &c};
    bench_run(&b, "cost_f32, 256 queries");
    kern_free_all();
}

/* ---- tracking on tensor cores ---- */

struct track_f16 {
    enum tt_k_mma mma;
    struct tt_k_cost cost;
};

static int launch_cost_f16(const void *context, int set, void *stream)
{
    const struct track_f16 *c = context;
    (void)set;
    return tt_k_cost_f16(&c->cost, c->mma, stream);
}

void bench_track_f16(enum tt_k_mma mma)
{
    struct track_f16 c = {.mma = mma};
    const int k = mma == TT_MMA_K16 ? 16 : 8;
    const size_t lo = (size_t)FRAMES * 1024 * 256, hi = (size_t)FRAMES * 4096 * 128;
    const float *q = random_f32(QUERIES * 384, 0.1f);
    c.cost = (struct tt_k_cost){.lowres = random_f16(lo, 0.1f),
                                .hires = random_f16(hi, 0.1f),
                                .lowres_q = q,
                                .hires_q = q + 256,
                                .conv = random_f32(18, 0.3f),
                                .occ_w = random_f32(12, 1.0f),
                                .occ_b = random_f32(2, 1.0f),
                                .query_xy = random_f32(QUERIES * 2, 100.0f),
                                .query_frame = kern_upload(kern_zeros(QUERIES * 4), QUERIES * 4),
                                .out = kern_device((size_t)ROWS * 16),
                                .queries = QUERIES,
                                .frames = FRAMES,
                                .row = 384};
    const struct bench cost = {.flop = 2.0 * ROWS * (1024.0 * 256 + 4096.0 * 128),
                               .bytes = 2.0 * (double)(lo + hi),
                               .launch = launch_cost_f16,
                               .context = &c};
    bench_run(&cost, "cost_f16 k%d, 256 queries", k);
    kern_free_all();
}

/* tests/kernels/bench_embed.c: correlation embeddings at the network's sizes: 47 frames, 256 query points. */
#include "tests/kernels/bench.h"
#include "tests/kernels/ceilings.h"
#include "tests/kernels/kern.h"

enum { FRAMES = 47, QUERIES = 256, ROW = 49 * (64 + 128 + 256) };

struct embed {
    struct tt_k_embed_f16 e;
    enum tt_k_mma mma;
};

static int launch(const void *context, int set, void *stream)
{
    const struct embed *c = context;
    (void)set;
    return tt_k_embed_f16(&c->e, c->mma, stream);
}

static void *filled(size_t bytes, float scale, int half)
{
    void *x = kern_device(bytes);
    kern_status(half ? fill_f16(x, bytes / 2, scale, (uint32_t)bytes, NULL)
                     : fill_f32(x, bytes / 4, scale, (uint32_t)bytes, NULL),
                "fill");
    return x;
}

static struct tt_k_embed_level random_level(int size, int channels, const float *support, uint16_t *out)
{
    struct tt_k_embed_level l = {.grid = filled((size_t)FRAMES * size * size * channels * 2, 0.1f, 1),
                                 .support = support,
                                 .weight2 = filled(256 * 128 * 2, 0.06f, 1),
                                 .out = out,
                                 .size = size,
                                 .channels = channels,
                                 .scale = (float)size / 256.0f};
    for (int o = 0; o < 2; o++) {
        l.weight[o] = filled((o ? 49 : 25) * 64 * 64 * 2, 0.03f, 1);
        l.bias[o] = filled(512, 0.5f, 0);
        l.gamma[o] = filled(512, 1.0f, 0);
        l.beta[o] = filled(512, 0.5f, 0);
    }
    return l;
}

/* Points that wander through the frame, a few pixels a frame. */
static const float *wandering(void)
{
    float *state = kern_zeros(sizeof(*state) * QUERIES * FRAMES * 4);
    for (int q = 0; q < QUERIES; q++) {
        float x = 128.0f + 120.0f * kern_uniform(), y = 128.0f + 120.0f * kern_uniform();
        for (int f = 0; f < FRAMES; f++, x += 3.0f * kern_uniform(), y += 3.0f * kern_uniform()) {
            state[(q * FRAMES + f) * 4] = x;
            state[(q * FRAMES + f) * 4 + 1] = y;
        }
    }
    return kern_upload(state, sizeof(*state) * QUERIES * FRAMES * 4);
}

struct embed_base {
    struct tt_k_embed_base_f16 e;
    enum tt_k_mma mma;
};

static int launch_base(const void *context, int set, void *stream)
{
    const struct embed_base *c = context;
    (void)set;
    return tt_k_embed_base_f16(&c->e, c->mma, stream);
}

static struct tt_k_embed_base_level random_base(const struct tt_k_embed_level *small)
{
    struct tt_k_embed_base_level l = {.grid = small->grid,
                                      .support = small->support,
                                      .weight2 = filled(9 * 64 * 128 * 2, 0.05f, 1),
                                      .weight3 = filled(4 * 128 * 128 * 2, 0.05f, 1),
                                      .out = small->out,
                                      .size = small->size,
                                      .channels = small->channels,
                                      .scale = small->scale};
    for (int o = 0; o < 3; o++) {
        if (o < 2)
            l.weight[o] = filled(9 * 64 * 64 * 2, 0.05f, 1);
        l.bias[o] = filled(512, 0.5f, 0);
        l.gamma[o] = filled(512, 1.0f, 0);
        l.beta[o] = filled(512, 0.5f, 0);
    }
    return l;
}

/* Base's, on the same features, supports and points. */
static void bench_base(const struct embed *small)
{
    const double rows = (double)QUERIES * FRAMES;
    const double encoder = 2.0 * (100.0 * 49 * 64 + 25.0 * 64 * 128 + 512.0 * 128);
    const int k = small->mma == TT_MMA_K16 ? 16 : 8;
    struct embed_base all = {.mma = small->mma,
                             .e = {.state = small->e.state,
                                   .levels = 3,
                                   .queries = QUERIES,
                                   .frames = FRAMES,
                                   .row = ROW,
                                   .out_row = TT_K_TOKEN}};
    for (int i = 0; i < 3; i++)
        all.e.level[i] = random_base(&small->e.level[i]);
    for (int i = 0; i < 3; i++) {
        const struct tt_k_embed_base_level *l = &all.e.level[i];
        struct embed_base one = all;
        one.e.levels = 1, one.e.level[0] = *l;
        const struct bench b = {.flop = rows * (2.0 * 64 * 49 * l->channels + 2.0 * encoder),
                                .bytes = rows * (128.0 * l->channels + 512.0),
                                .launch = launch_base,
                                .context = &one};
        bench_run(&b, "embed_base_f16 k%d %d:%d, 256 queries", k, l->size, l->channels);
    }
    const struct bench b = {.flop = rows * (2.0 * 64 * 49 * 448 + 6.0 * encoder),
                            .bytes = rows * (128.0 * 448 + 1536.0),
                            .launch = launch_base,
                            .context = &all};
    bench_run(&b, "embed_base_f16 k%d three levels, 256 queries", k);
}

void bench_embed_f16(enum tt_k_mma mma)
{
    static const int sizes[] = {32, 64, 128}, channels[] = {256, 128, 64};
    const double rows = (double)QUERIES * FRAMES, encoder = 2.0 * (64.0 * 49 * 64 + 256.0 * 128);
    const int k = mma == TT_MMA_K16 ? 16 : 8;
    const float *support = filled(sizeof(float) * QUERIES * ROW, 0.1f, 0);
    uint16_t *out = kern_device((size_t)QUERIES * FRAMES * TT_K_TOKEN * 2);
    struct embed all = {.mma = mma,
                        .e = {.state = wandering(),
                              .levels = 3,
                              .queries = QUERIES,
                              .frames = FRAMES,
                              .row = ROW,
                              .out_row = TT_K_TOKEN}};
    for (int i = 0, at = 0; i < 3; at += 49 * channels[i++])
        all.e.level[i] = random_level(sizes[i], channels[i], support + at, out + 2 + i * 256);
    for (int i = 0; i < 3; i++) {
        struct embed one = all;
        one.e.levels = 1, one.e.level[0] = all.e.level[i];
        const struct bench b = {.flop = rows * (2.0 * 64 * 49 * channels[i] + 2.0 * encoder),
                                .bytes = rows * (128.0 * channels[i] + 512.0),
                                .launch = launch,
                                .context = &one};
        bench_run(&b, "embed_f16 k%d %d:%d, 256 queries", k, sizes[i], channels[i]);
    }
    const struct bench b = {.flop = rows * (2.0 * 64 * 49 * 448 + 6.0 * encoder),
                            .bytes = rows * (128.0 * 448 + 1536.0),
                            .launch = launch,
                            .context = &all};
    bench_run(&b, "embed_f16 k%d three levels, 256 queries", k);
    bench_base(&all);
    kern_free_all();
}

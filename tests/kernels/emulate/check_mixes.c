/* tests/kernels/emulate/check_mixes.c: runs some blocks of each kernel and of its mix on the CPU, and
 * compares what a warp has done: of tensor-core instructions, ldmatrix, weights, shuffles and transpositions
 * the mix has no more than its kernel, and no less than nine tenths. The inputs are zeros: nothing here
 * depends on them.
 */
#include "tests/kernels/emulate/check_mixes.h"

#include "tests/kernels/emulate/counts.h"
#include "tests/kernels/kern.h"

#include <stdio.h>
#include <string.h>

static void *zeros(size_t bytes)
{
    return kern_upload(kern_zeros(bytes), bytes);
}

static int run_conv(int channels, enum tt_k_conv_variant variant)
{
    const struct tt_k_conv_f16 c = {.in = zeros(16 * 16 * (size_t)channels * 2),
                                    .norm = zeros((size_t)channels * 8),
                                    .weight = zeros(9 * (size_t)channels * channels * 2 + 2048),
                                    .out = zeros(16 * 16 * (size_t)channels * 2),
                                    .partial = zeros((size_t)channels * 16),
                                    .frames = 1,
                                    .in_size = 16,
                                    .in_c = channels,
                                    .out_size = 16,
                                    .out_c = channels,
                                    .variant = variant};
    return tt_k_conv_f16(&c, TT_MMA_K8, NULL);
}

static int run_embed(void)
{
    struct tt_k_embed_f16 e = {
        .state = zeros(24 * 16), .levels = 1, .queries = 1, .frames = 24, .row = 49 * 256, .out_row = 256};
    struct tt_k_embed_level *l = &e.level[0];
    *l = (struct tt_k_embed_level){.grid = zeros(24 * 32 * 32 * 256 * 2),
                                   .support = zeros(49 * 256 * 4),
                                   .weight2 = zeros(256 * 128 * 2),
                                   .out = zeros(24 * 256 * 2),
                                   .size = 32,
                                   .channels = 256,
                                   .scale = 0.125f};
    for (int i = 0; i < 2; i++) {
        l->weight[i] = zeros((i ? 49 : 25) * 64 * 64 * 2);
        l->bias[i] = zeros(512), l->gamma[i] = zeros(512), l->beta[i] = zeros(512);
    }
    return tt_k_embed_f16(&e, TT_MMA_K8, NULL);
}

static int run_normed(void)
{
    const struct tt_k_product_f16 p = {.h = zeros(48 * 256 * 4),
                                       .gamma = zeros(1024),
                                       .beta = zeros(1024),
                                       .weight = zeros(256 * 768 * 2),
                                       .bias = zeros(768 * 4),
                                       .half = zeros(48 * 768 * 2),
                                       .width = 256,
                                       .rows = 48,
                                       .k = 256,
                                       .n = 768};
    return tt_k_product_f16(&p, TT_MMA_K8, NULL);
}

static int run_mlp(int width)
{
    const size_t w = (size_t)width;
    const struct tt_k_mlp_f16 m = {.h = zeros(48 * w * 4),
                                   .gamma = zeros(w * 4),
                                   .beta = zeros(w * 4),
                                   .up = zeros(w * w * 8),
                                   .down = zeros(w * w * 8),
                                   .up_bias = zeros(w * 16),
                                   .down_bias = zeros(w * 4),
                                   .rows = 48,
                                   .width = width};
    return tt_k_mlp_f16(&m, TT_MMA_K8, NULL);
}

static int run_kernel(enum mix which)
{
    switch (which) {
    case MIX_CONV_64:
        return run_conv(64, TT_CONV_256x64_C32);
    case MIX_CONV_128:
        return run_conv(128, TT_CONV_128x128_C32);
    case MIX_EMBED_256:
        return run_embed();
    case MIX_NORMED_256:
        return run_normed();
    case MIX_MLP_256:
        return run_mlp(256);
    default:
        return run_mlp(384);
    }
}

static int run_mix(enum mix which)
{
    enum { BLOCKS = 2 };
    const struct mix_shape s = mix_shape(which);
    const size_t words = (size_t)s.threads * 16;
    const struct mix_run run = {.blocks = BLOCKS,
                                .weight = zeros(1 << 18),
                                .weight_bytes = 1 << 18,
                                .in = zeros((size_t)((BLOCKS - 1) * s.region + s.reads) * words),
                                .out = zeros((size_t)(BLOCKS * s.writes) * words),
                                .sink = zeros(4)};
    return mix_run(which, &run, 1, TT_MMA_K8, NULL);
}

/* What a warp has done. */
static struct emulate_counts of_a_warp(void)
{
    struct emulate_counts c = emulate_counts;
    c.products /= c.lanes, c.ldmatrix /= c.lanes, c.weights /= c.lanes;
    c.shuffles /= c.lanes, c.transposes /= c.lanes;
    return c;
}

/* Whether the mix has no more, and at least `tenths` of it. */
static int alike(long kernel, long mix, int tenths)
{
    return mix <= kernel && 10 * mix >= tenths * kernel;
}

int check_mixes(void)
{
    int unlike = 0;
    for (int i = 0; i < MIXES; i++) {
        memset(&emulate_counts, 0, sizeof(emulate_counts));
        kern_status(run_kernel((enum mix)i), "kernel");
        const struct emulate_counts k = of_a_warp();
        memset(&emulate_counts, 0, sizeof(emulate_counts));
        kern_status(run_mix((enum mix)i), "mix");
        const struct emulate_counts m = of_a_warp();
        /* the embeddings' weights of the first convolution are ordinary loads, which the emulator does not
         * count */
        const int like = alike(k.products, m.products, 9) && alike(k.ldmatrix, m.ldmatrix, 9) &&
                         (i == MIX_EMBED_256 || alike(k.weights, m.weights, 9)) &&
                         alike(k.shuffles, m.shuffles, 5) && alike(k.transposes, m.transposes, 5);
        printf("%s mix of %-30s a warp: %ld products (kernel %ld), %ld ldmatrix (%ld), %ld weights (%ld), "
               "%ld shuffles "
               "(%ld), %ld transpositions (%ld)\n",
               like ? "ok  " : "FAIL", mix_shape((enum mix)i).kernel, m.products, k.products, m.ldmatrix,
               k.ldmatrix, m.weights, k.weights, m.shuffles, k.shuffles, m.transposes, k.transposes);
        unlike += !like;
        kern_free_all();
    }
    return unlike;
}

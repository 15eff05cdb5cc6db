/* tests/kernels/check_encoder.c: small's embeddings on tensor cores against plain C. */
#include "tests/kernels/checks.h"
#include "tests/kernels/kern.h"
#include "tests/kernels/reference.h"

#include "cuda/pack.h"

#include <math.h>
#include <string.h>

/* norm(x) with a ReLU, rounded as the kernel's FP16 operands or outputs are not: in FP64. */
static void encode_reference(double *out, const float *volume, const float *w1, const float *w2,
                             const float *bias[2], const float *gamma[2], const float *beta[2], int patches)
{
    double *map = kern_zeros(sizeof(double) * patches * 4 * 64),
           *norm = kern_zeros(sizeof(double) * patches * 128 * 2);
    float *map_f = kern_zeros(sizeof(float) * patches * 4 * 64),
          *norm_f = kern_zeros(sizeof(float) * patches * 128 * 2);
    const struct ref_conv first = {.in = volume,
                                   .weight = w1,
                                   .bias = bias[0],
                                   .frames = patches,
                                   .in_size = 7,
                                   .in_c = 49,
                                   .out_size = 2,
                                   .out_c = 64,
                                   .kernel = 5,
                                   .stride = 4,
                                   .pad = 1};
    ref_conv(map, &first);
    for (int i = 0; i < patches * 4 * 64; i++)
        map_f[i] = (float)map[i];
    ref_group_norm(norm, map_f, gamma[0], beta[0], patches, 4, 64, 1e-5);
    for (int i = 0; i < patches * 64 * 2; i++)
        norm_f[i] = (float)norm[i];
    const struct ref_conv second = {.in = map_f,
                                    .norm = norm_f,
                                    .weight = w2,
                                    .bias = bias[1],
                                    .frames = patches,
                                    .in_size = 2,
                                    .in_c = 64,
                                    .out_size = 1,
                                    .out_c = 128,
                                    .kernel = 2,
                                    .stride = 2,
                                    .round16 = 1};
    double *last = kern_zeros(sizeof(double) * patches * 128);
    ref_conv(last, &second);
    for (int i = 0; i < patches * 128; i++)
        map_f[i] = (float)last[i];
    ref_group_norm(norm, map_f, gamma[1], beta[1], patches, 1, 128, 1e-5);
    for (int i = 0; i < patches * 128; i++)
        out[i] = fmax(last[i] * norm[2 * i] + norm[2 * i + 1], 0.0);
}

/* ---- correlation and encoder in one kernel ---- */

/* A level's inputs; embeddings of all queries and frames go to want + column. */
static void embed_level(struct tt_k_embed_level *level, double *want, int column, int size, int channels,
                        const float *state, int queries, int frames, int row, int out_row)
{
    const int n = queries * frames;
    const size_t grid_n = (size_t)frames * size * size * channels;
    const float amplitude = sqrtf(3.0f / (float)channels); /* features of about length one */
    float *grid = kern_random(grid_n, amplitude), *support = kern_random((size_t)queries * row, amplitude);
    uint16_t *grid_h = kern_to_half(grid, grid_n);
    tt_pack_swap_features_f16(grid_h, grid_n / channels, channels);
    float *w1 = kern_random(64 * 49 * 25, 0.3f), *w2 = kern_random(128 * 64 * 4, 0.06f);
    const float *bias[2] = {kern_random(64, 0.5f), kern_random(128, 0.5f)};
    const float *gamma[2] = {kern_random(64, 1.0f), kern_random(128, 1.0f)};
    const float *beta[2] = {kern_random(64, 0.5f), kern_random(128, 0.5f)};
    uint16_t *packed = kern_zeros(256 * 128 * 2);
    float *matrix = kern_zeros(sizeof(float) * 256 * 128);

    *level = (struct tt_k_embed_level){.grid = kern_upload(grid_h, grid_n * 2),
                                       .support = kern_upload(support, sizeof(float) * queries * row),
                                       .size = size,
                                       .channels = channels,
                                       .scale = (float)size / 256.0f};
    kern_to_half(support, (size_t)queries * row);
    kern_to_half(w1, 64 * 49 * 25);
    kern_to_half(w2, 128 * 64 * 4);
    double one[49 * 49];
    float *volume = kern_zeros(sizeof(float) * 2 * n * 49 * 49);
    for (int i = 0; i < n; i++) {
        ref_correlate(one, grid + (size_t)(i % frames) * size * size * channels,
                      support + (size_t)(i / frames) * row, (double)state[4 * i] * size / 256.0,
                      (double)state[4 * i + 1] * size / 256.0, size, channels);
        for (int a = 0; a < 49; a++)
            for (int b = 0; b < 49; b++) {
                volume[((size_t)i * 49 + a) * 49 + b] = (float)one[a * 49 + b];
                volume[((size_t)(n + i) * 49 + b) * 49 + a] = (float)one[a * 49 + b];
            }
    }
    double *reference = kern_zeros(sizeof(double) * 2 * n * 128);
    encode_reference(reference, volume, w1, w2, bias, gamma, beta, 2 * n);
    for (int i = 0; i < 2 * n; i++)
        for (int c = 0; c < 128; c++)
            want[(size_t)(i % n) * out_row + column + i / n * 128 + c] = reference[(size_t)i * 128 + c];
    for (int o = 0; o < 2; o++) {
        const size_t bytes = sizeof(uint16_t) * (o ? TT_EMBED_HALFS_1 : TT_EMBED_HALFS_0);
        uint16_t *first = kern_zeros(bytes);
        tt_pack_embed_f16(first, w1, o);
        level->weight[o] = kern_upload(first, bytes);
        level->bias[o] = kern_upload(bias[o], sizeof(float) * (o ? 128 : 64));
        level->gamma[o] = kern_upload(gamma[o], sizeof(float) * (o ? 128 : 64));
        level->beta[o] = kern_upload(beta[o], sizeof(float) * (o ? 128 : 64));
    }
    for (int o = 0; o < 128; o++)
        for (int i = 0; i < 64; i++)
            for (int t = 0; t < 4; t++)
                matrix[(t * 64 + i) * 128 + o] = w2[(o * 64 + i) * 4 + t];
    tt_pack_left_f16(packed, matrix, 256, 128);
    level->weight2 = kern_upload(packed, 256 * 128 * 2);
}

static void check_embed_shape(int queries, int frames, int levels, enum tt_k_mma mma)
{
    enum { COLUMN = 2, OUT_ROW = COLUMN + 3 * 256 + 4, ROW_FLOATS = 49 * 256 + 8 };
    static const int sizes[] = {32, 64, 128}, channels[] = {256, 128, 64};
    const int n = queries * frames;
    float *state = kern_random((size_t)n * 4, 140.0f); /* some beyond the border */
    const float fixed[] = {0, 0, 256, 256, 0, 255.9f, 300, -40, 128, 128, 2, 130, -3000, 1e9f};
    for (int i = 0; i < n; i++)
        for (int k = 0; k < 2; k++)
            state[4 * i + k] = 2 * i + k < 14 ? fixed[2 * i + k] : state[4 * i + k] + 128.0f;
    float *before = kern_random((size_t)n * OUT_ROW, 1.0f);
    const uint16_t *before_h = kern_to_half(before, (size_t)n * OUT_ROW);
    double *want = kern_zeros(sizeof(double) * n * OUT_ROW);
    for (int i = 0; i < n * OUT_ROW; i++)
        want[i] = before[i];
    struct kern_out out = kern_output(sizeof(uint16_t) * n * OUT_ROW, before_h);
    struct tt_k_embed_f16 e = {.state = kern_upload(state, sizeof(float) * n * 4),
                               .levels = levels,
                               .queries = queries,
                               .frames = frames,
                               .row = ROW_FLOATS,
                               .out_row = OUT_ROW};
    for (int i = 0; i < levels; i++) {
        const int at = i + 3 - levels;
        embed_level(&e.level[i], want, COLUMN + i * 256, sizes[at], channels[at], state, queries, frames,
                    ROW_FLOATS, OUT_ROW);
        e.level[i].out = (uint16_t *)out.device + COLUMN + i * 256;
    }
    KERN_RUN(out, tt_k_embed_f16(&e, mma, NULL));
    kern_verdict(&out, want, (size_t)n * OUT_ROW, 1, 1e-3, 1e-2,
                 "embed_f16 k%d %d queries %d frames %d levels", mma == TT_MMA_K16 ? 16 : 8, queries, frames,
                 levels);
    e.level[0].channels = 96;
    kern_refused(tt_k_embed_f16(&e, mma, NULL), "embed_f16 of 96 channels");
    kern_free_all();
}

/* Few, for the emulator; all the rest of the shapes. */
void check_embed_small_f16(enum tt_k_mma mma)
{
    check_embed_shape(1, 11, 2, mma);
}

void check_embed_f16(enum tt_k_mma mma)
{
    check_embed_shape(3, 29, 3, mma);
    check_embed_shape(2, 47, 3, mma);
    check_embed_shape(5, 3, 1, mma);
    check_embed_shape(1, 24, 2, mma);
}

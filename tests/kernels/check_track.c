/* tests/kernels/check_track.c: supports, cost volume, correlation and mixer kernels against plain C. */
#include "tests/kernels/checks.h"
#include "tests/kernels/kern.h"
#include "tests/kernels/reference.h"

#include "cuda/pack.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* Query points in clip pixels: corners, borders, beyond them, pixel centres, anywhere. */
static float *random_points(int n)
{
    static const float fixed[] = {0, 0, 256, 256, 0, 255.9f, 300, -40, 128, 128, 2, 130, 127.5f, 3.5f};
    float *xy = kern_random((size_t)n * 2, 128.0f);
    for (int i = 0; i < n * 2; i++)
        xy[i] = i < (int)(sizeof(fixed) / sizeof(*fixed)) ? fixed[i] : xy[i] + 128.0f;
    return xy;
}

static void check_support_size(int size, int channels, int half)
{
    enum { QUERIES = 12, FRAMES = 3 };
    const int row = 49 * channels + 64;
    const size_t grid_n = (size_t)FRAMES * size * size * channels;
    float *grid = kern_random(grid_n, 1.0f);
    uint16_t *grid_h = half ? kern_to_half(grid, grid_n) : NULL;
    if (half)
        tt_pack_swap_features_f16(grid_h, grid_n / channels, channels);
    const float *xy = random_points(QUERIES);
    int frame[QUERIES];
    for (int i = 0; i < QUERIES; i++)
        frame[i] = i % FRAMES;
    double *tight = kern_zeros(sizeof(double) * QUERIES * 49 * channels);
    ref_support(tight, grid, frame, xy, QUERIES, size, channels, size / 256.0);
    float *before = kern_random((size_t)QUERIES * row, 1.0f);
    double *want = kern_zeros(sizeof(double) * QUERIES * row);
    for (int i = 0; i < QUERIES * row; i++)
        want[i] = i % row < 49 * channels ? tight[(size_t)(i / row) * 49 * channels + i % row] : before[i];
    const void *grid_d = half ? kern_upload(grid_h, grid_n * 2) : kern_upload(grid, grid_n * sizeof(float));
    const int *frame_d = kern_upload(frame, sizeof(frame));
    const float *xy_d = kern_upload(xy, sizeof(float) * QUERIES * 2);
    struct kern_out out = kern_output(sizeof(float) * QUERIES * row, before);
    const struct tt_k_support support = {.grid = grid_d,
                                         .frame = frame_d,
                                         .xy = xy_d,
                                         .out = out.device,
                                         .queries = QUERIES,
                                         .row = row,
                                         .frames = FRAMES,
                                         .size = size,
                                         .channels = channels,
                                         .scale = (float)size / 256.0f};
    KERN_RUN(out, half ? tt_k_support_f16(&support, NULL) : tt_k_support_f32(&support, NULL));
    kern_verdict(&out, want, (size_t)QUERIES * row, 0, 2e-6, 5e-5, "support %s %d:%d", half ? "f16" : "f32",
                 size, channels);
    kern_free_all();
}

void check_support(void)
{
    check_support_size(32, 256, 0);
    check_support_size(64, 128, 0);
    check_support_size(128, 64, 1);
}

/* n pixels of length one. */
static float *random_features(size_t n, int channels)
{
    float *x = kern_random(n * channels, 1.0f);
    for (size_t p = 0; p < n; p++) {
        double sum = 0.0;
        for (int c = 0; c < channels; c++)
            sum += (double)x[p * channels + c] * x[p * channels + c];
        for (int c = 0; c < channels; c++)
            x[p * channels + c] /= (float)sqrt(sum);
    }
    return x;
}

/* In FP32, with the arguments of tt_k_cost_f16. */
static int cost_f32(const struct tt_k_cost *c, enum tt_k_mma mma, void *stream)
{
    (void)mma;
    return tt_k_cost_f32(c, stream);
}

static void check_cost_kind(int half, enum tt_k_mma mma,
                            int (*cost)(const struct tt_k_cost *, enum tt_k_mma, void *))
{
    enum { QUERIES = 19, FRAMES = 3, ROW = 400 };
    float *lo = random_features((size_t)FRAMES * 1024, 256),
          *hi = random_features((size_t)FRAMES * 4096, 128);
    uint16_t *lo_h = half ? kern_to_half(lo, (size_t)FRAMES * 1024 * 256) : NULL;
    uint16_t *hi_h = half ? kern_to_half(hi, (size_t)FRAMES * 4096 * 128) : NULL;
    if (half) {
        tt_pack_swap_features_f16(lo_h, FRAMES * 1024, 256);
        tt_pack_swap_features_f16(hi_h, FRAMES * 4096, 128);
    }
    float *q = kern_random(QUERIES * ROW, 0.1f), *xy = random_points(QUERIES);
    /* queries that match some pixel; the first at corners and borders, where the window is cut */
    static const int at[] = {0, 4095, 63, 2080, 1000, 4032, 31 * 64 + 63, 62 * 64 + 31};
    for (int i = 0; i < QUERIES; i++) {
        const int pixel = i < 8 ? at[i] : i * 977 % 4096, y = pixel / 64, x = pixel % 64, f = i % FRAMES;
        memcpy(q + i * ROW, lo + ((size_t)f * 1024 + y / 2 * 32 + x / 2) * 256, 256 * sizeof(float));
        memcpy(q + i * ROW + 256, hi + ((size_t)f * 4096 + pixel) * 128, 128 * sizeof(float));
    }
    float *conv = kern_random(18, 0.3f), *occ_w = kern_random(12, 1.0f), *occ_b = kern_random(2, 1.0f);
    for (int i = 0; i < 18; i++)
        conv[i] = fabsf(conv[i]);
    static const int in_frame[] = {-1, 0, 2, -1, 1};
    int query_frame[QUERIES];
    for (int i = 0; i < QUERIES; i++)
        query_frame[i] = in_frame[i % 5];
    double *want = kern_zeros(sizeof(double) * QUERIES * FRAMES * 4);
    for (int i = 0; i < QUERIES; i++)
        for (int f = 0; f < FRAMES; f++) {
            double *w = want + (i * FRAMES + f) * 4;
            ref_cost(w, lo + (size_t)f * 1024 * 256, hi + (size_t)f * 4096 * 128, q + i * ROW,
                     q + i * ROW + 256, conv, occ_w, occ_b);
            if (query_frame[i] == f)
                w[0] = xy[2 * i], w[1] = xy[2 * i + 1];
        }
    const float *q_d = kern_upload(q, sizeof(float) * QUERIES * ROW);
    struct kern_out out = kern_output(sizeof(float) * QUERIES * FRAMES * 4, NULL);
    const struct tt_k_cost c = {.lowres = half ? kern_upload(lo_h, FRAMES * 1024 * 256 * 2)
                                               : kern_upload(lo, FRAMES * 1024 * 256 * 4),
                                .hires = half ? kern_upload(hi_h, FRAMES * 4096 * 128 * 2)
                                              : kern_upload(hi, FRAMES * 4096 * 128 * 4),
                                .lowres_q = q_d,
                                .hires_q = q_d + 256,
                                .conv = kern_upload(conv, 18 * 4),
                                .occ_w = kern_upload(occ_w, 12 * 4),
                                .occ_b = kern_upload(occ_b, 8),
                                .query_frame = kern_upload(query_frame, sizeof(query_frame)),
                                .query_xy = kern_upload(xy, QUERIES * 8),
                                .out = out.device,
                                .queries = QUERIES,
                                .frames = FRAMES,
                                .row = ROW};
    KERN_RUN(out, cost(&c, mma, NULL));
    kern_verdict(&out, want, QUERIES * FRAMES * 4, 0, 1e-5, 1e-4, "cost %s",
                 half ? mma == TT_MMA_K16 ? "f16 k16" : "f16 k8" : "f32");
    kern_free_all();
}

void check_cost(void)
{
    check_cost_kind(0, TT_MMA_K8, cost_f32);
}

void check_cost_f16(enum tt_k_mma mma)
{
    check_cost_kind(1, mma, tt_k_cost_f16);
}

static void check_correlate_size(int size, int channels)
{
    enum { QUERIES = 5, FRAMES = 3, N = QUERIES * FRAMES, COLS = TT_K_VOLUME_ROW };
    const int row = 49 * channels;
    const float *grid = kern_random((size_t)FRAMES * size * size * channels, 1.0f);
    const float *support = kern_random((size_t)QUERIES * row, 1.0f), *xy = random_points(N);
    float *state = kern_random(N * 4, 1.0f);
    for (int i = 0; i < N; i++)
        state[4 * i] = xy[2 * i], state[4 * i + 1] = xy[2 * i + 1];
    double *want = kern_zeros(sizeof(double) * 2 * N * 49 * COLS), one[49 * 49];
    for (int i = 0; i < N; i++) {
        ref_correlate(one, grid + (size_t)(i % FRAMES) * size * size * channels,
                      support + (size_t)(i / FRAMES) * row, xy[2 * i] * (size / 256.0),
                      xy[2 * i + 1] * (size / 256.0), size, channels);
        for (int p = 0; p < 49; p++)
            for (int s = 0; s < 49; s++) {
                want[((size_t)i * 49 + p) * COLS + s] = one[p * 49 + s];
                want[(((size_t)N + i) * 49 + s) * COLS + p] = one[p * 49 + s];
            }
    }
    const float *grid_d = kern_upload(grid, sizeof(float) * FRAMES * size * size * channels);
    const float *support_d = kern_upload(support, sizeof(float) * QUERIES * row);
    const float *state_d = kern_upload(state, sizeof(float) * N * 4);
    struct kern_out out = kern_output(sizeof(float) * 2 * N * 49 * COLS, NULL);
    KERN_RUN(out, tt_k_correlate_f32(grid_d, support_d, state_d, out.device, QUERIES, FRAMES, row, size,
                                     channels, (float)size / 256.0f, NULL));
    kern_verdict(&out, want, (size_t)2 * N * 49 * COLS, 0, 1e-5, 1e-4, "correlate_f32 %d:%d", size, channels);
    kern_free_all();
}

void check_correlate(void)
{
    check_correlate_size(32, 256);
    check_correlate_size(64, 128);
    check_correlate_size(128, 64);
}

void check_tokens(void)
{
    enum { QUERIES = 3, FRAMES = 8, N = QUERIES * FRAMES };
    const float *state = kern_random(N * 4, 100.0f), *before = kern_random(N * TT_K_TOKEN, 1.0f);
    double *want = kern_zeros(sizeof(double) * N * TT_K_TOKEN);
    for (int i = 0; i < N * TT_K_TOKEN; i++)
        want[i] = before[i];
    ref_tokens(want, state, QUERIES, FRAMES, TT_K_TOKEN);
    const float *state_d = kern_upload(state, sizeof(float) * N * 4);
    struct kern_out out = kern_output(sizeof(float) * N * TT_K_TOKEN, before);
    KERN_RUN(out, tt_k_tokens_f32(state_d, out.device, QUERIES, FRAMES, NULL));
    kern_verdict(&out, want, N * TT_K_TOKEN, 0, 2e-6, 2e-4, "tokens_f32");

    float *init = kern_random(N * 4, 1.0f);
    for (int i = 0; i < N; i += 2)
        init[4 * i] = NAN;
    for (int i = 0; i < N * 4; i++)
        want[i] = i / 4 % 2 ? init[i] : state[i];
    const int frame[QUERIES] = {1, -1, 2}; /* where an initialisation stands, elsewhere, where none does */
    const float *xy = kern_random(2 * QUERIES, 100.0f);
    want[4] = xy[0], want[5] = xy[1];
    const int *frame_d = kern_upload(frame, sizeof(frame));
    const float *xy_d = kern_upload(xy, sizeof(float) * 2 * QUERIES);
    const float *init_d = kern_upload(init, sizeof(float) * N * 4);
    struct kern_out replaced = kern_output(sizeof(float) * N * 4, state);
    KERN_RUN(replaced, tt_k_state_init(init_d, frame_d, xy_d, replaced.device, QUERIES, FRAMES, NULL));
    kern_verdict(&replaced, want, N * 4, 0, 0.0, 0.0, "state_init");
    kern_free_all();
}

static void check_head_width(int rows, int width)
{
    const float *h = kern_random((size_t)rows * width, 2.0f), *gamma = kern_random((size_t)width, 1.0f);
    const float *beta = kern_random((size_t)width, 1.0f), *weight = kern_random((size_t)width * 4, 1.0f);
    const float *bias = kern_random(4, 1.0f), *state = kern_random((size_t)rows * 4, 100.0f);
    double *z = kern_zeros(sizeof(double) * rows * width), *want = kern_zeros(sizeof(double) * rows * 4);
    ref_layer_norm(z, h, gamma, beta, rows, width);
    for (int i = 0; i < rows * 4; i++) {
        want[i] = (double)state[i] + bias[i % 4];
        for (int c = 0; c < width; c++)
            want[i] += z[(size_t)(i / 4) * width + c] * weight[i % 4 * width + c];
    }
    const float *h_d = kern_upload(h, sizeof(float) * rows * width);
    const float *gamma_d = kern_upload(gamma, sizeof(float) * width);
    const float *beta_d = kern_upload(beta, sizeof(float) * width);
    const float *weight_d = kern_upload(weight, sizeof(float) * width * 4);
    const float *bias_d = kern_upload(bias, 16);
    struct kern_out out = kern_output(sizeof(float) * rows * 4, state);
    KERN_RUN(out, tt_k_head_f32(h_d, gamma_d, beta_d, weight_d, bias_d, out.device, rows, width, NULL));
    kern_verdict(&out, want, (size_t)rows * 4, 0, 1e-6, 1e-5, "head_f32 %dx%d", rows, width);
    kern_free_all();
}

void check_head(void)
{
    check_head_width(47, 256);
    check_head_width(9, 384);
}

static void check_attention_shape(int queries, int frames, int heads)
{
    const size_t n = (size_t)queries * frames * heads * 64;
    const float *qkv = kern_random(n * 3, 2.0f);
    double *want = kern_zeros(n * sizeof(*want));
    ref_attention(want, qkv, queries, frames, heads);
    const float *qkv_d = kern_upload(qkv, n * 12);
    struct kern_out out = kern_output(n * 4, NULL);
    KERN_RUN(out, tt_k_attention_f32(qkv_d, out.device, queries, frames, heads, NULL));
    kern_verdict(&out, want, n, 0, 2e-6, 2e-5, "attention f32 %d queries %d frames %d heads", queries, frames,
                 heads);
    kern_free_all();
}

void check_attention(void)
{
    check_attention_shape(3, 47, 4);
    check_attention_shape(2, 64, 6);
    check_attention_shape(2, 1, 4);
}

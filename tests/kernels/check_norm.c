/* tests/kernels/check_norm.c: instance, group, layer and L2 norms against plain C. */
#include "tests/kernels/checks.h"
#include "tests/kernels/kern.h"
#include "tests/kernels/reference.h"

#include <math.h>

static int instance_norm(const void *in, int half, float *partial, const float *gamma, const float *beta,
                         float *norm, int frames, int pixels, int channels)
{
    const int chunks = (pixels + TT_K_NORM_CHUNK - 1) / TT_K_NORM_CHUNK;
    const int status = half ? tt_k_norm_partial_f16(in, partial, frames, pixels, channels, NULL)
                            : tt_k_norm_partial_f32(in, partial, frames, pixels, channels, NULL);
    return status
               ? status
               : tt_k_norm_finish(partial, gamma, beta, norm, frames, chunks, pixels, channels, 1e-5f, NULL);
}

static void check_instance(int frames, int pixels, int channels, int half)
{
    const size_t n = (size_t)frames * pixels * channels;
    float *in = kern_random(n, 1.0f);
    for (size_t i = 0; i < n; i++)
        in[i] += 2.0f; /* a mean that is large beside the deviation */
    const uint16_t *in_h = half ? kern_to_half(in, n) : NULL;
    const float *gamma = kern_random((size_t)channels, 1.0f), *beta = kern_random((size_t)channels, 1.0f);
    double *want = kern_zeros(sizeof(*want) * frames * channels * 2);
    ref_instance_norm(want, in, gamma, beta, frames, pixels, channels, 1e-5);
    const int chunks = (pixels + TT_K_NORM_CHUNK - 1) / TT_K_NORM_CHUNK;
    float *partial = kern_device(sizeof(float) * frames * chunks * channels * 2);
    const void *in_d = half ? kern_upload(in_h, n * 2) : kern_upload(in, n * sizeof(float));
    const float *gamma_d = kern_upload(gamma, sizeof(float) * channels);
    const float *beta_d = kern_upload(beta, sizeof(float) * channels);
    struct kern_out out = kern_output(sizeof(float) * frames * channels * 2, NULL);
    KERN_RUN(out, instance_norm(in_d, half, partial, gamma_d, beta_d, out.device, frames, pixels, channels));
    kern_verdict(&out, want, (size_t)frames * channels * 2, 0, 1e-5, 1e-4, "instance norm %s %dx%dx%d",
                 half ? "f16" : "f32", frames, pixels, channels);
    kern_free_all();
}

static void check_group(int patches, int positions, int channels)
{
    const size_t n = (size_t)patches * positions * channels;
    const float *in = kern_random(n, 2.0f), *gamma = kern_random((size_t)channels, 1.0f);
    const float *beta = kern_random((size_t)channels, 1.0f);
    double *want = kern_zeros(sizeof(*want) * patches * channels * 2);
    ref_group_norm(want, in, gamma, beta, patches, positions, channels, 1e-5);
    const float *in_d = kern_upload(in, n * sizeof(float));
    const float *gamma_d = kern_upload(gamma, sizeof(float) * channels);
    const float *beta_d = kern_upload(beta, sizeof(float) * channels);
    struct kern_out out = kern_output(sizeof(float) * patches * channels * 2, NULL);
    KERN_RUN(out, tt_k_group_norm_f32(in_d, gamma_d, beta_d, out.device, patches, positions, channels, 1e-5f,
                                      NULL));
    kern_verdict(&out, want, (size_t)patches * channels * 2, 0, 2e-6, 5e-5, "group norm %dx%dx%d", patches,
                 positions, channels);
    kern_free_all();
}

/* Two groups of patches side by side in rows of 864. */
static void check_relu_mean(int patches, int positions, int channels)
{
    enum { ROW = 864 };
    const size_t n = (size_t)patches * 2 * positions * channels;
    const float *in = kern_random(n, 2.0f), *norm = kern_random((size_t)patches * 4 * channels, 1.0f);
    float *before = kern_random((size_t)patches * ROW, 1.0f);
    double *want = kern_zeros(sizeof(*want) * patches * ROW);
    for (int i = 0; i < patches * ROW; i++)
        want[i] = before[i];
    for (int p = 0; p < 2 * patches; p++)
        for (int c = 0; c < channels; c++) {
            double sum = 0.0;
            for (int k = 0; k < positions; k++)
                sum += fmax((double)in[((size_t)p * positions + k) * channels + c] *
                                    norm[(p * channels + c) * 2] +
                                norm[(p * channels + c) * 2 + 1],
                            0.0);
            want[p % patches * ROW + p / patches * channels + c] = sum / positions;
        }
    const float *in_d = kern_upload(in, n * sizeof(float));
    const float *norm_d = kern_upload(norm, sizeof(float) * patches * 4 * channels);
    struct kern_out out = kern_output(sizeof(float) * patches * ROW, before);
    KERN_RUN(out, tt_k_relu_mean_f32(in_d, norm_d, out.device, 2 * patches, patches, ROW, positions, channels,
                                     NULL));
    kern_verdict(&out, want, (size_t)patches * ROW, 0, 1e-6, 1e-5, "relu mean %dx%dx%d", 2 * patches,
                 positions, channels);
    kern_free_all();
}

static void check_l2(int pixels, int channels, int half)
{
    const size_t n = (size_t)pixels * channels;
    float *in = kern_random(n, 3.0f);
    for (int c = 0; c < channels; c++)
        in[c] = 0.0f; /* a pixel without features stays zero */
    const uint16_t *in_h = half ? kern_to_half(in, n) : NULL;
    double *want = kern_zeros(n * sizeof(*want));
    for (int p = 0; p < pixels; p++) {
        double sum = 0.0;
        for (int c = 0; c < channels; c++)
            sum += (double)in[(size_t)p * channels + c] * in[(size_t)p * channels + c];
        for (int c = 0; c < channels; c++)
            want[(size_t)p * channels + (half && p % 2 ? c ^ 32 : c)] =
                in[(size_t)p * channels + c] / sqrt(fmax(sum, 1e-12));
    }
    struct kern_out out = kern_output(n * (half ? 2 : 4), NULL);
    const void *in_d = half ? kern_upload(in_h, n * 2) : kern_upload(in, n * sizeof(float));
    KERN_RUN(out, half ? tt_k_l2_f16(in_d, out.device, pixels, channels, NULL)
                       : tt_k_l2_f32(in_d, out.device, pixels, channels, NULL));
    kern_verdict(&out, want, n, half, half ? 5e-4 : 1e-6, half ? 5e-3 : 1e-5, "l2 %s %dx%d",
                 half ? "f16" : "f32", pixels, channels);
    kern_free_all();
}

static void check_layer(int rows, int width)
{
    const size_t n = (size_t)rows * width;
    const float *in = kern_random(n, 3.0f), *gamma = kern_random((size_t)width, 1.0f);
    const float *beta = kern_random((size_t)width, 1.0f);
    double *want = kern_zeros(n * sizeof(*want));
    ref_layer_norm(want, in, gamma, beta, rows, width);
    const float *in_d = kern_upload(in, n * sizeof(float));
    const float *gamma_d = kern_upload(gamma, sizeof(float) * width);
    const float *beta_d = kern_upload(beta, sizeof(float) * width);
    struct kern_out out = kern_output(n * 4, NULL);
    KERN_RUN(out, tt_k_layer_norm_f32(in_d, gamma_d, beta_d, out.device, rows, width, NULL));
    kern_verdict(&out, want, n, 0, 1e-6, 1e-5, "layer norm f32 %dx%d", rows, width);
    kern_free_all();
}

void check_norms(void)
{
    check_instance(3, 1024, 64, 0);
    check_instance(2, 300, 128, 0);
    check_instance(1, 7, 256, 0);
    check_instance(3, 1024, 64, 1);
    check_group(7, 4, 64);
    check_group(5, 16, 64);
    check_group(33, 1, 128);
    check_relu_mean(9, 4, 128);
    check_relu_mean(3, 1, 128);
    for (int half = 0; half < 2; half++) {
        check_l2(1001, 64, half);
        check_l2(333, 128, half);
        check_l2(77, 256, half);
    }
    check_layer(47, 256);
    check_layer(5, 384);
}

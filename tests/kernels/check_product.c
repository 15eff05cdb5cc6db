/* tests/kernels/check_product.c: the mixer's products with what is fused into them against plain C. */
#include "tests/kernels/checks.h"
#include "tests/kernels/kern.h"
#include "tests/kernels/reference.h"

#include "cuda/pack.h"

#include <math.h>

/* normed: out = layer_norm(h) · weight + bias; otherwise out = h · weight + bias. */
static void check_product(int width, int rows, int k, int n, int normed, enum tt_k_mma mma)
{
    const size_t out_n = (size_t)rows * n, in_n = (size_t)rows * k;
    float *a = kern_random(in_n, normed ? 3.0f : 1.0f);
    float *w = kern_random((size_t)k * n, 1.0f / sqrtf((float)k));
    const float *gamma = kern_random((size_t)k, 1.0f), *beta = kern_random((size_t)k, 1.0f);
    const float *bias = kern_random((size_t)n, 2.0f);
    double *left = kern_zeros(in_n * sizeof(*left)), *want = kern_zeros(out_n * sizeof(*want));
    const float *a_f = kern_upload(a, in_n * 4);
    kern_to_half(w, (size_t)k * n);
    if (normed) {
        ref_layer_norm(left, a, gamma, beta, rows, k);
        for (size_t i = 0; i < in_n; i++)
            a[i] = (float)left[i];
    }
    const uint16_t *a_h = kern_upload(kern_to_half(a, in_n), in_n * 2);
    for (int i = 0; i < rows; i++)
        for (int j = 0; j < n; j++) {
            double sum = bias[j];
            for (int l = 0; l < k; l++)
                sum += (double)a[(size_t)i * k + l] * w[(size_t)l * n + j];
            want[(size_t)i * n + j] = sum;
        }
    uint16_t *packed = kern_zeros((size_t)k * n * 2);
    tt_pack_matrix_f16(packed, w, k, n);
    struct kern_out out = kern_output(out_n * (normed ? 2 : 4), NULL);
    const struct tt_k_product_f16 p = {.h = normed ? a_f : NULL,
                                       .gamma = kern_upload(gamma, sizeof(float) * k),
                                       .beta = kern_upload(beta, sizeof(float) * k),
                                       .a = a_h,
                                       .weight = kern_upload(packed, (size_t)k * n * 2),
                                       .bias = kern_upload(bias, sizeof(float) * n),
                                       .half = normed ? out.device : NULL,
                                       .out = normed ? NULL : out.device,
                                       .width = width,
                                       .rows = rows,
                                       .k = k,
                                       .n = n};
    KERN_RUN(out, tt_k_product_f16(&p, mma, NULL));
    /* Tensor cores cut their sums off: half a unit of FP32 on average for each of the steps, which begin with
     * the bias. FP16 results, and rows rounded after their norm, are half a unit of FP16 off. */
    const double cut = 0x1p-24 * (k / (mma == TT_MMA_K16 ? 16 : 8)) + 2e-6;
    kern_verdict(&out, want, out_n, normed, normed ? 5e-4 : cut, normed ? 5e-3 : 10 * cut,
                 "product_f16 k%d %dx%dx%d%s", mma == TT_MMA_K16 ? 16 : 8, rows, k, n,
                 normed ? " normed" : "");
    kern_free_all();
}

void check_product_f16(enum tt_k_mma mma)
{
    check_product(256, 101, 256, 768, 1, mma);
    check_product(256, 48, 256, 256, 1, mma);
    check_product(256, 101, 864, 256, 0, mma);
    check_product(256, 1, 32, 256, 0, mma);
    check_product(384, 101, 384, 1152, 1, mma);
    check_product(384, 48, 384, 384, 1, mma);
    check_product(384, 101, 864, 384, 0, mma);
    check_product(384, 1, 32, 384, 0, mma);
}

/* values rounded to FP16, from float64. */
static void round_half(double *x, size_t n)
{
    for (size_t i = 0; i < n; i++)
        x[i] = tt_float_from_half(tt_half_from_float((float)x[i]));
}

/* out [rows][n] = in [rows][k] · w [k][n] + bias */
static void multiply(double *out, const double *in, const float *w, const float *bias, int rows, int k, int n)
{
    for (int i = 0; i < rows; i++)
        for (int j = 0; j < n; j++) {
            double sum = bias[j];
            for (int l = 0; l < k; l++)
                sum += in[(size_t)i * k + l] * w[(size_t)l * n + j];
            out[(size_t)i * n + j] = sum;
        }
}

static const uint16_t *packed_matrix(const float *w, int k, int n)
{
    uint16_t *packed = kern_zeros((size_t)k * n * 2);
    tt_pack_matrix_f16(packed, w, k, n);
    return kern_upload(packed, (size_t)k * n * 2);
}

static void check_mlp(int width, int rows, enum tt_k_mma mma)
{
    const int wide = 4 * width;
    const size_t n = (size_t)rows * width, weights = (size_t)width * wide;
    const float *h = kern_random(n, 3.0f), *gamma = kern_random((size_t)width, 1.0f);
    const float *beta = kern_random((size_t)width, 1.0f), *up_bias = kern_random((size_t)wide, 2.0f);
    const float *down_bias = kern_random((size_t)width, 1.0f);
    float *up = kern_random(weights, 2.0f / sqrtf((float)width)),
          *down = kern_random(weights, 2.0f / sqrtf((float)wide));
    double *normed = kern_zeros(n * sizeof(*normed)), *want = kern_zeros(n * sizeof(*want)),
           *hidden = kern_zeros((size_t)rows * wide * sizeof(*hidden));
    kern_to_half(up, weights);
    kern_to_half(down, weights);
    ref_layer_norm(normed, h, gamma, beta, rows, width);
    round_half(normed, n);
    multiply(hidden, normed, up, up_bias, rows, width, wide);
    for (int i = 0; i < rows * wide; i++)
        hidden[i] = ref_gelu(hidden[i]);
    round_half(hidden, (size_t)rows * wide);
    multiply(want, hidden, down, down_bias, rows, wide, width);
    for (size_t i = 0; i < n; i++)
        want[i] += h[i];
    struct kern_out out = kern_output(n * 4, h);
    const struct tt_k_mlp_f16 m = {.h = out.device,
                                   .gamma = kern_upload(gamma, sizeof(float) * width),
                                   .beta = kern_upload(beta, sizeof(float) * width),
                                   .up = packed_matrix(up, width, wide),
                                   .down = packed_matrix(down, wide, width),
                                   .up_bias = kern_upload(up_bias, sizeof(float) * wide),
                                   .down_bias = kern_upload(down_bias, sizeof(float) * width),
                                   .rows = rows,
                                   .width = width};
    KERN_RUN(out, tt_k_mlp_f16(&m, mma, NULL));
    /* a value of the norm or of the hidden layer that lies between two halfs may round to the other */
    kern_verdict(&out, want, n, 0, 3e-5, 1e-3, "mlp_f16 k%d %dx%d", mma == TT_MMA_K16 ? 16 : 8, rows, width);
    kern_free_all();
}

void check_mlp_f16(enum tt_k_mma mma)
{
    check_mlp(256, 101, mma);
    check_mlp(256, 1, mma);
    check_mlp(384, 50, mma);
}

static void check_attend(int width, int queries, int frames, enum tt_k_mma mma)
{
    const int rows = queries * frames;
    const size_t n = (size_t)rows * width, weights = (size_t)width * width;
    float *qkv = kern_random(n * 3, 2.0f), *w = kern_random(weights, 2.0f / sqrtf((float)width));
    const float *bias = kern_random((size_t)width, 1.0f), *h = kern_random(n, 1.0f);
    const uint16_t *qkv_h = kern_to_half(qkv, n * 3);
    double *mixed = kern_zeros(n * sizeof(*mixed)), *want = kern_zeros(n * sizeof(*want));
    kern_to_half(w, weights);
    ref_attention(mixed, qkv, queries, frames, width / 64);
    multiply(want, mixed, w, bias, rows, width, width);
    for (size_t i = 0; i < n; i++)
        want[i] += h[i];
    struct kern_out out = kern_output(n * 4, h);
    const struct tt_k_attend_f16 a = {.qkv = kern_upload(qkv_h, n * 6),
                                      .weight = packed_matrix(w, width, width),
                                      .bias = kern_upload(bias, sizeof(float) * width),
                                      .h = out.device,
                                      .queries = queries,
                                      .frames = frames,
                                      .width = width};
    KERN_RUN(out, tt_k_attend_f16(&a, mma, NULL));
    /* weights of the softmax and the heads' values are rounded to FP16 */
    kern_verdict(&out, want, n, 0, 7e-4, 7e-3, "attend_f16 k%d %d queries %d frames, width %d",
                 mma == TT_MMA_K16 ? 16 : 8, queries, frames, width);
    kern_free_all();
}

void check_attend_f16(enum tt_k_mma mma)
{
    check_attend(256, 3, 47, mma);
    check_attend(384, 2, 48, mma);
    check_attend(384, 2, 17, mma);
    check_attend(256, 5, 3, mma);
    check_attend(384, 1, 1, mma);
}

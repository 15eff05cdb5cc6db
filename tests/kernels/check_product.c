/* tests/kernels/check_product.c: the mixer's products with what is fused into them against plain C. */
#include "tests/kernels/checks.h"
#include "tests/kernels/kern.h"
#include "tests/kernels/reference.h"

#include "cuda/pack.h"

#include <math.h>

/* normed: out = [gelu](layer_norm(h) · weight + bias); otherwise out = h · weight + bias [+ out]. */
static void check_product(int rows, int k, int n, int normed, int gelu, int add, enum tt_k_mma mma)
{
    const size_t out_n = (size_t)rows * n, in_n = (size_t)rows * k;
    float *a = kern_random(in_n, normed ? 3.0f : 1.0f);
    float *w = kern_random((size_t)k * n, 1.0f / sqrtf((float)k));
    const float *gamma = kern_random((size_t)k, 1.0f), *beta = kern_random((size_t)k, 1.0f);
    const float *bias = kern_random((size_t)n, 2.0f), *residual = kern_random(out_n, 1.0f);
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
            want[(size_t)i * n + j] =
                (gelu ? ref_gelu(sum) : sum) + (add ? residual[(size_t)i * n + j] : 0.0);
        }
    uint16_t *packed = kern_zeros((size_t)k * n * 2);
    tt_pack_matrix_f16(packed, w, k, n);
    struct kern_out out = kern_output(out_n * (normed ? 2 : 4), add ? residual : NULL);
    const struct tt_k_product_f16 p = {.h = normed ? a_f : NULL,
                                       .gamma = kern_upload(gamma, sizeof(float) * k),
                                       .beta = kern_upload(beta, sizeof(float) * k),
                                       .a = a_h,
                                       .weight = kern_upload(packed, (size_t)k * n * 2),
                                       .bias = kern_upload(bias, sizeof(float) * n),
                                       .half = normed ? out.device : NULL,
                                       .out = normed ? NULL : out.device,
                                       .rows = rows,
                                       .k = k,
                                       .n = n,
                                       .gelu = gelu,
                                       .add = add};
    KERN_RUN(out, tt_k_product_f16(&p, mma, NULL));
    /* Tensor cores cut their sums off: half a unit of FP32 on average for each of the steps, which begin with
     * bias and residual. FP16 results, and rows rounded after their norm, are half a unit of FP16 off. */
    const double cut = 0x1p-24 * (k / (mma == TT_MMA_K16 ? 16 : 8)) + 2e-6;
    kern_verdict(&out, want, out_n, normed, normed ? 5e-4 : cut, normed ? 5e-3 : 10 * cut,
                 "product_f16 k%d %dx%dx%d%s%s%s", mma == TT_MMA_K16 ? 16 : 8, rows, k, n,
                 normed ? " normed" : "", gelu ? " gelu" : "", add ? " add" : "");
    kern_free_all();
}

void check_product_f16(enum tt_k_mma mma)
{
    check_product(200, 256, 768, 1, 0, 0, mma);
    check_product(96, 256, 256, 1, 1, 0, mma);
    check_product(47, 256, 1024, 1, 1, 0, mma);
    check_product(200, 864, 256, 0, 0, 0, mma);
    check_product(96, 256, 256, 0, 0, 1, mma);
    check_product(47, 1024, 256, 0, 0, 1, mma);
    check_product(1, 32, 256, 0, 0, 1, mma);
}

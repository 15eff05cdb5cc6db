/* tests/kernels/check_conv.c: convolutions and matrix products against plain C. */
#include "tests/kernels/checks.h"
#include "tests/kernels/kern.h"
#include "tests/kernels/reference.h"

#include "cuda/pack.h"

#include <math.h>
#include <stdio.h>

/* [frames][channels][2]: scales around one, shifts around zero. */
static float *random_norm(int frames, int channels)
{
    float *n = kern_random((size_t)frames * channels * 2, 0.5f);
    for (int i = 0; i < frames * channels; i++)
        n[2 * i] += 1.0f;
    return n;
}

/* [out_c][in_c][taps] -> [taps][in_c][out_c] */
static float *tap_major(const float *w, int out_c, int in_c, int taps)
{
    float *m = kern_zeros(sizeof(float) * out_c * in_c * taps);
    for (int o = 0; o < out_c; o++)
        for (int i = 0; i < in_c; i++)
            for (int t = 0; t < taps; t++)
                m[((size_t)t * in_c + i) * out_c + o] = w[((size_t)o * in_c + i) * taps + t];
    return m;
}

struct shape {
    int frames, in_size, in_c, out_size, out_c, kernel, stride, pad, norm, bias, gelu, add;
};

static void check_conv_f32_shape(const struct shape *s)
{
    const size_t in_n = (size_t)s->frames * s->in_size * s->in_size * s->in_c;
    const size_t out_n = (size_t)s->frames * s->out_size * s->out_size * s->out_c;
    const int taps = s->kernel * s->kernel;
    const float *in = kern_random(in_n, 1.0f), *add = kern_random(out_n, 1.0f);
    const float *weight =
        kern_random((size_t)s->out_c * s->in_c * taps, 1.0f / sqrtf((float)(s->in_c * taps)));
    const float *norm = random_norm(s->frames, s->in_c), *bias = kern_random((size_t)s->out_c, 1.0f);
    double *want = kern_zeros(out_n * sizeof(*want));
    const struct ref_conv r = {.in = in,
                               .norm = s->norm ? norm : NULL,
                               .weight = weight,
                               .bias = s->bias ? bias : NULL,
                               .frames = s->frames,
                               .in_size = s->in_size,
                               .in_c = s->in_c,
                               .out_size = s->out_size,
                               .out_c = s->out_c,
                               .kernel = s->kernel,
                               .stride = s->stride,
                               .pad = s->pad};
    ref_conv(want, &r);
    for (size_t i = 0; i < out_n; i++)
        want[i] = (s->gelu ? ref_gelu(want[i]) : want[i]) + (s->add ? add[i] : 0.0);
    struct kern_out out = kern_output(out_n * sizeof(float), s->add ? add : NULL);
    const size_t weights = (size_t)s->out_c * s->in_c * taps;
    const struct tt_k_conv_f32 c = {
        .in = kern_upload(in, in_n * sizeof(float)),
        .norm = s->norm ? kern_upload(norm, sizeof(float) * s->frames * s->in_c * 2) : NULL,
        .weight = kern_upload(tap_major(weight, s->out_c, s->in_c, taps), weights * sizeof(float)),
        .bias = s->bias ? kern_upload(bias, sizeof(float) * s->out_c) : NULL,
        .add = s->add ? out.device : NULL,
        .out = out.device,
        .frames = s->frames,
        .in_h = s->in_size,
        .in_w = s->in_size,
        .in_c = s->in_c,
        .out_h = s->out_size,
        .out_w = s->out_size,
        .out_c = s->out_c,
        .kernel = s->kernel,
        .stride = s->stride,
        .pad = s->pad,
        .gelu = s->gelu};
    KERN_RUN(out, tt_k_conv_f32(&c, NULL));
    kern_verdict(&out, want, out_n, 0, 2e-6, 2e-5, "conv_f32 %dx%d/%d %d:%dx%d -> %d:%dx%d%s%s%s%s",
                 s->kernel, s->kernel, s->stride, s->in_size, s->in_size, s->in_c, s->out_size, s->out_size,
                 s->out_c, s->norm ? " norm" : "", s->bias ? " bias" : "", s->gelu ? " gelu" : "",
                 s->add ? " add" : "");
    kern_free_all();
}

void check_conv_f32(void)
{
    static const struct shape shapes[] = {
        {2, 9, 8, 9, 64, 3, 1, 1, 1, 0, 0, 0},     /* odd size, smallest channel count */
        {3, 16, 64, 16, 128, 3, 1, 1, 1, 0, 0, 1}, /* residual block, second convolution */
        {2, 12, 64, 6, 128, 3, 2, 0, 1, 0, 0, 0},  /* stride 2, padding behind only */
        {2, 12, 64, 6, 128, 1, 2, 0, 1, 0, 0, 0},  /* its projection */
        {5, 7, 56, 2, 64, 5, 4, 1, 0, 1, 0, 0},    /* small's correlation encoder */
        {5, 2, 64, 1, 128, 2, 2, 0, 1, 1, 0, 0},
        {5, 7, 56, 4, 64, 3, 2, 1, 0, 1, 0, 0}, /* base's */
        {5, 4, 64, 2, 128, 3, 2, 0, 1, 1, 0, 0},
        {133, 1, 864, 1, 64, 1, 1, 0, 0, 1, 1, 1}, /* matrix product with everything */
    };
    for (size_t i = 0; i < sizeof(shapes) / sizeof(*shapes); i++)
        check_conv_f32_shape(&shapes[i]);
    const struct tt_k_conv_f32 bad = {.frames = 1,
                                      .in_h = 1,
                                      .in_w = 1,
                                      .in_c = 12,
                                      .out_h = 1,
                                      .out_w = 1,
                                      .out_c = 64,
                                      .kernel = 1,
                                      .stride = 1};
    kern_refused(tt_k_conv_f32(&bad, NULL), "conv_f32 with 12 input channels");
}

void check_stem(void)
{
    enum { FRAMES = 2, SIZE = 64, N = FRAMES * 32 * 32 * 64 };
    uint8_t *rgb = kern_zeros(FRAMES * SIZE * SIZE * 3);
    for (int i = 0; i < FRAMES * SIZE * SIZE * 3; i++)
        rgb[i] = (uint8_t)(127.5f + 127.5f * kern_uniform());
    const float *weight = kern_random(147 * 64, 0.1f);
    double *want = kern_zeros(N * sizeof(*want));
    ref_stem(want, rgb, weight, FRAMES, SIZE);
    const uint8_t *rgb_d = kern_upload(rgb, FRAMES * SIZE * SIZE * 3);
    const float *weight_d = kern_upload(weight, 147 * 64 * sizeof(float));
    struct kern_out out = kern_output(N * sizeof(float), NULL);
    KERN_RUN(out, tt_k_stem_f32(rgb_d, weight_d, out.device, FRAMES, SIZE, NULL));
    kern_verdict(&out, want, N, 0, 1e-6, 1e-5, "stem_f32 %d:3 -> %d:64", SIZE, SIZE / 2);
    kern_free_all();
}

void check_stem_f16(enum tt_k_mma mma)
{
    enum { FRAMES = 2, SIZE = 64, N = FRAMES * 32 * 32 * 64 };
    uint8_t *rgb = kern_zeros(FRAMES * SIZE * SIZE * 3);
    for (int i = 0; i < FRAMES * SIZE * SIZE * 3; i++)
        rgb[i] = (uint8_t)(127.5f + 127.5f * kern_uniform());
    float *weight = kern_random(147 * 64, 0.1f);
    for (int i = 0; i < 147 * 64; i++) /* what the kernel's rounded, scaled weights stand for */
        weight[i] = tt_float_from_half(tt_half_from_float(weight[i] * (2.0f / 255.0f))) * 127.5f;
    double *want = kern_zeros(N * sizeof(*want)), *sums = kern_zeros(sizeof(double) * FRAMES * 4 * 64 * 2);
    ref_stem(want, rgb, weight, FRAMES, SIZE);
    uint16_t *packed = kern_zeros(176 * 64 * 2 + 2048);
    tt_pack_stem_f16(packed, weight);
    const uint8_t *rgb_d = kern_upload(rgb, FRAMES * SIZE * SIZE * 3);
    const uint16_t *weight_d = kern_upload(packed, 176 * 64 * 2 + 2048);
    struct kern_out out = kern_output(N * sizeof(uint16_t), NULL);
    struct kern_out partial = kern_output(sizeof(float) * FRAMES * 4 * 64 * 2, NULL);
    kern_poison(&partial);
    KERN_RUN(out, tt_k_stem_f16(rgb_d, weight_d, out.device, partial.device, FRAMES, SIZE, mma, NULL));
    kern_take(&partial, 0);
    kern_take(&partial, 1);
    kern_verdict(&out, want, N, 1, 5e-4, 5e-3, "stem_f16 k%d %d:3 -> %d:64", mma == TT_MMA_K16 ? 16 : 8, SIZE,
                 SIZE / 2);
    for (int i = 0; i < N; i++) {
        const int f = i / (N / FRAMES), p = i / 64 % 1024, tile = p / 32 / 16 * 2 + p % 32 / 16;
        const double v = tt_float_from_half(((uint16_t *)out.host[0])[i]);
        sums[((f * 4 + tile) * 64 + i % 64) * 2] += v;
        sums[((f * 4 + tile) * 64 + i % 64) * 2 + 1] += v * v;
    }
    kern_verdict(&partial, sums, FRAMES * 4 * 64 * 2, 0, 1e-6, 1e-5, "stem_f16 sums");
    kern_free_all();
}

struct f16_shape {
    enum tt_k_conv_variant variant;
    int out_size, in_c, out_c, stride, proj_stride, proj_c, add;
};

static void check_partial(struct kern_out *partial, const uint16_t *out, const struct tt_k_conv_f16 *c,
                          int tiles, const char *name)
{
    const int size = c->out_size, wide = 16, across = size / wide, rows = size * size / wide / tiles;
    const size_t n = (size_t)c->frames * tiles * c->out_c * 2;
    double *want = kern_zeros(n * sizeof(*want));
    for (int f = 0; f < c->frames; f++)
        for (int p = 0; p < size * size; p++) {
            const int tile = p / size / rows * across + p % size / wide;
            double *w = want + ((size_t)f * tiles + tile) * c->out_c * 2;
            for (int o = 0; o < c->out_c; o++) {
                const double v = tt_float_from_half(out[((size_t)f * size * size + p) * c->out_c + o]);
                w[2 * o] += v, w[2 * o + 1] += v * v;
            }
        }
    kern_verdict(partial, want, n, 0, 1e-6, 1e-5, "%s sums", name);
}

static void check_conv_f16_shape(const struct f16_shape *s, enum tt_k_mma mma)
{
    enum { FRAMES = 2 };
    const int in_size = s->out_size * s->stride, proj_size = s->out_size * s->proj_stride;
    const size_t in_n = (size_t)FRAMES * in_size * in_size * s->in_c;
    const size_t proj_n = (size_t)FRAMES * proj_size * proj_size * s->proj_c;
    const size_t out_n = (size_t)FRAMES * s->out_size * s->out_size * s->out_c;
    const int chunk = tt_k_conv_f16_chunk(s->variant);
    const size_t weights = ((size_t)9 * s->in_c + s->proj_c) * s->out_c;
    float *in = kern_random(in_n, 1.0f), *proj = kern_random(proj_n, 1.0f), *add = kern_random(out_n, 1.0f);
    float *weight = kern_random((size_t)9 * s->in_c * s->out_c, 1.0f / sqrtf(9.0f * (float)s->in_c));
    float *proj_weight = kern_random((size_t)s->proj_c * s->out_c, 0.1f);
    const uint16_t *in_h = kern_to_half(in, in_n), *proj_h = kern_to_half(proj, proj_n);
    const uint16_t *add_h = kern_to_half(add, out_n);
    kern_to_half(weight, (size_t)9 * s->in_c * s->out_c);
    kern_to_half(proj_weight, (size_t)s->proj_c * s->out_c);
    const float *norm = random_norm(FRAMES, s->in_c), *proj_norm = random_norm(FRAMES, s->proj_c);
    double *want = kern_zeros(out_n * sizeof(*want));
    const struct ref_conv r = {.in = in,
                               .norm = norm,
                               .weight = weight,
                               .frames = FRAMES,
                               .in_size = in_size,
                               .in_c = s->in_c,
                               .out_size = s->out_size,
                               .out_c = s->out_c,
                               .kernel = 3,
                               .stride = s->stride,
                               .pad = s->stride == 1,
                               .round16 = 1};
    ref_conv(want, &r);
    const struct ref_conv p = {.in = proj,
                               .norm = proj_norm,
                               .weight = proj_weight,
                               .frames = FRAMES,
                               .in_size = proj_size,
                               .in_c = s->proj_c,
                               .out_size = s->out_size,
                               .out_c = s->out_c,
                               .kernel = 1,
                               .stride = s->proj_stride,
                               .round16 = 1,
                               .add = 1};
    if (s->proj_c)
        ref_conv(want, &p);
    for (size_t i = 0; i < out_n && s->add; i++)
        want[i] += add[i];
    uint16_t *packed = kern_zeros(weights * 2 + 2048);
    tt_pack_conv_f16(packed, weight, proj_weight, s->out_c, s->in_c, s->proj_c, chunk);
    const int tiles = tt_k_conv_f16_tiles(s->variant, s->out_size);
    struct kern_out out = kern_output(out_n * 2, NULL);
    struct kern_out partial = kern_output(sizeof(float) * FRAMES * tiles * s->out_c * 2, NULL);
    const struct tt_k_conv_f16 c = {
        .in = kern_upload(in_h, in_n * 2),
        .norm = kern_upload(norm, sizeof(float) * FRAMES * s->in_c * 2),
        .weight = kern_upload(packed, weights * 2 + 2048),
        .proj_in = s->proj_c ? kern_upload(proj_h, proj_n * 2) : NULL,
        .proj_norm = s->proj_c ? kern_upload(proj_norm, sizeof(float) * FRAMES * s->proj_c * 2) : NULL,
        .add = s->add ? kern_upload(add_h, out_n * 2) : NULL,
        .out = out.device,
        .partial = partial.device,
        .frames = FRAMES,
        .in_size = in_size,
        .in_c = s->in_c,
        .out_size = s->out_size,
        .out_c = s->out_c,
        .proj_size = proj_size,
        .proj_c = s->proj_c,
        .variant = s->variant};
    kern_poison(&partial);
    KERN_RUN(out, tt_k_conv_f16(&c, mma, NULL));
    kern_take(&partial, 0);
    kern_take(&partial, 1);
    char name[96];
    snprintf(name, sizeof(name), "conv_f16 variant %d k%d /%d %d:%d -> %d%s%s", s->variant,
             mma == TT_MMA_K16 ? 16 : 8, s->stride, s->out_size, s->in_c, s->out_c,
             s->proj_c ? " projection" : "", s->add ? " add" : "");
    kern_verdict(&out, want, out_n, 1, 5e-4, 5e-3, "%s", name);
    check_partial(&partial, out.host[0], &c, tiles, name);
    kern_free_all();
}

void check_conv_f16(enum tt_k_mma mma)
{
    static const struct f16_shape k8[] = {
        {TT_CONV_256x64_C32, 32, 64, 64, 1, 1, 0, 1},     {TT_CONV_256x64_C32, 16, 64, 128, 1, 1, 64, 0},
        {TT_CONV_128x128_C32, 16, 128, 128, 1, 2, 64, 0}, {TT_CONV_128x128_C32, 32, 32, 256, 1, 1, 0, 0},
        {TT_CONV_128x128_C32, 16, 64, 128, 1, 1, 0, 1},   {TT_CONV_S2_128x128_C32, 16, 64, 128, 2, 1, 0, 0},
    };
    static const struct f16_shape k16[] = {
        {TT_CONV_256x64_C64, 32, 64, 64, 1, 1, 0, 1},      {TT_CONV_256x64_C64, 16, 64, 128, 1, 1, 64, 0},
        {TT_CONV_128x128_C64, 16, 128, 128, 1, 2, 64, 0},  {TT_CONV_128x128_C64, 32, 64, 256, 1, 1, 0, 0},
        {TT_CONV_128x128_C64, 16, 64, 128, 1, 1, 0, 1},    {TT_CONV_S2_128x128_C32, 16, 64, 128, 2, 1, 0, 0},
        {TT_CONV_S2_128x128_C32, 32, 32, 256, 2, 1, 0, 0},
    };
    const int n = mma == TT_MMA_K16 ? sizeof(k16) / sizeof(*k16) : sizeof(k8) / sizeof(*k8);
    for (int i = 0; i < n; i++)
        check_conv_f16_shape(mma == TT_MMA_K16 ? &k16[i] : &k8[i], mma);
    const struct tt_k_conv_f16 bad = {.frames = 1,
                                      .in_size = 24,
                                      .out_size = 24,
                                      .in_c = 64,
                                      .out_c = 64,
                                      .variant = mma == TT_MMA_K16 ? TT_CONV_256x64_C64 : TT_CONV_256x64_C32};
    kern_refused(tt_k_conv_f16(&bad, mma, NULL), "conv_f16 with 24 pixels a side");
    const struct tt_k_conv_f16 other = {.frames = 1,
                                        .in_size = 32,
                                        .out_size = 32,
                                        .in_c = 64,
                                        .out_c = 64,
                                        .variant =
                                            mma == TT_MMA_K16 ? TT_CONV_256x64_C32 : TT_CONV_256x64_C64};
    kern_refused(tt_k_conv_f16(&other, mma, NULL), "conv_f16 with the other instruction's variant");
}

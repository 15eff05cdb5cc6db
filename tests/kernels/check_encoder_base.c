/* tests/kernels/check_encoder_base.c: base's correlation encoder on tensor cores against plain C. */
#include "tests/kernels/checks.h"
#include "tests/kernels/kern.h"
#include "tests/kernels/reference.h"

#include "cuda/pack.h"

#include <math.h>

enum { ROW = TT_K_VOLUME_ROW_F16, OUT_ROW = 260, CONVS = 3, MOST = 16 * 64 };

struct encoder {
    const float *weight[CONVS], *bias[CONVS], *gamma[CONVS], *beta[CONVS];
};

static const struct ref_conv shapes[CONVS] = {
    {.in_size = 7, .in_c = 49, .out_size = 4, .out_c = 64, .kernel = 3, .stride = 2, .pad = 1},
    {.in_size = 4, .in_c = 64, .out_size = 2, .out_c = 128, .kernel = 3, .stride = 2, .round16 = 1},
    {.in_size = 2, .in_c = 128, .out_size = 1, .out_c = 128, .kernel = 2, .stride = 2, .round16 = 1},
};

/* The position that a column of a volume stands for, or -1; correlation_f16.cu says how they are laid out. */
static int position(int orientation, int column)
{
    const int direct = column % 16 / 2 * 8 + column / 16 * 2 + column % 2;
    if (orientation == 0)
        return direct < 49 ? direct : -1;
    return column / 8 < 7 && column % 8 < 7 ? column % 8 * 7 + column / 8 : -1;
}

/* out [patches][128] in FP64; what a convolution reads is rounded to FP16. */
static void encode_reference(double *out, const float *volume, const struct encoder *e, int patches)
{
    double *map = kern_zeros(sizeof(double) * patches * MOST),
           *norm = kern_zeros(sizeof(double) * patches * 128 * 2);
    float *map_f = kern_zeros(sizeof(float) * patches * MOST),
          *norm_f = kern_zeros(sizeof(float) * patches * 128 * 2);
    for (int i = 0; i < CONVS; i++) {
        struct ref_conv c = shapes[i];
        c.in = i ? map_f : volume, c.norm = i ? norm_f : NULL;
        c.weight = e->weight[i], c.bias = e->bias[i], c.frames = patches;
        ref_conv(map, &c);
        for (int k = 0; k < patches * c.out_size * c.out_size * c.out_c; k++)
            map_f[k] = (float)map[k];
        ref_group_norm(norm, map_f, e->gamma[i], e->beta[i], patches, c.out_size * c.out_size, c.out_c, 1e-5);
        for (int k = 0; k < patches * c.out_c * 2; k++)
            norm_f[k] = (float)norm[k];
    }
    for (int i = 0; i < patches * 128; i++)
        out[i] = fmax(map[i] * norm[2 * i] + norm[2 * i + 1], 0.0);
}

/* [out][in][taps] as the kernel reads it. */
static const uint16_t *packed_left(const float *w, int out, int in, int taps)
{
    const size_t n = (size_t)out * in * taps;
    float *matrix = kern_zeros(n * sizeof(*matrix));
    uint16_t *packed = kern_zeros(n * 2);
    for (int o = 0; o < out; o++)
        for (int i = 0; i < in; i++)
            for (int t = 0; t < taps; t++)
                matrix[(t * in + i) * out + o] = w[(o * in + i) * taps + t];
    tt_pack_left_f16(packed, matrix, taps * in, out);
    return kern_upload(packed, n * 2);
}

static void check_rows(int rows, enum tt_k_mma mma)
{
    const int patches = 2 * rows;
    float *v = kern_random((size_t)patches * 49 * ROW, 1.0f),
          *logical = kern_zeros(sizeof(float) * patches * 49 * 49);
    uint16_t *v_h = kern_to_half(v, (size_t)patches * 49 * ROW), *packed = kern_zeros(9 * 64 * 64 * 2);
    struct encoder w;
    struct tt_k_encode_base_f16 e = {.rows = rows, .out_row = OUT_ROW};
    for (int i = 0; i < CONVS; i++) {
        const struct ref_conv *s = &shapes[i];
        const size_t n = (size_t)s->out_c * s->in_c * s->kernel * s->kernel;
        float *weight = kern_random(n, 1.0f / sqrtf((float)(s->in_c * s->kernel * s->kernel)));
        kern_to_half(weight, n);
        w.weight[i] = weight, w.bias[i] = kern_random((size_t)s->out_c, 0.5f);
        w.gamma[i] = kern_random((size_t)s->out_c, 1.0f), w.beta[i] = kern_random((size_t)s->out_c, 0.5f);
        e.bias[i] = kern_upload(w.bias[i], sizeof(float) * s->out_c);
        e.gamma[i] = kern_upload(w.gamma[i], sizeof(float) * s->out_c);
        e.beta[i] = kern_upload(w.beta[i], sizeof(float) * s->out_c);
    }
    for (int i = 0; i < patches * 49 * ROW; i++) {
        const int p = i / (49 * ROW), channel = position(p / rows, i % ROW);
        if (channel < 0)
            v_h[i] = 0;
        else
            logical[i / ROW * 49 + channel] = v[i];
    }
    double *reference = kern_zeros(sizeof(double) * patches * 128),
           *want = kern_zeros(sizeof(double) * rows * OUT_ROW);
    float *before = kern_random((size_t)rows * OUT_ROW, 1.0f);
    const uint16_t *before_h = kern_to_half(before, (size_t)rows * OUT_ROW);
    encode_reference(reference, logical, &w, patches);
    for (int i = 0; i < rows * OUT_ROW; i++) {
        const int r = i / OUT_ROW, c = i % OUT_ROW;
        want[i] = c < 256 ? reference[((size_t)(c / 128) * rows + r) * 128 + c % 128] : before[i];
    }
    for (int o = 0; o < 2; o++) {
        tt_pack_encoder_base_f16(packed, w.weight[0], o);
        e.weight[o] = kern_upload(packed, 9 * 64 * 64 * 2);
    }
    e.weight2 = packed_left(w.weight[1], 128, 64, 9);
    e.weight3 = packed_left(w.weight[2], 128, 128, 4);
    e.volume = kern_upload(v_h, (size_t)patches * 49 * ROW * 2);
    struct kern_out out = kern_output(sizeof(uint16_t) * rows * OUT_ROW, before_h);
    e.out = out.device;
    KERN_RUN(out, tt_k_encode_base_f16(&e, mma, NULL));
    kern_verdict(&out, want, (size_t)rows * OUT_ROW, 1, 1e-3, 1e-2, "encode_base_f16 k%d %d rows",
                 mma == TT_MMA_K16 ? 16 : 8, rows);
    kern_free_all();
}

void check_encode_base_f16(enum tt_k_mma mma)
{
    check_rows(47, mma);
    check_rows(3, mma);
}

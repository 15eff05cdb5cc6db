/* tests/kernels/check_encoder_base.c: base's embeddings on tensor cores against plain C. */
#include "tests/kernels/checks.h"
#include "tests/kernels/kern.h"
#include "tests/kernels/reference.h"

#include "cuda/pack.h"

#include <math.h>

enum { CONVS = 3, MOST = 16 * 64 };

struct encoder {
    const float *weight[CONVS], *bias[CONVS], *gamma[CONVS], *beta[CONVS];
};

static const struct ref_conv shapes[CONVS] = {
    {.in_size = 7, .in_c = 49, .out_size = 4, .out_c = 64, .kernel = 3, .stride = 2, .pad = 1},
    {.in_size = 4, .in_c = 64, .out_size = 2, .out_c = 128, .kernel = 3, .stride = 2, .round16 = 1},
    {.in_size = 2, .in_c = 128, .out_size = 1, .out_c = 128, .kernel = 2, .stride = 2, .round16 = 1},
};

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

/* bias, gamma, beta: the same on the device. */
static void random_encoder(struct encoder *w, const float *bias[CONVS], const float *gamma[CONVS],
                           const float *beta[CONVS])
{
    for (int i = 0; i < CONVS; i++) {
        const struct ref_conv *s = &shapes[i];
        const size_t n = (size_t)s->out_c * s->in_c * s->kernel * s->kernel;
        float *weight = kern_random(n, 1.0f / sqrtf((float)(s->in_c * s->kernel * s->kernel)));
        kern_to_half(weight, n);
        w->weight[i] = weight, w->bias[i] = kern_random((size_t)s->out_c, 0.5f);
        w->gamma[i] = kern_random((size_t)s->out_c, 1.0f), w->beta[i] = kern_random((size_t)s->out_c, 0.5f);
        bias[i] = kern_upload(w->bias[i], sizeof(float) * s->out_c);
        gamma[i] = kern_upload(w->gamma[i], sizeof(float) * s->out_c);
        beta[i] = kern_upload(w->beta[i], sizeof(float) * s->out_c);
    }
}

/* A level's inputs; embeddings of all queries and frames go to want + column. */
static void embed_level(struct tt_k_embed_base_level *level, double *want, int column, int size, int channels,
                        const float *state, int queries, int frames, int row, int out_row)
{
    const int n = queries * frames;
    const size_t grid_n = (size_t)frames * size * size * channels;
    const float amplitude = sqrtf(3.0f / (float)channels); /* features of about length one */
    float *grid = kern_random(grid_n, amplitude), *support = kern_random((size_t)queries * row, amplitude);
    uint16_t *grid_h = kern_to_half(grid, grid_n);
    tt_pack_swap_features_f16(grid_h, grid_n / channels, channels);
    struct encoder w;

    *level = (struct tt_k_embed_base_level){.grid = kern_upload(grid_h, grid_n * 2),
                                            .support = kern_upload(support, sizeof(float) * queries * row),
                                            .size = size,
                                            .channels = channels,
                                            .scale = (float)size / 256.0f};
    kern_to_half(support, (size_t)queries * row);
    random_encoder(&w, level->bias, level->gamma, level->beta);
    double one[49 * 49], *reference = kern_zeros(sizeof(double) * 2 * n * 128);
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
    encode_reference(reference, volume, &w, 2 * n);
    for (int i = 0; i < 2 * n; i++)
        for (int c = 0; c < 128; c++)
            want[(size_t)(i % n) * out_row + column + i / n * 128 + c] = reference[(size_t)i * 128 + c];
    for (int o = 0; o < 2; o++) {
        const size_t bytes = sizeof(uint16_t) * (o ? TT_EMBED_BASE_HALFS_1 : TT_EMBED_BASE_HALFS_0);
        uint16_t *packed = kern_zeros(bytes);
        tt_pack_embed_base_f16(packed, w.weight[0], o);
        level->weight[o] = kern_upload(packed, bytes);
    }
    level->weight2 = packed_left(w.weight[1], 128, 64, 9);
    level->weight3 = packed_left(w.weight[2], 128, 128, 4);
}

/* Each query point by itself, its first frames and then the others. out: as whole's first level's. */
static int embed_in_parts(const struct tt_k_embed_base_f16 *whole, uint16_t *out, enum tt_k_mma mma)
{
    const int first = whole->frames / 3 + 1;
    int error = 0;

    for (int i = 0; i < 2 * whole->queries && !error; i++) {
        const int from = i % 2 * first, item = i / 2 * whole->frames + from;
        struct tt_k_embed_base_f16 e = *whole;
        e.state += (size_t)item * 4, e.queries = 1, e.frames = i % 2 ? whole->frames - first : first;
        for (int k = 0; k < e.levels; k++) {
            struct tt_k_embed_base_level *l = &e.level[k];
            l->grid += (size_t)from * l->size * l->size * l->channels;
            l->support += (size_t)(i / 2) * e.row;
            l->out = out + (l->out - whole->level[0].out) + (size_t)item * e.out_row;
        }
        if (e.frames)
            error = tt_k_embed_base_f16(&e, mma, NULL);
    }
    return error;
}

static void check_embed_shape(int queries, int frames, int levels, enum tt_k_mma mma)
{
    enum { COLUMN = 2, EMBED_ROW = COLUMN + 3 * 256 + 4, ROW_FLOATS = 49 * 256 + 8 };
    static const int sizes[] = {32, 64, 128}, channels[] = {256, 128, 64};
    const int n = queries * frames;
    float *state = kern_random((size_t)n * 4, 140.0f); /* some beyond the border */
    const float fixed[] = {0, 0, 256, 256, 0, 255.9f, 300, -40, 128, 128, 2, 130, -3000, 1e9f};
    for (int i = 0; i < n; i++)
        for (int k = 0; k < 2; k++)
            state[4 * i + k] = 2 * i + k < 14 ? fixed[2 * i + k] : state[4 * i + k] + 128.0f;
    float *before = kern_random((size_t)n * EMBED_ROW, 1.0f);
    const uint16_t *before_h = kern_to_half(before, (size_t)n * EMBED_ROW);
    double *want = kern_zeros(sizeof(double) * n * EMBED_ROW);
    for (int i = 0; i < n * EMBED_ROW; i++)
        want[i] = before[i];
    struct kern_out out = kern_output(sizeof(uint16_t) * n * EMBED_ROW, before_h);
    struct tt_k_embed_base_f16 e = {.state = kern_upload(state, sizeof(float) * n * 4),
                                    .levels = levels,
                                    .queries = queries,
                                    .frames = frames,
                                    .row = ROW_FLOATS,
                                    .out_row = EMBED_ROW};
    for (int i = 0; i < levels; i++) {
        const int at = i + 3 - levels;
        embed_level(&e.level[i], want, COLUMN + i * 256, sizes[at], channels[at], state, queries, frames,
                    ROW_FLOATS, EMBED_ROW);
        e.level[i].out = (uint16_t *)out.device + COLUMN + i * 256;
    }
    KERN_RUN(out, tt_k_embed_base_f16(&e, mma, NULL));
    kern_verdict(&out, want, (size_t)n * EMBED_ROW, 1, 1e-3, 1e-2,
                 "embed_base_f16 k%d %d queries %d frames %d levels", mma == TT_MMA_K16 ? 16 : 8, queries,
                 frames, levels);
    struct kern_out parts = kern_output(sizeof(uint16_t) * n * EMBED_ROW, before_h);
    KERN_RUN(parts, embed_in_parts(&e, (uint16_t *)parts.device + COLUMN, mma));
    kern_same(&parts, &out, "embed_base_f16 in parts");
    e.level[0].channels = 96;
    kern_refused(tt_k_embed_base_f16(&e, mma, NULL), "embed_base_f16 of 96 channels");
    kern_free_all();
}

/* Few, for the emulator; all the rest of the shapes. */
void check_embed_base_small_f16(enum tt_k_mma mma)
{
    check_embed_shape(1, 11, 1, mma);
    check_embed_shape(1, 17, 2, mma);
}

void check_embed_base_f16(enum tt_k_mma mma)
{
    check_embed_shape(3, 29, 3, mma);
    check_embed_shape(2, 47, 3, mma);
    check_embed_shape(5, 3, 1, mma);
    check_embed_shape(1, 16, 2, mma);
}

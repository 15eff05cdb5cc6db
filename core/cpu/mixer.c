/* core/cpu/mixer.c: the transformer over the frames of one query point.
 *
 * docs/MODEL.md, "Position code", "Mixer"; public code: models/locotrack_model.py, posenc,
 * MultiHeadAttention, PIPSTransformer. Every matrix has tt_mixer_rows(frames) rows; those beyond the frames
 * stay finite and touch no other row. Masked attention weights are exactly zero, GELU is the exact one. Of
 * the last layer's 388 outputs the four that are read are computed. Nothing here can fail.
 */
#include "core/cpu/cpu.h"
#include "core/cpu/sizes.h"
#include "core/cpu/vec.h"

#include <math.h>
#include <stdio.h>

enum {
    SCALES = 10,     /* of the position code: 2^0..2^9 */
    STATE_FLOATS = 4 /* motion to the next frame and from the last: x, y each */
};

void tt_mixer_state(const struct tt_estimate *estimate, int frames, float *input)
{
    const float step = 1.0f / (float)TT_CLIP_SIZE, quarter = 0.5f * 3.14159265358979323846f;

    for (int f = 0; f < frames; f++, input += TT_MIXER_INPUT) {
        const struct tt_estimate *e = &estimate[f];
        float *code = input + TT_MIXER_INPUT - TT_POSITION_CODE;
        int next = f + 1 < frames, last = f > 0;

        input[0] = e->occlusion;
        input[1] = e->expected_dist;
        code[0] = next ? (e[0].x - e[1].x) * step : 0.0f;
        code[1] = next ? (e[0].y - e[1].y) * step : 0.0f;
        code[2] = last ? (e[0].x - e[-1].x) * step : 0.0f;
        code[3] = last ? (e[0].y - e[-1].y) * step : 0.0f;
        for (int s = 0; s < SCALES; s++)
            for (int i = 0; i < STATE_FLOATS; i++) {
                float angle = code[i] * (float)(1 << s);
                float *sine = code + STATE_FLOATS + s * STATE_FLOATS + i;

                sine[0] = sinf(angle);
                sine[SCALES * STATE_FLOATS] = sinf(angle + quarter);
            }
    }
}

/* Layer norm of each row. */
TT_CLONES static void normalise(const float *from, int rows, int width, const struct tt_affine *affine,
                                float *to)
{
    for (int r = 0; r < rows; r++, from += width, to += width) {
        tt_vec sum = tt_splat(0.0f), square = tt_splat(0.0f);
        float mean, scale;

        for (int c = 0; c < width; c += TT_LANES)
            sum += tt_load(from + c);
        mean = tt_sum(sum) / (float)width;
        for (int c = 0; c < width; c += TT_LANES) {
            tt_vec d = tt_load(from + c) - mean;

            square += d * d;
        }
        scale = 1.0f / sqrtf(tt_sum(square) / (float)width + TT_NORM_EPSILON);
        for (int c = 0; c < width; c += TT_LANES)
            tt_store(to + c, (tt_load(from + c) - mean) * scale * tt_load(affine->weight + c) +
                                 tt_load(affine->bias + c));
    }
}

/* Each row becomes the bias, for a product to be added to. */
static void fill_bias(float *to, int rows, int width, const float *bias)
{
    for (int r = 0; r < rows; r++)
        memcpy(to + r * width, bias, (size_t)width * sizeof *to);
}

TT_CLONES static void add_bias(float *to, int rows, int width, const float *bias)
{
    for (int r = 0; r < rows; r++, to += width)
        for (int c = 0; c < width; c += TT_LANES)
            tt_store(to + c, tt_load(to + c) + tt_load(bias + c));
}

/* x·Φ(x) with Φ(x) = (1 + erf(x/√2))/2 */
TT_CLONES static void gelu(float *x, int count)
{
    for (int i = 0; i < count; i += TT_LANES) {
        tt_vec v = tt_load(x + i);

        tt_store(x + i, 0.5f * v * (1.0f + tt_erf(v * 0.70710678118654752f)));
    }
}

/* scores [frames][ld] in place: softmax over the keys that a head of this direction sees: from the query's
 * frame to the past (direction −1) or the future (+1), each frame of distance costing `slope`. ld: a multiple
 * of 16. */
TT_CLONES static void attend(float *scores, int frames, int ld, int direction, float slope)
{
    static const tt_ivec count = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15};

    for (int q = 0; q < frames; q++, scores += ld) {
        tt_vec top = tt_splat(-INFINITY), sum = tt_splat(0.0f);
        float largest = -INFINITY, lane[TT_LANES], scale;

        for (int k = 0; k < ld; k += TT_LANES) {
            tt_ivec distance = (count + k - q) * direction;
            tt_ivec seen = (distance >= 0) & (count + k < frames);
            tt_vec v = tt_load(scores + k) * 0.125f - __builtin_convertvector(distance, tt_vec) * slope;

            v = tt_select(seen, v, tt_splat(-INFINITY));
            tt_store(scores + k, v);
            top = tt_max(top, v);
        }
        tt_store(lane, top);
        for (int i = 0; i < TT_LANES; i++)
            largest = lane[i] > largest ? lane[i] : largest;
        for (int k = 0; k < ld; k += TT_LANES) {
            tt_vec v = tt_load(scores + k), e = tt_select(v > -INFINITY, tt_exp(v - largest), tt_splat(0.0f));

            tt_store(scores + k, e);
            sum += e;
        }
        scale = 1.0f / tt_sum(sum);
        for (int k = 0; k < ld; k += TT_LANES)
            tt_store(scores + k, tt_load(scores + k) * scale);
    }
}

/* qkv [rows][3·width] -> mixed [rows][width], head beside head; rows beyond the frames are left alone. */
static void run_heads(const struct tt_mixer *mixer, int frames, const float *qkv, float *scores, float *mixed)
{
    int half = mixer->heads / 2, ld = 3 * mixer->width, rows = tt_mixer_rows(frames);
    double base = pow(24.0, 1.0 / half);

    for (int h = 0; h < mixer->heads; h++) {
        const float *query = qkv + h * TT_HEAD_SIZE, *key = query + mixer->width, *value = key + mixer->width;
        float slope = (float)(1.0 / pow(base, h % half + 1));

        tt_gemm_transposed(frames, frames, TT_HEAD_SIZE, query, ld, key, ld, scores, rows);
        attend(scores, frames, rows, h < half ? -1 : 1, slope);
        tt_gemm(frames, TT_HEAD_SIZE, frames, scores, rows, value, ld, 0.0f, mixed + h * TT_HEAD_SIZE,
                mixer->width);
    }
}

void tt_mixer_run(const struct tt_mixer *mixer, int frames, const float *input, float *output,
                  struct tt_scratch scratch)
{
    int rows = tt_mixer_rows(frames), width = mixer->width, wide = TT_MIXER_WIDENING * width;
    float *state = tt_scratch_take(&scratch, (size_t)(rows * width));
    float *normed = tt_scratch_take(&scratch, (size_t)(rows * width));
    float *mixed = tt_scratch_take(&scratch, (size_t)(rows * width));
    float *broad =
        tt_scratch_take(&scratch, (size_t)(rows * wide)); /* query, key, value; or the dense layer */
    float *scores = tt_scratch_take(&scratch, (size_t)(rows * rows));

    memset(scores, 0, (size_t)(rows * rows) * sizeof *scores);
    memset(mixed, 0, (size_t)(rows * width) * sizeof *mixed);
    fill_bias(state, rows, width, mixer->input.bias);
    tt_gemm(rows, width, TT_MIXER_INPUT, input, TT_MIXER_INPUT, mixer->input.weight, width, 1.0f, state,
            width);
    for (int l = 0; l < TT_MIXER_LAYERS; l++) {
        normalise(state, rows, width, &mixer->layer[l].norm[0], normed);
        fill_bias(broad, rows, 3 * width, mixer->layer[l].qkv.bias);
        tt_gemm(rows, 3 * width, width, normed, width, mixer->layer[l].qkv.weight, 3 * width, 1.0f, broad,
                3 * width);
        run_heads(mixer, frames, broad, scores, mixed);
        add_bias(state, rows, width, mixer->layer[l].final.bias);
        tt_gemm(rows, width, width, mixed, width, mixer->layer[l].final.weight, width, 1.0f, state, width);

        normalise(state, rows, width, &mixer->layer[l].norm[1], normed);
        fill_bias(broad, rows, wide, mixer->layer[l].up.bias);
        tt_gemm(rows, wide, width, normed, width, mixer->layer[l].up.weight, wide, 1.0f, broad, wide);
        gelu(broad, rows * wide);
        add_bias(state, rows, width, mixer->layer[l].down.bias);
        tt_gemm(rows, width, wide, broad, wide, mixer->layer[l].down.weight, width, 1.0f, state, width);
    }
    normalise(state, rows, width, &mixer->norm, normed);
    fill_bias(output, rows, TT_MIXER_OUTPUT, mixer->output.bias);
    tt_gemm(rows, TT_MIXER_OUTPUT, width, normed, width, mixer->output.weight, TT_MIXER_OUTPUT, 1.0f, output,
            TT_MIXER_OUTPUT);
}

/* Puts three [width][width] layers beside one another; takes them. */
static struct tt_linear join(struct tt_store *store, const struct tt_affine part[3], int width)
{
    float *weight = tt_store_floats(store, (size_t)(3 * width * width));
    float *bias = tt_store_floats(store, (size_t)(3 * width));
    struct tt_linear joined = {weight, bias};

    for (int p = 0; !store->status && p < 3; p++) {
        for (int r = 0; r < width; r++)
            memcpy(weight + (3 * r + p) * width, part[p].weight + r * width, (size_t)width * sizeof *weight);
        memcpy(bias + p * width, part[p].bias, (size_t)width * sizeof *bias);
    }
    for (int p = 0; p < 3; p++) {
        tt_store_drop(store, part[p].weight);
        tt_store_drop(store, part[p].bias);
    }
    return joined;
}

static struct tt_linear load_linear(struct tt_store *store, const char *name)
{
    struct tt_affine pair = tt_store_affine(store, "torch_pips_mixer.%s", name);

    return (struct tt_linear){pair.weight, pair.bias};
}

static void load_layer(struct tt_mixer *mixer, int l, struct tt_store *store)
{
    static const char *const projections[] = {"query", "key", "value"};
    struct tt_affine part[3];
    char name[64];

    for (int i = 0; i < 3; i++)
        part[i] =
            tt_store_affine(store, "torch_pips_mixer.transformer.layers.%d.attn.%s_proj", l, projections[i]);
    mixer->layer[l].qkv = join(store, part, mixer->width);
    for (int i = 0; i < 2; i++)
        mixer->layer[l].norm[i] =
            tt_store_affine(store, "torch_pips_mixer.transformer.layers.%d.layer_norm%d", l, i + 1);
    snprintf(name, sizeof name, "transformer.layers.%d.attn.final_proj", l);
    mixer->layer[l].final = load_linear(store, name);
    snprintf(name, sizeof name, "transformer.layers.%d.dense.0", l);
    mixer->layer[l].up = load_linear(store, name);
    snprintf(name, sizeof name, "transformer.layers.%d.dense.2", l);
    mixer->layer[l].down = load_linear(store, name);
}

void tt_mixer_load(struct tt_mixer *mixer, const struct tt_model_shape *shape, struct tt_store *store)
{
    struct tt_linear all;
    float *weight;

    mixer->width = shape->width;
    mixer->heads = shape->heads;
    mixer->input = load_linear(store, "input_proj");
    for (int l = 0; l < TT_MIXER_LAYERS; l++)
        load_layer(mixer, l, store);
    mixer->norm = tt_store_affine(store, "torch_pips_mixer.transformer.ln_out");
    all = load_linear(store, "output_proj"); /* [width][388], of which four columns are used */
    weight = tt_store_floats(store, (size_t)(shape->width * TT_MIXER_OUTPUT));
    for (int r = 0; !store->status && r < shape->width; r++)
        memcpy(weight + r * TT_MIXER_OUTPUT, all.weight + r * TT_MIXER_OUTPUT_ROWS,
               TT_MIXER_OUTPUT * sizeof *weight);
    tt_store_drop(store, all.weight);
    mixer->output = (struct tt_linear){weight, all.bias};
}

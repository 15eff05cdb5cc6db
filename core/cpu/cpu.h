/* core/cpu/cpu.h: the parts of the CPU backend, as backend.c and the tests see them.
 *
 * All arrays are row-major FP32 and channels come last: a feature map is [y][x][C], a support [7][7][C].
 * Matrix products go to OpenBLAS, one thread each; the shapes of a product depend on the clip's length and
 * the plan, never on how many query points or threads there are, so neither do the bits of a result.
 * Functions that take a scratch use it from its start; what it holds before and after is nobody's concern.
 */
#ifndef TT_CORE_CPU_CPU_H
#define TT_CORE_CPU_CPU_H

#include "core/backend.h"
#include "core/model.h"
#include "core/status.h"
#include "core/weights.h"

#include <cblas.h>
#include <stddef.h>
#include <stdint.h>

/* c [m][n] = a [m][k] · b [k][n] + beta · c; lda, ldb, ldc: floats from one row to the next. */
static inline void tt_gemm(int m, int n, int k, const float *a, int lda, const float *b, int ldb, float beta,
                           float *c, int ldc)
{
    cblas_sgemm(CblasRowMajor, CblasNoTrans, CblasNoTrans, m, n, k, 1.0f, a, lda, b, ldb, beta, c, ldc);
}

/* c [m][n] = a [m][k] · transpose of b [n][k] */
static inline void tt_gemm_transposed(int m, int n, int k, const float *a, int lda, const float *b, int ldb,
                                      float *c, int ldc)
{
    cblas_sgemm(CblasRowMajor, CblasNoTrans, CblasTrans, m, n, k, 1.0f, a, lda, b, ldb, 0.0f, c, ldc);
}

/* 64-byte aligned memory for count floats; NULL where there is none. free() frees it. */
float *tt_floats(size_t count);

/* A run of floats that is carved up from the front. */
struct tt_scratch {
    float *next;
    size_t left;
};

/* count floats, 64-byte aligned, uninitialised. The scratch must have them. */
float *tt_scratch_take(struct tt_scratch *scratch, size_t count);

/* --- load.c: copies of weights in the layouts that the CPU wants --- */

enum { TT_STORE_BLOCKS = 256 };

/* Owns every copied weight of a model. The first failure stays in status, and all later calls do nothing, so
 * that a loader can be written without a test behind every line. */
struct tt_store {
    const struct tt_weights *weights;
    struct tt_error *err;
    enum tt_status status;
    int blocks;
    float *block[TT_STORE_BLOCKS];
};

/* Memory for count floats; NULL after a failure. */
float *tt_store_floats(struct tt_store *store, size_t count);

/* The named weight: [out][in][ky][kx] becomes [ky][kx][in][out], a linear layer's [out][in] becomes
 * [in][out], vectors stay. NULL after a failure. */
float *tt_store_weight(struct tt_store *store, const char *format, ...) __attribute__((format(printf, 2, 3)));

/* Frees one block of the store that is needed no more; NULL is none. */
void tt_store_drop(struct tt_store *store, const float *block);

void tt_store_free(struct tt_store *store);

struct tt_affine {
    const float *weight, *bias;
};

/* PREFIX.weight and PREFIX.bias */
struct tt_affine tt_store_affine(struct tt_store *store, const char *format, ...)
    __attribute__((format(printf, 2, 3)));

/* --- conv.c: 3×3 convolutions of the backbone --- */

struct tt_conv3 {
    int in, out, stride;
    const float *weight; /* stride 1: Winograd's [36][in][out]; stride 2: [3][3][in][out] */
};

/* Channels' sums over the pixels of one map, for its instance norm. */
struct tt_moments {
    double mean[256], square[256]; /* square: sum of squared deviations from the mean */
    double pixels;
};

/* What an instance norm does to a channel: x·scale + shift. */
struct tt_channel_norm {
    float scale[256], shift[256];
};

struct tt_map {
    float *data; /* [size][size][channels] */
    int size, channels;
};

void tt_moments_add(struct tt_moments *moments, const float *rows, int pixels, int channels);
void tt_moments_norm(const struct tt_moments *moments, const struct tt_affine *affine, int channels,
                     struct tt_channel_norm *norm);

/* out = conv(relu(norm(in))) (+ out where add is not 0), and where projection is given also
 * shortcut = 1×1 convolution, of the same stride, of relu(norm(in)). moments: out's, added up from nothing.
 */
void tt_conv3_run(const struct tt_conv3 *conv, const float *projection, const struct tt_map *in,
                  const struct tt_channel_norm *norm, struct tt_map *out, int add, struct tt_map *shortcut,
                  struct tt_moments *moments, struct tt_scratch scratch);

/* weight: [3][3][in][out] in the store; takes it. */
void tt_conv3_load(struct tt_conv3 *conv, struct tt_store *store, int in, int out, int stride,
                   const float *weight);

/* --- resnet.c: the backbone --- */

struct tt_block {
    struct tt_affine norm[2];
    struct tt_conv3 conv[2];
    const float *projection; /* [in][out]; NULL in the second block of a group */
};

struct tt_resnet {
    const float *stem; /* [7][7][3][64] */
    struct tt_block block[TT_RESNET_GROUPS][TT_RESNET_BLOCKS];
};

void tt_resnet_load(struct tt_resnet *net, struct tt_store *store);

/* rgb [256][256][3] -> features of all levels, L2-normalised: features[level] [size][size][channels]. */
void tt_resnet_run(const struct tt_resnet *net, const uint8_t *rgb, float *const features[TT_LEVELS],
                   struct tt_scratch scratch);

/* --- cost.c: positions from the cost volume --- */

struct tt_cost {
    float conv[2][9], conv_bias; /* [lowres, hires][ky·3 + kx] */
    float occlusion[2][6], occlusion_bias[2];
};

void tt_cost_load(struct tt_cost *cost, struct tt_store *store);

/* The initialisation of up to `tile` query points (a multiple of 16; queries <= tile) in one frame. supports:
 * [queries][TT_SUPPORT_FLOATS]. result[q·stride] is written. */
void tt_cost_run(const struct tt_cost *cost, const float *const features[TT_LEVELS], int tile, int queries,
                 const float *supports, struct tt_estimate *result, size_t stride, struct tt_scratch scratch);

/* --- correlation.c: supports, and the local 4D correlation with its encoder --- */

/* Samples the supports of one query point at xy (clip pixels) from its frame's features, borders clamped. */
void tt_support_sample(const float *const features[TT_LEVELS], const float xy[2], float *support);

struct tt_encoder {
    struct {
        const float *weight; /* [kernel][kernel][in][out] */
        const float *bias;   /* [out] */
        struct tt_affine norm;
    } conv[TT_ENCODER_CONVS];
};

void tt_encoder_load(struct tt_encoder *encoder, const struct tt_model_shape *shape, int level,
                     struct tt_store *store);

/* A support level as the correlation wants it: [7·7][C] -> [C][7·7]. */
void tt_support_transpose(const float *support, int channels, float *transposed);

/* Embeds one query point's correlation in `frames` frames (a tile) of one level.
 * features[f]: that level's map of frame f. transposed: [C][49]. estimate[f]: where to look.
 * out[f·ld]: 256 floats. */
void tt_correlation_run(const struct tt_encoder *encoder, const struct tt_model_shape *shape, int level,
                        int frames, const float *const *features, const float *transposed,
                        const struct tt_estimate *estimate, float *out, int ld, struct tt_scratch scratch);

/* --- mixer.c: the transformer over a query point's frames --- */

struct tt_linear {
    const float *weight; /* [in][out] */
    const float *bias;   /* [out] */
};

struct tt_mixer {
    int width, heads;
    struct tt_linear input;
    struct {
        struct tt_affine norm[2];
        struct tt_linear qkv; /* query, key and value beside one another: [width][3·width] */
        struct tt_linear final, up, down;
    } layer[TT_MIXER_LAYERS];
    struct tt_affine norm;
    struct tt_linear output; /* the first four rows: [width][4] */
};

void tt_mixer_load(struct tt_mixer *mixer, const struct tt_model_shape *shape, struct tt_store *store);

/* Fills columns 0, 1 and 770..853 of input [rows][TT_MIXER_INPUT]: occlusion, expected distance, position
 * code. */
void tt_mixer_state(const struct tt_estimate *estimate, int frames, float *input);

/* input [rows][TT_MIXER_INPUT] -> output [rows][TT_MIXER_OUTPUT]; rows beyond frames mean nothing. */
void tt_mixer_run(const struct tt_mixer *mixer, int frames, const float *input, float *output,
                  struct tt_scratch scratch);

/* --- backend.c, for tests --- */

/* The held features of a frame of the clip. Borrowed (until the next features or close). */
const float *tt_cpu_features(const struct tt_backend *backend, int frame, enum tt_level level);
const struct tt_encoder *tt_cpu_encoder(const struct tt_backend *backend, enum tt_level level);
const struct tt_mixer *tt_cpu_mixer(const struct tt_backend *backend);

#endif

/* cuda/kernels.h: every kernel of the CUDA backend as a C function over raw device pointers.
 *
 * Nothing here needs the rest of tiletrack: tests/kernels links these and nothing else. Each function queues
 * its work on a stream and returns a cudaError_t as int: 0: queued; cudaErrorInvalidValue: a size is not one
 * of those that are said here; cudaErrorInvalidConfiguration: a block would need more than a T4's 64 KiB of
 * shared memory; else what the launch said. What goes wrong on the device is a later call's. All arguments
 * are borrowed (until the work on the stream is done). Activations are NHWC, rows of a matrix are contiguous.
 * "half" is IEEE FP16, carried as uint16_t here.
 *
 * The same arguments give the same bits: no float atomics, every sum has a fixed order.
 */
#ifndef TT_CUDA_KERNELS_H
#define TT_CUDA_KERNELS_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Which tensor-core instruction the FP16 kernels use. */
enum tt_k_mma {
    TT_MMA_K8,  /* m16n8k8: all that a T4 (sm_75) has */
    TT_MMA_K16, /* m16n8k16: sm_80 and later */
};

/* ---- conv_f32.cu: convolution and matrix product in FP32 (FFMA, no TF32) ---- */

/* out = [gelu](conv([relu(norm(in))], weight) + bias) + add
 * A matrix product of R rows is frames = R, in_h = in_w = out_h = out_w = 1, kernel = 1. */
struct tt_k_conv_f32 {
    const float *in;     /* [frames][in_h][in_w][in_c] */
    const float *norm;   /* [frames][in_c][2] scale and shift, applied with a ReLU to what is read; or NULL */
    const float *weight; /* [kernel][kernel][in_c][out_c] */
    const float *bias;   /* [out_c] or NULL */
    const float *add;    /* as out, or NULL; may be out itself */
    float *out;          /* [frames][out_h][out_w][out_c] */
    int frames, in_h, in_w, in_c; /* in_c: a multiple of 8 */
    int out_h, out_w, out_c;      /* out_c: a multiple of 64 */
    int kernel, stride, pad;      /* at most 5; rows above and columns left of zeros */
    int gelu;                     /* exact (erf) GELU behind the bias */
};
int tt_k_conv_f32(const struct tt_k_conv_f32 *conv, void *stream);

/* ---- conv_f16.cu: 3×3 convolution on tensor cores ---- */

/* Output pixels × channels of a block, and input channels of a chunk. */
enum tt_k_conv_variant {
    TT_CONV_256x64_C32, /* with m16n8k8 only, as the next */
    TT_CONV_128x128_C32,
    TT_CONV_S2_128x128_C32, /* stride 2, padding 0 before and 1 behind */
    TT_CONV_256x64_C64,     /* with m16n8k16 only, as the next */
    TT_CONV_128x128_C64,
    TT_CONV_VARIANTS
};

/* out = conv3x3(relu(norm(in))) + conv1x1(relu(proj_norm(proj_in))) + add */
struct tt_k_conv_f16 {
    const uint16_t *in;      /* [frames][in_size][in_size][in_c] */
    const float *norm;       /* [frames][in_c][2] */
    const uint16_t *weight;  /* packed by tt_pack_conv_f16 with the variant's chunk, and 2 KB more that are
                                read, not used */
    const uint16_t *proj_in; /* [frames][proj_size][proj_size][proj_c], where proj_c > 0 (stride 1 only) */
    const float *proj_norm;
    const uint16_t *add; /* as out, or NULL */
    uint16_t *out;       /* [frames][out_size][out_size][out_c] */
    float *partial;      /* [frames][tiles][out_c][2] sums and sums of squares of out, or NULL */
    int frames, in_size, in_c, out_size, out_c, proj_size, proj_c;
    enum tt_k_conv_variant variant;
};
int tt_k_conv_f16(const struct tt_k_conv_f16 *conv, enum tt_k_mma mma, void *stream);
/* Input channels of a chunk, for tt_pack_conv_f16; tiles of a frame, for partial. */
int tt_k_conv_f16_chunk(enum tt_k_conv_variant variant);
int tt_k_conv_f16_tiles(enum tt_k_conv_variant variant, int out_size);

/* ---- product_f16.cu: the mixer's matrix products, width 256 or 384 ---- */

/* With h: half = layer_norm(h) · weight + bias. Without: out = a · weight + bias. */
struct tt_k_product_f16 {
    const float *h, *gamma, *beta; /* [rows][width] and [width]; or NULL */
    const uint16_t *a;             /* [rows][k], where h is NULL */
    const uint16_t *weight;        /* [width or k][n] packed by tt_pack_matrix_f16 */
    const float *bias;             /* [n] */
    uint16_t *half;                /* [rows][n], with h */
    float *out;                    /* [rows][width], without */
    int width, rows, k, n;         /* with h: n a multiple of width; without: k of 32, n is width */
};
int tt_k_product_f16(const struct tt_k_product_f16 *product, enum tt_k_mma mma, void *stream);

/* ---- mlp_f16.cu: the dense half of a mixer layer ---- */

/* h += gelu(layer_norm(h) · up + up_bias) · down + down_bias */
struct tt_k_mlp_f16 {
    float *h;                         /* [rows][width] */
    const float *gamma, *beta;        /* [width] */
    const uint16_t *up, *down;        /* [width][4·width], [4·width][width] packed by tt_pack_matrix_f16 */
    const float *up_bias, *down_bias; /* [4·width], [width] */
    int rows, width;                  /* width: 256 or 384 */
};
int tt_k_mlp_f16(const struct tt_k_mlp_f16 *mlp, enum tt_k_mma mma, void *stream);

/* ---- attend_f16.cu: attention of a mixer layer, with the product behind it ---- */

/* h += heads(qkv) · weight + bias; heads as tt_k_attention_f32. */
struct tt_k_attend_f16 {
    const uint16_t *qkv;    /* [queries][frames][3][width] */
    const uint16_t *weight; /* [width][width] packed by tt_pack_matrix_f16 */
    const float *bias;      /* [width] */
    float *h;               /* [queries][frames][width] */
    int queries, frames;    /* frames: 48 at most */
    int width;              /* 256 or 384 */
};
int tt_k_attend_f16(const struct tt_k_attend_f16 *attend, enum tt_k_mma mma, void *stream);

/* ---- stem.cu: the first convolution, 7×7 stride 2, padding 2 before and 3 behind ---- */

/* rgb [frames][size][size][3] 0..255, scaled to [-1, 1] on load; weight [7][7][3][64] FP32;
 * out [frames][size/2][size/2][64]. size: a multiple of 32. */
int tt_k_stem_f32(const uint8_t *rgb, const float *weight, float *out, int frames, int size, void *stream);
/* On tensor cores (stem_f16.cu): weight packed by tt_pack_stem_f16; partial: out,
 * [frames][(size/32)²][64][2] sums and sums of squares over 256 pixels each. */
int tt_k_stem_f16(const uint8_t *rgb, const uint16_t *weight, uint16_t *out, float *partial, int frames,
                  int size, enum tt_k_mma mma, void *stream);

/* ---- norm.cu ---- */

/* Pixels of one partial sum of the instance norm. */
enum { TT_K_NORM_CHUNK = 256 };

/* Sums and sums of squares of each channel over chunks of 256 pixels.
 * in [frames][pixels][channels]; partial: out, [frames][chunks][channels][2], chunks = ceil(pixels / 256).
 * channels: a multiple of 64. */
int tt_k_norm_partial_f32(const float *in, float *partial, int frames, int pixels, int channels,
                          void *stream);
int tt_k_norm_partial_f16(const uint16_t *in, float *partial, int frames, int pixels, int channels,
                          void *stream);
/* partial -> scale and shift with which x·scale + shift is the normalised, affine value.
 * gamma, beta [channels]; norm: out, [frames][channels][2]. */
int tt_k_norm_finish(const float *partial, const float *gamma, const float *beta, float *norm, int frames,
                     int chunks, int pixels, int channels, float epsilon, void *stream);
/* Group norm over groups of 16 channels and all positions of one patch: in [patches][positions][channels];
 * norm: out, [patches][channels][2]. */
int tt_k_group_norm_f32(const float *in, const float *gamma, const float *beta, float *norm, int patches,
                        int positions, int channels, float epsilon, void *stream);
/* Mean over positions of relu(x·scale + shift). out: patch p of group g = p / per_group goes to
 * out + (p % per_group)·row + g·channels: the two orientations side by side. */
int tt_k_relu_mean_f32(const float *in, const float *norm, float *out, int patches, int per_group, int row,
                       int positions, int channels, void *stream);
/* x / sqrt(max(sum x², 1e-12)) over the last axis: in, out [pixels][channels]; channels 64, 128 or 256. FP16:
 * out as features_f16.cuh says, as all that read features in FP16 expect them. */
int tt_k_l2_f32(const float *in, float *out, int64_t pixels, int channels, void *stream);
int tt_k_l2_f16(const uint16_t *in, uint16_t *out, int64_t pixels, int channels, void *stream);
/* Layer norm over the last axis, epsilon 1e-5: in, out [rows][width]; width: 256 or 384. */
int tt_k_layer_norm_f32(const float *in, const float *gamma, const float *beta, float *out, int rows,
                        int width, void *stream);

/* ---- sample.cu ---- */

/* Bilinear 7×7 supports around query points, clamped at the border. */
struct tt_k_support {
    const void *grid; /* [frames][size][size][channels], float or half; channels: even */
    const int *frame; /* [queries] 0..frames-1; what lies outside is clamped */
    const float *xy;  /* [queries][2], clip pixels */
    float *out;       /* query q: + q·row, [7][7][channels] */
    int queries, row, frames, size, channels;
    float scale; /* size / 256 */
};
int tt_k_support_f32(const struct tt_k_support *support, void *stream);
int tt_k_support_f16(const struct tt_k_support *support, void *stream);

/* ---- cost.cu: first estimate from the cost volume ---- */

struct tt_k_cost {
    const void *lowres;     /* [frames][32][32][256], L2-normalised; float or half */
    const void *hires;      /* [frames][64][64][128] */
    const float *lowres_q;  /* query q's lowres feature: + q·row, 256 floats */
    const float *hires_q;   /* 128 floats, same row */
    const float *conv;      /* [3][3][2]: ky, kx, {lowres, hires} */
    const float *occ_w;     /* [2][6] */
    const float *occ_b;     /* [2] */
    const int *query_frame; /* [queries], -1 where the query lies in another clip */
    const float *query_xy;  /* [queries][2], clip pixels */
    float *out;             /* [queries][frames][4]: x, y, occlusion, expected distance */
    int queries, frames, row;
};
int tt_k_cost_f32(const struct tt_k_cost *cost, void *stream);
/* On tensor cores (cost_f16.cu). */
int tt_k_cost_f16(const struct tt_k_cost *cost, enum tt_k_mma mma, void *stream);

/* ---- correlation.cu ---- */

/* Local 4D correlation: 8×8 integer patch of a frame's features (zero outside) times a query's 7×7 support,
 * then bilinear weights on the products.
 * grid [frames][size][size][channels]; support: query q at + q·row, [49][channels];
 * state [queries][frames][4] (x, y in clip pixels first);
 * volume: out, [2][queries·frames][49][56]: [0] rows (neighbourhood position), columns (support position);
 * [1] the transpose; columns 49..55 zero. channels: a multiple of 32. */
enum { TT_K_VOLUME_ROW = 56 };
int tt_k_correlate_f32(const float *grid, const float *support, const float *state, float *volume,
                       int queries, int frames, int row, int size, int channels, float scale, void *stream);

/* ---- embed_f16.cu, embed_base_f16.cu ---- */

/* Small's correlation and encoder in one kernel, all levels (embed_f16.cu): no volume in memory. */
enum { TT_K_EMBED_LEVELS = 3 };
struct tt_k_embed_level {
    const uint16_t *grid;      /* [frames][size][size][channels] */
    const float *support;      /* query q at + q·row: [49][channels] */
    const uint16_t *weight[2]; /* of each orientation, packed by tt_pack_embed_f16 */
    const uint16_t *weight2;   /* [4·64][128] (position, channel), packed by tt_pack_left_f16 */
    const float *bias[2], *gamma[2], *beta[2]; /* [64] and [128] */
    uint16_t *out;      /* query q, frame f, orientation o at + (q·frames + f)·out_row + 128·o */
    int size, channels; /* channels: 64, 128 or 256 */
    float scale;        /* size / 256 */
};
struct tt_k_embed_f16 {
    struct tt_k_embed_level level[TT_K_EMBED_LEVELS];
    const float *state;                        /* [queries][frames][4] */
    int levels, queries, frames, row, out_row; /* out_row: even */
};
int tt_k_embed_f16(const struct tt_k_embed_f16 *embed, enum tt_k_mma mma, void *stream);

/* The same of base (embed_base_f16.cu). */
struct tt_k_embed_base_level {
    const uint16_t *grid;
    const float *support;
    const uint16_t *weight[2];         /* of each orientation, packed by tt_pack_embed_base_f16 */
    const uint16_t *weight2, *weight3; /* [9·64][128], [4·128][128] (tap, channel), by tt_pack_left_f16 */
    const float *bias[3], *gamma[3], *beta[3]; /* [64], [128], [128] */
    uint16_t *out;
    int size, channels;
    float scale;
};
struct tt_k_embed_base_f16 {
    struct tt_k_embed_base_level level[TT_K_EMBED_LEVELS];
    const float *state;
    int levels, queries, frames, row, out_row;
};
int tt_k_embed_base_f16(const struct tt_k_embed_base_f16 *embed, enum tt_k_mma mma, void *stream);

/* ---- mixer.cu, attention.cu ---- */

enum { TT_K_TOKEN = 864 }; /* 854 mixer inputs and ten zeros: whole steps of 32 */

/* Where init [queries][frames][4] has an x that is not NaN, it replaces the state; but x and y in the query's
 * own frame are the query's. query_frame [queries], query_xy [queries][2]. */
int tt_k_state_init(const float *init, const int *query_frame, const float *query_xy, float *state,
                    int queries, int frames, void *stream);
/* Fills columns 0, 1 (occlusion, expected distance) and 770..863 (relative motion, sines, zeros) of
 * tokens [queries·frames][864] from state [queries][frames][4]; the correlation embeddings lie between. */
int tt_k_tokens_f32(const float *state, float *tokens, int queries, int frames, void *stream);
int tt_k_tokens_f16(const float *state, uint16_t *tokens, int queries, int frames, void *stream);
/* state += layer_norm(h)·weightᵀ + bias, the four outputs that are read: h [rows][width], weight [4][width],
 * bias [4], state [rows][4]; width: 256 or 384. */
int tt_k_head_f32(const float *h, const float *gamma, const float *beta, const float *weight,
                  const float *bias, float *state, int rows, int width, void *stream);
/* Attention with ALiBi slopes; the first half of the heads looks back in time, the second half ahead.
 * qkv [queries][frames][3][heads][64]; out [queries][frames][heads][64]. frames <= 64. */
int tt_k_attention_f32(const float *qkv, float *out, int queries, int frames, int heads, void *stream);

#ifdef __cplusplus
}
#endif

#endif

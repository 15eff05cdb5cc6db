/* cuda/pack.h: weights as the FP16 tensor-core kernels read them. Host code, plain C.
 *
 * Columns (output channels) in blocks of 64, k in steps of 16. A step of a block is 4 × 32 × 16 bytes: column
 * pair j, lane l = 4·g + q: the four words {k 2q, 2q+1; k 2q+8, 2q+9} of column 16·j + g, then of column
 * 16·j + 8 + g: the B operands of mma m16n8k16, or of two m16n8k8.
 */
#ifndef TT_CUDA_PACK_H
#define TT_CUDA_PACK_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Rounds to nearest even; overflow gives infinity. */
uint16_t tt_half_from_float(float x);
float tt_float_from_half(uint16_t h);

/* matrix [k][n] row-major; k a multiple of 16, n of 64. packed: out, k·n. */
void tt_pack_matrix_f16(uint16_t *packed, const float *matrix, int k, int n);
/* The same for kernels in which the columns of the matrix are the rows of the left operand: a lane's words
 * are k 2q of column 16·j + g, k 2q of column 16·j + 8 + g, then k 2q + 8 of both. */
void tt_pack_left_f16(uint16_t *packed, const float *matrix, int k, int n);

/* weight [out_c][in_c][3][3]; projection [out_c][proj_c] or NULL (proj_c 0): read after it.
 * k runs over chunks of `chunk` input channels, taps, channels of the chunk. packed: out,
 * (9·in_c + proj_c)·out_c. Returns 0, or -1 without memory. */
int tt_pack_conv_f16(uint16_t *packed, const float *weight, const float *projection, int out_c, int in_c,
                     int proj_c, int chunk);
/* weight [64][49][5][5] of small's first encoder convolution, for an orientation, in steps of 16 × 64 as
 * embed_f16.cu reads them. packed: out, as many halfs as the enumeration says. */
enum { TT_EMBED_HALFS_0 = 25 * 3584, TT_EMBED_HALFS_1 = 7 * 19 * 1024 };
void tt_pack_embed_f16(uint16_t *packed, const float *weight, int orientation);

/* weight [64][49][3][3] of base's first encoder convolution, for an orientation, as embed_base_f16.cu reads
 * it. packed: out, as many halfs as the enumeration says. */
enum { TT_EMBED_BASE_HALFS_0 = 3 * 10752, TT_EMBED_BASE_HALFS_1 = 7 * 5 * 1024 };
void tt_pack_embed_base_f16(uint16_t *packed, const float *weight, int orientation);

/* weight [7][7][3][64] of the first convolution, scaled by 2/255. packed: out, 176·64. Returns 0, or -1
 * without memory. */
int tt_pack_stem_f16(uint16_t *packed, const float *weight);

/* FP16 features as they lie on the device (features_f16.cuh) <-> [pixel][channel]; the first pixel is in an
 * even column, rows are even. channels: a multiple of 64. */
void tt_pack_swap_features_f16(uint16_t *features, size_t pixels, int channels);

#ifdef __cplusplus
}
#endif

#endif

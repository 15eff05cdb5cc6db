/* tests/kernels/reference.h: the kernels' mathematics in plain C and FP64, written for reading.
 *
 * All arrays are as cuda/kernels.h describes them; results are doubles. Inputs are not changed.
 */
#ifndef TT_TESTS_REFERENCE_H
#define TT_TESTS_REFERENCE_H

#include <stdint.h>

/* out [frames][out_size][out_size][out_c] = conv(x', weight) with x' = relu(norm(in)) where norm is given.
 * weight [out_c][in_c][kernel][kernel], as in the public state_dict; bias may be NULL. round16: x' is rounded
 * to FP16 as the FP16 kernels do. Adds to out where add is set. */
struct ref_conv {
    const float *in, *norm, *weight, *bias;
    int frames, in_size, in_c, out_size, out_c, kernel, stride, pad, round16, add;
};
void ref_conv(double *out, const struct ref_conv *c);
double ref_gelu(double x);

void ref_stem(double *out, const uint8_t *rgb, const float *weight, int frames, int size);
/* scale and shift [frames][channels][2] of an instance norm */
void ref_instance_norm(double *norm, const float *in, const float *gamma, const float *beta, int frames,
                       int pixels, int channels, double epsilon);
void ref_group_norm(double *norm, const float *in, const float *gamma, const float *beta, int patches,
                    int positions, int channels, double epsilon);
void ref_layer_norm(double *out, const float *in, const float *gamma, const float *beta, int rows, int width);
void ref_support(double *out, const float *grid, const int *frame, const float *xy, int queries, int size,
                 int channels, double scale);
/* direct [49][49] of one query and frame: bilinear samples first, products second, as the public code does */
void ref_correlate(double *direct, const float *grid, const float *support, double x, double y, int size,
                   int channels);
/* x, y, occlusion, expected distance of one query and frame */
void ref_cost(double *out, const float *lowres, const float *hires, const float *lowres_q,
              const float *hires_q, const float *conv, const float *occ_w, const float *occ_b);
void ref_tokens(double *tokens, const float *state, int queries, int frames, int row);
void ref_attention(double *out, const float *qkv, int queries, int frames, int heads);

#endif

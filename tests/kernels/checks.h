/* tests/kernels/checks.h: the groups of checks; each runs its kernels and prints a line for every case. */
#ifndef TT_TESTS_CHECKS_H
#define TT_TESTS_CHECKS_H

#include "cuda/kernels.h"

void check_conv_f32(void);
void check_stem(void);
void check_stem_f16(enum tt_k_mma mma);
void check_conv_f16(enum tt_k_mma mma);
void check_product_f16(enum tt_k_mma mma);
void check_mlp_f16(enum tt_k_mma mma);
void check_attend_f16(enum tt_k_mma mma);
void check_norms(void);
void check_support(void);
void check_cost(void);
void check_correlate(void);
void check_tokens(void);
void check_head(void);
void check_attention(void);
void check_cost_f16(enum tt_k_mma mma);
void check_embed_f16(enum tt_k_mma mma);
void check_embed_small_f16(enum tt_k_mma mma);
void check_embed_base_f16(enum tt_k_mma mma);
void check_embed_base_small_f16(enum tt_k_mma mma);

#endif

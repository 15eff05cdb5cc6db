/* tests/kernels/checkkern.c: every kernel against plain C, one line each; fails if any does.
 *
 * Random inputs (the seed is printed; an argument sets it), odd shapes, borders; outputs are filled with NaN
 * before, lie between canaries, and each kernel runs twice: the bits must agree. Built
 * for sm_80 or later (KERN_K16 = 1), the FP16 kernels are checked with m16n8k16 as well as with m16n8k8.
 */
#include "tests/kernels/checks.h"
#include "tests/kernels/kern.h"

#include <stdio.h>
#include <stdlib.h>

int main(int argc, char **argv)
{
    const uint64_t seed = argc > 1 ? strtoull(argv[1], NULL, 0) : 1;
    kern_seed(seed);
    printf("seed %llu\n", (unsigned long long)seed);
    check_conv_f32();
    check_stem();
    check_norms();
    check_support();
    check_cost();
    check_correlate();
    check_tokens();
    check_head();
    check_attention();
    for (int k = 0; k <= KERN_K16; k++) {
        check_stem_f16(k ? TT_MMA_K16 : TT_MMA_K8);
        check_conv_f16(k ? TT_MMA_K16 : TT_MMA_K8);
        check_product_f16(k ? TT_MMA_K16 : TT_MMA_K8);
        check_mlp_f16(k ? TT_MMA_K16 : TT_MMA_K8);
        check_attend_f16(k ? TT_MMA_K16 : TT_MMA_K8);
        check_cost_f16(k ? TT_MMA_K16 : TT_MMA_K8);
        check_embed_f16(k ? TT_MMA_K16 : TT_MMA_K8);
        check_embed_base_f16(k ? TT_MMA_K16 : TT_MMA_K8);
    }
    printf("%d passed, %d failed\n", kern_passed(), kern_failed());
    return kern_failed() != 0;
}

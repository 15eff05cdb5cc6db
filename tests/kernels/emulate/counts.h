/* tests/kernels/emulate/counts.h: what the lanes of emulated launches have done since the counts were last
 * cleared. */
#ifndef TT_TESTS_EMULATE_COUNTS_H
#define TT_TESTS_EMULATE_COUNTS_H

#ifdef __cplusplus
extern "C" {
#endif

struct emulate_counts {
    long lanes;    /* threads started */
    long products; /* m16n8k8; an m16n8k16 is two */
    long ldmatrix, shuffles, transposes;
    long weights; /* loads of 16 bytes by __ldg */
};
extern struct emulate_counts emulate_counts;

#ifdef __cplusplus
}
#endif

#endif

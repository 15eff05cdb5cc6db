/* tests/kernels/bench.h: timing of one launch among rotated inputs, and the cases that are timed. */
#ifndef TT_TESTS_BENCH_H
#define TT_TESTS_BENCH_H

#include "cuda/kernels.h"

enum { BENCH_SETS = 4 }; /* input sets in rotation, so that no run finds the last one's data in L2 */

struct bench {
    double flop, bytes; /* of one launch; bytes: each input read once, each output written once */
    int (*launch)(const void *context, int set, void *stream);
    const void *context;
};

/* Median over 15 samples of 4 launches each, after a warm-up; prints one line. The name is printf-formatted.
 */
void bench_run(const struct bench *bench, const char *name, ...) __attribute__((format(printf, 2, 3)));
/* The measured ceiling, TFLOP/s, that lines are compared with. 0: none. */
void bench_against(double tflops);

void bench_conv_f16(enum tt_k_mma mma);
void bench_conv_f32(void);
void bench_embed_f16(enum tt_k_mma mma);
void bench_mixes(enum tt_k_mma mma);
void bench_product_f16(enum tt_k_mma mma);
void bench_small(void);
void bench_track_f32(void);
void bench_track_f16(enum tt_k_mma mma);

#endif

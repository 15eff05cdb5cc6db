/* tests/kernels/kern.h: what checkkern and benchkern share: random data, guarded device buffers, verdicts.
 *
 * Any CUDA error ends the program with a message: a lost device has no more answers.
 */
#ifndef TT_TESTS_KERN_H
#define TT_TESTS_KERN_H

#include <stddef.h>
#include <stdint.h>

/* Ends the program where status is not cudaSuccess. */
void kern_status(int status, const char *what);

/* Uniform in [-1, 1), the same sequence on every machine. Seeded anew by kern_seed. */
void kern_seed(uint64_t seed);
float kern_uniform(void);
/* A new array of n random values in [-scale, scale); freed by kern_free_all. */
float *kern_random(size_t n, float scale);
/* Rounds x to FP16 in place and returns the FP16 bits. */
uint16_t *kern_to_half(float *x, size_t n);
void *kern_zeros(size_t bytes);

/* A device copy of host memory, freed by kern_free_all. */
void *kern_upload(const void *host, size_t bytes);
void *kern_device(size_t bytes);
void kern_free_all(void);

/* An output: device memory between two canaries, filled with NaN (all bits set), or with `initial`, before
 * each of two runs; both results are fetched and must agree in every bit. */
struct kern_out {
    unsigned char *block;
    void *device;  /* what the kernel gets */
    void *host[2]; /* of each run */
    const void *initial;
    size_t bytes;
};
struct kern_out kern_output(size_t bytes, const void *initial);
void kern_poison(struct kern_out *out);
void kern_take(struct kern_out *out, int run);

#define KERN_RUN(out, call)                                                                                  \
    do {                                                                                                     \
        for (int kern_run = 0; kern_run < 2; kern_run++) {                                                   \
            kern_poison(&(out));                                                                             \
            kern_status((call), #call);                                                                      \
            kern_take(&(out), kern_run);                                                                     \
        }                                                                                                    \
    } while (0)

/* Prints one line and counts: ||got - want|| / ||want|| <= relative and no single error above `worst` times
 * the root mean square of want. NaN fails. The name is printf-formatted. */
void kern_verdict(struct kern_out *out, const double *want, size_t n, int half, double relative, double worst,
                  const char *name, ...) __attribute__((format(printf, 7, 8)));
/* Prints one line and counts: both outputs have the same bits. */
void kern_same(const struct kern_out *a, const struct kern_out *b, const char *name);
/* Prints one line and counts: the call must have returned an error. */
void kern_refused(int status, const char *name);
int kern_passed(void);
int kern_failed(void);

#endif

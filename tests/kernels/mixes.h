/* tests/kernels/mixes.h: micro-benchmarks of the instructions and bytes of the main kernels, without their
 * order.
 *
 * A mix has a kernel's blocks, warps, shared memory and blocks a multiprocessor, and in each of its steps (a
 * turn, a row of the kernel's) as many tensor-core instructions, ldmatrix, 16-byte loads of weights,
 * shuffles, transpositions, loads and stores of shared memory, FP32 instructions and approximations as a warp
 * of the kernel, spread evenly; it reads and writes as many bytes of memory as a block of the kernel. But
 * nothing waits for anything except a load's own use, several loads later; there are no addresses to find, no
 * branches, and barriers only where they are asked for. A kernel that is no slower than its mix is explained
 * by its instructions; what it is slower than the mix with barriers is its dependences. checkemu holds each
 * mix's numbers against its kernel's.
 */
#ifndef TT_TESTS_MIXES_H
#define TT_TESTS_MIXES_H

#include "cuda/kernels.h"

#ifdef __cplusplus
extern "C" {
#endif

enum mix {
    MIX_CONV_64,    /* conv_f16, 256 pixels × 64 channels, 64 channels in */
    MIX_CONV_128,   /* conv_f16, 128 × 128, 128 channels in */
    MIX_EMBED_256,  /* embed_f16 at 256 channels */
    MIX_NORMED_256, /* product_f16, 256 -> 768, behind a norm */
    MIX_MLP_256,    /* mlp_f16 */
    MIX_MLP_384,
    MIXES
};

/* What a mix is made of. */
struct mix_shape {
    const char *kernel;
    int threads, shared_bytes; /* of a block */
    int steps, mma;            /* of a warp, of a step; as m16n8k16 */
    int reads, region, writes; /* of a thread: 16 bytes of memory in, of which so many are its own, and out */
};
struct mix_shape mix_shape(enum mix which);

struct mix_run {
    int blocks;
    const void *weight; /* borrows; read again and again, in steps of 512 bytes a warp */
    int weight_bytes;   /* 64 KiB or more */
    const void *in;     /* borrows; ((blocks - 1) · region + reads) · threads · 16 bytes */
    void *out;          /* blocks · writes · threads · 16 bytes */
    float *sink;
};
/* Queues it; barriers: as many as the kernel has. Returns a cudaError_t. */
int mix_run(enum mix which, const struct mix_run *run, int barriers, enum tt_k_mma mma, void *stream);

#ifdef __cplusplus
}
#endif

#endif

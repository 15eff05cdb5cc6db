/* tests/kernels/launching.h: the part of CUDA's runtime that compiled kernels call, without a GPU: kernels
 * are numbered as they register themselves, and a launch goes to the program that is linked with this.
 */
#ifndef TT_TESTS_LAUNCHING_H
#define TT_TESTS_LAUNCHING_H

#include <cuda_runtime_api.h>

enum { LAUNCHING_KERNELS = 512 };

/* How many there are, the mangled name of one (borrowed, for ever), and which one it is: its number from the
 * host's stub or from its name, or -1. */
int launching_count(void);
const char *launching_name(int kernel);
int launching_find(const void *host, const char *name);

/* The program's: a launch. Returns what the launch does. */
cudaError_t launching_launch(int kernel, dim3 grid, dim3 block, void **arguments, size_t shared,
                             cudaStream_t stream);

#endif

/* tests/kernels/emulate/emulate.h: a kernel's source on the CPU, lane by lane.
 *
 * For machines without a GPU: it shows whether indices, layouts and sums are right, not whether a kernel is
 * fast, nor whether threads race (lanes take turns). translate.py turns launches and instructions in asm
 * into calls of these functions. Each thread of a block is a coroutine; what a warp does together waits for
 * its 32 lanes, so that a lane that is missing shows as a program that does not end.
 */
#ifndef TT_TESTS_EMULATE_H
#define TT_TESTS_EMULATE_H

#include <functional>
#include <stddef.h>
#include <stdint.h>
#include <vector_types.h>

#include "tests/kernels/emulate/counts.h"

extern uint3 emulate_thread, emulate_block;
extern dim3 emulate_grid;
extern unsigned char *emulate_shared; /* dynamic shared memory, all bits set before each block */

/* Runs body once in each thread of each block. */
void emulate_launch(dim3 grid, int threads, size_t bytes, const std::function<void()> &body);
void emulate_syncthreads();
/* Barrier `number` (0..15) of so many threads. */
void emulate_barrier(int number, int threads);
float emulate_shuffle(float x, int mask);
uint32_t emulate_shuffle(uint32_t x, int mask);
/* movmatrix.trans, ldmatrix.x4, and mma m16n8k16 with each sum in FP64, rounded once. */
uint32_t emulate_transpose(uint32_t x);
void emulate_ldmatrix4(uint32_t (&r)[4], uint32_t address);
void emulate_mma(float (&c)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1);

#endif

/* tests/kernels/emulate/check_mixes.h: whether the mixes (mixes.h) are made of what their kernels are made
 * of. */
#ifndef TT_TESTS_CHECK_MIXES_H
#define TT_TESTS_CHECK_MIXES_H

#include "tests/kernels/mixes.h"

/* Prints a line for each mix; returns how many are unlike their kernels. */
int check_mixes(void);

#endif

/* core/cpu/vec.h: sixteen floats at a time, in the compiler's own vector types.
 *
 * One vector becomes one AVX-512 register, two of AVX2 or four of SSE2: a function marked TT_CLONES is
 * compiled for each of these and the right one is bound when the program is loaded. The project is compiled
 * without contraction of products and sums (-ffp-contract=off), so all of them give the same bits.
 */
#ifndef TT_CORE_CPU_VEC_H
#define TT_CORE_CPU_VEC_H

#include <stdint.h>
#include <string.h>

#if defined(__x86_64__) && defined(__GNUC__) && !defined(__clang__) && !defined(__SANITIZE_ADDRESS__) &&     \
    !defined(__SANITIZE_THREAD__)
#define TT_CLONES __attribute__((target_clones("avx512f", "avx2", "default")))
#else
#define TT_CLONES /* sanitizers instrument the functions that bind clones before they are ready for it */
#endif

enum { TT_LANES = 16 };

typedef float tt_vec __attribute__((vector_size(64)));
typedef int32_t tt_ivec __attribute__((vector_size(64)));
typedef float tt_vec_memory __attribute__((vector_size(64), aligned(4), may_alias));

#define TT_INLINE static inline __attribute__((always_inline))

TT_INLINE tt_vec tt_load(const float *p)
{
    return *(const tt_vec_memory *)p;
}

TT_INLINE void tt_store(float *p, tt_vec v)
{
    *(tt_vec_memory *)p = v;
}

TT_INLINE tt_vec tt_splat(float x)
{
    return x - (tt_vec){0};
}

typedef double tt_dvec __attribute__((vector_size(64)));
typedef float tt_half_vec __attribute__((vector_size(32), aligned(4), may_alias));

/* Eight floats as doubles. */
TT_INLINE tt_dvec tt_load_double(const float *p)
{
    return __builtin_convertvector(*(const tt_half_vec *)p, tt_dvec);
}

/* Eight doubles as floats. */
TT_INLINE void tt_store_double(float *p, tt_dvec v)
{
    *(tt_half_vec *)p = __builtin_convertvector(v, tt_half_vec);
}

/* mask: all ones or all zeros in each lane, as comparisons give it. */
TT_INLINE tt_vec tt_select(tt_ivec mask, tt_vec yes, tt_vec no)
{
    return (tt_vec)((mask & (tt_ivec)yes) | (~mask & (tt_ivec)no));
}

TT_INLINE tt_vec tt_max(tt_vec a, tt_vec b)
{
    return tt_select(a > b, a, b);
}

TT_INLINE tt_vec tt_min(tt_vec a, tt_vec b)
{
    return tt_select(a < b, a, b);
}

/* The sum of the lanes, in a fixed order. */
TT_INLINE float tt_sum(tt_vec v)
{
    float lane[TT_LANES];

    tt_store(lane, v);
    for (int step = TT_LANES / 2; step; step /= 2)
        for (int i = 0; i < step; i++)
            lane[i] += lane[i + step];
    return lane[0];
}

/* e^x, relative error below 2e-7; x is held to -87..88, where the result is a normal number. */
TT_INLINE tt_vec tt_exp(tt_vec x)
{
    const float round = 12582912.0f; /* 1.5·2^23: adding it leaves no bits behind the point */
    tt_vec n, r, p;
    tt_ivec bits;

    x = tt_max(tt_min(x, tt_splat(88.0f)), tt_splat(-87.0f));
    n = (x * 1.44269504f + round) - round;
    r = (x - n * 0.693359375f) + n * 2.12194440e-4f; /* ln 2 in two parts; the first product is exact */
    /* minimax on |r| <= ln(2)/2, largest relative error 2e-9 before rounding */
    p = r * 0.001395605388f + 0.008375130594f;
    p = p * r + 0.04166608304f;
    p = p * r + 0.1666641533f;
    p = p * r + 0.5f;
    p = p * r + 1.0f;
    p = p * r + 1.0f;
    bits = __builtin_convertvector(n, tt_ivec) << 23;
    return (tt_vec)((tt_ivec)p + bits);
}

/* erf(x), absolute error below 2e-7: an odd polynomial up to 1, 1 − e^−g(|x|) beyond, where g is a polynomial
 * for −ln erfc on 1..4 (beyond 4, erf is 1 in FP32). */
TT_INLINE tt_vec tt_erf(tt_vec x)
{
    tt_ivec sign = (tt_ivec)x & INT32_MIN;
    tt_vec a = (tt_vec)((tt_ivec)x & INT32_MAX), s = x * x, near, g, far;

    near = s * 7.889119297e-05f - 0.0008020841051f;
    near = near * s + 0.005189535208f;
    near = near * s - 0.02685444430f;
    near = near * s + 0.1128360033f;
    near = near * s - 0.3761262596f;
    near = near * s + 1.128379107f;
    a = tt_min(a, tt_splat(4.0f));
    g = a * -0.0001855748997f + 0.002939615864f;
    g = g * a - 0.0218053516f;
    g = g * a + 0.1030374393f;
    g = g * a + 0.638225615f;
    g = g * a + 1.127040029f;
    g = g * a + 0.0003537089215f;
    far = 1.0f - tt_exp(-g);
    return tt_select(a < 1.0f, near * x, (tt_vec)((tt_ivec)far | sign));
}

#endif

/* cuda/mixer_f16.cuh: what the mixer's FP16 kernels share: layer norm into shared memory, GELU, their tile.
 *
 * A warp's tile is 16·TILES rows × 8·N columns, N 8 or 4; A by ldmatrix from shared memory, rows of it 16
 * bytes longer than what they hold; B packed from L1/L2 (tile_f16.cuh). Layer norm as in norm.cu: two passes,
 * a butterfly; a lane holds four columns of each 128. GELU is the erf form, with erfc by Abramowitz and
 * Stegun 7.1.26 and the hardware's reciprocal and power: 3e-7 absolute, before rounding to FP16.
 */
#ifndef TT_CUDA_MIXER_F16_CUH
#define TT_CUDA_MIXER_F16_CUH

#include "cuda/row.cuh"
#include "cuda/tile_f16.cuh"

/* max(x, 0) - |x|·Φ(-|x|), Φ(-z√2) = erfc(z) / 2. */
__device__ __forceinline__ float tt_gelu_fast(float x)
{
    const float z = fabsf(x);
    const float t = tt_reciprocal(fmaf(0.3275911f * 0.70710678f, z, 1.0f));
    const float e = tt_power_of_2(x * x * -0.72134752f);
    const float poly =
        fmaf(t, fmaf(t, fmaf(t, fmaf(t, 0.5307027145f, -0.7265760135f), 0.7107068705f), -0.142248368f),
             0.127414796f);
    return fmaf(-z, poly * t * e, fmaxf(x, 0.0f));
}

/* B of a step of k, 8·N columns of a block of 64. */
template <int N> struct tt_columns {
    uint4 r[N / 2];
    /* packed: this lane's first 16 bytes */
    __device__ __forceinline__ void load(const uint4 *packed)
    {
#pragma unroll
        for (int i = 0; i < N / 2; i++)
            r[i] = __ldg(packed + i * 32);
    }
};

/* Where a warp's columns lie in the first step of a packed matrix of `steps`: 8·N from number 8·N·part on. */
template <int N>
__device__ __forceinline__ const uint4 *tt_columns_of(const void *packed, int part, int steps)
{
    enum { PARTS = 8 / N };
    return reinterpret_cast<const uint4 *>(packed) + (size_t)(part / PARTS) * steps * 128 +
           part % PARTS * (N * 16) + threadIdx.x % 32;
}

/* The row tiles of A. LATE: each is loaded when it is needed, where registers are short; otherwise for the
 * next step once it has been used. */
template <int TILES, bool LATE> struct tt_rows {
    uint32_t r[LATE ? 1 : TILES][4];
    uint32_t tile_bytes;

    /* address: of this lane's row (lane % 16) and half (lane / 16) in the first tile */
    __device__ __forceinline__ void start(uint32_t address)
    {
#pragma unroll
        for (int i = 0; i < TILES && !LATE; i++)
            tt_ldmatrix4(r[i], address + i * tile_bytes);
    }

    /* A step of k; at, next: addresses of this one and of what comes after it */
    template <bool K16, int N>
    __device__ __forceinline__ void step(float (&c)[TILES][N][4], const tt_columns<N> &b, uint32_t at,
                                         uint32_t next)
    {
#pragma unroll
        for (int i = 0; i < TILES; i++) {
            uint32_t(&a)[4] = r[LATE ? 0 : i];
            if (LATE)
                tt_ldmatrix4(a, at + i * tile_bytes);
#pragma unroll
            for (int j = 0; j < N / 2; j++) {
                tt_mma<K16>(c[i][2 * j], a, b.r[j].x, b.r[j].y);
                tt_mma<K16>(c[i][2 * j + 1], a, b.r[j].z, b.r[j].w);
            }
            if (!LATE)
                tt_ldmatrix4(a, next + i * tile_bytes);
        }
    }
};

/* Every row of the tile begins with the bias; bias: at this lane's first column. */
template <int TILES, int N>
__device__ __forceinline__ void tt_start(float (&acc)[TILES][N][4], const float *bias)
{
#pragma unroll
    for (int j = 0; j < N; j++) {
        const float2 v = *reinterpret_cast<const float2 *>(bias + j * 8);
#pragma unroll
        for (int i = 0; i < TILES; i++)
            acc[i][j][0] = acc[i][j][2] = v.x, acc[i][j][1] = acc[i][j][3] = v.y;
    }
}

/* acc += from [rows][WIDTH]; row, column: this lane's first. Rows past the end add the last one. */
template <int WIDTH, int TILES, int N>
__device__ __forceinline__ void tt_add_rows(float (&acc)[TILES][N][4], const float *from, int row, int rows,
                                            int column)
{
#pragma unroll
    for (int i = 0; i < TILES; i++)
#pragma unroll
        for (int r = 0; r < 2; r++) {
            const float *at = from + (size_t)min(row + i * 16 + 8 * r, rows - 1) * WIDTH + column;
#pragma unroll
            for (int j = 0; j < N; j++) {
                const float2 v = *reinterpret_cast<const float2 *>(at + j * 8);
                acc[i][j][2 * r] += v.x, acc[i][j][2 * r + 1] += v.y;
            }
        }
}

template <int WIDTH, int TILES, int N>
__device__ __forceinline__ void tt_store_rows(const float (&acc)[TILES][N][4], float *to, int row, int rows,
                                              int column)
{
#pragma unroll
    for (int i = 0; i < TILES; i++)
#pragma unroll
        for (int r = 0; r < 2; r++)
            if (row + i * 16 + 8 * r < rows)
#pragma unroll
                for (int j = 0; j < N; j++)
                    *reinterpret_cast<float2 *>(to + (size_t)(row + i * 16 + 8 * r) * WIDTH + column +
                                                j * 8) = make_float2(acc[i][j][2 * r], acc[i][j][2 * r + 1]);
}

/* Layer norm of ROWS rows of h from row0 on into lines of shared memory; BATCH rows of a warp in flight. Rows
 * past the end are the last one. */
template <int WIDTH, int ROWS, int WARPS>
__device__ __forceinline__ void tt_norm_rows(unsigned char *shared, const float *h, const float *gamma,
                                             const float *beta, int row0, int rows)
{
    enum { LINE = 2 * WIDTH + 16, PARTS = WIDTH / 128, BATCH = 12 / PARTS };
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    tt_row<WIDTH> w, s;
    w.load(gamma);
    s.load(beta);
#pragma unroll 1
    for (int first = warp; first < ROWS; first += WARPS * BATCH) {
        tt_row<WIDTH> r[BATCH];
#pragma unroll
        for (int i = 0; i < BATCH; i++)
            r[i].load(h + (size_t)min(row0 + first + i * WARPS, rows - 1) * WIDTH);
#pragma unroll
        for (int i = 0; i < BATCH; i++) {
            r[i].normalise(w, s);
            if (first + i * WARPS < ROWS)
#pragma unroll
                for (int k = 0; k < PARTS; k++)
                    *reinterpret_cast<uint2 *>(shared + (first + i * WARPS) * LINE + k * 256 + lane * 8) =
                        make_uint2(tt_pack(r[i].v[k].x, r[i].v[k].y), tt_pack(r[i].v[k].z, r[i].v[k].w));
        }
    }
}

#endif

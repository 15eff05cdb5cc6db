/* cuda/mixer_f16.cuh: what the mixer's FP16 kernels share: layer norm into shared memory, GELU, their tile.
 *
 * A warp's tile is 16·TILES rows × 64 columns; A by ldmatrix from shared memory, rows of it 16 bytes longer
 * than what they hold; B packed from L1/L2 (tile_f16.cuh). Layer norm as in norm.cu: two passes, a butterfly;
 * a lane holds four columns of each 128. GELU is the erf form, with erfc by Abramowitz and Stegun 7.1.26 and
 * the hardware's reciprocal and power: 3e-7 absolute, before rounding to FP16.
 */
#ifndef TT_CUDA_MIXER_F16_CUH
#define TT_CUDA_MIXER_F16_CUH

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

/* A step of k: B fragment `b` against the row tiles of A, each loaded for the next step once it is used. */
template <bool K16, int TILES>
__device__ __forceinline__ void tt_step_rows(float (&c)[TILES][8][4], uint32_t (&a)[TILES][4],
                                             const tt_frag_b &b, uint32_t next, uint32_t tile_bytes)
{
#pragma unroll
    for (int i = 0; i < TILES; i++) {
#pragma unroll
        for (int j = 0; j < 4; j++) {
            tt_mma<K16>(c[i][2 * j], a[i], b.r[j].x, b.r[j].y);
            tt_mma<K16>(c[i][2 * j + 1], a[i], b.r[j].z, b.r[j].w);
        }
        tt_ldmatrix4(a[i], next + i * tile_bytes);
    }
}

/* Every row of the tile begins with the bias; bias: at this lane's first column. */
template <int TILES> __device__ __forceinline__ void tt_start(float (&acc)[TILES][8][4], const float *bias)
{
#pragma unroll
    for (int j = 0; j < 8; j++) {
        const float2 v = *reinterpret_cast<const float2 *>(bias + j * 8);
#pragma unroll
        for (int i = 0; i < TILES; i++)
            acc[i][j][0] = acc[i][j][2] = v.x, acc[i][j][1] = acc[i][j][3] = v.y;
    }
}

/* acc += from [rows][WIDTH]; row, column: this lane's first. Rows past the end add the last one. */
template <int WIDTH, int TILES>
__device__ __forceinline__ void tt_add_rows(float (&acc)[TILES][8][4], const float *from, int row, int rows,
                                            int column)
{
#pragma unroll
    for (int i = 0; i < TILES; i++)
#pragma unroll
        for (int r = 0; r < 2; r++) {
            const float *at = from + (size_t)min(row + i * 16 + 8 * r, rows - 1) * WIDTH + column;
#pragma unroll
            for (int j = 0; j < 8; j++) {
                const float2 v = *reinterpret_cast<const float2 *>(at + j * 8);
                acc[i][j][2 * r] += v.x, acc[i][j][2 * r + 1] += v.y;
            }
        }
}

template <int WIDTH, int TILES>
__device__ __forceinline__ void tt_store_rows(const float (&acc)[TILES][8][4], float *to, int row, int rows,
                                              int column)
{
#pragma unroll
    for (int i = 0; i < TILES; i++)
#pragma unroll
        for (int r = 0; r < 2; r++)
            if (row + i * 16 + 8 * r < rows)
#pragma unroll
                for (int j = 0; j < 8; j++)
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
    float4 w[PARTS], s[PARTS];
#pragma unroll
    for (int k = 0; k < PARTS; k++)
        w[k] = tt_load4(gamma + k * 128 + lane * 4), s[k] = tt_load4(beta + k * 128 + lane * 4);
#pragma unroll 1
    for (int first = warp; first < ROWS; first += WARPS * BATCH) {
        float4 v[BATCH][PARTS];
#pragma unroll
        for (int i = 0; i < BATCH; i++) {
            const float *from = h + (size_t)min(row0 + first + i * WARPS, rows - 1) * WIDTH + lane * 4;
#pragma unroll
            for (int k = 0; k < PARTS; k++)
                v[i][k] = tt_load4(from + k * 128);
        }
#pragma unroll
        for (int i = 0; i < BATCH; i++) {
            float sum = 0.0f, square = 0.0f;
#pragma unroll
            for (int k = 0; k < PARTS; k++)
                sum += (v[i][k].x + v[i][k].y) + (v[i][k].z + v[i][k].w);
            const float mean = tt_warp_sum(sum) * (1.0f / WIDTH);
#pragma unroll
            for (int k = 0; k < PARTS; k++) {
                float4 &x = v[i][k];
                x.x -= mean, x.y -= mean, x.z -= mean, x.w -= mean;
                square += fmaf(x.x, x.x, x.y * x.y) + fmaf(x.z, x.z, x.w * x.w);
            }
            const float scale = 1.0f / sqrtf(tt_warp_sum(square) * (1.0f / WIDTH) + 1e-5f);
            if (first + i * WARPS < ROWS)
#pragma unroll
                for (int k = 0; k < PARTS; k++)
                    *reinterpret_cast<uint2 *>(shared + (first + i * WARPS) * LINE + k * 256 + lane * 8) =
                        make_uint2(tt_pack(fmaf(v[i][k].x * scale, w[k].x, s[k].x),
                                           fmaf(v[i][k].y * scale, w[k].y, s[k].y)),
                                   tt_pack(fmaf(v[i][k].z * scale, w[k].z, s[k].z),
                                           fmaf(v[i][k].w * scale, w[k].w, s[k].w)));
        }
    }
}

#endif

/* cuda/encoder_base_f16.cu: base's correlation encoder on tensor cores, three convolutions and norms in one
 * kernel.
 *
 * 3×3 stride 2 (49 -> 64, 4 × 4 positions), 3×3 stride 2 (64 -> 128, 2 × 2), 2×2 (128 -> 128, one), each with
 * group norm and ReLU. Channels are the rows of the products and patches (volumes of one orientation) their
 * columns, as in embed_f16.cu. A block of four warps takes 16 patches, a warp a quarter of the channels, so
 * that a group of 16 channels, over all positions, never leaves a warp; two blocks a multiprocessor. First
 * convolution: 128 accumulators a lane; the weights of the taps that meet an even, or an odd, row of the
 * patch wait in registers, and each value of the patch is read once and serves one, two or four taps; what
 * would meet the padding is left out. The activated results, transposed 8 × 8 by 8 × 8, are the right
 * operands of the next convolution and reach the other warps through 32 KB of shared memory. Sums: of the
 * first convolution even rows before odd ones, else taps in order, then k in packed order; norms over a
 * lane's values in order, then three butterflies.
 */
#include "cuda/encoder_base_f16.cuh"

#include <limits.h>

namespace
{

enum {
    WARPS = 4,
    BLOCKS = 2, /* on a multiprocessor */
    AREA = 49,
    ROW = TT_K_VOLUME_ROW_F16,
    EVEN_BYTES = 28 * 8 * N * 64, /* rows of the patches as the first convolution stages them */
    ODD_BYTES = 21 * 8 * N * 64
};

/* Brings the even or odd rows of the block's patches, 32 columns of them, to shared memory: [position][patch]
 * [32 columns]. patch: of this thread's patch, its eight columns. */
template <int ODD> __device__ __forceinline__ void bring(unsigned char *to, const __half *patch)
{
    enum { VALUES = (ODD ? 3 : 4) * 7, TURNS = (VALUES + 1) / 2 };
    static_assert(8 * N * 4 * 2 == 32 * WARPS, "two positions a turn");
    const int second = tt_thread() / 64; /* of the two positions of a turn */
    patch += second * ROW, to += threadIdx.x * 16;
#pragma unroll
    for (int k = 0; k < TURNS; k++) {
        const int row = 2 * k / 7; /* seven positions; between the turn's two another may begin */
        const __half *from = patch + (2 * k + (row + ODD) * 7) * ROW;
        if ((2 * k + 1) / 7 > row)
            from += second * 7 * ROW;
        if (VALUES % 2 == 0 || k < TURNS - 1 || !second)
            tt_copy_async(to + k * 2048, from);
    }
}

/* What the even (ODD: odd) rows of the patches give to the 16 positions, in two steps of k. K16: they lie
 * `here`, in shared memory, and if `more`, what comes after the next is brought there behind them; patch: as
 * above, of that. K8: row: this lane's patches at its column. */
template <bool K16, int ODD>
__device__ __forceinline__ void first_rows(float (&acc)[16][N][4], unsigned char *here, const __half *patch,
                                           bool more, const __half *const (&row)[N], const uint4 *weight)
{
    enum { TAPS = ODD ? 6 : 3, VALUES = (ODD ? 3 : 4) * 7 };
    uint4 w[TAPS][2];
#pragma unroll
    for (int t = 0; t < TAPS; t++)
#pragma unroll
        for (int s = 0; s < 2; s++)
            w[t][s] = __ldg(weight + (((ODD ? t / 3 * 2 : 1) * 3 + t % 3) * 4 + s) * 128);
    if (K16) {
        tt_wait<1>();
        __syncthreads();
    }
    const uint4 *column = reinterpret_cast<const uint4 *>(here) + threadIdx.x % 32;
#pragma unroll
    for (int i = 0; i < VALUES; i++) {
        const int y = i / 7 * 2 + ODD, x = i % 7;
        uint4 u[N];
#pragma unroll
        for (int n = 0; n < N; n++)
            u[n] =
                K16 ? column[(i * N + n) * 32] : *reinterpret_cast<const uint4 *>(row[n] + (y * 7 + x) * ROW);
#pragma unroll
        for (int s = 0; s < 2; s++) {
            values b;
#pragma unroll
            for (int n = 0; n < N; n++)
                b.v[2 * n] = s ? u[n].z : u[n].x, b.v[2 * n + 1] = s ? u[n].w : u[n].y;
#pragma unroll
            for (int t = 0; t < TAPS; t++) {
                const int oy = y + 1 - (ODD ? t / 3 * 2 : 1), ox = x + 1 - t % 3; /* doubled */
                if (ox % 2 == 0)
                    multiply<K16>(acc[oy / 2 * 4 + ox / 2], w[t][s], b);
            }
        }
    }
    if (K16) {
        __syncthreads();
        if (more)
            bring<ODD>(here, patch);
        tt_commit();
    }
}

template <bool K16>
__global__ void __launch_bounds__(32 * WARPS, BLOCKS) encode_base(const struct tt_k_encode_base_f16 e)
{
    extern __shared__ __align__(16) unsigned char shared[];
    const int lane = threadIdx.x % 32, quarter = threadIdx.x / 32;
    const int orientation = blockIdx.y, first = blockIdx.x * 8 * N + lane / 4;
    const int channel = quarter * 32; /* of the second and third convolution */
    values *maps = reinterpret_cast<values *>(shared) + lane;
    tt_let_next();
    tt_wait_previous();
    {
        const uint4 *weight = (const uint4 *)(orientation ? e.weight[1] : e.weight[0]) + quarter * 32 + lane;
        const __half *const volume = (const __half *)e.volume + lane % 4 * 8;
        const __half *row[N], *patch = NULL;
        float acc[16][N][4] = {};
#pragma unroll
        for (int n = 0; n < N; n++)
            row[n] = volume + (size_t)(orientation * e.rows + min(first + n * 8, e.rows - 1)) * AREA * ROW;
        if (K16) {
            const int own = min((int)(blockIdx.x * 8 * N + threadIdx.x % 64 / 4), e.rows - 1);
            patch = volume + (size_t)(orientation * e.rows + own) * AREA * ROW;
            bring<0>(shared, patch);
            tt_commit();
            bring<1>(shared + EVEN_BYTES, patch);
            tt_commit();
            patch += 32;
        }
#pragma unroll 1
        for (int half = 0; half < 2; half++) {
            first_rows<K16, 0>(acc, shared, patch, half == 0, row, weight);
            first_rows<K16, 1>(acc, shared + EVEN_BYTES, patch, half == 0, row, weight);
            weight += 256;
#pragma unroll
            for (int n = 0; n < N; n++)
                row[n] += 32;
        }
        normalise(acc, e.bias[0] + quarter * 16, e.gamma[0] + quarter * 16, e.beta[0] + quarter * 16);
        put(maps + quarter * 32, acc, 4);
    }
    __syncthreads();
    {
        float acc[2][4][N][4] = {};
        second_conv<K16>(acc, maps,
                         (const uint4 *)e.weight2 + quarter / 2 * STEPS2 * 128 + quarter % 2 * 64 + lane);
        __syncthreads(); /* its operands give way to its results */
#pragma unroll
        for (int m = 0; m < 2; m++) {
            const int c = channel + m * 16;
            normalise(acc[m], e.bias[1] + c, e.gamma[1] + c, e.beta[1] + c);
            put(maps + (quarter * 2 + m) * 32, acc[m], 8);
        }
    }
    __syncthreads();
    float acc[2][1][N][4] = {};
    third_conv<K16>(acc, maps,
                    (const uint4 *)e.weight3 + quarter / 2 * STEPS3 * 128 + quarter % 2 * 64 + lane);
    __half *out = (__half *)e.out + orientation * OUT + channel + 2 * (lane % 4);
#pragma unroll
    for (int m = 0; m < 2; m++) {
        const int c = channel + m * 16;
        normalise(acc[m], e.bias[2] + c, e.gamma[2] + c, e.beta[2] + c);
#pragma unroll
        for (int n = 0; n < N; n++)
#pragma unroll
            for (int r = 0; r < 2; r++) {
                const uint32_t x = transposed(acc[m][0][n][2 * r], acc[m][0][n][2 * r + 1]);
                const int p = first + n * 8;
                if (p < e.rows)
                    *reinterpret_cast<uint32_t *>(out + (size_t)p * e.out_row + m * 16 + r * 8) = x;
            }
    }
}

template <class K>
cudaError_t launch(K *kernel, int bytes, const struct tt_k_encode_base_f16 *e, void *stream)
{
    const dim3 grid(tt_div_up(e->rows, 8 * N), 2);
    const cudaError_t error = tt_shared(kernel, bytes);
    if (error != cudaSuccess)
        return error;
    return tt_launch(kernel, grid, 32 * WARPS, bytes, stream, *e);
}

} // namespace

extern "C" int tt_k_encode_base_f16(const struct tt_k_encode_base_f16 *e, enum tt_k_mma mma, void *stream)
{
    if (e->rows < 1 || e->rows > INT_MAX / (2 * AREA * ROW) || e->out_row % 2)
        return cudaErrorInvalidValue;
    return mma == TT_MMA_K16 ? launch(encode_base<true>, EVEN_BYTES + ODD_BYTES, e, stream)
                             : launch(encode_base<false>, MAPS, e, stream);
}

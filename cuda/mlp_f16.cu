/* cuda/mlp_f16.cu: the dense half of a mixer layer in one kernel, at width 256 and 384:
 *   h += gelu(layer_norm(h) · up + bias) · down + bias, the hidden layer four times as wide.
 *
 * The hidden layer never leaves the multiprocessor. A block takes 48 rows, two blocks a multiprocessor: their
 * normed values lie in shared memory; the accumulators of the result, 8·N columns a warp, begin with bias and
 * residual and stay in registers. The hidden layer is made 8·U columns a warp at a time, goes through GELU to
 * shared memory as FP16, and is multiplied into the result by all warps; two barriers a turn, while the other
 * block multiplies. At width 384 N is 8 and U 2. At 256 natively 8 and 4: 68 passes of L1 and shared memory
 * for 48 products instead of the 104 of N 4 and U 2, which a T4 takes: it has room for one block, of eight
 * warps then. Shared memory: 38,400 and 47,616 bytes. Weights are fetched ahead across the barriers. Sums run
 * along k in order, beginning with the bias, and the residual (mixer_f16.cuh).
 */
#include "cuda/kernels.h"
#include "cuda/mixer_f16.cuh"

namespace
{

/* U: eights of hidden columns that a warp makes in a turn. */
template <int WIDTH, int TILES, int N, int U> struct shape {
    enum {
        NW = WIDTH / (8 * N), /* warps */
        THREADS = NW * 32,
        ROWS = 16 * TILES,
        HIDDEN = 4 * WIDTH,
        TURN = 8 * U * NW, /* hidden columns of a turn */
        LINE = 2 * WIDTH + 16,
        HIDDEN_LINE = 2 * TURN + 16,
        NORMED = ROWS * LINE,
        BYTES = NORMED + ROWS * HIDDEN_LINE
    };
};

/* 8·U hidden columns to this warp's part of the lines. */
template <int TILES, int U>
__device__ __forceinline__ void put_hidden(unsigned char *hidden, const float (&c)[TILES][U][4], int line)
{
#pragma unroll
    for (int i = 0; i < TILES; i++)
#pragma unroll
        for (int j = 0; j < U; j++)
#pragma unroll
            for (int r = 0; r < 2; r++)
                *reinterpret_cast<uint32_t *>(hidden + (i * 16 + r * 8) * line + j * 16) =
                    tt_pack(c[i][j][2 * r], c[i][j][2 * r + 1]);
}

template <bool K16, int WIDTH, int TILES, int N, int U, bool LATE>
__global__ void __launch_bounds__(shape<WIDTH, TILES, N, U>::THREADS, 2) mlp(const struct tt_k_mlp_f16 g)
{
    typedef shape<WIDTH, TILES, N, U> t;
    enum {
        NW = t::NW,
        LINE = t::LINE,
        HIDDEN_LINE = t::HIDDEN_LINE,
        UP_STEPS = WIDTH / 16,
        DOWN_STEPS = t::TURN / 16,
        UP_AHEAD = WIDTH == 256 ? 4
                   : K16        ? 3
                                : 2,
        SHORT = !K16, /* of registers */
        DOWN_AHEAD = !K16 && WIDTH == 384 ? 1 : 2,
        TURNS = t::HIDDEN / t::TURN
    };
    extern __shared__ __align__(16) unsigned char shared[];
    const int wn = threadIdx.x / 32, lane = threadIdx.x % 32;
    const int row0 = blockIdx.x * t::ROWS, row = row0 + lane / 4, column = wn * 8 * N + lane % 4 * 2;
    /* of this warp's 8·U hidden columns in a turn, of its columns of the result */
    auto up_of = [&](int turn) {
        const int part = turn * NW + wn, parts = 8 / U;
        return reinterpret_cast<const uint4 *>(g.up) +
               (part / parts * UP_STEPS * 128 + part % parts * (16 * U) + lane);
    };
    auto down_of = [&](int turn) {
        return tt_columns_of<N>(g.down, wn, t::HIDDEN / 16) + turn * DOWN_STEPS * 128;
    };
    tt_columns<U> u[UP_AHEAD];
#pragma unroll
    for (int s = 0; s < UP_AHEAD; s++)
        u[s].load(up_of(0) + s * 128);
    tt_let_next();
    tt_wait_previous();
    tt_norm_rows<WIDTH, t::ROWS, NW>(shared, g.h, g.gamma, g.beta, row0, g.rows);
    float acc[TILES][N][4];
    tt_start(acc, g.down_bias + column);
    tt_add_rows<WIDTH>(acc, g.h, row, g.rows, column);
    __syncthreads();

    unsigned char *hidden = shared + t::NORMED;
    /* SHORT: found anew from the thread's number each time */
    auto a_of = [&](int thread) {
        return tt_shared_address(shared) + thread % 16 * LINE + thread % 32 / 16 * 16;
    };
    auto hidden_of = [&](int thread) {
        return tt_shared_address(hidden) + thread % 16 * HIDDEN_LINE + thread % 32 / 16 * 16;
    };
    auto to_of = [&](int thread) {
        return hidden + thread % 32 / 4 * HIDDEN_LINE + thread / 32 * 16 * U + thread % 4 * 4;
    };
    const uint32_t a_once = a_of(threadIdx.x), hidden_once = hidden_of(threadIdx.x);
    unsigned char *to_once = to_of(threadIdx.x);
#pragma unroll 1
    for (int turn = 0; turn < TURNS; turn++) {
        const uint32_t a_at = SHORT ? a_of(tt_thread()) : a_once;
        float c[TILES][U][4];
        tt_rows<TILES, LATE> normed;
        normed.tile_bytes = 16 * LINE;
        tt_start(c, g.up_bias + turn * t::TURN + wn * 8 * U + lane % 4 * 2);
        normed.start(a_at);
#pragma unroll
        for (int s = 0; s < UP_STEPS; s++) {
            normed.template step<K16>(c, u[s % UP_AHEAD], a_at + s * 32, a_at + (s + 1) % UP_STEPS * 32);
            if (s + UP_AHEAD < UP_STEPS)
                u[s % UP_AHEAD].load(up_of(turn) + (s + UP_AHEAD) * 128);
        }
        tt_columns<N> b[DOWN_AHEAD + 1];
#pragma unroll
        for (int s = 0; s < DOWN_AHEAD; s++)
            b[s].load(down_of(turn) + s * 128);
#pragma unroll
        for (int i = 0; i < TILES; i++)
#pragma unroll
            for (int j = 0; j < U; j++)
#pragma unroll
                for (int k = 0; k < 4; k++)
                    c[i][j][k] = tt_gelu_fast(c[i][j][k]);
        __syncthreads(); /* the last turn's hidden columns have been read */
        put_hidden<TILES, U>(SHORT ? to_of(tt_thread()) : to_once, c, HIDDEN_LINE);
        __syncthreads();
#pragma unroll
        for (int s = 0; s < UP_AHEAD; s++)
            u[s].load(up_of(min(turn + 1, TURNS - 1)) + s * 128);
        const uint32_t hidden_at = SHORT ? hidden_of(tt_thread()) : hidden_once;
        tt_rows<TILES, LATE> hidden_rows;
        hidden_rows.tile_bytes = 16 * HIDDEN_LINE;
        hidden_rows.start(hidden_at);
#pragma unroll
        for (int s = 0; s < DOWN_STEPS; s++) {
            if (s + DOWN_AHEAD < DOWN_STEPS)
                b[(s + DOWN_AHEAD) % (DOWN_AHEAD + 1)].load(down_of(turn) + (s + DOWN_AHEAD) * 128);
            hidden_rows.template step<K16>(acc, b[s % (DOWN_AHEAD + 1)], hidden_at + s * 32,
                                           hidden_at + (s + 1) % DOWN_STEPS * 32);
        }
    }
    const int again = tt_thread();
    tt_store_rows<WIDTH>(acc, g.h, row0 + again % 32 / 4, g.rows, again / 32 * 8 * N + again % 4 * 2);
}

template <class K>
cudaError_t launch(K *kernel, int rows, int threads, size_t bytes, const struct tt_k_mlp_f16 *g, void *stream)
{
    const cudaError_t e = tt_shared(kernel, bytes);
    if (e != cudaSuccess)
        return e;
    return tt_launch(kernel, dim3(tt_div_up(g->rows, rows)), threads, bytes, stream, *g);
}

template <bool K16, int WIDTH, int TILES, int N, int U, bool LATE = false>
cudaError_t start(const struct tt_k_mlp_f16 *g, void *stream)
{
    typedef shape<WIDTH, TILES, N, U> t;
    return launch(mlp<K16, WIDTH, TILES, N, U, LATE>, t::ROWS, t::THREADS, t::BYTES, g, stream);
}

} // namespace

extern "C" int tt_k_mlp_f16(const struct tt_k_mlp_f16 *g, enum tt_k_mma mma, void *stream)
{
    if (g->rows < 1)
        return cudaErrorInvalidValue;
    const bool k16 = mma == TT_MMA_K16;
    if (g->width == 256)
        return k16 ? start<true, 256, 3, 8, 4>(g, stream) : start<false, 256, 3, 4, 2, true>(g, stream);
    if (g->width == 384)
        return k16 ? start<true, 384, 3, 8, 2>(g, stream) : start<false, 384, 3, 8, 2, true>(g, stream);
    return cudaErrorInvalidValue;
}

/* tests/kernels/mixes.cu: see mixes.h. Numbers of a step are the kernel's, rounded down: tensor-core
 * instructions, ldmatrix, weights, shuffles and transpositions as the emulator counts them, the others from
 * the machine code of the sm_75 path. What a kernel does once a block is spread over its steps.
 */
#include "tests/kernels/mixes.h"

#include "cuda/common.cuh"

#include <utility>

namespace
{

/* ACC: accumulators of a warp, 16 × 8. STREAMS: warps that read different weights. EVERY: steps from one of
 * the kernel's barriers to the next, or 0. */
struct conv_64 { /* two steps of k */
    enum { WARPS = 4, BLOCKS = 2, SHARED = 29376, STEPS = 18, ACC = 32, STREAMS = 1, EVERY = 4 };
    enum { MMA = 64, LDSM = 8, WEIGHTS = 8, SHUFFLES = 1, TRANSPOSES = 0, FP32 = 66, MUFU = 0 };
    enum { STORES = 4, LOADS = 0, READS = 22, REGION = 16, WRITES = 16 };
};
struct conv_128 { /* four */
    enum { WARPS = 4, BLOCKS = 2, SHARED = 21248, STEPS = 18, ACC = 32, STREAMS = 2, EVERY = 2 };
    enum { MMA = 128, LDSM = 16, WEIGHTS = 16, SHUFFLES = 1, TRANSPOSES = 0, FP32 = 69, MUFU = 0 };
    enum { STORES = 4, LOADS = 0, READS = 24, REGION = 16, WRITES = 16 };
};
struct embed_256 { /* a sixth of a row */
    enum { WARPS = 8, BLOCKS = 1, SHARED = 60672, STEPS = 48, ACC = 24, STREAMS = 4, EVERY = 3 };
    enum { MMA = 48, LDSM = 15, WEIGHTS = 5, SHUFFLES = 3, TRANSPOSES = 4, FP32 = 24, MUFU = 0 };
    enum { STORES = 5, LOADS = 2, READS = 208, REGION = 12, WRITES = 3 };
};
struct normed_256 { /* a quarter of 256 columns */
    enum { WARPS = 8, BLOCKS = 2, SHARED = 25344, STEPS = 12, ACC = 12, STREAMS = 8, EVERY = 0 };
    enum { MMA = 48, LDSM = 12, WEIGHTS = 8, SHUFFLES = 8, TRANSPOSES = 0, FP32 = 46, MUFU = 1 };
    enum { STORES = 1, LOADS = 0, READS = 12, REGION = 12, WRITES = 18 };
};
struct mlp_256 { /* a quarter of a turn */
    enum { WARPS = 8, BLOCKS = 2, SHARED = 38400, STEPS = 32, ACC = 8, STREAMS = 8, EVERY = 2 };
    enum { MMA = 48, LDSM = 18, WEIGHTS = 8, SHUFFLES = 1, TRANSPOSES = 0, FP32 = 82, MUFU = 12 };
    enum { STORES = 3, LOADS = 0, READS = 24, REGION = 12, WRITES = 12 };
};
struct mlp_384 { /* a third */
    enum { WARPS = 6, BLOCKS = 2, SHARED = 47616, STEPS = 48, ACC = 12, STREAMS = 6, EVERY = 2 };
    enum { MMA = 96, LDSM = 30, WEIGHTS = 16, SHUFFLES = 1, TRANSPOSES = 0, FP32 = 110, MUFU = 16 };
    enum { STORES = 4, LOADS = 0, READS = 48, REGION = 24, WRITES = 24 };
};

/* How many of n, spread over a step's tensor-core instructions, lie before number i. */
template <class m> __device__ constexpr int before(int i, int n)
{
    return i * n / m::MMA;
}

/* f(0), f(1), .. with numbers that the compiler knows, so that registers can be chosen by them. */
template <class F, int... I> __device__ __forceinline__ void each(F f, std::integer_sequence<int, I...>)
{
    (f(std::integral_constant<int, I>()), ...);
}

template <bool K16, class m, bool BARRIERS>
__global__ void __launch_bounds__(32 * m::WARPS, m::BLOCKS) mix(const struct mix_run g)
{
    enum {
        A = 3, /* operands on their way: row tiles */
        B = 3, /* and weights */
        CHAINS = 4,
        THREADS = 32 * m::WARPS,
        STRIDE = 32 * m::STREAMS, /* words of 16 bytes from one load of weights to a warp's next */
        STEP = STRIDE * m::WEIGHTS,
        AT_ONCE = (m::READS + m::STEPS - 1) / m::STEPS
    };
    static_assert(STEP * 16 <= 65536 && m::SHARED >= 9216, "weights of a step; rows that ldmatrix reads");
    extern __shared__ __align__(16) unsigned char shared[];
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    const uint4 *packed = reinterpret_cast<const uint4 *>(g.weight);
    for (int i = threadIdx.x; i < m::SHARED / 16; i += THREADS)
        reinterpret_cast<uint4 *>(shared)[i] = packed[i % 4096];
    __syncthreads();
    const uint32_t rows = tt_shared_address(shared) + lane % 16 * 144 + lane / 16 * 16 + warp % 4 * 2304;
    volatile uint32_t *words = reinterpret_cast<uint32_t *>(shared) + threadIdx.x;
    const uint4 *in =
        reinterpret_cast<const uint4 *>(g.in) + (size_t)blockIdx.x * m::REGION * THREADS + threadIdx.x;
    uint4 *out = reinterpret_cast<uint4 *>(g.out) + (size_t)blockIdx.x * m::WRITES * THREADS + threadIdx.x;
    const int end = g.weight_bytes / 16 - STEP;
    int at = 0;
    const uint4 *weight = packed + warp % m::STREAMS * 32 + lane;

    float acc[m::ACC][4] = {}, x[CHAINS], power[CHAINS];
    uint32_t a[A][4], u[CHAINS];
    uint4 b[B], come[AT_ONCE]; /* memory that a step has asked for is used at the end of the next one */
#pragma unroll
    for (int i = 0; i < AT_ONCE; i++)
        come[i] = make_uint4(0, 0, 0, 0);
#pragma unroll
    for (int i = 0; i < CHAINS; i++)
        x[i] = power[i] = (float)(int)threadIdx.x + (float)i + 0.5f, u[i] = threadIdx.x + i;
#pragma unroll
    for (int i = 0; i < A; i++)
#pragma unroll
        for (int k = 0; k < 4; k++)
            a[i][k] = 0x2c002c00u + threadIdx.x;
#pragma unroll
    for (int i = 0; i < B; i++)
        b[i] = packed[lane + i * 32];
#pragma unroll 1
    for (int s = 0; s < m::STEPS; s++) {
        uint4 v[AT_ONCE];
        const int first = s * m::READS / m::STEPS, last = (s + 1) * m::READS / m::STEPS;
#pragma unroll
        for (int i = 0; i < AT_ONCE; i++)
            v[i] = first + i < last ? in[(first + i) * THREADS] : make_uint4(0, 0, 0, 0);
        each(
            [&](auto number) {
                constexpr int i = decltype(number)::value;
#pragma unroll
                for (int k = before<m>(i, m::LDSM); k < before<m>(i + 1, m::LDSM); k++)
                    tt_ldmatrix4(a[k % A], rows + k % 4 * 32);
#pragma unroll
                for (int k = before<m>(i, m::WEIGHTS); k < before<m>(i + 1, m::WEIGHTS); k++)
                    b[k % B] = __ldg(weight + at + k * STRIDE);
                const uint4 &w = b[(before<m>(i, m::WEIGHTS) + 1) % B];
                tt_mma<K16>(acc[i % m::ACC], a[(before<m>(i, m::LDSM) + 1) % A], i % 2 ? w.z : w.x,
                            i % 2 ? w.w : w.y);
#pragma unroll
                for (int k = before<m>(i, m::FP32); k < before<m>(i + 1, m::FP32); k++)
                    x[k % CHAINS] = fmaf(x[k % CHAINS], 0.75f, 0.25f);
#pragma unroll
                for (int k = before<m>(i, m::MUFU); k < before<m>(i + 1, m::MUFU); k++)
                    power[k % CHAINS] = tt_power_of_2(power[k % CHAINS]);
#pragma unroll
                for (int k = before<m>(i, m::SHUFFLES); k < before<m>(i + 1, m::SHUFFLES); k++)
                    x[k % CHAINS] = __shfl_xor_sync(0xffffffffu, x[k % CHAINS], 1);
#pragma unroll
                for (int k = before<m>(i, m::TRANSPOSES); k < before<m>(i + 1, m::TRANSPOSES); k++)
                    u[k % CHAINS] = tt_transpose(u[k % CHAINS]);
#pragma unroll
                for (int k = before<m>(i, m::STORES); k < before<m>(i + 1, m::STORES); k++)
                    words[k % 2 * THREADS] = u[k % CHAINS];
#pragma unroll
                for (int k = before<m>(i, m::LOADS); k < before<m>(i + 1, m::LOADS); k++)
                    u[k % CHAINS] ^= words[k % 2 * THREADS];
                if (i % 12 == 11) /* loads go no further ahead */
                    __syncwarp();
            },
            std::make_integer_sequence<int, m::MMA>());
        if (BARRIERS && m::EVERY > 0 && s % max((int)m::EVERY, 1) == 0)
            __syncthreads();
        at += STEP;
        at = at > end ? 0 : at;
#pragma unroll
        for (int i = 0; i < AT_ONCE; i++)
            u[i % CHAINS] ^= come[i].x ^ come[i].y ^ come[i].z ^ come[i].w, come[i] = v[i];
        for (int i = s * m::WRITES / m::STEPS; i < (s + 1) * m::WRITES / m::STEPS; i++)
            out[i * THREADS] = make_uint4(u[0], u[1], u[2], u[3]);
    }
    float sum = 0.0f;
#pragma unroll
    for (int i = 0; i < CHAINS; i++)
        sum += x[i] + power[i] + (float)(int)u[i];
#pragma unroll
    for (int i = 0; i < m::ACC; i++)
        sum += acc[i][0] + acc[i][1] + acc[i][2] + acc[i][3];
    if (sum == 12345.0f)
        *g.sink = sum;
}

template <class m> struct mix_shape shape_of(const char *kernel)
{
    const struct mix_shape s = {kernel, 32 * m::WARPS, m::SHARED, m::STEPS,
                                m::MMA, m::READS,      m::REGION, m::WRITES};
    return s;
}

template <class m> int run(const struct mix_run *g, int barriers, enum tt_k_mma mma, void *stream)
{
    enum { THREADS = 32 * m::WARPS };
    auto *kernel = mma == TT_MMA_K16 ? barriers ? mix<true, m, true> : mix<true, m, false>
                   : barriers ? mix<false, m, true>
                                     : mix<false, m, false>;
    const cudaError_t e =
        g->blocks < 1 || g->weight_bytes < 65536 ? cudaErrorInvalidValue : tt_shared(kernel, m::SHARED);
    if (e != cudaSuccess)
        return e;
    kernel<<<g->blocks, THREADS, m::SHARED, (cudaStream_t)stream>>>(*g);
    return cudaGetLastError();
}

} // namespace

extern "C" struct mix_shape mix_shape(enum mix which)
{
    switch (which) {
    case MIX_CONV_64:
        return shape_of<conv_64>("conv_f16 group 0 256x64 c32");
    case MIX_CONV_128:
        return shape_of<conv_128>("conv_f16 group 1 128x128 c32");
    case MIX_EMBED_256:
        return shape_of<embed_256>("embed_f16 32:256, 256 queries");
    case MIX_NORMED_256:
        return shape_of<normed_256>("product_f16 256 -> 768 normed");
    case MIX_MLP_256:
        return shape_of<mlp_256>("mlp_f16 width 256");
    default:
        return shape_of<mlp_384>("mlp_f16 width 384");
    }
}

extern "C" int mix_run(enum mix which, const struct mix_run *g, int barriers, enum tt_k_mma mma, void *stream)
{
    switch (which) {
    case MIX_CONV_64:
        return run<conv_64>(g, barriers, mma, stream);
    case MIX_CONV_128:
        return run<conv_128>(g, barriers, mma, stream);
    case MIX_EMBED_256:
        return run<embed_256>(g, barriers, mma, stream);
    case MIX_NORMED_256:
        return run<normed_256>(g, barriers, mma, stream);
    case MIX_MLP_256:
        return run<mlp_256>(g, barriers, mma, stream);
    case MIX_MLP_384:
        return run<mlp_384>(g, barriers, mma, stream);
    default:
        return cudaErrorInvalidValue;
    }
}

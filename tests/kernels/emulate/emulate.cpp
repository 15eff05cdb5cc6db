/* tests/kernels/emulate/emulate.cpp: see emulate.h. One block at a time, its threads in turn on stacks of
 * their own; memory is never freed before the end. Nothing fails but for want of memory (abort).
 */
#include "tests/kernels/emulate/cuda/common.cuh"

#include <stdlib.h>
#include <ucontext.h>
#include <vector>

uint3 emulate_thread, emulate_block;
dim3 emulate_grid;
unsigned char *emulate_shared;
struct emulate_counts emulate_counts;

namespace
{

enum { STACK = 1 << 18, SHARED = 1 << 17, MAX_WARPS = 32 };

struct coroutine {
    ucontext_t context;
    std::vector<char> stack;
    bool done;
};

struct warp {
    int arrived, round;
    uint32_t in[32][10], out[32][4];
};

struct barrier {
    int arrived, round;
};

barrier barriers[16];
std::vector<coroutine> threads_;
ucontext_t scheduler;
warp warps[MAX_WARPS];
const std::function<void()> *work;
int current, block_threads, arrived, round_;

void rest()
{
    swapcontext(&threads_[current].context, &scheduler);
}

void enter()
{
    (*work)();
    threads_[current].done = true;
    rest();
}

void resume(int i)
{
    current = i;
    emulate_thread = make_uint3(i, 0, 0);
    swapcontext(&scheduler, &threads_[i].context);
}

void run_block()
{
    arrived = round_ = 0;
    memset(warps, 0, sizeof(warps));
    memset(barriers, 0, sizeof(barriers));
    memset(emulate_shared, 0xff, SHARED);
    for (int i = 0; i < block_threads; i++) {
        coroutine &t = threads_[i];
        emulate_counts.lanes++;
        t.done = false;
        t.stack.resize(STACK);
        getcontext(&t.context);
        t.context.uc_stack.ss_sp = t.stack.data();
        t.context.uc_stack.ss_size = STACK;
        t.context.uc_link = nullptr;
        makecontext(&t.context, enter, 0);
    }
    for (int left = 1; left;) {
        left = 0;
        for (int i = 0; i < block_threads; i++)
            if (!threads_[i].done) {
                resume(i);
                left += !threads_[i].done;
            }
    }
}

/* f(warp) once all 32 lanes have given their n words. Returns this lane's results. */
template <class F> const uint32_t *together(const uint32_t *in, int n, F f)
{
    warp &w = warps[current / 32];
    const int round = w.round;
    memcpy(w.in[current % 32], in, sizeof(*in) * n);
    if (++w.arrived == 32) {
        f(w);
        w.arrived = 0, w.round++;
    }
    while (w.round == round)
        rest();
    return w.out[current % 32];
}

float half_of(uint32_t word, int odd)
{
    const float2 v = tt_unpack(word);
    return odd ? v.y : v.x;
}

void multiply(warp &w)
{
    double a[16][16], b[16][8];
    for (int lane = 0; lane < 32; lane++)
        for (int e = 0; e < 2; e++) {
            const uint32_t *in = w.in[lane];
            const int g = lane / 4, k = lane % 4 * 2 + e;
            a[g][k] = half_of(in[0], e), a[g + 8][k] = half_of(in[1], e);
            a[g][k + 8] = half_of(in[2], e), a[g + 8][k + 8] = half_of(in[3], e);
            b[k][g] = half_of(in[4], e), b[k + 8][g] = half_of(in[5], e);
        }
    for (int lane = 0; lane < 32; lane++)
        for (int i = 0; i < 4; i++) {
            float c;
            memcpy(&c, &w.in[lane][6 + i], sizeof(c));
            double sum = c;
            for (int k = 0; k < 16; k++)
                sum += a[lane / 4 + i / 2 * 8][k] * b[k][lane % 4 * 2 + i % 2];
            c = (float)sum;
            memcpy(&w.out[lane][i], &c, sizeof(c));
        }
}

} // namespace

void emulate_launch(dim3 grid, int threads, size_t bytes, const std::function<void()> &body)
{
    if (threads > 32 * MAX_WARPS || threads % 32 || bytes > SHARED)
        abort();
    if (!emulate_shared)
        emulate_shared = (unsigned char *)aligned_alloc(256, SHARED);
    threads_.resize(std::max(threads_.size(), (size_t)threads));
    work = &body, block_threads = threads, emulate_grid = grid;
    for (unsigned z = 0; z < grid.z; z++)
        for (unsigned y = 0; y < grid.y; y++)
            for (unsigned x = 0; x < grid.x; x++) {
                emulate_block = make_uint3(x, y, z);
                run_block();
            }
}

void emulate_barrier(int number, int threads)
{
    barrier &b = barriers[number];
    const int round = b.round;
    if (++b.arrived == threads)
        b.arrived = 0, b.round++;
    while (b.round == round)
        rest();
}

void emulate_syncthreads()
{
    const int round = round_;
    if (++arrived == block_threads)
        arrived = 0, round_++;
    while (round_ == round)
        rest();
}

uint32_t emulate_shuffle(uint32_t x, int mask)
{
    emulate_counts.shuffles += mask != 0; /* __syncwarp is none */
    return *together(&x, 1, [mask](warp &w) {
        for (int lane = 0; lane < 32; lane++)
            w.out[lane][0] = w.in[lane ^ mask][0];
    });
}

float emulate_shuffle(float x, int mask)
{
    uint32_t u;
    memcpy(&u, &x, sizeof(u));
    u = emulate_shuffle(u, mask);
    memcpy(&x, &u, sizeof(x));
    return x;
}

uint32_t emulate_transpose(uint32_t x)
{
    emulate_counts.transposes++;
    return *together(&x, 1, [](warp &w) {
        for (int lane = 0; lane < 32; lane++) {
            w.out[lane][0] = 0;
            for (int e = 0; e < 2; e++) { /* row lane / 4, column 2·(lane % 4) + e of the transpose */
                const int row = lane % 4 * 2 + e, column = lane / 4;
                const uint32_t word = w.in[row * 4 + column / 2][0];
                w.out[lane][0] |= (word >> column % 2 * 16 & 0xffff) << e * 16;
            }
        }
    });
}

void emulate_ldmatrix4(uint32_t (&r)[4], uint32_t address)
{
    emulate_counts.ldmatrix++;
    const uint32_t *out = together(&address, 1, [](warp &w) {
        for (int lane = 0; lane < 32; lane++)
            for (int m = 0; m < 4; m++)
                memcpy(&w.out[lane][m], emulate_shared + w.in[m * 8 + lane / 4][0] + lane % 4 * 4, 4);
    });
    memcpy(r, out, sizeof(r));
}

void emulate_mma(float (&c)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1)
{
    emulate_counts.products += 2;
    uint32_t in[10] = {a[0], a[1], a[2], a[3], b0, b1};
    memcpy(in + 6, c, sizeof(c));
    memcpy(c, together(in, 10, multiply), sizeof(c));
}

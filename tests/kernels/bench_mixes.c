/* tests/kernels/bench_mixes.c: the mixes (mixes.h) with the blocks and bytes of their kernels at 47 frames
 * and 256 query points. TFLOP/s are of the executed instructions.
 */
#include "tests/kernels/bench.h"
#include "tests/kernels/ceilings.h"
#include "tests/kernels/kern.h"
#include "tests/kernels/mixes.h"

enum { FRAMES = 47, QUERIES = 256, ROW_BLOCKS = (FRAMES * QUERIES + 47) / 48 };

/* Blocks of the kernel's launch, and bytes of its weights. */
static const struct {
    int blocks, weight_bytes;
} sizes[MIXES] = {[MIX_CONV_64] = {FRAMES * 64, 9 * 64 * 64 * 2},
                  [MIX_CONV_128] = {FRAMES * 32, 9 * 128 * 128 * 2},
                  [MIX_EMBED_256] = {QUERIES * 2, (25 + 49) * 64 * 64 * 2},
                  [MIX_NORMED_256] = {ROW_BLOCKS, 256 * 768 * 2},
                  [MIX_MLP_256] = {ROW_BLOCKS, 256 * 2048 * 2},
                  [MIX_MLP_384] = {ROW_BLOCKS, 384 * 3072 * 2}};

struct sets {
    struct mix_run run[BENCH_SETS];
    enum mix which;
    enum tt_k_mma mma;
    int barriers;
};

static int launch(const void *context, int set, void *stream)
{
    const struct sets *s = context;
    return mix_run(s->which, &s->run[set], s->barriers, s->mma, stream);
}

static void *filled(size_t bytes)
{
    void *x = kern_device(bytes);
    kern_status(fill_f16(x, bytes / 2, 0.05f, (uint32_t)bytes, NULL), "fill");
    return x;
}

static void bench_mix(enum mix which, enum tt_k_mma mma)
{
    const struct mix_shape s = mix_shape(which);
    const int blocks = sizes[which].blocks,
              cached = which == MIX_EMBED_256; /* as in the kernel's benchmark */
    const size_t in = (size_t)((blocks - 1) * s.region + s.reads) * s.threads * 16;
    const size_t out = (size_t)blocks * s.writes * s.threads * 16;
    struct sets c = {.which = which, .mma = mma};
    for (int i = 0; i < BENCH_SETS; i++) {
        if (i > 0 && cached) {
            c.run[i] = c.run[0];
            continue;
        }
        c.run[i] = (struct mix_run){.blocks = blocks,
                                    .weight = filled((size_t)sizes[which].weight_bytes),
                                    .weight_bytes = sizes[which].weight_bytes,
                                    .in = filled(in),
                                    .out = kern_device(out),
                                    .sink = kern_device(16)};
    }
    const struct bench b = {.flop = (double)blocks * s.threads / 32 * s.steps * s.mma * 2.0 * 16 * 8 * 16,
                            .bytes = (double)blocks * (s.region + s.writes) * s.threads * 16,
                            .launch = launch,
                            .context = &c};
    for (c.barriers = 0; c.barriers < 2; c.barriers++)
        bench_run(&b, "mix k%d %s%s", mma == TT_MMA_K16 ? 16 : 8, c.barriers ? "with barriers " : "",
                  s.kernel);
    kern_free_all();
}

void bench_mixes(enum tt_k_mma mma)
{
    for (int i = 0; i < MIXES; i++)
        bench_mix((enum mix)i, mma);
}

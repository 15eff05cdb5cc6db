/* tests/bench/refine_bench.c: what the refinement's own arithmetic costs: a clip of 47 frames of 1280×720
 * that turn and shift, 256 points, the tracker a pixel or two off. Patches are copied out of pictures that
 * were made before, so that neither decoding nor the way to the decoder counts.
 *
 *     refine_bench [THREADS...]      default: 1 2
 */
#include "core/refine/refine.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { WIDTH = 1280, HEIGHT = 720, LEVELS = 2, FRAMES = 47, SIDE = 16, POINTS = SIDE * SIDE, WAVES = 14 };

struct picture {
    uint8_t *level[LEVELS];
};

static double cut_s, cut_cpu_s; /* wall clock and processor */

static double now_s(clockid_t clock)
{
    struct timespec now;

    clock_gettime(clock, &now);
    return (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
}

/* The scene turned by t × 0.004 about the middle and shifted by t × (1.3, -0.9). */
static void move(int t, float x, float y, float *to_x, float *to_y)
{
    float c = cosf(0.004f * (float)t), s = sinf(0.004f * (float)t);
    float dx = x - WIDTH / 2.f, dy = y - HEIGHT / 2.f;

    *to_x = WIDTH / 2.f + c * dx - s * dy + 1.3f * (float)t;
    *to_y = HEIGHT / 2.f + s * dx + c * dy - 0.9f * (float)t;
}

static void draw_row(int t, int row, uint8_t *pixels)
{
    float c = cosf(0.004f * (float)t), s = sinf(0.004f * (float)t), values[WIDTH] = {0};

    for (int k = 0; k < WAVES; k++) {
        float angle = 0.9f * (float)k, turns = 6.2831853f / (8 * powf(2, 3.f * (float)k / WAVES));
        float a = turns * cosf(angle), b = turns * sinf(angle);

        for (int i = 0; i < WIDTH; i++) {
            float dx = (float)i + 0.5f - WIDTH / 2.f - 1.3f * (float)t;
            float dy = (float)row + 0.5f - HEIGHT / 2.f + 0.9f * (float)t;

            values[i] += sinf(a * (c * dx + s * dy) + b * (c * dy - s * dx) + 1.3f * (float)(k * k));
        }
    }
    for (int i = 0; i < WIDTH; i++)
        pixels[i] = (uint8_t)fminf(fmaxf(128 + 16 * values[i], 0), 255);
}

static void draw(int t, struct picture *picture)
{
    for (int l = 0; l < LEVELS; l++)
        if (!(picture->level[l] = malloc((size_t)(WIDTH >> l) * (HEIGHT >> l))))
            abort();
    for (int j = 0; j < HEIGHT; j++)
        draw_row(t, j, picture->level[0] + j * WIDTH);
    for (int l = 1; l < LEVELS; l++)
        for (int j = 0, width = WIDTH >> l; j < HEIGHT >> l; j++)
            for (int i = 0; i < width; i++) {
                const uint8_t *p = picture->level[l - 1] + 4 * j * width + 2 * i;

                picture->level[l][j * width + i] =
                    (uint8_t)((p[0] + p[1] + p[2 * width] + p[2 * width + 1] + 2) / 4);
            }
}

static int held(int at, int size)
{
    return at < 0 ? 0 : at >= size ? size - 1 : at;
}

static enum tt_status cut(void *user, const struct tt_cut_place *places, int count, uint8_t *patches,
                          struct tt_error *err)
{
    const struct picture *picture = user;
    double start = now_s(CLOCK_MONOTONIC), used = now_s(CLOCK_THREAD_CPUTIME_ID);

    (void)err;
    for (int n = 0; n < count; n++) {
        int width = WIDTH >> places[n].level, height = HEIGHT >> places[n].level;

        for (int j = 0; j < TT_CUT_SIZE; j++) {
            const uint8_t *row = picture->level[places[n].level] + held(places[n].y + j, height) * width;

            for (int i = 0; i < TT_CUT_SIZE; i++)
                *patches++ = row[held(places[n].x + i, width)];
        }
    }
    cut_s += now_s(CLOCK_MONOTONIC) - start;
    cut_cpu_s += now_s(CLOCK_THREAD_CPUTIME_ID) - used;
    return TT_OK;
}

static void guess(int t, struct tt_refine_guess *guesses)
{
    for (int p = 0; p < POINTS; p++) {
        struct tt_refine_guess *g = &guesses[p];
        float off = t ? 1.3f : 0, phase = (float)(p * 7 + t * 3);

        move(t, WIDTH * (0.12f + 0.05f * (float)(p % SIDE)), HEIGHT * (0.14f + 0.05f * (float)(p / SIDE)),
             &g->x, &g->y);
        g->x += off * sinf(phase);
        g->y += off * cosf(0.7f * phase);
        g->is_visible = true;
        g->is_query = t == 0;
    }
}

static void measure(struct picture *pictures, int threads)
{
    static struct tt_refine_guess guesses[POINTS];
    static struct tt_refine_point points[POINTS];
    struct tt_refine *refine;
    struct tt_error err;
    double wall, cpu, off = 0;
    int refined = 0;
    uint32_t bits = 2166136261u;

    cut_s = cut_cpu_s = 0;
    wall = now_s(CLOCK_MONOTONIC);
    cpu = now_s(CLOCK_PROCESS_CPUTIME_ID);
    guess(0, guesses);
    if (tt_refine_open(&refine, POINTS, WIDTH, HEIGHT, threads, &err) ||
        tt_refine_sample(refine, guesses, cut, &pictures[0], &err)) {
        fprintf(stderr, "refine_bench: %s\n", err.text);
        exit(1);
    }
    for (int t = 0; t < FRAMES; t++) {
        guess(t, guesses);
        if (tt_refine_follow(refine, guesses, cut, &pictures[t], points, &err))
            exit(1);
        for (int p = 0; p < POINTS; p++) {
            float x, y;

            for (size_t i = 0; i < 2 * sizeof x; i++)
                bits = (bits ^ (i < sizeof x ? (const uint8_t *)&points[p].x + i
                                             : (const uint8_t *)&points[p].y + i - sizeof x)[0]) *
                       16777619u;
            if (!points[p].is_refined)
                continue;
            move(t, WIDTH * (0.12f + 0.05f * (float)(p % SIDE)), HEIGHT * (0.14f + 0.05f * (float)(p / SIDE)),
                 &x, &y);
            off += hypotf(points[p].x - x, points[p].y - y);
            refined++;
        }
    }
    wall = now_s(CLOCK_MONOTONIC) - wall - cut_s;
    cpu = now_s(CLOCK_PROCESS_CPUTIME_ID) - cpu - cut_cpu_s;
    tt_refine_close(refine);
    printf("%d threads: %.0f ms a clip, %.0f ms of processors (patches aside: %.0f ms); %d of %d refined, "
           "mean error %.4f px, bits %08x\n",
           threads, 1e3 * wall, 1e3 * cpu, 1e3 * cut_cpu_s, refined, POINTS * (FRAMES - 1), off / refined,
           bits);
}

int main(int argc, char **argv)
{
    static struct picture pictures[FRAMES];

    for (int t = 0; t < FRAMES; t++)
        draw(t, &pictures[t]);
    for (int i = 1; i < argc || i < 3; i++)
        if (argc == 1 || i < argc)
            measure(pictures, argc == 1 ? i : atoi(argv[i]));
    for (int t = 0; t < FRAMES; t++)
        for (int l = 0; l < LEVELS; l++)
            free(pictures[t].level[l]);
    return 0;
}

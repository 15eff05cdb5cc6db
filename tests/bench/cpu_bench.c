/* tests/bench/cpu_bench.c: times the CPU backend on one clip.
 *
 * cpu_bench WEIGHTS CLIP QUERIES THREADS REPEATS
 *
 * CLIP: raw RGB frames, 256×256, at most 47, or "formula" for 47 made-up ones. QUERIES: "N" for a grid of N
 * points in frame 0, or a file of lines "frame x y". Prints one JSON object: wall and CPU seconds of each
 * stage in each repeat, peak resident memory, and the tracks' last positions, so that a run beside another
 * implementation can compare them.
 */
#include "core/backend.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <time.h>

struct timing {
    double wall, cpu;
};

static double clock_s(clockid_t clock)
{
    struct timespec t;

    clock_gettime(clock, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static struct timing now(void)
{
    return (struct timing){clock_s(CLOCK_MONOTONIC), clock_s(CLOCK_PROCESS_CPUTIME_ID)};
}

static void print_since(const char *name, struct timing start, const char *behind)
{
    struct timing end = now();

    printf("\"%s_wall_s\": %.3f, \"%s_cpu_s\": %.3f%s", name, end.wall - start.wall, name,
           end.cpu - start.cpu, behind);
}

static _Noreturn void die(const char *what, const char *why)
{
    fprintf(stderr, "cpu_bench: %s: %s\n", what, why);
    exit(1);
}

static uint8_t *read_clip(const char *path, int *frames)
{
    uint8_t *rgb = calloc(TT_CLIP_FRAMES, TT_FRAME_BYTES);
    FILE *file;

    if (!rgb)
        die(path, "no memory");
    *frames = TT_CLIP_FRAMES;
    if (!strcmp(path, "formula")) {
        for (int i = 0; i < TT_CLIP_BYTES; i++)
            rgb[i] = (uint8_t)(127.5 + 80 * sin(i % 768 * 0.05 + i / TT_FRAME_BYTES * 0.3) *
                                           cos(i / 768 % 256 * 0.11));
        return rgb;
    }
    file = fopen(path, "rb");
    if (!file)
        die(path, "cannot be opened");
    *frames = (int)(fread(rgb, 1, TT_CLIP_BYTES, file) / TT_FRAME_BYTES);
    fclose(file);
    return rgb;
}

static int read_queries(const char *source, int **frame, float **xy)
{
    FILE *file = fopen(source, "r");
    int count = file ? 0 : atoi(source), side = (int)ceil(sqrt(count)), room = file ? 4096 : count;

    *frame = calloc((size_t)room, sizeof **frame);
    *xy = calloc((size_t)room, 2 * sizeof **xy);
    if (!*frame || !*xy)
        die(source, "no memory");
    for (int i = 0; !file && i < count; i++) {
        (*xy)[2 * i] = ((float)(i % side) + 0.5f) * 256.0f / (float)side;
        (*xy)[2 * i + 1] = ((float)(i / side) + 0.5f) * 256.0f / (float)side;
    }
    while (file && count < room &&
           fscanf(file, "%d %f %f", &(*frame)[count], &(*xy)[2 * count], &(*xy)[2 * count + 1]) == 3)
        count++;
    if (file)
        fclose(file);
    return count;
}

static void print_tracks(const struct tt_estimate *result, int queries, int frames)
{
    printf("\"tracks\": [");
    for (int i = 0; i < queries * frames; i++)
        printf("%s%.4f,%.4f", i ? "," : "", (double)result[i].x, (double)result[i].y);
    printf("]");
}

int main(int argc, char **argv)
{
    const struct tt_backend_ops *ops = &tt_backend_cpu;
    struct tt_backend_options options = {0};
    struct tt_weights *weights;
    struct tt_backend *backend;
    struct tt_estimate *result;
    struct tt_track_request request = {0};
    struct tt_clip clip = {0};
    struct tt_error err;
    struct rusage usage;
    struct timing start;
    int *frame;
    float *xy;
    void *supports;

    if (argc != 6)
        die("usage", "cpu_bench WEIGHTS CLIP QUERIES THREADS REPEATS");
    clip.rgb = read_clip(argv[2], &clip.frames);
    request.queries = read_queries(argv[3], &frame, &xy);
    options.threads = atoi(argv[4]);
    supports = malloc((size_t)request.queries * ops->support_bytes);
    result = malloc((size_t)(request.queries * clip.frames) * sizeof *result);
    if (!supports || !result)
        die("memory", "none");
    request.supports = supports;
    request.query_frame = frame;
    request.query_xy = xy;

    printf("{\"queries\": %d, \"frames\": %d, \"threads\": %d, ", request.queries, clip.frames,
           options.threads);
    start = now();
    if (tt_weights_open(&weights, argv[1], &err) || ops->open(&backend, &options, weights, &err))
        die(argv[1], err.text);
    print_since("open", start, ", \"repeats\": [");
    for (int i = 0; i < atoi(argv[5]); i++) {
        printf("%s{", i ? ", " : "");
        start = now();
        if (ops->features(backend, &clip, 0, &err))
            die("features", err.text);
        print_since("features", start, ", ");
        start = now();
        if (ops->sample(backend, request.queries, frame, xy, supports, &err) ||
            ops->track(backend, &request, result, &err))
            die("track", err.text);
        print_since("track", start, "}");
        fflush(stdout);
    }
    getrusage(RUSAGE_SELF, &usage);
    printf("], \"peak_rss_mb\": %.1f, ", (double)usage.ru_maxrss / 1024);
    print_tracks(result, request.queries, clip.frames);
    puts("}");
    ops->close(backend);
    tt_weights_close(weights);
    free((void *)clip.rgb);
    free(supports);
    free(result);
    free(frame);
    free(xy);
    return 0;
}

/* tests/kernels/clipkern.c CLIPS WEIGHTS: FP16 against FP32 on real clips, on the device.
 *
 * CLIPS: the directory that clips.py unpacks into, ten clips of 47 frames. 256 query points of a grid, half
 * of them in the first frame, half in the middle. On every clip, of the points that FP32 calls visible: the
 * distance to FP16's is at most 0.1 px in the median and 0.5 px at the 99th percentile (256×256 pixels); of
 * all, at most 0.5 % of the visibility flags flip.
 */
#include "cuda/backend.h"

#include <dirent.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { GRID = 16, QUERIES = GRID * GRID, COUNT = QUERIES * TT_CLIP_FRAMES, CLIPS = 10, SKIPPED = 77 };

struct difference {
    double *distance; /* [visible] */
    size_t visible, flips, all;
};

static int failed;

static void die(const char *what, const char *text)
{
    fprintf(stderr, "clipkern: %s: %s\n", what, text);
    exit(1);
}

static void *need(void *p)
{
    if (!p)
        die("memory", "none");
    return p;
}

static void must(enum tt_status status, const struct tt_error *err)
{
    if (status)
        die(tt_status_name(status), err->text);
}

static int by_value(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;

    return (x > y) - (x < y);
}

static int visible(const struct tt_estimate *e)
{
    return 1.0 / (1.0 + exp((double)e->occlusion)) / (1.0 + exp((double)e->expected_dist)) > 0.5;
}

static void track(struct tt_backend *backend, const uint8_t *rgb, struct tt_estimate *result)
{
    const struct tt_clip clip = {.rgb = rgb, .frames = TT_CLIP_FRAMES};
    static int frame[QUERIES];
    static float xy[2 * QUERIES];
    void *supports = need(malloc(QUERIES * tt_backend_cuda.support_bytes));
    struct tt_error err;

    for (int q = 0; q < QUERIES; q++) {
        frame[q] = (q + q / GRID) % 2 ? TT_CLIP_FRAMES / 2 : 0;
        xy[2 * q] = (float)(q % GRID * 16 + 8);
        xy[2 * q + 1] = (float)(q / GRID * 16 + 8);
    }
    const struct tt_track_request request = {
        .queries = QUERIES, .supports = supports, .query_frame = frame, .query_xy = xy};
    must(tt_backend_cuda.features(backend, &clip, 0, &err), &err);
    must(tt_backend_cuda.sample(backend, QUERIES, frame, xy, supports, &err), &err);
    must(tt_backend_cuda.track(backend, &request, result, &err), &err);
    free(supports);
}

static void compare(struct difference *d, const struct tt_estimate *half, const struct tt_estimate *full)
{
    for (int i = 0; i < COUNT; i++) {
        d->all++;
        d->flips += (size_t)(visible(half + i) != visible(full + i));
        if (visible(full + i))
            d->distance[d->visible++] = hypot(half[i].x - full[i].x, half[i].y - full[i].y);
    }
}

/* Prints one line; sorts the distances. */
static void judge(const char *name, struct difference *d)
{
    double median, late, flips = (double)d->flips / (double)d->all;
    int bad;

    qsort(d->distance, d->visible, sizeof *d->distance, by_value);
    median = d->visible ? d->distance[d->visible / 2] : 0;
    late = d->visible ? d->distance[d->visible * 99 / 100] : 0;
    bad = !(median <= 0.1) || !(late <= 0.5) || !(flips <= 0.005);
    failed += bad;
    printf("%-4s %-64s %6zu visible, median %.4f px, 99th percentile %.3f px, flags that flip %.3f%%\n",
           bad ? "FAIL" : "ok", name, d->visible, median, late, 100 * flips);
}

static int is_clip(const struct dirent *entry)
{
    size_t length = strlen(entry->d_name);

    return length > 4 && !strcmp(entry->d_name + length - 4, ".rgb");
}

static uint8_t *read_clip(const char *directory, const char *name)
{
    uint8_t *rgb = need(malloc(TT_CLIP_BYTES));
    char path[4096];
    FILE *file;

    snprintf(path, sizeof path, "%s/%s", directory, name);
    file = fopen(path, "rb");
    if (!file || fread(rgb, 1, TT_CLIP_BYTES, file) != TT_CLIP_BYTES)
        die(path, "not a whole clip");
    fclose(file);
    return rgb;
}

int main(int argc, char **argv)
{
    struct tt_backend_options options = {.arch = KERN_K16 ? NULL : "sm_75"};
    struct difference all = {.distance = need(malloc(CLIPS * COUNT * sizeof(double)))};
    struct tt_estimate *result[2];
    struct tt_backend *backend[2];
    struct tt_weights *weights;
    struct dirent **clips;
    struct tt_error err;
    int count = argc == 3 ? scandir(argv[1], &clips, is_clip, alphasort) : -1;

    if (count != CLIPS) {
        printf("skipped: usage: clipkern CLIPS WEIGHTS; CLIPS has the ten clips of clips.py\n");
        return SKIPPED;
    }
    must(tt_weights_open(&weights, argv[2], &err), &err);
    for (int p = 0; p < 2; p++) {
        options.precision = p ? TT_FP16 : TT_FP32;
        must(tt_backend_cuda.open(&backend[p], &options, weights, &err), &err);
        result[p] = need(malloc(COUNT * sizeof *result[p]));
    }
    for (int i = 0; i < CLIPS; i++) {
        struct difference one = {.distance = need(malloc(COUNT * sizeof(double)))};
        uint8_t *rgb = read_clip(argv[1], clips[i]->d_name);

        for (int p = 0; p < 2; p++)
            track(backend[p], rgb, result[p]);
        compare(&one, result[1], result[0]);
        compare(&all, result[1], result[0]);
        judge(clips[i]->d_name, &one);
        free(one.distance);
        free(rgb);
        free(clips[i]);
    }
    judge("all", &all);
    for (int p = 0; p < 2; p++) {
        tt_backend_cuda.close(backend[p]);
        free(result[p]);
    }
    tt_weights_close(weights);
    free(clips);
    free(all.distance);
    printf("%d passed, %d failed\n", CLIPS + 1 - failed, failed);
    return failed != 0;
}

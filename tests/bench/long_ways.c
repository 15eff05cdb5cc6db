/* tests/bench/long_ways.c: one video, many ways to carry tracks across the seams of its windows.
 *
 * long_ways WEIGHTS BACKEND FRAMES QUERIES OUT WAY...
 *
 * FRAMES: raw RGB frames of 256×256. QUERIES: lines "frame x y". WAY: a name and switches, NAME[,SWITCH...]:
 *
 *     overlap=N         frames that windows share (8)
 *     init=none         a window begins from nothing that is known,
 *     init=all          from all of the stitched track in the overlap (this unless said otherwise),
 *     init=sure         or from its frames with a confidence above 0.5
 *     blend=ramp        the overlap: linear cross-fade (this unless said otherwise),
 *     blend=weighed     that, times each side's confidence,
 *     blend=best        each frame from the side that is more confident,
 *     blend=pass        or the product's way, tt_stitch_blend (not with back)
 *     doubt             and returns that the next window refutes are doubted, tt_stitch_doubt
 *     supports=first    looked for are: the query's own surroundings (this unless said otherwise),
 *     supports=fresh    those of the latest sure frame,
 *     supports=rescue   those, where the query's own give less confidence,
 *     supports=seam     or the product's way, core/seam.h
 *     sure=X            fresh, rescue: a frame is sure with a confidence above X (0.9)
 *     steady=N          and N around it that are sure too (6),
 *     border=X          and is X px within the frame (4)
 *     need=X            rescue: windows whose mean confidence is below X (0.9)
 *     gain=X            rescue: by how much it must grow (0.05)
 *     loose             rescue: also where it does not go on from a sure stitched track
 *     back              a second pass from the end to the beginning; the more confident of both
 *
 * Writes OUT: float32 [ways][queries][frames][4], the estimates, and prints a line of JSON for each way: its
 * name, the seconds that its tracking took, windows' overlap. The features are computed once for all ways (a
 * pass back once more) and their time is printed too. A program to choose by, not the product: it holds the
 * whole video. Fails with a message and 1.
 */
#include "core/backend.h"
#include "core/seam.h"
#include "core/window.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#ifndef LONG_CPU /* NULL: built without the CPU backend (tests/kernels), BACKEND is a plug-in */
#define LONG_CPU (&tt_backend_cpu)
#endif

enum init { INIT_NONE, INIT_ALL, INIT_SURE };
enum blend { BLEND_RAMP, BLEND_WEIGHED, BLEND_BEST, BLEND_PASS };
enum supports { SUPPORTS_FIRST, SUPPORTS_FRESH, SUPPORTS_RESCUE, SUPPORTS_SEAM };

struct way {
    const char *name;
    int overlap;
    enum init init;
    enum blend blend;
    enum supports supports;
    double sure, need, gain;
    int steady;
    double border;
    bool back, loose, doubt;
    struct tt_seam *seam; /* NULL: not used */

    int *starts, windows;         /* first frames of its windows */
    struct tt_estimate *stitched; /* [queries][frames] */
    struct tt_estimate *second;   /* of the pass back */
    char *fresh;                  /* [queries] supports; NULL: not used */
    int *fresh_frame;             /* where they are from, -1: none yet */
    double track_s;
    long rescued, kept;
};

struct bench {
    const struct tt_backend_ops *ops;
    struct tt_backend *backend;
    uint8_t *rgb;
    int frames, queries;
    int *query_frame, *place;
    float *query_xy;
    char *supports;
    struct way *ways;
    int count;
    double features_s, back_features_s;
    struct tt_estimate *init, *result, *other;
};

static _Noreturn void die(const char *what, const char *why)
{
    fprintf(stderr, "long_ways: %s: %s\n", what, why);
    exit(1);
}

static void *take(size_t count, size_t size)
{
    void *memory = calloc(count ? count : 1, size);

    if (!memory)
        die("memory", "none left");
    return memory;
}

static void check(enum tt_status status, const struct tt_error *err)
{
    if (status)
        die(tt_status_name(status), err->text);
}

static double seconds(void)
{
    struct timespec t;

    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static double confidence(const struct tt_estimate *e)
{
    return 1 / ((1 + exp((double)e->occlusion)) * (1 + exp((double)e->expected_dist)));
}

static int length_of(const struct bench *b)
{
    return b->frames < TT_CLIP_FRAMES ? b->frames : TT_CLIP_FRAMES;
}

/* --- one window --------------------------------------------------------------------------------------------
 */

static struct tt_estimate mix(const struct tt_estimate *a, const struct tt_estimate *b, double weight)
{
    float w = (float)weight;

    return (struct tt_estimate){a->x + w * (b->x - a->x), a->y + w * (b->y - a->y),
                                a->occlusion + w * (b->occlusion - a->occlusion),
                                a->expected_dist + w * (b->expected_dist - a->expected_dist)};
}

/* before and fresh at a share `ramp` of the way from the one to the other. */
static struct tt_estimate blend(enum blend how, const struct tt_estimate *before,
                                const struct tt_estimate *fresh, double ramp)
{
    double a = (1 - ramp) * confidence(before), b = ramp * confidence(fresh);

    if (how == BLEND_RAMP)
        return mix(before, fresh, ramp);
    if (how == BLEND_BEST)
        return confidence(fresh) > confidence(before) ? *fresh : *before;
    return mix(before, fresh, b / (a + b + 1e-9));
}

static void make_init(const struct bench *b, const struct way *way, const struct tt_estimate *known,
                      int start, int from, int to)
{
    int length = length_of(b);

    for (int q = 0; q < b->queries; q++)
        for (int t = 0; t < length; t++) {
            const struct tt_estimate *e = known + (size_t)q * (size_t)b->frames + start + t;
            bool use = t >= from && t < to && way->init != INIT_NONE &&
                       (way->init == INIT_ALL || confidence(e) > 0.5);

            b->init[(size_t)q * (size_t)length + (size_t)t] =
                use ? *e : (struct tt_estimate){.x = NAN, .y = NAN};
        }
}

static void track(struct bench *b, const char *supports, struct tt_estimate *result)
{
    struct tt_track_request request = {.queries = b->queries,
                                       .supports = supports,
                                       .query_frame = b->place,
                                       .query_xy = b->query_xy,
                                       .init = b->init};
    struct tt_error err;

    check(b->ops->track(b->backend, &request, result, &err), &err);
}

static double sum_of_confidence(const struct tt_estimate *row, int frames)
{
    double sum = 0;

    for (int t = 0; t < frames; t++)
        sum += confidence(row + t);
    return sum;
}

/* Whether the rescued row goes on where the stitched track, which is sure of the shared frames, was. */
static bool goes_on(const struct tt_estimate *known, const struct tt_estimate *row, int from, int to)
{
    int sure = 0;

    for (int t = from; t < to; t++) {
        if (confidence(known + t) <= 0.5)
            continue;
        sure++;
        if (hypot((double)(row[t].x - known[t].x), (double)(row[t].y - known[t].y)) > 3)
            return false;
    }
    return 2 * sure > to - from;
}

/* Tracks the queries whose own supports give little once more, with the fresh ones. known: of the window's
 * first frame, a row every b->frames. */
static void rescue(struct bench *b, struct way *way, const struct tt_estimate *known, int from, int to)
{
    size_t length = (size_t)length_of(b), bytes = b->ops->support_bytes;
    int *who = take((size_t)b->queries, sizeof *who), count = 0;
    char *supports = take((size_t)b->queries, bytes);
    struct tt_track_request request = {.supports = supports, .query_frame = b->place, .init = b->init};
    struct tt_error err;

    for (int q = 0; q < b->queries; q++) {
        if (way->fresh_frame[q] < 0 || b->place[q] >= 0 ||
            sum_of_confidence(b->result + (size_t)q * length, (int)length) > way->need * (double)length)
            continue;
        memcpy(supports + (size_t)count * bytes, way->fresh + (size_t)q * bytes, bytes);
        memmove(b->init + (size_t)count * length, b->init + (size_t)q * length, length * sizeof *b->init);
        who[count++] = q;
    }
    for (int i = 0; i < count; i++)
        b->place[i] = -1; /* none of these queries lies in the window */
    request.queries = count;
    request.query_xy = b->query_xy;
    check(b->ops->track(b->backend, &request, b->other, &err), &err);
    for (int i = 0; i < count; i++) {
        struct tt_estimate *row = b->result + (size_t)who[i] * length;
        const struct tt_estimate *other = b->other + (size_t)i * length;

        way->rescued++;
        if (sum_of_confidence(other, (int)length) <=
                sum_of_confidence(row, (int)length) + way->gain * (double)length ||
            !(way->loose || goes_on(known + (size_t)who[i] * (size_t)b->frames, other, from, to)))
            continue;
        way->kept++;
        memcpy(row, other, length * sizeof *row);
    }
    free(who);
    free(supports);
}

/* The product's way, core/seam.h. */
static void hold(struct bench *b, struct way *way, const struct tt_estimate *known, int start, int overlap)
{
    int length = length_of(b);
    struct tt_estimate *rows = take((size_t)b->queries * (size_t)length, sizeof *rows);
    bool *unbroken = take((size_t)b->queries, sizeof *unbroken);
    const struct tt_seam_block block = {b->queries, length, overlap, b->place, unbroken, rows};
    struct tt_error err;

    for (int q = 0; q < b->queries; q++) {
        const struct tt_estimate *row = known + (size_t)q * (size_t)b->frames;

        memcpy(rows + (size_t)q * (size_t)length, row, (size_t)overlap * sizeof *rows);
        unbroken[q] = b->query_frame[q] < start;
        for (int t = b->query_frame[q] - start; t < 0; t++)
            unbroken[q] &= confidence(row + t) > 0.5;
    }
    check(tt_seam_hold(way->seam, &block, b->result, &err), &err);
    free(rows);
    free(unbroken);
}

/* Result of a window by the way's supports. */
static void track_way(struct bench *b, struct way *way, const struct tt_estimate *known, int start, int from,
                      int to)
{
    int length = length_of(b);
    size_t bytes = b->ops->support_bytes;

    for (int q = 0; q < b->queries; q++) {
        int place = b->query_frame[q] - start;

        b->place[q] = place >= 0 && place < length ? place : -1;
    }
    if (way->supports == SUPPORTS_FRESH) {
        char *mixed = take((size_t)b->queries, bytes);

        for (int q = 0; q < b->queries; q++)
            memcpy(mixed + (size_t)q * bytes,
                   (way->fresh_frame[q] >= 0 && b->place[q] < 0 ? way->fresh : b->supports) +
                       (size_t)q * bytes,
                   bytes);
        track(b, mixed, b->result);
        free(mixed);
        return;
    }
    track(b, b->supports, b->result);
    if (way->supports == SUPPORTS_SEAM)
        hold(b, way, known + start, start, to);
    if (way->supports == SUPPORTS_RESCUE)
        rescue(b, way, known + start, from, to);
}

/* Takes fresh supports in the latest sure frame of the window. */
static void refresh(struct bench *b, struct way *way, const struct tt_estimate *known, int start,
                    int direction)
{
    int length = length_of(b);
    int *frame = take((size_t)b->queries, sizeof *frame);
    float *xy = take((size_t)b->queries, 2 * sizeof *xy);
    struct tt_error err;

    for (int q = 0; q < b->queries; q++) {
        frame[q] = -1;
        for (int t = direction > 0 ? length - 1 : 0; t >= 0 && t < length && frame[q] < 0; t -= direction) {
            const struct tt_estimate *e = known + (size_t)q * (size_t)b->frames + start + t;
            bool steady = true;

            for (int s = t - way->steady; s <= t + way->steady && steady; s++)
                steady = s >= 0 && s < length && confidence(e + s - t) > way->sure;
            if (!steady || !(e->x > way->border && e->x < 256 - way->border && e->y > way->border &&
                             e->y < 256 - way->border))
                continue;
            frame[q] = t;
            xy[2 * q] = e->x;
            xy[2 * q + 1] = e->y;
            way->fresh_frame[q] = start + t;
        }
    }
    check(b->ops->sample(b->backend, b->queries, frame, xy, way->fresh, &err), &err);
    free(frame);
    free(xy);
}

/* The product's doubt, tt_stitch_doubt: row is the stitched track at `start`, the window before began at
 * frame `before`. */
static void doubt(const struct bench *b, int q, struct tt_estimate *row, const struct tt_estimate *fresh,
                  int start, int before, int shared)
{
    int frames = 0;
    float least;

    while (start - frames > before && confidence(row - frames - 1) > 0.5)
        frames++;
    if (start - frames <= before || (b->query_frame[q] >= start - frames && b->query_frame[q] < start) ||
        b->place[q] >= 0 || !tt_stitch_refutes(row, fresh, shared, &least))
        return;
    for (int t = -frames; t < 0; t++)
        row[t].expected_dist = fmaxf(row[t].expected_dist, least);
}

/* The window at `start`, whose frames from..to-1 are known from the window before it in the direction. */
static void run_window(struct bench *b, struct way *way, struct tt_estimate *known, int start, int from,
                       int to, int direction)
{
    int length = length_of(b), shared = to - from;
    double begun = seconds();

    make_init(b, way, known, start, from, to);
    track_way(b, way, known, start, from, to);
    for (int q = 0; q < b->queries; q++) {
        struct tt_estimate *row = known + (size_t)q * (size_t)b->frames + start;
        const struct tt_estimate *fresh = b->result + (size_t)q * (size_t)length;

        if (way->doubt && shared > 0)
            doubt(b, q, row, fresh, start, start + shared - length, shared);
        if (way->blend == BLEND_PASS)
            tt_stitch_blend(row + from, fresh + from, shared);
        for (int t = 0; t < length; t++) {
            int i = direction > 0 ? t - from : to - 1 - t;

            if (t < from || t >= to)
                row[t] = fresh[t];
            else if (way->blend != BLEND_PASS)
                row[t] = blend(way->blend, row + t, fresh + t, (i + 1.0) / (shared + 1.0));
        }
    }
    if (way->fresh)
        refresh(b, way, known, start, direction);
    way->track_s += seconds() - begun;
}

/* --- the whole video ---------------------------------------------------------------------------------------
 */

static void features(struct bench *b, int start, int reuse)
{
    const struct tt_clip clip = {
        .rgb = b->rgb + (size_t)start * TT_FRAME_BYTES, .frames = length_of(b), .first_frame = start};
    struct tt_error err;

    check(b->ops->features(b->backend, &clip, reuse, &err), &err);
}

static void forward(struct bench *b)
{
    int length = length_of(b), last = -1;

    for (int start = 0; start + length <= b->frames; start++)
        for (int w = 0, held = 0; w < b->count; w++) {
            struct way *way = &b->ways[w];

            for (int i = 0; i < way->windows; i++) {
                double begun = seconds();

                if (way->starts[i] != start)
                    continue;
                if (!held) {
                    features(b, start, last >= 0 && start - last < length ? length - (start - last) : 0);
                    last = start;
                    held = 1;
                    b->features_s += seconds() - begun;
                    fprintf(stderr, "\rframe %d of %d", start, b->frames);
                }
                run_window(b, way, way->stitched, start, 0, i ? way->starts[i - 1] + length - start : 0, 1);
            }
        }
}

/* From the last window to the first, and the more confident of both passes, without steps. */
static void backward(struct bench *b, struct way *way)
{
    enum { REACH = 4 };
    int length = length_of(b);

    way->second = take((size_t)b->queries * (size_t)b->frames, sizeof *way->second);
    for (int q = 0; q < b->queries && way->fresh_frame; q++)
        way->fresh_frame[q] = -1;
    for (int i = way->windows - 1; i >= 0; i--) {
        int start = way->starts[i];
        double begun = seconds();

        features(b, start, 0);
        b->back_features_s += seconds() - begun;
        run_window(b, way, way->second, start, i + 1 < way->windows ? way->starts[i + 1] - start : length,
                   length, -1);
    }
    for (int q = 0; q < b->queries; q++) {
        struct tt_estimate *a = way->stitched + (size_t)q * (size_t)b->frames;
        struct tt_estimate *z = way->second + (size_t)q * (size_t)b->frames;
        double *share = take((size_t)b->frames, sizeof *share);

        for (int t = 0; t < b->frames; t++) {
            double ours = 0, theirs = 0;

            for (int s = t - REACH; s <= t + REACH; s++)
                if (s >= 0 && s < b->frames) {
                    ours += pow(confidence(a + s), 4);
                    theirs += pow(confidence(z + s), 4);
                }
            share[t] = theirs / (ours + theirs + 1e-9);
        }
        for (int t = 0; t < b->frames; t++)
            a[t] = mix(a + t, z + t, share[t]);
        free(share);
    }
}

/* Supports of all query points, a clip of one frame at a time. */
static void sample_queries(struct bench *b)
{
    struct tt_error err;

    for (int q = 0; q < b->queries; q++) {
        struct tt_clip clip = {.rgb = b->rgb + (size_t)b->query_frame[q] * TT_FRAME_BYTES,
                               .frames = 1,
                               .first_frame = b->query_frame[q]};
        bool seen = false;

        for (int p = 0; p < q; p++)
            seen |= b->query_frame[p] == b->query_frame[q];
        if (seen)
            continue;
        check(b->ops->features(b->backend, &clip, 0, &err), &err);
        for (int p = 0; p < b->queries; p++)
            b->place[p] = b->query_frame[p] == b->query_frame[q] ? 0 : -1;
        check(b->ops->sample(b->backend, b->queries, b->place, b->query_xy, b->supports, &err), &err);
    }
}

/* --- arguments ---------------------------------------------------------------------------------------------
 */

static int word(const char *value, const char *const *words, const char *whole)
{
    for (int i = 0; words[i]; i++)
        if (!strcmp(value, words[i]))
            return i;
    die(whole, "no such switch");
}

static void parse_switch(struct way *way, const char *text, const char *whole)
{
    static const char *const inits[] = {"none", "all", "sure", NULL};
    static const char *const blends[] = {"ramp", "weighed", "best", "pass", NULL};
    static const char *const supports[] = {"first", "fresh", "rescue", "seam", NULL};

    if (!strncmp(text, "overlap=", 8))
        way->overlap = atoi(text + 8);
    else if (!strncmp(text, "init=", 5))
        way->init = (enum init)word(text + 5, inits, whole);
    else if (!strncmp(text, "blend=", 6))
        way->blend = (enum blend)word(text + 6, blends, whole);
    else if (!strncmp(text, "supports=", 9))
        way->supports = (enum supports)word(text + 9, supports, whole);
    else if (!strncmp(text, "sure=", 5))
        way->sure = atof(text + 5);
    else if (!strncmp(text, "need=", 5))
        way->need = atof(text + 5);
    else if (!strncmp(text, "gain=", 5))
        way->gain = atof(text + 5);
    else if (!strncmp(text, "border=", 7))
        way->border = atof(text + 7);
    else if (!strncmp(text, "steady=", 7))
        way->steady = atoi(text + 7);
    else if (!strcmp(text, "loose"))
        way->loose = true;
    else if (!strcmp(text, "doubt"))
        way->doubt = true;
    else if (!strcmp(text, "back"))
        way->back = true;
    else
        die(whole, "no such switch");
}

static void make_way(struct bench *b, struct way *way, char *text)
{
    int length = length_of(b), start;
    struct tt_error err;
    char *at = strchr(text, ',');

    *way = (struct way){.name = text,
                        .overlap = 8,
                        .init = INIT_ALL,
                        .sure = 0.9,
                        .need = 0.9,
                        .gain = 0.05,
                        .steady = 6,
                        .border = 4};
    while (at) {
        char *next = strchr(at + 1, ',');

        *at++ = '\0';
        if (next)
            *next = '\0';
        parse_switch(way, at, at);
        if (next)
            *next = ',';
        at = next;
    }
    if (way->back && way->blend == BLEND_PASS)
        die(text, "back and blend=pass");
    if (way->overlap < 0 || way->overlap >= TT_CLIP_FRAMES)
        die(text, "overlap");
    way->starts = take((size_t)b->frames, sizeof *way->starts);
    for (start = 0; start + length <= b->frames; start += TT_CLIP_FRAMES - way->overlap)
        way->starts[way->windows++] = start;
    if (way->starts[way->windows - 1] + length < b->frames)
        way->starts[way->windows++] = b->frames - length;
    if (way->supports == SUPPORTS_SEAM)
        check(tt_seam_open(&way->seam, b->ops, b->backend, b->queries, &err), &err);
    way->stitched = take((size_t)b->queries * (size_t)b->frames, sizeof *way->stitched);
    if (way->supports == SUPPORTS_FRESH || way->supports == SUPPORTS_RESCUE) {
        way->fresh = take((size_t)b->queries, b->ops->support_bytes);
        memcpy(way->fresh, b->supports, (size_t)b->queries * b->ops->support_bytes);
        way->fresh_frame = take((size_t)b->queries, sizeof *way->fresh_frame);
        for (int q = 0; q < b->queries; q++)
            way->fresh_frame[q] = -1;
    }
}

static void read_inputs(struct bench *b, const char *frames, const char *queries)
{
    enum { MOST = 4096 };
    FILE *file = fopen(frames, "rb");

    if (!file || fseek(file, 0, SEEK_END))
        die(frames, "cannot be read");
    b->frames = (int)(ftell(file) / TT_FRAME_BYTES);
    rewind(file);
    if (b->frames == 0)
        die(frames, "no frames");
    b->rgb = take((size_t)b->frames, TT_FRAME_BYTES);
    if (fread(b->rgb, TT_FRAME_BYTES, (size_t)b->frames, file) != (size_t)b->frames)
        die(frames, "cannot be read");
    fclose(file);
    file = fopen(queries, "r");
    if (!file)
        die(queries, "cannot be read");
    b->query_frame = take(MOST, sizeof *b->query_frame);
    b->query_xy = take(MOST, 2 * sizeof *b->query_xy);
    while (b->queries < MOST && fscanf(file, "%d %f %f", &b->query_frame[b->queries],
                                       &b->query_xy[2 * b->queries], &b->query_xy[2 * b->queries + 1]) == 3)
        if (b->query_frame[b->queries] < 0 || b->query_frame[b->queries++] >= b->frames)
            die(queries, "a frame that the video has not");
    fclose(file);
    b->place = take(MOST, sizeof *b->place);
}

int main(int argc, char **argv)
{
    struct bench b = {.ops = LONG_CPU};
    struct tt_backend_options options = {0};
    struct tt_weights *weights;
    struct tt_error err;
    FILE *out;

    if (argc < 7)
        die("usage", "long_ways WEIGHTS BACKEND FRAMES QUERIES OUT WAY...");
    if (!b.ops || strcmp(argv[2], "cpu"))
        check(tt_backend_load(&b.ops, argv[2], &err), &err);
    read_inputs(&b, argv[3], argv[4]);
    check(tt_weights_open(&weights, argv[1], &err), &err);
    check(b.ops->open(&b.backend, &options, weights, &err), &err);
    b.supports = take((size_t)b.queries, b.ops->support_bytes);
    b.init = take((size_t)b.queries * TT_CLIP_FRAMES, sizeof *b.init);
    b.result = take((size_t)b.queries * TT_CLIP_FRAMES, sizeof *b.result);
    b.other = take((size_t)b.queries * TT_CLIP_FRAMES, sizeof *b.other);
    sample_queries(&b);
    b.count = argc - 6;
    b.ways = take((size_t)b.count, sizeof *b.ways);
    for (int w = 0; w < b.count; w++)
        make_way(&b, &b.ways[w], argv[6 + w]);
    /* The clips of one frame are not what a window can reuse, so the first one is computed whole. */
    forward(&b);
    for (int w = 0; w < b.count; w++)
        if (b.ways[w].back)
            backward(&b, &b.ways[w]);
    out = fopen(argv[5], "wb");
    for (int w = 0; w < b.count; w++) {
        const struct way *way = &b.ways[w];
        size_t all = (size_t)b.queries * (size_t)b.frames;

        if (!out || fwrite(way->stitched, sizeof *way->stitched, all, out) != all)
            die(argv[5], "cannot be written");
        printf(
            "{\"name\": \"%s\", \"overlap\": %d, \"track_s\": %.3f, \"features_s\": %.3f, \"rescued\": %ld, "
            "\"kept\": %ld}\n",
            way->name, way->overlap, way->track_s, b.features_s + (way->back ? b.back_features_s : 0),
            way->rescued, way->kept);
    }
    if (fclose(out))
        die(argv[5], "cannot be written");
    for (int w = 0; w < b.count; w++)
        tt_seam_close(b.ways[w].seam);
    b.ops->close(b.backend);
    tt_weights_close(weights);
    return 0;
}

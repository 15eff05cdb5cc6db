/* core/window.c: overlapping windows of a video, and the stitching of their results.
 *
 * Windows: the buffer holds the newest window's frames (47, or as many as whole windows have) and room for
 * one step more. A step that comes back short is the end of the video, and the window that ends there is
 * again the last frames of the buffer; so sliding back needs no case of its own.
 *
 * Stitching: held[q] is what is known of the newest window's frames of query q. Tiles in the spill file lie
 * one behind the other, so a tile that starts at frame f lies at f × queries estimates. All tiles have `step`
 * frames but the last two: one ends early where the last window slid back, and the last holds a whole window.
 * Thus a frame's tile is found without a table that would grow with the video.
 *
 * Fails: the reader's failures, no memory at open, the spill files' disk. A stitch whose begin or finish
 * failed is not used again.
 */
#include "core/window.h"

#include "core/fsio.h"
#include "core/window_parts.h"

#include <errno.h>
#include <math.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* --- windows -----------------------------------------------------------------------------------------------
 */

struct tt_windows {
    tt_frames_read *read;
    void *user;
    int whole;      /* frames of a whole window */
    int step;       /* new frames a window */
    int held;       /* frames of the newest window; 0: none yet */
    int64_t frames; /* read so far */
    bool ended;
    uint8_t *rgb; /* [whole + step] frames, the newest window first */
    double time_s[2 * TT_CLIP_FRAMES];
};

enum tt_status tt_windows_open(struct tt_windows **windows, int clip_frames, int overlap,
                               tt_frames_read *read, void *user, struct tt_error *err)
{
    struct tt_windows *made;

    if (clip_frames < 1 || clip_frames > TT_CLIP_FRAMES)
        return tt_fail(err, TT_REFUSE, "windows have 1 to %d frames, not %d", TT_CLIP_FRAMES, clip_frames);
    if (overlap < 0 || overlap >= clip_frames)
        return tt_fail(err, TT_REFUSE, "windows of %d frames overlap by 0 to %d, not %d", clip_frames,
                       clip_frames - 1, overlap);
    made = calloc(1, sizeof *made);
    if (made) {
        *made = (struct tt_windows){
            .read = read, .user = user, .whole = clip_frames, .step = clip_frames - overlap};
        made->rgb = malloc((size_t)(made->whole + made->step) * TT_FRAME_BYTES);
    }
    if (!made || !made->rgb) {
        free(made);
        return tt_fail_errno(err, TT_RETRY_LATER, ENOMEM, "a window of frames");
    }
    *windows = made;
    return TT_OK;
}

enum tt_status tt_windows_next(struct tt_windows *windows, struct tt_window *window, struct tt_error *err)
{
    struct tt_windows *w = windows;
    int wanted = w->held == 0 ? w->whole : w->step;
    int got = 0;

    if (!w->ended) {
        enum tt_status status = w->read(w->user, w->rgb + (size_t)w->held * TT_FRAME_BYTES,
                                        w->time_s + w->held, wanted, &got, err);

        w->ended = status != TT_OK || got < wanted;
        if (status)
            return status;
    }
    w->frames += got;
    if (got == 0) {
        *window = (struct tt_window){.clip = {.first_frame = w->frames}};
        return TT_OK;
    }
    if (w->held == 0) {
        w->held = got;
        *window = (struct tt_window){.overlap = 0};
    } else {
        memmove(w->rgb, w->rgb + (size_t)got * TT_FRAME_BYTES, (size_t)w->held * TT_FRAME_BYTES);
        memmove(w->time_s, w->time_s + got, (size_t)w->held * sizeof *w->time_s);
        *window = (struct tt_window){.overlap = w->held - got};
    }
    window->clip = (struct tt_clip){.rgb = w->rgb, .frames = w->held, .first_frame = w->frames - w->held};
    window->time_s = w->time_s;
    return TT_OK;
}

enum tt_status tt_windows_resume(struct tt_windows *windows, int64_t first_frame, struct tt_error *err)
{
    struct tt_windows *w = windows;

    while (w->held == 0 && !w->ended) {
        int64_t before = first_frame - w->frames;
        int wanted = before > 0 && before < w->whole ? (int)before : w->whole, got = 0;
        enum tt_status status = w->read(w->user, w->rgb, w->time_s, wanted, &got, err);

        w->ended = status != TT_OK || got < wanted;
        if (status)
            return status;
        w->frames += got;
        if (before == 0)
            w->held = got;
    }
    if (w->held < w->whole)
        return tt_fail(err, TT_RETRY_LATER, "the video has %lld frames, fewer than were tracked before",
                       (long long)w->frames);
    return TT_OK;
}

int64_t tt_windows_frames(const struct tt_windows *windows)
{
    return windows->frames;
}

void tt_windows_close(struct tt_windows *windows)
{
    if (!windows)
        return;
    free(windows->rgb);
    free(windows);
}

/* --- stitching ---------------------------------------------------------------------------------------------
 */

enum tt_status tt_stitch_new(struct tt_stitch **stitch, int queries, struct tt_error *err)
{
    struct tt_stitch *made = calloc(1, sizeof *made);

    if (made)
        made->held = malloc((size_t)queries * TT_CLIP_FRAMES * sizeof *made->held);
    if (made)
        made->since = calloc((size_t)queries, sizeof *made->since);
    if (!made || !made->held || !made->since) {
        if (made)
            free(made->held);
        free(made);
        return tt_fail_errno(err, TT_RETRY_LATER, ENOMEM, "a window of %d tracks", queries);
    }
    made->queries = queries;
    made->tile_fd = made->time_fd = -1;
    *stitch = made;
    return TT_OK;
}

enum tt_status tt_stitch_open(struct tt_stitch **stitch, int queries, const char *directory,
                              struct tt_error *err)
{
    struct tt_stitch *made = NULL;
    enum tt_status status = tt_stitch_new(&made, queries, err);

    if (!status)
        status = tt_spill_open(&made->tile_fd, directory, err);
    if (!status)
        status = tt_spill_open(&made->time_fd, directory, err);
    if (status)
        tt_stitch_close(made);
    else
        *stitch = made;
    return status;
}

static int64_t tile_offset(const struct tt_stitch *stitch, int64_t first_frame, int first_query, int frames)
{
    return (first_frame * stitch->queries + (int64_t)first_query * frames) * (int64_t)sizeof *stitch->held;
}

/* Writes the first `frames` frames of what is held as a tile [queries][frames]. */
static enum tt_status spill(struct tt_stitch *stitch, int frames, struct tt_error *err)
{
    int block = TT_STITCH_SCRATCH / frames;

    for (int q = 0; q < stitch->queries; q += block) {
        int count = stitch->queries - q < block ? stitch->queries - q : block;
        enum tt_status status;

        for (int i = 0; i < count; i++)
            memcpy(stitch->scratch + (size_t)i * frames, stitch->held + (size_t)(q + i) * TT_CLIP_FRAMES,
                   (size_t)frames * sizeof *stitch->held);
        status = tt_write_at(stitch->tile_fd, stitch->scratch, (size_t)count * frames * sizeof *stitch->held,
                             tile_offset(stitch, stitch->first, q, frames), "spilled tracks", err);
        if (status)
            return status;
    }
    return TT_OK;
}

static double confidence(const struct tt_estimate *e)
{
    return 1 / ((1 + exp((double)e->occlusion)) * (1 + exp((double)e->expected_dist)));
}

static bool is_sure(const struct tt_estimate *e)
{
    return confidence(e) > 0.5;
}

/* The next `frames` frames of a query's row become final. */
static void count_sure(struct tt_stitch *stitch, int query, int frames)
{
    const struct tt_estimate *row = stitch->held + (size_t)query * TT_CLIP_FRAMES;

    for (int t = frames - 1; t >= 0; t--)
        if (!is_sure(row + t)) {
            stitch->since[query] = stitch->first + t + 1;
            return;
        }
}

enum tt_status tt_stitch_check_whole(const struct tt_stitch *stitch, struct tt_error *err)
{
    if (!stitch->held)
        return tt_fail(err, TT_REFUSE, "stitching: already finished");
    if (stitch->frames > 0 && stitch->added != stitch->queries)
        return tt_fail(err, TT_REFUSE, "stitching: %d of %d queries were added to the window at frame %lld",
                       stitch->added, stitch->queries, (long long)stitch->first);
    return TT_OK;
}

enum tt_status tt_stitch_begin(struct tt_stitch *stitch, const struct tt_window *window, struct tt_error *err)
{
    struct tt_stitch *s = stitch;
    int64_t shift = window->clip.first_frame - s->first;
    enum tt_status status = tt_stitch_check_whole(s, err);

    if (status)
        return status;
    if (s->step == 0)
        s->step = (int)shift;
    if (s->frames == 0 ? shift != 0 || window->overlap != 0
                       : shift < 1 || shift > s->step || s->slid || window->overlap != s->frames - shift)
        return tt_fail(err, TT_REFUSE, "stitching: a window at frame %lld cannot follow the one at %lld",
                       (long long)window->clip.first_frame, (long long)s->first);
    if (s->frames > 0) {
        status = spill(s, (int)shift, err);
        if (status)
            return status;
        for (int q = 0; q < s->queries; q++) {
            struct tt_estimate *row = s->held + (size_t)q * TT_CLIP_FRAMES;

            count_sure(s, q, (int)shift);
            memmove(row, row + shift, (size_t)window->overlap * sizeof *row);
        }
        s->shift = (int)shift;
        s->slid = shift < s->step;
    }
    s->first = window->clip.first_frame;
    s->frames = window->clip.frames;
    s->overlap = window->overlap;
    s->added = 0;
    return tt_write_at(s->time_fd, window->time_s, (size_t)s->frames * sizeof *window->time_s,
                       s->first * (int64_t)sizeof *window->time_s, "spilled frame times", err);
}

int tt_stitch_init(const struct tt_stitch *stitch, int first, int count, struct tt_estimate *init)
{
    for (int i = 0; i < count; i++) {
        struct tt_estimate *row = init + (size_t)i * stitch->frames;

        memcpy(row, stitch->held + (size_t)(first + i) * TT_CLIP_FRAMES,
               (size_t)stitch->overlap * sizeof *row);
        for (int t = stitch->overlap; t < stitch->frames; t++)
            row[t] = (struct tt_estimate){.x = NAN, .y = NAN};
    }
    return stitch->overlap;
}

int64_t tt_stitch_sure_since(const struct tt_stitch *stitch, int query)
{
    return stitch->since[query];
}

static bool contradict(const struct tt_estimate *a, const struct tt_estimate *b)
{
    return hypot((double)a->x - (double)b->x, (double)a->y - (double)b->y) > TT_STITCH_APART && is_sure(a) &&
           is_sure(b);
}

/* The frame at which passing over from the one to the other keeps the most confidence. */
static int find_pass(const struct tt_estimate *stitched, const struct tt_estimate *fresh, int overlap)
{
    double kept = 0, most = 0; /* against passing over at frame 0 */
    int pass = 0;

    for (int t = 0; t < overlap; t++) {
        kept += confidence(stitched + t) - confidence(fresh + t);
        if (kept > most) {
            most = kept;
            pass = t + 1;
        }
    }
    return pass;
}

static float mix(float stitched, float fresh, float weight)
{
    return stitched + weight * (fresh - stitched);
}

void tt_stitch_blend(struct tt_estimate *stitched, const struct tt_estimate *fresh, int overlap)
{
    bool apart = false;

    for (int t = 0; t < overlap; t++)
        apart |= contradict(stitched + t, fresh + t);
    if (apart) {
        int pass = find_pass(stitched, fresh, overlap);

        memcpy(stitched + pass, fresh + pass, (size_t)(overlap - pass) * sizeof *stitched);
        return;
    }
    for (int t = 0; t < overlap; t++) {
        float weight = (float)(t + 1) / (float)(overlap + 1);

        stitched[t].x = mix(stitched[t].x, fresh[t].x, weight);
        stitched[t].y = mix(stitched[t].y, fresh[t].y, weight);
        stitched[t].occlusion = mix(stitched[t].occlusion, fresh[t].occlusion, weight);
        stitched[t].expected_dist = mix(stitched[t].expected_dist, fresh[t].expected_dist, weight);
    }
}

bool tt_stitch_refutes(const struct tt_estimate *stitched, const struct tt_estimate *fresh, int overlap,
                       float *expected_dist)
{
    double sum = 0;

    for (int t = 0; t < overlap; t++) {
        if (!contradict(stitched + t, fresh + t))
            return false;
        sum += confidence(fresh + t);
    }
    if (!(sum > TT_STITCH_CERTAIN * overlap) || find_pass(stitched, fresh, overlap) > 0)
        return false;
    *expected_dist = (float)fmin(log(sum / (overlap - sum)), 16); /* finite, however sure */
    return true;
}

/* Refutes a query's return: its frames since..first-1, which lie in the newest tile. */
static enum tt_status refute(struct tt_stitch *stitch, int query, float expected_dist, struct tt_error *err)
{
    const int64_t since = stitch->since[query], tile = stitch->first - stitch->shift;
    const int frames = (int)(stitch->first - since);
    const int64_t offset =
        tile_offset(stitch, tile, query, stitch->shift) + (since - tile) * (int64_t)sizeof *stitch->held;
    struct tt_estimate row[TT_CLIP_FRAMES];
    enum tt_status status =
        tt_read_at(stitch->tile_fd, row, (size_t)frames * sizeof *row, offset, "spilled tracks", err);

    for (int t = 0; !status && t < frames; t++)
        if (row[t].expected_dist < expected_dist)
            row[t].expected_dist = expected_dist;
    if (!status)
        status =
            tt_write_at(stitch->tile_fd, row, (size_t)frames * sizeof *row, offset, "spilled tracks", err);
    if (!status)
        stitch->since[query] = stitch->first;
    return status;
}

enum tt_status tt_stitch_doubt(struct tt_stitch *stitch, int first, int count, const bool *believed,
                               const struct tt_estimate *result, struct tt_error *err)
{
    enum tt_status status = TT_OK;

    for (int i = 0; i < count && !status; i++) {
        const int64_t since = stitch->since[first + i];
        float expected_dist;

        if (!believed[i] && stitch->overlap > 0 && since > stitch->first - stitch->shift &&
            since < stitch->first &&
            tt_stitch_refutes(stitch->held + (size_t)(first + i) * TT_CLIP_FRAMES,
                              result + (size_t)i * stitch->frames, stitch->overlap, &expected_dist))
            status = refute(stitch, first + i, expected_dist, err);
    }
    return status;
}

void tt_stitch_add(struct tt_stitch *stitch, int first, int count, const struct tt_estimate *result)
{
    const int overlap = stitch->overlap, frames = stitch->frames;

    for (int i = 0; i < count; i++) {
        struct tt_estimate *held = stitch->held + (size_t)(first + i) * TT_CLIP_FRAMES;
        const struct tt_estimate *fresh = result + (size_t)i * frames;

        tt_stitch_blend(held, fresh, overlap);
        memcpy(held + overlap, fresh + overlap, (size_t)(frames - overlap) * sizeof *held);
    }
    if (first == stitch->added)
        stitch->added += count;
}

enum tt_status tt_stitch_finish(struct tt_stitch *stitch, struct tt_error *err)
{
    enum tt_status status = tt_stitch_check_whole(stitch, err);

    if (!status && stitch->frames > 0)
        status = spill(stitch, stitch->frames, err);
    if (status)
        return status;
    stitch->finished = stitch->first + stitch->frames;
    free(stitch->held);
    free(stitch->since);
    stitch->held = NULL;
    stitch->since = NULL;
    return TT_OK;
}

int64_t tt_stitch_frames(const struct tt_stitch *stitch)
{
    return stitch->finished;
}

static enum tt_status check_range(const struct tt_stitch *stitch, int64_t first_frame, int frames,
                                  struct tt_error *err)
{
    if (first_frame < 0 || frames < 0 || first_frame + frames > stitch->finished)
        return tt_fail(err, TT_REFUSE, "stitching: frames %lld to %lld of %lld were asked for",
                       (long long)first_frame, (long long)first_frame + frames, (long long)stitch->finished);
    return TT_OK;
}

/* The tile that holds a frame. */
static void find_tile(const struct tt_stitch *stitch, int64_t frame, int64_t *first, int *frames)
{
    if (frame >= stitch->first) {
        *first = stitch->first;
        *frames = stitch->frames;
        return;
    }
    *first = frame / stitch->step * stitch->step;
    *frames = (int)(stitch->first - *first < stitch->step ? stitch->first - *first : stitch->step);
}

enum tt_status tt_stitch_read(struct tt_stitch *stitch, int first_query, int queries, int64_t first_frame,
                              int frames, struct tt_estimate *rows, struct tt_error *err)
{
    enum tt_status status = check_range(stitch, first_frame, frames, err);
    const int64_t end = first_frame + frames;
    int64_t tile;
    int tile_frames;

    if (!status && (first_query < 0 || queries < 0 || queries > stitch->queries - first_query))
        status = tt_fail(err, TT_REFUSE, "stitching: queries %d to %d of %d were asked for", first_query,
                         first_query + queries, stitch->queries);
    for (int64_t from = first_frame; !status && from < end; from = tile + tile_frames) {
        int block, count;
        int64_t to;

        find_tile(stitch, from, &tile, &tile_frames);
        to = tile + tile_frames < end ? tile + tile_frames : end;
        block = TT_STITCH_SCRATCH / tile_frames;
        for (int q = 0; q < queries; q += block) {
            count = queries - q < block ? queries - q : block;
            status =
                tt_read_at(stitch->tile_fd, stitch->scratch, (size_t)count * tile_frames * sizeof *rows,
                           tile_offset(stitch, tile, first_query + q, tile_frames), "spilled tracks", err);
            if (status)
                break;
            for (int i = 0; i < count; i++)
                memcpy(rows + (size_t)(q + i) * frames + (from - first_frame),
                       stitch->scratch + (size_t)i * tile_frames + (from - tile),
                       (size_t)(to - from) * sizeof *rows);
        }
    }
    return status;
}

enum tt_status tt_stitch_times(struct tt_stitch *stitch, int64_t first_frame, int frames, double *time_s,
                               struct tt_error *err)
{
    enum tt_status status = check_range(stitch, first_frame, frames, err);

    if (status)
        return status;
    return tt_read_at(stitch->time_fd, time_s, (size_t)frames * sizeof *time_s,
                      first_frame * (int64_t)sizeof *time_s, "spilled frame times", err);
}

void tt_stitch_close(struct tt_stitch *stitch)
{
    if (!stitch)
        return;
    if (stitch->tile_fd >= 0)
        close(stitch->tile_fd);
    if (stitch->time_fd >= 0)
        close(stitch->time_fd);
    free(stitch->held);
    free(stitch->since);
    free(stitch);
}

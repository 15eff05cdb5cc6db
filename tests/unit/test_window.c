/* tests/unit/test_window.c: windows and stitching against a plain restatement of their rules, for many
 * lengths and overlaps; and what happens when the reader or the disk fails.
 */
#include "core/window.h"

#include "tests/unit/temporary.h"

#include <errno.h>
#include <malloc.h>
#include <math.h>
#include <sched.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/mount.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <cmocka.h>

/* A video whose frames carry their number. */
struct video {
    int64_t frames, next, fails_at;
    bool ended; /* came back short or failed: must not be read again */
};

static int clip_frames = TT_CLIP_FRAMES; /* of whole windows, in the tests that vary it */

static double time_of(int64_t frame)
{
    return 5 + (double)frame / 30 + (double)(frame % 3) / 1000;
}

static enum tt_status read_video(void *user, uint8_t *rgb, double *time_s, int wanted, int *got,
                                 struct tt_error *err)
{
    struct video *video = user;

    assert_false(video->ended);
    for (*got = 0; *got < wanted && video->next < video->frames; ++*got) {
        video->ended = video->next == video->fails_at;
        if (video->ended) {
            *got = wanted; /* means nothing then */
            return tt_fail(err, TT_BAD_INPUT, "the video breaks");
        }
        memcpy(rgb + (size_t)*got * TT_FRAME_BYTES, &video->next, sizeof video->next);
        memcpy(rgb + (size_t)(*got + 1) * TT_FRAME_BYTES - sizeof video->next, &video->next,
               sizeof video->next);
        time_s[*got] = time_of(video->next++);
    }
    video->ended = *got < wanted;
    return TT_OK;
}

static struct tt_windows *open_windows(struct video *video, int overlap, int64_t frames)
{
    struct tt_windows *windows = NULL;
    struct tt_error err;

    *video = (struct video){.frames = frames, .fails_at = -1};
    assert_int_equal(tt_windows_open(&windows, clip_frames, overlap, read_video, video, &err), TT_OK);
    return windows;
}

/* --- the rules, restated
 * --------------------------------------------------------------------------------------- */

enum { WINDOWS_MAX = 3001 };

/* Starts of all windows of a video; each has the same number of frames, which is returned in *length. */
static int plan_windows(int64_t frames, int overlap, int64_t starts[WINDOWS_MAX], int *length)
{
    int count = 0;

    *length = frames < clip_frames ? (int)frames : clip_frames;
    if (frames == 0)
        return 0;
    for (int64_t start = 0; start + *length <= frames; start += clip_frames - overlap)
        starts[count++] = start;
    if (starts[count - 1] + *length < frames)
        starts[count++] = frames - *length;
    return count;
}

static void expect_frame(const struct tt_window *window, int t)
{
    const uint8_t *frame = window->clip.rgb + (size_t)t * TT_FRAME_BYTES;
    int64_t number = window->clip.first_frame + t;

    assert_memory_equal(frame, &number, sizeof number);
    assert_memory_equal(frame + TT_FRAME_BYTES - sizeof number, &number, sizeof number);
    assert_true(window->time_s[t] == time_of(number));
}

static void expect_windows(int64_t frames, int overlap)
{
    int64_t starts[WINDOWS_MAX], seen = 0;
    struct video video;
    struct tt_windows *windows = open_windows(&video, overlap, frames);
    struct tt_window window;
    struct tt_error err;
    int length, count = plan_windows(frames, overlap, starts, &length);

    for (int w = 0; w < count; w++) {
        assert_int_equal(tt_windows_next(windows, &window, &err), TT_OK);
        assert_int_equal(window.clip.first_frame, starts[w]);
        assert_int_equal(window.clip.frames, length);
        assert_int_equal(window.overlap, w == 0 ? 0 : seen - starts[w]);
        assert_true(w == 0 || window.overlap >= overlap);
        for (int t = 0; t < length; t++)
            expect_frame(&window, t);
        seen = starts[w] + length;
        assert_int_equal(tt_windows_frames(windows), seen);
    }
    assert_int_equal(seen, frames);
    for (int i = 0; i < 2; i++) {
        assert_int_equal(tt_windows_next(windows, &window, &err), TT_OK);
        assert_int_equal(window.clip.frames, 0);
        assert_int_equal(tt_windows_frames(windows), frames);
    }
    tt_windows_close(windows);
}

static void cuts_videos_into_windows(void **state)
{
    static const int64_t lengths[] = {0, 1, 2, 46, 47, 48, 85, 86, 87, 92, 93, 94, 95, 141, 300};
    static const int overlaps[] = {0, 1, 8, 23, 24, 45, 46};

    (void)state;
    for (size_t i = 0; i < sizeof lengths / sizeof lengths[0]; i++)
        for (size_t j = 0; j < sizeof overlaps / sizeof overlaps[0]; j++)
            expect_windows(lengths[i], overlaps[j]);
    for (int64_t frames = 40; frames < 180; frames += 5)
        expect_windows(frames, 8);
    expect_windows(3000, 8);
}

static void places_frames_in_windows(void **state)
{
    const struct tt_window window = {.clip = {.first_frame = 39, .frames = 47}};

    (void)state;
    assert_int_equal(tt_window_place(&window, 38), -1);
    assert_int_equal(tt_window_place(&window, 39), 0);
    assert_int_equal(tt_window_place(&window, 85), 46);
    assert_int_equal(tt_window_place(&window, 86), -1);
    assert_int_equal(tt_window_place(&window, (int64_t)1 << 40), -1);
}

static void refuses_impossible_overlaps(void **state)
{
    struct tt_windows *windows = NULL;
    struct tt_error err;

    (void)state;
    assert_int_equal(tt_windows_open(&windows, 47, -1, read_video, NULL, &err), TT_REFUSE);
    assert_int_equal(tt_windows_open(&windows, 47, 47, read_video, NULL, &err), TT_REFUSE);
    assert_int_equal(tt_windows_open(&windows, 24, 24, read_video, NULL, &err), TT_REFUSE);
    assert_int_equal(tt_windows_open(&windows, 48, 8, read_video, NULL, &err), TT_REFUSE);
    assert_int_equal(tt_windows_open(&windows, 0, 0, read_video, NULL, &err), TT_REFUSE);
    assert_null(windows);
    tt_windows_close(NULL);
}

static void passes_a_reader_s_failure_on(void **state)
{
    struct video video;
    struct tt_windows *windows = open_windows(&video, 8, 300);
    struct tt_window window;
    struct tt_error err;

    (void)state;
    video.fails_at = 60;
    assert_int_equal(tt_windows_next(windows, &window, &err), TT_OK);
    assert_int_equal(tt_windows_next(windows, &window, &err), TT_BAD_INPUT);
    assert_string_equal(err.text, "the video breaks");
    assert_int_equal(tt_windows_next(windows, &window, &err), TT_OK);
    assert_int_equal(window.clip.frames, 0);
    tt_windows_close(windows);
}

/* --- stitching
 * ------------------------------------------------------------------------------------------------- */

/* What the "network" says of a query and frame in the window that starts at `start`. */
static struct tt_estimate estimate_of(int query, int64_t frame, int64_t start)
{
    float f = (float)frame, s = (float)(start % 97), q = (float)query;

    return (struct tt_estimate){.x = 10 + q + f / 8 + s / 16,
                                .y = 200 - q / 2 - f / 4 + s / 32,
                                .occlusion = q - s / 8,
                                .expected_dist = f / 64 - s};
}

static struct tt_estimate mix(struct tt_estimate a, struct tt_estimate b, double weight)
{
    return (struct tt_estimate){.x = (float)(a.x * (1 - weight) + b.x * weight),
                                .y = (float)(a.y * (1 - weight) + b.y * weight),
                                .occlusion = (float)(a.occlusion * (1 - weight) + b.occlusion * weight),
                                .expected_dist =
                                    (float)(a.expected_dist * (1 - weight) + b.expected_dist * weight)};
}

static void expect_close(const struct tt_estimate *got, const struct tt_estimate *wanted)
{
    const float *a = &got->x, *b = &wanted->x;

    for (int i = 0; i < 4; i++)
        if (!(fabsf(a[i] - b[i]) <= 1e-4f * (1 + fabsf(b[i]))))
            fail_msg("value %d is %g, not %g", i, (double)a[i], (double)b[i]);
}

/* One run through the loop of core/window.h, in blocks of queries. expected: [queries][frames], built
 * alongside by the rule. NULL: nothing is compared. */
static enum tt_status run_stitch(struct tt_stitch *stitch, int queries, int block, int64_t frames,
                                 int overlap, struct tt_estimate *expected, struct tt_error *err)
{
    struct tt_estimate *init = malloc((size_t)block * TT_CLIP_FRAMES * sizeof *init);
    struct tt_estimate *result = malloc((size_t)block * TT_CLIP_FRAMES * sizeof *result);
    struct video video;
    struct tt_windows *windows = open_windows(&video, overlap, frames);
    struct tt_window window;
    enum tt_status status;

    while ((status = tt_windows_next(windows, &window, err)) == TT_OK && window.clip.frames > 0) {
        status = tt_stitch_begin(stitch, &window, err);
        if (status)
            break;
        for (int first = 0; first < queries; first += block) {
            int count = queries - first < block ? queries - first : block;
            int known = tt_stitch_init(stitch, first, count, init);

            assert_int_equal(known, window.overlap);
            for (int i = 0; i < count * window.clip.frames; i++) {
                int query = first + i / window.clip.frames, t = i % window.clip.frames;
                int64_t frame = window.clip.first_frame + t;

                result[i] = estimate_of(query, frame, window.clip.first_frame);
                if (t >= known)
                    assert_true(isnan(init[i].x));
                if (!expected)
                    continue;
                if (t < known) {
                    expect_close(&init[i], &expected[query * frames + frame]);
                    expected[query * frames + frame] =
                        mix(expected[query * frames + frame], result[i], (t + 1.0) / (window.overlap + 1.0));
                } else {
                    expected[query * frames + frame] = result[i];
                }
            }
            tt_stitch_add(stitch, first, count, result);
        }
    }
    if (!status)
        status = tt_stitch_finish(stitch, err);
    tt_windows_close(windows);
    free(init);
    free(result);
    return status;
}

/* Reads [first_query, +queries) × [first_frame, +frames) and compares. */
static void expect_read(struct tt_stitch *stitch, int first_query, int queries, int64_t first_frame,
                        int frames, const struct tt_estimate *expected, int64_t all_frames)
{
    struct tt_estimate *rows = malloc(((size_t)queries * (size_t)frames + 1) * sizeof *rows);
    double *time_s = malloc(((size_t)frames + 1) * sizeof *time_s);
    struct tt_error err;

    assert_int_equal(tt_stitch_read(stitch, first_query, queries, first_frame, frames, rows, &err), TT_OK);
    assert_int_equal(tt_stitch_times(stitch, first_frame, frames, time_s, &err), TT_OK);
    for (int q = 0; q < queries; q++)
        for (int t = 0; t < frames; t++)
            expect_close(&rows[q * frames + t], &expected[(first_query + q) * all_frames + first_frame + t]);
    for (int t = 0; t < frames; t++)
        assert_true(time_s[t] == time_of(first_frame + t));
    free(rows);
    free(time_s);
}

static void expect_stitched(int queries, int block, int64_t frames, int overlap)
{
    struct tt_estimate *expected = malloc(((size_t)queries * (size_t)frames + 1) * sizeof *expected);
    struct tt_stitch *stitch = NULL;
    struct tt_error err;

    assert_int_equal(tt_stitch_open(&stitch, queries, ".", &err), TT_OK);
    assert_int_equal(count_names(), 0);
    assert_int_equal(run_stitch(stitch, queries, block, frames, overlap, expected, &err), TT_OK);
    assert_int_equal(tt_stitch_frames(stitch), frames);
    expect_read(stitch, 0, queries, 0, (int)frames, expected, frames);
    srand(1);
    for (int i = 0; i < 20; i++) {
        int first_query = rand() % queries, first_frame = (int)(rand() % (frames + 1));

        expect_read(stitch, first_query, 1 + rand() % (queries - first_query), first_frame,
                    (int)(rand() % (frames - first_frame + 1)), expected, frames);
    }
    assert_int_equal(tt_stitch_times(stitch, frames, 1, &(double){0}, &err), TT_REFUSE);
    assert_int_equal(tt_stitch_read(stitch, 0, 1, -1, 1, &(struct tt_estimate){0}, &err), TT_REFUSE);
    assert_int_equal(tt_stitch_read(stitch, 0, queries + 1, 0, 1, &(struct tt_estimate){0}, &err), TT_REFUSE);
    tt_stitch_close(stitch);
    free(expected);
}

static void stitches_windows(void **state)
{
    static const int64_t lengths[] = {1, 2, 46, 47, 48, 86, 93, 94, 95, 300};
    static const int overlaps[] = {0, 1, 8, 24, 46};

    (void)state;
    for (size_t i = 0; i < sizeof lengths / sizeof lengths[0]; i++)
        for (size_t j = 0; j < sizeof overlaps / sizeof overlaps[0]; j++) {
            if (lengths[i] < 300 || overlaps[j] < 46) /* a window a frame: its copies take long */
                expect_stitched(5, 2, lengths[i], overlaps[j]);
        }
    for (int64_t frames = 40; frames < 140; frames += 3)
        expect_stitched(1, 1, frames, 8);
    expect_stitched(250, 100, 300, 8); /* more than one scratch of 4096 estimates */
    expect_stitched(4, 4, 3000, 8);
}

/* The same rules for windows of fewer frames. */
static void windows_may_be_shorter(void **state)
{
    static const int clips[] = {8, 24, 46};

    (void)state;
    for (size_t i = 0; i < sizeof clips / sizeof clips[0]; i++) {
        clip_frames = clips[i];
        for (int64_t frames = 0; frames < 120; frames += 1 + frames % 3)
            for (int overlap = 0; overlap < clip_frames; overlap += 7)
                expect_windows(frames, overlap);
        for (int64_t frames = 1; frames < 100; frames += 11)
            expect_stitched(3, 2, frames, clip_frames / 3);
    }
    clip_frames = TT_CLIP_FRAMES;
}

/* The rule by hand: one query, 48 frames, windows [0,47) and [1,48), 46 frames shared. */
static void weighs_the_overlap_linearly(void **state)
{
    struct tt_estimate ones[TT_CLIP_FRAMES], zeros[TT_CLIP_FRAMES] = {{0}}, row[48];
    double time_s[TT_CLIP_FRAMES] = {0};
    struct tt_window window = {.clip = {.frames = 47}, .time_s = time_s};
    struct tt_stitch *stitch = NULL;
    struct tt_error err;

    (void)state;
    for (int t = 0; t < TT_CLIP_FRAMES; t++)
        ones[t] = (struct tt_estimate){1, 1, 1, 1};
    assert_int_equal(tt_stitch_open(&stitch, 1, ".", &err), TT_OK);
    assert_int_equal(tt_stitch_begin(stitch, &window, &err), TT_OK);
    tt_stitch_add(stitch, 0, 1, zeros);
    window.clip.first_frame = 1;
    window.overlap = 46;
    assert_int_equal(tt_stitch_begin(stitch, &window, &err), TT_OK);
    tt_stitch_add(stitch, 0, 1, ones);
    assert_int_equal(tt_stitch_finish(stitch, &err), TT_OK);
    assert_int_equal(tt_stitch_read(stitch, 0, 1, 0, 48, row, &err), TT_OK);
    assert_true(row[0].x == 0 && row[47].x == 1);
    for (int t = 1; t < 47; t++) {
        assert_true(fabsf(row[t].x - (float)t / 47) < 1e-6f);
        assert_true(row[t].y == row[t].x && row[t].occlusion == row[t].x && row[t].expected_dist == row[t].x);
    }
    tt_stitch_close(stitch);
}

/* Two windows of 20 frames that share 8: the stitched frames 12 to 19, and the next window's first ones,
 * `apart` pixels beside them and with these logits. */
static void stitch_apart(float apart, const float stitched[8], const float fresh[8],
                         struct tt_estimate row[32])
{
    struct tt_estimate rows[20];
    double time_s[20] = {0};
    struct tt_window window = {.clip = {.frames = 20}, .time_s = time_s};
    struct tt_stitch *stitch = NULL;
    struct tt_error err;

    assert_int_equal(tt_stitch_open(&stitch, 1, ".", &err), TT_OK);
    assert_int_equal(tt_stitch_begin(stitch, &window, &err), TT_OK);
    for (int t = 0; t < 20; t++) {
        float logit = t < 12 ? -5 : stitched[t - 12];

        rows[t] = (struct tt_estimate){100, 90, logit, logit};
    }
    tt_stitch_add(stitch, 0, 1, rows);
    window.clip.first_frame = 12;
    window.overlap = 8;
    assert_int_equal(tt_stitch_begin(stitch, &window, &err), TT_OK);
    for (int t = 0; t < 20; t++) {
        float logit = t < 8 ? fresh[t] : -5;

        rows[t] = (struct tt_estimate){100 + apart * 0.6f, 90 + apart * 0.8f, logit, logit};
    }
    tt_stitch_add(stitch, 0, 1, rows);
    assert_int_equal(tt_stitch_finish(stitch, &err), TT_OK);
    assert_int_equal(tt_stitch_read(stitch, 0, 1, 0, 32, row, &err), TT_OK);
    tt_stitch_close(stitch);
}

/* Stitched up to frame `pass` of those shared, and the next window from there on, nothing in between. */
static void expect_pass(const float stitched[8], const float fresh[8], int pass)
{
    struct tt_estimate row[32];

    stitch_apart(TT_STITCH_APART + 0.1f, stitched, fresh, row);
    for (int t = 0; t < 8; t++) {
        float logit = t < pass ? stitched[t] : fresh[t];

        assert_true((row[12 + t].x == 100) == (t < pass) && (row[12 + t].y == 90) == (t < pass));
        assert_true(row[12 + t].occlusion == logit && row[12 + t].expected_dist == logit);
    }
}

static void does_not_mix_what_contradicts(void **state)
{
    static const float sure[] = {-5, -5, -5, -5, -5, -5, -5, -5}, surer[] = {-6, -6, -6, -6, -6, -6, -6, -6},
                       until_3[] = {-6, -6, -6, -2, -2, -2, -2, -2},
                       from_3[] = {-2, -2, -2, -6, -6, -6, -6, -6}, unsure[] = {0, 0, 0, 0, 0, 0, 0, 0};
    struct tt_estimate row[32];

    (void)state;
    expect_pass(sure, surer, 0);
    expect_pass(surer, sure, 8);
    expect_pass(until_3, from_3, 3);
    expect_pass(from_3, until_3, 8); /* five frames of the one outweigh three of the other */
    stitch_apart(TT_STITCH_APART - 0.1f, sure, surer, row); /* near enough */
    assert_true(fabsf(row[12].x - 100 - 0.6f * (TT_STITCH_APART - 0.1f) / 9) < 1e-4f);
    for (int i = 0; i < 2; i++) { /* only one side says that it sees the point */
        stitch_apart(TT_STITCH_APART + 0.1f, i ? unsure : sure, i ? sure : unsure, row);
        assert_true(fabsf(row[12].x - 100 - 0.6f * (TT_STITCH_APART + 0.1f) / 9) < 1e-4f);
    }
}

/* Two queries, windows of 20 frames that share 8. Query 1 is hidden up to frame `from`, then found, and from
 * frame 24 on found elsewhere by the third window, but in its first `agreeing` frames. */
struct doubted {
    int from, agreeing;
    bool believed;
    float found, elsewhere; /* both logits */
};

static void stitch_doubted(const struct doubted *d, struct tt_estimate row[44])
{
    const bool believed[2] = {false, d->believed};
    double time_s[20] = {0};
    struct tt_window window = {.clip = {.frames = 20}, .time_s = time_s};
    struct tt_estimate rows[2][20];
    struct tt_stitch *stitch = NULL;
    struct tt_error err;

    assert_int_equal(tt_stitch_open(&stitch, 2, ".", &err), TT_OK);
    for (int w = 0; w < 3; w++) {
        window.clip.first_frame = 12 * w;
        window.overlap = w ? 8 : 0;
        assert_int_equal(tt_stitch_begin(stitch, &window, &err), TT_OK);
        for (int t = 0; t < 20; t++) {
            const bool elsewhere = w == 2 && t >= d->agreeing;
            const float logit = elsewhere ? d->elsewhere : 12 * w + t < d->from ? 3 : d->found;

            rows[0][t] = (struct tt_estimate){20, 30, -5, -5};
            rows[1][t] = (struct tt_estimate){elsewhere ? 150 : 100, 90, logit, logit};
        }
        assert_int_equal(tt_stitch_doubt(stitch, 0, 2, believed, rows[0], &err), TT_OK);
        if (w == 2) /* again, as by a job that was resumed */
            assert_int_equal(tt_stitch_doubt(stitch, 0, 2, believed, rows[0], &err), TT_OK);
        tt_stitch_add(stitch, 0, 2, rows[0]);
    }
    assert_int_equal(tt_stitch_finish(stitch, &err), TT_OK);
    assert_int_equal(tt_stitch_read(stitch, 0, 1, 0, 44, row, &err), TT_OK);
    for (int t = 0; t < 44; t++)
        assert_true(row[t].x == 20 && row[t].expected_dist == -5);
    assert_int_equal(tt_stitch_read(stitch, 1, 1, 0, 44, row, &err), TT_OK);
    tt_stitch_close(stitch);
}

static void expect_no_doubt(struct doubted d)
{
    struct tt_estimate row[44];

    stitch_doubted(&d, row);
    for (int t = 0; t < 24; t++)
        assert_true(row[t].x == 100 && row[t].expected_dist == (t < d.from ? 3 : d.found));
}

static void a_return_that_is_refuted_is_doubted(void **state)
{
    static const struct doubted refuted = {.from = 20, .found = -3, .elsewhere = -5};
    const double conf = 1 / (1 + exp(-5)) / (1 + exp(-5));
    struct doubted d = refuted;
    struct tt_estimate row[44];

    (void)state;
    stitch_doubted(&refuted, row);
    for (int t = 0; t < 44; t++) {
        const bool is_hidden = t < 20, is_doubted = t >= 20 && t < 24;

        assert_true(row[t].x == (t < 24 ? 100 : 150));
        assert_true(row[t].occlusion == (is_hidden ? 3 : is_doubted ? -3 : -5));
        if (is_doubted) /* no more than the chance that the window which refutes it is wrong */
            assert_true(fabs(1 / (1 + exp((double)row[t].expected_dist)) - (1 - conf)) < 1e-6);
        else
            assert_true(row[t].expected_dist == row[t].occlusion);
    }
    d.believed = true;
    expect_no_doubt(d);
    d = refuted;
    d.agreeing = 1; /* of the shared frames */
    expect_no_doubt(d);
    d = refuted;
    d.from = 12; /* nothing was hidden in the window before */
    expect_no_doubt(d);
    d = refuted;
    d.from = 0;
    expect_no_doubt(d);
    d = refuted;
    d.elsewhere = -3.5f; /* conf 0.942 is not enough, though more than 0.907 */
    expect_no_doubt(d);
    d = refuted;
    d.found = -6; /* the surer one stands, and its frames that are shared */
    expect_no_doubt(d);
    d = refuted;
    d.elsewhere = -40; /* conf 1 to the last bit */
    stitch_doubted(&d, row);
    assert_true(row[23].expected_dist == 16);
}

static void keeps_the_bits_of_windows_that_agree(void **state)
{
    double time_s[TT_CLIP_FRAMES] = {0};
    struct tt_estimate same[TT_CLIP_FRAMES], row[86];
    struct tt_window window = {.clip = {.frames = 47}, .time_s = time_s};
    struct tt_stitch *stitch = NULL;
    struct tt_error err;

    (void)state;
    for (int t = 0; t < TT_CLIP_FRAMES; t++)
        same[t] = (struct tt_estimate){0.1f, 255.9f, -1e30f, 1e-30f};
    assert_int_equal(tt_stitch_open(&stitch, 1, ".", &err), TT_OK);
    for (; window.clip.first_frame <= 39; window.clip.first_frame += 39) {
        window.overlap = window.clip.first_frame ? 8 : 0;
        assert_int_equal(tt_stitch_begin(stitch, &window, &err), TT_OK);
        tt_stitch_add(stitch, 0, 1, same);
    }
    assert_int_equal(tt_stitch_finish(stitch, &err), TT_OK);
    assert_int_equal(tt_stitch_read(stitch, 0, 1, 0, 86, row, &err), TT_OK);
    for (int t = 0; t < 86; t++)
        assert_memory_equal(&row[t], &same[0], sizeof row[t]);
    tt_stitch_close(stitch);
}

/* One query, windows of 10 frames that share 2; sure but for frames 3 and 12, and for frame 8 as it was
 * first. */
static void counts_since_when_a_track_is_sure(void **state)
{
    static const int64_t since[] = {0, 4, 13, 13};
    double time_s[TT_CLIP_FRAMES] = {0};
    struct tt_window window = {.clip = {.frames = 10}, .time_s = time_s};
    struct tt_estimate rows[10];
    struct tt_stitch *stitch = NULL;
    struct tt_error err;

    (void)state;
    assert_int_equal(tt_stitch_open(&stitch, 1, ".", &err), TT_OK);
    for (int w = 0; w < 4; w++) {
        for (int t = 0; t < 10; t++) {
            int frame = 8 * w + t;
            float logit = frame == 3 || frame == 12 ? -0.8f : -0.9f; /* conf 0.476 and 0.505 */

            if (w == 0 && frame == 8) /* conf 0.4996; with a third of -0.9 in it, it is sure */
                logit = -0.88f;
            rows[t] = (struct tt_estimate){1, 1, logit, logit};
        }
        window.clip.first_frame = 8 * w;
        window.overlap = w ? 2 : 0;
        assert_int_equal(tt_stitch_begin(stitch, &window, &err), TT_OK);
        assert_int_equal(tt_stitch_sure_since(stitch, 0), since[w]);
        tt_stitch_add(stitch, 0, 1, rows);
    }
    tt_stitch_close(stitch);
}

static void refuses_windows_out_of_order(void **state)
{
    double time_s[TT_CLIP_FRAMES] = {0};
    struct tt_estimate result[2 * TT_CLIP_FRAMES] = {{0}};
    struct tt_window first = {.clip = {.frames = 47}, .time_s = time_s}, next = first, gap = first,
                     late = first;
    struct tt_stitch *stitch = NULL;
    struct tt_error err;

    (void)state;
    next.clip.first_frame = 39;
    next.overlap = 8;
    gap.clip.first_frame = 48;
    late.clip.first_frame = 60;
    late.overlap = 26;
    assert_int_equal(tt_stitch_open(&stitch, 2, ".", &err), TT_OK);
    assert_int_equal(tt_stitch_begin(stitch, &next, &err), TT_REFUSE);
    assert_int_equal(tt_stitch_begin(stitch, &first, &err), TT_OK);
    tt_stitch_add(stitch, 0, 1, result);
    assert_int_equal(tt_stitch_begin(stitch, &next, &err), TT_REFUSE);
    assert_string_equal(err.text, "stitching: 1 of 2 queries were added to the window at frame 0");
    assert_int_equal(tt_stitch_finish(stitch, &err), TT_REFUSE);
    tt_stitch_add(stitch, 1, 1, result);
    assert_int_equal(tt_stitch_begin(stitch, &gap, &err), TT_REFUSE);
    tt_stitch_close(stitch);

    assert_int_equal(tt_stitch_open(&stitch, 2, ".", &err), TT_OK);
    assert_int_equal(tt_stitch_begin(stitch, &first, &err), TT_OK);
    tt_stitch_add(stitch, 0, 2, result);
    assert_int_equal(tt_stitch_begin(stitch, &next, &err), TT_OK);
    tt_stitch_add(stitch, 0, 2, result);
    assert_int_equal(tt_stitch_begin(stitch, &late, &err), TT_OK); /* it slid back: the last one */
    tt_stitch_add(stitch, 0, 2, result);
    late.clip.first_frame = 70;
    late.overlap = 37;
    assert_int_equal(tt_stitch_begin(stitch, &late, &err), TT_REFUSE);
    assert_int_equal(tt_stitch_finish(stitch, &err), TT_OK);
    assert_int_equal(tt_stitch_begin(stitch, &late, &err), TT_REFUSE);
    assert_int_equal(tt_stitch_frames(stitch), 107);
    tt_stitch_close(stitch);
    tt_stitch_close(NULL);
}

static size_t allocated(void)
{
    struct mallinfo2 info = mallinfo2();

    return info.uordblks + info.hblkhd;
}

static size_t allocated_behind(int64_t frames)
{
    size_t before = allocated(), behind;
    struct tt_stitch *stitch = NULL;
    struct tt_error err;

    assert_int_equal(tt_stitch_open(&stitch, 3, ".", &err), TT_OK);
    assert_int_equal(run_stitch(stitch, 3, 3, frames, 8, NULL, &err), TT_OK);
    behind = allocated() - before;
    tt_stitch_close(stitch);
    return behind;
}

static void needs_no_more_memory_for_longer_videos(void **state)
{
    size_t shorter = allocated_behind(100);

    (void)state;
    assert_true(allocated_behind(5000) <= shorter + 1024);
}

/* --- the disk fails
 * -------------------------------------------------------------------------------------------- */

/* Runs a long stitch in a child, behind prepare(); gives the status, or 77 where that could not be prepared.
 */
static int run_in_child(int (*prepare)(void))
{
    pid_t child = fork();
    int result;

    if (child == 0) {
        struct tt_stitch *stitch = NULL;
        struct tt_error err = {.text = ""};
        enum tt_status status = TT_OK;
        int prepared = prepare();

        if (prepared)
            _exit(prepared);
        status = tt_stitch_open(&stitch, 100, ".", &err);
        if (!status)
            status = run_stitch(stitch, 100, 100, 400, 8, NULL, &err);
        tt_stitch_close(stitch);
        _exit((int)status);
    }
    assert_int_equal(waitpid(child, &result, 0), child);
    assert_true(WIFEXITED(result));
    return WEXITSTATUS(result);
}

static int limit_files(void)
{
    const struct rlimit limit = {100000, 100000};

    signal(SIGXFSZ, SIG_IGN);
    return setrlimit(RLIMIT_FSIZE, &limit) == 0 ? 0 : 77;
}

static void says_so_when_files_cannot_grow(void **state)
{
    (void)state;
    assert_int_equal(run_in_child(limit_files), TT_REFUSE);
}

static char tiny_path[256];

static int enter_tiny(void)
{
    if (unshare(CLONE_NEWNS) < 0 || mount(NULL, "/", NULL, MS_REC | MS_PRIVATE, NULL) < 0 ||
        mount("tmpfs", tiny_path, "tmpfs", 0, "size=128k") < 0)
        return 77;
    return chdir(tiny_path) == 0 ? 0 : 77;
}

static void asks_to_retry_when_the_disk_is_full(void **state)
{
    int result;

    snprintf(tiny_path, sizeof tiny_path, "%s", (char *)*state);
    result = run_in_child(enter_tiny);
    if (result == 77) {
        print_message("skipped: a tmpfs cannot be mounted here\n");
        skip();
    }
    assert_int_equal(result, TT_RETRY_LATER);
}

int main(void)
{
#define IN_DIRECTORY(test) cmocka_unit_test_setup_teardown(test, enter_temporary, leave_temporary)
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(cuts_videos_into_windows),
        cmocka_unit_test(places_frames_in_windows),
        cmocka_unit_test(refuses_impossible_overlaps),
        cmocka_unit_test(passes_a_reader_s_failure_on),
        IN_DIRECTORY(stitches_windows),
        IN_DIRECTORY(windows_may_be_shorter),
        IN_DIRECTORY(weighs_the_overlap_linearly),
        IN_DIRECTORY(does_not_mix_what_contradicts),
        IN_DIRECTORY(a_return_that_is_refuted_is_doubted),
        IN_DIRECTORY(keeps_the_bits_of_windows_that_agree),
        IN_DIRECTORY(counts_since_when_a_track_is_sure),
        IN_DIRECTORY(refuses_windows_out_of_order),
        IN_DIRECTORY(needs_no_more_memory_for_longer_videos),
        IN_DIRECTORY(says_so_when_files_cannot_grow),
        IN_DIRECTORY(asks_to_retry_when_the_disk_is_full),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}

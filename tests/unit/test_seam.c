/* tests/unit/test_seam.c: which tracks get a second try in a window, what the backend is asked then, and when
 * its answer counts; on a backend that answers what the test says.
 */
#include "core/seam.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

enum { FRAMES = TT_CLIP_FRAMES, QUERIES = 3, OVERLAP = 8, SUPPORT_BYTES = 12 };

static const float SURE = -6, DOUBTFUL = -1.5f, UNSURE = 2; /* logits: conf 0.995, 0.668 and 0.014 */

/* What the backend was asked last, and what it answers. */
static struct {
    int samples, tracks, queries;
    int frame[QUERIES];
    float xy[2 * QUERIES], supports[QUERIES];
    struct tt_estimate init[QUERIES * FRAMES], answer[QUERIES * FRAMES];
    enum tt_status sample_status, track_status;
} asked;

static enum tt_status sample(struct tt_backend *backend, int queries, const int *frame, const float *xy,
                             void *supports, struct tt_error *err)
{
    (void)backend;
    asked.samples++;
    memcpy(asked.frame, frame, (size_t)queries * sizeof *frame);
    memcpy(asked.xy, xy, 2 * (size_t)queries * sizeof *xy);
    for (int q = 0; q < queries; q++) {
        float mark = 100 + (float)q;

        memcpy((char *)supports + q * SUPPORT_BYTES, &mark, sizeof mark);
    }
    return asked.sample_status ? tt_fail(err, asked.sample_status, "sample fails") : TT_OK;
}

static enum tt_status track(struct tt_backend *backend, const struct tt_track_request *request,
                            struct tt_estimate *result, struct tt_error *err)
{
    (void)backend;
    asked.tracks++;
    asked.queries = request->queries;
    assert_memory_equal(request->query_frame, asked.frame, (size_t)request->queries * sizeof(int));
    assert_memory_equal(request->query_xy, asked.xy, 2 * (size_t)request->queries * sizeof(float));
    for (int q = 0; q < request->queries; q++)
        memcpy(&asked.supports[q], (const char *)request->supports + q * SUPPORT_BYTES, sizeof(float));
    memcpy(asked.init, request->init, (size_t)(request->queries * FRAMES) * sizeof *asked.init);
    memcpy(result, asked.answer, (size_t)(request->queries * FRAMES) * sizeof *result);
    return asked.track_status ? tt_fail(err, asked.track_status, "track fails") : TT_OK;
}

static const struct tt_backend_ops ops = {
    .name = "told", .support_bytes = SUPPORT_BYTES, .sample = sample, .track = track};

/* The block of each test, and what it begins with: all sure, on a slow line of its own, seen by every query's
 * window. */
static struct tt_estimate known[QUERIES * FRAMES], result[QUERIES * FRAMES], before[QUERIES * FRAMES];
static int place[QUERIES];
static bool unbroken[QUERIES];
static struct tt_seam *seam;

static struct tt_estimate at(int query, int t, float shift, float logit)
{
    return (struct tt_estimate){100 + 10 * (float)query + (float)t / 2 + shift, 90 - (float)t / 4, logit,
                                logit};
}

static int begin(void **state)
{
    struct tt_error err;

    (void)state;
    memset(&asked, 0, sizeof asked);
    for (int q = 0; q < QUERIES; q++) {
        place[q] = -1;
        unbroken[q] = true;
        for (int t = 0; t < FRAMES; t++) {
            result[q * FRAMES + t] = at(q, t, 0, SURE);
            known[q * FRAMES + t] = t < OVERLAP ? at(q, t, 0.25f, SURE - 1) : (struct tt_estimate){.x = NAN};
        }
    }
    return tt_seam_open(&seam, &ops, NULL, QUERIES, &err) != TT_OK;
}

static int end(void **state)
{
    (void)state;
    tt_seam_close(seam);
    return 0;
}

static enum tt_status hold(int overlap, struct tt_error *err)
{
    const struct tt_seam_block block = {.queries = QUERIES,
                                        .frames = FRAMES,
                                        .overlap = overlap,
                                        .place = place,
                                        .unbroken = unbroken,
                                        .known = known};

    memcpy(before, result, sizeof before);
    return tt_seam_hold(seam, &block, result, err);
}

/* Query `query` is not sure from frame `from` on; the second try (the n-th) is, and lies `shift` beside it.
 */
static void lose(int query, int from, int n, float shift, float logit)
{
    for (int t = 0; t < FRAMES; t++) {
        if (t >= from)
            result[query * FRAMES + t] = at(query, t, 30, UNSURE);
        asked.answer[n * FRAMES + t] = at(query, t, shift, logit);
    }
}

static void expect_untouched(int tries)
{
    struct tt_error err;

    assert_int_equal(hold(OVERLAP, &err), TT_OK);
    assert_int_equal(asked.samples, tries);
    assert_int_equal(asked.tracks, tries);
    assert_memory_equal(result, before, sizeof result);
}

static void sure_tracks_are_left_alone(void **state)
{
    (void)state;
    expect_untouched(0);
}

/* The middle query of three is lost from frame 30 on: 26 is the last frame with three sure ones on either
 * side. */
static void a_lost_track_goes_on_from_its_anchor(void **state)
{
    struct tt_error err;

    (void)state;
    lose(1, 30, 0, 1, SURE);
    assert_int_equal(hold(OVERLAP, &err), TT_OK);
    assert_int_equal(asked.samples, 1);
    assert_int_equal(asked.queries, 1);
    assert_int_equal(asked.frame[0], 26);
    assert_true(asked.xy[0] == before[FRAMES + 26].x && asked.xy[1] == before[FRAMES + 26].y);
    assert_true(asked.supports[0] == 100);
    for (int t = 0; t < FRAMES; t++) {
        const struct tt_estimate *init = &asked.init[t], *row = &result[FRAMES + t];

        if (t >= 30)
            assert_true(isnan(init->x));
        else
            assert_memory_equal(init, t < OVERLAP ? &known[FRAMES + t] : &before[FRAMES + t], sizeof *init);
        if (t < 23)
            assert_memory_equal(row, t < OVERLAP ? &known[FRAMES + t] : &before[FRAMES + t], sizeof *row);
        else if (t < 30)
            assert_true(fabsf(row->x - before[FRAMES + t].x - (float)(t - 22) / 8) < 1e-4f);
        else
            assert_memory_equal(row, &asked.answer[t], sizeof *row);
    }
    assert_memory_equal(result, before, FRAMES * sizeof *result);
    assert_memory_equal(result + 2 * FRAMES, before + 2 * FRAMES, FRAMES * sizeof *result);
}

static void each_answer_goes_to_its_query(void **state)
{
    struct tt_error err;

    (void)state;
    lose(0, 20, 0, 1, SURE);
    lose(2, 35, 1, 1, SURE);
    assert_int_equal(hold(OVERLAP, &err), TT_OK);
    assert_int_equal(asked.tracks, 1);
    assert_int_equal(asked.queries, 2);
    assert_int_equal(asked.frame[0], 16);
    assert_int_equal(asked.frame[1], 31);
    assert_true(asked.supports[1] == 101);
    assert_memory_equal(result + 20, asked.answer + 20, (FRAMES - 20) * sizeof *result);
    assert_memory_equal(result + 2 * FRAMES + 35, asked.answer + FRAMES + 35, (FRAMES - 35) * sizeof *result);
}

static void a_second_try_must_be_surer(void **state)
{
    (void)state;
    lose(1, 30, 0, 1, UNSURE);
    expect_untouched(1);
}

static void a_second_try_must_go_on_where_the_track_was(void **state)
{
    (void)state;
    lose(1, 30, 0, TT_SEAM_REACH + 0.1f, SURE);
    expect_untouched(1);
    asked.answer[25].x = NAN;
    expect_untouched(2);
}

static void an_answer_that_is_no_number_is_none(void **state)
{
    (void)state;
    lose(1, 30, 0, 1, SURE);
    asked.answer[40].occlusion = NAN;
    expect_untouched(1);
}

static void anchors_keep_away_from_edges_and_unsure_frames(void **state)
{
    (void)state;
    lose(1, 30, 0, 1, SURE);
    for (int t = 0; t < FRAMES; t++) { /* all of it too near the edge */
        result[FRAMES + t].y = TT_SEAM_BORDER - 0.5f;
        known[FRAMES + t].y = TT_CLIP_SIZE - TT_SEAM_BORDER + 0.5f;
    }
    expect_untouched(0);
    end(state);
    begin(state);
    lose(1, 6, 0, 1, SURE); /* sure for six frames only, and what is stitched is not sure at all */
    for (int t = 0; t < OVERLAP; t++)
        known[FRAMES + t] = at(1, t, 0, UNSURE);
    expect_untouched(0);
    end(state);
    begin(state);
    lose(1, 30, 0, 1, SURE); /* the query itself lies behind the last sure frames */
    place[1] = 35;
    expect_untouched(0);
}

/* The result is sure, but elsewhere than the stitched track, in all of the overlap and behind it. */
static void leave(int query)
{
    for (int t = 0; t < FRAMES; t++) {
        result[query * FRAMES + t] = at(query, t, 30, SURE);
        asked.answer[t] = at(query, t, 1, SURE);
    }
}

static void an_unbroken_track_is_believed(void **state)
{
    struct tt_error err;

    (void)state;
    leave(1);
    assert_int_equal(hold(OVERLAP, &err), TT_OK);
    assert_int_equal(asked.frame[0], 4); /* of the overlap, not of what lies behind */
    assert_true(asked.xy[0] == known[FRAMES + 4].x);
    assert_memory_equal(result + FRAMES, known + FRAMES, sizeof *result);
    assert_memory_equal(result + FRAMES + OVERLAP, asked.answer + OVERLAP,
                        (FRAMES - OVERLAP) * sizeof *result);
}

/* The point was lost once, so the result may be its return. */
static void a_broken_track_is_not(void **state)
{
    (void)state;
    leave(1);
    unbroken[1] = false;
    expect_untouched(0);
}

static void an_unbroken_track_is_not_held_by_a_guess(void **state)
{
    (void)state;
    leave(1);
    for (int t = OVERLAP; t < FRAMES; t++)
        asked.answer[t] = at(1, t, 1, UNSURE);
    expect_untouched(1);
}

/* Query 1 is lost from frame 12 on, and sure again elsewhere from frame 41 on: too late for an anchor of its
 * own. The second try is sure in every frame and goes on where the track was. */
static void come_back(void)
{
    lose(1, 12, 0, 1, SURE);
    for (int t = 41; t < FRAMES; t++)
        result[FRAMES + t] = at(1, t, 60, SURE);
}

static void a_return_outweighs_a_broken_track(void **state)
{
    (void)state;
    come_back();
    unbroken[1] = false;
    expect_untouched(1);
    end(state);
    begin(state);
    come_back(); /* unbroken up to this window, not within it */
    result[FRAMES + 1] = known[FRAMES + 1] = at(1, 1, 0, UNSURE);
    expect_untouched(1);
    end(state);
    begin(state);
    come_back(); /* unbroken up to the anchor; the second try itself loses the point for a frame */
    asked.answer[30] = at(1, 30, 1, UNSURE);
    expect_untouched(1);
}

static void an_unbroken_track_outweighs_a_return(void **state)
{
    struct tt_error err;

    (void)state;
    come_back();
    assert_int_equal(hold(OVERLAP, &err), TT_OK);
    assert_memory_equal(result + FRAMES + 12, asked.answer + 12, (FRAMES - 12) * sizeof *result);
    end(state);
    begin(state);
    come_back(); /* the query lies in the window: nothing before it counts */
    unbroken[1] = false;
    place[1] = 3;
    result[FRAMES + 1] = known[FRAMES + 1] = at(1, 1, 0, UNSURE);
    assert_int_equal(hold(OVERLAP, &err), TT_OK);
    assert_memory_equal(result + FRAMES + 12, asked.answer + 12, (FRAMES - 12) * sizeof *result);
}

/* A broken track is held as well, where nothing speaks for a return. */
static void a_broken_track_is_held_without_a_return(void **state)
{
    struct tt_error err;

    (void)state;
    lose(1, 12, 0, 1, SURE);
    unbroken[1] = false;
    for (int t = 41; t < FRAMES; t++)
        result[FRAMES + t] = at(1, t, t < 44 ? 2 : 60, SURE); /* half of them agree with the second try */
    assert_int_equal(hold(OVERLAP, &err), TT_OK);
    assert_memory_equal(result + FRAMES + 12, asked.answer + 12, (FRAMES - 12) * sizeof *result);
}

/* Query 1 is in doubt in frames from..to-1 only; the second try is in all, and lies `shift` beside it. */
static void dip(int from, int to, float shift)
{
    for (int t = from; t < to; t++)
        result[FRAMES + t] = at(1, t, 30, DOUBTFUL);
    for (int t = 0; t < FRAMES; t++)
        asked.answer[t] = at(1, t, shift, SURE);
}

/* In doubt from frame 18 to 27, sure on both sides: 14 is the last frame before with three sure ones on
 * either side. The second try is not told where the point is found again, and is faded into and out of. */
static void a_dip_is_bridged(void **state)
{
    struct tt_error err;

    (void)state;
    dip(18, 28, 1);
    assert_int_equal(hold(OVERLAP, &err), TT_OK);
    assert_int_equal(asked.queries, 1);
    assert_int_equal(asked.frame[0], 14);
    for (int t = 0; t < FRAMES; t++) {
        const struct tt_estimate *row = &result[FRAMES + t], *was = &before[FRAMES + t];
        float shift = row->x - was->x;

        assert_int_equal(isnan(asked.init[t].x), t >= 18);
        if (t < 11 || t >= 35)
            assert_memory_equal(row, t < OVERLAP ? &known[FRAMES + t] : was, sizeof *row);
        else if (t < 18)
            assert_true(fabsf(shift - (float)(t - 10) / 8) < 1e-4f);
        else if (t < 28)
            assert_memory_equal(row, &asked.answer[t], sizeof *row);
        else
            assert_true(fabsf(shift - (float)(35 - t) / 8) < 1e-4f);
    }
}

static void a_bridge_must_arrive_where_the_track_is(void **state)
{
    struct tt_error err;

    (void)state;
    dip(18, 28, 1);
    for (int t = 28; t < FRAMES; t++)
        asked.answer[t] = at(1, t, TT_SEAM_ARRIVAL - 0.1f, SURE);
    assert_int_equal(hold(OVERLAP, &err), TT_OK);
    assert_memory_equal(result + FRAMES + 18, asked.answer + 18, 10 * sizeof *result);
    assert_true(fabsf(result[FRAMES + 28].x - before[FRAMES + 28].x - (TT_SEAM_ARRIVAL - 0.1f) * 7 / 8) <
                1e-4f);
    end(state);
    begin(state);
    dip(18, 28, 1);
    for (int t = 28; t < FRAMES; t++)
        asked.answer[t] = at(1, t, TT_SEAM_ARRIVAL + 0.1f, SURE);
    expect_untouched(1);
}

/* A second try would hold on to what hides it. */
static void what_is_hidden_is_not_bridged(void **state)
{
    (void)state;
    dip(18, 28, 1);
    result[FRAMES + 22] = at(1, 22, 30, UNSURE);
    expect_untouched(0);
}

static void a_bridge_must_be_surer(void **state)
{
    (void)state;
    dip(18, 28, 1);
    for (int t = 18; t < 28; t++)
        asked.answer[t] = at(1, t, 1, DOUBTFUL);
    expect_untouched(1);
}

/* Of two dips the one where more is lost; but what is lost at the end comes first. */
static void one_bridge_a_window(void **state)
{
    struct tt_error err;

    (void)state;
    dip(29, 31, 1);
    dip(12, 18, 1);
    assert_int_equal(hold(OVERLAP, &err), TT_OK);
    assert_int_equal(asked.frame[0], 8);
    assert_memory_equal(result + FRAMES + 25, before + FRAMES + 25, (FRAMES - 25) * sizeof *result);
    end(state);
    begin(state);
    dip(12, 18, 1);
    dip(40, FRAMES, 1);
    assert_int_equal(hold(OVERLAP, &err), TT_OK);
    assert_int_equal(asked.frame[0], 36);
    assert_memory_equal(result + FRAMES + OVERLAP, before + FRAMES + OVERLAP, 20 * sizeof *result);
}

static void no_bridge_without_steady_ends(void **state)
{
    (void)state;
    dip(12, 18, 1);
    place[1] = 15; /* the query lies in it */
    expect_untouched(0);
    end(state);
    begin(state);
    dip(12, 18, 1);
    for (int t = 0; t < 12; t++) /* before it all is too near the edge */
        result[FRAMES + t].y = known[FRAMES + t].y = TT_SEAM_BORDER - 0.5f;
    expect_untouched(0);
    end(state);
    begin(state);
    dip(5, 18, 1); /* sure for five frames only, before it */
    for (int t = 0; t < OVERLAP; t++)
        known[FRAMES + t] = at(1, t, 0, UNSURE);
    expect_untouched(0);
}

static void the_first_window_has_nothing_known(void **state)
{
    struct tt_error err;

    (void)state;
    for (int i = 0; i < QUERIES * FRAMES; i++)
        known[i] = (struct tt_estimate){NAN, NAN, NAN, NAN};
    lose(1, 30, 0, 1, SURE);
    assert_int_equal(hold(0, &err), TT_OK);
    assert_int_equal(asked.frame[0], 26);
    assert_memory_equal(result + FRAMES, before + FRAMES, 23 * sizeof *result);
}

static void failures_leave_results_as_they_were(void **state)
{
    struct tt_error err;

    (void)state;
    lose(1, 30, 0, 1, SURE);
    asked.sample_status = TT_RESTART_WORKER;
    assert_int_equal(hold(OVERLAP, &err), TT_RESTART_WORKER);
    assert_string_equal(err.text, "sample fails");
    assert_int_equal(asked.tracks, 0);
    assert_memory_equal(result, before, sizeof result);
    asked.sample_status = TT_OK;
    asked.track_status = TT_INTERRUPTED;
    assert_int_equal(hold(OVERLAP, &err), TT_INTERRUPTED);
    assert_memory_equal(result, before, sizeof result);
    tt_seam_close(NULL);
}

#define SEAM_TEST(name) cmocka_unit_test_setup_teardown(name, begin, end)

int main(void)
{
    const struct CMUnitTest tests[] = {
        SEAM_TEST(sure_tracks_are_left_alone),
        SEAM_TEST(a_lost_track_goes_on_from_its_anchor),
        SEAM_TEST(each_answer_goes_to_its_query),
        SEAM_TEST(a_second_try_must_be_surer),
        SEAM_TEST(a_second_try_must_go_on_where_the_track_was),
        SEAM_TEST(an_answer_that_is_no_number_is_none),
        SEAM_TEST(anchors_keep_away_from_edges_and_unsure_frames),
        SEAM_TEST(an_unbroken_track_is_believed),
        SEAM_TEST(a_broken_track_is_not),
        SEAM_TEST(an_unbroken_track_is_not_held_by_a_guess),
        SEAM_TEST(a_return_outweighs_a_broken_track),
        SEAM_TEST(an_unbroken_track_outweighs_a_return),
        SEAM_TEST(a_broken_track_is_held_without_a_return),
        SEAM_TEST(a_dip_is_bridged),
        SEAM_TEST(a_bridge_must_arrive_where_the_track_is),
        SEAM_TEST(what_is_hidden_is_not_bridged),
        SEAM_TEST(a_bridge_must_be_surer),
        SEAM_TEST(one_bridge_a_window),
        SEAM_TEST(no_bridge_without_steady_ends),
        SEAM_TEST(the_first_window_has_nothing_known),
        SEAM_TEST(failures_leave_results_as_they_were),
    };

    return cmocka_run_group_tests_name("seam", tests, NULL, NULL);
}

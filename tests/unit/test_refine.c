/* tests/unit/test_refine.c: registration finds known warps; refining believes only what fits better.
 *
 * Pictures are formulas, so patches of any place and level are exact means up to their rounding to bytes.
 */
#include "core/refine/align.h"
#include "core/refine/refine.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

/* How a picture shows the scene: scene position = middle + matrix × (picture position - middle - shift). */
struct view {
    double shift_x, shift_y, turn, size;
    double gain, offset;
    bool is_other; /* noise that has nothing to do with the scene */
};

static const struct view plain = {.size = 1, .gain = 1};

enum { WIDTH = 1600, HEIGHT = 900 }; /* 6.25 stored pixels a clip pixel: two levels */

enum { WAVES = 7 };

static struct {
    float x, y, phase;
} waves[WAVES];

static int make_waves(void **state)
{
    (void)state;
    for (int k = 0; k < WAVES; k++) {
        double angle = 0.9 * k, turns = 6.283185307 / (9 * pow(1.5, k));

        waves[k].x = (float)(turns * cos(angle));
        waves[k].y = (float)(turns * sin(angle));
        waves[k].phase = 1.3f * (float)(k * k);
    }
    return 0;
}

static double scene(double x, double y)
{
    float value = 0;

    for (int k = 0; k < WAVES; k++)
        value += sinf((float)x * waves[k].x + (float)y * waves[k].y + waves[k].phase);
    return 128 + 22 * value;
}

static double noise(double x, double y)
{
    uint32_t h = (uint32_t)(int32_t)floor(x) * 2654435761u ^ (uint32_t)(int32_t)floor(y) * 2246822519u;

    h = (h ^ h >> 15) * 2246822519u;
    return (h ^ h >> 13) & 255;
}

static double picture(const struct view *view, double x, double y)
{
    double dx = x - WIDTH / 2. - view->shift_x, dy = y - HEIGHT / 2. - view->shift_y;
    double c = cos(view->turn) / view->size, s = sin(view->turn) / view->size;

    if (view->is_other)
        return noise(x, y);
    return scene(WIDTH / 2. + c * dx + s * dy, HEIGHT / 2. - s * dx + c * dy) * view->gain + view->offset;
}

/* Where a position of the plain view lies in another. */
static void move(const struct view *view, double x, double y, double *to_x, double *to_y)
{
    double dx = x - WIDTH / 2., dy = y - HEIGHT / 2.;
    double c = cos(view->turn) * view->size, s = sin(view->turn) * view->size;

    *to_x = WIDTH / 2. + view->shift_x + c * dx - s * dy;
    *to_y = HEIGHT / 2. + view->shift_y + s * dx + c * dy;
}

static uint8_t to_byte(double value)
{
    return (uint8_t)(value < 0 ? 0 : value > 255 ? 255 : lrint(value));
}

static int cuts; /* patches that were cut */

static enum tt_status cut(void *user, const struct tt_cut_place *places, int count, uint8_t *patches,
                          struct tt_error *err)
{
    const struct view *view = user;

    for (int n = 0; n < count; n++)
        for (int j = 0; j < TT_CUT_SIZE; j++)
            for (int i = 0; i < TT_CUT_SIZE; i++) {
                int side = 1 << places[n].level;
                double sum = 0;

                for (int b = 0; b < side; b++)
                    for (int a = 0; a < side; a++)
                        sum += picture(view, (double)(places[n].x + i) * side + a + 0.5,
                                       (double)(places[n].y + j) * side + b + 0.5);
                *patches++ = to_byte(sum / (side * side));
            }
    cuts += count;
    return view->gain < 0 ? tt_fail(err, TT_BAD_INPUT, "cannot cut") : TT_OK;
}

/* The patch of level 0 around a position. */
static void cut_image(const struct view *view, int x, int y, struct tt_image *image)
{
    struct tt_cut_place place = {x - TT_CUT_SIZE / 2, y - TT_CUT_SIZE / 2, 0};
    uint8_t patch[TT_CUT_BYTES];

    assert_int_equal(cut((void *)view, &place, 1, patch, NULL), TT_OK);
    tt_align_smooth(patch, image);
}

static void registration_finds_known_warps(void **state)
{
    static const struct view views[] = {
        {0, 0, 0, 1, 1, 0, false},           {2.37, -1.81, 0, 1, 1, 0, false},
        {1, 1, 0.12, 1.06, 1, 0, false},     {0.5, -0.25, -0.2, 0.93, 1, 0, false},
        {1.2, 0.7, 0.05, 1, 0.6, 40, false}, /* darker */
    };
    struct tt_image image;
    struct tt_template template;

    (void)state;
    cut_image(&plain, 800, 450, &image);
    tt_template_take(&template, &image, 31.5f + 0.3f, 31.5f - 0.2f, true);
    assert_true(template.is_textured);
    for (size_t i = 0; i < sizeof views / sizeof *views; i++) {
        struct tt_warp warp = {31.8f, 31.3f, {1, 0, 0, 1}};
        double x, y, likeness;

        move(&views[i], 800.3, 449.8, &x, &y);
        cut_image(&views[i], 800, 450, &image);
        assert_true(tt_align(&template, &image, &warp));
        likeness = tt_align_likeness(&template, &image, &warp);
        assert_true(hypot(warp.x + 768.5 - x, warp.y + 418.5 - y) < 0.03);
        assert_true(fabs(warp.a[0] - cos(views[i].turn) * views[i].size) < 0.01);
        assert_true(fabs(warp.a[2] - sin(views[i].turn) * views[i].size) < 0.01);
        assert_true(likeness > 0.995 && likeness <= 1.0001);
    }
}

static void what_has_no_texture_is_no_template(void **state)
{
    uint8_t patch[TT_CUT_BYTES];
    struct tt_image image;
    struct tt_template template;

    (void)state;
    memset(patch, 77, sizeof patch);
    tt_align_smooth(patch, &image);
    tt_template_take(&template, &image, 31.5f, 31.5f, true);
    assert_false(template.is_textured);
    for (int i = 0; i < TT_CUT_BYTES; i++) /* an edge: it could slide along it */
        patch[i] = i % TT_CUT_SIZE < 32 ? 50 : 200;
    tt_align_smooth(patch, &image);
    tt_template_take(&template, &image, 31.5f, 31.5f, true);
    assert_false(template.is_textured);
    for (int i = 0; i < TT_CUT_BYTES; i++) /* a corner */
        patch[i] = i % TT_CUT_SIZE < 32 && i / TT_CUT_SIZE < 32 ? 50 : 200;
    tt_align_smooth(patch, &image);
    tt_template_take(&template, &image, 31.5f, 31.5f, true);
    assert_true(template.is_textured);
}

/* A pixel between others; beyond the image its nearest pixel. */
static double between(const struct tt_image *image, double x, double y)
{
    const double most = TT_CUT_SIZE - 1.001;
    int column, line;
    double above, below;

    x = fmin(fmax(x, 0), most);
    y = fmin(fmax(y, 0), most);
    column = (int)x;
    line = (int)y;
    x -= column;
    y -= line;
    above = (1 - x) * image->pixels[line][column][0] + x * image->pixels[line][column + 1][0];
    below = (1 - x) * image->pixels[line + 1][column][0] + x * image->pixels[line + 1][column + 1][0];
    return (1 - y) * above + y * below;
}

/* Windows that lie within the image and such that reach beyond each of its sides. */
static void windows_are_sampled_everywhere(void **state)
{
    static const float places[][2] = {{31.5f, 31.25f}, {15.f, 47.f},    {14.6f, 30.f}, {30.3f, 14.2f},
                                      {50.7f, 31.f},   {31.f, 49.125f}, {1.5f, 62.f},  {62.3f, 0.4f}};
    struct tt_image image;
    struct tt_template template;

    (void)state;
    cut_image(&plain, 800, 450, &image);
    for (size_t n = 0; n < sizeof places / sizeof *places; n++) {
        tt_template_take(&template, &image, places[n][0], places[n][1], true);
        for (int j = 0; j < TT_ALIGN_SIDE; j++) {
            for (int i = 0; i < TT_ALIGN_SIDE; i++) {
                double x = places[n][0] + i - TT_ALIGN_HALF, y = places[n][1] + j - TT_ALIGN_HALF;

                assert_true(fabs(template.value[j][i] - between(&image, x, y)) < 1e-3);
            }
            assert_true(template.value[j][TT_ALIGN_SIDE] == 0);
        }
    }
}

enum { POINTS = 70 }; /* more than a block */

static struct tt_refine_guess start[POINTS];

static struct tt_refine *open_refine(int threads)
{
    struct tt_refine *refine;
    struct tt_error err;

    for (int i = 0; i < POINTS; i++)
        start[i] = (struct tt_refine_guess){200.25f + 130 * (float)(i % 10), 150.5f + 91 * (float)(i / 10),
                                            true, true};
    assert_int_equal(tt_refine_open(&refine, POINTS, WIDTH, HEIGHT, threads, &err), TT_OK);
    assert_int_equal(tt_refine_sample(refine, start, cut, (void *)&plain, &err), TT_OK);
    return refine;
}

/* What a tracker might say in a view: off by up to 4 pixels. */
static void guess(struct tt_refine_guess *guesses, const struct view *view, bool is_visible)
{
    for (int i = 0; i < POINTS; i++) {
        double x, y;

        move(view, start[i].x, start[i].y, &x, &y);
        guesses[i] = (struct tt_refine_guess){(float)x + 4 * sinf((float)i),
                                              (float)y + 4 * cosf((float)i * 3), is_visible, false};
    }
}

static void follow(struct tt_refine *refine, const struct tt_refine_guess *guesses, const struct view *view,
                   struct tt_refine_point *result)
{
    struct tt_error err;

    assert_int_equal(tt_refine_follow(refine, guesses, cut, (void *)view, result, &err), TT_OK);
}

/* The largest distance from the truth of points that were refined, and how many were. */
static double worst(const struct tt_refine_point *result, const struct view *view, int *refined)
{
    double most = 0;

    *refined = 0;
    for (int i = 0; i < POINTS; i++) {
        double x, y;

        if (!result[i].is_refined)
            continue;
        move(view, start[i].x, start[i].y, &x, &y);
        most = fmax(most, hypot(result[i].x - x, result[i].y - y));
        ++*refined;
    }
    return most;
}

static void points_are_followed(void **state)
{
    struct tt_refine *refine = open_refine(1);
    struct tt_refine_guess guesses[POINTS];
    struct tt_refine_point result[POINTS];
    int refined, first = 0;

    (void)state;
    follow(refine, start, &plain, result);
    for (int i = 0; i < POINTS; i++)
        assert_true(!result[i].is_refined && result[i].x == start[i].x && result[i].y == start[i].y);
    for (int t = 1; t <= 4; t++) {
        const struct view view = {2.3 * t, -1.7 * t, 0.01 * t, 1 + 0.004 * t, 1, 0, false};

        cuts = 0;
        guess(guesses, &view, true);
        follow(refine, guesses, &view, result);
        assert_true(worst(result, &view, &refined) < 0.06);
        assert_int_equal(refined, POINTS);
        first = t == 1 ? cuts : first;
    }
    assert_true(cuts <= first); /* followed points ask for no more than those that are looked for */
    tt_refine_close(refine);
}

static void nothing_is_believed_that_does_not_fit(void **state)
{
    struct tt_refine *refine = open_refine(1);
    struct view other = plain;
    struct tt_refine_guess guesses[POINTS];
    struct tt_refine_point result[POINTS];
    int refined;

    (void)state;
    follow(refine, start, &plain, result);
    other.is_other = true;
    guess(guesses, &other, true);
    follow(refine, guesses, &other, result);
    worst(result, &other, &refined);
    assert_int_equal(refined, 0);
    for (int i = 0; i < POINTS; i++)
        assert_true(result[i].x == guesses[i].x && result[i].y == guesses[i].y);
    tt_refine_close(refine);
}

static void hidden_points_are_followed_for_a_while_only(void **state)
{
    struct tt_refine *refine = open_refine(1), *unfollowed = open_refine(1);
    struct view other = plain, shifted = {1, 1, 0, 1, 1, 0, false};
    struct tt_refine_guess guesses[POINTS];
    struct tt_refine_point result[POINTS];
    int refined;

    (void)state;
    other.is_other = true;
    guess(guesses, &shifted, false); /* never seen: nobody looks for them */
    follow(unfollowed, guesses, &shifted, result);
    assert_int_equal((worst(result, &shifted, &refined), refined), 0);
    tt_refine_close(unfollowed);

    follow(refine, start, &plain, result);
    for (int i = 0; i < POINTS; i++) /* the tracker has lost them: its places are wrong, and it knows */
        guesses[i] = (struct tt_refine_guess){start[i].x, start[i].y, false, false};
    follow(refine, guesses, &shifted, result);
    assert_true(worst(result, &shifted, &refined) < 0.06);
    assert_int_equal(refined, POINTS);
    for (int t = 0; t < 3; t++) {
        follow(refine, guesses, &other, result);
        assert_int_equal((worst(result, &other, &refined), refined), 0);
    }
    follow(refine, guesses, &shifted, result); /* given up */
    assert_int_equal((worst(result, &shifted, &refined), refined), 0);
    guess(guesses, &shifted, true); /* seen again */
    follow(refine, guesses, &shifted, result);
    assert_true(worst(result, &shifted, &refined) < 0.06);
    assert_int_equal(refined, POINTS);
    tt_refine_close(refine);
}

static void threads_change_nothing(void **state)
{
    struct tt_refine *one = open_refine(1), *four = open_refine(4);
    struct view view = {1.5, -2.5, 0.02, 1.01, 1, 0, false};
    struct tt_refine_guess guesses[POINTS];
    struct tt_refine_point a[POINTS], b[POINTS];

    (void)state;
    guess(guesses, &view, true);
    memset(a, 0, sizeof a);
    memset(b, 0, sizeof b);
    for (int t = 0; t < 2; t++) {
        follow(one, guesses, &view, a);
        follow(four, guesses, &view, b);
        for (int i = 0; i < POINTS; i++)
            assert_true(a[i].x == b[i].x && a[i].y == b[i].y && a[i].is_refined == b[i].is_refined);
    }
    tt_refine_close(one);
    tt_refine_close(four);
}

static void at_the_edges_and_beyond(void **state)
{
    struct tt_refine *refine;
    struct tt_refine_guess guesses[4] = {
        {0.5f, 0.5f, true, true}, {1599.9f, 899.9f, true, true}, {-5, 10, true, true}, {NAN, 10, true, true}};
    struct tt_refine_point result[4];
    struct tt_error err;

    (void)state;
    assert_int_equal(tt_refine_open(&refine, 4, WIDTH, HEIGHT, 1, &err), TT_OK);
    assert_int_equal(tt_refine_sample(refine, guesses, cut, (void *)&plain, &err), TT_OK);
    for (int i = 0; i < 4; i++)
        guesses[i].is_query = false;
    assert_int_equal(tt_refine_follow(refine, guesses, cut, (void *)&plain, result, &err), TT_OK);
    assert_false(result[2].is_refined);
    assert_false(result[3].is_refined);
    tt_refine_close(refine);
}

static void failures_to_cut_are_passed_on(void **state)
{
    struct tt_refine *refine = open_refine(1);
    struct view broken = plain;
    struct tt_refine_guess guesses[POINTS];
    struct tt_refine_point result[POINTS];
    struct tt_error err;

    (void)state;
    broken.gain = -1;
    guess(guesses, &plain, true);
    assert_int_equal(tt_refine_follow(refine, guesses, cut, &broken, result, &err), TT_BAD_INPUT);
    assert_string_equal(err.text, "cannot cut");
    tt_refine_close(refine);
    tt_refine_close(NULL);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(registration_finds_known_warps),
        cmocka_unit_test(windows_are_sampled_everywhere),
        cmocka_unit_test(what_has_no_texture_is_no_template),
        cmocka_unit_test(points_are_followed),
        cmocka_unit_test(nothing_is_believed_that_does_not_fit),
        cmocka_unit_test(hidden_points_are_followed_for_a_while_only),
        cmocka_unit_test(threads_change_nothing),
        cmocka_unit_test(at_the_edges_and_beyond),
        cmocka_unit_test(failures_to_cut_are_passed_on),
    };

    return cmocka_run_group_tests_name("refine", tests, make_waves, NULL);
}

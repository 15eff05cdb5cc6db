/* tests/unit/test_overlay.c: colours are told apart, by everybody; shapes have the area that they should and
 * stay in the picture; neighbours are those of the definition. What an overlay looks like is
 * tests/e2e/test_overlay.py's.
 */
#include "core/overlay/parts.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

/* --- colours --- */

static void colours_differ_and_stay(void **state)
{
    enum { COUNT = 512 };
    static struct tt_colour8 colours[COUNT];

    (void)state;
    for (int i = 0; i < COUNT; i++) {
        colours[i] = tt_overlay_colour(i);
        for (int j = 0; j < i; j++)
            if (memcmp(&colours[i], &colours[j], sizeof colours[0]) == 0)
                fail_msg("queries %d and %d have one colour", j, i);
    }
    for (int i = 0; i < COUNT; i++) {
        const struct tt_colour8 again = tt_overlay_colour(i);

        assert_memory_equal(&again, &colours[i], sizeof again);
    }
}

static void to_lab(const double linear[3], double lab[3])
{
    static const double xyz[3][3] = {
        {0.4339, 0.3762, 0.1899}, {0.2127, 0.7152, 0.0722}, {0.0178, 0.1095, 0.8727}};
    double f[3];

    for (int i = 0; i < 3; i++) {
        double sum = 0;

        for (int c = 0; c < 3; c++)
            sum += xyz[i][c] * fmin(fmax(linear[c], 0), 1);
        f[i] = sum > 0.008856 ? cbrt(sum) : 7.787 * sum + 16 / 116.;
    }
    lab[0] = 116 * f[1] - 16;
    lab[1] = 500 * (f[0] - f[1]);
    lab[2] = 200 * (f[1] - f[2]);
}

/* As an eye without one of its three kinds of cones sees it (Machado, Oliveira, Fernandes, 2009). */
static void seen_by(const double eye[3][3], struct tt_colour8 colour, double lab[3])
{
    const double values[3] = {colour.r / 255., colour.g / 255., colour.b / 255.};
    double linear[3], seen[3] = {0};

    for (int c = 0; c < 3; c++)
        linear[c] = values[c] <= 0.04045 ? values[c] / 12.92 : pow((values[c] + 0.055) / 1.055, 2.4);
    for (int i = 0; i < 3; i++)
        for (int c = 0; c < 3; c++)
            seen[i] += eye[i][c] * linear[c];
    to_lab(seen, lab);
}

static void the_first_eight_are_told_apart_by_everybody(void **state)
{
    static const double eyes[4][3][3] = {
        {{1, 0, 0}, {0, 1, 0}, {0, 0, 1}},
        {{0.152286, 1.052583, -0.204868}, {0.114503, 0.786281, 0.099216}, {-0.003882, -0.048116, 1.051998}},
        {{0.367322, 0.860646, -0.227968}, {0.280085, 0.672501, 0.047413}, {-0.011820, 0.042940, 0.968881}},
        {{1.255528, -0.076749, -0.178779}, {-0.078411, 0.930809, 0.147602}, {0.004733, 0.691367, 0.303900}},
    };

    (void)state;
    for (int eye = 0; eye < 4; eye++)
        for (int a = 0; a < 8; a++)
            for (int b = 0; b < a; b++) {
                double first[3], second[3], away;

                seen_by(eyes[eye], tt_overlay_colour(a), first);
                seen_by(eyes[eye], tt_overlay_colour(b), second);
                away = sqrt(pow(first[0] - second[0], 2) + pow(first[1] - second[1], 2) +
                            pow(first[2] - second[2], 2));
                if (away < 10) /* 2.3 is just noticed */
                    fail_msg("eye %d: queries %d and %d are %.1f apart", eye, b, a, away);
            }
}

static void speeds_get_lighter(void **state)
{
    int before = -1;

    (void)state;
    for (int i = 0; i <= 100; i++) {
        const struct tt_colour8 colour = tt_heat_colour((float)i / 100);
        const int light = 54 * colour.r + 183 * colour.g + 19 * colour.b;

        assert_true(light + 256 >= before); /* but for rounding to whole levels */
        before = light;
    }
    assert_int_equal(tt_heat_colour(9).r, tt_heat_colour(1).r);
    assert_int_equal(tt_heat_colour(-1).b, tt_heat_colour(0).b);
}

/* --- shapes --- */

enum { SIDE = 40 };

/* Exactly as large as it is said to be, so that sanitizers see what is drawn beside it. */
static struct tt_canvas blank(void)
{
    struct tt_canvas canvas = {calloc(SIDE * SIDE, 3), SIDE, SIDE};

    assert_non_null(canvas.rgb);
    return canvas;
}

static double painted(const struct tt_canvas *canvas)
{
    double sum = 0;

    for (int i = 0; i < SIDE * SIDE; i++)
        sum += canvas->rgb[3 * i] / 255.;
    return sum;
}

static const struct tt_pen white = {{255, 255, 255}, 1};

static void shapes_have_their_area(void **state)
{
    const double pi = acos(-1);

    (void)state;
    for (int i = 0; i < 8; i++) {
        const float x = 20 + (float)i / 8, y = 20 - (float)i / 11;
        struct tt_canvas disc = blank(), ring = blank(), line = blank();

        tt_draw_disc(&disc, x, y, 6, white);
        tt_draw_ring(&ring, x, y, 6, 2, white);
        tt_draw_line(&line, (const float[]){x - 8, y - 6}, (const float[]){x + 8, y + 6}, 3, white);
        assert_true(fabs(painted(&disc) - pi * 36) < 1.5);
        assert_true(fabs(painted(&ring) - pi * (36 - 16)) < 1.5);
        assert_true(fabs(painted(&line) - (20 * 3 + pi * 2.25)) < 1.5);
        assert_int_equal(ring.rgb[3 * (20 * SIDE + 20)], 0);
        free(disc.rgb);
        free(ring.rgb);
        free(line.rgb);
    }
}

static void shapes_stay_in_the_picture(void **state)
{
    static const float places[] = {-1e30f, -50, -1, 0, 39.9f, 40, 41, 1e9f, 3e38f, NAN, INFINITY};
    const int count = sizeof places / sizeof places[0];

    (void)state;
    for (int i = 0; i < count; i++)
        for (int j = 0; j < count; j++) {
            struct tt_canvas canvas = blank();
            const float at[2] = {places[i], places[j]};

            tt_draw_disc(&canvas, at[0], at[1], 5, white);
            tt_draw_ring(&canvas, at[0], at[1], 5, 2, white);
            tt_draw_spot(&canvas, at[0], at[1], 5, white);
            tt_draw_line(&canvas, at, (const float[]){20, 20}, 3, white);
            tt_draw_number(&canvas, i * 10 - 30, j * 10 - 30, 3, 1234567890);
            free(canvas.rgb);
        }
}

/* --- neighbours --- */

/* A run of these points, all of them chosen. */
static struct tt_export run_of(struct tt_export_source *source, const struct tt_queries *queries, int *query)
{
    *source = (struct tt_export_source){.queries = queries, .frames = 1, .width = 640, .height = 480};
    for (int i = 0; i < queries->count; i++)
        query[i] = i;
    return (struct tt_export){.source = source, .tracks = queries->count, .query = query, .frames = 1};
}

/* Points of a's frame that are nearer to it than b. */
static int nearer(const struct tt_query *points, int count, int a, int b)
{
    const float away = hypotf(points[a].x - points[b].x, points[a].y - points[b].y);
    int found = 0;

    for (int c = 0; c < count; c++)
        found += c != a && points[c].frame == points[a].frame &&
                 hypotf(points[a].x - points[c].x, points[a].y - points[c].y) < away;
    return found;
}

static void expect_edges(struct tt_query *points, int count, int wanted)
{
    const struct tt_queries queries = {.count = count, .points = points};
    struct tt_export_source source;
    int *query = calloc((size_t)count, sizeof *query), edges = 0;
    struct tt_export run = run_of(&source, &queries, query);
    struct tt_mesh mesh;
    struct tt_error err;

    assert_int_equal(tt_mesh_make(&mesh, &run, &err), TT_OK);
    for (int a = 0; a < count; a++)
        for (int b = a + 1; b < count; b++) {
            const float x = (points[a].x + points[b].x) / 2, y = (points[a].y + points[b].y) / 2;
            const float radius = hypotf(points[a].x - points[b].x, points[a].y - points[b].y) / 2;
            bool joined = points[a].frame == points[b].frame, found = false;

            for (int c = 0; c < count && joined; c++)
                joined = c == a || c == b || points[c].frame != points[a].frame ||
                         hypotf(points[c].x - x, points[c].y - y) > radius * 1.001f;
            for (int i = 0; i < mesh.count && !found; i++)
                found = mesh.edges[i].a == a && mesh.edges[i].b == b;
            if (found && !joined)
                fail_msg("points %d and %d are joined", a, b);
            if (joined && !found && nearer(points, count, a, b) < 12)
                fail_msg("points %d and %d are not joined", a, b);
            edges += found;
        }
    assert_int_equal(mesh.count, edges);
    if (wanted >= 0)
        assert_int_equal(edges, wanted);
    tt_mesh_free(&mesh);
    free(query);
}

static void a_lattice_gets_its_lines(void **state)
{
    struct tt_query points[12];

    (void)state;
    for (int i = 0; i < 12; i++)
        points[i] =
            (struct tt_query){.x = 40.0f + 60.0f * (float)(i % 4), .y = 30.0f + 25.0f * (float)(i / 4)};
    expect_edges(points, 12, 3 * 3 + 4 * 2);
    for (int i = 6; i < 12; i++)
        points[i].frame = 5; /* of another frame: no neighbours of the others */
    expect_edges(points, 12, -1);
}

static void others_get_a_net(void **state)
{
    enum { COUNT = 300 };
    static struct tt_query points[COUNT];
    unsigned seed = 7;

    (void)state;
    for (int i = 0; i < COUNT; i++) {
        points[i].x = (float)(rand_r(&seed) % 64000) / 100;
        points[i].y = (float)(rand_r(&seed) % 48000) / 100;
    }
    expect_edges(points, COUNT, -1);
    expect_edges(points, 1, 0);
}

/* --- the sheet --- */

static void a_sheet_has_room_for_every_shape(void **state)
{
    static const int sizes[][2] = {{640, 480}, {480, 640}, {1, 16384}, {16384, 1}, {1, 1}, {7680, 4320}};

    (void)state;
    for (size_t i = 0; i < sizeof sizes / sizeof sizes[0]; i++)
        for (int frames = 1; frames < 30; frames += 7) {
            struct tt_sheet sheet;
            struct tt_error err;

            assert_int_equal(tt_sheet_open(&sheet, sizes[i][0], sizes[i][1], frames, &err), TT_OK);
            assert_true(sheet.canvas.width <= TT_ENCODER_SIDE_MAX);
            assert_true(sheet.canvas.height <= TT_ENCODER_SIDE_MAX);
            assert_true(sheet.cell.width >= 1 && sheet.cell.height >= 1);
            assert_true(sheet.columns * sheet.rows >= sheet.cells);
            tt_sheet_close(&sheet);
        }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(colours_differ_and_stay),
        cmocka_unit_test(the_first_eight_are_told_apart_by_everybody),
        cmocka_unit_test(speeds_get_lighter),
        cmocka_unit_test(shapes_have_their_area),
        cmocka_unit_test(shapes_stay_in_the_picture),
        cmocka_unit_test(a_lattice_gets_its_lines),
        cmocka_unit_test(others_get_a_net),
        cmocka_unit_test(a_sheet_has_room_for_every_shape),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}

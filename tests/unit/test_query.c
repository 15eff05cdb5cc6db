/* tests/unit/test_query.c: query files good and bad, grids, masks, side-cars. */
#include "core/query.h"

#include "core/clip.h"
#include "tests/unit/temporary.h"

#include <errno.h>
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

static const struct tt_query_bounds bounds = {.width = 640, .height = 480, .frames = 47};

typedef enum tt_status parser(struct tt_queries *, const char *, size_t, const char *,
                              const struct tt_query_bounds *, struct tt_error *);

static enum tt_status parse_bytes(parser *parse, const char *text, size_t size, struct tt_queries *queries,
                                  struct tt_error *err)
{
    char *exact = malloc(size ? size : 1); /* so that the sanitizer sees a read behind it */
    enum tt_status status;

    memcpy(exact, text, size);
    status = parse(queries, exact, size, "dir/bear.queries", &bounds, err);
    free(exact);
    return status;
}

/* Points as text: "frame,x,y[=label] ..." */
static const char *dump(const struct tt_queries *queries)
{
    static char text[4096];
    size_t used = 0;

    text[0] = '\0';
    for (int q = 0; q < queries->count; q++) {
        const struct tt_query *point = &queries->points[q];

        used += (size_t)snprintf(text + used, sizeof text - used, "%s%d:%d,%g,%g", q ? " " : "", point->line,
                                 point->frame, (double)point->x, (double)point->y);
        if (queries->labels)
            used += (size_t)snprintf(text + used, sizeof text - used, "=%s", queries->labels[q]);
    }
    return text;
}

static void accepts(parser *parse, const char *text, const char *expected)
{
    struct tt_queries queries;
    struct tt_error err;

    if (parse_bytes(parse, text, strlen(text), &queries, &err))
        fail_msg("%s", err.text);
    assert_string_equal(dump(&queries), expected);
    tt_queries_free(&queries);
    assert_int_equal(queries.count, 0);
}

static void refuses(parser *parse, const char *text, const char *expected)
{
    struct tt_queries queries = {.count = 77};
    struct tt_error err;

    assert_int_equal(parse_bytes(parse, text, strlen(text), &queries, &err), TT_BAD_INPUT);
    assert_string_equal(err.text, expected);
    assert_int_equal(queries.count, 77);
}

/* --- CSV ---------------------------------------------------------------------------------------------------
 */

#define CSV tt_queries_parse_csv

static void reads_csv(void **state)
{
    (void)state;
    accepts(CSV, "0,1,2", "1:0,1,2");
    accepts(CSV, "0,1,2\n3,4.5,6e1\n", "1:0,1,2 2:3,4.5,60");
    accepts(CSV, "frame,x,y\n0,1,2\n", "2:0,1,2");
    accepts(CSV, "FRAME, X ,\tY\n0,1,2\n", "2:0,1,2");
    accepts(CSV, "y,label,x,frame\n2,nose,1,0\n", "2:0,1,2=nose");
    accepts(CSV, "\"frame\",\"x\",\"y\"\n\"0\",\"1\",\"2\"\n", "2:0,1,2");
    accepts(CSV,
            "\xef\xbb\xbf"
            "frame,x,y\r\n0,1,2\r\n\r\n3,4,5\r\n",
            "2:0,1,2 4:3,4,5");
    accepts(CSV, "# points of the bear\n\n  \t\n 0 , 1 , 2 \n  # the end\n", "4:0,1,2");
    accepts(CSV, "46.0,640,480\n+1,0,-0\n", "1:46,640,480 2:1,0,-0");
}

static void reads_csv_labels(void **state)
{
    (void)state;
    accepts(CSV, "0,1,2,left ear\n3,4,5\n", "1:0,1,2=left ear 2:3,4,5=");
    accepts(CSV, "0,1,2\n3,4,5,\n6,7,8,\"a \"\"b\"\", c\"\n", "1:0,1,2= 2:3,4,5= 3:6,7,8=a \"b\", c");
    accepts(CSV, "0,1,2,\n", "1:0,1,2");
    accepts(CSV, "0,1,2,\"\"\n", "1:0,1,2");
    accepts(CSV, "0,1,2,\" kept \" \n", "1:0,1,2= kept ");
    accepts(CSV, "0,1,2,\xc3\xa9\xe2\x98\x83\xf0\x9f\x90\xbb\n",
            "1:0,1,2=\xc3\xa9\xe2\x98\x83\xf0\x9f\x90\xbb");
}

static void names_every_bad_row_of_a_csv(void **state)
{
    (void)state;
    refuses(CSV, "", "bear.queries: no query point in it");
    refuses(CSV, "frame,x,y\n", "bear.queries: no query point in it");
    refuses(CSV, "0,1,2\n0,x1,2\n", "bear.queries: line 2: x 'x1' is not a number");
    refuses(CSV, "0,1\n0,nan,2\n0,1,inf\n0,0x10,2\n0,1 2,3\n,,\n",
            "bear.queries: 6 bad rows: line 1: y is missing; line 2: x 'nan' is not a number; line 3: y "
            "'inf' is not a "
            "number; line 4: x '0x10' is not a number; line 5: x '1 2' is not a number; line 6: frame '' is "
            "not a "
            "number");
    refuses(CSV, "-1,1,2\n0.5,1,2\n47,1,2\n99999999,1,2\n0,-1,2\n0,1,-0.5\n0,640.1,2\n0,1,481\n0,1e39,2\n",
            "bear.queries: 9 bad rows: line 1: frame -1 is not a whole number from 0 to 16777215; line 2: "
            "frame 0.5 is "
            "not a whole number from 0 to 16777215; line 3: frame 47 is not in the video, whose frames are 0 "
            "to 46; "
            "line 4: frame 1e+08 is not a whole number from 0 to 16777215; line 5: x -1 is negative; line 6: "
            "y -0.5 is "
            "negative; line 7: x 640.1 is outside the frame, which is 640 wide; line 8: y 481 is outside the "
            "frame, "
            "which is 480 high; line 9: x is not a finite number");
    refuses(CSV, "0,1,2,a,b\n0,1,2,\"a\n0,1,2,\"a\"b\n0,1,2,\xff\n0,1,2,a\tb\n",
            "bear.queries: 5 bad rows: line 1: more than 4 fields (a label with commas needs quotes); line "
            "2: a quote "
            "is not closed; line 3: text behind a closing quote; line 4: label is not UTF-8 without control "
            "characters; line 5: label is not UTF-8 without control characters");
    refuses(CSV, "0,\x1b[31m,2\n", "bear.queries: line 1: x '?[31m' is not a number");
    refuses(CSV, "0,0123456789abcdef0123456789abcdef0123456789abcdef,2\n",
            "bear.queries: line 1: x '0123456789abcdef0123456789abc...' is not a number");
}

static void refuses_bad_csv_headers(void **state)
{
    (void)state;
    refuses(CSV, "t,y,x\n0,1,2\n", "bear.queries: line 1: unknown column 't'");
    refuses(CSV, "frame,x\n0,1\n", "bear.queries: line 1: no column 'y'");
    refuses(CSV, "frame,x,y,x\n0,1,2,3\n", "bear.queries: line 1: two columns 'x'");
    refuses(CSV, "frame,x,y\n0,1,2,3\n",
            "bear.queries: line 2: more than 3 fields (a label with commas needs quotes)");
    refuses(CSV, "0,1,2\nframe,x,y\n", "bear.queries: line 2: frame 'frame' is not a number");
    refuses(CSV, "a;b;c\n", "bear.queries: line 1: frame 'a;b;c' is not a number");
}

static void counts_the_rows_that_it_does_not_name(void **state)
{
    char text[2000] = "";
    struct tt_queries queries;
    struct tt_error err;

    (void)state;
    for (int i = 0; i < 27; i++)
        strcat(text, "0,a,2\n");
    assert_int_equal(parse_bytes(CSV, text, strlen(text), &queries, &err), TT_BAD_INPUT);
    assert_int_equal(
        strncmp(err.text, "bear.queries: 27 bad rows: line 1: x 'a' is not a number; line 2:", 64), 0);
    assert_non_null(strstr(err.text, "; line 10: x 'a' is not a number; and 17 more"));
    assert_null(strstr(err.text, "line 11"));

    text[0] = '\0';
    for (int i = 0; i < 12; i++)
        strcat(text, "99999999,1,2\n"); /* longer texts: fewer fit */
    assert_int_equal(parse_bytes(CSV, text, strlen(text), &queries, &err), TT_BAD_INPUT);
    assert_string_equal(strstr(err.text, "; and "), "; and 3 more");
    assert_non_null(strstr(err.text, "line 9: frame"));
    assert_null(strstr(err.text, "line 10: "));
}

static void bounds_lines_labels_and_counts(void **state)
{
    static char text[TT_QUERIES_MAX * 6 + 20];
    char label[TT_LABEL_BYTES + 20];
    struct tt_queries queries;
    struct tt_error err;

    (void)state;
    memset(text, ' ', 5000);
    strcpy(text + 5000, "\n0,1,2\n");
    assert_int_equal(parse_bytes(CSV, text, strlen(text), &queries, &err), TT_BAD_INPUT);
    assert_string_equal(err.text, "bear.queries: line 1: line longer than 4095 bytes");
    assert_int_equal(parse_bytes(CSV, "0,1,2\n0,1\0,2\n", 13, &queries, &err), TT_BAD_INPUT);
    assert_string_equal(err.text, "bear.queries: line 2: a NUL byte");

    memset(label, 'l', sizeof label);
    memcpy(label, "0,1,2,", 6);
    assert_int_equal(parse_bytes(CSV, label, 6 + TT_LABEL_BYTES, &queries, &err), TT_OK);
    assert_int_equal(strlen(queries.labels[0]), TT_LABEL_BYTES);
    tt_queries_free(&queries);
    assert_int_equal(parse_bytes(CSV, label, 7 + TT_LABEL_BYTES, &queries, &err), TT_BAD_INPUT);

    for (int i = 0; i < TT_QUERIES_MAX; i++)
        memcpy(text + 6 * i, "0,1,2\n", 6);
    assert_int_equal(parse_bytes(CSV, text, 6 * TT_QUERIES_MAX, &queries, &err), TT_OK);
    assert_int_equal(queries.count, TT_QUERIES_MAX);
    tt_queries_free(&queries);
    memcpy(text + 6 * TT_QUERIES_MAX, "0,1,2\n", 6);
    assert_int_equal(parse_bytes(CSV, text, 6 * TT_QUERIES_MAX + 6, &queries, &err), TT_BAD_INPUT);
    assert_string_equal(err.text, "bear.queries: more than 100000 query points");
}

/* --- JSON --------------------------------------------------------------------------------------------------
 */

#define JSON tt_queries_parse_json

static void reads_json(void **state)
{
    (void)state;
    accepts(JSON, "[{\"frame\":0,\"x\":1,\"y\":2}]", "1:0,1,2");
    accepts(JSON, "{\"queries\":[\n {\"frame\":0,\"x\":1,\"y\":2},\n\n {\"y\":5,\"x\":4.5,\"frame\":3.0}]}",
            "2:0,1,2 4:3,4.5,5");
    accepts(JSON,
            "\xef\xbb\xbf[{\"frame\":0,\"x\":1,\"y\":2,\"label\":\"a \\\"]}[{,\\\\\"}\n,\r\n"
            "{\"frame\":1,\"x\":1,\"y\":2,\"label\":null},{\"frame\":2,\"x\":1,\"y\":2}]",
            "1:0,1,2=a \"]}[{,\\ 3:1,1,2= 3:2,1,2=");
    accepts(JSON, "{\n\"queries\"\n:\n[\n{\"frame\":0,\"x\":1,\"y\":2}]}", "5:0,1,2");
    accepts(JSON, "[{\"frame\":0,\"x\":1,\"y\":2,\"label\":\"\\u00e9\"}]", "1:0,1,2=\xc3\xa9");
}

static void names_every_bad_object_of_a_json(void **state)
{
    (void)state;
    refuses(JSON, "[]", "bear.queries: no query point in it");
    refuses(JSON,
            "[\n1,\n[[\n]],\n{\"frame\":0},\n{\"frame\":\"0\",\"x\":1,\"y\":2},\n{\"frame\":0,\"x\":1,\"y\":"
            "2,\"t\":1},\n"
            "{\"frame\":0,\"x\":1,\"y\":2,\"label\":3},\n{\"frame\":0,\"x\":1,\"y\":2,\n\"label\":\"\\n\"},\n"
            "{\"frame\":47,\"x\":1,\"y\":2}]",
            "bear.queries: 8 bad rows: line 2: not an object with frame, x and y; line 3: not an object with "
            "frame, x "
            "and y; line 5: x is missing; line 6: frame is not a number; line 7: unknown key 't'; line 8: "
            "label is not "
            "a string; line 9: label is not UTF-8 without control characters; line 11: frame 47 is not in "
            "the video, "
            "whose frames are 0 to 46");
    refuses(JSON, "{\"points\":[]}",
            "bear.queries: line 1: neither an array of query points nor an object whose only member "
            "\"queries\" is one");
    refuses(JSON, "{\"queries\":[],\"a\":1}",
            "bear.queries: line 1: neither an array of query points nor an object whose only member "
            "\"queries\" is one");
    refuses(JSON, "3", "bear.queries: line 1: '[' or '{' expected near '3'");
    refuses(JSON, "[\n{\"frame\":0,\n\"x\":nan}]", "bear.queries: line 3: invalid token near 'nan'");
    refuses(JSON, "[{\"frame\":0,\"x\":1,\"x\":1,\"y\":2}]",
            "bear.queries: line 1: duplicate object key near '\"x\"'");
    refuses(JSON, "[{\"frame\":0,\"X\":1,\"x\":1,\"y\":2}]", "bear.queries: line 1: unknown key 'x'");
}

static void survives_deep_json(void **state)
{
    static char text[200000];
    struct tt_queries queries;
    struct tt_error err;

    (void)state;
    memset(text, '[', sizeof text);
    assert_int_equal(parse_bytes(JSON, text, sizeof text, &queries, &err), TT_BAD_INPUT);
}

/* --- files -------------------------------------------------------------------------------------------------
 */

static void reads_files_by_their_endings(void **state)
{
    struct tt_queries queries = {.count = 77};
    struct tt_error err;

    (void)state;
    put_content("a.queries.csv", "0,1,2\n");
    put_content("a.queries.JSON", "[{\"frame\":0,\"x\":1,\"y\":2}]");
    assert_int_equal(tt_queries_read(&queries, "missing.csv", &bounds, &err), TT_BAD_INPUT);
    assert_int_equal(tt_queries_read(&queries, ".", &bounds, &err), TT_BAD_INPUT);
    assert_int_equal(queries.count, 77);
    assert_int_equal(tt_queries_read(&queries, "a.queries.csv", &bounds, &err), TT_OK);
    assert_string_equal(dump(&queries), "1:0,1,2");
    assert_string_equal(queries.origin, "a.queries.csv");
    tt_queries_free(&queries);
    assert_int_equal(tt_queries_read(&queries, "a.queries.JSON", &bounds, &err), TT_OK);
    assert_string_equal(dump(&queries), "1:0,1,2");
    tt_queries_free(&queries);
    assert_int_equal(truncate("a.queries.csv", TT_QUERY_FILE_BYTES + 1), 0);
    assert_int_equal(tt_queries_read(&queries, "a.queries.csv", &bounds, &err), TT_BAD_INPUT);
}

static void checks_later_what_was_not_known(void **state)
{
    static const char text[] = "0,1,2\n60,1,2\n3,700,2\n61,1,500\n";
    const struct tt_query_bounds longer = {.width = 700, .height = 500, .frames = 62};
    struct tt_queries queries;
    struct tt_error err;

    (void)state;
    assert_int_equal(CSV(&queries, text, strlen(text), "a.csv", NULL, &err), TT_OK);
    assert_int_equal(tt_queries_check(&queries, &longer, &err), TT_OK);
    assert_int_equal(tt_queries_check(&queries, &bounds, &err), TT_BAD_INPUT);
    assert_string_equal(err.text,
                        "a.csv: 3 bad rows: line 2: frame 60 is not in the video, whose frames are 0 to 46; "
                        "line 3: x 700 is outside the frame, which is 640 wide; line 4: frame 61 is not in "
                        "the video, whose frames are 0 to 46");
    assert_int_equal(tt_queries_last_frame(&queries), 61);
    tt_queries_free(&queries);
    assert_int_equal(tt_queries_grid(&queries, 3, 50, 640, 480, &err), TT_OK);
    assert_int_equal(tt_queries_check(&queries, &bounds, &err), TT_BAD_INPUT);
    assert_string_equal(err.text, "frame 50 is not in the video, whose frames are 0 to 46");
    tt_queries_free(&queries);
}

static void find_expects(const char *video, enum tt_sidecar kind, const char *expected)
{
    enum tt_sidecar found;
    char *path;
    struct tt_error err;

    assert_int_equal(tt_sidecar_find(&found, &path, video, &err), TT_OK);
    assert_int_equal(found, kind);
    if (expected)
        assert_string_equal(path, expected);
    else
        assert_null(path);
    free(path);
}

static void finds_side_cars_in_their_order(void **state)
{
    (void)state;
    find_expects("bear.mp4", TT_SIDECAR_NONE, NULL);
    find_expects("missing/bear.mp4", TT_SIDECAR_NONE, NULL);
    enum tt_sidecar found;
    char *path = NULL;
    struct tt_error err;

    assert_int_equal(symlink("gone.csv", "bear.queries.csv"), 0);
    assert_int_equal(tt_sidecar_find(&found, &path, "bear.mp4", &err), TT_BAD_INPUT);
    assert_string_equal(err.text, "bear.queries.csv: a link to a file that is not there");
    assert_int_equal(unlink("bear.queries.csv"), 0);
    put_content("bear.mask.png", "");
    find_expects("bear.mp4", TT_SIDECAR_MASK, "bear.mask.png");
    find_expects("./bear.mov", TT_SIDECAR_MASK, "./bear.mask.png");
    put_content("bear.queries.json", "");
    find_expects("bear.mp4", TT_SIDECAR_QUERIES, "bear.queries.json");
    put_content("bear.queries.csv", "");
    find_expects("bear.mp4", TT_SIDECAR_QUERIES, "bear.queries.csv");
    find_expects("bear.queries.csv", TT_SIDECAR_NONE, NULL);
}

/* --- grids and masks
 * ----------------------------------------------------------------------------------------- */

static void lays_grids_on_cell_centres(void **state)
{
    struct tt_queries queries = {.count = 77};
    struct tt_error err;
    float xy[8];

    (void)state;
    assert_int_equal(tt_queries_grid(&queries, 0, 0, 640, 480, &err), TT_REFUSE);
    assert_int_equal(tt_queries_grid(&queries, TT_GRID_MAX + 1, 0, 640, 480, &err), TT_REFUSE);
    assert_int_equal(tt_queries_grid(&queries, 2, -1, 640, 480, &err), TT_REFUSE);
    assert_int_equal(tt_queries_grid(&queries, 2, TT_QUERY_FRAME_MAX + 1, 640, 480, &err), TT_REFUSE);
    assert_int_equal(queries.count, 77);
    assert_int_equal(tt_queries_grid(&queries, 2, 5, 640, 480, &err), TT_OK);
    assert_string_equal(dump(&queries), "0:5,160,120 0:5,480,120 0:5,160,360 0:5,480,360");
    tt_queries_to_clip(&queries, 640, 480, xy);
    assert_true(xy[0] == 64 && xy[1] == 64 && xy[6] == 192 && xy[7] == 192);
    tt_queries_free(&queries);
    assert_int_equal(tt_queries_grid(&queries, 1, 0, 333, 517, &err), TT_OK);
    assert_string_equal(dump(&queries), "0:0,166.5,258.5");
    tt_queries_free(&queries);
    assert_int_equal(tt_queries_grid(&queries, TT_GRID_MAX, 0, 640, 480, &err), TT_OK);
    assert_true(queries.count == TT_GRID_MAX * TT_GRID_MAX && queries.count <= TT_QUERIES_MAX);
    tt_queries_free(&queries);
}

enum { MASK_WIDTH = 320, MASK_HEIGHT = 240, VIDEO_WIDTH = 640, VIDEO_HEIGHT = 480 };

static uint8_t pixels[MASK_HEIGHT][MASK_WIDTH];
static const struct tt_mask mask = {.pixels = &pixels[0][0], .width = MASK_WIDTH, .height = MASK_HEIGHT};

static void expect_mask(int side, int least, int most)
{
    struct tt_queries queries, again;
    struct tt_error err;
    float nearest = INFINITY;

    assert_int_equal(tt_queries_mask(&queries, side, 7, &mask, VIDEO_WIDTH, VIDEO_HEIGHT, &err), TT_OK);
    assert_in_range(queries.count, least, most);
    for (int q = 0; q < queries.count; q++) {
        const struct tt_query *point = &queries.points[q];

        assert_int_equal(point->frame, 7);
        assert_true(pixels[(int)(point->y / 2)][(int)(point->x / 2)] != 0);
        if (q > 0 && q < 1000)
            nearest = fminf(nearest, hypotf(point->x - point[-1].x, point->y - point[-1].y));
    }
    assert_true(nearest >= 0.999f);
    assert_int_equal(tt_queries_mask(&again, side, 7, &mask, VIDEO_WIDTH, VIDEO_HEIGHT, &err), TT_OK);
    assert_int_equal(again.count, queries.count);
    assert_memory_equal(again.points, queries.points, (size_t)queries.count * sizeof *queries.points);
    tt_queries_free(&queries);
    tt_queries_free(&again);
}

static void fill_ellipse(double cx, double cy, double rx, double ry)
{
    memset(pixels, 0, sizeof pixels);
    for (int y = 0; y < MASK_HEIGHT; y++)
        for (int x = 0; x < MASK_WIDTH; x++)
            pixels[y][x] = hypot((x + 0.5 - cx) / rx, (y + 0.5 - cy) / ry) < 1;
}

static void fills_masks_with_about_as_many_points(void **state)
{
    struct tt_queries queries;
    struct tt_error err;

    (void)state;
    memset(pixels, 255, sizeof pixels);
    expect_mask(16, 240, 272);
    fill_ellipse(160, 120, 100, 60);
    expect_mask(16, 240, 272);
    expect_mask(1, 1, 2);
    expect_mask(100, 9500, 10500);
    fill_ellipse(300, 10, 60, 200); /* cut by the frame's border */
    expect_mask(16, 240, 272);
    fill_ellipse(50.3, 70.8, 3, 3); /* 28 mask pixels, 112 of the video: no closer than a pixel */
    expect_mask(16, 60, 140);

    memset(pixels, 0, sizeof pixels);
    for (int i = 0; i < MASK_HEIGHT; i++)
        pixels[i][i] = 1; /* a thin diagonal */
    expect_mask(4, 8, 24);
    memset(pixels, 0, sizeof pixels);
    pixels[3][5] = pixels[200][310] = 1; /* two pixels: lattices of four points miss both */
    expect_mask(2, 1, 8);
    pixels[200][310] = 0;
    expect_mask(1, 1, 1);
    assert_int_equal(tt_queries_mask(&queries, 1, 0, &mask, VIDEO_WIDTH, VIDEO_HEIGHT, &err), TT_OK);
    assert_string_equal(dump(&queries), "0:0,11,7"); /* the centre of mask pixel (5,3), in source pixels */
    tt_queries_free(&queries);
    pixels[3][5] = 0;
    assert_int_equal(tt_queries_mask(&queries, 4, 0, &mask, VIDEO_WIDTH, VIDEO_HEIGHT, &err), TT_BAD_INPUT);
    assert_string_equal(err.text, "nothing is inside the mask");
    assert_int_equal(tt_queries_mask(&queries, 0, 0, &mask, VIDEO_WIDTH, VIDEO_HEIGHT, &err), TT_REFUSE);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(reads_csv),
        cmocka_unit_test(reads_csv_labels),
        cmocka_unit_test(names_every_bad_row_of_a_csv),
        cmocka_unit_test(refuses_bad_csv_headers),
        cmocka_unit_test(counts_the_rows_that_it_does_not_name),
        cmocka_unit_test(bounds_lines_labels_and_counts),
        cmocka_unit_test(reads_json),
        cmocka_unit_test(names_every_bad_object_of_a_json),
        cmocka_unit_test(survives_deep_json),
        cmocka_unit_test_setup_teardown(reads_files_by_their_endings, enter_temporary, leave_temporary),
        cmocka_unit_test(checks_later_what_was_not_known),
        cmocka_unit_test_setup_teardown(finds_side_cars_in_their_order, enter_temporary, leave_temporary),
        cmocka_unit_test(lays_grids_on_cell_centres),
        cmocka_unit_test(fills_masks_with_about_as_many_points),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}

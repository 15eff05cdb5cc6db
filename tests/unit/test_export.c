/* tests/unit/test_export.c: an export is the same from a stitch and from the track file written of it, a
 * failure leaves nothing, options are refused where they mean nothing, names differ, frames are the tracks'
 * columns. What the formats hold is tests/e2e/test_export.py's.
 */
#include "core/export.h"
#include "core/output.h"
#include "core/export/run.h"

#include "tests/unit/temporary.h"

#include <math.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <cmocka.h>

enum { QUERIES = 5 };

/* --- tracks that were never in a video ------------------------------------------------------- */

static int fails_at_call = -1; /* counts down */

static enum tt_status synthetic_rows(void *user, int first_query, int queries, int64_t first_frame,
                                     int frames, struct tt_estimate *rows, struct tt_error *err)
{
    (void)user;
    if (fails_at_call >= 0 && fails_at_call-- == 0)
        return tt_fail(err, TT_RETRY_LATER, "the source fails");
    for (int q = 0; q < queries; q++)
        for (int t = 0; t < frames; t++) {
            const float number = (float)(first_query + q), frame = (float)(first_frame + t);

            rows[(size_t)q * (size_t)frames + (size_t)t] =
                (struct tt_estimate){.x = number + fmodf(frame / 7, 200),
                                     .y = 100 - fmodf(frame / 3, 90),
                                     .occlusion = fmodf(frame, 5 + number) < 2 ? 4 : -4,
                                     .expected_dist = -4};
        }
    return TT_OK;
}

static enum tt_status synthetic_times(void *user, int64_t first_frame, int frames, double *time_s,
                                      struct tt_error *err)
{
    (void)user;
    (void)err;
    for (int t = 0; t < frames; t++)
        time_s[t] = (double)(first_frame + t) / 25;
    return TT_OK;
}

static struct tt_query points[QUERIES] = {{.frame = 3, .x = 1, .y = 2},
                                          {.frame = 0, .x = 640, .y = 480},
                                          {.frame = 9, .x = 0, .y = 0},
                                          {.frame = 4, .x = 10.5f, .y = 3},
                                          {.frame = 4, .x = 11.5f, .y = 4}};
static char *labels[QUERIES] = {"nose", "", "tail", "tail", "a_1"};
static const struct tt_queries queries = {.count = QUERIES, .points = points, .labels = labels};

static struct tt_tracks make_tracks(int64_t frames)
{
    return (struct tt_tracks){.source = {.rows = synthetic_rows, .times = synthetic_times},
                              .queries = &queries,
                              .frames = frames,
                              .width = 640,
                              .height = 480,
                              .occlusion_threshold = 0.5f,
                              .meta = "{}"};
}

/* The whole of a file. Owned by the caller (free). */
static char *read_whole(const char *path, size_t *size)
{
    struct tt_error err;
    char *bytes;

    if (tt_file_read(&bytes, size, path, 64 << 20, &err))
        fail_msg("%s", err.text);
    return bytes;
}

static void expect_equal_files(const char *a, const char *b, const char *what)
{
    size_t size_a, size_b;
    char *bytes_a = read_whole(a, &size_a), *bytes_b = read_whole(b, &size_b);

    if (size_a != size_b || memcmp(bytes_a, bytes_b, size_a) != 0)
        fail_msg("%s: the files differ", what);
    assert_true(size_a > 0);
    free(bytes_a);
    free(bytes_b);
}

/* --- tests ----------------------------------------------------------------------------------- */

static void a_stitch_and_its_track_file_give_the_same(void **state)
{
    const struct tt_tracks tracks = make_tracks(200);
    const struct tt_export_options options = {.min_confidence = 0.25f};
    struct tt_export_source from_file, from_tracks = tt_export_from_tracks(&tracks);
    struct tt_export_report report;
    struct tt_trackfile *file;
    struct tt_error err;

    (void)state;
    assert_int_equal(tt_tracks_write("t.npz", TT_TRACKS_NPZ, TT_REPLACE, &tracks, &err), TT_OK);
    assert_int_equal(tt_trackfile_open(&file, "t.npz", &err), TT_OK);
    from_file = tt_export_from_trackfile(file);
    for (int i = 0; tt_export_formats[i]; i++) {
        const struct tt_export_format *format = tt_export_formats[i];

        if (tt_export_write("a", format, TT_REPLACE, &from_tracks, &options, &report, &err) ||
            tt_export_write("b", format, TT_REPLACE, &from_file, &options, NULL, &err))
            fail_msg("%s: %s", format->name, err.text);
        expect_equal_files("a", "b", format->name);
        assert_int_equal(report.tracks, QUERIES);
        assert_int_equal(report.unseen, 0);
        assert_ptr_equal(tt_export_find(format->name), format);
    }
    assert_null(tt_export_find("maya"));
    tt_trackfile_close(file);
}

static void a_failing_source_leaves_nothing(void **state)
{
    const struct tt_tracks tracks = make_tracks(20);
    const struct tt_export_source source = tt_export_from_tracks(&tracks);
    const struct tt_export_options options = {0};
    struct tt_error err;

    (void)state;
    for (int i = 0; tt_export_formats[i]; i++) {
        int call = 0;

        for (enum tt_status status = TT_RETRY_LATER; status; call++) {
            fails_at_call = call;
            status = tt_export_write("a", tt_export_formats[i], TT_REPLACE, &source, &options, NULL, &err);
            if (!status)
                break;
            assert_int_equal(status, TT_RETRY_LATER);
            assert_string_equal(err.text, "the source fails");
            assert_int_equal(count_names(), 0);
        }
        assert_true(call >= QUERIES); /* every row was read at least once */
        unlink("a");
    }
    fails_at_call = -1;
}

static void a_full_disk_leaves_nothing(void **state)
{
    static const rlim_t sizes[] = {0, 300, 1500, 9000, 30000};
    const struct rlimit all = {RLIM_INFINITY, RLIM_INFINITY};
    const struct tt_tracks tracks = make_tracks(700);
    const struct tt_export_source source = tt_export_from_tracks(&tracks);
    const struct tt_export_options options = {0};
    struct tt_error err;

    (void)state;
    signal(SIGXFSZ, SIG_IGN);
    for (int i = 0; tt_export_formats[i]; i++)
        for (size_t s = 0; s < sizeof sizes / sizeof sizes[0]; s++) {
            const struct rlimit limit = {sizes[s], RLIM_INFINITY};
            enum tt_status status;

            assert_int_equal(setrlimit(RLIMIT_FSIZE, &limit), 0);
            status = tt_export_write("a", tt_export_formats[i], TT_REPLACE, &source, &options, NULL, &err);
            assert_int_equal(setrlimit(RLIMIT_FSIZE, &all), 0);
            if (status != TT_REFUSE || !strstr(err.text, "File too large") || count_names() != 0)
                fail_msg("%s, %d bytes: status %d, %s", tt_export_formats[i]->name, (int)sizes[s], status,
                         status ? err.text : "");
        }
}

static void an_old_file_stays_where_it_may_not_be_replaced(void **state)
{
    const struct tt_tracks tracks = make_tracks(20);
    const struct tt_export_source source = tt_export_from_tracks(&tracks);
    const struct tt_export_options options = {0};
    struct tt_error err;

    (void)state;
    for (int i = 0; tt_export_formats[i]; i++) {
        put_content("a", "old");
        assert_int_equal(
            tt_export_write("a", tt_export_formats[i], TT_NO_REPLACE, &source, &options, NULL, &err),
            TT_REFUSE);
        assert_string_equal(content_of("a"), "old");
        assert_int_equal(count_names(), 1);
    }
}

static void a_stop_ends_it(void **state)
{
    const struct tt_tracks tracks = make_tracks(20);
    const struct tt_export_source source = tt_export_from_tracks(&tracks);
    atomic_bool stop = true;
    const struct tt_export_options options = {.stop = &stop};
    struct tt_error err;

    (void)state;
    for (int i = 0; tt_export_formats[i]; i++) {
        assert_int_equal(
            tt_export_write("a", tt_export_formats[i], TT_REPLACE, &source, &options, NULL, &err),
            TT_INTERRUPTED);
        assert_int_equal(count_names(), 0);
    }
}

static void options_follow_the_table(void **state)
{
    static const char *const any[] = {"*"};
    static const struct {
        unsigned option;
        struct tt_export_options options;
    } given[] = {{TT_EXPORT_ONLY_VISIBLE, {.only_visible = true}},
                 {TT_EXPORT_MIN_CONFIDENCE, {.min_confidence = 0.5f}},
                 {TT_EXPORT_LABELS, {.labels = any, .label_count = 1}},
                 {TT_EXPORT_FPS, {.fps = 25}},
                 {TT_EXPORT_FRAME_OFFSET, {.frame_offset = 1}}};
    static const struct tt_export_options wrong[] = {{.min_confidence = -0.1f},
                                                     {.min_confidence = 1.5f},
                                                     {.min_confidence = NAN},
                                                     {.frame_offset = INT64_MAX},
                                                     {.frame_offset = INT64_MIN}};
    struct tt_error err;

    (void)state;
    for (int i = 0; tt_export_formats[i]; i++) {
        for (size_t o = 0; o < sizeof given / sizeof given[0]; o++) {
            bool follows = tt_export_formats[i]->options & given[o].option;

            assert_int_equal(tt_export_check(tt_export_formats[i], &given[o].options, &err),
                             follows ? TT_OK : TT_REFUSE);
            if (!follows)
                assert_non_null(strstr(err.text, tt_export_formats[i]->name));
        }
        for (size_t o = 0; o < sizeof wrong / sizeof wrong[0]; o++)
            assert_int_equal(tt_export_check(tt_export_formats[i], &wrong[o], &err), TT_REFUSE);
    }
}

/* However labels look, no two names are alike. */
static void names_differ(void **state)
{
    static char *odd[] = {"a",    "a_1", "a",   "a_2", "",   "track0004", "track0005", " ",
                          "a\"b", "a$b", "a_b", " a",  "a ", "a_1_1",     "",          "\xc3\xa9"};
    enum { ODD = sizeof odd / sizeof odd[0] };
    struct tt_query origin[ODD] = {{0}};
    const struct tt_queries many = {.count = ODD, .points = origin, .labels = odd};
    const struct tt_export_source source = {.queries = &many};
    static struct tt_export run;
    int numbers[ODD];
    char **names;
    struct tt_error err;

    (void)state;
    for (int tracks = 1; tracks <= ODD; tracks++)
        for (int plain = 0; plain < 2; plain++) {
            run = (struct tt_export){.source = &source, .tracks = tracks, .query = numbers};
            for (int i = 0; i < tracks; i++)
                numbers[i] = i + ODD - tracks;
            assert_int_equal(tt_export_names(&names, &run, plain, &err), TT_OK);
            for (int i = 0; i < tracks; i++) {
                assert_true(*names[i]);
                assert_true(!plain || !strpbrk(names[i], "\"$"));
                for (int j = 0; j < i; j++)
                    assert_string_not_equal(names[i], names[j]);
            }
            tt_export_names_free(names, tracks);
        }
}

/* More points than a block holds, and not a whole number of blocks. */
static void frames_are_the_columns_of_tracks(void **state)
{
    enum { FRAMES = 400000 };
    const struct tt_tracks tracks = make_tracks(FRAMES);
    const struct tt_export_source source = tt_export_from_tracks(&tracks);
    const struct tt_export_options options = {.spill_folder = "."};
    int numbers[QUERIES] = {0, 1, 2, 3, 4};
    static struct tt_export run;
    struct tt_track_point *row = calloc(FRAMES, sizeof *row), frame[QUERIES];
    struct tt_frames frames;
    struct tt_error err;

    (void)state;
    run = (struct tt_export){.source = &source,
                             .options = &options,
                             .tracks = QUERIES,
                             .query = numbers,
                             .frames = FRAMES,
                             .row = row};
    assert_int_equal(tt_frames_open(&frames, &run, &err), TT_OK);
    assert_int_equal(count_names(), 0);
    for (int q = 0; q < QUERIES; q++) {
        assert_int_equal(tt_export_row(&run, q, &err), TT_OK);
        for (int64_t t = 0; t < FRAMES; t += 997) {
            assert_int_equal(tt_frames_read(&frames, t, frame, &err), TT_OK);
            assert_true(frame[q].x == row[t].x && frame[q].y == row[t].y &&
                        frame[q].occluded == row[t].occluded && frame[q].confidence == row[t].confidence);
        }
    }
    tt_frames_close(&frames);
    free(row);
}

/* What a job may write has the names and endings of the table, but for csv, which track files have too. */
static void outputs_are_the_table(void **state)
{
    int known = 0;

    (void)state;
    for (int i = 0; i < TT_TRACK_FORMATS; i++) {
        assert_string_equal(tt_output_names[i], tt_track_format_names[i]);
        assert_string_equal(tt_output_suffixes[i], tt_track_format_suffixes[i]);
    }
    for (int i = 0; tt_export_formats[i]; i++) {
        enum tt_output output = tt_output_find(tt_export_formats[i]->name);

        assert_int_not_equal(output, TT_OUTPUTS);
        assert_string_equal(tt_output_suffixes[output], tt_export_formats[i]->suffix);
        known += output >= TT_OUTPUT_CSV_WIDE;
    }
    assert_int_equal(known, TT_OUTPUT_COLMAP + 1 - TT_OUTPUT_CSV_WIDE);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(a_stitch_and_its_track_file_give_the_same, enter_temporary,
                                        leave_temporary),
        cmocka_unit_test_setup_teardown(a_failing_source_leaves_nothing, enter_temporary, leave_temporary),
        cmocka_unit_test_setup_teardown(a_full_disk_leaves_nothing, enter_temporary, leave_temporary),
        cmocka_unit_test_setup_teardown(an_old_file_stays_where_it_may_not_be_replaced, enter_temporary,
                                        leave_temporary),
        cmocka_unit_test_setup_teardown(a_stop_ends_it, enter_temporary, leave_temporary),
        cmocka_unit_test(options_follow_the_table),
        cmocka_unit_test(names_differ),
        cmocka_unit_test(outputs_are_the_table),
        cmocka_unit_test_setup_teardown(frames_are_the_columns_of_tracks, enter_temporary, leave_temporary),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}

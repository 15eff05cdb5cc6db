/* tests/unit/test_trackfile.c: track files read back what was written, equal data gives equal bytes, a
 * failure leaves nothing, hostile files are refused.
 *
 * For tests/e2e/test_trackfile_numpy.py: `test_trackfile --write DIRECTORY` writes a file of each format, and
 * `test_trackfile --read FILE` reads one whole; its exit code is the status.
 */
#include "core/trackfile.h"
#include "core/trackfile_parts.h"

#include "core/clip.h"
#include "core/window.h"
#include "tests/unit/temporary.h"

#include <errno.h>
#include <math.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <zip.h>
#include <cmocka.h>

/* --- a synthetic result
 * ---------------------------------------------------------------------------------------- */

/* tests/e2e/test_trackfile_numpy.py computes the same; all is exact in binary. */
static struct tt_estimate estimate_of(int query, int64_t frame)
{
    float q = (float)query, t = (float)frame;

    return (struct tt_estimate){.x = 10 + 3 * q + t / 4,
                                .y = 200 - q - t / 2,
                                .occlusion = (q - t) / 4,
                                .expected_dist = (t - 2 * q) / 8};
}

static double time_of(int64_t frame)
{
    return 0.1 + (double)frame / 30;
}

struct synthetic {
    int64_t frames;
    int fails_at_call; /* counts down; -1: never */
    int poison_query;  /* whose last frame is not a number; -1: none */
};

static enum tt_status synthetic_rows(void *user, int first_query, int queries, int64_t first_frame,
                                     int frames, struct tt_estimate *rows, struct tt_error *err)
{
    struct synthetic *synthetic = user;

    if (synthetic->fails_at_call >= 0 && synthetic->fails_at_call-- == 0)
        return tt_fail(err, TT_RETRY_LATER, "the source fails");
    for (int q = 0; q < queries; q++)
        for (int t = 0; t < frames; t++) {
            struct tt_estimate *row = &rows[(size_t)q * (size_t)frames + (size_t)t];

            *row = estimate_of(first_query + q, first_frame + t);
            if (first_query + q == synthetic->poison_query && first_frame + t == synthetic->frames - 1)
                row->occlusion = NAN;
        }
    return TT_OK;
}

static enum tt_status synthetic_times(void *user, int64_t first_frame, int frames, double *time_s,
                                      struct tt_error *err)
{
    (void)user;
    (void)err;
    for (int t = 0; t < frames; t++)
        time_s[t] = time_of(first_frame + t);
    return TT_OK;
}

static char *labels[] = {"left ear", "", "\xc3\xa9\xe2\x98\x83\xf0\x9f\x90\xbb, \"so\""};
static struct tt_query three_points[] = {
    {.frame = 2, .x = 1.1f, .y = 2.2f}, {.frame = 0, .x = 333, .y = 0}, {.frame = 1, .x = 0.1f, .y = 516.9f}};
static const struct tt_queries three = {.count = 3, .points = three_points};
static const struct tt_queries three_labelled = {.count = 3, .points = three_points, .labels = labels};

static struct tt_tracks make_tracks(struct synthetic *synthetic, const struct tt_queries *queries,
                                    int64_t frames)
{
    *synthetic = (struct synthetic){.frames = frames, .fails_at_call = -1, .poison_query = -1};
    return (struct tt_tracks){.source = {.user = synthetic, .rows = synthetic_rows, .times = synthetic_times},
                              .queries = queries,
                              .frames = frames,
                              .width = 333,
                              .height = 517,
                              .occlusion_threshold = 0.5f,
                              .meta = "{\"program\": \"tiletrack\", \"name\": \"b\xc3\xa4r\"}"};
}

static struct tt_track_point point_of(const struct tt_tracks *tracks, int query, int64_t frame)
{
    struct tt_estimate e = estimate_of(query, frame);
    double visible = 1 / (1 + exp((double)e.occlusion)) / (1 + exp((double)e.expected_dist));
    const struct tt_query *at = &tracks->queries->points[query];
    struct tt_track_point point = {.x = e.x * 333 / 256,
                                   .y = e.y * 517 / 256,
                                   .confidence = (float)visible,
                                   .occluded = 1 - visible > 0.5};

    if (frame == at->frame) {
        point.x = at->x;
        point.y = at->y;
    }
    return point;
}

/* --- written and read back
 * ------------------------------------------------------------------------------------- */

static void write_to(const char *path, enum tt_track_format format, const struct tt_tracks *tracks)
{
    struct tt_error err;

    if (tt_tracks_write(path, format, TT_REPLACE, tracks, &err))
        fail_msg("%s", err.text);
}

static struct tt_trackfile *open_file(const char *path)
{
    struct tt_trackfile *file = NULL;
    struct tt_error err;

    if (tt_trackfile_open(&file, path, &err))
        fail_msg("%s", err.text);
    return file;
}

static void expect_rows(struct tt_trackfile *file, const struct tt_tracks *tracks, int first, int count)
{
    struct tt_track_point *points = malloc(((size_t)count * (size_t)tracks->frames + 1) * sizeof *points);
    struct tt_error err;

    if (tt_trackfile_rows(file, first, count, points, &err))
        fail_msg("%s", err.text);
    for (int q = 0; q < count; q++)
        for (int64_t t = 0; t < tracks->frames; t++) {
            struct tt_track_point wanted = point_of(tracks, first + q, t);
            const struct tt_track_point *got = &points[q * tracks->frames + t];

            assert_true(fabsf(got->x - wanted.x) <= 1e-6f * fabsf(wanted.x));
            assert_true(fabsf(got->y - wanted.y) <= 1e-6f * fabsf(wanted.y));
            if (t == tracks->queries->points[first + q].frame)
                assert_true(got->x == wanted.x && got->y == wanted.y);
            assert_true(fabsf(got->confidence - wanted.confidence) <= 1e-6f);
            if (fabsf(wanted.confidence - 0.5f) > 1e-6f)
                assert_int_equal(got->occluded, wanted.occluded);
            assert_int_equal(got->occluded, 1 - got->confidence > 0.5f);
        }
    free(points);
}

static void expect_file(const char *path, const struct tt_tracks *tracks)
{
    struct tt_trackfile *file = open_file(path);
    const struct tt_queries *read = tt_trackfile_queries(file), *wrote = tracks->queries;
    int width, height;

    assert_int_equal(read->count, wrote->count);
    assert_int_equal(tt_trackfile_frames(file), tracks->frames);
    tt_trackfile_size(file, &width, &height);
    assert_true(width == 333 && height == 517);
    assert_string_equal(tt_trackfile_meta(file), tracks->meta);
    for (int64_t t = 0; t < tracks->frames; t++)
        assert_true(tt_trackfile_times(file)[t] == time_of(t));
    for (int q = 0; q < read->count; q++) {
        assert_int_equal(read->points[q].frame, wrote->points[q].frame);
        assert_true(read->points[q].x == wrote->points[q].x && read->points[q].y == wrote->points[q].y);
        if (wrote->labels)
            assert_string_equal(read->labels[q], wrote->labels[q]);
    }
    assert_true(!read->labels == !wrote->labels);
    expect_rows(file, tracks, 0, read->count);
    expect_rows(file, tracks, read->count - 1, 1);
    expect_rows(file, tracks, 0, 1); /* back */
    expect_rows(file, tracks, 0, 0);
    tt_trackfile_close(file);
}

static void reads_back_what_was_written(void **state)
{
    struct synthetic synthetic;
    struct tt_tracks tracks;

    (void)state;
    for (int64_t frames = 3; frames < 400; frames += 44) {
        tracks = make_tracks(&synthetic, &three, frames);
        write_to("a.npz", TT_TRACKS_NPZ, &tracks);
        expect_file("a.npz", &tracks);
    }
    tracks = make_tracks(&synthetic, &three_labelled, 47);
    write_to("a.npz", TT_TRACKS_NPZ, &tracks);
    expect_file("a.npz", &tracks);
    assert_int_equal(count_names(), 1);
}

/* Blocks of many rows, of exactly one, and rows longer than a block. */
static void needs_no_more_than_a_block(void **state)
{
    static const int64_t lengths[] = {1, 300, TT_BLOCK_POINTS, TT_BLOCK_POINTS + 1, 2 * TT_BLOCK_POINTS + 7};
    static const int counts[] = {2 * TT_BLOCK_POINTS / 3, 700, 3, 2, 2};
    struct synthetic synthetic;

    (void)state;
    for (int i = 0; i < 5; i++) {
        struct tt_query *points = calloc((size_t)counts[i], sizeof *points);
        const struct tt_queries queries = {.count = counts[i], .points = points};
        struct tt_tracks tracks = make_tracks(&synthetic, &queries, lengths[i]);

        write_to("a.npz", TT_TRACKS_NPZ, &tracks);
        expect_file("a.npz", &tracks);
        free(points);
    }
}

static void covers_the_result_with_blocks(void **state)
{
    static const struct {
        int queries;
        int64_t frames;
    } sizes[] = {{1, 1}, {100000, 1}, {7, 47}, {3000, 47}, {2, 65536}, {2, 65537}, {1, 200000}, {65537, 1}};

    (void)state;
    for (size_t i = 0; i < sizeof sizes / sizeof sizes[0]; i++) {
        struct tt_block block = {.query = 0};
        int64_t points = 0;

        while (tt_block_next(&block, sizes[i].queries, sizes[i].frames)) {
            assert_true(block.queries >= 1 && block.frames >= 1);
            assert_true((int64_t)block.queries * block.frames <= TT_BLOCK_POINTS);
            assert_true(block.queries == 1 || block.frames == sizes[i].frames);
            assert_int_equal(points, block.query * sizes[i].frames + block.frame);
            points += (int64_t)block.queries * block.frames;
        }
        assert_int_equal(points, sizes[i].queries * sizes[i].frames);
    }
}

static char *read_all(const char *path, size_t *size)
{
    struct tt_error err;
    char *bytes;

    if (tt_file_read(&bytes, size, path, 64 << 20, &err))
        fail_msg("%s", err.text);
    return bytes;
}

static void equal_data_gives_equal_bytes(void **state)
{
    struct synthetic synthetic;
    struct tt_tracks tracks = make_tracks(&synthetic, &three_labelled, 100);

    (void)state;
    for (int format = 0; format < TT_TRACK_FORMATS; format++) {
        size_t size[2];
        char *bytes[2];

        for (int i = 0; i < 2; i++) {
            write_to("a", (enum tt_track_format)format, &tracks);
            bytes[i] = read_all("a", &size[i]);
            if (i == 0)
                usleep(2100000 * (format == TT_TRACKS_NPZ)); /* zip times have a resolution of two seconds */
        }
        assert_int_equal(size[0], size[1]);
        assert_memory_equal(bytes[0], bytes[1], size[0]);
        free(bytes[0]);
        free(bytes[1]);
    }
}

static bool is_marked(int query, int64_t frame)
{
    return (query + frame) % 3 == 0;
}

static enum tt_status marks(void *user, int first_query, int queries, int64_t first_frame, int frames,
                            bool *refined, struct tt_error *err)
{
    (void)user;
    (void)err;
    for (int q = 0; q < queries; q++)
        for (int t = 0; t < frames; t++)
            refined[q * frames + t] = is_marked(first_query + q, first_frame + t);
    return TT_OK;
}

/* Of a file with marks and of one without. */
static void says_what_was_refined(void **state)
{
    for (int marked = 0; marked < 2; marked++) {
        struct synthetic synthetic;
        struct tt_tracks tracks = make_tracks(&synthetic, &three_labelled, 10);
        struct tt_track_point points[3 * 10];
        struct tt_trackfile *file;
        struct tt_error err;

        (void)state;
        tracks.source.refined = marked ? marks : NULL;
        write_to("a.npz", TT_TRACKS_NPZ, &tracks);
        memset(points, 1, sizeof points);
        if (tt_trackfile_open(&file, "a.npz", &err) || tt_trackfile_rows(file, 0, 3, points, &err))
            fail_msg("%s", err.text);
        assert_int_equal(tt_trackfile_refined(file), marked);
        for (int i = 0; i < 3 * 10; i++)
            assert_int_equal(points[i].refined, marked && is_marked(i / 10, i % 10));
        tt_trackfile_close(file);
    }
}

static void orders_members_and_stores_them(void **state)
{
    struct synthetic synthetic;
    struct tt_tracks tracks = make_tracks(&synthetic, &three_labelled, 10);
    zip_t *zip;
    int error;

    (void)state;
    tracks.source.refined = marks;
    write_to("a.npz", TT_TRACKS_NPZ, &tracks);
    zip = zip_open("a.npz", ZIP_RDONLY | ZIP_CHECKCONS, &error);
    assert_non_null(zip);
    assert_int_equal(zip_get_num_entries(zip, 0), TT_ARRAYS);
    for (int array = 0; array < TT_ARRAYS; array++) {
        zip_stat_t info;

        assert_int_equal(zip_stat_index(zip, (zip_uint64_t)array, 0, &info), 0);
        assert_string_equal(info.name, tt_array_members[array]);
        assert_int_equal(info.comp_method, ZIP_CM_STORE);
        assert_int_equal(info.size, info.comp_size);
    }
    zip_discard(zip);
}

static void stitched_tracks_go_to_files(void **state)
{
    double time_s[TT_CLIP_FRAMES];
    struct tt_estimate result[3 * TT_CLIP_FRAMES];
    struct tt_window window = {.clip = {.frames = 47}, .time_s = time_s};
    struct synthetic synthetic;
    struct tt_tracks tracks = make_tracks(&synthetic, &three, 86);
    struct tt_stitch *stitch = NULL;
    struct tt_error err;

    (void)state;
    assert_int_equal(tt_stitch_open(&stitch, 3, ".", &err), TT_OK);
    for (; window.clip.first_frame <= 39; window.clip.first_frame += 39) {
        window.overlap = window.clip.first_frame ? 8 : 0;
        for (int t = 0; t < 47; t++) {
            time_s[t] = time_of(window.clip.first_frame + t);
            for (int q = 0; q < 3; q++)
                result[q * 47 + t] = estimate_of(q, window.clip.first_frame + t);
        }
        assert_int_equal(tt_stitch_begin(stitch, &window, &err), TT_OK);
        tt_stitch_add(stitch, 0, 3, result);
    }
    assert_int_equal(tt_stitch_finish(stitch, &err), TT_OK);
    tracks.source = tt_tracks_from_stitch(stitch);
    write_to("a.npz", TT_TRACKS_NPZ, &tracks);
    expect_file("a.npz", &tracks);
    tt_stitch_close(stitch);
}

/* --- text formats
 * ------------------------------------------------------------------------------------------------ */

static void writes_csv(void **state)
{
    static struct tt_query points[] = {{.frame = 1, .x = 0.1f, .y = 2}, {.frame = 0, .x = 5, .y = 6}};
    static char *two_labels[] = {"a \"b\", c", ""};
    const struct tt_queries queries = {.count = 2, .points = points};
    const struct tt_queries labelled = {.count = 2, .points = points, .labels = two_labels};
    struct synthetic synthetic;
    struct tt_tracks tracks = make_tracks(&synthetic, &queries, 2);

    (void)state;
    tracks.width = tracks.height = 256;
    write_to("a.csv", TT_TRACKS_CSV, &tracks);
    assert_string_equal(content_of("a.csv"), "query,frame,time_s,x,y,occluded,confidence\n"
                                             "0,0,0.1,10,200,1,0.25\n"
                                             "0,1,0.13333333333333333,0.1,2,1,0.263543069\n"
                                             "1,0,0.1,5,6,1,0.246134087\n"
                                             "1,1,0.13333333333333333,13.25,198.5,1,0.265604675\n");
    tracks.queries = &labelled;
    tracks.frames = 1;
    points[0].frame = 0;
    write_to("a.csv", TT_TRACKS_CSV, &tracks);
    assert_string_equal(content_of("a.csv"), "query,label,frame,time_s,x,y,occluded,confidence\n"
                                             "0,\"a \"\"b\"\", c\",0,0.1,0.1,2,1,0.25\n"
                                             "1,\"\",0,0.1,5,6,1,0.246134087\n");
    write_to("a.jsonl", TT_TRACKS_JSONL, &tracks);
    assert_string_equal(content_of("a.jsonl"),
                        "{\"query\":0,\"label\":\"a \\\"b\\\", c\",\"frame\":0,\"x\":0.1,\"y\":2,"
                        "\"frame_size\":[256,256],\"time_s\":[0.1],\"tracks\":[[0.1,2]],\"occluded\":[true],"
                        "\"confidence\":[0.25]}\n"
                        "{\"query\":1,\"label\":\"\",\"frame\":0,\"x\":5,\"y\":6,"
                        "\"frame_size\":[256,256],\"time_s\":[0.1],\"tracks\":[[5,6]],\"occluded\":[true],"
                        "\"confidence\":[0.246134087]}\n");
}

/* --- failures
 * ------------------------------------------------------------------------------------------------------ */

static void leaves_nothing_when_the_source_fails(void **state)
{
    struct synthetic synthetic;
    struct tt_error err;

    (void)state;
    put_content("a", "old");
    for (int format = 0; format < TT_TRACK_FORMATS; format++) {
        struct tt_tracks tracks = make_tracks(&synthetic, &three, 70);

        for (int call = 0; call < (format == TT_TRACKS_CSV ? 1 : 3); call++) {
            synthetic.fails_at_call = call;
            assert_int_equal(tt_tracks_write("a", (enum tt_track_format)format, TT_REPLACE, &tracks, &err),
                             TT_RETRY_LATER);
            assert_string_equal(err.text, "the source fails");
        }
        synthetic.fails_at_call = -1;
        synthetic.poison_query = 2;
        assert_int_equal(tt_tracks_write("a", (enum tt_track_format)format, TT_REPLACE, &tracks, &err),
                         TT_RESTART_WORKER);
        assert_string_equal(err.text, "the tracker's result for query 2 in frame 69 is not finite");
        assert_string_equal(content_of("a"), "old");
        assert_int_equal(count_names(), 1);
    }
}

static void leaves_nothing_when_the_disk_fails(void **state)
{
    const struct rlimit limit = {5000, RLIM_INFINITY}, all = {RLIM_INFINITY, RLIM_INFINITY};
    struct synthetic synthetic;
    struct tt_tracks tracks = make_tracks(&synthetic, &three, 5000);
    struct tt_error err;

    (void)state;
    signal(SIGXFSZ, SIG_IGN);
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &limit), 0);
    for (int format = 0; format < TT_TRACK_FORMATS; format++) {
        assert_int_equal(tt_tracks_write("a", (enum tt_track_format)format, TT_REPLACE, &tracks, &err),
                         TT_REFUSE);
        assert_string_equal(err.text, "a: write: File too large");
        assert_int_equal(count_names(), 0);
    }
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &all), 0);
    put_content("a", "old");
    assert_int_equal(tt_tracks_write("a", TT_TRACKS_NPZ, TT_NO_REPLACE, &tracks, &err), TT_REFUSE);
    assert_string_equal(content_of("a"), "old");
}

static void refuses_what_cannot_be_a_track_file(void **state)
{
    static char *bad_labels[] = {"a", "\xff", "c"};
    struct synthetic synthetic;
    struct tt_tracks tracks = make_tracks(&synthetic, &three, 2);
    const struct tt_queries none = {.count = 0}, badly_labelled = {3, three_points, bad_labels, NULL};
    struct tt_error err;

    (void)state;
    assert_int_equal(tt_tracks_write("a", TT_TRACKS_NPZ, TT_REPLACE, &tracks, &err), TT_BAD_INPUT);
    assert_string_equal(err.text, "frame 2 is not in the video, whose frames are 0 to 1");
    tracks.frames = 0;
    assert_int_equal(tt_tracks_write("a", TT_TRACKS_NPZ, TT_REPLACE, &tracks, &err), TT_REFUSE);
    tracks.frames = 3;
    tracks.queries = &none;
    assert_int_equal(tt_tracks_write("a", TT_TRACKS_NPZ, TT_REPLACE, &tracks, &err), TT_REFUSE);
    tracks.queries = &badly_labelled;
    assert_int_equal(tt_tracks_write("a", TT_TRACKS_NPZ, TT_REPLACE, &tracks, &err), TT_REFUSE);
    tracks.queries = &three;
    tracks.meta = "\xc3";
    assert_int_equal(tt_tracks_write("a", TT_TRACKS_NPZ, TT_REPLACE, &tracks, &err), TT_REFUSE);
    tracks.meta = "";
    assert_int_equal(tt_tracks_write("a", TT_TRACKS_NPZ, TT_REPLACE, &tracks, &err), TT_REFUSE);
    assert_int_equal(count_names(), 0);
}

/* --- hostile files
 * --------------------------------------------------------------------------------------------------- */

static enum tt_status read_whole(const char *path, struct tt_error *err)
{
    struct tt_trackfile *file = NULL;
    enum tt_status status = tt_trackfile_open(&file, path, err);

    if (!status) {
        struct tt_track_point *points = malloc((size_t)tt_trackfile_frames(file) * sizeof *points);

        for (int q = 0; !status && q < tt_trackfile_queries(file)->count; q++)
            status = tt_trackfile_rows(file, q, 1, points, err);
        free(points);
    }
    tt_trackfile_close(file);
    return status;
}

static void refuses_what_is_not_an_archive(void **state)
{
    struct tt_error err;

    (void)state;
    put_content("a.npz", "this is text");
    assert_int_equal(mkfifo("fifo", 0600), 0);
    assert_int_equal(read_whole("a.npz", &err), TT_BAD_INPUT);
    assert_int_equal(read_whole("fifo", &err), TT_BAD_INPUT);
    assert_int_equal(read_whole(".", &err), TT_BAD_INPUT);
    assert_int_equal(read_whole("missing", &err), TT_BAD_INPUT);
    put_content("a.npz", "");
    assert_int_equal(read_whole("a.npz", &err), TT_BAD_INPUT);
}

/* A good file, but one array (or none) is replaced by a header and zeros behind it. */
static void write_patched(enum tt_track_array patched, const char *dictionary, int64_t data_bytes,
                          bool deflate)
{
    static const char *const good[TT_ARRAYS] = {"'<f4', 'fortran_order': False, 'shape': (2, 3, 2), }",
                                                "'|b1', 'fortran_order': False, 'shape': (2, 3), }",
                                                "'<f4', 'fortran_order': False, 'shape': (2, 3), }",
                                                "'<f4', 'fortran_order': False, 'shape': (2, 3), }",
                                                "'<f8', 'fortran_order': False, 'shape': (3,), }",
                                                "'<i4', 'fortran_order': False, 'shape': (2,), }",
                                                "'<U2', 'fortran_order': False, 'shape': (), }",
                                                "'<U4', 'fortran_order': False, 'shape': (2,), }",
                                                "'|b1', 'fortran_order': False, 'shape': (2, 3), }"};
    static const int64_t bytes[TT_ARRAYS] = {48, 6, 24, 24, 24, 8, 8, 32, 6};
    int error;
    zip_t *zip = zip_open("a.npz", ZIP_CREATE | ZIP_TRUNCATE, &error);

    assert_non_null(zip);
    for (int array = 0; array < TT_ARRAYS; array++) {
        const char *text = array == (int)patched && dictionary ? dictionary : good[array];
        size_t data = (size_t)(array == (int)patched && data_bytes >= 0 ? data_bytes : bytes[array]);
        size_t length = strlen(text) + sizeof "{'descr': " - 1 + 1, size = 10 + length + data;
        char *member = calloc(1, size + 1);
        zip_int64_t index;

        memcpy(member, "\x93NUMPY\x01\x00", 8);
        member[8] = (char)(length & 255);
        member[9] = (char)(length >> 8);
        sprintf(member + 10, "{'descr': %s\n", text);
        member[10 + length] = array == TT_ARRAY_FRAME_SIZE && data > 0 ? 9 : 0;
        if (array == TT_ARRAY_FRAME_SIZE && data == 8)
            member[10 + length + 4] = 9;
        index = zip_file_add(zip, tt_array_members[array], zip_source_buffer(zip, member, size, 1), 0);
        assert_true(index >= 0);
        zip_set_file_compression(zip, (zip_uint64_t)index, deflate ? ZIP_CM_DEFLATE : ZIP_CM_STORE, 0);
    }
    assert_int_equal(zip_close(zip), 0);
}

static void refuses_arrays_that_do_not_fit(void **state)
{
    static const struct {
        enum tt_track_array array;
        const char *dictionary;
        int64_t data;
        const char *expected;
    } cases[] = {
        {TT_ARRAY_TRACKS, "'<f4', 'fortran_order': True, 'shape': (2, 3, 2), }", -1, "header"},
        {TT_ARRAY_TRACKS, "'>f4', 'fortran_order': False, 'shape': (2, 3, 2), }", -1, "header"},
        {TT_ARRAY_TRACKS, "'|O', 'fortran_order': False, 'shape': (2, 3, 2), }", -1, "header"},
        {TT_ARRAY_TRACKS, "'<f4', 'fortran_order': False, 'shape': (2, 3, 2, 1), }", -1, "header"},
        {TT_ARRAY_TRACKS, "'<f4', 'fortran_order': False, 'shape': (-2, 3, 2), }", -1, "header"},
        {TT_ARRAY_TRACKS, "'<f4', 'fortran_order': False, 'shape': (2, 3, 2", -1, "header"},
        {TT_ARRAY_TRACKS, "'<f4", -1, "header"},
        {TT_ARRAY_TRACKS, "'<f4', 'fortran_order': False, 'shape': (0, 3, 2), }", 0, "type or shape"},
        {TT_ARRAY_TRACKS, "'<f4', 'fortran_order': False, 'shape': (2, 0, 2), }", 0, "type or shape"},
        {TT_ARRAY_TRACKS, "'<f4', 'fortran_order': False, 'shape': (), }", 4, "type or shape"},
        {TT_ARRAY_TRACKS, "'<f4', 'fortran_order': False, 'shape': (2, 3, 2), }", 47, "not as long"},
        {TT_ARRAY_TRACKS, "'<f4', 'fortran_order': False, 'shape': (2, 3, 2), }", 49, "not as long"},
        {TT_ARRAY_TRACKS, "'<f4', 'fortran_order': False, 'shape': (16777216, 16777216, 16777216), }", -1,
         "not as long"},
        {TT_ARRAY_TRACKS, "'<f4', 'fortran_order': False, 'shape': (99999999999, 3, 2), }", -1, "too large"},
        {TT_ARRAY_OCCLUDED, "'|b1', 'fortran_order': False, 'shape': (3, 2), }", -1, "type or shape"},
        {TT_ARRAY_CONFIDENCE, "'<i4', 'fortran_order': False, 'shape': (2, 3), }", -1, "type or shape"},
        {TT_ARRAY_QUERY_POINTS, "'<f4', 'fortran_order': False, 'shape': (3, 2), }", -1, "type or shape"},
        {TT_ARRAY_TIME_S, "'<f8', 'fortran_order': False, 'shape': (4,), }", 32, "type or shape"},
        {TT_ARRAY_FRAME_SIZE, "'<i4', 'fortran_order': False, 'shape': (1,), }", 4, "type or shape"},
        {TT_ARRAY_META, "'<U2', 'fortran_order': False, 'shape': (1,), }", -1, "type or shape"},
        {TT_ARRAY_META, "'<U99999999', 'fortran_order': False, 'shape': (), }", -1, "header"},
        {TT_ARRAY_LABELS, "'<U256', 'fortran_order': False, 'shape': (2,), }", 2048, "type or shape"},
        {TT_ARRAY_REFINED, "'|b1', 'fortran_order': False, 'shape': (2, 4), }", 8, "type or shape"},
        {TT_ARRAY_REFINED, "'|i1', 'fortran_order': False, 'shape': (2, 3), }", -1, "type or shape"},
    };
    struct tt_error err;

    (void)state;
    for (int deflate = 0; deflate < 2; deflate++) {
        write_patched(TT_ARRAYS, NULL, -1, deflate);
        if (read_whole("a.npz", &err))
            fail_msg("%s", err.text);
        for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
            write_patched(cases[i].array, cases[i].dictionary, cases[i].data, deflate);
            assert_int_equal(read_whole("a.npz", &err), TT_BAD_INPUT);
            if (!strstr(err.text, cases[i].expected) || !strstr(err.text, tt_array_members[cases[i].array]))
                fail_msg("case %zu: %s", i, err.text);
        }
    }
}

static bool reads_changed(const char *bytes, size_t size)
{
    FILE *file = fopen("a.npz", "wb");
    struct tt_error err = {.text = ""};
    enum tt_status status;

    assert_non_null(file);
    assert_int_equal(fwrite(bytes, 1, size, file), size);
    fclose(file);
    status = read_whole("a.npz", &err);
    assert_true(status == TT_OK || status == TT_BAD_INPUT);
    return status == TT_OK;
}

/* Cut anywhere, or with any byte of an array changed, it is refused; with any other byte changed it is at
 * least read without harm (times and flags of the archive mean nothing here). */
static void notices_changed_bytes(void **state)
{
    struct synthetic synthetic;
    struct tt_tracks tracks = make_tracks(&synthetic, &three_labelled, 20);
    char *bytes, *array;
    size_t size;
    int arrays = 0;

    (void)state;
    tracks.source.refined = marks;
    write_to("good.npz", TT_TRACKS_NPZ, &tracks);
    bytes = read_all("good.npz", &size);
    assert_true(reads_changed(bytes, size));
    for (size_t cut = 0; cut < size; cut += 13)
        assert_false(reads_changed(bytes, cut));
    for (size_t at = 0; at < size; at++) {
        bytes[at] ^= 0x41;
        reads_changed(bytes, size);
        bytes[at] ^= 0x41;
    }
    for (array = bytes; (array = memmem(array, size - (size_t)(array - bytes), "\x93NUMPY", 6)); arrays++) {
        char *end = memmem(array, size - (size_t)(array - bytes), "PK", 2);

        for (; array < end; array++) {
            *array ^= 0x41;
            assert_false(reads_changed(bytes, size));
            *array ^= 0x41;
        }
    }
    assert_int_equal(arrays, TT_ARRAYS);
    free(bytes);
}

static int write_samples(const char *directory)
{
    struct synthetic synthetic;
    struct tt_tracks tracks = make_tracks(&synthetic, &three_labelled, 300);
    struct tt_error err;

    for (int format = 0; format < TT_TRACK_FORMATS; format++)
        for (int labelled = 0; labelled < 2; labelled++) {
            char path[4096];

            tracks.queries = labelled ? &three_labelled : &three;
            snprintf(path, sizeof path, "%s/%s%s", directory, labelled ? "labelled" : "plain",
                     tt_track_format_suffixes[format]);
            if (tt_tracks_write(path, (enum tt_track_format)format, TT_REPLACE, &tracks, &err)) {
                fprintf(stderr, "%s\n", err.text);
                return 1;
            }
        }
    return 0;
}

int main(int argc, char **argv)
{
#define IN_DIRECTORY(test) cmocka_unit_test_setup_teardown(test, enter_temporary, leave_temporary)
    const struct CMUnitTest tests[] = {
        IN_DIRECTORY(reads_back_what_was_written),
        IN_DIRECTORY(needs_no_more_than_a_block),
        cmocka_unit_test(covers_the_result_with_blocks),
        IN_DIRECTORY(equal_data_gives_equal_bytes),
        IN_DIRECTORY(says_what_was_refined),
        IN_DIRECTORY(orders_members_and_stores_them),
        IN_DIRECTORY(stitched_tracks_go_to_files),
        IN_DIRECTORY(writes_csv),
        IN_DIRECTORY(leaves_nothing_when_the_source_fails),
        IN_DIRECTORY(leaves_nothing_when_the_disk_fails),
        IN_DIRECTORY(refuses_what_cannot_be_a_track_file),
        IN_DIRECTORY(refuses_what_is_not_an_archive),
        IN_DIRECTORY(refuses_arrays_that_do_not_fit),
        IN_DIRECTORY(notices_changed_bytes),
    };

    if (argc == 3 && strcmp(argv[1], "--write") == 0)
        return write_samples(argv[2]);
    if (argc == 3 && strcmp(argv[1], "--read") == 0) {
        struct tt_error err = {.text = ""};
        enum tt_status status = read_whole(argv[2], &err);

        puts(err.text);
        return (int)status;
    }
    return cmocka_run_group_tests(tests, NULL, NULL);
}

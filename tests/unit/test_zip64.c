/* tests/unit/test_zip64.c: a track file beyond 4 GiB is ZIP64 and can be read.
 *
 * The writer is compiled in here with two calls replaced: points come as zeros without a computation, and
 * blocks of zeros become holes of a sparse file. So 7 GB take seconds and no disk. `test_zip64 --write FILE`
 * writes the file for tests/e2e/test_trackfile_numpy.py.
 */
#include "core/trackfile.h"
#include "core/trackfile_parts.h"

#include "tests/unit/temporary.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/stat.h>
#include <zip.h>
#include <cmocka.h>

enum { QUERIES = 33, FRAMES = TT_TRACK_FRAMES_MAX };

static enum tt_status sparse_write_at(struct tt_file *file, const void *bytes, size_t size, int64_t offset,
                                      struct tt_error *err)
{
    const char *text = bytes;

    if (size > 0 && text[0] == 0 && memcmp(text, text + 1, size - 1) == 0)
        return TT_OK;
    return tt_file_write_at(file, bytes, size, offset, err);
}

static enum tt_status zero_points(const struct tt_tracks *tracks, int first_query, int queries,
                                  int64_t first_frame, int frames, struct tt_track_point *points,
                                  struct tt_error *err)
{
    (void)tracks;
    (void)first_query;
    (void)first_frame;
    (void)err;
    memset(points, 0, (size_t)queries * (size_t)frames * sizeof *points);
    return TT_OK;
}

static enum tt_status zero_times(void *user, int64_t first_frame, int frames, double *time_s,
                                 struct tt_error *err)
{
    (void)user;
    (void)first_frame;
    (void)err;
    memset(time_s, 0, (size_t)frames * sizeof *time_s);
    return TT_OK;
}

#define tt_file_write_at    sparse_write_at
#define tt_tracks_points    zero_points
#define tt_array_members    big_array_members
#define tt_tracks_write_npz big_tracks_write_npz
#define tt_npz_write        big_npz_write
enum tt_status big_tracks_write_npz(struct tt_file *file, const struct tt_tracks *tracks,
                                    struct tt_error *err);
extern const char *const big_array_members[TT_ARRAYS];
#include "core/npz.c"
#include "core/trackfile_npz.c"
#undef tt_tracks_points

static enum tt_status write_big(const char *path, struct tt_error *err)
{
    struct tt_query points[QUERIES] = {{.frame = 0}};
    struct tt_queries queries = {.count = QUERIES, .points = points};
    struct tt_tracks tracks = {.source = {.times = zero_times},
                               .queries = &queries,
                               .frames = FRAMES,
                               .width = 640,
                               .height = 480,
                               .meta = "{}"};
    struct tt_file *file;
    enum tt_status status;

    points[QUERIES - 1] = (struct tt_query){.frame = FRAMES - 1, .x = 3, .y = 4};
    status = tt_file_create(&file, path, err);
    if (status)
        return status;
    status = big_tracks_write_npz(file, &tracks, err);
    if (!status)
        return tt_file_commit(file, TT_REPLACE, err);
    tt_file_abandon(file);
    return status;
}

static void writes_and_reads_beyond_4_gib(void **state)
{
    struct tt_trackfile *file = NULL;
    struct tt_error err = {.text = ""};
    struct stat info;
    int width, height;

    (void)state;
    if (write_big("big.npz", &err))
        fail_msg("%s", err.text);
    assert_int_equal(stat("big.npz", &info), 0);
    assert_true(info.st_size > (off_t)13 * QUERIES * FRAMES);
    if (tt_trackfile_open(&file, "big.npz",
                          &err)) /* checks every member's length, and the CRC of the small ones */
        fail_msg("%s", err.text);
    assert_int_equal(tt_trackfile_frames(file), FRAMES);
    assert_int_equal(tt_trackfile_queries(file)->count, QUERIES);
    assert_int_equal(tt_trackfile_queries(file)->points[QUERIES - 1].frame, FRAMES - 1);
    assert_true(tt_trackfile_queries(file)->points[QUERIES - 1].y == 4);
    tt_trackfile_size(file, &width, &height);
    assert_true(width == 640 && height == 480);
    assert_string_equal(tt_trackfile_meta(file), "{}");
    tt_trackfile_close(file);
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(writes_and_reads_beyond_4_gib, enter_temporary, leave_temporary),
    };
    struct tt_error err;

    if (argc == 3 && strcmp(argv[1], "--write") == 0) {
        if (write_big(argv[2], &err) == TT_OK)
            return 0;
        fprintf(stderr, "%s\n", err.text);
        return 1;
    }
    return cmocka_run_group_tests(tests, NULL, NULL);
}

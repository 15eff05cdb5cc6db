/* tests/unit/test_checkpoint.c: a stitch that was cut off goes on where it was, bit for bit; and whatever is
 * not whole, not ours or not the same is as good as none.
 */
#include "core/checkpoint.h"

#include "tests/unit/temporary.h"

#include <errno.h>
#include <fcntl.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <cmocka.h>

enum { QUERIES = 3, OVERLAP = 8, STEP = TT_CLIP_FRAMES - OVERLAP, WINDOWS = 5 };

static char identity[TT_SHA256_HEX], other[TT_SHA256_HEX];

static double time_of(int64_t frame)
{
    return (double)frame / 25 + 3;
}

/* Frames of a video whose last window slid back by 10. */
static int64_t first_of(int window)
{
    return window == WINDOWS - 1 ? (WINDOWS - 1) * STEP - 10 : window * STEP;
}

/* Since when each track is sure, behind each window: what the first stitch that got so far said, and all
 * others must. */
static int64_t since[WINDOWS][QUERIES];
static bool since_known[WINDOWS];

static void expect_since(const struct tt_stitch *stitch, int window)
{
    for (int q = 0; q < QUERIES; q++) {
        if (!since_known[window])
            since[window][q] = tt_stitch_sure_since(stitch, q);
        assert_int_equal(tt_stitch_sure_since(stitch, q), since[window][q]);
        assert_true(since[window][q] <= first_of(window));
        assert_true(window == 0 || since[window][q] > 0);
    }
    since_known[window] = true;
}

/* Adds window number `window`; each window has values of its own, so that cross-fading shows. */
static void add_window(struct tt_stitch *stitch, int window)
{
    static double times[TT_CLIP_FRAMES];
    static struct tt_estimate rows[QUERIES * TT_CLIP_FRAMES];
    struct tt_window made = {.clip = {.frames = TT_CLIP_FRAMES, .first_frame = first_of(window)},
                             .time_s = times};
    struct tt_error err;

    if (window > 0)
        made.overlap = (int)(first_of(window - 1) + TT_CLIP_FRAMES - first_of(window));
    for (int t = 0; t < TT_CLIP_FRAMES; t++)
        times[t] = time_of(first_of(window) + t);
    assert_int_equal(tt_stitch_begin(stitch, &made, &err), TT_OK);
    for (int i = 0; i < QUERIES * TT_CLIP_FRAMES; i++)
        rows[i] =
            (struct tt_estimate){.x = (float)(window * 1000 + i) / 7,
                                 .y = (float)(window - i) / 3,
                                 .occlusion = (float)(i % 5 - 2 * window) /* the later windows are sure */,
                                 .expected_dist = (float)(i % 11) / 13 - 2};
    tt_stitch_add(stitch, 0, QUERIES, rows);
    expect_since(stitch, window);
}

/* Everything of a finished stitch, one byte after the other. Closes it. */
static void *finish(struct tt_stitch *stitch, size_t *bytes)
{
    int frames = (int)(first_of(WINDOWS - 1) + TT_CLIP_FRAMES);
    size_t tracks = (size_t)QUERIES * frames * sizeof(struct tt_estimate), times = frames * sizeof(double);
    char *all = malloc(tracks + times);
    struct tt_error err;

    assert_int_equal(tt_stitch_finish(stitch, &err), TT_OK);
    assert_int_equal(tt_stitch_frames(stitch), frames);
    assert_int_equal(tt_stitch_read(stitch, 0, QUERIES, 0, frames, (struct tt_estimate *)all, &err), TT_OK);
    assert_int_equal(tt_stitch_times(stitch, 0, frames, (double *)(all + tracks), &err), TT_OK);
    for (int t = 0; t < frames; t++)
        assert_true(((double *)(all + tracks))[t] == time_of(t));
    tt_stitch_close(stitch);
    *bytes = tracks + times;
    return all;
}

/* Opens it; returns the number of the window that it holds, -1 for none. */
static int open_checkpoint(struct tt_stitch **stitch, const char *whose)
{
    struct tt_window window = {.clip = {.frames = 99}};
    struct tt_error err = {.text = ""};

    if (tt_checkpoint_open(stitch, QUERIES, "c", whose, &window, &err))
        fail_msg("%s", err.text);
    assert_true(window.clip.frames == 0 || window.clip.frames == TT_CLIP_FRAMES);
    for (int number = 0; number < WINDOWS; number++)
        if (window.clip.frames > 0 && window.clip.first_frame == first_of(number))
            return number;
    assert_int_equal(window.clip.frames, 0);
    return -1;
}

static void save(struct tt_stitch *stitch)
{
    struct tt_error err = {.text = ""};

    if (tt_checkpoint_save(stitch, "c", identity, &err))
        fail_msg("%s", err.text);
}

/* Windows 0..last, saved after the saved-th; whatever comes behind is lost with the process. */
static void leave_checkpoint(int saved, int last)
{
    struct tt_stitch *stitch;

    assert_int_equal(open_checkpoint(&stitch, identity), -1);
    for (int window = 0; window <= last; window++) {
        add_window(stitch, window);
        if (window == saved)
            save(stitch);
    }
    tt_stitch_close(stitch);
}

static void goes_on_bit_for_bit(void **state)
{
    struct tt_stitch *stitch;
    size_t whole_bytes, bytes;
    void *whole, *resumed;

    (void)state;
    assert_int_equal(open_checkpoint(&stitch, identity), -1);
    for (int window = 0; window < WINDOWS; window++)
        add_window(stitch, window);
    whole = finish(stitch, &whole_bytes);
    for (int saved = 0; saved < WINDOWS; saved++) /* the last one has slid back */
        for (int last = saved; last < WINDOWS; last++) {
            tt_checkpoint_remove("c");
            leave_checkpoint(saved, last);
            assert_int_equal(open_checkpoint(&stitch, identity), saved);
            for (int window = saved + 1; window < WINDOWS; window++)
                add_window(stitch, window);
            resumed = finish(stitch, &bytes);
            assert_int_equal(bytes, whole_bytes);
            assert_memory_equal(resumed, whole, bytes);
            free(resumed);
        }
    free(whole);
}

static void each_window_can_be_saved(void **state)
{
    struct tt_stitch *stitch;

    (void)state;
    assert_int_equal(open_checkpoint(&stitch, identity), -1);
    for (int window = 0; window < WINDOWS; window++) {
        add_window(stitch, window);
        save(stitch);
        save(stitch); /* again, as after a slow window */
        tt_stitch_close(stitch);
        assert_int_equal(open_checkpoint(&stitch, identity), window);
    }
    tt_stitch_close(stitch);
    assert_int_equal(count_names(), 3); /* no temporary */
}

/* --- what is as good as none ------------------------------------------------------------------------------
 */

/* Reopens: nothing is taken up, and the files are empty and without a state. */
static void expect_none(int queries, const char *whose)
{
    struct tt_window window = {.clip = {.frames = 99}};
    struct tt_stitch *stitch;
    struct tt_error err;
    struct stat info;

    assert_int_equal(tt_checkpoint_open(&stitch, queries, "c", whose, &window, &err), TT_OK);
    assert_int_equal(window.clip.frames, 0);
    assert_int_equal(stat("c.tiles", &info), 0);
    assert_int_equal(info.st_size, 0);
    assert_int_equal(stat("c.times", &info), 0);
    assert_int_equal(info.st_size, 0);
    assert_int_equal(access("c.state", F_OK), -1);
    tt_stitch_close(stitch);
}

static void nothing_follows_a_window_that_slid_back(void **state)
{
    static const double times[TT_CLIP_FRAMES];
    const struct tt_window behind = {
        .clip = {.frames = TT_CLIP_FRAMES, .first_frame = first_of(WINDOWS - 1) + STEP},
        .time_s = times,
        .overlap = OVERLAP};
    struct tt_stitch *stitch;
    struct tt_error err;

    (void)state;
    leave_checkpoint(WINDOWS - 1, WINDOWS - 1);
    assert_int_equal(open_checkpoint(&stitch, identity), WINDOWS - 1);
    assert_int_equal(tt_stitch_begin(stitch, &behind, &err), TT_REFUSE);
    tt_stitch_close(stitch);
}

static void another_job_is_none(void **state)
{
    (void)state;
    leave_checkpoint(2, 3);
    expect_none(QUERIES, other);
    leave_checkpoint(2, 3);
    expect_none(QUERIES + 1, identity);
    tt_checkpoint_remove("c");
    assert_int_equal(count_names(), 0);
    tt_checkpoint_remove("c"); /* none is no failure */
}

static void flip(const char *path, int64_t at)
{
    int fd = open(path, O_RDWR | O_CLOEXEC);
    char byte;

    assert_int_equal(pread(fd, &byte, 1, at), 1);
    byte ^= 1;
    assert_int_equal(pwrite(fd, &byte, 1, at), 1);
    close(fd);
}

static int64_t size_of(const char *path)
{
    struct stat info;

    assert_int_equal(stat(path, &info), 0);
    return info.st_size;
}

static void a_damaged_state_is_none(void **state)
{
    static const char *const cuts[] = {"c.state", "c.tiles", "c.times"};
    int64_t bytes;

    (void)state;
    leave_checkpoint(2, 3);
    bytes = size_of("c.state");
    for (int64_t at = 0; at < bytes; at += at < 200 || at > bytes - 70 ? 1 : 97) {
        tt_checkpoint_remove("c");
        leave_checkpoint(2, 3);
        flip("c.state", at);
        expect_none(QUERIES, identity);
    }
    for (int i = 0; i < 3; i++) /* too short, by one byte and wholly */
        for (int64_t left = -1; left < 1; left++) {
            tt_checkpoint_remove("c");
            leave_checkpoint(2, 2);
            assert_int_equal(truncate(cuts[i], left < 0 ? size_of(cuts[i]) - 1 : 0), 0);
            expect_none(QUERIES, identity);
        }
    tt_checkpoint_remove("c");
    leave_checkpoint(2, 2);
    assert_int_equal(truncate("c.state", bytes + 1), 0);
    expect_none(QUERIES, identity);
}

static void links_are_not_followed(void **state)
{
    struct tt_window window;
    struct tt_stitch *stitch;
    struct tt_error err;

    (void)state;
    put_content("precious", "text");
    assert_int_equal(symlink("precious", "c.tiles"), 0);
    assert_int_not_equal(tt_checkpoint_open(&stitch, QUERIES, "c", identity, &window, &err), TT_OK);
    assert_string_equal(content_of("precious"), "text");
}

/* --- failures ---------------------------------------------------------------------------------------------
 */

static void a_failed_save_leaves_the_one_before(void **state)
{
    struct tt_stitch *stitch;
    struct rlimit before, full;
    struct tt_error err;

    (void)state;
    signal(SIGXFSZ, SIG_IGN);
    assert_int_equal(open_checkpoint(&stitch, identity), -1);
    add_window(stitch, 0);
    save(stitch);
    add_window(stitch, 1);
    assert_int_equal(getrlimit(RLIMIT_FSIZE, &before), 0);
    full = (struct rlimit){.rlim_cur = 1000, .rlim_max = before.rlim_max};
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &full), 0); /* in the middle of the state */
    assert_int_equal(tt_checkpoint_save(stitch, "c", identity, &err), TT_REFUSE);
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &before), 0);
    tt_stitch_close(stitch);
    assert_int_equal(count_names(), 3); /* no temporary */
    assert_int_equal(open_checkpoint(&stitch, identity), 0);
    tt_stitch_close(stitch);
}

static void half_a_window_is_not_saved(void **state)
{
    static struct tt_estimate rows[QUERIES * TT_CLIP_FRAMES];
    static double times[TT_CLIP_FRAMES];
    struct tt_window window = {.clip = {.frames = TT_CLIP_FRAMES}, .time_s = times};
    struct tt_stitch *stitch;
    struct tt_error err;

    (void)state;
    assert_int_equal(open_checkpoint(&stitch, identity), -1);
    assert_int_equal(tt_checkpoint_save(stitch, "c", identity, &err), TT_REFUSE); /* no window at all */
    assert_int_equal(tt_stitch_begin(stitch, &window, &err), TT_OK);
    tt_stitch_add(stitch, 0, QUERIES - 1, rows);
    assert_int_equal(tt_checkpoint_save(stitch, "c", identity, &err), TT_REFUSE);
    tt_stitch_add(stitch, QUERIES - 1, 1, rows);
    save(stitch);
    tt_stitch_close(stitch);

    tt_checkpoint_remove("c"); /* whole windows may have fewer frames: the identity says how many */
    assert_int_equal(open_checkpoint(&stitch, identity), -1);
    window.clip.frames = 24;
    assert_int_equal(tt_stitch_begin(stitch, &window, &err), TT_OK);
    tt_stitch_add(stitch, 0, QUERIES, rows);
    save(stitch);
    tt_stitch_close(stitch);
    assert_int_equal(tt_checkpoint_open(&stitch, QUERIES, "c", identity, &window, &err), TT_OK);
    assert_int_equal(window.clip.frames, 24);
    tt_stitch_close(stitch);
}

static void a_name_that_is_too_long(void **state)
{
    static char path[2 * PATH_MAX];
    struct tt_window window;
    struct tt_stitch *stitch = NULL;
    struct tt_error err;

    (void)state;
    memset(path, 'x', sizeof path - 1);
    assert_int_equal(tt_checkpoint_open(&stitch, QUERIES, path, identity, &window, &err), TT_REFUSE);
    assert_null(stitch);
    tt_checkpoint_remove(path);
}

#define CHECKPOINT_TEST(name) cmocka_unit_test_setup_teardown(name, enter_temporary, leave_temporary)

int main(void)
{
    const struct CMUnitTest tests[] = {
        CHECKPOINT_TEST(goes_on_bit_for_bit),
        CHECKPOINT_TEST(each_window_can_be_saved),
        CHECKPOINT_TEST(nothing_follows_a_window_that_slid_back),
        CHECKPOINT_TEST(another_job_is_none),
        CHECKPOINT_TEST(a_damaged_state_is_none),
        CHECKPOINT_TEST(links_are_not_followed),
        CHECKPOINT_TEST(a_failed_save_leaves_the_one_before),
        CHECKPOINT_TEST(half_a_window_is_not_saved),
        CHECKPOINT_TEST(a_name_that_is_too_long),
    };

    memset(identity, 'a', sizeof identity - 1);
    memset(other, 'b', sizeof other - 1);
    return cmocka_run_group_tests_name("checkpoint", tests, NULL, NULL);
}

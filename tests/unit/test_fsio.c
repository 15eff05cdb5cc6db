/* tests/unit/test_fsio.c: files appear whole or not at all, whatever call fails on the way; names are bytes.
 *
 * core/fsio.c is compiled in here with some calls replaced, so that each can be made to fail.
 */
#include <errno.h>
#include <fcntl.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <unistd.h>
#include <cmocka.h>

#include "tests/unit/temporary.h"

static struct {
    int fsync_error;      /* of the fsync_call-th call; 0: none */
    int fsync_call;       /* counts down */
    int rename_error;     /* of renameat2 */
    bool no_tmpfile;      /* O_TMPFILE is not known */
    size_t write_most;    /* bytes that a write takes; 0: all */
    int write_interrupts; /* writes that fail with EINTR first */
} fake;

static int fake_fsync(int fd)
{
    if (fake.fsync_error && fake.fsync_call-- == 0) {
        errno = fake.fsync_error;
        return -1;
    }
    return fsync(fd);
}

static int fake_renameat2(int old_fd, const char *old, int new_fd, const char *new, unsigned flags)
{
    if (fake.rename_error) {
        errno = fake.rename_error;
        return -1;
    }
    return renameat2(old_fd, old, new_fd, new, flags);
}

static int fake_open(const char *path, int flags, ...)
{
    if (fake.no_tmpfile && (flags & O_TMPFILE) == O_TMPFILE) {
        errno = EOPNOTSUPP;
        return -1;
    }
    return open(path, flags, 0600);
}

static bool interrupted(void)
{
    if (fake.write_interrupts == 0)
        return false;
    fake.write_interrupts--;
    errno = EINTR;
    return true;
}

static ssize_t fake_write(int fd, const void *bytes, size_t size)
{
    return interrupted()
               ? -1
               : write(fd, bytes, fake.write_most && size > fake.write_most ? fake.write_most : size);
}

static ssize_t fake_pwrite(int fd, const void *bytes, size_t size, off_t offset)
{
    return interrupted() ? -1
                         : pwrite(fd, bytes,
                                  fake.write_most && size > fake.write_most ? fake.write_most : size, offset);
}

#define fsync     fake_fsync
#define renameat2 fake_renameat2
#define open      fake_open
#define write     fake_write
#define pwrite    fake_pwrite
#include "core/fsio.c"
#undef open
#undef write

static int setup(void **state)
{
    memset(&fake, 0, sizeof fake);
    return enter_temporary(state);
}

static struct tt_file *create(const char *path)
{
    struct tt_error err;
    struct tt_file *file = NULL;

    if (tt_file_create(&file, path, &err))
        fail_msg("%s", err.text);
    return file;
}

static enum tt_status write_whole(const char *path, const char *text, enum tt_commit mode,
                                  struct tt_error *err)
{
    struct tt_file *file = create(path);

    assert_int_equal(tt_file_write(file, text, strlen(text), err), TT_OK);
    return tt_file_commit(file, mode, err);
}

static void appears_only_at_the_commit(void **state)
{
    struct tt_error err;
    struct tt_file *file = create("a.npz");
    struct stat info;
    mode_t mask = umask(027);

    (void)state;
    umask(mask);
    assert_int_equal(tt_file_write(file, "hello ", 6, &err), TT_OK);
    assert_int_equal(access("a.npz", F_OK), -1);
    assert_int_equal(count_names(), 1);
    assert_int_equal(tt_file_write(file, "there", 5, &err), TT_OK);
    assert_int_equal(tt_file_write_at(file, "J", 1, 0, &err), TT_OK);
    assert_int_equal(tt_file_write(file, "!", 1, &err), TT_OK);
    assert_int_equal(tt_file_commit(file, TT_REPLACE, &err), TT_OK);
    assert_string_equal(content_of("a.npz"), "Jello there!");
    assert_int_equal(count_names(), 1);
    assert_int_equal(stat("a.npz", &info), 0);
    assert_int_equal(info.st_mode & 0777, 0666 & ~mask);
}

static void abandons_without_a_trace(void **state)
{
    (void)state;
    put_content("a", "old");
    errno = ENOSPC;
    tt_file_abandon(create("a"));
    tt_file_abandon(NULL);
    assert_string_equal(content_of("a"), "old");
    assert_int_equal(count_names(), 1);
}

static void replaces_or_refuses(void **state)
{
    struct tt_error err;

    (void)state;
    put_content("a", "old");
    assert_int_equal(write_whole("a", "new", TT_NO_REPLACE, &err), TT_REFUSE);
    assert_non_null(strstr(err.text, "exists"));
    assert_string_equal(content_of("a"), "old");
    assert_int_equal(count_names(), 1);
    assert_int_equal(write_whole("a", "new", TT_REPLACE, &err), TT_OK);
    assert_string_equal(content_of("a"), "new");
    assert_int_equal(write_whole("b", "b", TT_NO_REPLACE, &err), TT_OK);
    assert_string_equal(content_of("b"), "b");
    assert_int_equal(count_names(), 2);
}

static void links_where_rename_cannot_refuse(void **state)
{
    static const int errors[] = {EINVAL, ENOSYS, EOPNOTSUPP};
    struct tt_error err;

    (void)state;
    for (int i = 0; i < 3; i++) {
        fake.rename_error = errors[i];
        put_content("a", "old");
        assert_int_equal(write_whole("a", "new", TT_NO_REPLACE, &err), TT_REFUSE);
        assert_string_equal(content_of("a"), "old");
        assert_int_equal(count_names(), 1);
        assert_int_equal(write_whole("b", "b", TT_NO_REPLACE, &err), TT_OK);
        assert_string_equal(content_of("b"), "b");
        assert_int_equal(count_names(), 2);
        assert_int_equal(unlink("b"), 0);
    }
    fake.rename_error = EIO;
    assert_int_equal(write_whole("b", "b", TT_NO_REPLACE, &err), TT_RETRY_LATER);
    assert_int_equal(count_names(), 1);
}

static void keeps_the_old_file_when_fsync_fails(void **state)
{
    struct tt_error err;

    (void)state;
    put_content("a", "old");
    fake.fsync_error = EIO;
    fake.fsync_call = 0;
    assert_int_equal(write_whole("a", "new", TT_REPLACE, &err), TT_RETRY_LATER);
    assert_string_equal(content_of("a"), "old");
    assert_int_equal(count_names(), 1);
    fake.fsync_call = 1; /* the directory's */
    assert_int_equal(write_whole("a", "new", TT_REPLACE, &err), TT_RETRY_LATER);
    assert_non_null(strstr(err.text, "in place"));
    assert_string_equal(content_of("a"), "new");
    assert_int_equal(count_names(), 1);
    fake.fsync_error = EINVAL; /* a file system that cannot sync directories */
    fake.fsync_call = 1;
    assert_int_equal(write_whole("a", "newer", TT_REPLACE, &err), TT_OK);
}

static void writes_on_after_short_and_interrupted_writes(void **state)
{
    struct tt_error err;
    struct tt_file *file = create("a");

    (void)state;
    fake.write_most = 2;
    fake.write_interrupts = 1;
    assert_int_equal(tt_file_write(file, "abcdefg", 7, &err), TT_OK);
    fake.write_interrupts = 1;
    assert_int_equal(tt_file_write_at(file, "CDE", 3, 2, &err), TT_OK);
    assert_int_equal(tt_file_commit(file, TT_REPLACE, &err), TT_OK);
    assert_string_equal(content_of("a"), "abCDEfg");
}

static void takes_any_name_up_to_255_bytes(void **state)
{
    static const char *const odd[] = {"-o",   " blank ", "new\nline", "\xff\xfe invalid",
                                      "%s%n", ".hidden", "..."};
    char name[TT_NAME_BYTES + 2];
    struct tt_file *file = NULL;
    struct tt_error err;

    (void)state;
    for (size_t i = 0; i < sizeof odd / sizeof odd[0]; i++) {
        assert_int_equal(write_whole(odd[i], odd[i], TT_NO_REPLACE, &err), TT_OK);
        assert_string_equal(content_of(odd[i]), odd[i]);
    }
    memset(name, 'n', sizeof name);
    name[TT_NAME_BYTES] = '\0';
    assert_int_equal(write_whole(name, "long", TT_REPLACE, &err), TT_OK);
    assert_string_equal(content_of(name), "long");
    name[TT_NAME_BYTES] = 'n';
    name[TT_NAME_BYTES + 1] = '\0';
    assert_int_equal(tt_file_create(&file, name, &err), TT_REFUSE);
    assert_null(file);
}

static void refuses_at_once_what_cannot_end_well(void **state)
{
    static const char *const names[] = {"", ".", "..", "directory/", "directory", "missing/a", "a/b"};
    struct tt_file *file = NULL;
    struct tt_error err;

    (void)state;
    assert_int_equal(mkdir("directory", 0777), 0);
    put_content("a", "a file is no directory");
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++) {
        assert_int_equal(tt_file_create(&file, names[i], &err), TT_REFUSE);
        assert_null(file);
    }
    assert_int_equal(count_names(), 2);
    assert_int_equal(write_whole("directory/a", "inside", TT_REPLACE, &err), TT_OK);
    assert_string_equal(content_of("directory/a"), "inside");
}

static void two_writers_of_one_name_do_not_meet(void **state)
{
    struct tt_error err;
    struct tt_file *first = create("a"), *second = create("a");

    (void)state;
    assert_int_equal(tt_file_write(first, "first", 5, &err), TT_OK);
    assert_int_equal(tt_file_write(second, "second", 6, &err), TT_OK);
    assert_int_equal(tt_file_commit(first, TT_NO_REPLACE, &err), TT_OK);
    assert_int_equal(tt_file_commit(second, TT_NO_REPLACE, &err), TT_REFUSE);
    assert_string_equal(content_of("a"), "first");
    assert_int_equal(count_names(), 1);
}

static void reads_small_files_only(void **state)
{
    char *bytes = NULL;
    size_t size = 77;
    struct tt_error err;

    (void)state;
    put_content("a", "12345");
    assert_int_equal(tt_file_read(&bytes, &size, "a", 4, &err), TT_BAD_INPUT);
    assert_int_equal(tt_file_read(&bytes, &size, "missing", 4, &err), TT_BAD_INPUT);
    assert_int_equal(tt_file_read(&bytes, &size, ".", 4, &err), TT_BAD_INPUT);
    assert_int_equal(mkfifo("fifo", 0600), 0);
    assert_int_equal(tt_file_read(&bytes, &size, "fifo", 4, &err), TT_BAD_INPUT);
    assert_null(bytes);
    assert_int_equal(size, 77);
    assert_int_equal(tt_file_read(&bytes, &size, "a", 5, &err), TT_OK);
    assert_int_equal(size, 5);
    assert_string_equal(bytes, "12345");
    free(bytes);
    put_content("a", "");
    assert_int_equal(tt_file_read(&bytes, &size, "a", 0, &err), TT_OK);
    assert_int_equal(size, 0);
    free(bytes);
}

static void spills_into_files_without_names(void **state)
{
    struct tt_error err;
    struct stat info;
    char back[4] = "";

    (void)state;
    for (int i = 0; i < 2; i++) {
        int fd = -1;

        fake.no_tmpfile = i == 1;
        assert_int_equal(tt_spill_open(&fd, ".", &err), TT_OK);
        assert_int_equal(count_names(), 0);
        assert_int_equal(fstat(fd, &info), 0);
        assert_int_equal(info.st_nlink, 0);
        assert_int_equal(fcntl(fd, F_GETFD) & FD_CLOEXEC, FD_CLOEXEC);
        assert_int_equal(tt_write_at(fd, "abc", 3, 10, "spill", &err), TT_OK);
        assert_int_equal(tt_read_at(fd, back, 3, 10, "spill", &err), TT_OK);
        assert_string_equal(back, "abc");
        assert_int_equal(tt_read_at(fd, back, 4, 10, "spill", &err), TT_RETRY_LATER);
        close(fd);
    }
    assert_int_equal(tt_spill_open(&(int){0}, "missing", &err), TT_REFUSE);
}

static void expect_sibling(const char *video, const char *directory, const char *suffix, const char *expected)
{
    char *path = tt_path_sibling(video, directory, suffix);

    assert_string_equal(path, expected);
    free(path);
}

static void names_siblings(void **state)
{
    (void)state;
    expect_sibling("bear.mp4", NULL, ".tracks.npz", "bear.tracks.npz");
    expect_sibling("a.b/bear.mp4", NULL, ".tracks.npz", "a.b/bear.tracks.npz");
    expect_sibling("a.b/bear", NULL, ".tracks.npz", "a.b/bear.tracks.npz");
    expect_sibling("/bear.mp4", NULL, ".tracks.npz", "/bear.tracks.npz");
    expect_sibling("a/bear.tar.gz", "out", ".tracks.npz", "out/bear.tar.tracks.npz");
    expect_sibling("a/bear.mp4", "out/", ".x", "out/bear.x");
    expect_sibling("a/bear.mp4", "/", ".x", "/bear.x");
    expect_sibling("a/bear.mp4", "", ".x", "bear.x");
    expect_sibling(".hidden", NULL, ".x", ".hidden.x");
    expect_sibling("bear.", NULL, ".x", "bear.x");
    expect_sibling("-v\n.mp4", NULL, ".x", "-v\n.x");
    assert_string_equal(tt_path_name("a/b.mp4"), "b.mp4");
    assert_string_equal(tt_path_name("b.mp4"), "b.mp4");
    for (int i = 0; i < 4; i++) {
        static const char *const paths[4][2] = {
            {"a/b.mp4", "a/"}, {"b.mp4", "."}, {"/b", "/"}, {"a/b/", "a/b/"}};
        char *folder = tt_path_folder(paths[i][0]);

        assert_string_equal(folder, paths[i][1]);
        free(folder);
    }
}

static void cuts_stems_that_leave_no_room(void **state)
{
    char video[TT_NAME_BYTES + 1], expected[TT_NAME_BYTES + 1];

    (void)state;
    memset(video, 'v', sizeof video);
    strcpy(video + TT_NAME_BYTES - 4, ".mp4");
    memset(expected, 'v', sizeof expected);
    strcpy(expected + TT_NAME_BYTES - 11, ".tracks.npz");
    expect_sibling(video, NULL, ".tracks.npz", expected);

    /* "é" across the cut goes as a whole; Latin-1 is cut where it is. */
    memcpy(video + TT_NAME_BYTES - 12, "\xc3\xa9", 2);
    strcpy(expected + TT_NAME_BYTES - 12, ".tracks.npz");
    expect_sibling(video, NULL, ".tracks.npz", expected);
    memcpy(video + TT_NAME_BYTES - 12, "\xe9\xe9", 2);
    strcpy(expected + TT_NAME_BYTES - 12, "\xe9.tracks.npz");
    expect_sibling(video, NULL, ".tracks.npz", expected);
}

int main(void)
{
#define IN_DIRECTORY(test) cmocka_unit_test_setup_teardown(test, setup, leave_temporary)
    const struct CMUnitTest tests[] = {
        IN_DIRECTORY(appears_only_at_the_commit),
        IN_DIRECTORY(abandons_without_a_trace),
        IN_DIRECTORY(replaces_or_refuses),
        IN_DIRECTORY(links_where_rename_cannot_refuse),
        IN_DIRECTORY(keeps_the_old_file_when_fsync_fails),
        IN_DIRECTORY(writes_on_after_short_and_interrupted_writes),
        IN_DIRECTORY(takes_any_name_up_to_255_bytes),
        IN_DIRECTORY(refuses_at_once_what_cannot_end_well),
        IN_DIRECTORY(two_writers_of_one_name_do_not_meet),
        IN_DIRECTORY(reads_small_files_only),
        IN_DIRECTORY(spills_into_files_without_names),
        cmocka_unit_test(names_siblings),
        cmocka_unit_test(cuts_stems_that_leave_no_room),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}

/* daemon/spool/fs.c: directories walked without symbolic links, and moves that overwrite nothing.
 *
 * Invariants: a directory that was made here is durable before anything is put into it. A move by link leaves
 * two names of one inode when it is cut short, never none; moving again finishes it.
 * Fails: as system calls do, with errno.
 */
#include "daemon/spool/internal.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum { NUMBERS = 10000 };

void tt_fs_close(int fd)
{
    int kept = errno;

    if (fd >= 0)
        close(fd);
    errno = kept;
}

int tt_fs_sync(int fd)
{
    int result;

    do
        result = fsync(fd);
    while (result < 0 && errno == EINTR);
    return result;
}

bool tt_fs_exists(int directory_fd, const char *name)
{
    struct stat st;

    return fstatat(directory_fd, name, &st, AT_SYMLINK_NOFOLLOW) == 0 || errno != ENOENT;
}

bool tt_fs_same(int a_fd, int b_fd)
{
    struct statx a, b;
    unsigned wanted = STATX_BASIC_STATS | STATX_MNT_ID;

    if (statx(a_fd, "", AT_EMPTY_PATH, wanted, &a) < 0 || statx(b_fd, "", AT_EMPTY_PATH, wanted, &b) < 0)
        return false;
    if (a.stx_dev_major != b.stx_dev_major || a.stx_dev_minor != b.stx_dev_minor)
        return false;
    return !(a.stx_mask & b.stx_mask & STATX_MNT_ID) || a.stx_mnt_id == b.stx_mnt_id;
}

static int open_component(int base_fd, const char *name, bool create)
{
    int flags = O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC;
    int fd = openat(base_fd, name, flags);

    if (fd >= 0 || errno != ENOENT || !create)
        return fd;
    if (mkdirat(base_fd, name, 0755) < 0 && errno != EEXIST)
        return -1;
    if (tt_fs_sync(base_fd) < 0)
        return -1;
    return openat(base_fd, name, flags);
}

int tt_fs_open_directory(int base_fd, const char *relative, bool create)
{
    int fd = fcntl(base_fd, F_DUPFD_CLOEXEC, 0);

    while (fd >= 0 && *relative) {
        char name[TT_NAME_BYTES + 1];
        size_t bytes = strcspn(relative, "/");
        int below;

        if (bytes == 0 || bytes > TT_NAME_BYTES) {
            tt_fs_close(fd);
            errno = ENAMETOOLONG;
            return -1;
        }
        memcpy(name, relative, bytes);
        name[bytes] = '\0';
        relative += bytes + (relative[bytes] == '/');
        below = open_component(fd, name, create);
        tt_fs_close(fd);
        fd = below;
    }
    return fd;
}

int tt_fs_open_parent(const struct tt_spool *spool, const char *tree, const char *path, bool create,
                      const char **name)
{
    char directory[PATH_MAX];
    int tree_fd = tt_fs_open_directory(spool->root_fd, tree, create), fd;

    if (tree_fd < 0)
        return -1;
    snprintf(directory, sizeof directory, "%.*s", (int)tt_path_directory(path), path);
    fd = tt_fs_open_directory(tree_fd, directory, create);
    tt_fs_close(tree_fd);
    if (fd >= 0)
        *name = tt_path_name(path);
    return fd;
}

bool tt_fs_same_file(int a_fd, const char *a, int b_fd, const char *b)
{
    struct stat one, other;

    return fstatat(a_fd, a, &one, AT_SYMLINK_NOFOLLOW) == 0 &&
           fstatat(b_fd, b, &other, AT_SYMLINK_NOFOLLOW) == 0 && one.st_dev == other.st_dev &&
           one.st_ino == other.st_ino;
}

static int move_by_link(int from_fd, const char *from, int to_fd, const char *to)
{
    if (linkat(from_fd, from, to_fd, to, 0) < 0)
        return -1;
    TT_STEP("move-linked");
    if (tt_fs_sync(to_fd) < 0)
        return -1;
    return unlinkat(from_fd, from, 0);
}

int tt_fs_move(const struct tt_spool *spool, int from_fd, const char *from, int to_fd, const char *to)
{
    int result = spool->can_link ? move_by_link(from_fd, from, to_fd, to)
                                 : renameat2(from_fd, from, to_fd, to, RENAME_NOREPLACE);

    if (result < 0 && errno == EEXIST) {
        if (tt_fs_same_file(from_fd, from, to_fd, to))
            return unlinkat(from_fd, from, 0);
        errno = EEXIST;
    }
    return result;
}

int tt_fs_move_numbered(const struct tt_spool *spool, int from_fd, const char *from, int to_fd,
                        const char *to)
{
    char name[TT_NAME_BYTES + 1];
    size_t stem = tt_name_stem(to);

    for (int number = 1; number < NUMBERS; number++) {
        tt_name_join(name, to, stem, number, to + stem);
        if (tt_fs_move(spool, from_fd, from, to_fd, name) == 0 || errno == ENOENT)
            return 0;
        if (errno != EEXIST)
            return -1;
    }
    return -1;
}

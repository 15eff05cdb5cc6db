/* core/fsio.c: durable files, spill files, names beside a video's.
 *
 * Invariants: a tt_file owns its descriptor, its directory's descriptor and its temporary name until commit
 * or abandon; the temporary is gone after either, unless it became the target. All work after create goes
 * through the directory's descriptor, so a directory that is renamed meanwhile still receives its file.
 *
 * Fails: every call that touches the disk. A write past RLIMIT_FSIZE sends SIGXFSZ before it returns EFBIG;
 * programs ignore that signal.
 */
#include "core/fsio.h"

#include <errno.h>
#include <fcntl.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <unistd.h>

enum { TEMPORARY_BYTES = sizeof ".tt-0123456789abcdef.part", CREATE_ATTEMPTS = 16 };

struct tt_file {
    int fd, directory_fd;
    char temporary[TEMPORARY_BYTES];
    char name[TT_NAME_BYTES + 1];
    char *path; /* for messages */
};

/* --- names -------------------------------------------------------------------------------------------------
 */

const char *tt_path_name(const char *path)
{
    const char *slash = strrchr(path, '/');

    return slash ? slash + 1 : path;
}

char *tt_path_folder(const char *path)
{
    const char *name = tt_path_name(path);

    return name == path ? strdup(".") : strndup(path, (size_t)(name - path));
}

/* The largest cut <= length that does not split a UTF-8 character; length itself where the bytes around it
 * are not UTF-8. length is less than strlen(name). */
static size_t utf8_cut(const char *name, size_t length)
{
    const unsigned char *bytes = (const unsigned char *)name;
    size_t lead = length;

    while (lead > 0 && length - lead < 3 && (bytes[lead] & 0xc0) == 0x80)
        lead--;
    return bytes[lead] >= 0xc0 ? lead : length;
}

bool tt_is_unchanged(int fd, const struct stat *before)
{
    struct stat now;

    return fstat(fd, &now) == 0 && now.st_size == before->st_size &&
           now.st_mtim.tv_sec == before->st_mtim.tv_sec && now.st_mtim.tv_nsec == before->st_mtim.tv_nsec;
}

char *tt_path_sibling(const char *video, const char *directory, const char *suffix)
{
    const char *name = tt_path_name(video);
    const char *dot = strrchr(name, '.');
    size_t stem = dot && dot != name ? (size_t)(dot - name) : strlen(name);
    size_t suffix_bytes = strlen(suffix);
    int directory_bytes = (int)(directory ? strlen(directory) : (size_t)(name - video));
    const char *slash = "";
    char *path;

    if (stem + suffix_bytes > TT_NAME_BYTES)
        stem = utf8_cut(name, suffix_bytes < TT_NAME_BYTES ? TT_NAME_BYTES - suffix_bytes : 0);
    if (directory && directory_bytes > 0 && directory[directory_bytes - 1] != '/')
        slash = "/";
    if (asprintf(&path, "%.*s%s%.*s%s", directory_bytes, directory ? directory : video, slash, (int)stem,
                 name, suffix) < 0)
        return NULL;
    return path;
}

static enum tt_status temporary_name(char *name, struct tt_error *err)
{
    unsigned long long random;

    if (getrandom(&random, sizeof random, 0) != sizeof random)
        return tt_fail_errno(err, TT_RETRY_LATER, errno, "random numbers for a temporary name");
    snprintf(name, TEMPORARY_BYTES, ".tt-%016llx.part", random);
    return TT_OK;
}

/* Creates a file of an unpredictable name in a directory. */
static enum tt_status create_temporary(int *fd, char *name, int directory_fd, mode_t mode, const char *what,
                                       struct tt_error *err)
{
    for (int attempt = 0; attempt < CREATE_ATTEMPTS; attempt++) {
        enum tt_status status = temporary_name(name, err);

        if (status)
            return status;
        *fd = openat(directory_fd, name, O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, mode);
        if (*fd >= 0)
            return TT_OK;
        if (errno != EEXIST && errno != EINTR)
            break;
    }
    return tt_fail_errno(err, tt_status_of_errno(errno), errno, "%s: cannot create a file in its directory",
                         what);
}

/* --- durable files -----------------------------------------------------------------------------------------
 */

/* The target's name and its directory's descriptor; refuses what a rename would refuse only at the end. */
static enum tt_status open_target(struct tt_file *file, struct tt_error *err)
{
    const char *name = tt_path_name(file->path);
    struct stat existing;
    char *directory;

    if (strlen(name) > TT_NAME_BYTES)
        return tt_fail_errno(err, TT_REFUSE, ENAMETOOLONG, "%s", file->path);
    if (name[0] == '\0' || strcmp(name, ".") == 0 || strcmp(name, "..") == 0)
        return tt_fail_errno(err, TT_REFUSE, EISDIR, "'%s'", file->path);
    strcpy(file->name, name);
    directory = tt_path_folder(file->path);
    if (!directory)
        return tt_fail_errno(err, TT_RETRY_LATER, ENOMEM, "%s", file->path);
    file->directory_fd = open(directory, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    free(directory);
    if (file->directory_fd < 0)
        return tt_fail_errno(err, tt_status_of_errno(errno), errno, "%s: directory", file->path);
    if (fstatat(file->directory_fd, file->name, &existing, AT_SYMLINK_NOFOLLOW) == 0 &&
        S_ISDIR(existing.st_mode))
        return tt_fail_errno(err, TT_REFUSE, EISDIR, "%s", file->path);
    return TT_OK;
}

enum tt_status tt_file_create(struct tt_file **file, const char *path, struct tt_error *err)
{
    struct tt_file *made = calloc(1, sizeof *made);
    enum tt_status status;

    if (!made)
        return tt_fail_errno(err, TT_RETRY_LATER, ENOMEM, "%s", path);
    made->fd = made->directory_fd = -1;
    made->path = strdup(path);
    status = made->path ? open_target(made, err) : tt_fail_errno(err, TT_RETRY_LATER, ENOMEM, "%s", path);
    if (!status)
        status = create_temporary(&made->fd, made->temporary, made->directory_fd, 0666, path, err);
    if (status)
        tt_file_abandon(made);
    else
        *file = made;
    return status;
}

int tt_file_descriptor(const struct tt_file *file)
{
    return file->fd;
}

enum tt_status tt_file_write(struct tt_file *file, const void *bytes, size_t size, struct tt_error *err)
{
    const char *next = bytes;

    while (size > 0) {
        ssize_t written = write(file->fd, next, size);

        if (written < 0 && errno == EINTR)
            continue;
        if (written < 0)
            return tt_fail_errno(err, tt_status_of_errno(errno), errno, "%s: write", file->path);
        next += written;
        size -= (size_t)written;
    }
    return TT_OK;
}

enum tt_status tt_file_write_at(struct tt_file *file, const void *bytes, size_t size, int64_t offset,
                                struct tt_error *err)
{
    return tt_write_at(file->fd, bytes, size, offset, file->path, err);
}

/* Renames the temporary to a name that must be free. Returns 0 or an errno. */
static int rename_to_free_name(const struct tt_file *file)
{
    if (renameat2(file->directory_fd, file->temporary, file->directory_fd, file->name, RENAME_NOREPLACE) == 0)
        return 0;
    if (errno != EINVAL && errno != ENOSYS && errno != EOPNOTSUPP)
        return errno;
    /* The file system does not know the flag. A link fails where the name is taken; a crash between the two
     * calls leaves the whole file under both names. */
    if (linkat(file->directory_fd, file->temporary, file->directory_fd, file->name, 0) < 0)
        return errno;
    unlinkat(file->directory_fd, file->temporary, 0);
    return 0;
}

enum tt_status tt_file_commit(struct tt_file *file, enum tt_commit mode, struct tt_error *err)
{
    enum tt_status status = TT_OK;
    int error = 0;

    if (fsync(file->fd) < 0) {
        status = tt_fail_errno(err, tt_status_of_errno(errno), errno, "%s: fsync", file->path);
        goto done;
    }
    if (mode == TT_NO_REPLACE)
        error = rename_to_free_name(file);
    else if (renameat(file->directory_fd, file->temporary, file->directory_fd, file->name) < 0)
        error = errno;
    if (error) {
        status = tt_fail_errno(err, tt_status_of_errno(error), error, "%s: rename into place", file->path);
        goto done;
    }
    file->temporary[0] = '\0';
    if (fsync(file->directory_fd) < 0 && errno != EINVAL)
        status = tt_fail_errno(err, tt_status_of_errno(errno), errno,
                               "%s: in place, but fsync of its directory", file->path);
done:
    tt_file_abandon(file);
    return status;
}

void tt_file_abandon(struct tt_file *file)
{
    int saved_errno = errno;

    if (!file)
        return;
    if (file->fd >= 0) {
        if (file->temporary[0])
            unlinkat(file->directory_fd, file->temporary, 0);
        close(file->fd);
    }
    if (file->directory_fd >= 0)
        close(file->directory_fd);
    free(file->path);
    free(file);
    errno = saved_errno;
}

/* --- small files -------------------------------------------------------------------------------------------
 */

/* A file that a person gave cannot be read: the file's fault, unless the host is short of something. */
static enum tt_status unreadable(int errno_value)
{
    return tt_status_of_errno(errno_value) == TT_RETRY_LATER ? TT_RETRY_LATER : TT_BAD_INPUT;
}

/* Reads to the end of the file or to `room` bytes; returns the count or -1. */
static ssize_t read_up_to(int fd, char *bytes, size_t room)
{
    size_t filled = 0;

    while (filled < room) {
        ssize_t got = read(fd, bytes + filled, room - filled);

        if (got < 0 && errno == EINTR)
            continue;
        if (got < 0)
            return -1;
        if (got == 0)
            break;
        filled += (size_t)got;
    }
    return (ssize_t)filled;
}

enum tt_status tt_file_read(char **bytes, size_t *size, const char *path, size_t max_bytes,
                            struct tt_error *err)
{
    enum tt_status status = TT_OK;
    struct stat info;
    char *read_bytes = NULL;
    ssize_t got;
    /* O_NONBLOCK: a fifo without a writer must not hold us up. */
    int fd = open(path, O_RDONLY | O_NONBLOCK | O_NOCTTY | O_CLOEXEC);

    if (fd < 0 || fstat(fd, &info) < 0) {
        status = tt_fail_errno(err, unreadable(errno), errno, "%s", path);
        goto done;
    }
    if (!S_ISREG(info.st_mode)) {
        status = tt_fail(err, TT_BAD_INPUT, "%s: not a regular file", path);
        goto done;
    }
    if (info.st_size > (off_t)max_bytes) {
        status = tt_fail(err, TT_BAD_INPUT, "%s: %lld bytes; at most %zu are read", path,
                         (long long)info.st_size, max_bytes);
        goto done;
    }
    read_bytes = malloc((size_t)info.st_size + 1);
    if (!read_bytes) {
        status = tt_fail_errno(err, TT_RETRY_LATER, ENOMEM, "%s", path);
        goto done;
    }
    got = read_up_to(fd, read_bytes, (size_t)info.st_size);
    if (got < 0) {
        status = tt_fail_errno(err, unreadable(errno), errno, "%s: read", path);
        goto done;
    }
    read_bytes[got] = '\0';
    *size = (size_t)got;
    *bytes = read_bytes;
    read_bytes = NULL;
done:
    free(read_bytes);
    if (fd >= 0)
        close(fd);
    return status;
}

/* --- spill files -------------------------------------------------------------------------------------------
 */

enum tt_status tt_spill_open(int *fd, const char *directory, struct tt_error *err)
{
    char name[TEMPORARY_BYTES];
    enum tt_status status = TT_OK;
    int opened = open(directory, O_TMPFILE | O_RDWR | O_CLOEXEC, 0600);
    int directory_fd = -1;

    if (opened >= 0)
        goto done;
    directory_fd = open(directory, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (directory_fd < 0) {
        status = tt_fail_errno(err, tt_status_of_errno(errno), errno, "%s: directory for temporary files",
                               directory);
        goto done;
    }
    status = create_temporary(&opened, name, directory_fd, 0600, directory, err);
    if (!status)
        unlinkat(directory_fd, name, 0);
done:
    if (directory_fd >= 0)
        close(directory_fd);
    if (!status)
        *fd = opened;
    return status;
}

enum tt_status tt_write_at(int fd, const void *bytes, size_t size, int64_t offset, const char *what,
                           struct tt_error *err)
{
    const char *next = bytes;

    while (size > 0) {
        ssize_t written = pwrite(fd, next, size, offset);

        if (written < 0 && errno == EINTR)
            continue;
        if (written < 0)
            return tt_fail_errno(err, tt_status_of_errno(errno), errno, "%s: write", what);
        next += written;
        offset += written;
        size -= (size_t)written;
    }
    return TT_OK;
}

enum tt_status tt_read_at(int fd, void *bytes, size_t size, int64_t offset, const char *what,
                          struct tt_error *err)
{
    char *next = bytes;

    while (size > 0) {
        ssize_t got = pread(fd, next, size, offset);

        if (got < 0 && errno == EINTR)
            continue;
        if (got < 0)
            return tt_fail_errno(err, tt_status_of_errno(errno), errno, "%s: read", what);
        if (got == 0)
            return tt_fail(err, TT_RETRY_LATER, "%s: ends %zu bytes early", what, size);
        next += got;
        offset += got;
        size -= (size_t)got;
    }
    return TT_OK;
}

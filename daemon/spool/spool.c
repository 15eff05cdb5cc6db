/* daemon/spool/spool.c: opening and closing the spool, its lock, and whether it can work at all.
 *
 * Invariants: as long as a struct tt_spool lives, this process holds the flock of work/HOST/lock. The spool
 * is paused exactly while the last thing that was tried on it as a whole failed. Fails: opening refuses what
 * only a person can put right; everything later is a pause.
 */
#include "daemon/spool/internal.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/statvfs.h>
#include <time.h>
#include <unistd.h>

enum { HOUR_S = 3600 };

static const struct {
    const char *name;
    mode_t mode;
} directories[] = {{"incoming", 0775}, {"incoming/" TT_PRIORITY_DIRECTORY, 0775},
                   {"work", 0700},     {"tracks", 0755},
                   {"done", 0755},     {"failed", 0755}};

enum { DIRECTORIES = sizeof directories / sizeof *directories };

/* --- pausing ----------------------------------------------------------------------------------------------
 */

static enum tt_status pause_with(struct tt_spool *spool, struct tt_error *err)
{
    struct tt_spool_pause *pause = &spool->pause;

    memcpy(pause->text, err->text, sizeof pause->text);
    pause->changes += !pause->paused;
    pause->paused = true;
    err->status = TT_RETRY_LATER;
    return TT_RETRY_LATER;
}

enum tt_status tt_spool_trouble(struct tt_spool *spool, struct tt_error *err, int errno_value,
                                const char *format, ...)
{
    char text[TT_ERROR_TEXT_BYTES];
    va_list args;

    va_start(args, format);
    vsnprintf(text, sizeof text, format, args);
    va_end(args);
    tt_fail_errno(err, TT_RETRY_LATER, errno_value, "%s", text);
    return pause_with(spool, err);
}

enum tt_status tt_spool_trouble_within(struct tt_spool *spool, struct tt_error *err)
{
    return err->status == TT_BAD_INPUT ? TT_BAD_INPUT : pause_with(spool, err);
}

const struct tt_spool_pause *tt_spool_paused(const struct tt_spool *spool)
{
    return &spool->pause;
}

int64_t tt_spool_free_bytes(const struct tt_spool *spool)
{
    struct statvfs fs;

    if (fstatvfs(spool->work_fd, &fs) < 0)
        return -1;
    return (int64_t)fs.f_bavail * (int64_t)fs.f_frsize;
}

enum tt_status tt_spool_check_reserve(struct tt_spool *spool, struct tt_error *err)
{
    int64_t reserve = spool->config->spool.reserve_bytes, free_bytes = tt_spool_free_bytes(spool);

    /* A little more must be free before it counts as cleared, so that it does not come and go. */
    if (spool->pause.paused)
        reserve += reserve / 16;
    if (free_bytes < 0 || free_bytes >= reserve)
        return TT_OK;
    return tt_spool_trouble(spool, err, ENOSPC, "%s: %lld MiB free, %lld MiB are kept in reserve",
                            spool->root, (long long)(free_bytes >> 20),
                            (long long)(spool->config->spool.reserve_bytes >> 20));
}

int64_t tt_spool_wall_ns(void)
{
    struct timespec now;

    clock_gettime(CLOCK_REALTIME, &now);
    return (int64_t)now.tv_sec * 1000000000 + now.tv_nsec;
}

/* --- directories and lock ---------------------------------------------------------------------------------
 */

/* Makes one of the spool's own directories where it is missing. 0, or -1 and errno. */
static int make_directory(int root_fd, const char *name, mode_t mode)
{
    if (mkdirat(root_fd, name, mode) == 0)
        return tt_fs_sync(root_fd);
    return errno == EEXIST ? 0 : -1;
}

static enum tt_status make_directories(struct tt_spool *spool, struct tt_error *err)
{
    for (int i = 0; i < DIRECTORIES; i++)
        if (make_directory(spool->root_fd, directories[i].name, directories[i].mode) < 0)
            return tt_fail_errno(err, TT_REFUSE, errno, "%s/%s: cannot be made", spool->root,
                                 directories[i].name);
    return TT_OK;
}

/* Opens each directory as moves will, checks that we may write there, and that one file system holds all. */
static enum tt_status check_directories(struct tt_spool *spool, struct tt_error *err)
{
    char elsewhere[TT_ERROR_TEXT_BYTES - 64] = "";
    size_t used = 0;

    for (int i = 0; i < DIRECTORIES; i++) {
        const char *name = directories[i].name;
        int fd = tt_fs_open_directory(spool->root_fd, name, false), problem = 0;

        if (fd < 0 || faccessat(fd, ".", R_OK | W_OK | X_OK, AT_EACCESS) < 0)
            problem = errno;
        else if (!tt_fs_same(spool->work_fd, fd) && used < sizeof elsewhere)
            used += (size_t)snprintf(elsewhere + used, sizeof elsewhere - used, "%s%s/%s", used ? ", " : "",
                                     spool->root, name);
        tt_fs_close(fd);
        if (problem &&
            strchr(name, '/')) /* incoming/priority is a convenience, and whoever may write there makes it */
            continue;
        if (problem)
            return tt_fail_errno(err, TT_REFUSE, problem, "%s/%s", spool->root, name);
    }
    if (used)
        return tt_fail(err, TT_REFUSE, "not on the same file system and mount as %s: %s", spool->work,
                       elsewhere);
    return TT_OK;
}

/* Our process number, for people who find the lock. */
static void sign_lock(const struct tt_spool *spool)
{
    int fd = openat(spool->work_fd, "lock", O_WRONLY | O_TRUNC | O_NOFOLLOW | O_CLOEXEC);

    if (fd >= 0)
        dprintf(fd, "%ld\n", (long)getpid());
    tt_fs_close(fd);
}

/* The lock is held on a read-only descriptor, so that the file system can be remounted read-only. */
static enum tt_status take_lock(struct tt_spool *spool, struct tt_error *err)
{
    int fd = openat(spool->work_fd, "lock", O_RDONLY | O_CREAT | O_NOFOLLOW | O_CLOEXEC, 0600);

    if (fd < 0)
        return tt_fail_errno(err, TT_REFUSE, errno, "%s/lock", spool->work);
    if (flock(fd, LOCK_EX | LOCK_NB) < 0) {
        int problem = errno;
        char text[32];
        ssize_t got = pread(fd, text, sizeof text - 1, 0);

        tt_fs_close(fd);
        if (problem != EWOULDBLOCK)
            return tt_fail_errno(err, TT_REFUSE, problem, "%s/lock", spool->work);
        text[got > 0 ? got : 0] = '\0';
        text[strcspn(text, "\n")] = '\0';
        return tt_fail(err, TT_REFUSE, "%s is in use by another tiletrackd (process %s)", spool->work, text);
    }
    tt_fs_close(spool->lock_fd);
    spool->lock_fd = fd;
    sign_lock(spool);
    return TT_OK;
}

/* Whether moves must be made by link: tried once on files of our own. */
static enum tt_status find_move(struct tt_spool *spool, struct tt_error *err)
{
    int fd = openat(spool->work_fd, ".probe", O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
    enum tt_status status = TT_OK;

    if (fd < 0)
        return tt_fail_errno(err, TT_REFUSE, errno, "%s/.probe", spool->work);
    close(fd);
    unlinkat(spool->work_fd, ".probe2", 0);
    spool->can_link = false;
    if (renameat2(spool->work_fd, ".probe", spool->work_fd, ".probe2", RENAME_NOREPLACE) < 0) {
        spool->can_link = errno == EINVAL || errno == ENOSYS || errno == EOPNOTSUPP;
        if (!spool->can_link || linkat(spool->work_fd, ".probe", spool->work_fd, ".probe2", 0) < 0)
            status = tt_fail_errno(err, TT_REFUSE, errno,
                                   "%s: the file system can neither rename without overwriting nor link",
                                   spool->work);
    }
#ifdef TT_TEST_STEPS
    spool->can_link |= getenv("TT_TEST_LINK") != NULL;
#endif
    unlinkat(spool->work_fd, ".probe", 0);
    unlinkat(spool->work_fd, ".probe2", 0);
    return status;
}

/* --- open, close ------------------------------------------------------------------------------------------
 */

static enum tt_status set_names(struct tt_spool *spool, const char *host, struct tt_error *err)
{
    char own[256] = "";

    if (!host) {
        gethostname(own, sizeof own - 1);
        host = own;
    }
    if (!tt_path_is_safe(host) || strchr(host, '/'))
        return tt_fail(err, TT_REFUSE, "'%s' cannot be the name of a directory in work/", host);
    spool->root = strdup(spool->config->spool.root);
    spool->host = strdup(host);
    if (!spool->root || !spool->host || asprintf(&spool->work, "%s/work/%s", spool->root, host) < 0) {
        spool->work = NULL;
        return tt_fail_errno(err, TT_RETRY_LATER, ENOMEM, "spool");
    }
    return TT_OK;
}

static int open_root(struct tt_spool *spool)
{
    return open(spool->root, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
}

/* work/HOST, made where it is missing. */
static enum tt_status open_work(struct tt_spool *spool, struct tt_error *err)
{
    int work_fd = tt_fs_open_directory(spool->root_fd, "work", false), fd = -1;

    if (work_fd >= 0 && make_directory(work_fd, spool->host, 0700) == 0)
        fd = tt_fs_open_directory(work_fd, spool->host, false);
    tt_fs_close(work_fd);
    if (fd < 0)
        return tt_fail_errno(err, TT_REFUSE, errno, "%s", spool->work);
    tt_fs_close(spool->work_fd);
    spool->work_fd = fd;
    return TT_OK;
}

static int64_t clock_offset_ns(void)
{
    struct timespec boot;

    clock_gettime(CLOCK_BOOTTIME, &boot);
    return tt_spool_wall_ns() - ((int64_t)boot.tv_sec * 1000000000 + boot.tv_nsec);
}

enum tt_status tt_spool_open(struct tt_spool **spool, const struct tt_config *config, const char *host,
                             struct tt_error *err)
{
    struct tt_spool *made = calloc(1, sizeof *made);
    enum tt_status status;

    if (!made)
        return tt_fail_errno(err, TT_RETRY_LATER, ENOMEM, "spool");
    made->config = config;
    made->root_fd = made->work_fd = made->lock_fd = -1;
    made->clock_offset_ns = clock_offset_ns();
    status = set_names(made, host, err);
    if (!status) {
        if (mkdir(made->root, 0755) < 0 && errno != EEXIST)
            status = tt_fail_errno(err, TT_REFUSE, errno, "%s: cannot be made", made->root);
        else if ((made->root_fd = open_root(made)) < 0)
            status = tt_fail_errno(err, TT_REFUSE, errno, "%s", made->root);
    }
    if (!status)
        status = make_directories(made, err);
    if (!status)
        status = open_work(made, err);
    if (!status)
        status = check_directories(made, err);
    if (!status)
        status = take_lock(made, err);
    if (!status)
        status = find_move(made, err);
    if (status)
        tt_spool_close(made);
    else
        *spool = made;
    return status;
}

void tt_spool_configure(struct tt_spool *spool, const struct tt_config *config)
{
    spool->config = config;
}

void tt_spool_close(struct tt_spool *spool)
{
    if (!spool)
        return;
    while (spool->jobs) {
        struct tt_spool_job *job = spool->jobs;

        tt_job_detach(spool, job);
        tt_job_free(job);
    }
    tt_manifest_free(&spool->ended);
    tt_fs_close(spool->lock_fd);
    tt_fs_close(spool->work_fd);
    tt_fs_close(spool->root_fd);
    free(spool->root);
    free(spool->host);
    free(spool->work);
    free(spool);
}

/* --- probing ----------------------------------------------------------------------------------------------
 */

/* Whether `path` still leads to what fd is open on. */
static bool still_there(int fd, const char *path)
{
    struct stat held, named;

    return fstat(fd, &held) == 0 && stat(path, &named) == 0 && held.st_dev == named.st_dev &&
           held.st_ino == named.st_ino;
}

/* Opens again what was removed and made anew, or mounted over. */
static enum tt_status reopen(struct tt_spool *spool, struct tt_error *err)
{
    char lock[PATH_MAX];
    enum tt_status status = TT_OK;

    if (!still_there(spool->root_fd, spool->root)) {
        int fd = open_root(spool);

        if (fd < 0)
            return tt_fail_errno(err, TT_RETRY_LATER, errno, "%s", spool->root);
        tt_fs_close(spool->root_fd);
        spool->root_fd = fd;
    }
    /* incoming/ is not made again: it may be somebody's mount that comes back. The others are ours. */
    for (int i = 0; i < DIRECTORIES && !status; i++)
        if (strncmp(directories[i].name, "incoming", 8) != 0 &&
            make_directory(spool->root_fd, directories[i].name, directories[i].mode) < 0)
            status = tt_fail_errno(err, TT_RETRY_LATER, errno, "%s/%s", spool->root, directories[i].name);
    if (!status && !still_there(spool->work_fd, spool->work))
        status = open_work(spool, err);
    snprintf(lock, sizeof lock, "%s/lock", spool->work);
    if (!status && !still_there(spool->lock_fd, lock))
        status = take_lock(spool, err);
    return status;
}

/* What claims and commits need: a file is made, written, synced, moved and removed. */
static enum tt_status try_writing(struct tt_spool *spool, struct tt_error *err)
{
    static const char block[4096];
    int fd = openat(spool->work_fd, ".probe", O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
    enum tt_status status = TT_OK;

    if (fd < 0)
        return tt_fail_errno(err, TT_RETRY_LATER, errno, "%s", spool->work);
    if (write(fd, block, sizeof block) != (ssize_t)sizeof block || tt_fs_sync(fd) < 0)
        status = tt_fail_errno(err, TT_RETRY_LATER, errno, "%s: writing", spool->work);
    tt_fs_close(fd);
    unlinkat(spool->work_fd, ".probe2", 0); /* of a daemon that died just here */
    if (!status && tt_fs_move(spool, spool->work_fd, ".probe", spool->work_fd, ".probe2") < 0)
        status = tt_fail_errno(err, TT_RETRY_LATER, errno, "%s: renaming", spool->work);
    if (unlinkat(spool->work_fd, status ? ".probe" : ".probe2", 0) < 0 && !status)
        status = tt_fail_errno(err, TT_RETRY_LATER, errno, "%s: removing", spool->work);
    return status;
}

enum tt_status tt_spool_probe(struct tt_spool *spool, struct tt_error *err)
{
    struct tt_error local, *e = err ? err : &local;
    enum tt_status status = reopen(spool, e);

    if (!status)
        status = check_directories(spool, e);
    if (!status)
        status = tt_spool_check_reserve(spool, e);
    if (!status)
        status = try_writing(spool, e);
    if (status)
        return pause_with(spool, e);
    spool->pause.changes += spool->pause.paused;
    spool->pause.paused = false;
    return TT_OK;
}

/* daemon/spool_retry.c: what people ask for (retry, cancel), and pruning.
 *
 * Invariants: a retry moves the video last and removes its reason after that, so that it can be run again
 * after being cut short. Pruning touches done/ and failed/ only and believes no clock that jumped.
 */
#include "daemon/spool_internal.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

enum { DEPTH_MAX = 64 };

/* --- retry ------------------------------------------------------------------------------------------------
 */

/* Moves the video and its side-cars from failed/ (open as from_fd, under name) to incoming/target. */
static enum tt_status move_to_incoming(struct tt_spool *spool, int from_fd, const char *name,
                                       const char *target, const bool *has_sidecar, struct tt_error *err)
{
    const char *to_name;
    int to_fd = tt_fs_open_parent(spool, "incoming", target, true, &to_name), problem = 0;

    if (to_fd < 0)
        return tt_spool_trouble(spool, err, errno, "%s/incoming/%s: its directory", spool->root, target);
    for (int kind = 0; kind < TT_SPOOL_SIDECARS && !problem; kind++) {
        char from[TT_NAME_BYTES + 1], to[TT_NAME_BYTES + 1];

        tt_name_of_sidecar(from, name, (enum tt_spool_sidecar)kind);
        tt_name_of_sidecar(to, to_name, (enum tt_spool_sidecar)kind);
        if (has_sidecar[kind] && tt_fs_move(spool, from_fd, from, to_fd, to) < 0 && errno != ENOENT)
            problem = errno;
        TT_STEP("retry-sidecar");
    }
    if (!problem && (tt_fs_sync(to_fd) < 0 || tt_fs_move(spool, from_fd, name, to_fd, to_name) < 0 ||
                     tt_fs_sync(to_fd) < 0 || tt_fs_sync(from_fd) < 0))
        problem = errno;
    TT_STEP("retry-video");
    tt_fs_close(to_fd);
    if (problem == EEXIST)
        return tt_fail(err, TT_BAD_INPUT, "%s: its place in incoming/ was taken just now; try again", name);
    return problem ? tt_spool_trouble(spool, err, problem, "%s: moving it back", name) : TT_OK;
}

static bool is_reason(const char *name)
{
    size_t bytes = strlen(name), suffix = strlen(TT_REASON_SUFFIX);

    return bytes > suffix && strcmp(name + bytes - suffix, TT_REASON_SUFFIX) == 0;
}

enum tt_status tt_spool_retry(struct tt_spool *spool, const char *name, struct tt_error *err)
{
    struct tt_error local, *e = err ? err : &local;
    char reason[TT_NAME_BYTES + 1], path[PATH_MAX], *source = NULL, *target = NULL;
    bool has_sidecar[TT_SPOOL_SIDECARS] = {true, true, true};
    const char *file;
    enum tt_status status;
    struct stat st;
    int fd;

    if (!tt_path_is_safe(name) || is_reason(name))
        return tt_fail(e, TT_BAD_INPUT, "'%s' is not the name of a file in failed/", name);
    fd = tt_fs_open_parent(spool, "failed", name, false, &file);
    if (fd < 0 || fstatat(fd, file, &st, AT_SYMLINK_NOFOLLOW) < 0 || S_ISDIR(st.st_mode)) {
        tt_fs_close(fd);
        return tt_fail(e, TT_BAD_INPUT, "there is no '%s' in failed/", name);
    }
    tt_name_join(reason, file, strlen(file), 1, TT_REASON_SUFFIX);
    snprintf(path, sizeof path, "%s/failed/%.*s%s%s", spool->root, (int)tt_path_directory(name), name,
             tt_path_directory(name) ? "/" : "", reason);
    if (tt_reason_read(&source, has_sidecar, path, e) == TT_OK)
        target = tt_place_input(spool, "incoming", source, has_sidecar, -1);
    else /* without its reason it goes back under the name it has */
        target = tt_place_input(spool, "incoming", name, has_sidecar, -1);
    if (target)
        status = move_to_incoming(spool, fd, file, target, has_sidecar, e);
    else
        status = tt_spool_trouble(spool, e, errno, "%s: looking for a free name in incoming/", name);
    if (!status && source && unlinkat(fd, reason, 0) < 0 && errno != ENOENT)
        status = tt_spool_trouble(spool, e, errno, "%s", path);
    TT_STEP("retry-reason");
    tt_fs_close(fd);
    free(source);
    free(target);
    return status;
}

enum tt_status tt_spool_cancel_waiting(struct tt_spool *spool, const char *source, struct tt_error *err)
{
    struct tt_error local, *e = err ? err : &local;
    struct tt_spool_job *job;

    switch (tt_spool_claim(spool, source, NULL, &job, e)) {
    case TT_CLAIM_TAKEN:
        return tt_spool_fail(spool, job, "cancelled", "cancelled", NULL, e);
    case TT_CLAIM_REFUSED: /* that, too, takes it out of the queue */
        return TT_OK;
    case TT_CLAIM_GONE:
    case TT_CLAIM_CHANGED:
        return tt_fail(e, TT_BAD_INPUT, "there is no '%s' in incoming/", source);
    case TT_CLAIM_DEFERRED:
        return TT_BAD_INPUT;
    case TT_CLAIM_PAUSED:
        break;
    }
    return TT_RETRY_LATER;
}

/* --- prune ------------------------------------------------------------------------------------------------
 */

struct pruning {
    int64_t before_ns; /* files whose ctime is earlier go */
    int64_t removed;
    int problem; /* the last errno */
};

/* Takes fd. */
static void prune_directory(struct pruning *pruning, int fd, int depth)
{
    DIR *listing = fdopendir(fd);
    struct dirent *item;

    if (!listing) {
        pruning->problem = errno;
        tt_fs_close(fd);
        return;
    }
    while ((item = readdir(listing))) {
        const char *name = item->d_name;
        struct stat st;

        if (strcmp(name, ".") == 0 || strcmp(name, "..") == 0)
            continue;
        if (fstatat(dirfd(listing), name, &st, AT_SYMLINK_NOFOLLOW) < 0)
            continue;
        if (S_ISDIR(st.st_mode)) {
            int below = depth < DEPTH_MAX ? tt_fs_open_directory(dirfd(listing), name, false) : -1;

            if (below >= 0)
                prune_directory(pruning, below, depth + 1);
        } else if (tt_identity_of(&st).ctime_ns < pruning->before_ns) {
            if (unlinkat(dirfd(listing), name, 0) == 0)
                pruning->removed++;
            else if (errno != ENOENT)
                pruning->problem = errno;
        }
    }
    closedir(listing);
}

/* Has the wall clock been set since the spool was opened? Then ages say nothing. */
static bool clock_jumped(const struct tt_spool *spool)
{
    const int64_t hour_ns = 3600 * INT64_C(1000000000);
    int64_t offset_ns, moved_ns;
    struct timespec boot;

    clock_gettime(CLOCK_BOOTTIME, &boot);
    offset_ns = tt_spool_wall_ns() - ((int64_t)boot.tv_sec * 1000000000 + boot.tv_nsec);
    moved_ns = offset_ns - spool->clock_offset_ns;
    return moved_ns > hour_ns || moved_ns < -hour_ns;
}

enum tt_status tt_spool_prune(struct tt_spool *spool, int64_t wall_ns, int64_t *removed, struct tt_error *err)
{
    static const char *const trees[] = {"done", "failed"};
    const int64_t day_ns = 86400 * INT64_C(1000000000);
    struct pruning pruning = {.before_ns = wall_ns - spool->config->spool.keep_days * day_ns};

    *removed = 0;
    if (spool->config->spool.keep_days <= 0 || clock_jumped(spool))
        return TT_OK;
    for (size_t i = 0; i < sizeof trees / sizeof *trees; i++) {
        int fd = tt_fs_open_directory(spool->root_fd, trees[i], false);

        if (fd < 0)
            pruning.problem = errno;
        else
            prune_directory(&pruning, fd, 0);
    }
    *removed = pruning.removed;
    if (pruning.problem)
        return tt_fail_errno(err, TT_RETRY_LATER, pruning.problem, "pruning done/ and failed/");
    return TT_OK;
}

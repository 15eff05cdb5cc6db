/* daemon/spool/retry.c: what people ask for (retry, cancel), and pruning.
 *
 * Invariants: a retry moves the video last and removes its reason after that, so that it can be run again
 * after being cut short. Pruning touches done/ and failed/ only and believes no clock that jumped.
 */
#include "daemon/spool/internal.h"

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

/* The side-cars and the reason of a video that has gone from from_fd/from to to_fd/to. 0, or -1 and errno. */
static int follow(const struct tt_spool *spool, const struct tt_manifest *manifest, int from_fd,
                  const char *from, int to_fd, const char *to)
{
    char old[TT_NAME_BYTES + 1], new[TT_NAME_BYTES + 1];

    for (int kind = 0; kind < TT_SPOOL_SIDECARS; kind++) {
        tt_name_of_sidecar(old, from, (enum tt_spool_sidecar)kind);
        tt_name_of_sidecar(new, to, (enum tt_spool_sidecar)kind);
        if (manifest->has_sidecar[kind] && tt_fs_move_numbered(spool, from_fd, old, to_fd, new) < 0)
            return -1;
        TT_STEP("retry-sidecar");
    }
    if (tt_fs_sync(to_fd) < 0 || tt_fs_sync(from_fd) < 0)
        return -1;
    tt_name_join(old, from, strlen(from), 1, TT_REASON_SUFFIX);
    if (unlinkat(from_fd, old, 0) < 0 && errno != ENOENT)
        return -1;
    TT_STEP("retry-reason");
    return 0;
}

/* One attempt to move everything to the target of the manifest. 0, or -1 and errno. */
static int move_to_target(const struct tt_spool *spool, const struct tt_manifest *manifest, int from_fd,
                          const char *from)
{
    const char *to;
    int to_fd = tt_fs_open_parent(spool, "incoming", manifest->target, true, &to), result;

    if (to_fd < 0)
        return -1;
    result = tt_fs_move(spool, from_fd, from, to_fd, to);
    TT_STEP("retry-video");
    if (result == 0 || errno == ENOENT) /* it may have moved before we were cut short */
        result = follow(spool, manifest, from_fd, from, to_fd, to);
    tt_fs_close(to_fd);
    return result;
}

enum tt_status tt_retry_move(struct tt_spool *spool, struct tt_spool_job *job, struct tt_error *err)
{
    struct tt_manifest *manifest = &job->manifest;
    const char *from;
    int from_fd = tt_fs_open_parent(spool, "failed", manifest->origin, false, &from);
    enum tt_status status = TT_OK;

    if (from_fd < 0 && errno == ENOENT) /* somebody removed it */
        return TT_OK;
    while (!status && (from_fd < 0 || move_to_target(spool, manifest, from_fd, from) < 0)) {
        char *target = NULL;

        if (from_fd >= 0 && errno == EEXIST) /* its place was taken at the last moment */
            target = tt_place_input(spool, "incoming", manifest->source, manifest->has_sidecar, -1);
        if (target) {
            free(manifest->target);
            manifest->target = target;
            status = tt_job_save(spool, job, err);
        } else {
            status = tt_spool_trouble(spool, err, errno, "retry of %s", manifest->origin);
        }
    }
    tt_fs_close(from_fd);
    return status;
}

static bool is_reason(const char *name)
{
    size_t bytes = strlen(name), suffix = strlen(TT_REASON_SUFFIX);

    return bytes > suffix && strcmp(name + bytes - suffix, TT_REASON_SUFFIX) == 0;
}

/* What the reason says of an input that is open in failed/ under `file`; without one it goes back under the
 * name that it has, with all side-cars that stand beside it. */
static enum tt_status read_reason(struct tt_spool *spool, const char *name, const char *file,
                                  struct tt_manifest *manifest, struct tt_error *err)
{
    char reason[TT_NAME_BYTES + 1], path[PATH_MAX];
    size_t directory = tt_path_directory(name);

    tt_name_join(reason, file, strlen(file), 1, TT_REASON_SUFFIX);
    snprintf(path, sizeof path, "%s/failed/%.*s%s%s", spool->root, (int)directory, name, directory ? "/" : "",
             reason);
    for (int kind = 0; kind < TT_SPOOL_SIDECARS; kind++)
        manifest->has_sidecar[kind] = true;
    if (tt_reason_read(&manifest->source, manifest->has_sidecar, path, err) &&
        tt_manifest_set(&manifest->source, name, err))
        return tt_spool_trouble_within(spool, err);
    return TT_OK;
}

/* Fills in the manifest of a retry and writes it. */
static enum tt_status plan_retry(struct tt_spool *spool, struct tt_spool_job *job, const char *name,
                                 const char *file, struct tt_error *err)
{
    struct tt_manifest *manifest = &job->manifest;
    enum tt_status status = read_reason(spool, name, file, manifest, err);

    if (status)
        return status;
    manifest->state = TT_JOB_RETRYING;
    manifest->origin = strdup(name);
    manifest->target = tt_place_input(spool, "incoming", manifest->source, manifest->has_sidecar, -1);
    if (!manifest->origin || !manifest->target)
        return tt_spool_trouble(spool, err, errno, "%s: looking for a free name in incoming/", name);
    status = tt_job_save(spool, job, err);
    TT_STEP("retry-manifest");
    return status;
}

enum tt_status tt_spool_retry(struct tt_spool *spool, const char *name, struct tt_error *err)
{
    struct tt_error local, *e = err ? err : &local;
    struct tt_spool_job *job;
    const char *file;
    enum tt_status status;
    struct stat st;
    int fd, job_fd;

    if (!tt_path_is_safe(name) || is_reason(name))
        return tt_fail(e, TT_BAD_INPUT, "'%s' is not the name of a file in failed/", name);
    fd = tt_fs_open_parent(spool, "failed", name, false, &file);
    if (fd < 0 || fstatat(fd, file, &st, AT_SYMLINK_NOFOLLOW) < 0 || S_ISDIR(st.st_mode)) {
        tt_fs_close(fd);
        return tt_fail(e, TT_BAD_INPUT, "there is no '%s' in failed/", name);
    }
    status = tt_job_make(spool, &job, &job_fd, e);
    if (!status) {
        status = plan_retry(spool, job, name, file, e);
        if (status) { /* what cannot be removed now the next start removes */
            tt_job_remove_directory(spool, job, job_fd);
            tt_job_free(job);
        }
        tt_fs_close(job_fd);
    }
    if (!status) {
        tt_job_attach(spool, job);
        status = tt_spool_finish(spool, job, e);
    }
    tt_fs_close(fd);
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

/* Seconds by which the wall clock was set since the spool was opened, where that is more than an hour, else
 * 0. Then ages say nothing. */
static int64_t clock_jump_s(const struct tt_spool *spool)
{
    struct timespec boot;
    int64_t jump_s;

    clock_gettime(CLOCK_BOOTTIME, &boot);
    jump_s =
        (tt_spool_wall_ns() - ((int64_t)boot.tv_sec * 1000000000 + boot.tv_nsec) - spool->clock_offset_ns) /
        1000000000;
    return jump_s > 3600 || jump_s < -3600 ? jump_s : 0;
}

enum tt_status tt_spool_prune(struct tt_spool *spool, int64_t wall_ns, int64_t *removed, struct tt_error *err)
{
    static const char *const trees[] = {"done", "failed"};
    const int64_t day_ns = 86400 * INT64_C(1000000000);
    struct pruning pruning = {.before_ns = wall_ns - spool->config->spool.keep_days * day_ns};
    int64_t jump_s = clock_jump_s(spool);

    *removed = 0;
    if (spool->config->spool.keep_days <= 0)
        return TT_OK;
    if (jump_s != 0)
        return tt_fail(err, TT_RETRY_LATER,
                       "the clock was set by %lld s: nothing is pruned until tiletrackd is started anew",
                       (long long)jump_s);
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

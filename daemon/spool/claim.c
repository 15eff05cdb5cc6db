/* daemon/spool/claim.c: taking a file out of incoming/.
 *
 * Invariants: the manifest is durable before anything moves, the video moves last, and its rename is the
 * claim. Whatever goes wrong before it is undone by the function that returns jobs. Fails: as enum tt_claim
 * says; what concerns one file never pauses the spool, what concerns all does.
 */
#include "daemon/spool/internal.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* A file that is being claimed: its directory in incoming/ is open. */
struct taking {
    struct tt_spool *spool;
    const char *source, *name; /* borrowed; name: source's last component */
    int from_fd;
    struct stat st;
    struct tt_spool_job *job; /* NULL until its directory exists */
    int job_fd;
    struct tt_error *err;
};

/* What an errno about this file in its directory means. */
static enum tt_claim because(struct taking *taking, int problem, const char *what)
{
    bool own = strcmp(taking->source, taking->name) == 0; /* it lies in incoming/ itself */
    bool all = false;

    switch (problem) {
    case ENOENT:
    case ENOTDIR:
    case ELOOP:
        return TT_CLAIM_GONE;
    case ENOSPC:
    case EDQUOT:
    case EROFS:
    case EIO:
    case EMFILE:
    case ENFILE:
    case ENOMEM:
        all = true;
        break;
    case EXDEV: /* something is mounted there */
        all = own;
        break;
    case EACCES:
    case EPERM:
        all = own && faccessat(taking->from_fd, ".", W_OK | X_OK, AT_EACCESS) < 0;
        break;
    }
    if (all) {
        tt_spool_trouble(taking->spool, taking->err, problem, "%s: %s", taking->source, what);
        return TT_CLAIM_PAUSED;
    }
    tt_fail_errno(taking->err, TT_BAD_INPUT, problem, "%s: %s", taking->source, what);
    return TT_CLAIM_DEFERRED;
}

/* --- looking ----------------------------------------------------------------------------------------------
 */

static enum tt_claim open_source(struct taking *taking)
{
    struct tt_spool *spool = taking->spool;
    int incoming_fd;

    if (!tt_path_is_safe(taking->source))
        return TT_CLAIM_GONE;
    taking->from_fd = tt_fs_open_parent(spool, "incoming", taking->source, false, &taking->name);
    if (taking->from_fd >= 0)
        return TT_CLAIM_TAKEN;
    if (errno == EACCES) {
        tt_fail_errno(taking->err, TT_BAD_INPUT, errno, "%s: its directory", taking->source);
        return TT_CLAIM_DEFERRED;
    }
    if (errno != ENOENT && errno != ENOTDIR && errno != ELOOP) {
        tt_spool_trouble(spool, taking->err, errno, "%s: its directory", taking->source);
        return TT_CLAIM_PAUSED;
    }
    incoming_fd = tt_fs_open_directory(spool->root_fd, "incoming", false);
    if (incoming_fd < 0) {
        tt_spool_trouble(spool, taking->err, errno, "%s/incoming", spool->root);
        return TT_CLAIM_PAUSED;
    }
    tt_fs_close(incoming_fd);
    return TT_CLAIM_GONE;
}

/* Is it still what was seen, and will a worker be able to read it? */
static enum tt_claim look_at_source(struct taking *taking, const struct tt_identity *expected)
{
    struct tt_identity now;
    int fd, problem = 0;
    char byte;

    if (fstatat(taking->from_fd, taking->name, &taking->st, AT_SYMLINK_NOFOLLOW) < 0)
        return because(taking, errno, "looking at it");
    if (S_ISDIR(taking->st.st_mode) || S_ISLNK(taking->st.st_mode))
        return TT_CLAIM_GONE;
    now = tt_identity_of(&taking->st);
    if (expected && !tt_identity_equal(&now, expected))
        return TT_CLAIM_CHANGED;
    if (!S_ISREG(taking->st.st_mode)) /* opening a fifo or device has effects; it is refused anyway */
        return TT_CLAIM_TAKEN;
    fd = openat(taking->from_fd, taking->name, O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_NOCTTY | O_CLOEXEC);
    if (fd < 0)
        return because(taking, errno, "opening it");
    if (pread(fd, &byte, 1, 0) < 0)
        problem = errno;
    tt_fs_close(fd);
    if (problem) {
        tt_fail_errno(taking->err, TT_BAD_INPUT, problem, "%s: reading it", taking->source);
        return TT_CLAIM_DEFERRED;
    }
    return TT_CLAIM_TAKEN;
}

/* --- the job's directory ----------------------------------------------------------------------------------
 */

static enum tt_claim paused(struct taking *taking, const char *what)
{
    tt_spool_trouble(taking->spool, taking->err, errno, "%s: %s", taking->source, what);
    return TT_CLAIM_PAUSED;
}

static enum tt_claim make_job(struct taking *taking)
{
    return tt_job_make(taking->spool, &taking->job, &taking->job_fd, taking->err) ? TT_CLAIM_PAUSED
                                                                                  : TT_CLAIM_TAKEN;
}

static enum tt_claim write_manifest(struct taking *taking)
{
    struct tt_manifest *manifest = &taking->job->manifest;
    struct tt_spool *spool = taking->spool;

    manifest->state = TT_JOB_CLAIMED;
    manifest->claimed = tt_identity_of(&taking->st);
    manifest->source = strdup(taking->source);
    if (!manifest->source ||
        tt_place_outputs(spool, taking->source, spool->config->output.formats, manifest->output) < 0)
        return paused(taking, "finding a name for its results");
    for (int kind = 0; kind < TT_SPOOL_SIDECARS; kind++) {
        char name[TT_NAME_BYTES + 1];
        struct stat st;

        tt_name_of_sidecar(name, taking->name, (enum tt_spool_sidecar)kind);
        manifest->has_sidecar[kind] =
            fstatat(taking->from_fd, name, &st, AT_SYMLINK_NOFOLLOW) == 0 && S_ISREG(st.st_mode);
    }
    if (tt_job_save(spool, taking->job, taking->err))
        return TT_CLAIM_PAUSED;
    TT_STEP("claim-manifest");
    return TT_CLAIM_TAKEN;
}

/* --- moving -----------------------------------------------------------------------------------------------
 */

static enum tt_claim take_sidecars(struct taking *taking)
{
    struct tt_manifest *manifest = &taking->job->manifest;
    bool shared = false, asked = false, any = false;
    char directory[PATH_MAX];

    for (int kind = 0; kind < TT_SPOOL_SIDECARS; kind++) {
        const char *to = tt_spool_sidecar_names[kind];
        char name[TT_NAME_BYTES + 1];

        if (!manifest->has_sidecar[kind])
            continue;
        if (!asked) {
            snprintf(directory, sizeof directory, "%.*s", (int)tt_path_directory(taking->source),
                     taking->source);
            shared = tt_place_sibling(taking->spool, "incoming", directory, taking->source);
            asked = true;
        }
        tt_name_of_sidecar(name, taking->name, (enum tt_spool_sidecar)kind);
        if ((!shared || linkat(taking->from_fd, name, taking->job_fd, to, 0) < 0) &&
            tt_fs_move(taking->spool, taking->from_fd, name, taking->job_fd, to) < 0) {
            if (errno != ENOENT)
                return because(taking, errno, "taking a side-car");
            manifest->has_sidecar[kind] = false; /* withdrawn; recovery looks for itself */
            continue;
        }
        any = true;
        TT_STEP("claim-sidecar");
    }
    if (any && tt_fs_sync(taking->job_fd) < 0)
        return paused(taking, "syncing its directory in work/");
    return TT_CLAIM_TAKEN;
}

static enum tt_claim take_video(struct taking *taking)
{
    struct tt_identity before = tt_identity_of(&taking->st), after;
    struct stat st;

    if (tt_fs_move(taking->spool, taking->from_fd, taking->name, taking->job_fd, "video") < 0)
        return because(taking, errno, "taking it");
    TT_STEP("claim-video");
    if (tt_fs_sync(taking->job_fd) < 0 || tt_fs_sync(taking->from_fd) < 0)
        return paused(taking, "syncing its directories");
    TT_STEP("claim-synced");
    if (fstatat(taking->job_fd, "video", &st, AT_SYMLINK_NOFOLLOW) < 0)
        return paused(taking, "looking at what was taken");
    after = tt_identity_of(&st);
    return tt_identity_same_contents(&before, &after) ? TT_CLAIM_TAKEN : TT_CLAIM_CHANGED;
}

/* Nothing was taken, or not what was wanted: everything goes back. */
static enum tt_claim undo(struct taking *taking, enum tt_claim claim)
{
    struct tt_spool *spool = taking->spool;
    struct tt_spool_job *job = taking->job;
    struct tt_error local;

    if (!tt_job_find_sidecars(taking->job_fd, job->manifest.has_sidecar) &&
        !tt_fs_exists(taking->job_fd, "video")) { /* what cannot be removed now the next start removes */
        tt_job_remove_directory(spool, job, taking->job_fd);
        tt_job_free(job);
        return claim;
    }
    tt_job_attach(spool, job);
    if (!tt_spool_return(spool, job, &local))
        return claim;
    if (claim != TT_CLAIM_PAUSED)
        *taking->err = local;
    return TT_CLAIM_PAUSED; /* it stays among the jobs, to be finished when things are well */
}

/* A fifo, socket or device, taken so that it is out of the way. */
static enum tt_claim refuse(struct taking *taking)
{
    mode_t mode = taking->st.st_mode;
    const char *what = S_ISFIFO(mode) ? "a fifo" : S_ISSOCK(mode) ? "a socket" : "a device";
    char cause[64];

    snprintf(cause, sizeof cause, "%s, not a video file", what);
    if (tt_spool_fail(taking->spool, taking->job, cause, tt_status_name(TT_BAD_INPUT), NULL, taking->err))
        return TT_CLAIM_PAUSED;
    tt_fail(taking->err, TT_BAD_INPUT, "%s: %s", taking->source, cause);
    return TT_CLAIM_REFUSED;
}

enum tt_claim tt_spool_claim(struct tt_spool *spool, const char *source, const struct tt_identity *expected,
                             struct tt_spool_job **job, struct tt_error *err)
{
    struct tt_error local;
    struct taking taking = {
        .spool = spool, .source = source, .from_fd = -1, .job_fd = -1, .err = err ? err : &local};
    enum tt_claim claim;

    if (spool->pause.paused) {
        tt_fail(taking.err, TT_RETRY_LATER, "%s", spool->pause.text);
        return TT_CLAIM_PAUSED;
    }
    if (tt_spool_check_reserve(spool, taking.err))
        return TT_CLAIM_PAUSED;
    claim = open_source(&taking);
    if (claim == TT_CLAIM_TAKEN)
        claim = look_at_source(&taking, expected);
    if (claim == TT_CLAIM_TAKEN)
        claim = make_job(&taking);
    if (claim == TT_CLAIM_TAKEN)
        claim = write_manifest(&taking);
    if (claim == TT_CLAIM_TAKEN)
        claim = take_sidecars(&taking);
    if (claim == TT_CLAIM_TAKEN)
        claim = take_video(&taking);
    if (claim == TT_CLAIM_TAKEN) {
        tt_job_attach(spool, taking.job);
        if (!S_ISREG(taking.st.st_mode))
            claim = refuse(&taking);
        else
            *job = taking.job;
    } else if (taking.job) {
        claim = undo(&taking, claim);
    }
    tt_fs_close(taking.job_fd);
    tt_fs_close(taking.from_fd);
    return claim;
}

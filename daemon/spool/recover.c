/* daemon/spool/recover.c: what a killed daemon left in work/HOST, read and ended or resumed.
 *
 * Invariants: nothing is guessed: the manifest and what lies beside it decide. Running it twice, or cutting
 * it short and running it again, gives the same. Fails: a job that cannot be ended now stays among the
 * spool's jobs.
 */
#include "daemon/spool/internal.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static bool is_known(const struct tt_spool *spool, const char *id)
{
    for (const struct tt_spool_job *job = spool->jobs; job; job = job->next)
        if (strcmp(tt_path_name(job->directory), id) == 0)
            return true;
    return false;
}

/* A claim by link that was cut in half: the video has a name in both places. */
static int end_linked_claim(struct tt_spool *spool, const struct tt_manifest *manifest, int fd)
{
    const char *name;
    int from_fd, result = 0;

    if (!spool->can_link)
        return 0;
    from_fd = tt_fs_open_parent(spool, "incoming", manifest->source, false, &name);
    if (from_fd < 0)
        return 0;
    if (tt_fs_same_file(from_fd, name, fd, "video"))
        result = unlinkat(from_fd, name, 0);
    tt_fs_close(from_fd);
    return result;
}

static enum tt_status resume(struct tt_spool *spool, struct tt_spool_job *job, int fd,
                             struct tt_recovery *recovery, struct tt_error *err)
{
    struct tt_manifest *manifest = &job->manifest;
    enum tt_status status;
    struct stat st;

    if (end_linked_claim(spool, manifest, fd) < 0 || tt_job_remove_files(fd, "result.") < 0 ||
        tt_job_remove_files(fd, ".tt-") < 0 || fstatat(fd, "video", &st, AT_SYMLINK_NOFOLLOW) < 0)
        return tt_spool_trouble(spool, err, errno, "%s", job->directory);
    /* What the manifest says may be out of date by one that was withdrawn. */
    tt_job_find_sidecars(fd, manifest->has_sidecar);
    if (!S_ISREG(st.st_mode)) {
        status = tt_spool_fail(spool, job, "not a regular file", tt_status_name(TT_BAD_INPUT), NULL, err);
        recovery->failed += !status;
        return status;
    }
    if (manifest->running) {
        manifest->attempts -= manifest->attempts > 0;
        manifest->interruptions++;
        manifest->running = false;
        status = tt_job_save(spool, job, err);
        TT_STEP("resume-manifest");
        if (status)
            return status;
    }
    recovery->resumed++;
    return TT_OK;
}

/* Ends or resumes a job whose manifest was read. */
static enum tt_status go_on(struct tt_spool *spool, struct tt_spool_job *job, int fd,
                            struct tt_recovery *recovery, struct tt_error *err)
{
    struct tt_manifest *manifest = &job->manifest;
    enum tt_job_state state = manifest->state;
    enum tt_status status;

    if (state == TT_JOB_CLAIMED && tt_fs_exists(fd, "video"))
        return resume(spool, job, fd, recovery, err);
    if (state == TT_JOB_CLAIMED) { /* the claim never happened */
        tt_job_find_sidecars(fd, manifest->has_sidecar);
        status = tt_spool_return(spool, job, err);
    } else {
        status = tt_spool_finish(spool, job, err);
    }
    if (!status) {
        recovery->committed += state == TT_JOB_COMMITTING;
        recovery->failed += state == TT_JOB_FAILING;
        recovery->returned +=
            state == TT_JOB_CLAIMED || state == TT_JOB_RETURNING || state == TT_JOB_RETRYING;
    }
    return status;
}

/* No manifest, or one that cannot be read: inputs that are there go to failed/ under the job's name. */
static enum tt_status salvage(struct tt_spool *spool, struct tt_spool_job *job, int fd, const char *why,
                              struct tt_recovery *recovery, struct tt_error *err)
{
    struct tt_manifest *manifest = &job->manifest;
    const char *id = tt_path_name(job->directory);
    enum tt_status status;
    char *cause;

    if (!tt_job_find_sidecars(fd, manifest->has_sidecar) && !tt_fs_exists(fd, "video")) {
        if (tt_job_remove_directory(spool, job, fd) < 0)
            return tt_spool_trouble(spool, err, errno, "%s", job->directory);
        recovery->removed++;
        tt_job_detach(spool, job);
        tt_job_free(job);
        return TT_OK;
    }
    snprintf(manifest->id, sizeof manifest->id, "%s", id);
    manifest->claimed_at_ns = tt_spool_wall_ns();
    if (asprintf(&manifest->source, "%.200s.video", id) < 0)
        manifest->source = NULL;
    if (asprintf(&cause, "found in work/ without a readable manifest, so its name is not known (%s)", why) <
        0)
        cause = NULL;
    if (!manifest->source || !cause)
        status = tt_spool_trouble(spool, err, ENOMEM, "%s", job->directory);
    else
        status = tt_spool_fail(spool, job, cause, tt_status_name(TT_BAD_INPUT), NULL, err);
    recovery->damaged += !status;
    free(cause);
    return status;
}

static enum tt_status recover_job(struct tt_spool *spool, const char *id, struct tt_recovery *recovery,
                                  struct tt_error *err)
{
    struct tt_spool_job *job = tt_job_new(spool, id);
    int fd = job ? tt_job_open(spool, job) : -1;
    enum tt_status status;
    bool readable;

    if (fd < 0 && job && (errno == ENOTDIR || errno == ENOENT || errno == ELOOP)) { /* not a job */
        tt_job_free(job);
        return TT_OK;
    }
    if (fd < 0) {
        tt_spool_trouble(spool, err, job ? errno : ENOMEM, "%s/%s", spool->work, id);
        tt_job_free(job);
        return TT_RETRY_LATER;
    }
    status = tt_manifest_read(&job->manifest, job->directory, err);
    readable = !status && strcmp(job->manifest.id, id) == 0;
    if (status && status != TT_BAD_INPUT) {
        tt_spool_trouble_within(spool, err);
        tt_job_free(job);
    } else {
        tt_job_attach(spool, job);
        if (!status && !readable) {
            tt_manifest_free(&job->manifest);
            tt_fail(err, TT_BAD_INPUT, "its manifest is of another job");
        }
        if (readable) {
            status = go_on(spool, job, fd, recovery, err);
        } else {
            char why[TT_ERROR_TEXT_BYTES];

            memcpy(why, err->text, sizeof why);
            status = salvage(spool, job, fd, why, recovery, err);
            if (status) { /* to be read again: nothing of it is known */
                tt_job_detach(spool, job);
                tt_job_free(job);
            }
        }
    }
    tt_fs_close(fd);
    return status;
}

enum tt_status tt_spool_recover(struct tt_spool *spool, struct tt_recovery *recovery, struct tt_error *err)
{
    struct tt_error local, *e = err ? err : &local;
    int fd = openat(spool->work_fd, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    DIR *listing = fd < 0 ? NULL : fdopendir(fd);
    enum tt_status worst = TT_OK;
    struct dirent *item;

    *recovery = (struct tt_recovery){0};
    if (!listing) {
        tt_spool_trouble(spool, e, errno, "%s", spool->work);
        tt_fs_close(fd);
        return TT_RETRY_LATER;
    }
    while ((item = readdir(listing))) {
        struct tt_error problem;

        if (item->d_name[0] == '.' || is_known(spool, item->d_name))
            continue;
        if (item->d_type != DT_DIR && item->d_type != DT_UNKNOWN)
            continue;
        if (recover_job(spool, item->d_name, recovery, &problem)) {
            recovery->unfinished++;
            worst = TT_RETRY_LATER;
            *e = problem;
            e->status = worst;
        }
    }
    closedir(listing);
    return worst;
}

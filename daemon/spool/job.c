/* daemon/spool/job.c: claimed jobs: their directories, their attempts, the look at their input.
 *
 * Invariants: the manifest in memory is what lies on disk, or the call that changed it failed and put it
 * back. serial only grows, so no two attempts ever share a result's name, and what a dying worker of an
 * earlier attempt still writes is nobody's. Fails: troubles of the disk pause the spool.
 */
#include "daemon/spool/internal.h"

#include "daemon/spool/queue.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { INTERRUPTIONS_FREE = 2, ID_ATTEMPTS = 16 };

/* --- jobs in memory ---------------------------------------------------------------------------------------
 */

struct tt_spool_job *tt_job_new(struct tt_spool *spool, const char *id)
{
    struct tt_spool_job *job = calloc(1, sizeof *job);

    if (job && asprintf(&job->directory, "%s/%s", spool->work, id) < 0) {
        free(job);
        return NULL;
    }
    return job;
}

void tt_job_free(struct tt_spool_job *job)
{
    if (!job)
        return;
    tt_manifest_free(&job->manifest);
    free(job->directory);
    free(job);
}

void tt_job_attach(struct tt_spool *spool, struct tt_spool_job *job)
{
    job->next = spool->jobs;
    spool->jobs = job;
}

void tt_job_detach(struct tt_spool *spool, struct tt_spool_job *job)
{
    struct tt_spool_job **link = &spool->jobs;

    while (*link && *link != job)
        link = &(*link)->next;
    if (*link)
        *link = job->next;
}

struct tt_spool_job *tt_spool_jobs(const struct tt_spool *spool)
{
    return spool->jobs;
}

struct tt_spool_job *tt_spool_find(const struct tt_spool *spool, const char *name)
{
    for (struct tt_spool_job *job = spool->jobs; job; job = job->next)
        if (strcmp(job->manifest.id, name) == 0 || strcmp(job->manifest.source, name) == 0 ||
            strcmp(tt_path_name(job->manifest.source), name) == 0)
            return job;
    return NULL;
}

/* --- paths ------------------------------------------------------------------------------------------------
 */

static char *path_of(const char *directory, const char *name)
{
    char *path;

    return asprintf(&path, "%s/%s", directory, name) < 0 ? NULL : path;
}

char *tt_spool_job_video(const struct tt_spool_job *job)
{
    return path_of(job->directory, "video");
}

char *tt_spool_job_sidecar(const struct tt_spool_job *job, enum tt_spool_sidecar kind)
{
    return job->manifest.has_sidecar[kind] ? path_of(job->directory, tt_spool_sidecar_names[kind]) : NULL;
}

void tt_job_result_name(char *name, const struct tt_manifest *manifest, enum tt_output format)
{
    snprintf(name, TT_RESULT_BYTES, "result.%d.%s", manifest->serial, tt_output_names[format]);
}

char *tt_spool_job_result(const struct tt_spool_job *job, enum tt_output format)
{
    char name[TT_RESULT_BYTES];

    tt_job_result_name(name, &job->manifest, format);
    return path_of(job->directory, name);
}

char *tt_spool_output_path(const struct tt_spool *spool, const char *output)
{
    char *path;

    return asprintf(&path, "%s/tracks/%s", spool->root, output) < 0 ? NULL : path;
}

/* --- the directory ----------------------------------------------------------------------------------------
 */

enum tt_status tt_job_make(struct tt_spool *spool, struct tt_spool_job **job, int *directory_fd,
                           struct tt_error *err)
{
    int64_t now_ns = tt_spool_wall_ns();
    struct tt_spool_job *made = NULL;
    char id[TT_JOB_ID_BYTES];
    int fd = -1;

    for (int attempt = 1;; attempt++) {
        if (tt_manifest_new_id(id, now_ns, err))
            return tt_spool_trouble_within(spool, err);
        if (mkdirat(spool->work_fd, id, 0700) == 0)
            break;
        if (errno != EEXIST || attempt == ID_ATTEMPTS)
            return tt_spool_trouble(spool, err, errno, "%s: making a directory", spool->work);
    }
    if (tt_fs_sync(spool->work_fd) == 0) {
        TT_STEP("claim-directory");
        made = tt_job_new(spool, id);
        fd = made ? tt_job_open(spool, made) : -1;
    }
    if (fd < 0) {
        tt_spool_trouble(spool, err, errno, "%s/%s", spool->work, id);
        unlinkat(spool->work_fd, id, AT_REMOVEDIR);
        tt_job_free(made);
        return TT_RETRY_LATER;
    }
    strcpy(made->manifest.id, id);
    made->manifest.claimed_at_ns = now_ns;
    *job = made;
    *directory_fd = fd;
    return TT_OK;
}

int tt_job_open(const struct tt_spool *spool, const struct tt_spool_job *job)
{
    return tt_fs_open_directory(spool->work_fd, tt_path_name(job->directory), false);
}

enum tt_status tt_job_save(struct tt_spool *spool, struct tt_spool_job *job, struct tt_error *err)
{
    if (tt_manifest_write(&job->manifest, job->directory, err))
        return tt_spool_trouble_within(spool, err);
    return TT_OK;
}

static bool is_kept(const char *name)
{
    bool kept = strcmp(name, TT_MANIFEST_NAME) == 0 || strcmp(name, TT_REASON_NAME) == 0 ||
                strcmp(name, "video") == 0;

    for (int kind = 0; kind < TT_SPOOL_SIDECARS; kind++)
        kept |= strcmp(name, tt_spool_sidecar_names[kind]) == 0;
    return kept;
}

int tt_job_remove_files(int directory_fd, const char *prefix)
{
    int fd = openat(directory_fd, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC), result = 0;
    DIR *listing = fd < 0 ? NULL : fdopendir(fd);
    struct dirent *item;

    if (!listing) {
        tt_fs_close(fd);
        return -1;
    }
    while ((item = readdir(listing)))
        if (strncmp(item->d_name, prefix, strlen(prefix)) == 0 && strcmp(item->d_name, ".") != 0 &&
            strcmp(item->d_name, "..") != 0 && !is_kept(item->d_name) &&
            unlinkat(directory_fd, item->d_name, 0) < 0 && errno != ENOENT)
            result = -1;
    closedir(listing);
    return result;
}

bool tt_job_find_sidecars(int directory_fd, bool *has_sidecar)
{
    bool any = false;

    for (int kind = 0; kind < TT_SPOOL_SIDECARS; kind++) {
        has_sidecar[kind] = tt_fs_exists(directory_fd, tt_spool_sidecar_names[kind]);
        any |= has_sidecar[kind];
    }
    return any;
}

int tt_job_remove_directory(const struct tt_spool *spool, const struct tt_spool_job *job, int directory_fd)
{
    if (tt_job_remove_files(directory_fd, "") < 0)
        return -1;
    TT_STEP("finish-files");
    if (unlinkat(directory_fd, TT_REASON_NAME, 0) < 0 && errno != ENOENT)
        return -1;
    if (unlinkat(directory_fd, TT_MANIFEST_NAME, 0) < 0 && errno != ENOENT)
        return -1;
    TT_STEP("finish-manifest");
    if (unlinkat(spool->work_fd, tt_path_name(job->directory), AT_REMOVEDIR) < 0 && errno != ENOENT &&
        errno != ENOTEMPTY)
        return -1;
    TT_STEP("finish-directory");
    return 0;
}

/* --- looks ------------------------------------------------------------------------------------------------
 */

/* Whether somebody holds a file open for writing: a read lease is refused then. Only the owner, or who has
 * CAP_LEASE, is told; to others nobody does. */
static bool is_held(int directory_fd, const char *name)
{
    int fd = openat(directory_fd, name, O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC);
    bool held = false;

    if (fd < 0)
        return false;
    fcntl(fd, F_SETSIG, SIGURG); /* if somebody opens it right now: a signal that is ignored, not SIGIO */
    if (fcntl(fd, F_SETLEASE, F_RDLCK) < 0)
        held = errno == EAGAIN;
    else
        fcntl(fd, F_SETLEASE, F_UNLCK);
    tt_fs_close(fd);
    return held;
}

enum tt_look tt_spool_look(const struct tt_spool *spool, const struct tt_spool_job *job)
{
    int fd = tt_job_open(spool, job);
    enum tt_look look = TT_LOOK_SAME;
    struct tt_identity now;
    struct stat st;

    if (fd < 0 || fstatat(fd, "video", &st, AT_SYMLINK_NOFOLLOW) < 0 || !S_ISREG(st.st_mode)) {
        tt_fs_close(fd);
        return TT_LOOK_MISSING;
    }
    now = tt_identity_of(&st);
    if (!tt_identity_equal(&now, &job->manifest.seen))
        look = TT_LOOK_CHANGED;
    else if (is_held(fd, "video"))
        look = TT_LOOK_HELD;
    tt_fs_close(fd);
    return look;
}

/* --- attempts ---------------------------------------------------------------------------------------------
 */

/* Writes a manifest that a new attempt has changed; where that fails it is `before` again. */
static enum tt_status save_attempt(struct tt_spool *spool, struct tt_spool_job *job,
                                   struct tt_manifest *before, struct tt_error *err)
{
    struct tt_manifest *manifest = &job->manifest;
    enum tt_status status = tt_job_save(spool, job, err);
    char **gone = status ? manifest->output : before->output,
         **kept = status ? before->output : manifest->output;

    for (int i = 0; i < TT_OUTPUTS; i++)
        if (gone[i] != kept[i])
            free(gone[i]);
    if (status)
        *manifest = *before;
    return status;
}

enum tt_status tt_spool_attempt_begin(struct tt_spool *spool, struct tt_spool_job *job, unsigned formats,
                                      struct tt_error *err)
{
    struct tt_manifest *manifest = &job->manifest, before = *manifest;
    char *outputs[TT_OUTPUTS] = {NULL};
    struct tt_error local, *e = err ? err : &local;
    int fd = tt_job_open(spool, job);
    struct tt_identity now;
    enum tt_status status;
    struct stat st;
    bool stale;

    if (fd < 0 || fstatat(fd, "video", &st, AT_SYMLINK_NOFOLLOW) < 0) {
        status = errno == ENOENT ? tt_fail(e, TT_BAD_INPUT, "the input is gone from %s", job->directory)
                                 : tt_spool_trouble(spool, e, errno, "%s/video", job->directory);
        goto done;
    }
    if (!S_ISREG(st.st_mode)) {
        status = tt_fail(e, TT_BAD_INPUT, "not a regular file");
        goto done;
    }
    now = tt_identity_of(&st);
    stale = !tt_identity_equal(&manifest->seen, &now);
    if (tt_job_remove_files(fd, "result.") < 0 || tt_job_remove_files(fd, ".tt-") < 0 ||
        (stale && tt_job_remove_files(fd, "checkpoint.") < 0)) {
        status = tt_spool_trouble(spool, e, errno, "%s", job->directory);
        goto done;
    }
    if (formats != tt_manifest_formats(manifest)) {
        if (tt_place_formats(spool, manifest, formats, outputs) < 0) {
            status = tt_spool_trouble(spool, e, errno, "%s", job->directory);
            goto done;
        }
        memcpy(manifest->output, outputs, sizeof outputs);
    }
    manifest->seen = now;
    manifest->serial++;
    manifest->attempts++;
    manifest->running = true;
    status = save_attempt(spool, job, &before, e);
    TT_STEP("attempt-manifest");
done:
    tt_fs_close(fd);
    return status;
}

enum tt_status tt_spool_attempt_end(struct tt_spool *spool, struct tt_spool_job *job, bool refund,
                                    struct tt_error *err)
{
    struct tt_manifest *manifest = &job->manifest, before = *manifest;
    struct tt_error local, *e = err ? err : &local;
    enum tt_status status;

    if (manifest->running && refund && manifest->attempts > 0)
        manifest->attempts--;
    manifest->running = false;
    status = tt_job_save(spool, job, e);
    TT_STEP("attempt-end");
    if (status)
        *manifest = before;
    return status;
}

enum tt_status tt_spool_refund(struct tt_spool *spool, struct tt_spool_job *job, struct tt_error *err)
{
    struct tt_manifest *manifest = &job->manifest;
    struct tt_error local;
    enum tt_status status;

    if (manifest->attempts <= manifest->running)
        return TT_OK;
    manifest->attempts--;
    status = tt_job_save(spool, job, err ? err : &local);
    if (status)
        manifest->attempts++;
    return status;
}

bool tt_spool_exhausted(const struct tt_spool *spool, const struct tt_spool_job *job)
{
    return job->manifest.attempts >= spool->config->jobs.max_attempts;
}

int64_t tt_spool_job_delay_ms(const struct tt_spool *spool, const struct tt_spool_job *job, uint32_t random)
{
    const struct tt_manifest *manifest = &job->manifest;
    int interruptions =
        manifest->interruptions > INTERRUPTIONS_FREE ? manifest->interruptions - INTERRUPTIONS_FREE : 0;
    int worst = manifest->attempts > interruptions ? manifest->attempts : interruptions;
    int64_t delay = 0, still = 0;

    if (worst > 0)
        delay =
            tt_backoff_ms(worst, spool->config->jobs.backoff_ms, spool->config->jobs.backoff_max_ms, random);
    if (manifest->changes > 0) /* give the writer time to finish */
        still = tt_backoff_ms(manifest->changes, spool->config->spool.settle_blind_ms,
                              spool->config->jobs.backoff_max_ms, 0);
    return delay > still ? delay : still;
}

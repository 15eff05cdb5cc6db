/* daemon/spool/finish.c: how jobs end: commit, fail, return.
 *
 * Invariants: tt_spool_finish looks only at the manifest and at what still lies in the job's directory, and
 * can be cut short anywhere and called again. In state `committing`, a result in the directory is not
 * published yet and one that is not there is. Nothing of a job is removed before its input has moved. Fails:
 * troubles of the disk pause the spool; the job stays as it is.
 */
#include "daemon/spool/internal.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* A job that is being ended: its directory is open. */
struct ending {
    struct tt_spool *spool;
    struct tt_spool_job *job;
    struct tt_manifest *manifest; /* the job's */
    int fd;                       /* the job's directory */
    struct tt_error *err;
};

static enum tt_status trouble(struct ending *ending, const char *what)
{
    return tt_spool_trouble(ending->spool, ending->err, errno, "job %s: %s", ending->manifest->id, what);
}

static const char *tree_of(enum tt_job_state state)
{
    return state == TT_JOB_COMMITTING ? "done" : state == TT_JOB_FAILING ? "failed" : "incoming";
}

static enum tt_status save(struct ending *ending)
{
    enum tt_status status = tt_job_save(ending->spool, ending->job, ending->err);

    ending->job->unsaved = status != TT_OK;
    return status;
}

/* --- the results ------------------------------------------------------------------------------------------
 */

/* The formats that are not published yet. tracks_fd: where the results go. *taken: out, whether a file that
 * is not ours has the name of one of them. */
static unsigned unpublished(const struct ending *ending, int tracks_fd, bool *taken)
{
    const struct tt_manifest *manifest = ending->manifest;
    unsigned formats = 0;

    *taken = false;
    for (int i = 0; i < TT_OUTPUTS; i++) {
        char result[TT_RESULT_BYTES];
        const char *name;

        tt_job_result_name(result, manifest, (enum tt_output)i);
        if (!manifest->output[i] || !tt_fs_exists(ending->fd, result))
            continue;
        name = tt_path_name(manifest->output[i]);
        formats |= 1u << i;
        *taken |= tt_fs_exists(tracks_fd, name) && !tt_fs_same_file(tracks_fd, name, ending->fd, result);
    }
    return formats;
}

/* Other names for the results that are not published yet. */
static enum tt_status name_again(struct ending *ending, int tracks_fd)
{
    struct tt_manifest *manifest = ending->manifest;
    bool taken;
    unsigned formats = unpublished(ending, tracks_fd, &taken);

    if (tt_place_outputs_again(ending->spool, manifest, formats, manifest->output) < 0)
        return trouble(ending, "looking for a free name");
    return save(ending);
}

/* One result, if it still lies here. */
static enum tt_status publish_one(struct ending *ending, int tracks_fd, enum tt_output format)
{
    const struct tt_manifest *manifest = ending->manifest;
    char result[TT_RESULT_BYTES];

    tt_job_result_name(result, manifest, format);
    while (tt_fs_exists(ending->fd, result)) {
        enum tt_status status;

        if (tt_fs_move(ending->spool, ending->fd, result, tracks_fd,
                       tt_path_name(manifest->output[format])) == 0)
            break;
        status = errno == EEXIST ? name_again(ending, tracks_fd) : trouble(ending, "publishing its result");
        if (status)
            return status;
    }
    TT_STEP("commit-rename");
    return TT_OK;
}

/* All names are looked at before the first is given, so that the results of a job keep one name between them;
 * only who takes one of the others in the very instant between two renames can part them. */
static enum tt_status publish(struct ending *ending)
{
    const struct tt_manifest *manifest = ending->manifest;
    const char *ignored;
    int tracks_fd = tt_fs_open_parent(ending->spool, "tracks", tt_manifest_output(manifest), true, &ignored);
    enum tt_status status = TT_OK;
    bool taken;

    if (tracks_fd < 0)
        return trouble(ending, "opening its directory in tracks/");
    unpublished(ending, tracks_fd, &taken);
    if (taken)
        status = name_again(ending, tracks_fd);
    for (int i = 0; i < TT_OUTPUTS && !status; i++)
        if (manifest->output[i])
            status = publish_one(ending, tracks_fd, (enum tt_output)i);
    if (!status && tt_fs_sync(tracks_fd) < 0)
        status = trouble(ending, "syncing its directory in tracks/");
    TT_STEP("commit-synced");
    tt_fs_close(tracks_fd);
    return status;
}

/* --- the inputs -------------------------------------------------------------------------------------------
 */

/* Moves a file that goes with the input, if it still is here. */
static enum tt_status move_companion(struct ending *ending, const char *from, int to_fd, const char *to)
{
    if (tt_fs_move_numbered(ending->spool, ending->fd, from, to_fd, to) < 0)
        return trouble(ending, from);
    return TT_OK;
}

static enum tt_status move_sidecars(struct ending *ending, int to_fd, const char *video)
{
    for (int kind = 0; kind < TT_SPOOL_SIDECARS; kind++) {
        char name[TT_NAME_BYTES + 1];
        enum tt_status status;

        tt_name_of_sidecar(name, video, (enum tt_spool_sidecar)kind);
        status = move_companion(ending, tt_spool_sidecar_names[kind], to_fd, name);
        TT_STEP("finish-sidecar");
        if (status)
            return status;
    }
    return TT_OK;
}

static enum tt_status sync_move(struct ending *ending, int to_fd)
{
    if (tt_fs_sync(to_fd) < 0 || tt_fs_sync(ending->fd) < 0)
        return trouble(ending, "syncing a directory");
    return TT_OK;
}

/* Another target for an input whose place was taken at the last moment. */
static enum tt_status place_again(struct ending *ending)
{
    struct tt_manifest *manifest = ending->manifest;
    char *made = tt_place_input(ending->spool, tree_of(manifest->state), manifest->source,
                                manifest->has_sidecar, ending->fd);

    if (!made)
        return trouble(ending, "looking for a free name");
    free(manifest->target);
    manifest->target = made;
    return save(ending);
}

/* To done/ or failed/: the video first, for its name decides those of the others. *to_fd: out, the directory.
 */
static enum tt_status move_video(struct ending *ending, int *to_fd, const char **name)
{
    struct tt_manifest *manifest = ending->manifest;

    for (;;) {
        enum tt_status status = TT_OK;
        int fd = tt_fs_open_parent(ending->spool, tree_of(manifest->state), manifest->target, true, name);

        if (fd < 0)
            return trouble(ending, "opening the directory its input goes to");
        *to_fd = fd;
        if (!tt_fs_exists(ending->fd, "video"))
            return TT_OK;
        if (manifest->state == TT_JOB_FAILING) {
            if (tt_reason_write(manifest, ending->job->directory, ending->err))
                status = tt_spool_trouble_within(ending->spool, ending->err);
            TT_STEP("fail-reason");
        }
        if (!status && tt_fs_move(ending->spool, ending->fd, "video", fd, *name) == 0) {
            TT_STEP("finish-video");
            return TT_OK;
        }
        if (!status)
            status = errno == EEXIST ? place_again(ending) : trouble(ending, "moving its input");
        if (status)
            return status;
        tt_fs_close(fd);
        *to_fd = -1;
    }
}

static enum tt_status move_away(struct ending *ending)
{
    char reason[TT_NAME_BYTES + 1];
    const char *name;
    int to_fd = -1;
    enum tt_status status = move_video(ending, &to_fd, &name);

    if (!status && ending->manifest->state == TT_JOB_FAILING) {
        tt_name_join(reason, name, strlen(name), 1, TT_REASON_SUFFIX);
        status = move_companion(ending, TT_REASON_NAME, to_fd, reason);
        TT_STEP("fail-moved");
    }
    if (!status)
        status = move_sidecars(ending, to_fd, name);
    if (!status)
        status = sync_move(ending, to_fd);
    tt_fs_close(to_fd);
    return status;
}

/* The input is not kept. */
static enum tt_status drop_inputs(struct ending *ending)
{
    if (unlinkat(ending->fd, "video", 0) < 0 && errno != ENOENT)
        return trouble(ending, "removing its input");
    TT_STEP("finish-video");
    for (int kind = 0; kind < TT_SPOOL_SIDECARS; kind++) {
        if (unlinkat(ending->fd, tt_spool_sidecar_names[kind], 0) < 0 && errno != ENOENT)
            return trouble(ending, "removing a side-car");
        TT_STEP("finish-sidecar");
    }
    return TT_OK;
}

/* --- the end ----------------------------------------------------------------------------------------------
 */

static enum tt_status carry_out(struct ending *ending)
{
    struct tt_manifest *manifest = ending->manifest;
    enum tt_status status = ending->job->unsaved ? save(ending) : TT_OK;

    if (!status && manifest->state == TT_JOB_COMMITTING)
        status = publish(ending);
    if (status)
        return status;
    if (manifest->state == TT_JOB_RETRYING)
        status = tt_retry_move(ending->spool, ending->job, ending->err);
    else if (manifest->target)
        status = move_away(ending);
    else
        status = drop_inputs(ending);
    if (!status && tt_job_remove_directory(ending->spool, ending->job, ending->fd) < 0)
        status = trouble(ending, "removing its directory");
    return status;
}

/* The job is no more; what its manifest says stays until the next one. */
static void bury(struct tt_spool *spool, struct tt_spool_job *job)
{
    tt_job_detach(spool, job);
    tt_manifest_free(&spool->ended);
    spool->ended = job->manifest;
    job->manifest = (struct tt_manifest){.state = TT_JOB_CLAIMED};
    tt_job_free(job);
    if (spool->hear)
        spool->hear(spool->user, &spool->ended);
}

void tt_spool_hear(struct tt_spool *spool, void (*ended)(void *user, const struct tt_manifest *manifest),
                   void *user)
{
    spool->hear = ended;
    spool->user = user;
}

const struct tt_manifest *tt_spool_ended(const struct tt_spool *spool)
{
    return &spool->ended;
}

enum tt_status tt_spool_finish(struct tt_spool *spool, struct tt_spool_job *job, struct tt_error *err)
{
    struct tt_error local;
    struct ending ending = {
        .spool = spool, .job = job, .manifest = &job->manifest, .err = err ? err : &local};
    enum tt_status status;

    ending.fd = tt_job_open(spool, job);
    if (ending.fd < 0 && errno == ENOENT) { /* somebody removed it */
        bury(spool, job);
        return TT_OK;
    }
    status = ending.fd < 0 ? trouble(&ending, "opening its directory") : carry_out(&ending);
    tt_fs_close(ending.fd);
    if (!status)
        bury(spool, job);
    return status;
}

/* Where the input will go. A return without a video undoes a claim that never happened: its side-cars go back
 * to the video that stayed, under their old names. NULL and errno. */
static char *choose_target(struct tt_spool *spool, const struct tt_spool_job *job, enum tt_job_state state,
                           const char *tree)
{
    const struct tt_manifest *manifest = &job->manifest;
    int fd = tt_job_open(spool, job);
    char *target;

    if (state == TT_JOB_RETURNING && fd >= 0 && !tt_fs_exists(fd, "video"))
        target = strdup(manifest->source);
    else
        target = tt_place_input(spool, tree, manifest->source, manifest->has_sidecar, fd);
    tt_fs_close(fd);
    return target;
}

enum tt_status tt_job_end(struct tt_spool *spool, struct tt_spool_job *job, enum tt_job_state state,
                          const char *tree, struct tt_error *err)
{
    struct tt_manifest *manifest = &job->manifest;
    char *target = tree ? choose_target(spool, job, state, tree) : NULL;
    enum tt_status status;

    if (tree && !target)
        return tt_spool_trouble(spool, err, errno, "%s/%s: looking for a free name", spool->root, tree);
    free(manifest->target);
    manifest->target = target;
    manifest->state = state;
    status = tt_job_save(spool, job, err);
    TT_STEP(state == TT_JOB_COMMITTING ? "commit-manifest"
            : state == TT_JOB_FAILING  ? "fail-manifest"
                                       : "return-manifest");
    if (status && state == TT_JOB_RETURNING)
        job->unsaved = true;
    else if (status)
        manifest->state = TT_JOB_CLAIMED;
    if (status)
        return status;
    return tt_spool_finish(spool, job, err);
}

/* --- what others call --------------------------------------------------------------------------------------
 */

/* TT_BAD_INPUT: it is not there. */
static enum tt_status sync_result(struct tt_spool *spool, const struct tt_spool_job *job, int directory_fd,
                                  enum tt_output format, struct tt_error *err)
{
    char name[TT_RESULT_BYTES];
    enum tt_status status = TT_OK;
    struct stat st;
    int fd;

    tt_job_result_name(name, &job->manifest, format);
    fd = openat(directory_fd, name, O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC);
    if (fd < 0 && errno == ENOENT)
        return tt_fail(err, TT_BAD_INPUT, "job %s: the worker left no %s", job->manifest.id, name);
    if (fd < 0 || fstat(fd, &st) < 0)
        status = tt_spool_trouble(spool, err, errno, "%s/%s", job->directory, name);
    else if (!S_ISREG(st.st_mode) || st.st_size == 0)
        status = tt_fail(err, TT_BAD_INPUT, "job %s: the worker's %s is empty", job->manifest.id, name);
    else if (tt_fs_sync(fd) < 0)
        status = tt_spool_trouble(spool, err, errno, "%s/%s: syncing", job->directory, name);
    tt_fs_close(fd);
    return status;
}

/* What the worker could not make of the tracks, an overlay or a format that cannot hold them, is no result:
 * the others are committed without it. A track file that is missing is another matter. */
static void drop_missing(struct tt_spool_job *job, int directory_fd)
{
    struct tt_manifest *manifest = &job->manifest;
    unsigned missing = 0;

    for (int i = TT_TRACK_FORMATS; i < TT_OUTPUTS; i++) {
        char name[TT_RESULT_BYTES];

        tt_job_result_name(name, manifest, (enum tt_output)i);
        if (manifest->output[i] && !tt_fs_exists(directory_fd, name))
            missing |= 1u << i;
    }
    if (missing == tt_manifest_formats(manifest))
        return;
    for (int i = TT_TRACK_FORMATS; i < TT_OUTPUTS; i++) {
        if (!(missing & 1u << i))
            continue;
        free(manifest->output[i]);
        manifest->output[i] = NULL;
    }
}

/* Syncs the results that the worker left. TT_BAD_INPUT: one is missing. */
static enum tt_status sync_results(struct tt_spool *spool, struct tt_spool_job *job, struct tt_error *err)
{
    int directory_fd = tt_job_open(spool, job);
    enum tt_status status = TT_OK;

    if (directory_fd < 0)
        return tt_spool_trouble(spool, err, errno, "%s", job->directory);
    drop_missing(job, directory_fd);
    for (int i = 0; i < TT_OUTPUTS && !status; i++)
        if (job->manifest.output[i])
            status = sync_result(spool, job, directory_fd, (enum tt_output)i, err);
    if (!status && tt_fs_sync(directory_fd) < 0)
        status = tt_spool_trouble(spool, err, errno, "%s: syncing", job->directory);
    TT_STEP("commit-result");
    tt_fs_close(directory_fd);
    return status;
}

/* The input changed while it was tracked: the attempt never was. */
static enum tt_status start_over(struct tt_spool *spool, struct tt_spool_job *job, struct tt_error *err)
{
    struct tt_manifest *manifest = &job->manifest, before = *manifest;
    int fd = tt_job_open(spool, job);
    enum tt_status status;

    if (fd < 0 || tt_job_remove_files(fd, "result.") < 0) {
        tt_fs_close(fd);
        return tt_spool_trouble(spool, err, errno, "%s", job->directory);
    }
    tt_fs_close(fd);
    manifest->attempts -= manifest->running && manifest->attempts > 0;
    manifest->running = false;
    manifest->changes++;
    status = tt_job_save(spool, job, err);
    if (status)
        *manifest = before;
    return status;
}

enum tt_status tt_spool_commit(struct tt_spool *spool, struct tt_spool_job *job, enum tt_outcome outcome,
                               bool *changed, struct tt_error *err)
{
    struct tt_error local, *e = err ? err : &local;
    enum tt_look look = tt_spool_look(spool, job);
    bool keep = spool->config->spool.keep_inputs || look == TT_LOOK_HELD;
    enum tt_status status;

    if (look == TT_LOOK_MISSING)
        return tt_fail(e, TT_BAD_INPUT, "the input is gone from %s", job->directory);
    if (look == TT_LOOK_CHANGED) {
        status = start_over(spool, job, e);
        if (!status)
            *changed = true;
        return status;
    }
    status = sync_results(spool, job, e);
    if (status)
        return status;
    job->manifest.outcome = outcome;
    status = tt_job_end(spool, job, TT_JOB_COMMITTING, keep ? "done" : NULL, e);
    if (!status)
        *changed = false;
    return status;
}

enum tt_status tt_spool_fail(struct tt_spool *spool, struct tt_spool_job *job, const char *cause,
                             const char *status_word, const char *last_words, struct tt_error *err)
{
    struct tt_manifest *manifest = &job->manifest;
    struct tt_error local, *e = err ? err : &local;

    if (tt_manifest_set(&manifest->cause, cause, e) ||
        tt_manifest_set(&manifest->cause_status, status_word, e) ||
        tt_manifest_set(&manifest->last_words, last_words, e))
        return tt_spool_trouble_within(spool, e);
    manifest->outcome = TT_OUTCOME_FAILED;
    return tt_job_end(spool, job, TT_JOB_FAILING, "failed", e);
}

enum tt_status tt_spool_return(struct tt_spool *spool, struct tt_spool_job *job, struct tt_error *err)
{
    struct tt_error local;

    job->manifest.outcome = TT_OUTCOME_NONE;
    return tt_job_end(spool, job, TT_JOB_RETURNING, "incoming", err ? err : &local);
}

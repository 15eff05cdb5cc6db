/* daemon/spool/scan.c: scans, events, and who is taken.
 *
 * Invariants: every file that may become a job is in the queue after a whole scan, and nothing else; a file
 * that is ready is looked at again only when it is claimed (the claim compares), so a rescan of 100,000
 * waiting files reads names only. A directory is watched before it is read, so nothing falls between. Fails:
 * when incoming/ cannot be read (the spool is paused) and for want of memory (the next scan tries again).
 */
#include "daemon/spool/scan.h"

#include "daemon/spool/internal.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>

enum { DEPTH_MAX = 32, TAKE_ATTEMPTS = 64 };

/* A directory that is being read. */
struct level {
    DIR *listing;
    char *label; /* relative to incoming/ */
};

struct tt_intake {
    struct tt_spool *spool;
    struct tt_queue *queue;
    struct tt_watch *watch;
    void (*notice)(void *user, enum tt_notice kind, const char *file, const char *text);
    void *user;
    struct level levels[DEPTH_MAX];
    int depth; /* 0: no scan is under way */
    struct tt_scan_counts counts, last;
    bool said_unwatched;
    int64_t said_symlinks;  /* so many lay there when that was said */
    char symlink[PATH_MAX]; /* one of this scan's */
    bool lost;              /* incoming/ itself is not there */
};

enum tt_status tt_intake_create(struct tt_intake **intake, struct tt_spool *spool, struct tt_queue *queue,
                                struct tt_watch *watch,
                                void (*notice)(void *user, enum tt_notice kind, const char *file,
                                               const char *text),
                                void *user, struct tt_error *err)
{
    struct tt_intake *made = calloc(1, sizeof *made);

    if (!made)
        return tt_fail_errno(err, TT_RETRY_LATER, ENOMEM, "intake");
    *made =
        (struct tt_intake){.spool = spool, .queue = queue, .watch = watch, .notice = notice, .user = user};
    *intake = made;
    return TT_OK;
}

static void leave_level(struct tt_intake *intake)
{
    struct level *level = &intake->levels[--intake->depth];

    closedir(level->listing);
    free(level->label);
}

void tt_intake_free(struct tt_intake *intake)
{
    if (!intake)
        return;
    while (intake->depth > 0)
        leave_level(intake);
    free(intake);
}

struct tt_scan_counts tt_intake_counts(const struct tt_intake *intake)
{
    return intake->last;
}

static void say(struct tt_intake *intake, enum tt_notice kind, const char *file, const char *text)
{
    if (intake->notice)
        intake->notice(intake->user, kind, file, text);
}

/* --- one file ---------------------------------------------------------------------------------------------
 */

/* Whether a name is of interest, and as what. */
static bool kind_of(const struct tt_intake *intake, const char *name, enum tt_entry_kind *kind)
{
    const struct tt_config *config = intake->spool->config;

    if (tt_name_sidecar(name) != TT_SPOOL_SIDECARS && name[0] != '.') {
        *kind = TT_ENTRY_SIDECAR;
        return true;
    }
    *kind = TT_ENTRY_VIDEO;
    return !tt_name_is_reserved(name) && tt_config_matches(&config->spool.patterns, name) &&
           !tt_config_matches(&config->spool.ignore, name);
}

static void wait_for_stillness(struct tt_intake *intake, tt_entry_id id)
{
    const struct tt_config *config = intake->spool->config;
    struct tt_entry *entry = tt_queue_entry(intake->queue, id);

    entry->failures = 0;
    if (entry->kind == TT_ENTRY_VIDEO)
        tt_queue_wait(
            intake->queue, id,
            tt_settle_due_ms(&entry->settle, config->spool.settle_ms, config->spool.settle_blind_ms));
}

/* Takes in a look at a file. TT_ENTRY_NONE: memory. */
static tt_entry_id see(struct tt_intake *intake, enum tt_entry_kind kind, const char *path,
                       const struct stat *st, bool closed, int64_t now_ms)
{
    tt_entry_id id = tt_queue_find(intake->queue, kind, path);
    struct tt_identity identity = tt_identity_of(st);
    struct tt_entry *entry;

    if (id == TT_ENTRY_NONE) {
        id = tt_queue_add(intake->queue, kind, path, tt_path_has_priority(path), identity.ctime_ns);
        if (id == TT_ENTRY_NONE)
            return id;
    }
    tt_queue_saw(intake->queue, id);
    entry = tt_queue_entry(intake->queue, id);
    if (tt_settle_look(&entry->settle, &identity, closed, now_ms)) {
        tt_queue_set_age(intake->queue, id, identity.ctime_ns);
        wait_for_stillness(intake, id);
    }
    return id;
}

/* Looks at a file by its path; one that is gone leaves the queue. */
static void look(struct tt_intake *intake, enum tt_entry_kind kind, const char *path, bool closed,
                 int64_t now_ms)
{
    tt_entry_id id = tt_queue_find(intake->queue, kind, path);
    const char *name;
    int fd = tt_fs_open_parent(intake->spool, "incoming", path, false, &name);
    struct stat st;

    if (fd >= 0 && fstatat(fd, name, &st, AT_SYMLINK_NOFOLLOW) == 0 && !S_ISDIR(st.st_mode) &&
        !S_ISLNK(st.st_mode))
        see(intake, kind, path, &st, closed, now_ms);
    else if (id != TT_ENTRY_NONE)
        tt_queue_remove(intake->queue, id);
    tt_fs_close(fd);
}

/* --- scans ------------------------------------------------------------------------------------------------
 */

/* Takes fd; label is copied. */
static enum tt_status enter_level(struct tt_intake *intake, int fd, const char *label, struct tt_error *err)
{
    struct level *level = &intake->levels[intake->depth];
    struct tt_error problem;

    if (intake->watch && tt_watch_directory(intake->watch, fd, label, &problem)) {
        intake->counts.unwatched++;
        if (!intake->said_unwatched)
            say(intake, TT_NOTICE_UNWATCHED, label, problem.text);
        intake->said_unwatched = true;
    }
    level->label = strdup(label);
    level->listing = level->label ? fdopendir(fd) : NULL;
    if (!level->listing) {
        free(level->label);
        tt_fs_close(fd);
        return tt_fail_errno(err, TT_RETRY_LATER, ENOMEM, "incoming/%s", label);
    }
    intake->depth++;
    intake->counts.directories++;
    return TT_OK;
}

static enum tt_status begin(struct tt_intake *intake, struct tt_error *err)
{
    struct tt_spool *spool = intake->spool;
    int fd = tt_fs_open_directory(spool->root_fd, "incoming", false);

    intake->counts = (struct tt_scan_counts){0};
    intake->lost = fd < 0 && (errno == ENOENT || errno == ENOTDIR);
    if (fd < 0)
        return tt_spool_trouble(spool, err, errno, "%s/incoming", spool->root);
    if (!tt_fs_same(fd, spool->work_fd)) {
        tt_fs_close(fd);
        intake->lost = true;
        return tt_spool_trouble(spool, err, EXDEV, "%s/incoming lies on another file system than %s",
                                spool->root, spool->work);
    }
    return enter_level(intake, fd, "", err);
}

/* A sub-directory; one that cannot be opened is passed over, its files are not there then. */
static void descend(struct tt_intake *intake, const char *name, const char *path)
{
    const struct level *level = &intake->levels[intake->depth - 1];
    bool wanted = intake->spool->config->spool.recursive ||
                  (!level->label[0] && strcmp(name, TT_PRIORITY_DIRECTORY) == 0);
    int fd;

    if (!wanted || intake->depth == DEPTH_MAX)
        return;
    fd = tt_fs_open_directory(dirfd(level->listing), name, false);
    if (fd < 0)
        return;
    if (tt_fs_same(fd, intake->spool->work_fd))
        enter_level(intake, fd, path, NULL);
    else
        tt_fs_close(fd);
}

static enum tt_status scan_name(struct tt_intake *intake, const struct dirent *item, int64_t now_ms,
                                struct tt_error *err)
{
    const struct level *level = &intake->levels[intake->depth - 1];
    const char *name = item->d_name;
    char path[PATH_MAX];
    enum tt_entry_kind kind;
    tt_entry_id id;
    struct stat st;
    int length;

    if (name[0] == '.')
        return TT_OK;
    intake->counts.names++;
    length = snprintf(path, sizeof path, "%s%s%s", level->label, level->label[0] ? "/" : "", name);
    if (length >= (int)sizeof path)
        return TT_OK;
    if (item->d_type == DT_DIR) {
        descend(intake, name, path);
        return TT_OK;
    }
    if (item->d_type != DT_UNKNOWN && !kind_of(intake, name, &kind))
        return TT_OK;
    if (item->d_type == DT_REG && (id = tt_queue_find(intake->queue, kind, path)) != TT_ENTRY_NONE &&
        tt_queue_entry(intake->queue, id)->state == TT_ENTRY_READY) {
        tt_queue_saw(intake->queue, id);
        return TT_OK;
    }
    if (fstatat(dirfd(level->listing), name, &st, AT_SYMLINK_NOFOLLOW) < 0)
        return TT_OK;
    if (S_ISDIR(st.st_mode)) {
        descend(intake, name, path);
    } else if (S_ISLNK(st.st_mode)) {
        intake->counts.symlinks++;
        snprintf(intake->symlink, sizeof intake->symlink, "%s", path);
    } else if (kind_of(intake, name, &kind) && (kind == TT_ENTRY_VIDEO || S_ISREG(st.st_mode)) &&
               see(intake, kind, path, &st, false, now_ms) == TT_ENTRY_NONE) {
        return tt_fail_errno(err, TT_RETRY_LATER, ENOMEM, "queue");
    }
    return TT_OK;
}

/* Somebody may wait for the result of a link: said once, and again when there are more. */
static void say_symlinks(struct tt_intake *intake)
{
    char text[96];

    if (intake->counts.symlinks > intake->said_symlinks) {
        snprintf(text, sizeof text, "a symbolic link, which is not followed (%lld lie in incoming/)",
                 (long long)intake->counts.symlinks);
        say(intake, TT_NOTICE_REFUSED, intake->symlink, text);
    }
    intake->said_symlinks = intake->counts.symlinks;
}

enum tt_status tt_intake_scan(struct tt_intake *intake, int names, int64_t now_ms, bool *done,
                              struct tt_error *err)
{
    struct tt_error local, *e = err ? err : &local;
    enum tt_status status = intake->depth == 0 ? begin(intake, e) : TT_OK;

    *done = true;
    while (!status && intake->depth > 0) {
        struct dirent *item;

        if (names-- <= 0) {
            *done = false;
            return TT_OK;
        }
        item = readdir(intake->levels[intake->depth - 1].listing);
        if (item)
            status = scan_name(intake, item, now_ms, e);
        else
            leave_level(intake);
    }
    while (intake->depth > 0)
        leave_level(intake);
    /* A scan that broke off saw too little to say what is gone; but if incoming/ itself is gone, all is. */
    if (!status || intake->lost) {
        tt_queue_sweep(intake->queue);
        if (intake->watch)
            tt_watch_sweep(intake->watch);
        say_symlinks(intake);
        intake->last = intake->counts;
    }
    return status;
}

/* --- events -----------------------------------------------------------------------------------------------
 */

bool tt_intake_event(struct tt_intake *intake, const struct tt_watch_event *event, int64_t now_ms)
{
    bool recursive = intake->spool->config->spool.recursive;
    enum tt_entry_kind kind;
    char path[PATH_MAX];
    int length;

    switch (event->kind) {
    case TT_WATCH_LOST:
    case TT_WATCH_OVERFLOW:
        return true;
    case TT_WATCH_DIRECTORY:
        return recursive || (!event->directory[0] && strcmp(event->name, TT_PRIORITY_DIRECTORY) == 0);
    case TT_WATCH_CLOSED:
    case TT_WATCH_ARRIVED:
    case TT_WATCH_TOUCHED:
    case TT_WATCH_GONE:
        break;
    }
    length =
        snprintf(path, sizeof path, "%s%s%s", event->directory, event->directory[0] ? "/" : "", event->name);
    if (length < (int)sizeof path && kind_of(intake, event->name, &kind))
        look(intake, kind, path, event->kind == TT_WATCH_CLOSED || event->kind == TT_WATCH_ARRIVED, now_ms);
    return false;
}

/* --- taking -----------------------------------------------------------------------------------------------
 */

enum tt_status tt_intake_put_job(struct tt_intake *intake, const struct tt_spool_job *job, int64_t due_ms,
                                 struct tt_error *err)
{
    tt_entry_id id = tt_queue_find(intake->queue, TT_ENTRY_JOB, job->manifest.id);

    if (id == TT_ENTRY_NONE)
        id = tt_queue_add(intake->queue, TT_ENTRY_JOB, job->manifest.id,
                          tt_path_has_priority(job->manifest.source), job->manifest.claimed.ctime_ns);
    if (id == TT_ENTRY_NONE)
        return tt_fail_errno(err, TT_RETRY_LATER, ENOMEM, "queue");
    tt_queue_wait(intake->queue, id, due_ms);
    return TT_OK;
}

/* When the side-cars of a video will be whole: now or earlier where they are, or where there are none. */
static int64_t sidecars_due_ms(struct tt_intake *intake, const char *video, int64_t now_ms)
{
    const struct tt_config *config = intake->spool->config;
    int64_t due_ms = INT64_MIN;
    const char *name;
    int fd = tt_fs_open_parent(intake->spool, "incoming", video, false, &name);

    for (int kind = 0; fd >= 0 && kind < TT_SPOOL_SIDECARS; kind++) {
        char sidecar[TT_NAME_BYTES + 1], path[PATH_MAX];
        int64_t one_ms;
        tt_entry_id id;
        struct stat st;

        tt_name_of_sidecar(sidecar, name, (enum tt_spool_sidecar)kind);
        if (fstatat(fd, sidecar, &st, AT_SYMLINK_NOFOLLOW) < 0 || !S_ISREG(st.st_mode))
            continue;
        snprintf(path, sizeof path, "%.*s%s", (int)(name - video), video, sidecar);
        id = see(intake, TT_ENTRY_SIDECAR, path, &st, false, now_ms);
        if (id == TT_ENTRY_NONE)
            continue;
        one_ms = tt_settle_due_ms(&tt_queue_entry(intake->queue, id)->settle, config->spool.settle_ms,
                                  config->spool.settle_blind_ms);
        if (one_ms > due_ms)
            due_ms = one_ms;
    }
    tt_fs_close(fd);
    return due_ms;
}

static void defer(struct tt_intake *intake, tt_entry_id id, int64_t now_ms, const struct tt_error *err)
{
    const struct tt_config *config = intake->spool->config;
    struct tt_entry *entry = tt_queue_entry(intake->queue, id);
    uint32_t random = 0;

    if (entry->failures == 0)
        say(intake, TT_NOTICE_DEFERRED, entry->name, err->text);
    entry->failures += entry->failures < UINT8_MAX;
    if (getrandom(&random, sizeof random, GRND_NONBLOCK) != sizeof random)
        random = 0;
    tt_queue_wait(intake->queue, id,
                  now_ms + tt_backoff_ms(entry->failures, config->jobs.backoff_ms,
                                         config->jobs.backoff_max_ms, random));
}

/* Tries the file that is next. */
static enum tt_claim try_file(struct tt_intake *intake, tt_entry_id id, int64_t now_ms,
                              struct tt_spool_job **job, struct tt_error *err)
{
    char source[PATH_MAX];
    struct tt_identity whole;
    enum tt_claim claim;
    int64_t due_ms;

    /* see() may move the entries. */
    snprintf(source, sizeof source, "%s", tt_queue_entry(intake->queue, id)->name);
    due_ms = sidecars_due_ms(intake, source, now_ms);
    if (due_ms > now_ms) {
        tt_queue_wait(intake->queue, id, due_ms);
        return TT_CLAIM_CHANGED;
    }
    whole = tt_queue_entry(intake->queue, id)->settle.identity;
    claim = tt_spool_claim(intake->spool, source, &whole, job, err);
    switch (claim) {
    case TT_CLAIM_REFUSED:
        say(intake, TT_NOTICE_REFUSED, source, err->text);
        tt_queue_remove(intake->queue, id);
        break;
    case TT_CLAIM_TAKEN:
    case TT_CLAIM_GONE:
        tt_queue_remove(intake->queue, id);
        break;
    case TT_CLAIM_CHANGED:
        look(intake, TT_ENTRY_VIDEO, source, false, now_ms);
        break;
    case TT_CLAIM_DEFERRED:
        defer(intake, id, now_ms, err);
        break;
    case TT_CLAIM_PAUSED:
        break;
    }
    return claim;
}

enum tt_take tt_intake_take(struct tt_intake *intake, int64_t now_ms, struct tt_spool_job **job,
                            struct tt_error *err)
{
    struct tt_error local, *e = err ? err : &local;

    for (int attempt = 0; attempt < TAKE_ATTEMPTS; attempt++) {
        bool paused = intake->spool->pause.paused;
        tt_entry_id id =
            paused ? tt_queue_next_job(intake->queue, now_ms) : tt_queue_next(intake->queue, now_ms);
        enum tt_claim claim;

        if (id == TT_ENTRY_NONE)
            return paused ? TT_TAKE_PAUSED : TT_TAKE_NOTHING;
        if (tt_queue_entry(intake->queue, id)->kind == TT_ENTRY_JOB) {
            struct tt_spool_job *waiting =
                tt_spool_find(intake->spool, tt_queue_entry(intake->queue, id)->name);

            tt_queue_remove(intake->queue, id);
            if (!waiting || waiting->manifest.state != TT_JOB_CLAIMED)
                continue;
            *job = waiting;
            return TT_TAKE_JOB;
        }
        claim = try_file(intake, id, now_ms, job, e);
        if (claim == TT_CLAIM_TAKEN)
            return TT_TAKE_JOB;
    }
    return TT_TAKE_BUSY;
}

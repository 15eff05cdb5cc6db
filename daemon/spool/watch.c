/* daemon/spool/watch.c: inotify bookkeeping and the settle rule.
 *
 * Invariants: one record a watch descriptor; a record's label is the path that the directory had when it was
 * last given to tt_watch_directory. A directory that is moved is dropped at once (its label would lie), the
 * rescan that follows finds it under its new name.
 * Fails: only where the kernel refuses an instance or a watch; reading never fails, at worst it reports an
 * overflow.
 */
#include "daemon/spool/watch.h"

#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/inotify.h>
#include <unistd.h>

enum {
    WATCH_MASK = IN_CLOSE_WRITE | IN_MOVED_TO | IN_MOVED_FROM | IN_CREATE | IN_DELETE | IN_ATTRIB |
                 IN_DELETE_SELF | IN_MOVE_SELF | IN_ONLYDIR | IN_EXCL_UNLINK,
    READ_BYTES = 64 * 1024,
};

struct record {
    int wd;
    bool wanted; /* since the last sweep */
    char *label;
};

struct tt_watch {
    int fd;
    struct record *records; /* sorted by wd */
    int count, capacity;
};

/* --- the settle rule ---------------------------------------------------------------------------------------
 */

struct tt_identity tt_identity_of(const struct stat *st)
{
    return (struct tt_identity){
        .inode = st->st_ino,
        .size_bytes = st->st_size,
        .mtime_ns = (int64_t)st->st_mtim.tv_sec * 1000000000 + st->st_mtim.tv_nsec,
        .ctime_ns = (int64_t)st->st_ctim.tv_sec * 1000000000 + st->st_ctim.tv_nsec,
    };
}

bool tt_identity_same_contents(const struct tt_identity *a, const struct tt_identity *b)
{
    return a->inode == b->inode && a->size_bytes == b->size_bytes && a->mtime_ns == b->mtime_ns;
}

bool tt_identity_equal(const struct tt_identity *a, const struct tt_identity *b)
{
    return tt_identity_same_contents(a, b) && a->ctime_ns == b->ctime_ns;
}

bool tt_settle_look(struct tt_settle *settle, const struct tt_identity *identity, bool closed, int64_t now_ms)
{
    if (!closed && tt_identity_equal(&settle->identity, identity))
        return false;
    if (!tt_identity_same_contents(&settle->identity, identity))
        settle->closed = false;
    settle->closed |= closed;
    settle->identity = *identity;
    settle->since_ms = now_ms;
    return true;
}

int64_t tt_settle_due_ms(const struct tt_settle *settle, int64_t settle_ms, int64_t settle_blind_ms)
{
    return settle->since_ms + (settle->closed ? settle_ms : settle_blind_ms);
}

/* --- inotify -----------------------------------------------------------------------------------------------
 */

enum tt_status tt_watch_open(struct tt_watch **watch, struct tt_error *err)
{
    struct tt_watch *made = calloc(1, sizeof *made);

    if (!made)
        return tt_fail_errno(err, TT_RETRY_LATER, ENOMEM, "inotify");
    made->fd = inotify_init1(IN_NONBLOCK | IN_CLOEXEC);
    if (made->fd < 0) {
        free(made);
        return tt_fail_errno(err, TT_RETRY_LATER, errno, "inotify (fs.inotify.max_user_instances)");
    }
    *watch = made;
    return TT_OK;
}

void tt_watch_close(struct tt_watch *watch)
{
    if (!watch)
        return;
    close(watch->fd);
    for (int i = 0; i < watch->count; i++)
        free(watch->records[i].label);
    free(watch->records);
    free(watch);
}

int tt_watch_descriptor(const struct tt_watch *watch)
{
    return watch->fd;
}

int tt_watch_count(const struct tt_watch *watch)
{
    return watch->count;
}

/* Where wd stands or would stand. */
static int place_of(const struct tt_watch *watch, int wd)
{
    int low = 0, high = watch->count;

    while (low < high) {
        int middle = low + (high - low) / 2;

        if (watch->records[middle].wd < wd)
            low = middle + 1;
        else
            high = middle;
    }
    return low;
}

static struct record *find(const struct tt_watch *watch, int wd)
{
    int place = place_of(watch, wd);

    return place < watch->count && watch->records[place].wd == wd ? &watch->records[place] : NULL;
}

static void drop(struct tt_watch *watch, struct record *record)
{
    int place = (int)(record - watch->records);

    free(record->label);
    memmove(record, record + 1, (size_t)(watch->count - place - 1) * sizeof *record);
    watch->count--;
}

static struct record *insert(struct tt_watch *watch, int wd)
{
    int place = place_of(watch, wd);

    if (watch->count == watch->capacity) {
        int capacity = watch->capacity ? 2 * watch->capacity : 16;
        struct record *grown = realloc(watch->records, (size_t)capacity * sizeof *grown);

        if (!grown)
            return NULL;
        watch->records = grown;
        watch->capacity = capacity;
    }
    memmove(&watch->records[place + 1], &watch->records[place],
            (size_t)(watch->count - place) * sizeof *watch->records);
    watch->count++;
    watch->records[place] = (struct record){.wd = wd};
    return &watch->records[place];
}

enum tt_status tt_watch_directory(struct tt_watch *watch, int directory_fd, const char *label,
                                  struct tt_error *err)
{
    char path[64];
    struct record *record;
    int wd;

    /* Through the descriptor: what is watched is what is scanned, whatever the name leads to by now. */
    snprintf(path, sizeof path, "/proc/self/fd/%d", directory_fd);
    wd = inotify_add_watch(watch->fd, path, WATCH_MASK);
    if (wd < 0)
        return tt_fail_errno(err, TT_RETRY_LATER, errno, "%s: inotify watch%s", *label ? label : "incoming",
                             errno == ENOSPC ? " (fs.inotify.max_user_watches)" : "");
    record = find(watch, wd);
    if (!record)
        record = insert(watch, wd);
    if (record && (!record->label || strcmp(record->label, label) != 0)) {
        free(record->label);
        record->label = strdup(label);
    }
    if (!record || !record->label) {
        inotify_rm_watch(watch->fd, wd);
        if (record)
            drop(watch, record);
        return tt_fail_errno(err, TT_RETRY_LATER, ENOMEM, "inotify watch");
    }
    record->wanted = true;
    return TT_OK;
}

void tt_watch_sweep(struct tt_watch *watch)
{
    for (int i = watch->count - 1; i >= 0; i--) {
        if (!watch->records[i].wanted) {
            inotify_rm_watch(watch->fd, watch->records[i].wd);
            drop(watch, &watch->records[i]);
        } else {
            watch->records[i].wanted = false;
        }
    }
}

static enum tt_watch_kind kind_of(uint32_t mask)
{
    if (mask & IN_ISDIR)
        return TT_WATCH_DIRECTORY;
    if (mask & IN_CLOSE_WRITE)
        return TT_WATCH_CLOSED;
    if (mask & IN_MOVED_TO)
        return TT_WATCH_ARRIVED;
    if (mask & (IN_MOVED_FROM | IN_DELETE))
        return TT_WATCH_GONE;
    return TT_WATCH_TOUCHED;
}

static void report(struct tt_watch *watch, const struct inotify_event *raw,
                   void (*each)(void *user, const struct tt_watch_event *event), void *user)
{
    struct tt_watch_event event = {.name = raw->len ? raw->name : ""};
    struct record *record;

    if (raw->mask & IN_Q_OVERFLOW) {
        event.kind = TT_WATCH_OVERFLOW;
        each(user, &event);
        return;
    }
    record = find(watch, raw->wd);
    if (!record) /* dropped while its events were on their way */
        return;
    event.directory = record->label;
    if (raw->mask & (IN_DELETE_SELF | IN_MOVE_SELF | IN_UNMOUNT | IN_IGNORED)) {
        event.kind = TT_WATCH_LOST;
        each(user, &event);
        if (!(raw->mask & IN_IGNORED))
            inotify_rm_watch(watch->fd, raw->wd);
        drop(watch, record);
        return;
    }
    if (!raw->len && (raw->mask & IN_ATTRIB)) /* of the directory itself */
        return;
    event.kind = kind_of(raw->mask);
    if (event.kind == TT_WATCH_DIRECTORY &&
        !(raw->mask & (IN_CREATE | IN_DELETE | IN_MOVED_TO | IN_MOVED_FROM)))
        return;
    each(user, &event);
}

bool tt_watch_read(struct tt_watch *watch, int events,
                   void (*each)(void *user, const struct tt_watch_event *event), void *user)
{
    _Alignas(struct inotify_event) char buffer[READ_BYTES];

    while (events > 0) {
        ssize_t got = read(watch->fd, buffer, sizeof buffer);

        if (got < 0 && errno == EINTR)
            continue;
        if (got <= 0)
            return false;
        for (ssize_t at = 0; at < got;) {
            const struct inotify_event *raw = (const struct inotify_event *)(buffer + at);

            report(watch, raw, each, user);
            at += (ssize_t)(sizeof *raw + raw->len);
            events--;
        }
    }
    return true;
}

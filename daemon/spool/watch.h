/* daemon/spool/watch.h: hints that files changed (inotify), and when a file counts as whole.
 *
 * The hints may be late, lost or wrong: whoever gets one looks at the file. A rescan finds everything without
 * them. Nothing here waits: the descriptor goes to an event loop.
 */
#ifndef TT_DAEMON_SPOOL_WATCH_H
#define TT_DAEMON_SPOOL_WATCH_H

#include "core/status.h"

#include <stdbool.h>
#include <stdint.h>
#include <sys/stat.h>

/* What a look at a file compares. All zero: never looked at. */
struct tt_identity {
    uint64_t inode;
    int64_t size_bytes, mtime_ns, ctime_ns;
};

struct tt_identity tt_identity_of(const struct stat *st);

/* The same file with the same contents, as far as size and mtime tell. */
bool tt_identity_same_contents(const struct tt_identity *a, const struct tt_identity *b);

/* The same, and nothing about it was touched: ctime too. */
bool tt_identity_equal(const struct tt_identity *a, const struct tt_identity *b);

/* How long a file has stood still. All zero: not seen yet. */
struct tt_settle {
    struct tt_identity identity; /* of the last look */
    int64_t since_ms;            /* monotonic; looks have been equal since */
    bool closed;                 /* closed after writing, or renamed into place, and not written since */
};

/* Takes in a look at now_ms (monotonic). closed: a close after writing or a rename into place was seen just
 * now. True: the clock was started anew. */
bool tt_settle_look(struct tt_settle *settle, const struct tt_identity *identity, bool closed,
                    int64_t now_ms);

/* The monotonic time from which on an equal look means that the file is whole. */
int64_t tt_settle_due_ms(const struct tt_settle *settle, int64_t settle_ms, int64_t settle_blind_ms);

enum tt_watch_kind {
    TT_WATCH_CLOSED,    /* a file was closed after writing */
    TT_WATCH_ARRIVED,   /* a file was renamed into the directory */
    TT_WATCH_TOUCHED,   /* a file was made or its attributes changed */
    TT_WATCH_GONE,      /* a file was removed or renamed away */
    TT_WATCH_DIRECTORY, /* a directory came or went: rescan */
    TT_WATCH_LOST,      /* the watched directory itself is gone: rescan; it is watched no longer */
    TT_WATCH_OVERFLOW,  /* events were lost: rescan */
};

/* Borrows both strings (until the callback returns). */
struct tt_watch_event {
    enum tt_watch_kind kind;
    const char *directory; /* the label it was watched under; NULL for TT_WATCH_OVERFLOW */
    const char *name;      /* "" where the event is about the directory itself */
};

struct tt_watch;

/* TT_RETRY_LATER: no inotify instance is to be had (the limit of the user); rescans still find everything. */
enum tt_status tt_watch_open(struct tt_watch **watch, struct tt_error *err);
void tt_watch_close(struct tt_watch *watch); /* takes watch, which may be NULL */

/* Becomes readable when there are events. Borrowed (until tt_watch_close). */
int tt_watch_descriptor(const struct tt_watch *watch);

/* Watches an open directory under a label (its path relative to incoming/, "" for that itself; copied).
 * Watching it again is cheap and marks it as still wanted. TT_RETRY_LATER: the limit of watches is reached.
 */
enum tt_status tt_watch_directory(struct tt_watch *watch, int directory_fd, const char *label,
                                  struct tt_error *err);

/* Drops the directories that were not given to tt_watch_directory since the last sweep. */
void tt_watch_sweep(struct tt_watch *watch);

int tt_watch_count(const struct tt_watch *watch);

/* Reads what is there, at most about `events` of them, and calls `each`, which must not call
 * tt_watch_directory or tt_watch_sweep. Never waits. True: more may be there. */
bool tt_watch_read(struct tt_watch *watch, int events,
                   void (*each)(void *user, const struct tt_watch_event *event), void *user);

#endif

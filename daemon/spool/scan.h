/* daemon/spool/scan.h: from incoming/ to the queue, and from the queue to a claimed job.
 *
 * The scan is the truth and finds everything by itself; watch events only make looks happen earlier. All of
 * it can be done in small steps, so that a loop stays responsive with 100,000 files waiting.
 */
#ifndef TT_DAEMON_SPOOL_SCAN_H
#define TT_DAEMON_SPOOL_SCAN_H

#include "daemon/spool/queue.h"
#include "daemon/spool/spool.h"
#include "daemon/spool/watch.h"

enum tt_notice {
    TT_NOTICE_DEFERRED,  /* a file cannot be taken now; said once, until it changes or is taken */
    TT_NOTICE_REFUSED,   /* a special file went to failed/ */
    TT_NOTICE_UNWATCHED, /* a directory cannot be watched: only rescans find what is in it; said once */
};

struct tt_intake;

/* Borrows spool, queue and watch (until tt_intake_free); watch may be NULL. notice: NULL, or called with what
 * a person should know; its strings are borrowed (until it returns). */
enum tt_status tt_intake_create(struct tt_intake **intake, struct tt_spool *spool, struct tt_queue *queue,
                                struct tt_watch *watch,
                                void (*notice)(void *user, enum tt_notice kind, const char *file,
                                               const char *text),
                                void *user, struct tt_error *err);
void tt_intake_free(struct tt_intake *intake); /* takes intake, which may be NULL */

/* Reads on in incoming/, at most `names` names; starts at the beginning where no scan is under way. *done:
 * out, also on failure; the scan is over and files that are gone have left the queue. TT_RETRY_LATER:
 * incoming/ is not there or not readable: the spool is paused (or memory is short). */
enum tt_status tt_intake_scan(struct tt_intake *intake, int names, int64_t now_ms, bool *done,
                              struct tt_error *err);

/* Takes in a watch event. True: a scan is wanted soon. */
bool tt_intake_event(struct tt_intake *intake, const struct tt_watch_event *event, int64_t now_ms);

/* Puts a claimed job into the queue, to be next at due_ms. TT_RETRY_LATER: memory. */
enum tt_status tt_intake_put_job(struct tt_intake *intake, const struct tt_spool_job *job, int64_t due_ms,
                                 struct tt_error *err);

enum tt_take {
    TT_TAKE_JOB,
    TT_TAKE_NOTHING, /* until tt_queue_next_due_ms */
    TT_TAKE_BUSY,    /* many could not be taken; ask again soon */
    TT_TAKE_PAUSED,  /* no file can be claimed; jobs that wait for another attempt are still handed out */
};

/* The next job: a waiting one, or a file that is whole now, claimed. *job: out, borrowed (until it is ended),
 * only for TT_TAKE_JOB. */
enum tt_take tt_intake_take(struct tt_intake *intake, int64_t now_ms, struct tt_spool_job **job,
                            struct tt_error *err);

/* Of the last whole scan. */
struct tt_scan_counts {
    int64_t names, symlinks, directories, unwatched;
};
struct tt_scan_counts tt_intake_counts(const struct tt_intake *intake);

#endif

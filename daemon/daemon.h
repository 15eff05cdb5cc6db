/* daemon/daemon.h: tiletrackd's parts, and what they share.
 *
 *     feed  ->  jobs  ->  supervisor  ->  workers
 *     (incoming/)  ^          |
 *                  '- ended --'        jobs -> spool (commit, fail, put back) -> hook (on_done)
 *
 * One thread, one loop. Work that is there to do is done in small pieces, one in each turn of the loop
 * (tt_daemon_wake asks for turns), so that messages, signals and the watchdog are never far. Only calls of
 * the spool wait, for the disk.
 */
#ifndef TT_DAEMON_DAEMON_H
#define TT_DAEMON_DAEMON_H

#include "config/config.h"
#include "core/log.h"
#include "daemon/clock.h"
#include "daemon/report/metrics.h"
#include "daemon/spool/queue.h"
#include "daemon/spool/spool.h"
#include "daemon/spool/scan.h"
#include "daemon/supervisor/supervisor.h"

#include <uv.h>

enum tt_phase {
    TT_PHASE_STARTING, /* until incoming/ was read once */
    TT_PHASE_RUNNING,
    TT_PHASE_DRAINING, /* no job is started any more */
    TT_PHASE_STOPPING, /* running jobs are put back */
};

struct tt_feed;
struct tt_jobs;
struct tt_hook;
struct tt_control;

struct tt_daemon {
    const char *config_path;
    struct tt_config *config; /* owned; swapped whole by a reload */
    struct tt_log *log;
    uv_loop_t *loop;
    uv_idle_t turn; /* active while there is work */
    enum tt_phase phase;
    int64_t began_ms;

    struct tt_spool *spool;
    struct tt_queue *queue;
    struct tt_watch *watch; /* NULL: no inotify is to be had */
    struct tt_intake *intake;

    struct tt_feed *feed;
    struct tt_jobs *jobs;
    struct tt_supervisor *supervisor;
    struct tt_hook *hook;
    struct tt_control *control;
    struct tt_metrics metrics;
    bool metrics_failed; /* and was said */
    int64_t put_back;    /* jobs, at the end */
};

/* Asks for turns of the loop until none of the parts has work left. */
void tt_daemon_wake(struct tt_daemon *daemon);

/* incoming/ was read for the first time: the daemon is ready. */
void tt_daemon_scanned(struct tt_daemon *daemon, int64_t scan_ms);

#endif

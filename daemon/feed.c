/* daemon/feed.c: when to look at incoming/.
 *
 * Invariants: a rescan begins every spool.rescan_ms whatever inotify says; a scan goes in steps of SCAN_NAMES
 * names, one in each turn of the loop. While the spool is paused it is probed every PROBE_MS. Fails: never;
 * what cannot be read now is read later, and said once.
 */
#include "daemon/feed.h"

#include "daemon/jobs/jobs.h"

#include <errno.h>
#include <stdlib.h>

enum { SCAN_NAMES = 500, EVENTS = 200, PROBE_MS = 1000, PRUNE_MS = 3600 * 1000 };

struct tt_feed {
    struct tt_daemon *daemon;
    uv_poll_t poll;
    uv_timer_t rescan, due, probe, prune;
    bool scan_wanted, scanning, scanned;
    int64_t scan_began_ms;
    unsigned pause_changes; /* that were said */
    int64_t paused_since_ms;
    bool prune_failed;
};

/* --- notices ----------------------------------------------------------------------------------------------
 */

static void on_notice(void *user, enum tt_notice kind, const char *file, const char *text)
{
    struct tt_feed *feed = user;
    struct tt_log *log = feed->daemon->log;

    switch (kind) {
    case TT_NOTICE_DEFERRED:
        tt_log(log, TT_LOG_WARNING, "input_deferred", TT_STR("file", file), TT_STR("cause", text));
        break;
    case TT_NOTICE_REFUSED:
        tt_log(log, TT_LOG_WARNING, "input_refused", TT_STR("file", file), TT_STR("cause", text));
        break;
    case TT_NOTICE_UNWATCHED:
        tt_log(log, TT_LOG_WARNING, "watch_lost", TT_STR("cause", text));
        break;
    }
}

static void say_pause(struct tt_feed *feed)
{
    struct tt_daemon *daemon = feed->daemon;
    const struct tt_spool_pause *pause = tt_spool_paused(daemon->spool);

    if (pause->changes == feed->pause_changes)
        return;
    feed->pause_changes = pause->changes;
    daemon->metrics.paused = pause->paused;
    if (pause->paused) {
        if (feed->paused_since_ms == 0)
            tt_log(daemon->log, TT_LOG_WARNING, "claiming_paused", TT_STR("cause", pause->text),
                   TT_INT("free_bytes", tt_spool_free_bytes(daemon->spool)),
                   TT_INT("reserve_bytes", daemon->config->spool.reserve_bytes));
        if (feed->paused_since_ms == 0)
            feed->paused_since_ms = tt_clock_ms();
    } else if (feed->paused_since_ms != 0) {
        tt_log(daemon->log, TT_LOG_INFO, "claiming_resumed",
               TT_INT("paused_ms", tt_clock_ms() - feed->paused_since_ms));
        feed->paused_since_ms = 0;
    }
}

/* --- scans ------------------------------------------------------------------------------------------------
 */

static void want_scan(struct tt_feed *feed)
{
    feed->scan_wanted = true;
    tt_daemon_wake(feed->daemon);
}

static void on_rescan(uv_timer_t *timer)
{
    want_scan(timer->data);
}

bool tt_feed_step(struct tt_feed *feed)
{
    struct tt_daemon *daemon = feed->daemon;
    bool done = false;
    enum tt_status status;

    if (!feed->scanning) {
        if (!feed->scan_wanted)
            return false;
        feed->scan_wanted = false;
        feed->scanning = true;
        feed->scan_began_ms = tt_clock_ms();
    }
    status = tt_intake_scan(daemon->intake, SCAN_NAMES, tt_clock_ms(), &done, NULL);
    feed->scanning = !done;
    if (done && !feed->scanned) {
        feed->scanned = status == TT_OK;
        tt_daemon_scanned(daemon, tt_clock_ms() - feed->scan_began_ms);
    }
    return !done;
}

static void on_event(void *user, const struct tt_watch_event *event)
{
    struct tt_feed *feed = user;

    if (event->kind == TT_WATCH_OVERFLOW)
        tt_log(feed->daemon->log, TT_LOG_WARNING, "watch_lost",
               TT_STR("cause", "more happened in incoming/ than the kernel's queue holds; rescanning"));
    if (tt_intake_event(feed->daemon->intake, event, tt_clock_ms()))
        feed->scan_wanted = true;
}

static void on_readable(uv_poll_t *poll, int problem, int events)
{
    struct tt_feed *feed = poll->data;

    (void)problem;
    (void)events;
    tt_watch_read(feed->daemon->watch, EVENTS, on_event, feed); /* the rest: in the next turn */
    tt_daemon_wake(feed->daemon);
}

/* --- alarms -----------------------------------------------------------------------------------------------
 */

static void on_due(uv_timer_t *timer)
{
    struct tt_feed *feed = timer->data;

    tt_daemon_wake(feed->daemon);
}

static void on_probe(uv_timer_t *timer)
{
    struct tt_feed *feed = timer->data;

    if (tt_spool_probe(feed->daemon->spool, NULL) == TT_OK)
        want_scan(feed);
    tt_daemon_wake(feed->daemon);
}

static void arm_probe(struct tt_feed *feed)
{
    bool paused = tt_spool_paused(feed->daemon->spool)->paused;

    if (!paused)
        uv_timer_stop(&feed->probe);
    else if (!uv_is_active((uv_handle_t *)&feed->probe))
        uv_timer_start(&feed->probe, on_probe, PROBE_MS, PROBE_MS);
}

void tt_feed_settle(struct tt_feed *feed)
{
    struct tt_daemon *daemon = feed->daemon;
    int64_t due_ms = tt_jobs_due_ms(daemon->jobs), now_ms = tt_clock_ms();

    say_pause(feed);
    arm_probe(feed);
    if (tt_jobs_wanted(daemon->jobs)) {
        int64_t next_ms = tt_queue_next_due_ms(daemon->queue);

        if (next_ms <= now_ms) /* it was not taken just now, so it cannot be */
            next_ms = now_ms + PROBE_MS;
        if (next_ms < due_ms)
            due_ms = next_ms;
    }
    if (due_ms == INT64_MAX) {
        uv_timer_stop(&feed->due);
        return;
    }
    uv_update_time(daemon->loop);
    uv_timer_start(&feed->due, on_due, (uint64_t)(due_ms > now_ms ? due_ms - now_ms : 0), 0);
}

static void on_prune(uv_timer_t *timer)
{
    struct tt_feed *feed = timer->data;
    struct tt_daemon *daemon = feed->daemon;
    struct tt_error err;
    int64_t removed = 0;
    struct timespec wall;
    enum tt_status status;

    clock_gettime(CLOCK_REALTIME, &wall);
    status = tt_spool_prune(daemon->spool, (int64_t)wall.tv_sec * 1000000000 + wall.tv_nsec, &removed, &err);
    if (removed > 0)
        tt_log(daemon->log, TT_LOG_INFO, "inputs_pruned", TT_INT("files", removed),
               TT_INT("keep_days", daemon->config->spool.keep_days));
    if (status && !feed->prune_failed)
        tt_log(daemon->log, TT_LOG_WARNING, "prune_failed", TT_STR("cause", err.text));
    feed->prune_failed = status != TT_OK;
}

/* --- life -------------------------------------------------------------------------------------------------
 */

enum tt_status tt_feed_create(struct tt_feed **feed, struct tt_daemon *daemon, struct tt_error *err)
{
    struct tt_feed *made = calloc(1, sizeof *made);
    struct tt_error unwatched;
    enum tt_status status;

    if (!made)
        return tt_fail_errno(err, TT_RETRY_LATER, ENOMEM, "feed");
    made->daemon = daemon;
    status = tt_queue_create(&daemon->queue, err);
    if (!status && tt_watch_open(&daemon->watch, &unwatched))
        on_notice(made, TT_NOTICE_UNWATCHED, NULL, unwatched.text);
    if (!status)
        status = tt_intake_create(&daemon->intake, daemon->spool, daemon->queue, daemon->watch, on_notice,
                                  made, err);
    if (status) {
        tt_feed_free(made);
        return status;
    }
    uv_timer_init(daemon->loop, &made->rescan);
    uv_timer_init(daemon->loop, &made->due);
    uv_timer_init(daemon->loop, &made->probe);
    uv_timer_init(daemon->loop, &made->prune);
    made->rescan.data = made->due.data = made->probe.data = made->prune.data = made->poll.data = made;
    *feed = made;
    return TT_OK;
}

void tt_feed_configure(struct tt_feed *feed)
{
    uint64_t period_ms = (uint64_t)feed->daemon->config->spool.rescan_ms;

    uv_timer_start(&feed->rescan, on_rescan, period_ms, period_ms);
    uv_timer_start(&feed->prune, on_prune, PROBE_MS, PRUNE_MS); /* keep_days may have changed */
    want_scan(feed);
}

void tt_feed_start(struct tt_feed *feed)
{
    struct tt_daemon *daemon = feed->daemon;

    if (daemon->watch && uv_poll_init(daemon->loop, &feed->poll, tt_watch_descriptor(daemon->watch)) == 0)
        uv_poll_start(&feed->poll, UV_READABLE, on_readable);
    tt_feed_configure(feed);
}

void tt_feed_stop(struct tt_feed *feed)
{
    feed->scan_wanted = feed->scanning = false;
    uv_timer_stop(&feed->rescan);
    uv_timer_stop(&feed->prune);
    if (uv_is_active((uv_handle_t *)&feed->poll))
        uv_poll_stop(&feed->poll);
}

void tt_feed_free(struct tt_feed *feed)
{
    if (!feed)
        return;
    tt_intake_free(feed->daemon->intake);
    tt_watch_close(feed->daemon->watch);
    tt_queue_free(feed->daemon->queue);
    feed->daemon->intake = NULL;
    feed->daemon->watch = NULL;
    feed->daemon->queue = NULL;
    free(feed);
}

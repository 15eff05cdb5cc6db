/* daemon/feed.h: keeps the queue true to incoming/: watch events, rescans, stillness, pauses, pruning. */
#ifndef TT_DAEMON_FEED_H
#define TT_DAEMON_FEED_H

#include "daemon/daemon.h"

/* Makes daemon's queue, watch and intake for its spool. */
enum tt_status tt_feed_create(struct tt_feed **feed, struct tt_daemon *daemon, struct tt_error *err);

/* Begins to watch and to scan. */
void tt_feed_start(struct tt_feed *feed);

/* Reads on in incoming/. True: there is more to read. */
bool tt_feed_step(struct tt_feed *feed);

/* Says pauses, and sets the alarm for what becomes ready next; when a turn's work is done. */
void tt_feed_settle(struct tt_feed *feed);

void tt_feed_configure(struct tt_feed *feed); /* the daemon has a new configuration */
void tt_feed_stop(struct tt_feed *feed);
void tt_feed_free(struct tt_feed *feed); /* with queue, watch and intake; takes feed, which may be NULL */

#endif

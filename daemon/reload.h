/* daemon/reload.h: another configuration while running (SIGHUP), whole or not at all. */
#ifndef TT_DAEMON_RELOAD_H
#define TT_DAEMON_RELOAD_H

#include "daemon/daemon.h"

/* Reads the file anew and takes it up, or says why not and goes on as before. What needs a restart keeps its
 * value and is named. */
void tt_reload(struct tt_daemon *daemon);

/* Of the configuration. Borrows config. */
struct tt_log_options tt_reload_log_options(const struct tt_config *config);

#endif

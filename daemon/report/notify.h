/* daemon/report/notify.h: what systemd is told (sd_notify(3)). Without systemd nothing happens. */
#ifndef TT_DAEMON_REPORT_NOTIFY_H
#define TT_DAEMON_REPORT_NOTIFY_H

#include <stdbool.h>
#include <stdint.h>

/* How often WATCHDOG=1 must be sent, a third of what the unit says; 0: it wants none. */
int64_t tt_notify_watchdog_ms(void);

void tt_notify_watchdog(void);
void tt_notify_status(const char *text); /* STATUS=; one line */
void tt_notify_ready(const char *text);  /* READY=1 with a status */
void tt_notify_reloading(void);          /* RELOADING=1; tt_notify_ready ends it */
void tt_notify_stopping(const char *text);
void tt_notify_extend(int64_t ms); /* start or stop may take this long from now */

#endif

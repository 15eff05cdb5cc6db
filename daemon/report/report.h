/* daemon/report/report.h: what the control socket, systemd and the metrics are told of the daemon. */
#ifndef TT_DAEMON_REPORT_REPORT_H
#define TT_DAEMON_REPORT_REPORT_H

#include "daemon/daemon.h"

/* Answers a line of the control socket (daemon/report/control.h). user: struct tt_daemon.
 *
 * status: {"ok":true, "version", "pid", "uptime_seconds", "state": "starting" | "running" | "paused" |
 *   "draining" | "stopping", "paused": text or null, "spool": path, "queue": {"ready", "settling",
 *   "deferred", "retry", "running", "oldest_seconds"}, "jobs": {"done", "truncated", "failed", "cancelled",
 *   "retries"}, "devices": [{"worker", "state": of tt_slot_state_names or "out_of_service", "device",
 * "cause": text or null, "pid", "job", "file", "stage", "frames", "frames_expected", "jobs_done",
 * "retry_ms"}], "waiting": the first 100 jobs that wait for another attempt or to be ended: [{"job", "file",
 * "state", "attempts", "cause"}]}. Files are texts for people; bytes that are no UTF-8 are replaced. */
char *tt_report_answer(void *user, const char *line);

/* One line for people: "2 of 3 devices, 1 running, 17 waiting". text: out, [bytes]. */
void tt_report_summary(const struct tt_daemon *daemon, char *text, size_t bytes);

/* Writes the metrics where the configuration wants them; a failure is said once, until it works again. */
void tt_report_metrics(struct tt_daemon *daemon);

#endif

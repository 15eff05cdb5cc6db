/* daemon/report/control.h: the control socket: lines in, lines out.
 *
 * A request is one JSON object in one line, the answer is one too:
 *
 *     {"command":"status"}                         {"ok":true, ...}          (daemon/report/report.h)
 *     {"command":"retry","name":"bear.mp4"}        {"ok":true}
 *     {"command":"cancel","name":"bear.mp4"}       {"ok":false,"status":"bad_input","error":"..."}
 *
 * `name` is percent-encoded (tt_name_encode), for names are bytes. A client may send several requests; they
 * are answered one after the other. Lines, clients and waits are bounded, so that no client hurts another
 * or the daemon: one that sends more than a line allows, or does not read, is cut off.
 */
#ifndef TT_DAEMON_REPORT_CONTROL_H
#define TT_DAEMON_REPORT_CONTROL_H

#include "core/status.h"

#include <stddef.h>
#include <uv.h>

enum {
    TT_CONTROL_LINE_MAX = 16384,
    TT_CONTROL_CLIENTS = 64, /* the one that was silent for longest makes room */
    TT_CONTROL_WAIT_MS = 30000,
};

struct tt_control;

/* What is answered to a line (without its newline, ends in a NUL; borrowed until it returns): owned by the
 * caller (free), without newline; NULL: the client is cut off. */
typedef char *tt_control_answer(void *user, const char *line);

/* Listens at path, for owner and group (mode 0660). A socket that nobody listens at is replaced. TT_REFUSE:
 * somebody does, or the place cannot be used. */
enum tt_status tt_control_open(struct tt_control **control, uv_loop_t *loop, const char *path,
                               tt_control_answer *answer, void *user, struct tt_error *err);

int tt_control_clients(const struct tt_control *control);

/* Stops listening, cuts off all clients and removes the socket. Takes control, which may be NULL; the loop
 * frees it. */
void tt_control_close(struct tt_control *control);

#endif

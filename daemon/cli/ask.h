/* daemon/cli/ask.h: commands that speak with a running daemon, or need to know where its spool is. */
#ifndef TT_DAEMON_CLI_ASK_H
#define TT_DAEMON_CLI_ASK_H

#include "config/config.h"
#include "core/status.h"
#include "daemon/cli/cli.h"

#include <jansson.h>

/* The configuration at path; NULL: the installed one, or the defaults where there is none. *config: owned by
 * the caller. */
enum tt_status cli_config(struct tt_config **config, const char *path, struct tt_error *err);

/* Sends a request (borrowed) to the daemon and waits for its answer. socket: NULL for what the configuration
 * at config_path (see cli_config) says. *answer: owned by the caller. TT_RETRY_LATER: no daemon listens, or
 * it does not answer; otherwise the status that the daemon gave. */
enum tt_status cli_ask(json_t **answer, const char *socket, const char *config_path, json_t *request,
                       struct tt_error *err);

/* A command that is sent for each name on the command line: `retry` and `cancel`. done: what to say. */
int cli_ask_names(const struct cli_command *command, const char *done, int argc, char **argv);

#endif

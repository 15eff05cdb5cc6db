/* daemon/cli/ask.c: the other end of daemon/report/control.c. */
#include "daemon/cli/ask.h"

#include "daemon/spool/name.h"

#include <errno.h>
#include <getopt.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <sys/un.h>
#include <unistd.h>

enum { WAIT_S = 60 };

/* --- finding ----------------------------------------------------------------------------------------------
 */

enum tt_status cli_config(struct tt_config **config, const char *path, struct tt_error *err)
{
    if (!path && access(TT_CONFIG_PATH, F_OK) < 0 && errno == ENOENT)
        return tt_config_new(config, err);
    return tt_config_load(config, path ? path : TT_CONFIG_PATH, NULL, err);
}

static enum tt_status find_socket(struct sockaddr_un *address, const char *socket, const char *config_path,
                                  struct tt_error *err)
{
    struct tt_config *config = NULL;
    enum tt_status status = TT_OK;
    int length;

    if (!socket)
        status = cli_config(&config, config_path, err);
    if (status)
        return status;
    address->sun_family = AF_UNIX;
    if (!socket)
        socket = config->daemon.socket;
    if (socket)
        length = snprintf(address->sun_path, sizeof address->sun_path, "%s", socket);
    else
        length = snprintf(address->sun_path, sizeof address->sun_path, "%s/control.sock",
                          config->daemon.runtime_dir);
    if (length >= (int)sizeof address->sun_path)
        status = tt_fail(err, TT_REFUSE, "the control socket's path is too long");
    tt_config_free(config);
    return status;
}

/* --- talking ----------------------------------------------------------------------------------------------
 */

static enum tt_status connect_to(int *fd, const struct sockaddr_un *address, struct tt_error *err)
{
    const struct timeval wait = {.tv_sec = WAIT_S};
    int made = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);

    if (made < 0)
        return tt_fail_errno(err, TT_RETRY_LATER, errno, "socket");
    setsockopt(made, SOL_SOCKET, SO_RCVTIMEO, &wait, sizeof wait);
    setsockopt(made, SOL_SOCKET, SO_SNDTIMEO, &wait, sizeof wait);
    if (connect(made, (const struct sockaddr *)address, sizeof *address) < 0) {
        enum tt_status status =
            tt_fail_errno(err, TT_RETRY_LATER, errno, "no tiletrackd listens at %s", address->sun_path);
        close(made);
        return status;
    }
    *fd = made;
    return TT_OK;
}

static enum tt_status send_line(int fd, char *line, struct tt_error *err)
{
    size_t bytes = strlen(line), sent = 0;

    line[bytes] = '\n'; /* in place of the NUL */
    while (sent < bytes + 1) {
        ssize_t got = send(fd, line + sent, bytes + 1 - sent, MSG_NOSIGNAL);

        if (got < 0 && errno != EINTR)
            return tt_fail_errno(err, TT_RETRY_LATER, errno, "asking the daemon");
        sent += got > 0 ? (size_t)got : 0;
    }
    return TT_OK;
}

/* *line: owned by the caller. */
static enum tt_status receive_line(char **line, int fd, struct tt_error *err)
{
    int copy = dup(fd);
    FILE *stream = copy < 0 ? NULL : fdopen(copy, "r");
    size_t size = 0;
    ssize_t length;
    enum tt_status status = TT_OK;

    *line = NULL;
    if (!stream) {
        if (copy >= 0)
            close(copy);
        return tt_fail_errno(err, TT_RETRY_LATER, errno, "socket");
    }
    length = getline(line, &size, stream);
    if (length <= 0 || (*line)[length - 1] != '\n')
        status = tt_fail(err, TT_RETRY_LATER, "the daemon did not answer");
    fclose(stream);
    return status;
}

static enum tt_status status_of(const char *name)
{
    for (int status = TT_OK; status <= TT_INTERRUPTED; status++)
        if (name && strcmp(name, tt_status_name((enum tt_status)status)) == 0)
            return (enum tt_status)status;
    return TT_REFUSE;
}

static enum tt_status read_answer(json_t **answer, const char *line, struct tt_error *err)
{
    json_t *json = json_loads(line, 0, NULL);

    if (!json)
        return tt_fail(err, TT_RETRY_LATER, "the daemon's answer makes no sense");
    if (!json_is_true(json_object_get(json, "ok"))) {
        const char *text = json_string_value(json_object_get(json, "error"));

        tt_fail(err, status_of(json_string_value(json_object_get(json, "status"))), "%s",
                text ? text : "the daemon refused");
        json_decref(json);
        return err->status;
    }
    *answer = json;
    return TT_OK;
}

enum tt_status cli_ask(json_t **answer, const char *socket, const char *config_path, json_t *request,
                       struct tt_error *err)
{
    struct sockaddr_un address = {0};
    char *line = json_dumps(request, JSON_COMPACT), *reply = NULL;
    int fd = -1;
    enum tt_status status = line ? TT_OK : tt_fail(err, TT_REFUSE, "the request cannot be written as JSON");

    if (!status)
        status = find_socket(&address, socket, config_path, err);
    if (!status)
        status = connect_to(&fd, &address, err);
    if (!status)
        status = send_line(fd, line, err);
    if (!status)
        status = receive_line(&reply, fd, err);
    if (!status)
        status = read_answer(answer, reply, err);
    if (fd >= 0)
        close(fd);
    free(line);
    free(reply);
    return status;
}

/* --- retry, cancel ----------------------------------------------------------------------------------------
 */

static bool ask_for_name(const struct cli_command *command, const char *done, const char *name,
                         const char *socket, const char *config_path)
{
    char *encoded = tt_name_encode(name), *printable = cli_printable(name);
    json_t *request = json_pack("{s:s, s:s}", "command", command->name, "name", encoded ? encoded : "");
    json_t *answer = NULL;
    struct tt_error err;
    enum tt_status status = cli_ask(&answer, socket, config_path, request, &err);

    if (status)
        fprintf(stderr, "tiletrack %s: %s\n", command->name, err.text);
    else
        printf("%s: %s\n", printable ? printable : "?", done);
    json_decref(request);
    json_decref(answer);
    free(encoded);
    free(printable);
    return status == TT_OK;
}

int cli_ask_names(const struct cli_command *command, const char *done, int argc, char **argv)
{
    static const struct option options[] = {{"config", required_argument, NULL, 'c'},
                                            {"socket", required_argument, NULL, 's'},
                                            {"help", no_argument, NULL, 'h'},
                                            {0}};
    const char *config_path = NULL, *socket = NULL;
    bool all = true;
    int option;

    while ((option = getopt_long(argc, argv, "h", options, NULL)) != -1) {
        if (option == 'h') {
            fputs(command->help, stdout);
            return EXIT_ALL_DONE;
        }
        if (option == '?')
            return cli_usage_error(command, "see above");
        *(option == 'c' ? &config_path : &socket) = optarg;
    }
    if (optind == argc)
        return cli_usage_error(command, "no name was given");
    for (; optind < argc; optind++)
        all &= ask_for_name(command, done, argv[optind], socket, config_path);
    return all ? EXIT_ALL_DONE : EXIT_SOME_FAILED;
}

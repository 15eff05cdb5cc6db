/* daemon/encode/main.c: tiletrack-encode, a child that makes a video or a picture of what is put into its
 * memory.
 *
 * Started by core/encoder.c with six descriptors: 0, 1 and 2 on /dev/null, the file, the control socket, the
 * ring. It opens the encoder, confines itself (daemon/decode/confine.h), says hello, and then takes frames.
 * What goes wrong is told over the socket. A parent that is gone ends it.
 */
#include "daemon/decode/confine.h"
#include "daemon/encode/encode.h"

#include <libavutil/log.h>

#include <errno.h>
#include <malloc.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

enum { CPU_SECONDS = 30 * 24 * 3600 };
static const int64_t memory_bytes = INT64_C(16) << 30;

static void say(enum tt_encode_type type, int64_t number, enum tt_status status, const char *text)
{
    struct tt_encode_message message = {
        .magic = TT_ENCODE_MAGIC, .type = type, .number = number, .status = status};
    ssize_t sent;

    snprintf(message.text, sizeof message.text, "%s", text);
    do
        sent = write(TT_CHILD_CONTROL, &message, sizeof message);
    while (sent < 0 && errno == EINTR);
    if (sent != (ssize_t)sizeof message)
        _exit(0);
}

static void hear(struct tt_encode_message *message)
{
    ssize_t got;

    do
        got = read(TT_CHILD_CONTROL, message, sizeof *message);
    while (got < 0 && errno == EINTR);
    if (got != (ssize_t)sizeof *message || message->magic != TT_ENCODE_MAGIC)
        _exit(0);
}

static enum tt_status prepare(struct tt_encode **encode, const uint8_t **ring,
                              struct tt_encode_message *request, struct tt_error *err)
{
    struct tt_wire_request limits;
    enum tt_status status;
    void *map;

    hear(request);
    if (request->type != TT_ENCODE_REQUEST)
        _exit(0);
    request->text[TT_ENCODE_TEXT_BYTES - 1] = '\0';
    map = mmap(NULL, (size_t)request->number, PROT_READ, MAP_SHARED, TT_CHILD_RING, 0);
    if (map == MAP_FAILED)
        return tt_fail_errno(err, TT_RETRY_LATER, errno, "map the ring");
    *ring = map;
    signal(SIGXFSZ, SIG_IGN); /* a write beyond the file size limit fails instead */
    status = tt_encode_open(encode, request, err);
    limits = (struct tt_wire_request){
        .parent_pid = request->parent_pid, .memory_bytes = memory_bytes, .cpu_seconds = CPU_SECONDS};
    return status ? status : tt_confine_writer(&limits, err);
}

static enum tt_status serve(struct tt_error *err)
{
    struct tt_encode_message message;
    struct tt_encode *encode;
    const uint8_t *ring = NULL;
    size_t frame_bytes;
    enum tt_status status = prepare(&encode, &ring, &message, err);

    if (status)
        return status;
    frame_bytes = (size_t)message.width * (size_t)message.height * 3;
    say(TT_ENCODE_HELLO, 0, TT_OK, tt_encode_codec(encode));
    for (hear(&message); message.type == TT_ENCODE_FRAME; hear(&message)) {
        status = tt_encode_frame(encode, ring + (size_t)(message.number % TT_ENCODER_SLOTS) * frame_bytes,
                                 message.ticks, err);
        if (status)
            return status;
        say(TT_ENCODE_FREE, message.number, TT_OK, "");
    }
    status = tt_encode_end(encode, err);
    if (!status)
        say(TT_ENCODE_END, 0, TT_OK, "");
    return status;
}

int main(int argc, char **argv)
{
    struct tt_error err;

    if (argc == 2 && !strcmp(argv[1], "--version")) {
        puts("tiletrack-encode " TT_VERSION);
        return 0;
    }
    if (argc != 2 || strcmp(argv[1], "--child")) {
        fputs("tiletrack-encode is started by tiletrack and tiletrackd, not by hand\n", stderr);
        return 2;
    }
    mallopt(M_ARENA_MAX, 1);
    av_log_set_level(AV_LOG_QUIET);
    if (serve(&err))
        say(TT_ENCODE_ERROR, 0, err.status, err.text);
    _exit(0); /* no handlers: they might need what was given up */
}

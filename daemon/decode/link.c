/* daemon/decode/link.c: sends messages, maps the ring, waits for credits.
 *
 * Only read, write and mmap are used, and mmap only before confinement. A message is one write; on a
 * SOCK_SEQPACKET pair it goes whole or not at all. When the parent is gone the process ends quietly.
 */
#include "daemon/decode/link.h"

#include <errno.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <sys/mman.h>
#include <unistd.h>

static void send_message(const struct tt_wire_message *message, size_t bytes)
{
    ssize_t sent;

    do
        sent = write(TT_CHILD_CONTROL, message, bytes);
    while (sent < 0 && errno == EINTR);
    if (sent != (ssize_t)bytes)
        _exit(0);
}

static ssize_t receive(void *bytes, size_t size)
{
    ssize_t got;

    do
        got = read(TT_CHILD_CONTROL, bytes, size);
    while (got < 0 && errno == EINTR);
    return got;
}

enum tt_status tt_link_request(struct tt_wire_request *request, struct tt_error *err)
{
    struct tt_wire_message message;
    size_t wanted = tt_wire_begin(&message, TT_WIRE_REQUEST);
    struct tt_wire_header header = message.header;
    ssize_t got = receive(&message, sizeof message);

    if (got != (ssize_t)wanted || message.header.magic != header.magic ||
        message.header.version != header.version || message.header.type != header.type)
        return tt_fail(err, TT_REFUSE,
                       "tiletrack-decode (version %d of the protocol) got a request of another",
                       TT_WIRE_VERSION);
    *request = message.body.request;
    return TT_OK;
}

enum tt_status tt_link_open(struct tt_link *link, const struct tt_wire_request *request, struct tt_error *err)
{
    void *ring =
        mmap(NULL, (size_t)request->ring_bytes, PROT_READ | PROT_WRITE, MAP_SHARED, TT_CHILD_RING, 0);

    if (ring == MAP_FAILED)
        return tt_fail_errno(err, TT_RETRY_LATER, errno, "map the ring");
    *link = (struct tt_link){
        .ring = ring, .ring_bytes = (size_t)request->ring_bytes, .credits = TT_DECODER_SLOTS};
    return TT_OK;
}

void tt_link_hello(struct tt_link *link)
{
    struct tt_wire_message message;

    (void)link;
    send_message(&message, tt_wire_begin(&message, TT_WIRE_HELLO));
}

void tt_link_info(struct tt_link *link, const struct tt_video_info *info)
{
    struct tt_wire_message message;
    size_t bytes = tt_wire_begin(&message, TT_WIRE_INFO);

    (void)link;
    message.body.info = *info;
    send_message(&message, bytes);
}

void tt_link_end(struct tt_link *link, bool truncated)
{
    struct tt_wire_message message;
    size_t bytes = tt_wire_begin(&message, TT_WIRE_END);

    message.body.end = (struct tt_wire_end){.frames = link->frames, .truncated = truncated};
    send_message(&message, bytes);
}

void tt_link_mask(struct tt_link *link, int width, int height)
{
    struct tt_wire_message message;
    size_t bytes = tt_wire_begin(&message, TT_WIRE_MASK);

    (void)link;
    message.body.mask = (struct tt_wire_mask){width, height};
    send_message(&message, bytes);
}

static void send_text(enum tt_wire_type type, enum tt_status status, const char *text)
{
    struct tt_wire_message message;
    size_t bytes = tt_wire_begin(&message, type);

    message.body.text.status = status;
    tt_wire_print(message.body.text.text, sizeof message.body.text.text, text);
    send_message(&message, bytes);
}

void tt_link_error(struct tt_link *link, const struct tt_error *err)
{
    (void)link;
    send_text(TT_WIRE_ERROR, err->status, err->text);
}

void tt_link_warn(struct tt_link *link, const char *format, ...)
{
    char text[TT_WIRE_TEXT_BYTES];
    va_list args;

    if (link->warnings == TT_WIRE_MAX_WARNINGS)
        return;
    link->warnings++;
    va_start(args, format);
    vsnprintf(text, sizeof text, format, args);
    va_end(args);
    send_text(TT_WIRE_WARNING, TT_OK, text);
}

uint8_t *tt_link_slot(struct tt_link *link)
{
    while (link->credits == 0) {
        int32_t credit;

        if (receive(&credit, sizeof credit) != sizeof credit)
            _exit(0);
        link->credits += credit;
    }
    return link->ring + (size_t)(link->frames % TT_DECODER_SLOTS) * TT_FRAME_BYTES;
}

void tt_link_frame(struct tt_link *link, double time_s)
{
    struct tt_wire_message message;
    size_t bytes = tt_wire_begin(&message, TT_WIRE_FRAME);

    message.body.frame = (struct tt_wire_frame){link->frames, time_s};
    link->frames++;
    link->credits--;
    send_message(&message, bytes);
}

void tt_link_picture(struct tt_link *link, double time_s, int width, int height)
{
    struct tt_wire_message message;
    size_t bytes = tt_wire_begin(&message, TT_WIRE_PICTURE);

    message.body.picture = (struct tt_wire_picture){link->frames, time_s, width, height};
    link->frames++;
    send_message(&message, bytes);
}

void tt_link_order(struct tt_wire_order *order)
{
    ssize_t got = receive(order, sizeof *order);

    if (got < (ssize_t)offsetof(struct tt_wire_order, places) || order->count < 0 ||
        order->count > TT_CUT_BATCH ||
        (size_t)got != offsetof(struct tt_wire_order, places) + (size_t)order->count * sizeof *order->places)
        _exit(0);
}

void tt_link_patches(struct tt_link *link, int count)
{
    struct tt_wire_message message;
    size_t bytes = tt_wire_begin(&message, TT_WIRE_PATCHES);

    message.body.patches = (struct tt_wire_patches){.index = link->frames - 1, .count = count};
    send_message(&message, bytes);
}

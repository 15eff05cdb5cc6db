/* tests/fuzz/fuzz_message.c: any bytes as a stream of messages, in two pieces. They are refused with a text,
 * or become messages that are encoded to the same bytes again.
 */
#include "core/message.h"

#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void require(int holds)
{
    if (!holds)
        abort();
}

/* Takes what is whole; false once the stream is refused. at: where in data the next message begins. */
static int take(struct tt_inbox *inbox, const uint8_t *data, size_t *at)
{
    static uint8_t again[TT_MESSAGE_BYTES_MAX];
    struct tt_message message;
    struct tt_error err = {.text = ""};

    for (;;) {
        enum tt_status status = tt_inbox_next(inbox, &message, &err);
        size_t bytes = 0;

        if (status) {
            require(message.type == TT_MESSAGE_NONE && err.text[0]);
            require(status == TT_RESTART_WORKER || status == TT_REFUSE);
            return 0;
        }
        if (message.type == TT_MESSAGE_NONE)
            return 1;
        require(tt_message_encode(&message, again, &bytes, &err) == TT_OK);
        require(memcmp(again, data + *at, bytes) == 0);
        *at += bytes;
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct tt_inbox *inbox = calloc(1, sizeof *inbox);
    size_t given = 0, at = 0;

    require(inbox != NULL);
    while (given < size) {
        uint8_t *to;
        size_t room = tt_inbox_room(inbox, &to), piece = given == 0 ? size / 2 + 1 : size - given;

        require(room > 0);
        if (piece > room)
            piece = room;
        memcpy(to, data + given, piece);
        tt_inbox_filled(inbox, piece);
        given += piece;
        if (!take(inbox, data, &at))
            break;
    }
    require(at <= given);
    free(inbox);
    return 0;
}

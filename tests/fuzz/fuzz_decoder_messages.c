/* tests/fuzz/fuzz_decoder_messages.c: any packets as those of a decoder child.
 *
 * Input: one byte (bit 0: a mask was asked for; bit 7: patches were; bits 1 to 6: credits given back after
 * each packet, or patches ordered), then
 * packets, each with its length before it (two bytes, little-endian). Whatever is accepted is as promised;
 * whatever is refused changes nothing.
 */
#include "core/decoder_wire.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void require(bool holds)
{
    if (!holds)
        abort();
}

static void require_text(const char *text, size_t bytes)
{
    require(memchr(text, 0, bytes) != NULL);
    for (; *text; text++)
        require(*text >= ' ' && *text <= '~');
}

static void check_info(const struct tt_video_info *info, const struct tt_wire_state *state)
{
    require(info->width > 0 && info->height > 0 && info->coded_width > 0 && info->coded_height > 0);
    require((int64_t)info->coded_width * info->coded_height <= state->max_pixels);
    require(info->sar_num > 0 && info->sar_den > 0 && info->rate_num >= 0 && info->rate_den > 0);
    require(info->frames_hint >= 0 && info->duration_hint_s >= 0 && isfinite(info->duration_hint_s));
    require_text(info->container, sizeof info->container);
    require_text(info->codec, sizeof info->codec);
    require_text(info->pixel_format, sizeof info->pixel_format);
    require_text(info->matrix, sizeof info->matrix);
    require_text(info->transfer, sizeof info->transfer);
    require_text(info->range, sizeof info->range);
}

static void check_accepted(const struct tt_wire_message *message, const struct tt_wire_state *before,
                           const struct tt_wire_state *after)
{
    require(!before->over && after->hello && after->frames <= after->max_frames);
    require(after->in_flight >= 0 && after->in_flight <= TT_DECODER_SLOTS);
    require(after->warnings <= TT_WIRE_MAX_WARNINGS);
    switch (message->header.type) {
    case TT_WIRE_HELLO:
        require(!before->hello);
        break;
    case TT_WIRE_INFO:
        require(before->hello && !before->info && !before->mask);
        check_info(&message->body.info, after);
        break;
    case TT_WIRE_FRAME:
        require(before->info && !before->patches && message->body.frame.index == before->frames);
        require(before->frames == 0 || message->body.frame.time_s >= before->last_time_s);
        require(isfinite(message->body.frame.time_s));
        break;
    case TT_WIRE_WARNING:
        require(after->warnings == before->warnings + 1);
        require_text(message->body.text.text, sizeof message->body.text.text);
        break;
    case TT_WIRE_END:
        require(after->over && before->frames > 0 && message->body.end.frames == before->frames);
        break;
    case TT_WIRE_ERROR:
        require(after->over && message->body.text.text[0]);
        require(message->body.text.status == TT_BAD_INPUT || message->body.text.status == TT_RETRY_LATER);
        require_text(message->body.text.text, sizeof message->body.text.text);
        break;
    case TT_WIRE_MASK:
        require(after->over && before->mask && message->body.mask.width > 0 && message->body.mask.height > 0);
        require((int64_t)message->body.mask.width * message->body.mask.height <= after->max_pixels);
        break;
    case TT_WIRE_PICTURE:
        require(before->info && before->patches && before->ordered == 0);
        require(message->body.picture.index == before->frames && isfinite(message->body.picture.time_s));
        require(message->body.picture.width > 0 && message->body.picture.height > 0);
        break;
    case TT_WIRE_PATCHES:
        require(before->patches && before->ordered > 0 && after->ordered == 0);
        require(message->body.patches.count == before->ordered);
        require(message->body.patches.index == before->frames - 1);
        break;
    default:
        abort();
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct tt_wire_state state = {.max_pixels = 8192 * 8192, .max_frames = 100}, before;
    struct tt_wire_message message, untouched;
    struct tt_error err;
    int credit;

    if (size < 1)
        return 0;
    state.mask = data[0] & 1;
    state.patches = data[0] >> 7;
    credit = data[0] >> 1 & 63;
    data++, size--;
    while (size >= 2) {
        size_t bytes = data[0] | (size_t)data[1] << 8;
        enum tt_status status;

        data += 2, size -= 2;
        bytes = bytes < size ? bytes : size;
        before = state;
        memset(&message, 0x5a, sizeof message);
        untouched = message;
        status = tt_wire_accept(&state, data, bytes, &message, &err);
        if (status == TT_OK && (message.header.type != TT_WIRE_ERROR || before.hello))
            check_accepted(&message, &before, &state);
        if (status != TT_OK) {
            require(status == err.status && err.text[0]);
            require(status == TT_BAD_INPUT || (status == TT_REFUSE && !before.hello));
            require(!memcmp(&before, &state, sizeof state) && !memcmp(&message, &untouched, sizeof message));
        }
        if (state.patches && state.frames > 0 && !state.over && state.ordered == 0)
            state.ordered = credit;
        state.in_flight -= credit < state.in_flight ? credit : state.in_flight;
        data += bytes, size -= bytes;
    }
    return 0;
}

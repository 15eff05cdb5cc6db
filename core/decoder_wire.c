/* core/decoder_wire.c: packs and checks the decoder's messages.
 *
 * Pure functions over bytes: nothing is allocated, no descriptor is touched. tt_wire_accept is where a
 * hostile child meets the parent; every field is checked for its range before anybody else sees it, and
 * *state moves only when the whole packet is right.
 */
#include "core/decoder_wire.h"

#include <math.h>
#include <string.h>

int tt_wire_body_bytes(int type)
{
    static const int bytes[TT_WIRE_TYPES] = {
        [TT_WIRE_REQUEST] = sizeof(struct tt_wire_request),
        [TT_WIRE_HELLO] = 0,
        [TT_WIRE_INFO] = sizeof(struct tt_video_info),
        [TT_WIRE_FRAME] = sizeof(struct tt_wire_frame),
        [TT_WIRE_WARNING] = sizeof(struct tt_wire_text),
        [TT_WIRE_END] = sizeof(struct tt_wire_end),
        [TT_WIRE_ERROR] = sizeof(struct tt_wire_text),
        [TT_WIRE_MASK] = sizeof(struct tt_wire_mask),
        [TT_WIRE_PICTURE] = sizeof(struct tt_wire_picture),
        [TT_WIRE_PATCHES] = sizeof(struct tt_wire_patches),
    };

    return type >= TT_WIRE_REQUEST && type < TT_WIRE_TYPES ? bytes[type] : -1;
}

size_t tt_wire_begin(struct tt_wire_message *message, enum tt_wire_type type)
{
    int body = tt_wire_body_bytes(type);

    memset(message, 0, sizeof *message);
    message->header =
        (struct tt_wire_header){TT_WIRE_MAGIC, TT_WIRE_VERSION, (uint16_t)type, (uint32_t)body, 0};
    return sizeof message->header + (size_t)body;
}

void tt_wire_print(char *field, size_t bytes, const char *text)
{
    memset(field, 0, bytes);
    for (size_t i = 0; i + 1 < bytes && text[i]; i++)
        field[i] = text[i] >= ' ' && text[i] <= '~' ? text[i] : '?';
}

static bool is_printed(const char *field, size_t bytes)
{
    size_t i = 0;

    while (i < bytes && field[i] >= ' ' && field[i] <= '~')
        i++;
    if (i == bytes)
        return false;
    while (i < bytes && !field[i])
        i++;
    return i == bytes;
}

static bool is_size(int32_t width, int32_t height, int64_t max_pixels)
{
    return width > 0 && height > 0 && (int64_t)width * height <= max_pixels;
}

static bool is_info(const struct tt_video_info *info, int64_t max_pixels)
{
    return info->width > 0 && info->height > 0 &&
           is_size(info->coded_width, info->coded_height, max_pixels) && info->sar_num > 0 &&
           info->sar_den > 0 && info->rotation >= 0 && info->rotation < 360 && info->rotation % 90 == 0 &&
           (info->mirrored == 0 || info->mirrored == 1) && info->rate_num >= 0 && info->rate_den > 0 &&
           info->frames_hint >= 0 && isfinite(info->duration_hint_s) && info->duration_hint_s >= 0 &&
           is_printed(info->container, sizeof info->container) &&
           is_printed(info->codec, sizeof info->codec) &&
           is_printed(info->pixel_format, sizeof info->pixel_format) &&
           is_printed(info->matrix, sizeof info->matrix) &&
           is_printed(info->transfer, sizeof info->transfer) && is_printed(info->range, sizeof info->range);
}

/* A whole picture of the displayed size. */
static bool fits(const struct tt_video_info *info, int64_t ring_bytes)
{
    return (int64_t)info->width * info->height <= ring_bytes / 3;
}

/* The next frame or picture may have this number and time. */
static bool is_next(const struct tt_wire_state *state, int64_t index, double time_s)
{
    return index == state->frames && index < state->max_frames && isfinite(time_s) &&
           (state->frames == 0 || time_s >= state->last_time_s);
}

static bool is_frame(const struct tt_wire_state *state, const struct tt_wire_frame *frame)
{
    return !state->patches && state->in_flight < TT_DECODER_SLOTS &&
           is_next(state, frame->index, frame->time_s);
}

static bool is_picture(const struct tt_wire_state *state, const struct tt_wire_picture *picture)
{
    return state->patches && state->ordered == 0 && is_next(state, picture->index, picture->time_s) &&
           (state->whole ? picture->width == state->width && picture->height == state->height
                         : is_size(picture->width, picture->height, state->max_pixels));
}

static bool is_patches(const struct tt_wire_state *state, const struct tt_wire_patches *patches)
{
    return state->patches && state->ordered > 0 && patches->count == state->ordered &&
           patches->index == state->frames - 1 && patches->zero == 0;
}

static bool is_error(const struct tt_wire_state *state, const struct tt_wire_text *error)
{
    bool known = error->status == TT_BAD_INPUT || error->status == TT_RETRY_LATER ||
                 (error->status == TT_REFUSE && !state->hello);

    return known && error->text[0] && is_printed(error->text, sizeof error->text);
}

/* Whether the message may come now and its body is right; its header is. */
static bool is_expected(const struct tt_wire_state *state, const struct tt_wire_message *message)
{
    bool streaming = state->hello && state->info && !state->mask;

    if (state->over)
        return false;
    switch ((enum tt_wire_type)message->header.type) {
    case TT_WIRE_HELLO:
        return !state->hello;
    case TT_WIRE_INFO:
        return state->hello && !state->info && !state->mask &&
               is_info(&message->body.info, state->max_pixels) &&
               (!state->whole || fits(&message->body.info, state->ring_bytes));
    case TT_WIRE_FRAME:
        return streaming && is_frame(state, &message->body.frame);
    case TT_WIRE_WARNING:
        return state->hello && state->warnings < TT_WIRE_MAX_WARNINGS && message->body.text.status == TT_OK &&
               is_printed(message->body.text.text, sizeof message->body.text.text);
    case TT_WIRE_END:
        return streaming && state->frames > 0 && state->ordered == 0 &&
               message->body.end.frames == state->frames &&
               (message->body.end.truncated == 0 || message->body.end.truncated == 1) &&
               message->body.end.zero == 0;
    case TT_WIRE_ERROR:
        return is_error(state, &message->body.text);
    case TT_WIRE_MASK:
        return state->hello && state->mask &&
               is_size(message->body.mask.width, message->body.mask.height, state->max_pixels);
    case TT_WIRE_PICTURE:
        return streaming && is_picture(state, &message->body.picture);
    case TT_WIRE_PATCHES:
        return streaming && is_patches(state, &message->body.patches);
    case TT_WIRE_REQUEST:
    case TT_WIRE_TYPES:
        break;
    }
    return false;
}

static void move_on(struct tt_wire_state *state, const struct tt_wire_message *message)
{
    switch (message->header.type) {
    case TT_WIRE_HELLO:
        state->hello = true;
        break;
    case TT_WIRE_INFO:
        state->info = true;
        state->width = message->body.info.width;
        state->height = message->body.info.height;
        break;
    case TT_WIRE_FRAME:
        state->frames++;
        state->in_flight++;
        state->last_time_s = message->body.frame.time_s;
        break;
    case TT_WIRE_PICTURE:
        state->frames++;
        state->last_time_s = message->body.picture.time_s;
        break;
    case TT_WIRE_PATCHES:
        state->ordered = 0;
        break;
    case TT_WIRE_WARNING:
        state->warnings++;
        break;
    default:
        state->over = true;
    }
}

enum tt_status tt_wire_accept(struct tt_wire_state *state, const void *packet, size_t bytes,
                              struct tt_wire_message *message, struct tt_error *err)
{
    struct tt_wire_message copy = {0};
    int body;

    if (bytes < sizeof copy.header || bytes > sizeof copy)
        return tt_fail(err, TT_BAD_INPUT, "the decoder sent a message of %zu bytes", bytes);
    memcpy(&copy, packet, bytes);
    if (copy.header.magic != TT_WIRE_MAGIC)
        return tt_fail(err, TT_BAD_INPUT, "the decoder sent something that is not a message");
    if (copy.header.version != TT_WIRE_VERSION)
        return tt_fail(err, state->hello ? TT_BAD_INPUT : TT_REFUSE,
                       "the decoder program speaks version %d, this program %d", copy.header.version,
                       TT_WIRE_VERSION);
    body = tt_wire_body_bytes(copy.header.type);
    if (body < 0 || copy.header.body_bytes != (uint32_t)body || copy.header.zero ||
        bytes != sizeof copy.header + (size_t)body)
        return tt_fail(err, TT_BAD_INPUT, "the decoder sent a message of type %d with %zu bytes",
                       copy.header.type, bytes);
    if (!is_expected(state, &copy))
        return tt_fail(err, TT_BAD_INPUT,
                       "the decoder sent a message of type %d that is wrong or out of order",
                       copy.header.type);
    move_on(state, &copy);
    *message = copy;
    return TT_OK;
}

/* core/message.c: messages to bytes and back, driven by one table of fields.
 *
 * Invariants: what tt_inbox_next gives is complete, of our version, and every number in it is in its range; a
 * text of it ends in a NUL inside the inbox. An encoded message is decoded to the same. Nothing is allocated.
 * Fails as the header says; a sender that is wrong once is not heard again, so nothing is skipped.
 */
#include "core/message.h"

#include "core/log.h"

#include <assert.h>
#include <errno.h>
#include <math.h>
#include <string.h>
#include <unistd.h>

const char *const tt_message_names[TT_MESSAGE_TYPES] = {
    "none",  "setup",   "job",      "prefetch", "cancel", "ping",   "reopen_log", "shutdown",
    "hello", "started", "progress", "warning",  "done",   "failed", "pong",
};

/* --- fields -----------------------------------------------------------------------------------------------
 */

enum kind { END, NUMBER, REAL, TEXT };

struct field {
    enum kind kind;
    const char *name;
    size_t offset;       /* in struct tt_message */
    int64_t least, most; /* of a number */
};

#define AT(member) offsetof(struct tt_message, body.member)
#define IS(member, least, most)                                                                              \
    {                                                                                                        \
        NUMBER, #member, AT(member), least, most                                                             \
    }
#define COUNT(member) IS(member, 0, INT64_MAX)
#define FLAG(member)  IS(member, 0, 1)
#define REAL_AT(member)                                                                                      \
    {                                                                                                        \
        REAL, #member, AT(member), 0, 0                                                                      \
    }
#define TEXT_AT(member)                                                                                      \
    {                                                                                                        \
        TEXT, #member, AT(member), 0, 0                                                                      \
    }
#define OUTPUT_AT(member) IS(member.format, 0, TT_OUTPUTS - 1), TEXT_AT(member.path)
#define PLAN_AT(member)                                                                                      \
    IS(member.precision, 0, TT_FP16), IS(member.tile_queries, 0, INT32_MAX),                                 \
        IS(member.tile_frames, 0, INT32_MAX)
#define DECODER_AT(member)                                                                                   \
    IS(member.threads, 1, 16), IS(member.resize, 0, TT_RESIZE_BILINEAR),                                     \
        IS(member.max_pixels, 1, INT32_MAX), IS(member.max_frames, 1, INT64_MAX),                            \
        IS(member.memory_bytes, 1, INT64_MAX), IS(member.cpu_seconds, 1, INT32_MAX),                         \
        IS(member.stall_seconds, 1, 1000000)

static const struct field setup_fields[] = {
    TEXT_AT(setup.worker),
    IS(setup.supervisor, 1, INT32_MAX),
    TEXT_AT(setup.backend),
    TEXT_AT(setup.select),
    TEXT_AT(setup.arch),
    IS(setup.threads, 0, 1024),
    PLAN_AT(setup),
    TEXT_AT(setup.model),
    TEXT_AT(setup.lock),
    IS(setup.heartbeat_ms, 0, INT32_MAX),
    IS(setup.log_level, 0, TT_LOG_ERROR),
    IS(setup.log_format, 0, TT_LOG_TEXT),
    TEXT_AT(setup.log_file),
    COUNT(setup.log_burst),
    {.kind = END},
};

static const struct field job_fields[] = {
    TEXT_AT(job.id),
    TEXT_AT(job.video),
    TEXT_AT(job.queries),
    TEXT_AT(job.mask),
    TEXT_AT(job.model),
    IS(job.grid, 1, TT_GRID_MAX),
    IS(job.frame, 0, TT_QUERY_FRAME_MAX),
    COUNT(job.max_frames),
    IS(job.clip_frames, 0, TT_CLIP_FRAMES),
    IS(job.overlap_frames, 0, TT_CLIP_FRAMES - 1),
    REAL_AT(job.occlusion_threshold),
    IS(job.refine, 0, 1),
    IS(job.outputs, 1, TT_MESSAGE_OUTPUTS),
    OUTPUT_AT(job.output[0]),
    OUTPUT_AT(job.output[1]),
    OUTPUT_AT(job.output[2]),
    OUTPUT_AT(job.output[3]),
    OUTPUT_AT(job.output[4]),
    OUTPUT_AT(job.output[5]),
    OUTPUT_AT(job.output[6]),
    OUTPUT_AT(job.output[7]),
    OUTPUT_AT(job.output[8]),
    OUTPUT_AT(job.output[9]),
    OUTPUT_AT(job.output[10]),
    OUTPUT_AT(job.output[11]),
    OUTPUT_AT(job.output[12]),
    OUTPUT_AT(job.output[13]),
    TEXT_AT(job.temporary_directory),
    TEXT_AT(job.checkpoint),
    COUNT(job.checkpoint_ms),
    DECODER_AT(job.decoder),
    COUNT(job.deadline_ms),
    COUNT(job.deadline_frame_ms),
    {.kind = END},
};

static const struct field prefetch_fields[] = {
    TEXT_AT(prefetch.id), TEXT_AT(prefetch.video), DECODER_AT(prefetch.decoder), {.kind = END}};

static const struct field cancel_fields[] = {TEXT_AT(cancel.id), {.kind = END}};
static const struct field ping_fields[] = {COUNT(ping.serial), {.kind = END}};
static const struct field reopen_fields[] = {{.kind = END}};
static const struct field shutdown_fields[] = {FLAG(shutdown.now), {.kind = END}};

static const struct field hello_fields[] = {
    IS(hello.pid, 1, INT32_MAX),
    IS(hello.status, 0, TT_INTERRUPTED),
    TEXT_AT(hello.text),
    IS(hello.selftest, 0, TT_SELFTEST_WRONG),
    TEXT_AT(hello.device),
    TEXT_AT(hello.backend),
    TEXT_AT(hello.model),
    TEXT_AT(hello.model_sha256),
    PLAN_AT(hello),
    COUNT(hello.memory_bytes),
    COUNT(hello.start_ms),
    {.kind = END},
};

static const struct field started_fields[] = {
    TEXT_AT(started.id),
    PLAN_AT(started),
    IS(started.width, 0, INT32_MAX),
    IS(started.height, 0, INT32_MAX),
    COUNT(started.frames_hint),
    COUNT(started.queries),
    COUNT(started.resumed_frames),
    FLAG(started.prefetched),
    {.kind = END},
};

static const struct field progress_fields[] = {
    TEXT_AT(progress.id),   IS(progress.stage, 0, TT_JOB_STAGES - 1),
    COUNT(progress.frames), COUNT(progress.expected),
    {.kind = END},
};

static const struct field warning_fields[] = {TEXT_AT(warning.id), TEXT_AT(warning.text), {.kind = END}};

static const struct field done_fields[] = {
    TEXT_AT(done.id),
    IS(done.frames, 1, TT_TRACK_FRAMES_MAX),
    IS(done.queries, 1, TT_QUERIES_MAX),
    FLAG(done.truncated),
    COUNT(done.resumed_frames),
    COUNT(done.decode_ms),
    COUNT(done.track_ms),
    COUNT(done.refine_ms),
    COUNT(done.write_ms),
    COUNT(done.total_ms),
    IS(done.outputs, 1, TT_MESSAGE_OUTPUTS),
    COUNT(done.output_bytes[0]),
    COUNT(done.output_bytes[1]),
    COUNT(done.output_bytes[2]),
    COUNT(done.output_bytes[3]),
    COUNT(done.output_bytes[4]),
    COUNT(done.output_bytes[5]),
    COUNT(done.output_bytes[6]),
    COUNT(done.output_bytes[7]),
    COUNT(done.output_bytes[8]),
    COUNT(done.output_bytes[9]),
    COUNT(done.output_bytes[10]),
    COUNT(done.output_bytes[11]),
    COUNT(done.output_bytes[12]),
    COUNT(done.output_bytes[13]),
    {.kind = END},
};

static const struct field failed_fields[] = {
    TEXT_AT(failed.id),
    IS(failed.status, TT_BAD_INPUT, TT_INTERRUPTED),
    IS(failed.cause, 0, TT_FAILED_SHUTDOWN),
    TEXT_AT(failed.text),
    {.kind = END},
};

static const struct field *const fields_of[TT_MESSAGE_TYPES] = {
    [TT_MESSAGE_SETUP] = setup_fields,       [TT_MESSAGE_JOB] = job_fields,
    [TT_MESSAGE_PREFETCH] = prefetch_fields, [TT_MESSAGE_CANCEL] = cancel_fields,
    [TT_MESSAGE_PING] = ping_fields,         [TT_MESSAGE_REOPEN_LOG] = reopen_fields,
    [TT_MESSAGE_SHUTDOWN] = shutdown_fields, [TT_MESSAGE_HELLO] = hello_fields,
    [TT_MESSAGE_STARTED] = started_fields,   [TT_MESSAGE_PROGRESS] = progress_fields,
    [TT_MESSAGE_WARNING] = warning_fields,   [TT_MESSAGE_DONE] = done_fields,
    [TT_MESSAGE_FAILED] = failed_fields,     [TT_MESSAGE_PONG] = ping_fields,
};

_Static_assert(TT_MESSAGE_OUTPUTS == 14, "job_fields and done_fields name each");

/* What no single field shows. */
static enum tt_status check_whole(const struct tt_message *message, struct tt_error *err)
{
    if (message->type == TT_MESSAGE_FAILED && message->body.failed.status == TT_SHRINK_TILE)
        return tt_fail(err, TT_REFUSE, "message failed: shrink_tile does not travel");
    return TT_OK;
}

static enum tt_status check_number(enum tt_message_type type, const struct field *field, int64_t value,
                                   struct tt_error *err)
{
    if (value < field->least || value > field->most)
        return tt_fail(err, TT_REFUSE, "message %s: %s is %lld, not %lld to %lld", tt_message_names[type],
                       field->name, (long long)value, (long long)field->least, (long long)field->most);
    return TT_OK;
}

static enum tt_status check_real(enum tt_message_type type, const struct field *field, double value,
                                 struct tt_error *err)
{
    return isfinite(value)
               ? TT_OK
               : tt_fail(err, TT_REFUSE, "message %s: %s is not finite", tt_message_names[type], field->name);
}

/* --- to bytes ---------------------------------------------------------------------------------------------
 */

struct header {
    uint32_t magic;
    uint16_t version, type;
    uint32_t body_bytes;
};

_Static_assert(sizeof(struct header) == TT_MESSAGE_HEADER_BYTES, "a header has no gaps");

static void put(uint8_t **at, const void *value, size_t bytes)
{
    memcpy(*at, value, bytes);
    *at += bytes;
}

static enum tt_status put_field(uint8_t **at, const uint8_t *end, const struct tt_message *message,
                                const struct field *field, struct tt_error *err)
{
    const char *base = (const char *)message + field->offset;
    enum tt_status status = TT_OK;
    const char *text;
    uint32_t length;

    if (field->kind == NUMBER)
        status = check_number(message->type, field, *(const int64_t *)(const void *)base, err);
    else if (field->kind == REAL)
        status = check_real(message->type, field, *(const double *)(const void *)base, err);
    if (status)
        return status;
    if (field->kind != TEXT) {
        if (end - *at < 8)
            return tt_fail(err, TT_REFUSE, "message %s is too long", tt_message_names[message->type]);
        put(at, base, 8);
        return TT_OK;
    }
    text = *(const char *const *)(const void *)base;
    length = text ? (uint32_t)strnlen(text, TT_MESSAGE_TEXT_MAX + 1) : 0;
    if (length > TT_MESSAGE_TEXT_MAX || (size_t)(end - *at) < length + sizeof length + 1)
        return tt_fail(err, TT_REFUSE, "message %s: %s is too long", tt_message_names[message->type],
                       field->name);
    put(at, &length, sizeof length);
    put(at, text ? text : "", length + 1);
    return TT_OK;
}

enum tt_status tt_message_encode(const struct tt_message *message, uint8_t *bytes, size_t *size,
                                 struct tt_error *err)
{
    uint8_t *at = bytes + TT_MESSAGE_HEADER_BYTES;
    struct header header = {.magic = TT_MESSAGE_MAGIC, .version = TT_MESSAGE_VERSION};
    enum tt_status status;

    if (message->type <= TT_MESSAGE_NONE || message->type >= TT_MESSAGE_TYPES)
        return tt_fail(err, TT_REFUSE, "message of type %d", (int)message->type);
    status = check_whole(message, err);
    for (const struct field *f = fields_of[message->type]; !status && f->kind != END; f++)
        status = put_field(&at, bytes + TT_MESSAGE_BYTES_MAX, message, f, err);
    if (status)
        return status;
    *size = (size_t)(at - bytes);
    header.type = (uint16_t)message->type;
    header.body_bytes = (uint32_t)(*size - TT_MESSAGE_HEADER_BYTES);
    memcpy(bytes, &header, sizeof header);
    return TT_OK;
}

/* --- from bytes -------------------------------------------------------------------------------------------
 */

static enum tt_status take_field(const uint8_t **at, const uint8_t *end, struct tt_message *message,
                                 const struct field *field, struct tt_error *err)
{
    char *base = (char *)message + field->offset;
    size_t left = (size_t)(end - *at), bytes = field->kind == TEXT ? sizeof(uint32_t) : 8;
    uint32_t length;

    if (left < bytes)
        goto cut;
    if (field->kind != TEXT) {
        memcpy(base, *at, bytes);
        *at += bytes;
        if (field->kind == NUMBER)
            return check_number(message->type, field, *(int64_t *)(void *)base, err);
        return check_real(message->type, field, *(double *)(void *)base, err);
    }
    memcpy(&length, *at, sizeof length);
    *at += sizeof length;
    left -= sizeof length;
    if (length > TT_MESSAGE_TEXT_MAX)
        return tt_fail(err, TT_REFUSE, "message %s: %s is too long", tt_message_names[message->type],
                       field->name);
    if (left < (size_t)length + 1)
        goto cut;
    if (memchr(*at, 0, (size_t)length + 1) != *at + length)
        return tt_fail(err, TT_REFUSE, "message %s: %s does not end where it should",
                       tt_message_names[message->type], field->name);
    *(const char **)(void *)base = (const char *)*at;
    *at += length + 1;
    return TT_OK;
cut:
    return tt_fail(err, TT_REFUSE, "message %s ends within %s", tt_message_names[message->type], field->name);
}

static enum tt_status decode(struct tt_message *message, enum tt_message_type type, const uint8_t *body,
                             size_t bytes, struct tt_error *err)
{
    const uint8_t *at = body, *end = body + bytes;
    enum tt_status status = TT_OK;

    memset(message, 0, sizeof *message);
    message->type = type;
    for (const struct field *f = fields_of[type]; !status && f->kind != END; f++)
        status = take_field(&at, end, message, f, err);
    if (!status && at != end)
        status = tt_fail(err, TT_REFUSE, "message %s is longer than its fields", tt_message_names[type]);
    return status ? status : check_whole(message, err);
}

static enum tt_status check_header(const struct header *header, struct tt_error *err)
{
    if (header->magic != TT_MESSAGE_MAGIC)
        return tt_fail(err, TT_RESTART_WORKER, "no message begins with 0x%08x", (unsigned)header->magic);
    if (header->version != TT_MESSAGE_VERSION)
        return tt_fail(err, TT_REFUSE,
                       "messages of version %d, not %d: tiletrackd and tiletrack-worker are of different "
                       "versions; reinstall and restart",
                       header->version, TT_MESSAGE_VERSION);
    if (header->type == TT_MESSAGE_NONE || header->type >= TT_MESSAGE_TYPES)
        return tt_fail(err, TT_RESTART_WORKER, "a message of unknown type %d", header->type);
    if (header->body_bytes > TT_MESSAGE_BODY_MAX)
        return tt_fail(err, TT_RESTART_WORKER, "a message of %u bytes", (unsigned)header->body_bytes);
    return TT_OK;
}

size_t tt_inbox_room(struct tt_inbox *inbox, uint8_t **at)
{
    if (inbox->begin > 0) {
        memmove(inbox->bytes, inbox->bytes + inbox->begin, inbox->end - inbox->begin);
        inbox->end -= inbox->begin;
        inbox->begin = 0;
    }
    *at = inbox->bytes + inbox->end;
    return sizeof inbox->bytes - inbox->end;
}

void tt_inbox_filled(struct tt_inbox *inbox, size_t bytes)
{
    assert(bytes <= sizeof inbox->bytes - inbox->end);
    inbox->end += bytes;
}

enum tt_status tt_inbox_next(struct tt_inbox *inbox, struct tt_message *message, struct tt_error *err)
{
    const uint8_t *at = inbox->bytes + inbox->begin;
    size_t held = inbox->end - inbox->begin;
    struct tt_message next;
    struct header header;
    enum tt_status status;

    message->type = TT_MESSAGE_NONE;
    if (held < sizeof header)
        return TT_OK;
    memcpy(&header, at, sizeof header);
    status = check_header(&header, err);
    if (status)
        return status;
    if (held < sizeof header + header.body_bytes)
        return TT_OK;
    if (decode(&next, (enum tt_message_type)header.type, at + sizeof header, header.body_bytes, err)) {
        if (err)
            err->status = TT_RESTART_WORKER;
        return TT_RESTART_WORKER;
    }
    inbox->begin += sizeof header + header.body_bytes;
    *message = next;
    return TT_OK;
}

/* --- blocking descriptors ---------------------------------------------------------------------------------
 */

enum tt_status tt_message_send(int fd, const struct tt_message *message, struct tt_error *err)
{
    uint8_t bytes[TT_MESSAGE_BYTES_MAX];
    size_t size = 0, sent = 0;
    enum tt_status status = tt_message_encode(message, bytes, &size, err);

    while (!status && sent < size) {
        ssize_t wrote = write(fd, bytes + sent, size - sent);

        if (wrote > 0)
            sent += (size_t)wrote;
        else if (wrote < 0 && errno != EINTR)
            status = tt_fail_errno(err, TT_RESTART_WORKER, errno, "send message %s",
                                   tt_message_names[message->type]);
    }
    return status;
}

enum tt_status tt_message_receive(int fd, struct tt_inbox *inbox, struct tt_message *message,
                                  struct tt_error *err)
{
    for (;;) {
        enum tt_status status = tt_inbox_next(inbox, message, err);
        uint8_t *at;
        size_t room;
        ssize_t got;

        if (status || message->type != TT_MESSAGE_NONE)
            return status;
        room = tt_inbox_room(inbox, &at);
        got = read(fd, at, room);
        if (got > 0)
            tt_inbox_filled(inbox, (size_t)got);
        else if (got == 0)
            return inbox->begin == inbox->end
                       ? TT_OK
                       : tt_fail(err, TT_RESTART_WORKER, "the stream ends in the middle of a message");
        else if (errno != EINTR)
            return tt_fail_errno(err, TT_RESTART_WORKER, errno, "receive a message");
    }
}

/* tests/unit/test_message.c: every message there and back; cut, corrupted and out of range; whole streams in
 * pieces of every size, and over a real socket.
 */
#include "core/message.h"

#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>
#include <cmocka.h>

static const struct tt_message examples[] = {
    {TT_MESSAGE_SETUP,
     {.setup = {"gpu0", 41, "cuda", "GPU-8f", "sm_75", 3, 1, 128, 12, "/m/x.safetensors", "/run/gpu0.lock",
                900, 2, 1, "/var/log/tt.log", 77}}},
    {TT_MESSAGE_JOB,
     {.job = {"k3v9",
              "/work/k3v9/video",
              "/work/k3v9/queries.csv",
              "/work/k3v9/mask.png",
              "tiletrack-base",
              16,
              5,
              600,
              40,
              8,
              0.5,
              1,
              2,
              {{0, "/work/k3v9/result.1.npz"},
               {1, "/work/k3v9/result.1.csv"},
               {2, "third"},
               [TT_MESSAGE_OUTPUTS - 1] = {TT_OUTPUTS - 1, "last"}},
              "/tmp",
              "/work/k3v9/checkpoint",
              1500,
              {2, 1, 3000, 4000, 5000, 6, 7},
              60000,
              250}}},
    {TT_MESSAGE_PREFETCH, {.prefetch = {"next", "/work/next/video", {1, 0, 1, 2, 3, 4, 5}}}},
    {TT_MESSAGE_CANCEL, {.cancel = {"k3v9"}}},
    {TT_MESSAGE_PING, {.ping = {12}}},
    {TT_MESSAGE_REOPEN_LOG, {.ping = {0}}},
    {TT_MESSAGE_SHUTDOWN, {.shutdown = {1}}},
    {TT_MESSAGE_HELLO,
     {.hello = {99, TT_REFUSE, "wrong", TT_SELFTEST_WRONG, "{\"device\":1}", "cuda", "tiletrack-small",
                "44de", 1, 64, 16, 1 << 30, 432}}},
    {TT_MESSAGE_STARTED, {.started = {"k3v9", 1, 64, 16, 1920, 1080, 300, 256, 86, 1}}},
    {TT_MESSAGE_PROGRESS, {.progress = {"k3v9", TT_JOB_WRITING, 86, 300}}},
    {TT_MESSAGE_WARNING, {.warning = {"k3v9", "a \xff byte and a\nline"}}},
    {TT_MESSAGE_DONE, {.done = {"k3v9", 300, 256, 1, 86, 10, 20, 5, 30, 70, 2, {1000, 2000, 3000}}}},
    {TT_MESSAGE_FAILED, {.failed = {"k3v9", TT_BAD_INPUT, TT_FAILED_ERROR, "no frame could be decoded"}}},
    {TT_MESSAGE_PONG, {.ping = {12}}},
};

enum { EXAMPLES = sizeof examples / sizeof examples[0] };

/* --- comparing --------------------------------------------------------------------------------------------
 */

static bool same_text(const char *a, const char *b)
{
    return strcmp(a ? a : "", b ? b : "") == 0; /* NULL travels as "" */
}

#define NUM(m) (a->body.m == b->body.m)
#define TXT(m) same_text(a->body.m, b->body.m)

static bool same_decoder(const struct tt_message_decoder *a, const struct tt_message_decoder *b)
{
    return memcmp(a, b, sizeof *a) == 0;
}

static bool same_job(const struct tt_message *a, const struct tt_message *b)
{
    bool same = TXT(job.id) && TXT(job.video) && TXT(job.queries) && TXT(job.mask) && TXT(job.model) &&
                NUM(job.grid) && NUM(job.frame) && NUM(job.max_frames) && NUM(job.clip_frames) &&
                NUM(job.overlap_frames) && NUM(job.occlusion_threshold) && NUM(job.refine) &&
                NUM(job.outputs) && TXT(job.temporary_directory) && TXT(job.checkpoint) &&
                NUM(job.checkpoint_ms) && NUM(job.deadline_ms) && NUM(job.deadline_frame_ms) &&
                same_decoder(&a->body.job.decoder, &b->body.job.decoder);

    for (int i = 0; i < TT_MESSAGE_OUTPUTS; i++)
        same = same && NUM(job.output[i].format) && TXT(job.output[i].path);
    return same;
}

static bool same_hello(const struct tt_message *a, const struct tt_message *b)
{
    return NUM(hello.pid) && NUM(hello.status) && TXT(hello.text) && NUM(hello.selftest) &&
           TXT(hello.device) && TXT(hello.backend) && TXT(hello.model) && TXT(hello.model_sha256) &&
           NUM(hello.precision) && NUM(hello.tile_queries) && NUM(hello.tile_frames) &&
           NUM(hello.memory_bytes) && NUM(hello.start_ms);
}

static bool same_setup(const struct tt_message *a, const struct tt_message *b)
{
    return TXT(setup.worker) && NUM(setup.supervisor) && TXT(setup.backend) && TXT(setup.select) &&
           TXT(setup.arch) && NUM(setup.threads) && NUM(setup.precision) && NUM(setup.tile_queries) &&
           NUM(setup.tile_frames) && TXT(setup.model) && TXT(setup.lock) && NUM(setup.heartbeat_ms) &&
           NUM(setup.log_level) && NUM(setup.log_format) && TXT(setup.log_file) && NUM(setup.log_burst);
}

static bool same(const struct tt_message *a, const struct tt_message *b)
{
    if (a->type != b->type)
        return false;
    switch (a->type) {
    case TT_MESSAGE_SETUP:
        return same_setup(a, b);
    case TT_MESSAGE_JOB:
        return same_job(a, b);
    case TT_MESSAGE_PREFETCH:
        return TXT(prefetch.id) && TXT(prefetch.video) &&
               same_decoder(&a->body.prefetch.decoder, &b->body.prefetch.decoder);
    case TT_MESSAGE_CANCEL:
        return TXT(cancel.id);
    case TT_MESSAGE_PING:
    case TT_MESSAGE_PONG:
        return NUM(ping.serial);
    case TT_MESSAGE_SHUTDOWN:
        return NUM(shutdown.now);
    case TT_MESSAGE_HELLO:
        return same_hello(a, b);
    case TT_MESSAGE_STARTED:
        return TXT(started.id) && NUM(started.precision) && NUM(started.tile_queries) &&
               NUM(started.tile_frames) && NUM(started.width) && NUM(started.height) &&
               NUM(started.frames_hint) && NUM(started.queries) && NUM(started.resumed_frames) &&
               NUM(started.prefetched);
    case TT_MESSAGE_PROGRESS:
        return TXT(progress.id) && NUM(progress.stage) && NUM(progress.frames) && NUM(progress.expected);
    case TT_MESSAGE_WARNING:
        return TXT(warning.id) && TXT(warning.text);
    case TT_MESSAGE_DONE:
        return TXT(done.id) && NUM(done.frames) && NUM(done.queries) && NUM(done.truncated) &&
               NUM(done.resumed_frames) && NUM(done.decode_ms) && NUM(done.track_ms) && NUM(done.refine_ms) &&
               NUM(done.write_ms) && NUM(done.total_ms) && NUM(done.outputs) &&
               memcmp(a->body.done.output_bytes, b->body.done.output_bytes,
                      sizeof a->body.done.output_bytes) == 0;
    case TT_MESSAGE_FAILED:
        return TXT(failed.id) && NUM(failed.status) && NUM(failed.cause) && TXT(failed.text);
    case TT_MESSAGE_REOPEN_LOG:
        return true;
    case TT_MESSAGE_NONE:
    case TT_MESSAGE_TYPES:
        break;
    }
    return false;
}

/* --- tools ------------------------------------------------------------------------------------------------
 */

static uint8_t bytes[TT_MESSAGE_BYTES_MAX];
static struct tt_inbox inbox;

static size_t encode(const struct tt_message *message)
{
    struct tt_error err = {.text = ""};
    size_t size = 0;

    if (tt_message_encode(message, bytes, &size, &err))
        fail_msg("%s", err.text);
    return size;
}

static void give(const uint8_t *from, size_t size)
{
    uint8_t *at;

    assert_true(tt_inbox_room(&inbox, &at) >= size);
    memcpy(at, from, size);
    tt_inbox_filled(&inbox, size);
}

/* What comes of exactly these bytes. */
static enum tt_status try_bytes(const uint8_t *from, size_t size, struct tt_message *message,
                                struct tt_error *err)
{
    inbox.begin = inbox.end = 0;
    give(from, size);
    return tt_inbox_next(&inbox, message, err);
}

/* --- tests ------------------------------------------------------------------------------------------------
 */

static void there_and_back(void **state)
{
    struct tt_message message;
    struct tt_error err = {.text = ""};

    (void)state;
    assert_int_equal(EXAMPLES, TT_MESSAGE_TYPES - 1);
    for (int i = 0; i < EXAMPLES; i++) {
        size_t size = encode(&examples[i]);

        assert_int_equal(examples[i].type, i + 1);
        assert_int_equal(try_bytes(bytes, size, &message, &err), TT_OK);
        assert_true(same(&message, &examples[i]));
        assert_int_equal(tt_inbox_next(&inbox, &message, &err), TT_OK);
        assert_int_equal(message.type, TT_MESSAGE_NONE);
        assert_true(strlen(tt_message_names[i + 1]) > 2);
    }
}

/* A message that is not there wholly is no message yet, and is one when the rest comes. */
static void cut_at_every_byte(void **state)
{
    struct tt_message message;
    struct tt_error err = {.text = ""};

    (void)state;
    for (int i = 0; i < EXAMPLES; i++) {
        size_t size = encode(&examples[i]);

        for (size_t cut = 0; cut < size; cut++) {
            assert_int_equal(try_bytes(bytes, cut, &message, &err), TT_OK);
            assert_int_equal(message.type, TT_MESSAGE_NONE);
            give(bytes + cut, size - cut);
            assert_int_equal(tt_inbox_next(&inbox, &message, &err), TT_OK);
            assert_true(same(&message, &examples[i]));
        }
    }
}

/* A header that promises another number of bytes, while the fields are what they were. */
static void wrong_body_length(void **state)
{
    struct tt_message message;
    struct tt_error err;

    (void)state;
    for (int i = 0; i < EXAMPLES; i++) {
        size_t size = encode(&examples[i]);
        uint32_t body = (uint32_t)(size - TT_MESSAGE_HEADER_BYTES);

        for (uint32_t wrong = 0; wrong <= body + 9; wrong++) {
            memcpy(bytes + 8, &wrong, sizeof wrong);
            if (wrong == body)
                continue;
            assert_int_equal(try_bytes(bytes, TT_MESSAGE_HEADER_BYTES + wrong, &message, &err),
                             TT_RESTART_WORKER);
            assert_int_equal(err.status, TT_RESTART_WORKER);
            assert_int_equal(message.type, TT_MESSAGE_NONE);
        }
        body = TT_MESSAGE_BODY_MAX + 1;
        memcpy(bytes + 8, &body, sizeof body);
        assert_int_equal(try_bytes(bytes, size, &message, &err), TT_RESTART_WORKER);
    }
}

/* Every four bytes of a body taken as a length: whatever they become, the message is refused or is another
 * message of the same bytes; nothing is read behind its end (a sanitizer would see it). */
static void every_length_corrupted(void **state)
{
    static const uint32_t lengths[] = {0, 1, 3, 4095, 4096, 65535, 65536, 0x7fffffff, 0xffffffff, 0xfffffffe};
    struct tt_message message;
    struct tt_error err;
    int refused = 0;

    (void)state;
    for (int i = 0; i < EXAMPLES; i++) {
        size_t size = encode(&examples[i]);
        uint8_t *wrong = malloc(size);

        for (size_t at = TT_MESSAGE_HEADER_BYTES; at + 4 <= size; at++)
            for (size_t l = 0; l < sizeof lengths / sizeof lengths[0]; l++) {
                memcpy(wrong, bytes, size);
                memcpy(wrong + at, &lengths[l], 4);
                if (try_bytes(wrong, size, &message, &err) == TT_OK) {
                    size_t again_size;
                    uint8_t *again = malloc(TT_MESSAGE_BYTES_MAX);

                    assert_int_equal(tt_message_encode(&message, again, &again_size, &err), TT_OK);
                    assert_int_equal(again_size, size);
                    assert_memory_equal(again, wrong, size);
                    free(again);
                } else {
                    refused++;
                }
            }
        free(wrong);
    }
    assert_true(refused > 5000);
}

static void wrong_headers(void **state)
{
    struct tt_message message;
    struct tt_error err;
    size_t size = encode(&examples[4]);
    uint16_t number;

    (void)state;
    bytes[0] ^= 1;
    assert_int_equal(try_bytes(bytes, size, &message, &err), TT_RESTART_WORKER);
    bytes[0] ^= 1;
    number = TT_MESSAGE_VERSION + 1;
    memcpy(bytes + 4, &number, 2);
    assert_int_equal(try_bytes(bytes, size, &message, &err), TT_REFUSE);
    assert_non_null(strstr(err.text, "different versions"));
    number = TT_MESSAGE_VERSION;
    memcpy(bytes + 4, &number, 2);
    for (int type = -1; type <= TT_MESSAGE_TYPES; type += type < 0 ? 1 : TT_MESSAGE_TYPES) {
        number = (uint16_t)type;
        memcpy(bytes + 6, &number, 2);
        assert_int_equal(try_bytes(bytes, size, &message, &err), TT_RESTART_WORKER);
    }
}

static void expect_refused(const struct tt_message *message, const char *text)
{
    struct tt_error err = {.text = ""};
    size_t size = 12345;

    assert_int_equal(tt_message_encode(message, bytes, &size, &err), TT_REFUSE);
    assert_int_equal(size, 12345);
    assert_non_null(strstr(err.text, text));
}

static void out_of_range(void **state)
{
    char *longest = malloc(TT_MESSAGE_TEXT_MAX + 2);
    struct tt_message message = examples[TT_MESSAGE_JOB - 1];

    (void)state;
    message.body.job.overlap_frames = 47;
    expect_refused(&message, "job.overlap_frames is 47, not 0 to 46");
    message.body.job.overlap_frames = 8;
    message.body.job.occlusion_threshold = 1.0 / 0.0;
    expect_refused(&message, "job.occlusion_threshold is not finite");
    message = examples[TT_MESSAGE_FAILED - 1];
    message.body.failed.status = TT_OK;
    expect_refused(&message, "failed.status");
    message.body.failed.status = TT_SHRINK_TILE;
    expect_refused(&message, "does not travel");
    message = (struct tt_message){.type = TT_MESSAGE_TYPES};
    expect_refused(&message, "type");

    memset(longest, 'a', TT_MESSAGE_TEXT_MAX + 1);
    longest[TT_MESSAGE_TEXT_MAX + 1] = '\0';
    message = (struct tt_message){.type = TT_MESSAGE_CANCEL, .body.cancel = {longest}};
    expect_refused(&message, "too long");
    longest[TT_MESSAGE_TEXT_MAX] = '\0';
    encode(&message);
    /* every text at its longest fits */
    message = examples[TT_MESSAGE_JOB - 1];
    message.body.job.id = message.body.job.video = message.body.job.queries = message.body.job.mask =
        message.body.job.model = message.body.job.temporary_directory = message.body.job.checkpoint = longest;
    for (int i = 0; i < TT_MESSAGE_OUTPUTS; i++)
        message.body.job.output[i].path = longest;
    encode(&message);
    free(longest);
}

/* All examples one behind the other, in pieces of every size up to 97 bytes. */
static void streams_in_pieces(void **state)
{
    static uint8_t stream[EXAMPLES * 2048];
    struct tt_message message;
    struct tt_error err = {.text = ""};
    size_t length = 0;

    (void)state;
    for (int i = 0; i < EXAMPLES; i++) {
        size_t size = encode(&examples[i]);

        memcpy(stream + length, bytes, size);
        length += size;
    }
    for (size_t piece = 1; piece < 98; piece++) {
        int seen = 0;

        inbox.begin = inbox.end = 0;
        for (size_t at = 0; at < length; at += piece) {
            give(stream + at, length - at < piece ? length - at : piece);
            do {
                assert_int_equal(tt_inbox_next(&inbox, &message, &err), TT_OK);
                if (message.type != TT_MESSAGE_NONE)
                    assert_true(same(&message, &examples[seen++]));
            } while (message.type != TT_MESSAGE_NONE);
        }
        assert_int_equal(seen, EXAMPLES);
    }
}

/* More bytes than the inbox holds: as long as messages are taken there is room. */
static void always_room(void **state)
{
    struct tt_message message;
    struct tt_error err;
    size_t size = encode(&examples[1]), taken = 0, room;
    uint8_t *at;

    (void)state;
    inbox.begin = inbox.end = 0;
    for (size_t put = 0; put < 3000 * size; put += room) {
        room = tt_inbox_room(&inbox, &at);
        assert_true(room > 0);
        for (size_t i = 0; i < room; i++)
            at[i] = bytes[(put + i) % size];
        tt_inbox_filled(&inbox, room);
        do {
            assert_int_equal(tt_inbox_next(&inbox, &message, &err), TT_OK);
            taken += message.type != TT_MESSAGE_NONE;
        } while (message.type != TT_MESSAGE_NONE);
    }
    assert_true(taken >= 3000);
}

static void over_a_socket(void **state)
{
    struct tt_message message;
    struct tt_error err = {.text = ""};
    int pair[2];
    size_t size;

    (void)state;
    signal(SIGPIPE, SIG_IGN);
    assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM, 0, pair), 0);
    inbox.begin = inbox.end = 0;
    for (int i = 0; i < EXAMPLES; i++)
        assert_int_equal(tt_message_send(pair[0], &examples[i], &err), TT_OK);
    for (int i = 0; i < EXAMPLES; i++) {
        assert_int_equal(tt_message_receive(pair[1], &inbox, &message, &err), TT_OK);
        assert_true(same(&message, &examples[i]));
    }
    size = encode(&examples[0]);
    assert_int_equal(write(pair[0], bytes, size - 1), size - 1);
    close(pair[0]);
    assert_int_equal(tt_message_receive(pair[1], &inbox, &message, &err), TT_RESTART_WORKER);
    inbox.begin = inbox.end = 0;
    assert_int_equal(tt_message_receive(pair[1], &inbox, &message, &err), TT_OK);
    assert_int_equal(message.type, TT_MESSAGE_NONE);
    assert_int_equal(tt_message_send(pair[1], &examples[0], &err), TT_RESTART_WORKER);
    close(pair[1]);
}

/* The fuzzer's seeds are of this version: it would get nowhere from those of another. */
static void seeds_are_messages(void **state)
{
    static const char *const seeds[] = {"answers", "failed", "hello", "job", "prefetch", "setup", "stream"};
    const char *source = getenv("TILETRACK_SOURCE");
    char path[4096];

    (void)state;
    if (!source) {
        print_message("skipped: TILETRACK_SOURCE is not set\n");
        skip();
    }
    for (size_t i = 0; i < sizeof seeds / sizeof seeds[0]; i++) {
        struct tt_message message = {.type = TT_MESSAGE_PING};
        struct tt_error err = {.text = ""};
        uint8_t *at;
        FILE *file;

        snprintf(path, sizeof path, "%s/tests/fuzz/corpus/message/%s", source, seeds[i]);
        assert_non_null(file = fopen(path, "rb"));
        inbox.begin = inbox.end = 0;
        tt_inbox_room(&inbox, &at);
        tt_inbox_filled(&inbox, fread(at, 1, TT_MESSAGE_BYTES_MAX, file));
        fclose(file);
        while (message.type != TT_MESSAGE_NONE)
            if (tt_inbox_next(&inbox, &message, &err))
                fail_msg("%s: %s", path, err.text);
        assert_int_equal(inbox.begin, inbox.end);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(there_and_back),    cmocka_unit_test(cut_at_every_byte),
        cmocka_unit_test(wrong_body_length), cmocka_unit_test(every_length_corrupted),
        cmocka_unit_test(wrong_headers),     cmocka_unit_test(out_of_range),
        cmocka_unit_test(streams_in_pieces), cmocka_unit_test(always_room),
        cmocka_unit_test(over_a_socket),     cmocka_unit_test(seeds_are_messages),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}

/* tests/unit/test_decoder_wire.c: messages survive the trip, wrong ones are refused and change nothing. The
 * fuzz target and tests/e2e/test_decode_process.py try many more. */
#include "core/decoder_wire.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#include <cmocka.h>

static const struct tt_video_info good_info = {
    .width = 480,
    .height = 640,
    .coded_width = 640,
    .coded_height = 480,
    .sar_num = 1,
    .sar_den = 1,
    .rotation = 90,
    .rate_num = 25,
    .rate_den = 1,
    .container = "mov",
    .codec = "h264",
    .pixel_format = "yuv420p",
    .matrix = "bt709",
    .transfer = "bt709",
    .range = "tv",
};

static struct tt_wire_state fresh(void)
{
    return (struct tt_wire_state){.max_pixels = 640 * 480, .max_frames = 200};
}

static enum tt_status accept(struct tt_wire_state *state, enum tt_wire_type type, const void *body)
{
    struct tt_wire_message message, accepted;
    struct tt_error err;
    size_t bytes = tt_wire_begin(&message, type);

    memcpy(&message.body, body, (size_t)tt_wire_body_bytes(type));
    return tt_wire_accept(state, &message, bytes, &accepted, &err);
}

static enum tt_status accept_frame(struct tt_wire_state *state, int64_t index, double time_s)
{
    return accept(state, TT_WIRE_FRAME, &(struct tt_wire_frame){index, time_s});
}

static void a_video_is_accepted(void **unused)
{
    struct tt_wire_state state = fresh();
    struct tt_wire_text warning = {.text = "a warning"};

    (void)unused;
    assert_int_equal(accept(&state, TT_WIRE_HELLO, ""), TT_OK);
    assert_int_equal(accept(&state, TT_WIRE_INFO, &good_info), TT_OK);
    assert_int_equal(accept_frame(&state, 0, 1), TT_OK);
    assert_int_equal(accept(&state, TT_WIRE_WARNING, &warning), TT_OK);
    assert_int_equal(accept_frame(&state, 1, 1), TT_OK);
    assert_int_equal(state.in_flight, 2);
    assert_int_equal(accept(&state, TT_WIRE_END, &(struct tt_wire_end){2, 1, 0}), TT_OK);
    assert_true(state.over);
    assert_int_equal(accept_frame(&state, 2, 1), TT_BAD_INPUT);
}

static void the_ring_and_the_limit_hold(void **unused)
{
    struct tt_wire_state state = fresh();

    (void)unused;
    state.hello = state.info = true;
    for (int n = 0; n < TT_DECODER_SLOTS; n++)
        assert_int_equal(accept_frame(&state, n, n), TT_OK);
    assert_int_equal(accept_frame(&state, TT_DECODER_SLOTS, TT_DECODER_SLOTS), TT_BAD_INPUT);
    for (int n = TT_DECODER_SLOTS; n < 200; n++) {
        state.in_flight = 0;
        assert_int_equal(accept_frame(&state, n, n), TT_OK);
    }
    state.in_flight = 0;
    assert_int_equal(accept_frame(&state, 200, 200), TT_BAD_INPUT);
}

static void a_refusal_changes_nothing(void **unused)
{
    struct tt_wire_state state = fresh(), before = state;
    struct tt_wire_message message, accepted = {.header.type = 77};
    struct tt_error err;
    size_t bytes = tt_wire_begin(&message, TT_WIRE_HELLO);

    (void)unused;
    for (size_t cut = 0; cut < bytes; cut++)
        assert_int_equal(tt_wire_accept(&state, &message, cut, &accepted, &err), TT_BAD_INPUT);
    message.header.version++;
    assert_int_equal(tt_wire_accept(&state, &message, bytes, &accepted, &err), TT_REFUSE);
    message.header.version--;
    message.header.zero = 1;
    assert_int_equal(tt_wire_accept(&state, &message, bytes, &accepted, &err), TT_BAD_INPUT);
    assert_int_equal(accepted.header.type, 77);
    assert_memory_equal(&state, &before, sizeof state);
}

static void info_is_checked_field_by_field(void **unused)
{
    struct tt_video_info bad[12];
    int n = 0;

    (void)unused;
    for (int i = 0; i < 12; i++)
        bad[i] = good_info;
    bad[n++].width = 0;
    bad[n++].height = -1;
    bad[n++].coded_width = 641;
    bad[n++].coded_height = INT32_MAX;
    bad[n++].sar_num = 0;
    bad[n++].rotation = 91;
    bad[n++].mirrored = 2;
    bad[n++].rate_den = 0;
    bad[n++].frames_hint = -1;
    bad[n++].duration_hint_s = -1;
    memset(bad[n++].codec, 'x', sizeof bad[0].codec);
    bad[n++].range[0] = 27;
    assert_int_equal(n, 12);
    for (int i = 0; i < 12; i++) {
        struct tt_wire_state state = fresh();

        state.hello = true;
        assert_int_equal(accept(&state, TT_WIRE_INFO, &bad[i]), TT_BAD_INPUT);
        assert_int_equal(accept(&state, TT_WIRE_INFO, &good_info), TT_OK);
    }
}

static void masks_and_videos_do_not_mix(void **unused)
{
    struct tt_wire_state state = fresh();
    struct tt_wire_mask mask = {640, 480};

    (void)unused;
    state.hello = true;
    assert_int_equal(accept(&state, TT_WIRE_MASK, &mask), TT_BAD_INPUT);
    state.mask = true;
    assert_int_equal(accept(&state, TT_WIRE_INFO, &good_info), TT_BAD_INPUT);
    mask.height = 481;
    assert_int_equal(accept(&state, TT_WIRE_MASK, &mask), TT_BAD_INPUT);
    mask.height = 480;
    assert_int_equal(accept(&state, TT_WIRE_MASK, &mask), TT_OK);
}

static void patches_come_as_they_are_ordered(void **unused)
{
    struct tt_wire_state state = fresh();
    struct tt_wire_picture picture = {.time_s = 2, .width = 640, .height = 480};
    struct tt_wire_patches patches = {.count = 3};

    (void)unused;
    state.hello = state.info = true;
    assert_int_equal(accept(&state, TT_WIRE_PICTURE, &picture), TT_BAD_INPUT); /* a video was asked for */
    state.patches = true;
    assert_int_equal(accept_frame(&state, 0, 2), TT_BAD_INPUT);
    assert_int_equal(accept(&state, TT_WIRE_PATCHES, &patches), TT_BAD_INPUT);
    picture.height = 481;
    assert_int_equal(accept(&state, TT_WIRE_PICTURE, &picture), TT_BAD_INPUT);
    picture.height = 480;
    assert_int_equal(accept(&state, TT_WIRE_PICTURE, &picture), TT_OK);
    assert_int_equal(accept(&state, TT_WIRE_PATCHES, &patches), TT_BAD_INPUT); /* nobody asked */
    state.ordered = 4;
    assert_int_equal(accept(&state, TT_WIRE_PATCHES, &patches), TT_BAD_INPUT); /* fewer than were asked for */
    state.ordered = 3;
    picture.index = 1;
    assert_int_equal(accept(&state, TT_WIRE_PICTURE, &picture), TT_BAD_INPUT); /* instead of the patches */
    assert_int_equal(accept(&state, TT_WIRE_END, &(struct tt_wire_end){1, 0, 0}), TT_BAD_INPUT);
    patches.index = 1;
    assert_int_equal(accept(&state, TT_WIRE_PATCHES, &patches), TT_BAD_INPUT); /* of another picture */
    patches.index = 0;
    assert_int_equal(accept(&state, TT_WIRE_PATCHES, &patches), TT_OK);
    assert_int_equal(accept(&state, TT_WIRE_PATCHES, &patches), TT_BAD_INPUT);
    picture.time_s = 1;
    assert_int_equal(accept(&state, TT_WIRE_PICTURE, &picture), TT_BAD_INPUT); /* back in time */
    picture.time_s = 2;
    assert_int_equal(accept(&state, TT_WIRE_PICTURE, &picture), TT_OK);
    assert_int_equal(accept(&state, TT_WIRE_END, &(struct tt_wire_end){2, 1, 0}), TT_OK);
}

static void refusing_to_start_is_for_the_start(void **unused)
{
    struct tt_wire_state state = fresh();
    struct tt_wire_text error = {.status = TT_REFUSE, .text = "no seccomp"};

    (void)unused;
    state.hello = true;
    assert_int_equal(accept(&state, TT_WIRE_ERROR, &error), TT_BAD_INPUT);
    assert_false(state.over);
    state.hello = false;
    assert_int_equal(accept(&state, TT_WIRE_ERROR, &error), TT_OK);
}

static void texts_are_printable(void **unused)
{
    char field[8];

    (void)unused;
    memset(field, 'x', sizeof field);
    tt_wire_print(field, sizeof field, "a\n\xc3\xa4");
    assert_memory_equal(field, "a???\0\0\0\0", 8);
    tt_wire_print(field, sizeof field, "longer than that");
    assert_string_equal(field, "longer ");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_video_is_accepted),
        cmocka_unit_test(the_ring_and_the_limit_hold),
        cmocka_unit_test(a_refusal_changes_nothing),
        cmocka_unit_test(info_is_checked_field_by_field),
        cmocka_unit_test(masks_and_videos_do_not_mix),
        cmocka_unit_test(patches_come_as_they_are_ordered),
        cmocka_unit_test(refusing_to_start_is_for_the_start),
        cmocka_unit_test(texts_are_printable),
    };
    return cmocka_run_group_tests_name("decoder_wire", tests, NULL, NULL);
}

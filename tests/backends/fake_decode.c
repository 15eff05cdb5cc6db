/* tests/backends/fake_decode.c: a decoder for tests that need thousands of jobs: it speaks
 * core/decoder_wire.h as tiletrack-decode does, but links no libav and starts in a millisecond. Not confined;
 * only for tests.
 *
 * A "video" is a text: FRAMES COLOUR [hang|crash|truncated|bad]; COLOUR is red, green, blue or grey. Frame f
 * is of that colour with the frame's number in its bytes. `hang` and `crash` happen in the middle frame,
 * `bad` is an error before the first.
 */
#include "core/decoder_wire.h"

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <unistd.h>

static void say(struct tt_wire_message *message, size_t bytes)
{
    if (send(TT_CHILD_CONTROL, message, bytes, MSG_NOSIGNAL) != (ssize_t)bytes)
        _exit(1);
}

static void say_error(const char *text)
{
    struct tt_wire_message message;
    size_t bytes = tt_wire_begin(&message, TT_WIRE_ERROR);

    message.body.text.status = TT_BAD_INPUT;
    tt_wire_print(message.body.text.text, TT_WIRE_TEXT_BYTES, text);
    say(&message, bytes);
    _exit(0);
}

static void say_info(int frames)
{
    struct tt_wire_message message;
    size_t bytes = tt_wire_begin(&message, TT_WIRE_INFO);
    struct tt_video_info *info = &message.body.info;

    *info = (struct tt_video_info){.width = 64,
                                   .height = 64,
                                   .coded_width = 64,
                                   .coded_height = 64,
                                   .sar_num = 1,
                                   .sar_den = 1,
                                   .rate_num = 25,
                                   .rate_den = 1,
                                   .frames_hint = frames,
                                   .container = "fake",
                                   .codec = "fake",
                                   .pixel_format = "rgb24",
                                   .matrix = "rgb",
                                   .transfer = "unknown",
                                   .range = "pc"};
    say(&message, bytes);
}

static void say_frame(int frame)
{
    struct tt_wire_message message;
    size_t bytes = tt_wire_begin(&message, TT_WIRE_FRAME);

    message.body.frame.index = frame;
    message.body.frame.time_s = frame / 25.0;
    say(&message, bytes);
}

static void paint(uint8_t *rgb, const char *colour, int frame)
{
    static const char *const names[] = {"red", "green", "blue"};

    for (int c = 0; c < 3; c++) {
        uint8_t value = strcmp(colour, "grey") == 0 || strcmp(colour, names[c]) == 0 ? 200 : 10;

        for (int i = c; i < TT_FRAME_BYTES; i += 3)
            rgb[i] = value;
    }
    for (int i = 0; i < TT_FRAME_BYTES; i += 769)
        rgb[i] = (uint8_t)(rgb[i] + (frame * 37 + i / 769) % 5);
}

static void decode(uint8_t *ring, int frames, const char *colour, const char *what)
{
    struct tt_wire_message message;
    int32_t credit = TT_DECODER_SLOTS, more;
    size_t bytes;

    say_info(frames);
    for (int f = 0; f < frames; f++) {
        if (f == frames / 2 && strcmp(what, "hang") == 0)
            pause();
        if (f == frames / 2 && strcmp(what, "crash") == 0)
            abort();
        for (; credit == 0; credit += more)
            if (recv(TT_CHILD_CONTROL, &more, sizeof more, 0) != sizeof more)
                _exit(1);
        credit--;
        paint(ring + (size_t)(f % TT_DECODER_SLOTS) * TT_FRAME_BYTES, colour, f);
        say_frame(f);
    }
    bytes = tt_wire_begin(&message, TT_WIRE_END);
    message.body.end = (struct tt_wire_end){.frames = frames, .truncated = strcmp(what, "truncated") == 0};
    say(&message, bytes);
}

int main(void)
{
    struct tt_wire_message message;
    char text[128] = "", colour[16] = "", what[16] = "";
    int frames = 0;
    ssize_t got = recv(TT_CHILD_CONTROL, &message, sizeof message, 0);
    uint8_t *ring;

    prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (got < (ssize_t)sizeof message.header || message.header.type != TT_WIRE_REQUEST ||
        getppid() != message.body.request.parent_pid)
        return 1;
    ring = mmap(NULL, (size_t)message.body.request.ring_bytes, PROT_READ | PROT_WRITE, MAP_SHARED,
                TT_CHILD_RING, 0);
    say(&message, tt_wire_begin(&message, TT_WIRE_HELLO));
    if (ring == MAP_FAILED || pread(TT_CHILD_VIDEO, text, sizeof text - 1, 0) < 0 ||
        sscanf(text, "%d %15s %15s", &frames, colour, what) < 2 || frames < 1 || strcmp(what, "bad") == 0)
        say_error("not a video");
    decode(ring, frames, colour, what);
    while (recv(TT_CHILD_CONTROL, &got, sizeof got, 0) > 0) {
    }
    return 0;
}

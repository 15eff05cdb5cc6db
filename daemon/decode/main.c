/* daemon/decode/main.c: tiletrack-decode, the only program that touches the bytes of a video.
 *
 * Started by core/decoder.c with six descriptors: 0, 1 and 2 on /dev/null, the video, the control socket, the
 * ring. It takes its orders from the socket, confines itself (confine.h), says hello, and only then reads the
 * first byte of the video. What goes wrong is told over the socket; the exit code says nothing but whether it
 * could be.
 */
#include "daemon/decode/confine.h"
#include "daemon/decode/input.h"
#include "daemon/decode/link.h"
#include "daemon/decode/video.h"

#include <malloc.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

static enum tt_status serve(struct tt_link *link, struct tt_error *err)
{
    static struct tt_input input;
    struct tt_wire_request request;
    enum tt_status status = tt_link_request(&request, err);

    if (!status)
        status = tt_link_open(link, &request, err);
    if (!status)
        status = tt_input_prepare(&input, err);
    if (!status)
        status = tt_confine(&request, err);
    if (status)
        return status;
    tt_link_hello(link);
    return request.mask ? tt_mask_decode(&input, link, &request, err)
                        : tt_video_decode(&input, link, &request, err);
}

int main(int argc, char **argv)
{
    struct tt_link link = {0};
    struct tt_error err;

    if (argc == 2 && !strcmp(argv[1], "--version")) {
        printf("tiletrack-decode %s, protocol %d, libavcodec %s\n", TT_VERSION, TT_WIRE_VERSION,
               LIBAVCODEC_IDENT);
        return 0;
    }
    if (argc != 2 || strcmp(argv[1], "--child")) {
        fputs("tiletrack-decode is started by tiletrack and tiletrackd, not by hand\n", stderr);
        return 2;
    }
    mallopt(M_ARENA_MAX, 1); /* an arena for each thread would take address space that RLIMIT_AS counts */
    if (serve(&link, &err))
        tt_link_error(&link, &err);
    _exit(0); /* no handlers: they might need what was given up */
}

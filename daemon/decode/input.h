/* daemon/decode/input.h: a container on TT_CHILD_VIDEO, opened by libavformat without access to anything
 * else. */
#ifndef TT_DECODE_INPUT_H
#define TT_DECODE_INPUT_H

#include "core/decoder_wire.h"

#include <libavcodec/avcodec.h>
#include <libavformat/avformat.h>

struct tt_input {
    AVFormatContext *format;
    AVStream *stream; /* the video; borrowed (until the process ends) */
    const AVCodec *codec;
    int64_t file_bytes, position;
    int read_errno; /* the storage failed; 0: it did not */
    int references; /* other files that the container asked for and did not get */
    int attached_pictures;
};

/* Notes the file's size and takes over libav's log. Before confinement: fstat is gone after it. */
enum tt_status tt_input_prepare(struct tt_input *input, struct tt_error *err);

/* Opens the container and finds the best video stream. Nothing is ever closed: the process ends.
 * TT_BAD_INPUT: the text says what was found instead of a video. */
enum tt_status tt_input_open_video(struct tt_input *input, const struct tt_wire_request *request,
                                   struct tt_error *err);

/* Opens a PNG. */
enum tt_status tt_input_open_png(struct tt_input *input, struct tt_error *err);

/* An error from libav's error number: the storage's fault where it failed, the memory limit's, or the
 * input's. `what` says what was attempted; libav's first complaint is appended. */
enum tt_status tt_input_fail(const struct tt_input *input, const struct tt_wire_request *request, int rc,
                             const char *what, struct tt_error *err);

/* The first thing that libav complained about, "" where it did not. Borrowed (until the process ends). */
const char *tt_input_complaint(void);

#endif

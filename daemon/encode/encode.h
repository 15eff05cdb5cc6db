/* daemon/encode/encode.h: frames in, packets out, a file written. */
#ifndef TT_ENCODE_ENCODE_H
#define TT_ENCODE_ENCODE_H

#include "core/encoder_wire.h"

#include <stdint.h>

struct tt_encode;

/* Opens the encoder and, for a video, begins the file; nothing is written before the first frame. TT_REFUSE:
 * no such encoder; TT_BAD_INPUT: it cannot do that size. *encode lives as long as the process. */
enum tt_status tt_encode_open(struct tt_encode **encode, const struct tt_encode_message *request,
                              struct tt_error *err);

/* libav's name of the encoder. */
const char *tt_encode_codec(const struct tt_encode *encode);

/* Encodes a frame: rgb [height][width][3], borrowed until it returns. Errors as the disk has them. */
enum tt_status tt_encode_frame(struct tt_encode *encode, const uint8_t *rgb, int64_t ticks,
                               struct tt_error *err);

/* What is left, and the file's end. */
enum tt_status tt_encode_end(struct tt_encode *encode, struct tt_error *err);

#endif

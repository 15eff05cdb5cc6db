/* daemon/decode/extent.h: how long a file says that it is. */
#ifndef TT_DECODE_EXTENT_H
#define TT_DECODE_EXTENT_H

#include <stdint.h>

/* The size that the outermost structure of the file on TT_CHILD_VIDEO asks for (MP4 and MOV boxes, Matroska
 * segment, RIFF chunks, ASF properties, last Ogg page, whole transport packets), in bytes; more than
 * file_bytes: the file was cut. 0: the structure does not say. */
int64_t tt_extent_declared(int64_t file_bytes);

#endif

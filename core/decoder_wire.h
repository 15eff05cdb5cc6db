/* core/decoder_wire.h: the messages between core/decoder.c and tiletrack-decode.
 *
 * One message is one packet of a SOCK_SEQPACKET pair: a header and the body of its type, exactly that many
 * bytes. Both ends run on one machine, so numbers are in its own byte order.
 *
 *     parent -> child   request (first, before the child confines itself), then
 *                       a video: credits, an int32_t, the number of ring slots that are free again
 *                       patches: orders, struct tt_wire_order
 *     child -> parent   hello warning* info (frame | warning)* (end | error)     a video
 *                       hello warning* (mask | error)                            a mask
 *                       hello warning* info (picture | patches | warning)* (end | error)     patches
 *                       hello warning* info (picture | warning)* (end | error)     whole pictures
 *
 * Frame n lies in slot n % TT_DECODER_SLOTS of the ring. The child begins with a credit for every slot. With
 * patches the child cuts what it is ordered to out of the newest picture, in the order's order and from the
 * ring's beginning; an order of none asks for the next picture. Once it has answered the first order of a
 * picture the child decodes the next one before it reads on, and keeps what came of it until it is asked for;
 * only warnings come at once. A whole picture lies at the ring's beginning until the next is asked for, RGB,
 * as large as info says that it is displayed. The parent trusts nothing: tt_wire_accept is given each packet
 * and refuses what is not exactly this.
 */
#ifndef TT_CORE_DECODER_WIRE_H
#define TT_CORE_DECODER_WIRE_H

#include "core/child.h"
#include "core/decoder.h"

#include <stddef.h>
#include <stdint.h>

enum {
    TT_WIRE_MAGIC = 0x54544431, /* "TTD1" */
    TT_WIRE_VERSION = 3,
    TT_WIRE_TEXT_BYTES = 480, /* with the NUL */
    TT_WIRE_MAX_WARNINGS = 64,
};

enum { TT_CHILD_VIDEO = TT_CHILD_FILE }; /* core/child.h has the child's descriptors */

enum tt_wire_type {
    TT_WIRE_REQUEST = 1,
    TT_WIRE_HELLO, /* confined; no byte of the video has been read */
    TT_WIRE_INFO,
    TT_WIRE_FRAME,
    TT_WIRE_WARNING,
    TT_WIRE_END,
    TT_WIRE_ERROR,
    TT_WIRE_MASK,
    TT_WIRE_PICTURE,
    TT_WIRE_PATCHES,
    TT_WIRE_TYPES
};

struct tt_wire_header {
    uint32_t magic;
    uint16_t version;
    uint16_t type;
    uint32_t body_bytes;
    uint32_t zero;
};

struct tt_wire_request {
    int64_t max_pixels, max_frames, memory_bytes, ring_bytes;
    int32_t parent_pid, mask, threads, resize, cpu_seconds, patches;
    int32_t whole, zero; /* whole: with patches, but the ring holds each picture, whole and as displayed */
};

struct tt_wire_frame {
    int64_t index;
    double time_s;
};

struct tt_wire_end {
    int64_t frames;
    int32_t truncated, zero;
};

struct tt_wire_text {
    int32_t status; /* error: TT_BAD_INPUT, TT_RETRY_LATER; TT_REFUSE only before hello. Warning: TT_OK */
    char text[TT_WIRE_TEXT_BYTES]; /* printable ASCII, NUL, zeros */
};

struct tt_wire_mask {
    int32_t width, height;
};

/* A picture that patches may now be ordered from. */
struct tt_wire_picture {
    int64_t index;
    double time_s;
    int32_t width, height; /* as stored */
};

/* What was ordered lies in the ring. */
struct tt_wire_patches {
    int64_t index; /* of the picture */
    int32_t count, zero;
};

/* Sent without a header and without the places that are not used. */
struct tt_wire_order {
    int32_t count, zero; /* 0..TT_CUT_BATCH; 0: the next picture */
    struct tt_cut_place places[TT_CUT_BATCH];
};

struct tt_wire_message {
    struct tt_wire_header header;
    union {
        struct tt_wire_request request;
        struct tt_video_info info;
        struct tt_wire_frame frame;
        struct tt_wire_text text; /* warning and error */
        struct tt_wire_end end;
        struct tt_wire_mask mask;
        struct tt_wire_picture picture;
        struct tt_wire_patches patches;
    } body;
};

/* Bytes of a type's body; -1: no such type. */
int tt_wire_body_bytes(int type);

/* Zeroes *message and fills in its header. Returns the bytes to send. */
size_t tt_wire_begin(struct tt_wire_message *message, enum tt_wire_type type);

/* Copies text into a field of `bytes` bytes as printable ASCII: other bytes become '?', what does not fit is
 * cut. The rest of the field is zero. */
void tt_wire_print(char *field, size_t bytes, const char *text);

/* What the parent knows of the conversation. Begin with {.mask = ..., .patches = ..., .max_...}. */
struct tt_wire_state {
    bool mask;             /* a mask was asked for */
    bool patches;          /* patches were, or whole pictures */
    bool whole;            /* which of the two */
    int32_t width, height; /* of whole pictures: info's */
    int64_t ring_bytes;
    int64_t max_pixels, max_frames;
    bool hello, info, over; /* over: end, error or mask has come */
    int64_t frames;         /* that have come; pictures too */
    int ordered;            /* patches that are on their way; 0: none, or a picture */
    int in_flight;          /* slots without a credit: the child's use minus what the caller gave back */
    int warnings;
    double last_time_s;
};

/* Checks one packet and, when it is right, copies it to *message and moves *state on.
 * TT_REFUSE: another version of the program; TT_BAD_INPUT: the protocol is broken, the text says how. */
enum tt_status tt_wire_accept(struct tt_wire_state *state, const void *packet, size_t bytes,
                              struct tt_wire_message *message, struct tt_error *err);

#endif

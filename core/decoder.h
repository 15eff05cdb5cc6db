/* core/decoder.h: the parent's side of tiletrack-decode, the confined child that is the only code to touch
 * the bytes of a video. docs/DECODE.md says what it does with them.
 *
 * One decoder is one child and one video. The child runs ahead of its reader by up to TT_DECODER_SLOTS
 * frames, which it writes into shared memory. Nothing that it says is trusted: a child that breaks the
 * protocol is killed. A decoder is used by one thread at a time. The child is killed when the thread that
 * opened it ends, so open on a thread that outlives the decoder. The caller must not reap children that it
 * did not start (waitpid(-1) or SIGCHLD ignored would lose the reason of a child's death).
 *
 *     tt_decoder_open_path -> tt_decoder_open -> tt_decoder_info -> tt_decoder_read* -> tt_decoder_close
 */
#ifndef TT_CORE_DECODER_H
#define TT_CORE_DECODER_H

#include "core/clip.h"
#include "core/status.h"

#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

enum { TT_DECODER_SLOTS = TT_CLIP_FRAMES }; /* frames that the child may be ahead */

/* How a frame becomes 256×256; both keep positions exactly (no half pixels). */
enum tt_resize {
    TT_RESIZE_AREA,     /* mean over the source pixels that an output pixel covers */
    TT_RESIZE_BILINEAR, /* the public code's: four taps, align_corners=False, no antialiasing */
};

struct tt_decoder_options {
    const char *program; /* NULL: tiletrack-decode, as core/install.h finds it */
    int interrupt_fd; /* becomes readable when the caller wants to stop; -1: none. Borrowed (until close) */
    int threads;      /* of libavcodec, 1..16; with more than 1, damaged files may differ in a few pixels
                         from run to run */
    enum tt_resize resize;
    int64_t max_pixels;   /* of one coded frame or mask */
    int64_t max_frames;   /* of one video */
    int64_t memory_bytes; /* address space of the child */
    int cpu_seconds;      /* of the whole video, all threads */
    int stall_seconds;    /* longest wait for one frame, by the clock */
};

#define TT_DECODER_DEFAULTS                                                                                  \
    ((struct tt_decoder_options){.program = NULL,                                                            \
                                 .interrupt_fd = -1,                                                         \
                                 .threads = 1,                                                               \
                                 .resize = TT_RESIZE_AREA,                                                   \
                                 .max_pixels = (int64_t)8192 * 8192,                                         \
                                 .max_frames = 1000000,                                                      \
                                 .memory_bytes = (int64_t)4 << 30,                                           \
                                 .cpu_seconds = 4 * 3600,                                                    \
                                 .stall_seconds = 60})

/* What is known of a video once its first frame is decoded. Texts are printable ASCII. */
struct tt_video_info {
    int32_t width, height;             /* as displayed: after pixel aspect and rotation; for positions */
    int32_t coded_width, coded_height; /* of the first frame as it is stored */
    int32_t sar_num, sar_den;          /* pixel aspect, 1:1 where it is unknown */
    int32_t rotation;                  /* clockwise, as displayed: 0, 90, 180, 270 */
    int32_t mirrored;                  /* 1: flipped left to right, after the rotation */
    int32_t rate_num, rate_den;        /* mean frame rate by the header, 0:1 where it is unknown */
    int64_t frames_hint;               /* the header's count, which may lie; 0: unknown */
    double duration_hint_s;            /* the header's, which may lie; 0: unknown */
    char container[32];                /* "mov,mp4,m4a,3gp,3g2,mj2" */
    char codec[32];                    /* "h264" */
    char pixel_format[32];             /* "yuv420p" */
    char matrix[24];                   /* that is used: "bt709" */
    char transfer[24];                 /* by the header: "bt709", "smpte2084", "unknown" */
    char range[8];                     /* that is used: "tv" or "pc" */
};

struct tt_decoder;

/* Opens a file for a decoder: read-only, close-on-exec, without waiting for the writer of a fifo.
 * *fd: out, owns. TT_BAD_INPUT: no such file, no permission, a directory, a fifo, a device, an empty file. */
enum tt_status tt_decoder_open_path(const char *path, int *fd, struct tt_error *err);

/* Starts a child on video_fd (a regular file opened read-only; its position is neither used nor changed) and
 * waits for the first frame. Borrows video_fd (until this returns) and *options (until this returns; NULL:
 * the defaults). TT_BAD_INPUT: no frame can be decoded, the text says what was found; TT_RETRY_LATER: the
 * host is short of something; TT_REFUSE: no decoder program, or a kernel that cannot confine it;
 * TT_INTERRUPTED. */
enum tt_status tt_decoder_open(struct tt_decoder **decoder, int video_fd,
                               const struct tt_decoder_options *options, struct tt_error *err);

/* Kills the child if it still runs, and reaps it. NULL is allowed. */
void tt_decoder_close(struct tt_decoder *decoder);

/* Borrowed (until close). */
const struct tt_video_info *tt_decoder_info(const struct tt_decoder *decoder);

/* The next frames, in order of presentation; waits until `wanted` are there or the video ends.
 * rgb: out, [wanted][256][256][3]; time_s: out, [wanted], presentation times in seconds on the video's own
 * clock (the first need not be 0), never decreasing; *got: out, less than wanted only at the end, 0 after it.
 * On failure *got still counts the whole frames before it (rgb beyond them is undefined).
 * TT_BAD_INPUT: the child died, hung, passed a limit or broke the protocol; TT_RETRY_LATER: it was killed
 * from outside or the storage failed; TT_INTERRUPTED. After a failure only close makes sense. */
enum tt_status tt_decoder_read(struct tt_decoder *decoder, uint8_t *rgb, double *time_s, int wanted, int *got,
                               struct tt_error *err);

/* After the end: the file ends before its own structure says that it does. */
bool tt_decoder_truncated(const struct tt_decoder *decoder);

/* One line each, for people; complete after the end. Borrowed (until the next read or close). */
const char *const *tt_decoder_warnings(const struct tt_decoder *decoder, int *count);

/* ---- patches: pieces of the frames as they are stored, not resized ---- */

enum {
    TT_CUT_SIZE = 64, /* pixels a side */
    TT_CUT_BYTES = TT_CUT_SIZE * TT_CUT_SIZE,
    TT_CUT_LEVELS = 6, /* of the pyramid */
    TT_CUT_BATCH = 256,
};

/* Which patch: of pyramid level `level`, whose pixel (i, j) is the mean over the stored pixels
 * [i << level, (i + 1) << level) × [j << level, (j + 1) << level), the pixels [x, x + TT_CUT_SIZE) ×
 * [y, y + TT_CUT_SIZE). What lies outside of the picture is as the nearest pixel inside. */
struct tt_cut_place {
    int32_t x, y, level;
};

/* A frame that patches can be taken from. */
struct tt_picture {
    int64_t index;
    double time_s;         /* as tt_decoder_read gives it */
    int32_t width, height; /* as stored; positions of patches are in these */
};

/* As tt_decoder_open, but for tt_decoder_next and tt_decoder_cut instead of tt_decoder_read; resize counts
 * for nothing. The child holds two frames, whatever the video's length. */
enum tt_status tt_decoder_open_patches(struct tt_decoder **decoder, int video_fd,
                                       const struct tt_decoder_options *options, struct tt_error *err);

/* The next frame, in order of presentation; *got: false behind the last. Errors as tt_decoder_read. */
enum tt_status tt_decoder_next(struct tt_decoder *decoder, struct tt_picture *picture, bool *got,
                               struct tt_error *err);

/* Cuts patches out of the frame that tt_decoder_next gave: patches: out, [count][64][64], grey (luma), 8
 * bits. After a frame's first TT_CUT_BATCH the child decodes the next frame, and answers again when it has
 * it: who orders as many as that at once and then works on them does not wait. TT_REFUSE: no frame, or a
 * level outside 0..TT_CUT_LEVELS-1; others as tt_decoder_read. */
enum tt_status tt_decoder_cut(struct tt_decoder *decoder, const struct tt_cut_place *places, int count,
                              uint8_t *patches, struct tt_error *err);

/* ---- whole pictures, for who draws into them ---- */

/* As tt_decoder_open, but for tt_decoder_next and tt_decoder_rgb instead of tt_decoder_read; resize counts
 * for nothing. The child holds one frame. TT_BAD_INPUT also: a frame is displayed larger than max_pixels. */
enum tt_status tt_decoder_open_whole(struct tt_decoder **decoder, int video_fd,
                                     const struct tt_decoder_options *options, struct tt_error *err);

/* The frame that tt_decoder_next gave: [height][width][3] RGB as displayed, turned, in the size that
 * tt_decoder_info says. Borrowed (until the next tt_decoder_next or close); a hostile child may still change
 * it. NULL: none, or not opened so. */
const uint8_t *tt_decoder_rgb(const struct tt_decoder *decoder);

/* The child's process id, for tests and logs; 0 once it is reaped. */
pid_t tt_decoder_pid(const struct tt_decoder *decoder);

/* Decodes a PNG in a child of its own. *mask: out, owns (free), [height][width], 1 inside and 0 outside.
 * Where the image has an alpha channel that is not opaque everywhere, inside is alpha > 0; otherwise inside
 * is any colour but black. Options and errors as for open. */
enum tt_status tt_decoder_mask(int png_fd, const struct tt_decoder_options *options, uint8_t **mask,
                               int *width, int *height, struct tt_error *err);

#endif

/* core/overlay.h: a video with its tracks drawn into it, and a contact sheet of it.
 *
 * Frames come from a decoder (whole pictures, as displayed) and go to an encoder; tracks come from a track
 * file or a finished stitch, as for core/export.h. The video has the source's size and its times, counted
 * from its first frame; there is no sound. Memory: some frames, 16 bytes × tracks × the frames of a tail, and
 * about 20 MB; 16 bytes a point are spilled to a nameless file.
 */
#ifndef TT_CORE_OVERLAY_H
#define TT_CORE_OVERLAY_H

#include "core/decoder.h"
#include "core/encoder.h"
#include "core/export.h"
#include "core/fsio.h"
#include "core/status.h"

#include <stdatomic.h>
#include <stdint.h>

enum tt_overlay_style {
    TT_OVERLAY_DOTS,  /* a disc where a point is */
    TT_OVERLAY_TAILS, /* and its way of the last moments */
    TT_OVERLAY_GRID,  /* lines between points that were neighbours in their query's frame */
    TT_OVERLAY_HEAT,  /* soft spots whose colour is the point's speed */
    TT_OVERLAY_STYLES
};

extern const char *const tt_overlay_style_names[TT_OVERLAY_STYLES]; /* "dots", ... */

enum { TT_OVERLAY_TAIL_FRAMES = 256 };

/* Borrows everything (until the call returns). */
struct tt_overlay_options {
    enum tt_overlay_style style;
    double tail_s;             /* length of a tail; 0: 0.6 */
    float min_confidence;      /* below it a point counts as hidden */
    const char *const *labels; /* shell patterns: only tracks whose label matches one */
    int label_count;
    const char *spill_folder; /* for the nameless file */
    bool same_times;          /* the video's frames must have the very times that the tracks have */
    struct tt_decoder_options decoder;
    struct tt_encoder_options encoder;
    const atomic_bool *stop; /* NULL, or set from elsewhere: TT_INTERRUPTED soon */
    /* NULL, or called after each frame; another status than TT_OK ends the work with it. */
    enum tt_status (*progress)(void *user, int64_t frames, int64_t expected, struct tt_error *err);
    void *user;
};

struct tt_overlay_report {
    int tracks;
    int64_t frames;
    bool video_goes_on; /* behind the last frame that has tracks */
    char codec[32];     /* of the video */
};

/* Draws the tracks of source into the video behind video_fd (open for reading). video, sheet: what is
 * written, either may be NULL; the caller commits or abandons them. *report: out, may be NULL. TT_BAD_INPUT:
 * the video cannot be decoded, has another size than the tracks say, fewer frames, or (same_times) other
 * times; TT_REFUSE: labels that
 * match nothing, no encoder; TT_RETRY_LATER: a full disk, an encoder that died; TT_INTERRUPTED. */
enum tt_status tt_overlay_write(struct tt_file *video, struct tt_file *sheet, int video_fd,
                                const struct tt_export_source *source,
                                const struct tt_overlay_options *options, struct tt_overlay_report *report,
                                struct tt_error *err);

/* Whether a video is the one that was tracked. meta: the track file's; stop: as in the options. TT_BAD_INPUT:
 * it has another length or SHA-256 than meta says, and the text how they differ, or its file was changed
 * while it was tracked; TT_OK also where meta says nothing of them. Reads the whole video where its length is
 * right. */
enum tt_status tt_overlay_check_video(int video_fd, const char *meta, const atomic_bool *stop,
                                      struct tt_error *err);

struct tt_colour8 {
    uint8_t r, g, b;
};

/* The colour of query number `query`: always the same. The first eight are told apart by people who do not
 * see all colours, too; later ones are shades of these. */
struct tt_colour8 tt_overlay_colour(int query);

#endif

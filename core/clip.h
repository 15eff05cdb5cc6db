/* core/clip.h: what the network sees of a video, and the geometry that leads back to the video. */
#ifndef TT_CORE_CLIP_H
#define TT_CORE_CLIP_H

#include <stddef.h>
#include <stdint.h>

enum {
    TT_CLIP_FRAMES = 47,                              /* frames in a whole window */
    TT_CLIP_SIZE = 256,                               /* width and height, pixels */
    TT_FRAME_BYTES = TT_CLIP_SIZE * TT_CLIP_SIZE * 3, /* one RGB frame */
    TT_CLIP_BYTES = TT_CLIP_FRAMES * TT_FRAME_BYTES,  /* 9.2 MB */
};

/* Consecutive frames of one video, resized to 256×256 (whole frame, aspect not kept).
 * rgb: [frames][256][256][3], 0..255. Borrows rgb (until the call that was given the clip returns). */
struct tt_clip {
    const uint8_t *rgb;
    int frames;          /* 1..TT_CLIP_FRAMES */
    int64_t first_frame; /* the video's number of the first frame, from 0 */
};

/* A position in clip pixels is one in source pixels times 256 and divided by the displayed size: both use the
 * raster convention (the top-left corner is 0,0; the centre of the first pixel 0.5,0.5), so no half pixels
 * appear. */
static inline float tt_clip_from_source(float position, int source_size)
{
    return position * (float)TT_CLIP_SIZE / (float)source_size;
}

static inline float tt_source_from_clip(float position, int source_size)
{
    return position * (float)source_size / (float)TT_CLIP_SIZE;
}

#endif

/* daemon/decode/patch.c: luma of a frame, and square pieces of it at several scales.
 *
 * Where a frame has its luma as a plane of bytes that plane is used as it lies there; anything else goes
 * through libswscale to grey of the same size. Ranges are not evened out: whoever compares patches allows for
 * brightness and contrast. A pixel of level l is the rounded mean over 2^l × 2^l stored pixels; places
 * outside of the picture repeat its nearest pixel, so any place may be asked for.
 *
 * Fails where memory is short or where libswscale does not know the pixel format.
 */
#include "daemon/decode/patch.h"

#include <libavutil/mem.h>
#include <libavutil/pixdesc.h>
#include <libswscale/swscale.h>

#include <string.h>

static bool has_luma_bytes(const AVPixFmtDescriptor *d)
{
    const uint64_t others = AV_PIX_FMT_FLAG_RGB | AV_PIX_FMT_FLAG_PAL | AV_PIX_FMT_FLAG_BAYER |
                            AV_PIX_FMT_FLAG_BITSTREAM | AV_PIX_FMT_FLAG_HWACCEL;

    return d && !(d->flags & others) && d->comp[0].plane == 0 && d->comp[0].step == 1 &&
           d->comp[0].offset == 0 && d->comp[0].depth == 8 && d->comp[0].shift == 0;
}

/* Makes *c fit frames that need converting. */
static int prepare(struct tt_cutter *c, const AVFrame *frame)
{
    if (c->sws && c->width == frame->width && c->height == frame->height && c->format == frame->format)
        return 0;
    sws_freeContext(c->sws);
    av_freep(&c->pixels);
    c->stride = (frame->width + 63) / 64 * 64;
    c->format = frame->format;
    c->sws = sws_getContext(frame->width, frame->height, frame->format, frame->width, frame->height,
                            AV_PIX_FMT_GRAY8, SWS_POINT | SWS_ACCURATE_RND, NULL, NULL, NULL);
    if (!c->sws)
        return AVERROR(EINVAL);
    c->pixels = av_malloc((size_t)c->stride * (size_t)frame->height + 64);
    return c->pixels ? 0 : AVERROR(ENOMEM);
}

int tt_cutter_frame(struct tt_cutter *c, const AVFrame *frame)
{
    int rc;

    if (has_luma_bytes(av_pix_fmt_desc_get(frame->format)) && frame->linesize[0] > 0) {
        c->grey = frame->data[0];
        c->stride = frame->linesize[0];
        sws_freeContext(c->sws); /* its stride is no more right */
        c->sws = NULL;
    } else {
        uint8_t *planes[4] = {NULL};
        int strides[4] = {0};

        if ((rc = prepare(c, frame)) < 0)
            return rc;
        planes[0] = c->pixels;
        strides[0] = c->stride;
        rc = sws_scale(c->sws, (const uint8_t *const *)frame->data, frame->linesize, 0, frame->height, planes,
                       strides);
        if (rc < 0)
            return rc;
        c->grey = c->pixels;
    }
    c->width = frame->width;
    c->height = frame->height;
    return 0;
}

static int64_t clamp(int64_t value, int64_t most)
{
    return value < 0 ? 0 : value > most ? most : value;
}

static uint8_t pixel(const struct tt_cutter *c, int64_t x, int64_t y, int level)
{
    int side = 1 << level, sum = side * side / 2;

    for (int j = 0; j < side; j++) {
        const uint8_t *row = c->grey + clamp(y + j, c->height - 1) * c->stride;

        for (int i = 0; i < side; i++)
            sum += row[clamp(x + i, c->width - 1)];
    }
    return (uint8_t)(sum >> (2 * level));
}

bool tt_cutter_cut(const struct tt_cutter *c, const struct tt_cut_place *place, uint8_t *patch)
{
    int level = place->level;
    int64_t x = place->x, y = place->y;

    if (level < 0 || level >= TT_CUT_LEVELS)
        return false;
    if (level == 0 && x >= 0 && y >= 0 && x + TT_CUT_SIZE <= c->width && y + TT_CUT_SIZE <= c->height) {
        for (int j = 0; j < TT_CUT_SIZE; j++)
            memcpy(patch + j * TT_CUT_SIZE, c->grey + (y + j) * c->stride + x, TT_CUT_SIZE);
        return true;
    }
    for (int j = 0; j < TT_CUT_SIZE; j++)
        for (int i = 0; i < TT_CUT_SIZE; i++)
            *patch++ = pixel(c, (x + i) * (1 << level), (y + j) * (1 << level), level);
    return true;
}

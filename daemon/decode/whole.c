/* daemon/decode/whole.c: colour and pixel aspect by libswscale, then the quarter turn.
 *
 * The colours are those of scale.c (same matrix, range and chroma positions); only the size differs. Fails
 * where memory is short or where libswscale does not know the pixel format.
 */
#include "daemon/decode/whole.h"

#include <libavutil/mem.h>
#include <libavutil/pixdesc.h>
#include <libswscale/swscale.h>

#include <string.h>

/* Makes *w fit the frame. */
static int prepare(struct tt_whole *w, const AVFrame *frame)
{
    struct tt_colour colour = tt_colour_of(frame);

    if (w->sws && w->frame_width == frame->width && w->frame_height == frame->height &&
        w->format == frame->format && w->chroma == frame->chroma_location &&
        w->colour.matrix == colour.matrix && w->colour.full_range == colour.full_range)
        return 0;
    sws_freeContext(w->sws);
    av_freep(&w->rgb);
    w->frame_width = frame->width;
    w->frame_height = frame->height;
    w->format = frame->format;
    w->chroma = frame->chroma_location;
    w->colour = colour;
    w->rgb_width = w->orientation.swap ? w->height : w->width;
    w->rgb_height = w->orientation.swap ? w->width : w->height;
    w->stride = (w->rgb_width * 3 + 63) / 64 * 64;
    w->sws = NULL;
    w->rgb = av_malloc((size_t)w->stride * (size_t)w->rgb_height + 64);
    if (!w->rgb)
        return AVERROR(ENOMEM);
    return tt_colour_converter(&w->sws, frame, &colour, w->rgb_width, w->rgb_height,
                               frame->width == w->rgb_width && frame->height == w->rgb_height ? SWS_BILINEAR
                                                                                              : SWS_BICUBIC);
}

static void turn(const struct tt_whole *w, uint8_t *out)
{
    const struct tt_orientation *o = &w->orientation;

    for (int y = 0; y < w->height; y++) {
        int shown_y = o->flip_y ? w->height - 1 - y : y;
        uint8_t *to = out + (size_t)y * (size_t)w->width * 3;

        if (!o->swap && !o->flip_x) {
            memcpy(to, w->rgb + (size_t)shown_y * (size_t)w->stride, (size_t)w->width * 3);
            continue;
        }
        for (int x = 0; x < w->width; x++) {
            int shown_x = o->flip_x ? w->width - 1 - x : x;
            size_t row = (size_t)(o->swap ? shown_x : shown_y),
                   column = (size_t)(o->swap ? shown_y : shown_x);

            memcpy(to + (size_t)x * 3, w->rgb + row * (size_t)w->stride + column * 3, 3);
        }
    }
}

int tt_whole_frame(struct tt_whole *w, const AVFrame *frame, uint8_t *out)
{
    uint8_t *planes[4] = {NULL};
    int strides[4] = {0}, rc = prepare(w, frame);

    if (rc < 0)
        return rc;
    planes[0] = w->rgb;
    strides[0] = w->stride;
    rc = sws_scale(w->sws, (const uint8_t *const *)frame->data, frame->linesize, 0, frame->height, planes,
                   strides);
    if (rc < 0)
        return rc;
    turn(w, out);
    if (!w->colour.full_range && av_pix_fmt_desc_get(frame->format)->nb_components <= 2)
        tt_colour_expand_grey(out, (size_t)w->width * (size_t)w->height * 3);
    return 0;
}

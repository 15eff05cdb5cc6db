/* daemon/decode/mask.c: a PNG becomes a mask, sample by sample.
 *
 * No conversion is involved: a sample counts as soon as one of its bits is set, whatever its depth. The
 * formats are those that libavcodec's PNG decoder gives. Fails on anything else, on broken files, and beyond
 * max_pixels.
 */
#include "daemon/decode/video.h"

#include <libavutil/pixdesc.h>

#include <string.h>

/* Byte layout of a pixel: the colour's bytes come first, the alpha's last. */
struct layout {
    int bytes, alpha_bytes;
};

static bool find_layout(enum AVPixelFormat format, struct layout *layout)
{
    switch (format) {
    case AV_PIX_FMT_GRAY8:
        *layout = (struct layout){1, 0};
        return true;
    case AV_PIX_FMT_GRAY16BE:
        *layout = (struct layout){2, 0};
        return true;
    case AV_PIX_FMT_YA8:
        *layout = (struct layout){2, 1};
        return true;
    case AV_PIX_FMT_YA16BE:
        *layout = (struct layout){4, 2};
        return true;
    case AV_PIX_FMT_RGB24:
        *layout = (struct layout){3, 0};
        return true;
    case AV_PIX_FMT_RGB48BE:
        *layout = (struct layout){6, 0};
        return true;
    case AV_PIX_FMT_RGBA:
        *layout = (struct layout){4, 1};
        return true;
    case AV_PIX_FMT_RGBA64BE:
        *layout = (struct layout){8, 2};
        return true;
    default:
        return false;
    }
}

static bool any(const uint8_t *bytes, int count)
{
    for (int i = 0; i < count; i++)
        if (bytes[i])
            return true;
    return false;
}

static bool is_opaque(const uint8_t *alpha, int bytes)
{
    for (int i = 0; i < bytes; i++)
        if (alpha[i] != 0xff)
            return false;
    return true;
}

/* bit 0: a colour other than black; bit 1: alpha > 0; bit 2: opaque */
static uint8_t look_at(const AVFrame *f, const struct layout *layout, int x, int y)
{
    const uint8_t *row = f->data[0] + (ptrdiff_t)y * f->linesize[0];
    const uint8_t *pixel = row + (ptrdiff_t)x * layout->bytes;
    int colour_bytes = layout->bytes - layout->alpha_bytes;

    if (f->format == AV_PIX_FMT_PAL8) {
        uint32_t argb;

        memcpy(&argb, f->data[1] + 4 * row[x], sizeof argb);
        return (uint8_t)((argb & 0xffffff ? 1 : 0) | (argb >> 24 ? 2 : 0) | (argb >> 24 == 0xff ? 4 : 0));
    }
    if (f->format == AV_PIX_FMT_MONOBLACK)
        return (uint8_t)((row[x / 8] >> (7 - x % 8) & 1) | 6);
    if (!layout->alpha_bytes)
        return (uint8_t)(any(pixel, colour_bytes) | 6);
    return (uint8_t)(any(pixel, colour_bytes) | any(pixel + colour_bytes, layout->alpha_bytes) << 1 |
                     is_opaque(pixel + colour_bytes, layout->alpha_bytes) << 2);
}

static enum tt_status write_mask(struct tt_link *link, const struct tt_wire_request *request,
                                 const AVFrame *f, struct tt_error *err)
{
    struct layout layout = {0};
    size_t pixels = (size_t)f->width * (size_t)f->height;
    bool see_alpha = false;

    if (f->width <= 0 || f->height <= 0 || pixels > link->ring_bytes)
        return tt_fail(err, TT_BAD_INPUT, "the mask has %dx%d pixels, more than %lld (limit max_pixels)",
                       f->width, f->height, (long long)request->max_pixels);
    if (f->format != AV_PIX_FMT_PAL8 && f->format != AV_PIX_FMT_MONOBLACK && !find_layout(f->format, &layout))
        return tt_fail(err, TT_BAD_INPUT, "the mask has an unexpected pixel format (%s)",
                       av_get_pix_fmt_name(f->format));
    for (int y = 0; y < f->height; y++)
        for (int x = 0; x < f->width; x++) {
            uint8_t seen = look_at(f, &layout, x, y);

            link->ring[(size_t)y * (size_t)f->width + (size_t)x] = seen;
            see_alpha |= !(seen & 4);
        }
    for (size_t i = 0; i < pixels; i++)
        link->ring[i] = link->ring[i] >> (see_alpha ? 1 : 0) & 1;
    tt_link_mask(link, f->width, f->height);
    return TT_OK;
}

enum tt_status tt_mask_decode(struct tt_input *input, struct tt_link *link,
                              const struct tt_wire_request *request, struct tt_error *err)
{
    enum tt_status status = tt_input_open_png(input, err);
    AVCodecContext *codec;
    AVPacket *packet = av_packet_alloc();
    AVFrame *frame = av_frame_alloc();
    int rc = AVERROR(ENOMEM);

    if (status)
        return status;
    codec = avcodec_alloc_context3(input->codec);
    if (codec && packet && frame) {
        codec->max_pixels = request->max_pixels;
        codec->thread_count = 1;
        rc = avcodec_open2(codec, input->codec, NULL);
    }
    if (rc >= 0)
        rc = av_read_frame(input->format, packet);
    if (rc >= 0)
        rc = avcodec_send_packet(codec, packet);
    if (rc >= 0)
        rc = avcodec_send_packet(codec, NULL);
    if (rc >= 0)
        rc = avcodec_receive_frame(codec, frame);
    if (rc < 0)
        return tt_input_fail(input, request, rc, "decode the mask", err);
    return write_mask(link, request, frame, err);
}

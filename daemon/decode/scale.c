/* daemon/decode/scale.c: colour by libswscale; size by libswscale's area filter or by weights of our own;
 * orientation.
 *
 * Positions. Everything here maps [0, width) of the source linearly onto [0, 256), in the raster convention:
 * no half pixels appear. libswscale's area filter was measured to be the exact mean over the covered pixels,
 * within its 8-bit rounding (docs/DECODE.md). Turning by quarters and mirroring commute with that, so they
 * come last, where they are cheap.
 *
 * Fails where memory is short or where libswscale does not know the pixel format.
 */
#include "daemon/decode/scale.h"

#include <libavutil/opt.h>
#include <libavutil/pixdesc.h>
#include <libswscale/swscale.h>

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { SIZE = TT_CLIP_SIZE };

enum tt_matrix_kind tt_orientation_read(struct tt_orientation *orientation, const int32_t *matrix)
{
    /* x' = a x + c y, y' = b x + d y */
    int64_t a = matrix[0], b = matrix[1], c = matrix[3], d = matrix[4];
    int64_t straight = llabs(a) + llabs(d), turned = llabs(b) + llabs(c);
    double determinant = (double)a * (double)d - (double)b * (double)c;
    bool swap = turned > straight;
    int64_t along = swap ? turned : straight, across = swap ? straight : turned;

    *orientation = (struct tt_orientation){0};
    if (determinant == 0 || (swap ? !b || !c : !a || !d))
        return TT_MATRIX_NONSENSE;
    *orientation = (struct tt_orientation){swap, (swap ? c : a) < 0, (swap ? b : d) < 0};
    return across * 100 > along ? TT_MATRIX_OBLIQUE : TT_MATRIX_RIGHT;
}

void tt_orientation_describe(const struct tt_orientation *o, int *rotation, int *mirrored)
{
    bool mirror = o->swap ^ o->flip_x ^ o->flip_y;
    bool flip_x = o->flip_x ^ mirror;

    *mirrored = mirror;
    *rotation = o->swap ? (flip_x ? 90 : 270) : (flip_x ? 180 : 0);
}

static void turn(uint8_t *out, const uint8_t *rgb, int stride, const struct tt_orientation *o)
{
    for (int y = 0; y < SIZE; y++)
        for (int x = 0; x < SIZE; x++) {
            int shown_x = o->flip_x ? SIZE - 1 - x : x, shown_y = o->flip_y ? SIZE - 1 - y : y;
            const uint8_t *from =
                o->swap ? rgb + shown_x * stride + shown_y * 3 : rgb + shown_y * stride + shown_x * 3;

            memcpy(out + (y * SIZE + x) * 3, from, 3);
        }
}

static bool is_rgb(const AVPixFmtDescriptor *d)
{
    return d->flags & (AV_PIX_FMT_FLAG_RGB | AV_PIX_FMT_FLAG_PAL | AV_PIX_FMT_FLAG_BAYER);
}

struct tt_colour tt_colour_of(const AVFrame *frame)
{
    const AVPixFmtDescriptor *d = av_pix_fmt_desc_get(frame->format);
    bool yuvj = d && !strncmp(d->name, "yuvj", 4), gray = d && d->nb_components <= 2;
    struct tt_colour colour = {frame->colorspace, frame->color_range == AVCOL_RANGE_JPEG};

    if (d && is_rgb(d))
        return (struct tt_colour){AVCOL_SPC_RGB, true};
    if (colour.matrix == AVCOL_SPC_UNSPECIFIED || colour.matrix == AVCOL_SPC_RESERVED ||
        colour.matrix == AVCOL_SPC_RGB)
        colour.matrix = frame->height < 720 ? AVCOL_SPC_SMPTE170M : AVCOL_SPC_BT709;
    if (frame->color_range == AVCOL_RANGE_UNSPECIFIED)
        colour.full_range = yuvj || gray;
    return colour;
}

bool tt_colour_is_known(const struct tt_colour *colour)
{
    switch (colour->matrix) {
    case AVCOL_SPC_RGB:
    case AVCOL_SPC_BT709:
    case AVCOL_SPC_FCC:
    case AVCOL_SPC_BT470BG:
    case AVCOL_SPC_SMPTE170M:
    case AVCOL_SPC_SMPTE240M:
    case AVCOL_SPC_BT2020_NCL:
        return true;
    default:
        return false;
    }
}

/* Chroma position in 1/256 of a luma pixel from the first luma sample, as libswscale takes it; left where the
 * frame does not say, as MPEG-2 and later have it. */
static void set_chroma(struct SwsContext *sws, const AVFrame *frame)
{
    const AVPixFmtDescriptor *d = av_pix_fmt_desc_get(frame->format);
    bool is_left = true, is_top = false;

    switch (frame->chroma_location) {
    case AVCHROMA_LOC_CENTER:
        is_left = false;
        break;
    case AVCHROMA_LOC_TOP:
        is_left = false;
        is_top = true;
        break;
    case AVCHROMA_LOC_TOPLEFT:
        is_top = true;
        break;
    default:
        break;
    }
    if (d->log2_chroma_w == 1)
        av_opt_set_int(sws, "src_h_chr_pos", is_left ? 0 : 128, 0);
    if (d->log2_chroma_h == 1)
        av_opt_set_int(sws, "src_v_chr_pos", is_top ? 0 : 128, 0);
}

int tt_colour_converter(struct SwsContext **converter, const AVFrame *frame, const struct tt_colour *colour,
                        int width, int height, int filter)
{
    const int *matrix = sws_getCoefficients(colour->matrix);
    struct SwsContext *sws = sws_alloc_context();
    int rc;

    if (!sws)
        return AVERROR(ENOMEM);
    av_opt_set_int(sws, "srcw", frame->width, 0);
    av_opt_set_int(sws, "srch", frame->height, 0);
    av_opt_set_int(sws, "src_format", frame->format, 0);
    av_opt_set_int(sws, "src_range", colour->full_range, 0);
    av_opt_set_int(sws, "dstw", width, 0);
    av_opt_set_int(sws, "dsth", height, 0);
    av_opt_set_int(sws, "dst_format", AV_PIX_FMT_RGB24, 0);
    av_opt_set_int(sws, "dst_range", 1, 0);
    av_opt_set_int(sws, "sws_flags", filter | SWS_ACCURATE_RND | SWS_FULL_CHR_H_INT | SWS_FULL_CHR_H_INP, 0);
    set_chroma(sws, frame);
    rc = sws_init_context(sws, NULL, NULL);
    if (rc < 0) {
        sws_freeContext(sws);
        return rc;
    }
    sws_setColorspaceDetails(sws, matrix, colour->full_range, matrix, 1, 0, 1 << 16, 1 << 16);
    *converter = sws;
    return 0;
}

/* Four taps without antialiasing, centre to centre: output i lies at (i + 1/2) size / 256 - 1/2 of the
 * source. */
static void weigh_bilinear(struct tt_axis *axis, int i, int size)
{
    double at = fmax(0, (i + 0.5) * size / SIZE - 0.5);
    float weight = (float)(at - floor(at));

    axis->first[i] = (int)at;
    axis->count[i] = axis->first[i] + 1 < size ? 2 : 1;
    axis->weight[i * axis->most] = axis->count[i] == 2 ? 1 - weight : 1;
    axis->weight[i * axis->most + 1] = weight;
}

/* The share of each source pixel in [i, i + 1) size / 256. */
static void weigh_area(struct tt_axis *axis, int i, int size)
{
    double low = (double)i * size / SIZE, high = (double)(i + 1) * size / SIZE;

    axis->first[i] = (int)low;
    axis->count[i] = (int)ceil(high) - axis->first[i];
    for (int k = 0; k < axis->count[i]; k++) {
        double from = fmax(low, axis->first[i] + k), to = fmin(high, axis->first[i] + k + 1);

        axis->weight[i * axis->most + k] = (float)((to - from) / (high - low));
    }
}

static int make_axis(struct tt_axis *axis, int size, enum tt_resize resize)
{
    bool is_area = resize == TT_RESIZE_AREA && size >= SIZE;

    axis->most = is_area ? size / SIZE + 2 : 2;
    axis->weight = av_calloc((size_t)axis->most * SIZE, sizeof *axis->weight);
    if (!axis->weight)
        return AVERROR(ENOMEM);
    for (int i = 0; i < SIZE; i++)
        if (is_area)
            weigh_area(axis, i, size);
        else
            weigh_bilinear(axis, i, size);
    return 0;
}

static void release(struct tt_scaler *s)
{
    sws_freeContext(s->sws);
    s->sws = NULL;
    av_freep(&s->rgb);
    av_freep(&s->line);
    av_freep(&s->columns.weight);
    av_freep(&s->rows.weight);
}

/* Makes *scaler fit the frame. libswscale's area filter is not used for enlarging, where it makes blocks. */
static int prepare(struct tt_scaler *s, const AVFrame *frame)
{
    struct tt_colour colour = tt_colour_of(frame);
    int rc;

    if (s->sws && s->width == frame->width && s->height == frame->height && s->format == frame->format &&
        s->chroma == frame->chroma_location && s->colour.matrix == colour.matrix &&
        s->colour.full_range == colour.full_range)
        return 0;
    release(s);
    s->width = frame->width;
    s->height = frame->height;
    s->format = frame->format;
    s->chroma = frame->chroma_location;
    s->colour = colour;
    s->is_direct = s->resize == TT_RESIZE_AREA && frame->width >= SIZE && frame->height >= SIZE;
    s->rgb_width = s->is_direct ? SIZE : frame->width;
    s->rgb_height = s->is_direct ? SIZE : frame->height;
    s->rgb_stride = (s->rgb_width * 3 + 63) / 64 * 64;
    s->rgb = av_malloc((size_t)s->rgb_stride * (size_t)s->rgb_height + 64);
    s->line = av_calloc((size_t)s->rgb_width * 3, sizeof *s->line);
    if (!s->rgb || !s->line)
        return AVERROR(ENOMEM);
    if (!s->is_direct && ((rc = make_axis(&s->columns, frame->width, s->resize)) < 0 ||
                          (rc = make_axis(&s->rows, frame->height, s->resize)) < 0))
        return rc;
    return tt_colour_converter(&s->sws, frame, &s->colour, s->rgb_width, s->rgb_height,
                               s->is_direct ? SWS_AREA : SWS_BILINEAR);
}

/* Resizes s->rgb along its rows' weights into one line, and that along its columns'. out: [256][256][3] */
static void resize(struct tt_scaler *s, uint8_t *out)
{
    int samples = s->rgb_width * 3;

    for (int y = 0; y < SIZE; y++) {
        const float *down = s->rows.weight + y * s->rows.most;

        memset(s->line, 0, (size_t)samples * sizeof *s->line);
        for (int k = 0; k < s->rows.count[y]; k++) {
            const uint8_t *from = s->rgb + (size_t)(s->rows.first[y] + k) * (size_t)s->rgb_stride;

            for (int i = 0; i < samples; i++)
                s->line[i] += down[k] * (float)from[i];
        }
        for (int x = 0; x < SIZE; x++) {
            const float *across = s->columns.weight + x * s->columns.most;
            const float *from = s->line + s->columns.first[x] * 3;
            float sum[3] = {0};

            for (int k = 0; k < s->columns.count[x]; k++)
                for (int c = 0; c < 3; c++)
                    sum[c] += across[k] * from[3 * k + c];
            for (int c = 0; c < 3; c++)
                *out++ = (uint8_t)lrintf(fminf(sum[c], 255));
        }
    }
}

void tt_colour_expand_grey(uint8_t *rgb, size_t samples)
{
    for (size_t i = 0; i < samples; i++) {
        int level = ((rgb[i] - 16) * 255 + 109) / 219;

        rgb[i] = (uint8_t)(rgb[i] < 16 ? 0 : level > 255 ? 255 : level);
    }
}

int tt_scaler_frame(struct tt_scaler *s, const AVFrame *frame, uint8_t *out)
{
    static uint8_t resized[TT_FRAME_BYTES];
    uint8_t *planes[4] = {NULL};
    int strides[4] = {0}, rc = prepare(s, frame);

    if (rc < 0)
        return rc;
    planes[0] = s->rgb;
    strides[0] = s->rgb_stride;
    rc = sws_scale(s->sws, (const uint8_t *const *)frame->data, frame->linesize, 0, frame->height, planes,
                   strides);
    if (rc < 0)
        return rc;
    if (s->is_direct) {
        turn(out, s->rgb, s->rgb_stride, &s->orientation);
    } else {
        resize(s, resized);
        turn(out, resized, SIZE * 3, &s->orientation);
    }
    if (!s->colour.full_range && av_pix_fmt_desc_get(frame->format)->nb_components <= 2)
        tt_colour_expand_grey(out, TT_FRAME_BYTES);
    return 0;
}

/* daemon/decode/video.c: packets in, frames out, and what there is to say about them.
 *
 * Every packet of the stream is given to the decoder and every frame that it returns is sent, in its order of
 * presentation; at the end the decoder is drained. Packets that cannot be decoded are counted and passed
 * over, as players do. The first frame settles what is displayed (size, pixel aspect, orientation): later
 * frames of another size are resized to the same 256×256.
 *
 * With patches a frame stays where it can be cut from while the one behind it is decoded: the parent, which
 * works on its first patches, rarely waits for either. What comes of that frame is told when its turn comes.
 *
 * Fails where no frame comes out at all, where a limit is passed, where memory or storage fail; everything
 * else is a warning.
 */
#include "daemon/decode/video.h"

#include "daemon/decode/clock.h"
#include "daemon/decode/extent.h"
#include "daemon/decode/patch.h"
#include "daemon/decode/scale.h"
#include "daemon/decode/whole.h"

#include <libavutil/display.h>
#include <libavutil/pixdesc.h>

#include <math.h>
#include <stdatomic.h>
#include <stdio.h>
#include <unistd.h>

enum { MAX_PIXEL_ASPECT = 16, MAX_FRAME_RATE = 500, MAX_EMPTY_READS = 1000 };

struct video {
    struct tt_input *input;
    struct tt_link *link;
    const struct tt_wire_request *request;
    AVCodecContext *codec;
    AVFrame *frame;
    AVPacket *packet;
    struct tt_scaler scaler;
    struct tt_cutter cutter; /* instead of the scaler, where patches are wanted */
    AVFrame *held;           /* that the parent may still order patches of; empty: none */
    struct tt_whole whole;   /* the same, where whole pictures are */
    struct tt_clock clock;
    int first_width, first_height;
    bool size_changes; /* was said */
    int64_t packets, bad_packets, bad_frames;
    bool last_is_cut;      /* the last packet is shorter than the container says */
    int read_rc;           /* why reading ended */
    atomic_bool no_memory; /* for a frame; codecs return this and that then */
};

/* The mean rate by the header, or the finest; some containers give the ticks of their clock as either. */
static AVRational frame_rate(const AVStream *stream)
{
    const AVRational rates[2] = {stream->avg_frame_rate, stream->r_frame_rate};

    for (int i = 0; i < 2; i++)
        if (rates[i].num > 0 && rates[i].den > 0 && rates[i].num / rates[i].den < MAX_FRAME_RATE)
            return rates[i];
    return (AVRational){0, 1};
}

/* Called by the codec, on any of its threads. */
static int get_buffer(AVCodecContext *codec, AVFrame *frame, int flags)
{
    struct video *v = codec->opaque;
    int rc = avcodec_default_get_buffer2(codec, frame, flags);

    if (rc == AVERROR(ENOMEM))
        v->no_memory = true;
    return rc;
}

static enum tt_status open_codec(struct video *v, struct tt_error *err)
{
    AVStream *stream = v->input->stream;
    AVRational rate = frame_rate(stream);
    int rc = AVERROR(ENOMEM);

    v->codec = avcodec_alloc_context3(v->input->codec);
    v->frame = av_frame_alloc();
    v->held = av_frame_alloc();
    v->packet = av_packet_alloc();
    if (v->codec && v->frame && v->held && v->packet)
        rc = avcodec_parameters_to_context(v->codec, stream->codecpar);
    if (rc >= 0) {
        v->codec->pkt_timebase = stream->time_base;
        v->codec->framerate = rate;
        v->codec->thread_count = v->request->threads;
        v->codec->opaque = v;
        v->codec->get_buffer2 = get_buffer;
        rc = avcodec_open2(v->codec, v->input->codec, NULL);
    }
    v->clock.frame_s = rate.num ? av_q2d(av_inv_q(rate)) : 1 / 25.;
    return rc < 0 ? tt_input_fail(v->input, v->request, rc, v->input->codec->name, err) : TT_OK;
}

static void read_orientation(struct video *v)
{
    const uint8_t *matrix = av_stream_get_side_data(v->input->stream, AV_PKT_DATA_DISPLAYMATRIX, NULL);
    const AVFrameSideData *of_frame = av_frame_get_side_data(v->frame, AV_FRAME_DATA_DISPLAYMATRIX);

    if (!matrix && of_frame)
        matrix = of_frame->data;
    if (!matrix)
        return;
    switch (tt_orientation_read(&v->scaler.orientation, (const int32_t *)matrix)) {
    case TT_MATRIX_OBLIQUE:
        tt_link_warn(v->link, "the display matrix turns by %.1f degrees; the nearest quarter turn is used",
                     av_display_rotation_get((const int32_t *)matrix));
        break;
    case TT_MATRIX_NONSENSE:
        tt_link_warn(v->link, "the display matrix makes no sense and is ignored");
        break;
    case TT_MATRIX_RIGHT:
        break;
    }
}

static AVRational pixel_aspect(struct video *v)
{
    AVRational sar = av_guess_sample_aspect_ratio(v->input->format, v->input->stream, v->frame);

    if (sar.num <= 0 || sar.den <= 0)
        return (AVRational){1, 1};
    if (sar.num / sar.den >= MAX_PIXEL_ASPECT || sar.den / sar.num >= MAX_PIXEL_ASPECT) {
        tt_link_warn(v->link, "a pixel aspect of %d:%d is ignored", sar.num, sar.den);
        return (AVRational){1, 1};
    }
    return sar;
}

static double duration_hint(const struct tt_input *input)
{
    const AVStream *stream = input->stream;

    if (stream->duration > 0)
        return (double)stream->duration * av_q2d(stream->time_base);
    return input->format->duration > 0 ? (double)input->format->duration / AV_TIME_BASE : 0;
}

static const char *or_unknown(const char *name)
{
    return name ? name : "unknown";
}

static void warn_of_colour(struct video *v, const struct tt_colour *colour)
{
    enum AVColorTransferCharacteristic transfer = v->frame->color_trc;

    if (!tt_colour_is_known(colour))
        tt_link_warn(v->link, "the colour matrix %s is not known here; colours come out wrong",
                     or_unknown(av_color_space_name(colour->matrix)));
    if (transfer == AVCOL_TRC_SMPTE2084 || transfer == AVCOL_TRC_ARIB_STD_B67)
        tt_link_warn(v->link, "HDR (%s) is used without tone mapping: colours are flatter than displayed",
                     av_color_transfer_name(transfer));
}

/* Whole pictures that the ring cannot hold: pixel aspect makes them wider than they are stored. */
static bool is_too_large(const struct video *v)
{
    return v->request->whole && (int64_t)v->whole.width * v->whole.height > (int64_t)v->link->ring_bytes / 3;
}

/* What the first frame settles. */
static void send_info(struct video *v)
{
    const AVStream *stream = v->input->stream;
    const AVFrame *f = v->frame;
    struct tt_video_info info = {0};
    struct tt_colour colour = tt_colour_of(f);
    AVRational sar, rate = frame_rate(stream);
    int width;

    read_orientation(v);
    sar = pixel_aspect(v);
    width = (int)llround((double)f->width * sar.num / sar.den);
    info.coded_width = v->first_width = f->width;
    info.coded_height = v->first_height = f->height;
    info.width = width > 0 ? width : 1;
    info.height = f->height;
    if (v->scaler.orientation.swap) {
        info.height = info.width;
        info.width = f->height;
    }
    info.sar_num = sar.num;
    info.sar_den = sar.den;
    tt_orientation_describe(&v->scaler.orientation, &info.rotation, &info.mirrored);
    info.rate_num = rate.num;
    info.rate_den = rate.den;
    info.duration_hint_s = duration_hint(v->input);
    info.frames_hint = stream->nb_frames;
    if (info.frames_hint <= 0)
        info.frames_hint = (int64_t)fmin(info.duration_hint_s * rate.num / rate.den + 0.5, 1e15);
    tt_wire_print(info.container, sizeof info.container, v->input->format->iformat->name);
    tt_wire_print(info.codec, sizeof info.codec, avcodec_get_name(stream->codecpar->codec_id));
    tt_wire_print(info.pixel_format, sizeof info.pixel_format, or_unknown(av_get_pix_fmt_name(f->format)));
    tt_wire_print(info.matrix, sizeof info.matrix, or_unknown(av_color_space_name(colour.matrix)));
    tt_wire_print(info.transfer, sizeof info.transfer, or_unknown(av_color_transfer_name(f->color_trc)));
    tt_wire_print(info.range, sizeof info.range, colour.full_range ? "pc" : "tv");
    v->whole.width = info.width;
    v->whole.height = info.height;
    v->whole.orientation = v->scaler.orientation;
    warn_of_colour(v, &colour);
    if (!is_too_large(v)) /* or else an error follows */
        tt_link_info(v->link, &info);
}

/* Answers an order of patches; false: the parent is done with the frame. */
static bool serve_order(struct video *v)
{
    static struct tt_wire_order order;

    tt_link_order(&order);
    for (int i = 0; i < order.count; i++)
        if (!tt_cutter_cut(&v->cutter, &order.places[i], v->link->ring + (size_t)i * TT_CUT_BYTES))
            _exit(0);
    if (order.count > 0)
        tt_link_patches(v->link, order.count);
    return order.count > 0;
}

/* Answers the first order of patches. If there is one, the frame is held for those to come. */
static void serve_patches(struct video *v, double time_s)
{
    tt_link_picture(v->link, time_s, v->frame->width, v->frame->height);
    if (serve_order(v))
        av_frame_move_ref(v->held, v->frame);
}

/* Cuts what the parent orders from the frame that is held until it wants the next. */
static void serve_held(struct video *v)
{
    if (!v->held || !v->held->buf[0])
        return;
    while (serve_order(v))
        ;
    av_frame_unref(v->held);
}

/* Tells of a picture that lies in the ring, until the parent wants the next. */
static void serve_whole(struct video *v, double time_s)
{
    static struct tt_wire_order order;

    tt_link_picture(v->link, time_s, v->whole.width, v->whole.height);
    tt_link_order(&order);
    if (order.count > 0)
        _exit(0);
}

/* Into the ring, or where patches are cut from. */
static int convert(struct video *v, const AVFrame *f)
{
    if (v->request->whole)
        return tt_whole_frame(&v->whole, f, v->link->ring);
    return v->request->patches ? tt_cutter_frame(&v->cutter, f)
                               : tt_scaler_frame(&v->scaler, f, tt_link_slot(v->link));
}

static enum tt_status send_frame(struct video *v, struct tt_error *err)
{
    const AVFrame *f = v->frame;
    bool has_time = f->best_effort_timestamp != AV_NOPTS_VALUE;
    AVRational unit = v->input->stream->time_base;
    double time_s = has_time ? (double)f->best_effort_timestamp * unit.num / unit.den : 0;
    int rc;

    if ((int64_t)f->width * f->height > v->request->max_pixels)
        return tt_fail(err, TT_BAD_INPUT, "has frames of %dx%d, more than %lld pixels (limit max_pixels)",
                       f->width, f->height, (long long)v->request->max_pixels);
    if (v->link->frames == v->request->max_frames)
        return tt_fail(err, TT_BAD_INPUT, "has more than %lld frames (limit max_frames)",
                       (long long)v->request->max_frames);
    if (v->link->frames == 0)
        send_info(v);
    if ((f->width != v->first_width || f->height != v->first_height) && !v->size_changes) {
        v->size_changes = true;
        tt_link_warn(v->link, "frame %lld: the size changes from %dx%d to %dx%d; positions stay in the first",
                     (long long)v->link->frames, v->first_width, v->first_height, f->width, f->height);
    }
    if (f->decode_error_flags || (f->flags & AV_FRAME_FLAG_CORRUPT))
        v->bad_frames++;
    if (is_too_large(v))
        return tt_fail(err, TT_BAD_INPUT, "is displayed in %dx%d, more than %lld pixels (limit max_pixels)",
                       v->whole.width, v->whole.height, (long long)v->request->max_pixels);
    serve_held(v);
    rc = convert(v, f);
    if (rc < 0) {
        char what[96];

        snprintf(what, sizeof what, "convert a frame of %dx%d %s", f->width, f->height,
                 or_unknown(av_get_pix_fmt_name(f->format)));
        return tt_input_fail(v->input, v->request, rc, what, err);
    }
    time_s = tt_clock_next(&v->clock, has_time, time_s);
    if (v->request->whole)
        serve_whole(v, time_s);
    else if (v->request->patches)
        serve_patches(v, time_s);
    else
        tt_link_frame(v->link, time_s);
    return TT_OK;
}

/* Gives a packet (NULL: drains) and sends the frames that come of it. */
static enum tt_status decode(struct video *v, const AVPacket *packet, struct tt_error *err)
{
    int rc = avcodec_send_packet(v->codec, packet);
    bool is_bad = rc < 0 && rc != AVERROR_EOF;
    enum tt_status status = TT_OK;

    while (!status && rc != AVERROR(ENOMEM)) {
        rc = avcodec_receive_frame(v->codec, v->frame);
        if (rc == AVERROR(EAGAIN) || rc == AVERROR_EOF || rc == AVERROR(ENOMEM))
            break;
        if (rc < 0) {
            is_bad = true;
            if (packet) /* when draining, frames behind the bad one may still come */
                break;
            if (++v->bad_packets > v->packets)
                break;
            continue;
        }
        status = send_frame(v, err);
        av_frame_unref(v->frame);
    }
    if (!status && (rc == AVERROR(ENOMEM) || v->no_memory))
        return tt_input_fail(v->input, v->request, AVERROR(ENOMEM), v->input->codec->name, err);
    v->bad_packets += is_bad && packet;
    return status;
}

static enum tt_status read_packets(struct video *v, struct tt_error *err)
{
    enum tt_status status = TT_OK;
    int empty = 0;

    while (!status) {
        v->read_rc = av_read_frame(v->input->format, v->packet);
        if (v->read_rc == AVERROR(EAGAIN) && ++empty < MAX_EMPTY_READS)
            continue;
        if (v->read_rc < 0)
            break;
        if (v->packet->stream_index == v->input->stream->index) {
            v->packets++;
            v->last_is_cut = v->packet->flags & AV_PKT_FLAG_CORRUPT;
            if (av_packet_get_side_data(v->packet, AV_PKT_DATA_ENCRYPTION_INFO, NULL))
                status = tt_fail(err, TT_BAD_INPUT, "is encrypted (%s); there is no key to decode it with",
                                 v->input->codec->name);
            else
                status = decode(v, v->packet, err);
        }
        av_packet_unref(v->packet);
    }
    if (!status && (v->input->read_errno || v->read_rc == AVERROR(ENOMEM)))
        status = tt_input_fail(v->input, v->request, v->read_rc, "read the file", err);
    return status ? status : decode(v, NULL, err);
}

static enum tt_status tell_no_frame(const struct video *v, struct tt_error *err)
{
    const AVStream *stream = v->input->stream;
    const char *codec = avcodec_get_name(stream->codecpar->codec_id), *complaint = tt_input_complaint();

    if (av_stream_get_side_data(stream, AV_PKT_DATA_ENCRYPTION_INIT_INFO, NULL))
        return tt_fail(err, TT_BAD_INPUT, "is encrypted (%s); there is no key to decode it with", codec);
    if (!v->packets)
        return tt_fail(err, TT_BAD_INPUT, "has a video stream (%s) without data: not one frame", codec);
    return tt_fail(err, TT_BAD_INPUT, "has a video stream (%s), but its %lld packets give no frame%s%s",
                   codec, (long long)v->packets, complaint[0] ? ": " : "", complaint);
}

/* Whether the file ends early; says so. */
static bool is_truncated(struct video *v)
{
    int64_t declared = tt_extent_declared(v->input->file_bytes), missing = declared - v->input->file_bytes;
    int64_t listed = v->input->stream->nb_frames;
    bool all_there = listed > 0 && v->packets >= listed && !v->last_is_cut && v->read_rc == AVERROR_EOF;
    char reason[AV_ERROR_MAX_STRING_SIZE];

    if (all_there) /* what was cut off was not video */
        return false;
    if (missing > 0)
        tt_link_warn(v->link,
                     "the file ends early, %lld bytes or more are missing: %lld frames could be read",
                     (long long)missing, (long long)v->link->frames);
    else if (v->last_is_cut)
        tt_link_warn(v->link, "the file ends early, in the middle of frame %lld",
                     (long long)v->link->frames - 1);
    else if (v->read_rc != AVERROR_EOF)
        tt_link_warn(v->link, "the file cannot be read to its end (%s): %lld frames could be read",
                     (av_strerror(v->read_rc, reason, sizeof reason), reason), (long long)v->link->frames);
    else
        return false;
    return true;
}

static void send_end(struct video *v)
{
    const struct tt_clock *c = &v->clock;
    const char *complaint = tt_input_complaint();
    bool truncated = is_truncated(v);

    if (v->bad_packets)
        tt_link_warn(v->link, "%lld of %lld packets could not be decoded%s%s", (long long)v->bad_packets,
                     (long long)v->packets, complaint[0] ? ": " : "", complaint);
    if (v->bad_frames)
        tt_link_warn(v->link, "%lld frames are damaged", (long long)v->bad_frames);
    if (c->made_up)
        tt_link_warn(v->link, "%lld frames have no timestamp; their times follow from %g frames/s",
                     (long long)c->made_up, 1 / c->frame_s);
    if (c->clamped)
        tt_link_warn(v->link,
                     "%lld frames have timestamps before their predecessor's; they got the same time",
                     (long long)c->clamped);
    if (c->jumps)
        tt_link_warn(v->link, "the timestamps are set back %lld times; times go on from there",
                     (long long)c->jumps);
    if (v->input->references)
        tt_link_warn(v->link, "the file refers to other files, which are not opened");
    tt_link_end(v->link, truncated);
}

enum tt_status tt_video_decode(struct tt_input *input, struct tt_link *link,
                               const struct tt_wire_request *request, struct tt_error *err)
{
    struct video v = {.input = input,
                      .link = link,
                      .request = request,
                      .scaler = {.resize = (enum tt_resize)request->resize}};
    enum tt_status status = tt_input_open_video(input, request, err);

    if (!status)
        status = open_codec(&v, err);
    if (!status)
        status = read_packets(&v, err);
    serve_held(&v);
    if (!status && link->frames == 0)
        status = tell_no_frame(&v, err);
    if (!status)
        send_end(&v);
    return status;
}

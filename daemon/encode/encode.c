/* daemon/encode/encode.c: an encoder of libavcodec behind a muxer of libavformat, writing to TT_CHILD_FILE.
 *
 * Video is yuv420p in MP4, BT.601 below 720 lines and BT.709 from there on, 16..235, and says so; odd sides
 * get one pixel more, a copy of the last. Times are TT_ENCODE_TICKS of a second. Nothing in the file depends
 * on the day or the machine but the encoder's own choices. A picture is PNG and its packet is the file.
 *
 * The index (moov) stands in front of the frames, so that a player of a stream can begin at once. Room for it
 * is left before the first frame, as much as so many frames can need, and what it does not need stays free:
 * the file is written once and never read again.
 *
 * Fails where the encoder does and on the first write that fails, whose errno is kept: libavformat's own
 * codes do not tell a full disk.
 */
#include "daemon/encode/encode.h"

#include <libavcodec/avcodec.h>
#include <libavformat/avformat.h>
#include <libavutil/mem.h>
#include <libavutil/opt.h>
#include <libswscale/swscale.h>

#include <errno.h>
#include <stdbool.h>
#include <string.h>
#include <unistd.h>

enum {
    IO_BYTES = 1 << 18,
    HD_LINES = 720,
    /* The index' most: of a frame its size 4, duration 8, shift between decoding and display 8, chunk 12 and
     * its place 8, a key frame's number 4, what may depend on it 1; and the boxes around, with the encoder's
     * own parameters. */
    INDEX_FRAME_BYTES = 45,
    INDEX_BYTES = 16384,
};

_Static_assert(INDEX_BYTES + (int64_t)INDEX_FRAME_BYTES * TT_ENCODE_FRAMES_MAX <= INT32_MAX,
               "libavformat takes the index' size as an int");

struct tt_encode {
    bool is_picture;
    int width, height;
    AVCodecContext *codec;
    AVFrame *frame;
    AVPacket *packet;
    struct SwsContext *sws;
    AVFormatContext *format; /* of a video */
    int64_t frames, frame_ticks;
    int64_t position; /* in the file */
    int write_errno;
};

/* --- the file --- */

static int write_at(struct tt_encode *e, const uint8_t *bytes, int size, int64_t offset)
{
    for (int done = 0; done < size;) {
        ssize_t wrote = pwrite(TT_CHILD_FILE, bytes + done, (size_t)(size - done), offset + done);

        if (wrote < 0 && errno == EINTR)
            continue;
        if (wrote <= 0) {
            e->write_errno = wrote < 0 ? errno : ENOSPC;
            return AVERROR(e->write_errno);
        }
        done += (int)wrote;
    }
    return size;
}

#if LIBAVFORMAT_VERSION_MAJOR >= 61
static int write_packet(void *opaque, const uint8_t *bytes, int size)
#else
static int write_packet(void *opaque, uint8_t *bytes, int size)
#endif
{
    struct tt_encode *e = opaque;
    int wrote = write_at(e, bytes, size, e->position);

    if (wrote > 0)
        e->position += wrote;
    return wrote;
}

static int64_t seek(void *opaque, int64_t offset, int whence)
{
    struct tt_encode *e = opaque;

    if (whence == SEEK_CUR)
        offset += e->position;
    else if (whence != SEEK_SET)
        return AVERROR(ENOSYS);
    return e->position = offset;
}

static enum tt_status fail(const struct tt_encode *e, int rc, const char *what, struct tt_error *err)
{
    char reason[AV_ERROR_MAX_STRING_SIZE];

    if (e->write_errno)
        return tt_fail_errno(err, tt_status_of_errno(e->write_errno), e->write_errno, "writing the output");
    av_strerror(rc, reason, sizeof reason);
    return tt_fail(err, rc == AVERROR(ENOMEM) ? TT_RETRY_LATER : TT_BAD_INPUT, "%s, %dx%d: %s", what,
                   e->width, e->height, reason);
}

/* --- opening --- */

/* The best that is there, but for those that need a device, which a confined process does not reach. */
static const AVCodec *choose_codec(const char *wanted)
{
    static const char *const names[] = {"libx264", "libopenh264", "libx265", "libvpx-vp9", "mpeg4"};
    const AVCodec *codec = NULL;

    if (wanted[0])
        return avcodec_find_encoder_by_name(wanted);
    for (size_t i = 0; !codec && i < sizeof names / sizeof names[0]; i++)
        codec = avcodec_find_encoder_by_name(names[i]);
    return codec;
}

static bool takes(const AVCodec *codec, enum AVPixelFormat format)
{
    for (const enum AVPixelFormat *f = codec->pix_fmts; f && *f != AV_PIX_FMT_NONE; f++)
        if (*f == format)
            return true;
    return false;
}

static void set_video(struct tt_encode *e, const struct tt_encode_message *request)
{
    AVCodecContext *c = e->codec;
    bool is_hd = c->height >= HD_LINES;

    c->time_base = (AVRational){1, TT_ENCODE_TICKS};
    av_reduce(&c->framerate.num, &c->framerate.den, TT_ENCODE_TICKS, request->ticks, 1 << 20);
    c->gop_size = 60;
    c->colorspace = is_hd ? AVCOL_SPC_BT709 : AVCOL_SPC_SMPTE170M;
    c->color_primaries = is_hd ? AVCOL_PRI_BT709 : AVCOL_PRI_SMPTE170M;
    c->color_trc = is_hd ? AVCOL_TRC_BT709 : AVCOL_TRC_SMPTE170M;
    c->color_range = AVCOL_RANGE_MPEG;
    c->chroma_sample_location = AVCHROMA_LOC_LEFT;
    c->flags |= AV_CODEC_FLAG_GLOBAL_HEADER;
    if (strcmp(c->codec->name, "libx264") == 0) {
        av_opt_set(c->priv_data, "preset", "veryfast", 0);
        av_opt_set(c->priv_data, "crf", "18", 0);
    } else if (strcmp(c->codec->name, "mpeg4") == 0) {
        c->time_base = (AVRational){1, 60000}; /* its clock has 16 bits */
        c->flags |= AV_CODEC_FLAG_QSCALE;
        c->global_quality = 3 * FF_QP2LAMBDA;
    } else {
        c->bit_rate = (int64_t)c->width * c->height * 4;
    }
}

static enum tt_status open_codec(struct tt_encode *e, const struct tt_encode_message *request,
                                 struct tt_error *err)
{
    const AVCodec *codec = choose_codec(e->is_picture ? "png" : request->text);
    enum AVPixelFormat format = e->is_picture ? AV_PIX_FMT_RGB24 : AV_PIX_FMT_YUV420P;
    int rc;

    if (!codec && request->text[0])
        return tt_fail(err, TT_REFUSE, "this libav has no encoder called '%s'", request->text);
    if (!codec)
        return tt_fail(err, TT_REFUSE,
                       "this libav has none of the encoders libx264, libopenh264, libx265, "
                       "libvpx-vp9 and mpeg4");
    if (codec->type != AVMEDIA_TYPE_VIDEO || !takes(codec, format))
        return tt_fail(err, TT_REFUSE, "the encoder '%s' takes no yuv420p pictures", codec->name);
    e->codec = avcodec_alloc_context3(codec);
    if (!e->codec)
        return fail(e, AVERROR(ENOMEM), codec->name, err);
    e->codec->pix_fmt = format;
    e->codec->width = e->is_picture ? e->width : (e->width + 1) & ~1;
    e->codec->height = e->is_picture ? e->height : (e->height + 1) & ~1;
    e->codec->thread_count = request->threads;
    if (e->is_picture)
        e->codec->time_base = (AVRational){1, 25};
    else
        set_video(e, request);
    rc = avcodec_open2(e->codec, codec, NULL);
    return rc < 0 ? fail(e, rc, codec->name, err) : TT_OK;
}

static enum tt_status open_converter(struct tt_encode *e, struct tt_error *err)
{
    const AVCodecContext *c = e->codec;
    const int *matrix = sws_getCoefficients(c->colorspace);

    e->frame = av_frame_alloc();
    e->packet = av_packet_alloc();
    e->sws = sws_getContext(c->width, c->height, AV_PIX_FMT_RGB24, c->width, c->height, c->pix_fmt,
                            SWS_BILINEAR | SWS_ACCURATE_RND | SWS_FULL_CHR_H_INP, NULL, NULL, NULL);
    if (!e->frame || !e->packet || !e->sws)
        return fail(e, AVERROR(ENOMEM), "frame", err);
    sws_setColorspaceDetails(e->sws, matrix, 1, matrix, 0, 0, 1 << 16, 1 << 16);
    e->frame->width = c->width;
    e->frame->height = c->height;
    e->frame->format = c->pix_fmt;
    return av_frame_get_buffer(e->frame, 0) < 0 ? fail(e, AVERROR(ENOMEM), "frame", err) : TT_OK;
}

static enum tt_status open_file(struct tt_encode *e, struct tt_error *err)
{
    AVStream *stream;
    uint8_t *buffer = av_malloc(IO_BYTES);
    int rc = avformat_alloc_output_context2(&e->format, NULL, "mp4", NULL);

    if (rc < 0 || !buffer)
        return fail(e, rc < 0 ? rc : AVERROR(ENOMEM), "mp4", err);
    e->format->pb = avio_alloc_context(buffer, IO_BYTES, 1, e, NULL, write_packet, seek);
    e->format->flags |= AVFMT_FLAG_BITEXACT | AVFMT_FLAG_CUSTOM_IO;
    stream = avformat_new_stream(e->format, NULL);
    if (!e->format->pb || !stream)
        return fail(e, AVERROR(ENOMEM), "mp4", err);
    stream->time_base = e->codec->time_base;
    stream->avg_frame_rate = e->codec->framerate;
    rc = avcodec_parameters_from_context(stream->codecpar, e->codec);
    return rc < 0 ? fail(e, rc, "mp4", err) : TT_OK;
}

enum tt_status tt_encode_open(struct tt_encode **encode, const struct tt_encode_message *request,
                              struct tt_error *err)
{
    static struct tt_encode made;
    enum tt_status status;

    made = (struct tt_encode){.is_picture = request->kind == TT_ENCODE_PNG,
                              .width = request->width,
                              .height = request->height,
                              .frames = request->frames,
                              .frame_ticks = request->ticks};
    status = open_codec(&made, request, err);
    if (!status)
        status = open_converter(&made, err);
    if (!status && !made.is_picture)
        status = open_file(&made, err);
    if (!status)
        *encode = &made;
    return status;
}

const char *tt_encode_codec(const struct tt_encode *e)
{
    return e->codec->codec->name;
}

/* --- frames --- */

static enum tt_status begin_file(struct tt_encode *e, struct tt_error *err)
{
    AVDictionary *options = NULL;
    int rc;

    av_dict_set_int(&options, "video_track_timescale", e->codec->time_base.den, 0);
    av_dict_set_int(&options, "moov_size", e->frames * INDEX_FRAME_BYTES + INDEX_BYTES, 0);
    rc = avformat_write_header(e->format, &options);
    av_dict_free(&options);
    return rc < 0 ? fail(e, rc, "mp4", err) : TT_OK;
}

static int write_encoded(struct tt_encode *e)
{
    if (e->is_picture)
        return write_packet(e, e->packet->data, e->packet->size);
    e->packet->duration = av_rescale_q(e->frame_ticks, (AVRational){1, TT_ENCODE_TICKS}, e->codec->time_base);
    e->packet->stream_index = 0;
    av_packet_rescale_ts(e->packet, e->codec->time_base, e->format->streams[0]->time_base);
    return av_interleaved_write_frame(e->format, e->packet);
}

/* frame: NULL drains. */
static enum tt_status encode(struct tt_encode *e, const AVFrame *frame, struct tt_error *err)
{
    int rc = avcodec_send_frame(e->codec, frame);

    while (rc >= 0) {
        rc = avcodec_receive_packet(e->codec, e->packet);
        if (rc == AVERROR(EAGAIN) || rc == AVERROR_EOF)
            return TT_OK;
        if (rc >= 0)
            rc = write_encoded(e);
        av_packet_unref(e->packet);
        if (e->format && e->format->pb->error < 0)
            rc = e->format->pb->error;
    }
    return fail(e, rc, "encoding", err);
}

/* The pixel more that an odd side gets. */
static void repeat_borders(struct tt_encode *e, AVFrame *padded)
{
    int width = e->codec->width, height = e->codec->height;

    for (int y = 0; y < e->height && width > e->width; y++) {
        uint8_t *last = padded->data[0] + (size_t)y * (size_t)padded->linesize[0] + 3 * (e->width - 1);

        memcpy(last + 3, last, 3);
    }
    if (height > e->height) {
        uint8_t *last = padded->data[0] + (size_t)(e->height - 1) * (size_t)padded->linesize[0];

        memcpy(last + padded->linesize[0], last, (size_t)width * 3);
    }
}

/* Into e->frame. */
static int convert(struct tt_encode *e, const uint8_t *rgb)
{
    AVFrame *padded = av_frame_alloc();
    int rc = padded ? 0 : AVERROR(ENOMEM);

    if (padded) {
        padded->width = e->codec->width;
        padded->height = e->codec->height;
        padded->format = AV_PIX_FMT_RGB24;
        rc = av_frame_get_buffer(padded, 0);
    }
    if (rc >= 0)
        rc = av_frame_make_writable(e->frame);
    if (rc >= 0) {
        for (int y = 0; y < e->height; y++)
            memcpy(padded->data[0] + (size_t)y * (size_t)padded->linesize[0],
                   rgb + (size_t)y * (size_t)e->width * 3, (size_t)e->width * 3);
        repeat_borders(e, padded);
        if (e->is_picture)
            rc = av_frame_copy(e->frame, padded);
        else
            rc = sws_scale(e->sws, (const uint8_t *const *)padded->data, padded->linesize, 0, padded->height,
                           e->frame->data, e->frame->linesize);
    }
    av_frame_free(&padded);
    return rc;
}

enum tt_status tt_encode_frame(struct tt_encode *e, const uint8_t *rgb, int64_t ticks, struct tt_error *err)
{
    int rc = convert(e, rgb);

    if (rc < 0)
        return fail(e, rc, "convert a frame", err);
    if (!e->is_picture && ticks == 0) {
        enum tt_status status = begin_file(e, err);

        if (status)
            return status;
    }
    e->frame->pts = av_rescale_q(ticks, (AVRational){1, TT_ENCODE_TICKS}, e->codec->time_base);
    return encode(e, e->frame, err);
}

enum tt_status tt_encode_end(struct tt_encode *e, struct tt_error *err)
{
    enum tt_status status = encode(e, NULL, err);
    int rc;

    if (status || e->is_picture)
        return status;
    rc = av_write_trailer(e->format);
    avio_flush(e->format->pb);
    if (rc >= 0)
        rc = e->format->pb->error;
    return rc < 0 || e->write_errno ? fail(e, rc, "mp4", err) : TT_OK;
}

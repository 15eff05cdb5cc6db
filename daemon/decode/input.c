/* daemon/decode/input.c: custom I/O, the list of demuxers, the choice of the stream.
 *
 * libavformat gets one thing: bytes of one descriptor. The protocol whitelist is empty and io_open always
 * fails, so that no demuxer reaches another file; and only demuxers on the list below are used, which keeps
 * playlists, image sequences, devices, networks, scripts and emulators (game music, module players) out of
 * the process altogether. The seccomp filter stands behind all of it.
 */
#include "daemon/decode/input.h"

#include <libavutil/avstring.h>
#include <libavutil/opt.h>

#include <errno.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum { IO_BUFFER_BYTES = 64 * 1024 };

/* Containers and raw streams that hold pictures in one file, and the audio files that people mistake for them
 * (so that the error can say "audio only"). */
static const char demuxers[] =
    "mov,mp4,m4a,3gp,3g2,mj2,matroska,webm,avi,flv,live_flv,kux,mpegts,mpeg,mpegvideo,m4v,h261,h263,h264,"
    "hevc,"
    "avs,avs2,avs3,cavsvideo,av1,obu,ivf,ogg,asf,asf_o,rm,nut,mxf,gxf,dv,wtv,swf,nsv,dirac,vc1,vc1test,mjpeg,"
    "mjpeg_2000,ingenient,yuv4mpegpipe,apng,gif,dnxhd,ipu,lmlm4,lvf,lxf,mlv,mods,moflex,msf,mtv,mvi,nc,nuv,"
    "pva,"
    "r3d,rpl,sga,smjpeg,ty,vividas,vivo,xmv,yop,4xm,anm,argo_brp,bethsoftvid,bfi,bink,bmv,c93,cdxl,cine,"
    "dcstr,derf,dhav,dsicin,dxa,ea,film_cpk,filmstrip,flic,frm,gdv,hnm,idcin,iv8,ipmovie,jv,luodat,"
    "mgsts,"
    "mm,paf,pmp,psxstr,redspark,roq,ser,simbiosis_imx,siff,smk,thp,tiertexseq,tmv,vmd,vc1,wc3movie,wsvqa,"
    "xbin,"
    "aac,ac3,aiff,amr,ape,au,caf,dsf,dts,dtshd,eac3,flac,mlp,mp3,mpc,mpc8,oma,tak,truehd,tta,voc,w64,wav,wv,"
    "xwma";

/* Those that would go on to other files. */
static const char pointers[] =
    "hls,dash,concat,sdp,rtp,rtsp,imf,webm_dash_manifest,vobsub,realtext,ffmetadata";

static pthread_mutex_t complaint_lock = PTHREAD_MUTEX_INITIALIZER;
static char complaint[160];

static void hear_complaint(void *context, int level, const char *format, va_list args)
{
    (void)context;
    if (level > AV_LOG_ERROR)
        return;
    pthread_mutex_lock(&complaint_lock);
    if (!complaint[0]) {
        vsnprintf(complaint, sizeof complaint, format, args);
        complaint[strcspn(complaint, "\n")] = 0;
    }
    pthread_mutex_unlock(&complaint_lock);
}

const char *tt_input_complaint(void)
{
    return complaint;
}

enum tt_status tt_input_prepare(struct tt_input *input, struct tt_error *err)
{
    struct stat st;

    if (fstat(TT_CHILD_VIDEO, &st))
        return tt_fail_errno(err, TT_RETRY_LATER, errno, "look at the file");
    *input = (struct tt_input){.file_bytes = st.st_size};
    av_log_set_callback(hear_complaint);
    return TT_OK;
}

static int read_bytes(void *opaque, uint8_t *bytes, int size)
{
    struct tt_input *input = opaque;
    ssize_t got = pread(TT_CHILD_VIDEO, bytes, (size_t)size, input->position);

    if (got < 0) {
        input->read_errno = errno;
        return AVERROR(errno);
    }
    input->position += got;
    return got ? (int)got : AVERROR_EOF;
}

static int64_t seek_bytes(void *opaque, int64_t offset, int whence)
{
    struct tt_input *input = opaque;

    switch (whence & ~AVSEEK_FORCE) {
    case AVSEEK_SIZE:
        return input->file_bytes;
    case SEEK_CUR:
        offset += input->position;
        break;
    case SEEK_END:
        offset += input->file_bytes;
        break;
    }
    if (offset < 0)
        return AVERROR(EINVAL);
    return input->position = offset;
}

static int open_nothing(AVFormatContext *format, AVIOContext **io, const char *url, int flags,
                        AVDictionary **options)
{
    struct tt_input *input = format->opaque;

    (void)url, (void)flags, (void)options;
    *io = NULL;
    input->references++;
    return AVERROR(EACCES);
}

enum tt_status tt_input_fail(const struct tt_input *input, const struct tt_wire_request *request, int rc,
                             const char *what, struct tt_error *err)
{
    char reason[AV_ERROR_MAX_STRING_SIZE];

    if (input->read_errno)
        return tt_fail_errno(err, TT_RETRY_LATER, input->read_errno, "read the file");
    if (rc == AVERROR(ENOMEM))
        return tt_fail(err, TT_BAD_INPUT, "%s: needs more memory than %lld MiB (limit memory_bytes)", what,
                       (long long)(request->memory_bytes >> 20));
    av_strerror(rc, reason, sizeof reason);
    return tt_fail(err, TT_BAD_INPUT, "%s: %s%s%s", what, reason, complaint[0] ? ": " : "", complaint);
}

/* Puts the custom I/O in place. */
static int make_context(struct tt_input *input)
{
    uint8_t *buffer = av_malloc(IO_BUFFER_BYTES);

    input->format = avformat_alloc_context();
    if (!buffer || !input->format)
        return AVERROR(ENOMEM);
    input->format->pb = avio_alloc_context(buffer, IO_BUFFER_BYTES, 0, input, read_bytes, NULL, seek_bytes);
    if (!input->format->pb)
        return AVERROR(ENOMEM);
    input->format->opaque = input;
    input->format->io_open = open_nothing;
    input->format->protocol_whitelist = av_strdup("");
    return input->format->protocol_whitelist ? 0 : AVERROR(ENOMEM);
}

/* Finds the demuxer from the file's content alone; no name is ever shown to libav. */
static enum tt_status probe(struct tt_input *input, const struct tt_wire_request *request,
                            const AVInputFormat **found, struct tt_error *err)
{
    int rc = av_probe_input_buffer2(input->format->pb, found, "", NULL, 0, 0);
    const char *name;

    if (input->read_errno || rc == AVERROR(ENOMEM))
        return tt_input_fail(input, request, rc, "recognise the file", err);
    if (rc < 0)
        return tt_fail(err, TT_BAD_INPUT, "is not a video: its format is not recognised");
    name = (*found)->name;
    if (av_match_list(name, demuxers, ',') > 0)
        return TT_OK;
    if (av_match_list(name, pointers, ',') > 0)
        return tt_fail(err, TT_BAD_INPUT, "is not a video but a list that points elsewhere (%s)", name);
    if (strstr(name, "_pipe") || !strcmp(name, "image2"))
        return tt_fail(err, TT_BAD_INPUT, "is not a video but a still image (%s)", name);
    return tt_fail(err, TT_BAD_INPUT, "is not a video that is accepted (format %s)", name);
}

/* Says what there is where there is no video. */
static enum tt_status tell_contents(const struct tt_input *input, struct tt_error *err)
{
    char text[256] = "";
    bool audio = false;

    for (unsigned i = 0; i < input->format->nb_streams; i++) {
        const AVCodecParameters *p = input->format->streams[i]->codecpar;

        if (p->codec_type == AVMEDIA_TYPE_AUDIO) {
            av_strlcatf(text, sizeof text, "%s%s", audio ? ", " : "", avcodec_get_name(p->codec_id));
            audio = true;
        }
    }
    if (input->attached_pictures)
        av_strlcatf(text, sizeof text, "%san attached picture", audio ? " and " : "");
    if (audio)
        return tt_fail(err, TT_BAD_INPUT, "has no video; audio only: %s", text);
    if (text[0])
        return tt_fail(err, TT_BAD_INPUT, "has no video, only %s", text);
    if (input->format->nb_streams)
        return tt_fail(err, TT_BAD_INPUT, "has no video; %u streams of other kinds (%s)",
                       input->format->nb_streams, input->format->iformat->name);
    return tt_fail(err, TT_BAD_INPUT, "has no streams (%s)%s%s", input->format->iformat->name,
                   complaint[0] ? ": " : "", complaint);
}

static enum tt_status choose_stream(struct tt_input *input, struct tt_error *err)
{
    AVFormatContext *f = input->format;
    int index;

    /* av_find_best_stream falls back to a cover picture; hidden from it, none can be chosen. */
    for (unsigned i = 0; i < f->nb_streams; i++) {
        f->streams[i]->discard = AVDISCARD_ALL;
        if (f->streams[i]->disposition & AV_DISPOSITION_ATTACHED_PIC) {
            f->streams[i]->codecpar->codec_type = AVMEDIA_TYPE_ATTACHMENT;
            input->attached_pictures++;
        }
    }
    index = av_find_best_stream(f, AVMEDIA_TYPE_VIDEO, -1, -1, &input->codec, 0);
    if (index == AVERROR_DECODER_NOT_FOUND) {
        index = av_find_best_stream(f, AVMEDIA_TYPE_VIDEO, -1, -1, NULL, 0);
        return tt_fail(err, TT_BAD_INPUT, "has video of a codec that libavcodec cannot decode (%s)",
                       index >= 0 ? avcodec_get_name(f->streams[index]->codecpar->codec_id) : "unknown");
    }
    if (index < 0)
        return tell_contents(input, err);
    input->stream = f->streams[index];
    input->stream->discard = AVDISCARD_DEFAULT;
    return TT_OK;
}

enum tt_status tt_input_open_video(struct tt_input *input, const struct tt_wire_request *request,
                                   struct tt_error *err)
{
    const AVInputFormat *found = NULL;
    const AVCodecParameters *p;
    enum tt_status status;
    int rc = make_context(input);

    if (rc)
        return tt_input_fail(input, request, rc, "open the file", err);
    status = probe(input, request, &found, err);
    if (status)
        return status;
    rc = avformat_open_input(&input->format, "", found, NULL);
    if (rc < 0)
        return tt_input_fail(input, request, rc, found->name, err);
    rc = avformat_find_stream_info(input->format, NULL);
    if (rc == AVERROR(ENOMEM) || input->read_errno)
        return tt_input_fail(input, request, rc, found->name, err);
    status = choose_stream(input, err);
    if (status)
        return status;
    p = input->stream->codecpar;
    if ((int64_t)p->width * p->height > request->max_pixels)
        return tt_fail(err, TT_BAD_INPUT, "has frames of %dx%d, more than %lld pixels (limit max_pixels)",
                       p->width, p->height, (long long)request->max_pixels);
    return TT_OK;
}

enum tt_status tt_input_open_png(struct tt_input *input, struct tt_error *err)
{
    static const uint8_t signature[8] = {0x89, 'P', 'N', 'G', '\r', '\n', 0x1a, '\n'};
    const AVInputFormat *png = av_find_input_format("png_pipe");
    const struct tt_wire_request none = {0};
    uint8_t head[8];
    int rc;

    if (pread(TT_CHILD_VIDEO, head, sizeof head, 0) != sizeof head || memcmp(head, signature, sizeof head))
        return tt_fail(err, TT_BAD_INPUT, "the mask is not a PNG image");
    rc = png ? make_context(input) : AVERROR_DEMUXER_NOT_FOUND;
    if (!rc)
        rc = avformat_open_input(&input->format, "", png, NULL);
    if (rc < 0)
        return tt_input_fail(input, &none, rc, "open the mask", err);
    input->stream = input->format->streams[0];
    input->codec = avcodec_find_decoder(AV_CODEC_ID_PNG);
    if (!input->codec)
        return tt_fail(err, TT_REFUSE, "libavcodec has no PNG decoder");
    return TT_OK;
}

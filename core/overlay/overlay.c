/* core/overlay/overlay.c: frames from a decoder, tracks drawn into them, frames to an encoder.
 *
 * An overlay is an export whose writer also has the video: the choice of tracks, their times and the spilled
 * frames are core/export's. Invariant: frame t of the video gets the points of frame t, as long as there are
 * any; both children are ended on every way out. Fails as decoder, encoder, source and disk do, and where
 * video and tracks do not belong together.
 */
#include "core/overlay/parts.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

const char *const tt_overlay_style_names[TT_OVERLAY_STYLES] = {"dots", "tails", "grid", "heat"};

struct overlay {
    struct tt_export_options export; /* what the writer is found by */
    struct tt_file *video, *sheet_file;
    int video_fd;
    const struct tt_overlay_options *options;
    struct tt_decoder *decoder;
    struct tt_encoder *encoder;
    struct tt_frames frames;
    struct tt_painter painter;
    struct tt_sheet sheet;
    uint8_t *picture; /* where there is no video to write */
    struct tt_overlay_report report;
};

static enum tt_status check_size(const struct overlay *o, const struct tt_export *run, struct tt_error *err)
{
    const struct tt_video_info *info = tt_decoder_info(o->decoder);

    if (info->width == run->source->width && info->height == run->source->height)
        return TT_OK;
    return tt_fail(
        err, TT_BAD_INPUT,
        "the video is displayed in %dx%d, the tracks are of one in %dx%d: they do not belong together",
        info->width, info->height, run->source->width, run->source->height);
}

static struct tt_encoder_frames frames_of(const struct tt_export *run)
{
    return (struct tt_encoder_frames){.width = run->source->width,
                                      .height = run->source->height,
                                      .count = run->frames,
                                      .frame_s = run->fps > 0 ? 1 / run->fps : 0};
}

static enum tt_status open_all(struct overlay *o, struct tt_export *run, struct tt_error *err)
{
    const int width = run->source->width, height = run->source->height;
    const struct tt_encoder_frames frames = frames_of(run);
    enum tt_status status = tt_decoder_open_whole(&o->decoder, o->video_fd, &o->options->decoder, err);

    if (!status)
        status = check_size(o, run, err);
    if (!status)
        status = tt_frames_open(&o->frames, run, err);
    if (!status)
        status = tt_painter_open(&o->painter, run, o->options, &o->frames, err);
    if (!status && o->sheet_file)
        status = tt_sheet_open(&o->sheet, width, height, run->frames, err);
    if (!status && o->video)
        status = tt_encoder_open(&o->encoder, tt_file_descriptor(o->video), TT_ENCODE_MP4, &frames,
                                 &o->options->encoder, err);
    if (!status && !o->video) {
        o->picture = malloc((size_t)width * (size_t)height * 3);
        if (!o->picture)
            status = tt_fail(err, TT_RETRY_LATER, "no memory for a frame of %dx%d", width, height);
    }
    return status;
}

static enum tt_status go_on(const struct overlay *o, int64_t frames, int64_t expected, struct tt_error *err)
{
    if (o->options->stop && atomic_load_explicit(o->options->stop, memory_order_relaxed))
        return tt_fail(err, TT_INTERRUPTED, "interrupted");
    return o->options->progress ? o->options->progress(o->options->user, frames, expected, err) : TT_OK;
}

/* Draws frame t, which the decoder holds, and hands it on. */
static enum tt_status take_frame(struct overlay *o, const struct tt_export *run, int64_t t, double time_s,
                                 struct tt_error *err)
{
    struct tt_canvas canvas = {o->picture, run->source->width, run->source->height};
    enum tt_status status = tt_frames_read(&o->frames, t, tt_painter_row(&o->painter, t), err);

    if (!status && o->encoder)
        status = tt_encoder_slot(o->encoder, &canvas.rgb, err);
    if (status)
        return status;
    memcpy(canvas.rgb, tt_decoder_rgb(o->decoder), (size_t)canvas.width * (size_t)canvas.height * 3);
    if (o->sheet_file)
        tt_sheet_add(&o->sheet, t, &canvas, &o->painter);
    if (o->encoder)
        tt_painter_paint(&o->painter, t, &canvas);
    return o->encoder ? tt_encoder_put(o->encoder, time_s, err) : TT_OK;
}

static enum tt_status draw_frames(struct overlay *o, const struct tt_export *run, struct tt_error *err)
{
    struct tt_picture picture;
    bool got = true;
    enum tt_status status = TT_OK;

    for (int64_t t = 0; !status && t < run->frames; t++) {
        status = tt_decoder_next(o->decoder, &picture, &got, err);
        if (!status && !got)
            return tt_fail(err, TT_BAD_INPUT,
                           "the video ends after %lld frames, but the tracks have %lld: they do not belong "
                           "together",
                           (long long)t, (long long)run->frames);
        if (!status && o->options->same_times && picture.time_s != run->time_s[t])
            return tt_fail(
                err, TT_BAD_INPUT,
                "frame %lld of the video is at %.9g s, of the tracks at %.9g s: they do not belong "
                "together",
                (long long)t, picture.time_s, run->time_s[t]);
        if (!status)
            status = take_frame(o, run, t, picture.time_s, err);
        if (!status)
            status = go_on(o, t + 1, run->frames, err);
    }
    if (!status)
        status = tt_decoder_next(o->decoder, &picture, &got, err);
    o->report.video_goes_on = !status && got;
    return status;
}

static enum tt_status write_sheet(struct overlay *o, struct tt_error *err)
{
    const struct tt_canvas *sheet = &o->sheet.canvas;
    const struct tt_encoder_frames frame = {.width = sheet->width, .height = sheet->height, .count = 1};
    struct tt_encoder *encoder;
    uint8_t *rgb;
    enum tt_status status = tt_encoder_open(&encoder, tt_file_descriptor(o->sheet_file), TT_ENCODE_PNG,
                                            &frame, &o->options->encoder, err);

    if (status)
        return status;
    status = tt_encoder_slot(encoder, &rgb, err);
    if (!status) {
        memcpy(rgb, sheet->rgb, (size_t)sheet->width * (size_t)sheet->height * 3);
        status = tt_encoder_put(encoder, 0, err);
    }
    if (!status)
        status = tt_encoder_finish(encoder, err);
    tt_encoder_close(encoder);
    return status;
}

static void close_all(struct overlay *o)
{
    tt_encoder_close(o->encoder);
    tt_decoder_close(o->decoder);
    if (o->frames.fd >= 0)
        tt_frames_close(&o->frames);
    tt_painter_close(&o->painter);
    tt_sheet_close(&o->sheet);
    free(o->picture);
}

/* The writer. run->options is the first member of a struct overlay. */
static enum tt_status write(struct tt_export *run, struct tt_error *err)
{
    struct overlay *o = (struct overlay *)(void *)run->options;
    enum tt_status status = open_all(o, run, err);

    if (!status)
        status = draw_frames(o, run, err);
    if (!status && o->encoder)
        status = tt_encoder_finish(o->encoder, err);
    if (!status && o->sheet_file)
        status = write_sheet(o, err);
    o->report.tracks = run->tracks;
    o->report.frames = run->frames;
    if (o->encoder)
        snprintf(o->report.codec, sizeof o->report.codec, "%.31s", tt_encoder_codec(o->encoder));
    close_all(o);
    return status;
}

enum tt_status tt_overlay_write(struct tt_file *video, struct tt_file *sheet, int video_fd,
                                const struct tt_export_source *source,
                                const struct tt_overlay_options *options, struct tt_overlay_report *report,
                                struct tt_error *err)
{
    static const struct tt_export_format format = {.name = "overlay",
                                                   .options = TT_EXPORT_MIN_CONFIDENCE | TT_EXPORT_LABELS,
                                                   .most_frame = INT64_MAX,
                                                   .write = write};
    struct overlay o = {.export = {.min_confidence = options->min_confidence,
                                   .labels = options->labels,
                                   .label_count = options->label_count,
                                   .spill_folder = options->spill_folder,
                                   .stop = options->stop},
                        .video = video,
                        .sheet_file = sheet,
                        .video_fd = video_fd,
                        .options = options,
                        .frames.fd = -1};
    enum tt_status status =
        tt_export_write_file(video ? video : sheet, &format, source, &o.export, NULL, err);

    if (!status && report)
        *report = o.report;
    return status;
}

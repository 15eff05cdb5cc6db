/* core/job_video.c: a job's way to its video: opened by itself or taken as it was opened ahead, begun again,
 * and read a few frames at a time, so that a heartbeat and a stop come in between.
 *
 * Fails as the decoder does; what was opened is then closed.
 */
#include "core/job_parts.h"

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum { FRAMES_READ = 8 }; /* at a time */

enum tt_status tt_job_open_ahead(struct tt_job_decoder *ahead, const char *video,
                                 const struct tt_decoder_options *options, struct tt_error *err)
{
    struct tt_job_decoder opened;
    enum tt_status status = tt_decoder_open_path(video, &opened.video_fd, err);

    if (status)
        return status;
    if (fstat(opened.video_fd, &opened.file) < 0)
        status = tt_fail_errno(err, tt_status_of_errno(errno), errno, "%s", video);
    if (!status)
        status = tt_decoder_open(&opened.decoder, opened.video_fd, options, err);
    if (status)
        close(opened.video_fd);
    else
        *ahead = opened;
    return status;
}

void tt_job_close_ahead(struct tt_job_decoder *ahead)
{
    if (!ahead->decoder)
        return;
    tt_decoder_close(ahead->decoder);
    close(ahead->video_fd);
    ahead->decoder = NULL;
}

void tt_run_warn(struct tt_run *run, const char *format, ...)
{
    const size_t used = strlen(run->warnings), room = sizeof run->warnings - used;
    char text[512];
    va_list args;

    va_start(args, format);
    vsnprintf(text, sizeof text, format, args);
    va_end(args);
    snprintf(run->warnings + used, room, "%s%s", used ? "\n" : "", text);
}

void tt_run_warn_all(struct tt_run *run, const char *const *warnings, int count)
{
    enum { MOST = 2048, LAST = 64 };

    for (int i = 0; i < count; i++) {
        if (strlen(run->warnings) + strlen(warnings[i]) + LAST > MOST) {
            tt_run_warn(run, "%d more warnings of the decoder", count - i);
            return;
        }
        tt_run_warn(run, "%s", warnings[i]);
    }
}

/* Opens the video, or takes the decoder that is open already. */
enum tt_status tt_run_open_video(struct tt_run *run, struct tt_error *err)
{
    struct tt_job_decoder opened = run->job->ahead;
    enum tt_status status = tt_run_go_on(run, TT_JOB_OPENING, 0, err);

    if (!status && !opened.decoder)
        status = tt_job_open_ahead(&opened, run->job->video, &run->job->decoder, err);
    if (status) {
        tt_job_close_ahead(&opened);
        return status;
    }
    run->video_fd = opened.video_fd;
    run->decoder = opened.decoder;
    run->opened = opened.file;
    run->info = *tt_decoder_info(run->decoder);
    return TT_OK;
}

enum tt_status tt_run_rewind_video(struct tt_run *run, struct tt_error *err)
{
    tt_decoder_close(run->decoder);
    run->decoder = NULL;
    run->frames_read = 0;
    return tt_decoder_open(&run->decoder, run->video_fd, &run->job->decoder, err);
}

enum tt_status tt_run_read_frames(void *user, uint8_t *rgb, double *time_s, int wanted, int *got,
                                  struct tt_error *err)
{
    struct tt_run *run = user;
    int64_t left = run->job->max_frames ? run->job->max_frames - run->frames_read : INT64_MAX;
    int64_t start = tt_run_now_ms();
    enum tt_status status = TT_OK;
    bool ended = false;

    if (left < wanted)
        wanted = (int)left;
    for (*got = 0; *got < wanted && !ended && !status;) {
        int some = wanted - *got < FRAMES_READ ? wanted - *got : FRAMES_READ, read = 0;

        status = tt_run_go_on(run, run->reading,
                              run->reading == TT_JOB_DECODING ? run->frames_tracked : run->frames_read, err);
        if (!status)
            status = tt_decoder_read(run->decoder, rgb + (size_t)*got * TT_FRAME_BYTES, time_s + *got, some,
                                     &read, err);
        *got += read;
        run->frames_read += read;
        ended = read < some;
    }
    run->decode_ms += tt_run_now_ms() - start;
    return status;
}

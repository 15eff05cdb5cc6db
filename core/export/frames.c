/* core/export/frames.c: tracks turned into frames, through a nameless file.
 *
 * Sources give whole tracks; some formats want whole frames. As many tracks as fit into a block are read and
 * their piece of each frame is written in one go, so a point is read once and written once.
 */
#include "core/export/run.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { BLOCK_POINTS = 1 << 20 }; /* 16 MB */

static int64_t offset_of(const struct tt_frames *frames, int64_t frame, int track)
{
    return (frame * frames->tracks + track) * (int64_t)sizeof(struct tt_track_point);
}

/* block [run->frames][width] of tracks first.. */
static enum tt_status turn_block(const struct tt_frames *frames, struct tt_export *run, int first, int width,
                                 struct tt_track_point *block, struct tt_error *err)
{
    enum tt_status status = TT_OK;

    for (int i = 0; i < width && !status; i++) {
        status = tt_export_row(run, first + i, err);
        for (int64_t t = 0; t < run->frames && !status; t++)
            block[t * width + i] = run->row[t];
    }
    for (int64_t t = 0; t < run->frames && !status; t++)
        status = tt_write_at(frames->fd, block + t * width, (size_t)width * sizeof *block,
                             offset_of(frames, t, first), "turning tracks into frames", err);
    return status;
}

enum tt_status tt_frames_open(struct tt_frames *frames, struct tt_export *run, struct tt_error *err)
{
    const int64_t fitting = BLOCK_POINTS / run->frames;
    const int width = fitting < 1 ? 1 : fitting < run->tracks ? (int)fitting : run->tracks;
    struct tt_frames made = {.fd = -1, .tracks = run->tracks};
    struct tt_track_point *block = calloc((size_t)run->frames * (size_t)width, sizeof *block);
    enum tt_status status;

    if (!block)
        return tt_fail_errno(err, TT_RETRY_LATER, ENOMEM, "turning tracks into frames");
    status = tt_spill_open(&made.fd, run->options->spill_folder, err);
    for (int first = 0; first < run->tracks && !status; first += width)
        status = turn_block(&made, run, first, run->tracks - first < width ? run->tracks - first : width,
                            block, err);
    free(block);
    if (!status)
        *frames = made;
    else if (made.fd >= 0)
        close(made.fd);
    return status;
}

enum tt_status tt_frames_read(const struct tt_frames *frames, int64_t frame, struct tt_track_point *points,
                              struct tt_error *err)
{
    return tt_read_at(frames->fd, points, (size_t)frames->tracks * sizeof *points,
                      offset_of(frames, frame, 0), "turning tracks into frames", err);
}

void tt_frames_close(struct tt_frames *frames)
{
    close(frames->fd);
}

/* tests/fuzz/fuzz_trackfile.c: any bytes as an .npz track file. They are refused, or everything in them is
 * within the limits and its rows can be read or are refused.
 */
#include "core/trackfile.h"

#include "core/utf8.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

enum { POINTS_MAX = 1 << 20 }; /* what is read of a file that says it is huge */

static void require(int holds)
{
    if (!holds)
        abort();
}

static void check_rows(struct tt_trackfile *file, int queries, int64_t frames)
{
    struct tt_track_point *points = malloc((size_t)frames * sizeof *points);
    struct tt_error err;

    require(points != NULL);
    for (int q = 0; q < queries && q * frames < POINTS_MAX; q++) {
        enum tt_status status = tt_trackfile_rows(file, q, 1, points, &err);

        require(status == TT_OK || status == TT_BAD_INPUT);
        if (status)
            break;
        for (int64_t t = 0; t < frames; t++)
            require(isfinite(points[t].x) && isfinite(points[t].y) && isfinite(points[t].confidence));
    }
    free(points);
}

static void check_good(struct tt_trackfile *file)
{
    const struct tt_queries *queries = tt_trackfile_queries(file);
    int64_t frames = tt_trackfile_frames(file);
    int width, height;

    require(queries->count >= 1 && queries->count <= TT_QUERIES_MAX);
    require(frames >= 1 && frames <= TT_TRACK_FRAMES_MAX);
    tt_trackfile_size(file, &width, &height);
    require(width >= 1 && height >= 1);
    for (int q = 0; q < queries->count; q++) {
        require(queries->points[q].frame >= 0 && queries->points[q].frame < frames);
        require(!queries->labels || tt_utf8_is_label(queries->labels[q], strlen(queries->labels[q])));
    }
    for (int64_t t = 0; t < frames; t++)
        require(isfinite(tt_trackfile_times(file)[t]));
    for (const char *next = tt_trackfile_meta(file), *end = next + strlen(next); next < end;)
        require(tt_utf8_next(&next, end) > 0);
    if (frames <= POINTS_MAX)
        check_rows(file, queries->count, frames);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct tt_trackfile *file = NULL;
    struct tt_error err = {.text = ""};
    char path[64];
    int fd = memfd_create("fuzz", MFD_CLOEXEC);

    require(fd >= 0 && write(fd, data, size) == (ssize_t)size);
    snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
    if (tt_trackfile_open(&file, path, &err) == TT_OK)
        check_good(file);
    else
        require(err.status == TT_BAD_INPUT && strncmp(err.text, path, strlen(path)) == 0);
    tt_trackfile_close(file);
    close(fd);
    return 0;
}

/* core/trackfile_npz.c: writes .npz track files: each array as parts that core/npz asks for.
 *
 * The large arrays' parts are points, so that neither many queries nor many frames make a chunk grow.
 *
 * Fails: as the source and the disk do; on text that is not UTF-8.
 */
#include "core/npz.h"
#include "core/trackfile_parts.h"
#include "core/utf8.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

const char *const tt_array_members[TT_ARRAYS] = {
    "tracks.npy",     "occluded.npy", "confidence.npy", "query_points.npy", "time_s.npy",
    "frame_size.npy", "meta.npy",     "labels.npy",     "refined.npy",
};

enum { CHUNK_CHARACTERS = TT_BLOCK_POINTS }; /* of meta and labels made at a time */

struct writer {
    const struct tt_tracks *tracks;
    int label_characters;
    const char *meta_next; /* what is left of meta */
    struct tt_track_point points[TT_BLOCK_POINTS];
};

/* --- the large arrays: a part is a point, queries first to last ------------------------------ */

/* The part of points first..first+count-1 that can be read in one go: whole rows, or a piece of one. */
struct piece {
    int query, queries, frames;
    int64_t frame;
};

static struct piece next_piece(const struct writer *writer, int64_t first, int count)
{
    const int64_t row = writer->tracks->frames, frame = first % row;

    return (struct piece){.query = (int)(first / row),
                          .queries = frame == 0 && count >= row ? (int)(count / row) : 1,
                          .frames = (int)(row - frame < count ? row - frame : count),
                          .frame = frame};
}

static enum tt_status read_points(struct writer *writer, int64_t first, int count, struct tt_error *err)
{
    enum tt_status status = TT_OK;

    for (int done = 0; done < count && !status;) {
        const struct piece piece = next_piece(writer, first + done, count - done);

        status = tt_tracks_points(writer->tracks, piece.query, piece.queries, piece.frame, piece.frames,
                                  writer->points + done, err);
        done += piece.queries * piece.frames;
    }
    return status;
}

static enum tt_status make_tracks(void *user, int64_t first, int count, void *bytes, struct tt_error *err)
{
    struct writer *writer = user;
    float *xy = bytes;
    enum tt_status status = read_points(writer, first, count, err);

    for (int i = 0; i < count && !status; i++) {
        xy[2 * i] = writer->points[i].x;
        xy[2 * i + 1] = writer->points[i].y;
    }
    return status;
}

static enum tt_status make_occluded(void *user, int64_t first, int count, void *bytes, struct tt_error *err)
{
    struct writer *writer = user;
    bool *occluded = bytes;
    enum tt_status status = read_points(writer, first, count, err);

    for (int i = 0; i < count && !status; i++)
        occluded[i] = writer->points[i].occluded;
    return status;
}

static enum tt_status make_confidence(void *user, int64_t first, int count, void *bytes, struct tt_error *err)
{
    struct writer *writer = user;
    float *confidence = bytes;
    enum tt_status status = read_points(writer, first, count, err);

    for (int i = 0; i < count && !status; i++)
        confidence[i] = writer->points[i].confidence;
    return status;
}

static enum tt_status make_refined(void *user, int64_t first, int count, void *bytes, struct tt_error *err)
{
    struct writer *writer = user;
    bool *refined = bytes;
    enum tt_status status = read_points(writer, first, count, err);

    for (int i = 0; i < count && !status; i++)
        refined[i] = writer->points[i].refined;
    return status;
}

/* --- the others ------------------------------------------------------------------------------ */

static enum tt_status make_times(void *user, int64_t first, int count, void *bytes, struct tt_error *err)
{
    const struct tt_track_source *source = &((struct writer *)user)->tracks->source;

    return source->times(source->user, first, count, bytes, err);
}

static enum tt_status make_query_points(void *user, int64_t first, int count, void *bytes,
                                        struct tt_error *err)
{
    const struct tt_query *query = ((struct writer *)user)->tracks->queries->points + first;
    float *tyx = bytes;

    (void)err;
    for (int i = 0; i < count; i++, query++) {
        *tyx++ = (float)query->frame;
        *tyx++ = query->y;
        *tyx++ = query->x;
    }
    return TT_OK;
}

static enum tt_status make_frame_size(void *user, int64_t first, int count, void *bytes, struct tt_error *err)
{
    const struct tt_tracks *tracks = ((struct writer *)user)->tracks;
    const int32_t size[2] = {tracks->width, tracks->height};

    (void)first;
    (void)count;
    (void)err;
    memcpy(bytes, size, sizeof size);
    return TT_OK;
}

/* Characters of *text as UTF-32, at most `room`; *text is moved behind them. Returns how many. */
static size_t to_utf32(uint32_t *out, size_t room, const char **text)
{
    const char *end = *text + strlen(*text);
    size_t count = 0;

    while (count < room && *text < end) {
        int32_t character = tt_utf8_next(text, end);

        if (character < 0)
            break;
        out[count++] = (uint32_t)character;
    }
    return count;
}

static enum tt_status make_meta(void *user, int64_t first, int count, void *bytes, struct tt_error *err)
{
    struct writer *writer = user;

    (void)err;
    if (first == 0)
        writer->meta_next = writer->tracks->meta;
    to_utf32(bytes, (size_t)count, &writer->meta_next);
    return TT_OK;
}

static enum tt_status make_labels(void *user, int64_t first, int count, void *bytes, struct tt_error *err)
{
    const struct writer *writer = user;
    const size_t width = (size_t)writer->label_characters;
    uint32_t *characters = bytes;

    (void)err;
    memset(bytes, 0, (size_t)count * width * sizeof *characters);
    for (int i = 0; i < count; i++) {
        const char *label = writer->tracks->queries->labels[first + i];

        to_utf32(characters + (size_t)i * width, width, &label);
    }
    return TT_OK;
}

/* --- the file -------------------------------------------------------------------------------- */

static int longest_label(const struct tt_queries *queries)
{
    size_t longest = 1; /* NumPy has no <U0 */

    for (int q = 0; queries->labels && q < queries->count; q++) {
        size_t length = tt_utf8_length(queries->labels[q]);

        longest = length > longest ? length : longest;
    }
    return (int)longest;
}

/* What becomes UTF-32 must be UTF-8, or sizes would be wrong. Labels were checked for all formats. */
static enum tt_status check_meta(const struct tt_tracks *tracks, struct tt_error *err)
{
    const char *next = tracks->meta, *end = next + strlen(next);

    while (next < end)
        if (tt_utf8_next(&next, end) < 0)
            return tt_fail(err, TT_REFUSE, "a track file's meta is not UTF-8");
    if (next == tracks->meta || tt_utf8_length(tracks->meta) > TT_META_CHARACTERS)
        return tt_fail(err, TT_REFUSE, "a track file's meta has 1 to %d characters", TT_META_CHARACTERS);
    return TT_OK;
}

static enum tt_status write_arrays(struct tt_file *file, struct writer *writer, struct tt_error *err)
{
    const struct tt_tracks *tracks = writer->tracks;
    const int64_t n = tracks->queries->count, t = tracks->frames;
    const int meta = (int)tt_utf8_length(tracks->meta), label = writer->label_characters;
    const struct tt_npz_array refined = {tt_array_members[TT_ARRAY_REFINED],
                                         {.kind = 'b', .item_bytes = 1, .rank = 2, .shape = {n, t}},
                                         n * t,
                                         TT_BLOCK_POINTS,
                                         make_refined};
    struct tt_npz_array arrays[TT_ARRAYS] = {
        {tt_array_members[TT_ARRAY_TRACKS],
         {.kind = 'f', .item_bytes = 4, .rank = 3, .shape = {n, t, 2}},
         n * t,
         TT_BLOCK_POINTS,
         make_tracks},
        {tt_array_members[TT_ARRAY_OCCLUDED],
         {.kind = 'b', .item_bytes = 1, .rank = 2, .shape = {n, t}},
         n * t,
         TT_BLOCK_POINTS,
         make_occluded},
        {tt_array_members[TT_ARRAY_CONFIDENCE],
         {.kind = 'f', .item_bytes = 4, .rank = 2, .shape = {n, t}},
         n * t,
         TT_BLOCK_POINTS,
         make_confidence},
        {tt_array_members[TT_ARRAY_QUERY_POINTS],
         {.kind = 'f', .item_bytes = 4, .rank = 2, .shape = {n, 3}},
         n,
         TT_BLOCK_POINTS,
         make_query_points},
        {tt_array_members[TT_ARRAY_TIME_S],
         {.kind = 'f', .item_bytes = 8, .rank = 1, .shape = {t}},
         t,
         TT_BLOCK_POINTS,
         make_times},
        {tt_array_members[TT_ARRAY_FRAME_SIZE],
         {.kind = 'i', .item_bytes = 4, .rank = 1, .shape = {2}},
         1,
         1,
         make_frame_size},
        {tt_array_members[TT_ARRAY_META],
         {.kind = 'U', .characters = meta, .item_bytes = 4 * meta},
         meta,
         CHUNK_CHARACTERS,
         make_meta},
        {tt_array_members[TT_ARRAY_LABELS],
         {.kind = 'U', .characters = label, .item_bytes = 4 * label, .rank = 1, .shape = {n}},
         n,
         CHUNK_CHARACTERS / TT_LABEL_BYTES,
         make_labels},
    };
    int count = TT_ARRAY_LABELS + (tracks->queries->labels != NULL);

    if (tracks->source.refined)
        arrays[count++] = refined;
    return tt_npz_write(file, arrays, count, writer, err);
}

enum tt_status tt_tracks_write_npz(struct tt_file *file, const struct tt_tracks *tracks, struct tt_error *err)
{
    struct writer *writer;
    enum tt_status status = check_meta(tracks, err);

    if (status)
        return status;
    writer = calloc(1, sizeof *writer);
    if (!writer)
        return tt_fail_errno(err, TT_RETRY_LATER, ENOMEM, "writing a track file");
    writer->tracks = tracks;
    writer->label_characters = longest_label(tracks->queries);
    status = write_arrays(file, writer, err);
    free(writer);
    return status;
}

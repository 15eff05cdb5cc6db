/* core/trackfile_read.c: reads .npz track files, ours and those that NumPy saved again.
 *
 * Nothing that the file says is believed before it fits together: each array is there once, its type and
 * shape agree with the others and with the limits, its member is exactly as long as they ask for. The large
 * arrays are read in streams, a piece at a time; the rest is held. libzip checks each member's CRC when
 * its end is reached.
 *
 * Fails: TT_BAD_INPUT with the file's name, the array and what is wrong with it.
 */
#include "core/trackfile.h"
#include "core/trackfile_parts.h"
#include "core/utf8.h"

#include <errno.h>
#include <fcntl.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#include <zip.h>

enum {
    MEMBERS_MAX = 64,
    HEADER_MAX = 4096, /* bytes of a member's dictionary */
    PIECE_FRAMES = 4096,
};

/* One array's member. */
struct stream {
    bool present;
    zip_uint64_t index;
    struct tt_npy npy;
    zip_file_t *open;
    int row; /* queries' rows: the next one */
};

struct tt_trackfile {
    char *path;
    zip_t *zip;
    struct stream streams[TT_ARRAYS];
    struct tt_queries queries;
    int64_t frames;
    int32_t size[2];
    double *time_s;
    char *meta;
};

static enum tt_status bad(const struct tt_trackfile *file, enum tt_track_array array, struct tt_error *err,
                          const char *what)
{
    return tt_fail(err, TT_BAD_INPUT, "%s: %s: %s", file->path, tt_array_members[array], what);
}

static enum tt_status no_memory(const struct tt_trackfile *file, struct tt_error *err)
{
    return tt_fail_errno(err, TT_RETRY_LATER, ENOMEM, "%s", file->path);
}

/* --- members
 * ------------------------------------------------------------------------------------------------- */

/* The next bytes of a member, exactly as many; where they are the last, its CRC has been checked too. */
static enum tt_status take(struct tt_trackfile *file, enum tt_track_array array, void *bytes, size_t size,
                           struct tt_error *err)
{
    zip_file_t *open = file->streams[array].open;
    char *next = bytes;

    while (size > 0) {
        zip_int64_t got = zip_fread(open, next, size);

        if (got < 0)
            return bad(file, array, err, zip_file_strerror(open));
        if (got == 0)
            return bad(file, array, err, "ends early");
        next += got;
        size -= (size_t)got;
    }
    return TT_OK;
}

/* Behind an array's last byte: libzip compares the CRC when it meets the end. */
static enum tt_status expect_end(struct tt_trackfile *file, enum tt_track_array array, struct tt_error *err)
{
    zip_file_t *open = file->streams[array].open;
    char byte;
    zip_int64_t got = zip_fread(open, &byte, 1);

    if (got == 0)
        return TT_OK;
    return bad(file, array, err, got < 0 ? zip_file_strerror(open) : "longer than its shape");
}

/* (Re)opens a member, reads its header and stands at its data. */
static enum tt_status open_stream(struct tt_trackfile *file, enum tt_track_array array, struct tt_error *err)
{
    struct stream *stream = &file->streams[array];
    unsigned char lead[12];
    char header[HEADER_MAX + 1];
    size_t lead_bytes = 10, length;
    zip_stat_t info;
    enum tt_status status;

    if (stream->open)
        zip_fclose(stream->open);
    stream->row = 0;
    stream->open = zip_fopen_index(file->zip, stream->index, 0);
    if (!stream->open)
        return bad(file, array, err, zip_strerror(file->zip));
    status = take(file, array, lead, lead_bytes, err);
    if (status)
        return status;
    if (memcmp(lead, "\x93NUMPY", 6) != 0 || lead[6] < 1 || lead[6] > 2 || lead[7] != 0)
        return bad(file, array, err, "not an NPY array of version 1.0 or 2.0");
    length = (size_t)lead[8] | (size_t)lead[9] << 8;
    if (lead[6] == 2) {
        status = take(file, array, lead + 10, 2, err);
        if (status)
            return status;
        lead_bytes = 12;
        length |= (size_t)lead[10] << 16 | (size_t)lead[11] << 24;
    }
    if (length > HEADER_MAX)
        return bad(file, array, err, "header too long");
    status = take(file, array, header, length, err);
    if (status)
        return status;
    header[length] = '\0';
    if (!tt_npy_parse_header(&stream->npy, header))
        return bad(file, array, err, "a header that track files do not have");
    for (int i = 0; i < stream->npy.rank; i++)
        if (stream->npy.shape[i] > TT_TRACK_FRAMES_MAX)
            return bad(file, array, err, "too large");
    if (zip_stat_index(file->zip, stream->index, 0, &info) < 0 || !(info.valid & ZIP_STAT_SIZE))
        return bad(file, array, err, "size unknown");
    if (info.size != lead_bytes + length + (zip_uint64_t)tt_npy_data_bytes(&stream->npy))
        return bad(file, array, err, "not as long as its shape says");
    return TT_OK;
}

static enum tt_status find_members(struct tt_trackfile *file, struct tt_error *err)
{
    zip_int64_t entries = zip_get_num_entries(file->zip, 0);

    if (entries > MEMBERS_MAX)
        return tt_fail(err, TT_BAD_INPUT, "%s: %lld members; a track file has at most %d", file->path,
                       (long long)entries, MEMBERS_MAX);
    for (zip_int64_t i = 0; i < entries; i++) {
        const char *name = zip_get_name(file->zip, (zip_uint64_t)i, ZIP_FL_ENC_RAW);

        for (int array = 0; name && array < TT_ARRAYS; array++) {
            if (strcmp(name, tt_array_members[array]) != 0)
                continue;
            if (file->streams[array].present)
                return bad(file, (enum tt_track_array)array, err, "there twice");
            file->streams[array] = (struct stream){.present = true, .index = (zip_uint64_t)i};
        }
    }
    for (int array = 0; array < TT_ARRAYS; array++) {
        enum tt_status status;

        if (!file->streams[array].present && array < TT_ARRAY_LABELS)
            return bad(file, (enum tt_track_array)array, err, "missing: not a track file");
        if (!file->streams[array].present)
            continue;
        status = open_stream(file, (enum tt_track_array)array, err);
        if (status)
            return status;
    }
    return TT_OK;
}

static bool has_type(const struct stream *stream, char kind, int item_bytes, int rank, int64_t d0, int64_t d1,
                     int64_t d2)
{
    const struct tt_npy *npy = &stream->npy;

    return npy->kind == kind && (kind == 'U' || npy->item_bytes == item_bytes) && npy->rank == rank &&
           (rank < 1 || npy->shape[0] == d0) && (rank < 2 || npy->shape[1] == d1) &&
           (rank < 3 || npy->shape[2] == d2);
}

/* Types and shapes against each other; afterwards N and T are known. */
static enum tt_status check_types(struct tt_trackfile *file, struct tt_error *err)
{
    const struct stream *s = file->streams;
    const int64_t n = s[TT_ARRAY_TRACKS].npy.shape[0], t = s[TT_ARRAY_TRACKS].npy.shape[1];
    const bool right[TT_ARRAYS] = {
        [TT_ARRAY_TRACKS] = has_type(&s[TT_ARRAY_TRACKS], 'f', 4, 3, n, t, 2) && n >= 1 &&
                            n <= TT_QUERIES_MAX && t >= 1 && t <= TT_TRACK_FRAMES_MAX,
        [TT_ARRAY_OCCLUDED] = has_type(&s[TT_ARRAY_OCCLUDED], 'b', 1, 2, n, t, 0),
        [TT_ARRAY_CONFIDENCE] = has_type(&s[TT_ARRAY_CONFIDENCE], 'f', 4, 2, n, t, 0),
        [TT_ARRAY_QUERY_POINTS] = has_type(&s[TT_ARRAY_QUERY_POINTS], 'f', 4, 2, n, 3, 0),
        [TT_ARRAY_TIME_S] = has_type(&s[TT_ARRAY_TIME_S], 'f', 8, 1, t, 0, 0),
        [TT_ARRAY_FRAME_SIZE] = has_type(&s[TT_ARRAY_FRAME_SIZE], 'i', 4, 1, 2, 0, 0),
        [TT_ARRAY_META] = has_type(&s[TT_ARRAY_META], 'U', 0, 0, 0, 0, 0),
        [TT_ARRAY_LABELS] =
            !s[TT_ARRAY_LABELS].present || (has_type(&s[TT_ARRAY_LABELS], 'U', 0, 1, n, 0, 0) &&
                                            s[TT_ARRAY_LABELS].npy.characters <= TT_LABEL_BYTES),
        [TT_ARRAY_REFINED] =
            !s[TT_ARRAY_REFINED].present || has_type(&s[TT_ARRAY_REFINED], 'b', 1, 2, n, t, 0),
    };

    for (int array = 0; array < TT_ARRAYS; array++)
        if (!right[array])
            return bad(file, (enum tt_track_array)array, err, "type or shape is not a track file's");
    file->queries.count = (int)n;
    file->frames = t;
    return TT_OK;
}

/* --- what is held
 * ---------------------------------------------------------------------------------------------- */

/* Turns UTF-32 that ends at `characters` or at trailing NULs into UTF-8. NULL: not text, or no memory. */
static char *to_utf8(const uint32_t *text, size_t characters)
{
    char *out, *next;

    while (characters > 0 && text[characters - 1] == 0)
        characters--;
    out = next = malloc(4 * characters + 1);
    for (size_t i = 0; out && i < characters; i++) {
        size_t length = text[i] ? tt_utf8_write(next, text[i]) : 0;

        if (length == 0) {
            free(out);
            return NULL;
        }
        next += length;
    }
    if (out)
        *next = '\0';
    return out;
}

static enum tt_status read_query_points(struct tt_trackfile *file, struct tt_error *err)
{
    struct tt_queries *queries = &file->queries;

    queries->points = calloc((size_t)queries->count, sizeof *queries->points);
    if (!queries->points)
        return no_memory(file, err);
    for (int q = 0; q < queries->count; q++) {
        float point[3];
        enum tt_status status = take(file, TT_ARRAY_QUERY_POINTS, point, sizeof point, err);

        if (status)
            return status;
        if (!(point[0] >= 0 && point[0] < (float)file->frames && point[0] == floorf(point[0])) ||
            !isfinite(point[1]) || !isfinite(point[2]))
            return bad(file, TT_ARRAY_QUERY_POINTS, err, "a point that cannot be");
        queries->points[q] = (struct tt_query){.frame = (int32_t)point[0], .y = point[1], .x = point[2]};
    }
    return expect_end(file, TT_ARRAY_QUERY_POINTS, err);
}

static enum tt_status read_labels(struct tt_trackfile *file, struct tt_error *err)
{
    struct tt_queries *queries = &file->queries;
    const size_t characters = (size_t)file->streams[TT_ARRAY_LABELS].npy.characters;
    uint32_t text[TT_LABEL_BYTES];

    queries->labels = calloc((size_t)queries->count, sizeof *queries->labels);
    if (!queries->labels)
        return no_memory(file, err);
    for (int q = 0; q < queries->count; q++) {
        enum tt_status status = take(file, TT_ARRAY_LABELS, text, 4 * characters, err);

        if (status)
            return status;
        queries->labels[q] = to_utf8(text, characters);
        if (!queries->labels[q] || !tt_utf8_is_label(queries->labels[q], strlen(queries->labels[q])) ||
            strlen(queries->labels[q]) > TT_LABEL_BYTES)
            return bad(file, TT_ARRAY_LABELS, err, "a label that cannot be");
    }
    return expect_end(file, TT_ARRAY_LABELS, err);
}

static enum tt_status read_times(struct tt_trackfile *file, struct tt_error *err)
{
    enum tt_status status;

    file->time_s = calloc((size_t)file->frames, sizeof *file->time_s);
    if (!file->time_s)
        return no_memory(file, err);
    status = take(file, TT_ARRAY_TIME_S, file->time_s, (size_t)file->frames * sizeof *file->time_s, err);
    for (int64_t t = 0; t < file->frames && !status; t++)
        if (!isfinite(file->time_s[t]))
            status = bad(file, TT_ARRAY_TIME_S, err, "a time that is not finite");
    return status ? status : expect_end(file, TT_ARRAY_TIME_S, err);
}

static enum tt_status read_meta(struct tt_trackfile *file, struct tt_error *err)
{
    const size_t characters = (size_t)file->streams[TT_ARRAY_META].npy.characters;
    uint32_t *text = malloc(characters * sizeof *text);
    enum tt_status status;

    if (!text)
        return no_memory(file, err);
    status = take(file, TT_ARRAY_META, text, characters * sizeof *text, err);
    if (!status) {
        file->meta = to_utf8(text, characters);
        if (!file->meta)
            status = bad(file, TT_ARRAY_META, err, "not text");
    }
    free(text);
    return status ? status : expect_end(file, TT_ARRAY_META, err);
}

static enum tt_status read_size(struct tt_trackfile *file, struct tt_error *err)
{
    enum tt_status status = take(file, TT_ARRAY_FRAME_SIZE, file->size, sizeof file->size, err);

    if (!status && (file->size[0] < 1 || file->size[1] < 1))
        status = bad(file, TT_ARRAY_FRAME_SIZE, err, "not the size of a frame");
    return status ? status : expect_end(file, TT_ARRAY_FRAME_SIZE, err);
}

/* --- the interface
 * --------------------------------------------------------------------------------------------- */

/* Opens the archive without waiting for a fifo's writer. */
static enum tt_status open_archive(struct tt_trackfile *file, struct tt_error *err)
{
    int fd = open(file->path, O_RDONLY | O_NONBLOCK | O_NOCTTY | O_CLOEXEC);
    struct stat info;
    FILE *stream = NULL;
    zip_source_t *source = NULL;
    zip_error_t zip_error;
    enum tt_status status = TT_OK;

    zip_error_init(&zip_error);
    if (fd < 0 || fstat(fd, &info) < 0 || (S_ISREG(info.st_mode) && !(stream = fdopen(fd, "rb")))) {
        status =
            tt_fail_errno(err, tt_status_of_errno(errno) == TT_RETRY_LATER ? TT_RETRY_LATER : TT_BAD_INPUT,
                          errno, "%s", file->path);
        goto done;
    }
    if (!stream) {
        status = tt_fail(err, TT_BAD_INPUT, "%s: not a regular file", file->path);
        goto done;
    }
    fd = -1;
    source = zip_source_filep_create(stream, 0, -1, &zip_error);
    if (source) {
        stream = NULL;
        file->zip = zip_open_from_source(source, ZIP_RDONLY, &zip_error);
    }
    if (!file->zip) {
        zip_source_free(source);
        status = tt_fail(err, TT_BAD_INPUT, "%s: not an .npz file: %s", file->path,
                         zip_error_strerror(&zip_error));
    }
done:
    if (stream)
        fclose(stream);
    if (fd >= 0)
        close(fd);
    zip_error_fini(&zip_error);
    return status;
}

enum tt_status tt_trackfile_open(struct tt_trackfile **file, const char *path, struct tt_error *err)
{
    struct tt_trackfile *made = calloc(1, sizeof *made);
    enum tt_status status;

    if (made)
        made->path = strdup(path);
    if (!made || !made->path) {
        free(made);
        return tt_fail_errno(err, TT_RETRY_LATER, ENOMEM, "%s", path);
    }
    status = open_archive(made, err);
    if (!status)
        status = find_members(made, err);
    if (!status)
        status = check_types(made, err);
    if (!status)
        status = read_query_points(made, err);
    if (!status && made->streams[TT_ARRAY_LABELS].present)
        status = read_labels(made, err);
    if (!status)
        status = read_times(made, err);
    if (!status)
        status = read_size(made, err);
    if (!status)
        status = read_meta(made, err);
    if (status)
        tt_trackfile_close(made);
    else
        *file = made;
    return status;
}

const struct tt_queries *tt_trackfile_queries(const struct tt_trackfile *file)
{
    return &file->queries;
}

int64_t tt_trackfile_frames(const struct tt_trackfile *file)
{
    return file->frames;
}

void tt_trackfile_size(const struct tt_trackfile *file, int *width, int *height)
{
    *width = file->size[0];
    *height = file->size[1];
}

const double *tt_trackfile_times(const struct tt_trackfile *file)
{
    return file->time_s;
}

const char *tt_trackfile_meta(const struct tt_trackfile *file)
{
    return file->meta;
}

bool tt_trackfile_refined(const struct tt_trackfile *file)
{
    return file->streams[TT_ARRAY_REFINED].present;
}

/* One row of a large array, piece by piece; where it is not wanted it is read past. */
static enum tt_status read_row(struct tt_trackfile *file, enum tt_track_array array, bool wanted,
                               struct tt_track_point *points, struct tt_error *err)
{
    union {
        float f4[2 * PIECE_FRAMES];
        unsigned char b1[PIECE_FRAMES];
    } piece;
    const size_t frame_bytes = array == TT_ARRAY_TRACKS ? 8 : array == TT_ARRAY_CONFIDENCE ? 4 : 1;
    int count;

    for (int64_t frame = 0; frame < file->frames; frame += count) {
        enum tt_status status;

        count = (int)(file->frames - frame < PIECE_FRAMES ? file->frames - frame : PIECE_FRAMES);
        status = take(file, array, &piece, (size_t)count * frame_bytes, err);
        if (status)
            return status;
        for (int t = 0; t < count && wanted; t++) {
            struct tt_track_point *point = &points[frame + t];
            bool finite = true;

            if (array == TT_ARRAY_OCCLUDED) {
                point->occluded = piece.b1[t] != 0;
            } else if (array == TT_ARRAY_REFINED) {
                point->refined = piece.b1[t] != 0;
            } else if (array == TT_ARRAY_CONFIDENCE) {
                point->confidence = piece.f4[t];
                finite = isfinite(point->confidence);
            } else {
                point->x = piece.f4[2 * t];
                point->y = piece.f4[2 * t + 1];
                finite = isfinite(point->x) && isfinite(point->y);
            }
            if (!finite)
                return bad(file, array, err, "a value that is not finite");
        }
    }
    return TT_OK;
}

static enum tt_status read_rows(struct tt_trackfile *file, enum tt_track_array array, int first_query,
                                int queries, struct tt_track_point *points, struct tt_error *err)
{
    struct stream *stream = &file->streams[array];
    enum tt_status status = TT_OK;

    if (stream->row > first_query)
        status = open_stream(file, array, err);
    while (!status && stream->row < first_query + queries) {
        bool wanted = stream->row >= first_query;

        status = read_row(file, array, wanted,
                          wanted ? points + (stream->row - first_query) * file->frames : NULL, err);
        stream->row++;
    }
    if (!status && stream->row == file->queries.count)
        status = expect_end(file, array, err);
    return status;
}

enum tt_status tt_trackfile_rows(struct tt_trackfile *file, int first_query, int queries,
                                 struct tt_track_point *points, struct tt_error *err)
{
    enum tt_status status;

    if (first_query < 0 || queries < 0 || queries > file->queries.count - first_query)
        return tt_fail(err, TT_REFUSE, "%s: has %d tracks; %d from %d were asked for", file->path,
                       file->queries.count, queries, first_query);
    status = read_rows(file, TT_ARRAY_TRACKS, first_query, queries, points, err);
    if (!status)
        status = read_rows(file, TT_ARRAY_OCCLUDED, first_query, queries, points, err);
    if (!status)
        status = read_rows(file, TT_ARRAY_CONFIDENCE, first_query, queries, points, err);
    if (!status && tt_trackfile_refined(file))
        return read_rows(file, TT_ARRAY_REFINED, first_query, queries, points, err);
    for (int64_t i = 0; !status && i < queries * file->frames; i++)
        points[i].refined = false;
    return status;
}

void tt_trackfile_close(struct tt_trackfile *file)
{
    if (!file)
        return;
    for (int array = 0; array < TT_ARRAYS; array++)
        if (file->streams[array].open)
            zip_fclose(file->streams[array].open);
    if (file->zip)
        zip_discard(file->zip);
    tt_queries_free(&file->queries);
    free(file->time_s);
    free(file->meta);
    free(file->path);
    free(file);
}

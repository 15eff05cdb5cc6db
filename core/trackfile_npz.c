/* core/trackfile_npz.c: writes .npz track files with libzip.
 *
 * Each member is a zip source that makes its bytes when libzip asks for them: a header, then block after
 * block of the array. Members are stored, not compressed, so that they can be mapped; their sizes are known
 * beforehand, so only a member beyond 4 GiB is written as ZIP64. Times are fixed: equal data gives equal
 * bytes. The archive itself is a zip source that writes into the tt_file at offsets.
 *
 * Fails: the first failure of a block or of a write is kept in archive.err, since libzip only knows
 * errno-like codes; every later callback fails at once.
 */
#include "core/trackfile_parts.h"
#include "core/utf8.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <zip.h>

const char *const tt_array_members[TT_ARRAYS] = {
    "tracks.npy", "occluded.npy",   "confidence.npy", "query_points.npy",
    "time_s.npy", "frame_size.npy", "meta.npy",       "labels.npy",
};

enum {
    CHUNK_BYTES =
        TT_BLOCK_POINTS * 8, /* of an array, made at a time: a block of tracks, 1000 labels, meta's part */
    ZIP_EPOCH_DATE = 0x0021, /* 1980-01-01, the earliest that zip knows */
};

struct archive {
    struct tt_file *file;
    const struct tt_tracks *tracks;
    zip_uint64_t length, offset; /* of the archive written so far; where the next write goes */
    enum tt_status status;       /* of the first failure */
    struct tt_error err;
    zip_error_t zip_error;
    int label_characters;
    struct tt_track_point points[TT_BLOCK_POINTS];
};

/* A member on its way: bytes [taken, made) of chunk are next. */
struct member {
    struct archive *archive;
    enum tt_track_array array;
    struct tt_npy npy;
    struct tt_block block; /* tracks, occluded, confidence: the newest block */
    int64_t next;          /* the others: the next item */
    const char *text;      /* meta: what is left of it */
    size_t taken, made;
    union {
        char chunk[CHUNK_BYTES];
        float f4[CHUNK_BYTES / 4];
        double f8[CHUNK_BYTES / 8];
        int32_t i4[CHUNK_BYTES / 4];
        uint32_t u4[CHUNK_BYTES / 4];
    };
};

/* --- arrays ------------------------------------------------------------------------------------------------
 */

static int longest_label(const struct tt_queries *queries)
{
    size_t longest = 1; /* NumPy has no <U0 */

    for (int q = 0; queries->labels && q < queries->count; q++) {
        size_t length = tt_utf8_length(queries->labels[q]);

        longest = length > longest ? length : longest;
    }
    return (int)longest;
}

static struct tt_npy array_type(const struct archive *archive, enum tt_track_array array)
{
    const struct tt_tracks *tracks = archive->tracks;
    const int64_t n = tracks->queries->count, t = tracks->frames;
    const int meta = (int)tt_utf8_length(tracks->meta), label = archive->label_characters;

    switch (array) {
    case TT_ARRAY_TRACKS:
        return (struct tt_npy){.kind = 'f', .item_bytes = 4, .rank = 3, .shape = {n, t, 2}};
    case TT_ARRAY_OCCLUDED:
        return (struct tt_npy){.kind = 'b', .item_bytes = 1, .rank = 2, .shape = {n, t}};
    case TT_ARRAY_CONFIDENCE:
        return (struct tt_npy){.kind = 'f', .item_bytes = 4, .rank = 2, .shape = {n, t}};
    case TT_ARRAY_QUERY_POINTS:
        return (struct tt_npy){.kind = 'f', .item_bytes = 4, .rank = 2, .shape = {n, 3}};
    case TT_ARRAY_TIME_S:
        return (struct tt_npy){.kind = 'f', .item_bytes = 8, .rank = 1, .shape = {t}};
    case TT_ARRAY_FRAME_SIZE:
        return (struct tt_npy){.kind = 'i', .item_bytes = 4, .rank = 1, .shape = {2}};
    case TT_ARRAY_META:
        return (struct tt_npy){.kind = 'U', .characters = meta, .item_bytes = 4 * meta};
    case TT_ARRAY_LABELS:
    case TT_ARRAYS:
        break;
    }
    return (struct tt_npy){
        .kind = 'U', .characters = label, .item_bytes = 4 * label, .rank = 1, .shape = {n}};
}

static enum tt_status make_points(struct member *member, struct tt_error *err)
{
    const struct tt_tracks *tracks = member->archive->tracks;
    const struct tt_track_point *points = member->archive->points;
    struct tt_block *block = &member->block;
    enum tt_status status;
    size_t count;

    if (!tt_block_next(block, tracks->queries->count, tracks->frames))
        return TT_OK;
    status = tt_tracks_points(tracks, block->query, block->queries, block->frame, block->frames,
                              member->archive->points, err);
    if (status)
        return status;
    count = (size_t)block->queries * (size_t)block->frames;
    for (size_t i = 0; i < count; i++) {
        if (member->array == TT_ARRAY_OCCLUDED) {
            member->chunk[i] = points[i].occluded;
        } else if (member->array == TT_ARRAY_CONFIDENCE) {
            member->f4[i] = points[i].confidence;
        } else {
            member->f4[2 * i] = points[i].x;
            member->f4[2 * i + 1] = points[i].y;
        }
    }
    member->made =
        count * (size_t)(tt_npy_data_bytes(&member->npy) / tracks->queries->count / tracks->frames);
    return TT_OK;
}

static enum tt_status make_times(struct member *member, struct tt_error *err)
{
    const struct tt_tracks *tracks = member->archive->tracks;
    int64_t left = tracks->frames - member->next;
    int count = (int)(left < TT_BLOCK_POINTS ? left : TT_BLOCK_POINTS);
    enum tt_status status = TT_OK;

    if (count > 0)
        status = tracks->source.times(tracks->source.user, member->next, count, member->f8, err);
    if (!status) {
        member->next += count;
        member->made = (size_t)count * sizeof *member->f8;
    }
    return status;
}

static void make_query_points(struct member *member)
{
    const struct tt_queries *queries = member->archive->tracks->queries;
    int count = 0;

    for (; member->next < queries->count && count + 3 <= CHUNK_BYTES / 4; member->next++) {
        const struct tt_query *query = &queries->points[member->next];

        member->f4[count++] = (float)query->frame;
        member->f4[count++] = query->y;
        member->f4[count++] = query->x;
    }
    member->made = (size_t)count * sizeof *member->f4;
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

static void make_labels(struct member *member)
{
    const struct tt_queries *queries = member->archive->tracks->queries;
    const size_t width = (size_t)member->archive->label_characters;
    size_t count = 0;

    for (; member->next < queries->count && count + width <= CHUNK_BYTES / 4; member->next++) {
        const char *label = queries->labels[member->next];
        size_t length = to_utf32(member->u4 + count, width, &label);

        memset(member->u4 + count + length, 0, (width - length) * sizeof *member->u4);
        count += width;
    }
    member->made = count * sizeof *member->u4;
}

/* Makes the next chunk; made stays 0 behind the last. */
static enum tt_status make_chunk(struct member *member, struct tt_error *err)
{
    const struct tt_tracks *tracks = member->archive->tracks;

    member->taken = member->made = 0;
    switch (member->array) {
    case TT_ARRAY_TRACKS:
    case TT_ARRAY_OCCLUDED:
    case TT_ARRAY_CONFIDENCE:
        return make_points(member, err);
    case TT_ARRAY_TIME_S:
        return make_times(member, err);
    case TT_ARRAY_QUERY_POINTS:
        make_query_points(member);
        break;
    case TT_ARRAY_FRAME_SIZE:
        if (member->next++ == 0) {
            member->i4[0] = tracks->width;
            member->i4[1] = tracks->height;
            member->made = 2 * sizeof *member->i4;
        }
        break;
    case TT_ARRAY_META:
        member->made = to_utf32(member->u4, CHUNK_BYTES / 4, &member->text) * sizeof *member->u4;
        break;
    case TT_ARRAY_LABELS:
    case TT_ARRAYS:
        make_labels(member);
        break;
    }
    return TT_OK;
}

/* --- members as zip sources --------------------------------------------------------------------------------
 */

static zip_int64_t fail_archive(struct archive *archive)
{
    archive->status = archive->err.status;
    zip_error_set(&archive->zip_error, ZIP_ER_WRITE, EIO);
    return -1;
}

static void rewind_member(struct member *member)
{
    memset(&member->block, 0, sizeof member->block);
    member->next = 0;
    member->text = member->archive->tracks->meta;
    member->taken = 0;
    member->made = tt_npy_write_header(member->chunk, &member->npy);
}

static zip_int64_t read_member(struct member *member, char *out, zip_uint64_t size)
{
    zip_uint64_t filled = 0;

    while (filled < size) {
        size_t count = member->made - member->taken;

        if (count == 0) {
            if (member->archive->status || make_chunk(member, &member->archive->err))
                return fail_archive(member->archive);
            if (member->made == 0)
                break;
            continue;
        }
        count = count < size - filled ? count : (size_t)(size - filled);
        memcpy(out + filled, member->chunk + member->taken, count);
        member->taken += count;
        filled += count;
    }
    return (zip_int64_t)filled;
}

static zip_int64_t member_source(void *user, void *data, zip_uint64_t size, zip_source_cmd_t command)
{
    struct member *member = user;
    char header[TT_NPY_HEADER_BYTES];

    switch (command) {
    case ZIP_SOURCE_SUPPORTS:
        return zip_source_make_command_bitmap(ZIP_SOURCE_SUPPORTS, ZIP_SOURCE_OPEN, ZIP_SOURCE_READ,
                                              ZIP_SOURCE_CLOSE, ZIP_SOURCE_STAT, ZIP_SOURCE_ERROR,
                                              ZIP_SOURCE_FREE, -1);
    case ZIP_SOURCE_OPEN:
        rewind_member(member);
        return 0;
    case ZIP_SOURCE_READ:
        return read_member(member, data, size);
    case ZIP_SOURCE_STAT: {
        zip_stat_t *info = data;

        zip_stat_init(info);
        info->size =
            tt_npy_write_header(header, &member->npy) + (zip_uint64_t)tt_npy_data_bytes(&member->npy);
        info->valid = ZIP_STAT_SIZE;
        return sizeof *info;
    }
    case ZIP_SOURCE_ERROR:
        return zip_error_to_data(&member->archive->zip_error, data, size);
    case ZIP_SOURCE_FREE:
        free(member);
        return 0;
    default:
        return 0;
    }
}

static int add_member(zip_t *zip, struct archive *archive, enum tt_track_array array)
{
    struct member *member = calloc(1, sizeof *member);
    zip_source_t *source;
    zip_int64_t index;

    if (!member) {
        zip_error_set(zip_get_error(zip), ZIP_ER_MEMORY, 0);
        return -1;
    }
    member->archive = archive;
    member->array = array;
    member->npy = array_type(archive, array);
    source = zip_source_function(zip, member_source, member);
    if (!source) {
        free(member);
        return -1;
    }
    index = zip_file_add(zip, tt_array_members[array], source, 0);
    if (index < 0) {
        zip_source_free(source);
        return -1;
    }
    if (zip_set_file_compression(zip, (zip_uint64_t)index, ZIP_CM_STORE, 0) < 0)
        return -1;
    return zip_file_set_dostime(zip, (zip_uint64_t)index, 0, ZIP_EPOCH_DATE, 0);
}

/* --- the archive as a zip source
 * ----------------------------------------------------------------------------- */

static zip_int64_t write_archive(struct archive *archive, const void *data, zip_uint64_t size)
{
    if (archive->status ||
        tt_file_write_at(archive->file, data, (size_t)size, (int64_t)archive->offset, &archive->err))
        return fail_archive(archive);
    archive->offset += size;
    archive->length = archive->offset > archive->length ? archive->offset : archive->length;
    return (zip_int64_t)size;
}

static zip_int64_t archive_source(void *user, void *data, zip_uint64_t size, zip_source_cmd_t command)
{
    struct archive *archive = user;

    switch (command) {
    case ZIP_SOURCE_SUPPORTS:
        return zip_source_make_command_bitmap(
            ZIP_SOURCE_SUPPORTS, ZIP_SOURCE_OPEN, ZIP_SOURCE_READ, ZIP_SOURCE_CLOSE, ZIP_SOURCE_STAT,
            ZIP_SOURCE_ERROR, ZIP_SOURCE_FREE, ZIP_SOURCE_SEEK, ZIP_SOURCE_TELL, ZIP_SOURCE_BEGIN_WRITE,
            ZIP_SOURCE_COMMIT_WRITE, ZIP_SOURCE_ROLLBACK_WRITE, ZIP_SOURCE_WRITE, ZIP_SOURCE_SEEK_WRITE,
            ZIP_SOURCE_TELL_WRITE, ZIP_SOURCE_REMOVE, -1);
    case ZIP_SOURCE_STAT: /* there is no archive yet */
        zip_error_set(&archive->zip_error, ZIP_ER_READ, ENOENT);
        return -1;
    case ZIP_SOURCE_WRITE:
        return write_archive(archive, data, size);
    case ZIP_SOURCE_SEEK_WRITE: {
        zip_int64_t offset =
            zip_source_seek_compute_offset(archive->offset, archive->length, data, size, &archive->zip_error);

        if (offset < 0)
            return -1;
        archive->offset = (zip_uint64_t)offset;
        return 0;
    }
    case ZIP_SOURCE_TELL_WRITE:
        return (zip_int64_t)archive->offset;
    case ZIP_SOURCE_ERROR:
        return zip_error_to_data(&archive->zip_error, data, size);
    case ZIP_SOURCE_BEGIN_WRITE:
    case ZIP_SOURCE_COMMIT_WRITE:
    case ZIP_SOURCE_ROLLBACK_WRITE:
    case ZIP_SOURCE_REMOVE:
    case ZIP_SOURCE_FREE:
        return 0;
    default: /* it is never read */
        zip_error_set(&archive->zip_error, ZIP_ER_OPNOTSUPP, 0);
        return -1;
    }
}

/* A failure of ours if there was one, else libzip's (which then can only be short of memory). */
static enum tt_status archive_failure(const struct archive *archive, zip_error_t *zip_error,
                                      struct tt_error *err)
{
    if (archive->status)
        return tt_fail(err, archive->status, "%s", archive->err.text);
    return tt_fail(err, TT_RETRY_LATER, "writing a track file: %s", zip_error_strerror(zip_error));
}

static enum tt_status write_members(struct archive *archive, struct tt_error *err)
{
    zip_error_t zip_error;
    zip_source_t *source;
    zip_t *zip = NULL;
    enum tt_status status = TT_OK;

    zip_error_init(&zip_error);
    source = zip_source_function_create(archive_source, archive, &zip_error);
    if (source)
        zip = zip_open_from_source(source, ZIP_CREATE | ZIP_TRUNCATE, &zip_error);
    if (!zip) {
        zip_source_free(source);
        status = archive_failure(archive, &zip_error, err);
        goto done;
    }
    for (int array = 0; array < TT_ARRAYS; array++) {
        if (array == TT_ARRAY_LABELS && !archive->tracks->queries->labels)
            continue;
        if (add_member(zip, archive, (enum tt_track_array)array) < 0) {
            status = archive_failure(archive, zip_get_error(zip), err);
            goto done;
        }
    }
    if (zip_close(zip) < 0)
        status = archive_failure(archive, zip_get_error(zip), err);
    else
        zip = NULL;
done:
    if (zip)
        zip_discard(zip);
    zip_error_fini(&zip_error);
    return status;
}

/* What becomes UTF-32 must be UTF-8, or sizes would be wrong. */
static enum tt_status check_text(const struct tt_tracks *tracks, struct tt_error *err)
{
    const char *next = tracks->meta, *end = next + strlen(next);
    const struct tt_queries *queries = tracks->queries;

    while (next < end)
        if (tt_utf8_next(&next, end) < 0)
            return tt_fail(err, TT_REFUSE, "a track file's meta is not UTF-8");
    if (next == tracks->meta || tt_utf8_length(tracks->meta) > TT_META_CHARACTERS)
        return tt_fail(err, TT_REFUSE, "a track file's meta has 1 to %d characters", TT_META_CHARACTERS);
    for (int q = 0; queries->labels && q < queries->count; q++)
        if (strlen(queries->labels[q]) > TT_LABEL_BYTES ||
            !tt_utf8_is_label(queries->labels[q], strlen(queries->labels[q])))
            return tt_fail(err, TT_REFUSE, "label of query %d: not UTF-8 of at most %d bytes", q,
                           TT_LABEL_BYTES);
    return TT_OK;
}

enum tt_status tt_tracks_write_npz(struct tt_file *file, const struct tt_tracks *tracks, struct tt_error *err)
{
    struct archive *archive;
    enum tt_status status = check_text(tracks, err);

    if (status)
        return status;
    archive = calloc(1, sizeof *archive);
    if (!archive)
        return tt_fail_errno(err, TT_RETRY_LATER, ENOMEM, "writing a track file");
    archive->file = file;
    archive->tracks = tracks;
    archive->label_characters = longest_label(tracks->queries);
    zip_error_init(&archive->zip_error);
    status = write_members(archive, err);
    zip_error_fini(&archive->zip_error);
    free(archive);
    return status;
}

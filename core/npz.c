/* core/npz.c: an uncompressed .npz of arrays that are made piece by piece, with libzip.
 *
 * Each member is a zip source that makes its bytes when libzip asks for them: a header, then part after part
 * of the array. Sizes are known beforehand, so only a member beyond 4 GiB is written as ZIP64. The archive
 * itself is a zip source that writes into the tt_file at offsets.
 *
 * Fails: the first failure of a part or a write is kept in archive.err, since libzip only knows errno-like
 * codes; every later callback fails at once.
 */
#include "core/npz.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <zip.h>

enum { ZIP_EPOCH_DATE = 0x0021 }; /* 1980-01-01, the earliest that zip knows */

struct archive {
    struct tt_file *file;
    void *user;
    zip_uint64_t length, offset; /* written so far; where the next write goes */
    enum tt_status status;       /* of the first failure */
    struct tt_error err;
    zip_error_t zip_error;
};

/* A member on its way: bytes [taken, made) of chunk are next. */
struct member {
    struct archive *archive;
    const struct tt_npz_array *array;
    int64_t next; /* part that is made next */
    size_t part_bytes, taken, made;
    char *chunk;
};

static zip_int64_t fail_archive(struct archive *archive)
{
    archive->status = archive->err.status;
    zip_error_set(&archive->zip_error, ZIP_ER_WRITE, EIO);
    return -1;
}

static enum tt_status make_chunk(struct member *member)
{
    const struct tt_npz_array *array = member->array;
    int64_t left = array->parts - member->next;
    int count = left < array->at_a_time ? (int)left : array->at_a_time;
    enum tt_status status =
        array->make(member->archive->user, member->next, count, member->chunk, &member->archive->err);

    if (!status) {
        member->next += count;
        member->taken = 0;
        member->made = (size_t)count * member->part_bytes;
    }
    return status;
}

static zip_int64_t read_member(struct member *member, char *out, zip_uint64_t size)
{
    struct archive *archive = member->archive;
    zip_uint64_t filled = 0;

    while (filled < size) {
        size_t count = member->made - member->taken;

        if (count == 0 && member->next == member->array->parts)
            break;
        if (count == 0) {
            if (archive->status || make_chunk(member))
                return fail_archive(archive);
            continue;
        }
        count = count < size - filled ? count : (size_t)(size - filled);
        memcpy(out + filled, member->chunk + member->taken, count);
        member->taken += count;
        filled += count;
    }
    return (zip_int64_t)filled;
}

static void free_member(struct member *member)
{
    free(member->chunk);
    free(member);
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
        member->next = 0;
        member->taken = 0;
        member->made = tt_npy_write_header(member->chunk, &member->array->npy);
        return 0;
    case ZIP_SOURCE_READ:
        return read_member(member, data, size);
    case ZIP_SOURCE_STAT: {
        zip_stat_t *info = data;

        zip_stat_init(info);
        info->size = tt_npy_write_header(header, &member->array->npy) +
                     (zip_uint64_t)tt_npy_data_bytes(&member->array->npy);
        info->valid = ZIP_STAT_SIZE;
        return sizeof *info;
    }
    case ZIP_SOURCE_ERROR:
        return zip_error_to_data(&member->archive->zip_error, data, size);
    case ZIP_SOURCE_FREE:
        free_member(member);
        return 0;
    default:
        return 0;
    }
}

static int add_member(zip_t *zip, struct archive *archive, const struct tt_npz_array *array)
{
    struct member *member = calloc(1, sizeof *member);
    zip_source_t *source;
    zip_int64_t index;

    if (member) {
        member->archive = archive;
        member->array = array;
        member->part_bytes = (size_t)(tt_npy_data_bytes(&array->npy) / array->parts);
        member->chunk = malloc(member->part_bytes * (size_t)array->at_a_time + TT_NPY_HEADER_BYTES);
    }
    if (!member || !member->chunk) {
        free(member);
        zip_error_set(zip_get_error(zip), ZIP_ER_MEMORY, 0);
        return -1;
    }
    source = zip_source_function(zip, member_source, member);
    if (!source) {
        free_member(member);
        return -1;
    }
    index = zip_file_add(zip, array->member, source, 0);
    if (index < 0) {
        zip_source_free(source);
        return -1;
    }
    if (zip_set_file_compression(zip, (zip_uint64_t)index, ZIP_CM_STORE, 0) < 0)
        return -1;
    return zip_file_set_dostime(zip, (zip_uint64_t)index, 0, ZIP_EPOCH_DATE, 0);
}

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
    zip_int64_t offset;

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
    case ZIP_SOURCE_SEEK_WRITE:
        offset =
            zip_source_seek_compute_offset(archive->offset, archive->length, data, size, &archive->zip_error);
        if (offset < 0)
            return -1;
        archive->offset = (zip_uint64_t)offset;
        return 0;
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
    return tt_fail(err, TT_RETRY_LATER, "writing arrays: %s", zip_error_strerror(zip_error));
}

enum tt_status tt_npz_write(struct tt_file *file, const struct tt_npz_array *arrays, int count, void *user,
                            struct tt_error *err)
{
    struct archive archive = {.file = file, .user = user};
    enum tt_status status = TT_OK;
    zip_error_t zip_error;
    zip_source_t *source;
    zip_t *zip = NULL;

    zip_error_init(&zip_error);
    zip_error_init(&archive.zip_error);
    source = zip_source_function_create(archive_source, &archive, &zip_error);
    if (source)
        zip = zip_open_from_source(source, ZIP_CREATE | ZIP_TRUNCATE, &zip_error);
    if (!zip) {
        zip_source_free(source);
        status = archive_failure(&archive, &zip_error, err);
    }
    for (int i = 0; i < count && !status; i++)
        if (add_member(zip, &archive, &arrays[i]) < 0)
            status = archive_failure(&archive, zip_get_error(zip), err);
    if (!status && zip_close(zip) == 0)
        zip = NULL;
    else if (!status)
        status = archive_failure(&archive, zip_get_error(zip), err);
    if (zip)
        zip_discard(zip);
    zip_error_fini(&archive.zip_error);
    zip_error_fini(&zip_error);
    return status;
}

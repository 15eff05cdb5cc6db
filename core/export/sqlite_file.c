/* core/export/sqlite_file.c: a file system for SQLite that knows one file, the tt_file.
 *
 * Nobody else sees the file before it is committed, so there is nothing to lock, and no journal: what fails
 * is abandoned whole. Temporary tables stay in memory. Nothing here depends on the time or on chance, so
 * equal data gives equal bytes.
 *
 * Fails: the first failure of the disk is kept in self.err, since SQLite only knows codes.
 */
#include "core/export/sqlite_file.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum { PATH_MOST = 64, CACHE_KIB = 8192 };

struct tt_sqlite {
    struct tt_file *file;
    sqlite3 *db;
    sqlite3_vfs vfs;
    char vfs_name[32];
    enum tt_status status; /* of the disk's first failure */
    struct tt_error err;
};

struct open_file {
    sqlite3_file base; /* first, as SQLite wants it */
    struct tt_sqlite *self;
};

static struct tt_sqlite *self_of(sqlite3_file *file)
{
    return ((struct open_file *)file)->self;
}

static int keep_failure(struct tt_sqlite *self, int code)
{
    self->status = self->err.status;
    return code;
}

/* --- the file -------------------------------------------------------------------------------- */

static int file_close(sqlite3_file *file)
{
    (void)file;
    return SQLITE_OK;
}

static int file_read(sqlite3_file *file, void *bytes, int size, sqlite3_int64 offset)
{
    struct tt_sqlite *self = self_of(file);
    int done = 0;

    while (done < size) {
        ssize_t got =
            pread(tt_file_descriptor(self->file), (char *)bytes + done, (size_t)(size - done), offset + done);

        if (got < 0 && errno == EINTR)
            continue;
        if (got < 0) {
            tt_fail_errno(&self->err, tt_status_of_errno(errno), errno, "reading a database back");
            return keep_failure(self, SQLITE_IOERR_READ);
        }
        if (got == 0) {
            memset((char *)bytes + done, 0, (size_t)(size - done));
            return SQLITE_IOERR_SHORT_READ;
        }
        done += (int)got;
    }
    return SQLITE_OK;
}

static int file_write(sqlite3_file *file, const void *bytes, int size, sqlite3_int64 offset)
{
    struct tt_sqlite *self = self_of(file);

    if (tt_file_write_at(self->file, bytes, (size_t)size, offset, &self->err))
        return keep_failure(self, SQLITE_IOERR_WRITE);
    return SQLITE_OK;
}

static int file_truncate(sqlite3_file *file, sqlite3_int64 size)
{
    return ftruncate(tt_file_descriptor(self_of(file)->file), size) < 0 ? SQLITE_IOERR_TRUNCATE : SQLITE_OK;
}

static int file_size(sqlite3_file *file, sqlite3_int64 *size)
{
    struct stat info;

    if (fstat(tt_file_descriptor(self_of(file)->file), &info) < 0)
        return SQLITE_IOERR_FSTAT;
    *size = info.st_size;
    return SQLITE_OK;
}

/* fsync is the commit's; there is nobody to lock out. */
static int file_nothing(sqlite3_file *file, int what)
{
    (void)file;
    (void)what;
    return SQLITE_OK;
}

static int file_reserved(sqlite3_file *file, int *reserved)
{
    (void)file;
    *reserved = 0;
    return SQLITE_OK;
}

static int file_control(sqlite3_file *file, int operation, void *argument)
{
    (void)file;
    (void)operation;
    (void)argument;
    return SQLITE_NOTFOUND;
}

static int file_characteristics(sqlite3_file *file)
{
    (void)file;
    return 0;
}

static const sqlite3_io_methods methods = {.iVersion = 1,
                                           .xClose = file_close,
                                           .xRead = file_read,
                                           .xWrite = file_write,
                                           .xTruncate = file_truncate,
                                           .xSync = file_nothing,
                                           .xFileSize = file_size,
                                           .xLock = file_nothing,
                                           .xUnlock = file_nothing,
                                           .xCheckReservedLock = file_reserved,
                                           .xFileControl = file_control,
                                           .xSectorSize = file_characteristics,
                                           .xDeviceCharacteristics = file_characteristics};

/* --- the file system ------------------------------------------------------------------------- */

static int vfs_open(sqlite3_vfs *vfs, sqlite3_filename name, sqlite3_file *file, int flags, int *out_flags)
{
    struct open_file *opened = (struct open_file *)file;

    (void)name;
    opened->base.pMethods = NULL;
    if (!(flags & SQLITE_OPEN_MAIN_DB))
        return SQLITE_CANTOPEN;
    opened->base.pMethods = &methods;
    opened->self = vfs->pAppData;
    if (out_flags)
        *out_flags = flags;
    return SQLITE_OK;
}

static int vfs_delete(sqlite3_vfs *vfs, const char *name, int sync_folder)
{
    (void)vfs;
    (void)name;
    (void)sync_folder;
    return SQLITE_OK;
}

static int vfs_access(sqlite3_vfs *vfs, const char *name, int flags, int *there)
{
    (void)vfs;
    (void)name;
    (void)flags;
    *there = 0;
    return SQLITE_OK;
}

static int vfs_full_name(sqlite3_vfs *vfs, const char *name, int size, char *out)
{
    (void)vfs;
    snprintf(out, (size_t)size, "%s", name);
    return SQLITE_OK;
}

static int vfs_randomness(sqlite3_vfs *vfs, int size, char *out)
{
    (void)vfs;
    memset(out, 0, (size_t)size);
    return size;
}

static int vfs_sleep(sqlite3_vfs *vfs, int microseconds)
{
    (void)vfs;
    return microseconds;
}

static int vfs_time(sqlite3_vfs *vfs, double *days)
{
    (void)vfs;
    *days = 0;
    return SQLITE_OK;
}

static void set_vfs(struct tt_sqlite *self)
{
    snprintf(self->vfs_name, sizeof self->vfs_name, "tt-%p", (void *)self);
    self->vfs = (sqlite3_vfs){.iVersion = 1,
                              .szOsFile = sizeof(struct open_file),
                              .mxPathname = PATH_MOST,
                              .zName = self->vfs_name,
                              .pAppData = self,
                              .xOpen = vfs_open,
                              .xDelete = vfs_delete,
                              .xAccess = vfs_access,
                              .xFullPathname = vfs_full_name,
                              .xRandomness = vfs_randomness,
                              .xSleep = vfs_sleep,
                              .xCurrentTime = vfs_time};
}

/* --- the interface --------------------------------------------------------------------------- */

enum tt_status tt_sqlite_failure(struct tt_sqlite *self, struct tt_error *err)
{
    if (self->status)
        return tt_fail(err, self->status, "%s", self->err.text);
    return tt_fail(err, TT_RETRY_LATER, "writing a database: %s",
                   self->db ? sqlite3_errmsg(self->db) : "no memory");
}

enum tt_status tt_sqlite_run(struct tt_sqlite *self, const char *statements, struct tt_error *err)
{
    return sqlite3_exec(self->db, statements, NULL, NULL, NULL) ? tt_sqlite_failure(self, err) : TT_OK;
}

enum tt_status tt_sqlite_open(struct tt_sqlite **made, struct tt_file *file, struct tt_error *err)
{
    struct tt_sqlite *self = calloc(1, sizeof *self);
    char pragmas[160];
    enum tt_status status = TT_OK;

    if (!self)
        return tt_fail_errno(err, TT_RETRY_LATER, ENOMEM, "writing a database");
    self->file = file;
    set_vfs(self);
    if (sqlite3_vfs_register(&self->vfs, 0) ||
        sqlite3_open_v2("database", &self->db, SQLITE_OPEN_READWRITE | SQLITE_OPEN_CREATE, self->vfs_name))
        status = tt_sqlite_failure(self, err);
    snprintf(pragmas, sizeof pragmas,
             "PRAGMA journal_mode=OFF; PRAGMA locking_mode=EXCLUSIVE; PRAGMA temp_store=MEMORY; "
             "PRAGMA cache_size=-%d;",
             CACHE_KIB);
    if (!status)
        status = tt_sqlite_run(self, pragmas, err);
    if (status)
        tt_sqlite_close(self);
    else
        *made = self;
    return status;
}

sqlite3 *tt_sqlite_db(struct tt_sqlite *self)
{
    return self->db;
}

void tt_sqlite_close(struct tt_sqlite *self)
{
    if (!self)
        return;
    sqlite3_close(self->db);
    sqlite3_vfs_unregister(&self->vfs);
    free(self);
}

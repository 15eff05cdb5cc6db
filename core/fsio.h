/* core/fsio.h: durable files, small files, nameless spill files, and the names that stand beside a video's.
 *
 * A result appears under its name whole or not at all: it is written under a temporary name in the target's
 * directory (".tt-" and 16 random hexadecimal digits and ".part": never longer than a name may be, ignored by
 * the spool), synced, renamed, and the directory is synced. Paths and names are bytes; no encoding is
 * assumed.
 *
 * There is no registry of open temporaries for signal handlers. A program's handler sets a flag, the loops
 * that see it return TT_INTERRUPTED, and every owner of a tt_file calls tt_file_abandon on its way out, as on
 * any other failure. After SIGKILL a ".tt-*.part" remains.
 */
#ifndef TT_CORE_FSIO_H
#define TT_CORE_FSIO_H

#include "core/status.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/stat.h>
#include <sys/types.h>

enum {
    TT_NAME_BYTES = 255, /* longest file name (NAME_MAX of every Linux file system that matters) */
};

struct tt_file; /* a file on its way to its name */

enum tt_commit {
    TT_REPLACE,    /* a file of that name is replaced */
    TT_NO_REPLACE, /* a file of that name makes the commit fail with TT_REFUSE; it stays as it is */
};

/* Creates the temporary file that shall become `path`. *file: owned by the caller until commit or abandon.
 * Fails where the directory is missing or not writable; TT_RETRY_LATER when the host is short of something.
 */
enum tt_status tt_file_create(struct tt_file **file, const char *path, struct tt_error *err);

/* Appends all bytes. */
enum tt_status tt_file_write(struct tt_file *file, const void *bytes, size_t size, struct tt_error *err);

/* Writes all bytes at an offset; the append position is not moved. */
enum tt_status tt_file_write_at(struct tt_file *file, const void *bytes, size_t size, int64_t offset,
                                struct tt_error *err);

/* The open descriptor (read and write), for libraries that want one. Borrowed (until commit or abandon). */
int tt_file_descriptor(const struct tt_file *file);

/* fsync, rename, fsync of the directory. Takes file, also when it fails: then the temporary is removed and
 * whatever had the name before is untouched. One exception: when only the directory's last fsync fails the
 * new file is in place and the error says so. */
enum tt_status tt_file_commit(struct tt_file *file, enum tt_commit mode, struct tt_error *err);

/* Removes the temporary. Takes file; NULL is allowed. errno is kept. */
void tt_file_abandon(struct tt_file *file);

/* Reads a whole regular file of at most max_bytes. *bytes: owned by the caller (free); a NUL stands behind
 * the last byte and is not counted. TT_BAD_INPUT: not there, not a regular file, too large (the text says how
 * large it may be). Neither a fifo nor a device makes it wait. */
enum tt_status tt_file_read(char **bytes, size_t *size, const char *path, size_t max_bytes,
                            struct tt_error *err);

/* Opens a file without a name in a directory (O_TMPFILE; where that is missing, created and unlinked), read
 * and write, close-on-exec. *fd: owned by the caller (close). Its blocks are free again as soon as it is
 * closed, whatever happens to the process. */
enum tt_status tt_spill_open(int *fd, const char *directory, struct tt_error *err);

/* All or nothing: a short read or write is an error. `what` names the file in the text. */
enum tt_status tt_write_at(int fd, const void *bytes, size_t size, int64_t offset, const char *what,
                           struct tt_error *err);
enum tt_status tt_read_at(int fd, void *bytes, size_t size, int64_t offset, const char *what,
                          struct tt_error *err);

/* The path's last component; borrows path. */
const char *tt_path_name(const char *path);

/* What stands before it, with the slash; "." where nothing does. Owned by the caller (free); NULL: no memory.
 */
char *tt_path_folder(const char *path);

/* Whether an open file is what it was when fstat gave *before, by its length and modification time. */
bool tt_is_unchanged(int fd, const struct stat *before);

/* The path of the file that stands for `video` with another suffix: "a/bear.mp4" and ".tracks.npz" give
 * "a/bear.tracks.npz"; with directory "out", "out/bear.tracks.npz" (NULL: beside the video). The stem is the
 * name without its last dot and what follows; a leading dot does not count. Where stem and suffix would be
 * longer than TT_NAME_BYTES, bytes are taken off the stem's end, whole UTF-8 characters where it is UTF-8.
 * Owned by the caller (free); NULL: no memory. */
char *tt_path_sibling(const char *video, const char *directory, const char *suffix);

#endif

/* core/checkpoint.c: durable stitches.
 *
 * Invariants: PATH.state is written only when the tiles and times that it counts are on disk, and replaced by
 * a rename; what is spilled after it lies behind what it counts, so it stays true whatever happens next; but
 * for a return that the next window refutes (core/window.h), which it does again, with the same result, when
 * it is tracked again. The window that it holds can still change in its last frames (the one behind it may
 * slide back), which is why that window is in the state and not yet among the tiles.
 *
 * Fails with the disk (tt_status_of_errno) and for want of memory. A state that does not fit is no failure.
 */
#include "core/checkpoint.h"

#include "core/fsio.h"
#include "core/window_parts.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static const char magic[8] = "TTCHECK2";

/* Followed by the estimates, [queries][47], since when each query is sure, int64 [queries], and the
 * hexadecimal SHA-256 of all before it. */
struct state {
    char magic[sizeof magic];
    char identity[TT_SHA256_HEX + 7]; /* zeros behind it: no gap in the structure */
    int64_t first;
    int32_t queries, frames, step, slid;
};

_Static_assert(sizeof(struct state) == 8 + 72 + 8 + 16, "a state has no gaps");

static enum tt_status name_file(char name[PATH_MAX], const char *path, const char *suffix,
                                struct tt_error *err)
{
    if (snprintf(name, PATH_MAX, "%s%s", path, suffix) >= PATH_MAX)
        return tt_fail_errno(err, TT_REFUSE, ENAMETOOLONG, "checkpoint %s", path);
    return TT_OK;
}

/* --- reading ----------------------------------------------------------------------------------------------
 */

/* Bytes of what a state holds of the queries. */
static size_t rows_bytes(const struct tt_stitch *stitch)
{
    return (size_t)stitch->queries * TT_CLIP_FRAMES * sizeof *stitch->held;
}

static size_t since_bytes(const struct tt_stitch *stitch)
{
    return (size_t)stitch->queries * sizeof *stitch->since;
}

static bool reaches(int fd, int64_t bytes)
{
    struct stat info;

    return fstat(fd, &info) == 0 && info.st_size >= bytes;
}

static bool is_checked(const char *bytes, size_t size)
{
    char hex[TT_SHA256_HEX];
    struct tt_sha256 sha;

    if (size < TT_SHA256_HEX)
        return false;
    tt_sha256_begin(&sha);
    tt_sha256_add(&sha, bytes, size - TT_SHA256_HEX);
    tt_sha256_end(&sha, hex);
    return memcmp(hex, bytes + size - TT_SHA256_HEX, TT_SHA256_HEX) == 0;
}

/* The state of this identity: *state and *estimates, which borrows bytes; the queries' other state follows.
 */
static bool understand(const char *bytes, size_t size, const struct tt_stitch *stitch, const char *identity,
                       struct state *state, const char **estimates)
{
    if (size != sizeof *state + rows_bytes(stitch) + since_bytes(stitch) + TT_SHA256_HEX ||
        !is_checked(bytes, size))
        return false;
    memcpy(state, bytes, sizeof *state);
    *estimates = bytes + sizeof *state;
    return memcmp(state->magic, magic, sizeof magic) == 0 && state->queries == stitch->queries &&
           state->frames > 0 && state->frames <= TT_CLIP_FRAMES &&
           strncmp(state->identity, identity, TT_SHA256_HEX) == 0 && state->first >= 0 && state->step >= 0 &&
           state->step <= TT_CLIP_FRAMES &&
           reaches(stitch->tile_fd, state->first * stitch->queries * (int64_t)sizeof *stitch->held) &&
           reaches(stitch->time_fd, (state->first + state->frames) * (int64_t)sizeof(double));
}

/* Takes up the state if there is one that fits. */
static bool take_up(struct tt_stitch *stitch, const char *state_name, const char *identity)
{
    size_t most = sizeof(struct state) + rows_bytes(stitch) + since_bytes(stitch) + TT_SHA256_HEX;
    const char *estimates;
    struct state state;
    char *bytes = NULL;
    size_t size;
    bool found = tt_file_read(&bytes, &size, state_name, most, NULL) == TT_OK &&
                 understand(bytes, size, stitch, identity, &state, &estimates);

    if (found) {
        memcpy(stitch->held, estimates, rows_bytes(stitch));
        memcpy(stitch->since, estimates + rows_bytes(stitch), since_bytes(stitch));
        stitch->first = state.first;
        stitch->frames = state.frames;
        stitch->step = state.step;
        stitch->slid = state.slid != 0;
        stitch->added = stitch->queries;
    }
    free(bytes);
    return found;
}

static enum tt_status open_file(int *fd, const char *path, const char *suffix, struct tt_error *err)
{
    char name[PATH_MAX];
    enum tt_status status = name_file(name, path, suffix, err);

    if (status)
        return status;
    *fd = open(name, O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600);
    return *fd >= 0 ? TT_OK : tt_fail_errno(err, tt_status_of_errno(errno), errno, "%s", name);
}

/* Removes a state that is not ours, durably: it must not come back and vouch for what will be written now. */
static enum tt_status remove_state(const char *name, struct tt_error *err)
{
    char directory[PATH_MAX];
    int fd, rc;

    if (unlink(name) < 0)
        return errno == ENOENT ? TT_OK : tt_fail_errno(err, tt_status_of_errno(errno), errno, "%s", name);
    snprintf(directory, sizeof directory, "%.*s.", (int)(tt_path_name(name) - name), name);
    fd = open(directory, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    rc = fd < 0 ? -1 : fsync(fd);
    if (fd >= 0)
        close(fd);
    return rc == 0 ? TT_OK : tt_fail_errno(err, tt_status_of_errno(errno), errno, "%s: sync", directory);
}

enum tt_status tt_checkpoint_open(struct tt_stitch **stitch, int queries, const char *path,
                                  const char identity[TT_SHA256_HEX], struct tt_window *window,
                                  struct tt_error *err)
{
    struct tt_stitch *made = NULL;
    char state_name[PATH_MAX];
    enum tt_status status = name_file(state_name, path, ".state", err);

    if (!status)
        status = tt_stitch_new(&made, queries, err);
    if (!status)
        status = open_file(&made->tile_fd, path, ".tiles", err);
    if (!status)
        status = open_file(&made->time_fd, path, ".times", err);
    if (!status && !take_up(made, state_name, identity)) {
        status = remove_state(state_name, err);
        if (!status && (ftruncate(made->tile_fd, 0) < 0 || ftruncate(made->time_fd, 0) < 0))
            status = tt_fail_errno(err, tt_status_of_errno(errno), errno, "%s: empty", path);
    }
    if (status) {
        tt_stitch_close(made);
        return status;
    }
    *window = (struct tt_window){.clip = {.first_frame = made->first, .frames = made->frames}};
    *stitch = made;
    return TT_OK;
}

/* --- writing ----------------------------------------------------------------------------------------------
 */

/* Writes and adds to the checksum. */
static enum tt_status write_part(struct tt_file *file, struct tt_sha256 *sha, const void *bytes, size_t size,
                                 struct tt_error *err)
{
    tt_sha256_add(sha, bytes, size);
    return tt_file_write(file, bytes, size, err);
}

static enum tt_status write_state(struct tt_file *file, const struct tt_stitch *stitch, const char *identity,
                                  struct tt_error *err)
{
    struct state state = {.first = stitch->first,
                          .queries = stitch->queries,
                          .frames = stitch->frames,
                          .step = stitch->step,
                          .slid = stitch->slid};
    char hex[TT_SHA256_HEX];
    struct tt_sha256 sha;
    enum tt_status status;

    memcpy(state.magic, magic, sizeof magic);
    memcpy(state.identity, identity, TT_SHA256_HEX);
    tt_sha256_begin(&sha);
    status = write_part(file, &sha, &state, sizeof state, err);
    if (!status)
        status = write_part(file, &sha, stitch->held, rows_bytes(stitch), err);
    if (!status)
        status = write_part(file, &sha, stitch->since, since_bytes(stitch), err);
    if (status)
        return status;
    tt_sha256_end(&sha, hex);
    return tt_file_write(file, hex, sizeof hex, err);
}

enum tt_status tt_checkpoint_save(struct tt_stitch *stitch, const char *path,
                                  const char identity[TT_SHA256_HEX], struct tt_error *err)
{
    struct tt_file *file = NULL;
    char state_name[PATH_MAX];
    enum tt_status status = tt_stitch_check_whole(stitch, err);

    if (!status && stitch->frames == 0)
        status = tt_fail(err, TT_REFUSE, "checkpoint: there is no window yet");
    if (!status)
        status = name_file(state_name, path, ".state", err);
    if (!status && (fdatasync(stitch->tile_fd) < 0 || fdatasync(stitch->time_fd) < 0))
        status = tt_fail_errno(err, tt_status_of_errno(errno), errno, "%s: sync", path);
    if (!status)
        status = tt_file_create(&file, state_name, err);
    if (!status)
        status = write_state(file, stitch, identity, err);
    if (status) {
        tt_file_abandon(file);
        return status;
    }
    return tt_file_commit(file, TT_REPLACE, err);
}

void tt_checkpoint_remove(const char *path)
{
    static const char *const suffixes[] = {".state", ".tiles", ".times"};
    char name[PATH_MAX];

    for (int i = 0; i < 3; i++)
        if (name_file(name, path, suffixes[i], NULL) == TT_OK)
            unlink(name);
}

void tt_checkpoint_make_room(const char *path)
{
    enum { ROOM = 1 << 18, MUCH = 1 << 24 };
    static const char *const suffixes[] = {".tiles", ".times"};
    char name[PATH_MAX];
    struct stat info;
    char *directory = tt_path_folder(path);
    int64_t held = 0;
    int fd = -1, problem = 0;

    for (int i = 0; i < 2; i++)
        if (name_file(name, path, suffixes[i], NULL) == TT_OK && stat(name, &info) == 0)
            held += info.st_size;
    if (held >= MUCH && directory && tt_spill_open(&fd, directory, NULL) == TT_OK) {
        problem = posix_fallocate(fd, 0, ROOM);
        close(fd);
    }
    if (problem == ENOSPC || problem == EDQUOT)
        tt_checkpoint_remove(path);
    free(directory);
}

/* core/child.c: starts a confined child: its program, its memory, its descriptors.
 *
 * Invariants: the child has six descriptors and a nearly empty environment; the ring's size is sealed before
 * the child gets it, so that it cannot make the parent's map fault. Fails as the host does.
 */
#include "core/child.h"

#include "core/install.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <signal.h>
#include <spawn.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

enum tt_status tt_child_program(char *path, const char *name, const char *wanted, struct tt_error *err)
{
    if (wanted) {
        if (strlen(wanted) >= PATH_MAX)
            return tt_fail(err, TT_REFUSE, "the path of %s is too long", name);
        strcpy(path, wanted);
        return TT_OK;
    }
    return tt_install_program(path, PATH_MAX, name, err);
}

enum tt_status tt_child_ring(int *fd, uint8_t **map, size_t bytes, int protection, struct tt_error *err)
{
    enum tt_status status = TT_OK;
    void *mapped;
    int ring = memfd_create("tiletrack-ring", MFD_CLOEXEC | MFD_ALLOW_SEALING);

    if (ring < 0)
        return tt_fail_errno(err, tt_status_of_errno(errno), errno, "memfd_create");
    if (ftruncate(ring, (off_t)bytes) ||
        fcntl(ring, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL)) {
        status = tt_fail_errno(err, tt_status_of_errno(errno), errno, "size the ring");
        goto out;
    }
    mapped = mmap(NULL, bytes, protection, MAP_SHARED, ring, 0);
    if (mapped == MAP_FAILED) {
        status = tt_fail_errno(err, tt_status_of_errno(errno), errno, "map the ring");
        goto out;
    }
    *fd = ring;
    *map = mapped;
out:
    if (status)
        close(ring);
    return status;
}

/* What the child inherits of the environment: where its libraries are, and the sanitizers' options. */
static void pick_environment(char **picked, int room)
{
    static const char *const names[] = {"LD_LIBRARY_PATH=", "ASAN_OPTIONS=", "UBSAN_OPTIONS="};
    int n = 0;

    for (char **e = environ; e && *e && n + 1 < room; e++)
        for (size_t i = 0; i < sizeof names / sizeof *names; i++)
            if (!strncmp(*e, names[i], strlen(names[i])))
                picked[n++] = *e;
    picked[n] = NULL;
}

/* Above every number that the child's descriptors get, so that dup2 in the child overwrites none of them. */
static int move_up(int fd)
{
    int moved = fcntl(fd, F_DUPFD_CLOEXEC, 2 * TT_CHILD_DESCRIPTORS);

    if (moved < 0 && errno == EINVAL) /* so high a number is above the limit: none is to be had */
        errno = EMFILE;
    return moved;
}

static int add_actions(posix_spawn_file_actions_t *actions, const int *from)
{
    static const int to[3] = {TT_CHILD_FILE, TT_CHILD_CONTROL, TT_CHILD_RING};
    int rc = 0;

    for (int fd = 0; !rc && fd <= 2; fd++) {
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
        if (fd == 2) /* for the sanitizer's report */
            break;
#endif
        rc = posix_spawn_file_actions_addopen(actions, fd, "/dev/null", fd ? O_WRONLY : O_RDONLY, 0);
    }
    for (int i = 0; !rc && i < 3; i++)
        rc = posix_spawn_file_actions_adddup2(actions, from[i], to[i]);
    return rc ? rc : posix_spawn_file_actions_addclosefrom_np(actions, TT_CHILD_DESCRIPTORS);
}

int tt_child_spawn(pid_t *pid, const char *program, const char *name, const int *descriptors)
{
    char *arguments[] = {(char *)name, "--child", NULL};
    char *environment[4];
    int from[3] = {move_up(descriptors[0]), move_up(descriptors[1]), move_up(descriptors[2])};
    posix_spawn_file_actions_t actions;
    posix_spawnattr_t attributes;
    sigset_t signals;
    int rc = errno;

    pick_environment(environment, 4);
    if (from[0] < 0 || from[1] < 0 || from[2] < 0)
        goto out;
    rc = posix_spawn_file_actions_init(&actions);
    if (rc)
        goto out;
    rc = posix_spawnattr_init(&attributes);
    if (rc)
        goto out_actions;
    posix_spawnattr_setflags(&attributes, POSIX_SPAWN_SETSIGDEF | POSIX_SPAWN_SETSIGMASK);
    sigfillset(&signals);
    posix_spawnattr_setsigdefault(&attributes, &signals);
    sigemptyset(&signals);
    posix_spawnattr_setsigmask(&attributes, &signals);
    rc = add_actions(&actions, from);
    if (!rc)
        rc = posix_spawn(pid, program, &actions, &attributes, arguments, environment);
    posix_spawnattr_destroy(&attributes);
out_actions:
    posix_spawn_file_actions_destroy(&actions);
out:
    for (int i = 0; i < 3; i++)
        if (from[i] >= 0)
            close(from[i]);
    return rc;
}

/* tests/fault/preload.c: a world that fails when a test says so, for a program that runs (LD_PRELOAD).
 *
 * TT_FAULTS names a file that holds a struct faults; the test maps it, too, and changes it while the program
 * runs (tests/e2e/faults.py). It makes chosen system calls on the chosen folder fail with a chosen errno,
 * from the n-th to the m-th call, and sets the wall clock. Failures concern the program TT_FAULTS_PROGRAM
 * only, the clock all that inherit the environment. Without the file everything is as it is without this
 * library.
 */
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <signal.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

/* The order is that of faults.CALLS. CREATE: openat that may make a file; OPEN: any other. */
enum call { WRITE, FSYNC, RENAME, LINK, UNLINK, MKDIR, CREATE, OPEN, CALLS };

enum { FOLDER_BYTES = 2048, KILL = -1 };

struct rule {
    int64_t seen;        /* matching calls so far; the test sets it to 0 */
    int64_t first, last; /* those that fail, counted from 1; last < first: none */
    int64_t problem;     /* errno, or KILL */
};

struct faults {
    int64_t wall_offset_ns;
    struct rule rules[CALLS];
    char folder[FOLDER_BYTES]; /* absolute; only what lies in it fails */
};

static struct faults *faults;
static int concerned; /* whether calls of this program fail */

__attribute__((constructor)) static void take_up(void)
{
    const char *path = getenv("TT_FAULTS"), *program = getenv("TT_FAULTS_PROGRAM");
    int fd = path ? open(path, O_RDWR | O_CLOEXEC) : -1;
    void *at = MAP_FAILED;

    if (fd >= 0) {
        at = mmap(NULL, sizeof *faults, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
        close(fd);
    }
    if (at != MAP_FAILED)
        faults = at;
    concerned = faults && program && strcmp(program, program_invocation_short_name) == 0;
}

static int lies_within(const char *path)
{
    size_t bytes = strlen(faults->folder);

    return strncmp(path, faults->folder, bytes) == 0 && (path[bytes] == '/' || path[bytes] == '\0');
}

/* Whether the file of a descriptor (path NULL), or path beside it, lies in the folder. */
static int is_meant(int fd, const char *path)
{
    char name[PATH_MAX], link[64];
    ssize_t bytes;

    if (path && path[0] == '/')
        return lies_within(path);
    if (fd < 0)
        return 0;
    snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    bytes = readlink(link, name, sizeof name - 1);
    if (bytes < 0)
        return 0;
    name[bytes] = '\0';
    return lies_within(name);
}

/* 1 and errno where this call is to fail. */
static int fails(enum call call, int fd, const char *path)
{
    int kept = errno, meant;
    struct rule *rule;
    int64_t number;

    if (!concerned || faults->rules[call].last < faults->rules[call].first)
        return 0;
    rule = &faults->rules[call];
    meant = is_meant(fd, path);
    errno = kept;
    if (!meant)
        return 0;
    number = __atomic_add_fetch(&rule->seen, 1, __ATOMIC_SEQ_CST);
    if (number < rule->first || number > rule->last)
        return 0;
    if (rule->problem == KILL)
        kill(getpid(), SIGKILL);
    errno = (int)rule->problem;
    return 1;
}

#define NEXT(name) ((__typeof__(&name))dlsym(RTLD_NEXT, #name))

__attribute__((visibility("default"))) ssize_t write(int fd, const void *bytes, size_t size)
{
    return fails(WRITE, fd, NULL) ? -1 : NEXT(write)(fd, bytes, size);
}

__attribute__((visibility("default"))) int fsync(int fd)
{
    return fails(FSYNC, fd, NULL) ? -1 : NEXT(fsync)(fd);
}

__attribute__((visibility("default"))) int renameat(int from_fd, const char *from, int to_fd, const char *to)
{
    return fails(RENAME, to_fd, to) ? -1 : NEXT(renameat)(from_fd, from, to_fd, to);
}

__attribute__((visibility("default"))) int renameat2(int from_fd, const char *from, int to_fd, const char *to,
                                                     unsigned flags)
{
    return fails(RENAME, to_fd, to) ? -1 : NEXT(renameat2)(from_fd, from, to_fd, to, flags);
}

__attribute__((visibility("default"))) int linkat(int from_fd, const char *from, int to_fd, const char *to,
                                                  int flags)
{
    return fails(LINK, to_fd, to) ? -1 : NEXT(linkat)(from_fd, from, to_fd, to, flags);
}

__attribute__((visibility("default"))) int unlinkat(int fd, const char *path, int flags)
{
    return fails(UNLINK, fd, path) ? -1 : NEXT(unlinkat)(fd, path, flags);
}

__attribute__((visibility("default"))) int mkdirat(int fd, const char *path, mode_t mode)
{
    return fails(MKDIR, fd, path) ? -1 : NEXT(mkdirat)(fd, path, mode);
}

__attribute__((visibility("default"))) int openat(int fd, const char *path, int flags, ...)
{
    mode_t mode = 0;
    va_list rest;

    va_start(rest, flags);
    if (flags & (O_CREAT | O_TMPFILE))
        mode = va_arg(rest, mode_t);
    va_end(rest);
    if (fails(flags & O_CREAT ? CREATE : OPEN, fd, path))
        return -1;
    return NEXT(openat)(fd, path, flags, mode);
}

__attribute__((visibility("default"))) int clock_gettime(clockid_t clock, struct timespec *now)
{
    int result = NEXT(clock_gettime)(clock, now);

    if (result == 0 && faults && clock == CLOCK_REALTIME) {
        int64_t ns = (int64_t)now->tv_sec * 1000000000 + now->tv_nsec +
                     __atomic_load_n(&faults->wall_offset_ns, __ATOMIC_SEQ_CST);

        now->tv_sec = ns / 1000000000;
        now->tv_nsec = ns % 1000000000;
    }
    return result;
}

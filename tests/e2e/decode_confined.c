/* tests/e2e/decode_confined.c: puts itself into the decoder's confinement and tries one thing.
 *
 *     decode-confined NAME      3: a file, 4 and 5: anything; the parent's pid is getppid()
 *
 * Exit code 0: it worked; 1: it failed with an errno (EACCES, EPERM, ENOSYS ...); 2: no such NAME or no
 * confinement. A forbidden call ends in SIGSYS. `decode-confined --list` prints the names, those that must
 * work first, then "--".
 */
#include "daemon/decode/confine.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/bpf.h>
#include <linux/io_uring.h>
#include <linux/perf_event.h>
#include <netinet/in.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/mount.h>
#include <sys/prctl.h>
#include <sys/ptrace.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

static long page_of_code(int protection)
{
    void *page = mmap(NULL, 4096, protection, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

    return page == MAP_FAILED ? -1 : 0;
}

static void *touch(void *argument)
{
    *(int *)argument = 7;
    return NULL;
}

static long threads(void)
{
    pthread_t thread[4];
    int values[4] = {0};

    for (int i = 0; i < 4; i++)
        if ((errno = pthread_create(&thread[i], NULL, touch, &values[i])))
            return -1;
    for (int i = 0; i < 4; i++)
        pthread_join(thread[i], NULL);
    return values[0] + values[3] == 14 ? 0 : -1;
}

static long memory(void)
{
    size_t bytes = 64 << 20;
    char *block = malloc(bytes);

    if (!block)
        return -1;
    memset(block, 1, bytes);
    block = realloc(block, 2 * bytes);
    free(block);
    return block ? 0 : -1;
}

static long mprotect_code(void)
{
    static _Alignas(4096) char page[4096];

    return mprotect(page, sizeof page, PROT_READ | PROT_EXEC);
}

static long raise_limit(void)
{
    struct rlimit limit = {RLIM_INFINITY, RLIM_INFINITY};

    return setrlimit(RLIMIT_AS, &limit);
}

static long talk_to(int domain, int type)
{
    return socket(domain, type, 0);
}

static long open_clone3(void)
{
    struct {
        uint64_t flags, rest[10];
    } arguments = {.flags = 0};

    return syscall(SYS_clone3, &arguments, sizeof arguments);
}

#if defined(__x86_64__)
/* getpid by the 32-bit table: the filter must not take one call's number for another's. */
static long call_32_bit(void)
{
    long result;

    __asm__ volatile("int $0x80" : "=a"(result) : "a"(20L) : "memory", "r8", "r9", "r10", "r11");
    return result;
}
#endif

static char byte;

/* clang-format off */
#define ATTEMPTS_THAT_WORK(_) \
    _(memory, memory()) \
    _(threads, threads()) \
    _(read_video, pread(TT_CHILD_VIDEO, &byte, 1, 0) - 1) \
    _(write_control, write(TT_CHILD_CONTROL, "x", 1) - 1) \
    _(clock, time(NULL) < 0) \
    _(name_thread, prctl(PR_SET_NAME, "decoder"))

#define ATTEMPTS_THAT_FAIL(_) \
    _(open_file, syscall(SYS_open, "/etc/passwd", O_RDONLY)) \
    _(openat_file, openat(AT_FDCWD, "/etc/passwd", O_RDONLY)) \
    _(open_proc, openat(AT_FDCWD, "/proc/self/mem", O_RDWR)) \
    _(create_file, creat("/tmp/tiletrack-must-not-be", 0600)) \
    _(openat2_file, syscall(SYS_openat2, AT_FDCWD, "/etc/passwd", NULL, 0)) \
    _(stat_file, access("/etc/passwd", R_OK)) \
    _(unlink_file, unlink("/tmp/tiletrack-must-not-be")) \
    _(rename_file, rename("/tmp/a", "/tmp/b")) \
    _(chmod_video, fchmod(TT_CHILD_VIDEO, 0777)) \
    _(read_ring, pread(TT_CHILD_RING, &byte, 1, 0)) \
    _(read_stdin, read(0, &byte, 1)) \
    _(write_stderr, write(2, "", 0)) \
    _(write_video, pwrite(TT_CHILD_VIDEO, "x", 1, 0)) \
    _(truncate_ring, ftruncate(TT_CHILD_RING, 0)) \
    _(map_video, (long)(intptr_t)mmap(NULL, 4096, PROT_READ, MAP_PRIVATE, TT_CHILD_VIDEO, 0)) \
    _(map_code, page_of_code(PROT_READ | PROT_EXEC)) \
    _(protect_code, mprotect_code()) \
    _(duplicate, dup(TT_CHILD_VIDEO)) \
    _(lock_fcntl, fcntl(TT_CHILD_VIDEO, F_GETFL)) \
    _(close_control, close(TT_CHILD_CONTROL)) \
    _(socket_tcp, talk_to(AF_INET, SOCK_STREAM)) \
    _(socket_unix, talk_to(AF_UNIX, SOCK_STREAM)) \
    _(socket_netlink, talk_to(AF_NETLINK, SOCK_RAW)) \
    _(send_descriptor, send(TT_CHILD_CONTROL, "x", 1, 0)) \
    _(ioctl_video, ioctl(TT_CHILD_VIDEO, FIONREAD, &byte)) \
    _(execute, execl("/bin/true", "true", (char *)NULL)) \
    _(fork_process, fork()) \
    _(vfork_process, syscall(SYS_vfork)) \
    _(clone_process, syscall(SYS_clone, SIGCHLD, 0, 0, 0, 0)) \
    _(clone_user_namespace, syscall(SYS_clone, CLONE_NEWUSER | SIGCHLD, 0, 0, 0, 0)) \
    _(clone3_process, open_clone3()) \
    _(unshare_namespace, unshare(CLONE_NEWUSER)) \
    _(kill_parent, kill(getppid(), 0)) \
    _(kill_self_by_9, syscall(SYS_tgkill, getpid(), syscall(SYS_gettid), SIGKILL)) \
    _(trace_parent, ptrace(PTRACE_ATTACH, getppid(), NULL, NULL)) \
    _(read_other_process, process_vm_readv(getppid(), NULL, 0, NULL, 0, 0)) \
    _(limit_up, raise_limit()) \
    _(outlive_parent, prctl(PR_SET_PDEATHSIG, 0)) \
    _(second_filter, prctl(PR_SET_SECCOMP, 2, NULL)) \
    _(catch_signal, signal(SIGSYS, SIG_IGN) == SIG_ERR ? -1 : 0) \
    _(mount_something, mount("none", "/mnt", "tmpfs", 0, NULL)) \
    _(memory_file, memfd_create("x", 0)) \
    _(ring_of_io, syscall(SYS_io_uring_setup, 1, NULL)) \
    _(load_bpf, syscall(SYS_bpf, 0, NULL, 0)) \
    _(watch_performance, syscall(SYS_perf_event_open, NULL, 0, -1, -1, 0)) \
    _(user_fault, syscall(SYS_userfaultfd, 0)) \
    _(kernel_keys, syscall(SYS_keyctl, 0, 0, 0, 0, 0)) \
    _(set_user, setuid(0)) \
    _(new_root, chroot("/")) \
    _(change_directory, chdir("/"))
/* clang-format on */

#define CALL(name, expression)                                                                               \
    if (!strcmp(wanted, #name))                                                                              \
        return (expression);
#define PRINT(name, expression) puts(#name);

static long attempt(const char *wanted)
{
    ATTEMPTS_THAT_WORK(CALL)
    ATTEMPTS_THAT_FAIL(CALL)
#if defined(__x86_64__)
    CALL(call_32_bit, call_32_bit())
#endif
    return -2;
}

int main(int argc, char **argv)
{
    struct tt_wire_request request = {
        .memory_bytes = (int64_t)1 << 30, .cpu_seconds = 20, .parent_pid = getppid()};
    struct tt_error err;
    long result;

    if (argc == 2 && !strcmp(argv[1], "--list")) {
        ATTEMPTS_THAT_WORK(PRINT)
        puts("--");
        ATTEMPTS_THAT_FAIL(PRINT)
#if defined(__x86_64__)
        puts("call_32_bit");
#endif
        return 0;
    }
    if (argc != 2)
        return 2;
    if (tt_confine(&request, &err)) {
        fprintf(stderr, "%s\n", err.text);
        return 2;
    }
    result = attempt(argv[1]);
    _exit(result == -2 ? 2 : result < 0 ? 1 : 0);
}

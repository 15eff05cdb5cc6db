/* daemon/decode/confine.c: limits, no new privileges, and the system call filter.
 *
 * The order matters: the parent's death first (so that nobody is left behind), limits, then the filter, which
 * forbids changing any of it. Failing is final: the caller reports and exits without having touched the
 * video. Sanitizer builds get no address-space limit (their shadow takes terabytes) and may write their
 * report to descriptor 2; nothing else differs.
 */
#include "daemon/decode/confine.h"

#include <errno.h>
#include <pthread.h>
#include <sched.h>
#include <seccomp.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <unistd.h>

#if defined(__has_feature)
#if __has_feature(address_sanitizer) || __has_feature(thread_sanitizer)
#define WITH_SANITIZER 1
#endif
#endif
#if (defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)) && !defined(WITH_SANITIZER)
#define WITH_SANITIZER 1
#endif
#ifndef WITH_SANITIZER
#define WITH_SANITIZER 0
#endif

enum { ROOM_BYTES = 32 << 20 }; /* that must be left for the work */

static enum tt_status follow_parent(const struct tt_wire_request *request, struct tt_error *err)
{
    static const int ignored[] = {SIGINT, SIGQUIT, SIGTERM, SIGHUP, SIGPIPE};

    if (prctl(PR_SET_PDEATHSIG, SIGKILL))
        return tt_fail_errno(err, TT_REFUSE, errno, "PR_SET_PDEATHSIG");
    if (getppid() != request->parent_pid) /* it died before the line above */
        return tt_fail(err, TT_RETRY_LATER, "the parent of the decoder is gone");
    /* The parent decides when the child ends: a Ctrl-C that reaches both must not look like a crash. */
    for (size_t i = 0; i < sizeof ignored / sizeof *ignored; i++)
        signal(ignored[i], SIG_IGN);
    return TT_OK;
}

static enum tt_status set_limits(const struct tt_wire_request *request, bool writes, struct tt_error *err)
{
    rlim_t cpu = (rlim_t)request->cpu_seconds, memory = (rlim_t)request->memory_bytes;
    void *room;
    const struct {
        int resource;
        struct rlimit limit;
        const char *name;
    } limits[] = {
        {RLIMIT_AS, {memory, memory}, "memory"},
        {RLIMIT_CPU, {cpu, cpu + 5}, "processor time"}, /* SIGXCPU, and SIGKILL later */
        {RLIMIT_NOFILE, {TT_CHILD_DESCRIPTORS, TT_CHILD_DESCRIPTORS}, "descriptors"},
        {RLIMIT_FSIZE, {0, 0}, "file size"},
        {RLIMIT_CORE, {0, 0}, "core size"},
        {RLIMIT_MEMLOCK, {0, 0}, "locked memory"},
        {RLIMIT_MSGQUEUE, {0, 0}, "message queues"},
    };

    for (size_t i = 0; i < sizeof limits / sizeof *limits; i++) {
        if ((WITH_SANITIZER && limits[i].resource == RLIMIT_AS) ||
            (writes && limits[i].resource == RLIMIT_FSIZE))
            continue;
        if (setrlimit(limits[i].resource, &limits[i].limit))
            return tt_fail_errno(err, TT_REFUSE, errno, "limit the decoder's %s", limits[i].name);
    }
    room = mmap(NULL, ROOM_BYTES, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (room == MAP_FAILED)
        return tt_fail(err, TT_REFUSE,
                       "%lld MiB of memory are too little for any decoder (limit memory_bytes)",
                       (long long)(request->memory_bytes >> 20));
    munmap(room, ROOM_BYTES);
    return TT_OK;
}

/* The lower half of argument n, which is what the kernel looks at where a call takes an int. */
#define ARGUMENT_IS(n, value) SCMP_CMP(n, SCMP_CMP_MASKED_EQ, 0xffffffffu, (scmp_datum_t)(uint32_t)(value))

static int allow_freely(scmp_filter_ctx filter)
{
    static const int calls[] = {
        SCMP_SYS(brk),
        SCMP_SYS(munmap),
        SCMP_SYS(mremap),
        SCMP_SYS(madvise),
        SCMP_SYS(futex),
        SCMP_SYS(set_robust_list),
        SCMP_SYS(rseq),
        SCMP_SYS(sched_yield),
        SCMP_SYS(clock_gettime),
        SCMP_SYS(clock_getres),
        SCMP_SYS(clock_nanosleep),
        SCMP_SYS(gettimeofday),
        SCMP_SYS(nanosleep),
        SCMP_SYS(time),
        SCMP_SYS(getpid),
        SCMP_SYS(gettid),
        SCMP_SYS(getrandom),
        SCMP_SYS(sysinfo),
        SCMP_SYS(rt_sigprocmask),
        SCMP_SYS(rt_sigreturn),
        SCMP_SYS(exit),
        SCMP_SYS(exit_group),
        SCMP_SYS(restart_syscall),
        SCMP_SYS(sched_getaffinity),
    };
    int rc = 0;

    for (size_t i = 0; !rc && i < sizeof calls / sizeof *calls; i++)
        rc = seccomp_rule_add(filter, SCMP_ACT_ALLOW, calls[i], 0);
    return rc;
}

static int allow_with_conditions(scmp_filter_ctx filter, bool writes)
{
    /* What glibc's pthread_create asks for; any other clone is a process or a namespace. */
    const scmp_datum_t thread = CLONE_VM | CLONE_FS | CLONE_FILES | CLONE_SIGHAND | CLONE_THREAD |
                                CLONE_SYSVSEM | CLONE_SETTLS | CLONE_PARENT_SETTID | CLONE_CHILD_CLEARTID;
    const scmp_datum_t no_exec = PROT_EXEC;
    int rc = seccomp_rule_add(filter, SCMP_ACT_ALLOW, writes ? SCMP_SYS(pwrite64) : SCMP_SYS(pread64), 1,
                              ARGUMENT_IS(0, TT_CHILD_FILE));

    if (!rc)
        rc = seccomp_rule_add(filter, SCMP_ACT_ALLOW, SCMP_SYS(read), 1, ARGUMENT_IS(0, TT_CHILD_CONTROL));
    if (!rc)
        rc = seccomp_rule_add(filter, SCMP_ACT_ALLOW, SCMP_SYS(write), 1, ARGUMENT_IS(0, TT_CHILD_CONTROL));
    if (!rc)
        rc = seccomp_rule_add(filter, SCMP_ACT_ALLOW, SCMP_SYS(mmap), 2,
                              SCMP_CMP(2, SCMP_CMP_MASKED_EQ, no_exec, 0), ARGUMENT_IS(4, -1));
    if (!rc)
        rc = seccomp_rule_add(filter, SCMP_ACT_ALLOW, SCMP_SYS(mprotect), 1,
                              SCMP_CMP(2, SCMP_CMP_MASKED_EQ, no_exec, 0));
    if (!rc)
        rc = seccomp_rule_add(filter, SCMP_ACT_ALLOW, SCMP_SYS(clone), 1,
                              SCMP_CMP(0, SCMP_CMP_MASKED_EQ, ~(scmp_datum_t)0, thread));
    if (!rc) /* threads name themselves */
        rc = seccomp_rule_add(filter, SCMP_ACT_ALLOW, SCMP_SYS(prctl), 1, ARGUMENT_IS(0, PR_SET_NAME));
    if (!rc) /* abort(), so that a failed assertion is told apart from a forbidden call */
        rc = seccomp_rule_add(filter, SCMP_ACT_ALLOW, SCMP_SYS(tgkill), 2, ARGUMENT_IS(0, getpid()),
                              ARGUMENT_IS(2, SIGABRT));
    if (!rc && WITH_SANITIZER)
        rc = seccomp_rule_add(filter, SCMP_ACT_ALLOW, SCMP_SYS(write), 1, ARGUMENT_IS(0, 2));
    if (!rc && WITH_SANITIZER)
        rc = seccomp_rule_add(filter, SCMP_ACT_ALLOW, SCMP_SYS(sigaltstack), 0);
    return rc;
}

static int deny_softly(scmp_filter_ctx filter)
{
    static const int names[] = {
        SCMP_SYS(open),       SCMP_SYS(openat),    SCMP_SYS(access), SCMP_SYS(faccessat),
        SCMP_SYS(faccessat2), SCMP_SYS(stat),      SCMP_SYS(lstat),  SCMP_SYS(newfstatat),
        SCMP_SYS(statx),      SCMP_SYS(readlink),  SCMP_SYS(getcwd), SCMP_SYS(readlinkat),
        SCMP_SYS(fstat),      SCMP_SYS(getrusage),
    };
    /* pthread_create falls back to clone, whose flags the filter can see. */
    int rc = seccomp_rule_add(filter, SCMP_ACT_ERRNO(ENOSYS), SCMP_SYS(clone3), 0);

    if (!rc) /* malloc's and abort's last words go to a descriptor that nobody reads */
        rc = seccomp_rule_add(filter, SCMP_ACT_ERRNO(EPERM), SCMP_SYS(writev), 0);
    for (size_t i = 0; !rc && i < sizeof names / sizeof *names; i++)
        rc = seccomp_rule_add(filter, SCMP_ACT_ERRNO(EACCES), names[i], 0);
    return rc;
}

static enum tt_status load_filter(bool writes, struct tt_error *err)
{
    scmp_filter_ctx filter = seccomp_init(SCMP_ACT_KILL_PROCESS);
    enum tt_status status = TT_OK;
    int rc = -ENOMEM;

    if (filter)
        rc = seccomp_attr_set(filter, SCMP_FLTATR_ACT_BADARCH, SCMP_ACT_KILL_PROCESS);
    if (!rc)
        rc = seccomp_attr_set(filter, SCMP_FLTATR_CTL_TSYNC, 1);
    if (!rc)
        rc = allow_freely(filter);
    if (!rc)
        rc = allow_with_conditions(filter, writes);
    if (!rc)
        rc = deny_softly(filter);
    if (!rc)
        rc = seccomp_load(filter); /* sets no_new_privs, too */
    if (rc)
        status =
            tt_fail_errno(err, TT_REFUSE, -rc, "confine the %s (seccomp)", writes ? "encoder" : "decoder");
    seccomp_release(filter);
    return status;
}

static void *do_nothing(void *argument)
{
    return argument;
}

/* With its first thread glibc installs a signal handler, which the filter would forbid. */
static enum tt_status start_first_thread(struct tt_error *err)
{
    pthread_t thread;
    int rc = pthread_create(&thread, NULL, do_nothing, NULL);

    if (!rc)
        rc = pthread_join(thread, NULL);
    return rc ? tt_fail_errno(err, TT_RETRY_LATER, rc, "start a thread") : TT_OK;
}

static enum tt_status confine(const struct tt_wire_request *request, bool writes, struct tt_error *err)
{
    enum tt_status status = follow_parent(request, err);

    if (!status)
        status = start_first_thread(err);
    if (!status && prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0))
        status = tt_fail_errno(err, TT_REFUSE, errno, "PR_SET_NO_NEW_PRIVS");
    if (!status)
        status = set_limits(request, writes, err);
    if (!status)
        status = load_filter(writes, err);
    return status;
}

enum tt_status tt_confine(const struct tt_wire_request *request, struct tt_error *err)
{
    return confine(request, false, err);
}

enum tt_status tt_confine_writer(const struct tt_wire_request *request, struct tt_error *err)
{
    return confine(request, true, err);
}

/* tests/fault/test_spool_kill.c: a daemon that is killed at every durable step, and at random moments under
 * load.
 *
 *     test_spool_kill DRIVER [RANDOM_KILLS [syscalls]]
 *
 * Steps are counted, and with kill_at_syscall.sh as DRIVER system calls. After every kill: each input exists
 * exactly once (as one inode), no result exists twice, nothing is half written under a final name. After the
 * restart that is let run to its end: each input is in exactly one place, each finished one has exactly one
 * result, made of the input as it is, each failed one has its reason and no result, side-cars stand beside
 * their videos, nothing else is left.
 */
#include "tests/support/spool_fixture.h"

#include <ctype.h>
#include <dirent.h>
#include <ftw.h>
#include <poll.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <time.h>

enum { INPUTS_MAX = 4096, STEPS_MAX = 100000, NAMES_MAX = 64, ROUNDS = 20 };

static const char *driver;
static int random_kills = 100;
static bool by_syscall; /* the driver counts system calls, not steps (kill_at_syscall.sh) */

/* How the spool is run. */
struct way {
    const char *name;
    bool keep_inputs, link;
};

/* One input, known by the number in its text, and where it and its result were found. */
struct input {
    bool bad;
    ino_t inode;
    int names;      /* of the video */
    char place[16]; /* "incoming", "work", "done", "failed" */
    char path[512];
    char text[256];
    int results[TT_OUTPUTS];
    char result[TT_OUTPUTS][256]; /* its text */
    char output[TT_OUTPUTS][512]; /* its path without the ending */
    int sidecars, reasons;
    char sidecar[512];
};

static struct {
    struct input inputs[INPUTS_MAX];
    int count;
    char root[64];
    int strangers; /* files that nobody should have left */
    char stranger[512];
} world;

static char killed_at[NAMES_MAX][32];
static int killed_names;

/* --- the world as it is -----------------------------------------------------------------------------------
 */

static void read_small(const char *path, char *text, size_t bytes)
{
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    ssize_t got = fd < 0 ? -1 : read(fd, text, bytes - 1);

    assert_true(got >= 0);
    text[got] = '\0';
    close(fd);
}

/* The number in "good 17" or "of bad 3++" or "side 17". */
static struct input *input_of(const char *text)
{
    const char *digits = text + strcspn(text, "0123456789");
    int number = *digits ? atoi(digits) : -1;

    return number >= 0 && number < world.count ? &world.inputs[number] : NULL;
}

static bool ends_in(const char *path, const char *ending)
{
    size_t bytes = strlen(path), ending_bytes = strlen(ending);

    return bytes >= ending_bytes && strcmp(path + bytes - ending_bytes, ending) == 0;
}

static void saw_video(const char *relative, const char *text, const struct stat *st)
{
    struct input *input = input_of(text);

    assert_non_null(input);
    if (input->names > 0 && input->inode != st->st_ino)
        fail_msg("%s: a second copy of %s", relative, input->path);
    input->inode = st->st_ino;
    input->names++;
    snprintf(input->place, sizeof input->place, "%.*s", (int)strcspn(relative, "/"), relative);
    snprintf(input->path, sizeof input->path, "%s", relative);
    snprintf(input->text, sizeof input->text, "%s", text);
}

static void saw_result(const char *relative, const char *text)
{
    struct input *input = input_of(text);
    int format = 0;

    assert_true(strncmp(text, "of ", 3) == 0 && input); /* whole, or not there */
    while (format < TT_OUTPUTS && !ends_in(relative, tt_output_suffixes[format]))
        format++;
    assert_true(format < TT_OUTPUTS);
    input->results[format]++;
    snprintf(input->result[format], sizeof input->result[format], "%s", text);
    snprintf(input->output[format], sizeof input->output[format], "%.*s",
             (int)(strlen(relative) - strlen(tt_output_suffixes[format])), relative);
}

static int saw_file(const char *path, const struct stat *st, int type, struct FTW *walk)
{
    const char *relative = path + strlen(world.root) + 1, *name = path + walk->base;
    bool in_work = strncmp(relative, "work/", 5) == 0;
    char text[256];
    struct input *input;

    if (type != FTW_F)
        return 0;
    read_small(path, text, sizeof text);
    input = input_of(text);
    if (strncmp(text, "good ", 5) == 0 || strncmp(text, "bad ", 4) == 0) {
        saw_video(relative, text, st);
    } else if (strncmp(text, "side ", 5) == 0) {
        assert_non_null(input);
        input->sidecars++;
        snprintf(input->sidecar, sizeof input->sidecar, "%s", relative);
    } else if (strncmp(relative, "tracks/", 7) == 0) {
        saw_result(relative, text);
    } else if (ends_in(name, ".reason.json") && strncmp(relative, "failed/", 7) == 0) {
        assert_int_equal(text[0], '{');
    } else if (!in_work || strcmp(name, "lock") != 0) {
        world.strangers++;
        snprintf(world.stranger, sizeof world.stranger, "%s", relative);
        assert_true(in_work); /* temporaries lie in work/ only */
    }
    return 0;
}

static void look_around(void)
{
    for (int i = 0; i < world.count; i++) {
        bool bad = world.inputs[i].bad;

        world.inputs[i] = (struct input){.bad = bad};
    }
    world.strangers = 0;
    assert_int_equal(nftw(world.root, saw_file, 32, FTW_PHYS), 0);
}

/* All that a finished job has: npz and csv always. */
static bool has_results(const struct input *input)
{
    return input->results[TT_OUTPUT_NPZ] == 1 && input->results[TT_OUTPUT_CSV] == 1;
}

/* One result in each format, all of the input as it is, under one name. */
static void check_results(const struct way *way, int number)
{
    const struct input *input = &world.inputs[number];

    if (!has_results(input))
        fail_msg("input %d (%s): %d npz, %d csv", number, input->path, input->results[TT_OUTPUT_NPZ],
                 input->results[TT_OUTPUT_CSV]);
    for (int i = 0; i < TT_OUTPUTS; i++) {
        if (input->results[i] == 0)
            continue;
        if (way->keep_inputs && strcmp(input->result[i] + 3, input->text) != 0)
            fail_msg("input %d: result '%s', text '%s'", number, input->result[i], input->text);
        if (strcmp(input->output[i], input->output[TT_OUTPUT_NPZ]) != 0)
            fail_msg("input %d: results are called %s and %s", number, input->output[TT_OUTPUT_NPZ],
                     input->output[i]);
    }
}

/* What must hold at any instant. */
static void check_after_kill(const struct way *way)
{
    look_around();
    for (int i = 0; i < world.count; i++) {
        const struct input *input = &world.inputs[i];

        for (int format = 0; format < TT_OUTPUTS; format++)
            if (input->results[format] > 1)
                fail_msg("input %d has %d %s results", i, input->results[format], tt_output_names[format]);
        if (input->names == 0 && (way->keep_inputs || !has_results(input)))
            fail_msg("input %d is lost", i);
        if (input->names > 1 && !way->link)
            fail_msg("input %d has two names, one is %s", i, input->path);
    }
}

static void check_at_the_end(const struct way *way)
{
    check_after_kill(way);
    if (world.strangers)
        fail_msg("%d files were left behind, one is %s", world.strangers, world.stranger);
    for (int i = 0; i < world.count; i++) {
        const struct input *input = &world.inputs[i];
        char path[1024];
        struct stat st;

        if (input->names > 1)
            fail_msg("input %d has two names, one is %s", i, input->path);
        if (input->bad) {
            if (strcmp(input->place, "failed") != 0 || has_results(input) || input->output[TT_OUTPUT_NPZ][0])
                fail_msg("bad input %d: in %s, result %s", i, input->place, input->output[TT_OUTPUT_NPZ]);
            snprintf(path, sizeof path, "%s/%s.reason.json", world.root, input->path);
            if (lstat(path, &st) < 0)
                fail_msg("%s: %s", path, strerror(errno));
        } else {
            check_results(way, i);
            if (way->keep_inputs && strcmp(input->place, "done") != 0)
                fail_msg("input %d is in %s", i, input->place);
        }
        if (i % 3 == 0 && (way->keep_inputs || input->bad)) { /* these have a side-car */
            size_t stem = strlen(input->path) - 4;

            if (input->sidecars != 1 || strncmp(input->sidecar, input->path, stem) != 0 ||
                strcmp(input->sidecar + stem, ".queries.csv") != 0)
                fail_msg("input %d: %d side-cars, %s beside %s", i, input->sidecars, input->sidecar,
                         input->path);
        }
    }
}

/* --- inputs -----------------------------------------------------------------------------------------------
 */

static void drop(const char *name, const char *text)
{
    char path[256], hidden[256];
    int fd;

    snprintf(path, sizeof path, "%s/incoming/%s", world.root, name);
    snprintf(hidden, sizeof hidden, "%s/incoming/.dropped", world.root);
    fd = open(hidden, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);
    assert_int_equal(write(fd, text, strlen(text)), strlen(text));
    close(fd);
    if (renameat2(AT_FDCWD, hidden, AT_FDCWD, path, RENAME_NOREPLACE) < 0)
        fail_msg("%s: %s", path, strerror(errno));
}

static bool is_free(const char *name)
{
    char path[256];
    struct stat st;

    snprintf(path, sizeof path, "%s/incoming/%s", world.root, name);
    return lstat(path, &st) < 0;
}

/* Every third has a side-car, and a stem that it shares with repeats of itself only; every fifth is bad.
 * False: the name is taken, nothing was dropped. */
static bool drop_input(const char *directory, const char *stem, const char *ending)
{
    int number = world.count;
    bool bad = number % 5 == 4, with_side = number % 3 == 0;
    char name[128], side[128], text[64];

    if (bad)
        stem = "bad";
    snprintf(name, sizeof name, "%s%s%s%s", directory, with_side ? "side-" : "", stem,
             with_side ? ".mp4" : ending);
    snprintf(side, sizeof side, "%sside-%s.queries.csv", directory, stem);
    if (number == INPUTS_MAX || !is_free(name) || (with_side && !is_free(side)))
        return false;
    world.inputs[number].bad = bad;
    world.count++;
    if (with_side) {
        snprintf(text, sizeof text, "side %d", number);
        drop(side, text);
    }
    snprintf(text, sizeof text, "%s %d ", bad ? "bad" : "good", number);
    drop(name, text);
    return true;
}

static void new_world(void)
{
    struct stat st;
    char path[128];

    world.count = 0;
    /* Memory is enough: kill -9 loses no page of it, and syncs cost nothing. */
    snprintf(world.root, sizeof world.root, "%s/tt-kill-XXXXXX",
             stat("/dev/shm", &st) == 0 ? "/dev/shm" : "/tmp");
    assert_non_null(mkdtemp(world.root));
    snprintf(path, sizeof path, "%s/incoming", world.root);
    assert_int_equal(mkdir(path, 0755), 0);
    snprintf(path, sizeof path, "%s/incoming/priority", world.root);
    assert_int_equal(mkdir(path, 0755), 0);
    snprintf(path, sizeof path, "%s/incoming/sub", world.root);
    assert_int_equal(mkdir(path, 0755), 0);
}

static void end_world(void)
{
    char command[128];

    snprintf(command, sizeof command, "rm -rf %s", world.root);
    assert_int_equal(system(command), 0);
}

/* --- the driver -------------------------------------------------------------------------------------------
 */

/* kill_at: the step, 0 for none. *listen: the end of a pipe that tells the step's name. */
static pid_t start_driver(const struct way *way, long kill_at, int seed, bool forever, int *listen)
{
    int ends[2];
    pid_t child;

    assert_int_equal(pipe2(ends, O_CLOEXEC), 0);
    child = fork();
    assert_true(child >= 0);
    if (child == 0) {
        char number[32], seed_text[32];

        prctl(PR_SET_PDEATHSIG, SIGKILL);
        snprintf(number, sizeof number, "%ld", kill_at);
        snprintf(seed_text, sizeof seed_text, "%d", seed);
        setenv("TT_KILL_AT", number, 1);
        if (way->link)
            setenv("TT_TEST_LINK", "1", 1);
        else
            unsetenv("TT_TEST_LINK");
        if (ends[1] == 3)
            fcntl(3, F_SETFD, 0);
        else
            dup2(ends[1], 3);
        execl(driver, driver, world.root, way->keep_inputs ? "1" : "0", seed_text, forever ? "forever" : NULL,
              (char *)NULL);
        _exit(127);
    }
    close(ends[1]);
    *listen = ends[0];
    return child;
}

/* True: it was killed at its step; false: it ran to its end. */
static bool run_driver(const struct way *way, long kill_at, int seed)
{
    int listen, status;
    pid_t child = start_driver(way, kill_at, seed, false, &listen);
    char name[32] = "";
    ssize_t got = read(listen, name, sizeof name - 1);

    close(listen);
    assert_int_equal(waitpid(child, &status, 0), child);
    if (WIFEXITED(status)) {
        assert_int_equal(WEXITSTATUS(status), 0);
        return false;
    }
    assert_int_equal(WTERMSIG(status), SIGKILL);
    assert_true(got > 0);
    for (int i = 0; i < killed_names; i++)
        if (strcmp(killed_at[i], name) == 0)
            return true;
    assert_true(killed_names < NAMES_MAX);
    strcpy(killed_at[killed_names++], name);
    return true;
}

/* --- tests ------------------------------------------------------------------------------------------------
 */

static void kill_at_every_step(const struct way *way)
{
    int kills = 0;

    for (long step = 1; step < STEPS_MAX; step++) {
        bool killed;

        new_world();
        drop_input("", "bear", ".mp4");
        drop_input("", "bear", ".mov");
        drop_input("priority/", "bear", ".mp4");
        drop_input("sub/", "cub", ".mp4");
        drop_input("", "", ".mp4"); /* bad.mp4 */
        drop_input("sub/", "owl", ".mp4");
        killed = run_driver(way, step, 1);
        check_after_kill(way);
        if (killed) {
            kills++;
            for (int again = 0; again < 2; again++) /* and while it recovers from that */
                if (run_driver(way, 1 + (step * 7 + again * 13) % 23, (int)step + again))
                    check_after_kill(way);
        }
        assert_false(run_driver(way, 0, 2 * (int)step));
        check_at_the_end(way);
        end_world();
        if (!killed)
            break;
    }
    print_message("%s: killed at %d places, each time also while recovering\n", way->name, kills);
    assert_true(kills > 50 || by_syscall);
}

/* How long the driver takes for some inputs, from its start: kills are spread over that. */
static long whole_run_ns(const struct way *way)
{
    struct timespec start, end;

    new_world();
    for (int i = 0; i < 10; i++)
        drop_input("", i % 2 ? "bear" : "owl", i % 4 < 2 ? ".mp4" : ".mov");
    clock_gettime(CLOCK_MONOTONIC, &start);
    assert_false(run_driver(way, 0, 1));
    clock_gettime(CLOCK_MONOTONIC, &end);
    check_at_the_end(way);
    end_world();
    return (end.tv_sec - start.tv_sec) * 1000000000 + end.tv_nsec - start.tv_nsec;
}

static void hold(pid_t child)
{
    int status;

    kill(child, SIGSTOP);
    assert_int_equal(waitpid(child, &status, WUNTRACED), child);
    if (!WIFSTOPPED(status))
        fail_msg("the driver ended by itself: status %d", status);
}

static void kill_at_random(const struct way *way)
{
    static const char *const stems[] = {"bear", "cub", "owl"}, *const endings[] = {".mp4", ".mov"},
                             *const directories[] = {"", "priority/", "sub/"};
    unsigned seed = (unsigned)time(NULL);
    int mid_run = 0, inputs = 0;
    long span_ns = 0;

    if (random_kills == 0)
        skip();
    print_message("%s: seed %u\n", way->name, seed);
    srand(seed);
    for (int round = 0; round < random_kills; round++) {
        const long pause_ns = (long)((double)rand() / RAND_MAX * 1.2 * (double)span_ns);
        const struct timespec pause = {pause_ns / 1000000000, pause_ns % 1000000000};
        int listen, status;
        pid_t child;

        if (round % ROUNDS == 0) {
            span_ns = whole_run_ns(way); /* again and again: what else the machine does changes */
            new_world();
        }
        child = start_driver(way, 0, rand(), true, &listen);
        for (int i = 0; i < 10;
             i++) { /* new ones while it runs; held, so that a name that is free stays so */
            hold(child);
            drop_input(directories[rand() % 3], stems[rand() % 3], endings[rand() % 2]);
            kill(child, SIGCONT);
        }
        nanosleep(&pause, NULL);
        kill(child, SIGKILL);
        assert_int_equal(waitpid(child, &status, 0), child);
        close(listen);
        if (!WIFSIGNALED(status))
            fail_msg("the driver ended by itself: status %d", status);
        check_after_kill(way);
        mid_run += world.strangers > 0; /* a manifest, a temporary: it was at work */
        if (round % ROUNDS == ROUNDS - 1 || round == random_kills - 1) {
            assert_false(run_driver(way, 0, rand()));
            check_at_the_end(way);
            inputs += world.count;
            end_world();
        }
    }
    print_message("%s: %d random kills, %d of them while a job was in work/, %d inputs\n", way->name,
                  random_kills, mid_run, inputs);
    assert_true(mid_run >= random_kills / 20);
}

static const struct way renames = {"rename", true, false}, drops = {"rename, inputs not kept", false, false},
                        links = {"link and unlink", true, true};

static void every_step(void **state)
{
    (void)state;
    kill_at_every_step(&renames);
}

static void every_step_without_inputs(void **state)
{
    (void)state;
    kill_at_every_step(&drops);
}

static void every_step_by_link(void **state)
{
    (void)state;
    kill_at_every_step(&links);
}

static void random_moments(void **state)
{
    (void)state;
    kill_at_random(&renames);
}

static void random_moments_without_inputs(void **state)
{
    (void)state;
    kill_at_random(&drops);
}

static void random_moments_by_link(void **state)
{
    (void)state;
    kill_at_random(&links);
}

/* Every TT_STEP("name") of the sources was a place of death above, and docs/SPOOL.md names it. */
static void no_step_was_missed(void **state)
{
    const char *source = getenv("TILETRACK_SOURCE");
    char command[1024], name[64], doc[128];
    FILE *names;
    int count = 0;

    (void)state;
    if (!source || by_syscall) {
        print_message("skipped: %s\n",
                      by_syscall ? "system calls have no names" : "TILETRACK_SOURCE is not set");
        skip();
    }
    snprintf(
        command, sizeof command,
        "cat '%s'/daemon/spool/*.c | tr '\\n' ' ' | grep -o 'TT_STEP([^;]*;' | grep -o '\"[a-z-]*\"' | tr -d "
        "'\"' | "
        "sort -u",
        source);
    names = popen(command, "r");
    assert_non_null(names);
    while (fscanf(names, "%63s", name) == 1) {
        bool found = false;

        for (int i = 0; i < killed_names; i++)
            found |= strcmp(killed_at[i], name) == 0;
        if (!found)
            fail_msg("nothing was killed at step %s", name);
        snprintf(doc, sizeof doc, "grep -q -- '`%s`' '%s/docs/SPOOL.md'", name, source);
        if (system(doc) != 0)
            fail_msg("docs/SPOOL.md does not name step %s", name);
        count++;
    }
    pclose(names);
    assert_true(count > 20);
    print_message("%d steps, all of them places of death\n", count);
}

int main(int count, char **arguments)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_step),
        cmocka_unit_test(every_step_without_inputs),
        cmocka_unit_test(every_step_by_link),
        cmocka_unit_test(no_step_was_missed),
        cmocka_unit_test(random_moments),
        cmocka_unit_test(random_moments_without_inputs),
        cmocka_unit_test(random_moments_by_link),
    };

    if (count < 2)
        return 2;
    driver = arguments[1];
    if (count > 2)
        random_kills = atoi(arguments[2]);
    by_syscall = count > 3;
    return cmocka_run_group_tests_name("spool_kill", tests, NULL, NULL);
}

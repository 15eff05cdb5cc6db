/* tests/unit/test_log_sinks.c: lines go where they should, never mix, and are counted where they cannot be
 * written: pipes, files, terminals, the journal.
 */
#include "tests/unit/log_fixture.h"

#include <inttypes.h>
#include <pthread.h>
#include <pty.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <sys/wait.h>

enum { THREADS = 3, PROCESSES = 3, LINES = 700 };

static void *write_many(void *log)
{
    char padding[300];

    memset(padding, 'x', sizeof padding);
    for (int i = 0; i < LINES; i++)
        tt_log((struct tt_log *)log, TT_LOG_INFO, "crowd", TT_INT("i", i),
               TT_BYTES("padding", padding, (size_t)i % 300));
    return NULL;
}

static void run_crowd(struct fixture *fixture)
{
    pid_t pids[PROCESSES];

    for (int p = 0; p < PROCESSES; p++) {
        pids[p] = fork();
        if (pids[p] == 0) {
            pthread_t threads[THREADS];
            struct tt_log *log;

            if (tt_log_open(&log, &fixture->options, NULL) != TT_OK)
                _exit(1);
            for (int t = 0; t < THREADS; t++)
                pthread_create(&threads[t], NULL, write_many, log);
            for (int t = 0; t < THREADS; t++)
                pthread_join(threads[t], NULL);
            tt_log_close(log);
            _exit(0);
        }
    }
    if (!fixture->options.file) {
        size_t used = 0;
        ssize_t got;

        close(fixture->write_fd);
        while ((got = read(fixture->read_fd, fixture->text + used, TEXT_BYTES * 2 - 1 - used)) > 0)
            used += (size_t)got;
        fixture->text[used] = 0;
    }
    for (int p = 0; p < PROCESSES; p++) {
        int status;
        assert_int_equal(waitpid(pids[p], &status, 0), pids[p]);
        assert_int_equal(status, 0);
    }
}

/* Lines that log_lost tells of. */
static int64_t count_lost(char *text)
{
    int64_t lines = 0;
    json_t *json;

    while ((json = next_line(&text))) {
        if (strcmp(string_of(json, "event"), "log_lost") == 0)
            lines += number_of(json, "lines");
        json_decref(json);
    }
    return lines;
}

static void lines_of_threads_and_processes_never_mix(void **state)
{
    struct fixture *fixture = *state;
    FILE *file;

    free(fixture->text);
    fixture->text = calloc(2, TEXT_BYTES);
    run_crowd(fixture);
    /* On a machine so busy that a reader gets no turn for 200 ms, lines may be lost, but are counted. */
    assert_int_equal(count_events(fixture->text, "crowd") + count_lost(fixture->text),
                     THREADS * PROCESSES * LINES);

    fixture->options.file = fixture->file;
    run_crowd(fixture);
    file = fopen(fixture->file, "r");
    assert_non_null(file);
    fixture->text[fread(fixture->text, 1, TEXT_BYTES * 2 - 1, file)] = 0;
    fclose(file);
    assert_int_equal(count_events(fixture->text, "crowd"), THREADS * PROCESSES * LINES);
}

static int waits; /* polls that may have lasted */

/* The log's own, which this program counts. */
int poll(struct pollfd *fds, nfds_t count, int timeout_ms)
{
    const struct timespec limit = {timeout_ms / 1000, timeout_ms % 1000 * 1000000L};

    waits += timeout_ms != 0;
    return ppoll(fds, count, timeout_ms < 0 ? NULL : &limit, NULL);
}

static void a_reader_that_stops_does_not_stop_the_program(void **state)
{
    struct fixture *fixture = *state;
    int64_t written = 0, lost = 0;
    char padding[1000] = "";
    char *text;
    json_t *json;

    memset(padding, 'x', sizeof padding - 1);
    open_log(fixture);
    waits = 0;
    for (int i = 0; i < 500; i++)
        tt_log(fixture->log, TT_LOG_INFO, "flood", TT_STR("padding", padding));
    written = count_events(take(fixture, fixture->read_fd), "flood");
    assert_true(waits <= written + 1); /* for the first line that is lost, and for none behind it */
    assert_true(written > 0 && written < 500);
    tt_log(fixture->log, TT_LOG_INFO, "after");
    text = take(fixture, fixture->read_fd);
    json = next_line(&text);
    assert_string_equal(string_of(json, "event"), "log_lost");
    assert_string_equal(string_of(json, "cause"), "Resource temporarily unavailable");
    lost = number_of(json, "lines");
    json_decref(json);
    assert_int_equal(written + lost, 500);
    assert_int_equal(count_events(text, "after"), 1);

    close(fixture->read_fd); /* and one that is gone does not end it */
    tt_log(fixture->log, TT_LOG_INFO, "nobody");
    fixture->read_fd = open("/dev/null", O_RDONLY | O_CLOEXEC);
}

static void a_full_disk_leaves_whole_lines(void **state)
{
    struct fixture *fixture = *state;
    struct rlimit before, limit;
    int written;
    char *text;
    json_t *json;

    fixture->options.file = fixture->file;
    open_log(fixture);
    getrlimit(RLIMIT_FSIZE, &before);
    limit = before;
    limit.rlim_cur = 10000; /* in the middle of a line */
    setrlimit(RLIMIT_FSIZE, &limit);
    for (int i = 0; i < 300; i++)
        tt_log(fixture->log, TT_LOG_INFO, "flood", TT_STR("file", "bear.mp4"));
    setrlimit(RLIMIT_FSIZE, &before);
    written = count_events(take_file(fixture, fixture->file), "flood");
    assert_true(written > 50 && written < 150);
    tt_log_flush(fixture->log, false);
    tt_log(fixture->log, TT_LOG_INFO, "after");
    text = take_file(fixture, fixture->file);
    for (int i = 0; i < written; i++)
        json_decref(next_line(&text));
    json = next_line(&text);
    assert_string_equal(string_of(json, "event"), "log_lost");
    assert_string_equal(string_of(json, "cause"), "File too large");
    assert_int_equal(number_of(json, "lines"), 300 - written);
    json_decref(json);
    assert_int_equal(count_events(text, "after"), 1);
}

static void reopening_follows_the_name(void **state)
{
    struct fixture *fixture = *state;
    struct tt_error err;
    struct stat stat_of_file;

    fixture->options.file = fixture->file;
    open_log(fixture);
    assert_int_equal(stat(fixture->file, &stat_of_file), 0);
    assert_int_equal(stat_of_file.st_mode & 07, 0);
    tt_log(fixture->log, TT_LOG_INFO, "one");
    assert_int_equal(rename(fixture->file, fixture->other), 0);
    tt_log(fixture->log, TT_LOG_INFO, "two");

    assert_int_equal(mkdir(fixture->file, 0700), 0); /* in the way */
    assert_int_equal(tt_log_reopen(fixture->log, &err), TT_REFUSE);
    assert_non_null(strstr(err.text, fixture->file));
    tt_log(fixture->log, TT_LOG_INFO, "three");
    assert_int_equal(rmdir(fixture->file), 0);
    assert_int_equal(tt_log_reopen(fixture->log, &err), TT_OK);
    tt_log(fixture->log, TT_LOG_INFO, "four");
    take_file(fixture, fixture->other);
    assert_non_null(strstr(fixture->text, "\"one\""));
    assert_non_null(strstr(fixture->text, "\"two\""));
    assert_non_null(strstr(fixture->text, "\"three\""));
    assert_null(strstr(fixture->text, "\"four\""));
    assert_int_equal(count_events(take_file(fixture, fixture->file), "four"), 1);
    assert_string_equal(take(fixture, fixture->read_fd), "");
}

static void options_change_whole_or_not_at_all(void **state)
{
    struct fixture *fixture = *state;
    struct tt_log_options bad = fixture->options;
    struct tt_log *none = NULL;
    struct tt_error err;

    open_log(fixture);
    bad.level = TT_LOG_ERROR;
    bad.file = "/nowhere/at/all";
    assert_int_equal(tt_log_configure(fixture->log, &bad, &err), TT_REFUSE);
    assert_non_null(strstr(err.text, "/nowhere/at/all"));
    assert_int_equal(tt_log_open(&none, &bad, &err), TT_REFUSE);
    assert_null(none);
    tt_log(fixture->log, TT_LOG_INFO, "still_here");
    assert_int_equal(count_events(take(fixture, fixture->read_fd), "still_here"), 1);

    fixture->options.level = TT_LOG_DEBUG;
    fixture->options.file = fixture->file;
    fixture->options.worker = "gpu1";
    assert_int_equal(tt_log_configure(fixture->log, &fixture->options, &err), TT_OK);
    tt_log(fixture->log, TT_LOG_DEBUG, "moved");
    assert_string_equal(take(fixture, fixture->read_fd), "");
    assert_non_null(strstr(take_file(fixture, fixture->file), "\"event\":\"moved\",\"worker\":\"gpu1\""));
}

static void colours_are_for_terminals(void **state)
{
    struct fixture *fixture = *state;
    int master, terminal;

    assert_int_equal(openpty(&master, &terminal, NULL, NULL, NULL), 0);
    fixture->options.format = TT_LOG_TEXT;
    fixture->options.fd = terminal;
    for (int i = 0; i < 4; i++) {
        setenv("NO_COLOR", i == 1 ? "1" : "", 1);
        setenv("TERM", i == 2 ? "dumb" : "xterm", 1);
        fixture->options.format = i == 3 ? TT_LOG_JSON : TT_LOG_TEXT;
        open_log(fixture);
        tt_log(fixture->log, TT_LOG_INFO, "hello", TT_INT("n", 1));
        take(fixture, master);
        assert_non_null(strstr(fixture->text, "hello"));
        assert_int_equal(strchr(fixture->text, '\033') != NULL, i == 0);
        tt_log_close(fixture->log);
        fixture->log = NULL;
    }
    close(master);
    close(terminal);
}

/* A journal that is a socket of ours; fd, whose stream JOURNAL_STREAM names, must then stay empty. */
static int open_journal(struct fixture *fixture)
{
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    int fd = socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0);

    strcpy(address.sun_path, fixture->other);
    assert_int_equal(bind(fd, (struct sockaddr *)&address, sizeof address), 0);
    return fd;
}

static void name_stream(int fd, ino_t off)
{
    struct stat stat;
    char stream[64];

    assert_int_equal(fstat(fd, &stat), 0);
    snprintf(stream, sizeof stream, "%ju:%ju", (uintmax_t)stat.st_dev, (uintmax_t)(stat.st_ino + off));
    setenv("JOURNAL_STREAM", stream, 1);
}

static void the_journal_gets_its_own_fields(void **state)
{
    struct fixture *fixture = *state;
    int journal = open_journal(fixture);

    fixture->options.journal = fixture->other;
    name_stream(fixture->write_fd, 0);
    open_log(fixture);
    tt_log(fixture->log, TT_LOG_WARNING, "job_retry", TT_STR("job", "k3v9"),
           TT_STR("file", "a\nPRIORITY=0 \xff.mp4"), TT_INT("backoff_ms", 5000));
    assert_string_equal(take(fixture, journal),
                        "MESSAGE=job_retry job=k3v9 file=\"a\\x0aPRIORITY=0 \\xff.mp4\" backoff_ms=5000\n"
                        "PRIORITY=4\nSYSLOG_IDENTIFIER=test\nTILETRACK_EVENT=job_retry\nTILETRACK_JOB=k3v9\n"
                        "TILETRACK_FILE=a\\x0aPRIORITY=0 \\xff.mp4\nTILETRACK_BACKOFF_MS=5000\n");
    assert_string_equal(take(fixture, fixture->read_fd), "");

    /* A file is a file, journal or not. */
    fixture->options.file = fixture->file;
    assert_int_equal(tt_log_configure(fixture->log, &fixture->options, NULL), TT_OK);
    tt_log(fixture->log, TT_LOG_INFO, "to_file");
    assert_int_equal(count_events(take_file(fixture, fixture->file), "to_file"), 1);
    assert_string_equal(take(fixture, journal), "");

    /* The journal's stream of somebody else, inherited by name only, is not ours. */
    fixture->options.file = NULL;
    name_stream(fixture->write_fd, 1);
    assert_int_equal(tt_log_configure(fixture->log, &fixture->options, NULL), TT_OK);
    tt_log(fixture->log, TT_LOG_INFO, "to_stderr");
    assert_int_equal(count_events(take(fixture, fixture->read_fd), "to_stderr"), 1);
    assert_string_equal(take(fixture, journal), "");
    close(journal);
}

/* The log's datagram socket: the only one that is not `not_this`. */
static int find_socket(int not_this)
{
    for (int fd = 3; fd < 256; fd++) {
        int type = 0;
        socklen_t length = sizeof type;

        if (fd != not_this && getsockopt(fd, SOL_SOCKET, SO_TYPE, &type, &length) == 0 && type == SOCK_DGRAM)
            return fd;
    }
    return -1;
}

static void large_entries_go_through_a_sealed_file(void **state)
{
    struct fixture *fixture = *state;
    int journal = open_journal(fixture), small = 1, fd = -1;
    static char large[1900];
    char control[CMSG_SPACE(sizeof(int))], byte;
    struct iovec space = {&byte, 1};
    struct msghdr message = {
        .msg_iov = &space, .msg_iovlen = 1, .msg_control = control, .msg_controllen = sizeof control};

    memset(large, 'x', sizeof large - 1);
    fixture->options.journal = fixture->other;
    name_stream(fixture->write_fd, 0);
    open_log(fixture);
    setsockopt(find_socket(journal), SOL_SOCKET, SO_SNDBUF, &small, sizeof small);
    tt_log(fixture->log, TT_LOG_ERROR, "job_quarantined", TT_STR("a", large), TT_STR("b", large));
    assert_int_equal(recvmsg(journal, &message, MSG_DONTWAIT), 0);
    assert_non_null(CMSG_FIRSTHDR(&message));
    memcpy(&fd, CMSG_DATA(CMSG_FIRSTHDR(&message)), sizeof fd);
    assert_int_equal(fcntl(fd, F_GET_SEALS), F_SEAL_SEAL | F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_WRITE);
    fixture->text[pread(fd, fixture->text, TEXT_BYTES - 1, 0)] = 0;
    assert_true(strlen(fixture->text) > 7000);
    assert_int_equal(strncmp(fixture->text, "MESSAGE=job_quarantined a=xxx", 29), 0);
    assert_non_null(strstr(fixture->text, "\nPRIORITY=3\n"));
    assert_non_null(strstr(fixture->text, "x\nTILETRACK_B=x"));
    assert_null(strstr(fixture->text, "CUT"));
    close(fd);
    close(journal);
}

static void a_journal_that_is_away_is_told_later(void **state)
{
    struct fixture *fixture = *state;
    int journal;

    fixture->options.journal = fixture->other;
    name_stream(fixture->write_fd, 0);
    open_log(fixture);
    tt_log(fixture->log, TT_LOG_INFO, "one");
    tt_log(fixture->log, TT_LOG_INFO, "two");
    journal = open_journal(fixture);
    tt_log(fixture->log, TT_LOG_INFO, "three");
    take(fixture, journal);
    assert_non_null(strstr(fixture->text, "TILETRACK_EVENT=log_lost\nTILETRACK_LINES=2\n"));
    assert_non_null(strstr(fixture->text, "TILETRACK_EVENT=three\n"));
    assert_string_equal(take(fixture, fixture->read_fd), "");

    /* One that reads nothing: the program goes on. */
    for (int i = 0; i < 2000; i++)
        tt_log(fixture->log, TT_LOG_INFO, "flood");
    close(journal);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(lines_of_threads_and_processes_never_mix), TEST(a_reader_that_stops_does_not_stop_the_program),
        TEST(a_full_disk_leaves_whole_lines),           TEST(reopening_follows_the_name),
        TEST(options_change_whole_or_not_at_all),       TEST(colours_are_for_terminals),
        TEST(the_journal_gets_its_own_fields),          TEST(large_entries_go_through_a_sealed_file),
        TEST(a_journal_that_is_away_is_told_later),
    };
    return cmocka_run_group_tests_name("log sinks", tests, NULL, NULL);
}

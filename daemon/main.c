/* daemon/main.c: tiletrackd, the supervisor: drop videos into incoming/, find tracks in tracks/.
 *
 *     tiletrackd [--config FILE]      runs until SIGTERM (drains) or SIGINT twice (stops at once);
 *                                     SIGHUP reads the configuration anew, SIGUSR1 reopens the log
 *     tiletrackd --check              says whether the configuration stands, and runs nothing
 *     tiletrackd --print-config       prints it, with every default
 *
 * One thread, one loop (daemon/daemon.h shows the parts). The order of the start: configuration, log, spool
 * (its lock makes us the only one), control socket, what a dead daemon left, workers, incoming/. The order of
 * the end: no new jobs, running ones finish or are put back, workers are gone, everything is closed. Whatever
 * happens in between, what is on disk is enough to go on (docs/SPOOL.md).
 */
#include "daemon/report/control.h"
#include "daemon/daemon.h"
#include "daemon/feed.h"
#include "daemon/jobs/hook.h"
#include "daemon/jobs/jobs.h"
#include "daemon/report/notify.h"
#include "daemon/reload.h"
#include "daemon/report/report.h"

#include "core/install.h"

#include <errno.h>
#include <getopt.h>
#include <limits.h>
#include <linux/close_range.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum {
    EXIT_REFUSED = 78, /* EX_CONFIG: a person must change something; the unit does not restart us then */
    STATUS_MS = 5000,
    STOP_TICK_MS = 50,
    STOP_GRACE_MS = 3000, /* for endings that the disk does not take */
};

static struct program {
    struct tt_daemon daemon;
    uv_loop_t loop;
    uv_signal_t signals[4];
    uv_timer_t watchdog, status, metrics, stop;
    int interrupts;    /* SIGINTs so far */
    bool workers_gone; /* and at which time */
    int64_t gone_ms, drain_until_ms, extended_ms;
    int resumed;
} program;

/* --- turns of the loop ------------------------------------------------------------------------------------
 */

static void on_turn(uv_idle_t *idle)
{
    struct tt_daemon *daemon = idle->data;
    bool more;

    uv_idle_stop(idle); /* first, for what is done here may ask for another turn */
    more = tt_jobs_step(daemon->jobs);
    more |= tt_feed_step(daemon->feed);
    if (more)
        tt_daemon_wake(daemon);
    tt_feed_settle(daemon->feed);
}

void tt_daemon_wake(struct tt_daemon *daemon)
{
    uv_idle_start(&daemon->turn, on_turn);
}

static void tell_status(bool ready)
{
    static char last[TT_ERROR_TEXT_BYTES];
    char text[TT_ERROR_TEXT_BYTES];

    tt_report_summary(&program.daemon, text, sizeof text);
    if (ready)
        tt_notify_ready(text);
    else if (strcmp(text, last) != 0)
        tt_notify_status(text);
    snprintf(last, sizeof last, "%s", text);
}

void tt_daemon_scanned(struct tt_daemon *daemon, int64_t scan_ms)
{
    struct tt_queue_counts counts;

    if (daemon->phase != TT_PHASE_STARTING)
        return;
    daemon->phase = TT_PHASE_RUNNING;
    counts = tt_queue_count(daemon->queue);
    tt_log(daemon->log, TT_LOG_INFO, "daemon_ready",
           TT_INT("queued", counts.ready + counts.settling + counts.deferred),
           TT_INT("resumed", program.resumed), TT_INT("scan_ms", scan_ms));
    tell_status(true);
    tt_daemon_wake(daemon);
}

/* --- what the supervisor tells ----------------------------------------------------------------------------
 */

static void on_slot_changed(void *user)
{
    tt_daemon_wake(user);
}

static void on_job_started(void *user, struct tt_slot *slot, const struct tt_message_started *started)
{
    struct tt_daemon *daemon = user;

    tt_jobs_started(daemon->jobs, slot, started);
    tt_daemon_wake(daemon); /* its next one can be reserved */
}

static void on_job_ended(void *user, struct tt_slot *slot, const struct tt_report *report)
{
    struct tt_daemon *daemon = user;

    tt_jobs_ended(daemon->jobs, slot, report);
}

static void on_workers_gone(void *user)
{
    (void)user;
    program.workers_gone = true;
    program.gone_ms = tt_clock_ms();
}

/* --- the end ----------------------------------------------------------------------------------------------
 */

/* Ends at once, from here on; running jobs are put back. */
static void stop_now(enum tt_stop how)
{
    program.daemon.phase = TT_PHASE_STOPPING;
    program.drain_until_ms = 0;
    tt_supervisor_stop(program.daemon.supervisor, how);
}

static bool is_over(int64_t now_ms)
{
    bool hooks = tt_hook_busy(program.daemon.hook) > 0 && now_ms < program.drain_until_ms;
    bool endings = tt_jobs_endings(program.daemon.jobs) > 0 && now_ms < program.gone_ms + STOP_GRACE_MS;

    return program.workers_gone && !hooks && !endings;
}

static void on_stop_tick(uv_timer_t *timer)
{
    int64_t now_ms = tt_clock_ms();

    (void)timer;
    if (program.daemon.phase == TT_PHASE_DRAINING && now_ms >= program.drain_until_ms &&
        !program.workers_gone)
        stop_now(TT_STOP_NOW);
    if (now_ms - program.extended_ms > STATUS_MS) {
        tt_notify_extend(3 * STATUS_MS + program.daemon.config->workers.kill_ms);
        program.extended_ms = now_ms;
    }
    if (is_over(now_ms))
        uv_stop(program.daemon.loop);
}

static int running_jobs(void)
{
    int count = 0;

    for (const struct tt_task *task = program.daemon.jobs->tasks; task; task = task->next)
        count += task->state == TT_TASK_RUNNING;
    return count;
}

static void drain(int signal)
{
    struct tt_daemon *daemon = &program.daemon;

    if (daemon->phase >= TT_PHASE_DRAINING)
        return;
    daemon->phase = TT_PHASE_DRAINING;
    program.drain_until_ms = tt_clock_ms() + daemon->config->daemon.drain_ms;
    tt_log(daemon->log, TT_LOG_INFO, "daemon_stopping", TT_STR("signal", strsignal(signal)),
           TT_INT("running", running_jobs()), TT_INT("drain_ms", daemon->config->daemon.drain_ms));
    tt_notify_stopping("ending: running jobs are finished or put back");
    tt_feed_stop(daemon->feed);
    tt_jobs_put_back(daemon->jobs);
    tt_supervisor_stop(daemon->supervisor, TT_STOP_DRAIN);
    uv_timer_start(&program.stop, on_stop_tick, 0, STOP_TICK_MS);
    tt_daemon_wake(daemon);
}

/* --- signals ----------------------------------------------------------------------------------------------
 */

static void reopen_log(void)
{
    struct tt_error err;

    if (tt_log_reopen(program.daemon.log, &err))
        tt_log(program.daemon.log, TT_LOG_ERROR, "log_reopen_failed", TT_STR("cause", err.text));
    tt_supervisor_reopen_logs(program.daemon.supervisor);
}

static void on_signal(uv_signal_t *handle, int signal)
{
    (void)handle;
    switch (signal) {
    case SIGTERM:
        drain(signal);
        break;
    case SIGINT:
        drain(signal);
        if (++program.interrupts > 1)
            stop_now(TT_STOP_KILL);
        break;
    case SIGHUP:
        if (program.daemon.phase <= TT_PHASE_RUNNING)
            tt_reload(&program.daemon);
        break;
    case SIGUSR1:
        reopen_log();
        break;
    }
}

static void listen_to_signals(void)
{
    static const int numbers[4] = {SIGTERM, SIGINT, SIGHUP, SIGUSR1};

    signal(SIGPIPE, SIG_IGN);
    signal(SIGXFSZ, SIG_IGN); /* a file size limit is an error of write */
    for (int i = 0; i < 4; i++) {
        uv_signal_init(program.daemon.loop, &program.signals[i]);
        uv_signal_start(&program.signals[i], on_signal, numbers[i]);
    }
}

/* --- what comes again and again ---------------------------------------------------------------------------
 */

static void on_watchdog(uv_timer_t *timer)
{
    (void)timer;
    tt_notify_watchdog();
}

static void on_status(uv_timer_t *timer)
{
    (void)timer;
    if (program.daemon.phase == TT_PHASE_STARTING || tt_supervisor_warms_up(program.daemon.supervisor))
        tt_notify_extend(3 * STATUS_MS);
    if (program.daemon.phase <= TT_PHASE_RUNNING)
        tell_status(false);
    tt_log_flush(program.daemon.log, false);
}

static void on_metrics(uv_timer_t *timer)
{
    tt_report_metrics(&program.daemon);
    /* the period may have changed with the configuration */
    uv_timer_start(timer, on_metrics, (uint64_t)program.daemon.config->metrics.interval_ms, 0);
}

static void make_timers(void)
{
    uv_timer_init(program.daemon.loop, &program.watchdog);
    uv_timer_init(program.daemon.loop, &program.status);
    uv_timer_init(program.daemon.loop, &program.metrics);
    uv_timer_init(program.daemon.loop, &program.stop);
}

static void start_timers(void)
{
    uint64_t watchdog_ms = (uint64_t)tt_notify_watchdog_ms();

    if (watchdog_ms > 0)
        uv_timer_start(&program.watchdog, on_watchdog, 0, watchdog_ms);
    uv_timer_start(&program.status, on_status, STATUS_MS, STATUS_MS);
    uv_timer_start(&program.metrics, on_metrics, 0, 0);
}

/* --- the start --------------------------------------------------------------------------------------------
 */

static enum tt_status open_log(struct tt_daemon *daemon, struct tt_error *err)
{
    struct tt_log_options options = tt_reload_log_options(daemon->config);
    char host[256] = "";
    enum tt_status status = tt_log_open(&daemon->log, &options, err);

    if (status)
        return tt_fail_within(err, "log.file");
    gethostname(host, sizeof host - 1);
    tt_log(daemon->log, TT_LOG_INFO, "daemon_started", TT_STR("version", TT_VERSION), TT_STR("host", host),
           TT_STR("config", daemon->config_path));
    return TT_OK;
}

static enum tt_status open_socket(struct tt_daemon *daemon, struct tt_error *err)
{
    const struct tt_config *config = daemon->config;
    char path[PATH_MAX];

    if (mkdir(config->daemon.runtime_dir, 0755) < 0 && errno != EEXIST)
        return tt_fail_errno(err, TT_REFUSE, errno, "daemon.runtime_dir %s", config->daemon.runtime_dir);
    if (config->daemon.socket)
        snprintf(path, sizeof path, "%s", config->daemon.socket);
    else
        snprintf(path, sizeof path, "%s/control.sock", config->daemon.runtime_dir);
    return tt_control_open(&daemon->control, daemon->loop, path, tt_report_answer, daemon, err);
}

static enum tt_status make_supervisor(struct tt_daemon *daemon, struct tt_error *err)
{
    const struct tt_supervisor_hooks hooks = {.changed = on_slot_changed,
                                              .started = on_job_started,
                                              .ended = on_job_ended,
                                              .gone = on_workers_gone,
                                              .user = daemon};
    struct tt_device_choice *choices;
    char names[512];
    int count;
    enum tt_status status = tt_devices_choose(&choices, &count, daemon->config, "", err);

    if (status)
        return status;
    tt_devices_describe(choices, count, names, sizeof names);
    if (daemon->config->devices.automatic)
        tt_log(daemon->log, TT_LOG_INFO, "devices_chosen", TT_STR("devices", names));
    status = tt_supervisor_create(&daemon->supervisor, daemon->loop, daemon->config, daemon->log, choices,
                                  count, &hooks, err);
    free(choices);
    return status;
}

/* What a daemon that died has left. What cannot be ended now is tried again later. */
static void recover(struct tt_daemon *daemon)
{
    struct tt_recovery recovery;
    struct tt_error err = {.text = ""};

    tt_notify_extend(60000);
    tt_spool_hear(daemon->spool, tt_jobs_recovered, daemon);
    tt_spool_recover(daemon->spool, &recovery, &err);
    tt_spool_hear(daemon->spool, NULL, NULL);
    program.resumed = recovery.resumed;
    if (recovery.resumed + recovery.committed + recovery.failed + recovery.returned + recovery.damaged +
            recovery.unfinished >
        0)
        tt_log(daemon->log, TT_LOG_INFO, "spool_recovered", TT_INT("resumed", recovery.resumed),
               TT_INT("committed", recovery.committed), TT_INT("failed", recovery.failed),
               TT_INT("returned", recovery.returned), TT_INT("damaged", recovery.damaged),
               TT_INT("unfinished", recovery.unfinished));
    tt_jobs_adopt(daemon->jobs);
}

static enum tt_status start(struct tt_daemon *daemon, struct tt_error *err)
{
    enum tt_status status;

    /* Whoever started us may have left descriptors open: our children do not get them. */
    close_range(STDERR_FILENO + 1, ~0u, CLOSE_RANGE_CLOEXEC);
    daemon->began_ms = tt_clock_ms();
    daemon->loop = &program.loop;
    uv_loop_init(daemon->loop);
    listen_to_signals();
    make_timers();
    uv_idle_init(daemon->loop, &daemon->turn);
    daemon->turn.data = daemon;
    status = open_log(daemon, err);
    if (!status)
        status = tt_spool_open(&daemon->spool, daemon->config, NULL, err);
    if (!status)
        status = open_socket(daemon, err);
    if (!status)
        status = make_supervisor(daemon, err);
    if (!status)
        status =
            tt_hook_create(&daemon->hook, daemon->loop, daemon->log, &daemon->metrics.on_done_failures, err);
    if (!status)
        status = tt_jobs_create(&daemon->jobs, daemon, err);
    if (!status)
        status = tt_feed_create(&daemon->feed, daemon, err);
    if (status)
        return status;
    recover(daemon);
    start_timers();
    tt_supervisor_start(daemon->supervisor);
    tt_feed_start(daemon->feed);
    return TT_OK;
}

static void close_handle(uv_handle_t *handle, void *user)
{
    (void)user;
    if (!uv_is_closing(handle))
        uv_close(handle, NULL);
}

/* Takes apart whatever start has made of it. */
static void finish(struct tt_daemon *daemon)
{
    if (daemon->hook) {
        tt_hook_stop(daemon->hook);
        while (tt_hook_busy(daemon->hook) > 0)
            uv_run(daemon->loop, UV_RUN_ONCE);
    }
    tt_control_close(daemon->control);
    uv_walk(daemon->loop, close_handle, NULL);
    uv_run(daemon->loop, UV_RUN_DEFAULT);
    uv_loop_close(daemon->loop);
    if (daemon->feed)
        tt_report_metrics(daemon);
    tt_jobs_free(daemon->jobs);
    tt_feed_free(daemon->feed);
    tt_hook_free(daemon->hook);
    tt_supervisor_free(daemon->supervisor);
    tt_spool_close(daemon->spool);
}

static int run(const char *config_path, struct tt_config *config)
{
    struct tt_daemon *daemon = &program.daemon;
    struct tt_error err;
    enum tt_status status;

    daemon->config_path = config_path;
    daemon->config = config;
    status = start(daemon, &err);
    if (status == TT_OK)
        uv_run(daemon->loop, UV_RUN_DEFAULT);
    else if (daemon->log)
        tt_log(daemon->log, TT_LOG_ERROR, "daemon_refused", TT_STR("cause", err.text));
    else
        fprintf(stderr, "tiletrackd: %s\n", err.text);
    finish(daemon);
    if (status == TT_OK)
        tt_log(daemon->log, TT_LOG_INFO, "daemon_stopped",
               TT_INT("finished",
                      daemon->metrics.jobs[TT_METRIC_DONE] + daemon->metrics.jobs[TT_METRIC_TRUNCATED]),
               TT_INT("put_back", daemon->put_back),
               TT_INT("uptime_seconds", (tt_clock_ms() - daemon->began_ms) / 1000));
    tt_log_close(daemon->log);
    tt_config_free(daemon->config);
    return status == TT_OK ? EXIT_SUCCESS : status == TT_REFUSE ? EXIT_REFUSED : EXIT_FAILURE;
}

/* --- the command line -------------------------------------------------------------------------------------
 */

static const char usage[] =
    "Usage: tiletrackd [--config FILE] [--check | --print-config]\n"
    "\n"
    "Takes videos from the spool's incoming/ and puts their tracks into tracks/.\n"
    "\n"
    "  --config FILE    configuration, by default " TT_CONFIG_PATH "\n"
    "  --check          say whether the configuration stands, run nothing\n"
    "  --print-config   print the configuration with every default, run nothing\n"
    "  --version\n"
    "  --help\n"
    "\n"
    "SIGTERM: finish running jobs and end; SIGINT twice: end at once; SIGHUP: read the configuration again;\n"
    "SIGUSR1: open the log file again. More: man tiletrackd, man tiletrack.yaml\n";

struct arguments {
    const char *config;
    bool check, print;
};

/* -1: go on; otherwise the exit code. */
static int parse(int argc, char **argv, struct arguments *arguments)
{
    static const struct option options[] = {
        {"config", required_argument, NULL, 'c'}, {"check", no_argument, NULL, 'k'},
        {"print-config", no_argument, NULL, 'p'}, {"version", no_argument, NULL, 'v'},
        {"help", no_argument, NULL, 'h'},         {NULL, 0, NULL, 0}};
    int option;

    while ((option = getopt_long(argc, argv, "c:h", options, NULL)) != -1) {
        switch (option) {
        case 'c':
            arguments->config = optarg;
            break;
        case 'k':
            arguments->check = true;
            break;
        case 'p':
            arguments->print = true;
            break;
        case 'v':
            puts("tiletrackd " TT_VERSION);
            return EXIT_SUCCESS;
        case 'h':
            fputs(usage, stdout);
            return EXIT_SUCCESS;
        default:
            fputs("Try: tiletrackd --help\n", stderr);
            return 2;
        }
    }
    if (optind < argc) {
        fprintf(stderr, "tiletrackd: '%s' is no option\nTry: tiletrackd --help\n", argv[optind]);
        return 2;
    }
    return -1;
}

/* Programs and weights that the configuration needs. */
static enum tt_status check_installed(const struct tt_config *config, struct tt_error *err)
{
    static const char *const programs[] = {"tiletrack-worker", "tiletrack-decode"};
    char found[PATH_MAX];
    enum tt_status status = TT_OK;

    for (int i = 0; !status && i < 2; i++)
        status = tt_install_program(found, sizeof found, programs[i], err);
    if (!status && config->output.overlay) {
        status = tt_install_program(found, sizeof found, "tiletrack-encode", err);
        if (status)
            return tt_fail_within(err, "output.overlay: true, but there is nothing that encodes videos");
    }
    return status ? status : tt_install_model(found, sizeof found, config->tracker.model, err);
}

/* What can be known without starting anything. */
static int check(const char *path, const struct tt_config *config)
{
    struct tt_error err;

    if (check_installed(config, &err)) {
        fprintf(stderr, "tiletrackd: %s: %s\n", path, err.text);
        return EXIT_REFUSED;
    }
    printf("%s: good\n", path);
    return EXIT_SUCCESS;
}

int main(int argc, char **argv)
{
    static struct tt_config_problems problems;
    struct arguments arguments = {.config = TT_CONFIG_PATH};
    struct tt_config *config;
    struct tt_error err;
    int code = parse(argc, argv, &arguments);

    if (code >= 0)
        return code;
    if (tt_config_load(&config, arguments.config, &problems, &err)) {
        if (problems.count > 0)
            tt_config_problems_print(stderr, arguments.config, &problems);
        else
            fprintf(stderr, "tiletrackd: %s\n", err.text);
        return EXIT_REFUSED;
    }
    if (!arguments.check && !arguments.print)
        return run(arguments.config, config);
    if (arguments.print)
        tt_config_print(stdout, config);
    code = arguments.check ? check(arguments.config, config) : EXIT_SUCCESS;
    tt_config_free(config);
    return fflush(stdout) == 0 ? code : EXIT_FAILURE;
}

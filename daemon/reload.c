/* daemon/reload.c: swapping configurations.
 *
 * Invariants: the daemon's configuration is one that was read whole and that every part works by; options
 * that need a restart hold the values that the daemon started with. Fails: a file that is wrong changes
 * nothing.
 */
#include "daemon/reload.h"

#include "config/options.h"
#include "core/install.h"
#include "daemon/feed.h"
#include "daemon/report/notify.h"
#include "daemon/report/report.h"

#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

enum { OPTIONS_MAX = 256 };

struct tt_log_options tt_reload_log_options(const struct tt_config *config)
{
    return (struct tt_log_options){.program = "tiletrackd",
                                   .level = config->log.level,
                                   .format = config->log.format,
                                   .file = config->log.file,
                                   .fd = STDERR_FILENO,
                                   .burst = config->log.burst};
}

/* Gives the new configuration the value that holds, and the old one what it would have been: each still owns
 * what it frees. */
static void keep_value(const struct tt_option *option, struct tt_config *old, struct tt_config *made)
{
    if (option->type == TT_OPTION_DEVICES) {
        __typeof__(old->devices) devices = old->devices;

        old->devices = made->devices;
        made->devices = devices;
    } else { /* the others are paths */
        char **a = tt_option_at(option, old), **b = tt_option_at(option, made), *path = *a;

        *a = *b;
        *b = path;
    }
}

static void add_name(char *list, size_t bytes, const char *name)
{
    size_t used = strlen(list);

    snprintf(list + used, bytes - used, "%s%s", used ? ", " : "", name);
}

static bool begins(const char *path, const char *section)
{
    return strncmp(path, section, strlen(section)) == 0;
}

/* Whether workers must be set up anew: what SETUP says has changed. */
static bool concerns_workers(const struct tt_option *option)
{
    return strcmp(option->path, "tracker.model") == 0 || begins(option->path, "log.") ||
           strcmp(option->path, "workers.stall_ms") == 0;
}

/* Sorts the differences: names for the log line, and what has to be done. */
static bool take_over(struct tt_config *old, struct tt_config *made, char *changed, char *restart,
                      size_t bytes)
{
    const struct tt_option *options[OPTIONS_MAX];
    int count = tt_config_diff(old, made, options, OPTIONS_MAX);
    bool renew = false;

    for (int i = 0; i < count; i++) {
        bool needs_restart = (options[i]->flags & TT_OPTION_RESTART) != 0;

        add_name(needs_restart ? restart : changed, bytes, options[i]->path);
        if (needs_restart)
            keep_value(options[i], old, made);
        else
            renew |= concerns_workers(options[i]);
    }
    return renew;
}

static void refuse(struct tt_daemon *daemon, const char *cause, int problems)
{
    tt_log(daemon->log, TT_LOG_ERROR, "config_refused", TT_STR("cause", cause), TT_INT("problems", problems));
}

/* A model that is not installed would take every worker out of service. */
static enum tt_status check_model(const struct tt_config *old, const struct tt_config *made,
                                  struct tt_error *err)
{
    char path[PATH_MAX];

    if (strcmp(old->tracker.model, made->tracker.model) == 0 ||
        !tt_install_model(path, sizeof path, made->tracker.model, err))
        return TT_OK;
    return tt_fail_within(err, "tracker.model");
}

static enum tt_status load(struct tt_daemon *daemon, struct tt_config **made, int *problems_count,
                           struct tt_error *err)
{
    static struct tt_config_problems problems; /* too large for the stack */
    enum tt_status status = tt_config_load(made, daemon->config_path, &problems, err);

    *problems_count = problems.total;
    if (!status)
        status = check_model(daemon->config, *made, err);
    if (!status) {
        struct tt_log_options options = tt_reload_log_options(*made);

        status = tt_log_configure(daemon->log, &options, err);
    }
    return status;
}

void tt_reload(struct tt_daemon *daemon)
{
    struct tt_config *made = NULL, *old = daemon->config;
    char changed[2048] = "", restart[1024] = "", summary[256];
    struct tt_error err;
    int problems = 0;
    bool renew;

    tt_notify_reloading();
    if (load(daemon, &made, &problems, &err)) {
        refuse(daemon, err.text, problems ? problems : 1);
        tt_config_free(made);
    } else {
        renew = take_over(old, made, changed, restart, sizeof restart);
        daemon->config = made;
        daemon->metrics.reloads++;
        tt_spool_configure(daemon->spool, made);
        tt_supervisor_configure(daemon->supervisor, made, renew);
        tt_feed_configure(daemon->feed);
        tt_config_free(old);
        tt_log(daemon->log, TT_LOG_INFO, "config_reloaded", TT_STR("changed", changed),
               TT_STR("needs_restart", restart));
    }
    tt_report_summary(daemon, summary, sizeof summary);
    tt_notify_ready(summary);
}

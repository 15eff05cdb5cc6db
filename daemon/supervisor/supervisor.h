/* daemon/supervisor/supervisor.h: one worker process for each device slot: started, watched, ended, started
 * again.
 *
 *     DOWN -> STARTING -> IDLE <-> BUSY
 *       ^________|_________|_________|____ ENDING (asked to end, or being killed)
 *
 * It knows nothing of the spool: what a job's end means for its input is decided in daemon/jobs/jobs.c.
 */
#ifndef TT_DAEMON_SUPERVISOR_SUPERVISOR_H
#define TT_DAEMON_SUPERVISOR_SUPERVISOR_H

#include "config/config.h"
#include "core/log.h"
#include "core/message.h"
#include "daemon/jobs/blame.h"
#include "daemon/supervisor/devices.h"
#include "daemon/supervisor/link.h"

#include <uv.h>

struct tt_supervisor;

enum tt_slot_state {
    TT_SLOT_DOWN,     /* no process; one is started when the wait is over */
    TT_SLOT_STARTING, /* it opens and tests its device */
    TT_SLOT_IDLE,
    TT_SLOT_BUSY,
    TT_SLOT_ENDING,
    TT_SLOT_STATES
};

extern const char *const tt_slot_state_names[TT_SLOT_STATES];

/* Read only for others than the supervisor; `streak` and `user` (what runs on it, once it was started) are
 * others'. */
struct tt_slot {
    struct tt_supervisor *supervisor;
    int index;
    struct tt_device_choice choice;
    enum tt_slot_state state;
    struct tt_link *link; /* NULL: no process */
    uv_timer_t timer;     /* what the state waits for */
    int64_t due_ms;       /* of the timer, monotonic */
    int64_t heard_ms;     /* of the last message */
    int64_t ping;         /* number of the last */
    bool ping_open;

    bool out_of_service; /* takes no jobs until a try succeeds */
    char cause[TT_ERROR_TEXT_BYTES];
    char last_words[TT_ERROR_TEXT_BYTES]; /* of this process; "": none */
    bool expected;                        /* its end was wanted: nobody is blamed */
    bool refused;                         /* its hello said that the device cannot be used */
    int busy_tries;                       /* to open a device that is busy, in a row */
    bool renew;                           /* to be started anew when it is free */
    int deaths;                           /* since a job was finished */
    bool had_job;                         /* this process was given a job */
    int early_deaths;                     /* of processes that were not, in a row */
    int retirements;                      /* since a job was finished */

    char device[128]; /* of the last hello */
    char plan[64];
    int64_t start_ms;

    bool has_job;
    char job[TT_JOB_ID_BYTES];
    int64_t job_began_ms;
    enum tt_job_stage stage;
    int64_t frames, expected_frames;

    int64_t jobs_done, exits;
    struct tt_streak streak;
    void *user;
};

enum tt_report_kind {
    TT_REPORT_DONE,
    TT_REPORT_FAILED,
    TT_REPORT_LOST,    /* the process is gone */
    TT_REPORT_STOPPED, /* the process is gone, and it was we who wanted that: nobody is to blame */
};

/* How a job ended. Borrowed (until the hook returns). */
struct tt_report {
    enum tt_report_kind kind;
    const struct tt_message_done *done; /* DONE */
    enum tt_status status;              /* FAILED; LOST: TT_RESTART_WORKER */
    enum tt_failed_cause cause;         /* FAILED */
    const char *text;                   /* FAILED, LOST */
    const char *last_words;             /* "": none */
};

struct tt_supervisor_hooks {
    void (*changed)(void *user); /* a slot may be free now */
    void (*started)(void *user, struct tt_slot *slot, const struct tt_message_started *started);
    void (*ended)(void *user, struct tt_slot *slot, const struct tt_report *report);
    void (*gone)(void *user); /* after tt_supervisor_stop: no process is left */
    void *user;
};

/* choices: copied; config, log: borrowed (until tt_supervisor_free; config until tt_supervisor_configure).
 * Nothing is started yet. TT_REFUSE: tiletrack-worker is not installed. */
enum tt_status tt_supervisor_create(struct tt_supervisor **supervisor, uv_loop_t *loop,
                                    const struct tt_config *config, struct tt_log *log,
                                    const struct tt_device_choice *choices, int count,
                                    const struct tt_supervisor_hooks *hooks, struct tt_error *err);

/* After `gone` and a turn of the loop that closed the handles. Takes supervisor, which may be NULL. */
void tt_supervisor_free(struct tt_supervisor *supervisor);

/* Starts all workers. */
void tt_supervisor_start(struct tt_supervisor *supervisor);

/* A new configuration. renew: workers are to be set up anew, each as soon as it is free. */
void tt_supervisor_configure(struct tt_supervisor *supervisor, const struct tt_config *config, bool renew);

void tt_supervisor_reopen_logs(struct tt_supervisor *supervisor);

enum tt_stop {
    TT_STOP_DRAIN, /* running jobs are finished */
    TT_STOP_NOW,   /* running jobs are stopped; they keep their checkpoint */
    TT_STOP_KILL,
};

/* No process is started any more; those that are there end. Each next call may be stronger. */
void tt_supervisor_stop(struct tt_supervisor *supervisor, enum tt_stop how);

/* A device is being opened and tested. */
bool tt_supervisor_warms_up(const struct tt_supervisor *supervisor);

int tt_supervisor_count(const struct tt_supervisor *supervisor);
struct tt_slot *tt_supervisor_slot(struct tt_supervisor *supervisor, int index);

/* A process is there and its device can be used. */
bool tt_slot_in_service(const struct tt_slot *slot);
bool tt_slot_is_free(const struct tt_slot *slot);

/* Gives a free slot a job; its end comes as `ended`, whatever happens. TT_REFUSE: the job cannot be said in
 * the protocol; TT_RESTART_WORKER: the worker does not listen (it is ended); nothing was started then. */
enum tt_status tt_slot_run(struct tt_slot *slot, const struct tt_message_job *job, struct tt_error *err);

/* The decoder's limits, for JOB and PREFETCH alike. */
struct tt_message_decoder tt_decoder_message(void);

/* A hint; NULL drops the last one. */
void tt_slot_prefetch(struct tt_slot *slot, const struct tt_message_prefetch *prefetch);

void tt_slot_cancel(struct tt_slot *slot);

/* The device is sick: its worker ends, and is tried again later, each time later than before. */
void tt_slot_retire(struct tt_slot *slot, const char *cause);

#endif

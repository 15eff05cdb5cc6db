/* core/message.h: what tiletrackd (the supervisor) and a tiletrack-worker say to each other. This comment is
 * the whole protocol.
 *
 * Transport. One connected stream socket (socketpair, SOCK_STREAM), descriptor TT_MESSAGE_FD in the worker;
 * both directions in one. Log lines do not travel here: the worker writes them through core/log.h to the file
 * that SETUP names or to the stderr that it inherits.
 *
 * Form. A message is a header of 12 bytes and a body: magic (4), version (2), type (2), bytes in the body
 * (4). The body is the fields of the type's structure below, in their order and nothing else: a number is an
 * int64_t or a double (8 bytes), a text is its length (4 bytes), its bytes and a NUL. Numbers are in the
 * machine's byte order: both ends are on one machine. Texts hold no NUL and are at most TT_MESSAGE_TEXT_MAX
 * long; every number has its range (core/message.c holds the table). A message that is not exactly this is an
 * error of the sender (TT_RESTART_WORKER); another version is TT_REFUSE. Nobody goes on after either.
 *
 *     supervisor           worker
 *     SETUP ------------->            first, once: the slot's configuration
 *           <------------- HELLO      device opened and tested; or why not (status), and then it exits
 *     JOB --------------->            one at a time: only after DONE or FAILED of the one before
 *           <------------- STARTED    what runs; again where it begins anew with smaller tiles
 *           <------------- PROGRESS*  heartbeats
 *           <------------- WARNING*   about the job, for people
 *           <------------- DONE       results are whole and durable under their paths
 *           <------ or --- FAILED     no result was left behind; status says what to do
 *     PREFETCH ---------->            at any time: the job that will come next; a later one replaces it, an
 *                                     empty `id` drops it; never answered
 *     CANCEL ------------>            stop that job: FAILED (TT_FAILED_CANCELLED) follows, or DONE where it
 *                                     was done already; without effect for other ids
 *     PING -------------->
 *           <------------- PONG       from the work loop: while a job runs, between two pieces of work
 *     REOPEN_LOG -------->            open the log file by its name again
 *     SHUTDOWN ---------->            exit 0 when the job that runs is over; with `now`, stop it first
 *
 * Heartbeats. PROGRESS and PONG come from the work loop itself, between two pieces of work, never from a
 * thread of their own; at most one PROGRESS in SETUP's heartbeat_ms but where the stage changes. The longest
 * piece is the features of one window: the supervisor's stall limit must be longer than that.
 *
 * Jobs. `video`, `queries` and `mask` are opened for reading only; side-cars are not looked for. Results are
 * written under a temporary name beside each output's path, synced, renamed to it, and the directory is
 * synced; where several are wanted they get their names one directly after the other. An overlay that could
 * not be made is missing then, with a WARNING that says why and 0 output_bytes in DONE. What else the worker
 * writes are the files CHECKPOINT.state, .tiles and .times, where `checkpoint` is not empty: the job goes on
 * from them when it is given again with the same input, and they stay after DONE and FAILED (the supervisor
 * drops them with the job's directory, or where the input changed). `temporary_directory`, or else the first
 * output's, holds nameless files meanwhile.
 *
 * A job that names another model than the one before it makes the worker open that first, in place of the
 * other, and test the device with it where an answer is known. A model that is not there or is none is
 * TT_BAD_INPUT: who put the video there has asked for it.
 *
 * The deadline is deadline_ms plus deadline_frame_ms for every frame that the video is thought to have (the
 * header's count, or the frames done where that is more), from the JOB's arrival; 0 and 0: none. The work
 * loop keeps it (TT_FAILED_DEADLINE); a worker that hangs does not, so the supervisor keeps a later one.
 *
 * FAILED's status (core/status.h):
 *     TT_BAD_INPUT       the video, its queries or its mask
 *     TT_RETRY_LATER     the host is short of something, or smaller tiles do not help either
 *     TT_RESTART_WORKER  the device or this process is lost; the worker exits by itself with TT_WORKER_LOST
 *     TT_REFUSE          configuration: a directory that cannot be written, a decoder that does not fit
 *     TT_INTERRUPTED     only with `cause` CANCELLED, DEADLINE or SHUTDOWN
 * TT_SHRINK_TILE never travels: the worker halves its tiles (STARTED and HELLO tell them) and begins the job
 * anew, from its checkpoint if it has one.
 *
 * End. The worker exits (enum tt_worker_exit) after a SHUTDOWN, when the stream ends (the supervisor is gone:
 * a running job is stopped), at SIGTERM (as SHUTDOWN with `now`), and when the kernel tells it that its
 * parent died (SIGKILL). Its exit closes the stream; where something sent to it was not read, the supervisor
 * may read ECONNRESET instead of the end, behind all messages.
 */
#ifndef TT_CORE_MESSAGE_H
#define TT_CORE_MESSAGE_H

#include "core/job.h"
#include "core/status.h"

#include <stddef.h>
#include <stdint.h>

enum {
    TT_MESSAGE_FD = 3,
    TT_MESSAGE_MAGIC = 0x57545454, /* "TTTW" in memory */
    TT_MESSAGE_VERSION = 6,        /* raised with every change of this file */
    TT_MESSAGE_HEADER_BYTES = 12,
    TT_MESSAGE_TEXT_MAX = 4095, /* PATH_MAX without its NUL */
    TT_MESSAGE_BODY_MAX = 131072,
    TT_MESSAGE_BYTES_MAX = TT_MESSAGE_HEADER_BYTES + TT_MESSAGE_BODY_MAX,
    TT_MESSAGE_OUTPUTS = TT_JOB_MAX_OUTPUTS,
};

enum tt_message_type {
    TT_MESSAGE_NONE = 0,
    /* to the worker */
    TT_MESSAGE_SETUP,
    TT_MESSAGE_JOB,
    TT_MESSAGE_PREFETCH,
    TT_MESSAGE_CANCEL,
    TT_MESSAGE_PING,
    TT_MESSAGE_REOPEN_LOG,
    TT_MESSAGE_SHUTDOWN,
    /* from the worker */
    TT_MESSAGE_HELLO,
    TT_MESSAGE_STARTED,
    TT_MESSAGE_PROGRESS,
    TT_MESSAGE_WARNING,
    TT_MESSAGE_DONE,
    TT_MESSAGE_FAILED,
    TT_MESSAGE_PONG,
    TT_MESSAGE_TYPES
};

/* How a worker exits. */
enum tt_worker_exit {
    TT_WORKER_ENDED = 0,    /* asked to, or the supervisor is gone */
    TT_WORKER_UNUSABLE = 1, /* its HELLO says why it takes no jobs */
    TT_WORKER_PROTOCOL = 2, /* it was not started by tiletrackd, or what it was told makes no sense */
    TT_WORKER_LOST = 3, /* its device is lost: a FAILED with TT_RESTART_WORKER came before, if a job ran */
};

enum tt_selftest_outcome {
    TT_SELFTEST_NOT_RUN, /* the device could not be opened, or there is no known answer for this model */
    TT_SELFTEST_PASSED,
    TT_SELFTEST_WRONG, /* the device computes something else: takes no jobs (status is TT_REFUSE) */
};

enum tt_failed_cause { TT_FAILED_ERROR, TT_FAILED_CANCELLED, TT_FAILED_DEADLINE, TT_FAILED_SHUTDOWN };

/* In all of them: texts are never NULL ("" for none), and booleans are 0 or 1. */

struct tt_message_setup {
    const char *worker;   /* the slot's name, for logs: "gpu0", "cpu" */
    int64_t supervisor;   /* process id; if that is not the worker's parent, it is gone already */
    const char *backend;  /* "cpu", or the plug-in's name: "cuda" */
    const char *select;   /* CUDA: index, UUID or PCI address; "": the first */
    const char *arch;     /* CUDA: "sm_75" for a T4's path on a newer card; "": native */
    int64_t threads;      /* CPU; 0: all */
    int64_t precision;    /* enum tt_precision */
    int64_t tile_queries; /* 0: the plan decides */
    int64_t tile_frames;
    const char *model;    /* a model's name or an absolute path (core/install.h) */
    const char *lock;     /* a file that is locked (flock) while the worker holds the device; "": none */
    int64_t heartbeat_ms; /* least time between two PROGRESS of a stage */
    int64_t log_level;    /* enum tt_log_level */
    int64_t log_format;   /* enum tt_log_format */
    const char *log_file; /* "": the inherited stderr */
    int64_t log_burst;
};

/* tt_decoder_options; the decoder program is the one beside the worker. */
struct tt_message_decoder {
    int64_t threads, resize, max_pixels, max_frames, memory_bytes, cpu_seconds, stall_seconds;
};

struct tt_message_output {
    int64_t format; /* enum tt_output */
    const char *path;
};

struct tt_message_job {
    const char *id;
    const char *video;   /* its path */
    const char *queries; /* a query file, or "" */
    const char *mask;    /* a PNG, or "": then, without queries, the grid */
    const char *model;   /* a model's name or an absolute path; "": SETUP's */
    int64_t grid;
    int64_t frame;       /* of grid and mask points */
    int64_t max_frames;  /* 0: all */
    int64_t clip_frames; /* of a window; 0: TT_CLIP_FRAMES */
    int64_t overlap_frames;
    double occlusion_threshold;
    int64_t refine;  /* at the source's own resolution */
    int64_t outputs; /* of the following that are meant; the others are 0 and "" */
    struct tt_message_output output[TT_MESSAGE_OUTPUTS];
    const char *temporary_directory; /* "": the first output's */
    const char *checkpoint;          /* path that checkpoint files begin with; "": none are kept */
    int64_t checkpoint_ms;           /* least time between two; 0: one for every window */
    struct tt_message_decoder decoder;
    int64_t deadline_ms, deadline_frame_ms;
};

struct tt_message_prefetch {
    const char *id; /* of the job that will come */
    const char *video;
    struct tt_message_decoder decoder; /* as that JOB will have them */
};

struct tt_message_cancel {
    const char *id;
};

struct tt_message_ping { /* also PONG */
    int64_t serial;
};

struct tt_message_shutdown {
    int64_t now; /* 1: stop the job that runs (its checkpoint stays) */
};

struct tt_message_hello {
    int64_t pid;
    int64_t status;     /* TT_OK: takes jobs */
    const char *text;   /* why not */
    int64_t selftest;   /* enum tt_selftest_outcome */
    const char *device; /* JSON: tt_backend_ops.describe; "" where it could not be opened */
    const char *backend;
    const char *model; /* name */
    const char *model_sha256;
    int64_t precision; /* the plan's, as the following */
    int64_t tile_queries, tile_frames;
    int64_t memory_bytes;
    int64_t start_ms; /* from SETUP to here */
};

struct tt_message_started {
    const char *id;
    int64_t precision, tile_queries, tile_frames; /* the plan */
    int64_t width, height;                        /* of the video, as displayed */
    int64_t frames_hint;                          /* by the video's header; 0: unknown */
    int64_t queries;
    int64_t resumed_frames; /* that a checkpoint holds; 0: from the beginning */
    int64_t prefetched;     /* the decoder was ahead already */
};

struct tt_message_progress {
    const char *id;
    int64_t stage;    /* enum tt_job_stage */
    int64_t frames;   /* tracked (SUPPORTS, SKIPPING: decoded; REFINING: refined) */
    int64_t expected; /* 0: unknown */
};

struct tt_message_text { /* WARNING */
    const char *id;
    const char *text; /* one line */
};

struct tt_message_done {
    const char *id;
    int64_t frames, queries;
    int64_t truncated; /* the file ends early: its own outcome, not a plain success */
    int64_t resumed_frames;
    int64_t decode_ms; /* that tracking waited for frames */
    int64_t track_ms;
    int64_t refine_ms; /* 0: it was not refined */
    int64_t write_ms, total_ms;
    int64_t outputs;                          /* of the following */
    int64_t output_bytes[TT_MESSAGE_OUTPUTS]; /* 0: it could not be made; a WARNING said why */
};

struct tt_message_failed {
    const char *id;
    int64_t status; /* enum tt_status, never TT_OK or TT_SHRINK_TILE */
    int64_t cause;  /* enum tt_failed_cause */
    const char *text;
};

struct tt_message {
    enum tt_message_type type;
    union {
        struct tt_message_setup setup;
        struct tt_message_job job;
        struct tt_message_prefetch prefetch;
        struct tt_message_cancel cancel;
        struct tt_message_ping ping; /* PING and PONG */
        struct tt_message_shutdown shutdown;
        struct tt_message_hello hello;
        struct tt_message_started started;
        struct tt_message_progress progress;
        struct tt_message_text warning;
        struct tt_message_done done;
        struct tt_message_failed failed;
    } body;
};

extern const char *const tt_message_names[TT_MESSAGE_TYPES]; /* "setup", ... */

/* Writes a message as bytes. bytes: out, [TT_MESSAGE_BYTES_MAX]; *size: out. TT_REFUSE: a number out of its
 * range, a text that is too long. */
enum tt_status tt_message_encode(const struct tt_message *message, uint8_t *bytes, size_t *size,
                                 struct tt_error *err);

/* Bytes that came in and are not yet taken as messages. All zero is empty. */
struct tt_inbox {
    size_t begin, end;
    uint8_t bytes[2 * TT_MESSAGE_BYTES_MAX];
};

/* Where the next bytes may be read to, and how many; never 0 once tt_inbox_next gave TT_MESSAGE_NONE. Ends
 * what messages from this inbox borrow. */
size_t tt_inbox_room(struct tt_inbox *inbox, uint8_t **at);

/* So many were read there. */
void tt_inbox_filled(struct tt_inbox *inbox, size_t bytes);

/* Takes the next whole message; its type is TT_MESSAGE_NONE where none is whole yet. Its texts borrow the
 * inbox (until tt_inbox_room). TT_RESTART_WORKER: the bytes are no message; TT_REFUSE: one of another
 * version. Both are final. */
enum tt_status tt_inbox_next(struct tt_inbox *inbox, struct tt_message *message, struct tt_error *err);

/* For blocking descriptors. Send: TT_RESTART_WORKER when the other end is gone (SIGPIPE must be ignored).
 * Receive waits for a whole message; the type is TT_MESSAGE_NONE at the end of the stream (between messages;
 * in the middle of one it is an error). */
enum tt_status tt_message_send(int fd, const struct tt_message *message, struct tt_error *err);
enum tt_status tt_message_receive(int fd, struct tt_inbox *inbox, struct tt_message *message,
                                  struct tt_error *err);

#endif

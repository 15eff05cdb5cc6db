/* daemon/worker/serve.c: runs one job and tells of it.
 *
 * Everything is sent from the work loop, in the hooks of core/job. A job that finds device memory short
 * begins anew with smaller tiles, one that wants another model opens it first; any other failure goes to the
 * supervisor as it is. Exactly one DONE or FAILED is sent for a job.
 */
#include "daemon/worker/serve.h"

#include "daemon/worker/model.h"

#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>

struct serving {
    struct tt_worker *worker;
    const struct tt_message_job *order;
    int64_t since_ms;        /* the order's arrival */
    int64_t told_ms;         /* when the last PROGRESS was sent */
    enum tt_job_stage stage; /* that it told */
    bool prefetched;
    atomic_bool late; /* while it drew: the deadline costs the overlay alone */
};

static int64_t now_ms(void)
{
    struct timespec now;

    clock_gettime(CLOCK_MONOTONIC, &now);
    return (int64_t)now.tv_sec * 1000 + now.tv_nsec / 1000000;
}

void tt_worker_send(struct tt_worker *worker, const struct tt_message *message)
{
    struct tt_error err;

    if (tt_message_send(worker->fd, message, &err) == TT_OK)
        return;
    tt_log(worker->log, TT_LOG_ERROR, "supervisor_lost", TT_STR("cause", err.text));
    tt_control_give_up(worker->control, TT_WORKER_ENDED);
}

/* --- hooks ------------------------------------------------------------------------------------------------
 */

static bool is_late(const struct serving *s, const struct tt_job_progress *progress, int64_t now)
{
    const struct tt_message_job *order = s->order;
    int64_t frames = progress->frames > progress->expected ? progress->frames : progress->expected, limit;

    if (order->deadline_ms == 0 && order->deadline_frame_ms == 0)
        return false;
    if (__builtin_mul_overflow(frames, order->deadline_frame_ms, &limit) ||
        __builtin_add_overflow(limit, order->deadline_ms, &limit))
        return false;
    return now - s->since_ms > limit;
}

static void tell_progress(void *user, const struct tt_job_progress *progress)
{
    struct serving *s = user;
    struct tt_message message = {.type = TT_MESSAGE_PONG};
    int64_t now = now_ms();

    if (tt_control_ping(s->worker->control, &message.body.ping.serial))
        tt_worker_send(s->worker, &message);
    if (is_late(s, progress, now) && progress->stage == TT_JOB_DRAWING)
        atomic_store_explicit(&s->late, true, memory_order_relaxed);
    else if (is_late(s, progress, now))
        tt_control_stop_job(s->worker->control, TT_FAILED_DEADLINE);
    if (progress->stage == s->stage && now - s->told_ms < s->worker->setup->heartbeat_ms)
        return;
    s->stage = progress->stage;
    s->told_ms = now;
    message = (struct tt_message){.type = TT_MESSAGE_PROGRESS,
                                  .body.progress = {.id = s->order->id,
                                                    .stage = progress->stage,
                                                    .frames = progress->frames,
                                                    .expected = progress->expected}};
    tt_worker_send(s->worker, &message);
}

static void tell_started(void *user, const struct tt_job_start *start)
{
    struct serving *s = user;
    const struct tt_plan *plan = s->worker->slot.ops->plan(s->worker->slot.backend);
    struct tt_message message = {.type = TT_MESSAGE_STARTED,
                                 .body.started = {.id = s->order->id,
                                                  .precision = plan->precision,
                                                  .tile_queries = plan->tile.queries,
                                                  .tile_frames = plan->tile.frames,
                                                  .width = start->width,
                                                  .height = start->height,
                                                  .frames_hint = start->frames_expected,
                                                  .queries = start->queries,
                                                  .resumed_frames = start->resumed_frames,
                                                  .prefetched = s->prefetched}};

    tt_worker_send(s->worker, &message);
}

/* --- endings ----------------------------------------------------------------------------------------------
 */

static void tell_warnings(const struct serving *s, char *lines)
{
    for (char *line = lines, *next; line && *line; line = next) {
        struct tt_message message = {.type = TT_MESSAGE_WARNING,
                                     .body.warning = {.id = s->order->id, .text = line}};

        next = strchr(line, '\n');
        if (next)
            *next++ = '\0';
        tt_worker_send(s->worker, &message);
    }
}

static void tell_done(const struct serving *s, struct tt_job_report *report)
{
    struct tt_message message = {.type = TT_MESSAGE_DONE,
                                 .body.done = {.id = s->order->id,
                                               .frames = report->frames,
                                               .queries = report->queries,
                                               .truncated = report->truncated,
                                               .resumed_frames = report->resumed_frames,
                                               .decode_ms = report->decode_ms,
                                               .track_ms = report->track_ms,
                                               .refine_ms = report->refine_ms,
                                               .write_ms = report->write_ms,
                                               .total_ms = report->total_ms,
                                               .outputs = s->order->outputs}};

    for (int i = 0; i < s->order->outputs; i++) {
        struct stat info;

        if (stat(s->order->output[i].path, &info) == 0)
            message.body.done.output_bytes[i] = info.st_size;
    }
    tell_warnings(s, report->warnings);
    tt_worker_send(s->worker, &message);
}

static void tell_failed(const struct serving *s, enum tt_status status, enum tt_failed_cause cause,
                        const struct tt_error *err)
{
    static const char *const texts[] = {NULL, "cancelled", "the deadline has passed",
                                        "the worker shuts down"};
    struct tt_message message = {.type = TT_MESSAGE_FAILED,
                                 .body.failed = {.id = s->order->id,
                                                 .status = status,
                                                 .cause = cause,
                                                 .text = texts[cause] ? texts[cause] : err->text}};

    tt_worker_send(s->worker, &message);
}

/* --- the job ----------------------------------------------------------------------------------------------
 */

static const char *or_null(const char *text)
{
    return text[0] ? text : NULL;
}

static struct tt_job make_job(struct serving *s)
{
    const struct tt_message_job *order = s->order;
    struct tt_job job = {
        .video = order->video,
        .queries = or_null(order->queries),
        .mask = or_null(order->mask),
        .ignore_sidecars = true,
        .grid = (int)order->grid,
        .frame = order->frame,
        .max_frames = order->max_frames,
        .clip_frames = (int)order->clip_frames,
        .overlap_frames = (int)order->overlap_frames,
        .occlusion_threshold = (float)order->occlusion_threshold,
        .refine = order->refine,
        .outputs = (int)order->outputs,
        .decoder = tt_worker_decoder(&order->decoder, s->worker->stop_fd),
        .temporary_directory = or_null(order->temporary_directory),
        .checkpoint = or_null(order->checkpoint),
        .checkpoint_ms = order->checkpoint_ms,
        .progress = tell_progress,
        .started = tell_started,
        .user = s,
        .stop = tt_control_stop_flag(s->worker->control),
        .stop_drawing = &s->late,
    };

    for (int i = 0; i < job.outputs; i++)
        job.output[i] =
            (struct tt_job_output){(enum tt_output)order->output[i].format, order->output[i].path};
    return job;
}

/* Smaller tiles, so that the job can begin anew. */
static enum tt_status shrink(const struct serving *s, struct tt_error *err)
{
    struct tt_slot *slot = &s->worker->slot;
    enum tt_status status = tt_slot_shrink(slot, err);
    struct tt_tile tile;

    if (status)
        return status;
    tile = slot->ops->plan(slot->backend)->tile;
    tt_log(s->worker->log, TT_LOG_WARNING, "tile_shrunk", TT_STR("job", s->order->id),
           TT_INT("queries", tile.queries), TT_INT("frames", tile.frames));
    return TT_OK;
}

/* The job itself, begun anew with smaller tiles as long as the device's memory is short. */
static enum tt_status track(struct serving *s, struct tt_job_report *report, struct tt_error *err)
{
    struct tt_worker *worker = s->worker;
    struct tt_slot *slot = &worker->slot;
    struct tt_job job = make_job(s);
    enum tt_status status;

    tt_prefetch_take(worker->prefetch, s->order, &job.ahead);
    s->prefetched = job.ahead.decoder != NULL;
    do {
        status = tt_job_run(&job, slot->ops, slot->backend, slot->weights, report, err);
        job.ahead.decoder = NULL;
        s->prefetched = false;
    } while (status == TT_SHRINK_TILE && (status = shrink(s, err)) == TT_OK);
    return status;
}

enum tt_status tt_worker_serve(struct tt_worker *worker, const struct tt_message_job *order)
{
    struct serving s = {.worker = worker, .order = order, .since_ms = now_ms(), .stage = TT_JOB_STAGES};
    struct tt_job_report report;
    struct tt_error err = {.text = ""};
    enum tt_failed_cause cause;
    enum tt_status status;

    tell_progress(&s, &(struct tt_job_progress){.stage = TT_JOB_OPENING});
    status = tt_worker_use_model(worker, order, &err);
    if (status == TT_OK)
        status = track(&s, &report, &err);
    cause = tt_control_job_over(worker->control);
    if (status == TT_OK)
        tell_done(&s, &report);
    else
        tell_failed(&s, status, status == TT_INTERRUPTED ? cause : TT_FAILED_ERROR, &err);
    return status;
}

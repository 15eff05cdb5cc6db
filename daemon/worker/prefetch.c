/* daemon/worker/prefetch.c: one video opened ahead.
 *
 * Invariants: one mutex guards the request and what came of it; the thread opens without holding it. What was
 * opened belongs to the request that is current, or is closed. Never fails for the job: whoever finds nothing
 * here opens the video anew and learns what is wrong with it.
 */
#include "daemon/worker/prefetch.h"

#include <errno.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum state { IDLE, ASKED, OPENING, READY };

struct tt_prefetch {
    int stop_fd;
    struct tt_log *log;
    pthread_t thread;
    pthread_mutex_t mutex;
    pthread_cond_t changed;
    enum state state; /* of the current request */
    bool ends;
    char id[TT_MESSAGE_TEXT_MAX + 1], video[TT_MESSAGE_TEXT_MAX + 1];
    struct tt_message_decoder decoder;
    struct tt_job_decoder opened; /* READY: of the current request */
    struct stat file;             /* as it was before that */
};

struct tt_decoder_options tt_worker_decoder(const struct tt_message_decoder *decoder, int stop_fd)
{
    return (struct tt_decoder_options){
        .interrupt_fd = stop_fd,
        .threads = (int)decoder->threads,
        .resize = (enum tt_resize)decoder->resize,
        .max_pixels = decoder->max_pixels,
        .max_frames = decoder->max_frames,
        .memory_bytes = decoder->memory_bytes,
        .cpu_seconds = (int)decoder->cpu_seconds,
        .stall_seconds = (int)decoder->stall_seconds,
    };
}

/* Opens the current request's video. Called and returns with the mutex held. */
static void open_current(struct tt_prefetch *p)
{
    struct tt_decoder_options options = tt_worker_decoder(&p->decoder, p->stop_fd);
    struct tt_job_decoder opened = {0};
    char video[sizeof p->video];
    struct tt_error err;
    enum tt_status status;
    struct stat file = {0};

    memcpy(video, p->video, sizeof video);
    p->state = OPENING;
    pthread_mutex_unlock(&p->mutex);
    if (stat(video, &file) < 0) /* before the decoder looks: what changes later is noticed */
        status = tt_fail_errno(&err, TT_BAD_INPUT, errno, "%s", video);
    else
        status = tt_job_open_ahead(&opened, video, &options, &err);
    pthread_mutex_lock(&p->mutex);
    if (p->state != OPENING) { /* nobody wants it any more */
        tt_job_close_ahead(&opened);
        return;
    }
    if (status && status != TT_INTERRUPTED)
        tt_log(p->log, TT_LOG_DEBUG, "prefetch_failed", TT_STR("job", p->id), TT_STR("cause", err.text));
    p->opened = opened;
    p->file = file;
    p->state = opened.decoder ? READY : IDLE;
    pthread_cond_broadcast(&p->changed);
}

static void *run(void *user)
{
    struct tt_prefetch *p = user;

    pthread_mutex_lock(&p->mutex);
    while (!p->ends)
        if (p->state == ASKED)
            open_current(p);
        else
            pthread_cond_wait(&p->changed, &p->mutex);
    pthread_mutex_unlock(&p->mutex);
    return NULL;
}

enum tt_status tt_prefetch_start(struct tt_prefetch **prefetch, int stop_fd, struct tt_log *log,
                                 struct tt_error *err)
{
    struct tt_prefetch *made = calloc(1, sizeof *made);
    int rc;

    if (!made)
        return tt_fail_errno(err, TT_RETRY_LATER, ENOMEM, "prefetching");
    made->stop_fd = stop_fd;
    made->log = log;
    pthread_mutex_init(&made->mutex, NULL);
    pthread_cond_init(&made->changed, NULL);
    rc = pthread_create(&made->thread, NULL, run, made);
    if (rc) {
        free(made);
        return tt_fail_errno(err, TT_RETRY_LATER, rc, "prefetching: thread");
    }
    *prefetch = made;
    return TT_OK;
}

void tt_prefetch_ask(struct tt_prefetch *p, const struct tt_message_prefetch *wanted)
{
    struct tt_job_decoder dropped = {0};

    pthread_mutex_lock(&p->mutex);
    if (p->state == READY)
        dropped = p->opened;
    p->opened.decoder = NULL;
    strcpy(p->id, wanted->id);
    strcpy(p->video, wanted->video);
    p->decoder = wanted->decoder;
    p->state = wanted->id[0] ? ASKED : IDLE;
    pthread_cond_broadcast(&p->changed);
    pthread_mutex_unlock(&p->mutex);
    tt_job_close_ahead(&dropped);
}

/* The file behind the path is the one that was opened, and has not changed. */
static bool is_same_file(const struct tt_prefetch *p)
{
    struct stat now;

    return stat(p->video, &now) == 0 && now.st_dev == p->file.st_dev && now.st_ino == p->file.st_ino &&
           now.st_size == p->file.st_size && now.st_mtim.tv_sec == p->file.st_mtim.tv_sec &&
           now.st_mtim.tv_nsec == p->file.st_mtim.tv_nsec;
}

void tt_prefetch_take(struct tt_prefetch *p, const struct tt_message_job *job, struct tt_job_decoder *ahead)
{
    struct tt_job_decoder unfit = {0};

    *ahead = (struct tt_job_decoder){0};
    pthread_mutex_lock(&p->mutex);
    if (strcmp(p->id, job->id) == 0 && strcmp(p->video, job->video) == 0 &&
        memcmp(&p->decoder, &job->decoder, sizeof p->decoder) == 0) {
        while (p->state == ASKED || p->state == OPENING)
            pthread_cond_wait(&p->changed, &p->mutex);
        if (p->state == READY && is_same_file(p))
            *ahead = p->opened;
        else if (p->state == READY)
            unfit = p->opened;
        p->opened.decoder = NULL;
        p->state = IDLE;
    }
    pthread_mutex_unlock(&p->mutex);
    tt_job_close_ahead(&unfit);
}

void tt_prefetch_stop(struct tt_prefetch *p)
{
    if (!p)
        return;
    pthread_mutex_lock(&p->mutex);
    p->ends = true;
    pthread_cond_broadcast(&p->changed);
    pthread_mutex_unlock(&p->mutex);
    pthread_join(p->thread, NULL);
    tt_job_close_ahead(&p->opened);
    pthread_cond_destroy(&p->changed);
    pthread_mutex_destroy(&p->mutex);
    free(p);
}

/* daemon/worker/model.c: another model for a job.
 *
 * Invariants: the device holds one model at a time, so its memory is what the plan of that model says; the
 * device's lock, taken with the first one, stays. Whatever model is opened passes the self-test first, where
 * an answer is known. Fails as the header says.
 */
#include "daemon/worker/model.h"

#include "core/install.h"

#include <limits.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

static int64_t now_ms(void)
{
    struct timespec now;

    clock_gettime(CLOCK_MONOTONIC, &now);
    return (int64_t)now.tv_sec * 1000 + now.tv_nsec / 1000000;
}

/* What a failure to open means for the job. own: the slot's own model, which worked when the worker began. */
static enum tt_status judge(enum tt_status status, enum tt_selftest_outcome selftest, bool own)
{
    if (status == TT_REFUSE)
        return own || selftest == TT_SELFTEST_WRONG ? TT_RESTART_WORKER : TT_BAD_INPUT;
    return status == TT_SHRINK_TILE ? TT_RETRY_LATER : status;
}

static enum tt_status open_model(struct tt_worker *worker, const char *model, struct tt_error *err)
{
    struct tt_message_setup setup = *worker->setup;
    enum tt_selftest_outcome selftest;
    enum tt_status status;

    setup.model = model;
    setup.lock = ""; /* held since the first */
    tt_slot_close(&worker->slot);
    worker->model[0] = '\0';
    status = tt_slot_open(&worker->slot, &setup, tt_control_stop_flag(worker->control), &selftest, err);
    if (status == TT_OK) {
        snprintf(worker->model, sizeof worker->model, "%s", model);
        return TT_OK;
    }
    tt_fail_within(err, "model %s", model);
    return err->status = judge(status, selftest, strcmp(model, worker->setup->model) == 0);
}

enum tt_status tt_worker_use_model(struct tt_worker *worker, const struct tt_message_job *order,
                                   struct tt_error *err)
{
    const char *model = order->model[0] ? order->model : worker->setup->model;
    int64_t since_ms = now_ms();
    char path[PATH_MAX];
    enum tt_status status;

    if (strcmp(model, worker->model) == 0)
        return TT_OK;
    if (tt_install_model(path, sizeof path, model, err))
        return err->status = TT_BAD_INPUT;
    status = open_model(worker, model, err);
    if (status == TT_OK)
        tt_log(worker->log, TT_LOG_INFO, "model_opened", TT_STR("job", order->id), TT_STR("model", model),
               TT_INT("open_ms", now_ms() - since_ms));
    return status;
}

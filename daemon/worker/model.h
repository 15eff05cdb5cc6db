/* daemon/worker/model.h: the model that a job wants, in the worker's slot. */
#ifndef TT_DAEMON_WORKER_MODEL_H
#define TT_DAEMON_WORKER_MODEL_H

#include "daemon/worker/serve.h"

/* Opens the order's model in place of the one that is open, if that is another. On failure none may be open
 * any more; the next call opens what it needs. TT_BAD_INPUT: there is no such model, or it is none;
 * TT_RETRY_LATER: the device has too little memory for it; TT_RESTART_WORKER: the device computes wrongly
 * with it, or does not come back; otherwise the backend's status. */
enum tt_status tt_worker_use_model(struct tt_worker *worker, const struct tt_message_job *order,
                                   struct tt_error *err);

#endif

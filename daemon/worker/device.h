/* daemon/worker/device.h: the device of a worker's slot: locked, opened, tested, and opened again with
 * smaller tiles. */
#ifndef TT_DAEMON_WORKER_DEVICE_H
#define TT_DAEMON_WORKER_DEVICE_H

#include "core/backend.h"
#include "core/message.h"

struct tt_slot {
    const struct tt_backend_ops *ops;
    struct tt_weights *weights; /* owns */
    struct tt_backend *backend; /* owns; NULL: could not be opened (again) */
    struct tt_backend_options options;
    bool shrunk; /* device memory was short when it was opened: options.tile is smaller than was asked for */
};

/* Locks the device, maps the weights, compares the self-test's answer, opens the backend, with smaller tiles
 * where device memory is short. setup: borrows (as
 * long as the slot is used). stop: ends the self-test. *selftest: out. On failure the slot is empty:
 * TT_REFUSE with TT_SELFTEST_WRONG where the device computes wrongly, TT_RETRY_LATER where it is locked,
 * otherwise the backend's status. The lock is kept until the process ends. */
enum tt_status tt_slot_open(struct tt_slot *slot, const struct tt_message_setup *setup,
                            const atomic_bool *stop, enum tt_selftest_outcome *selftest,
                            struct tt_error *err);

/* Device memory was short: opens the backend again with tiles of half the size, or half of that.
 * TT_RETRY_LATER: there are no smaller ones (the backend is still there). TT_RESTART_WORKER: it cannot be
 * opened any more. */
enum tt_status tt_slot_shrink(struct tt_slot *slot, struct tt_error *err);

void tt_slot_close(struct tt_slot *slot);

#endif

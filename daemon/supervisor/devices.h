/* daemon/supervisor/devices.h: from the section `devices` of the configuration to one slot for each worker.
 */
#ifndef TT_DAEMON_SUPERVISOR_DEVICES_H
#define TT_DAEMON_SUPERVISOR_DEVICES_H

#include "config/config.h"
#include "core/status.h"

#include <stdbool.h>
#include <stdint.h>

/* What a worker is set up with. */
struct tt_device_choice {
    char name[64];   /* for logs, metrics and lock files: "gpu0", "cpu" */
    char select[64]; /* of a GPU: index, UUID or PCI address */
    bool gpu;
    int64_t threads; /* of the CPU; 0: all */
    enum tt_precision precision;
    bool sm_75;                        /* a T4's path on a newer GPU */
    int64_t tile_queries, tile_frames; /* 0: the plan decides */
};

/* *choices: owned by the caller (free), [*count], at least one. `auto` takes every GPU that the driver lists
 * below root ("" for this machine) and whose device file is there, or the CPU where there is none. Devices
 * that are named are not looked for: the worker says whether they are there. TT_REFUSE: two devices are the
 * same; TT_RETRY_LATER: memory. */
enum tt_status tt_devices_choose(struct tt_device_choice **choices, int *count,
                                 const struct tt_config *config, const char *root, struct tt_error *err);

/* "gpu0, gpu1": for one log line. text: out, [bytes]. */
void tt_devices_describe(const struct tt_device_choice *choices, int count, char *text, size_t bytes);

#endif

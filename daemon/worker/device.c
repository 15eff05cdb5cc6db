/* daemon/worker/device.c: opens what SETUP names, never anything else.
 *
 * The weights are mapped read-only and shared, so all workers of a machine use the same pages; what a backend
 * copies from them (the CPU's repacked layouts, a GPU's memory) is the worker's own.
 */
#include "daemon/worker/device.h"

#include "core/install.h"
#include "core/selftest.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <string.h>
#include <sys/file.h>
#include <unistd.h>

/* A plug-in's name becomes part of a file's. */
static enum tt_status find_backend(const struct tt_backend_ops **ops, const char *name, struct tt_error *err)
{
    if (strcmp(name, "cpu") == 0) {
        *ops = &tt_backend_cpu;
        return TT_OK;
    }
    if (!name[0] || name[strspn(name, "abcdefghijklmnopqrstuvwxyz0123456789_")])
        return tt_fail(err, TT_REFUSE, "no backend is called \"%s\"", name);
    return tt_backend_load(ops, name, err);
}

/* The descriptor stays open, and the lock held, until the process ends. */
static enum tt_status lock_device(const char *path, struct tt_error *err)
{
    enum tt_status status = TT_OK;
    int fd;

    if (!path[0])
        return TT_OK;
    fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0640);
    if (fd < 0)
        return tt_fail_errno(err, tt_status_of_errno(errno), errno, "lock %s", path);
    if (flock(fd, LOCK_EX | LOCK_NB) < 0) {
        status = errno == EWOULDBLOCK
                     ? tt_fail(err, TT_RETRY_LATER, "another worker holds the device (%s)", path)
                     : tt_fail_errno(err, tt_status_of_errno(errno), errno, "lock %s", path);
        close(fd);
    }
    return status;
}

static enum tt_status test_device(const struct tt_slot *slot, enum tt_selftest_outcome *selftest,
                                  struct tt_error *err)
{
    struct tt_selftest_report report = {0};
    enum tt_status status = tt_selftest_run(slot->ops, &slot->options, slot->weights, &report, err);

    if (status == TT_OK)
        *selftest = TT_SELFTEST_PASSED;
    else if (status == TT_REFUSE && report.position_bound > 0) /* it came to an answer */
        *selftest = TT_SELFTEST_WRONG;
    return status;
}

/* The self-test, then the backend that stays; with smaller tiles as long as device memory is short. */
static enum tt_status open_tested(struct tt_slot *slot, enum tt_selftest_outcome *selftest,
                                  struct tt_error *err)
{
    enum tt_status status;

    for (;;) {
        status = test_device(slot, selftest, err);
        if (!status)
            status = slot->ops->open(&slot->backend, &slot->options, slot->weights, err);
        if (status != TT_SHRINK_TILE)
            return status;
        if (!tt_tile_shrink(&slot->options.tile))
            return tt_fail(err, TT_RETRY_LATER, "device memory is short even for the smallest tiles");
        slot->shrunk = true;
    }
}

enum tt_status tt_slot_open(struct tt_slot *slot, const struct tt_message_setup *setup,
                            const atomic_bool *stop, enum tt_selftest_outcome *selftest, struct tt_error *err)
{
    struct tt_slot opened = {
        .options = {.tile = {.queries = (int)setup->tile_queries, .frames = (int)setup->tile_frames},
                    .precision = (enum tt_precision)setup->precision,
                    .threads = (int)setup->threads,
                    .arch = setup->arch[0] ? setup->arch : NULL,
                    .select = setup->select[0] ? setup->select : NULL,
                    .stop = stop}};
    char path[PATH_MAX];
    enum tt_status status = lock_device(setup->lock, err);

    *selftest = TT_SELFTEST_NOT_RUN;
    if (!status)
        status = find_backend(&opened.ops, setup->backend, err);
    if (!status)
        status = tt_install_model(path, sizeof path, setup->model, err);
    if (!status)
        status = tt_weights_open(&opened.weights, path, err);
    if (!status)
        status = open_tested(&opened, selftest, err);
    if (status)
        tt_slot_close(&opened);
    else
        *slot = opened;
    return status;
}

enum tt_status tt_slot_shrink(struct tt_slot *slot, struct tt_error *err)
{
    struct tt_tile tile = slot->ops->plan(slot->backend)->tile;
    enum tt_status status;

    if (tile.queries <= 1 && tile.frames <= 1)
        return tt_fail(err, TT_RETRY_LATER, "device memory is short even for the smallest tiles");
    slot->ops->close(slot->backend);
    slot->backend = NULL;
    slot->options.tile = tile;
    do {
        tt_tile_shrink(&slot->options.tile);
        tile = slot->options.tile;
        status = slot->ops->open(&slot->backend, &slot->options, slot->weights, err);
    } while (status == TT_SHRINK_TILE && (tile.queries > 1 || tile.frames > 1));
    if (!status)
        return TT_OK;
    tt_fail_within(err, "opening the device with tiles of %d query points and %d frames", tile.queries,
                   tile.frames);
    return err->status = TT_RESTART_WORKER;
}

void tt_slot_close(struct tt_slot *slot)
{
    if (slot->backend)
        slot->ops->close(slot->backend);
    if (slot->weights)
        tt_weights_close(slot->weights);
    memset(slot, 0, sizeof *slot);
}

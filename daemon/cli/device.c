/* daemon/cli/device.c: opens the weights and the backend that a command asked for.
 *
 * A backend asked for by name that cannot be had is an error, never a silent change to another; only `auto`
 * chooses.
 */
#include "daemon/cli/cli.h"

#include "core/install.h"

#include <limits.h>
#include <string.h>

enum tt_status cli_backend_choose(const struct tt_backend_ops **ops, const char *name, struct tt_error *err)
{
    bool automatic = strcmp(name, "auto") == 0;

    if (strcmp(name, "cuda") == 0 || (automatic && tt_backend_cuda_driver_present())) {
        enum tt_status status = tt_backend_load(ops, "cuda", err);

        if (status == TT_OK || !automatic)
            return status;
    }
    *ops = &tt_backend_cpu;
    return TT_OK;
}

enum tt_status cli_weights_open(struct tt_weights **weights, const char *model, struct tt_error *err)
{
    char path[PATH_MAX];
    enum tt_status status = tt_install_model(path, sizeof path, model, err);

    return status ? status : tt_weights_open(weights, path, err);
}

enum tt_status cli_device_open(struct cli_device *device, const struct cli_device_options *options,
                               struct tt_error *err)
{
    struct tt_backend_options backend = {.threads = options->threads, .stop = options->stop};
    struct cli_device opened = {0};
    enum tt_status status;

    status = cli_backend_choose(&opened.ops, options->backend, err);
    if (status)
        return status;
    status = cli_weights_open(&opened.weights, options->model, err);
    if (status)
        return status;
    status = opened.ops->open(&opened.backend, &backend, opened.weights, err);
    if (status) {
        tt_weights_close(opened.weights);
        return status;
    }
    *device = opened;
    return TT_OK;
}

void cli_device_close(struct cli_device *device)
{
    if (device->backend)
        device->ops->close(device->backend);
    if (device->weights)
        tt_weights_close(device->weights);
    memset(device, 0, sizeof *device);
}

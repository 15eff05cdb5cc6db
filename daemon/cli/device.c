/* daemon/cli/device.c: opens the weights and the backend that a command asked for.
 *
 * A device asked for by name that cannot be had is an error, never a silent change to another; only `auto`
 * chooses. Where device memory is short the tiles become smaller, and standard error says so.
 */
#include "daemon/cli/cli.h"

#include "core/install.h"

#include <limits.h>
#include <stdio.h>
#include <string.h>

static bool is_one_of(const char *arg, const char *a, const char *b)
{
    return strcmp(arg, a) == 0 || strcmp(arg, b) == 0;
}

static bool is_device(const char *arg)
{
    return is_one_of(arg, "auto", "cpu") || strcmp(arg, "cuda") == 0 || strncmp(arg, "MIG-", 4) == 0 ||
           (strncmp(arg, "cuda:", 5) == 0 && arg[5]);
}

bool cli_device_take(struct cli_device_options *options, int option, const char *arg)
{
    int64_t n = 0;
    bool ok = true;

    switch (option) {
    case CLI_OPT_DEVICE:
        options->device = arg;
        return is_device(arg);
    case CLI_OPT_MODEL:
        options->model = arg;
        return true;
    case CLI_OPT_PRECISION:
        options->precision = arg;
        return is_one_of(arg, "fp16", "fp32");
    case CLI_OPT_ARCH:
        options->arch = strcmp(arg, "native") ? arg : NULL;
        return is_one_of(arg, "native", "sm_75");
    case CLI_OPT_TILE_QUERIES:
        ok = cli_parse_int(arg, 1, 4096, &n);
        options->tile.queries = (int)n;
        return ok;
    case CLI_OPT_TILE_FRAMES:
        ok = cli_parse_int(arg, 1, TT_CLIP_FRAMES, &n);
        options->tile.frames = (int)n;
        return ok;
    default:
        ok = cli_parse_int(arg, 1, 1024, &n);
        options->threads = (int)n;
        return ok;
    }
}

enum tt_status cli_backend_choose(const struct tt_backend_ops **ops, struct tt_backend_options *backend,
                                  const struct cli_device_options *options, struct tt_error *err)
{
    const char *device = options->device;
    bool automatic = strcmp(device, "auto") == 0, cpu = strcmp(device, "cpu") == 0;
    const char *precision = options->precision;

    if (automatic)
        cpu = !tt_backend_cuda_driver_present() || tt_backend_load(ops, "cuda", err);
    else if (!cpu && tt_backend_load(ops, "cuda", err))
        return err->status;
    if (cpu)
        *ops = &tt_backend_cpu;
    if (!precision)
        precision = cpu ? "fp32" : "fp16";
    *backend = (struct tt_backend_options){.tile = options->tile,
                                           .precision = strcmp(precision, "fp16") ? TT_FP32 : TT_FP16,
                                           .threads = options->threads,
                                           .arch = cpu ? NULL : options->arch,
                                           .stop = options->stop};
    if (strncmp(device, "cuda:", 5) == 0)
        backend->select = device + 5;
    else if (strncmp(device, "MIG-", 4) == 0)
        backend->select = device;
    return TT_OK;
}

enum tt_status cli_weights_open(struct tt_weights **weights, const char *model, struct tt_error *err)
{
    char path[PATH_MAX];
    enum tt_status status = tt_install_model(path, sizeof path, model, err);

    return status ? status : tt_weights_open(weights, path, err);
}

/* Tries smaller tiles as long as device memory is short. */
static enum tt_status open_backend(struct cli_device *device, struct tt_error *err)
{
    enum tt_status status;

    for (;;) {
        status = device->ops->open(&device->backend, &device->options, device->weights, err);
        if (status != TT_SHRINK_TILE)
            return status;
        if (!tt_tile_shrink(&device->options.tile))
            return tt_fail(err, TT_RETRY_LATER, "device memory is short even for the smallest tiles");
        fprintf(stderr, "tiletrack: device memory is short; trying tiles of %d query points and %d frames\n",
                device->options.tile.queries, device->options.tile.frames);
    }
}

enum tt_status cli_device_open(struct cli_device *device, const struct cli_device_options *options,
                               struct tt_error *err)
{
    struct cli_device opened = {0};
    enum tt_status status = cli_backend_choose(&opened.ops, &opened.options, options, err);

    if (!status)
        status = cli_weights_open(&opened.weights, options->model, err);
    if (!status)
        status = open_backend(&opened, err);
    if (status)
        cli_device_close(&opened);
    else
        *device = opened;
    return status;
}

enum tt_status cli_device_shrink(struct cli_device *device, struct tt_error *err)
{
    device->options.tile = device->ops->plan(device->backend)->tile;
    device->ops->close(device->backend);
    device->backend = NULL;
    if (!tt_tile_shrink(&device->options.tile))
        return tt_fail(err, TT_RETRY_LATER, "device memory is short even for the smallest tiles");
    fprintf(stderr, "tiletrack: device memory is short; trying tiles of %d query points and %d frames\n",
            device->options.tile.queries, device->options.tile.frames);
    return open_backend(device, err);
}

void cli_device_close(struct cli_device *device)
{
    if (device->backend)
        device->ops->close(device->backend);
    if (device->weights)
        tt_weights_close(device->weights);
    memset(device, 0, sizeof *device);
}

/* core/backend.c: loading of backend plug-ins.
 *
 * A plug-in stays loaded for the life of the process (a CUDA context cannot be unloaded cleanly). Fails with
 * TT_REFUSE; nothing is loaded half.
 */
#include "core/backend.h"

#include "core/install.h"

#include <dlfcn.h>
#include <limits.h>
#include <stdio.h>
#include <unistd.h>

enum tt_status tt_backend_load(const struct tt_backend_ops **ops, const char *name, struct tt_error *err)
{
    char file[NAME_MAX], path[PATH_MAX];
    const struct tt_plugin *plugin;
    enum tt_status status;
    void *library;

    snprintf(file, sizeof file, "tiletrack-%s.so", name);
    status = tt_install_plugin(path, sizeof path, file, err);
    if (status)
        return tt_fail_within(err, "backend %s", name);
    library = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    if (!library)
        return tt_fail(err, TT_REFUSE, "backend %s: %s", name, dlerror());
    plugin = dlsym(library, TT_PLUGIN_SYMBOL);
    if (!plugin || plugin->abi != TT_PLUGIN_ABI) {
        dlclose(library);
        return tt_fail(err, TT_REFUSE,
                       "backend %s: %s was made for another version of tiletrack; reinstall it", name, path);
    }
    *ops = plugin->ops;
    return TT_OK;
}

bool tt_backend_cuda_driver_present(void)
{
    return access("/dev/nvidiactl", F_OK) == 0 || access("/proc/driver/nvidia/version", F_OK) == 0;
}

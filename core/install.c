/* core/install.c: finds the product's own files relative to /proc/self/exe.
 *
 * Fails with TT_REFUSE and the list of places that were searched; never looks into the working directory or
 * the environment, so that what runs is what was installed.
 */
#include "core/install.h"

#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

static enum tt_status program_directory(char directory[PATH_MAX], struct tt_error *err)
{
    ssize_t length = readlink("/proc/self/exe", directory, PATH_MAX - 1);
    char *slash;

    if (length < 0)
        return tt_fail_errno(err, TT_REFUSE, errno, "cannot find the running program: /proc/self/exe");
    directory[length] = 0;
    slash = strrchr(directory, '/');
    if (slash)
        *slash = 0;
    return TT_OK;
}

/* Tries DIRECTORY/places[i]/name in turn. */
static enum tt_status find_file(char *path, size_t bytes, const char *const *places, const char *name,
                                struct tt_error *err)
{
    char directory[PATH_MAX], candidate[2 * PATH_MAX], searched[TT_ERROR_TEXT_BYTES] = "";
    size_t used = 0;
    enum tt_status status = program_directory(directory, err);

    if (status)
        return status;
    for (; *places; places++) {
        int length = snprintf(candidate, sizeof candidate, "%s/%s/%s", directory, *places, name);

        if (length > 0 && (size_t)length < sizeof candidate && (size_t)length < bytes &&
            access(candidate, R_OK) == 0) {
            memcpy(path, candidate, (size_t)length + 1);
            return TT_OK;
        }
        if (used < sizeof searched)
            used += (size_t)snprintf(searched + used, sizeof searched - used, "%s%s", used ? ", " : "",
                                     candidate);
    }
    return tt_fail(err, TT_REFUSE, "%s is not installed; searched %s", name, searched);
}

enum tt_status tt_install_program(char *path, size_t bytes, const char *name, struct tt_error *err)
{
    static const char *const places[] = {".", "../bin", "../lib/tiletrack", NULL};

    return find_file(path, bytes, places, name, err);
}

enum tt_status tt_install_plugin(char *path, size_t bytes, const char *name, struct tt_error *err)
{
    static const char *const places[] = {".", "../lib", "../lib/tiletrack", NULL};

    return find_file(path, bytes, places, name, err);
}

enum tt_status tt_install_model(char *path, size_t bytes, const char *model, struct tt_error *err)
{
    static const char *const places[] = {"../share/tiletrack/models", "../../share/tiletrack/models",
                                         "../../models", NULL};
    const char *ending = strrchr(model, '.');
    char name[NAME_MAX + 1];

    if (strchr(model, '/') || (ending && strcmp(ending, ".safetensors") == 0)) {
        if (access(model, R_OK) < 0)
            return tt_fail_errno(err, TT_REFUSE, errno, "model file %s", model);
        if ((size_t)snprintf(path, bytes, "%s", model) >= bytes)
            return tt_fail(err, TT_REFUSE, "model file %s: the path is too long", model);
        return TT_OK;
    }
    if ((size_t)snprintf(name, sizeof name, "%s.safetensors", model) >= sizeof name)
        return tt_fail(err, TT_REFUSE, "model name %s is too long", model);
    return find_file(path, bytes, places, name, err);
}

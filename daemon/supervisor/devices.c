/* daemon/supervisor/devices.c: what `devices: auto` finds, and names for slots.
 *
 * The driver's files are read instead of its library: the supervisor links no CUDA. A GPU that a container
 * was not given has a directory in /proc/driver/nvidia/gpus but no device file. Fails as the header says.
 */
#include "daemon/supervisor/devices.h"

#include "daemon/jobs/blame.h"

#include <dirent.h>
#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { GPUS_MAX = 64 };

/* --- auto -------------------------------------------------------------------------------------------------
 */

/* The minor number of the GPU at this PCI address, by the driver; -1: it does not say. */
static int minor_of(const char *root, const char *address)
{
    char path[PATH_MAX], line[256];
    int minor_number = -1;
    FILE *file;

    snprintf(path, sizeof path, "%s/proc/driver/nvidia/gpus/%s/information", root, address);
    file = fopen(path, "re");
    while (file && minor_number < 0 && fgets(line, sizeof line, file))
        if (sscanf(line, "Device Minor : %d", &minor_number) != 1)
            minor_number = -1;
    if (file)
        fclose(file);
    return minor_number;
}

static bool has_device_file(const char *root, int minor_number)
{
    char path[PATH_MAX];

    snprintf(path, sizeof path, "%s/dev/nvidia%d", root, minor_number);
    return minor_number >= 0 && access(path, R_OK | W_OK) == 0;
}

static int by_address(const void *a, const void *b)
{
    return strcmp(*(const char *const *)a, *(const char *const *)b);
}

/* PCI addresses, in order. addresses: out, [GPUS_MAX], owned by the caller. */
static int list_addresses(const char *root, char **addresses)
{
    char path[PATH_MAX];
    struct dirent *item;
    int count = 0;
    DIR *listing;

    snprintf(path, sizeof path, "%s/proc/driver/nvidia/gpus", root);
    listing = opendir(path);
    while (listing && count < GPUS_MAX && (item = readdir(listing)))
        if (item->d_name[0] != '.' && has_device_file(root, minor_of(root, item->d_name)) &&
            (addresses[count] = strdup(item->d_name)))
            count++;
    if (listing)
        closedir(listing);
    qsort(addresses, (size_t)count, sizeof *addresses, by_address);
    return count;
}

/* Where the driver lists none (some containers hide its directory), the device files count. */
static int count_device_files(const char *root)
{
    int count = 0;

    while (count < GPUS_MAX && has_device_file(root, count))
        count++;
    return count;
}

static int find_gpus(struct tt_device_choice *choices, const char *root)
{
    char *addresses[GPUS_MAX];
    int listed = list_addresses(root, addresses), count = listed ? listed : count_device_files(root);

    for (int i = 0; i < count; i++) {
        struct tt_device_choice *choice = &choices[i];

        *choice = (struct tt_device_choice){.gpu = true, .precision = TT_FP16};
        snprintf(choice->name, sizeof choice->name, "gpu%d", i);
        if (listed)
            snprintf(choice->select, sizeof choice->select, "%s", addresses[i]);
        else
            snprintf(choice->select, sizeof choice->select, "%d", i);
    }
    while (listed > 0)
        free(addresses[--listed]);
    return count;
}

static int choose_automatically(struct tt_device_choice *choices, const char *root)
{
    int count = find_gpus(choices, root);

    if (count == 0) {
        choices[0] = (struct tt_device_choice){.name = "cpu", .precision = TT_FP32};
        count = 1;
    }
    return count;
}

/* --- by name ----------------------------------------------------------------------------------------------
 */

/* "gpu0", "gpu-8f6c1234", "gpu-0000_3b_00.0": what a file name can hold. */
static void name_gpu(struct tt_device_choice *choice, const char *gpu)
{
    bool index = strspn(gpu, "0123456789") == strlen(gpu);
    const char *uuid = strncasecmp(gpu, "GPU-", 4) == 0 ? gpu + 4 : NULL;

    if (uuid)
        snprintf(choice->name, sizeof choice->name, "gpu-%.8s", uuid);
    else
        snprintf(choice->name, sizeof choice->name, "gpu%s%.40s", index ? "" : "-", gpu);
    for (char *at = choice->name; *at; at++)
        if (*at == ':' || *at == '/')
            *at = '_';
    snprintf(choice->select, sizeof choice->select, "%s", gpu);
}

static enum tt_status choose_named(struct tt_device_choice *choices, const struct tt_config *config,
                                   struct tt_error *err)
{
    int cpus = 0;

    for (int i = 0; i < config->devices.count; i++) {
        const struct tt_config_device *item = &config->devices.items[i];
        struct tt_device_choice *choice = &choices[i];

        *choice = (struct tt_device_choice){.gpu = item->gpu != NULL,
                                            .threads = item->gpu ? 0 : item->cpu_threads,
                                            .precision = tt_config_device_precision(item),
                                            .sm_75 = item->arch == TT_ARCH_SM_75,
                                            .tile_queries = item->tile.queries,
                                            .tile_frames = item->tile.frames};
        if (item->gpu)
            name_gpu(choice, item->gpu);
        else if (cpus++ == 0)
            snprintf(choice->name, sizeof choice->name, "cpu");
        else
            snprintf(choice->name, sizeof choice->name, "cpu%d", cpus);
        for (int j = 0; j < i; j++)
            if (strcmp(choices[j].name, choice->name) == 0)
                return tt_fail(err, TT_REFUSE, "devices: %s is named twice", item->gpu ? item->gpu : "cpu");
    }
    return TT_OK;
}

enum tt_status tt_devices_choose(struct tt_device_choice **choices, int *count,
                                 const struct tt_config *config, const char *root, struct tt_error *err)
{
    int wanted = config->devices.automatic ? GPUS_MAX : config->devices.count;
    struct tt_device_choice *made;
    enum tt_status status = TT_OK;

    if (wanted < 1 || wanted > TT_BLAME_SLOTS)
        return tt_fail(err, TT_REFUSE, "devices: %d are too %s", wanted, wanted < 1 ? "few" : "many");
    made = calloc((size_t)wanted, sizeof *made);
    if (!made)
        return tt_fail_errno(err, TT_RETRY_LATER, ENOMEM, "devices");
    if (config->devices.automatic)
        wanted = choose_automatically(made, root);
    else
        status = choose_named(made, config, err);
    if (status) {
        free(made);
        return status;
    }
    *choices = made;
    *count = wanted;
    return TT_OK;
}

void tt_devices_describe(const struct tt_device_choice *choices, int count, char *text, size_t bytes)
{
    size_t used = 0;

    text[0] = '\0';
    for (int i = 0; i < count && used < bytes; i++)
        used += (size_t)snprintf(text + used, bytes - used, "%s%s", i ? ", " : "", choices[i].name);
}

/* daemon/jobs/overrides.c: a directory's own configuration, read anew for each job.
 *
 * Somebody else's file: it is opened without following links and believed only as far as config/ checks it.
 */
#include "daemon/jobs/overrides.h"

#include "core/install.h"
#include "daemon/spool/internal.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <string.h>

static bool has_other_model(const struct tt_config *own, const struct tt_config *base)
{
    return strcmp(own->tracker.model, base->tracker.model) != 0;
}

/* The model that it wants is installed. */
static enum tt_status check_model(const struct tt_config *own, const struct tt_config *base, const char *name,
                                  struct tt_error *err)
{
    char path[PATH_MAX];

    if (!has_other_model(own, base) || !tt_install_model(path, sizeof path, own->tracker.model, err))
        return TT_OK;
    tt_fail_within(err, "%s", name);
    return err->status = TT_BAD_INPUT;
}

static void copy(struct tt_overrides *overrides, const struct tt_config *config, const struct tt_config *base)
{
    *overrides = (struct tt_overrides){.formats = config->output.formats |
                                                  (config->output.overlay ? 1u << TT_OUTPUT_OVERLAY : 0),
                                       .grid = config->tracker.grid,
                                       .clip_frames = config->tracker.clip_frames,
                                       .overlap_frames = config->tracker.overlap_frames,
                                       .occlusion_threshold = config->tracker.occlusion_threshold,
                                       .refine = config->tracker.refine == TT_REFINE_NATIVE};
    if (has_other_model(config, base))
        snprintf(overrides->model, sizeof overrides->model, "%s", config->tracker.model);
}

/* *own: owned by the caller; NULL: the directory is not there or has no file of its own. path: of a video
 * below incoming/. */
static enum tt_status load(struct tt_config **own, const struct tt_config *config, const char *path,
                           struct tt_error *err)
{
    char directory[PATH_MAX + 16], name[PATH_MAX + 32];
    int root_fd = open(config->spool.root, O_RDONLY | O_DIRECTORY | O_CLOEXEC), fd = -1;
    enum tt_status status = TT_OK;

    snprintf(directory, sizeof directory, "incoming/%.*s", (int)tt_path_directory(path), path);
    snprintf(name, sizeof name, "%s/tiletrack.yaml", directory);
    if (root_fd >= 0)
        fd = tt_fs_open_directory(root_fd, directory, false);
    if (fd >= 0)
        status = tt_config_load_directory(own, config, fd, name, NULL, err);
    else if (errno != ENOENT && errno != ENOTDIR && errno != ELOOP)
        status = tt_fail_errno(err, TT_RETRY_LATER, errno, "%s", name);
    tt_fs_close(fd);
    tt_fs_close(root_fd);
    if (!status && *own)
        status = check_model(*own, config, name, err);
    return status;
}

enum tt_status tt_overrides_read(struct tt_overrides *overrides, const struct tt_config *config,
                                 const char *source, struct tt_error *err)
{
    const char *mirrored = tt_path_mirrored(source);
    struct tt_config *own = NULL;
    enum tt_status status = TT_OK;

    if (config->spool.recursive && tt_path_directory(source) > 0)
        status = load(&own, config, source, err);
    if (config->spool.recursive && !status && !own && mirrored != source && tt_path_directory(mirrored) > 0)
        status = load(&own, config, mirrored, err);
    if (status == TT_REFUSE)
        status = err->status = TT_BAD_INPUT;
    if (!status)
        copy(overrides, own ? own : config, config);
    tt_config_free(own);
    return status;
}

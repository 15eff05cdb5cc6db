/* daemon/spool/place.c: names that are free, for results and for inputs that move on.
 *
 * Invariants: a name found here was free when it was looked at; whoever uses it does so by a rename that does
 * not overwrite, and asks again when that says EEXIST.
 * Fails: for want of memory, and when a directory cannot be opened for another reason than not being there.
 */
#include "daemon/spool/internal.h"

#include <ctype.h>
#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* A directory in which a free name is looked for, and what the name is made of. */
struct place {
    const struct tt_spool *spool;
    int fd;                /* -1: the directory does not exist, so nothing in it is taken */
    const char *directory; /* relative to its tree, without a last slash; directory_bytes of it */
    size_t directory_bytes;
    const char *base;
    size_t base_bytes;
    const char *suffix;      /* NULL: a result, whose name must be free in every format */
    const bool *has_sidecar; /* NULL: a result */
    bool has_reason;
    int job_fd;
};

/* directory/name as one string; NULL: no memory. */
static char *join_path(const char *directory, size_t bytes, const char *name)
{
    char *path;

    if (asprintf(&path, "%.*s%s%s", (int)bytes, directory, bytes ? "/" : "", name) < 0)
        return NULL;
    return path;
}

static bool is_reserved(const struct place *place, enum tt_output format, const char *name)
{
    for (const struct tt_spool_job *job = place->spool->jobs; job; job = job->next) {
        const char *output = job->manifest.output[format];

        if (output && tt_path_directory(output) == place->directory_bytes &&
            strncmp(output, place->directory, place->directory_bytes) == 0 &&
            strcmp(tt_path_name(output), name) == 0)
            return true;
    }
    return false;
}

/* In one format or another: what lies there would look like a result of this job. */
static bool is_result_taken(const struct place *place, int number)
{
    char name[TT_NAME_BYTES + 1];

    for (int i = 0; i < TT_OUTPUTS; i++) {
        enum tt_output format = (enum tt_output)i;

        tt_name_of_output(name, place->base, place->base_bytes, number, format);
        if (is_reserved(place, format, name) || (place->fd >= 0 && tt_fs_exists(place->fd, name)))
            return true;
    }
    return false;
}

static bool is_taken(const struct place *place, int number)
{
    char name[TT_NAME_BYTES + 1], other[TT_NAME_BYTES + 1];

    if (!place->suffix)
        return is_result_taken(place, number);
    if (place->fd < 0)
        return false;
    tt_name_join(name, place->base, place->base_bytes, number, place->suffix);
    if (tt_fs_exists(place->fd, name))
        return true;
    for (int kind = 0; kind < TT_SPOOL_SIDECARS; kind++) {
        tt_name_of_sidecar(other, name, (enum tt_spool_sidecar)kind);
        if (place->has_sidecar[kind] && tt_fs_exists(place->fd, other) &&
            !tt_fs_same_file(place->fd, other, place->job_fd, tt_spool_sidecar_names[kind]))
            return true;
    }
    tt_name_join(other, name, strlen(name), 1, TT_REASON_SUFFIX);
    return place->has_reason && tt_fs_exists(place->fd, other);
}

/* A free number from 2: doubled until one is free, then halved back to one whose predecessor is taken. So the
 * thousandth repeat costs twenty looks, not a thousand. */
static int free_number(const struct place *place)
{
    int taken = 1, free_one = 2;

    for (; is_taken(place, free_one); free_one *= 2) {
        taken = free_one;
        if (free_one > INT_MAX / 4)
            return -1;
    }
    while (free_one - taken > 1) {
        int middle = taken + (free_one - taken) / 2;

        if (is_taken(place, middle))
            taken = middle;
        else
            free_one = middle;
    }
    return free_one;
}

/* What is left of the base without the "~2" that an earlier repeat has put there: the next one is bear~3, not
 * bear~2~2. */
static size_t without_number(const char *base, size_t bytes)
{
    size_t digits = 0;

    while (digits < bytes && isdigit((unsigned char)base[bytes - 1 - digits]))
        digits++;
    return digits > 0 && bytes > digits + 1 && base[bytes - 1 - digits] == '~' ? bytes - digits - 1 : bytes;
}

/* Opens the place's directory and finds the number of a name that is free: 1 for the plain one; -1 and errno.
 */
static int find_free(struct place *place, const char *tree, const char *path)
{
    const char *ignored;
    int number = 1;

    place->directory = path;
    place->directory_bytes = tt_path_directory(path);
    place->fd = tt_fs_open_parent(place->spool, tree, path, false, &ignored);
    if (place->fd < 0 && errno != ENOENT)
        return -1;
    if (is_taken(place, 1)) {
        place->base_bytes = without_number(place->base, place->base_bytes);
        number = free_number(place);
    }
    if (number < 0)
        errno = EEXIST;
    tt_fs_close(place->fd);
    return number;
}

/* --- siblings ---------------------------------------------------------------------------------------------
 */

static bool exists_with_ending(int fd, const char *name, size_t stem, const char *ending, bool upper)
{
    char sibling[2 * TT_NAME_BYTES + 2];
    int length = snprintf(sibling, sizeof sibling, "%.*s%s", (int)stem, name, ending);

    if (length < 0 || length > TT_NAME_BYTES)
        return false;
    for (char *c = sibling + stem; upper && *c; c++)
        *c = (char)toupper((unsigned char)*c);
    return strcmp(sibling, name) != 0 && tt_fs_exists(fd, sibling);
}

bool tt_place_sibling(const struct tt_spool *spool, const char *tree, const char *directory,
                      const char *source)
{
    const struct tt_config_list *patterns = &spool->config->spool.patterns;
    const char *name = tt_path_name(source);
    size_t stem = tt_name_stem(name);
    int tree_fd = tt_fs_open_directory(spool->root_fd, tree, false), fd;
    bool found = false;

    if (tree_fd < 0)
        return false;
    fd = tt_fs_open_directory(tree_fd, directory, false);
    for (int i = 0; fd >= 0 && !found && i < patterns->count; i++)
        if (patterns->items[i][0] == '.')
            found = exists_with_ending(fd, name, stem, patterns->items[i], false) ||
                    exists_with_ending(fd, name, stem, patterns->items[i], true);
    tt_fs_close(fd);
    tt_fs_close(tree_fd);
    return found;
}

static bool has_working_sibling(const struct tt_spool *spool, const char *mirrored)
{
    const char *name = tt_path_name(mirrored);
    size_t directory = tt_path_directory(mirrored), stem = tt_name_stem(name);

    for (const struct tt_spool_job *job = spool->jobs; job; job = job->next) {
        const char *other = job->manifest.source ? tt_path_mirrored(job->manifest.source) : "";
        const char *other_name = tt_path_name(other);

        if (tt_path_directory(other) == directory && strncmp(other, mirrored, directory) == 0 &&
            tt_name_stem(other_name) == stem && strncmp(other_name, name, stem) == 0 &&
            strcmp(other_name, name) != 0)
            return true;
    }
    return false;
}

/* Another video of the same stem waits, is worked on, or was: their results need the whole names. */
static bool stems_collide(const struct tt_spool *spool, const char *mirrored)
{
    char directory[PATH_MAX], ahead[PATH_MAX + sizeof TT_PRIORITY_DIRECTORY];
    size_t bytes = tt_path_directory(mirrored);

    snprintf(directory, sizeof directory, "%.*s", (int)bytes, mirrored);
    snprintf(ahead, sizeof ahead, "%s%s%s", TT_PRIORITY_DIRECTORY, bytes ? "/" : "", directory);
    return has_working_sibling(spool, mirrored) || tt_place_sibling(spool, "incoming", directory, mirrored) ||
           tt_place_sibling(spool, "incoming", ahead, mirrored) ||
           tt_place_sibling(spool, "done", directory, mirrored) ||
           tt_place_sibling(spool, "failed", directory, mirrored);
}

/* --- what others call -------------------------------------------------------------------------------------
 */

/* Names for the wanted formats, with one number. 0, or -1 and errno: outputs is untouched then. */
static int name_outputs(const struct place *place, int number, unsigned formats, char **outputs)
{
    char *made[TT_OUTPUTS] = {NULL}, name[TT_NAME_BYTES + 1];
    bool failed = false;

    for (int i = 0; i < TT_OUTPUTS; i++) {
        if (!(formats & 1u << i))
            continue;
        tt_name_of_output(name, place->base, place->base_bytes, number, (enum tt_output)i);
        made[i] = join_path(place->directory, place->directory_bytes, name);
        failed |= !made[i];
    }
    for (int i = 0; i < TT_OUTPUTS; i++) {
        if (failed) {
            free(made[i]);
        } else if (made[i]) {
            free(outputs[i]);
            outputs[i] = made[i];
        }
    }
    if (failed)
        errno = ENOMEM;
    return failed ? -1 : 0;
}

/* What the job's results are called without their format: a place for others like them. */
static struct place place_of_outputs(struct tt_spool *spool, const struct tt_manifest *manifest)
{
    int format = 0;
    const char *output, *name;

    while (format < TT_OUTPUTS - 1 && !manifest->output[format])
        format++;
    output = manifest->output[format];
    name = tt_path_name(output);
    return (struct place){.spool = spool,
                          .fd = -1,
                          .directory = output,
                          .directory_bytes = tt_path_directory(output),
                          .base = name,
                          .base_bytes = strlen(name) - strlen(tt_output_suffixes[format])};
}

int tt_place_outputs(struct tt_spool *spool, const char *source, unsigned formats, char **outputs)
{
    const char *mirrored = tt_path_mirrored(source), *name = tt_path_name(mirrored);
    struct place place = {
        .spool = spool,
        .base = name,
        .base_bytes = stems_collide(spool, mirrored) ? strlen(name) : tt_name_stem(name),
    };
    int number = find_free(&place, "tracks", mirrored);

    return number < 0 ? -1 : name_outputs(&place, number, formats, outputs);
}

int tt_place_outputs_again(struct tt_spool *spool, const struct tt_manifest *manifest, unsigned formats,
                           char **outputs)
{
    struct place place = place_of_outputs(spool, manifest);
    int number = find_free(&place, "tracks", place.directory);

    return number < 0 ? -1 : name_outputs(&place, number, formats, outputs);
}

int tt_place_formats(struct tt_spool *spool, const struct tt_manifest *manifest, unsigned formats,
                     char **outputs)
{
    struct place place = place_of_outputs(spool, manifest);

    return name_outputs(&place, 1, formats, outputs);
}

char *tt_place_input(struct tt_spool *spool, const char *tree, const char *source, const bool *has_sidecar,
                     int job_fd)
{
    bool back = strcmp(tree, "incoming") == 0;
    const char *path = back ? source : tt_path_mirrored(source), *name = tt_path_name(path);
    struct place place = {
        .spool = spool,
        .base = name,
        .base_bytes = tt_name_stem(name),
        .suffix = name + tt_name_stem(name),
        .has_sidecar = has_sidecar,
        .has_reason = strcmp(tree, "failed") == 0,
        .job_fd = job_fd,
    };
    char free_name[TT_NAME_BYTES + 1], *found;
    int number = find_free(&place, tree, path);

    if (number < 0)
        return NULL;
    tt_name_join(free_name, place.base, place.base_bytes, number, place.suffix);
    found = join_path(place.directory, place.directory_bytes, free_name);
    if (!found)
        errno = ENOMEM;
    return found;
}

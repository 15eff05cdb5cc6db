/* daemon/cli/outputs.c: output paths, all decided before any work begins.
 *
 * The same rules as the spool's: NAME.tracks.npz; where two stems collide, both keep their endings; whatever
 * still collides is refused, so that no result overwrites another.
 */
#include "daemon/cli/outputs.h"
#include "daemon/cli/cli.h"

#include "core/fsio.h"

#include <errno.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

static bool is_directory(const char *path)
{
    struct stat status;

    return stat(path, &status) == 0 && S_ISDIR(status.st_mode);
}

static enum tt_status make_directory(const char *path, struct tt_error *err)
{
    if (mkdir(path, 0777) == 0 || (errno == EEXIST && is_directory(path)))
        return TT_OK;
    return tt_fail_errno(err, TT_REFUSE, errno, "output directory %s", path);
}

/* "bear.mp4" + ".tracks.npz" with the ending kept: as if the video were called "bear.mp4.x". */
static char *path_with_ending(const char *video, const char *directory, const char *suffix)
{
    char *longer, *path;

    if (asprintf(&longer, "%s.x", video) < 0)
        return NULL;
    path = tt_path_sibling(longer, directory, suffix);
    free(longer);
    return path;
}

/* Paths of all videos for one format, stems first, endings kept where stems collide. */
static enum tt_status decide_format(struct cli_outputs *outputs, int format_index, const char *suffix,
                                    const char *directory, char *const *videos, struct tt_error *err)
{
    int count = outputs->videos, step = outputs->formats;
    char **path = outputs->path + format_index;
    bool *collides = calloc((size_t)count, sizeof *collides);
    enum tt_status status = collides ? TT_OK : tt_fail(err, TT_RETRY_LATER, "no memory");

    for (int i = 0; status == TT_OK && i < count; i++) {
        path[i * step] = tt_path_sibling(videos[i], directory, suffix);
        if (!path[i * step])
            status = tt_fail(err, TT_RETRY_LATER, "no memory");
        for (int j = 0; status == TT_OK && j < i; j++)
            if (strcmp(path[i * step], path[j * step]) == 0)
                collides[i] = collides[j] = true;
    }
    for (int i = 0; status == TT_OK && i < count; i++) {
        if (!collides[i])
            continue;
        free(path[i * step]);
        path[i * step] = path_with_ending(videos[i], directory, suffix);
        if (!path[i * step])
            status = tt_fail(err, TT_RETRY_LATER, "no memory");
    }
    free(collides);
    return status;
}

static enum tt_status check_collisions(const struct cli_outputs *outputs, char *const *videos,
                                       struct tt_error *err)
{
    for (int i = 0; i < outputs->videos * outputs->formats; i++) {
        const char *path = outputs->path[i];

        if (is_directory(path))
            return tt_fail(err, TT_REFUSE, "output %s is a directory", path);
        for (int v = 0; v < outputs->videos; v++)
            if (cli_is_same_file(path, videos[v]))
                return tt_fail(err, TT_REFUSE, "output %s would overwrite a video", path);
        for (int j = 0; j < i; j++)
            if (cli_is_same_file(path, outputs->path[j]))
                return tt_fail(err, TT_REFUSE,
                               "%s and %s would both be written to %s; use -o with separate runs",
                               videos[j / outputs->formats], videos[i / outputs->formats], path);
    }
    return TT_OK;
}

static enum tt_status decide(struct cli_outputs *outputs, const char *output, char *const *videos,
                             const enum tt_output *formats, struct tt_error *err)
{
    bool directory = output && (outputs->videos > 1 || outputs->formats > 1 || is_directory(output) ||
                                output[strlen(output) - 1] == '/');
    enum tt_status status = TT_OK;

    if (output && !directory) {
        outputs->path[0] = strdup(output);
        return outputs->path[0] ? TT_OK : tt_fail(err, TT_RETRY_LATER, "no memory");
    }
    if (directory)
        status = make_directory(output, err);
    for (int f = 0; status == TT_OK && f < outputs->formats; f++)
        status = decide_format(outputs, f, tt_output_suffixes[formats[f]], output, videos, err);
    return status;
}

enum tt_status cli_outputs_decide(struct cli_outputs *outputs, const char *output, char *const *videos,
                                  int video_count, const enum tt_output *formats, int format_count,
                                  struct tt_error *err)
{
    struct cli_outputs decided = {.videos = video_count, .formats = format_count};
    enum tt_status status;

    if (output && !*output)
        return tt_fail(err, TT_REFUSE, "-o: the path is empty");
    decided.path = calloc((size_t)video_count * (size_t)format_count, sizeof *decided.path);
    if (!decided.path)
        return tt_fail(err, TT_RETRY_LATER, "no memory");
    status = decide(&decided, output, videos, formats, err);
    if (status == TT_OK)
        status = check_collisions(&decided, videos, err);
    if (status)
        cli_outputs_free(&decided);
    else
        *outputs = decided;
    return status;
}

void cli_outputs_free(struct cli_outputs *outputs)
{
    for (int i = 0; outputs->path && i < outputs->videos * outputs->formats; i++)
        free(outputs->path[i]);
    free(outputs->path);
    *outputs = (struct cli_outputs){0};
}

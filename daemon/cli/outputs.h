/* daemon/cli/outputs.h: where the track files of several videos go. */
#ifndef TT_DAEMON_CLI_OUTPUTS_H
#define TT_DAEMON_CLI_OUTPUTS_H

#include "core/status.h"
#include "core/output.h"

struct cli_outputs {
    int videos, formats;
    char **path; /* [videos][formats], owned */
};

/* Decides every output path before any work begins. output: the argument of -o, or NULL for "beside each
 * video". One video may have a file as output; several need a directory, which is made if it is missing. Two
 * videos whose stems collide keep their endings (bear.mp4.tracks.npz). TT_REFUSE: two outputs would still be
 * the same file, an output would overwrite its video, or the directory cannot be had. */
enum tt_status cli_outputs_decide(struct cli_outputs *outputs, const char *output, char *const *videos,
                                  int video_count, const enum tt_output *formats, int format_count,
                                  struct tt_error *err);
void cli_outputs_free(struct cli_outputs *outputs);

#endif

/* core/output.h: what a job may write for a video, one name and one ending for each.
 *
 * Track files first, numbered as enum tt_track_format; then the formats of core/export.h under the names that
 * they have there. `output.formats`, manifests and `tiletrack track --format` speak of outputs by these
 * names.
 */
#ifndef TT_CORE_OUTPUT_H
#define TT_CORE_OUTPUT_H

#include "core/trackfile.h"

enum tt_output {
    TT_OUTPUT_NPZ = TT_TRACKS_NPZ,
    TT_OUTPUT_CSV = TT_TRACKS_CSV,
    TT_OUTPUT_JSONL = TT_TRACKS_JSONL,
    TT_OUTPUT_CSV_WIDE = TT_TRACK_FORMATS, /* here core/export.h begins */
    TT_OUTPUT_JSON,
    TT_OUTPUT_NAPARI,
    TT_OUTPUT_TAPVID,
    TT_OUTPUT_COTRACKER,
    TT_OUTPUT_NUKE,
    TT_OUTPUT_3DE,
    TT_OUTPUT_AFTER_EFFECTS,
    TT_OUTPUT_BLENDER,
    TT_OUTPUT_COLMAP,
    TT_OUTPUT_OVERLAY, /* a video with the tracks drawn into it: core/overlay.h */
    TT_OUTPUTS
};

extern const char *const tt_output_names[TT_OUTPUTS];    /* "npz", ... "overlay" */
extern const char *const tt_output_suffixes[TT_OUTPUTS]; /* ".tracks.npz", ... */

/* By name; TT_OUTPUTS: there is none. */
enum tt_output tt_output_find(const char *name);

#endif

/* core/output.c: names and endings of everything that a job may write. Pure; cannot fail. */
#include "core/output.h"

#include <string.h>

const char *const tt_output_names[TT_OUTPUTS] = {
    "npz",       "csv",  "jsonl", "csv-wide",      "json",    "napari", "tapvid",
    "cotracker", "nuke", "3de",   "after-effects", "blender", "colmap", "overlay",
};

const char *const tt_output_suffixes[TT_OUTPUTS] = {
    ".tracks.npz", ".tracks.csv", ".tracks.jsonl",  ".wide.csv",    ".tracks.json",
    ".napari.csv", ".tapvid.npz", ".cotracker.npz", ".nk",          ".3de.txt",
    ".ae.txt",     ".blender.py", ".colmap.db",     ".overlay.mp4",
};

enum tt_output tt_output_find(const char *name)
{
    int output = 0;

    while (output < TT_OUTPUTS && strcmp(tt_output_names[output], name) != 0)
        output++;
    return (enum tt_output)output;
}

/* core/export/blender.c: blender: a Python script that adds the tracks to a movie clip.
 *
 * Positions stand in strings, a run of visible frames each: Python keeps a string as it is, where a list of
 * as many numbers would be built by code. The script itself turns pixels into Blender's unit square, whose y
 * counts from the bottom, and puts a muted marker wherever a track becomes hidden, as Blender's own tracker
 * does.
 */
#include "core/export/run.h"

static const char head[] =
    "#\n"
    "#   blender --python THIS_FILE -- VIDEO      loads the video as a clip and adds the tracks to it\n"
    "#\n"
    "# or, in Blender: open the video in the Movie Clip Editor, this file in the Text Editor, and run it.\n"
    "import os\n"
    "import sys\n"
    "\n"
    "import bpy\n"
    "\n";

static const char functions[] =
    "\n"
    "\n"
    "def find_clip():\n"
    "    arguments = sys.argv[sys.argv.index(\"--\") + 1:] if \"--\" in sys.argv else []\n"
    "    if arguments:\n"
    "        return bpy.data.movieclips.load(os.path.abspath(arguments[0]))\n"
    "    for window in bpy.context.window_manager.windows:\n"
    "        for area in window.screen.areas:\n"
    "            if area.type == \"CLIP_EDITOR\" and area.spaces.active.clip:\n"
    "                return area.spaces.active.clip\n"
    "    if len(bpy.data.movieclips) == 1:\n"
    "        return bpy.data.movieclips[0]\n"
    "    raise RuntimeError(\"open the video in the Movie Clip Editor first, or name it behind --\")\n"
    "\n"
    "\n"
    "def put(track, frame, x, y, mute=False):\n"
    "    marker = track.markers.insert_frame(frame)\n"
    "    marker.co = (x / WIDTH, 1 - y / HEIGHT)\n"
    "    marker.mute = mute\n"
    "\n"
    "\n"
    "def add(name, *runs):\n"
    "    \"\"\"A run: the number of its first frame, and x and y of each frame in pixels from the top "
    "left.\"\"\"\n"
    "    track = TRACKS.new(name=name, frame=runs[0][0])\n"
    "    for frame, text in runs:\n"
    "        numbers = [float(number) for number in text.split()]\n"
    "        if frame > FIRST and frame == runs[0][0]:\n"
    "            put(track, frame - 1, numbers[0], numbers[1], mute=True)\n"
    "        for x, y in zip(numbers[0::2], numbers[1::2]):\n"
    "            put(track, frame, x, y)\n"
    "            frame += 1\n"
    "        if frame <= LAST:\n"
    "            put(track, frame, x, y, mute=True)\n"
    "\n"
    "\n"
    "TRACKS = find_clip().tracking.objects[0].tracks\n"
    "\n";

static void put_runs(struct tt_export *run)
{
    struct tt_text *text = &run->text;
    bool inside = false;

    for (int64_t t = 0; t < run->frames; t++) {
        const struct tt_track_point *point = &run->row[t];

        if (!point->occluded) {
            if (inside)
                tt_put(text, " ");
            else
                tt_put(text, ",\n    (%lld, \"", (long long)(run->first_frame + t));
            tt_put_float(text, point->x);
            tt_put(text, " ");
            tt_put_float(text, point->y);
        } else if (inside) {
            tt_put(text, "\")");
        }
        inside = !point->occluded;
    }
    if (inside)
        tt_put(text, "\")");
}

enum tt_status tt_export_blender(struct tt_export *run, struct tt_error *err)
{
    struct tt_text *text = &run->text;
    char **names;
    enum tt_status status = tt_export_names(&names, run, false, err);

    if (status)
        return status;
    tt_put(text, "# %d tracks for Blender, from tiletrack.\n", run->tracks);
    tt_put_string(text, head);
    tt_put(text, "WIDTH, HEIGHT = %d, %d\nFIRST, LAST = %lld, %lld\n", run->source->width,
           run->source->height, (long long)run->first_frame, (long long)(run->first_frame + run->frames - 1));
    tt_put_string(text, functions);
    for (int i = 0; i < run->tracks && !status; i++) {
        status = tt_export_row(run, i, err);
        if (status)
            break;
        tt_put(text, "add(");
        tt_put_json_string(text, names[i]);
        put_runs(run);
        tt_put(text, ")\n");
    }
    tt_export_names_free(names, run->tracks);
    return status;
}

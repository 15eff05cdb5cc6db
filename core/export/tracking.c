/* core/export/tracking.c: nuke, 3de and after-effects: text of programs that people track in by hand.
 *
 * Only visible samples are written, each under its own frame's number. Nuke and 3DEqualizer count y from the
 * bottom edge. Positions have six decimals and never an exponent, which their readers do not know.
 */
#include "core/export/run.h"

#include <string.h>

/* --- nuke ------------------------------------------------------------------------------------ */

/* The columns of a Tracker4 node's table: type, shown, width, title, name. */
static const struct {
    int type, shown, width;
    const char *title, *name;
} columns[] = {
    {5, 1, 20, "enable", "e"},
    {3, 1, 75, "name", "name"},
    {2, 1, 58, "track_x", "track_x"},
    {2, 1, 58, "track_y", "track_y"},
    {2, 1, 63, "offset_x", "offset_x"},
    {2, 1, 63, "offset_y", "offset_y"},
    {4, 1, 27, "T", "T"},
    {4, 1, 27, "R", "R"},
    {4, 1, 27, "S", "S"},
    {2, 0, 45, "error", "error"},
    {1, 1, 0, "error_min", "error_min"},
    {1, 1, 0, "error_max", "error_max"},
    {1, 1, 0, "pattern_x", "pattern_x"},
    {1, 1, 0, "pattern_y", "pattern_y"},
    {1, 1, 0, "pattern_r", "pattern_r"},
    {1, 1, 0, "pattern_t", "pattern_t"},
    {1, 1, 0, "search_x", "search_x"},
    {1, 1, 0, "search_y", "search_y"},
    {1, 1, 0, "search_r", "search_r"},
    {1, 1, 0, "search_t", "search_t"},
    {2, 1, 0, "key_track", "key_track"},
    {2, 1, 0, "key_search_x", "key_search_x"},
    {2, 1, 0, "key_search_y", "key_search_y"},
    {2, 1, 0, "key_search_r", "key_search_r"},
    {2, 1, 0, "key_search_t", "key_search_t"},
    {2, 1, 0, "key_track_x", "key_track_x"},
    {2, 1, 0, "key_track_y", "key_track_y"},
    {2, 1, 0, "key_track_r", "key_track_r"},
    {2, 1, 0, "key_track_t", "key_track_t"},
    {2, 1, 0, "key_centre_offset_x", "key_centre_offset_x"},
    {2, 1, 0, "key_centre_offset_y", "key_centre_offset_y"},
};

enum { COLUMNS = sizeof columns / sizeof columns[0] };

/* A curve of all visible samples. "xF" says at which frame the next value stands; further values follow at
 * the distance of the last two, so behind a gap the second value needs its frame too. */
static void put_curve(struct tt_export *run, bool vertical)
{
    struct tt_text *text = &run->text;
    int64_t previous = -1; /* sample written last */
    bool jumped = false;

    tt_put(text, " {curve");
    for (int64_t t = 0; t < run->frames; t++) {
        const struct tt_track_point *point = &run->row[t];

        if (point->occluded)
            continue;
        if (previous < 0 || t != previous + 1 || jumped)
            tt_put(text, " x%lld", (long long)(run->first_frame + t));
        jumped = previous >= 0 && t != previous + 1;
        tt_put(text, " %.6f", vertical ? run->source->height - (double)point->y : (double)point->x);
        previous = t;
    }
    tt_put(text, "}");
}

/* 1 where the point is visible and 0 where it is not, constant between keys. */
static void put_enable(struct tt_export *run)
{
    struct tt_text *text = &run->text;

    tt_put(text, "{curve K");
    for (int64_t t = 0; t < run->frames; t++)
        if (t == 0 || run->row[t].occluded != run->row[t - 1].occluded)
            tt_put(text, " x%lld %d", (long long)(run->first_frame + t), !run->row[t].occluded);
    tt_put(text, "}");
}

static void put_nuke_track(struct tt_export *run, const char *name)
{
    const long long first = run->first_frame;
    struct tt_text *text = &run->text;

    tt_put(text, " { ");
    put_enable(run);
    tt_put(text, " \"");
    tt_put_string(text, name);
    tt_put(text, "\"");
    put_curve(run, false);
    put_curve(run, true);
    /* no offset; used for translation; no error; pattern and search boxes around the point; no key boxes */
    tt_put(text, " {curve K x%lld 0} {curve K x%lld 0} 1 0 0 {curve x%lld 0} 0 0", first, first, first);
    tt_put(text, " -16 -16 16 16 -32 -32 32 32");
    for (int i = 20; i < COLUMNS; i++)
        tt_put(text, " {curve}");
    tt_put(text, " } \n");
}

enum tt_status tt_export_nuke(struct tt_export *run, struct tt_error *err)
{
    struct tt_text *text = &run->text;
    char **names;
    enum tt_status status = tt_export_names(&names, run, true, err);

    if (status)
        return status;
    tt_put(text, "# tiletrack: %d tracks of %dx%d pixels, frames %lld to %lld\n", run->tracks,
           run->source->width, run->source->height, (long long)run->first_frame,
           (long long)(run->first_frame + run->frames - 1));
    tt_put(text, "Tracker4 {\n inputs 0\n tracks { { 1 %d %d } \n{", COLUMNS, run->tracks);
    for (int i = 0; i < COLUMNS; i++)
        tt_put(text, " { %d %d %d %s %s 1 } \n", columns[i].type, columns[i].shown, columns[i].width,
               columns[i].title, columns[i].name);
    tt_put(text, "} \n{ \n");
    for (int i = 0; i < run->tracks && !status; i++) {
        status = tt_export_row(run, i, err);
        if (!status)
            put_nuke_track(run, names[i]);
    }
    tt_put(text, "} \n}\n name Tracker1\n}\n");
    tt_export_names_free(names, run->tracks);
    return status;
}

/* --- 3de ------------------------------------------------------------------------------------- */

enum tt_status tt_export_3de(struct tt_export *run, struct tt_error *err)
{
    struct tt_text *text = &run->text;
    char **names;
    enum tt_status status = tt_export_names(&names, run, true, err);

    if (status)
        return status;
    tt_put(text, "%d\n", run->tracks);
    for (int i = 0; i < run->tracks && !status; i++) {
        int64_t visible = 0;

        status = tt_export_row(run, i, err);
        if (status)
            break;
        for (int64_t t = 0; t < run->frames; t++)
            visible += !run->row[t].occluded;
        tt_put_string(text, names[i]);
        tt_put(text, "\n0\n%lld\n", (long long)visible); /* 0: the colour, red */
        for (int64_t t = 0; t < run->frames; t++)
            if (!run->row[t].occluded)
                tt_put(text, "%lld %.6f %.6f\n", (long long)(run->first_frame + t), (double)run->row[t].x,
                       run->source->height - (double)run->row[t].y);
    }
    tt_export_names_free(names, run->tracks);
    return status;
}

/* --- after-effects --------------------------------------------------------------------------- */

enum tt_status tt_export_after_effects(struct tt_export *run, struct tt_error *err)
{
    struct tt_text *text = &run->text;
    enum tt_status status = tt_export_need_fps(run, err);

    if (status)
        return status;
    tt_put(text, "Adobe After Effects 8.0 Keyframe Data\n\n\tUnits Per Second\t%.9g\n", run->fps);
    tt_put(text, "\tSource Width\t%d\n\tSource Height\t%d\n", run->source->width, run->source->height);
    tt_put(text, "\tSource Pixel Aspect Ratio\t1\n\tComp Pixel Aspect Ratio\t1\n");
    for (int i = 0; i < run->tracks && !status; i++) {
        status = tt_export_row(run, i, err);
        tt_put(text, "\nEffects\tPoint Control #%d\tPoint #2\n\tFrame\tX pixels\tY pixels\n", i + 1);
        for (int64_t t = 0; t < run->frames && !status; t++)
            if (!run->row[t].occluded)
                tt_put(text, "\t%lld\t%.6f\t%.6f\n", (long long)(run->first_frame + t), (double)run->row[t].x,
                       (double)run->row[t].y);
    }
    tt_put(text, "\n\nEnd of Keyframe Data\n");
    return status;
}

/* core/export/tables.c: csv, csv-wide, napari and json: text that keeps every sample and says which are
 * occluded; with only_visible those are left out, as an empty field, a missing row or null.
 */
#include "core/export/run.h"
#include "core/trackfile_parts.h"

#include <errno.h>
#include <stdlib.h>

/* --- csv: the very columns of a .csv track file ---------------------------------------------- */

enum tt_status tt_export_csv(struct tt_export *run, struct tt_error *err)
{
    const bool labelled = run->source->queries->labels;
    enum tt_status status = TT_OK;

    tt_tracks_put_csv_heading(&run->text, labelled, run->source->refined);
    for (int i = 0; i < run->tracks && !status; i++) {
        const char *label = labelled ? tt_export_label(run, i) : NULL;

        status = tt_export_row(run, i, err);
        for (int64_t t = 0; t < run->frames && !status; t++)
            if (!run->row[t].occluded || !run->options->only_visible)
                tt_tracks_put_csv_row(&run->text, run->query[i], label, run->first_frame + t, run->time_s[t],
                                      &run->row[t], run->source->refined);
    }
    return status;
}

/* --- csv-wide -------------------------------------------------------------------------------- */

static void put_wide_column(struct tt_text *text, const char *name, const char *what)
{
    char *column;

    if (asprintf(&column, "%s_%s", name, what) < 0) {
        text->status = tt_fail_errno(&text->err, TT_RETRY_LATER, ENOMEM, "exporting tracks");
        return;
    }
    tt_put(text, ",");
    tt_put_csv_string(text, column);
    free(column);
}

static void put_wide_head(struct tt_export *run, char *const *names)
{
    static const char *const columns[] = {"x", "y", "occluded", "confidence", "refined"};
    const int count = run->source->refined ? 5 : 4;

    tt_put(&run->text, "frame,time_s");
    for (int i = 0; i < run->tracks; i++)
        for (int c = 0; c < count; c++)
            put_wide_column(&run->text, names[i], columns[c]);
    tt_put(&run->text, "\n");
}

static void put_wide_row(struct tt_export *run, int64_t frame, const struct tt_track_point *points)
{
    struct tt_text *text = &run->text;

    tt_put(text, "%lld,", (long long)(run->first_frame + frame));
    tt_put_double(text, run->time_s[frame]);
    for (int i = 0; i < run->tracks; i++) {
        const bool shown = !points[i].occluded || !run->options->only_visible;

        tt_put(text, ",");
        if (shown)
            tt_put_float(text, points[i].x);
        tt_put(text, ",");
        if (shown)
            tt_put_float(text, points[i].y);
        tt_put(text, points[i].occluded ? ",1," : ",0,");
        tt_put_float(text, points[i].confidence);
        if (run->source->refined)
            tt_put(text, points[i].refined ? ",1" : ",0");
    }
    tt_put(text, "\n");
}

enum tt_status tt_export_csv_wide(struct tt_export *run, struct tt_error *err)
{
    struct tt_track_point *points = calloc((size_t)run->tracks, sizeof *points);
    struct tt_frames frames = {.fd = -1};
    char **names = NULL;
    enum tt_status status = points ? TT_OK : tt_fail_errno(err, TT_RETRY_LATER, ENOMEM, "exporting tracks");

    if (!status)
        status = tt_export_names(&names, run, false, err);
    if (!status)
        status = tt_frames_open(&frames, run, err);
    if (status)
        goto done;
    put_wide_head(run, names);
    for (int64_t t = 0; t < run->frames && !status && !run->text.status; t++) {
        status = tt_frames_read(&frames, t, points, err);
        if (!status)
            put_wide_row(run, t, points);
    }
    tt_frames_close(&frames);
done:
    tt_export_names_free(names, run->tracks);
    free(points);
    return status;
}

/* --- napari: numbers only, ID, T, Y, X first; pixel centres are whole ------------------------ */

enum tt_status tt_export_napari(struct tt_export *run, struct tt_error *err)
{
    struct tt_text *text = &run->text;
    enum tt_status status = TT_OK;

    tt_put(text, "track_id,t,y,x,occluded,confidence\n");
    for (int i = 0; i < run->tracks && !status; i++) {
        status = tt_export_row(run, i, err);
        for (int64_t t = 0; t < run->frames && !status; t++) {
            const struct tt_track_point *point = &run->row[t];

            if (point->occluded && run->options->only_visible)
                continue;
            tt_put(text, "%d,%lld,%.9g,%.9g,%d,", run->query[i], (long long)(run->first_frame + t),
                   (double)point->y - 0.5, (double)point->x - 0.5, point->occluded);
            tt_put_float(text, point->confidence);
            tt_put(text, "\n");
        }
    }
    return status;
}

/* --- json ------------------------------------------------------------------------------------ */

static void put_json_head(struct tt_export *run)
{
    struct tt_text *text = &run->text;

    tt_put(text, "{\"format\":\"tiletrack-tracks\",\"version\":1,\"frame_size\":[%d,%d],\"frames\":%lld,",
           run->source->width, run->source->height, (long long)run->frames);
    tt_put(text, "\"first_frame\":%lld,\"fps\":", (long long)run->first_frame);
    if (run->fps > 0)
        tt_put_double(text, run->fps);
    else
        tt_put(text, "null");
    tt_put(text, ",\n\"time_s\":[");
    for (int64_t t = 0; t < run->frames; t++) {
        if (t > 0)
            tt_put(text, ",");
        tt_put_double(text, run->time_s[t]);
    }
    tt_put(text, "],\n\"tracks\":[");
}

static void put_json_samples(struct tt_export *run)
{
    struct tt_text *text = &run->text;

    for (int64_t t = 0; t < run->frames; t++) {
        const struct tt_track_point *point = &run->row[t];

        if (t > 0)
            tt_put(text, ",");
        if (point->occluded && run->options->only_visible) {
            tt_put(text, "null");
            continue;
        }
        tt_put(text, "[");
        tt_put_float(text, point->x);
        tt_put(text, ",");
        tt_put_float(text, point->y);
        tt_put(text, ",%s,", point->occluded ? "false" : "true");
        tt_put_float(text, point->confidence);
        if (run->source->refined)
            tt_put(text, point->refined ? ",true" : ",false");
        tt_put(text, "]");
    }
}

enum tt_status tt_export_json(struct tt_export *run, struct tt_error *err)
{
    struct tt_text *text = &run->text;
    enum tt_status status = TT_OK;

    put_json_head(run);
    for (int i = 0; i < run->tracks && !status; i++) {
        const struct tt_query *query = &run->source->queries->points[run->query[i]];

        status = tt_export_row(run, i, err);
        if (status)
            break;
        tt_put(text, "%s\n{\"query\":%d,\"label\":", i > 0 ? "," : "", run->query[i]);
        tt_put_json_string(text, tt_export_label(run, i));
        tt_put(text, ",\"query_point\":[%lld,", (long long)(run->first_frame + query->frame));
        tt_put_float(text, query->x);
        tt_put(text, ",");
        tt_put_float(text, query->y);
        tt_put(text, "],\"samples\":[");
        put_json_samples(run);
        tt_put(text, "]}");
    }
    tt_put(text, "\n]}\n");
    return status;
}

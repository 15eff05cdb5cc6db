/* core/export/export.c: the table of formats, and the run that every writer is called in.
 *
 * Invariants: a writer sees only the tracks that were chosen, with `occluded` as the options want it; frame t
 * of the source has the number run->first_frame + t in every format, whatever is hidden.
 *
 * Fails: on options that a format cannot follow, on tracks that are not there, as the source and the disk do.
 */
#include "core/export/run.h"

#include <errno.h>
#include <fnmatch.h>
#include <limits.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* --- the table ------------------------------------------------------------------------------- */

enum {
    CHOICE = TT_EXPORT_MIN_CONFIDENCE | TT_EXPORT_LABELS,
    NUMBERED = CHOICE | TT_EXPORT_ONLY_VISIBLE | TT_EXPORT_FRAME_OFFSET,
    TIMED = NUMBERED | TT_EXPORT_FPS,
    BLENDER_FRAME_MOST = 1048574, /* MAXFRAMEF of Blender */
};

static const struct tt_export_format formats[] = {
    {"csv", ".tracks.csv", "a row for each point and frame", TIMED, 0, INT_MIN, INT_MAX, false,
     tt_export_csv},
    {"csv-wide", ".wide.csv", "a row for each frame, columns for each point", TIMED, 0, INT_MIN, INT_MAX,
     false, tt_export_csv_wide},
    {"json", ".tracks.json", "one JSON object", TIMED, 0, INT_MIN, INT_MAX, false, tt_export_json},
    {"napari", ".napari.csv", "CSV for napari's tracks layer", NUMBERED, 0, INT_MIN, INT_MAX, false,
     tt_export_napari},
    {"tapvid", ".tapvid.npz", "NumPy arrays for TAP-Vid's evaluators, 256x256", CHOICE, 0, 0, INT_MAX, false,
     tt_export_tapvid},
    {"cotracker", ".cotracker.npz", "NumPy arrays as CoTracker returns them", CHOICE, 0, 0, INT_MAX, false,
     tt_export_cotracker},
    {"nuke", ".nk", "Nuke: a Tracker4 node to paste or import", NUMBERED, 1, 0, INT_MAX, true,
     tt_export_nuke},
    {"3de", ".3de.txt", "3DEqualizer4: 2D tracks", NUMBERED, 1, 1, INT_MAX, true, tt_export_3de},
    {"after-effects", ".ae.txt", "After Effects: keyframes to paste", TIMED, 0, 0, INT_MAX, true,
     tt_export_after_effects},
    {"blender", ".blender.py", "Blender: a script that makes tracks", NUMBERED, 1, 0, BLENDER_FRAME_MOST,
     true, tt_export_blender},
    {"colmap", ".colmap.db", "COLMAP: a database of key points and matches", NUMBERED, 1, 0, INT_MAX, true,
     tt_export_colmap},
};

enum { FORMATS = sizeof formats / sizeof formats[0] };

const struct tt_export_format *const tt_export_formats[FORMATS + 1] = {
    &formats[0], &formats[1], &formats[2], &formats[3], &formats[4],  &formats[5],
    &formats[6], &formats[7], &formats[8], &formats[9], &formats[10], NULL};

const struct tt_export_format *tt_export_find(const char *name)
{
    for (int i = 0; i < FORMATS; i++)
        if (strcmp(formats[i].name, name) == 0)
            return &formats[i];
    return NULL;
}

enum tt_status tt_export_check(const struct tt_export_format *format, const struct tt_export_options *options,
                               struct tt_error *err)
{
    const struct {
        bool given;
        unsigned option;
        const char *name, *why;
    } rules[] = {
        {options->only_visible, TT_EXPORT_ONLY_VISIBLE, "--only-visible",
         "its arrays have a place for every sample and say which are occluded"},
        {options->min_confidence != 0, TT_EXPORT_MIN_CONFIDENCE, "--min-confidence",
         "it says nothing hidden"},
        {options->label_count > 0, TT_EXPORT_LABELS, "--labels", "it has no choice of tracks"},
        {options->fps != 0, TT_EXPORT_FPS, "--fps", "it has frame numbers only, no times"},
        {options->frame_offset != 0, TT_EXPORT_FRAME_OFFSET, "--frame-offset",
         "its frames are places in an array, from 0"},
    };

    for (size_t i = 0; i < sizeof rules / sizeof rules[0]; i++)
        if (rules[i].given && !(format->options & rules[i].option))
            return tt_fail(err, TT_REFUSE, "%s does not go with format %s: %s", rules[i].name, format->name,
                           rules[i].why);
    if (!(options->min_confidence >= 0 && options->min_confidence <= 1))
        return tt_fail(err, TT_REFUSE, "a confidence lies between 0 and 1");
    if (options->fps != 0 && !(options->fps >= 0.001 && options->fps <= 100000))
        return tt_fail(err, TT_REFUSE, "a frame rate lies between 0.001 and 100000");
    if (options->frame_offset < INT_MIN / 2 || options->frame_offset > INT_MAX / 2)
        return tt_fail(err, TT_REFUSE, "a frame offset lies between %d and %d", INT_MIN / 2, INT_MAX / 2);
    return TT_OK;
}

/* --- sources --------------------------------------------------------------------------------- */

static enum tt_status trackfile_row(void *user, int query, struct tt_track_point *points,
                                    struct tt_error *err)
{
    return tt_trackfile_rows(user, query, 1, points, err);
}

static enum tt_status trackfile_times(void *user, double *time_s, struct tt_error *err)
{
    (void)err;
    memcpy(time_s, tt_trackfile_times(user), (size_t)tt_trackfile_frames(user) * sizeof *time_s);
    return TT_OK;
}

struct tt_export_source tt_export_from_trackfile(struct tt_trackfile *file)
{
    struct tt_export_source source = {.user = file,
                                      .queries = tt_trackfile_queries(file),
                                      .frames = tt_trackfile_frames(file),
                                      .refined = tt_trackfile_refined(file),
                                      .row = trackfile_row,
                                      .times = trackfile_times};

    tt_trackfile_size(file, &source.width, &source.height);
    return source;
}

static enum tt_status tracks_row(void *user, int query, struct tt_track_point *points, struct tt_error *err)
{
    const struct tt_tracks *tracks = user;

    return tt_tracks_points(tracks, query, 1, 0, (int)tracks->frames, points, err);
}

static enum tt_status tracks_times(void *user, double *time_s, struct tt_error *err)
{
    const struct tt_tracks *tracks = user;

    return tracks->source.times(tracks->source.user, 0, (int)tracks->frames, time_s, err);
}

struct tt_export_source tt_export_from_tracks(const struct tt_tracks *tracks)
{
    return (struct tt_export_source){.user = (void *)tracks,
                                     .queries = tracks->queries,
                                     .frames = tracks->frames,
                                     .refined = tracks->source.refined != NULL,
                                     .width = tracks->width,
                                     .height = tracks->height,
                                     .row = tracks_row,
                                     .times = tracks_times};
}

/* --- a run ----------------------------------------------------------------------------------- */

enum tt_status tt_export_row(struct tt_export *run, int track, struct tt_error *err)
{
    const struct tt_export_options *options = run->options;
    enum tt_status status;

    if (options->stop && *options->stop)
        return tt_fail(err, TT_INTERRUPTED, "interrupted");
    if (run->text.status)
        return tt_fail(err, run->text.status, "%s", run->text.err.text);
    status = run->source->row(run->source->user, run->query[track], run->row, err);
    for (int64_t t = 0; t < run->frames && !status; t++)
        run->row[t].occluded |= run->row[t].confidence < options->min_confidence;
    return status;
}

const char *tt_export_label(const struct tt_export *run, int track)
{
    char **labels = run->source->queries->labels;

    return labels ? labels[run->query[track]] : "";
}

enum tt_status tt_export_need_fps(const struct tt_export *run, struct tt_error *err)
{
    if (run->fps > 0)
        return TT_OK;
    return tt_fail(err, TT_BAD_INPUT,
                   "the frame rate is not known from these times; give --fps to tiletrack export");
}

/* The mean rate; a usual one where times that are rounded to milliseconds allow it. 0: times that do not
 * grow. */
static double rate_of(const double *time_s, int64_t frames)
{
    static const double usual[] = {
        24000.0 / 1001, 24, 25, 30000.0 / 1001, 30, 48, 50, 60000.0 / 1001, 60, 90, 100, 120, 240};
    const double span = time_s[frames - 1] - time_s[0];
    double rate, best = 0;

    if (frames < 2 || !(span > 0))
        return 0;
    rate = (double)(frames - 1) / span;
    for (size_t i = 0; i < sizeof usual / sizeof usual[0]; i++)
        if (best == 0 || fabs(rate - usual[i]) < fabs(rate - best))
            best = usual[i];
    return fabs(rate / best - 1) <= 0.001 / span + 1e-6 ? best : rate;
}

static enum tt_status read_times(struct tt_export *run, struct tt_error *err)
{
    const struct tt_export_options *options = run->options;
    enum tt_status status = run->source->times(run->source->user, run->time_s, err);

    if (status)
        return status;
    run->fps = options->fps > 0 ? options->fps : rate_of(run->time_s, run->frames);
    for (int64_t t = 0; options->fps > 0 && t < run->frames; t++)
        run->time_s[t] = (double)t / options->fps;
    return TT_OK;
}

static bool is_wanted(const struct tt_export *run, int query)
{
    const struct tt_export_options *options = run->options;

    for (int i = 0; i < options->label_count; i++)
        if (fnmatch(options->labels[i], run->source->queries->labels[query], 0) == 0)
            return true;
    return options->label_count == 0;
}

static enum tt_status choose_tracks(struct tt_export *run, struct tt_error *err)
{
    const struct tt_queries *queries = run->source->queries;

    if (run->options->label_count > 0 && !queries->labels)
        return tt_fail(err, TT_REFUSE, "--labels: these tracks have no labels");
    for (int q = 0; q < queries->count; q++)
        if (is_wanted(run, q))
            run->query[run->tracks++] = q;
    if (run->tracks == 0)
        return tt_fail(err, TT_REFUSE, "--labels: no label matches");
    return TT_OK;
}

/* For formats in which a track without samples cannot stand. */
static enum tt_status drop_unseen(struct tt_export *run, struct tt_error *err)
{
    int kept = 0;

    for (int i = 0; i < run->tracks; i++) {
        enum tt_status status = tt_export_row(run, i, err);
        int64_t t = 0;

        if (status)
            return status;
        while (t < run->frames && run->row[t].occluded)
            t++;
        if (t < run->frames)
            run->query[kept++] = run->query[i];
    }
    run->tracks = kept;
    if (kept == 0)
        return tt_fail(err, TT_BAD_INPUT,
                       "no track is visible in any frame, and %s holds nothing else; csv, json, napari, "
                       "tapvid and cotracker also hold hidden samples",
                       run->format->name);
    return TT_OK;
}

static enum tt_status check_frames(const struct tt_export *run, struct tt_error *err)
{
    const int64_t last = run->first_frame + run->frames - 1;

    if (run->first_frame >= run->format->least_frame && last <= run->format->most_frame)
        return TT_OK;
    return tt_fail(err, run->options->frame_offset ? TT_REFUSE : TT_BAD_INPUT,
                   "%sthe frames would be %lld to %lld; %s has %lld to %lld, and csv any",
                   run->options->frame_offset ? "--frame-offset: " : "", (long long)run->first_frame,
                   (long long)last, run->format->name, (long long)run->format->least_frame,
                   (long long)run->format->most_frame);
}

static enum tt_status run_writer(struct tt_export *run, struct tt_export_report *report, struct tt_error *err)
{
    enum tt_status status = check_frames(run, err);
    int wanted;

    if (!status)
        status = choose_tracks(run, err);
    if (!status)
        status = read_times(run, err);
    wanted = run->tracks;
    if (!status && run->format->skips_unseen)
        status = drop_unseen(run, err);
    if (!status)
        status = run->format->write(run, err);
    if (!status)
        status = tt_text_end(&run->text, err);
    if (!status && report)
        *report = (struct tt_export_report){.tracks = run->tracks, .unseen = wanted - run->tracks};
    return status;
}

enum tt_status tt_export_write_file(struct tt_file *file, const struct tt_export_format *format,
                                    const struct tt_export_source *source,
                                    const struct tt_export_options *options, struct tt_export_report *report,
                                    struct tt_error *err)
{
    struct tt_export *run;
    enum tt_status status = tt_export_check(format, options, err);

    if (status)
        return status;
    run = calloc(1, sizeof *run);
    if (run) {
        run->file = file;
        tt_text_begin(&run->text, file);
        run->format = format;
        run->source = source;
        run->options = options;
        run->frames = source->frames;
        run->first_frame = format->first_frame + options->frame_offset;
        run->query = calloc((size_t)source->queries->count, sizeof *run->query);
        run->time_s = calloc((size_t)source->frames, sizeof *run->time_s);
        run->row = calloc((size_t)source->frames, sizeof *run->row);
    }
    if (run && run->query && run->time_s && run->row)
        status = run_writer(run, report, err);
    else
        status = tt_fail_errno(err, TT_RETRY_LATER, ENOMEM, "exporting tracks");
    if (run) {
        free(run->query);
        free(run->time_s);
        free(run->row);
    }
    free(run);
    return status;
}

enum tt_status tt_export_write(const char *path, const struct tt_export_format *format, enum tt_commit mode,
                               const struct tt_export_source *source, const struct tt_export_options *options,
                               struct tt_export_report *report, struct tt_error *err)
{
    struct tt_export_options complete = *options;
    char *folder = tt_path_folder(path);
    struct tt_file *file;
    enum tt_status status =
        folder ? tt_file_create(&file, path, err) : tt_fail_errno(err, TT_RETRY_LATER, ENOMEM, "%s", path);

    if (status)
        goto done;
    if (!complete.spill_folder)
        complete.spill_folder = folder;
    status = tt_export_write_file(file, format, source, &complete, report, err);
    if (!status)
        status = tt_file_commit(file, mode, err);
    else
        tt_file_abandon(file);
done:
    free(folder);
    return status;
}

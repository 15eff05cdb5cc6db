/* core/export/run.h: inside of core/export: what the writers of all formats share.
 *
 * A run has chosen its tracks before a writer is called: a writer counts tracks, 0..run->tracks-1, not
 * queries.
 */
#ifndef TT_CORE_EXPORT_RUN_H
#define TT_CORE_EXPORT_RUN_H

#include "core/export.h"
#include "core/text.h"

struct tt_export {
    struct tt_file *file;
    const struct tt_export_format *format;
    const struct tt_export_source *source;
    const struct tt_export_options *options;
    int tracks;
    int *query; /* [tracks] each one's number in the source, ascending */
    int64_t frames;
    int64_t first_frame;        /* the number that frame 0 has in the output */
    double *time_s;             /* [frames] */
    double fps;                 /* 0: not known */
    struct tt_track_point *row; /* [frames] of the track read last */
    struct tt_text text;        /* of text formats; the runner closes it */
};

/* Reads a track into run->row; `occluded` is true too where confidence is below the wanted one. */
enum tt_status tt_export_row(struct tt_export *run, int track, struct tt_error *err);

/* A track's label; "" where it has none. */
const char *tt_export_label(const struct tt_export *run, int track);

/* Names that differ: the label, or "track0007" where there is none; where two are the same all get "_" and
 * the query's number behind them. plain: bytes of ASCII other than letters, digits, blank . _ - become "_".
 * *names: [tracks], owned by the caller (tt_export_names_free). */
enum tt_status tt_export_names(char ***names, const struct tt_export *run, bool plain, struct tt_error *err);
void tt_export_names_free(char **names, int tracks);

/* The rate, for formats that cannot do without: TT_REFUSE where it is not known. */
enum tt_status tt_export_need_fps(const struct tt_export *run, struct tt_error *err);

/* All tracks once more, time-major, in a nameless file. */
struct tt_frames {
    int fd;
    int tracks;
};

/* *frames: owned by the caller (tt_frames_close). */
enum tt_status tt_frames_open(struct tt_frames *frames, struct tt_export *run, struct tt_error *err);
/* points [tracks] of one frame */
enum tt_status tt_frames_read(const struct tt_frames *frames, int64_t frame, struct tt_track_point *points,
                              struct tt_error *err);
void tt_frames_close(struct tt_frames *frames);

enum tt_status tt_export_csv(struct tt_export *run, struct tt_error *err);
enum tt_status tt_export_csv_wide(struct tt_export *run, struct tt_error *err);
enum tt_status tt_export_json(struct tt_export *run, struct tt_error *err);
enum tt_status tt_export_napari(struct tt_export *run, struct tt_error *err);
enum tt_status tt_export_nuke(struct tt_export *run, struct tt_error *err);
enum tt_status tt_export_3de(struct tt_export *run, struct tt_error *err);
enum tt_status tt_export_after_effects(struct tt_export *run, struct tt_error *err);
enum tt_status tt_export_blender(struct tt_export *run, struct tt_error *err);
enum tt_status tt_export_tapvid(struct tt_export *run, struct tt_error *err);
enum tt_status tt_export_cotracker(struct tt_export *run, struct tt_error *err);
enum tt_status tt_export_colmap(struct tt_export *run, struct tt_error *err);

#endif

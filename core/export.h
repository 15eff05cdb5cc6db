/* core/export.h: tracks in the formats of other programs. docs/FORMATS.md says what each means and where that
 * is known from.
 *
 * One table, tt_export_formats; a format is asked for by its name, and a file's points come either from a
 * track file or straight from a finished stitch, so that `tiletrack export`, `tiletrack track --format` and
 * the daemon can all write them. Equal data gives equal bytes. Memory: 24 bytes a frame of the video, 40 a
 * query point and about 20 MB, whatever queries × frames is; formats whose rows are frames spill 16 bytes a
 * point to a nameless file.
 */
#ifndef TT_CORE_EXPORT_H
#define TT_CORE_EXPORT_H

#include "core/fsio.h"
#include "core/query.h"
#include "core/status.h"
#include "core/trackfile.h"

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

/* Where an export takes its tracks from. Borrows everything (as long as it is used). */
struct tt_export_source {
    void *user;
    const struct tt_queries *queries; /* N = queries->count */
    int64_t frames;                   /* T */
    int width, height;                /* as displayed */
    bool refined;                     /* points say which of them were */
    /* points [frames] of one query; any order, more than once */
    enum tt_status (*row)(void *user, int query, struct tt_track_point *points, struct tt_error *err);
    /* time_s [frames] */
    enum tt_status (*times)(void *user, double *time_s, struct tt_error *err);
};

struct tt_export_source tt_export_from_trackfile(struct tt_trackfile *file);
struct tt_export_source tt_export_from_tracks(const struct tt_tracks *tracks);

/* Which options a format can follow; the others are refused where they are given. */
enum tt_export_option {
    TT_EXPORT_ONLY_VISIBLE = 1 << 0,
    TT_EXPORT_MIN_CONFIDENCE = 1 << 1,
    TT_EXPORT_LABELS = 1 << 2,
    TT_EXPORT_FPS = 1 << 3,
    TT_EXPORT_FRAME_OFFSET = 1 << 4,
};

/* All zero: everything, as it is. Borrows everything (until the call returns). */
struct tt_export_options {
    bool only_visible;         /* leave out samples that are occluded */
    float min_confidence;      /* samples below it count as occluded; 0..1 */
    const char *const *labels; /* shell patterns: only tracks whose label matches one */
    int label_count;
    double fps;               /* 0: from the presentation times */
    int64_t frame_offset;     /* added to the format's own frame numbers */
    const char *spill_folder; /* for the nameless file; NULL: beside the output */
    const atomic_bool *stop;  /* NULL, or set from elsewhere: TT_INTERRUPTED soon */
};

struct tt_export; /* a run, known to the writers */

struct tt_export_format {
    const char *name;                /* "nuke" */
    const char *suffix;              /* ".nk" */
    const char *summary;             /* a line for people */
    unsigned options;                /* set of enum tt_export_option */
    int first_frame;                 /* the number that the format gives to frame 0 */
    int64_t least_frame, most_frame; /* numbers that it can hold */
    bool skips_unseen;               /* a track without a visible sample is left out */
    enum tt_status (*write)(struct tt_export *run, struct tt_error *err);
};

extern const struct tt_export_format *const tt_export_formats[]; /* ends in NULL */

/* NULL: there is none of that name. */
const struct tt_export_format *tt_export_find(const char *name);

/* TT_REFUSE where an option is given that the format cannot follow, or a value that no format can; the text
 * names it. */
enum tt_status tt_export_check(const struct tt_export_format *format, const struct tt_export_options *options,
                               struct tt_error *err);

struct tt_export_report {
    int tracks, unseen; /* written; left out because no sample of them is visible */
};

/* Writes a file: temporary name, fsync, rename. On failure there is no file and what had the name before is
 * untouched. report may be NULL. TT_REFUSE: as tt_export_check; labels that match nothing; an offset that
 * leads frame numbers beyond the format's. TT_BAD_INPUT: these tracks cannot be had in that format: none of
 * them is visible, their frame rate is needed and not known, they have more frames than it can number; or the
 * source fails so. */
enum tt_status tt_export_write(const char *path, const struct tt_export_format *format, enum tt_commit mode,
                               const struct tt_export_source *source, const struct tt_export_options *options,
                               struct tt_export_report *report, struct tt_error *err);

/* The same into a file that the caller commits or abandons; options->spill_folder must be given. Borrows
 * file. */
enum tt_status tt_export_write_file(struct tt_file *file, const struct tt_export_format *format,
                                    const struct tt_export_source *source,
                                    const struct tt_export_options *options, struct tt_export_report *report,
                                    struct tt_error *err);

#endif

/* core/trackfile_parts.h: inside of core/trackfile: what its writers and its reader share. */
#ifndef TT_CORE_TRACKFILE_PARTS_H
#define TT_CORE_TRACKFILE_PARTS_H

#include "core/trackfile.h"

#include <stddef.h>

/* The arrays of an .npz track file, in the order of its members. */
enum tt_track_array {
    TT_ARRAY_TRACKS,
    TT_ARRAY_OCCLUDED,
    TT_ARRAY_CONFIDENCE,
    TT_ARRAY_QUERY_POINTS,
    TT_ARRAY_TIME_S,
    TT_ARRAY_FRAME_SIZE,
    TT_ARRAY_META,
    TT_ARRAY_LABELS,  /* only where points have labels */
    TT_ARRAY_REFINED, /* only where that was tried */
    TT_ARRAYS
};

extern const char *const tt_array_members[TT_ARRAYS]; /* "tracks.npy", ... */

enum {
    TT_BLOCK_POINTS = 1 << 16,   /* points that writers hold at a time */
    TT_NPY_HEADER_BYTES = 192,   /* our own headers: 128 bytes, more only for absurd shapes */
    TT_META_CHARACTERS = 1 << 20 /* longest meta */
};

/* A rectangle of the result: whole rows where a row fits into TT_BLOCK_POINTS, else a piece of one row. */
struct tt_block {
    int query, queries;
    int64_t frame;
    int frames;
};

/* Moves to the next block, queries first to last; the first for a block that is all zero. False behind the
 * last. */
bool tt_block_next(struct tt_block *block, int queries, int64_t frames);

/* An array's type and shape as NPY has them. */
struct tt_npy {
    char kind;      /* 'f', 'i', 'b', 'U' */
    int characters; /* kind 'U': longest string */
    int item_bytes;
    int rank;
    int64_t shape[4];
};

/* Elements × item_bytes; INT64_MAX where that is more. */
int64_t tt_npy_data_bytes(const struct tt_npy *npy);

/* Writes an NPY 1.0 header; returns its length, a multiple of 64. */
size_t tt_npy_write_header(char out[TT_NPY_HEADER_BYTES], const struct tt_npy *npy);

/* Reads the dictionary of a header (what stands behind its length). False: not one of ours or NumPy's, or a
 * type that track files do not have. text ends in a NUL. */
bool tt_npy_parse_header(struct tt_npy *npy, const char *text);

/* The heading and one row of a .csv track file; label: NULL where points have none; refined: whether there is
 * a column for it. */
struct tt_text;
void tt_tracks_put_csv_heading(struct tt_text *text, bool labelled, bool refined);
void tt_tracks_put_csv_row(struct tt_text *text, int query, const char *label, int64_t frame, double time_s,
                           const struct tt_track_point *point, bool refined);

enum tt_status tt_tracks_write_npz(struct tt_file *file, const struct tt_tracks *tracks,
                                   struct tt_error *err);
enum tt_status tt_tracks_write_csv(struct tt_file *file, const struct tt_tracks *tracks,
                                   struct tt_error *err);
enum tt_status tt_tracks_write_jsonl(struct tt_file *file, const struct tt_tracks *tracks,
                                     struct tt_error *err);

#endif

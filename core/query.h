/* core/query.h: query points: where they come from, and what is wrong with them.
 *
 * A query point is a frame number (from 0) and a position in pixels of the source video as displayed, raster
 * convention (docs/FORMATS.md describes the files). Problems of a file's rows are reported all at once: the
 * text names the file and for each bad row its line, up to what an error text holds, then "and 17 more".
 */
#ifndef TT_CORE_QUERY_H
#define TT_CORE_QUERY_H

#include "core/status.h"

#include <stddef.h>
#include <stdint.h>

enum {
    TT_QUERIES_MAX = 100000,
    TT_GRID_MAX = 316,                  /* grid lines a side: 316² is under TT_QUERIES_MAX */
    TT_QUERY_FRAME_MAX = (1 << 24) - 1, /* a track file's f4 holds every frame number up to here */
    TT_QUERY_FILE_BYTES = 16 << 20,     /* largest query file */
    TT_LABEL_BYTES = 255,               /* longest label, UTF-8 */
};

struct tt_query {
    int32_t frame;
    float x, y;   /* source pixels as displayed */
    int32_t line; /* in its file, from 1; 0 for grids and masks */
};

/* Owns everything in it. All zero is empty. */
struct tt_queries {
    int count;
    struct tt_query *points; /* [count] */
    char **labels;           /* [count] UTF-8, "" where a point has none; NULL: no point has one */
    char *origin;            /* the file's name for messages; NULL for grids */
};

/* What a video allows. 0 means not known yet: then that check is left out. */
struct tt_query_bounds {
    int width, height; /* as displayed */
    int64_t frames;
};

/* Each of the following fills *queries (which is overwritten, not freed) and leaves it untouched on failure.
 */

/* A query file; the name's ending says which kind: ".json" or anything else for CSV. TT_BAD_INPUT:
 * unreadable, too large, malformed, no point in it, too many of them, rows out of bounds. */
enum tt_status tt_queries_read(struct tt_queries *queries, const char *path,
                               const struct tt_query_bounds *bounds, struct tt_error *err);

/* The same from memory; `name` is for messages. text need not end in a NUL. Borrows (until it returns). */
enum tt_status tt_queries_parse_csv(struct tt_queries *queries, const char *text, size_t size,
                                    const char *name, const struct tt_query_bounds *bounds,
                                    struct tt_error *err);
enum tt_status tt_queries_parse_json(struct tt_queries *queries, const char *text, size_t size,
                                     const char *name, const struct tt_query_bounds *bounds,
                                     struct tt_error *err);

/* side × side points at the centres of equal cells of the whole frame, row after row. TT_REFUSE: side not in
 * 1..TT_GRID_MAX or frame not in 0..TT_QUERY_FRAME_MAX. */
enum tt_status tt_queries_grid(struct tt_queries *queries, int side, int64_t frame, int width, int height,
                               struct tt_error *err);

/* A decoded mask. Its size need not be the video's: it is stretched over the whole frame. Borrows pixels. */
struct tt_mask {
    const uint8_t *pixels; /* [height][width], not 0: inside */
    int width, height;
};

/* About side × side points on a square lattice inside the mask, never closer than one source pixel; at least
 * one point. The same mask always gives the same points. TT_BAD_INPUT: nothing is inside. */
enum tt_status tt_queries_mask(struct tt_queries *queries, int side, int64_t frame,
                               const struct tt_mask *mask, int width, int height, struct tt_error *err);

/* Checks points against what became known about the video since they were read; all bad rows in one text. */
enum tt_status tt_queries_check(const struct tt_queries *queries, const struct tt_query_bounds *bounds,
                                struct tt_error *err);

/* Positions in clip pixels: xy [count][2]. */
void tt_queries_to_clip(const struct tt_queries *queries, int width, int height, float *xy);

int32_t tt_queries_last_frame(const struct tt_queries *queries);

void tt_queries_free(struct tt_queries *queries);

enum tt_sidecar { TT_SIDECAR_NONE, TT_SIDECAR_QUERIES, TT_SIDECAR_MASK };

/* The side-car file of a video that counts: NAME.queries.csv, else NAME.queries.json, else NAME.mask.png
 * (NAME as tt_path_sibling makes it). *path: owned by the caller (free), NULL for TT_SIDECAR_NONE. Fails only
 * where a file is there and cannot be looked at, or is a link to nothing, or without memory. */
enum tt_status tt_sidecar_find(enum tt_sidecar *kind, char **path, const char *video, struct tt_error *err);

#endif

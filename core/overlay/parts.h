/* core/overlay/parts.h: inside of core/overlay. */
#ifndef TT_CORE_OVERLAY_PARTS_H
#define TT_CORE_OVERLAY_PARTS_H

#include "core/export/run.h"
#include "core/overlay/draw.h"

/* A speed's colour, 0 still to 1 fastest. */
struct tt_colour8 tt_heat_colour(float heat);

/* --- mesh.c: which points are neighbours --- */

struct tt_edge {
    int a, b; /* tracks */
};

struct tt_mesh {
    struct tt_edge *edges; /* owned */
    int count;
};

/* Joins points a and b of one query frame where no other point of it lies in or on the circle between them (a
 * Gabriel graph, sought among each one's 12 nearest): a lattice's own lines, and a net for any other points.
 */
enum tt_status tt_mesh_make(struct tt_mesh *mesh, const struct tt_export *run, struct tt_error *err);
void tt_mesh_free(struct tt_mesh *mesh);

/* --- paint.c: one frame --- */

/* What is known of all frames. */
struct tt_painter {
    const struct tt_export *run;
    enum tt_overlay_style style;
    struct tt_mesh mesh;         /* of style GRID */
    float scale_x, scale_y;      /* from the video's pixels to the picture's */
    float radius, outline;       /* of a point, pixels */
    float spot;                  /* radius of style HEAT */
    double full_speed;           /* pixels a second: the scale's end, of style HEAT */
    int tail_frames;             /* that are kept, with the present one */
    struct tt_track_point *kept; /* [tail_frames][tracks]: frame t in row t % tail_frames; owned */
    double tail_s;
};

/* Sizes and colours for these tracks in a picture of that size. frames: all points. */
enum tt_status tt_painter_open(struct tt_painter *painter, const struct tt_export *run,
                               const struct tt_overlay_options *options, const struct tt_frames *frames,
                               struct tt_error *err);
void tt_painter_close(struct tt_painter *painter); /* all zero is allowed */

/* The same for a picture of another size; borrows painter's (as long as that is open; it is not closed). */
struct tt_painter tt_painter_for(const struct tt_painter *painter, int width, int height);

/* Where the points of frame t are to be put before it is painted: [tracks]. */
struct tt_track_point *tt_painter_row(const struct tt_painter *painter, int64_t frame);

/* Draws frame t. Frames are painted in order, each once. */
void tt_painter_paint(const struct tt_painter *painter, int64_t frame, const struct tt_canvas *canvas);

/* --- sheet.c: some frames, small, in one picture --- */

enum { TT_SHEET_CELLS = 12 };

struct tt_sheet {
    struct tt_canvas canvas; /* its rgb is owned */
    struct tt_canvas cell;   /* the same */
    int columns, rows;
    int64_t frames; /* of the video */
    int cells;
};

enum tt_status tt_sheet_open(struct tt_sheet *sheet, int width, int height, int64_t frames,
                             struct tt_error *err);
/* Takes the frame, not painted yet, where it is one of those. Tracks are painted in the cell's size, so that
 * they are seen. */
void tt_sheet_add(struct tt_sheet *sheet, int64_t frame, const struct tt_canvas *picture,
                  const struct tt_painter *painter);
void tt_sheet_close(struct tt_sheet *sheet); /* all zero is allowed */

#endif

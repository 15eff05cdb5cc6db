/* core/overlay/paint.c: what one frame looks like.
 *
 * Sizes follow the picture (a point's radius is 0.75 % of its shorter side) and shrink where points lie close
 * together. Everything coloured has a dark rim, so that it stands out from bright and from dark pictures
 * alike. A hidden point is a ring; a tail or an edge of the grid is not drawn where one of its ends is
 * hidden. Fails for want of memory, and as the spilled frames do.
 */
#include "core/overlay/parts.h"

#include <errno.h>
#include <math.h>
#include <stdlib.h>

enum { KEPT_POINTS = 1 << 22, SPEED_BINS = 320, BINS_AN_OCTAVE = 16 };

static const struct tt_colour8 dark = {0, 0, 0};
static const float rim_alpha = 0.65f, tail_rim_alpha = 0.3f;

/* --- sizes --- */

/* Between neighbours, if the points were spread evenly over the box that they lie in, or along it. */
static float spacing_of(const struct tt_export *run)
{
    float left = INFINITY, top = INFINITY, right = -INFINITY, bottom = -INFINITY;

    for (int i = 0; i < run->tracks; i++) {
        const struct tt_query *q = &run->source->queries->points[run->query[i]];

        left = fminf(left, q->x);
        right = fmaxf(right, q->x);
        top = fminf(top, q->y);
        bottom = fmaxf(bottom, q->y);
    }
    if (run->tracks < 4)
        return INFINITY;
    return fmaxf(sqrtf((right - left + 1) * (bottom - top + 1) / (float)run->tracks),
                 fmaxf(right - left, bottom - top) / (float)run->tracks);
}

static void choose_sizes(struct tt_painter *p, int width, int height)
{
    const struct tt_export_source *source = p->run->source;
    const float side = (float)(width < height ? width : height);
    float spacing;

    p->scale_x = (float)width / (float)source->width;
    p->scale_y = (float)height / (float)source->height;
    spacing = spacing_of(p->run) * p->scale_x;

    p->radius = fmaxf(1.8f, fminf(0.0075f * side, 18));
    p->radius = fmaxf(1.2f, fminf(p->radius, 0.24f * spacing));
    p->outline = fmaxf(0.7f, 0.25f * p->radius);
    p->spot = fmaxf(4 * p->radius, fminf(0.75f * spacing, 0.08f * side));
}

static bool is_seen(const struct tt_track_point *from, const struct tt_track_point *to)
{
    return !from->occluded && !to->occluded;
}

/* Pixels a second between two successive frames. */
static double speed(const struct tt_painter *p, int64_t frame, const struct tt_track_point *from,
                    const struct tt_track_point *to)
{
    const double time_s = p->run->time_s[frame] - p->run->time_s[frame - 1];

    return hypotf(to->x - from->x, to->y - from->y) / (time_s > 1e-4 ? time_s : 1e-4);
}

/* What 95 of 100 samples are slower than. */
static enum tt_status find_full_speed(struct tt_painter *p, const struct tt_frames *frames,
                                      struct tt_error *err)
{
    const int tracks = p->run->tracks;
    int64_t bins[SPEED_BINS] = {0}, all = 0, below = 0;
    enum tt_status status = TT_OK;
    int bin = 0;

    for (int64_t t = 0; t < p->run->frames && !status; t++) {
        const struct tt_track_point *now = tt_painter_row(p, t);
        const struct tt_track_point *before = t > 0 ? tt_painter_row(p, t - 1) : NULL;

        status = tt_frames_read(frames, t, tt_painter_row(p, t), err);
        for (int i = 0; i < tracks && before && !status; i++) {
            const double octaves = log2(1 + speed(p, t, &before[i], &now[i]));

            if (!is_seen(&before[i], &now[i]))
                continue;
            bins[(int)fmin(octaves * BINS_AN_OCTAVE, SPEED_BINS - 1)]++;
            all++;
        }
    }
    while (bin < SPEED_BINS - 1 && below + bins[bin] < all * 95 / 100)
        below += bins[bin++];
    p->full_speed = fmax(exp2((bin + 1.0) / BINS_AN_OCTAVE) - 1, 0.05 * p->run->source->height);
    return status;
}

enum tt_status tt_painter_open(struct tt_painter *painter, const struct tt_export *run,
                               const struct tt_overlay_options *options, const struct tt_frames *frames,
                               struct tt_error *err)
{
    struct tt_painter made = {.run = run,
                              .style = options->style,
                              .tail_frames = TT_OVERLAY_TAIL_FRAMES,
                              .tail_s = options->tail_s > 0 ? options->tail_s : 0.6};
    enum tt_status status = TT_OK;

    if ((int64_t)made.tail_frames * run->tracks > KEPT_POINTS)
        made.tail_frames = KEPT_POINTS / run->tracks < 2 ? 2 : KEPT_POINTS / run->tracks;
    made.kept = calloc((size_t)made.tail_frames * (size_t)run->tracks, sizeof *made.kept);
    if (!made.kept)
        return tt_fail_errno(err, TT_RETRY_LATER, ENOMEM, "drawing tracks");
    choose_sizes(&made, run->source->width, run->source->height);
    if (made.style == TT_OVERLAY_GRID)
        status = tt_mesh_make(&made.mesh, run, err);
    if (!status && made.style == TT_OVERLAY_HEAT)
        status = find_full_speed(&made, frames, err);
    if (status)
        tt_painter_close(&made);
    else
        *painter = made;
    return status;
}

void tt_painter_close(struct tt_painter *painter)
{
    free(painter->kept);
    tt_mesh_free(&painter->mesh);
    *painter = (struct tt_painter){0};
}

struct tt_painter tt_painter_for(const struct tt_painter *painter, int width, int height)
{
    struct tt_painter other = *painter;

    choose_sizes(&other, width, height);
    return other;
}

struct tt_track_point *tt_painter_row(const struct tt_painter *p, int64_t frame)
{
    return p->kept + frame % p->tail_frames * p->run->tracks;
}

/* --- shapes --- */

static struct tt_pen pen_of(const struct tt_painter *p, int track)
{
    return (struct tt_pen){tt_overlay_colour(p->run->query[track]), 1};
}

/* size: of a point, 1 as it is. */
static void paint_point(const struct tt_painter *p, const struct tt_track_point *at, float size,
                        struct tt_pen pen, const struct tt_canvas *canvas)
{
    const struct tt_pen rim = {dark, rim_alpha};
    const float x = at->x * p->scale_x, y = at->y * p->scale_y;
    const float radius = size * p->radius, outline = size * p->outline, width = fmaxf(1, 0.36f * radius);

    if (at->occluded) {
        tt_draw_ring(canvas, x, y, radius + outline, width + 2 * outline, rim);
        tt_draw_ring(canvas, x, y, radius, width, pen);
    } else {
        tt_draw_disc(canvas, x, y, radius + outline, rim);
        tt_draw_disc(canvas, x, y, radius, pen);
    }
}

static void paint_line(const struct tt_painter *p, const struct tt_track_point *from,
                       const struct tt_track_point *to, float width, struct tt_pen pen,
                       const struct tt_canvas *canvas)
{
    tt_draw_line(canvas, (const float[]){from->x * p->scale_x, from->y * p->scale_y},
                 (const float[]){to->x * p->scale_x, to->y * p->scale_y}, width, pen);
}

/* From the oldest piece to the newest, which is as wide as the point's radius. grow: of the line, for its
 * rim. */
static void paint_tail(const struct tt_painter *p, int64_t frame, int track, float grow, struct tt_pen pen,
                       const struct tt_canvas *canvas)
{
    const double now_s = p->run->time_s[frame];
    int64_t t = frame - p->tail_frames + 1;

    for (t = t < 1 ? 1 : t + 1; t <= frame; t++) {
        const struct tt_track_point *from = tt_painter_row(p, t - 1) + track,
                                    *to = tt_painter_row(p, t) + track;
        const float fresh = (float)(1 - (now_s - p->run->time_s[t]) / p->tail_s);

        if (fresh >= 0 && is_seen(from, to))
            paint_line(p, from, to, p->radius * (0.3f + 0.7f * fresh) + grow, pen, canvas);
    }
}

static void paint_tails(const struct tt_painter *p, int64_t frame, const struct tt_canvas *canvas)
{
    for (int i = 0; i < p->run->tracks; i++) {
        paint_tail(p, frame, i, p->outline, (struct tt_pen){dark, tail_rim_alpha}, canvas);
        paint_tail(p, frame, i, 0, pen_of(p, i), canvas);
    }
}

static struct tt_colour8 mix(struct tt_colour8 a, struct tt_colour8 b)
{
    return (struct tt_colour8){(uint8_t)((a.r + b.r) / 2), (uint8_t)((a.g + b.g) / 2),
                               (uint8_t)((a.b + b.b) / 2)};
}

static void paint_mesh(const struct tt_painter *p, int64_t frame, const struct tt_canvas *canvas)
{
    const struct tt_track_point *now = tt_painter_row(p, frame);
    const float width = fmaxf(1, 0.65f * p->radius);

    for (int rim = 1; rim >= 0; rim--)
        for (int i = 0; i < p->mesh.count; i++) {
            const int a = p->mesh.edges[i].a, b = p->mesh.edges[i].b;
            const struct tt_pen pen = {mix(pen_of(p, a).colour, pen_of(p, b).colour), 1};

            if (is_seen(&now[a], &now[b]))
                paint_line(p, &now[a], &now[b], width + (rim ? 2 * p->outline : 0),
                           rim ? (struct tt_pen){dark, rim_alpha} : pen, canvas);
        }
}

/* Grey and dim, so that only spots have colours. */
static void fade(const struct tt_canvas *canvas)
{
    const size_t pixels = (size_t)canvas->width * (size_t)canvas->height;

    for (uint8_t *at = canvas->rgb, *end = at + 3 * pixels; at < end; at += 3) {
        const int grey = 54 * at[0] + 183 * at[1] + 19 * at[2];

        for (int c = 0; c < 3; c++)
            at[c] = (uint8_t)((3 * grey + 256 * at[c]) >> 11);
    }
}

static void paint_heat(const struct tt_painter *p, int64_t frame, const struct tt_canvas *canvas)
{
    const struct tt_track_point *now = tt_painter_row(p, frame);
    const struct tt_track_point *before = frame > 0 ? tt_painter_row(p, frame - 1) : now;

    fade(canvas);
    for (int spots = 1; spots >= 0; spots--)
        for (int i = 0; i < p->run->tracks; i++) {
            const double heat = frame > 0 ? speed(p, frame, &before[i], &now[i]) / p->full_speed : 0;
            const struct tt_pen pen = {tt_heat_colour((float)heat), spots ? 0.85f : 1};

            if (!spots)
                paint_point(p, &now[i], 0.6f, pen, canvas);
            else if (is_seen(&before[i], &now[i]))
                tt_draw_spot(canvas, now[i].x * p->scale_x, now[i].y * p->scale_y, p->spot, pen);
        }
}

void tt_painter_paint(const struct tt_painter *p, int64_t frame, const struct tt_canvas *canvas)
{
    const struct tt_track_point *now = tt_painter_row(p, frame);
    const float size = p->style == TT_OVERLAY_GRID ? 0.7f : 1;

    if (p->style == TT_OVERLAY_HEAT) {
        paint_heat(p, frame, canvas);
        return;
    }
    if (p->style == TT_OVERLAY_TAILS)
        paint_tails(p, frame, canvas);
    if (p->style == TT_OVERLAY_GRID)
        paint_mesh(p, frame, canvas);
    for (int i = 0; i < p->run->tracks; i++)
        paint_point(p, &now[i], size, pen_of(p, i), canvas);
}

/* core/overlay/mesh.c: neighbours among query points, by cells of a grid.
 *
 * Invariant: each edge once, a < b; the same points give the same edges in the same order. Fails for want of
 * memory.
 */
#include "core/overlay/parts.h"

#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { NEAREST = 12, RINGS_MOST = 8 };

struct cells {
    const struct tt_export *run;
    int columns, rows;
    float side;
    int *first; /* [columns * rows + 1] of a cell's tracks in `tracks` */
    int *tracks;
};

static const struct tt_query *query_of(const struct tt_export *run, int track)
{
    return &run->source->queries->points[run->query[track]];
}

static int cell_of(const struct cells *c, const struct tt_query *query)
{
    int x = (int)(query->x / c->side), y = (int)(query->y / c->side);

    x = x < 0 ? 0 : x >= c->columns ? c->columns - 1 : x;
    y = y < 0 ? 0 : y >= c->rows ? c->rows - 1 : y;
    return y * c->columns + x;
}

static bool make_cells(struct cells *c, const struct tt_export *run)
{
    const float width = (float)run->source->width, height = (float)run->source->height;
    int *fill;

    *c = (struct cells){.run = run, .side = fmaxf(1, sqrtf(2 * width * height / (float)run->tracks))};
    c->columns = (int)(width / c->side) + 1;
    c->rows = (int)(height / c->side) + 1;
    c->first = calloc((size_t)c->columns * (size_t)c->rows + 1, sizeof *c->first);
    c->tracks = calloc((size_t)run->tracks, sizeof *c->tracks);
    fill = calloc((size_t)c->columns * (size_t)c->rows, sizeof *fill);
    if (c->first && c->tracks && fill) {
        for (int i = 0; i < run->tracks; i++)
            c->first[cell_of(c, query_of(run, i)) + 1]++;
        for (int i = 0; i < c->columns * c->rows; i++)
            c->first[i + 1] += c->first[i];
        for (int i = 0; i < run->tracks; i++) {
            int cell = cell_of(c, query_of(run, i));

            c->tracks[c->first[cell] + fill[cell]++] = i;
        }
    }
    free(fill);
    return c->first && c->tracks && fill;
}

static float distance(const struct tt_export *run, int a, int b)
{
    const struct tt_query *p = query_of(run, a), *q = query_of(run, b);

    return hypotf(p->x - q->x, p->y - q->y);
}

/* Keeps `track` among the nearest, ascending, if it is. */
static void keep_nearest(const struct tt_export *run, int of, int track, int *nearest, int *count)
{
    int at = *count;

    if (track == of || query_of(run, track)->frame != query_of(run, of)->frame)
        return;
    while (at > 0 && distance(run, of, track) < distance(run, of, nearest[at - 1]))
        at--;
    if (at == NEAREST)
        return;
    if (*count < NEAREST)
        ++*count;
    memmove(nearest + at + 1, nearest + at, (size_t)(*count - at - 1) * sizeof *nearest);
    nearest[at] = track;
}

/* The nearest, ascending; only those that are nearer than anything in cells that were not looked at. */
static int find_nearest(const struct cells *c, int track, int *nearest)
{
    const int cell = cell_of(c, query_of(c->run, track)), x = cell % c->columns, y = cell / c->columns;
    int count = 0, sure = 0;

    for (int ring = 2; ring <= RINGS_MOST && sure < NEAREST; ring *= 2) {
        count = sure = 0;
        for (int row = y - ring; row <= y + ring; row++)
            for (int column = x - ring; column <= x + ring; column++) {
                const int at = row * c->columns + column;

                if (row < 0 || column < 0 || row >= c->rows || column >= c->columns)
                    continue;
                for (int i = c->first[at]; i < c->first[at + 1]; i++)
                    keep_nearest(c->run, track, c->tracks[i], nearest, &count);
            }
        while (sure < count && distance(c->run, track, nearest[sure]) <= (float)ring * c->side)
            sure++;
    }
    return sure;
}

/* Another point lies in or on the circle whose diameter a–b is. */
static bool is_between(const struct tt_export *run, int a, int b, const int *nearest, int count)
{
    const struct tt_query *p = query_of(run, a), *q = query_of(run, b);
    const float x = (p->x + q->x) / 2, y = (p->y + q->y) / 2, radius = distance(run, a, b) / 2;

    for (int i = 0; i < count; i++) {
        const struct tt_query *other = query_of(run, nearest[i]);

        if (nearest[i] != b && hypotf(other->x - x, other->y - y) <= radius * 1.001f)
            return true;
    }
    return false;
}

static void join(struct tt_mesh *mesh, const struct cells *c)
{
    for (int a = 0; a < c->run->tracks; a++) {
        int nearest[NEAREST + 1], count = find_nearest(c, a, nearest);

        for (int i = 0; i < count; i++)
            if (a < nearest[i] && !is_between(c->run, a, nearest[i], nearest, count))
                mesh->edges[mesh->count++] = (struct tt_edge){a, nearest[i]};
    }
}

enum tt_status tt_mesh_make(struct tt_mesh *mesh, const struct tt_export *run, struct tt_error *err)
{
    struct cells cells = {0};
    bool made = make_cells(&cells, run);

    *mesh = (struct tt_mesh){.edges = calloc((size_t)run->tracks * NEAREST, sizeof *mesh->edges)};
    if (made && mesh->edges)
        join(mesh, &cells);
    free(cells.first);
    free(cells.tracks);
    if (made && mesh->edges)
        return TT_OK;
    tt_mesh_free(mesh);
    return tt_fail_errno(err, TT_RETRY_LATER, ENOMEM, "neighbours of %d points", run->tracks);
}

void tt_mesh_free(struct tt_mesh *mesh)
{
    free(mesh->edges);
    *mesh = (struct tt_mesh){0};
}

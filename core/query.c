/* core/query.c: query points: grids, masks, bounds, side-cars; and the gathering of rows for
 * core/query_file.c.
 *
 * Invariants: a struct tt_query that was made lies within the bounds that were known, so frame is 0 or more
 * and x and y are finite and not negative. The faults of many rows become one text that always fits.
 *
 * Fails: on bad rows (TT_BAD_INPUT), bad arguments of grids (TT_REFUSE) and without memory.
 */
#include "core/query.h"
#include "core/query_rows.h"

#include "core/clip.h"
#include "core/fsio.h"

#include <errno.h>
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

/* --- faults ------------------------------------------------------------------------------------------------
 */

void tt_query_fault(struct tt_query_faults *faults, int64_t line, const char *format, ...)
{
    char text[160];
    va_list args;
    int length = 0;

    faults->count++;
    if (faults->full)
        return;
    if (line > 0)
        length = snprintf(text, sizeof text, "line %lld: ", (long long)line);
    va_start(args, format);
    vsnprintf(text + length, sizeof text - (size_t)length, format, args);
    va_end(args);
    length = (int)strlen(text);
    /* Rows are shown in order and none is skipped: the first that does not fit is the last that was tried. */
    if (faults->used + 2 + (size_t)length >= sizeof faults->text) {
        faults->full = true;
        return;
    }
    faults->used += (size_t)snprintf(faults->text + faults->used, sizeof faults->text - faults->used, "%s%s",
                                     faults->used ? "; " : "", text);
    faults->full = ++faults->shown == TT_QUERY_FAULTS_SHOWN;
}

enum tt_status tt_query_faults_report(const struct tt_query_faults *faults, const char *name,
                                      struct tt_error *err)
{
    char head[40] = "", tail[40] = "";

    if (faults->count == 0)
        return TT_OK;
    if (faults->count > 1)
        snprintf(head, sizeof head, "%lld bad rows: ", (long long)faults->count);
    if (faults->count > faults->shown)
        snprintf(tail, sizeof tail, "; and %lld more", (long long)(faults->count - faults->shown));
    return tt_fail(err, TT_BAD_INPUT, "%.255s%s%s%s%s", name ? tt_path_name(name) : "", name ? ": " : "",
                   head, faults->text, tail);
}

/* --- bounds ------------------------------------------------------------------------------------------------
 */

static bool check_bounds(const struct tt_query *query, const struct tt_query_bounds *bounds,
                         struct tt_query_faults *faults)
{
    if (bounds->frames > 0 && query->frame >= bounds->frames)
        tt_query_fault(faults, query->line, "frame %d is not in the video, whose frames are 0 to %lld",
                       query->frame, (long long)bounds->frames - 1);
    else if (bounds->width > 0 && query->x > (float)bounds->width)
        tt_query_fault(faults, query->line, "x %g is outside the frame, which is %d wide", (double)query->x,
                       bounds->width);
    else if (bounds->height > 0 && query->y > (float)bounds->height)
        tt_query_fault(faults, query->line, "y %g is outside the frame, which is %d high", (double)query->y,
                       bounds->height);
    else
        return true;
    return false;
}

bool tt_query_make(struct tt_query *query, double frame, double x, double y, int32_t line,
                   const struct tt_query_bounds *bounds, struct tt_query_faults *faults)
{
    static const struct tt_query_bounds unknown;

    if (!(frame >= 0 && frame <= TT_QUERY_FRAME_MAX) || frame != floor(frame))
        tt_query_fault(faults, line, "frame %g is not a whole number from 0 to %d", frame,
                       TT_QUERY_FRAME_MAX);
    else if (!isfinite((float)x) || !isfinite((float)y))
        tt_query_fault(faults, line, "%c is not a finite number", isfinite((float)x) ? 'y' : 'x');
    else if (x < 0 || y < 0)
        tt_query_fault(faults, line, "%c %g is negative", x < 0 ? 'x' : 'y', x < 0 ? x : y);
    else {
        *query = (struct tt_query){.frame = (int32_t)frame, .x = (float)x, .y = (float)y, .line = line};
        return check_bounds(query, bounds ? bounds : &unknown, faults);
    }
    return false;
}

enum tt_status tt_queries_check(const struct tt_queries *queries, const struct tt_query_bounds *bounds,
                                struct tt_error *err)
{
    struct tt_query_faults faults = {.used = 0};

    for (int q = 0; q < queries->count; q++) {
        /* All points of a grid share their fault: it is told once. */
        if (!check_bounds(&queries->points[q], bounds, &faults) && !queries->origin)
            break;
    }
    return tt_query_faults_report(&faults, queries->origin, err);
}

/* --- gathering ---------------------------------------------------------------------------------------------
 */

/* From the first label on, every point has a string. */
static bool append_label(struct tt_query_builder *builder, const char *label)
{
    struct tt_queries *queries = &builder->queries;
    int have = queries->labels ? queries->count - 1 : 0;

    if (!queries->labels && label[0] == '\0')
        return true;
    if (builder->label_room < builder->room || !queries->labels) {
        char **labels = realloc(queries->labels, (size_t)builder->room * sizeof *labels);

        if (!labels)
            return false;
        queries->labels = labels;
        memset(labels + have, 0, (size_t)(builder->room - have) * sizeof *labels);
        builder->label_room = builder->room;
    }
    for (int q = have; q < queries->count; q++) {
        queries->labels[q] = strdup(q == queries->count - 1 ? label : "");
        if (!queries->labels[q])
            return false;
    }
    return true;
}

bool tt_query_append(struct tt_query_builder *builder, const struct tt_query *query, const char *label)
{
    struct tt_queries *queries = &builder->queries;

    if (queries->count == builder->room) {
        int room = builder->room ? 2 * builder->room : 64;
        struct tt_query *points = realloc(queries->points, (size_t)room * sizeof *points);

        if (!points)
            return false;
        queries->points = points;
        builder->room = room;
    }
    queries->points[queries->count++] = *query;
    if (append_label(builder, label ? label : ""))
        return true;
    queries->count--; /* labels may be shorter than count otherwise */
    return false;
}

enum tt_status tt_query_finish(struct tt_query_builder *builder, const struct tt_query_faults *faults,
                               struct tt_queries *queries, const char *name, struct tt_error *err)
{
    enum tt_status status = tt_query_faults_report(faults, name, err);

    if (!status && builder->queries.count == 0)
        status =
            tt_fail(err, TT_BAD_INPUT, "%.255s: no query point in it", name ? tt_path_name(name) : "mask");
    if (!status && name) {
        builder->queries.origin = strdup(name);
        if (!builder->queries.origin)
            status = tt_fail_errno(err, TT_RETRY_LATER, ENOMEM, "query points");
    }
    if (status)
        tt_queries_free(&builder->queries);
    else
        *queries = builder->queries;
    *builder = (struct tt_query_builder){.room = 0};
    return status;
}

void tt_queries_free(struct tt_queries *queries)
{
    for (int q = 0; queries->labels && q < queries->count; q++)
        free(queries->labels[q]);
    free(queries->labels);
    free(queries->points);
    free(queries->origin);
    *queries = (struct tt_queries){.count = 0};
}

/* --- grids and masks ---------------------------------------------------------------------------------------
 */

static enum tt_status check_grid(int side, int64_t frame, struct tt_error *err)
{
    if (side < 1 || side > TT_GRID_MAX)
        return tt_fail(err, TT_REFUSE, "a grid has 1 to %d points a side, not %d", TT_GRID_MAX, side);
    if (frame < 0 || frame > TT_QUERY_FRAME_MAX)
        return tt_fail(err, TT_REFUSE, "frame %lld is not in 0 to %d", (long long)frame, TT_QUERY_FRAME_MAX);
    return TT_OK;
}

enum tt_status tt_queries_grid(struct tt_queries *queries, int side, int64_t frame, int width, int height,
                               struct tt_error *err)
{
    enum tt_status status = check_grid(side, frame, err);
    struct tt_query *points;

    if (status)
        return status;
    points = calloc((size_t)side * side, sizeof *points);
    if (!points)
        return tt_fail_errno(err, TT_RETRY_LATER, ENOMEM, "a grid of query points");
    for (int row = 0; row < side; row++)
        for (int column = 0; column < side; column++)
            points[row * side + column] = (struct tt_query){.frame = (int32_t)frame,
                                                            .x = (float)((column + 0.5) * width / side),
                                                            .y = (float)((row + 0.5) * height / side)};
    *queries = (struct tt_queries){.count = side * side, .points = points};
    return TT_OK;
}

enum { LATTICE_POINTS_MAX = 1 << 22 }; /* tried at one spacing: bounds the time that scattered masks take */

/* A square lattice over the mask's bounding box, centred in it. All lengths in source pixels. */
struct lattice {
    double left, top, spacing;
    int columns, rows;
};

/* The mask stretched over the frame. */
struct inside {
    const struct tt_mask *mask;
    double scale_x, scale_y;         /* source pixels a mask pixel */
    double left, top, right, bottom; /* bounding box, source pixels */
    double area;                     /* source pixels inside */
};

static void measure(struct inside *inside, const struct tt_mask *mask, int width, int height)
{
    int left = mask->width, right = 0, top = mask->height, bottom = 0;
    int64_t pixels = 0;

    for (int y = 0; y < mask->height; y++)
        for (int x = 0; x < mask->width; x++) {
            if (!mask->pixels[(size_t)y * mask->width + x])
                continue;
            pixels++;
            left = x < left ? x : left;
            right = x + 1 > right ? x + 1 : right;
            top = y < top ? y : top;
            bottom = y + 1;
        }
    *inside = (struct inside){
        .mask = mask, .scale_x = (double)width / mask->width, .scale_y = (double)height / mask->height};
    inside->left = left * inside->scale_x;
    inside->right = right * inside->scale_x;
    inside->top = top * inside->scale_y;
    inside->bottom = bottom * inside->scale_y;
    inside->area = (double)pixels * inside->scale_x * inside->scale_y;
}

static struct lattice make_lattice(const struct inside *inside, double spacing)
{
    double width = inside->right - inside->left, height = inside->bottom - inside->top;
    struct lattice lattice = {.spacing = spacing};

    lattice.columns = width < spacing ? 1 : (int)(width / spacing);
    lattice.rows = height < spacing ? 1 : (int)(height / spacing);
    lattice.left = inside->left + (width - (lattice.columns - 1) * spacing) / 2;
    lattice.top = inside->top + (height - (lattice.rows - 1) * spacing) / 2;
    return lattice;
}

static bool is_inside(const struct inside *inside, double x, double y)
{
    int column = (int)(x / inside->scale_x), row = (int)(y / inside->scale_y);

    return column < inside->mask->width && row < inside->mask->height &&
           inside->mask->pixels[(size_t)row * inside->mask->width + column];
}

/* Points of a lattice inside the mask; appends them where a builder is given. -1: no memory. */
static int64_t walk_lattice(const struct inside *inside, const struct lattice *lattice, int32_t frame,
                            struct tt_query_builder *builder)
{
    int64_t count = 0;

    for (int row = 0; row < lattice->rows; row++)
        for (int column = 0; column < lattice->columns; column++) {
            double x = lattice->left + column * lattice->spacing, y = lattice->top + row * lattice->spacing;
            struct tt_query query = {.frame = frame, .x = (float)x, .y = (float)y};

            if (!is_inside(inside, x, y))
                continue;
            if (builder && !tt_query_append(builder, &query, NULL))
                return -1;
            count++;
        }
    return count;
}

/* A lattice whose points inside the mask are closest to `wanted` in number, among spacings around the one
 * that the mask's area asks for. Larger spacings come first, so they win where two are as close. */
static struct lattice choose_lattice(const struct inside *inside, int64_t wanted)
{
    double box = (inside->right - inside->left) * (inside->bottom - inside->top);
    double least = fmax(1, sqrt(box / LATTICE_POINTS_MAX));
    double ideal = sqrt(inside->area / (double)wanted);
    struct lattice best = make_lattice(inside, fmax(ideal, least));
    int64_t best_miss = INT64_MAX;

    for (double spacing = 20 * ideal; spacing >= ideal / 2; spacing *= 0.98) {
        struct lattice lattice = make_lattice(inside, fmax(spacing, least));
        int64_t count = walk_lattice(inside, &lattice, 0, NULL);
        int64_t miss = llabs(count - wanted);

        if (count > 0 && count <= TT_QUERIES_MAX && miss < best_miss) {
            best = lattice;
            best_miss = miss;
        }
        if (spacing <= least)
            break;
    }
    return best;
}

/* The mask is too thin for every lattice: the centre of its first pixel. */
static bool append_first_pixel(const struct inside *inside, int32_t frame, struct tt_query_builder *builder)
{
    size_t first = 0;
    struct tt_query query = {.frame = frame};

    while (!inside->mask->pixels[first])
        first++;
    query.x = (float)(((double)(first % (size_t)inside->mask->width) + 0.5) * inside->scale_x);
    query.y = (float)(((double)(first / (size_t)inside->mask->width) + 0.5) * inside->scale_y);
    return tt_query_append(builder, &query, NULL);
}

enum tt_status tt_queries_mask(struct tt_queries *queries, int side, int64_t frame,
                               const struct tt_mask *mask, int width, int height, struct tt_error *err)
{
    enum tt_status status = check_grid(side, frame, err);
    struct tt_query_builder builder = {.room = 0};
    struct tt_query_faults faults = {.used = 0};
    struct inside inside;
    struct lattice lattice;
    int64_t count;

    if (status)
        return status;
    measure(&inside, mask, width, height);
    if (inside.area <= 0)
        return tt_fail(err, TT_BAD_INPUT, "nothing is inside the mask");
    lattice = choose_lattice(&inside, (int64_t)side * side);
    count = walk_lattice(&inside, &lattice, (int32_t)frame, &builder);
    if (count < 0 || (count == 0 && !append_first_pixel(&inside, (int32_t)frame, &builder))) {
        tt_queries_free(&builder.queries);
        return tt_fail_errno(err, TT_RETRY_LATER, ENOMEM, "query points in a mask");
    }
    return tt_query_finish(&builder, &faults, queries, NULL, err);
}

/* --- the rest ----------------------------------------------------------------------------------------------
 */

void tt_queries_to_clip(const struct tt_queries *queries, int width, int height, float *xy)
{
    for (int q = 0; q < queries->count; q++) {
        xy[2 * q] = tt_clip_from_source(queries->points[q].x, width);
        xy[2 * q + 1] = tt_clip_from_source(queries->points[q].y, height);
    }
}

int32_t tt_queries_last_frame(const struct tt_queries *queries)
{
    int32_t last = 0;

    for (int q = 0; q < queries->count; q++)
        last = queries->points[q].frame > last ? queries->points[q].frame : last;
    return last;
}

enum tt_status tt_sidecar_find(enum tt_sidecar *kind, char **path, const char *video, struct tt_error *err)
{
    static const struct {
        const char *suffix;
        enum tt_sidecar kind;
    } sidecars[] = {{".queries.csv", TT_SIDECAR_QUERIES},
                    {".queries.json", TT_SIDECAR_QUERIES},
                    {".mask.png", TT_SIDECAR_MASK}};

    for (size_t i = 0; i < sizeof sidecars / sizeof sidecars[0]; i++) {
        char *candidate = tt_path_sibling(video, NULL, sidecars[i].suffix);
        struct stat info;
        enum tt_status status = TT_OK;

        if (!candidate)
            return tt_fail_errno(err, TT_RETRY_LATER, ENOMEM, "side-car files");
        if (stat(candidate, &info) == 0) {
            *kind = sidecars[i].kind;
            *path = candidate;
            return TT_OK;
        }
        if (errno == ENOENT && lstat(candidate, &info) == 0)
            status = tt_fail(err, TT_BAD_INPUT, "%s: a link to a file that is not there", candidate);
        else if (errno != ENOENT && errno != ENOTDIR)
            status = tt_fail_errno(err, tt_status_of_errno(errno), errno, "%s", candidate);
        free(candidate);
        if (status)
            return status;
    }
    *kind = TT_SIDECAR_NONE;
    *path = NULL;
    return TT_OK;
}

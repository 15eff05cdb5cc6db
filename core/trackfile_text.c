/* core/trackfile_text.c: writes .csv and .jsonl track files.
 *
 * CSV has a row for each query and frame; JSONL an object for each query, whose members are named as the
 * arrays of the .npz. Numbers have as many digits as bring back the same float, so a track at its query's
 * frame is exactly the query here too. printf writes them in the C locale, which the programs never leave.
 *
 * Fails: as the source and the disk do. The first failure is kept in text.status, and nothing is written
 * after it.
 */
#include "core/trackfile_parts.h"

#include <errno.h>
#include <jansson.h>
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { TEXT_BYTES = 1 << 16, PIECE_BYTES = 512 }; /* no single print is longer than a piece */

struct text {
    struct tt_file *file;
    const struct tt_tracks *tracks;
    enum tt_status status;
    struct tt_error *err;
    size_t used;
    char bytes[TEXT_BYTES];
    struct tt_track_point points[TT_BLOCK_POINTS];
    double time_s[TT_BLOCK_POINTS];
};

static void flush(struct text *text)
{
    if (!text->status)
        text->status = tt_file_write(text->file, text->bytes, text->used, text->err);
    text->used = 0;
}

static void put(struct text *text, const char *format, ...) __attribute__((format(printf, 2, 3)));

static void put(struct text *text, const char *format, ...)
{
    va_list args;

    if (text->used + PIECE_BYTES > TEXT_BYTES)
        flush(text);
    va_start(args, format);
    text->used += (size_t)vsnprintf(text->bytes + text->used, PIECE_BYTES, format, args);
    va_end(args);
}

/* Text of any length, as it is. */
static void put_string(struct text *text, const char *string)
{
    size_t length = strlen(string);

    while (length > 0) {
        size_t count = length < PIECE_BYTES - 1 ? length : PIECE_BYTES - 1;

        put(text, "%.*s", (int)count, string);
        string += count;
        length -= count;
    }
}

/* As few digits as bring back the same float where it has a short form at all, which few have; else nine. */
static void put_float(struct text *text, float value)
{
    char digits[32];

    if (roundf(value * 1000) / 1000 == value) {
        snprintf(digits, sizeof digits, "%.7g", (double)value);
        if (strtof(digits, NULL) == value) {
            put(text, "%s", digits);
            return;
        }
    }
    put(text, "%.9g", (double)value);
}

static void put_double(struct text *text, double value)
{
    char digits[32];

    snprintf(digits, sizeof digits, "%.15g", value);
    if (strtod(digits, NULL) == value)
        put(text, "%s", digits);
    else
        put(text, "%.17g", value);
}

static void read_block(struct text *text, const struct tt_block *block)
{
    if (!text->status)
        text->status = tt_tracks_points(text->tracks, block->query, block->queries, block->frame,
                                        block->frames, text->points, text->err);
}

static void read_times(struct text *text, int64_t frame, int frames)
{
    if (!text->status)
        text->status =
            text->tracks->source.times(text->tracks->source.user, frame, frames, text->time_s, text->err);
}

static struct text *open_text(struct tt_file *file, const struct tt_tracks *tracks, struct tt_error *err)
{
    struct text *text = malloc(sizeof *text);

    if (!text) {
        tt_fail_errno(err, TT_RETRY_LATER, ENOMEM, "writing a track file");
        return NULL;
    }
    text->file = file;
    text->tracks = tracks;
    text->status = TT_OK;
    text->err = err;
    text->used = 0;
    return text;
}

static enum tt_status close_text(struct text *text)
{
    enum tt_status status;

    flush(text);
    status = text->status;
    free(text);
    return status;
}

/* --- CSV ---------------------------------------------------------------------------------------------------
 */

/* A label in quotes, which are doubled inside (RFC 4180). */
static void put_csv_label(struct text *text, const char *label)
{
    put(text, "\"");
    while (*label) {
        size_t plain = strcspn(label, "\"");

        if (plain > 0) {
            put(text, "%.*s", (int)plain, label);
            label += plain;
        } else {
            put(text, "\"\"");
            label++;
        }
    }
    put(text, "\"");
}

static void put_csv_row(struct text *text, int query, int64_t frame, double time_s,
                        const struct tt_track_point *point)
{
    const struct tt_queries *queries = text->tracks->queries;

    put(text, "%d,", query);
    if (queries->labels) {
        put_csv_label(text, queries->labels[query]);
        put(text, ",");
    }
    put(text, "%lld,", (long long)frame);
    put_double(text, time_s);
    put(text, ",");
    put_float(text, point->x);
    put(text, ",");
    put_float(text, point->y);
    put(text, point->occluded ? ",1," : ",0,");
    put_float(text, point->confidence);
    put(text, "\n");
}

enum tt_status tt_tracks_write_csv(struct tt_file *file, const struct tt_tracks *tracks, struct tt_error *err)
{
    struct text *text = open_text(file, tracks, err);
    struct tt_block block = {.query = 0};

    if (!text)
        return TT_RETRY_LATER;
    put(text, "query,%sframe,time_s,x,y,occluded,confidence\n", tracks->queries->labels ? "label," : "");
    while (!text->status && tt_block_next(&block, tracks->queries->count, tracks->frames)) {
        read_block(text, &block);
        read_times(text, block.frame, block.frames);
        for (int q = 0; q < block.queries && !text->status; q++)
            for (int t = 0; t < block.frames; t++)
                put_csv_row(text, block.query + q, block.frame + t, text->time_s[t],
                            &text->points[(size_t)q * (size_t)block.frames + (size_t)t]);
    }
    return close_text(text);
}

/* --- JSONL
 * --------------------------------------------------------------------------------------------------- */

static void put_json_string(struct text *text, const char *string)
{
    json_t *value = json_string(string);
    char *quoted = value ? json_dumps(value, JSON_ENCODE_ANY) : NULL;

    json_decref(value);
    if (quoted)
        put_string(text, quoted);
    else if (!text->status)
        text->status = tt_fail(text->err, TT_REFUSE, "a label that is not UTF-8");
    free(quoted);
}

static void put_json_value(struct text *text, enum tt_track_array array, int t)
{
    const struct tt_track_point *point = &text->points[t];

    if (array == TT_ARRAY_TIME_S) {
        put_double(text, text->time_s[t]);
    } else if (array == TT_ARRAY_OCCLUDED) {
        put(text, point->occluded ? "true" : "false");
    } else if (array == TT_ARRAY_CONFIDENCE) {
        put_float(text, point->confidence);
    } else {
        put(text, "[");
        put_float(text, point->x);
        put(text, ",");
        put_float(text, point->y);
        put(text, "]");
    }
}

/* One array over all frames of a query, piece by piece. */
static void put_json_array(struct text *text, int query, enum tt_track_array array, const char *name)
{
    int64_t frames = text->tracks->frames;
    int count;

    put(text, ",\"%s\":[", name);
    for (int64_t frame = 0; frame < frames && !text->status; frame += count) {
        count = (int)(frames - frame < TT_BLOCK_POINTS ? frames - frame : TT_BLOCK_POINTS);
        if (array == TT_ARRAY_TIME_S)
            read_times(text, frame, count);
        else
            read_block(text,
                       &(struct tt_block){.query = query, .queries = 1, .frame = frame, .frames = count});
        for (int t = 0; t < count && !text->status; t++) {
            if (frame + t > 0)
                put(text, ",");
            put_json_value(text, array, t);
        }
    }
    put(text, "]");
}

static void put_json_query(struct text *text, int query)
{
    const struct tt_tracks *tracks = text->tracks;
    const struct tt_query *point = &tracks->queries->points[query];

    put(text, "{\"query\":%d", query);
    if (tracks->queries->labels) {
        put(text, ",\"label\":");
        put_json_string(text, tracks->queries->labels[query]);
    }
    put(text, ",\"frame\":%d,\"x\":", point->frame);
    put_float(text, point->x);
    put(text, ",\"y\":");
    put_float(text, point->y);
    put(text, ",\"frame_size\":[%d,%d]", tracks->width, tracks->height);
    put_json_array(text, query, TT_ARRAY_TIME_S, "time_s");
    put_json_array(text, query, TT_ARRAY_TRACKS, "tracks");
    put_json_array(text, query, TT_ARRAY_OCCLUDED, "occluded");
    put_json_array(text, query, TT_ARRAY_CONFIDENCE, "confidence");
    put(text, "}\n");
}

enum tt_status tt_tracks_write_jsonl(struct tt_file *file, const struct tt_tracks *tracks,
                                     struct tt_error *err)
{
    struct text *text = open_text(file, tracks, err);

    if (!text)
        return TT_RETRY_LATER;
    for (int q = 0; q < tracks->queries->count && !text->status; q++)
        put_json_query(text, q);
    return close_text(text);
}

/* core/trackfile_text.c: writes .csv and .jsonl track files.
 *
 * CSV has a row for each query and frame; JSONL an object for each query, whose members are named as the
 * arrays of the .npz. Numbers have as many digits as bring back the same float, so a track at its query's
 * frame is exactly the query here too.
 *
 * Fails: as the source and the disk do. The first failure is kept in writer.text, and nothing is written
 * after it.
 */
#include "core/text.h"
#include "core/trackfile_parts.h"

#include <errno.h>
#include <stdlib.h>

struct writer {
    struct tt_text text;
    const struct tt_tracks *tracks;
    struct tt_track_point points[TT_BLOCK_POINTS];
    double time_s[TT_BLOCK_POINTS];
};

static void read_block(struct writer *writer, const struct tt_block *block)
{
    struct tt_text *text = &writer->text;

    if (!text->status)
        text->status = tt_tracks_points(writer->tracks, block->query, block->queries, block->frame,
                                        block->frames, writer->points, &text->err);
}

static void read_times(struct writer *writer, int64_t frame, int frames)
{
    const struct tt_track_source *source = &writer->tracks->source;
    struct tt_text *text = &writer->text;

    if (!text->status)
        text->status = source->times(source->user, frame, frames, writer->time_s, &text->err);
}

static struct writer *open_writer(struct tt_file *file, const struct tt_tracks *tracks, struct tt_error *err)
{
    struct writer *writer = malloc(sizeof *writer);

    if (!writer) {
        tt_fail_errno(err, TT_RETRY_LATER, ENOMEM, "writing a track file");
        return NULL;
    }
    tt_text_begin(&writer->text, file);
    writer->tracks = tracks;
    return writer;
}

static enum tt_status close_writer(struct writer *writer, struct tt_error *err)
{
    enum tt_status status = tt_text_end(&writer->text, err);

    free(writer);
    return status;
}

/* --- CSV ------------------------------------------------------------------------------------- */

void tt_tracks_put_csv_heading(struct tt_text *text, bool labelled, bool refined)
{
    tt_put(text, "query,%sframe,time_s,x,y,occluded,confidence%s\n", labelled ? "label," : "",
           refined ? ",refined" : "");
}

void tt_tracks_put_csv_row(struct tt_text *text, int query, const char *label, int64_t frame, double time_s,
                           const struct tt_track_point *point, bool refined)
{
    tt_put(text, "%d,", query);
    if (label) {
        tt_put_csv_string(text, label);
        tt_put(text, ",");
    }
    tt_put(text, "%lld,", (long long)frame);
    tt_put_double(text, time_s);
    tt_put(text, ",");
    tt_put_float(text, point->x);
    tt_put(text, ",");
    tt_put_float(text, point->y);
    tt_put(text, point->occluded ? ",1," : ",0,");
    tt_put_float(text, point->confidence);
    if (refined)
        tt_put(text, point->refined ? ",1" : ",0");
    tt_put(text, "\n");
}

enum tt_status tt_tracks_write_csv(struct tt_file *file, const struct tt_tracks *tracks, struct tt_error *err)
{
    struct writer *writer = open_writer(file, tracks, err);
    struct tt_block block = {.query = 0};
    char *const *labels = tracks->queries->labels;
    const bool refined = tracks->source.refined;
    struct tt_text *text;

    if (!writer)
        return TT_RETRY_LATER;
    text = &writer->text;
    tt_tracks_put_csv_heading(text, labels, refined);
    while (!text->status && tt_block_next(&block, tracks->queries->count, tracks->frames)) {
        read_block(writer, &block);
        read_times(writer, block.frame, block.frames);
        for (int q = 0; q < block.queries && !text->status; q++)
            for (int t = 0; t < block.frames; t++)
                tt_tracks_put_csv_row(text, block.query + q, labels ? labels[block.query + q] : NULL,
                                      block.frame + t, writer->time_s[t],
                                      &writer->points[(size_t)q * (size_t)block.frames + (size_t)t], refined);
    }
    return close_writer(writer, err);
}

/* --- JSONL
 * --------------------------------------------------------------------------------------------------- */

static void put_json_value(struct writer *writer, enum tt_track_array array, int t)
{
    const struct tt_track_point *point = &writer->points[t];
    struct tt_text *text = &writer->text;

    if (array == TT_ARRAY_TIME_S) {
        tt_put_double(text, writer->time_s[t]);
    } else if (array == TT_ARRAY_OCCLUDED) {
        tt_put(text, point->occluded ? "true" : "false");
    } else if (array == TT_ARRAY_REFINED) {
        tt_put(text, point->refined ? "true" : "false");
    } else if (array == TT_ARRAY_CONFIDENCE) {
        tt_put_float(text, point->confidence);
    } else {
        tt_put(text, "[");
        tt_put_float(text, point->x);
        tt_put(text, ",");
        tt_put_float(text, point->y);
        tt_put(text, "]");
    }
}

/* One array over all frames of a query, piece by piece. */
static void put_json_array(struct writer *writer, int query, enum tt_track_array array, const char *name)
{
    int64_t frames = writer->tracks->frames;
    struct tt_text *text = &writer->text;
    int count;

    tt_put(text, ",\"%s\":[", name);
    for (int64_t frame = 0; frame < frames && !text->status; frame += count) {
        count = (int)(frames - frame < TT_BLOCK_POINTS ? frames - frame : TT_BLOCK_POINTS);
        if (array == TT_ARRAY_TIME_S)
            read_times(writer, frame, count);
        else
            read_block(writer,
                       &(struct tt_block){.query = query, .queries = 1, .frame = frame, .frames = count});
        for (int t = 0; t < count && !text->status; t++) {
            if (frame + t > 0)
                tt_put(text, ",");
            put_json_value(writer, array, t);
        }
    }
    tt_put(text, "]");
}

static void put_json_query(struct writer *writer, int query)
{
    const struct tt_tracks *tracks = writer->tracks;
    const struct tt_query *point = &tracks->queries->points[query];
    struct tt_text *text = &writer->text;

    tt_put(text, "{\"query\":%d", query);
    if (tracks->queries->labels) {
        tt_put(text, ",\"label\":");
        tt_put_json_string(text, tracks->queries->labels[query]);
    }
    tt_put(text, ",\"frame\":%d,\"x\":", point->frame);
    tt_put_float(text, point->x);
    tt_put(text, ",\"y\":");
    tt_put_float(text, point->y);
    tt_put(text, ",\"frame_size\":[%d,%d]", tracks->width, tracks->height);
    put_json_array(writer, query, TT_ARRAY_TIME_S, "time_s");
    put_json_array(writer, query, TT_ARRAY_TRACKS, "tracks");
    put_json_array(writer, query, TT_ARRAY_OCCLUDED, "occluded");
    put_json_array(writer, query, TT_ARRAY_CONFIDENCE, "confidence");
    if (tracks->source.refined)
        put_json_array(writer, query, TT_ARRAY_REFINED, "refined");
    tt_put(text, "}\n");
}

enum tt_status tt_tracks_write_jsonl(struct tt_file *file, const struct tt_tracks *tracks,
                                     struct tt_error *err)
{
    struct writer *writer = open_writer(file, tracks, err);

    if (!writer)
        return TT_RETRY_LATER;
    for (int q = 0; q < tracks->queries->count && !writer->text.status; q++)
        put_json_query(writer, q);
    return close_writer(writer, err);
}

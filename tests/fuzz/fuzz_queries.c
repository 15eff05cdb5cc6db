/* tests/fuzz/fuzz_queries.c: any bytes as a query file, CSV and JSON. They are refused with a text, or become
 * points within bounds that, written as CSV, are read back equal.
 */
#include "core/query.h"

#include "core/utf8.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

typedef enum tt_status parser(struct tt_queries *, const char *, size_t, const char *,
                              const struct tt_query_bounds *, struct tt_error *);

static const struct tt_query_bounds bounds = {.width = 640, .height = 480, .frames = 300};

static void require(int holds)
{
    if (!holds)
        abort();
}

static void print_csv(FILE *file, const struct tt_queries *queries)
{
    for (int q = 0; q < queries->count; q++) {
        const struct tt_query *point = &queries->points[q];

        fprintf(file, "%d,%.9g,%.9g", point->frame, (double)point->x, (double)point->y);
        if (queries->labels) {
            fputs(",\"", file);
            for (const char *c = queries->labels[q]; *c; c++)
                fputs(*c == '"' ? "\"\"" : (char[]){*c, '\0'}, file);
            fputs("\"", file);
        }
        fputs("\n", file);
    }
}

static void check_good(const struct tt_queries *queries)
{
    struct tt_queries again;
    struct tt_error err;
    char *text = NULL;
    size_t bytes;
    FILE *file = open_memstream(&text, &bytes);

    require(queries->count >= 1 && queries->count <= TT_QUERIES_MAX);
    require(tt_queries_check(queries, &bounds, &err) == TT_OK);
    require(file != NULL);
    print_csv(file, queries);
    require(fclose(file) == 0);
    require(tt_queries_parse_csv(&again, text, bytes, "again", &bounds, &err) == TT_OK);
    require(again.count == queries->count && !again.labels == !queries->labels);
    for (int q = 0; q < queries->count; q++) {
        const struct tt_query *a = &queries->points[q], *b = &again.points[q];

        require(a->line >= 1 && a->frame >= 0 && a->x >= 0 && a->y >= 0);
        require(a->frame == b->frame && a->x == b->x && a->y == b->y);
        if (queries->labels) {
            require(tt_utf8_is_label(queries->labels[q], strlen(queries->labels[q])));
            require(strcmp(queries->labels[q], again.labels[q]) == 0);
        }
    }
    tt_queries_free(&again);
    free(text);
}

static void parse(parser *parse_text, const uint8_t *data, size_t size)
{
    struct tt_queries queries;
    struct tt_error err = {.text = ""};

    if (parse_text(&queries, (const char *)data, size, "dir/fuzz", &bounds, &err) == TT_OK) {
        check_good(&queries);
        tt_queries_free(&queries);
    } else {
        require(err.status == TT_BAD_INPUT && strncmp(err.text, "fuzz: ", 6) == 0);
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    parse(tt_queries_parse_csv, data, size);
    parse(tt_queries_parse_json, data, size);
    return 0;
}

/* core/query_rows.h: inside of core/query: rows on their way from a file to query points, and what is wrong
 * with them.
 */
#ifndef TT_CORE_QUERY_ROWS_H
#define TT_CORE_QUERY_ROWS_H

#include "core/query.h"

#include <stdbool.h>

enum { TT_QUERY_FAULT_BYTES = 600, TT_QUERY_FAULTS_SHOWN = 10 };

/* Bad rows, gathered for one text. All zero is none. */
struct tt_query_faults {
    char text[TT_QUERY_FAULT_BYTES];
    size_t used;
    int shown; /* rows in the text */
    bool full; /* no further row goes into it */
    int64_t count;
};

/* Notes what is wrong with a row; call once a row. line 0: it has no line. */
void tt_query_fault(struct tt_query_faults *faults, int64_t line, const char *format, ...)
    __attribute__((format(printf, 3, 4)));

/* TT_OK where there are none, else one text for all. name: the file's path; NULL: no file. */
enum tt_status tt_query_faults_report(const struct tt_query_faults *faults, const char *name,
                                      struct tt_error *err);

/* One row as numbers. Notes a fault and returns false where it cannot be a query point. */
bool tt_query_make(struct tt_query *query, double frame, double x, double y, int32_t line,
                   const struct tt_query_bounds *bounds, struct tt_query_faults *faults);

/* Query points that are being gathered. */
struct tt_query_builder {
    struct tt_queries queries;
    int room, label_room;
};

/* label: borrowed (until it returns), NULL or "" for none. False: no memory. */
bool tt_query_append(struct tt_query_builder *builder, const struct tt_query *query, const char *label);

/* Takes the builder's content: moves it into *queries, or frees it where something was wrong. */
enum tt_status tt_query_finish(struct tt_query_builder *builder, const struct tt_query_faults *faults,
                               struct tt_queries *queries, const char *name, struct tt_error *err);

#endif

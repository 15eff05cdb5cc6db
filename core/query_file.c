/* core/query_file.c: query files: CSV and JSON. docs/FORMATS.md says what they may hold.
 *
 * CSV is read here (jansson reads the JSON): a row is a line, so a quoted label cannot hold a line break, and
 * every problem has a line number. Numbers are decimal; strtod reads them in the C locale, which the programs
 * never leave.
 *
 * Fails: with TT_BAD_INPUT for the file's faults, all rows' in one text; a JSON syntax error alone, since
 * nothing behind it can be trusted.
 */
#include "core/fsio.h"
#include "core/query.h"
#include "core/query_rows.h"
#include "core/utf8.h"

#include <errno.h>
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

enum column { FRAME, X, Y, LABEL, COLUMNS };

static const char *const column_names[COLUMNS] = {"frame", "x", "y", "label"};

static enum column find_column(const char *name)
{
    int c = 0;

    while (c < COLUMNS && strcasecmp(name, column_names[c]) != 0)
        c++;
    return (enum column)c;
}

enum { QUOTE_BYTES = 33 };

/* A file's text for an error message: short, printable ASCII. */
static const char *quote(char out[QUOTE_BYTES], const char *text)
{
    size_t i = 0;

    for (; text[i] && i < QUOTE_BYTES - 1; i++)
        out[i] = text[i] >= 0x20 && text[i] < 0x7f ? text[i] : '?';
    if (text[i])
        memcpy(out + QUOTE_BYTES - 4, "...", 3);
    out[i] = '\0';
    return out;
}

static bool skip_bom(const char **text, size_t *size)
{
    bool found = *size >= 3 && memcmp(*text, "\xef\xbb\xbf", 3) == 0;

    if (found) {
        *text += 3;
        *size -= 3;
    }
    return found;
}

static bool check_label(const char *label, size_t size, int32_t line, struct tt_query_faults *faults)
{
    if (size > TT_LABEL_BYTES)
        tt_query_fault(faults, line, "label longer than %d bytes", TT_LABEL_BYTES);
    else if (!tt_utf8_is_label(label, size))
        tt_query_fault(faults, line, "label is not UTF-8 without control characters");
    else
        return true;
    return false;
}

static enum tt_status too_many(const char *name, struct tt_error *err)
{
    return tt_fail(err, TT_BAD_INPUT, "%.255s: more than %d query points", tt_path_name(name),
                   TT_QUERIES_MAX);
}

/* --- CSV ---------------------------------------------------------------------------------------------------
 */

enum { FIELDS_MAX = 5, LINE_BYTES = 4096 };

/* One line, cut into fields in place. */
struct row {
    char text[LINE_BYTES];
    int32_t line;
    int fields;
    char *field[FIELDS_MAX];
};

static char *skip_blanks(char *p)
{
    while (*p == ' ' || *p == '\t')
        p++;
    return p;
}

static void trim_end(char *start, char *end)
{
    while (end > start && (end[-1] == ' ' || end[-1] == '\t'))
        end--;
    *end = '\0';
}

/* Reads a quoted field that begins at p (behind its quote); "" stands for a quote. Returns what follows the
 * closing quote, NULL where there is none. */
static char *unquote(char *p)
{
    char *out = p;

    for (;; p++) {
        if (*p == '\0')
            return NULL;
        if (*p == '"' && *++p != '"')
            break;
        *out++ = *p;
    }
    p = skip_blanks(p); /* out is before the closing quote or on it, never on what follows */
    *out = '\0';
    return p;
}

/* Cuts row->text into at most FIELDS_MAX fields; what is beyond them is not looked at. */
static bool split_fields(struct row *row, struct tt_query_faults *faults)
{
    char *p = row->text;

    for (row->fields = 0; row->fields < FIELDS_MAX;) {
        char *start = skip_blanks(p), *end;
        bool quoted = *start == '"';

        if (quoted) {
            start++;
            end = unquote(start);
            if (!end || (*end && *end != ',')) {
                tt_query_fault(faults, row->line,
                               end ? "text behind a closing quote" : "a quote is not closed");
                return false;
            }
        } else {
            end = start + strcspn(start, ",");
        }
        p = *end ? end + 1 : NULL;
        if (!quoted)
            trim_end(start, end);
        row->field[row->fields++] = start;
        if (!p)
            break;
    }
    return true;
}

/* A plain decimal number: nothing that strtod knows beside (nan, inf, hexadecimal, locale). */
static bool parse_number(const char *text, double *value)
{
    char *end;

    if (text[0] == '\0' || text[strspn(text, "+-.0123456789eE")] != '\0')
        return false;
    *value = strtod(text, &end);
    return *end == '\0';
}

/* The columns' places by the first row: place[c] is a field's number or -1. */
struct columns {
    bool known;
    int place[COLUMNS];
    int fields; /* that a row may have */
};

static bool looks_like_header(const struct row *row)
{
    for (int i = 0; i < row->fields; i++)
        if (find_column(row->field[i]) != COLUMNS)
            return true;
    return false;
}

/* False where the header is faulty. */
static bool read_header(const struct row *row, struct columns *columns, struct tt_query_faults *faults)
{
    char quoted[QUOTE_BYTES];

    *columns = (struct columns){.known = true, .place = {-1, -1, -1, -1}, .fields = row->fields};
    for (int i = 0; i < row->fields; i++) {
        enum column c = find_column(row->field[i]);

        if (c == COLUMNS)
            tt_query_fault(faults, row->line, "unknown column '%s'", quote(quoted, row->field[i]));
        else if (columns->place[c] >= 0)
            tt_query_fault(faults, row->line, "two columns '%s'", column_names[c]);
        else {
            columns->place[c] = i;
            continue;
        }
        return false;
    }
    for (int c = FRAME; c <= Y; c++)
        if (columns->place[c] < 0) {
            tt_query_fault(faults, row->line, "no column '%s'", column_names[c]);
            return false;
        }
    return true;
}

static bool read_row(const struct row *row, const struct columns *columns,
                     const struct tt_query_bounds *bounds, struct tt_query *query, const char **label,
                     struct tt_query_faults *faults)
{
    int label_place = columns->place[LABEL];
    char quoted[QUOTE_BYTES];
    double value[3];

    if (row->fields > columns->fields) {
        tt_query_fault(faults, row->line, "more than %d fields (a label with commas needs quotes)",
                       columns->fields);
        return false;
    }
    for (int c = FRAME; c <= Y; c++) {
        int place = columns->place[c];

        if (place >= row->fields) {
            tt_query_fault(faults, row->line, "%s is missing", column_names[c]);
            return false;
        }
        if (!parse_number(row->field[place], &value[c])) {
            tt_query_fault(faults, row->line, "%s '%s' is not a number", column_names[c],
                           quote(quoted, row->field[place]));
            return false;
        }
    }
    *label = label_place >= 0 && label_place < row->fields ? row->field[label_place] : "";
    return check_label(*label, strlen(*label), row->line, faults) &&
           tt_query_make(query, value[FRAME], value[X], value[Y], row->line, bounds, faults);
}

/* Copies the next line into row->text without its ending; false behind the last one. Lines that cannot be
 * copied whole are faults, and come back empty. */
static bool next_line(const char **next, const char *end, struct row *row, struct tt_query_faults *faults)
{
    const char *start = *next, *newline;
    size_t length;

    if (start >= end)
        return false;
    newline = memchr(start, '\n', (size_t)(end - start));
    length = (size_t)((newline ? newline : end) - start);
    *next = newline ? newline + 1 : end;
    row->line++;
    if (length > 0 && start[length - 1] == '\r')
        length--;
    if (length >= LINE_BYTES) {
        tt_query_fault(faults, row->line, "line longer than %d bytes", LINE_BYTES - 1);
        length = 0;
    } else if (memchr(start, '\0', length)) {
        tt_query_fault(faults, row->line, "a NUL byte");
        length = 0;
    }
    memcpy(row->text, start, length);
    row->text[length] = '\0';
    return true;
}

enum tt_status tt_queries_parse_csv(struct tt_queries *queries, const char *text, size_t size,
                                    const char *name, const struct tt_query_bounds *bounds,
                                    struct tt_error *err)
{
    struct tt_query_builder builder = {.room = 0};
    struct tt_query_faults faults = {.used = 0};
    struct columns columns = {.place = {0, 1, 2, 3}, .fields = 4};
    struct row row = {.line = 0};
    const char *end;

    skip_bom(&text, &size);
    end = text + size;
    while (next_line(&text, end, &row, &faults)) {
        char first = *skip_blanks(row.text);
        struct tt_query query;
        const char *label;

        if (first == '\0' || first == '#' || !split_fields(&row, &faults))
            continue;
        if (!columns.known) {
            columns.known = true;
            if (looks_like_header(&row)) {
                if (!read_header(&row, &columns, &faults))
                    break; /* what its rows mean is not known */
                continue;
            }
        }
        if (!read_row(&row, &columns, bounds, &query, &label, &faults))
            continue;
        if (builder.queries.count == TT_QUERIES_MAX) {
            tt_queries_free(&builder.queries);
            return too_many(name, err);
        }
        if (!tt_query_append(&builder, &query, label)) {
            tt_queries_free(&builder.queries);
            return tt_fail_errno(err, TT_RETRY_LATER, ENOMEM, "%.255s", tt_path_name(name));
        }
    }
    return tt_query_finish(&builder, &faults, queries, name, err);
}

/* --- JSON --------------------------------------------------------------------------------------------------
 */

/* Finds the line on which each element of an array begins, which jansson does not tell. The text is known to
 * be valid JSON whose first '[' outside strings opens the array. */
struct element_lines {
    const char *next, *end;
    int32_t line;
};

static void skip_string(struct element_lines *lines) /* next stands on the opening quote */
{
    for (lines->next++; lines->next < lines->end && *lines->next != '"'; lines->next++)
        if (*lines->next == '\\')
            lines->next++;
    lines->next++;
}

static void find_array(struct element_lines *lines)
{
    while (lines->next < lines->end && *lines->next != '[') {
        if (*lines->next == '"') {
            skip_string(lines);
            continue;
        }
        lines->line += *lines->next++ == '\n';
    }
    lines->next++;
}

/* Moves behind the next element and its comma; returns the line on which it begins. */
static int32_t next_element(struct element_lines *lines)
{
    int32_t begins = 0;
    int depth = 0;

    for (; lines->next < lines->end; lines->next++) {
        char c = *lines->next;

        if (c == '\n')
            lines->line++;
        if (c == ' ' || c == '\t' || c == '\r' || c == '\n')
            continue;
        if (depth == 0 && (c == ',' || c == ']'))
            break;
        if (begins == 0)
            begins = lines->line;
        if (c == '"') {
            skip_string(lines);
            lines->next--;
        } else if (c == '[' || c == '{') {
            depth++;
        } else if (c == ']' || c == '}') {
            depth--;
        }
    }
    lines->next++;
    return begins;
}

static bool read_object(json_t *object, int32_t line, const struct tt_query_bounds *bounds,
                        struct tt_query *query, const char **label, struct tt_query_faults *faults)
{
    json_t *value[COLUMNS] = {NULL}, *member;
    char quoted[QUOTE_BYTES];
    const char *key;

    if (!json_is_object(object)) {
        tt_query_fault(faults, line, "not an object with frame, x and y");
        return false;
    }
    json_object_foreach(object, key, member)
    {
        enum column c = find_column(key);

        if (c == COLUMNS || value[c]) {
            tt_query_fault(faults, line, "unknown key '%s'", quote(quoted, key));
            return false;
        }
        value[c] = member;
    }
    for (int c = FRAME; c <= Y; c++)
        if (!json_is_number(value[c])) {
            tt_query_fault(faults, line, value[c] ? "%s is not a number" : "%s is missing", column_names[c]);
            return false;
        }
    if (value[LABEL] && !json_is_string(value[LABEL]) && !json_is_null(value[LABEL])) {
        tt_query_fault(faults, line, "label is not a string");
        return false;
    }
    *label = json_is_string(value[LABEL]) ? json_string_value(value[LABEL]) : "";
    return check_label(*label, strlen(*label), line, faults) &&
           tt_query_make(query, json_number_value(value[FRAME]), json_number_value(value[X]),
                         json_number_value(value[Y]), line, bounds, faults);
}

/* The array of query points: the root, or the only member "queries" of the root. NULL: neither. */
static json_t *find_queries(json_t *root)
{
    json_t *array =
        json_is_object(root) && json_object_size(root) == 1 ? json_object_get(root, "queries") : root;

    return json_is_array(array) ? array : NULL;
}

static enum tt_status read_array(json_t *array, struct element_lines *lines, struct tt_query_builder *builder,
                                 const char *name, const struct tt_query_bounds *bounds,
                                 struct tt_query_faults *faults, struct tt_error *err)
{
    size_t i;
    json_t *element;

    if (json_array_size(array) > TT_QUERIES_MAX)
        return too_many(name, err);
    find_array(lines);
    json_array_foreach(array, i, element)
    {
        struct tt_query query;
        const char *label;

        if (read_object(element, next_element(lines), bounds, &query, &label, faults) &&
            !tt_query_append(builder, &query, label))
            return tt_fail_errno(err, TT_RETRY_LATER, ENOMEM, "%.255s", tt_path_name(name));
    }
    return TT_OK;
}

enum tt_status tt_queries_parse_json(struct tt_queries *queries, const char *text, size_t size,
                                     const char *name, const struct tt_query_bounds *bounds,
                                     struct tt_error *err)
{
    struct tt_query_builder builder = {.room = 0};
    struct tt_query_faults faults = {.used = 0};
    json_error_t problem;
    json_t *root, *array;
    enum tt_status status;

    skip_bom(&text, &size);
    root = json_loadb(text, size, JSON_REJECT_DUPLICATES, &problem);
    if (!root)
        return tt_fail(err, TT_BAD_INPUT, "%.255s: line %d: %s", tt_path_name(name), problem.line,
                       problem.text);
    array = find_queries(root);
    if (array)
        status = read_array(array, &(struct element_lines){.next = text, .end = text + size, .line = 1},
                            &builder, name, bounds, &faults, err);
    else
        status = tt_fail(err, TT_BAD_INPUT,
                         "%.255s: line 1: neither an array of query points nor an object whose only member "
                         "\"queries\" is one",
                         tt_path_name(name));
    json_decref(root);
    if (status) {
        tt_queries_free(&builder.queries);
        return status;
    }
    return tt_query_finish(&builder, &faults, queries, name, err);
}

enum tt_status tt_queries_read(struct tt_queries *queries, const char *path,
                               const struct tt_query_bounds *bounds, struct tt_error *err)
{
    size_t length = strlen(path), size;
    bool json = length >= 5 && strcasecmp(path + length - 5, ".json") == 0;
    enum tt_status status;
    char *text;

    status = tt_file_read(&text, &size, path, TT_QUERY_FILE_BYTES, err);
    if (status)
        return status;
    status = json ? tt_queries_parse_json(queries, text, size, path, bounds, err)
                  : tt_queries_parse_csv(queries, text, size, path, bounds, err);
    free(text);
    return status;
}

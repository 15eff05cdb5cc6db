/* core/logline.c: entries as JSON, text and journal fields.
 *
 * Values are bytes, and every form shows them by one rule that can be undone: what is printable UTF-8 stands
 * as it is, a backslash is "\\", and each byte of anything else is "\xHH". (In JSON these backslashes are
 * escaped once more, as JSON wants it.) So no value can end a line, close a quote, or reach a terminal as a
 * command.
 *
 * Invariants: a line never grows past its buffer and always ends in a newline; a field that does not fit is
 * taken back whole, a long value is cut between two characters and marked with "...", and "cut" is set.
 * Nothing allocates, and nothing can fail.
 */
#include "core/logline.h"

#include "core/utf8.h"

#include <ctype.h>
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

enum form { FORM_JSON, FORM_QUOTED, FORM_BARE }; /* how a string is escaped */

struct writer {
    char *start;
    size_t used;
    size_t most;
    bool full; /* something did not fit since the flag was last cleared */
    bool cut;  /* something did not fit at all */
};

static const char *const level_names[] = {"debug", "info", "warning", "error"};

static void put(struct writer *writer, const char *text, size_t bytes)
{
    if (writer->full || bytes > writer->most - writer->used) {
        writer->full = true;
        return;
    }
    memcpy(writer->start + writer->used, text, bytes);
    writer->used += bytes;
}

static void put_text(struct writer *writer, const char *text)
{
    put(writer, text, strlen(text));
}

/* The escaped form of the character at text in out; returns its length, and in *taken how much of text it is.
 */
static size_t escape(char out[20], const char *text, size_t bytes, enum form form, size_t *taken)
{
    const char *backslash = form == FORM_JSON ? "\\\\" : "\\";
    uint32_t code = 0;
    size_t length = tt_utf8_decode(text, bytes, &code), used = 0;

    *taken = length ? length : 1;
    if (length && *text == '\\')
        return (size_t)sprintf(out, "%s%s", backslash, backslash);
    if (length && *text == '"' && form != FORM_BARE)
        return (size_t)sprintf(out, "\\\"");
    if (length && !tt_utf8_unprintable(code)) {
        memcpy(out, text, length);
        return length;
    }
    for (size_t i = 0; i < *taken; i++)
        used += (size_t)sprintf(out + used, "%sx%02x", backslash, (unsigned char)text[i]);
    return used;
}

static void put_escaped(struct writer *writer, const char *text, size_t bytes, enum form form)
{
    static const char mark[] = "...";
    const size_t reserve = sizeof mark - 1 + 1; /* and a closing quote */
    size_t start = writer->used, room = writer->most - writer->used;
    size_t most = room < TT_LOG_VALUE_BYTES ? room : TT_LOG_VALUE_BYTES;

    while (bytes > 0 && !writer->full) {
        char out[20];
        size_t taken, length = escape(out, text, bytes, form, &taken);

        if (writer->used - start + length + reserve > most) {
            writer->cut = true;
            put(writer, mark, sizeof mark - 1);
            return;
        }
        put(writer, out, length);
        text += taken;
        bytes -= taken;
    }
}

/* Whether a value needs no quotes between blanks and "=" signs. */
static bool is_bare(const char *text, size_t bytes)
{
    for (size_t i = 0; i < bytes; i++)
        if ((unsigned char)text[i] <= ' ' || text[i] == '"' || text[i] == '=')
            return false;
    return bytes > 0;
}

static void put_number(struct writer *writer, const struct tt_log_field *field)
{
    char text[40];
    char *comma;

    switch (field->type) {
    case TT_LOG_DOUBLE:
        if (!isfinite(field->value.real)) {
            put_text(writer, "null");
            return;
        }
        snprintf(text, sizeof text, "%.10g", field->value.real);
        comma = strchr(text, ','); /* a program's locale must not break the JSON */
        if (comma)
            *comma = '.';
        break;
    case TT_LOG_UNSIGNED:
        snprintf(text, sizeof text, "%" PRIu64, (uint64_t)field->value.integer);
        break;
    case TT_LOG_BOOLEAN:
        snprintf(text, sizeof text, "%s", field->value.integer ? "true" : "false");
        break;
    default:
        snprintf(text, sizeof text, "%" PRId64, field->value.integer);
    }
    put_text(writer, text);
}

static void put_value(struct writer *writer, const struct tt_log_field *field, enum form form)
{
    const char *text = field->value.string.text;
    size_t bytes;

    if (field->type != TT_LOG_STRING) {
        put_number(writer, field);
        return;
    }
    if (!text) {
        put_text(writer, "null");
        return;
    }
    bytes = field->value.string.bytes == TT_LOG_UNTIL_NUL ? strlen(text) : field->value.string.bytes;
    if (form == FORM_QUOTED && is_bare(text, bytes))
        form = FORM_BARE;
    put_text(writer, form == FORM_BARE ? "" : "\"");
    put_escaped(writer, text, bytes, form);
    put_text(writer, form == FORM_BARE ? "" : "\"");
}

/* "TILETRACK_DECODE_MS" */
static void put_journal_name(struct writer *writer, const char *name)
{
    put_text(writer, "TILETRACK_");
    for (; *name; name++)
        put(writer, (char[]){(char)toupper((unsigned char)*name)}, 1);
}

enum shape { SHAPE_JSON, SHAPE_TEXT, SHAPE_JOURNAL };

static void put_field(struct writer *writer, const struct tt_log_field *field, enum shape shape)
{
    size_t before = writer->used;

    if (shape == SHAPE_JSON) {
        put_text(writer, ",\"");
        put_text(writer, field->name);
        put_text(writer, "\":");
        put_value(writer, field, FORM_JSON);
    } else if (shape == SHAPE_TEXT) {
        put_text(writer, " ");
        put_text(writer, field->name);
        put_text(writer, "=");
        put_value(writer, field, FORM_QUOTED);
    } else {
        put_journal_name(writer, field->name);
        put_text(writer, "=");
        put_value(writer, field, FORM_BARE);
        put_text(writer, "\n");
    }
    if (writer->full) {
        writer->used = before;
        writer->full = false;
        writer->cut = true;
    }
}

/* All fields: job, worker and file first. The most of the writer leaves room for what is behind them. */
static void put_fields(struct writer *writer, const struct tt_log_entry *entry, enum shape shape)
{
    static const char *const first[] = {"job", "worker", "file"};
    const struct tt_log_field worker = TT_STR("worker", entry->worker);

    for (int f = 0; f < 3; f++) {
        bool found = false;

        for (int i = 0; i < entry->count && !found; i++) {
            found = strcmp(entry->fields[i].name, first[f]) == 0;
            if (found)
                put_field(writer, &entry->fields[i], shape);
        }
        if (!found && f == 1 && entry->worker)
            put_field(writer, &worker, shape);
    }
    for (int i = 0; i < entry->count; i++) {
        const char *name = entry->fields[i].name;

        if (strcmp(name, first[0]) != 0 && strcmp(name, first[1]) != 0 && strcmp(name, first[2]) != 0)
            put_field(writer, &entry->fields[i], shape);
    }
}

/* "2025-11-30T19:14:35.123Z", with the given letter between date and time. gmtime_r would read the time
 * zone's file. Days to date as in H. Hinnant's chrono-compatible date algorithms. */
static void put_time(struct writer *writer, int64_t time_ms, char between)
{
    int64_t days = time_ms / 86400000, in_day = time_ms % 86400000;
    int64_t z = days + 719468, era = z / 146097, day_of_era = z % 146097;
    int64_t year_of_era = (day_of_era - day_of_era / 1460 + day_of_era / 36524 - day_of_era / 146096) / 365;
    int64_t day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    int64_t shifted_month = (5 * day_of_year + 2) / 153; /* from March */
    int day = (int)(day_of_year - (153 * shifted_month + 2) / 5 + 1);
    int month = (int)(shifted_month < 10 ? shifted_month + 3 : shifted_month - 9);
    char text[48];

    snprintf(text, sizeof text, "%04d-%02d-%02d%c%02d:%02d:%02d.%03dZ",
             (int)(year_of_era + era * 400 + (month <= 2)), month, day, between, (int)(in_day / 3600000),
             (int)(in_day / 60000 % 60), (int)(in_day / 1000 % 60), (int)(in_day % 1000));
    put_text(writer, text);
}

size_t tt_logline_json(char line[TT_LOG_LINE_BYTES], const struct tt_log_entry *entry)
{
    static const char cut[] = ",\"cut\":true";
    const size_t tail = sizeof cut - 1 + 2;
    struct writer writer = {.start = line, .most = TT_LOG_LINE_BYTES - tail};

    put_text(&writer, "{\"ts\":\"");
    put_time(&writer, entry->time_ms, 'T');
    put_text(&writer, "\",\"level\":\"");
    put_text(&writer, level_names[entry->level]);
    put_text(&writer, "\",\"event\":\"");
    put_text(&writer, entry->event);
    put_text(&writer, "\"");
    put_fields(&writer, entry, SHAPE_JSON);
    writer.most = TT_LOG_LINE_BYTES;
    put_text(&writer, writer.cut ? cut : "");
    put_text(&writer, "}\n");
    return writer.used;
}

size_t tt_logline_text(char line[TT_LOG_LINE_BYTES], const struct tt_log_entry *entry, bool colour)
{
    static const char *const colours[] = {"\033[2m", "\033[32m", "\033[33m", "\033[31m"};
    static const char *const levels[] = {"DEBUG", "INFO ", "WARN ", "ERROR"};
    static const char cut[] = " cut=true";
    struct writer writer = {.start = line, .most = TT_LOG_LINE_BYTES - sizeof cut};

    put_text(&writer, colour ? "\033[2m" : "");
    put_time(&writer, entry->time_ms, ' ');
    put_text(&writer, colour ? "\033[0m " : " ");
    put_text(&writer, colour ? colours[entry->level] : "");
    put_text(&writer, levels[entry->level]);
    put_text(&writer, colour ? "\033[0m \033[1m" : " ");
    put_text(&writer, entry->event);
    put_text(&writer, colour ? "\033[0m" : "");
    put_fields(&writer, entry, SHAPE_TEXT);
    writer.most = TT_LOG_LINE_BYTES;
    put_text(&writer, writer.cut ? cut : "");
    put_text(&writer, "\n");
    return writer.used;
}

size_t tt_logline_journal(char data[TT_LOG_JOURNAL_BYTES], const struct tt_log_entry *entry)
{
    static const char priorities[] = "7643";
    static const char cut[] = "TILETRACK_CUT=true\n";
    struct writer writer = {.start = data, .most = TT_LOG_LINE_BYTES};

    put_text(&writer, "MESSAGE=");
    put_text(&writer, entry->event);
    put_fields(&writer, entry, SHAPE_TEXT);
    writer.most = TT_LOG_JOURNAL_BYTES - sizeof cut;
    put_text(&writer, "\nPRIORITY=");
    put(&writer, &priorities[entry->level], 1);
    put_text(&writer, "\nSYSLOG_IDENTIFIER=");
    put_text(&writer, entry->program);
    put_text(&writer, "\nTILETRACK_EVENT=");
    put_text(&writer, entry->event);
    put_text(&writer, "\n");
    put_fields(&writer, entry, SHAPE_JOURNAL);
    writer.most = TT_LOG_JOURNAL_BYTES;
    put_text(&writer, writer.cut ? cut : "");
    return writer.used;
}

/* core/text.c: buffered text on its way into a tt_file.
 *
 * Fails: as the disk does; see text.h.
 */
#include "core/text.h"

#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { PIECE_BYTES = 512 }; /* no single print is longer */

static void flush(struct tt_text *text)
{
    if (!text->status)
        text->status = tt_file_write(text->file, text->bytes, text->used, &text->err);
    text->used = 0;
}

void tt_text_begin(struct tt_text *text, struct tt_file *file)
{
    text->file = file;
    text->status = TT_OK;
    text->used = 0;
}

void tt_put(struct tt_text *text, const char *format, ...)
{
    va_list args;

    if (text->used + PIECE_BYTES > TT_TEXT_BYTES)
        flush(text);
    va_start(args, format);
    text->used += (size_t)vsnprintf(text->bytes + text->used, PIECE_BYTES, format, args);
    va_end(args);
}

static void put_bytes(struct tt_text *text, const char *bytes, size_t size)
{
    while (size > 0) {
        size_t count = size < PIECE_BYTES ? size : PIECE_BYTES;

        if (text->used + count > TT_TEXT_BYTES)
            flush(text);
        memcpy(text->bytes + text->used, bytes, count);
        text->used += count;
        bytes += count;
        size -= count;
    }
}

void tt_put_string(struct tt_text *text, const char *string)
{
    put_bytes(text, string, strlen(string));
}

void tt_put_float(struct tt_text *text, float value)
{
    char digits[32];

    /* Few floats have a short form; trying costs, so only those that look like one are tried. */
    if (roundf(value * 1000) / 1000 == value) {
        snprintf(digits, sizeof digits, "%.7g", (double)value);
        if (strtof(digits, NULL) == value) {
            tt_put(text, "%s", digits);
            return;
        }
    }
    tt_put(text, "%.9g", (double)value);
}

void tt_put_double(struct tt_text *text, double value)
{
    char digits[32];

    snprintf(digits, sizeof digits, "%.15g", value);
    if (strtod(digits, NULL) == value)
        tt_put(text, "%s", digits);
    else
        tt_put(text, "%.17g", value);
}

/* In quotes, with `escape` before each byte of `special`. */
static void put_quoted(struct tt_text *text, const char *string, const char *special, char escape)
{
    put_bytes(text, "\"", 1);
    while (*string) {
        size_t plain = strcspn(string, special);
        const char pair[2] = {escape, string[plain]};

        put_bytes(text, string, plain);
        string += plain;
        if (*string) {
            put_bytes(text, pair, sizeof pair);
            string++;
        }
    }
    put_bytes(text, "\"", 1);
}

void tt_put_csv_string(struct tt_text *text, const char *string)
{
    put_quoted(text, string, "\"", '"');
}

/* Labels have no control characters, so these two are all that need an escape. */
void tt_put_json_string(struct tt_text *text, const char *string)
{
    put_quoted(text, string, "\"\\", '\\');
}

enum tt_status tt_text_end(struct tt_text *text, struct tt_error *err)
{
    flush(text);
    return text->status ? tt_fail(err, text->status, "%s", text->err.text) : TT_OK;
}

/* core/text.h: buffered text on its way into a tt_file.
 *
 * The first failure is kept; nothing is written after it. printf writes numbers in the C locale, which the
 * programs never leave.
 */
#ifndef TT_CORE_TEXT_H
#define TT_CORE_TEXT_H

#include "core/fsio.h"
#include "core/status.h"

#include <stddef.h>

enum { TT_TEXT_BYTES = 1 << 16 };

/* Borrows file. */
struct tt_text {
    struct tt_file *file;
    enum tt_status status;
    struct tt_error err; /* of the failure */
    size_t used;
    char bytes[TT_TEXT_BYTES];
};

void tt_text_begin(struct tt_text *text, struct tt_file *file);

/* At most 500 bytes at a time. */
void tt_put(struct tt_text *text, const char *format, ...) __attribute__((format(printf, 2, 3)));

/* Text of any length, as it is. */
void tt_put_string(struct tt_text *text, const char *string);

/* Digits that bring back the same float or double, few where few do. */
void tt_put_float(struct tt_text *text, float value);
void tt_put_double(struct tt_text *text, double value);

/* In double quotes: as CSV has it (RFC 4180), as JSON and Python have it (UTF-8 as it is). */
void tt_put_csv_string(struct tt_text *text, const char *string);
void tt_put_json_string(struct tt_text *text, const char *string);

/* Writes what is left; the first failure of all. */
enum tt_status tt_text_end(struct tt_text *text, struct tt_error *err);

#endif

/* core/logline.h: one entry of the log as bytes, in each of its three forms. For core/log.c only. */
#ifndef TT_CORE_LOGLINE_H
#define TT_CORE_LOGLINE_H

#include "core/log.h"

enum {
    TT_LOG_VALUE_BYTES = 2048,                    /* a longer value is cut; a name of 255 bytes never is */
    TT_LOG_JOURNAL_BYTES = 3 * TT_LOG_LINE_BYTES, /* MESSAGE, and each field once more */
};

/* Borrows everything. */
struct tt_log_entry {
    enum tt_log_level level;
    const char *event;
    const char *program;
    const char *worker; /* NULL, or for entries without a field of this name */
    int64_t time_ms;    /* since 1970, UTC */
    const struct tt_log_field *fields;
    int count;
};

/* A JSON object and a newline; returns the length. What does not fit is left out, and `cut` says so. */
size_t tt_logline_json(char line[TT_LOG_LINE_BYTES], const struct tt_log_entry *entry);

/* "2025-11-30 19:14:35.123Z INFO  job_done job=... decode_ms=12" and a newline; colour: with escape sequences
 * for a terminal. */
size_t tt_logline_text(char line[TT_LOG_LINE_BYTES], const struct tt_log_entry *entry, bool colour);

/* A datagram of the journal's native protocol. */
size_t tt_logline_journal(char data[TT_LOG_JOURNAL_BYTES], const struct tt_log_entry *entry);

#endif

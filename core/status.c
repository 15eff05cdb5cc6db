/* core/status.c: error texts.
 *
 * Texts always end in a NUL and, when cut, in "...". Nothing here allocates, and nothing here can fail.
 */
#include "core/status.h"

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

static void mark_cut(char *text, int wanted)
{
    if (wanted >= TT_ERROR_TEXT_BYTES)
        memcpy(text + TT_ERROR_TEXT_BYTES - 4, "...", 4);
}

static enum tt_status fail_with(struct tt_error *err, enum tt_status status, const char *suffix,
                                const char *format, va_list args)
{
    char text[TT_ERROR_TEXT_BYTES];

    if (!err)
        return status;
    mark_cut(text, vsnprintf(text, sizeof text, format, args));
    err->status = status;
    if (suffix)
        mark_cut(err->text, snprintf(err->text, sizeof err->text, "%s: %s", text, suffix));
    else
        memcpy(err->text, text, sizeof text);
    return status;
}

enum tt_status tt_fail(struct tt_error *err, enum tt_status status, const char *format, ...)
{
    va_list args;

    va_start(args, format);
    fail_with(err, status, NULL, format, args);
    va_end(args);
    return status;
}

enum tt_status tt_fail_errno(struct tt_error *err, enum tt_status status, int errno_value, const char *format,
                             ...)
{
    va_list args;

    va_start(args, format);
    fail_with(err, status, strerror(errno_value), format, args);
    va_end(args);
    return status;
}

enum tt_status tt_fail_within(struct tt_error *err, const char *format, ...)
{
    char cause[TT_ERROR_TEXT_BYTES];
    va_list args;

    memcpy(cause, err->text, sizeof cause);
    va_start(args, format);
    fail_with(err, err->status, cause, format, args);
    va_end(args);
    return err->status;
}

const char *tt_status_name(enum tt_status status)
{
    switch (status) {
    case TT_OK:
        return "ok";
    case TT_BAD_INPUT:
        return "bad_input";
    case TT_RETRY_LATER:
        return "retry_later";
    case TT_SHRINK_TILE:
        return "shrink_tile";
    case TT_RESTART_WORKER:
        return "restart_worker";
    case TT_REFUSE:
        return "refuse";
    case TT_INTERRUPTED:
        return "interrupted";
    }
    return "unknown";
}

enum tt_status tt_status_of_errno(int errno_value)
{
    switch (errno_value) {
    case ENOSPC:
    case EDQUOT:
    case ENOMEM:
    case EMFILE:
    case ENFILE:
    case EAGAIN:
    case EBUSY:
    case EIO:
    case EROFS:
    case ESTALE:
        return TT_RETRY_LATER;
    default:
        return TT_REFUSE;
    }
}

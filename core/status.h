/* core/status.h: what went wrong, and what to do next.
 *
 * A function that can fail returns an enum tt_status and takes a struct tt_error. The status says what the
 * caller should do; the text says why, for a person, and names the file, the line or the number concerned.
 * Libraries neither log nor exit: they fill in the error and return.
 */
#ifndef TT_CORE_STATUS_H
#define TT_CORE_STATUS_H

enum tt_status {
    TT_OK = 0,
    TT_BAD_INPUT,      /* the file that was given is at fault: set it aside, do not try again */
    TT_RETRY_LATER,    /* the host is short of something or the device is busy: try again later */
    TT_SHRINK_TILE,    /* device memory is short: plan smaller tiles and try again */
    TT_RESTART_WORKER, /* the device or a child is lost: this process must end and be started anew */
    TT_REFUSE,         /* configuration: will fail again until a person changes something */
    TT_INTERRUPTED,    /* somebody asked to stop: nothing is wrong */
};

enum { TT_ERROR_TEXT_BYTES = 1024 };

/* Owned by the caller, usually on its stack; a callee writes it only when it fails. */
struct tt_error {
    enum tt_status status;
    char text[TT_ERROR_TEXT_BYTES];
};

/* Fills in *err (which may be NULL) and returns status, so that a failing path is one line.
 * Text that does not fit is cut and ends in "...". */
enum tt_status tt_fail(struct tt_error *err, enum tt_status status, const char *format, ...)
    __attribute__((format(printf, 3, 4)));

/* The same, with ": " and strerror(errno_value) behind the text. */
enum tt_status tt_fail_errno(struct tt_error *err, enum tt_status status, int errno_value, const char *format,
                             ...) __attribute__((format(printf, 4, 5)));

/* Puts "context: " before the text that is there, as an error travels up. Returns err->status. */
enum tt_status tt_fail_within(struct tt_error *err, const char *format, ...)
    __attribute__((format(printf, 2, 3)));

/* The status as a stable word for logs and JSON: "ok", "bad_input", ... */
const char *tt_status_name(enum tt_status status);

/* What an errno from a write, open or allocation asks for: ENOSPC, EDQUOT, ENOMEM, EMFILE, EAGAIN ... are
 * TT_RETRY_LATER; everything else is TT_REFUSE. */
enum tt_status tt_status_of_errno(int errno_value);

#endif

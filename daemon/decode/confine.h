/* daemon/decode/confine.h: what this process can no longer do. */
#ifndef TT_DECODE_CONFINE_H
#define TT_DECODE_CONFINE_H

#include "core/decoder_wire.h"

/* Ties the child's life to its parent's, bounds memory and processor time, and gives up every system call
 * that decoding does not need, for all threads and for good. Nothing may have been read from the video
 * before.
 *
 * What remains: memory (none of it executable), threads (no processes), clocks, pread64 of TT_CHILD_VIDEO,
 * read and write of TT_CHILD_CONTROL, exit. Calls that take file names fail with EACCES, since libraries look
 * for optional files; any other call kills the process (SIGSYS).
 *
 * TT_REFUSE: the kernel cannot do it, or the limits are too small to begin; TT_RETRY_LATER: the parent is
 * gone. */
enum tt_status tt_confine(const struct tt_wire_request *request, struct tt_error *err);

/* For tiletrack-encode: the file may be written (pwrite64 of TT_CHILD_FILE) and not be read; of the request
 * parent_pid, memory_bytes and cpu_seconds count. */
enum tt_status tt_confine_writer(const struct tt_wire_request *request, struct tt_error *err);

#endif

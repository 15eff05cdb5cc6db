/* core/digest.c: a file's SHA-256. Invariant: memory is one piece, however long the file is. Fails as reading
 * does, and where the caller wants to stop. */
#include "core/digest.h"

#include <errno.h>
#include <unistd.h>

enum { BLOCK_BYTES = 1 << 16, PIECE_BLOCKS = 64 };

enum tt_status tt_digest_file(struct tt_digest *digest, int fd,
                              enum tt_status (*go_on)(void *user, struct tt_error *err), void *user,
                              struct tt_error *err)
{
    char block[BLOCK_BYTES];
    struct tt_digest made = {.bytes = 0};
    struct tt_sha256 sha;
    ssize_t got = 1;

    tt_sha256_begin(&sha);
    for (int64_t i = 0; got > 0; i++) {
        enum tt_status status = i % PIECE_BLOCKS == 0 ? go_on(user, err) : TT_OK;

        if (status)
            return status;
        do
            got = pread(fd, block, sizeof block, made.bytes);
        while (got < 0 && errno == EINTR);
        if (got < 0)
            return tt_fail_errno(err, tt_status_of_errno(errno), errno,
                                 "reading the video again for its SHA-256");
        tt_sha256_add(&sha, block, (size_t)got);
        made.bytes += got;
    }
    tt_sha256_end(&sha, made.sha256);
    *digest = made;
    return TT_OK;
}

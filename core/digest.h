/* core/digest.h: what names a file by its content: its SHA-256, read in pieces. */
#ifndef TT_CORE_DIGEST_H
#define TT_CORE_DIGEST_H

#include "core/sha256.h"
#include "core/status.h"

#include <stdint.h>

struct tt_digest {
    char sha256[TT_SHA256_HEX];
    int64_t bytes; /* of the file */
};

/* Reads the whole file behind a descriptor, whose position is not moved: about a second for 250 MB. go_on:
 * asked before each piece of a few MB; another status than TT_OK ends the work with it. *digest: out. */
enum tt_status tt_digest_file(struct tt_digest *digest, int fd,
                              enum tt_status (*go_on)(void *user, struct tt_error *err), void *user,
                              struct tt_error *err);

#endif

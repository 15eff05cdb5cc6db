/* core/sha256.h: SHA-256 (FIPS 180-4), to name weight files and videos by their content. */
#ifndef TT_CORE_SHA256_H
#define TT_CORE_SHA256_H

#include <stddef.h>
#include <stdint.h>

enum { TT_SHA256_BYTES = 32, TT_SHA256_HEX = 65 };

struct tt_sha256 {
    uint32_t state[8];
    uint64_t bytes; /* taken so far */
    uint8_t block[64];
};

void tt_sha256_begin(struct tt_sha256 *sha);
void tt_sha256_add(struct tt_sha256 *sha, const void *data, size_t size);

/* hex: out, lower case, ends in a NUL. The state is of no further use. */
void tt_sha256_end(struct tt_sha256 *sha, char hex[TT_SHA256_HEX]);

#endif

/* core/utf8.h: what a byte string holds. */
#ifndef TT_CORE_UTF8_H
#define TT_CORE_UTF8_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* The length in bytes of the character that text begins with, and its code point in *code; or 0 where no
 * valid UTF-8 begins there (nor a surrogate, nor an overlong form). bytes: at least 1. */
size_t tt_utf8_decode(const char *text, size_t bytes, uint32_t *code);

/* Whether a terminal or a line reader might take the character for something else than a letter: control
 * characters, line and paragraph separators, direction marks, byte order marks. */
bool tt_utf8_unprintable(uint32_t code);

#endif

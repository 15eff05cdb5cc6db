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

/* The character at *next, which is moved behind it; -1 (and *next unmoved) where none begins there. *next <
 * end. */
int32_t tt_utf8_next(const char **next, const char *end);

/* Characters in valid UTF-8 text. */
size_t tt_utf8_length(const char *text);

/* A query point's label: valid UTF-8 without control characters. */
bool tt_utf8_is_label(const char *text, size_t bytes);

/* Writes a character's 1 to 4 bytes; returns how many, 0 where code is not a character. */
size_t tt_utf8_write(char out[4], uint32_t code);

#endif

/* core/utf8.c: decoding and encoding one character at a time. No state, no allocation; invalid bytes are the
 * only failure.
 */
#include "core/utf8.h"

size_t tt_utf8_decode(const char *text, size_t bytes, uint32_t *code)
{
    static const uint32_t least[] = {0, 0, 0x80, 0x800, 0x10000};
    const unsigned char *s = (const unsigned char *)text;
    size_t length = s[0] < 0x80   ? 1
                    : s[0] < 0xC2 ? 0
                    : s[0] < 0xE0 ? 2
                    : s[0] < 0xF0 ? 3
                    : s[0] < 0xF5 ? 4
                                  : 0;
    uint32_t value;

    if (length == 0 || length > bytes)
        return 0;
    value = length == 1 ? s[0] : s[0] & (0xFFu >> (length + 1));
    for (size_t i = 1; i < length; i++) {
        if ((s[i] & 0xC0) != 0x80)
            return 0;
        value = value << 6 | (s[i] & 0x3Fu);
    }
    if (value < least[length] || value > 0x10FFFF || (value >= 0xD800 && value <= 0xDFFF))
        return 0;
    *code = value;
    return length;
}

bool tt_utf8_unprintable(uint32_t code)
{
    return code < 0x20 || (code >= 0x7F && code < 0xA0) || code == 0x200E || code == 0x200F ||
           (code >= 0x2028 && code <= 0x202E) || (code >= 0x2066 && code <= 0x2069) || code == 0xFEFF ||
           code == 0xFFFE || code == 0xFFFF;
}

int32_t tt_utf8_next(const char **next, const char *end)
{
    uint32_t code;
    size_t length = tt_utf8_decode(*next, (size_t)(end - *next), &code);

    *next += length;
    return length > 0 ? (int32_t)code : -1;
}

size_t tt_utf8_length(const char *text)
{
    size_t length = 0;

    for (; *text; text++)
        length += ((unsigned char)*text & 0xC0) != 0x80;
    return length;
}

bool tt_utf8_is_label(const char *text, size_t bytes)
{
    const char *end = text + bytes;

    while (text < end) {
        int32_t code = tt_utf8_next(&text, end);

        if (code < 0x20 || (code >= 0x7F && code < 0xA0))
            return false;
    }
    return true;
}

size_t tt_utf8_write(char out[4], uint32_t code)
{
    static const unsigned char lead[] = {0, 0xC0, 0xE0, 0xF0};
    size_t more = code < 0x80 ? 0 : code < 0x800 ? 1 : code < 0x10000 ? 2 : 3;

    if (code > 0x10FFFF || (code >= 0xD800 && code <= 0xDFFF))
        return 0;
    for (size_t i = more; i > 0; i--, code >>= 6)
        out[i] = (char)(0x80 | (code & 0x3F));
    out[0] = (char)(lead[more] | code);
    return 1 + more;
}

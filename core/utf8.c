/* core/utf8.c: decoding one character at a time. No state, no allocation; invalid bytes are the only failure.
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

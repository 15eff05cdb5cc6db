/* core/npy.c: the headers of NumPy's .npy format, versions 1.0 and 2.0, for the types that track files have.
 *
 * Parsing is strict: the dictionary must look as every NumPy writes it (keys sorted), little-endian, C order.
 */
#include "core/trackfile_parts.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

_Static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "arrays are written as they lie in memory");

int64_t tt_npy_data_bytes(const struct tt_npy *npy)
{
    int64_t bytes = npy->item_bytes;

    for (int i = 0; i < npy->rank; i++)
        if (__builtin_mul_overflow(bytes, npy->shape[i], &bytes))
            return INT64_MAX;
    return bytes;
}

size_t tt_npy_write_header(char out[TT_NPY_HEADER_BYTES], const struct tt_npy *npy)
{
    char shape[96] = "", descr[16];
    size_t used = 0, length, total;

    for (int i = 0; i < npy->rank; i++)
        used += (size_t)snprintf(shape + used, sizeof shape - used, i == 0 ? "%lld," : " %lld,",
                                 (long long)npy->shape[i]);
    if (npy->rank > 1)
        shape[used - 1] = '\0'; /* only a tuple of one keeps its comma */
    if (npy->kind == 'U')
        snprintf(descr, sizeof descr, "<U%d", npy->characters);
    else
        snprintf(descr, sizeof descr, "%c%c%d", npy->item_bytes == 1 ? '|' : '<', npy->kind, npy->item_bytes);
    memcpy(out, "\x93NUMPY\x01\x00", 8);
    length = (size_t)snprintf(out + 10, TT_NPY_HEADER_BYTES - 10,
                              "{'descr': '%s', 'fortran_order': False, 'shape': (%s), }", descr, shape);
    total = (10 + length + 1 + 63) / 64 * 64;
    memset(out + 10 + length, ' ', total - 10 - length);
    out[total - 1] = '\n';
    out[8] = (char)((total - 10) & 0xff);
    out[9] = (char)((total - 10) >> 8);
    return total;
}

static bool take(const char **next, const char *word)
{
    while (**next == ' ')
        ++*next;
    if (strncmp(*next, word, strlen(word)) != 0)
        return false;
    *next += strlen(word);
    return true;
}

static bool take_number(const char **next, int64_t *number)
{
    int digits = 0;

    while (**next == ' ')
        ++*next;
    for (*number = 0; **next >= '0' && **next <= '9' && digits < 12; digits++)
        *number = *number * 10 + (*(*next)++ - '0');
    return digits > 0 && (**next < '0' || **next > '9');
}

static bool take_type(const char **next, struct tt_npy *npy)
{
    int64_t number;

    if (!take(next, "'") || (**next != '<' && **next != '|'))
        return false;
    ++*next;
    npy->kind = *(*next)++;
    if (npy->kind == '\0' || !strchr("fibU", npy->kind) || !take_number(next, &number) || number < 1 ||
        number > TT_META_CHARACTERS || !take(next, "'"))
        return false;
    npy->characters = npy->kind == 'U' ? (int)number : 0;
    npy->item_bytes = (int)(npy->kind == 'U' ? 4 * number : number);
    return true;
}

bool tt_npy_parse_header(struct tt_npy *npy, const char *text)
{
    struct tt_npy read = {.rank = 0};
    const char *next = text;

    if (!take(&next, "{") || !take(&next, "'descr'") || !take(&next, ":") || !take_type(&next, &read) ||
        !take(&next, ",") || !take(&next, "'fortran_order'") || !take(&next, ":") || !take(&next, "False") ||
        !take(&next, ",") || !take(&next, "'shape'") || !take(&next, ":") || !take(&next, "("))
        return false;
    while (!take(&next, ")")) {
        if (read.rank == 3 || !take_number(&next, &read.shape[read.rank++]))
            return false;
        if (!take(&next, ",") && *next != ')')
            return false;
    }
    take(&next, ",");
    if (!take(&next, "}") || next[strspn(next, " ")] != '\n')
        return false;
    *npy = read;
    return true;
}

/* daemon/spool/name.c: names in the spool.
 *
 * Invariants: no name made here is longer than TT_NAME_BYTES; encode and decode are each other's inverse.
 * Fails: only for want of memory, and decode on text that encode cannot have made.
 */
#include "daemon/spool/name.h"

#include "core/utf8.h"

#include <limits.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

const char *const tt_spool_sidecar_names[TT_SPOOL_SIDECARS] = {"queries.csv", "queries.json", "mask.png"};

size_t tt_name_stem(const char *name)
{
    const char *dot = strrchr(name, '.');

    return dot && dot != name ? (size_t)(dot - name) : strlen(name);
}

/* Whether name is something, then ending. */
static bool ends_in(const char *name, const char *ending)
{
    size_t name_bytes = strlen(name), ending_bytes = strlen(ending);

    return name_bytes > ending_bytes && strcasecmp(name + name_bytes - ending_bytes, ending) == 0;
}

enum tt_spool_sidecar tt_name_sidecar(const char *name)
{
    static const char *const endings[TT_SPOOL_SIDECARS] = {".queries.csv", ".queries.json", ".mask.png"};
    size_t bytes = strlen(name);

    for (int kind = 0; kind < TT_SPOOL_SIDECARS; kind++) {
        size_t ending = strlen(endings[kind]);

        if (bytes > ending && strcmp(name + bytes - ending, endings[kind]) == 0)
            return (enum tt_spool_sidecar)kind;
    }
    return TT_SPOOL_SIDECARS;
}

bool tt_name_is_reserved(const char *name)
{
    return name[0] == '.' || strcmp(name, "tiletrack.yaml") == 0 || ends_in(name, ".part") ||
           ends_in(name, ".filepart") || tt_name_sidecar(name) != TT_SPOOL_SIDECARS;
}

/* The largest cut <= limit that does not split a UTF-8 character. */
static size_t whole_characters(const char *base, size_t base_bytes, size_t limit)
{
    uint32_t code;

    for (size_t back = 1; back <= 3 && back <= limit; back++) {
        size_t length = tt_utf8_decode(base + limit - back, base_bytes - (limit - back), &code);

        if (length > back)
            return limit - back;
        if (length > 0)
            break;
    }
    return limit;
}

void tt_name_join(char *name, const char *base, size_t base_bytes, int number, const char *suffix)
{
    char mark[16] = "";
    size_t room;

    if (number > 1)
        snprintf(mark, sizeof mark, "~%d", number);
    room = strlen(mark) + strlen(suffix);
    room = room < TT_NAME_BYTES ? TT_NAME_BYTES - room : 1;
    if (base_bytes > room)
        base_bytes = whole_characters(base, base_bytes, room);
    snprintf(name, TT_NAME_BYTES + 1, "%.*s%s%s", (int)base_bytes, base, mark, suffix);
}

void tt_name_of_output(char *name, const char *base, size_t base_bytes, int number, enum tt_output format)
{
    const char *longest = "";

    for (int i = 0; i < TT_OUTPUTS; i++)
        if (strlen(tt_output_suffixes[i]) > strlen(longest))
            longest = tt_output_suffixes[i];
    tt_name_join(name, base, base_bytes, number, longest);
    strcpy(name + strlen(name) - strlen(longest), tt_output_suffixes[format]);
}

void tt_name_of_sidecar(char *name, const char *video, enum tt_spool_sidecar kind)
{
    char suffix[32];

    snprintf(suffix, sizeof suffix, ".%s", tt_spool_sidecar_names[kind]);
    tt_name_join(name, video, tt_name_stem(video), 1, suffix);
}

/* --- paths -------------------------------------------------------------------------------------------------
 */

bool tt_path_is_safe(const char *path)
{
    if (strlen(path) >= PATH_MAX)
        return false;
    for (;;) {
        size_t bytes = strcspn(path, "/");

        if (bytes == 0 || bytes > TT_NAME_BYTES || (bytes == 1 && path[0] == '.') ||
            (bytes == 2 && path[0] == '.' && path[1] == '.'))
            return false;
        if (!path[bytes])
            return true;
        path += bytes + 1;
    }
}

size_t tt_path_directory(const char *path)
{
    const char *slash = strrchr(path, '/');

    return slash ? (size_t)(slash - path) : 0;
}

bool tt_path_has_priority(const char *path)
{
    return strncmp(path, TT_PRIORITY_DIRECTORY "/", sizeof TT_PRIORITY_DIRECTORY) == 0;
}

const char *tt_path_mirrored(const char *path)
{
    return tt_path_has_priority(path) ? path + sizeof TT_PRIORITY_DIRECTORY : path;
}

/* --- names as text -----------------------------------------------------------------------------------------
 */

char *tt_name_encode(const char *name)
{
    char *text = malloc(3 * strlen(name) + 1), *to = text;

    if (!text)
        return NULL;
    for (; *name; name++) {
        unsigned char byte = (unsigned char)*name;

        if (byte > ' ' && byte < 0x7f && byte != '%')
            *to++ = (char)byte;
        else
            to += sprintf(to, "%%%02X", byte);
    }
    *to = '\0';
    return text;
}

static int hex_digit(char c)
{
    if (c >= '0' && c <= '9')
        return c - '0';
    return c >= 'A' && c <= 'F' ? c - 'A' + 10 : -1;
}

char *tt_name_decode(const char *text)
{
    char *name = malloc(strlen(text) + 1), *to = name;

    if (!name)
        return NULL;
    for (; *text; text++) {
        int high, low;

        if (*text != '%') {
            *to++ = *text;
            continue;
        }
        high = hex_digit(text[1]);
        low = high < 0 ? -1 : hex_digit(text[2]);
        if (low < 0 || (high == 0 && low == 0)) {
            free(name);
            return NULL;
        }
        *to++ = (char)(high << 4 | low);
        text += 2;
    }
    *to = '\0';
    return name;
}

char *tt_name_text(const char *name)
{
    size_t bytes = strlen(name);
    char *text = malloc(3 * bytes + 1), *to = text;

    if (!text)
        return NULL;
    while (bytes > 0) {
        uint32_t code;
        size_t length = tt_utf8_decode(name, bytes, &code);

        if (length > 0) {
            memcpy(to, name, length);
            to += length;
        } else {
            memcpy(to, "\xef\xbf\xbd", 3);
            to += 3;
            length = 1;
        }
        name += length;
        bytes -= length;
    }
    *to = '\0';
    return text;
}

char *tt_name_shell(const char *name)
{
    static const char plain[] = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789._-+,:@%/=";
    bool odd = false;
    char *word, *to;

    if (name[0] && strspn(name, plain) == strlen(name))
        return strdup(name);
    for (const char *c = name; *c; c++)
        odd |= (unsigned char)*c < ' ' || (unsigned char)*c >= 0x7f || *c == '\'';
    word = to = malloc(4 * strlen(name) + 4);
    if (!word)
        return NULL;
    to += sprintf(to, odd ? "$'" : "'");
    for (; *name; name++) {
        unsigned char byte = (unsigned char)*name;

        if (odd && (byte < ' ' || byte >= 0x7f || byte == '\'' || byte == '\\'))
            to += sprintf(to, "\\x%02x", byte);
        else
            *to++ = (char)byte;
    }
    strcpy(to, "'");
    return word;
}

/* daemon/decode/extent.c: walks the outermost structure of a container.
 *
 * libav does not tell a file that was cut from one that ends, so this looks for itself. Every number read is
 * checked before it moves a position, and walks are bounded; anything unexpected is "does not say".
 */
#include "daemon/decode/extent.h"

#include "core/decoder_wire.h"

#include <stdbool.h>
#include <string.h>
#include <unistd.h>

enum { MAX_BOXES = 4000000, OGG_TAIL_BYTES = 27 + 255 + 255 * 255 };

static bool get(void *bytes, size_t size, int64_t position)
{
    return position >= 0 && pread(TT_CHILD_VIDEO, bytes, size, position) == (ssize_t)size;
}

static uint64_t big_endian(const uint8_t *bytes, int count)
{
    uint64_t value = 0;

    for (int i = 0; i < count; i++)
        value = value << 8 | bytes[i];
    return value;
}

static uint64_t little_endian(const uint8_t *bytes, int count)
{
    uint64_t value = 0;

    for (int i = count; i-- > 0;)
        value = value << 8 | bytes[i];
    return value;
}

/* The end of the chain of boxes. */
static int64_t boxes(int64_t file_bytes)
{
    int64_t position = 0;

    for (int n = 0; n < MAX_BOXES && position <= file_bytes - 8; n++) {
        uint8_t head[16];
        uint64_t size;
        bool wide;

        if (!get(head, 8, position))
            return 0;
        for (int i = 4; i < 8; i++)
            if (head[i] < ' ' || head[i] > '~')
                return 0;
        size = big_endian(head, 4);
        wide = size == 1;
        if (size == 0) /* to the end of the file */
            return file_bytes;
        if (wide) {
            if (!get(head, 16, position))
                return file_bytes + 1;
            size = big_endian(head + 8, 8);
        }
        if (size < (wide ? 16 : 8) || size > (uint64_t)INT64_MAX / 2)
            return 0;
        position += (int64_t)size;
    }
    return position;
}

static int64_t riff(int64_t file_bytes)
{
    int64_t position = 0;

    for (int n = 0; n < MAX_BOXES && position <= file_bytes - 8; n++) {
        uint8_t head[8];
        uint32_t size;

        if (!get(head, 8, position) || memcmp(head, "RIFF", 4))
            break;
        size = (uint32_t)little_endian(head + 4, 4);
        if (size == 0 || size == UINT32_MAX) /* never finished by its writer */
            return 0;
        position += 8 + (int64_t)size;
    }
    return position;
}

/* An EBML element's id or size at *position. Returns false where there is none. */
static bool ebml_number(int64_t *position, bool is_size, uint64_t *value, bool *unknown)
{
    uint8_t bytes[8];
    int length = 1;
    uint64_t ones;

    if (!get(bytes, 1, *position) || !bytes[0])
        return false;
    while (!(bytes[0] & (0x80 >> (length - 1))))
        length++;
    if (!get(bytes, (size_t)length, *position))
        return false;
    if (is_size)
        bytes[0] &= (uint8_t)(0xff >> length);
    *value = big_endian(bytes, length);
    ones = ((uint64_t)1 << (7 * length)) - 1;
    *unknown = is_size && *value == ones;
    *position += length;
    return true;
}

static int64_t matroska(void)
{
    static const uint32_t ids[2] = {0x1a45dfa3, 0x18538067}; /* EBML head, segment */
    int64_t position = 0;

    for (int i = 0; i < 2; i++) {
        uint64_t id, size;
        bool unknown;

        if (!ebml_number(&position, false, &id, &unknown) || id != ids[i] ||
            !ebml_number(&position, true, &size, &unknown) || unknown || size > (uint64_t)INT64_MAX / 2)
            return 0;
        position += (int64_t)size;
    }
    return position;
}

/* The end of the last page that begins. */
static int64_t ogg(int64_t file_bytes)
{
    static uint8_t tail[OGG_TAIL_BYTES];
    int64_t size = file_bytes < OGG_TAIL_BYTES ? file_bytes : OGG_TAIL_BYTES;
    int64_t start = file_bytes - size;

    if (!get(tail, (size_t)size, start))
        return 0;
    for (int64_t i = size - 4; i >= 0; i--) {
        int64_t end = i + 27;

        if (memcmp(tail + i, "OggS", 4))
            continue;
        if (end > size || end + tail[i + 26] > size)
            return file_bytes + 1;
        end += tail[i + 26];
        for (int64_t k = i + 27; k < i + 27 + tail[i + 26]; k++)
            end += tail[k];
        return start + end;
    }
    return 0;
}

/* The size in the file properties, one of the objects in the header object. */
static int64_t asf(void)
{
    static const uint8_t properties[16] = {0xa1, 0xdc, 0xab, 0x8c, 0x47, 0xa9, 0xcf, 0x11,
                                           0x8e, 0xe4, 0x00, 0xc0, 0x0c, 0x20, 0x53, 0x65};
    int64_t position = 30;

    for (int n = 0; n < 64; n++) {
        uint8_t object[16 + 8 + 16 + 8];
        uint64_t size;

        if (!get(object, sizeof object, position))
            return 0;
        size = little_endian(object + 16, 8);
        if (!memcmp(object, properties, 16))
            size = little_endian(object + 40, 8);
        if (size < 24 || size > (uint64_t)INT64_MAX / 2)
            return 0;
        if (!memcmp(object, properties, 16))
            return (int64_t)size;
        position += (int64_t)size;
    }
    return 0;
}

static int64_t transport(int64_t file_bytes)
{
    static const int strides[] = {188, 192, 204};

    for (size_t i = 0; i < sizeof strides / sizeof *strides; i++) {
        int first = strides[i] == 192 ? 4 : 0;
        bool is_sync = true;

        for (int n = 0; n < 4 && is_sync; n++) {
            uint8_t byte;

            is_sync = get(&byte, 1, first + (int64_t)n * strides[i]) && byte == 0x47;
        }
        if (is_sync)
            return (file_bytes + strides[i] - 1) / strides[i] * strides[i];
    }
    return 0;
}

int64_t tt_extent_declared(int64_t file_bytes)
{
    static const char *const first_boxes[] = {"ftyp", "moov", "mdat", "free", "skip", "wide", "pnot", "styp"};
    uint8_t head[12];

    if (!get(head, sizeof head, 0))
        return 0;
    for (size_t i = 0; i < sizeof first_boxes / sizeof *first_boxes; i++)
        if (!memcmp(head + 4, first_boxes[i], 4))
            return boxes(file_bytes);
    if (!memcmp(head, "RIFF", 4) && !memcmp(head + 8, "AVI ", 4))
        return riff(file_bytes);
    if (!memcmp(head, "\x1a\x45\xdf\xa3", 4))
        return matroska();
    if (!memcmp(head, "OggS", 4))
        return ogg(file_bytes);
    if (!memcmp(head, "\x30\x26\xb2\x75\x8e\x66\xcf\x11", 8))
        return asf();
    return transport(file_bytes);
}

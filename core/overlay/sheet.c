/* core/overlay/sheet.c: the contact sheet: twelve frames, evenly spaced, each with its number.
 *
 * Invariant: a cell has the video's shape and is never larger than the video. Fails for want of memory.
 */
#include "core/overlay/parts.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

enum { SHEET_WIDTH = 1600, GAP = 4, BACKGROUND = 32 };

enum tt_status tt_sheet_open(struct tt_sheet *sheet, int width, int height, int64_t frames,
                             struct tt_error *err)
{
    struct tt_sheet made = {.frames = frames,
                            .cells = frames < TT_SHEET_CELLS ? (int)frames : TT_SHEET_CELLS};
    size_t bytes;

    made.columns = width >= height ? 4 : 6;
    if (made.columns > made.cells)
        made.columns = made.cells;
    made.rows = (made.cells + made.columns - 1) / made.columns;
    made.cell.width = (SHEET_WIDTH - GAP) / (width >= height ? 4 : 6) - GAP;
    if (made.cell.width > width)
        made.cell.width = width;
    made.cell.height = (int)((int64_t)made.cell.width * height / width);
    if (made.cell.height < 1)
        made.cell.height = 1;
    if (made.cell.height > TT_ENCODER_SIDE_MAX / made.rows - 2 * GAP)
        made.cell.height = TT_ENCODER_SIDE_MAX / made.rows - 2 * GAP;
    made.canvas.width = GAP + made.columns * (made.cell.width + GAP);
    made.canvas.height = GAP + made.rows * (made.cell.height + GAP);
    bytes = (size_t)made.canvas.width * (size_t)made.canvas.height * 3;
    made.canvas.rgb = malloc(bytes);
    made.cell.rgb = malloc((size_t)made.cell.width * (size_t)made.cell.height * 3);
    if (!made.canvas.rgb || !made.cell.rgb) {
        tt_sheet_close(&made);
        return tt_fail_errno(err, TT_RETRY_LATER, ENOMEM, "a contact sheet");
    }
    memset(made.canvas.rgb, BACKGROUND, bytes);
    *sheet = made;
    return TT_OK;
}

/* The mean over the pixels that (x, y) of the cell covers. */
static void shrink_pixel(const struct tt_sheet *sheet, const struct tt_canvas *picture, int x, int y,
                         uint8_t *out)
{
    const int64_t left = (int64_t)x * picture->width / sheet->cell.width,
                  right = (int64_t)(x + 1) * picture->width / sheet->cell.width,
                  top = (int64_t)y * picture->height / sheet->cell.height,
                  bottom = (int64_t)(y + 1) * picture->height / sheet->cell.height;
    int64_t sum[3] = {0}, count = 0;

    for (int64_t row = top; row < (bottom > top ? bottom : top + 1); row++)
        for (int64_t column = left; column < (right > left ? right : left + 1); column++) {
            const uint8_t *at = picture->rgb + (row * picture->width + column) * 3;

            for (int c = 0; c < 3; c++)
                sum[c] += at[c];
            count++;
        }
    for (int c = 0; c < 3; c++)
        out[c] = (uint8_t)((sum[c] + count / 2) / count);
}

/* Into the cell's canvas. */
static void shrink(struct tt_sheet *sheet, const struct tt_canvas *picture)
{
    for (int y = 0; y < sheet->cell.height; y++)
        for (int x = 0; x < sheet->cell.width; x++)
            shrink_pixel(sheet, picture, x, y,
                         sheet->cell.rgb + ((size_t)y * (size_t)sheet->cell.width + (size_t)x) * 3);
}

void tt_sheet_add(struct tt_sheet *sheet, int64_t frame, const struct tt_canvas *picture,
                  const struct tt_painter *painter)
{
    const struct tt_painter small = tt_painter_for(painter, sheet->cell.width, sheet->cell.height);
    const size_t line = (size_t)sheet->cell.width * 3;

    for (int cell = 0; cell < sheet->cells; cell++) {
        const size_t left = (size_t)(GAP + cell % sheet->columns * (sheet->cell.width + GAP)),
                     top = (size_t)(GAP + cell / sheet->columns * (sheet->cell.height + GAP));

        if (frame != (2 * cell + 1) * sheet->frames / (2 * sheet->cells))
            continue;
        shrink(sheet, picture);
        tt_painter_paint(&small, frame, &sheet->cell);
        tt_draw_number(&sheet->cell, 0, 0, sheet->cell.width >= 200 ? 2 : 1, frame);
        for (size_t y = 0; y < (size_t)sheet->cell.height; y++)
            memcpy(sheet->canvas.rgb + ((top + y) * (size_t)sheet->canvas.width + left) * 3,
                   sheet->cell.rgb + y * line, line);
    }
}

void tt_sheet_close(struct tt_sheet *sheet)
{
    free(sheet->canvas.rgb);
    free(sheet->cell.rgb);
    *sheet = (struct tt_sheet){0};
}

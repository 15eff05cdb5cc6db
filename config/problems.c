/* config/problems.c: the list of what is wrong with a file, and the words in it. Nothing here can fail. */
#include "config/tree.h"

#include "core/utf8.h"

#include <ctype.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

void tt_problem_add(struct tt_config_problems *problems, int line, int column, const char *format, ...)
{
    struct tt_config_problem *problem;
    va_list args;

    problems->total++;
    if (problems->count == TT_CONFIG_PROBLEMS_MAX)
        return;
    problem = &problems->items[problems->count++];
    problem->line = line;
    problem->column = column;
    va_start(args, format);
    if (vsnprintf(problem->text, sizeof problem->text, format, args) >= (int)sizeof problem->text)
        memcpy(problem->text + sizeof problem->text - 4, "...", 4);
    va_end(args);
}

static int compare(const void *a, const void *b)
{
    const struct tt_config_problem *left = a, *right = b;

    return left->line != right->line ? left->line - right->line : left->column - right->column;
}

void tt_problems_sort(struct tt_config_problems *problems)
{
    qsort(problems->items, (size_t)problems->count, sizeof problems->items[0], compare);
}

void tt_config_problems_print(FILE *file, const char *name, const struct tt_config_problems *problems)
{
    for (int i = 0; i < problems->count; i++) {
        const struct tt_config_problem *problem = &problems->items[i];

        if (problem->line > 0)
            fprintf(file, "%s:%d:%d: %s\n", name, problem->line, problem->column, problem->text);
        else
            fprintf(file, "%s: %s\n", name, problem->text);
    }
    if (problems->total > problems->count)
        fprintf(file, "%s: and %d more\n", name, problems->total - problems->count);
}

struct tt_quoted tt_quote(const char *text, size_t bytes)
{
    struct tt_quoted quoted = {.text = ""};
    size_t used = 0;
    int characters = 0;

    while (bytes > 0) {
        uint32_t code = 0;
        size_t length = tt_utf8_decode(text, bytes, &code);

        if (++characters > 40)
            return memcpy(quoted.text + used, "...", 4), quoted;
        if (length == 0 || tt_utf8_unprintable(code)) {
            quoted.text[used++] = '?';
            length = length ? length : 1;
        } else {
            memcpy(quoted.text + used, text, length);
            used += length;
        }
        text += length;
        bytes -= length;
    }
    quoted.text[used] = 0;
    return quoted;
}

static int fold(char c)
{
    return c == '-' ? '_' : tolower((unsigned char)c);
}

static int least(int a, int b)
{
    return a < b ? a : b;
}

int tt_word_distance(const char *a, const char *b)
{
    enum { LETTERS_MAX = 40 };
    int rows[3][LETTERS_MAX + 1]; /* two rows back, one row back, this row */
    int *before = rows[0], *above = rows[1], *row = rows[2];
    size_t length_a = strlen(a), length_b = strlen(b);

    if (length_a > LETTERS_MAX || length_b > LETTERS_MAX)
        return LETTERS_MAX;
    for (size_t j = 0; j <= length_b; j++)
        above[j] = (int)j;
    for (size_t i = 1; i <= length_a; i++) {
        int *oldest = before;

        row[0] = (int)i;
        for (size_t j = 1; j <= length_b; j++) {
            bool same = fold(a[i - 1]) == fold(b[j - 1]);

            row[j] = least(least(above[j], row[j - 1]) + 1, above[j - 1] + !same);
            if (i > 1 && j > 1 && fold(a[i - 1]) == fold(b[j - 2]) && fold(a[i - 2]) == fold(b[j - 1]))
                row[j] = least(row[j], before[j - 2] + 1);
        }
        before = above;
        above = row;
        row = oldest;
    }
    return above[length_b];
}

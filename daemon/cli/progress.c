/* daemon/cli/progress.c: one line on a terminal: bar, frames, frames/s, time left.
 *
 * Nothing is written where stderr is no terminal, so that no log ever holds a bar. Drawn at most ten times a
 * second.
 */
#include "daemon/cli/cli.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <time.h>
#include <unistd.h>

enum { REDRAW_MS = 100, WIDE_COLUMNS = 110, MAX_BAR = 40, MAX_LABEL = 32 };

static int64_t now_ms(void)
{
    struct timespec now;

    clock_gettime(CLOCK_MONOTONIC, &now);
    return (int64_t)now.tv_sec * 1000 + now.tv_nsec / 1000000;
}

static int terminal_columns(void)
{
    struct winsize size;

    if (ioctl(STDERR_FILENO, TIOCGWINSZ, &size) == 0 && size.ws_col > 0)
        return size.ws_col;
    return 80;
}

void cli_progress_begin(struct cli_progress *progress, bool wanted, const char *label)
{
    const char *terminal = getenv("TERM");

    progress->shown = wanted && isatty(STDERR_FILENO) && terminal && strcmp(terminal, "dumb") != 0;
    progress->label = label;
    progress->start_ms = now_ms();
    progress->drawn_ms = 0;
}

void cli_progress_again(struct cli_progress *progress)
{
    progress->start_ms = now_ms();
}

/* "1:23" or "1:02:03" */
static void format_time(char *text, size_t bytes, int64_t seconds)
{
    if (seconds >= 3600)
        snprintf(text, bytes, "%d:%02d:%02d", (int)(seconds / 3600), (int)(seconds / 60 % 60),
                 (int)(seconds % 60));
    else
        snprintf(text, bytes, "%d:%02d", (int)(seconds / 60), (int)(seconds % 60));
}

/* Bytes of a name that would move the cursor or are no ASCII become "?"; the label keeps its width that way.
 */
static void printable_label(char *text, const char *label)
{
    size_t length = strlen(label), start = length > MAX_LABEL ? length - MAX_LABEL : 0, i;

    for (i = 0; i < length - start; i++) {
        unsigned char c = (unsigned char)label[start + i];

        text[i] = c >= 0x20 && c < 0x7f ? (char)c : '?';
    }
    text[i] = 0;
}

void cli_progress_update(struct cli_progress *progress, int64_t frames, int64_t expected)
{
    int64_t now = now_ms(), elapsed = now - progress->start_ms;
    char bar[MAX_BAR + 1], label[MAX_LABEL + 1], left[32] = "?", line[256];
    double rate = elapsed > 0 ? (double)frames * 1000.0 / (double)elapsed : 0;
    int columns, width;

    if (!progress->shown || (progress->drawn_ms && now - progress->drawn_ms < REDRAW_MS))
        return;
    progress->drawn_ms = now;
    columns = terminal_columns();
    printable_label(label, progress->label);
    if (expected < frames || expected == 0) {
        snprintf(line, sizeof line, "%s  %lld frames  %.1f/s", label, (long long)frames, rate);
    } else {
        width = columns < WIDE_COLUMNS ? MAX_BAR / 2 : MAX_BAR;
        memset(bar, '.', (size_t)width);
        memset(bar, '#', (size_t)(frames * width / expected));
        bar[width] = 0;
        if (rate > 0)
            format_time(left, sizeof left, (int64_t)((double)(expected - frames) / rate));
        snprintf(line, sizeof line, "%s [%s] %lld/%lld frames  %.1f/s  %s left", label, bar,
                 (long long)frames, (long long)expected, rate, left);
    }
    fprintf(stderr, "\r%.*s\033[K", columns - 1, line);
    fflush(stderr);
}

void cli_progress_end(struct cli_progress *progress)
{
    if (progress->shown && progress->drawn_ms) {
        fputs("\r\033[K", stderr);
        fflush(stderr);
    }
}

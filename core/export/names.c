/* core/export/names.c: a name for each track, no two alike.
 *
 * Where two would be alike, "_" and the query's number are put behind all of them: what follows the last "_"
 * then differs, so the names do.
 */
#include "core/export/run.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static bool is_plain(unsigned char byte)
{
    return byte >= 0x80 || (byte >= '0' && byte <= '9') || (byte >= 'A' && byte <= 'Z') ||
           (byte >= 'a' && byte <= 'z') || strchr(" ._-", byte);
}

static char *make_name(const struct tt_export *run, int track, bool plain)
{
    const char *label = tt_export_label(run, track);
    char *name;

    /* Readers strip blanks at the ends: a label of nothing else is none. */
    if (plain)
        label += strspn(label, " ");
    if (!*label)
        return asprintf(&name, "track%04d", run->query[track]) < 0 ? NULL : name;
    name = strdup(label);
    for (char *next = name; plain && next && *next; next++)
        if (!is_plain((unsigned char)*next))
            *next = '_';
    for (size_t end = name ? strlen(name) : 0; plain && end > 0 && name[end - 1] == ' '; end--)
        name[end - 1] = '\0';
    return name;
}

static int compare(const void *a, const void *b)
{
    return strcmp(*(char *const *)a, *(char *const *)b);
}

/* Whether two names are alike; sorts a copy. 1, 0, or -1: no memory. */
static int any_alike(char *const *names, int tracks)
{
    char **sorted = malloc((size_t)tracks * sizeof *sorted);
    int alike = 0;

    if (!sorted)
        return -1;
    memcpy(sorted, names, (size_t)tracks * sizeof *sorted);
    qsort(sorted, (size_t)tracks, sizeof *sorted, compare);
    for (int i = 1; i < tracks; i++)
        alike |= strcmp(sorted[i - 1], sorted[i]) == 0;
    free(sorted);
    return alike;
}

enum tt_status tt_export_names(char ***names, const struct tt_export *run, bool plain, struct tt_error *err)
{
    char **made = calloc((size_t)run->tracks, sizeof *made);
    int alike = made ? 0 : -1;

    for (int i = 0; i < run->tracks && !alike; i++) {
        made[i] = make_name(run, i, plain);
        alike = made[i] ? 0 : -1;
    }
    if (!alike)
        alike = any_alike(made, run->tracks);
    for (int i = 0; i < run->tracks && alike == 1; i++) {
        char *longer;

        if (asprintf(&longer, "%s_%d", made[i], run->query[i]) < 0) {
            alike = -1;
            break;
        }
        free(made[i]);
        made[i] = longer;
    }
    if (alike < 0) {
        tt_export_names_free(made, run->tracks);
        return tt_fail_errno(err, TT_RETRY_LATER, ENOMEM, "names of tracks");
    }
    *names = made;
    return TT_OK;
}

void tt_export_names_free(char **names, int tracks)
{
    for (int i = 0; names && i < tracks; i++)
        free(names[i]);
    free(names);
}

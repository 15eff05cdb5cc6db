/* config/manual.c: tiletrack.yaml(5) in mdoc(7), from the table of options.
 *
 * Text goes out word by word: a sentence ends its line, `code` becomes a .Ql line of its own, and a word that
 * roff would take for a request is guarded. Errors of the stream are the caller's to ask for with ferror.
 */
#include "config/options.h"

#include <stdlib.h>
#include <string.h>

enum { MANUAL_COLUMNS = 78 };

/* One word, with what is special to roff guarded. */
static void print_word(FILE *file, const char *word, size_t bytes, bool begins_line)
{
    if (begins_line && (*word == '.' || *word == '\''))
        fputs("\\&", file);
    for (size_t i = 0; i < bytes; i++) {
        if (word[i] == '\\')
            fputs("\\e", file);
        else
            putc(word[i], file);
    }
}

/* "`work`," as a macro line. text begins at the first backtick; returns what is behind the word. */
static const char *print_code(FILE *file, const char *text)
{
    size_t length = strcspn(text + 1, "`");
    const char *end = text + 1 + length + 1;

    fprintf(file, ".Ql \"");
    print_word(file, text + 1, length, false);
    putc('"', file);
    for (; *end && *end != ' '; end++)
        fprintf(file, " %c", *end);
    putc('\n', file);
    return end;
}

/* Help text: sentences of words. */
static void print_text(FILE *file, const char *text)
{
    size_t column = 0;

    while (*text) {
        size_t length = strcspn(text, " ");
        bool sentence_ends;

        if (*text == '`') {
            fputs(column ? "\n" : "", file);
            column = 0;
            text = print_code(file, text);
        } else {
            sentence_ends = text[length - 1] == '.' && text[length];
            if (column && column + 1 + length > MANUAL_COLUMNS) {
                putc('\n', file);
                column = 0;
            }
            if (column > 0)
                putc(' ', file);
            print_word(file, text, length, column == 0);
            column += length + (column > 0);
            text += length;
            if (sentence_ends) {
                putc('\n', file);
                column = 0;
            }
        }
        text += *text == ' ';
    }
    fputs(column ? "\n" : "", file);
}

static void print_option(FILE *file, const struct tt_option *option)
{
    char text[512], expects[160];

    fprintf(file, ".It Cm %s\n", option->path);
    print_text(file, option->help);
    tt_option_expects(option, expects, sizeof expects);
    snprintf(text, sizeof text, "Takes %s.", expects);
    print_text(file, text);
    if (strlen(option->initial) <= 40) {
        snprintf(text, sizeof text, "The default is `%s`.", option->initial);
        print_text(file, text);
    } else {
        print_text(file, "The default is");
        snprintf(text, sizeof text, "%s.", option->initial);
        print_text(file, text);
    }
    if (option->flags & TT_OPTION_RESTART)
        print_text(file, "A change takes effect when the daemon is started anew.");
}

static void print_table(FILE *file, const struct tt_option *table, int count, const char *section)
{
    size_t length = strlen(section);

    fputs(".Bl -tag -width Ds\n", file);
    for (int i = 0; i < count; i++)
        if (strncmp(table[i].path, section, length) == 0 &&
            (length == 0 || table[i].path[length] == '.' || !table[i].path[length]))
            print_option(file, &table[i]);
    fputs(".El\n", file);
}

static const char head[] = ".\\\" Written by tiletrack-config-doc from the table in config/options.c.\n"
                           ".Dd November 30, 2026\n"
                           ".Dt TILETRACK.YAML 5\n"
                           ".Os\n"
                           ".Sh NAME\n"
                           ".Nm tiletrack.yaml\n"
                           ".Nd configuration of the point-tracking daemon\n"
                           ".Sh DESCRIPTION\n"
                           ".Nm\n"
                           "is the configuration of\n"
                           ".Xr tiletrackd 8 ,\n"
                           "in YAML.\n"
                           "It is made of sections with one option a line;\n"
                           ".Cm spool.root\n"
                           "below is the key\n"
                           ".Ql root\n"
                           "in the section\n"
                           ".Ql spool .\n"
                           "Every option may be left out; a section whose options are all left out or\n"
                           "commented out is empty.\n"
                           "Environment variables are not read.\n"
                           ".Pp\n"
                           "The file is one YAML document in UTF-8.\n"
                           "Anchors, aliases and tags are refused, and so are unknown keys, keys that are\n"
                           "given twice, values of another type and values out of range.\n"
                           "All that is wrong with a file is reported at once, with line and column.\n"
                           "A value that begins with\n"
                           ".Ql * ,\n"
                           ".Ql &\n"
                           "or\n"
                           ".Ql \\&!\n"
                           "must stand in quotes.\n"
                           "Truth values are\n"
                           ".Ql true\n"
                           "and\n"
                           ".Ql false ,\n"
                           "and nothing else.\n"
                           ".Pp\n"
                           "When the daemon is asked to reload, with\n"
                           ".Dv SIGHUP ,\n"
                           "the new configuration holds whole or, where anything is wrong with it, not at\n"
                           "all.\n"
                           "The log then names the options that need a restart.\n"
                           ".Ss Sub-directories of incoming\n"
                           "With\n"
                           ".Cm spool.recursive ,\n"
                           "a file\n"
                           ".Pa tiletrack.yaml\n"
                           "in a sub-directory of\n"
                           ".Pa incoming\n"
                           "holds for the videos in that directory.\n"
                           "It holds for those in the same place below\n"
                           ".Pa incoming/priority\n"
                           "too, unless they have one of their own.\n"
                           "It may have the sections\n"
                           ".Ql tracker\n"
                           "and\n"
                           ".Ql output\n"
                           "only, must be a regular file of at most 64 KiB, and must name a model by its\n"
                           "name.\n"
                           ".Sh OPTIONS\n";

static const char tail[] = ".Sh FILES\n"
                           ".Bl -tag -width Ds\n"
                           ".It Pa /etc/tiletrack/tiletrack.yaml\n"
                           "The configuration that the system's service reads.\n"
                           ".El\n"
                           ".Sh EXAMPLES\n"
                           "Two GPUs, the second with a tile of its own, and results that a program is told\n"
                           "of:\n"
                           ".Bd -literal -offset indent\n"
                           "spool:\n"
                           "  root: /srv/tiletrack\n"
                           "  keep_days: 30\n"
                           "devices:\n"
                           "  - {gpu: 0}\n"
                           "  - {gpu: 1, precision: fp32, tile: {queries: 32, frames: 4}}\n"
                           "on_done: /usr/local/bin/fetch-tracks\n"
                           ".Ed\n"
                           ".Pp\n"
                           "Everything at its default:\n"
                           ".Pp\n"
                           ".Dl {}\n"
                           ".Sh DIAGNOSTICS\n"
                           ".Bl -diag\n"
                           ".It tiletrack.yaml:2:3: unknown key `setle_ms`: did you mean `settle_ms`?\n"
                           "The second line, third character.\n"
                           "The daemon does not start, or goes on with the configuration that it has.\n"
                           ".El\n"
                           ".Sh SEE ALSO\n"
                           ".Xr tiletrack 1 ,\n"
                           ".Xr tiletrackd 8\n";

void tt_config_print_manual(FILE *file)
{
    fputs(head, file);
    for (int i = 0; i < tt_sections_count; i++) {
        fprintf(file, ".Ss %s\n", tt_sections[i].name);
        print_text(file, tt_sections[i].help);
        print_table(file, tt_options, tt_options_count, tt_sections[i].name);
        if (strcmp(tt_sections[i].name, "devices") == 0) {
            fputs(".Pp\nThe keys of a device:\n", file);
            print_table(file, tt_device_options, tt_device_options_count, "");
        }
    }
    fputs(tail, file);
}

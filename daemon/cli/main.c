/* daemon/cli/main.c: tiletrack COMMAND ...: finds the command and runs it. */
#include "daemon/cli/cli.h"

#include "core/utf8.h"

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

static const struct cli_command *const commands[] = {&cli_track,  &cli_submit, &cli_status, &cli_retry,
                                                     &cli_cancel, &cli_check,  &cli_plan,   &cli_selftest,
                                                     &cli_report, &cli_export, &cli_overlay};
enum { COMMANDS = sizeof commands / sizeof commands[0] };

static void print_help(FILE *out)
{
    fputs("tiletrack - track points through videos\n\n"
          "Usage: tiletrack COMMAND [OPTION]... [FILE]...\n\n"
          "Commands:\n",
          out);
    for (int i = 0; i < COMMANDS; i++)
        fprintf(out, "  %-10s %s\n", commands[i]->name, commands[i]->summary);
    fputs("\nTry first:   tiletrack track VIDEO        writes VIDEO's tracks beside it, as VIDEO.tracks.npz\n"
          "Read more:   tiletrack COMMAND --help,  man tiletrack\n",
          out);
}

static const struct cli_command *find_command(const char *name)
{
    for (int i = 0; i < COMMANDS; i++)
        if (strcmp(commands[i]->name, name) == 0)
            return commands[i];
    return NULL;
}

int cli_usage_error(const struct cli_command *command, const char *format, ...)
{
    va_list args;

    fprintf(stderr, "tiletrack %s: ", command->name);
    va_start(args, format);
    vfprintf(stderr, format, args);
    va_end(args);
    fprintf(stderr, "\nTry: tiletrack %s --help\n", command->name);
    return EXIT_USAGE;
}

bool cli_parse_int(const char *text, int64_t least, int64_t most, int64_t *value)
{
    char *end;
    long long number;

    errno = 0;
    number = strtoll(text, &end, 10);
    if (errno || end == text || *end || number < least || number > most)
        return false;
    *value = number;
    return true;
}

bool cli_parse_real(const char *text, double least, double most, double *value)
{
    char *end;

    *value = strtod(text, &end);
    return end != text && *end == '\0' && *value >= least && *value <= most;
}

bool cli_is_same_file(const char *a, const char *b)
{
    struct stat first, second;

    if (stat(a, &first) == 0 && stat(b, &second) == 0)
        return first.st_dev == second.st_dev && first.st_ino == second.st_ino;
    return strcmp(a, b) == 0;
}

char *cli_printable(const char *name)
{
    const char *end = name + strlen(name), *next = name;
    char *text = malloc(strlen(name) * 4 + 1), *out = text;

    while (text && next < end) {
        const char *start = next;
        int32_t character = tt_utf8_next(&next, end);

        if (character == '\\') {
            out += sprintf(out, "\\\\");
        } else if (character < 0x20 || (character >= 0x7f && character < 0xa0)) {
            for (next = character < 0 ? start + 1 : next; start < next; start++)
                out += sprintf(out, "\\x%02x", (unsigned char)*start);
        } else {
            memcpy(out, start, (size_t)(next - start));
            out += next - start;
        }
    }
    if (text)
        *out = 0;
    return text;
}

int cli_exit_code(enum tt_status status)
{
    return status == TT_OK ? EXIT_ALL_DONE : EXIT_SOME_FAILED;
}

int main(int argc, char **argv)
{
    const struct cli_command *command;
    const char *name = argc > 1 ? argv[1] : "";
    int code;

    if (strcmp(name, "--version") == 0 || strcmp(name, "version") == 0) {
        puts("tiletrack " TT_VERSION);
        return EXIT_ALL_DONE;
    }
    if (strcmp(name, "help") == 0 || strcmp(name, "--help") == 0 || strcmp(name, "-h") == 0) {
        command = argc > 2 ? find_command(argv[2]) : NULL;
        if (command)
            fputs(command->help, stdout);
        else
            print_help(stdout);
        return EXIT_ALL_DONE;
    }
    command = find_command(name);
    if (!command) {
        if (*name)
            fprintf(stderr, "tiletrack: no command is called '%s'\n\n", name);
        print_help(stderr);
        return EXIT_USAGE;
    }
    code = command->run(argc - 1, argv + 1);
    if (fflush(stdout) != 0 && code == EXIT_ALL_DONE) {
        fprintf(stderr, "tiletrack: standard output: %s\n", strerror(errno));
        return EXIT_SOME_FAILED;
    }
    return code;
}

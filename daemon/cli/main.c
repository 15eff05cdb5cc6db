/* daemon/cli/main.c: tiletrack COMMAND ...: finds the command and runs it. */
#include "daemon/cli/cli.h"

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const struct cli_command *const commands[] = {&cli_track, &cli_plan, &cli_selftest};
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

/* Bytes of the UTF-8 character at text, 0 where there is none. */
static int utf8_length(const unsigned char *text)
{
    static const struct {
        unsigned char first_from, first_to, second_from, second_to;
        int length;
    } rows[] = {
        {0x00, 0x7f, 0x80, 0xbf, 1}, {0xc2, 0xdf, 0x80, 0xbf, 2}, {0xe0, 0xe0, 0xa0, 0xbf, 3},
        {0xe1, 0xec, 0x80, 0xbf, 3}, {0xed, 0xed, 0x80, 0x9f, 3}, {0xee, 0xef, 0x80, 0xbf, 3},
        {0xf0, 0xf0, 0x90, 0xbf, 4}, {0xf1, 0xf3, 0x80, 0xbf, 4}, {0xf4, 0xf4, 0x80, 0x8f, 4},
    };

    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        if (text[0] < rows[i].first_from || text[0] > rows[i].first_to)
            continue;
        for (int k = 1; k < rows[i].length; k++)
            if (text[k] < (k == 1 ? rows[i].second_from : 0x80) ||
                text[k] > (k == 1 ? rows[i].second_to : 0xbf))
                return 0;
        return rows[i].length;
    }
    return 0;
}

char *cli_printable(const char *name)
{
    char *text = malloc(strlen(name) * 4 + 1), *out = text;
    const unsigned char *in = (const unsigned char *)name;

    while (text && *in) {
        int length = utf8_length(in);
        bool control = *in < 0x20 || *in == 0x7f || (in[0] == 0xc2 && in[1] < 0xa0);

        if (*in == '\\') {
            out += sprintf(out, "\\\\");
            in++;
        } else if (length == 0 || control) {
            out += sprintf(out, "\\x%02x", *in++);
        } else {
            memcpy(out, in, (size_t)length);
            out += length;
            in += length;
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

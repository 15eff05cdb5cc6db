/* config/print.c: a configuration as YAML, bare or with comments. Errors of the stream are the caller's to
 * ask for with ferror.
 */
#include "config/options.h"

#include "core/utf8.h"

#include <stdlib.h>
#include <string.h>

enum { COMMENT_COLUMNS = 100, LIST_COLUMNS = 100 };

/* Whether the text, without quotes, is read as itself in block and flow style. */
static bool is_plain(const char *text)
{
    static const char *const words[] = {"null", "true", "false", "auto", "~", ""};
    static const char letters[] = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789/._-+";

    for (size_t i = 0; i < sizeof words / sizeof words[0]; i++)
        if (strcmp(text, words[i]) == 0)
            return false;
    return text[0] != '-' && text[0] != '+' && strspn(text, letters) == strlen(text);
}

static void print_text(FILE *file, const char *text)
{
    size_t bytes = strlen(text);

    if (is_plain(text)) {
        fputs(text, file);
        return;
    }
    putc('"', file);
    while (bytes > 0) {
        uint32_t code = 0xFFFD;
        size_t length = tt_utf8_decode(text, bytes, &code);

        length = length ? length : 1;
        if (tt_utf8_unprintable(code))
            fprintf(file, "\\u%04X", (unsigned)code);
        else
            fprintf(file, "%s%.*s", *text == '"' || *text == '\\' ? "\\" : "", (int)length, text);
        text += length;
        bytes -= length;
    }
    putc('"', file);
}

/* The shortest digits that are read back to the same number. */
static void print_real(FILE *file, double value)
{
    char text[40];

    for (int digits = 1; digits <= 17; digits++) {
        snprintf(text, sizeof text, "%.*g", digits, value);
        if (strtod(text, NULL) == value)
            break;
    }
    fputs(text, file);
}

static void print_list(FILE *file, const struct tt_config_list *list)
{
    putc('[', file);
    for (int i = 0; i < list->count; i++) {
        fputs(i ? ", " : "", file);
        print_text(file, list->items[i]);
    }
    putc(']', file);
}

static void print_choices(FILE *file, const char *const *choices, unsigned bits)
{
    const char *between = "";

    putc('[', file);
    for (int i = 0; choices[i]; i++) {
        if (!(bits >> i & 1))
            continue;
        fprintf(file, "%s%s", between, choices[i]);
        between = ", ";
    }
    putc(']', file);
}

static void print_value(FILE *file, const struct tt_option *option, const void *base)
{
    const void *place = tt_option_at(option, base);
    char number[24];

    switch (option->type) {
    case TT_OPTION_BOOL:
        fputs(*(const bool *)place ? "true" : "false", file);
        break;
    case TT_OPTION_INT:
        if (option->flags & TT_OPTION_NULL && *(const int64_t *)place == -1) {
            fputs("null", file);
            break;
        }
        if (option->flags & TT_OPTION_AUTO && *(const int64_t *)place == 0) {
            fputs("auto", file);
            break;
        }
        /* fall through */
    case TT_OPTION_MS:
    case TT_OPTION_BYTES:
        fputs(tt_option_number(option, *(const int64_t *)place, number, sizeof number), file);
        break;
    case TT_OPTION_REAL:
        print_real(file, *(const double *)place);
        break;
    case TT_OPTION_CHOICE:
        fputs(option->choices[*(const unsigned *)place], file);
        break;
    case TT_OPTION_CHOICES:
        print_choices(file, option->choices, *(const unsigned *)place);
        break;
    case TT_OPTION_PATH:
    case TT_OPTION_MODEL:
    case TT_OPTION_GPU:
        if (*(char *const *)place)
            print_text(file, *(char *const *)place);
        else
            fputs("null", file);
        break;
    case TT_OPTION_LIST:
        print_list(file, place);
        break;
    case TT_OPTION_DEVICES:
        break; /* print_devices */
    }
}

/* "{gpu: 0, precision: fp16, tile: {queries: auto, frames: auto}}" */
static void print_device(FILE *file, const struct tt_config_device *device)
{
    const char *between = "{";
    bool in_section = false;

    for (int i = 0; i < tt_device_options_count; i++) {
        const struct tt_option *option = &tt_device_options[i];
        const char *dot = strchr(option->path, '.');

        if (option->type == TT_OPTION_GPU ? !device->gpu
                                          : strcmp(option->path, "cpu") == 0 && device->cpu_threads < 0)
            continue;
        if (in_section && !dot)
            fputs("}, ", file);
        else
            fputs(between, file);
        if (dot && !in_section)
            fprintf(file, "%.*s: {", (int)(dot - option->path), option->path);
        in_section = dot != NULL;
        fprintf(file, "%s: ", tt_option_key(option));
        print_value(file, option, device);
        between = ", ";
    }
    fputs(in_section ? "}}" : "}", file);
}

static void print_devices(FILE *file, const struct tt_config *config)
{
    if (config->devices.automatic) {
        fputs(" auto", file);
        return;
    }
    for (int i = 0; i < config->devices.count; i++) {
        fputs("\n  - ", file);
        print_device(file, &config->devices.items[i]);
    }
}

/* Sentences as comment lines. */
static void print_comment(FILE *file, const char *indent, const char *text)
{
    while (*text) {
        size_t length = strlen(text), most = COMMENT_COLUMNS - strlen(indent) - 2;

        if (length > most) {
            length = most;
            while (length > 1 && text[length] != ' ')
                length--;
        }
        fprintf(file, "%s# %.*s\n", indent, (int)length, text);
        text += length;
        text += *text == ' ';
    }
}

static void print_option_comment(FILE *file, const char *indent, const struct tt_option *option)
{
    char expects[160];

    print_comment(file, indent, option->help);
    tt_option_expects(option, expects, sizeof expects);
    expects[0] = (char)(expects[0] == 'a' ? 'A' : expects[0] >= 'a' ? expects[0] - 32 : expects[0]);
    fprintf(file, "%s# %s.%s\n", indent, expects,
            option->flags & TT_OPTION_RESTART ? " A change needs a restart." : "");
}

static void print_device_comment(FILE *file)
{
    fputs(
        "# devices:\n#   - {gpu: 0, precision: fp16, tile: {queries: auto, frames: auto}}\n#   - {cpu: 4}\n",
        file);
}

static const struct tt_section *find_section(const char *path)
{
    size_t length = strcspn(path, ".");

    for (int i = 0; i < tt_sections_count; i++)
        if (strlen(tt_sections[i].name) == length && strncmp(tt_sections[i].name, path, length) == 0)
            return &tt_sections[i];
    return NULL;
}

static void print_all(FILE *file, const struct tt_config *config, bool commented)
{
    const struct tt_section *section = NULL;

    for (int i = 0; i < tt_options_count; i++) {
        const struct tt_option *option = &tt_options[i];
        const struct tt_section *own = find_section(option->path);
        bool inside = strchr(option->path, '.') != NULL;
        const char *indent = inside ? "  " : "";

        if (commented && own != section) {
            putc('\n', file);
            print_comment(file, "", own->help);
        }
        if (inside && own != section)
            fprintf(file, "%s:\n", own->name);
        else if (commented && inside)
            putc('\n', file);
        section = own;
        if (commented)
            print_option_comment(file, indent, option);
        if (commented && option->type == TT_OPTION_DEVICES)
            print_device_comment(file);
        fprintf(file, "%s%s:", indent, tt_option_key(option));
        if (option->type == TT_OPTION_DEVICES) {
            print_devices(file, config);
        } else {
            putc(' ', file);
            print_value(file, option, config);
        }
        putc('\n', file);
    }
}

void tt_config_print(FILE *file, const struct tt_config *config)
{
    print_all(file, config, false);
}

void tt_config_print_commented(FILE *file, const struct tt_config *config)
{
    fputs("# tiletrack.yaml: the configuration of tiletrackd, with every option at its default.\n"
          "# tiletrack.yaml(5) says more; `tiletrack check FILE` checks a file without starting anything.\n"
          "# Lines may be left out. This file is written by `tiletrack-config-doc yaml`.\n",
          file);
    print_all(file, config, true);
}

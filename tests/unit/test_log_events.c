/* tests/unit/test_log_events.c: docs/LOGS.md against the code, both ways: every event that a tt_log call
 * names stands in the table of events with just its levels and fields, and every row of the table has its
 * calls. A name that is set aside for later is not in use yet.
 */
#include <ctype.h>
#include <ftw.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

enum { EVENTS_MAX = 256, FIELDS_MAX = 32, NAME_BYTES = 64, LEVELS = 4, ANY_LEVEL = LEVELS };

static const char *const level_words[LEVELS] = {"debug", "info", "warning", "error"};
static const char *const level_names[LEVELS] = {"TT_LOG_DEBUG", "TT_LOG_INFO", "TT_LOG_WARNING",
                                                "TT_LOG_ERROR"};

struct event {
    char name[NAME_BYTES];
    char fields[FIELDS_MAX][NAME_BYTES];
    int fields_count;
    unsigned levels; /* bits; ANY_LEVEL: not a literal, or "any" */
};

struct list {
    struct event events[EVENTS_MAX];
    int count;
    char wrong[512]; /* the first thing that could not be read */
};

static struct event *find_event(struct list *list, const char *name)
{
    for (int i = 0; i < list->count; i++)
        if (strcmp(list->events[i].name, name) == 0)
            return &list->events[i];
    return NULL;
}

static struct event *add_event(struct list *list, const char *name)
{
    struct event *event = find_event(list, name);

    if (event)
        return event;
    assert_true(list->count < EVENTS_MAX);
    event = &list->events[list->count++];
    snprintf(event->name, sizeof event->name, "%s", name);
    return event;
}

static bool has_field(const struct event *event, const char *name)
{
    for (int i = 0; i < event->fields_count; i++)
        if (strcmp(event->fields[i], name) == 0)
            return true;
    return false;
}

static void add_field(struct event *event, const char *name)
{
    if (has_field(event, name))
        return;
    assert_true(event->fields_count < FIELDS_MAX);
    snprintf(event->fields[event->fields_count++], NAME_BYTES, "%s", name);
}

/* Behind the string or character literal that begins at text. */
static char *skip_literal(char *text)
{
    char quote = *text++;

    while (*text && *text != quote)
        text += 1 + (*text == '\\' && text[1]);
    return *text ? text + 1 : text;
}

/* Comments and preprocessor lines become blanks. */
static void blank_out(char *text)
{
    bool line_begins = true;

    while (*text) {
        if (strncmp(text, "/*", 2) == 0) {
            char *end = strstr(text + 2, "*/");
            while (*text && text != (end ? end + 2 : NULL))
                *text++ = ' ';
        } else if (strncmp(text, "//", 2) == 0 || (line_begins && *text == '#')) {
            for (; *text && *text != '\n'; text++) {
                if (text[0] == '\\' && text[1] == '\n')
                    *text++ = ' ';
                *text = ' ';
            }
        } else if (*text == '"' || *text == '\'') {
            text = skip_literal(text);
            line_begins = false;
        } else {
            line_begins = *text == '\n' || (line_begins && isspace((unsigned char)*text));
            text++;
        }
    }
}

/* Ends the argument at text with a NUL; returns the next argument, or NULL at the call's end. */
static char *end_argument(char *text)
{
    int depth = 0;

    while (*text) {
        if (*text == '"' || *text == '\'') {
            text = skip_literal(text);
            continue;
        }
        depth +=
            (*text == '(' || *text == '{' || *text == '[') - (*text == ')' || *text == '}' || *text == ']');
        if (depth < 0 || (depth == 0 && *text == ',')) {
            bool last = depth < 0;
            *text = 0;
            return last ? NULL : text + 1;
        }
        text++;
    }
    return NULL;
}

static void read_fields(struct list *list, struct event *event, const char *argument)
{
    char name[NAME_BYTES];

    while (isspace((unsigned char)*argument))
        argument++;
    if (sscanf(argument, "TT_%*[A-Z] ( \"%63[a-z0-9_]\"", name) == 1)
        add_field(event, name);
    else if (!list->wrong[0])
        snprintf(list->wrong, sizeof list->wrong, "%s: a field must be TT_...(\"literal\", ...), not %.100s",
                 event->name, argument);
}

/* The call whose arguments begin at text. */
static void read_call(struct list *list, char *text)
{
    char *level = end_argument(text), *name = level ? end_argument(level) : NULL;
    char *fields = name ? end_argument(name) : NULL, word[NAME_BYTES], end;
    struct event *event;
    unsigned bit = 1u << ANY_LEVEL;

    if (!name || sscanf(name, " \"%63[a-z0-9_]\" %c", word, &end) != 1) {
        if (!list->wrong[0])
            snprintf(list->wrong, sizeof list->wrong, "an event must be a literal, not %.100s",
                     name ? name : text);
        return;
    }
    event = add_event(list, word);
    for (int i = 0; i < LEVELS; i++)
        if (sscanf(level, " %63s", word) == 1 && strcmp(word, level_names[i]) == 0)
            bit = 1u << i;
    event->levels |= bit;
    while (fields) {
        char *next = end_argument(fields);
        read_fields(list, event, fields);
        fields = next;
    }
}

static void read_source(struct list *list, char *text)
{
    static const char *const calls[] = {"tt_log", "TT_LOG_OWN"};

    blank_out(text);
    for (int i = 0; i < 2; i++) {
        char *copy = strdup(text), *at = copy;

        while ((at = strstr(at, calls[i]))) {
            bool begins = at == copy || !(isalnum((unsigned char)at[-1]) || at[-1] == '_');
            at += strlen(calls[i]);
            at += strspn(at, " \n");
            if (begins && *at == '(') {
                char *call = strdup(at + 1);
                read_call(list, call);
                free(call);
            }
        }
        free(copy);
    }
}

/* "| `event` | level | `field`, `field` | meaning |" */
static void read_row(struct list *list, char *row)
{
    char *name = strtok(row + 1, "|"), *levels = strtok(NULL, "|"), *fields = strtok(NULL, "|");
    char word[NAME_BYTES];
    struct event *event;
    int used;

    if (!fields || sscanf(name, " `%63[a-z0-9_]`", word) != 1)
        return; /* the head of the table */
    if (find_event(list, word))
        snprintf(list->wrong, sizeof list->wrong, "%s has two rows", word);
    event = add_event(list, word);
    for (int i = 0; i < LEVELS; i++)
        if (strstr(levels, level_words[i]))
            event->levels |= 1u << i;
    if (strstr(levels, "any"))
        event->levels |= 1u << ANY_LEVEL;
    while ((fields = strchr(fields, '`')) && sscanf(fields, "`%63[a-z0-9_]`%n", word, &used) == 1) {
        add_field(event, word);
        fields += used;
    }
}

/* The rows of the section with this title. */
static void read_rows(struct list *list, const char *text, const char *title)
{
    const char *section = strstr(text, title), *end;
    char *copy, *line, *rest;

    assert_non_null(section);
    end = strstr(section + 1, "\n## ");
    copy = strndup(section, end ? (size_t)(end - section) : strlen(section));
    for (line = copy; line; line = rest) {
        rest = strchr(line, '\n');
        if (rest)
            *rest++ = 0;
        if (line[0] == '|')
            read_row(list, line);
    }
    free(copy);
}

/* What does not agree, as text; "" where all does. code's `worker` may be undocumented: every line has it. */
static void compare(char *text, size_t bytes, struct list *code, struct list *table, struct list *aside)
{
    size_t used = 0;

    text[0] = 0;
#define SAY(...) (used += (size_t)snprintf(text + used, used < bytes ? bytes - used : 0, __VA_ARGS__))
    if (code->wrong[0] || table->wrong[0])
        SAY("%s%s\n", code->wrong, table->wrong);
    for (int i = 0; i < code->count; i++) {
        struct event *event = &code->events[i], *row = find_event(table, event->name);

        if (find_event(aside, event->name))
            SAY("%s is in use: move its row from the names set aside to the table of events\n", event->name);
        if (!row) {
            SAY("%s is in the code but not in the table\n", event->name);
            continue;
        }
        for (int f = 0; f < event->fields_count; f++)
            if (!has_field(row, event->fields[f]))
                SAY("%s: the field %s is in the code but not in the table\n", event->name, event->fields[f]);
        for (int f = 0; f < row->fields_count; f++)
            if (!has_field(event, row->fields[f]))
                SAY("%s: the field %s is in the table but not in the code\n", event->name, row->fields[f]);
        if (event->levels != row->levels)
            SAY("%s: the levels differ\n", event->name);
    }
    for (int i = 0; i < table->count; i++)
        if (!find_event(code, table->events[i].name))
            SAY("%s is in the table but not in the code\n", table->events[i].name);
#undef SAY
}

static char *read_file(const char *path)
{
    FILE *file = fopen(path, "r");
    char *text = NULL;
    long bytes;

    if (!file)
        fail_msg("%s cannot be read", path);
    fseek(file, 0, SEEK_END);
    bytes = ftell(file);
    rewind(file);
    text = calloc(1, (size_t)bytes + 1);
    assert_int_equal(fread(text, 1, (size_t)bytes, file), bytes);
    fclose(file);
    return text;
}

static struct list in_code, in_table, set_aside;
static int files_read;

static int visit(const char *path, const struct stat *stat, int kind, struct FTW *place)
{
    const char *dot = strrchr(path, '.');

    (void)stat;
    (void)place;
    if (kind == FTW_F && dot &&
        (strcmp(dot, ".c") == 0 || strcmp(dot, ".h") == 0 || strcmp(dot, ".cu") == 0)) {
        char *text = read_file(path);
        read_source(&in_code, text);
        free(text);
        files_read++;
    }
    return 0;
}

static void the_list_is_the_code(void **state)
{
    static const char *const folders[] = {"core", "config", "daemon", "cuda"};
    static char text[16384];
    char path[4096];
    char *document;

    (void)state;
    for (int i = 0; i < 4; i++) {
        snprintf(path, sizeof path, "%s/%s", getenv("TILETRACK_SOURCE"), folders[i]);
        nftw(path, visit, 16, 0);
    }
    assert_true(files_read > 20);
    snprintf(path, sizeof path, "%s/docs/LOGS.md", getenv("TILETRACK_SOURCE"));
    document = read_file(path);
    read_rows(&in_table, document, "\n## Events\n");
    if (strstr(document, "\n## Names set aside\n"))
        read_rows(&set_aside, document, "\n## Names set aside\n");
    free(document);
    assert_non_null(find_event(&in_code, "log_lost"));
    compare(text, sizeof text, &in_code, &in_table, &set_aside);
    if (text[0])
        fail_msg("docs/LOGS.md:\n%s", text);
}

/* The comparison itself, on code that is wrong in each way. */
static void each_difference_is_found(void **state)
{
    static char source[] =
        "#define tt_log(log, level, event, ...) \\\n    tt_log_write(log, level, event)\n"
        "/* tt_log(log, TT_LOG_INFO, \"in_a_comment\"); */ // tt_log(l, TT_LOG_INFO, \"nor_here\")\n"
        "f(\"tt_log \\\" (\", '\"');\n"
        "tt_log(log, TT_LOG_INFO, \"good\", TT_STR(\"a\", f(x, \"),\")),\n  TT_INT(\"b_ms\", n));\n"
        "tt_log (self->logs[1, 2], TT_LOG_ERROR,\n \"good\");\n"
        "my_tt_log(log, TT_LOG_INFO, \"not_ours\");\n"
        "tt_log(log, level, \"new\");\n tt_log(log, TT_LOG_DEBUG, \"later\", TT_BOOL(\"c\", !d));";
    static char more[] = "tt_log(log, TT_LOG_INFO, name);",
                field[] = "tt_log(log, TT_LOG_INFO, \"x\", field);";
    static const char document[] =
        "\n## Events\n| event | level | fields | meaning |\n|---|---|---|---|\n"
        "| `good` | info, error | `a`, `b_ms` | with `code` |\n| `gone` | info | | |\n"
        "| `later` | info | `d` | |\n\n## Aside\n| `later` | info | `d` | |\n";
    static struct list code, table, aside;
    static char text[4096];

    (void)state;
    read_source(&code, source);
    read_rows(&table, document, "\n## Events\n");
    read_rows(&aside, document, "\n## Aside\n");
    assert_int_equal(code.count, 3);
    compare(text, sizeof text, &code, &table, &aside);
    assert_string_equal(text,
                        "new is in the code but not in the table\n"
                        "later is in use: move its row from the names set aside to the table of events\n"
                        "later: the field c is in the code but not in the table\n"
                        "later: the field d is in the table but not in the code\n"
                        "later: the levels differ\n"
                        "gone is in the table but not in the code\n");
    read_source(&code, more);
    assert_non_null(strstr(code.wrong, "an event must be a literal, not  name"));
    code.wrong[0] = 0;
    read_source(&code, field);
    assert_non_null(strstr(code.wrong, "x: a field must be"));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_list_is_the_code),
        cmocka_unit_test(each_difference_is_found),
    };
    return cmocka_run_group_tests_name("log events", tests, NULL, NULL);
}

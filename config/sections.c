/* config/sections.c: the keys of a file, looked up in the table.
 *
 * Each key is an option, a section, or a problem with the nearest thing that was probably meant. Nothing else
 * fails; what a value's own function has to say goes the same way.
 */
#include "config/values.h"

#include <string.h>

enum { PATH_BYTES = 128, DISTANCE_MAX = 3, KNOWN_BYTES = 200 };

struct table {
    const struct tt_option *options;
    int count;
    const char *prefix;
};

static bool has_prefix(const struct tt_option *option, const char *prefix)
{
    return strncmp(option->path, prefix, strlen(prefix)) == 0;
}

/* The key that stands for the option directly below the prefix: itself, or its section. */
static void key_below(const struct tt_option *option, const char *prefix, char key[PATH_BYTES])
{
    snprintf(key, PATH_BYTES, "%s", option->path + strlen(prefix));
    key[strcspn(key, ".")] = 0;
}

/* Whether an option of this scope lies below the prefix at all. */
static bool allowed(const struct tt_reading *reading, const struct tt_option *option)
{
    return !reading->directory || option->flags & TT_OPTION_DIRECTORY;
}

static void list_known(const struct tt_reading *reading, const struct table *table, char text[KNOWN_BYTES])
{
    char key[PATH_BYTES], last[PATH_BYTES] = "";
    size_t used = 0;

    text[0] = 0;
    for (int i = 0; i < table->count && used < KNOWN_BYTES; i++) {
        if (!has_prefix(&table->options[i], table->prefix) || !allowed(reading, &table->options[i]))
            continue;
        key_below(&table->options[i], table->prefix, key);
        if (strcmp(key, last) != 0)
            used += (size_t)snprintf(text + used, KNOWN_BYTES - used, "%s`%s`", used ? ", " : "", key);
        strcpy(last, key);
    }
}

static void refuse_unknown(struct tt_reading *reading, const struct table *table, const struct tt_node *node)
{
    char key[PATH_BYTES], best_key[PATH_BYTES] = "", known[KNOWN_BYTES];
    const struct tt_option *elsewhere = NULL;
    struct tt_quoted quoted = tt_quote(node->text, node->bytes);
    int limit = (int)node->bytes / 3 < DISTANCE_MAX ? (int)node->bytes / 3 : DISTANCE_MAX;
    int best = (limit > 1 ? limit : 1) + 1;

    for (int i = 0; i < table->count; i++) {
        const struct tt_option *option = &table->options[i];
        int distance;

        if (!allowed(reading, option))
            continue;
        if (strcmp(option->path, node->text) == 0 || strcmp(tt_option_key(option), node->text) == 0)
            elsewhere = option;
        if (!has_prefix(option, table->prefix))
            continue;
        key_below(option, table->prefix, key);
        distance = tt_word_distance(node->text, key);
        if (distance < best) {
            best = distance;
            strcpy(best_key, key);
        }
    }
    if (best_key[0]) {
        tt_problem_add(reading->problems, node->line, node->column, "unknown key `%s`: did you mean `%s`?",
                       quoted.text, best_key);
    } else if (elsewhere && strchr(elsewhere->path, '.')) {
        tt_problem_add(reading->problems, node->line, node->column,
                       "unknown key `%s` here: write `%s` in the section `%.*s`", quoted.text,
                       tt_option_key(elsewhere), (int)strcspn(elsewhere->path, "."), elsewhere->path);
    } else {
        list_known(reading, table, known);
        tt_problem_add(reading->problems, node->line, node->column, "unknown key `%s`: here belong %s",
                       quoted.text, known);
    }
}

/* Returns whether the key has not been given before. */
static bool check_repeated(struct tt_reading *reading, const struct tt_node *mapping,
                           const struct tt_node *key)
{
    for (const struct tt_node *node = mapping->first; node != key; node = node->next->next)
        if (node->kind == TT_NODE_SCALAR && node->text && strcmp(node->text, key->text) == 0) {
            tt_problem_add(reading->problems, key->line, key->column,
                           "`%s` is given twice, first on line %d: take one of them out",
                           tt_quote(key->text, key->bytes).text, node->line);
            return false;
        }
    return true;
}

static void set_section(struct tt_reading *reading, const struct table *table, const char *path,
                        const struct tt_node *value, void *base, const struct tt_node **nodes)
{
    char prefix[PATH_BYTES + 1], known[KNOWN_BYTES];

    snprintf(prefix, sizeof prefix, "%s.", path);
    if (value->kind == TT_NODE_MAPPING) {
        tt_values_set(reading, table->options, table->count, prefix, value, base, nodes);
    } else if (!value->broken && !(value->kind == TT_NODE_SCALAR && value->plain && value->bytes == 0)) {
        list_known(reading, &(struct table){table->options, table->count, prefix}, known);
        tt_problem_add(reading->problems, value->line, value->column, "`%s` is a section: below it belong %s",
                       path, known);
    }
}

static void set_pair(struct tt_reading *reading, const struct table *table, const struct tt_node *key,
                     void *base, const struct tt_node **nodes)
{
    char path[PATH_BYTES];
    size_t length = (size_t)snprintf(path, sizeof path, "%s%s", table->prefix, key->text);
    bool dotted = strchr(key->text, '.') || strlen(key->text) != key->bytes || length == 0;

    for (int i = 0; i < table->count && !dotted; i++) {
        const struct tt_option *option = &table->options[i];
        bool whole = strcmp(option->path, path) == 0;

        if (!whole && (strncmp(option->path, path, length) != 0 || option->path[length] != '.'))
            continue;
        if (!allowed(reading, option)) {
            tt_problem_add(reading->problems, key->line, key->column,
                           "`%s` has no place in a directory's file: only `tracker` and `output` do", path);
        } else if (!whole) {
            set_section(reading, table, path, key->next, base, nodes);
        } else {
            nodes[i] = key->next;
            tt_value_set(reading, option, key->next, base);
        }
        return;
    }
    refuse_unknown(reading, table, key);
}

void tt_values_set(struct tt_reading *reading, const struct tt_option *table, int count, const char *prefix,
                   const struct tt_node *mapping, void *base, const struct tt_node **nodes)
{
    const struct table known = {table, count, prefix};

    for (const struct tt_node *key = mapping->first; key; key = key->next->next) {
        if (key->broken)
            continue;
        if (key->kind != TT_NODE_SCALAR)
            tt_problem_add(reading->problems, key->line, key->column, "a key must be a word");
        else if (check_repeated(reading, mapping, key))
            set_pair(reading, &known, key, base, nodes);
    }
}

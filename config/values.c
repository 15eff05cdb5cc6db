/* config/values.c: values of every type of option.
 *
 * Invariant: a place in a struct always holds a whole value of its type, zero included, so that it can be
 * freed at any time. A value that does not fit becomes a problem; the only other failure is memory, which is
 * noted in the reading and ends it later.
 */
#include "config/values.h"

#include <ctype.h>
#include <errno.h>
#include <fnmatch.h>
#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { LIST_MAX = 64, DEVICES_MAX = 64, EXPECTS_BYTES = 160 };

static bool refuse(struct tt_reading *reading, const struct tt_option *option, const struct tt_node *node,
                   const char *hint)
{
    static const char *const kinds[] = {"", "a list", "a section"};
    char expects[EXPECTS_BYTES];
    const char *what = kinds[node->kind];
    struct tt_quoted quoted = {.text = ""};

    if (node->kind == TT_NODE_SCALAR) {
        quoted = tt_quote(node->text, node->bytes);
        what = node->bytes ? quoted.text : "nothing";
    }
    tt_problem_add(reading->problems, node->line, node->column, "`%s` is %s%s%s, but %s is expected%s%s",
                   option->path,
                   node->plain && node->bytes   ? "`"
                   : node->kind || !node->bytes ? ""
                                                : "\"",
                   what,
                   node->plain && node->bytes   ? "`"
                   : node->kind || !node->bytes ? ""
                                                : "\"",
                   tt_option_expects(option, expects, sizeof expects), *hint ? ": " : "", hint);
    return false;
}

static bool is_word(const struct tt_node *node, const char *word)
{
    return node->kind == TT_NODE_SCALAR && node->plain && strcmp(node->text, word) == 0;
}

static bool is_null(const struct tt_node *node)
{
    return is_word(node, "null") || is_word(node, "~") || is_word(node, "");
}

static bool set_text(struct tt_reading *reading, char **place, const char *text)
{
    char *copy = strdup(text);

    if (!copy)
        return reading->out_of_memory = true, false;
    free(*place);
    *place = copy;
    return true;
}

static bool set_bool(struct tt_reading *reading, const struct tt_option *option, const struct tt_node *node,
                     bool *place)
{
    static const char *const others[] = {"yes", "on", "y", "no", "off", "n"};

    if (is_word(node, "true") || is_word(node, "false")) {
        *place = is_word(node, "true");
        return true;
    }
    for (int i = 0; i < 6; i++)
        if (node->kind == TT_NODE_SCALAR && strcasecmp(node->text, others[i]) == 0)
            return refuse(reading, option, node, i < 3 ? "write true" : "write false");
    return refuse(reading, option, node, "");
}

/* Reads a whole number with its suffix. Returns NULL, or what is wrong with it. */
static const char *read_whole(const struct tt_option *option, const char *text, int64_t *value)
{
    static const char suffixes[] = "KMGT";
    const char *suffix;
    char *end;

    if (!isdigit((unsigned char)*text) && *text != '-')
        return "";
    errno = 0;
    *value = strtoll(text, &end, 10);
    if (errno || end == text)
        return "";
    if (text[*text == '-'] == '0' && isalnum((unsigned char)text[1 + (*text == '-')]))
        return "write it in decimal without a zero in front";
    if (!*end)
        return NULL;
    if (option->type == TT_OPTION_MS)
        return strcmp(end, "s") == 0 || strcmp(end, "ms") == 0 ? "leave the unit away and write milliseconds"
                                                               : "";
    if (option->type != TT_OPTION_BYTES)
        return "";
    suffix = strchr(suffixes, *end);
    if (!suffix || (end[1] && strcmp(end + 1, "iB") != 0))
        return *end == '.' ? "take the next smaller suffix for a part of one" : "";
    for (int power = 0; power <= suffix - suffixes; power++)
        if (__builtin_mul_overflow(*value, 1024, value))
            return "";
    return NULL;
}

static bool set_whole(struct tt_reading *reading, const struct tt_option *option, const struct tt_node *node,
                      int64_t *place)
{
    int64_t value = 0;
    const char *wrong;

    if (option->flags & TT_OPTION_AUTO && is_word(node, "auto")) {
        *place = 0;
        return true;
    }
    if (node->kind != TT_NODE_SCALAR)
        return refuse(reading, option, node, "");
    if (!node->plain)
        return refuse(reading, option, node, "take the quotes away");
    wrong = read_whole(option, node->text, &value);
    if (wrong || value < option->min || value > option->max)
        return refuse(reading, option, node, wrong ? wrong : "");
    *place = value;
    return true;
}

static bool set_real(struct tt_reading *reading, const struct tt_option *option, const struct tt_node *node,
                     double *place)
{
    double value;
    char *end;

    if (node->kind != TT_NODE_SCALAR || !node->plain || !node->bytes ||
        strspn(node->text, "0123456789.eE+-") != node->bytes)
        return refuse(reading, option, node,
                      node->kind == TT_NODE_SCALAR && strchr(node->text, ',') ? "write a point, not a comma"
                                                                              : "");
    value = strtod(node->text, &end);
    if (*end || !(value >= (double)option->min && value <= (double)option->max))
        return refuse(reading, option, node, "");
    *place = value;
    return true;
}

/* The index of the word among the choices, or -1 and a problem. */
static int find_choice(struct tt_reading *reading, const struct tt_option *option, const struct tt_node *node)
{
    char hint[64] = "";
    int best = 3;

    if (node->kind == TT_NODE_SCALAR) {
        for (int i = 0; option->choices[i]; i++)
            if (strcmp(node->text, option->choices[i]) == 0)
                return i;
        for (int i = 0; option->choices[i]; i++) {
            int distance = tt_word_distance(node->text, option->choices[i]);
            if (distance < best) {
                best = distance;
                snprintf(hint, sizeof hint, "did you mean `%s`?", option->choices[i]);
            }
        }
    }
    refuse(reading, option, node, hint);
    return -1;
}

static bool set_choice(struct tt_reading *reading, const struct tt_option *option, const struct tt_node *node,
                       unsigned *place)
{
    int choice = find_choice(reading, option, node);

    if (choice < 0)
        return false;
    *place = (unsigned)choice;
    return true;
}

static bool set_choices(struct tt_reading *reading, const struct tt_option *option,
                        const struct tt_node *node, unsigned *place)
{
    unsigned bits = 0;

    if (node->kind != TT_NODE_SEQUENCE)
        return refuse(reading, option, node,
                      node->kind == TT_NODE_SCALAR && node->bytes ? "put it in square brackets" : "");
    if (node->children == 0)
        return refuse(reading, option, node, "it may not be empty");
    for (const struct tt_node *item = node->first; item; item = item->next) {
        int choice = item->broken ? -1 : find_choice(reading, option, item);
        if (choice >= 0)
            bits |= 1u << choice;
    }
    if (!bits)
        return false;
    *place = bits;
    return true;
}

/* Of a model. What ends in .safetensors would be taken for a path below the directory that we run in. */
static bool is_name(const char *text)
{
    return isalnum((unsigned char)*text) && fnmatch("*.safetensors", text, 0) != 0 &&
           strspn(text, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789._-") == strlen(text);
}

/* "0", "GPU-8f6c...", "MIG-...", "3b:00.0" or "0000:3b:00.0" */
static bool is_gpu(const char *text)
{
    static const char hex[] = "0123456789abcdefABCDEF";
    size_t length = strlen(text);

    if (length > 64)
        return false;
    if (strncmp(text, "GPU-", 4) == 0 || strncmp(text, "MIG-", 4) == 0)
        return length >= 8 && strspn(text + 4, "-/0123456789abcdefABCDEFGIPU") == length - 4;
    if (strspn(text, "0123456789") == length)
        return length >= 1 && length <= 3;
    return length >= 7 && strspn(text, hex) >= 2 && text[length - 2] == '.' && strchr(text, ':') &&
           strspn(text, "0123456789abcdefABCDEF:.") == length;
}

static bool set_string(struct tt_reading *reading, const struct tt_option *option, const struct tt_node *node,
                       char **place)
{
    if (node->kind != TT_NODE_SCALAR || strlen(node->text) != node->bytes)
        return refuse(reading, option, node, "");
    if (option->type == TT_OPTION_GPU
            ? !is_gpu(node->text)
            : node->text[0] != '/' && (option->type != TT_OPTION_MODEL || !is_name(node->text)))
        return refuse(reading, option, node,
                      node->text[0] == '~'      ? "the home directory must be written out"
                      : strchr(node->text, '$') ? "environment variables are not read"
                                                : "");
    if (node->text[0] == '/' && node->bytes > 4000)
        return refuse(reading, option, node, "it is too long");
    if (option->type == TT_OPTION_MODEL && reading->directory && node->text[0] == '/') {
        tt_problem_add(reading->problems, node->line, node->column,
                       "`%s` may not be a path below incoming: name an installed model", option->path);
        return false;
    }
    return set_text(reading, place, node->text);
}

/* Returns whether the item can be a pattern. */
static bool check_pattern(struct tt_reading *reading, const struct tt_option *option,
                          const struct tt_node *item)
{
    if (item->broken)
        return false;
    if (item->kind == TT_NODE_SCALAR && item->bytes > 0 && item->bytes <= 64 &&
        strlen(item->text) == item->bytes && !strchr(item->text, '/') && !is_null(item))
        return true;
    tt_problem_add(
        reading->problems, item->line, item->column,
        "an item of `%s` must be an ending such as .mp4 or a glob such as \"shot-*.mov\", of 1 to 64 "
        "bytes and without a slash",
        option->path);
    return false;
}

static bool set_list(struct tt_reading *reading, const struct tt_option *option, const struct tt_node *node,
                     void *base)
{
    struct tt_config_list *place = tt_option_at(option, base);

    if (node->kind != TT_NODE_SEQUENCE)
        return refuse(reading, option, node,
                      node->kind == TT_NODE_SCALAR && node->bytes ? "put it in square brackets" : "");
    if (node->children > LIST_MAX) {
        tt_problem_add(reading->problems, node->line, node->column, "`%s` has %d items, but %d are the most",
                       option->path, node->children, LIST_MAX);
        return false;
    }
    tt_value_free(option, base);
    place->items = calloc((size_t)node->children + 1, sizeof *place->items);
    if (!place->items) {
        reading->out_of_memory = true;
        return false;
    }
    for (const struct tt_node *item = node->first; item; item = item->next)
        if (check_pattern(reading, option, item) &&
            set_text(reading, &place->items[place->count], item->text))
            place->count++;
    return true;
}

static void set_device(struct tt_reading *reading, const struct tt_node *node,
                       struct tt_config_device *device)
{
    enum { GPU, CPU, PRECISION, ARCH = 5, OPTIONS_MAX = 8 }; /* the order of tt_device_options */
    const struct tt_node *nodes[OPTIONS_MAX] = {NULL};
    bool gpu, cpu;

    for (int i = 0; i < tt_device_options_count; i++)
        tt_value_set_initial(reading, &tt_device_options[i], device);
    if (node->kind != TT_NODE_MAPPING) {
        if (!node->broken)
            tt_problem_add(reading->problems, node->line, node->column,
                           "an item of `devices` is a section such as {gpu: 0} or {cpu: 4}");
        return;
    }
    tt_values_set(reading, tt_device_options, tt_device_options_count, "", node, device, nodes);
    gpu = nodes[GPU] && !is_null(nodes[GPU]);
    cpu = nodes[CPU] && !is_null(nodes[CPU]);
    if (node->broken)
        return;
    if (gpu && cpu)
        tt_problem_add(reading->problems, node->line, node->column,
                       "a device has either `gpu` or `cpu`: make two items of it");
    else if (!gpu && !cpu)
        tt_problem_add(reading->problems, node->line, node->column,
                       "a device needs `gpu` or `cpu`, such as {gpu: 0} or {cpu: 4}");
    else if (cpu && device->precision == TT_PRECISION_FP16)
        tt_problem_add(reading->problems, nodes[PRECISION]->line, nodes[PRECISION]->column,
                       "the CPU computes in fp32 only: leave `precision` away");
    else if (cpu && device->arch != TT_ARCH_NATIVE)
        tt_problem_add(reading->problems, nodes[ARCH]->line, nodes[ARCH]->column,
                       "`arch` is for GPUs: leave it away");
}

static bool set_devices(struct tt_reading *reading, const struct tt_option *option,
                        const struct tt_node *node, struct tt_config *config)
{
    struct tt_config made = {0};
    int number = 0;

    if (is_word(node, "auto")) {
        tt_value_free(option, config);
        config->devices.automatic = true;
        return true;
    }
    if (node->kind != TT_NODE_SEQUENCE || node->children == 0 || node->children > DEVICES_MAX) {
        if (!node->broken)
            refuse(reading, option, node,
                   node->kind == TT_NODE_MAPPING    ? "put `- ` before each device"
                   : node->kind == TT_NODE_SEQUENCE ? "1 to 64 of them"
                                                    : "");
        return false;
    }
    made.devices.items = calloc((size_t)node->children, sizeof *made.devices.items);
    if (!made.devices.items) {
        reading->out_of_memory = true;
        return false;
    }
    made.devices.count = node->children;
    for (const struct tt_node *item = node->first; item; item = item->next, number++) {
        struct tt_config_device *device = &made.devices.items[number];

        set_device(reading, item, device);
        for (int i = 0; i < number; i++)
            if (device->gpu && made.devices.items[i].gpu &&
                strcasecmp(device->gpu, made.devices.items[i].gpu) == 0)
                tt_problem_add(reading->problems, item->line, item->column,
                               "GPU %s is listed twice: one worker fills a GPU",
                               tt_quote(device->gpu, strlen(device->gpu)).text);
    }
    tt_value_free(option, config);
    config->devices = made.devices;
    return true;
}

bool tt_value_set(struct tt_reading *reading, const struct tt_option *option, const struct tt_node *node,
                  void *base)
{
    void *place = tt_option_at(option, base);

    if (node->broken && node->kind == TT_NODE_SCALAR)
        return false;
    if (is_null(node)) {
        if (!(option->flags & TT_OPTION_NULL))
            return refuse(reading, option, node, node->bytes ? "" : "leave the key away to take the default");
        tt_value_free(option, base);
        if (option->type == TT_OPTION_INT)
            *(int64_t *)place = -1;
        return true;
    }
    switch (option->type) {
    case TT_OPTION_BOOL:
        return set_bool(reading, option, node, place);
    case TT_OPTION_INT:
    case TT_OPTION_MS:
    case TT_OPTION_BYTES:
        return set_whole(reading, option, node, place);
    case TT_OPTION_REAL:
        return set_real(reading, option, node, place);
    case TT_OPTION_CHOICE:
        return set_choice(reading, option, node, place);
    case TT_OPTION_CHOICES:
        return set_choices(reading, option, node, place);
    case TT_OPTION_PATH:
    case TT_OPTION_MODEL:
    case TT_OPTION_GPU:
        return set_string(reading, option, node, place);
    case TT_OPTION_LIST:
        return set_list(reading, option, node, base);
    case TT_OPTION_DEVICES:
        return set_devices(reading, option, node, base);
    }
    return false;
}

void tt_value_set_initial(struct tt_reading *reading, const struct tt_option *option, void *base)
{
    struct tt_tree tree = {0};

    if (tt_tree_read(&tree, option->initial, strlen(option->initial), reading->problems, NULL) != TT_OK)
        reading->out_of_memory = true;
    else if (tree.root)
        tt_value_set(reading, option, tree.root, base);
    tt_tree_free(&tree);
}

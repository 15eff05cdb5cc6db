/* config/store.c: values copied, compared and freed, by the table. Only memory makes it fail. */
#include "config/values.h"

#include <stdlib.h>
#include <string.h>

static bool copy_text(char **to, const char *from)
{
    *to = from ? strdup(from) : NULL;
    return *to || !from;
}

static bool same_text(const char *a, const char *b)
{
    return a && b ? strcmp(a, b) == 0 : a == b;
}

static void free_list(struct tt_config_list *list)
{
    for (int i = 0; i < list->count; i++)
        free(list->items[i]);
    free(list->items);
    memset(list, 0, sizeof *list);
}

static bool copy_list(struct tt_config_list *to, const struct tt_config_list *from)
{
    to->items = calloc((size_t)from->count + 1, sizeof *to->items);
    if (!to->items)
        return false;
    while (to->count < from->count && copy_text(&to->items[to->count], from->items[to->count]))
        to->count++;
    if (to->count == from->count)
        return true;
    free_list(to);
    return false;
}

static bool same_list(const struct tt_config_list *a, const struct tt_config_list *b)
{
    if (a->count != b->count)
        return false;
    for (int i = 0; i < a->count; i++)
        if (strcmp(a->items[i], b->items[i]) != 0)
            return false;
    return true;
}

static void free_devices(struct tt_config *config)
{
    for (int d = 0; d < config->devices.count; d++)
        for (int i = 0; i < tt_device_options_count; i++)
            tt_value_free(&tt_device_options[i], &config->devices.items[d]);
    free(config->devices.items);
    memset(&config->devices, 0, sizeof config->devices);
}

static bool copy_devices(struct tt_config *to, const struct tt_config *from)
{
    to->devices.automatic = from->devices.automatic;
    if (from->devices.count == 0)
        return true;
    to->devices.items = calloc((size_t)from->devices.count, sizeof *to->devices.items);
    if (!to->devices.items)
        return false;
    to->devices.count = from->devices.count;
    for (int d = 0; d < from->devices.count; d++)
        for (int i = 0; i < tt_device_options_count; i++)
            if (!tt_value_copy(&tt_device_options[i], &to->devices.items[d], &from->devices.items[d])) {
                free_devices(to);
                return false;
            }
    return true;
}

static bool same_devices(const struct tt_config *a, const struct tt_config *b)
{
    if (a->devices.count != b->devices.count) /* automatic is the same as none */
        return false;
    for (int d = 0; d < a->devices.count; d++)
        for (int i = 0; i < tt_device_options_count; i++)
            if (!tt_value_equal(&tt_device_options[i], &a->devices.items[d], &b->devices.items[d]))
                return false;
    return true;
}

/* The size of the types whose bytes are their value; 0: they own something. */
static size_t plain_bytes(enum tt_option_type type)
{
    switch (type) {
    case TT_OPTION_BOOL:
        return sizeof(bool);
    case TT_OPTION_INT:
    case TT_OPTION_MS:
    case TT_OPTION_BYTES:
        return sizeof(int64_t);
    case TT_OPTION_REAL:
        return sizeof(double);
    case TT_OPTION_CHOICE:
    case TT_OPTION_CHOICES:
        return sizeof(unsigned);
    default:
        return 0;
    }
}

bool tt_value_copy(const struct tt_option *option, void *to, const void *from)
{
    void *target = tt_option_at(option, to);
    const void *source = tt_option_at(option, from);

    if (plain_bytes(option->type))
        return memcpy(target, source, plain_bytes(option->type)), true;
    if (option->type == TT_OPTION_LIST)
        return copy_list(target, source);
    if (option->type == TT_OPTION_DEVICES)
        return copy_devices(to, from);
    return copy_text(target, *(char *const *)source);
}

bool tt_value_equal(const struct tt_option *option, const void *a, const void *b)
{
    const void *left = tt_option_at(option, a), *right = tt_option_at(option, b);

    if (plain_bytes(option->type))
        return memcmp(left, right, plain_bytes(option->type)) == 0;
    if (option->type == TT_OPTION_LIST)
        return same_list(left, right);
    if (option->type == TT_OPTION_DEVICES)
        return same_devices(a, b);
    return same_text(*(char *const *)left, *(char *const *)right);
}

void tt_value_free(const struct tt_option *option, void *base)
{
    void *place = tt_option_at(option, base);

    if (plain_bytes(option->type)) {
        memset(place, 0, plain_bytes(option->type));
    } else if (option->type == TT_OPTION_LIST) {
        free_list(place);
    } else if (option->type == TT_OPTION_DEVICES) {
        free_devices(base);
    } else {
        free(*(char **)place);
        *(char **)place = NULL;
    }
}

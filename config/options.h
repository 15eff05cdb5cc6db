/* config/options.h: the table of options. */
#ifndef TT_CONFIG_OPTIONS_H
#define TT_CONFIG_OPTIONS_H

#include "config/config.h"

enum tt_option_type {
    TT_OPTION_BOOL,    /* bool */
    TT_OPTION_INT,     /* int64_t */
    TT_OPTION_MS,      /* int64_t, milliseconds */
    TT_OPTION_BYTES,   /* int64_t; K, M, G, T behind the number are powers of 1024 */
    TT_OPTION_REAL,    /* double */
    TT_OPTION_CHOICE,  /* an enum: the index of the word in choices */
    TT_OPTION_CHOICES, /* unsigned: a bit for each word of choices */
    TT_OPTION_PATH,    /* char *: absolute */
    TT_OPTION_MODEL,   /* char *: a name, or an absolute path */
    TT_OPTION_GPU,     /* char *: index, UUID or PCI address */
    TT_OPTION_LIST,    /* struct tt_config_list of patterns */
    TT_OPTION_DEVICES, /* the devices; each is read with tt_device_options */
};

enum tt_option_flags {
    TT_OPTION_RESTART = 1,   /* a changed value takes effect when the daemon is started anew */
    TT_OPTION_DIRECTORY = 2, /* may stand in the tiletrack.yaml of a sub-directory of incoming/ */
    TT_OPTION_NULL = 4,      /* null is a value: NULL, or -1 for a number */
    TT_OPTION_AUTO = 8,      /* `auto` is a value: 0 */
};

struct tt_option {
    const char *path; /* "spool.settle_ms"; at most one dot */
    enum tt_option_type type;
    unsigned flags;
    size_t offset;       /* in struct tt_config, or in struct tt_config_device */
    const char *initial; /* the default, as YAML */
    int64_t min, max;    /* of numbers, both allowed */
    const char *const *choices;
    const char *help; /* sentences; `code` in backticks; no line breaks */
};

extern const struct tt_option tt_options[];
extern const int tt_options_count;

/* The options of one item of `devices`. */
extern const struct tt_option tt_device_options[];
extern const int tt_device_options_count;

/* What the sections (the part of a path before its dot) are for. */
struct tt_section {
    const char *name;
    const char *help;
};

extern const struct tt_section tt_sections[];
extern const int tt_sections_count;

/* The option's place in a struct tt_config or struct tt_config_device. */
static inline void *tt_option_at(const struct tt_option *option, const void *base)
{
    return (char *)base + option->offset;
}

/* The part of the path behind its dot: "settle_ms". */
const char *tt_option_key(const struct tt_option *option);

/* A number as it is written in a file: "12", or "1G" for bytes. Written to text, which is returned. */
const char *tt_option_number(const struct tt_option *option, int64_t value, char *text, size_t bytes);

/* What values it takes, in words: "a whole number, 0 to 47". Written to text, cut to bytes. */
const char *tt_option_expects(const struct tt_option *option, char *text, size_t bytes);

#endif

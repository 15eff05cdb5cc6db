/* config/tree.h: a YAML text as a tree whose nodes know their line and column. Inside config/ only. */
#ifndef TT_CONFIG_TREE_H
#define TT_CONFIG_TREE_H

#include "config/config.h"

enum tt_node_kind { TT_NODE_SCALAR, TT_NODE_SEQUENCE, TT_NODE_MAPPING };

struct tt_node {
    enum tt_node_kind kind;
    bool broken; /* already a problem, or cut off by one: nothing more is to be said about it */
    bool plain;  /* a scalar without quotes */
    int line, column;
    char *text; /* scalar: ends in a NUL, may hold others before it */
    size_t bytes;
    struct tt_node *next;         /* behind this one in the same sequence or mapping */
    struct tt_node *first, *last; /* children; of a mapping: key, value, key, value ... */
    int children;
    struct tt_node *parent;
    struct tt_node *made_before; /* all nodes of the tree, to free them */
};

struct tt_tree {
    struct tt_node *root; /* NULL: the text holds nothing */
    struct tt_node *made_last;
    int count;
};

/* Reads text into *tree, which must be zeroed and is to be freed in any case. What is wrong with the text
 * goes to problems; the tree then holds what could be read. TT_RETRY_LATER: memory. */
enum tt_status tt_tree_read(struct tt_tree *tree, const char *text, size_t bytes,
                            struct tt_config_problems *problems, struct tt_error *err);
void tt_tree_free(struct tt_tree *tree);

/* Adds a problem, or only counts it where the list is full. Text from the file must go through tt_quote. */
void tt_problem_add(struct tt_config_problems *problems, int line, int column, const char *format, ...)
    __attribute__((format(printf, 4, 5)));
void tt_problems_sort(struct tt_config_problems *problems);

/* A text from the file, fit to be shown: at most 40 characters, control characters as "?". */
struct tt_quoted {
    char text[168];
};
struct tt_quoted tt_quote(const char *text, size_t bytes);

/* How many letters must be added, dropped, changed or swapped to make one word of the other; case does not
 * count, and "-" is "_". Words of more than 40 letters are 40 apart from all others. */
int tt_word_distance(const char *a, const char *b);

#endif

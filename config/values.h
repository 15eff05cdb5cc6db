/* config/values.h: one option's value: from a node, copied, compared, freed. Inside config/ only. */
#ifndef TT_CONFIG_VALUES_H
#define TT_CONFIG_VALUES_H

#include "config/options.h"
#include "config/tree.h"

/* One reading of a file. */
struct tt_reading {
    struct tt_config_problems *problems;
    bool directory;     /* a sub-directory's file: only options with TT_OPTION_DIRECTORY */
    bool out_of_memory; /* out: set by whatever could not be stored */
};

/* Stores the node's value in the option's place in base, whose earlier value is freed. A value that does not
 * fit is a problem and leaves the place as it was. Returns whether it was stored. */
bool tt_value_set(struct tt_reading *reading, const struct tt_option *option, const struct tt_node *node,
                  void *base);

/* Stores the option's default in base, whose place must be zeroed or hold a value. */
void tt_value_set_initial(struct tt_reading *reading, const struct tt_option *option, void *base);

/* Returns false for want of memory; then `to` holds nothing that need be freed. `to` must be zeroed. */
bool tt_value_copy(const struct tt_option *option, void *to, const void *from);
bool tt_value_equal(const struct tt_option *option, const void *a, const void *b);
void tt_value_free(const struct tt_option *option, void *base); /* leaves the place zeroed */

/* Reads the pairs of a mapping into base by the given table. prefix is "" or a section with its dot. nodes
 * [count]: out, for each option of the table its node, where the mapping gives it. */
void tt_values_set(struct tt_reading *reading, const struct tt_option *table, int count, const char *prefix,
                   const struct tt_node *mapping, void *base, const struct tt_node **nodes);

#endif

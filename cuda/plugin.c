/* cuda/plugin.c: the one symbol that tiletrack-cuda.so exports, found by tt_backend_load, which refuses a
 * table of another ABI. */
#include "cuda/backend.h"

__attribute__((visibility("default"))) extern const struct tt_plugin tt_plugin_table;

const struct tt_plugin tt_plugin_table = {.abi = TT_PLUGIN_ABI, .ops = &tt_backend_cuda};

/* tests/fuzz/fuzz_config.c: any bytes as tiletrack.yaml, as the daemon's own and as a sub-directory's. They
 * are refused with at least one problem, or become a configuration that prints to a text which is read back
 * equal.
 */
#include "config/config.h"

#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void require(bool holds)
{
    if (!holds)
        abort();
}

static void check_good(struct tt_config *config)
{
    struct tt_config *again = NULL;
    char *text = NULL;
    size_t bytes;
    FILE *file = open_memstream(&text, &bytes);

    require(file != NULL);
    tt_config_print(file, config);
    require(fclose(file) == 0);
    require(tt_config_parse(&again, text, bytes, "printed", NULL, NULL) == TT_OK);
    require(tt_config_diff(config, again, NULL, 0) == 0);
    tt_config_free(again);
    tt_config_free(config);
    free(text);
}

static void check_bad(const struct tt_config_problems *problems, const struct tt_error *err)
{
    require(err->status == TT_REFUSE && problems->total > 0);
    for (int i = 0; i < problems->count; i++) {
        require(problems->items[i].text[0] && strlen(problems->items[i].text) < TT_CONFIG_PROBLEM_BYTES);
        require(i == 0 || problems->items[i].line >= problems->items[i - 1].line);
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static struct tt_config *base;
    struct tt_config_problems problems;
    struct tt_config *config = NULL;
    struct tt_error err;

    if (!base)
        require(tt_config_new(&base, NULL) == TT_OK);
    if (tt_config_parse(&config, (const char *)data, size, "fuzz", &problems, &err) == TT_OK)
        check_good(config);
    else
        check_bad(&problems, &err);
    if (tt_config_parse_directory(&config, base, (const char *)data, size, "fuzz", &problems, &err) == TT_OK)
        check_good(config);
    else
        check_bad(&problems, &err);
    return 0;
}

/* config/doc.c: tiletrack-config-doc yaml|mdoc writes what people read of the table of options to stdout. */
#include "config/config.h"

#include <string.h>

int main(int argc, char **argv)
{
    struct tt_config *config;
    struct tt_error err;

    if (argc == 2 && strcmp(argv[1], "mdoc") == 0) {
        tt_config_print_manual(stdout);
    } else if (argc == 2 && strcmp(argv[1], "yaml") == 0) {
        if (tt_config_new(&config, &err) != TT_OK) {
            fprintf(stderr, "tiletrack-config-doc: %s\n", err.text);
            return 1;
        }
        tt_config_print_commented(stdout, config);
        tt_config_free(config);
    } else {
        fprintf(stderr, "usage: tiletrack-config-doc yaml|mdoc\n");
        return 2;
    }
    return fflush(stdout) != 0 || ferror(stdout);
}

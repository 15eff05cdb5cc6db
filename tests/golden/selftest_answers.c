/* tests/golden/selftest_answers.c WEIGHTS...: writes core/selftest_answers.h to standard output.
 *
 * To be run when our weights or the self-test's clip change, after the golden tests have passed. Weight files
 * are named as core/selftest.c will know them; the formula's weights are added.
 */
#include "core/formula.h"
#include "core/selftest.h"

#include <stdio.h>
#include <stdlib.h>

static void write_answer(const char *name, const char *sha256, const struct tt_weights *weights)
{
    struct tt_backend_options options = {.threads = 1};
    struct tt_estimate result[TT_SELFTEST_QUERIES * TT_SELFTEST_FRAMES];
    struct tt_error err;

    if (tt_selftest_track(&tt_backend_cpu, &options, weights, result, &err)) {
        fprintf(stderr, "%s\n", err.text);
        exit(1);
    }
    printf("{\n    \"%s\",\n    \"%s\",\n    {\n", name, sha256);
    for (int i = 0; i < TT_SELFTEST_QUERIES * TT_SELFTEST_FRAMES; i++)
        printf("        {%.4ff, %.4ff, %.5ff, %.5ff},\n", (double)result[i].x, (double)result[i].y,
               (double)result[i].occlusion, (double)result[i].expected_dist);
    printf("    },\n},\n");
}

int main(int argc, char **argv)
{
    const struct tt_model_shape *const shapes[] = {&tt_model_small, &tt_model_base};
    struct tt_weights *weights;
    struct tt_error err;

    puts("/* clang-format off */\n/* Written by tests/golden/selftest_answers.c. Estimates: x, y, occlusion, "
         "expected distance. */");
    for (int i = 1; i < argc; i++) {
        if (tt_weights_open(&weights, argv[i], &err)) {
            fprintf(stderr, "%s\n", err.text);
            return 1;
        }
        write_answer(tt_weights_name(weights), tt_weights_sha256(weights), weights);
        tt_weights_close(weights);
    }
    for (int i = 0; i < 2; i++) {
        char name[32];
        size_t size;
        void *file = tt_formula_weights(shapes[i], 1, &size);

        snprintf(name, sizeof name, "formula %s", shapes[i]->name);
        if (!file || tt_weights_from_memory(&weights, name, file, size, &err)) {
            fprintf(stderr, "%s\n", file ? err.text : "no memory");
            return 1;
        }
        write_answer(name, tt_weights_sha256(weights), weights);
        tt_weights_close(weights);
        free(file);
    }
    return 0;
}

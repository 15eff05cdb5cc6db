/* daemon/cli/projection.c: what a T4 would take for a clip, projected from another card.
 *
 * A T4's tensor cores sustain 24 TFLOP/s, and its memory 256 GB/s. A kernel is as far from the first as its
 * code for sm_75 is from the pure m16n8k8 loop on the card where both were measured, or it is bound by the
 * second: the H200's large L2 hides traffic that a T4 pays, so bytes come from the plan. Kernels without
 * products count by their bytes. This is a projection, and is called one wherever it is shown.
 */
#include "daemon/cli/plan.h"

#include <stdio.h>
#include <string.h>

#define T4_FLOPS 24e12
#define T4_BYTES 256e9
#define CEILING  "ceiling: mma m16n8k8, registers"

/* Which of benchkern's lines measure a kernel of the plan. */
static const struct {
    const char *size, *kernel, *line; /* size: NULL for both */
} lines[] = {
    {NULL, "stem", "stem_f16"},
    {NULL, "conv 128: 64 -> 64", "conv_f16 k8 group 0 256x64 c32"},
    {NULL, "conv 128: 64 -> 64 proj", "conv_f16 k8 group 0 256x64 c32"},
    {NULL, "conv 128: 64 -> 64 add", "conv_f16 k8 group 0 256x64 c32 add"},
    {NULL, "conv 64: 64 -> 128 /2", "conv_f16 k8 group 1 /2 /2 128x128 c32"},
    {NULL, "conv 64: 128 -> 128", "conv_f16 k8 group 1 128x128 c32"},
    {NULL, "conv 64: 128 -> 128 proj", "conv_f16 k8 group 1 128x128 c32"},
    {NULL, "conv 64: 128 -> 128 add", "conv_f16 k8 group 1 128x128 c32"},
    {NULL, "conv 32: 128 -> 256 /2", "conv_f16 k8 group 2 /2 /2 128x128 c32"},
    {NULL, "conv 32: 256 -> 256", "conv_f16 k8 group 2, 3 128x128 c32"},
    {NULL, "conv 32: 256 -> 256 proj", "conv_f16 k8 group 2, 3 128x128 c32"},
    {NULL, "conv 32: 256 -> 256 add", "conv_f16 k8 group 2, 3 128x128 c32"},
    {NULL, "first estimate", "cost_f16 k8, 256 queries"},
    {"small", "embed", "embed_f16 k8 three levels, 256 queries"},
    {"base", "embed", "embed_base_f16 k8 three levels, 256 queries"},
    {"small", "product input", "product_f16 k8 864 -> 256"},
    {"small", "product qkv", "product_f16 k8 256 -> 768 normed"},
    {"small", "attend", "attend_f16 k8 width 256"},
    {"small", "mlp", "mlp_f16 k8 width 256"},
    {"base", "product input", "product_f16 k8 864 -> 384"},
    {"base", "product qkv", "product_f16 k8 384 -> 1152 normed"},
    {"base", "attend", "attend_f16 k8 width 384"},
    {"base", "mlp", "mlp_f16 k8 width 384"},
};

struct projecting {
    struct cli_projection *projection;
    const char *size, *file;
    json_t *measured; /* name -> TFLOP/s */
    double ceiling;
    enum tt_status status;
    struct tt_error *err;
};

static const char *line_of(const char *size, const char *kernel)
{
    for (size_t i = 0; i < sizeof lines / sizeof lines[0]; i++)
        if (!strcmp(lines[i].kernel, kernel) && (!lines[i].size || !strcmp(lines[i].size, size)))
            return lines[i].line;
    return NULL;
}

static void project(void *context, const struct tt_plan_kernel *kernel)
{
    struct projecting *p = context;
    const char *line = line_of(p->size, kernel->name);
    double seconds = kernel->bytes / T4_BYTES, tflops = 0;

    if (p->status)
        return;
    if (line)
        tflops = json_number_value(json_object_get(p->measured, line));
    if (line && !(tflops > 0)) {
        p->status = tt_fail(p->err, TT_REFUSE, "%s: no line \"%s\" for %s", p->file, line, kernel->name);
        return;
    }
    if (!line && kernel->flop > 1e9 && kernel->stage != TT_STAGE_SUPPORT) {
        p->status =
            tt_fail(p->err, TT_REFUSE, "no line of benchkern measures %s of size %s", kernel->name, p->size);
        return;
    }
    if (line && kernel->flop / (T4_FLOPS * tflops / p->ceiling) > seconds)
        seconds = kernel->flop / (T4_FLOPS * tflops / p->ceiling);
    p->projection->seconds += seconds;
    p->projection->stage_seconds[kernel->stage] += seconds;
}

/* benchkern's lines as name -> TFLOP/s; `path` must be sm_75. */
static enum tt_status read_lines(json_t **measured, const char *file, struct tt_error *err)
{
    json_t *found = json_object();
    enum tt_status status = TT_OK;
    char text[512];
    int sm75 = 0;
    FILE *in = fopen(file, "r");

    if (!in) {
        json_decref(found);
        return tt_fail(err, TT_REFUSE, "%s cannot be read", file);
    }
    while (!status && fgets(text, sizeof text, in)) {
        json_error_t fault;
        json_t *line = json_loads(text, 0, &fault);
        const char *name = json_string_value(json_object_get(line, "name")),
                   *path = json_string_value(json_object_get(line, "path"));

        if (!json_is_object(line))
            status = tt_fail(err, TT_REFUSE, "%s is not what benchkern --json writes: %s", file, fault.text);
        else if (name)
            json_object_set(found, name, json_object_get(line, "tflops"));
        sm75 |= path && !strcmp(path, "sm_75");
        json_decref(line);
    }
    fclose(in);
    if (!status && !sm75)
        status = tt_fail(err, TT_REFUSE, "%s was not measured on the path of sm_75", file);
    if (status)
        json_decref(found);
    else
        *measured = found;
    return status;
}

enum tt_status cli_project_t4(struct cli_projection *projection, const struct tt_plan *plan,
                              const struct tt_model_shape *shape, const char *file, struct tt_error *err)
{
    struct cli_projection made = {0};
    struct projecting p = {.projection = &made, .size = shape->name, .file = file, .err = err};
    enum tt_status status;

    if (strcmp(plan->device.name, "t4") || plan->precision != TT_FP16)
        return tt_fail(err, TT_REFUSE, "only a T4's plan in fp16 can be projected");
    status = read_lines(&p.measured, file, err);
    if (status)
        return status;
    p.ceiling = json_number_value(json_object_get(p.measured, CEILING));
    if (p.ceiling > 0)
        tt_plan_each_kernel(plan, shape, project, &p);
    else
        p.status = tt_fail(err, TT_REFUSE, "%s: no line \"%s\"", file, CEILING);
    json_decref(p.measured);
    if (!p.status)
        *projection = made;
    return p.status;
}

/* config/config.c: a configuration from a file, whole or not at all.
 *
 * A new struct is filled with the defaults (or a copy of the base), then with the file's values, then the
 * options are held against each other; with one problem anywhere it is thrown away and the caller's pointer
 * stays as it was. Fails with TT_REFUSE for whatever a person must change, with TT_RETRY_LATER for memory.
 */
#include "config/config.h"

#include "config/options.h"
#include "config/tree.h"
#include "config/values.h"

#include <errno.h>
#include <fcntl.h>
#include <fnmatch.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

enum { FILE_BYTES_MAX = 1 << 20, DIRECTORY_FILE_BYTES_MAX = 1 << 16, OPTIONS_MAX = 64 };

void tt_config_free(struct tt_config *config)
{
    if (!config)
        return;
    for (int i = 0; i < tt_options_count; i++)
        tt_value_free(&tt_options[i], config);
    free(config);
}

/* The defaults, or a copy of base. NULL for want of memory. */
static struct tt_config *make(const struct tt_config *base)
{
    struct tt_config *config = calloc(1, sizeof *config);
    struct tt_config_problems problems = {.count = 0};
    struct tt_reading reading = {.problems = &problems};

    for (int i = 0; i < tt_options_count && config && !reading.out_of_memory; i++) {
        if (!base)
            tt_value_set_initial(&reading, &tt_options[i], config);
        else
            reading.out_of_memory = !tt_value_copy(&tt_options[i], config, base);
    }
    if (!reading.out_of_memory)
        return config;
    tt_config_free(config);
    return NULL;
}

enum tt_status tt_config_new(struct tt_config **config, struct tt_error *err)
{
    struct tt_config *made = make(NULL);

    if (!made)
        return tt_fail_errno(err, TT_RETRY_LATER, ENOMEM, "configuration");
    *config = made;
    return TT_OK;
}

/* The place of an option's value in the file, or of the first of several that is given. */
static const struct tt_node *find_node(const struct tt_node *const *nodes, const char *const *paths)
{
    for (; *paths; paths++)
        for (int i = 0; i < tt_options_count; i++)
            if (nodes[i] && strcmp(tt_options[i].path, *paths) == 0)
                return nodes[i];
    return NULL;
}

/* Reports a pair of options that do not fit together, where the file gives one of them. */
static void refuse_pair(struct tt_reading *reading, const struct tt_node *const *nodes, const char *path,
                        const char *other, const char *text)
{
    const struct tt_node *node = find_node(nodes, (const char *const[]){path, other, NULL});

    tt_problem_add(reading->problems, node ? node->line : 0, node ? node->column : 0, "%s", text);
}

static void check_together(struct tt_reading *reading, const struct tt_config *config,
                           const struct tt_node *const *nodes)
{
    static const char socket_name[] = "/control.sock";
    const size_t socket_max = sizeof((struct sockaddr_un *)0)->sun_path - 1;

    if (config->tracker.overlap_frames >= config->tracker.clip_frames)
        refuse_pair(reading, nodes, "tracker.overlap_frames", "tracker.clip_frames",
                    "`tracker.overlap_frames` must be less than `tracker.clip_frames`");
    if (config->spool.settle_blind_ms < config->spool.settle_ms)
        refuse_pair(reading, nodes, "spool.settle_blind_ms", "spool.settle_ms",
                    "`spool.settle_blind_ms` must not be below `spool.settle_ms`");
    if (config->jobs.backoff_max_ms < config->jobs.backoff_ms)
        refuse_pair(reading, nodes, "jobs.backoff_max_ms", "jobs.backoff_ms",
                    "`jobs.backoff_max_ms` must not be below `jobs.backoff_ms`");
    if (config->workers.respawn_max_ms < config->workers.respawn_ms)
        refuse_pair(reading, nodes, "workers.respawn_max_ms", "workers.respawn_ms",
                    "`workers.respawn_max_ms` must not be below `workers.respawn_ms`");
    if (config->daemon.socket ? strlen(config->daemon.socket) > socket_max
                              : strlen(config->daemon.runtime_dir) + strlen(socket_name) > socket_max)
        refuse_pair(reading, nodes, "daemon.socket", "daemon.runtime_dir",
                    "the path of the control socket is longer than 107 bytes: set a shorter `daemon.socket`");
    if (config->metrics.textfile && fnmatch("*.prom", config->metrics.textfile, 0) != 0)
        refuse_pair(reading, nodes, "metrics.textfile", "metrics.textfile",
                    "`metrics.textfile` must end in .prom: node_exporter reads no other files");
}

/* Everything that the text says goes to config; what is wrong with it to reading. */
static enum tt_status fill(struct tt_config *config, struct tt_reading *reading, const char *text,
                           size_t bytes, struct tt_error *err)
{
    const struct tt_node *nodes[OPTIONS_MAX] = {NULL};
    struct tt_tree tree = {0};
    enum tt_status status = tt_tree_read(&tree, text, bytes, reading->problems, err);

    if (status != TT_OK)
        goto done;
    if (!tree.root || (tree.root->kind == TT_NODE_SCALAR && tree.root->bytes == 0)) {
        if (reading->problems->total == 0)
            tt_problem_add(reading->problems, 1, 1,
                           "nothing is set here: write {} if every default is meant to hold");
    } else if (tree.root->kind == TT_NODE_MAPPING) {
        tt_values_set(reading, tt_options, tt_options_count, "", tree.root, config, nodes);
    } else if (!tree.root->broken) {
        tt_problem_add(reading->problems, tree.root->line, tree.root->column,
                       "a configuration is made of `section:` lines with `key: value` lines indented below");
    }
    if (reading->problems->total == 0)
        check_together(reading, config, nodes);
    if (reading->out_of_memory)
        status = tt_fail_errno(err, TT_RETRY_LATER, ENOMEM, "configuration");
done:
    tt_tree_free(&tree);
    return status;
}

static enum tt_status parse(struct tt_config **config, const struct tt_config *base, const char *text,
                            size_t bytes, const char *name, struct tt_config_problems *problems,
                            struct tt_error *err)
{
    struct tt_config_problems own;
    struct tt_reading reading = {.problems = problems ? problems : &own, .directory = base != NULL};
    const struct tt_config_problem *first = &reading.problems->items[0];
    struct tt_config *made = make(base);
    enum tt_status status;

    reading.problems->count = reading.problems->total = 0;
    if (!made)
        return tt_fail_errno(err, TT_RETRY_LATER, ENOMEM, "%s", name);
    status = fill(made, &reading, text, bytes, err);
    tt_problems_sort(reading.problems);
    if (status == TT_OK && reading.problems->total > 1)
        status = tt_fail(err, TT_REFUSE, "%s:%d:%d: %s (and %d more)", name, first->line, first->column,
                         first->text, reading.problems->total - 1);
    else if (status == TT_OK && reading.problems->total == 1)
        status = tt_fail(err, TT_REFUSE, "%s:%d:%d: %s", name, first->line, first->column, first->text);
    if (status != TT_OK) {
        tt_config_free(made);
        return status;
    }
    *config = made;
    return TT_OK;
}

enum tt_status tt_config_parse(struct tt_config **config, const char *text, size_t bytes, const char *name,
                               struct tt_config_problems *problems, struct tt_error *err)
{
    return parse(config, NULL, text, bytes, name, problems, err);
}

enum tt_status tt_config_parse_directory(struct tt_config **config, const struct tt_config *base,
                                         const char *text, size_t bytes, const char *name,
                                         struct tt_config_problems *problems, struct tt_error *err)
{
    return parse(config, base, text, bytes, name, problems, err);
}

/* Reads fd to its end. *text: out, owns. */
static enum tt_status read_whole(int fd, size_t most, const char *name, char **text, size_t *bytes,
                                 struct tt_error *err)
{
    char *buffer = malloc(most + 1);
    enum tt_status status = TT_OK;
    size_t used = 0;
    ssize_t got = 1;

    if (!buffer)
        return tt_fail_errno(err, TT_RETRY_LATER, ENOMEM, "%s", name);
    while (got != 0 && used <= most && status == TT_OK) {
        got = read(fd, buffer + used, most + 1 - used);
        if (got > 0)
            used += (size_t)got;
        else if (got < 0 && errno != EINTR)
            status = tt_fail_errno(err, tt_status_of_errno(errno), errno, "%s", name);
    }
    if (status == TT_OK && used > most)
        status =
            tt_fail(err, TT_REFUSE, "%s: larger than %zu KiB: this is no configuration", name, most / 1024);
    if (status != TT_OK) {
        free(buffer);
        return status;
    }
    *text = buffer;
    *bytes = used;
    return TT_OK;
}

/* Reads and parses fd, and closes it. */
static enum tt_status load(struct tt_config **config, const struct tt_config *base, int fd, size_t most,
                           const char *name, struct tt_config_problems *problems, struct tt_error *err)
{
    char *text = NULL;
    size_t bytes = 0;
    enum tt_status status = read_whole(fd, most, name, &text, &bytes, err);

    close(fd);
    if (status == TT_OK)
        status = parse(config, base, text, bytes, name, problems, err);
    free(text);
    return status;
}

enum tt_status tt_config_load(struct tt_config **config, const char *path,
                              struct tt_config_problems *problems, struct tt_error *err)
{
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NOCTTY);

    if (problems)
        problems->count = problems->total = 0;
    if (fd < 0)
        return tt_fail_errno(err, tt_status_of_errno(errno), errno, "%s", path);
    return load(config, NULL, fd, FILE_BYTES_MAX, path, problems, err);
}

enum tt_status tt_config_load_directory(struct tt_config **config, const struct tt_config *base,
                                        int directory_fd, const char *name,
                                        struct tt_config_problems *problems, struct tt_error *err)
{
    /* O_NONBLOCK: somebody may have put a FIFO there. */
    int fd =
        openat(directory_fd, "tiletrack.yaml", O_RDONLY | O_CLOEXEC | O_NOCTTY | O_NOFOLLOW | O_NONBLOCK);
    struct stat stat;

    if (problems)
        problems->count = problems->total = 0;
    if (fd < 0 && errno == ENOENT) {
        *config = NULL;
        return TT_OK;
    }
    if (fd < 0 && errno == ELOOP)
        return tt_fail(err, TT_REFUSE, "%s: a symbolic link, which is not followed", name);
    if (fd < 0)
        return tt_fail_errno(err, tt_status_of_errno(errno), errno, "%s", name);
    if (fstat(fd, &stat) != 0 || !S_ISREG(stat.st_mode)) {
        close(fd);
        return tt_fail(err, TT_REFUSE, "%s: not a regular file", name);
    }
    return load(config, base, fd, DIRECTORY_FILE_BYTES_MAX, name, problems, err);
}

int tt_config_diff(const struct tt_config *before, const struct tt_config *after,
                   const struct tt_option **changed, int limit)
{
    int count = 0;

    for (int i = 0; i < tt_options_count; i++) {
        if (tt_value_equal(&tt_options[i], before, after))
            continue;
        if (count < limit)
            changed[count] = &tt_options[i];
        count++;
    }
    return count;
}

bool tt_config_matches(const struct tt_config_list *patterns, const char *name)
{
    size_t length = strlen(name);

    for (int i = 0; i < patterns->count; i++) {
        const char *pattern = patterns->items[i];
        size_t ending = strlen(pattern);

        if (pattern[0] == '.') {
            if (length >= ending && strcasecmp(name + length - ending, pattern) == 0)
                return true;
        } else if (fnmatch(pattern, name, FNM_CASEFOLD | FNM_NOESCAPE) == 0) {
            return true;
        }
    }
    return false;
}

enum tt_precision tt_config_device_precision(const struct tt_config_device *device)
{
    if (device->precision == TT_PRECISION_AUTO)
        return device->gpu ? TT_FP16 : TT_FP32;
    return device->precision == TT_PRECISION_FP16 ? TT_FP16 : TT_FP32;
}

/* daemon/cli/submit.c: tiletrack submit: a video and its side-cars into incoming/, whole.
 *
 * Each file is written under a temporary name that the daemon ignores, synced and renamed: side-cars first,
 * the video last, for it is what starts a job. No daemon needs to run. Where the name is taken, the video and
 * its side-cars get the next free one, ~2, ~3. Fails: nothing of a video that could not be copied is left.
 */
#include "daemon/cli/ask.h"

#include "core/fsio.h"
#include "daemon/spool/name.h"

#include <errno.h>
#include <fcntl.h>
#include <getopt.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum { OTHER_NAMES = 10000, CHUNK_BYTES = 1 << 20, FILES = 1 + TT_SPOOL_SIDECARS };

struct submit_options {
    const char *config, *spool, *queries, *mask;
    bool priority, quiet;
};

/* A video and what goes with it. */
struct parcel {
    const char *from[FILES]; /* paths; NULL: none. The side-cars in their order, the video last */
    char *found[FILES];      /* those that were found beside the video, owned */
    char to[FILES][PATH_MAX];
};

/* --- copying ----------------------------------------------------------------------------------------------
 */

static enum tt_status copy_bytes(int from_fd, struct tt_file *to, const char *from, struct tt_error *err)
{
    char *chunk = malloc(CHUNK_BYTES);
    enum tt_status status = chunk ? TT_OK : tt_fail_errno(err, TT_RETRY_LATER, ENOMEM, "%s", from);

    while (!status) {
        ssize_t got = read(from_fd, chunk, CHUNK_BYTES);

        if (atomic_load(cli_stop_flag()))
            status = tt_fail(err, TT_INTERRUPTED, "interrupted");
        else if (got < 0)
            status = tt_fail_errno(err, TT_RETRY_LATER, errno, "%s", from);
        else if (got == 0)
            break;
        else
            status = tt_file_write(to, chunk, (size_t)got, err);
    }
    free(chunk);
    return status;
}

/* *file: owned by the caller; a temporary that is to be committed as `to`. */
static enum tt_status copy_file(struct tt_file **file, const char *from, const char *to, struct tt_error *err)
{
    int fd = open(from, O_RDONLY | O_NONBLOCK | O_NOCTTY | O_CLOEXEC);
    struct stat st;
    enum tt_status status;

    if (fd < 0)
        return tt_fail_errno(err, TT_BAD_INPUT, errno, "%s", from);
    if (fstat(fd, &st) < 0 || !S_ISREG(st.st_mode)) {
        close(fd);
        if (S_ISDIR(st.st_mode))
            return tt_fail(err, TT_BAD_INPUT, "%s: is a directory; name its videos, such as %s/*.mp4", from,
                           from);
        return tt_fail(err, TT_BAD_INPUT, "%s: not a regular file", from);
    }
    status = tt_file_create(file, to, err);
    if (!status) {
        status = copy_bytes(fd, *file, from, err);
        /* the daemon is another user */
        if (!status && fchmod(tt_file_descriptor(*file), 0644) < 0)
            status = tt_fail_errno(err, TT_REFUSE, errno, "%s", to);
        if (status) {
            tt_file_abandon(*file);
            *file = NULL;
        }
    }
    close(fd);
    return status;
}

static enum tt_status copy_all(struct tt_file **files, const struct parcel *parcel, struct tt_error *err)
{
    enum tt_status status = TT_OK;

    for (int i = 0; i < FILES && !status; i++)
        if (parcel->from[i])
            status = copy_file(&files[i], parcel->from[i], parcel->to[i], err);
    return status;
}

/* Gives the files their names, the video's last. On failure none has one. */
static enum tt_status commit_all(struct tt_file **files, const struct parcel *parcel, struct tt_error *err)
{
    enum tt_status status = TT_OK;
    int done = 0;

    for (; done < FILES && !status; done++)
        if (files[done]) {
            status = tt_file_commit(files[done], TT_NO_REPLACE, err);
            files[done] = NULL;
        }
    for (int i = 0; status && i < done - 1; i++)
        if (parcel->from[i])
            unlink(parcel->to[i]);
    return status;
}

static enum tt_status deliver(const struct parcel *parcel, struct tt_error *err)
{
    struct tt_file *files[FILES] = {NULL};
    enum tt_status status = copy_all(files, parcel, err);

    if (!status)
        status = commit_all(files, parcel, err);
    for (int i = 0; i < FILES; i++)
        tt_file_abandon(files[i]);
    return status;
}

/* --- names ------------------------------------------------------------------------------------------------
 */

/* Side-cars that lie beside the video, where none were named. */
static enum tt_status find_sidecars(struct parcel *parcel, const char *video, struct tt_error *err)
{
    bool named = parcel->from[TT_SPOOL_QUERIES_CSV] || parcel->from[TT_SPOOL_QUERIES_JSON] ||
                 parcel->from[TT_SPOOL_MASK_PNG];

    for (int kind = 0; !named && kind < TT_SPOOL_SIDECARS; kind++) {
        struct stat st;
        char suffix[64];

        snprintf(suffix, sizeof suffix, ".%s", tt_spool_sidecar_names[kind]);
        parcel->found[kind] = tt_path_sibling(video, NULL, suffix);
        if (!parcel->found[kind])
            return tt_fail_errno(err, TT_RETRY_LATER, ENOMEM, "%s", video);
        if (lstat(parcel->found[kind], &st) == 0) /* a link to nothing too: to be told of, not passed over */
            parcel->from[kind] = parcel->found[kind];
    }
    return TT_OK;
}

/* Paths in the directory for the number-th name. True: all are free. */
static bool choose_names(struct parcel *parcel, const char *directory, const char *video, int number)
{
    const char *plain = tt_path_name(video);
    char name[TT_NAME_BYTES + 1], sidecar[TT_NAME_BYTES + 1];
    size_t stem = tt_name_stem(plain);
    bool all_free = true;

    tt_name_join(name, plain, stem, number, plain + stem);
    for (int i = 0; i < FILES; i++) {
        struct stat st;

        if (i < TT_SPOOL_SIDECARS)
            tt_name_of_sidecar(sidecar, name, (enum tt_spool_sidecar)i);
        snprintf(parcel->to[i], sizeof parcel->to[i], "%s/%s", directory,
                 i < TT_SPOOL_SIDECARS ? sidecar : name);
        all_free &= !parcel->from[i] || lstat(parcel->to[i], &st) < 0;
    }
    return all_free;
}

static enum tt_status check_name(const struct tt_config *config, const char *video, struct tt_error *err)
{
    const char *name = tt_path_name(video);

    if (tt_name_is_reserved(name) || !tt_config_matches(&config->spool.patterns, name) ||
        tt_config_matches(&config->spool.ignore, name))
        return tt_fail(err, TT_BAD_INPUT, "%s: by its name the daemon would not take it (spool.patterns)",
                       video);
    return TT_OK;
}

/* --- a video ----------------------------------------------------------------------------------------------
 */

static enum tt_status submit(const struct tt_config *config, const struct submit_options *options,
                             const char *video, struct tt_error *err)
{
    static struct parcel parcel; /* too large for the stack */
    bool json_queries = options->queries && strlen(options->queries) > 5 &&
                        strcmp(options->queries + strlen(options->queries) - 5, ".json") == 0;
    char directory[PATH_MAX - TT_NAME_BYTES - 2];
    enum tt_status status = check_name(config, video, err);

    parcel = (struct parcel){.from = {[TT_SPOOL_MASK_PNG] = options->mask, [FILES - 1] = video}};
    parcel.from[json_queries ? TT_SPOOL_QUERIES_JSON : TT_SPOOL_QUERIES_CSV] = options->queries;
    snprintf(directory, sizeof directory, "%s/incoming%s", config->spool.root,
             options->priority ? "/" TT_PRIORITY_DIRECTORY : "");
    if (!status)
        status = find_sidecars(&parcel, video, err);
    for (int number = 1; !status && number < OTHER_NAMES; number++) {
        if (!choose_names(&parcel, directory, video, number))
            continue;
        status = deliver(&parcel, err);
        if (status != TT_REFUSE || access(parcel.to[FILES - 1], F_OK) < 0)
            break; /* otherwise somebody was faster */
        status = TT_OK;
    }
    if (!status && !options->quiet) {
        char *printable = cli_printable(parcel.to[FILES - 1]);

        printf("%s\n", printable ? printable : "?");
        free(printable);
    }
    for (int i = 0; i < FILES; i++)
        free(parcel.found[i]);
    return status;
}

/* --- the command line -------------------------------------------------------------------------------------
 */

/* -1: go on; otherwise the exit code. */
static int parse(struct submit_options *options, int argc, char **argv)
{
    static const struct option long_options[] = {
        {"queries", required_argument, NULL, 'Q'}, {"mask", required_argument, NULL, 'm'},
        {"priority", no_argument, NULL, 'p'},      {"config", required_argument, NULL, 'c'},
        {"spool", required_argument, NULL, 's'},   {"quiet", no_argument, NULL, 'q'},
        {"help", no_argument, NULL, 'h'},          {0}};
    int option;

    while ((option = getopt_long(argc, argv, "qh", long_options, NULL)) != -1) {
        switch (option) {
        case 'Q':
            options->queries = optarg;
            break;
        case 'm':
            options->mask = optarg;
            break;
        case 'p':
            options->priority = true;
            break;
        case 'c':
            options->config = optarg;
            break;
        case 's':
            options->spool = optarg;
            break;
        case 'q':
            options->quiet = true;
            break;
        case 'h':
            fputs(cli_submit.help, stdout);
            return EXIT_ALL_DONE;
        default:
            return cli_usage_error(&cli_submit, "see above");
        }
    }
    if (optind == argc)
        return cli_usage_error(&cli_submit, "no video was given");
    if (optind + 1 < argc && (options->queries || options->mask))
        return cli_usage_error(&cli_submit, "--queries and --mask are for one video");
    return -1;
}

/* The configuration, with the spool that was named. */
static enum tt_status find_spool(struct tt_config **config, const struct submit_options *options,
                                 struct tt_error *err)
{
    enum tt_status status = options->spool && !options->config ? tt_config_new(config, err)
                                                               : cli_config(config, options->config, err);
    char *root;

    if (status || !options->spool)
        return status;
    root = strdup(options->spool);
    if (!root) {
        tt_config_free(*config);
        return tt_fail_errno(err, TT_RETRY_LATER, ENOMEM, "%s", options->spool);
    }
    free((*config)->spool.root);
    (*config)->spool.root = root;
    return TT_OK;
}

static int run(int argc, char **argv)
{
    struct submit_options options = {0};
    struct tt_config *config = NULL;
    struct tt_error err;
    bool all = true;
    int code = parse(&options, argc, argv);

    if (code >= 0)
        return code;
    if (cli_stop_install(&err) || find_spool(&config, &options, &err)) {
        fprintf(stderr, "tiletrack submit: %s\n", err.text);
        return EXIT_SOME_FAILED;
    }
    for (; optind < argc && !atomic_load(cli_stop_flag()); optind++)
        if (submit(config, &options, argv[optind], &err)) {
            fprintf(stderr, "tiletrack submit: %s\n", err.text);
            all = false;
        }
    tt_config_free(config);
    cli_stop_reraise();
    return all ? EXIT_ALL_DONE : EXIT_SOME_FAILED;
}

const struct cli_command cli_submit = {
    .name = "submit",
    .summary = "give videos to tiletrackd",
    .help =
        "Usage: tiletrack submit [OPTION]... VIDEO...\n"
        "\n"
        "Copy videos into the daemon's incoming/, each with its query file or mask: the side-cars first, "
        "the\n"
        "video last and whole. The daemon need not run. The path that a video got is printed; the tracks "
        "will\n"
        "be in tracks/.\n"
        "\n"
        "  --queries FILE   query points, .csv or .json (default: VIDEO's .queries.csv or .queries.json)\n"
        "  --mask FILE      points inside this PNG (default: VIDEO's .mask.png)\n"
        "  --priority       ahead of all that were not submitted so\n"
        "  --config FILE    the daemon's configuration (default " TT_CONFIG_PATH ")\n"
        "  --spool DIR      its spool, where the configuration cannot be read\n"
        "  -q, --quiet      do not print paths\n"
        "\n"
        "Exit status: 0 all are in incoming/, 1 at least one is not, 2 usage.\n",
    .run = run,
};

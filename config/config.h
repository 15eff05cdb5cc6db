/* config/config.h: the configuration, tiletrack.yaml(5).
 *
 * One file is read into one struct tt_config, whole or not at all: a reload builds a new one, compares it
 * with tt_config_diff and swaps the pointer. The options themselves stand in one table, config/options.c,
 * which drives parsing, checking, printing, suggestions and the manual page. TILETRACK_... environment
 * variables are not read.
 */
#ifndef TT_CONFIG_CONFIG_H
#define TT_CONFIG_CONFIG_H

#include "core/log.h"
#include "core/plan.h"
#include "core/status.h"
#include "core/output.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

struct tt_option;

/* Owns items. */
struct tt_config_list {
    char **items;
    int count;
};

enum tt_config_arch { TT_ARCH_NATIVE, TT_ARCH_SM_75 };

enum tt_config_precision { TT_PRECISION_AUTO, TT_PRECISION_FP16, TT_PRECISION_FP32 };

enum tt_config_refine { TT_REFINE_OFF, TT_REFINE_NATIVE };

/* One worker's device: a GPU, or some threads of the CPU. */
struct tt_config_device {
    char *gpu;           /* owns: index, UUID or PCI address; NULL: this is the CPU */
    int64_t cpu_threads; /* 0: all that the process may use; -1: this is a GPU */
    enum tt_config_precision precision;
    struct {
        int64_t queries, frames; /* 0: the plan decides */
    } tile;
    enum tt_config_arch arch;
};

/* Owns everything in it. Never changed once it is built. */
struct tt_config {
    struct {
        char *root;
        bool recursive;
        struct tt_config_list patterns, ignore; /* see tt_config_matches */
        int64_t settle_ms, settle_blind_ms, rescan_ms;
        bool keep_inputs;
        int64_t keep_days; /* 0: for ever */
        int64_t reserve_bytes;
    } spool;
    struct {
        char *model; /* a name, or the absolute path of a .safetensors file */
        int64_t clip_frames, overlap_frames;
        int64_t grid; /* grid × grid query points */
        double occlusion_threshold;
        enum tt_config_refine refine;
    } tracker;
    struct {
        unsigned formats; /* 1 << enum tt_output */
        bool overlay;
    } output;
    struct {
        int64_t max_attempts;
        int64_t backoff_ms, backoff_max_ms;
        int64_t deadline_ms, deadline_frame_ms; /* a job's limit: deadline_ms + frames × deadline_frame_ms */
    } jobs;
    struct {
        bool automatic; /* every GPU, or else the CPU; items is empty */
        struct tt_config_device *items;
        int count;
    } devices;
    struct {
        int64_t start_ms, stall_ms, kill_ms;
        int64_t respawn_ms, respawn_max_ms;
    } workers;
    struct {
        char *runtime_dir;
        char *socket; /* NULL: "control.sock" in runtime_dir */
        int64_t drain_ms;
    } daemon;
    struct {
        enum tt_log_level level;
        enum tt_log_format format;
        char *file;    /* NULL: stderr, or the journal where stderr is the journal */
        int64_t burst; /* lines of one event in any 10 s; 0: no limit */
    } log;
    struct {
        char *textfile; /* NULL: none is written */
        int64_t interval_ms;
    } metrics;
    char *on_done; /* NULL: nothing is run */
};

enum { TT_CONFIG_PROBLEMS_MAX = 20, TT_CONFIG_PROBLEM_BYTES = 320 };

/* Everything that is wrong with a file, in the order of its lines. Owned by the caller. */
struct tt_config_problems {
    int count; /* of them are held in items */
    int total; /* were found */
    struct tt_config_problem {
        int line, column; /* from 1, columns in characters; line 0: the file as a whole */
        char text[TT_CONFIG_PROBLEM_BYTES];
    } items[TT_CONFIG_PROBLEMS_MAX];
};

/* The defaults. TT_RETRY_LATER: memory. */
enum tt_status tt_config_new(struct tt_config **config, struct tt_error *err);

/* Reads a whole configuration from the file path. *config: out, to be freed with tt_config_free, untouched on
 * failure. problems (may be NULL) is always filled in. TT_REFUSE: the file cannot be read or is wrong; err
 * holds the first problem with file, line and column. */
enum tt_status tt_config_load(struct tt_config **config, const char *path,
                              struct tt_config_problems *problems, struct tt_error *err);

/* The same from memory; name stands for the file in messages. Borrows text and name (until it returns). */
enum tt_status tt_config_parse(struct tt_config **config, const char *text, size_t bytes, const char *name,
                               struct tt_config_problems *problems, struct tt_error *err);

/* Reads "tiletrack.yaml" in the open directory directory_fd, one below incoming/: *config becomes a copy of
 * base with that file's `tracker` and `output`, the only sections it may have. Where there is no such file
 * the result is TT_OK and *config is NULL. The file is somebody else's: it must be a regular file (symbolic
 * links are not followed) of at most 64 KiB, and names a model by name, not by path. name stands for it in
 * messages. */
enum tt_status tt_config_load_directory(struct tt_config **config, const struct tt_config *base,
                                        int directory_fd, const char *name,
                                        struct tt_config_problems *problems, struct tt_error *err);

enum tt_status tt_config_parse_directory(struct tt_config **config, const struct tt_config *base,
                                         const char *text, size_t bytes, const char *name,
                                         struct tt_config_problems *problems, struct tt_error *err);

void tt_config_free(struct tt_config *config); /* takes config, which may be NULL */

/* Writes the problems as "NAME:LINE:COLUMN: text" lines, and one more where the list was cut. */
void tt_config_problems_print(FILE *file, const char *name, const struct tt_config_problems *problems);

/* Writes every option with its value, as a file that tt_config_parse reads back to the same values. */
void tt_config_print(FILE *file, const struct tt_config *config);

/* config/tiletrack.yaml: every option with its default, and what it means in comments. */
void tt_config_print_commented(FILE *file, const struct tt_config *config);

/* tiletrack.yaml(5), in mdoc. */
void tt_config_print_manual(FILE *file);

/* Which options differ: their number; the first `limit` of them go to changed (borrowed, for ever), in the
 * order of the table. An option with TT_OPTION_RESTART (config/options.h) needs a restart to take effect. */
int tt_config_diff(const struct tt_config *before, const struct tt_config *after,
                   const struct tt_option **changed, int limit);

/* Whether a file name matches one of spool.patterns or spool.ignore. A pattern that begins with a dot is an
 * ending; any other is a glob for the whole name. Case does not count. */
bool tt_config_matches(const struct tt_config_list *patterns, const char *name);

/* What `precision: auto` means for this device: fp16 on a GPU, fp32 on the CPU. */
enum tt_precision tt_config_device_precision(const struct tt_config_device *device);

#endif

/* daemon/spool/internal.h: what the spool's own files share. */
#ifndef TT_DAEMON_SPOOL_INTERNAL_H
#define TT_DAEMON_SPOOL_INTERNAL_H

#include "daemon/spool/spool.h"
#include "daemon/spool/step.h"

#include <sys/stat.h>

struct tt_spool {
    const struct tt_config *config; /* borrowed */
    char *root, *host;
    char *work;              /* absolute path of work/HOST */
    int root_fd;             /* reopened when the root was replaced */
    int work_fd;             /* work/HOST */
    int lock_fd;             /* work/HOST/lock */
    bool can_link;           /* moves are link, sync, unlink: RENAME_NOREPLACE is not known here */
    int64_t clock_offset_ns; /* wall clock minus boot clock at the start */
    struct tt_spool_job *jobs;
    struct tt_spool_pause pause;
    struct tt_manifest ended;                                     /* of the job that was ended last */
    void (*hear)(void *user, const struct tt_manifest *manifest); /* NULL: nobody */
    void *user;
};

/* --- fs.c: directories and moves; errno says why they fail ------------------------------------------
 */

/* Opens relative ("" for base itself), one component at a time, never through a symbolic link. create: makes
 * what is missing, durably. -1 and errno. */
int tt_fs_open_directory(int base_fd, const char *relative, bool create);

/* Opens the directory of `path` below the root's `tree` ("done" and "a/b.mp4": done/a). *name: its last
 * component; borrows path. */
int tt_fs_open_parent(const struct tt_spool *spool, const char *tree, const char *path, bool create,
                      const char **name);

/* Renames; EEXIST where `to` exists, unless it is the same file under another name: then only `from` is
 * removed. Nothing is synced, except between the two halves of a move by link. */
int tt_fs_move(const struct tt_spool *spool, int from_fd, const char *from, int to_fd, const char *to);

/* The same for a file that need not be there any more; where `to` exists, under "~2", "~3" ... */
int tt_fs_move_numbered(const struct tt_spool *spool, int from_fd, const char *from, int to_fd,
                        const char *to);

/* Whether two names are names of one file. */
bool tt_fs_same_file(int a_fd, const char *a, int b_fd, const char *b);

int tt_fs_sync(int fd);
bool tt_fs_exists(int directory_fd, const char *name);

/* Closes fd unless it is -1; errno is kept. */
void tt_fs_close(int fd);

/* Whether renames between two open directories can work: the same device and mount. */
bool tt_fs_same(int a_fd, int b_fd);

/* --- spool.c -----------------------------------------------------------------------------------------------
 */

/* Pauses the spool. Fills in err (not NULL) with the text, ": " and strerror. Returns TT_RETRY_LATER. */
enum tt_status tt_spool_trouble(struct tt_spool *spool, struct tt_error *err, int errno_value,
                                const char *format, ...) __attribute__((format(printf, 4, 5)));

/* The same with what a callee left in err; TT_BAD_INPUT passes through and pauses nothing. */
enum tt_status tt_spool_trouble_within(struct tt_spool *spool, struct tt_error *err);

/* TT_RETRY_LATER and paused where less than reserve_bytes are free. */
enum tt_status tt_spool_check_reserve(struct tt_spool *spool, struct tt_error *err);

int64_t tt_spool_wall_ns(void);

/* --- place.c: names that are free -------------------------------------------------------------------
 */

/* The outputs of a new job in some formats (1 << enum tt_output): relative to tracks/, equal but for
 * the format, and free in every format. outputs: [TT_OUTPUTS], owned by the caller; those of the
 * formats are replaced. 0, or -1 and errno: outputs is untouched. */
int tt_place_outputs(struct tt_spool *spool, const char *source, unsigned formats, char **outputs);

/* Others for a job one of whose outputs somebody else took. */
int tt_place_outputs_again(struct tt_spool *spool, const struct tt_manifest *manifest, unsigned formats,
                           char **outputs);

/* The job's own, in other formats. */
int tt_place_formats(struct tt_spool *spool, const struct tt_manifest *manifest, unsigned formats,
                     char **outputs);

/* Where the input can go in `tree` with its side-cars (and reason, in failed/): relative to it. job_fd: where
 * the side-cars are now; one that already lies there under another name (a hard link) takes no place. -1: not
 * in a job. Owned by the caller. NULL and errno. */
char *tt_place_input(struct tt_spool *spool, const char *tree, const char *source, const bool *has_sidecar,
                     int job_fd);

/* Whether another video of source's stem lies in `tree` (a directory of the root) in the directory
 * `directory`. */
bool tt_place_sibling(const struct tt_spool *spool, const char *tree, const char *directory,
                      const char *source);

/* --- job.c -------------------------------------------------------------------------------------------
 */

/* A job for the directory `id` of work/HOST, with an empty manifest; not among the spool's jobs yet. NULL: no
 * memory. */
struct tt_spool_job *tt_job_new(struct tt_spool *spool, const char *id);
void tt_job_free(struct tt_spool_job *job);
void tt_job_attach(struct tt_spool *spool, struct tt_spool_job *job);
void tt_job_detach(struct tt_spool *spool, struct tt_spool_job *job);

/* Makes the directory of a new job, durably, with an id of its own; nothing lies in it yet. *job: owned by
 * the caller (tt_job_free); *directory_fd: owned by the caller. TT_RETRY_LATER: paused. */
enum tt_status tt_job_make(struct tt_spool *spool, struct tt_spool_job **job, int *directory_fd,
                           struct tt_error *err);

int tt_job_open(const struct tt_spool *spool, const struct tt_spool_job *job); /* its directory */

/* Where the running attempt's result lies in it: name [TT_RESULT_BYTES]. */
enum { TT_RESULT_BYTES = 32 };
void tt_job_result_name(char *name, const struct tt_manifest *manifest, enum tt_output format);

/* Which side-cars lie in a job's directory: has_sidecar [TT_SPOOL_SIDECARS]. True: any does. */
bool tt_job_find_sidecars(int directory_fd, bool *has_sidecar);

/* Removes the directory of a job without inputs, and all that is left in it. 0, or -1 and errno; a directory
 * into which somebody still writes stays, for the next start to remove. */
int tt_job_remove_directory(const struct tt_spool *spool, const struct tt_spool_job *job, int directory_fd);

/* Writes the manifest; troubles pause. */
enum tt_status tt_job_save(struct tt_spool *spool, struct tt_spool_job *job, struct tt_error *err);

/* Removes the directory's files whose names begin with prefix ("": all but the manifest and the inputs).
 * 0, or -1 and errno. */
int tt_job_remove_files(int directory_fd, const char *prefix);

/* --- finish.c ----------------------------------------------------------------------------------------
 */

/* Decides how a claimed job ends, and ends it. The caller has set outcome and cause. tree: where the input
 * goes
 * ("done", "failed", "incoming"); NULL: it is removed. When the decision cannot be written the job stays
 * claimed; but a return stays decided in memory (unsaved): on disk, a claim whose video never came means the
 * same. */
enum tt_status tt_job_end(struct tt_spool *spool, struct tt_spool_job *job, enum tt_job_state state,
                          const char *tree, struct tt_error *err);

/* --- retry.c -----------------------------------------------------------------------------------------
 */

/* The moves of a job in state TT_JOB_RETRYING. */
enum tt_status tt_retry_move(struct tt_spool *spool, struct tt_spool_job *job, struct tt_error *err);

#endif

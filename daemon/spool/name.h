/* daemon/spool/name.h: what names in the spool mean, and new names made of old ones. Pure; names are bytes.
 */
#ifndef TT_DAEMON_SPOOL_NAME_H
#define TT_DAEMON_SPOOL_NAME_H

#include "core/fsio.h"
#include "core/output.h"

#include <stdbool.h>
#include <stddef.h>

#define TT_PRIORITY_DIRECTORY "priority"
#define TT_REASON_SUFFIX      ".reason.json"

enum tt_spool_sidecar { TT_SPOOL_QUERIES_CSV, TT_SPOOL_QUERIES_JSON, TT_SPOOL_MASK_PNG, TT_SPOOL_SIDECARS };

/* Their names in a job's directory: "queries.csv", ...; behind a stem and a dot: in incoming/. */
extern const char *const tt_spool_sidecar_names[TT_SPOOL_SIDECARS];

/* Bytes of the name before its last dot; all of it where there is none but a leading one. */
size_t tt_name_stem(const char *name);

/* Which side-car a name is; TT_SPOOL_SIDECARS: none. */
enum tt_spool_sidecar tt_name_sidecar(const char *name);

/* Never a job, whatever the patterns say: dot names (rsync's temporaries), .part and .filepart, side-cars,
 * tiletrack.yaml. spool.ignore names more. */
bool tt_name_is_reserved(const char *name);

/* name [TT_NAME_BYTES + 1]: the first base_bytes of base, "~number" where number > 1, suffix. Where that
 * would be too long, base loses bytes at its end, whole UTF-8 characters where it is UTF-8. */
void tt_name_join(char *name, const char *base, size_t base_bytes, int number, const char *suffix);

/* The same for a track file. What comes before the format is equal in all formats: cut for the longest. */
void tt_name_of_output(char *name, const char *base, size_t base_bytes, int number, enum tt_output format);

/* The name of a video's side-car: stem, dot, kind. */
void tt_name_of_sidecar(char *name, const char *video, enum tt_spool_sidecar kind);

/* A relative path that stays below where it starts: no empty, "." or ".." component, no leading slash, no
 * component longer than a name may be, shorter than PATH_MAX. */
bool tt_path_is_safe(const char *path);

/* Bytes of the path before its last slash; 0 where it has none. */
size_t tt_path_directory(const char *path);

/* Where a path below incoming/ goes in tracks/, done/ and failed/: without "priority/". Borrows path. */
const char *tt_path_mirrored(const char *path);
bool tt_path_has_priority(const char *path);

/* Exact: everything but printable ASCII, and '%', becomes %XX. Owned by the caller; NULL: no memory. */
char *tt_name_encode(const char *name);

/* The reverse; NULL also where text is malformed or holds a NUL. */
char *tt_name_decode(const char *text);

/* For people and JSON: valid UTF-8 stays, other bytes become U+FFFD. Owned by the caller; NULL: no memory. */
char *tt_name_text(const char *name);

/* As a word for a shell: plain, in single quotes, or as $'...' where there are odd bytes. Owned by the
 * caller; NULL: no memory. */
char *tt_name_shell(const char *name);

#endif

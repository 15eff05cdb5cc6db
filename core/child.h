/* core/child.h: how tiletrack-decode and tiletrack-encode are started.
 *
 * A child has 0, 1 and 2 on /dev/null (sanitizers keep 2), one file, a control socket, and a memory that it
 * shares with its parent; everything else is closed.
 */
#ifndef TT_CORE_CHILD_H
#define TT_CORE_CHILD_H

#include "core/status.h"

#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

/* The child's descriptors. */
enum { TT_CHILD_FILE = 3, TT_CHILD_CONTROL = 4, TT_CHILD_RING = 5, TT_CHILD_DESCRIPTORS = 6 };

/* The program beside the running one, or where an installed one has its own (core/install.h); wanted: NULL,
 * or the path to take instead. path: out, [PATH_MAX]. */
enum tt_status tt_child_program(char *path, const char *name, const char *wanted, struct tt_error *err);

/* A shared memory of fixed size. *fd: out, owns; *map: out, owns (munmap). protection: the map's. */
enum tt_status tt_child_ring(int *fd, uint8_t **map, size_t bytes, int protection, struct tt_error *err);

/* Starts `program --child` with three descriptors as TT_CHILD_FILE, _CONTROL and _RING; name: its argv[0].
 * Returns an errno. */
int tt_child_spawn(pid_t *pid, const char *program, const char *name, const int *descriptors);

#endif

/* core/export/sqlite_file.h: SQLite on a tt_file: the database is written under its temporary name and
 * committed by its owner, as every result. */
#ifndef TT_CORE_EXPORT_SQLITE_FILE_H
#define TT_CORE_EXPORT_SQLITE_FILE_H

#include "core/fsio.h"
#include "core/status.h"

#include <sqlite3.h>

struct tt_sqlite; /* an open database */

/* *made: owned by the caller (tt_sqlite_close). Borrows file (until tt_sqlite_close). */
enum tt_status tt_sqlite_open(struct tt_sqlite **made, struct tt_file *file, struct tt_error *err);

sqlite3 *tt_sqlite_db(struct tt_sqlite *self); /* borrowed (until tt_sqlite_close) */

/* Runs statements that give no rows. */
enum tt_status tt_sqlite_run(struct tt_sqlite *self, const char *statements, struct tt_error *err);

/* What a failed call of SQLite means: the disk's failure where there was one, else SQLite's own text. */
enum tt_status tt_sqlite_failure(struct tt_sqlite *self, struct tt_error *err);

void tt_sqlite_close(struct tt_sqlite *self); /* NULL is allowed */

#endif

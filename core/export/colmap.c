/* core/export/colmap.c: colmap: an SQLite database of one camera, an image for each frame, key points where
 * tracks are visible, and matches between frames.
 *
 * A frame's key points are its visible tracks in their order, so a point's index differs from frame to frame;
 * two frames' points match where they belong to one track. Matched are frames 1, 2, 4, 8, ... apart: near
 * ones chain the tracks, far ones see the scene from other places. What a frame does not show it has no key
 * point for: nothing is shifted.
 */
#include "core/export/run.h"
#include "core/export/sqlite_file.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

enum {
    SIMPLE_RADIAL = 2,        /* COLMAP's number of that camera model: f, cx, cy, k */
    DESCRIPTOR_BYTES = 128,   /* columns of its descriptors */
    PAIR_FACTOR = 2147483647, /* pair_id is this times the first image's id plus the second's */
};

/* The tables of COLMAP 3.8; later versions add what they need when they open it. */
static const char schema[] =
    "CREATE TABLE cameras (camera_id INTEGER PRIMARY KEY AUTOINCREMENT NOT NULL, model INTEGER NOT NULL,"
    " width INTEGER NOT NULL, height INTEGER NOT NULL, params BLOB, prior_focal_length INTEGER NOT NULL);"
    "CREATE TABLE images (image_id INTEGER PRIMARY KEY AUTOINCREMENT NOT NULL, name TEXT NOT NULL UNIQUE,"
    " camera_id INTEGER NOT NULL, prior_qw REAL, prior_qx REAL, prior_qy REAL, prior_qz REAL,"
    " prior_tx REAL, prior_ty REAL, prior_tz REAL,"
    " CONSTRAINT image_id_check CHECK(image_id >= 0 and image_id < 2147483647),"
    " FOREIGN KEY(camera_id) REFERENCES cameras(camera_id));"
    "CREATE UNIQUE INDEX index_name ON images(name);"
    "CREATE TABLE keypoints (image_id INTEGER PRIMARY KEY NOT NULL, rows INTEGER NOT NULL,"
    " cols INTEGER NOT NULL, data BLOB,"
    " FOREIGN KEY(image_id) REFERENCES images(image_id) ON DELETE CASCADE);"
    "CREATE TABLE descriptors (image_id INTEGER PRIMARY KEY NOT NULL, rows INTEGER NOT NULL,"
    " cols INTEGER NOT NULL, data BLOB,"
    " FOREIGN KEY(image_id) REFERENCES images(image_id) ON DELETE CASCADE);"
    "CREATE TABLE matches (pair_id INTEGER PRIMARY KEY NOT NULL, rows INTEGER NOT NULL,"
    " cols INTEGER NOT NULL, data BLOB);"
    "CREATE TABLE two_view_geometries (pair_id INTEGER PRIMARY KEY NOT NULL, rows INTEGER NOT NULL,"
    " cols INTEGER NOT NULL, data BLOB, config INTEGER NOT NULL, F BLOB, E BLOB, H BLOB, qvec BLOB,"
    " tvec BLOB);";

enum insert { INSERT_IMAGE, INSERT_KEYPOINTS, INSERT_DESCRIPTORS, INSERT_MATCHES, INSERTS };

static const char *const inserts[INSERTS] = {
    "INSERT INTO images (image_id, name, camera_id) VALUES (?, ?, 1)",
    "INSERT INTO keypoints VALUES (?, ?, ?, ?)",
    "INSERT INTO descriptors VALUES (?, ?, ?, ?)",
    "INSERT INTO matches VALUES (?, ?, ?, ?)",
};

struct colmap {
    struct tt_export *run;
    struct tt_sqlite *sqlite;
    sqlite3_stmt *insert[INSERTS];
    struct tt_frames frames;
    struct tt_track_point *points[2]; /* [tracks] of two frames */
    union {
        float xy[2];
        uint32_t pair[2];
    } * rows; /* [tracks]: key points or matches */
};

static enum tt_status step(struct colmap *self, enum insert which, struct tt_error *err)
{
    sqlite3_stmt *insert = self->insert[which];
    int code = sqlite3_step(insert);

    sqlite3_reset(insert);
    return code == SQLITE_DONE ? TT_OK : tt_sqlite_failure(self->sqlite, err);
}

/* id, rows, columns and a blob, which is borrowed until the statement has run. */
static enum tt_status insert_rows(struct colmap *self, enum insert which, int64_t id, int rows, int columns,
                                  const void *blob, size_t bytes, struct tt_error *err)
{
    sqlite3_stmt *insert = self->insert[which];

    sqlite3_bind_int64(insert, 1, id);
    sqlite3_bind_int(insert, 2, rows);
    sqlite3_bind_int(insert, 3, columns);
    sqlite3_bind_blob64(insert, 4, blob, bytes, SQLITE_STATIC);
    return step(self, which, err);
}

/* COLMAP's own first guess: the focal length is 1.2 times the longer side. */
static enum tt_status insert_camera(struct colmap *self, struct tt_error *err)
{
    const int width = self->run->source->width, height = self->run->source->height;
    const double parameters[4] = {1.2 * (width > height ? width : height), width / 2.0, height / 2.0, 0};
    sqlite3_stmt *insert = NULL;
    int code = sqlite3_prepare_v2(tt_sqlite_db(self->sqlite), "INSERT INTO cameras VALUES (1, ?, ?, ?, ?, 0)",
                                  -1, &insert, NULL);

    if (!code) {
        sqlite3_bind_int(insert, 1, SIMPLE_RADIAL);
        sqlite3_bind_int(insert, 2, width);
        sqlite3_bind_int(insert, 3, height);
        sqlite3_bind_blob(insert, 4, parameters, sizeof parameters, SQLITE_STATIC);
        code = sqlite3_step(insert);
    }
    sqlite3_finalize(insert);
    return code == SQLITE_DONE ? TT_OK : tt_sqlite_failure(self->sqlite, err);
}

static enum tt_status insert_image(struct colmap *self, int64_t frame, struct tt_error *err)
{
    const struct tt_track_point *points = self->points[0];
    char name[32];
    int count = 0;
    enum tt_status status = tt_frames_read(&self->frames, frame, self->points[0], err);

    if (status)
        return status;
    snprintf(name, sizeof name, "frame%06lld.png", (long long)(self->run->first_frame + frame));
    sqlite3_bind_int64(self->insert[INSERT_IMAGE], 1, frame + 1);
    sqlite3_bind_text(self->insert[INSERT_IMAGE], 2, name, -1, SQLITE_STATIC);
    status = step(self, INSERT_IMAGE, err);
    for (int i = 0; i < self->run->tracks; i++) {
        if (points[i].occluded)
            continue;
        self->rows[count].xy[0] = points[i].x;
        self->rows[count++].xy[1] = points[i].y;
    }
    if (!status)
        status = insert_rows(self, INSERT_KEYPOINTS, frame + 1, count, 2, self->rows,
                             (size_t)count * sizeof *self->rows, err);
    if (!status)
        status = insert_rows(self, INSERT_DESCRIPTORS, frame + 1, 0, DESCRIPTOR_BYTES, "", 0, err);
    return status;
}

/* Matches of the frame in points[0] with another. */
static enum tt_status insert_matches(struct colmap *self, int64_t frame, int64_t other, struct tt_error *err)
{
    uint32_t index[2] = {0, 0};
    int count = 0;
    enum tt_status status = tt_frames_read(&self->frames, other, self->points[1], err);

    for (int i = 0; i < self->run->tracks && !status; i++) {
        const bool seen[2] = {!self->points[0][i].occluded, !self->points[1][i].occluded};

        if (seen[0] && seen[1])
            memcpy(self->rows[count++].pair, index, sizeof index);
        index[0] += seen[0];
        index[1] += seen[1];
    }
    if (status || count == 0)
        return status;
    return insert_rows(self, INSERT_MATCHES, PAIR_FACTOR * (frame + 1) + other + 1, count, 2, self->rows,
                       (size_t)count * sizeof *self->rows, err);
}

static enum tt_status fill(struct colmap *self, struct tt_error *err)
{
    const int64_t frames = self->run->frames;
    enum tt_status status = insert_camera(self, err);

    for (int64_t t = 0; t < frames && !status; t++)
        status = insert_image(self, t, err);
    for (int64_t t = 0; t < frames && !status; t++) {
        status = tt_frames_read(&self->frames, t, self->points[0], err);
        for (int64_t step_frames = 1; t + step_frames < frames && !status; step_frames *= 2)
            status = insert_matches(self, t, t + step_frames, err);
    }
    return status;
}

static enum tt_status write_database(struct colmap *self, struct tt_error *err)
{
    enum tt_status status = tt_sqlite_open(&self->sqlite, self->run->file, err);

    if (!status)
        status = tt_sqlite_run(self->sqlite, "BEGIN;", err);
    if (!status)
        status = tt_sqlite_run(self->sqlite, schema, err);
    for (int i = 0; i < INSERTS && !status; i++)
        if (sqlite3_prepare_v2(tt_sqlite_db(self->sqlite), inserts[i], -1, &self->insert[i], NULL))
            status = tt_sqlite_failure(self->sqlite, err);
    if (!status)
        status = fill(self, err);
    if (!status)
        status = tt_sqlite_run(self->sqlite, "COMMIT;", err);
    for (int i = 0; i < INSERTS; i++)
        sqlite3_finalize(self->insert[i]);
    tt_sqlite_close(self->sqlite);
    return status;
}

enum tt_status tt_export_colmap(struct tt_export *run, struct tt_error *err)
{
    const size_t tracks = (size_t)run->tracks;
    struct colmap self = {.run = run};
    enum tt_status status;

    self.points[0] = calloc(tracks, sizeof *self.points[0]);
    self.points[1] = calloc(tracks, sizeof *self.points[1]);
    self.rows = calloc(tracks, sizeof *self.rows);
    if (!self.points[0] || !self.points[1] || !self.rows) {
        status = tt_fail_errno(err, TT_RETRY_LATER, ENOMEM, "exporting tracks");
        goto done;
    }
    status = tt_frames_open(&self.frames, run, err);
    if (status)
        goto done;
    status = write_database(&self, err);
    tt_frames_close(&self.frames);
done:
    free(self.points[0]);
    free(self.points[1]);
    free(self.rows);
    return status;
}

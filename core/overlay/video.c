/* core/overlay/video.c: whether a video is the one that was tracked, by what the track file's `meta` says of
 * it. A name says nothing, a length only where it differs. Fails where it is another one, and as reading
 * does.
 */
#include "core/overlay.h"

#include "core/digest.h"

#include <jansson.h>
#include <string.h>
#include <sys/stat.h>

static enum tt_status go_on(void *user, struct tt_error *err)
{
    const atomic_bool *stop = user;

    if (stop && atomic_load_explicit(stop, memory_order_relaxed))
        return tt_fail(err, TT_INTERRUPTED, "interrupted");
    return TT_OK;
}

enum tt_status tt_overlay_check_video(int video_fd, const char *meta, const atomic_bool *stop,
                                      struct tt_error *err)
{
    json_t *root = json_loads(meta, 0, NULL), *source = json_object_get(root, "source");
    const json_t *length = json_object_get(source, "bytes");
    const char *tracked = json_string_value(json_object_get(source, "sha256"));
    const long long bytes = (long long)json_integer_value(length);
    struct tt_digest digest;
    enum tt_status status = TT_OK;
    struct stat info;

    if (json_is_true(json_object_get(source, "changed"))) {
        status =
            tt_fail(err, TT_BAD_INPUT,
                    "the video's file was changed while it was tracked: this may be another state of it");
        goto done;
    }
    if (!tracked)
        goto done;
    if (fstat(video_fd, &info) == 0 && json_is_integer(length) && info.st_size != bytes) {
        status =
            tt_fail(err, TT_BAD_INPUT, "not the video that was tracked: it has %lld bytes, that had %lld",
                    (long long)info.st_size, bytes);
        goto done;
    }
    status = tt_digest_file(&digest, video_fd, go_on, (void *)stop, err);
    if (!status && strcmp(digest.sha256, tracked) != 0)
        status =
            tt_fail(err, TT_BAD_INPUT,
                    "not the video that was tracked: its SHA-256 is %.12s..., that of the other %.12s...",
                    digest.sha256, tracked);
done:
    json_decref(root);
    return status;
}

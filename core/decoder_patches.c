/* core/decoder_patches.c: the parent's side of a decoder that cuts patches on demand.
 *
 * Invariant: the child answers one order at a time and holds the frame that tt_decoder_next gave until the
 * next one is asked for, and that one beside it once patches of the first were cut: it is decoded while the
 * parent works on them. So its memory and the ring's are the same for every video of a size, and the parent
 * may choose where to cut after it has seen an earlier patch of the same frame. Fails as core/decoder.c does.
 */
#include "core/decoder_parts.h"

#include <errno.h>
#include <stddef.h>
#include <string.h>
#include <sys/socket.h>

/* Keeps a failure for every later call. */
static enum tt_status keep(struct tt_decoder *d, struct tt_error *err)
{
    tt_decoder_reap(d);
    if (err)
        *err = d->failure;
    return d->failure.status;
}

static enum tt_status earlier_failure(const struct tt_decoder *d, struct tt_error *err)
{
    if (d->failure.status && err)
        *err = d->failure;
    return d->failure.status;
}

/* A child that is gone no longer wants orders: what it died of is the next news. */
static enum tt_status send_order(struct tt_decoder *d, const struct tt_wire_order *order,
                                 struct tt_error *err)
{
    size_t bytes = offsetof(struct tt_wire_order, places) + (size_t)order->count * sizeof *order->places;

    if (send(d->control, order, bytes, MSG_NOSIGNAL | MSG_DONTWAIT) >= 0 || errno == EPIPE ||
        errno == ECONNRESET || errno == ECONNREFUSED)
        return TT_OK;
    if (errno == EAGAIN || errno == ENOBUFS)
        tt_fail(&d->failure, TT_BAD_INPUT, "the decoder does not take what is sent to it");
    else
        tt_fail_errno(&d->failure, TT_RETRY_LATER, errno, "send to the decoder");
    return keep(d, err);
}

enum tt_status tt_decoder_next(struct tt_decoder *d, struct tt_picture *picture, bool *got,
                               struct tt_error *err)
{
    static const struct tt_wire_order next;
    struct tt_wire_message message;
    enum tt_status status = earlier_failure(d, err);

    if (!status && !d->wire.patches)
        status = tt_fail(err, TT_REFUSE, "this decoder was not opened for patches");
    *got = false;
    if (status || d->wire.over)
        return status;
    if (d->wire.frames > 0) /* the first comes unasked */
        status = send_order(d, &next, err);
    if (!status)
        status = tt_decoder_news(d, &message, err);
    if (status)
        return status;
    if (message.header.type == TT_WIRE_END) {
        d->truncated = message.body.end.truncated;
        return TT_OK;
    }
    *picture = (struct tt_picture){.index = message.body.picture.index,
                                   .time_s = message.body.picture.time_s,
                                   .width = message.body.picture.width,
                                   .height = message.body.picture.height};
    *got = true;
    return TT_OK;
}

enum tt_status tt_decoder_cut(struct tt_decoder *d, const struct tt_cut_place *places, int count,
                              uint8_t *patches, struct tt_error *err)
{
    struct tt_wire_order order = {0};
    struct tt_wire_message message;
    enum tt_status status = earlier_failure(d, err);

    if (!status && (!d->wire.patches || d->wire.whole || d->wire.frames == 0 || d->wire.over))
        status = tt_fail(err, TT_REFUSE, "there is no frame to cut patches from");
    for (int i = 0; !status && i < count; i++)
        if (places[i].level < 0 || places[i].level >= TT_CUT_LEVELS)
            status = tt_fail(err, TT_REFUSE, "a patch of level %d", places[i].level);
    for (int done = 0; !status && done < count; done += order.count) {
        order.count = count - done < TT_CUT_BATCH ? count - done : TT_CUT_BATCH;
        memcpy(order.places, places + done, (size_t)order.count * sizeof *places);
        d->wire.ordered = order.count;
        status = send_order(d, &order, err);
        if (!status)
            status = tt_decoder_news(d, &message, err);
        if (!status) /* tt_wire_accept lets nothing but the patches come */
            memcpy(patches + (size_t)done * TT_CUT_BYTES, d->ring, (size_t)order.count * TT_CUT_BYTES);
    }
    return status;
}

/* cuda/clip.c: a clip's pixels to the device, and its features there.
 *
 * Pixels go over on the stream `copies`, a tile of frames at a time and through one of two pinned memories in
 * turn, behind the event `consumed` (the backbone has read what was there); the backbone waits for `arrived`,
 * and the pinned memory is filled again once its `rgb_read` has come. The pixels of a clip that bring is
 * given are copied by tt_cuda_send_brought, which tracking calls when its last tile is queued, or by
 * tt_cuda_hold. Features that the clip before has too are moved, not made again, where the two places do not
 * overlap. tt_cuda_hold does not wait for what it has queued; an error in it is the next call's.
 */
#include "cuda/backend_parts.h"
#include "cuda/pack.h"

#include <cuda_runtime_api.h>
#include <string.h>

/* Frames whose features a clip can keep from the one that is held: none where the two places overlap. */
static int frames_kept(const struct tt_backend *b, int reuse)
{
    return b->frames - reuse < reuse ? 0 : reuse;
}

/* Moves the features of the last `kept` frames to the front. A cudaError_t. */
static int keep_features(struct tt_backend *b, int kept)
{
    int error = 0;

    for (int level = 0; level < TT_LEVELS && kept && !error; level++) {
        const struct tt_level_shape *s = &tt_level_shapes[level];
        size_t frame = (size_t)(s->size * s->size * s->channels) * b->gpu.network->value;

        error = cudaMemcpyAsync(b->gpu.features[level],
                                (char *)b->gpu.features[level] + (size_t)(b->frames - kept) * frame,
                                (size_t)kept * frame, cudaMemcpyDeviceToDevice, (cudaStream_t)b->gpu.stream);
    }
    return error;
}

static enum tt_status check_clip(const struct tt_backend *b, const struct tt_clip *clip, int reuse,
                                 struct tt_error *err)
{
    if (clip->frames < 1 || clip->frames > TT_CLIP_FRAMES || reuse < 0 || reuse > clip->frames ||
        reuse > b->frames)
        return tt_fail(err, TT_REFUSE, "cuda: a clip of %d frames, %d of them reused from %d", clip->frames,
                       reuse, b->frames);
    return TT_OK;
}

/* Before the pixels of a new clip: the other pinned memory, and the device's once the backbone has read it. A
 * cudaError_t. */
static int begin_pixels(struct tt_backend *b)
{
    int error;

    b->clip ^= 1;
    error = cudaEventSynchronize((cudaEvent_t)b->rgb_read[b->clip]);
    return error ? error : (int)cudaStreamWaitEvent((cudaStream_t)b->copies, (cudaEvent_t)b->consumed, 0);
}

/* Frames f to f + n, on `copies`. A cudaError_t. */
static int send_pixels(struct tt_backend *b, const uint8_t *rgb, int f, int n)
{
    const size_t at = (size_t)f * TT_FRAME_BYTES, bytes = (size_t)n * TT_FRAME_BYTES;
    uint8_t *pinned = b->host[b->clip].rgb + at;
    int error;

    memcpy(pinned, rgb + at, bytes);
    error = cudaMemcpyAsync(b->gpu.backbone.rgb + at, pinned, bytes, cudaMemcpyHostToDevice,
                            (cudaStream_t)b->copies);
    if (!error)
        error = cudaEventRecord((cudaEvent_t)b->arrived, (cudaStream_t)b->copies);
    return error ? error : (int)cudaEventRecord((cudaEvent_t)b->rgb_read[b->clip], (cudaStream_t)b->copies);
}

enum tt_status tt_cuda_bring(struct tt_backend *b, const struct tt_clip *clip, int reuse,
                             struct tt_error *err)
{
    enum tt_status status = check_clip(b, clip, reuse, err);

    if (status)
        return status;
    b->brought = *clip;
    b->brought_from = frames_kept(b, reuse);
    return TT_OK;
}

int tt_cuda_send_brought(struct tt_backend *b)
{
    const struct tt_clip clip = b->brought;
    int error;

    if (!clip.frames || !clip.rgb)
        return 0;
    b->brought.rgb = NULL;
    error = begin_pixels(b);
    for (int f = b->brought_from, n; f < clip.frames && !error; f += n) {
        n = tt_cuda_smaller(clip.frames - f, b->gpu.frame_tile);
        error = send_pixels(b, clip.rgb, f, n);
    }
    return error;
}

/* rgb: NULL where the pixels are on their way. A cudaError_t. */
static int queue_features(struct tt_backend *b, const uint8_t *rgb, int first, int frames)
{
    cudaStream_t stream = (cudaStream_t)b->gpu.stream;
    int error = keep_features(b, first);

    if (rgb && !error)
        error = begin_pixels(b);
    for (int f = first, n; f < frames && !error && !tt_cuda_stopped(b); f += n) {
        n = tt_cuda_smaller(frames - f, b->gpu.frame_tile);
        if (rgb)
            error = send_pixels(b, rgb, f, n);
        if (!error)
            error = cudaStreamWaitEvent(stream, (cudaEvent_t)b->arrived, 0);
        if (!error)
            error = tt_gpu_run(&b->gpu, TT_GPU_BACKBONE, f, n);
    }
    return error ? error : (int)cudaEventRecord((cudaEvent_t)b->consumed, stream);
}

enum tt_status tt_cuda_hold(struct tt_backend *b, const struct tt_clip *clip, int reuse, struct tt_error *err)
{
    const int first = frames_kept(b, reuse);
    const struct tt_clip brought = b->brought;
    enum tt_status status = check_clip(b, clip, reuse, err);
    int error;

    if (!status && !clip->rgb &&
        (brought.frames != clip->frames || brought.first_frame != clip->first_frame ||
         b->brought_from != first))
        status = tt_fail(err, TT_REFUSE, "cuda: this clip was not brought before");
    if (status)
        return status;
    error = clip->rgb ? 0 : tt_cuda_send_brought(b);
    b->brought.frames = 0;
    if (!error)
        error = queue_features(b, clip->rgb, first, clip->frames);
    b->frames = 0;
    if (error || tt_cuda_stopped(b))
        status = tt_cuda_finish(b, error, "features", err);
    if (!status && tt_cuda_stopped(b))
        return tt_fail(err, TT_INTERRUPTED, "cuda: stopped");
    b->frames = status ? 0 : clip->frames;
    return status;
}

enum tt_status tt_cuda_features(struct tt_backend *b, int frame, int level, float *out, struct tt_error *err)
{
    const struct tt_level_shape *s = &tt_level_shapes[level];
    size_t n = (size_t)(s->size * s->size * s->channels), bytes = n * b->gpu.network->value;
    const char *from = (const char *)b->gpu.features[level] + (size_t)frame * bytes;
    enum tt_status status = tt_cuda_finish(b, tt_cuda_download(b, out, from, bytes), "features", err);

    if (!status && b->gpu.precision == TT_FP16) {
        tt_pack_swap_features_f16((uint16_t *)out, (size_t)(s->size * s->size), s->channels);
        for (size_t i = n; i-- > 0;) {
            uint16_t half;

            memcpy(&half, (const char *)out + 2 * i, sizeof half);
            out[i] = tt_float_from_half(half);
        }
    }
    return status;
}

/* core/backend.h: what a tracker backend does. One table for the CPU (core/cpu) and for the CUDA plug-in.
 *
 * A backend holds the features of one clip at a time. The order of calls is
 *
 *     open -> ( features -> ( sample | bring | track )* )* -> close
 *
 * sample takes the supports of query points that lie in the clip; track may use supports that were sampled
 * from another clip (that is how long videos work). All positions are in clip pixels (256×256, raster
 * convention). Calls on one backend come from one thread at a time. Results do not depend on the other query
 * points of a call.
 */
#ifndef TT_CORE_BACKEND_H
#define TT_CORE_BACKEND_H

#include "core/clip.h"
#include "core/model.h"
#include "core/plan.h"
#include "core/status.h"
#include "core/weights.h"

#include <stdatomic.h>
#include <stdbool.h>

struct tt_backend; /* each backend's own */

/* One query point's state in one frame. */
struct tt_estimate {
    float x, y;
    float occlusion;     /* logit; higher: more likely occluded */
    float expected_dist; /* logit; higher: more likely further than 6 px from the truth */
};

struct tt_backend_options {
    const struct tt_device *device; /* what to plan for; NULL: what open finds */
    struct tt_tile tile;            /* 0: let the plan decide */
    enum tt_precision precision;
    int threads;             /* CPU: 0 for all; CUDA: not used */
    const char *arch;        /* CUDA: NULL for native, "sm_75" to run that path on a newer card */
    const char *select;      /* CUDA: index, UUID, PCI address; NULL for the first */
    const atomic_bool *stop; /* NULL, or set from elsewhere: features and track soon return TT_INTERRUPTED */
};

/* A batch of query points to track through the clip whose features are held.
 * Borrows everything (until track returns). */
struct tt_track_request {
    int queries;
    const void *supports;   /* [queries] × support_bytes, as sample wrote them */
    const int *query_frame; /* [queries] frame within the clip, or -1 where it lies in another clip */
    const float *query_xy;  /* [queries][2]; where query_frame >= 0, the initialisation there is the query */
    const struct tt_estimate *init; /* [queries][frames] or NULL; an x that is not NaN replaces the cost
                                       volume's initialisation of that frame */
    struct tt_estimate *stages; /* NULL, or [1 + TT_REFINEMENTS][queries][frames]: every pass, for tests */
};

struct tt_backend_ops {
    const char *name; /* "cpu" or "cuda" */

    /* weights: borrows (until close). TT_REFUSE: no such device, driver too old, a tile that cannot fit. */
    enum tt_status (*open)(struct tt_backend **backend, const struct tt_backend_options *options,
                           const struct tt_weights *weights, struct tt_error *err);
    void (*close)(struct tt_backend *backend);

    /* JSON object (borrowed until close): device, precision, threads or driver, and so on. */
    const char *(*describe)(struct tt_backend *backend);
    const struct tt_plan *(*plan)(struct tt_backend *backend);

    size_t support_bytes; /* of one query point */

    /* Computes the features of a clip. The first `reuse` frames of the clip are the last `reuse` frames of
     * the previous one, whose features may be kept. May return before they are there; what goes wrong later
     * is the next call's status. A clip without pixels (rgb NULL) is the one that bring was given last. */
    enum tt_status (*features)(struct tt_backend *backend, const struct tt_clip *clip, int reuse,
                               struct tt_error *err);

    /* NULL, or takes the clip of the next call of features, and its `reuse`: its pixels go to the device
     * while the clip that is held is tracked. clip: borrows rgb (until the next track or features returns).
     * That next call of features may also be given another clip. */
    enum tt_status (*bring)(struct tt_backend *backend, const struct tt_clip *clip, int reuse,
                            struct tt_error *err);

    /* Samples supports at query points of the held clip. frame [queries], -1 where the point lies in another
     * clip: its supports are left as they are. xy [queries][2]; supports: [queries] × support_bytes. */
    enum tt_status (*sample)(struct tt_backend *backend, int queries, const int *frame, const float *xy,
                             void *supports, struct tt_error *err);

    /* result: out, [queries][frames]; the network's own values, also at the query's frame (nothing pinned).
     */
    enum tt_status (*track)(struct tt_backend *backend, const struct tt_track_request *request,
                            struct tt_estimate *result, struct tt_error *err);
};

/* The reference: FP32 on OpenBLAS. Programs that offer it link tt-cpu. */
extern const struct tt_backend_ops tt_backend_cpu;

/* A plug-in exports one symbol, TT_PLUGIN_SYMBOL, of this type. */
struct tt_plugin {
    uint32_t abi; /* TT_PLUGIN_ABI: raised with every change of this header, plan.h or weights.h */
    const struct tt_backend_ops *ops;
};

#define TT_PLUGIN_SYMBOL "tt_plugin_table"
enum { TT_PLUGIN_ABI = 3 };

/* Loads tiletrack-NAME.so from the program's own directories (core/install.h) once and keeps it. TT_REFUSE:
 * not installed, or made for another version; the text names the file. */
enum tt_status tt_backend_load(const struct tt_backend_ops **ops, const char *name, struct tt_error *err);

/* True where an NVIDIA driver is loaded on this machine: what `auto` asks before it loads the CUDA plug-in.
 */
bool tt_backend_cuda_driver_present(void);

#endif

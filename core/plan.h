/* core/plan.h: from a device's budget to tiles, bytes and operations. Pure arithmetic; no device is touched.
 */
#ifndef TT_CORE_PLAN_H
#define TT_CORE_PLAN_H

#include "core/model.h"
#include "core/status.h"

#include <stdint.h>
#include <stdio.h>

enum tt_precision { TT_FP32, TT_FP16 };

enum tt_device_kind { TT_DEVICE_CPU, TT_DEVICE_CUDA };

/* What a plan must know about a device. */
struct tt_device {
    char name[64];
    enum tt_device_kind kind;
    int64_t memory_bytes; /* device memory that may be used; CPU: of the process */
    int64_t l2_bytes;     /* last cache that one SM or core can count on */
    int32_t shared_bytes; /* shared memory of a multiprocessor's blocks; CPU: L1 data cache */
    int32_t units;        /* SMs or threads */
};

/* Fills *device from a name ("cpu", "t4", "a100", "h200") or, where it holds a slash or ends in .json, from a
 * file with the members of struct tt_device. "cpu" is this machine. TT_REFUSE names what is known. */
enum tt_status tt_device_describe(struct tt_device *device, const char *name, struct tt_error *err);

/* Tile sizes: query points and frames that are worked on together. 0: the plan decides. */
struct tt_tile {
    int queries;
    int frames;
};

/* Half of a tile, where device memory was short: of {0, 0} half of {256, 16}. Returns 0 where there is no
 * smaller one. */
int tt_tile_shrink(struct tt_tile *tile);

enum tt_stage {
    TT_STAGE_BACKBONE,
    TT_STAGE_SUPPORT,
    TT_STAGE_COST,
    TT_STAGE_CORRELATION,
    TT_STAGE_ENCODER,
    TT_STAGE_MIXER,
    TT_STAGES
};

extern const char *const tt_stage_names[TT_STAGES];

struct tt_plan {
    struct tt_device device;
    enum tt_precision precision;
    struct tt_tile tile;
    int volume_queries;           /* of a tile, those whose correlation volumes exist at a time */
    int first_frames;             /* CUDA: of a tile, those that the backbone's first group takes at a time */
    int queries, frames;          /* what the figures below are for */
    int64_t memory_bytes;         /* peak working set, weights included */
    double stage_flop[TT_STAGES]; /* multiply-adds count two */
    double stage_bytes[TT_STAGES]; /* that leave or enter the cache the tile was made for */
};

/* Fills *plan for a clip of `frames` and `queries` query points. TT_REFUSE: a tile that cannot fit; the text
 * names the largest that does. */
enum tt_status tt_plan_make(struct tt_plan *plan, const struct tt_model_shape *shape,
                            const struct tt_device *device, enum tt_precision precision,
                            struct tt_tile wanted, int queries, int frames, struct tt_error *err);

/* One kernel of a CUDA device's plan, over the whole clip. */
struct tt_plan_kernel {
    char name[40];
    enum tt_stage stage;
    double launches;
    double flop;
    double bytes; /* that it moves out of or into a multiprocessor, but for what the plan keeps in L2 */
    double kept;  /* bytes that it moves and that the plan keeps in L2; weights are not counted */
};

/* Calls visit for every kernel of a CUDA plan, in the order of their first launch. */
void tt_plan_each_kernel(const struct tt_plan *plan, const struct tt_model_shape *shape,
                         void (*visit)(void *context, const struct tt_plan_kernel *kernel), void *context);

#endif

/* daemon/spool/queue.c: a table of entries, found by name through hash chains, and three heaps over it.
 *
 * Invariants: an entry is in the heap `waiting` (by due_ms) when its state is WAITING, in `files` or `jobs`
 * (by priority, age, name) when READY, in none when IDLE; `place` is its index there. Free slots have no name
 * and are chained through `chain`. The heaps have room for every slot, so only tt_queue_add can fail.
 */
#include "daemon/spool/queue.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

struct heap {
    uint32_t *ids;
    uint32_t count;
    bool (*before)(const struct tt_entry *a, const struct tt_entry *b);
};

struct tt_queue {
    struct tt_entry *entries;
    uint32_t used, capacity; /* slots ever used; slots there are */
    uint32_t free;           /* first free slot */
    uint32_t live;
    uint32_t *buckets;
    uint32_t bucket_mask;
    struct heap waiting, files, jobs;
    uint32_t generation;
};

enum { FIRST_CAPACITY = 64 };

/* --- heaps -------------------------------------------------------------------------------------------------
 */

static bool before_ready(const struct tt_entry *a, const struct tt_entry *b)
{
    if (a->priority != b->priority)
        return a->priority;
    if (a->age_ns != b->age_ns)
        return a->age_ns < b->age_ns;
    return strcmp(a->name, b->name) < 0;
}

static bool before_waiting(const struct tt_entry *a, const struct tt_entry *b)
{
    return a->due_ms < b->due_ms;
}

static void put(struct tt_queue *queue, struct heap *heap, uint32_t place, uint32_t id)
{
    heap->ids[place] = id;
    queue->entries[id].place = place;
}

static bool comes_before(const struct tt_queue *queue, const struct heap *heap, uint32_t a, uint32_t b)
{
    return heap->before(&queue->entries[a], &queue->entries[b]);
}

/* Moves the entry at `place` to where it belongs. */
static void restore(struct tt_queue *queue, struct heap *heap, uint32_t place)
{
    uint32_t id = heap->ids[place];

    while (place > 0 && comes_before(queue, heap, id, heap->ids[(place - 1) / 2])) {
        put(queue, heap, place, heap->ids[(place - 1) / 2]);
        place = (place - 1) / 2;
    }
    for (;;) {
        uint32_t child = 2 * place + 1;

        if (child >= heap->count)
            break;
        if (child + 1 < heap->count && comes_before(queue, heap, heap->ids[child + 1], heap->ids[child]))
            child++;
        if (!comes_before(queue, heap, heap->ids[child], id))
            break;
        put(queue, heap, place, heap->ids[child]);
        place = child;
    }
    put(queue, heap, place, id);
}

static void heap_insert(struct tt_queue *queue, struct heap *heap, uint32_t id)
{
    put(queue, heap, heap->count++, id);
    restore(queue, heap, heap->count - 1);
}

static void heap_remove(struct tt_queue *queue, struct heap *heap, uint32_t place)
{
    uint32_t last = heap->ids[--heap->count];

    if (place == heap->count)
        return;
    put(queue, heap, place, last);
    restore(queue, heap, place);
}

static struct heap *heap_of(struct tt_queue *queue, const struct tt_entry *entry)
{
    if (entry->state == TT_ENTRY_IDLE)
        return NULL;
    if (entry->state == TT_ENTRY_WAITING)
        return &queue->waiting;
    return entry->kind == TT_ENTRY_JOB ? &queue->jobs : &queue->files;
}

static void set_state(struct tt_queue *queue, tt_entry_id id, enum tt_entry_state state)
{
    struct tt_entry *entry = &queue->entries[id];
    struct heap *heap = heap_of(queue, entry);

    if (heap)
        heap_remove(queue, heap, entry->place);
    entry->state = (uint8_t)state;
    heap = heap_of(queue, entry);
    if (heap)
        heap_insert(queue, heap, id);
}

/* --- the table ---------------------------------------------------------------------------------------------
 */

static uint32_t hash_of(enum tt_entry_kind kind, const char *name)
{
    uint64_t hash = 14695981039346656037u ^ kind; /* FNV-1a */

    for (; *name; name++)
        hash = (hash ^ (unsigned char)*name) * 1099511628211u;
    return (uint32_t)(hash ^ hash >> 32);
}

static uint32_t *bucket_of(const struct tt_queue *queue, enum tt_entry_kind kind, const char *name)
{
    return &queue->buckets[hash_of(kind, name) & queue->bucket_mask];
}

static void chain(struct tt_queue *queue, tt_entry_id id)
{
    struct tt_entry *entry = &queue->entries[id];
    uint32_t *bucket = bucket_of(queue, entry->kind, entry->name);

    entry->chain = *bucket;
    *bucket = id;
}

/* Room for twice as many entries. Each array that grew stays grown also when a later one cannot. */
static bool grow(struct tt_queue *queue)
{
    uint32_t capacity = queue->capacity ? 2 * queue->capacity : FIRST_CAPACITY;
    struct heap *heaps[] = {&queue->waiting, &queue->files, &queue->jobs};
    void *grown;

    if (capacity > UINT32_MAX / 4)
        return false;
    if (!(grown = realloc(queue->entries, capacity * sizeof *queue->entries)))
        return false;
    queue->entries = grown;
    for (int i = 0; i < 3; i++) {
        if (!(grown = realloc(heaps[i]->ids, capacity * sizeof *heaps[i]->ids)))
            return false;
        heaps[i]->ids = grown;
    }
    if (!(grown = realloc(queue->buckets, capacity * sizeof *queue->buckets)))
        return false;
    queue->buckets = grown;
    queue->bucket_mask = capacity - 1;
    queue->capacity = capacity;
    memset(queue->buckets, 0xff, capacity * sizeof *queue->buckets);
    for (uint32_t id = 0; id < queue->used; id++)
        if (queue->entries[id].name)
            chain(queue, id);
    return true;
}

enum tt_status tt_queue_create(struct tt_queue **queue, struct tt_error *err)
{
    struct tt_queue *made = calloc(1, sizeof *made);

    if (made) {
        made->free = TT_ENTRY_NONE;
        made->waiting.before = before_waiting;
        made->files.before = made->jobs.before = before_ready;
        if (grow(made)) {
            *queue = made;
            return TT_OK;
        }
    }
    tt_queue_free(made);
    return tt_fail_errno(err, TT_RETRY_LATER, ENOMEM, "queue");
}

void tt_queue_free(struct tt_queue *queue)
{
    if (!queue)
        return;
    for (uint32_t id = 0; id < queue->used; id++)
        free(queue->entries[id].name);
    free(queue->entries);
    free(queue->waiting.ids);
    free(queue->files.ids);
    free(queue->jobs.ids);
    free(queue->buckets);
    free(queue);
}

tt_entry_id tt_queue_find(const struct tt_queue *queue, enum tt_entry_kind kind, const char *name)
{
    uint32_t id = *bucket_of(queue, kind, name);

    while (id != TT_ENTRY_NONE &&
           (queue->entries[id].kind != kind || strcmp(queue->entries[id].name, name) != 0))
        id = queue->entries[id].chain;
    return id;
}

struct tt_entry *tt_queue_entry(struct tt_queue *queue, tt_entry_id id)
{
    return &queue->entries[id];
}

tt_entry_id tt_queue_add(struct tt_queue *queue, enum tt_entry_kind kind, const char *name, bool priority,
                         int64_t age_ns)
{
    char *copy = strdup(name);
    tt_entry_id id = queue->free;

    if (!copy || (id == TT_ENTRY_NONE && queue->used == queue->capacity && !grow(queue))) {
        free(copy);
        return TT_ENTRY_NONE;
    }
    if (id == TT_ENTRY_NONE)
        id = queue->used++;
    else
        queue->free = queue->entries[id].chain;
    queue->entries[id] = (struct tt_entry){
        .name = copy,
        .age_ns = age_ns,
        .kind = (uint8_t)kind,
        .state = TT_ENTRY_IDLE,
        .priority = priority,
        .generation = queue->generation,
    };
    chain(queue, id);
    queue->live++;
    return id;
}

void tt_queue_remove(struct tt_queue *queue, tt_entry_id id)
{
    struct tt_entry *entry = &queue->entries[id];
    uint32_t *link = bucket_of(queue, entry->kind, entry->name);

    set_state(queue, id, TT_ENTRY_IDLE);
    while (*link != id)
        link = &queue->entries[*link].chain;
    *link = entry->chain;
    free(entry->name);
    entry->name = NULL;
    entry->chain = queue->free;
    queue->free = id;
    queue->live--;
}

/* --- order -------------------------------------------------------------------------------------------------
 */

void tt_queue_wait(struct tt_queue *queue, tt_entry_id id, int64_t due_ms)
{
    set_state(queue, id, TT_ENTRY_IDLE);
    queue->entries[id].due_ms = due_ms;
    set_state(queue, id, TT_ENTRY_WAITING);
}

void tt_queue_set_age(struct tt_queue *queue, tt_entry_id id, int64_t age_ns)
{
    enum tt_entry_state state = queue->entries[id].state;

    set_state(queue, id, TT_ENTRY_IDLE);
    queue->entries[id].age_ns = age_ns;
    set_state(queue, id, state);
}

static void promote(struct tt_queue *queue, int64_t now_ms)
{
    while (queue->waiting.count > 0 && queue->entries[queue->waiting.ids[0]].due_ms <= now_ms)
        set_state(queue, queue->waiting.ids[0], TT_ENTRY_READY);
}

static tt_entry_id first(const struct heap *heap)
{
    return heap->count > 0 ? heap->ids[0] : TT_ENTRY_NONE;
}

tt_entry_id tt_queue_next_job(struct tt_queue *queue, int64_t now_ms)
{
    promote(queue, now_ms);
    return first(&queue->jobs);
}

tt_entry_id tt_queue_next(struct tt_queue *queue, int64_t now_ms)
{
    tt_entry_id job = tt_queue_next_job(queue, now_ms), file = first(&queue->files);

    if (job == TT_ENTRY_NONE)
        return file;
    if (file == TT_ENTRY_NONE || !before_ready(&queue->entries[file], &queue->entries[job]))
        return job;
    return file;
}

int64_t tt_queue_next_due_ms(const struct tt_queue *queue)
{
    return queue->waiting.count > 0 ? queue->entries[queue->waiting.ids[0]].due_ms : INT64_MAX;
}

/* --- scans, counts -----------------------------------------------------------------------------------------
 */

void tt_queue_saw(struct tt_queue *queue, tt_entry_id id)
{
    queue->entries[id].generation = queue->generation;
}

int64_t tt_queue_sweep(struct tt_queue *queue)
{
    int64_t removed = 0;

    for (uint32_t id = 0; id < queue->used; id++) {
        struct tt_entry *entry = &queue->entries[id];

        if (!entry->name || entry->kind == TT_ENTRY_JOB || entry->generation == queue->generation)
            continue;
        tt_queue_remove(queue, id);
        removed++;
    }
    queue->generation++;
    return removed;
}

struct tt_queue_counts tt_queue_count(const struct tt_queue *queue)
{
    struct tt_queue_counts counts = {.oldest_age_ns = INT64_MAX};

    for (uint32_t id = 0; id < queue->used; id++) {
        const struct tt_entry *entry = &queue->entries[id];

        if (!entry->name)
            continue;
        if (entry->kind == TT_ENTRY_SIDECAR) {
            counts.sidecars++;
            continue;
        }
        if (entry->age_ns < counts.oldest_age_ns)
            counts.oldest_age_ns = entry->age_ns;
        if (entry->kind == TT_ENTRY_JOB)
            counts.jobs++;
        else if (entry->state == TT_ENTRY_READY)
            counts.ready++;
        else if (entry->failures > 0)
            counts.deferred++;
        else
            counts.settling++;
    }
    return counts;
}

void tt_queue_each(const struct tt_queue *queue, bool (*each)(void *user, const struct tt_entry *entry),
                   void *user)
{
    for (uint32_t id = 0; id < queue->used; id++) {
        const struct tt_entry *entry = &queue->entries[id];

        if (entry->name && entry->kind != TT_ENTRY_SIDECAR && !each(user, entry))
            return;
    }
}

int64_t tt_backoff_ms(int failures, int64_t base_ms, int64_t max_ms, uint32_t random)
{
    int64_t delay = base_ms;

    for (int n = 1; n < failures && delay < max_ms; n++)
        delay = delay > max_ms / 2 ? max_ms : 2 * delay;
    if (delay > max_ms)
        delay = max_ms;
    return delay - (int64_t)((double)(delay / 2) * ((double)random / 4294967296.0));
}

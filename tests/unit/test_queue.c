/* tests/unit/test_queue.c: who is next, against a model that searches; backoff. */
#include "daemon/spool/queue.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

static struct tt_queue *new_queue(void)
{
    struct tt_queue *queue;
    struct tt_error err;

    assert_int_equal(tt_queue_create(&queue, &err), TT_OK);
    return queue;
}

static void add_ready(struct tt_queue *queue, enum tt_entry_kind kind, const char *name, bool priority,
                      int64_t age)
{
    tt_entry_id id = tt_queue_add(queue, kind, name, priority, age);

    assert_int_not_equal(id, TT_ENTRY_NONE);
    tt_queue_wait(queue, id, 0);
}

static void take(struct tt_queue *queue, const char *expected)
{
    tt_entry_id id = tt_queue_next(queue, 0);

    assert_int_not_equal(id, TT_ENTRY_NONE);
    assert_string_equal(tt_queue_entry(queue, id)->name, expected);
    tt_queue_remove(queue, id);
}

static void priority_then_age_then_name(void **state)
{
    struct tt_queue *queue = new_queue();

    (void)state;
    add_ready(queue, TT_ENTRY_VIDEO, "young", false, 30);
    add_ready(queue, TT_ENTRY_VIDEO, "b", false, 10);
    add_ready(queue, TT_ENTRY_VIDEO, "a", false, 10);
    add_ready(queue, TT_ENTRY_VIDEO, "priority/late", true, 99);
    add_ready(queue, TT_ENTRY_JOB, "job", false, 20);
    tt_queue_add(queue, TT_ENTRY_SIDECAR, "a.queries.csv", false, 1);
    assert_string_equal(tt_queue_entry(queue, tt_queue_next_job(queue, 0))->name, "job");
    take(queue, "priority/late");
    take(queue, "a");
    take(queue, "b");
    take(queue, "job");
    take(queue, "young");
    assert_int_equal(tt_queue_next(queue, INT64_MAX), TT_ENTRY_NONE);
    assert_int_equal(tt_queue_next_job(queue, INT64_MAX), TT_ENTRY_NONE);
    assert_int_equal(tt_queue_count(queue).sidecars, 1);
    tt_queue_free(queue);
}

static void waits_until_due(void **state)
{
    struct tt_queue *queue = new_queue();
    tt_entry_id id = tt_queue_add(queue, TT_ENTRY_VIDEO, "a", false, 1);

    (void)state;
    assert_int_equal(tt_queue_next_due_ms(queue), INT64_MAX);
    tt_queue_wait(queue, id, 100);
    assert_int_equal(tt_queue_next_due_ms(queue), 100);
    assert_int_equal(tt_queue_next(queue, 99), TT_ENTRY_NONE);
    assert_int_equal(tt_queue_next(queue, 100), id);
    assert_int_equal(tt_queue_next(queue, 99), id); /* ready stays ready */
    tt_queue_wait(queue, id, 200);                  /* it was touched */
    assert_int_equal(tt_queue_next(queue, 199), TT_ENTRY_NONE);
    assert_int_equal(tt_queue_next(queue, 200), id);
    tt_queue_free(queue);
}

static void counts_and_sweeps(void **state)
{
    struct tt_queue *queue = new_queue();
    tt_entry_id deferred;
    struct tt_queue_counts counts;

    (void)state;
    tt_queue_sweep(queue);
    add_ready(queue, TT_ENTRY_VIDEO, "ready", false, 7);
    tt_queue_next(queue, 0);
    tt_queue_wait(queue, tt_queue_add(queue, TT_ENTRY_VIDEO, "settling", false, 5), 50);
    deferred = tt_queue_add(queue, TT_ENTRY_VIDEO, "deferred", false, 9);
    tt_queue_entry(queue, deferred)->failures = 1;
    tt_queue_wait(queue, deferred, 60);
    add_ready(queue, TT_ENTRY_JOB, "job", false, 8);
    tt_queue_add(queue, TT_ENTRY_SIDECAR, "s", false, 1);
    counts = tt_queue_count(queue);
    assert_int_equal(counts.ready, 1);
    assert_int_equal(counts.settling, 1);
    assert_int_equal(counts.deferred, 1);
    assert_int_equal(counts.jobs, 1);
    assert_int_equal(counts.sidecars, 1);
    assert_int_equal(counts.oldest_age_ns, 5);
    assert_int_equal(tt_queue_sweep(queue), 0); /* what was added counts as seen */
    tt_queue_saw(queue, tt_queue_find(queue, TT_ENTRY_VIDEO, "settling"));
    assert_int_equal(tt_queue_sweep(queue), 3); /* not the job */
    assert_int_equal(tt_queue_find(queue, TT_ENTRY_VIDEO, "ready"), TT_ENTRY_NONE);
    assert_int_not_equal(tt_queue_find(queue, TT_ENTRY_VIDEO, "settling"), TT_ENTRY_NONE);
    assert_int_not_equal(tt_queue_find(queue, TT_ENTRY_JOB, "job"), TT_ENTRY_NONE);
    tt_queue_free(queue);
}

/* --- against a model --------------------------------------------------------------------------------------
 */

enum { NAMES = 300, STEPS = 60000 };

struct model {
    bool there, priority;
    int64_t age, due;
};

static int model_next(const struct model *model, int64_t now)
{
    int best = -1;

    for (int i = 0; i < NAMES; i++) {
        const struct model *a = &model[i], *b = best < 0 ? NULL : &model[best];

        if (!a->there || a->due > now)
            continue;
        if (!b || (a->priority != b->priority ? a->priority : a->age < b->age))
            best = i; /* names are in order, so the first of equals stays */
    }
    return best;
}

static void agrees_with_a_search(void **state)
{
    struct tt_queue *queue = new_queue();
    struct model model[NAMES] = {0};
    int64_t now = 0;
    int compared = 0;

    (void)state;
    srand(1);
    for (int step = 0; step < STEPS; step++) {
        int i = rand() % NAMES;
        char name[16];
        tt_entry_id id;

        snprintf(name, sizeof name, "%03d", i);
        id = tt_queue_find(queue, TT_ENTRY_VIDEO, name);
        assert_int_equal(id != TT_ENTRY_NONE, model[i].there);
        switch (rand() % 5) {
        case 0:
        case 1:
            if (!model[i].there) {
                model[i] = (struct model){true, rand() % 8 == 0, rand() % 50, now + rand() % 20};
                id = tt_queue_add(queue, TT_ENTRY_VIDEO, name, model[i].priority, model[i].age);
                tt_queue_wait(queue, id, model[i].due);
            } else {
                model[i].due = now + rand() % 20;
                tt_queue_wait(queue, id, model[i].due);
            }
            break;
        case 2:
            if (model[i].there)
                tt_queue_set_age(queue, id, model[i].age = rand() % 50);
            break;
        case 3:
            now += rand() % 3;
            break;
        case 4: {
            int expected = model_next(model, now);

            id = tt_queue_next(queue, now);
            if (expected < 0) {
                assert_int_equal(id, TT_ENTRY_NONE);
                break;
            }
            assert_int_equal(atoi(tt_queue_entry(queue, id)->name), expected);
            tt_queue_remove(queue, id);
            model[expected].there = false;
            compared++;
        }
        }
    }
    assert_true(compared > STEPS / 20);
    tt_queue_free(queue);
}

static void backoff_doubles_up_to_its_limit(void **state)
{
    (void)state;
    assert_int_equal(tt_backoff_ms(1, 1000, 60000, 0), 1000);
    assert_int_equal(tt_backoff_ms(2, 1000, 60000, 0), 2000);
    assert_int_equal(tt_backoff_ms(6, 1000, 60000, 0), 32000);
    assert_int_equal(tt_backoff_ms(7, 1000, 60000, 0), 60000);
    assert_int_equal(tt_backoff_ms(1000000, 1000, INT64_MAX / 2, 0), INT64_MAX / 2);
    assert_int_equal(tt_backoff_ms(3, 0, 60000, 0), 0);
    assert_int_equal(tt_backoff_ms(1, 90000, 60000, 0), 60000);
    assert_int_equal(tt_backoff_ms(2, 1000, 60000, UINT32_MAX), 2000 - 999); /* a half at most is taken off */
    assert_int_equal(tt_backoff_ms(2, 1000, 60000, UINT32_MAX / 2), 2000 - 499);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(priority_then_age_then_name),
        cmocka_unit_test(waits_until_due),
        cmocka_unit_test(counts_and_sweeps),
        cmocka_unit_test(agrees_with_a_search),
        cmocka_unit_test(backoff_doubles_up_to_its_limit),
    };
    return cmocka_run_group_tests_name("queue", tests, NULL, NULL);
}

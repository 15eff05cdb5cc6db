/* core/cpu/pool.c: the threads of the CPU backend.
 *
 * Invariants: between runs all helpers wait for the next round; a run ends when every helper has found no job
 * left, so nothing of a run outlives it. Job numbers are given out one by one under the lock: jobs last
 * milliseconds. Helpers block all signals, which belong to the program's own threads.
 * Fails only on creation.
 */
#include "core/cpu/pool.h"

#include <pthread.h>
#include <signal.h>
#include <stdlib.h>

struct helper {
    struct tt_pool *pool;
    int worker;
    pthread_t thread;
};

struct tt_pool {
    pthread_mutex_t lock;
    pthread_cond_t begun, ended;
    void (*job)(void *context, int number, int worker);
    void *context;
    int jobs, next; /* of the run: how many, and which comes next */
    int round;      /* counts runs */
    int busy;       /* helpers that are still in the run */
    int stop;
    int helpers;
    struct helper helper[];
};

/* Called and left with the lock held. */
static void take_jobs(struct tt_pool *pool, int worker)
{
    while (pool->next < pool->jobs) {
        int number = pool->next++;

        pthread_mutex_unlock(&pool->lock);
        pool->job(pool->context, number, worker);
        pthread_mutex_lock(&pool->lock);
    }
}

static void *help(void *argument)
{
    struct helper *helper = argument;
    struct tt_pool *pool = helper->pool;
    int round = 0;

    pthread_mutex_lock(&pool->lock);
    for (;;) {
        while (!pool->stop && pool->round == round)
            pthread_cond_wait(&pool->begun, &pool->lock);
        if (pool->stop)
            break;
        round = pool->round;
        take_jobs(pool, helper->worker);
        if (--pool->busy == 0)
            pthread_cond_signal(&pool->ended);
    }
    pthread_mutex_unlock(&pool->lock);
    return NULL;
}

enum tt_status tt_pool_create(struct tt_pool **out, int threads, struct tt_error *err)
{
    struct tt_pool *pool = calloc(1, sizeof *pool + (size_t)(threads - 1) * sizeof pool->helper[0]);
    sigset_t all, before;

    if (!pool)
        return tt_fail(err, TT_RETRY_LATER, "no memory for %d threads", threads);
    pthread_mutex_init(&pool->lock, NULL);
    pthread_cond_init(&pool->begun, NULL);
    pthread_cond_init(&pool->ended, NULL);
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    for (int i = 0; i < threads - 1; i++) {
        struct helper *helper = &pool->helper[i];

        helper->pool = pool;
        helper->worker = i + 1;
        if (pthread_create(&helper->thread, NULL, help, helper))
            break;
        pool->helpers++;
    }
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    if (pool->helpers != threads - 1) {
        tt_pool_destroy(pool);
        return tt_fail(err, TT_RETRY_LATER, "could not start %d threads", threads);
    }
    *out = pool;
    return TT_OK;
}

void tt_pool_destroy(struct tt_pool *pool)
{
    if (!pool)
        return;
    pthread_mutex_lock(&pool->lock);
    pool->stop = 1;
    pthread_cond_broadcast(&pool->begun);
    pthread_mutex_unlock(&pool->lock);
    for (int i = 0; i < pool->helpers; i++)
        pthread_join(pool->helper[i].thread, NULL);
    pthread_cond_destroy(&pool->ended);
    pthread_cond_destroy(&pool->begun);
    pthread_mutex_destroy(&pool->lock);
    free(pool);
}

void tt_pool_run(struct tt_pool *pool, int jobs, void (*job)(void *context, int number, int worker),
                 void *context)
{
    pthread_mutex_lock(&pool->lock);
    pool->job = job;
    pool->context = context;
    pool->jobs = jobs;
    pool->next = 0;
    pool->busy = pool->helpers;
    pool->round++;
    pthread_cond_broadcast(&pool->begun);
    take_jobs(pool, 0);
    while (pool->busy)
        pthread_cond_wait(&pool->ended, &pool->lock);
    pthread_mutex_unlock(&pool->lock);
}

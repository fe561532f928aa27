/* Independent samples: each thread has a solver of its own and takes the next sample that is
 * missing until none is left. A sample has its place in the files, so the order does not matter. A
 * device makes many samples at once; then one thread feeds it, and the others help with the host's
 * part of the work. */
#include <pthread.h>

#include "base/memory.h"
#include "pde/generator.h"

/* Its context has an error text of its own and shares the ledger, which is safe to use from several
 * threads. */
typedef struct worker {
    tg_context ctx;
    tg_backend *be, *device; /* device: NULL if there is none */
    void *solver;
    int64_t *sample;    /* (batch) numbers of those in work */
    tg_field_key *keys; /* (batch) */
    tg_pde_view *views; /* (batch, views) */
} worker;

/* One split on its way. What stands below the mutex is used under it. */
typedef struct job {
    tg_generator *g;
    tg_split split;
    int views;
    tg_gen_file *files[TG_PDE_MAX_FILES]; /* (views) of this split */
    int64_t resolution[TG_PDE_MAX_FILES]; /* (views) */
    int64_t batch;                        /* samples that a worker makes at once */
    int workers;
    worker *worker; /* (workers) */

    pthread_mutex_t mutex;
    tg_gen_run *run;
    int64_t next;          /* first sample that nobody has looked at */
    bool stopped;          /* by the user */
    tg_status status;      /* the first failure, */
    int64_t failed;        /* its sample */
    const worker *culprit; /* and whose context has the sentence */
} job;

/* ---- workers ---- */

static void close_worker(const job *j, worker *w) {
    j->g->pde->close(&w->solver);
    for (int64_t i = 0; w->views && i < j->batch * j->views; i++) {
        tg_mem_free(&w->ctx, w->views[i].x);
        tg_mem_free(&w->ctx, w->views[i].y);
    }
    tg_mem_free(&w->ctx, w->views);
    tg_mem_free(&w->ctx, w->keys);
    tg_mem_free(&w->ctx, w->sample);
    tg_backend_close(&w->device);
    tg_backend_close(&w->be);
}

static tg_status open_worker(const job *j, worker *w) {
    tg_status status = TG_OK;
    const tg_context *ctx = j->g->ctx;
    const tg_pde *pde = j->g->pde;
    w->ctx = (tg_context){.config = ctx->config,
                          .threads = tg_gen_device(j->g) ? ctx->threads : 1,
                          .ledger = ctx->ledger};
    w->ctx.config.log = NULL; /* it is the caller's thread alone that may log */
    TG_TRY(tg_gen_open_backends(j->g, &w->ctx, &w->be, &w->device));
    TG_TRY(TG_NEW(&w->ctx, TG_MEM_OTHER, w->sample, j->batch));
    TG_TRY(TG_NEW(&w->ctx, TG_MEM_OTHER, w->keys, j->batch));
    TG_TRY(TG_NEW(&w->ctx, TG_MEM_OTHER, w->views, j->batch * j->views));
    for (int64_t i = 0; i < j->batch * j->views; i++) {
        tg_pde_view *view = &w->views[i];
        const int64_t n = j->resolution[i % j->views];
        view->resolution = n;
        TG_TRY(TG_ALLOC(&w->ctx, TG_MEM_DATA, view->x, tg_gen_floats(pde, TG_SAMPLE_X, n)));
        TG_TRY(TG_ALLOC(&w->ctx, TG_MEM_DATA, view->y, tg_gen_floats(pde, TG_SAMPLE_Y, n)));
    }
    const tg_pde_setup setup = {.ctx = &w->ctx,
                                .be = w->be,
                                .device = w->device,
                                .batch = j->batch,
                                .config = j->g->config,
                                .views = j->views,
                                .resolution = j->resolution};
    TG_TRY(pde->open(&setup, &w->solver));
    return TG_OK;
fail:
    return tg_fail(j->g->ctx, status, "%s", tg_context_error(&w->ctx));
}

/* ---- the loop ---- */

/* The next samples to make, none if there are none or the work has ended. */
static int64_t take(job *j, worker *w) {
    int64_t count = 0;
    pthread_mutex_lock(&j->mutex);
    while (count < j->batch && !j->stopped && j->status == TG_OK &&
           j->next < j->g->samples[j->split]) {
        const int64_t sample = j->next++;
        if (!tg_gen_has(j->g, j->split, sample)) {
            w->sample[count] = sample;
            w->keys[count++] =
                tg_field_key_of(j->g->seed, j->g->pde->id, j->split, (uint32_t)sample);
        }
    }
    pthread_mutex_unlock(&j->mutex);
    return count;
}

/* Stores sample number i of those in work. */
static tg_status put(job *j, worker *w, int64_t i) {
    tg_status status = TG_OK;
    for (int v = 0; v < j->views; v++) {
        const tg_pde_view *view = &w->views[i * j->views + v];
        tg_sample_file *store = j->files[v]->store;
        TG_TRY(tg_sample_file_put(&w->ctx, store, TG_SAMPLE_X, w->sample[i], view->x));
        TG_TRY(tg_sample_file_put(&w->ctx, store, TG_SAMPLE_Y, w->sample[i], view->y));
    }
fail:
    return status;
}

static void deliver(job *j, worker *w, int64_t count, tg_status status, int64_t failed) {
    pthread_mutex_lock(&j->mutex);
    for (int64_t i = 0; i < count && status == TG_OK; i++) {
        failed = i;
        status = put(j, w, i);
        if (status == TG_OK) {
            j->run->progress.done++;
            j->stopped = !tg_gen_tick(j->run) || j->stopped;
        }
    }
    if (status != TG_OK && j->status == TG_OK) {
        j->status = status;
        j->failed = w->sample[failed];
        j->culprit = w;
    }
    pthread_mutex_unlock(&j->mutex);
}

static void work(job *j, worker *w) {
    const tg_pde *pde = j->g->pde;
    for (int64_t count = take(j, w); count > 0; count = take(j, w)) {
        int64_t failed = 0;
        const tg_status status = pde->samples
                                     ? pde->samples(w->solver, count, w->keys, w->views, &failed)
                                     : pde->sample(w->solver, w->keys, w->views);
        deliver(j, w, count, status, failed);
    }
}

static tg_status run_job(job *j) {
    tg_status status = TG_OK;
    tg_context *ctx = j->g->ctx;
    int64_t missing = 0;
    for (int64_t i = 0; i < j->g->samples[j->split]; i++) {
        missing += !tg_gen_has(j->g, j->split, i);
    }
    if (missing == 0) {
        return TG_OK;
    }
    j->workers = missing < ctx->threads ? (int)missing : ctx->threads;
    j->batch = 1;
    if (tg_gen_device(j->g)) { /* the same batch in a run that goes on from another one's samples */
        const int64_t most = j->g->pde->batch(j->g->config), all = j->g->samples[j->split];
        j->batch = most < all ? most : all;
        j->workers = 1;
    }
    TG_TRY(TG_NEW(ctx, TG_MEM_OTHER, j->worker, j->workers));
    for (int i = 0; i < j->workers; i++) {
        TG_TRY(open_worker(j, &j->worker[i]));
    }
    const int workers = j->workers;
#pragma omp parallel for num_threads(workers) schedule(static, 1)
    for (int i = 0; i < workers; i++) {
        work(j, &j->worker[i]);
    }
    if (j->culprit) {
        status = tg_fail(ctx, j->status, "%s: %s sample %lld: %s", j->g->pde->name,
                         j->split == TG_SPLIT_TRAIN ? "training" : "test", (long long)j->failed,
                         tg_context_error(&j->culprit->ctx));
    }
fail:
    for (int i = 0; j->worker && i < j->workers; i++) {
        close_worker(j, &j->worker[i]);
    }
    TG_FREE(ctx, j->worker);
    return status;
}

tg_status tg_gen_samples(tg_generator *g, tg_gen_run *run, bool *stopped) {
    tg_status status = TG_OK;
    for (int s = 0; s < TG_SPLITS; s++) {
        run->progress.total += g->samples[s];
        for (int64_t i = 0; i < g->samples[s]; i++) {
            run->progress.found += tg_gen_has(g, (tg_split)s, i);
        }
    }
    run->progress.unit = "samples";
    run->progress.done = run->progress.found;
    *stopped = !tg_gen_tick(run);
    for (int s = 0; s < TG_SPLITS && !*stopped; s++) {
        job j = {.g = g, .split = (tg_split)s, .mutex = PTHREAD_MUTEX_INITIALIZER, .run = run};
        for (int i = 0; i < g->file_count; i++) {
            if (g->files[i].split == j.split) {
                j.files[j.views] = &g->files[i];
                j.resolution[j.views++] = g->files[i].resolution;
            }
        }
        status = run_job(&j);
        *stopped = j.stopped && status == TG_OK;
        pthread_mutex_destroy(&j.mutex);
        TG_TRY(status);
    }
fail:
    return status;
}

/* Independent samples: each thread has a solver of its own and takes the next sample that is
 * missing until none is left. A sample has its place in the files, so the order does not matter. */
#include <pthread.h>

#include "base/memory.h"
#include "pde/generator.h"

/* Its context has one thread and an error text of its own and shares the ledger, which is safe to
 * use from several threads. */
typedef struct worker {
    tg_context ctx;
    tg_backend *be;
    void *solver;
    tg_pde_view views[TG_PDE_MAX_FILES];
} worker;

/* One split on its way. What stands below the mutex is used under it. */
typedef struct job {
    tg_generator *g;
    tg_split split;
    int views;
    tg_gen_file *files[TG_PDE_MAX_FILES]; /* (views) of this split */
    int64_t resolution[TG_PDE_MAX_FILES]; /* (views) */
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
    for (int i = 0; i < j->views; i++) {
        tg_mem_free(&w->ctx, w->views[i].x);
        tg_mem_free(&w->ctx, w->views[i].y);
    }
    tg_backend_close(&w->be);
}

static tg_status open_worker(const job *j, worker *w) {
    tg_status status = TG_OK;
    const tg_context *ctx = j->g->ctx;
    const tg_pde *pde = j->g->pde;
    w->ctx = (tg_context){.config = ctx->config, .threads = 1, .ledger = ctx->ledger};
    w->ctx.config.log = NULL; /* it is the caller's thread alone that may log */
    TG_TRY(tg_gen_open_backend(ctx, &w->ctx, &w->be));
    for (int i = 0; i < j->views; i++) {
        const int64_t n = j->resolution[i];
        w->views[i].resolution = n;
        TG_TRY(TG_ALLOC(&w->ctx, TG_MEM_DATA, w->views[i].x, tg_gen_floats(pde, TG_SAMPLE_X, n)));
        TG_TRY(TG_ALLOC(&w->ctx, TG_MEM_DATA, w->views[i].y, tg_gen_floats(pde, TG_SAMPLE_Y, n)));
    }
    const tg_pde_setup setup = {&w->ctx, w->be, j->g->config, j->views, j->resolution};
    TG_TRY(pde->open(&setup, &w->solver));
    return TG_OK;
fail:
    return tg_fail(j->g->ctx, status, "%s", tg_context_error(&w->ctx));
}

/* ---- the loop ---- */

/* The next sample to make, -1 if there is none or the work has ended. */
static int64_t take(job *j) {
    pthread_mutex_lock(&j->mutex);
    int64_t sample = -1;
    while (sample < 0 && !j->stopped && j->status == TG_OK && j->next < j->g->samples[j->split]) {
        sample = tg_gen_has(j->g, j->split, j->next) ? -1 : j->next;
        j->next++;
    }
    pthread_mutex_unlock(&j->mutex);
    return sample;
}

static void deliver(job *j, worker *w, int64_t sample, tg_status status) {
    pthread_mutex_lock(&j->mutex);
    for (int i = 0; i < j->views && status == TG_OK; i++) {
        tg_sample_file *store = j->files[i]->store;
        status = tg_sample_file_put(&w->ctx, store, TG_SAMPLE_X, sample, w->views[i].x);
        if (status == TG_OK) {
            status = tg_sample_file_put(&w->ctx, store, TG_SAMPLE_Y, sample, w->views[i].y);
        }
    }
    if (status == TG_OK) {
        j->run->progress.done++;
        j->stopped = !tg_gen_tick(j->run) || j->stopped;
    } else if (j->status == TG_OK) {
        j->status = status;
        j->failed = sample;
        j->culprit = w;
    }
    pthread_mutex_unlock(&j->mutex);
}

static void work(job *j, worker *w) {
    for (int64_t sample = take(j); sample >= 0; sample = take(j)) {
        const tg_field_key key =
            tg_field_key_of(j->g->seed, j->g->pde->id, j->split, (uint32_t)sample);
        deliver(j, w, sample, j->g->pde->sample(w->solver, &key, w->views));
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

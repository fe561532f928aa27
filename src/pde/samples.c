/* Independent samples: each thread has a solver and takes the next missing sample until none is
 * left. A sample has a fixed place in the files, so the order does not matter. A device makes many
 * samples at once; one thread then feeds it, and the others help with the host's part. */
#include <pthread.h>

#include "base/memory.h"
#include "base/minmax.h"
#include "pde/pde.h"

/* Its context has separate error text and shares the ledger, which is thread-safe. */
typedef struct worker {
    tg_context ctx;
    tg_pool pool;
    tg_backend *be, *device; /* device: NULL if there is none */
    void *solver;
    int64_t *sample;    /* (batch) numbers of the samples in work */
    tg_field_key *keys; /* (batch) */
    tg_pde_view *views; /* (batch, views) */
} worker;

/* One split in progress. The mutex protects the fields after it. */
typedef struct job {
    tg_generator *g;
    tg_split split;
    int views;
    tg_gen_file *files[TG_PDE_MAX_FILES]; /* (views) of this split */
    int64_t resolution[TG_PDE_MAX_FILES]; /* (views) */
    int64_t batch;                        /* samples per call of a worker */
    int workers;
    worker *worker; /* (workers) */

    pthread_mutex_t mutex;
    tg_gen_run *run;
    int64_t next;                /* first sample not yet considered */
    bool stopped;                /* by the user */
    tg_status status;            /* the first failure, */
    int64_t failed;              /* its sample */
    const worker *failed_worker; /* and the worker whose context has the message */
} job;

/* ---- workers ---- */

static tg_status open_worker(const job *j, worker *w) {
    tg_status status = TG_OK;
    const tg_context *ctx = j->g->ctx;
    w->ctx = (tg_context){.config = ctx->config,
                          .threads = tg_gen_device(j->g) ? ctx->threads : 1,
                          .ledger = ctx->ledger};
    w->ctx.config.log = NULL; /* only the caller's thread may log */
    TG_TRY(tg_gen_open_backends(j->g, &w->ctx, &w->be, &w->device));
    w->pool.ctx = &w->ctx;
    TG_TRY(TG_POOL(&w->pool, w->sample, j->batch));
    TG_TRY(TG_POOL(&w->pool, w->keys, j->batch));
    TG_TRY(TG_POOL(&w->pool, w->views, j->batch * j->views));
    for (int64_t i = 0; i < j->batch * j->views; i++) {
        tg_pde_view *view = &w->views[i];
        const int64_t n = j->resolution[i % j->views];
        view->resolution = n;
        TG_TRY(TG_POOL(&w->pool, view->x, tg_gen_floats(j->g, TG_SAMPLE_X, n)));
        if (j->g->frames == 0) {
            TG_TRY(TG_POOL(&w->pool, view->y, tg_gen_floats(j->g, TG_SAMPLE_Y, n)));
        }
    }
    const tg_pde_setup setup = {.pool = &w->pool,
                                .be = w->be,
                                .device = w->device,
                                .batch = j->batch,
                                .config = j->g->config,
                                .views = j->views,
                                .resolution = j->resolution,
                                .frames = j->g->frames};
    TG_TRY(tg_pde_open(j->g->pde, &setup, &w->solver));
    return TG_OK;
fail:
    return tg_fail(j->g->ctx, status, "%s", tg_context_error(&w->ctx));
}

static tg_status open_workers(job *j) {
    TG_CALL(TG_NEW(j->g->ctx, TG_MEM_OTHER, j->worker, j->workers));
    for (int i = 0; i < j->workers; i++) {
        TG_CALL(open_worker(j, &j->worker[i]));
    }
    return TG_OK;
}

static void close_workers(job *j) {
    for (int i = 0; j->worker && i < j->workers; i++) {
        tg_pool_clear(&j->worker[i].pool);
        tg_backend_close(&j->worker[i].device);
        tg_backend_close(&j->worker[i].be);
    }
    TG_FREE(j->g->ctx, j->worker);
}

/* The first failure, with the sample that it belongs to. */
static tg_status report_failure(const job *j) {
    return j->failed_worker
               ? tg_fail(j->g->ctx, j->status, "%s: %s sample %lld: %s", j->g->pde->name,
                         j->split == TG_SPLIT_TRAIN ? "training" : "test", (long long)j->failed,
                         tg_context_error(&j->failed_worker->ctx))
               : TG_OK;
}

/* ---- the loop ---- */

/* The next samples to make; none when all are taken or the work has ended. */
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

/* Stores sample i of the batch. */
static tg_status put(job *j, worker *w, int64_t i) {
    for (int v = 0; v < j->views; v++) {
        const tg_pde_view *view = &w->views[i * j->views + v];
        tg_sample_file *store = j->files[v]->store;
        TG_CALL(tg_sample_file_put(&w->ctx, store, TG_SAMPLE_X, w->sample[i], view->x));
        TG_CALL(tg_sample_file_put(&w->ctx, store, TG_SAMPLE_Y, w->sample[i], view->y));
    }
    return TG_OK;
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
        j->failed_worker = w;
    }
    pthread_mutex_unlock(&j->mutex);
}

static tg_status solve(const tg_pde *pde, worker *w, int64_t count, int64_t *failed) {
    return pde->samples ? pde->samples(w->solver, count, w->keys, w->views, failed)
                        : pde->sample(w->solver, w->keys, w->views);
}

static void work(job *j, worker *w) {
    const tg_pde *pde = j->g->pde;
    for (int64_t count = take(j, w); count > 0; count = take(j, w)) {
        int64_t failed = 0;
        const tg_status status = solve(pde, w, count, &failed);
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
    if (tg_gen_device(j->g)) { /* the same batches when a run is resumed */
        const int64_t fits = j->g->pde->batch(j->g->config), all = j->g->samples[j->split];
        j->batch = tg_min(fits, all);
        j->workers = 1;
    }
    TG_TRY(open_workers(j));
    const int workers = j->workers;
    if (workers == 1) { /* no team around it: nested teams would start new threads */
        work(j, &j->worker[0]);
    } else {
#pragma omp parallel for num_threads(workers) schedule(static, 1)
        for (int i = 0; i < workers; i++) {
            work(j, &j->worker[i]);
        }
    }
    status = report_failure(j);
fail:
    close_workers(j);
    return status;
}

/* ---- several ranks ----
 *
 * In rounds: each rank makes as many missing samples as it has threads, the ranks send them in
 * turn, and rank 0 writes. */

static tg_status share_numbers(tg_comm *comm, int64_t *numbers, int64_t count) {
    const tg_tensor all = {.dtype = TG_I64, .shape = {1, {count}}, .data = numbers};
    return tg_comm_broadcast(comm, 0, &all);
}

/* Numbers of the samples that rank 0 lacks, on every rank; must be freed. */
static tg_status list_missing(const job *j, int64_t **out, int64_t *count) {
    const tg_generator *g = j->g;
    const tg_status status = TG_NEW(g->ctx, TG_MEM_OTHER, *out, g->samples[j->split] + 1);
    TG_CALL(tg_comm_agree(g->comm, status));
    *count = 0;
    for (int64_t i = 0; i < g->samples[j->split] && tg_comm_rank(g->comm) == 0; i++) {
        if (!tg_gen_has(g, j->split, i)) {
            (*out)[(*count)++] = i;
        }
    }
    TG_CALL(share_numbers(g->comm, count, 1));
    return share_numbers(g->comm, *out, *count);
}

/* This rank's samples of a round, one per worker. */
static tg_status make_share(job *j, const int64_t *missing, int64_t count) {
    const tg_generator *g = j->g;
    const int workers = j->workers;
    j->status = TG_OK;
#pragma omp parallel for num_threads(workers) schedule(static, 1)
    for (int i = 0; i < workers; i++) {
        worker *w = &j->worker[i];
        if (i < count) {
            w->sample[0] = missing[i];
            w->keys[0] = tg_field_key_of(g->seed, g->pde->id, j->split, (uint32_t)missing[i]);
            int64_t failed = 0;
            deliver(j, w, 0, solve(g->pde, w, 1, &failed), failed);
        }
    }
    return report_failure(j);
}

/* Sends sample `number`, made by worker w of `rank`, to rank 0, which stores it. */
static tg_status send_sample(job *j, int rank, int i, int64_t number, worker *received) {
    tg_comm *comm = j->g->comm;
    worker *w = rank == tg_comm_rank(comm) ? &j->worker[i] : received;
    for (int v = 0; v < j->views && rank != 0; v++) {
        const tg_pde_view *view = &w->views[v];
        const struct {
            void *data;
            tg_sample_part part;
        } parts[2] = {{view->x, TG_SAMPLE_X}, {view->y, TG_SAMPLE_Y}};
        for (int p = 0; p < 2; p++) {
            const int64_t n = tg_gen_floats(j->g, parts[p].part, view->resolution);
            const tg_tensor floats = {.dtype = TG_F32, .shape = {1, {n}}, .data = parts[p].data};
            TG_CALL(floats.data ? tg_comm_broadcast(comm, rank, &floats) : TG_OK);
        }
    }
    w->sample[0] = number;
    if (tg_comm_rank(comm) == 0 && j->status == TG_OK) {
        deliver(j, w, 1, TG_OK, 0);
    } else {
        j->run->progress.done++;
    }
    return TG_OK;
}

/* All ranks stop if one is asked to. Rank 0 is asked after each sample. */
static tg_status agree_to_stop(job *j) {
    double wanted = j->stopped || (tg_comm_rank(j->g->comm) > 0 && !tg_gen_tick(j->run));
    const tg_tensor stops = {.dtype = TG_F64, .shape = {1, {1}}, .data = &wanted};
    const tg_status status = tg_comm_all_reduce(j->g->comm, TG_COMM_MAX, &stops);
    j->stopped = wanted > 0.0;
    return status;
}

static tg_status run_rounds(job *j, const int64_t *missing, int64_t count) {
    tg_comm *comm = j->g->comm;
    const int ranks = tg_comm_ranks(comm), each = j->workers - 1; /* the last one receives */
    const int64_t per_round = (int64_t)ranks * each;
    for (int64_t base = 0; base < count && !j->stopped; base += per_round) {
        const int64_t own = base + (int64_t)tg_comm_rank(comm) * each;
        const int64_t left = count - own;
        TG_CALL(tg_comm_agree(
            comm, make_share(j, missing + tg_min(own, count), tg_min(tg_max(left, 0), each))));
        for (int64_t n = base; n < tg_min(base + per_round, count); n++) {
            TG_CALL(send_sample(j, (int)((n - base) / each), (int)((n - base) % each), missing[n],
                                &j->worker[each]));
        }
        TG_CALL(tg_comm_agree(comm, report_failure(j)));
        TG_CALL(agree_to_stop(j));
    }
    return TG_OK;
}

static tg_status run_shared(job *j) {
    tg_context *ctx = j->g->ctx;
    int64_t *missing = NULL, count = 0;
    double threads = -(double)ctx->threads; /* per rank: the minimum over ranks */
    const tg_tensor least = {.dtype = TG_F64, .shape = {1, {1}}, .data = &threads};
    tg_status status = TG_OK;
    TG_TRY(list_missing(j, &missing, &count));
    TG_TRY(tg_comm_all_reduce(j->g->comm, TG_COMM_MAX, &least));
    j->batch = 1;
    j->workers = (int)-threads + 1;
    if (count > 0) {
        TG_TRY(tg_comm_agree(j->g->comm, open_workers(j)));
        TG_TRY(run_rounds(j, missing, count));
    }
fail:
    close_workers(j);
    tg_mem_free(ctx, missing);
    return status;
}

tg_status tg_gen_samples(tg_generator *g, tg_gen_run *run, bool *stopped) {
    for (int s = 0; s < TG_SPLITS; s++) {
        run->progress.total += g->samples[s];
        for (int64_t i = 0; i < g->samples[s] && tg_comm_rank(g->comm) == 0; i++) {
            run->progress.found += tg_gen_has(g, (tg_split)s, i);
        }
    }
    run->progress.unit = g->frames > 0 ? "trajectories" : "samples";
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
        const tg_status status = g->comm ? run_shared(&j) : run_job(&j);
        *stopped = j.stopped && status == TG_OK;
        pthread_mutex_destroy(&j.mutex);
        TG_CALL(status);
    }
    return TG_OK;
}

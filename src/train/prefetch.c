/* Prefetching. Batch n uses slot n % 2: the thread fills it, the copy stream uploads it, and once
 * the stream has passed that upload the thread may fill it again. */
#include "train/trainer.h"

#include <pthread.h>

#include "base/minmax.h"
#include "base/system.h"
#include "data/dataset.h"

enum { SLOTS = 2 };

typedef struct slot {
    tg_pinned data;
    int64_t count;  /* samples */
    bool is_filled; /* from filling until recycling */
    tg_status status;
} slot;

struct tg_prefetch {
    tg_model *model;
    tg_context *reader;
    tg_loader *loader;
    tg_tensor x, y;   /* on the backend, for a whole batch */
    int64_t *indices; /* (batch) samples of the batch being read; NULL: no noise */
    tg_dataset_facts facts;
    int64_t epoch;
    int64_t taken; /* the batch that is handed out next */
    int64_t sent;  /* the batch copied next */
    double waited; /* seconds spent waiting for batches to be read */

    /* used on a stream */
    slot slots[SLOTS];
    pthread_t thread;
    bool has_thread;
    pthread_mutex_t lock; /* protects the fields below and the slots' is_filled */
    pthread_cond_t change;
    bool is_running, is_busy, ends;
    int64_t filled; /* the batch read next */
};

static const tg_stream_ops *stream_of(const tg_prefetch *f) {
    return f->model->be->ops->stream;
}

/* ---- reading ---- */

/* Noise on normalized inputs: depends only on sample, place and epoch, not on who reads it and
 * when.
 */
static void add_noise(const tg_prefetch *f, int64_t epoch, tg_tensor *x) {
    const tg_run_config *config = &f->model->config;
    const tg_rng rng = {.seed = (uint64_t)config->distributed.seed,
                        .purpose = TG_RNG_NOISE,
                        .step = (uint32_t)epoch};
    const int64_t channels = f->facts.in_channels,
                  whole = tg_product(f->facts.n_dim, f->facts.grid);
    const int64_t row = whole / f->facts.grid[0], slab = f->facts.rows * row;
    const bool is_complex = tg_dtype_is_complex(x->dtype);
    for (int64_t i = 0; i < x->shape.dim[0] * channels * slab; i++) {
        const int64_t image = f->indices[i / slab / channels] * channels + i / slab % channels;
        const uint64_t at = 2 * (uint64_t)(image * whole + f->facts.first_row * row + i % slab);
        tg_scalar value = tg_load(x->dtype, x->data, i);
        value.re += config->loop.input_noise * tg_rng_normal(&rng, at);
        value.im += is_complex ? config->loop.input_noise * tg_rng_normal(&rng, at + 1) : 0.0;
        tg_store(x->dtype, x->data, i, value);
    }
}

/* By the channels of its normalizer, which repeat in the y of a rollout. */
static tg_status normalize(const tg_normalizer *by, tg_tensor side) {
    const int64_t channels = tg_normalizer_channels(by);
    side.shape.dim[0] *= side.shape.dim[1] / channels;
    side.shape.dim[1] = channels;
    return tg_normalizer_apply(by, &side);
}

/* Reads and normalizes a batch on the host. */
static tg_status read_batch(const tg_prefetch *f, int64_t epoch, int64_t batch, void *x, void *y,
                            int64_t *count) {
    TG_CALL(tg_loader_batch(f->loader, epoch, batch, x, y, count));
    tg_tensor sides[2] = {tg_batch_view(&f->x, *count), tg_batch_view(&f->y, *count)};
    void *const data[2] = {x, y};
    for (int side = 0; side < 2; side++) {
        sides[side].data = data[side];
        sides[side].place = TG_HOST;
        if (f->model->encoder[side]) {
            TG_CALL(normalize(f->model->encoder[side], sides[side]));
        }
    }
    if (f->indices) {
        TG_CALL(tg_loader_indices(f->loader, epoch, batch, f->indices, count));
        add_noise(f, epoch, &sides[0]);
    }
    return TG_OK;
}

static bool has_work(const tg_prefetch *f) {
    return f->is_running && f->filled < tg_loader_batches(f->loader) &&
           !f->slots[f->filled % SLOTS].is_filled;
}

static void *read_ahead(void *user) {
    tg_prefetch *f = user;
    pthread_mutex_lock(&f->lock);
    while (!f->ends) {
        if (!has_work(f)) {
            pthread_cond_wait(&f->change, &f->lock);
            continue;
        }
        slot *s = &f->slots[f->filled % SLOTS];
        const int64_t epoch = f->epoch, batch = f->filled;
        f->is_busy = true;
        pthread_mutex_unlock(&f->lock);
        s->status = read_batch(f, epoch, batch, s->data.x, s->data.y, &s->count);
        pthread_mutex_lock(&f->lock);
        f->is_busy = false;
        f->is_running = f->is_running && s->status == TG_OK; /* the error is reported first */
        s->is_filled = true;
        f->filled++;
        pthread_cond_broadcast(&f->change);
    }
    pthread_mutex_unlock(&f->lock);
    return NULL;
}

/* ---- life ---- */

static tg_status start_thread(tg_prefetch *f) {
    (void)pthread_mutex_init(&f->lock, NULL);
    (void)pthread_cond_init(&f->change, NULL);
    f->has_thread = pthread_create(&f->thread, NULL, read_ahead, f) == 0;
    return f->has_thread
               ? TG_OK
               : tg_fail(f->model->ctx, TG_E_MEMORY, "no thread can be made to read data");
}

tg_status tg_prefetch_create(tg_model *model, tg_context *reader, tg_loader *loader,
                             const tg_dataset_facts *facts, int64_t batch_size, tg_prefetch **out) {
    tg_status status = TG_OK;
    tg_context *ctx = model->ctx;
    tg_prefetch *f = NULL;
    *out = NULL;
    const tg_shape shapes[2] = {tg_batch_shape(facts, batch_size, facts->in_channels),
                                tg_batch_shape(facts, batch_size, facts->out_channels)};
    TG_TRY(TG_NEW(ctx, TG_MEM_OTHER, f, 1));
    f->model = model;
    f->reader = reader;
    f->loader = loader;
    f->facts = *facts;
    TG_TRY(tg_backend_tensor(ctx, TG_MEM_DATA, facts->dtype, &shapes[0], &f->x));
    TG_TRY(tg_backend_tensor(ctx, TG_MEM_DATA, facts->dtype, &shapes[1], &f->y));
    if (model->config.loop.input_noise > 0.0) {
        TG_TRY(TG_ALLOC(ctx, TG_MEM_OTHER, f->indices, batch_size));
    }
    for (int i = 0; stream_of(f) && i < SLOTS; i++) {
        TG_TRY(tg_pinned_create(model->be, &f->x, &f->y, &f->slots[i].data));
    }
    TG_TRY(stream_of(f) ? start_thread(f) : TG_OK);
    *out = f;
    return TG_OK;
fail:
    tg_prefetch_destroy(&f);
    return status;
}

tg_amounts tg_prefetch_bytes(const tg_backend *be, const tg_dataset_facts *facts,
                             int64_t batch_size) {
    const size_t batch = (size_t)batch_size * (facts->x_bytes + facts->y_bytes);
    tg_amounts out = {{{0}}};
    out.at[be->ops->place][TG_MEM_DATA] = batch;
    out.at[TG_HOST][TG_MEM_DATA] += be->ops->stream ? SLOTS * batch : 0;
    return out;
}

static void end_thread(tg_prefetch *f) {
    if (f->has_thread) {
        pthread_mutex_lock(&f->lock);
        f->ends = true;
        pthread_cond_broadcast(&f->change);
        pthread_mutex_unlock(&f->lock);
        pthread_join(f->thread, NULL);
        pthread_cond_destroy(&f->change);
        pthread_mutex_destroy(&f->lock);
    }
}

void tg_prefetch_destroy(tg_prefetch **prefetch) {
    if (!prefetch || !*prefetch) {
        return;
    }
    tg_prefetch *f = *prefetch;
    tg_backend *be = f->model->be;
    end_thread(f);
    if (stream_of(f)) {
        (void)stream_of(f)->follow(be, TG_STREAM_MAIN, TG_STREAM_COPY);
        (void)be->ops->synchronize(be); /* copies from memory about to be freed */
        for (int i = 0; i < SLOTS; i++) {
            tg_pinned_destroy(be, &f->slots[i].data);
        }
    }
    tg_tensor_destroy(&f->x);
    tg_tensor_destroy(&f->y);
    tg_mem_free(f->model->ctx, f->indices);
    TG_FREE(f->model->ctx, *prefetch);
}

/* ---- an epoch ---- */

/* With the lock held: waits until the thread is idle. */
static void rest(tg_prefetch *f) {
    f->is_running = false;
    while (f->is_busy) {
        pthread_cond_wait(&f->change, &f->lock);
    }
}

tg_status tg_prefetch_stop(tg_prefetch *f) {
    if (!stream_of(f)) {
        return TG_OK;
    }
    pthread_mutex_lock(&f->lock);
    rest(f);
    pthread_mutex_unlock(&f->lock);
    return stream_of(f)->follow(f->model->be, TG_STREAM_MAIN, TG_STREAM_COPY);
}

tg_status tg_prefetch_start(tg_prefetch *f, int64_t epoch, int64_t batch) {
    tg_status status = tg_prefetch_stop(f);
    f->epoch = epoch;
    f->taken = f->sent = batch;
    f->waited = 0.0;
    if (status != TG_OK || !stream_of(f)) {
        return status;
    }
    /* the stream has joined the copy stream: this also waits for uploads from the buffers */
    TG_CALL(f->model->be->ops->synchronize(f->model->be));
    pthread_mutex_lock(&f->lock);
    f->filled = batch;
    for (int i = 0; i < SLOTS; i++) {
        f->slots[i].is_filled = false;
    }
    f->is_running = true;
    pthread_cond_broadcast(&f->change);
    pthread_mutex_unlock(&f->lock);
    return TG_OK;
}

/* Copies the next batch after the queued work, waiting for the thread to read it first. */
static tg_status send(tg_prefetch *f) {
    tg_backend *be = f->model->be;
    const slot *s = &f->slots[f->sent % SLOTS];
    const double start = tg_seconds();
    pthread_mutex_lock(&f->lock);
    while (!s->is_filled) {
        pthread_cond_wait(&f->change, &f->lock);
    }
    pthread_mutex_unlock(&f->lock);
    f->waited += tg_seconds() - start;
    TG_CALL(tg_context_adopt(f->model->ctx, f->reader, s->status));
    const tg_tensor x = tg_batch_view(&f->x, s->count), y = tg_batch_view(&f->y, s->count);
    TG_CALL(stream_of(f)->copy_stream_upload(be, true, x.data, s->data.x, tg_tensor_bytes(&x)));
    TG_CALL(stream_of(f)->copy_stream_upload(be, true, y.data, s->data.y, tg_tensor_bytes(&y)));
    f->sent++;
    return TG_OK;
}

static tg_status take_sent(tg_prefetch *f, int64_t *count) {
    slot *s = &f->slots[f->taken % SLOTS];
    if (f->sent == f->taken) {
        TG_CALL(send(f));
    }
    TG_CALL(stream_of(f)->follow(f->model->be, TG_STREAM_MAIN, TG_STREAM_COPY));
    TG_CALL(stream_of(f)->event_record(f->model->be, s->data.sent));
    *count = s->count;
    return TG_OK;
}

tg_status tg_prefetch_next(tg_prefetch *f, tg_tensor *x, tg_tensor *y) {
    int64_t count = 0;
    if (stream_of(f)) {
        TG_CALL(take_sent(f, &count));
    } else {
        const double start = tg_seconds();
        const tg_status status = read_batch(f, f->epoch, f->taken, f->x.data, f->y.data, &count);
        f->waited += tg_seconds() - start;
        TG_CALL(tg_context_adopt(f->model->ctx, f->reader, status));
    }
    *x = tg_batch_view(&f->x, count);
    *y = tg_batch_view(&f->y, count);
    f->taken++;
    return TG_OK;
}

tg_status tg_prefetch_ahead(tg_prefetch *f) {
    const bool is_last = f->taken >= tg_loader_batches(f->loader);
    return stream_of(f) && !is_last && f->sent == f->taken ? send(f) : TG_OK;
}

tg_status tg_prefetch_recycle(tg_prefetch *f) {
    if (!stream_of(f)) {
        return TG_OK;
    }
    slot *s = &f->slots[(f->taken - 1) % SLOTS];
    const tg_status status = stream_of(f)->event_wait(f->model->be, s->data.sent);
    pthread_mutex_lock(&f->lock);
    s->is_filled = false;
    pthread_cond_broadcast(&f->change);
    pthread_mutex_unlock(&f->lock);
    return status;
}

double tg_prefetch_waited(const tg_prefetch *prefetch) {
    return prefetch->waited;
}

/* Errors of a model on a test set.
 *
 *     e_b = |prediction_b - truth_b| / |truth_b|,   |.|^2 = sum over the channels c of |.|_c^2
 *
 * is the error of sample b in L2 or H1; reported are its mean over the samples, and the same for
 * each channel. The backend computes the |.|_c^2 of all samples, the rest is done here. On a
 * stream, a batch is read while the previous one is computed, and only the last result is waited
 * for. Ranks that share samples have the |.|_c^2 of their slabs, which are added up at the end. */
#include <math.h>
#include <stdlib.h>

#include "base/memory.h"
#include "base/minmax.h"
#include "data/dataset.h"
#include "nn/network.h"
#include "train/model.h"
#include "train/run_datasets.h"

enum { SLOTS = 2, NORMS = 2 }; /* L2, H1 */

typedef struct evaluation {
    tg_model *model;
    tg_loader *loader;
    tg_pinned slots[SLOTS];   /* used in turn; empty on the host, which reads batches into .. */
    tg_tensor x, y;           /* .. these, on the backend */
    tg_tensor pred;           /* normalized, if the model is .. */
    tg_tensor decoded;        /* .. and in the units of the data; none if that is the same */
    tg_tensor squares[NORMS]; /* (samples, channels, 2): of errors and truths */
    nn_loss_slab slab;        /* of a model split over ranks */
} evaluation;

void tg_test_errors_destroy(tg_test_errors *errors) {
    if (errors) {
        tg_tensor_destroy(&errors->values);
        *errors = (tg_test_errors){0};
    }
}

/* ---- memory ---- */

static const tg_stream_ops *stream_of(const evaluation *e) {
    return e->model->be->ops->stream;
}

static void close_evaluation(evaluation *e) {
    tg_backend *be = e->model->be;
    tg_tensor *const tensors[] = {&e->x,       &e->y,          &e->pred,
                                  &e->decoded, &e->squares[0], &e->squares[1]};
    if (stream_of(e)) {
        (void)be->ops->synchronize(be); /* uploads from memory about to be freed */
    }
    for (int i = 0; stream_of(e) && i < SLOTS; i++) {
        tg_pinned_destroy(be, &e->slots[i]);
    }
    for (size_t i = 0; i < sizeof tensors / sizeof tensors[0]; i++) {
        tg_tensor_destroy(tensors[i]);
    }
    be->ops->release(be, e->slab.memory);
    tg_loader_destroy(&e->loader);
}

static bool is_slab(const tg_dataset_facts *facts) {
    return facts->rows < facts->grid[0];
}

/* For batches of `size` samples; needs close_evaluation even if it fails. */
static tg_status open_evaluation(tg_dataset *dataset, const tg_dataset_facts *facts, int64_t size,
                                 evaluation *e) {
    tg_context *ctx = e->model->ctx;
    const tg_loader_config config = {.size = sizeof(tg_loader_config), .batch_size = size};
    const tg_shape x = tg_batch_shape(facts, size, facts->in_channels);
    const tg_shape y = tg_batch_shape(facts, size, facts->out_channels);
    const tg_shape squares = {.ndim = 3, .dim = {facts->samples, facts->out_channels, 2}};
    TG_CALL(tg_loader_create(ctx, dataset, &config, &e->loader));
    TG_CALL(tg_backend_tensor(ctx, TG_MEM_DATA, facts->dtype, &x, &e->x));
    TG_CALL(tg_backend_tensor(ctx, TG_MEM_DATA, facts->dtype, &y, &e->y));
    TG_CALL(tg_backend_tensor(ctx, TG_MEM_DATA, facts->dtype, &y, &e->pred));
    if (e->model->encoder[TG_DATA_Y]) {
        TG_CALL(tg_backend_tensor(ctx, TG_MEM_DATA, facts->dtype, &y, &e->decoded));
    }
    for (int norm = 0; norm < NORMS; norm++) {
        TG_CALL(tg_backend_tensor(ctx, TG_MEM_DATA, TG_F64, &squares, &e->squares[norm]));
    }
    if (is_slab(facts)) {
        e->slab = (nn_loss_slab){.split = &e->model->config.split, .whole = facts->grid[0]};
        TG_CALL(TG_BACKEND_ALLOC(e->model->be, TG_MEM_DATA, e->slab.memory,
                                 tg_loss_squares_bytes(facts->dtype, &y)));
    }
    for (int i = 0; stream_of(e) && i < SLOTS; i++) {
        TG_CALL(tg_pinned_create(e->model->be, &e->x, &e->y, &e->slots[i]));
    }
    return TG_OK;
}

void tg_evaluation_add_bytes(const tg_backend *be, const tg_dataset_facts *facts, int64_t samples,
                             int64_t size, bool decodes, tg_amounts *out) {
    const size_t x = (size_t)size * facts->x_bytes, y = (size_t)size * facts->y_bytes;
    out->at[be->ops->place][TG_MEM_DATA] += x + (decodes ? 3 : 2) * y;
    out->at[be->ops->place][TG_MEM_DATA] +=
        (size_t)(NORMS * samples * facts->out_channels * 2) * sizeof(double);
    const tg_shape shape = tg_batch_shape(facts, size, facts->out_channels);
    out->at[be->ops->place][TG_MEM_DATA] +=
        is_slab(facts) ? tg_loss_squares_bytes(facts->dtype, &shape) : 0;
    out->at[TG_HOST][TG_MEM_DATA] += be->ops->stream ? SLOTS * (x + y) : 0;
}

/* ---- batches ---- */

/* Reads a batch, the `number`-th here, and copies it to the backend. */
static tg_status take_batch(evaluation *e, int64_t number, int64_t batch, int64_t *count) {
    const tg_pinned *s = &e->slots[number % SLOTS];
    tg_backend *be = e->model->be;
    void *const to[2] = {s->x ? s->x : e->x.data, s->y ? s->y : e->y.data};
    if (s->sent && number >= SLOTS) {
        TG_CALL(stream_of(e)->event_wait(be, s->sent));
    }
    TG_CALL(tg_loader_batch(e->loader, 0, batch, to[0], to[1], count));
    tg_tensor x = tg_batch_view(&e->x, *count);
    const tg_tensor y = tg_batch_view(&e->y, *count);
    if (e->model->encoder[TG_DATA_X]) {
        x.data = to[0];
        x.place = TG_HOST;
        TG_CALL(tg_normalizer_apply(e->model->encoder[TG_DATA_X], &x));
    }
    if (s->sent) {
        TG_CALL(be->ops->copy(be, e->x.data, to[0], tg_tensor_bytes(&x)));
        TG_CALL(be->ops->copy(be, e->y.data, to[1], tg_tensor_bytes(&y)));
        TG_CALL(stream_of(e)->event_record(be, s->sent));
    }
    return TG_OK;
}

/* Points have no finite differences: their H1 norm is NaN. */
static int norms_of(const evaluation *e) {
    return tg_run_on_points(&e->model->config) ? 1 : NORMS;
}

/* Queues the squares of `count` samples of the set, from number `first` on. */
static tg_status measure_batch(evaluation *e, int64_t first, int64_t count) {
    static const tg_loss_kind kinds[NORMS] = {TG_LOSS_LP, TG_LOSS_H1};
    tg_context *ctx = e->model->ctx;
    const tg_normalizer *encoder = e->model->encoder[TG_DATA_Y];
    const tg_tensor x = tg_batch_view(&e->x, count), y = tg_batch_view(&e->y, count);
    const tg_tensor decoded = tg_batch_view(encoder ? &e->decoded : &e->pred, count);
    tg_tensor pred = tg_batch_view(&e->pred, count);
    TG_CALL(tg_model_place_points(e->model, &x, NULL));
    TG_CALL(tg_fno_forward(e->model->fno, &x, &pred));
    TG_CALL(encoder ? tg_normalizer_decode(encoder, e->model->be, &pred, &decoded) : TG_OK);
    for (int norm = 0; norm < norms_of(e); norm++) {
        tg_tensor squares;
        TG_CALL(tg_tensor_slice(ctx, &e->squares[norm], first, count, &squares));
        TG_CALL(tg_loss_squares(ctx, kinds[norm], &decoded, &y, e->slab.split ? &e->slab : NULL,
                                &squares));
    }
    return TG_OK;
}

/* ---- errors ---- */

static double relative(double error, double truth) {
    const double ratio = sqrt(error) / (truth == 0.0 ? 1.0 : sqrt(truth));
    return isnan(ratio) ? (double)NAN : ratio; /* clears the sign */
}

/* Warns once per set which sample makes the mean NaN or Inf, judging by the squares of L2. */
static void warn_of_nonfinite(const evaluation *e, tg_dataset *dataset,
                              const tg_test_errors *errors, const double *squares) {
    int64_t i = 0;
    const int64_t count = 2 * errors->samples * errors->channels;
    while (i < count && isfinite(squares[i])) {
        i++;
    }
    if (i == count || dataset->has_warned) {
        return;
    }
    dataset->has_warned = true;
    const bool is_truth = !isfinite(squares[i | 1]); /* pairs: of the error, of the truth */
    tg_log(e->model->ctx, TG_LOG_WARN,
           "test on %s: %s of sample %lld (the first is 0) has a NaN or Inf%s; its error and the "
           "mean are not finite",
           errors->grid, is_truth ? "y" : "the prediction", (long long)(i / (2 * errors->channels)),
           is_truth ? "" : ", as x may have, or the weights");
}

/* Errors of samples and channels from the squares of one norm; returns the mean over samples. */
static double add_up(const double *squares, int64_t samples, int64_t channels, double *of_channel,
                     double *of_sample) {
    double sum = 0.0;
    for (int64_t c = 0; c < channels; c++) {
        of_channel[c] = 0.0;
    }
    for (int64_t b = 0; b < samples; b++) {
        double error = 0.0, truth = 0.0;
        for (int64_t c = 0; c < channels; c++, squares += 2) {
            error += squares[0];
            truth += squares[1];
            of_channel[c] += relative(squares[0], squares[1]);
        }
        of_sample[b] = relative(error, truth);
        sum += of_sample[b];
    }
    for (int64_t c = 0; c < channels; c++) {
        of_channel[c] /= (double)samples;
    }
    return sum / (double)samples;
}

static int compare(const void *a, const void *b) {
    const double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

/* Quantile q is at position q (n - 1) of the sorted values, by linear interpolation. NaN if a value
 * is not finite. */
static void set_quantiles(const double *values, int64_t n, double *room, double *out) {
    bool has_order = n > 0;
    for (int64_t i = 0; i < n; i++) {
        room[i] = values[i];
        has_order = has_order && !isnan(values[i]);
    }
    if (has_order) {
        qsort(room, (size_t)n, sizeof *room, compare);
    }
    for (int i = 0; i < TG_QUANTILES; i++) {
        const double at = (double)(n - 1) * i / (TG_QUANTILES - 1);
        const int64_t below = (int64_t)at, above = below + 1 < n ? below + 1 : below;
        const double share = at - (double)below;
        out[i] = !has_order     ? (double)NAN
                 : share == 0.0 ? room[below]
                                : room[below] + share * (room[above] - room[below]);
    }
}

/* Waits for the squares and computes errors from them. */
static tg_status report(evaluation *e, tg_dataset *dataset, tg_test_errors *out) {
    tg_backend *be = e->model->be;
    const tg_shape values = {.ndim = 2, .dim = {NORMS, out->channels + out->samples}};
    const size_t bytes = tg_tensor_bytes(&e->squares[0]);
    double *squares = NULL, mean[NORMS];
    tg_status status = TG_OK;
    TG_TRY(tg_tensor_create(e->model->ctx, TG_MEM_OTHER, TG_F64, &values, &out->values));
    TG_TRY(TG_ALLOC(e->model->ctx, TG_MEM_OTHER, squares, 2 * out->samples * out->channels));
    double *list = out->values.data;
    out->l2_channels = list;
    out->l2_samples = list + out->channels;
    out->h1_channels = list + values.dim[1];
    out->h1_samples = out->h1_channels + out->channels;
    double *h1 = list + values.dim[1];
    for (int64_t i = 0; i < values.dim[1]; i++) {
        h1[i] = (double)NAN;
    }
    mean[1] = (double)NAN;
    for (int norm = 0; norm < norms_of(e); norm++, list += values.dim[1]) {
        TG_TRY(be->ops->download(be, squares, e->squares[norm].data, bytes));
        if (norm == 0) {
            warn_of_nonfinite(e, dataset, out, squares);
        }
        mean[norm] = add_up(squares, out->samples, out->channels, list, list + out->channels);
    }
    out->l2 = mean[0];
    out->h1 = mean[1];
    set_quantiles(out->l2_samples, out->samples, squares, out->l2_quantiles);
    set_quantiles(out->h1_samples, out->samples, squares, out->h1_quantiles);
fail:
    TG_FREE(e->model->ctx, squares);
    return status;
}

/* The squares of every groups-th batch, starting with that of this group; 0 for all others. */
static tg_status measure(evaluation *e, const tg_comm *comm, tg_dataset *dataset, int64_t size) {
    tg_model *model = e->model;
    tg_backend *be = model->be;
    const int parts = nn_is_split(&model->config.split) ? model->config.split.parts : 1;
    const int ranks = comm ? tg_comm_ranks(comm) : 1;
    const int group = tg_comm_rank(comm) / parts, groups = ranks / parts;
    const tg_dataset_facts facts = tg_dataset_get_facts(dataset);
    TG_CALL(tg_run_check_set(model->ctx, &model->config, 1, "the data", &facts));
    TG_CALL(nn_agree(&model->config.split, open_evaluation(dataset, &facts, size, e)));
    for (int norm = 0; ranks > 1 && norm < NORMS; norm++) {
        TG_CALL(be->ops->fill(be, TG_F64, tg_shape_numel(&e->squares[norm].shape), (tg_scalar){0},
                              e->squares[norm].data));
    }
    TG_CALL(nn_agree(&model->config.split, tg_model_prepare(model, size, facts.grid, false)));
    for (int64_t i = 0, b = group; b < tg_loader_batches(e->loader); i++, b += groups) {
        int64_t count = 0;
        TG_CALL(nn_agree(&model->config.split, take_batch(e, i, b, &count)));
        TG_CALL(measure_batch(e, b * size, count));
    }
    return TG_OK;
}

/* Adds up the squares over the ranks. */
static tg_status share_squares(const evaluation *e, tg_comm *comm, tg_status status) {
    status = tg_comm_agree(comm, status);
    for (int norm = 0; norm < norms_of(e) && status == TG_OK; norm++) {
        status = tg_comm_all_reduce(comm, TG_COMM_SUM, &e->squares[norm]);
    }
    return status;
}

tg_status tg_model_evaluate_shared(tg_model *model, tg_comm *comm, tg_dataset *dataset,
                                   int64_t size, tg_test_errors *out) {
    const tg_dataset_facts facts = tg_dataset_get_facts(dataset);
    const int64_t most = tg_run_at_once(&model->config, tg_min(size, facts.samples));
    tg_status status = TG_OK;
    evaluation e = {.model = model};
    *out = (tg_test_errors){.samples = facts.samples, .channels = facts.out_channels};
    tg_grid_text(facts.n_dim, facts.grid, out->grid);
    if (most < 1) {
        return tg_fail(model->ctx, TG_E_ARGUMENT, "evaluation: no samples");
    }
    status = measure(&e, comm, dataset, most);
    TG_TRY(comm ? share_squares(&e, comm, status) : status);
    TG_TRY(report(&e, dataset, out));
fail:
    close_evaluation(&e);
    if (status != TG_OK) {
        tg_test_errors_destroy(out);
    }
    return status;
}

tg_status tg_model_evaluate(tg_model *model, tg_dataset *dataset, int64_t size,
                            tg_test_errors *out) {
    TG_NEED(NULL, model);
    TG_NEED(model->ctx, dataset, out);
    return tg_model_evaluate_shared(model, NULL, dataset, size, out);
}

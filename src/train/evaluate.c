/* Errors of a model on a test set.
 *
 *     e_b = |prediction_b - truth_b| / |truth_b|,   |.|^2 = sum over the channels c of |.|_c^2
 *
 * is the error of sample b in L2 or H1; what is reported is its mean over the samples, and the same
 * of each channel by itself. The backend gives the |.|_c^2, the rest is done here. */
#include <math.h>

#include "base/memory.h"
#include "train/run_datasets.h"
#include "train/weights.h"

/* Sums under way; the lists are those of the result. */
typedef struct tally {
    int64_t channels;
    tg_tensor squares;                    /* (batch, channels, 2) where the backend computes */
    double *host;                         /* the same on the host */
    double *of_channel[2], *of_sample[2]; /* by norm: L2, H1 */
} tally;

void tg_test_errors_destroy(tg_test_errors *errors) {
    if (errors) {
        tg_tensor_destroy(&errors->values);
        *errors = (tg_test_errors){0};
    }
}

/* Two squared norms of every sample and channel. */
static tg_shape squares_shape(int64_t batch, int64_t channels) {
    return (tg_shape){.ndim = 3, .dim = {batch, channels, 2}};
}

void tg_evaluation_add_bytes(const tg_backend *be, const tg_dataset_facts *facts, int64_t size,
                             tg_amounts *out) {
    const tg_shape squares = squares_shape(size, facts->out_channels);
    tg_batch_add_bytes(be, facts, size, out);
    out->at[be->ops->place][TG_MEM_DATA] += (size_t)tg_shape_numel(&squares) * sizeof(double);
}

static tg_status open_tally(tg_context *ctx, int64_t batch, tally *t, tg_test_errors *out) {
    const tg_shape squares = squares_shape(batch, t->channels);
    const tg_shape values = {.ndim = 2, .dim = {2, out->channels + out->samples}};
    tg_status status = TG_OK;
    TG_TRY(tg_tensor_create(ctx, TG_MEM_OTHER, TG_F64, &values, &out->values));
    TG_TRY(tg_backend_tensor(ctx, TG_MEM_DATA, TG_F64, &squares, &t->squares));
    TG_TRY(TG_ALLOC(ctx, TG_MEM_OTHER, t->host, batch * t->channels * 2));
    double *list = out->values.data;
    for (int norm = 0; norm < 2; norm++) {
        t->of_channel[norm] = list;
        t->of_sample[norm] = list + out->channels;
        list += out->channels + out->samples;
        for (int64_t c = 0; c < t->channels; c++) {
            t->of_channel[norm][c] = 0.0;
        }
    }
    out->l2_channels = t->of_channel[0];
    out->h1_channels = t->of_channel[1];
    out->l2_samples = t->of_sample[0];
    out->h1_samples = t->of_sample[1];
fail:
    return status;
}

static double relative(double error, double truth) {
    return sqrt(error) / (truth == 0.0 ? 1.0 : sqrt(truth));
}

/* Adds the errors of `count` samples, the first of which is number `first` of the set. */
static tg_status add_batch(tg_batch *batch, int64_t first, int64_t count, tally *t) {
    static const tg_loss_kind kinds[2] = {TG_LOSS_LP, TG_LOSS_H1};
    tg_backend *be = batch->model->be;
    const tg_tensor pred = tg_batch_view(&batch->pred, count), y = tg_batch_view(&batch->y, count);
    tg_tensor squares = tg_batch_view(&t->squares, count);
    tg_status status = TG_OK;
    for (int norm = 0; norm < 2; norm++) {
        TG_TRY(tg_loss_squares(batch->model->ctx, kinds[norm], &pred, &y, &squares));
        TG_TRY(be->ops->download(be, t->host, squares.data, tg_tensor_bytes(&squares)));
        for (int64_t b = 0; b < count; b++) {
            double error = 0.0, truth = 0.0;
            for (int64_t c = 0; c < t->channels; c++) {
                const double *square = t->host + 2 * (b * t->channels + c);
                error += square[0];
                truth += square[1];
                t->of_channel[norm][c] += relative(square[0], square[1]);
            }
            t->of_sample[norm][first + b] = relative(error, truth);
        }
    }
fail:
    return status;
}

/* Makes means of the sums. */
static void close_tally(tally *t, int64_t samples, double mean[2]) {
    for (int norm = 0; norm < 2; norm++) {
        double sum = 0.0;
        for (int64_t b = 0; b < samples; b++) {
            sum += t->of_sample[norm][b];
        }
        mean[norm] = sum / (double)samples;
        for (int64_t c = 0; c < t->channels; c++) {
            t->of_channel[norm][c] /= (double)samples;
        }
    }
}

tg_status tg_model_evaluate(tg_model *model, tg_dataset *dataset, int64_t size,
                            tg_test_errors *out) {
    TG_NEED(NULL, model);
    TG_NEED(model->ctx, dataset, out);
    const tg_dataset_facts facts = tg_dataset_get_facts(dataset);
    const int64_t most = size < facts.samples ? size : facts.samples;
    tg_status status = TG_OK;
    tg_batch batch = {0};
    tg_loader *loader = NULL;
    tally t = {.channels = facts.out_channels};
    double mean[2];
    *out = (tg_test_errors){.samples = facts.samples, .channels = facts.out_channels};
    tg_grid_text(facts.n_dim, facts.grid, out->grid);
    if (most < 1) {
        return tg_fail(model->ctx, TG_E_ARGUMENT, "evaluation: no samples");
    }
    TG_TRY(tg_run_check_set(model->ctx, &model->config, "the data", &facts));
    TG_TRY(tg_loader_create(
        model->ctx, dataset,
        &(tg_loader_config){.size = sizeof(tg_loader_config), .batch_size = most}, &loader));
    TG_TRY(tg_batch_create(model, &facts, most, &batch));
    TG_TRY(open_tally(model->ctx, most, &t, out));
    tg_weights_check_grid(model, facts.grid);
    TG_TRY(tg_fno_prepare(model->fno, most, facts.grid, false));
    for (int64_t b = 0; b < tg_loader_batches(loader); b++) {
        int64_t count = 0;
        TG_TRY(tg_loader_batch(loader, 0, b, batch.host_x.data, batch.host_y.data, &count));
        TG_TRY(tg_batch_send(&batch, count));
        TG_TRY(tg_batch_predict(&batch, count));
        TG_TRY(add_batch(&batch, b * most, count, &t));
    }
    close_tally(&t, facts.samples, mean);
    out->l2 = mean[0];
    out->h1 = mean[1];
fail:
    tg_tensor_destroy(&t.squares);
    TG_FREE(model->ctx, t.host);
    tg_batch_destroy(&batch);
    tg_loader_destroy(&loader);
    if (status != TG_OK) {
        tg_test_errors_destroy(out);
    }
    return status;
}

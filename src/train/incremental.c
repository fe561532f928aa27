/* Incremental networks: a run begins with fno.incremental_n_modes modes and adds two per dimension
 * (one frequency and its negative) at a time, up to fno.n_modes. Decided before each epoch, from
 * data that checkpoints contain.
 *
 *   loss_gap   |L - L'| <= incremental_loss_eps, with the losses L and L' of the last two epochs:
 *              all dimensions grow
 *   grad       every incremental_grad_max_iter epochs, for each dimension: with
 *              s_k = the sum of |W|^2 over all layers and the modes in use of frequency +-k, and n
 *              the highest frequency,
 *              1 - (s_0 + .. + s_(n - buffer)) / (s_0 + .. + s_n) > incremental_grad_eps
 *
 * Weights of unused modes have zero gradients. */
#include <math.h>

#include "nn/network.h"
#include "tensor/element.h"
#include "train/trainer.h"

typedef struct growth {
    const tg_fno_config *config;
    bool grows[TG_FNO_MAX_DIMS];
} growth;

static void look_at_losses(const tg_trainer *t, growth *g) {
    const double change = fabs(t->progress.losses[0] - t->progress.losses[1]);
    for (int d = 0; d < g->config->n_dim; d++) {
        g->grows[d] = change <= t->model->config.loop.incremental_loss_eps; /* false for NaN */
    }
}

/* The frequency k >= 0 of entry `at` of dimension d of a weight; -1: unused. */
static int64_t frequency_of(const nn_model *model, int d, int64_t at) {
    const tg_fno_config *config = &model->config;
    const int64_t used = config->incremental_n_modes[d];
    if (!config->complex_data && d == config->n_dim - 1) {
        return at <= used / 2 ? at : -1;
    }
    const int64_t within = at - (model->blocks[0].conv.modes[d] - used) / 2;
    const int64_t signed_one = config->complex_modes == TG_MODES_NONNEGATIVE && config->complex_data
                                   ? within
                                   : within - used / 2;
    return within < 0 || within >= used ? -1 : signed_one < 0 ? -signed_one : signed_one;
}

/* Adds |W|^2 of the used entries to the sums of their frequencies, (modes) of each dimension. */
static void add_energy(const nn_model *model, const tg_tensor *weight,
                       double *sums[TG_FNO_MAX_DIMS]) {
    const int n_dim = model->config.n_dim;
    for (int64_t i = 0; i < tg_tensor_numel(weight); i++) {
        int64_t rest = i, k[TG_FNO_MAX_DIMS] = {0};
        bool is_used = true;
        for (int d = n_dim - 1; d >= 0; d--) {
            k[d] = frequency_of(model, d, rest % model->blocks[0].conv.modes[d]);
            rest /= model->blocks[0].conv.modes[d];
            is_used = is_used && k[d] >= 0;
        }
        const tg_scalar w = tg_load(weight->dtype, weight->data, i);
        for (int d = 0; d < n_dim && is_used; d++) {
            sums[d][k[d]] += w.re * w.re + w.im * w.im;
        }
    }
}

static bool is_high(const growth *g, const tg_loop_config *loop, int d, const double *sums) {
    const int64_t highest = g->config->incremental_n_modes[d] / 2;
    double low = 0.0, all = 0.0;
    for (int64_t k = 0; k <= highest; k++) {
        all += sums[k];
        low += k <= highest - loop->incremental_buffer ? sums[k] : 0.0;
    }
    return all > 0.0 && 1.0 - low / all > loop->incremental_grad_eps;
}

static tg_status look_at_weights(const tg_trainer *t, growth *g) {
    const nn_model *model = &t->model->fno->model;
    double *sums[TG_FNO_MAX_DIMS] = {NULL};
    tg_tensor copy = {0};
    tg_status status = TG_OK;
    for (int d = 0; d < g->config->n_dim; d++) {
        TG_TRY(TG_NEW(t->ctx, TG_MEM_OTHER, sums[d], model->blocks[0].conv.modes[d] + 1));
    }
    for (int l = 0; l < (int)g->config->n_layers; l++) {
        const tg_tensor weight =
            tg_fno_get_param(t->model->fno, model->blocks[l].conv.weight).weight;
        TG_TRY(tg_backend_download(t->model->be, &weight, NULL, &copy));
        add_energy(model, &copy, sums);
        tg_tensor_destroy(&copy);
    }
    for (int d = 0; d < g->config->n_dim; d++) {
        g->grows[d] = is_high(g, &t->model->config.loop, d, sums[d]);
    }
fail:
    for (int d = 0; d < TG_FNO_MAX_DIMS; d++) {
        TG_FREE(t->ctx, sums[d]);
    }
    tg_tensor_destroy(&copy);
    return status;
}

static tg_status grow(tg_trainer *t, const growth *g) {
    const tg_shape all = tg_shape_of(g->config->n_dim, g->config->n_modes);
    const tg_shape before = tg_shape_of(g->config->n_dim, g->config->incremental_n_modes);
    tg_shape after = before;
    char texts[3][64];
    for (int d = 0; d < after.ndim; d++) {
        after.dim[d] += g->grows[d] && after.dim[d] < all.dim[d] ? 2 : 0;
    }
    if (tg_shape_equal(&before, &after)) {
        return TG_OK;
    }
    tg_log(t->ctx, TG_LOG_INFO, "epoch %lld: %s modes in use instead of %s, of %s",
           (long long)t->progress.epoch + 1, tg_shape_text(&after, texts[0], sizeof texts[0]),
           tg_shape_text(&before, texts[1], sizeof texts[1]),
           tg_shape_text(&all, texts[2], sizeof texts[2]));
    return tg_fno_set_modes(t->model->fno, after.dim);
}

tg_status tg_trainer_grow_modes(tg_trainer *t) {
    const tg_loop_config *loop = &t->model->config.loop;
    growth g = {.config = tg_fno_get_config(t->model->fno)};
    const bool is_due = t->progress.epoch % loop->incremental_grad_max_iter == 0;
    if (t->progress.batch > 0 || t->progress.epoch == 0) { /* within an epoch, or the first */
        return TG_OK;
    }
    if (loop->incremental_loss_gap) {
        look_at_losses(t, &g);
    } else if (loop->incremental_grad && is_due) {
        TG_CALL(look_at_weights(t, &g));
    }
    return grow(t, &g);
}

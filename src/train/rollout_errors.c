/* Rollouts of a trained model: predictions from predictions, and their errors.
 *
 * For trajectory b at step j, with prediction p and truth y over channels and grid:
 *
 *   l2           |p - y| / |y|
 *   correlation  <p - p_mean, y - y_mean> / (|p - p_mean| |y - y_mean|), the mean of each channel
 *   E(k)         as tg_energy_spectrum has it (tgrad/data.h) */
#include <math.h>
#include <string.h>

#include "base/memory.h"
#include "base/minmax.h"
#include "data/dataset.h"
#include "train/model.h"
#include "train/run_datasets.h"

static const double CORRELATED = 0.8;

/* ---- predictions ---- */

/* The last in_channels channels of (x, made) become x. */
static void move_up(tg_tensor *x, const tg_tensor *made) {
    const size_t samples = (size_t)x->shape.dim[0];
    const size_t whole = tg_tensor_bytes(x) / samples, step = tg_tensor_bytes(made) / samples;
    const size_t taken = step < whole ? step : whole;
    for (size_t s = 0; s < samples; s++) {
        char *kept = (char *)x->data + s * whole;
        memmove(kept, kept + taken, whole - taken);
        memcpy(kept + whole - taken, (const char *)made->data + (s + 1) * step - taken, taken);
    }
}

tg_status tg_model_predict_steps(tg_model *model, const tg_tensor *x, int64_t steps, tg_tensor *y) {
    TG_NEED(NULL, model);
    TG_NEED(model->ctx, x, y);
    tg_context *ctx = model->ctx;
    tg_tensor now = {0}, made = {0};
    tg_shape shape = y->shape;
    tg_status status = TG_OK;
    if (steps < 1 || y->shape.ndim < 2 || y->shape.dim[1] % steps != 0) {
        return tg_fail(ctx, TG_E_SHAPE, "output: %lld channels are not those of %lld steps",
                       (long long)(y->shape.ndim < 2 ? 0 : y->shape.dim[1]), (long long)steps);
    }
    shape.dim[1] /= steps;
    TG_TRY(tg_tensor_create(ctx, TG_MEM_DATA, x->dtype, &x->shape, &now));
    TG_TRY(tg_tensor_create(ctx, TG_MEM_DATA, y->dtype, &shape, &made));
    memcpy(now.data, x->data, tg_tensor_bytes(x));
    const size_t samples = (size_t)shape.dim[0], bytes = tg_tensor_bytes(&made) / samples;
    for (int64_t j = 0; j < steps; j++) {
        TG_TRY(tg_model_predict(model, &now, &made));
        for (size_t s = 0; s < samples; s++) {
            memcpy((char *)y->data + (s * (size_t)steps + (size_t)j) * bytes,
                   (const char *)made.data + s * bytes, bytes);
        }
        move_up(&now, &made);
    }
fail:
    tg_tensor_destroy(&now);
    tg_tensor_destroy(&made);
    return status;
}

/* ---- one step of one trajectory: (channels, grid..) ---- */

typedef struct frame {
    int64_t channels, points;
    int parts; /* 2 for complex numbers */
} frame;

typedef struct sums {
    double error, pred, truth; /* sums of squares: p - y, and p and y without their means */
    double whole;              /* of y itself */
    double product;
} sums;

static void add_channel(const frame *f, const float *p, const float *y, sums *s) {
    for (int part = 0; part < f->parts; part++) {
        double mean[2] = {0.0, 0.0};
        for (int64_t i = part; i < f->points * f->parts; i += f->parts) {
            mean[0] += (double)p[i] / (double)f->points;
            mean[1] += (double)y[i] / (double)f->points;
        }
        for (int64_t i = part; i < f->points * f->parts; i += f->parts) {
            const double error = (double)p[i] - (double)y[i];
            const double a = (double)p[i] - mean[0], b = (double)y[i] - mean[1];
            s->error += error * error;
            s->whole += (double)y[i] * (double)y[i];
            s->pred += a * a;
            s->truth += b * b;
            s->product += a * b;
        }
    }
}

static void compare(const frame *f, const float *p, const float *y, double *l2,
                    double *correlation) {
    sums s = {0};
    for (int64_t c = 0; c < f->channels; c++) {
        const int64_t at = c * f->points * f->parts;
        add_channel(f, p + at, y + at, &s);
    }
    const double norms = sqrt(s.pred) * sqrt(s.truth);
    *l2 = sqrt(s.error) / (s.whole == 0.0 ? 1.0 : sqrt(s.whole));
    *correlation = norms > 0.0 ? s.product / norms : s.pred == s.truth ? 1.0 : 0.0;
    *correlation = isfinite(*l2) ? *correlation : 0.0;
}

/* ---- the whole ---- */

typedef struct rollouts {
    tg_model *model;
    frame frame;
    tg_energy energy;
    tg_tensor x, y, pred; /* of a batch */
    double *l2, *correlation, *spectrum[4];
    tg_rollout_errors *out;
} rollouts;

void tg_rollout_errors_destroy(tg_rollout_errors *errors) {
    if (errors) {
        tg_tensor_destroy(&errors->values);
        *errors = (tg_rollout_errors){0};
    }
}

/* Arrays for the results, all zero. */
static tg_status make_lists(rollouts *r) {
    tg_rollout_errors *out = r->out;
    const int64_t waves = r->energy.count;
    const tg_shape shape = {1, {2 * out->steps + 4 * waves}};
    TG_CALL(tg_tensor_create(r->model->ctx, TG_MEM_OTHER, TG_F64, &shape, &out->values));
    double *list = out->values.data;
    memset(list, 0, tg_tensor_bytes(&out->values));
    out->wavenumbers = waves;
    out->l2 = r->l2 = list;
    out->correlation = r->correlation = list + out->steps;
    for (int i = 0; i < 4; i++) {
        r->spectrum[i] = list + 2 * out->steps + i * waves;
    }
    out->truth_first = r->spectrum[0];
    out->truth_last = r->spectrum[1];
    out->prediction_first = r->spectrum[2];
    out->prediction_last = r->spectrum[3];
    return TG_OK;
}

/* Adds trajectory b of the batch to the means. */
static tg_status add_trajectory(rollouts *r, int64_t b) {
    tg_rollout_errors *out = r->out;
    const frame *f = &r->frame;
    const int64_t size = f->channels * f->points * f->parts, at = b * out->steps * size;
    const float *p = (const float *)r->pred.data + at, *y = (const float *)r->y.data + at;
    const double weight = 1.0 / (double)out->trajectories;
    const int64_t last = (out->steps - 1) * size;
    int64_t correlated = out->steps;
    for (int64_t j = 0; j < out->steps; j++) {
        double l2, correlation;
        compare(f, p + j * size, y + j * size, &l2, &correlation);
        r->l2[j] += weight * l2;
        r->correlation[j] += weight * correlation;
        correlated = correlation < CORRELATED && correlated == out->steps ? j : correlated;
    }
    out->correlated_steps += weight * (double)correlated;
    const float *const frames[4] = {y, y + last, p, p + last};
    for (int i = 0; i < 4; i++) {
        TG_CALL(tg_energy_add(&r->energy, frames[i], f->channels, weight, r->spectrum[i]));
    }
    return TG_OK;
}

/* Rolls out `count` trajectories from number `first` on, each from its first window. */
static tg_status add_batch(rollouts *r, tg_dataset *dataset, int64_t first, int64_t count,
                           int64_t *indices) {
    const tg_dataset_facts facts = tg_dataset_get_facts(dataset);
    const tg_tensor x = tg_batch_view(&r->x, count);
    tg_tensor pred = tg_batch_view(&r->pred, count);
    for (int64_t b = 0; b < count; b++) {
        indices[b] = (first + b) * (facts.samples / facts.trajectories);
    }
    TG_CALL(tg_dataset_read(dataset, indices, count, r->x.data, r->y.data));
    TG_CALL(tg_model_predict_steps(r->model, &x, r->out->steps, &pred));
    for (int64_t b = 0; b < count; b++) {
        TG_CALL(add_trajectory(r, b));
    }
    return TG_OK;
}

static tg_status open_rollouts(rollouts *r, const tg_dataset_facts *facts, int64_t size) {
    tg_context *ctx = r->model->ctx;
    const tg_shape x = tg_batch_shape(facts, size, facts->in_channels);
    const tg_shape y = tg_batch_shape(facts, size, facts->out_channels);
    r->frame = (frame){.channels = facts->out_channels / r->out->steps,
                       .points = tg_product(facts->n_dim, facts->grid),
                       .parts = tg_dtype_is_complex(facts->dtype) ? 2 : 1};
    TG_CALL(tg_energy_open(ctx, facts->dtype, facts->n_dim, facts->grid, &r->energy));
    TG_CALL(make_lists(r));
    TG_CALL(tg_tensor_create(ctx, TG_MEM_DATA, facts->dtype, &x, &r->x));
    TG_CALL(tg_tensor_create(ctx, TG_MEM_DATA, facts->dtype, &y, &r->y));
    return tg_tensor_create(ctx, TG_MEM_DATA, facts->dtype, &y, &r->pred);
}

tg_status tg_model_rollout(tg_model *model, tg_dataset *dataset, int64_t size,
                           tg_rollout_errors *out) {
    TG_NEED(NULL, model);
    TG_NEED(model->ctx, dataset, out);
    const tg_dataset_facts facts = tg_dataset_get_facts(dataset);
    const int64_t channels = tg_fno_get_config(model->fno)->out_channels;
    rollouts r = {.model = model, .out = out};
    int64_t *indices = NULL;
    tg_status status = TG_OK;
    *out = (tg_rollout_errors){.trajectories = facts.trajectories,
                               .steps = tg_max(facts.out_channels / channels, 1)};
    tg_grid_text(facts.n_dim, facts.grid, out->grid);
    if (facts.trajectories < 1 || size < 1) {
        return tg_fail(model->ctx, TG_E_CONFIG, "rollout: %s",
                       size < 1 ? "no samples at a time"
                                : "trajectories are needed, the data are pairs "
                                  "(data.layout)");
    }
    if (tg_dtype_real(facts.dtype) != TG_F32) {
        return tg_fail(model->ctx, TG_E_UNSUPPORTED,
                       "rollout: errors of frames are those of networks in f32 (fno.dtype)");
    }
    TG_TRY(tg_run_check_set(model->ctx, &model->config, out->steps, "the data", &facts));
    const int64_t most = tg_min(size, facts.trajectories);
    TG_TRY(open_rollouts(&r, &facts, most));
    TG_TRY(TG_ALLOC(model->ctx, TG_MEM_OTHER, indices, most));
    for (int64_t first = 0; first < facts.trajectories; first += most) {
        TG_TRY(add_batch(&r, dataset, first, tg_min(most, facts.trajectories - first), indices));
    }
fail:
    tg_energy_close(&r.energy);
    tg_tensor_destroy(&r.x);
    tg_tensor_destroy(&r.y);
    tg_tensor_destroy(&r.pred);
    tg_mem_free(model->ctx, indices);
    if (status != TG_OK) {
        tg_rollout_errors_destroy(out);
    }
    return status;
}

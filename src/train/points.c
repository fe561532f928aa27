/* A network and its data: fields on a grid, or values at points (GINO). For points, a network is
 * prepared for its latent grid and the number of points, and receives their coordinates before
 * every forward pass. Without queries, the points are the queries. */
#include <math.h>
#include <string.h>

#include "backend/tensor.h"
#include "base/memory.h"
#include "nn/network.h"
#include "train/model.h"

bool tg_run_on_points(const tg_run_config *config) {
    return config->fno.architecture == TG_ARCHITECTURE_GINO;
}

int tg_run_data_dims(const tg_run_config *config) {
    return tg_run_on_points(config) ? 1 : config->fno.n_dim;
}

int64_t tg_run_at_once(const tg_run_config *config, int64_t most) {
    return tg_run_on_points(config) ? 1 : most;
}

void tg_run_network_grid(const tg_run_config *config, const int64_t *grid,
                         int64_t out[TG_RUN_GRID]) {
    const tg_list_int *latent = &config->data.latent_grid;
    const int n_dim = config->fno.n_dim;
    const bool on_points = tg_run_on_points(config);
    memset(out, 0, TG_RUN_GRID * sizeof *out);
    for (int d = 0; d < n_dim; d++) {
        out[d] = on_points ? latent->value[latent->count == 1 ? 0 : d] : grid[d];
    }
    if (on_points) {
        out[n_dim] = out[n_dim + 1] = grid[0];
    }
}

tg_status tg_run_check_points(tg_context *ctx, const tg_run_config *config) {
    const tg_fno_config *fno = &config->fno;
    const int sizes = config->data.latent_grid.count;
    if (!tg_run_on_points(config)) {
        return TG_OK;
    }
    if (sizes != 1 && sizes != fno->n_dim) {
        return tg_fail(ctx, TG_E_CONFIG,
                       "data.latent_grid: a grid of %d dimensions, but fno.n_modes has %d", sizes,
                       fno->n_dim);
    }
    if (!(fno->in_gno_radius > 0.0 && fno->out_gno_radius > 0.0)) {
        return tg_fail(ctx, TG_E_CONFIG,
                       "fno.%s_gno_radius: nothing is within 0; expected more than the distance "
                       "of neighbours",
                       fno->in_gno_radius > 0.0 ? "out" : "in");
    }
    const struct {
        bool is_met;
        const char *text;
    } refused[] = {
        {fno->latent_feature_channels > 0, "fno.latent_feature_channels: runs read points and "
                                           "values alone; expected 0 (programs have "
                                           "tg_fno_set_features)"},
        {config->data.layout > TG_LAYOUT_PAIRS,
         "data.layout: points and their values are pairs; expected auto"},
        {config->data.encode_input,
         "data.encode_input: points are taken as they are; expected false"},
        {config->loop.input_noise > 0.0,
         "opt.input_noise: points are taken as they are, and noise would move some out of the unit "
         "box; expected 0"},
    };
    for (size_t i = 0; i < sizeof refused / sizeof refused[0]; i++) {
        if (refused[i].is_met) {
            return tg_fail(ctx, TG_E_CONFIG, "%s", refused[i].text);
        }
    }
    return nn_loss_parts(&config->loss) & NN_LOSS_DIFFERENCES
               ? tg_fail(ctx, TG_E_CONFIG,
                         "opt.training_loss: h1 takes differences on a grid, and these data are "
                         "at points; expected l2, l1.5, abs_l2, .., found %s",
                         config->loop.training_loss)
               : TG_OK;
}

void tg_run_warn_of_radius(tg_context *ctx, const tg_run_config *config) {
    int64_t grid[TG_RUN_GRID];
    double diagonal = 0.0; /* of a cell of the latent grid, squared */
    if (!tg_run_on_points(config)) {
        return;
    }
    tg_run_network_grid(config, &(int64_t){1}, grid);
    for (int d = 0; d < config->fno.n_dim; d++) {
        diagonal += 1.0 / (double)((grid[d] - 1) * (grid[d] - 1));
    }
    if (config->fno.out_gno_radius < 0.5 * sqrt(diagonal)) {
        tg_log(ctx, TG_LOG_WARN,
               "fno.out_gno_radius: %g is less than half the diagonal of a cell of "
               "data.latent_grid, %.3g: queries may have no neighbours there, and all of those get "
               "the same value",
               config->fno.out_gno_radius, 0.5 * sqrt(diagonal));
    }
}

/* ---- models ---- */

tg_status tg_model_prepare(tg_model *model, int64_t batch, const int64_t *grid, bool training) {
    int64_t whole[TG_RUN_GRID];
    tg_run_network_grid(&model->config, grid, whole);
    tg_weights_check_grid(model, whole);
    return tg_fno_prepare(model->fno, batch, whole, training);
}

/* Category other, which plans do not count. */
static tg_status reserve_points(tg_model *model, int64_t count) {
    if (count <= model->most_points) {
        return TG_OK;
    }
    TG_FREE(model->ctx, model->points);
    model->most_points = 0;
    const tg_status status = TG_ALLOC(model->ctx, TG_MEM_OTHER, model->points, count);
    model->most_points = status == TG_OK ? count : 0;
    return status;
}

/* Checks that all of (count, dims) are in the unit box. */
static tg_status check_box(tg_context *ctx, const char *what, const float *place, int64_t count,
                           int64_t dims) {
    for (int64_t i = 0; i < count * dims; i++) {
        if (!(place[i] >= 0.0f && place[i] <= 1.0f)) {
            return tg_fail(ctx, TG_E_NUMERIC,
                           "%s %lld: coordinate %lld is %g; expected the unit box, from 0 to 1",
                           what, (long long)(i / dims), (long long)(i % dims), (double)place[i]);
        }
    }
    return TG_OK;
}

/* The numbers of a tensor on the host; those of a device are copied to `at` in model->points. */
static tg_status read_points(tg_model *model, const tg_tensor *x, int64_t at, const float **out) {
    const bool is_here = x->place == TG_HOST;
    TG_CALL(reserve_points(model, at + (is_here ? 0 : tg_tensor_numel(x))));
    *out = is_here ? x->data : model->points + at;
    if (!is_here) {
        TG_CALL(
            model->be->ops->download(model->be, model->points + at, x->data, tg_tensor_bytes(x)));
    }
    return TG_OK;
}

tg_status tg_model_place_points(tg_model *model, const tg_tensor *x, const tg_tensor *queries) {
    if (!tg_run_on_points(&model->config)) {
        return TG_OK;
    }
    tg_tensor points;
    const int64_t samples = x->shape.dim[0], dims = x->shape.dim[1], count = x->shape.dim[2];
    const float *from = NULL;
    TG_CALL(read_points(model, x, dims * count, &from));
    for (int64_t s = 1; s < samples; s++) {
        if (memcmp(from, from + s * dims * count, (size_t)(dims * count) * sizeof *from) != 0) {
            return tg_fail(model->ctx, TG_E_CONFIG,
                           "data.batch_size: samples of a batch share their points, and these have "
                           "points of their own; expected 1 (and opt.accumulation_steps for more), "
                           "found %lld",
                           (long long)samples);
        }
    }
    for (int64_t i = 0; i < dims * count; i++) {
        model->points[i] = from[i % dims * count + i / dims];
    }
    TG_CALL(check_box(model->ctx, "point", model->points, count, dims));
    const tg_shape shape = {.ndim = 2, .dim = {count, dims}};
    TG_CALL(tg_tensor_wrap(model->ctx, TG_F32, &shape, model->points, &points));
    return tg_fno_set_points(model->fno, &points, queries ? queries : &points, NULL);
}

/* ---- other queries than the points ---- */

static tg_status check_host(const tg_model *model, const char *what, const tg_tensor *t,
                            const tg_shape *shape) {
    return tg_tensor_check(
        model->be, t,
        &(tg_wanted){.what = what, .dtype = TG_F32, .shape = *shape, .or_host = true});
}

static tg_status check_places(const tg_model *model, const tg_tensor *x, const tg_tensor *queries,
                              const tg_tensor *y) {
    const tg_fno_config *fno = &model->config.fno;
    if (!tg_run_on_points(&model->config)) {
        return tg_fail(model->ctx, TG_E_ARGUMENT,
                       "this model works on a grid; one with fno.architecture: gino has queries");
    }
    const bool fits = x->shape.ndim == 3 && queries->shape.ndim == 3 && x->shape.dim[0] > 0;
    const int64_t samples = fits ? x->shape.dim[0] : 1, points = fits ? x->shape.dim[2] : 1;
    const int64_t count = fits ? queries->shape.dim[1] : 1;
    TG_CALL(check_host(model, "x", x, &(tg_shape){3, {samples, fno->in_channels, points}}));
    TG_CALL(check_host(model, "queries", queries, &(tg_shape){3, {samples, count, fno->n_dim}}));
    return check_host(model, "y", y, &(tg_shape){3, {samples, fno->out_channels, count}});
}

tg_status tg_model_predict_at(tg_model *model, const tg_tensor *x, const tg_tensor *queries,
                              tg_tensor *y) {
    TG_NEED(NULL, model);
    TG_NEED(model->ctx, x, queries, y);
    int64_t grid[TG_RUN_GRID];
    TG_CALL(check_places(model, x, queries, y));
    const int n_dim = model->config.fno.n_dim;
    const tg_normalizer *encoder = model->encoder[TG_DATA_Y];
    tg_run_network_grid(&model->config, &x->shape.dim[2], grid);
    grid[n_dim + 1] = queries->shape.dim[1];
    TG_CALL(tg_fno_prepare(model->fno, 1, grid, false));
    for (int64_t i = 0; i < x->shape.dim[0]; i++) {
        tg_tensor from, at, to;
        TG_CALL(tg_tensor_slice(model->ctx, x, i, 1, &from));
        TG_CALL(tg_tensor_slice(model->ctx, queries, i, 1, &at));
        TG_CALL(tg_tensor_slice(model->ctx, y, i, 1, &to));
        TG_CALL(check_box(model->ctx, "query", at.data, grid[n_dim + 1], n_dim));
        at.shape = (tg_shape){.ndim = 2, .dim = {grid[n_dim + 1], n_dim}};
        TG_CALL(tg_model_place_points(model, &from, &at));
        TG_CALL(tg_fno_forward(model->fno, &from, &to));
        TG_CALL(encoder ? tg_normalizer_invert(encoder, &to) : TG_OK);
    }
    return TG_OK;
}

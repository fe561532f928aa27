/* The points of a GINO: their memory, and the calls that set them. */
#include <string.h>

#include "nn/network.h"

/* ---- memory ---- */

static int64_t latent_count(const nn_model *model, const nn_domain *g) {
    return g->pixels * model->config.n_dim;
}

static size_t bytes_of(tg_backend *be, int64_t points, int64_t queries) {
    const tg_neighbours near = {.points = points, .queries = queries};
    return tg_workspace_bytes(be, (tg_query){.neighbours = &near});
}

size_t nn_places_bytes(const nn_model *model, tg_backend *be, const nn_domain *domain) {
    return model->gno[NN_TO_GRID].layers == 0
               ? 0
               : bytes_of(be, domain->points, domain->pixels) +
                     bytes_of(be, domain->pixels, domain->queries) +
                     (size_t)latent_count(model, domain) * sizeof(double);
}

/* i / (N - 1) along each axis. */
static tg_scalar coordinate(const void *of, int64_t at) {
    const nn_program *program = of;
    const int64_t *size = program->domain.grid.size;
    const int dim = program->model->config.n_dim, axis = (int)(at % dim);
    int64_t i = at / dim;
    for (int d = dim - 1; d > axis; d--) {
        i /= size[d];
    }
    return (tg_scalar){.re = size[axis] > 1 ? (double)(i % size[axis]) / (double)(size[axis] - 1)
                                            : 0.0};
}

tg_status nn_places_lay_out(tg_fno *fno, void *memory) {
    const nn_domain *g = &fno->run.program.domain;
    const int dim = fno->model.config.n_dim;
    char *next = memory;
    tg_neighbours_place(dim, g->points, g->pixels, next, &fno->run.near[NN_TO_GRID]);
    next += bytes_of(fno->be, g->points, g->pixels);
    tg_neighbours_place(dim, g->pixels, g->queries, next, &fno->run.near[NN_TO_QUERIES]);
    next += bytes_of(fno->be, g->pixels, g->queries);
    fno->run.latent = (double *)(void *)next;
    return nn_upload_entries(fno->be, TG_F64, latent_count(&fno->model, g), coordinate,
                             &fno->run.program, fno->run.latent);
}

/* ---- the calls ---- */

static tg_status check_gino(const tg_fno *fno) {
    if (fno->model.gno[NN_TO_GRID].layers == 0) {
        return tg_fail(fno->ctx, TG_E_ARGUMENT,
                       "this network works on a grid and has no points; fno.architecture: gino "
                       "has");
    }
    return fno->run.ready ? TG_OK
                          : tg_fail(fno->ctx, TG_E_ARGUMENT,
                                    "the network is not prepared: tg_fno_prepare first");
}

static tg_status check_places(const tg_fno *fno, const char *what, const tg_tensor *t,
                              const tg_shape *shape) {
    const bool is_real = t->dtype == TG_F32 || t->dtype == TG_F64;
    return tg_tensor_check(
        fno->be, t,
        &(tg_wanted){
            .what = what, .dtype = is_real ? t->dtype : TG_F32, .shape = *shape, .or_host = true});
}

tg_status tg_fno_set_points(tg_fno *fno, const tg_tensor *points, const tg_tensor *queries,
                            const tg_tensor *latent) {
    TG_NEED(NULL, fno);
    TG_NEED(fno->ctx, points, queries);
    nn_run *run = &fno->run;
    TG_CALL(check_gino(fno));
    const nn_domain *g = &run->program.domain;
    const int dim = fno->model.config.n_dim;
    tg_shape grid = {.ndim = dim + 1};
    memcpy(grid.dim, g->grid.size, sizeof g->grid.size);
    grid.dim[dim] = dim;
    TG_CALL(check_places(fno, "points", points, &(tg_shape){2, {g->points, dim}}));
    TG_CALL(check_places(fno, "queries", queries, &(tg_shape){2, {g->queries, dim}}));
    TG_CALL(latent ? check_places(fno, "latent grid", latent, &grid) : TG_OK);
    run->has_points = false;
    const tg_tensor places =
        latent ? *latent : tg_backend_view(fno->be, TG_F64, &grid, run->latent);
    TG_CALL(fno->be->ops->neighbours_build(fno->be, &run->near[NN_TO_GRID],
                                           fno->model.gno[NN_TO_GRID].config.radius, points,
                                           &places));
    TG_CALL(fno->be->ops->neighbours_build(fno->be, &run->near[NN_TO_QUERIES],
                                           fno->model.gno[NN_TO_QUERIES].config.radius, &places,
                                           queries));
    run->has_points = true;
    return TG_OK;
}

tg_status tg_fno_set_features(tg_fno *fno, const tg_tensor *features) {
    TG_NEED(NULL, fno);
    TG_NEED(fno->ctx, features);
    const tg_fno_config *config = &fno->model.config;
    TG_CALL(check_gino(fno));
    const int64_t batch = features->shape.ndim > 0 ? features->shape.dim[0] : 0;
    tg_wanted wanted = {
        .what = "features",
        .dtype = config->dtype,
        .shape = {.ndim = 2 + config->n_dim, .dim = {batch, config->latent_feature_channels}},
        .or_host = true};
    memcpy(wanted.shape.dim + 2, fno->run.program.domain.grid.size,
           (size_t)config->n_dim * sizeof *wanted.shape.dim);
    TG_CALL(tg_tensor_check(fno->be, features, &wanted));
    fno->run.features = *features;
    return TG_OK;
}

tg_status nn_places_check(const tg_fno *fno) {
    const tg_fno_config *config = &fno->model.config;
    const tg_tensor *features = &fno->run.features;
    if (fno->model.gno[NN_TO_GRID].layers == 0) {
        return TG_OK;
    }
    if (!fno->run.has_points) {
        return tg_fail(fno->ctx, TG_E_ARGUMENT,
                       "the network has no points yet: tg_fno_set_points first");
    }
    return config->latent_feature_channels == 0 ||
                   (features->data && features->shape.dim[0] == fno->run.whole)
               ? TG_OK
               : tg_fail(fno->ctx, TG_E_ARGUMENT,
                         "features of the latent grid of %lld samples are needed "
                         "(fno.latent_feature_channels is %lld): tg_fno_set_features first",
                         (long long)fno->run.whole, (long long)config->latent_feature_channels);
}

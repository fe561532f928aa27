/* Residuals of equations, which training reduces besides the error against the data: adds |r| /
 * unit of each sample. The backends compute |r|, unit and the slopes (backend/nn.h), for flows from
 * the fields of flow_residual.c. */
#include "nn/losses.h"

#include "base/minmax.h"

static const struct equation {
    const char *name;
    int n_dim;
    tg_equation residual;
} equations[] = {
    [TG_PHYSICS_DARCY] = {"darcy", 2, TG_EQUATION_DARCY},
    [TG_PHYSICS_BURGERS] = {"burgers", 1, TG_EQUATION_BURGERS},
    [TG_PHYSICS_NS] = {"ns", 2, TG_EQUATION_FLOW},
};

enum { EQUATIONS = sizeof equations / sizeof equations[0] };

tg_status nn_physics_check(tg_backend *be, const tg_loss_config *loss,
                           const tg_fno_config *network) {
    if (loss->physics == TG_PHYSICS_NONE) {
        return TG_OK;
    }
    if ((unsigned)loss->physics >= EQUATIONS) {
        return tg_fail(be->ctx, TG_E_CONFIG, "opt.physics: no such equation");
    }
    const struct equation *e = &equations[loss->physics];
    const bool has_channels = network->out_channels == 1 &&
                              (network->in_channels == 1 || loss->physics != TG_PHYSICS_DARCY);
    if (network->architecture != TG_ARCHITECTURE_FNO || network->complex_data ||
        network->n_dim != e->n_dim || !has_channels) {
        return tg_fail(be->ctx, TG_E_CONFIG,
                       "opt.physics: %s is an equation for one real field in %d dimension%s, found "
                       "%s data in %d, %lld -> %lld channels",
                       e->name, e->n_dim, e->n_dim == 1 ? "" : "s",
                       network->complex_data ? "complex" : "real", network->n_dim,
                       (long long)network->in_channels, (long long)network->out_channels);
    }
    if (!(loss->physics_weight >= 0.0 && loss->physics_weight <= 1e12)) {
        return tg_fail(be->ctx, TG_E_CONFIG,
                       "opt.physics_weight: expected a number in 0 .. 1e12, found %g",
                       loss->physics_weight);
    }
    if (loss->physics != TG_PHYSICS_DARCY && !(loss->physics_time > 0.0)) {
        return tg_fail(be->ctx, TG_E_CONFIG,
                       "opt.physics_time: %s needs the time from the last frame of x to y, above 0",
                       e->name);
    }
    if (!(loss->physics_length > 0.0)) {
        return tg_fail(be->ctx, TG_E_CONFIG,
                       "opt.physics_length: expected a number above 0, found %g",
                       loss->physics_length);
    }
    return TG_OK;
}

void nn_residual_free(tg_backend *be, nn_residual *work) {
    if (be) {
        be->ops->release(be, work->slope);
    }
    nn_transforms_free(be, &work->flow.all);
    *work = (nn_residual){0};
}

size_t nn_residual_bytes(int64_t samples, int64_t points) {
    return (size_t)(samples * (points + 2)) * sizeof(double);
}

tg_status nn_residual_prepare(tg_backend *be, const nn_physics *call, int64_t samples,
                              nn_residual *work) {
    const tg_physics physics = call->config->physics;
    const int64_t points = tg_product(equations[physics].n_dim, call->grid);
    if (work->samples < samples || work->points != points) {
        nn_residual_free(be, work);
        TG_CALL(TG_BACKEND_ALLOC(be, TG_MEM_WORKSPACE, work->slope,
                                 nn_residual_bytes(samples, points)));
        work->powers = work->slope + samples * points;
        work->samples = samples;
        work->points = points;
    }
    return physics == TG_PHYSICS_NS
               ? nn_flow_prepare(be, samples, call->grid[0], call->grid[1], &work->flow)
               : TG_OK;
}

tg_status nn_physics_add(tg_backend *be, nn_residual *work, const nn_physics *call) {
    const tg_loss_config *config = call->config;
    const struct equation *e = &equations[config->physics];
    tg_residual residual = {.equation = e->residual,
                            .dtype = call->dtype,
                            .batch = call->batch,
                            .in_channels = call->in_channels,
                            .n = call->grid[0],
                            .m = e->n_dim == 2 ? call->grid[1] : 1,
                            .x_mean = config->x_mean,
                            .x_scale = config->x_scale,
                            .y_mean = config->y_mean,
                            .y_scale = config->y_scale,
                            .forcing = config->physics_forcing,
                            .viscosity = config->physics_viscosity,
                            .time = config->physics_time,
                            .x = call->x,
                            .pred = call->pred,
                            .target = call->target,
                            .powers = work->powers,
                            .slope = call->dpred ? work->slope : NULL};
    const tg_loss_op loss = {.dtype = call->dtype,
                             .components = 1,
                             .images = call->batch,
                             .ndim = e->n_dim,
                             .grid = {residual.n, residual.m},
                             .norm = TG_LOSS_NORM_GIVEN,
                             .relative = true,
                             .weight = config->physics_weight,
                             .beta = 1.0,
                             .grad_scale = call->grad_scale,
                             .dpred = call->dpred,
                             .value = call->value,
                             .powers = work->powers,
                             .slope = work->slope};
    if (config->physics == TG_PHYSICS_NS) {
        TG_CALL(nn_flow_find(be, &work->flow, &residual, config->physics_length, call->dpred,
                             work->slope));
        residual.residual = work->flow.r;
        residual.rest = work->slope;
    }
    TG_CALL(be->ops->residual(be, &residual));
    return be->ops->loss(be, &loss);
}

/* Public API of the decomposition: host tensor in; core, factors and error out; stable ranks. */
#include <math.h>

#include "linalg/tucker.h"

/* The tensor as the backend sees it: uploaded where that is a device. */
typedef struct resident {
    tg_backend *be;
    void *x;
    int64_t numel;
} resident;

static tg_status make_resident(tg_context *ctx, const tg_tensor *x, resident *out) {
    *out = (resident){.numel = tg_tensor_numel(x)};
    const tg_dtype d = x->dtype;
    if (d != TG_F32 && d != TG_F64 && d != TG_C64 && d != TG_C128) {
        return tg_fail(ctx, TG_E_DTYPE, "tucker: dtype %s is not f32, f64, c64 or c128",
                       tg_dtype_name(d));
    }
    if (x->place != TG_HOST || x->shape.ndim < 1 || out->numel < 1) {
        char text[128];
        return tg_fail(ctx, TG_E_SHAPE, "tucker: %s is not a non-empty host tensor of 1 to %d dims",
                       tg_shape_text(&x->shape, text, sizeof text), TG_MAX_NDIM);
    }
    TG_CALL(tg_backend_get(ctx, &out->be));
    out->x = out->be->ops->alloc(out->be, TG_MEM_DATA, tg_tensor_bytes(x));
    if (!out->x) {
        return TG_E_MEMORY;
    }
    return out->be->ops->upload(out->be, out->x, x->data, tg_tensor_bytes(x));
}

/* Also after a failed make_resident. */
static void end_resident(resident *r) {
    if (r->be) {
        r->be->ops->release(r->be, r->x);
    }
}

static tg_status plan_for(tg_context *ctx, const tg_tensor *x, const int64_t *ranks, int sweeps,
                          tg_svd_type svd_type, tg_tucker_plan *plan) {
    *plan = (tg_tucker_plan){
        .dtype = x->dtype, .ndim = x->shape.ndim, .sweeps = sweeps, .svd_type = svd_type};
    if (sweeps < 0) {
        return tg_fail(ctx, TG_E_ARGUMENT, "tucker: %d sweeps, expected 0 or more", sweeps);
    }
    for (int d = 0; d < plan->ndim; d++) {
        if (ranks[d] < 1 || ranks[d] > x->shape.dim[d]) {
            return tg_fail(ctx, TG_E_ARGUMENT, "tucker: rank %lld of mode %d is not in 1 .. %lld",
                           (long long)ranks[d], d, (long long)x->shape.dim[d]);
        }
        plan->dim[d] = x->shape.dim[d];
        plan->rank[d] = ranks[d];
        plan->is_active[d] = true;
    }
    return TG_OK;
}

/* core = x projected, and |x - back(core)| / |x|. */
static tg_status finish(const resident *r, const tg_multimode *modes, void *core, double *error) {
    const tg_backend_ops *ops = r->be->ops;
    tg_status status = TG_OK;
    tg_norms whole, rest;
    void *workspace = NULL;
    TG_TRY(ops->norms(r->be, modes->dtype, r->numel, r->x, &whole));
    workspace = ops->alloc(r->be, TG_MEM_WORKSPACE,
                           tg_workspace_bytes(r->be, (tg_query){.compress = modes}));
    TG_TRY(workspace ? TG_OK : TG_E_MEMORY);
    const tg_compress project = {.modes = *modes,
                                 .source = {.dense = r->x},
                                 .scale = 1.0,
                                 .core = core,
                                 .workspace = workspace};
    TG_TRY(ops->compress(r->be, &project));
    const tg_expand back = {.modes = *modes,
                            .core = core,
                            .alpha = -1.0,
                            .beta = 1.0,
                            .out = r->x,
                            .workspace = workspace};
    TG_TRY(ops->expand(r->be, &back));
    TG_TRY(ops->norms(r->be, modes->dtype, r->numel, r->x, &rest));
    *error = whole.sum_squares > 0.0 ? sqrt(rest.sum_squares / whole.sum_squares) : 0.0;
fail:
    ops->release(r->be, workspace);
    return status;
}

tg_status tg_tucker(tg_context *ctx, const tg_tensor *x, const int64_t *ranks, int sweeps,
                    tg_svd_type svd_type, uint64_t seed, tg_tucker_result *out) {
    TG_NEED(ctx, ctx, x, ranks, out);
    *out = (tg_tucker_result){0};
    tg_status status = TG_OK;
    tg_tucker_plan plan;
    resident r = {0};
    void *scratch = NULL, *core = NULL;
    void *factor[TG_MAX_NDIM] = {NULL};
    TG_TRY(make_resident(ctx, x, &r));
    TG_TRY(plan_for(ctx, x, ranks, sweeps, svd_type, &plan));
    const tg_backend_ops *ops = r.be->ops;
    const size_t size = tg_dtype_size(plan.dtype);
    tg_multimode modes = {.dtype = plan.dtype, .ndim = plan.ndim};
    tg_shape core_shape = {.ndim = plan.ndim};
    for (int d = 0; d < plan.ndim; d++) {
        const tg_shape shape = {.ndim = 2, .dim = {plan.dim[d], plan.rank[d]}};
        TG_TRY(tg_tensor_create(ctx, TG_MEM_FACTORS, plan.dtype, &shape, &out->factor[d]));
        factor[d] = ops->alloc(r.be, TG_MEM_FACTORS, (size_t)(plan.dim[d] * plan.rank[d]) * size);
        TG_TRY(factor[d] ? TG_OK : TG_E_MEMORY);
        modes.dim[d] = plan.dim[d];
        modes.rank[d] = core_shape.dim[d] = plan.rank[d];
        modes.factor[d] = factor[d];
    }
    TG_TRY(tg_tensor_create(ctx, TG_MEM_DATA, plan.dtype, &core_shape, &out->core));
    core = ops->alloc(r.be, TG_MEM_WORKSPACE, tg_tensor_bytes(&out->core));
    scratch = ops->alloc(r.be, TG_MEM_WORKSPACE, tg_tucker_scratch(r.be, &plan));
    TG_TRY(core && scratch ? TG_OK : TG_E_MEMORY);
    const tg_rng rng = {.seed = seed, .purpose = TG_RNG_RANGE};
    TG_TRY(tg_tucker_factors(r.be, &plan, r.x, NULL, &rng, false, factor, scratch));
    TG_TRY(finish(&r, &modes, core, &out->relative_error));
    TG_TRY(ops->download(r.be, out->core.data, core, tg_tensor_bytes(&out->core)));
    for (int d = 0; d < plan.ndim; d++) {
        TG_TRY(
            ops->download(r.be, out->factor[d].data, factor[d], tg_tensor_bytes(&out->factor[d])));
    }
fail:
    if (r.be) {
        for (int d = 0; d < TG_MAX_NDIM; d++) {
            r.be->ops->release(r.be, factor[d]);
        }
        r.be->ops->release(r.be, scratch);
        r.be->ops->release(r.be, core);
    }
    end_resident(&r);
    if (status != TG_OK) {
        tg_tucker_result_destroy(out);
    }
    return status;
}

void tg_tucker_result_destroy(tg_tucker_result *result) {
    if (!result) {
        return;
    }
    tg_tensor_destroy(&result->core);
    for (int d = 0; d < TG_MAX_NDIM; d++) {
        tg_tensor_destroy(&result->factor[d]);
    }
    *result = (tg_tucker_result){0};
}

/* ---- stable ranks ---- */

static tg_tucker_plan spectrum_plan(tg_dtype dtype, const tg_shape *shape, int64_t *values) {
    tg_tucker_plan plan = {.dtype = dtype, .ndim = shape->ndim};
    *values = 0;
    for (int d = 0; d < plan.ndim; d++) {
        plan.dim[d] = shape->dim[d];
        *values += plan.dim[d];
    }
    return plan;
}

tg_scratch_need tg_stable_rank_need(tg_backend *be, tg_dtype dtype, const tg_shape *shape) {
    const tg_dtype wide = tg_dtype_is_complex(dtype) ? TG_C128 : TG_F64;
    int64_t values = 0;
    const tg_tucker_plan plan = spectrum_plan(dtype, shape, &values);
    tg_scratch_need most = {0};
    for (int d = 0; be->ops->scratch_need && d < plan.ndim; d++) {
        const int64_t side = tg_tucker_short_side(&plan, d);
        tg_scratch_raise(&most, be->ops->scratch_need(be, TG_SCRATCH_EIGH, wide, 0, side));
    }
    most.place += tg_tucker_spectrum_scratch(&plan);
    most.host += (size_t)values * sizeof(double);
    return most;
}

tg_status tg_stable_rank_of(tg_backend *be, tg_dtype dtype, const tg_shape *shape, const void *x,
                            double *per_mode) {
    tg_status status = TG_OK;
    void *scratch = NULL;
    double *values = NULL; /* of the first mode, then of the next */
    int64_t count = 0;
    const tg_tucker_plan plan = spectrum_plan(dtype, shape, &count);
    tg_norms norms;
    TG_TRY(be->ops->norms(be, dtype, tg_shape_numel(shape), x, &norms));
    for (int d = 0; d < plan.ndim; d++) {
        per_mode[d] = (double)NAN;
    }
    if (norms.nonfinite > 0) {
        return TG_OK;
    }
    TG_TRY(TG_ALLOC(be->ctx, TG_MEM_WORKSPACE, values, count));
    TG_TRY(TG_BACKEND_ALLOC(be, TG_MEM_WORKSPACE, scratch, tg_tucker_spectrum_scratch(&plan)));
    TG_TRY(tg_tucker_spectrum(be, &plan, x, NULL, values, scratch));
    const double *first = values;
    for (int d = 0; d < plan.ndim; d++) {
        per_mode[d] = *first > 0.0 ? norms.sum_squares / *first : 0.0;
        first += plan.dim[d];
    }
fail:
    be->ops->release(be, scratch);
    TG_FREE(be->ctx, values);
    return status;
}

tg_status tg_stable_rank(tg_context *ctx, const tg_tensor *x, double *per_mode,
                         double *multilinear) {
    TG_NEED(ctx, ctx, x, per_mode, multilinear);
    tg_status status = TG_OK;
    resident r = {0};
    *multilinear = 0.0;
    TG_TRY(make_resident(ctx, x, &r));
    TG_TRY(tg_stable_rank_of(r.be, x->dtype, &x->shape, r.x, per_mode));
    for (int d = 0; d < x->shape.ndim; d++) {
        *multilinear = per_mode[d] > *multilinear ? per_mode[d] : *multilinear;
    }
fail:
    end_resident(&r);
    return status;
}

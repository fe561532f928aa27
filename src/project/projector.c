/* Projectors: how one or two branches refresh, project and expand together.
 *
 * Sparse first: R is G with the kept entries set to 0, so the residual is a mask inside the
 * compress slot and never exists in memory. Low-rank first: the sparse values of the residual are
 * those of G minus the low-rank part at the kept entries; only a refresh forms the dense
 * residual. */
#include "project/projector.h"

#include "backend/tensor.h"
#include "base/context.h"
#include "base/memory.h"
#include "base/minmax.h"

void tg_projector_config_init(tg_projector_config *config, size_t size) {
    const tg_projector_config defaults = {.size = sizeof defaults,
                                          .scheme = TG_SCHEME_SINGLE,
                                          .first = tg_branch_config_default(),
                                          .second = tg_branch_config_default(),
                                          .lambda_sparse = 1.0};
    tg_sized_init(config, size, &defaults, sizeof defaults);
}

static tg_status read_config(tg_context *ctx, const tg_projector_config *config,
                             tg_projector_config *out) {
    *out = tg_projector_config_default();
    return TG_SIZED_READ(ctx, tg_projector_config, scheme, config, out);
}

tg_grad_source tg_gradient_source(const tg_gradient *gradient) {
    return (tg_grad_source){.dense = gradient->dense,
                            .x = gradient->x,
                            .dy = gradient->dy,
                            .batch = gradient->batch,
                            .store = tg_storage_of(gradient->dtype)};
}

static tg_status plan(tg_context *ctx, tg_projector *p) {
    char text[128];
    p->numel = tg_shape_numel(&p->shape);
    if (p->dtype != TG_F32 && p->dtype != TG_F64 && p->dtype != TG_C64 && p->dtype != TG_C128) {
        return tg_fail(ctx, TG_E_DTYPE, "projector: dtype %s is not f32, f64, c64 or c128",
                       tg_dtype_name(p->dtype));
    }
    if (p->shape.ndim < 1 || p->numel < 1) {
        return tg_fail(ctx, TG_E_SHAPE, "projector: shape %s has no dimension or no entry",
                       tg_shape_text(&p->shape, text, sizeof text));
    }
    p->branches = p->config.scheme == TG_SCHEME_SINGLE ? 1 : 2;
    TG_CALL(
        tg_branch_plan(ctx, p->be, &p->config.first, "opt.", p->dtype, &p->shape, &p->branch[0]));
    if (p->branches == 2) {
        TG_CALL(tg_branch_plan(ctx, p->be, &p->config.second, "opt.second_", p->dtype, &p->shape,
                               &p->branch[1]));
    }
    for (int i = 0; i < p->branches; i++) {
        tg_branch **role = p->branch[i].kind->is_sparse ? &p->sparse : &p->low_rank;
        if (*role) {
            return tg_fail(ctx, TG_E_CONFIG,
                           "opt.second_proj_type: %s and %s cannot be combined; one must be sparse "
                           "and one low-rank",
                           p->branch[0].name, p->branch[1].name);
        }
        *role = &p->branch[i];
    }
    p->modes = (tg_multimode){.dtype = p->dtype, .ndim = p->shape.ndim};
    for (int d = 0; d < p->shape.ndim; d++) {
        p->modes.dim[d] = p->modes.rank[d] = p->shape.dim[d];
    }
    if (p->low_rank) {
        p->modes = p->low_rank->modes;
    }
    if (p->view.rows.count > 0) {
        tg_rows_plan(p);
    }
    return TG_OK;
}

/* Scratch of a step or of a refresh, whichever is larger. */
static void measure(const tg_projector *p, tg_projector_bytes *out) {
    const bool has_rows = p->view.rows.count > 0; /* then a refresh projects all of a tensor */
    const size_t whole = tg_workspace_bytes(
        p->be, (tg_query){.compress = &p->modes, .factored = p->takes_factored && !has_rows});
    size_t *bytes = &out->workspace, *host_bytes = &out->host_workspace;
    out->step_workspace = has_rows ? p->view.step_bytes : whole;
    *bytes = tg_max_size(out->step_workspace, whole);
    *host_bytes = p->view.host_bytes;
    for (int i = 0; i < p->branches; i++) {
        size_t scratch = 0, host = 0;
        if (p->branch[i].kind->scratch) {
            p->branch[i].kind->scratch(&p->branch[i], &scratch, &host);
        }
        if (i == 1 && tg_projector_samples(p)) { /* the dense residual and a core come first */
            tg_scratch extra = {0};
            tg_scratch_take(&extra, (size_t)p->numel * tg_dtype_size(p->dtype));
            tg_scratch_take(&extra, (size_t)p->low_rank->count * tg_dtype_size(p->dtype));
            const size_t step = tg_workspace_bytes(p->be, (tg_query){.compress = &p->modes});
            scratch = extra.used + (scratch > step ? scratch : step);
        }
        *bytes = scratch > *bytes ? scratch : *bytes;
        *host_bytes = host > *host_bytes ? host : *host_bytes;
    }
}

tg_status tg_projector_outline(tg_context *ctx, const tg_projector_config *config,
                               const tg_projected *of, tg_projector *out) {
    *out = (tg_projector){.ctx = ctx,
                          .config = *config,
                          .dtype = of->dtype,
                          .shape = of->shape,
                          .view.rows = of->rows,
                          .takes_factored = of->factored};
    TG_CALL(tg_backend_get(ctx, &out->be));
    return plan(ctx, out);
}

tg_status tg_projector_make(tg_context *ctx, const tg_projector_config *config,
                            const tg_projected *of, tg_projector **out) {
    TG_CALL(TG_NEW(ctx, TG_MEM_OTHER, *out, 1));
    const tg_status status = tg_projector_outline(ctx, config, of, *out);
    if (status != TG_OK) {
        tg_projector_destroy(out);
    }
    return status;
}

tg_status tg_projector_allocate(tg_projector *p, uint64_t seed, tg_workspace *workspace) {
    for (int i = 0; i < p->branches; i++) {
        TG_CALL(tg_branch_allocate(&p->branch[i]));
        p->branch[i].rng = (tg_rng){
            .seed = seed + (uint64_t)i * 0x9E3779B97F4A7C15ull,
            .purpose = p->branch[i].kind->is_sparse ? TG_RNG_SELECT : TG_RNG_RANGE,
        };
    }
    if (p->low_rank) {
        p->modes = p->low_rank->modes;
    }
    p->workspace = workspace;
    return p->view.rows.count > 0 ? tg_rows_allocate(p) : TG_OK;
}

tg_status tg_projector_create(tg_context *ctx, const tg_projector_config *config, tg_dtype dtype,
                              const tg_shape *shape, uint64_t seed, tg_projector **out) {
    TG_NEED_OUT(ctx, out, ctx, config, shape);
    tg_status status = TG_OK;
    tg_projector_config full;
    const tg_projected of = {.dtype = dtype, .shape = *shape, .factored = true};
    TG_TRY(read_config(ctx, config, &full));
    TG_TRY(tg_projector_make(ctx, &full, &of, out));
    tg_workspace *own = &(*out)->own;
    const tg_projector_bytes bytes = tg_projector_get_bytes(*out);
    own->be = (*out)->be;
    tg_workspace_reserve(own, bytes.workspace, bytes.step_workspace, bytes.host_workspace);
    TG_TRY(tg_projector_allocate(*out, seed, own));
    TG_TRY(tg_workspace_allocate(own));
    return TG_OK;
fail:
    tg_projector_destroy(out);
    return status;
}

void tg_projector_destroy(tg_projector **projector) {
    if (!projector || !*projector) {
        return;
    }
    tg_projector *p = *projector;
    for (int i = 0; i < 2; i++) {
        tg_branch_release(&p->branch[i]);
    }
    tg_rows_release(p);
    tg_workspace_release(&p->own);
    tg_mem_free(p->ctx, p);
    *projector = NULL;
}

int64_t tg_projector_count(const tg_projector *p) {
    int64_t count = 0;
    for (int i = 0; p && i < p->branches; i++) {
        count += p->branch[i].count;
    }
    return count;
}

tg_shape tg_projector_ranks(const tg_projector *p, int branch) {
    if (!p || branch < 0 || branch >= p->branches || p->branch[branch].kind->is_sparse) {
        return (tg_shape){0};
    }
    return tg_shape_of(p->branch[branch].modes.ndim, p->branch[branch].modes.rank);
}

tg_projector_bytes tg_projector_get_bytes(const tg_projector *p) {
    tg_projector_bytes bytes = {0};
    tg_scratch_need most = {0};
    if (!p) {
        return bytes;
    }
    measure(p, &bytes);
    if (p->view.rows.count > 0) {
        bytes.factors += tg_rows_factor_bytes(p);
        bytes.indices += tg_rows_index_bytes(p);
    }
    for (int i = 0; i < p->branches; i++) {
        const tg_branch *branch = &p->branch[i];
        bytes.factors += tg_branch_factor_bytes(branch);
        bytes.indices += tg_branch_index_bytes(branch);
        if (branch->kind->scratch_need) {
            tg_scratch_raise(&most, branch->kind->scratch_need(branch));
        }
    }
    bytes.borrowed = most.place;
    bytes.host_borrowed = most.host;
    return bytes;
}

tg_status tg_projector_plan(tg_context *ctx, const tg_projector_config *config, tg_dtype dtype,
                            const tg_shape *shape, bool takes_factored, int64_t *count,
                            tg_projector_bytes *bytes) {
    TG_NEED(ctx, ctx, config, shape, count, bytes);
    tg_projector p;
    tg_projector_config full;
    tg_status status = read_config(ctx, config, &full);
    if (status == TG_OK) {
        const tg_projected of = {.dtype = dtype, .shape = *shape, .factored = takes_factored};
        status = tg_projector_outline(ctx, &full, &of, &p);
    }
    *count = status == TG_OK ? tg_projector_count(&p) : 0;
    *bytes = status == TG_OK ? tg_projector_get_bytes(&p) : (tg_projector_bytes){0};
    return status;
}

/* Axis-aligned columns: the fallback of a low-rank branch whose first decomposition fails. */
static tg_status use_unit_vectors(tg_branch *branch) {
    tg_backend *be = branch->be;
    const size_t size = tg_dtype_size(branch->dtype);
    for (int d = 0; d < branch->modes.ndim; d++) {
        const int64_t rank = branch->modes.rank[d];
        if (!branch->factor[d]) {
            continue;
        }
        TG_CALL(be->ops->fill(be, branch->dtype, branch->modes.dim[d] * rank, (tg_scalar){0},
                              branch->factor[d]));
        for (int64_t i = 0; i < rank; i++) {
            TG_CALL(be->ops->fill(be, branch->dtype, 1, (tg_scalar){1.0, 0.0},
                                  (char *)branch->factor[d] + (size_t)(i * rank + i) * size));
        }
    }
    return TG_OK;
}

/* Refreshes one branch; survives a numerical failure, passes on any other error. */
static tg_status refresh_branch(tg_projector *p, tg_branch *branch, const void *x, tg_storage store,
                                const tg_bitmap *mask, void *scratch) {
    branch->rng.step = (uint32_t)p->refreshes;
    tg_status status = branch->kind->refresh(branch, x, store, mask, scratch, p->workspace->host);
    if (status == TG_E_NUMERIC) {
        p->failures++;
        tg_log(p->ctx, TG_LOG_WARN, "refresh %lld of a %s projection failed and is skipped: %s",
               (long long)p->refreshes, branch->name, tg_context_error(p->ctx));
        status = branch->is_ready ? TG_OK : use_unit_vectors(branch);
    }
    branch->is_ready = branch->is_ready || status == TG_OK;
    return status;
}

/* residual (numel) = G - back(project(G)) of the low-rank branch; core has room for its values,
 * workspace for compress and expand. */
static tg_status form_residual(tg_projector *p, const void *grad, tg_storage store, void *residual,
                               void *core, void *workspace) {
    const tg_backend_ops *ops = p->be->ops;
    const tg_compress project = {.modes = p->modes,
                                 .source = {.dense = grad, .store = store},
                                 .scale = 1.0,
                                 .core = core,
                                 .workspace = workspace};
    TG_CALL(ops->compress(p->be, &project));
    TG_CALL(
        store == TG_STORE_FULL
            ? ops->copy(p->be, residual, grad, (size_t)p->numel * tg_dtype_size(p->dtype))
            : ops->convert(p->be, p->numel, tg_stored(p->dtype, store), grad, p->dtype, residual));
    const tg_expand subtract = {.modes = p->modes,
                                .core = core,
                                .alpha = -1.0,
                                .beta = 1.0,
                                .out = residual,
                                .workspace = workspace};
    return ops->expand(p->be, &subtract);
}

/* The sparse branch after a low-rank one is chosen from the dense residual, in the scratch. */
static tg_status refresh_on_residual(tg_projector *p, const void *grad, tg_storage store) {
    const size_t size = tg_dtype_size(p->dtype);
    tg_scratch scratch = {.block = p->workspace->memory};
    void *residual = tg_scratch_take(&scratch, (size_t)p->numel * size);
    void *core = tg_scratch_take(&scratch, (size_t)p->low_rank->count * size);
    void *rest = scratch.block + scratch.used;
    TG_CALL(form_residual(p, grad, store, residual, core, rest));
    return refresh_branch(p, p->sparse, residual, TG_STORE_FULL, NULL, rest);
}

tg_status tg_projector_refresh_stored(tg_projector *p, const void *grad, tg_storage store) {
    TG_CALL(refresh_branch(p, &p->branch[0], grad, store, NULL, p->workspace->memory));
    if (p->branches == 2 && tg_projector_samples(p)) {
        TG_CALL(refresh_on_residual(p, grad, store));
    } else if (p->branches == 2) {
        const tg_bitmap *mask = tg_projector_masks(p) ? &p->sparse->bitmap : NULL;
        TG_CALL(refresh_branch(p, &p->branch[1], grad, store, mask, p->workspace->memory));
    }
    p->refreshes++;
    return p->view.rows.count > 0 ? tg_rows_take(p) : TG_OK;
}

tg_status tg_projector_complete(tg_projector *p) {
    TG_CALL(p->sparse ? tg_bitmap_rank(p->be, &p->sparse->bitmap) : TG_OK);
    return p->view.rows.count > 0 ? tg_rows_take(p) : TG_OK;
}

/* A tensor like the gradient, and one of compressed values. */
static tg_status check_whole(const tg_projector *p, const char *what, const tg_tensor *tensor) {
    return tg_tensor_check(p->be, tensor, &(tg_wanted){what, NULL, p->dtype, p->shape, false});
}

static tg_status check_small(const tg_projector *p, const tg_tensor *small) {
    const tg_shape shape = {1, {tg_projector_count(p)}};
    return tg_tensor_check(p->be, small, &(tg_wanted){"small", NULL, p->dtype, shape, false});
}

tg_status tg_projector_refresh(tg_projector *p, const tg_tensor *gradient) {
    TG_NEED(NULL, p);
    TG_NEED(p->ctx, gradient);
    TG_CALL(check_whole(p, "gradient", gradient));
    return tg_projector_refresh_stored(p, gradient->data, TG_STORE_FULL);
}

/* A branch's values in the compressed array. */
static void *values_of(const tg_projector *p, const tg_branch *branch, const void *small) {
    const int64_t offset = branch == &p->branch[1] ? p->branch[0].count : 0;
    return (char *)(uintptr_t)small + (size_t)offset * tg_dtype_size(p->dtype);
}

static tg_status require_ready(const tg_projector *p) {
    for (int i = 0; i < p->branches; i++) {
        if (!p->branch[i].is_ready) {
            return tg_fail(p->ctx, TG_E_ARGUMENT, "projector: used before its first refresh");
        }
    }
    return TG_OK;
}

/* Sparse values of the residual: those of G minus the low-rank part at the kept entries, by the
 * sign of alpha. */
static tg_status add_sampled(tg_projector *p, double alpha, void *small) {
    const tg_sample at_kept = {.modes = p->modes,
                               .bitmap = &p->sparse->bitmap,
                               .core = values_of(p, p->low_rank, small),
                               .alpha = alpha,
                               .values = values_of(p, p->sparse, small),
                               .workspace = p->workspace->memory};
    return p->be->ops->sample(p->be, &at_kept);
}

bool tg_projector_takes_factored(const tg_projector *p) {
    return !p->low_rank || p->low_rank->kind != &tg_branch_matrix;
}

/* Whether a gradient is that of the projector's rows. */
static bool is_of_rows(const tg_projector *p, const tg_gradient *gradient) {
    return p->view.rows.count > 0 && !tg_shape_equal(&gradient->shape, &p->shape);
}

static tg_status check_gradient(const tg_projector *p, const tg_gradient *gradient) {
    const tg_shape *shape = is_of_rows(p, gradient) ? &p->view.shape : &p->shape;
    const tg_wanted wanted = {"gradient", NULL, p->dtype, *shape, false};
    TG_CALL(require_ready(p));
    TG_CALL(tg_gradient_check(p->be, gradient, &wanted));
    if (!gradient->dense && !tg_projector_takes_factored(p)) {
        return tg_fail(p->ctx, TG_E_UNSUPPORTED,
                       "gradient: the matrix projection takes it dense, found a factored one");
    }
    return TG_OK;
}

static tg_compress compress_of(const tg_projector *p, const tg_gradient *gradient, double scale,
                               double beta, uint32_t *guard, void *small) {
    return (tg_compress){.modes = p->modes,
                         .source = tg_gradient_source(gradient),
                         .bitmap = p->sparse ? &p->sparse->bitmap : NULL,
                         .masked = tg_projector_masks(p),
                         .scale = scale,
                         .beta = beta,
                         .values = p->sparse ? values_of(p, p->sparse, small) : NULL,
                         .core = p->low_rank ? values_of(p, p->low_rank, small) : NULL,
                         .workspace = p->workspace->memory,
                         .guard = guard};
}

/* Projects the gradient of the rows. */
static tg_status compress_rows(tg_projector *p, const tg_compress *whole, void *small) {
    tg_compress op = *whole;
    void *own = tg_rows_own(p);
    op.modes = p->view.modes;
    op.bitmap = p->sparse ? &p->view.kept : NULL;
    if (!own) {
        return p->be->ops->compress(p->be, &op);
    }
    op.beta = 0.0;
    op.values = p->sparse ? tg_rows_values(p, p->sparse, own) : NULL;
    op.core = p->low_rank ? tg_rows_values(p, p->low_rank, own) : NULL;
    TG_CALL(p->be->ops->compress(p->be, &op));
    return tg_rows_scatter(p, whole->beta, small);
}

/* Values accumulated earlier already had their low-rank part subtracted; it is added back first, so
 * that one subtraction at the end covers old and new. */
tg_status tg_projector_project_into(tg_projector *p, const tg_gradient *gradient, double scale,
                                    double beta, uint32_t *guard, void *small) {
    TG_CALL(check_gradient(p, gradient));
    const tg_compress op = compress_of(p, gradient, scale, beta, guard, small);
    const bool samples = tg_projector_samples(p);
    TG_CALL(samples && beta != 0.0 ? add_sampled(p, 1.0, small) : TG_OK);
    TG_CALL(is_of_rows(p, gradient) ? compress_rows(p, &op, small)
                                    : p->be->ops->compress(p->be, &op));
    return samples ? add_sampled(p, -1.0, small) : TG_OK;
}

tg_status tg_projector_project(tg_projector *p, const tg_gradient *gradient, double scale,
                               double beta, const tg_tensor *small) {
    TG_NEED(NULL, p);
    TG_NEED(p->ctx, gradient, small);
    TG_CALL(check_small(p, small));
    return tg_projector_project_into(p, gradient, scale, beta, NULL, small->data);
}

/* Weights of the branches in the expanded update. */
typedef struct back_weights {
    double low_rank, sparse; /* 0: no such branch */
} back_weights;

static back_weights weights_of(const tg_projector *p) {
    double lambda = 1.0;
    if (p->branches == 2) {
        lambda = p->config.lambda_sparse > 0.0
                     ? p->config.lambda_sparse
                     : (double)p->sparse->count / (double)p->low_rank->count;
    }
    return (back_weights){.low_rank = p->low_rank ? tg_branch_back_scale(p->low_rank) : 0.0,
                          .sparse = p->sparse ? lambda * tg_branch_back_scale(p->sparse) : 0.0};
}

/* The expand slot weights only the sparse part: the low-rank weight goes into alpha. */
static double expand_alpha(back_weights weights, double alpha) {
    return weights.low_rank != 0.0 ? alpha * weights.low_rank : alpha;
}

/* out = beta out + alpha (low_rank back(core) + sparse scatter(values)). */
static tg_expand expand_of(const tg_projector *p, const void *small, back_weights weights,
                           const tg_back *back, void *out) {
    tg_expand op = {.modes = p->modes,
                    .bitmap = p->sparse ? &p->sparse->bitmap : NULL,
                    .values = p->sparse ? values_of(p, p->sparse, small) : NULL,
                    .lambda = weights.sparse,
                    .alpha = expand_alpha(weights, back->alpha),
                    .beta = back->beta,
                    .out = out,
                    .workspace = p->workspace->memory,
                    .out_store = back->store,
                    .rounding = back->rounding,
                    .rates = back->rates,
                    .guard = back->guard};
    if (weights.low_rank != 0.0) {
        op.core = values_of(p, p->low_rank, small);
        op.lambda = weights.sparse / weights.low_rank;
    }
    return op;
}

tg_status tg_projector_back_by(tg_projector *p, const void *small, const tg_back *back, void *out) {
    TG_CALL(require_ready(p));
    tg_expand op = expand_of(p, small, weights_of(p), back, out);
    if (p->view.rows.count > 0) {
        void *own = tg_rows_own(p);
        op.modes = p->view.modes;
        op.bitmap = p->sparse ? &p->view.kept : NULL;
        op.values = own && op.values ? tg_rows_values(p, p->sparse, own) : op.values;
        op.core = own && op.core ? tg_rows_values(p, p->low_rank, own) : op.core;
        TG_CALL(own ? tg_rows_gather(p, small) : TG_OK);
    }
    return p->be->ops->expand(p->be, &op);
}

bool tg_projector_steps_at_once(const tg_projector *p) {
    return p->be->ops->step_compressed && !tg_projector_samples(p) && p->view.rows.count == 0;
}

tg_status tg_projector_step(tg_projector *p, const tg_gradient *gradient, uint32_t *guard,
                            const tg_adam *adam, const tg_back *back, void *small, void *out) {
    TG_CALL(check_gradient(p, gradient));
    const tg_compress project = compress_of(p, gradient, 1.0, 0.0, guard, small);
    const tg_expand expand = expand_of(p, small, weights_of(p), back, out);
    return p->be->ops->step_compressed(p->be, &project, adam, &expand);
}

double tg_projector_rate(const tg_projector *p, double alpha) {
    return expand_alpha(weights_of(p), alpha);
}

tg_status tg_projector_back(tg_projector *p, const tg_tensor *small, double alpha, double beta,
                            const tg_tensor *out) {
    TG_NEED(NULL, p);
    TG_NEED(p->ctx, small, out);
    TG_CALL(check_small(p, small));
    TG_CALL(check_whole(p, "out", out));
    return tg_projector_back_by(p, small->data, &(tg_back){.alpha = alpha, .beta = beta},
                                out->data);
}

tg_status tg_projector_residual(tg_projector *p, const tg_tensor *gradient, const tg_tensor *small,
                                const tg_tensor *out) {
    TG_NEED(NULL, p);
    TG_NEED(p->ctx, gradient, small, out);
    TG_CALL(check_whole(p, "gradient", gradient));
    TG_CALL(check_small(p, small));
    TG_CALL(check_whole(p, "out", out));
    const tg_gradient dense = {
        .dtype = p->dtype, .shape = p->shape, .dense = gradient->data, .place = gradient->place};
    TG_CALL(tg_projector_project_into(p, &dense, 1.0, 0.0, NULL, small->data));
    TG_CALL(p->be->ops->copy(p->be, out->data, gradient->data, tg_tensor_bytes(gradient)));
    const back_weights weights = {p->low_rank ? 1.0 : 0.0, 1.0};
    const tg_expand op =
        expand_of(p, small->data, weights, &(tg_back){.alpha = -1.0, .beta = 1.0}, out->data);
    return p->be->ops->expand(p->be, &op);
}

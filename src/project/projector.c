/* Projectors: how one or two branches refresh, project and expand together.
 *
 * Sparse first: R is G with the kept entries set to 0, a mask inside the compress slot that never
 * exists in memory. Low-rank first: the sparse values of the residual are those of G minus the
 * low-rank part at the kept entries; only a refresh forms the dense residual. */
#include "project/projector.h"

#include <string.h>

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
    for (int i = 0; i < p->branches; i++) {
        TG_CALL(tg_branch_plan(ctx, p->be, i ? &p->config.second : &p->config.first,
                               i ? "opt.second_" : "opt.", p->dtype, &p->shape, &p->branch[i]));
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
    p->modes = p->low_rank ? p->low_rank->modes : tg_plain_modes(p->dtype, &p->shape);
    if (p->view.rows.count > 0) {
        tg_rows_plan(p);
    }
    return TG_OK;
}

/* Scratch of a step or of a refresh, whichever is larger. */
static tg_projector_bytes measure(const tg_projector *p) {
    const bool has_rows = p->view.rows.count > 0; /* then a refresh projects all of a tensor */
    const size_t whole = tg_workspace_bytes(
        p->be, (tg_query){.compress = &p->modes, .factored = p->takes_factored && !has_rows});
    const size_t step = has_rows ? p->view.step_bytes : whole;
    tg_projector_bytes most = {.step_workspace = step,
                               .workspace = tg_max_size(step, whole),
                               .host_workspace = p->view.host_bytes};
    for (int i = 0; i < p->branches; i++) {
        const tg_branch *branch = &p->branch[i];
        tg_projector_bytes own =
            branch->kind->scratch ? branch->kind->scratch(branch) : (tg_projector_bytes){0};
        if (i == 1 && tg_projector_samples(p)) { /* the dense residual and a core come first */
            tg_scratch extra = {0};
            tg_scratch_take(&extra, (size_t)p->numel * tg_dtype_size(p->dtype));
            tg_scratch_take(&extra, (size_t)p->low_rank->count * tg_dtype_size(p->dtype));
            own.workspace =
                extra.used +
                tg_max_size(own.workspace,
                            tg_workspace_bytes(p->be, (tg_query){.compress = &p->modes}));
        }
        most.workspace = tg_max_size(most.workspace, own.workspace);
        most.host_workspace = tg_max_size(most.host_workspace, own.host_workspace);
        most.borrowed = tg_max_size(most.borrowed, own.borrowed);
        most.host_borrowed = tg_max_size(most.host_borrowed, own.host_borrowed);
    }
    return most;
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

/* ---- memory of factors and index sets: one walk plans, allocates and releases it ---- */

typedef struct walk {
    tg_backend *be;
    tg_projector_bytes *bytes; /* adds them up; NULL: allocates, or releases */
    bool allocates, has_failed;
} walk;

/* Returns the block as it is afterwards. */
static void *visit(walk *w, void *block, tg_mem_category category, size_t bytes) {
    if (w->bytes) {
        *(category == TG_MEM_FACTORS ? &w->bytes->factors : &w->bytes->indices) += bytes;
        return block;
    }
    if (!w->allocates) {
        w->be->ops->release(w->be, block);
        return NULL;
    }
    void *made = w->has_failed ? NULL : w->be->ops->alloc(w->be, category, bytes);
    w->has_failed = !made;
    return made;
}

static void visit_bitmap(walk *w, tg_bitmap *bitmap) {
    if (bitmap->n > 0) {
        bitmap->words = visit(w, bitmap->words, TG_MEM_INDICES, tg_bitmap_word_bytes(bitmap));
        bitmap->ranks = visit(w, bitmap->ranks, TG_MEM_INDICES,
                              (size_t)tg_bitmap_ranks(bitmap->n) * sizeof(uint32_t));
    }
}

static void visit_memory(walk *w, tg_projector *p) {
    const size_t size = tg_dtype_size(p->dtype);
    tg_branch *low = p->low_rank;
    tg_row_view *view = &p->view;
    for (int d = 0; low && d < low->modes.ndim; d++) {
        const size_t bytes = (size_t)(low->modes.dim[d] * low->modes.rank[d]) * size;
        low->factor[d] =
            low->modes.factor[d] ? visit(w, low->factor[d], TG_MEM_FACTORS, bytes) : NULL;
    }
    if (p->sparse) {
        visit_bitmap(w, &p->sparse->bitmap);
    }
    if (view->rows.count > 0 && view->factor_mode >= 0) {
        const int64_t rows = view->modes.dim[view->factor_mode];
        view->factor = visit(w, view->factor, TG_MEM_FACTORS,
                             (size_t)(rows * p->modes.rank[view->factor_mode]) * size);
    }
    visit_bitmap(w, &view->kept);
    visit_bitmap(w, &view->own);
}

tg_status tg_projector_allocate(tg_projector *p, uint64_t seed, tg_workspace *workspace) {
    walk w = {.be = p->be, .allocates = true};
    visit_memory(&w, p);
    TG_CALL(w.has_failed ? TG_E_MEMORY : TG_OK);
    for (int i = 0; i < p->branches; i++) {
        p->branch[i].rng = (tg_rng){
            .seed = seed + (uint64_t)i * 0x9E3779B97F4A7C15ull,
            .purpose = p->branch[i].kind->is_sparse ? TG_RNG_SELECT : TG_RNG_RANGE,
        };
    }
    if (p->low_rank) {
        memcpy(p->modes.factor, p->low_rank->factor, sizeof p->low_rank->factor);
        memcpy(p->view.modes.factor, p->low_rank->factor, sizeof p->low_rank->factor);
        p->low_rank->modes = p->modes;
    }
    if (p->view.factor) {
        p->view.modes.factor[p->view.factor_mode] = p->view.factor;
    }
    p->workspace = workspace;
    return TG_OK;
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
    visit_memory(&(walk){.be = p->be}, p);
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

void tg_projector_get_counters(const tg_projector *p, int64_t out[TG_PROJECTOR_COUNTERS]) {
    out[0] = p->refreshes;
    out[1] = p->failures;
    out[2] = p->branch[0].is_ready;
    out[3] = p->branch[1].is_ready;
}

void tg_projector_set_counters(tg_projector *p, const int64_t counters[TG_PROJECTOR_COUNTERS]) {
    p->refreshes = counters[0];
    p->failures = counters[1];
    p->branch[0].is_ready = counters[2] != 0;
    p->branch[1].is_ready = counters[3] != 0;
}

tg_projector_bytes tg_projector_get_bytes(const tg_projector *p) {
    tg_projector_bytes bytes = {0};
    if (p) {
        bytes = measure(p);
        visit_memory(&(walk){.bytes = &bytes}, (tg_projector *)(uintptr_t)p); /* changes nothing */
    }
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
    for (int d = 0; d < branch->modes.ndim; d++) {
        if (branch->factor[d]) {
            TG_CALL(tg_fill_identity(branch->be, branch->dtype, branch->modes.dim[d],
                                     branch->modes.rank[d], branch->factor[d]));
        }
    }
    return TG_OK;
}

/* Refreshes one branch; survives a numerical failure, passes on any other error. */
static tg_status refresh_branch(tg_projector *p, tg_branch *branch, const void *x, tg_storage store,
                                const tg_bitmap *mask, void *scratch) {
    const tg_refresh call = {x, store, mask, scratch, p->workspace->host};
    branch->rng.step = (uint32_t)p->refreshes;
    tg_status status = branch->kind->refresh(branch, &call);
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

/* The arrays of a call: those of the whole tensor, or those of the projector's rows. */
typedef struct operands {
    tg_multimode modes;
    const tg_bitmap *bitmap; /* NULL: no sparse branch */
    void *values;            /* likewise */
    void *core;              /* NULL: no low-rank branch */
} operands;

/* A branch's values in an array with `first` values of the first branch. */
static void *values_of(const tg_projector *p, const tg_branch *branch, const void *array,
                       int64_t first) {
    const int64_t offset = branch == &p->branch[1] ? first : 0;
    return branch ? (char *)(uintptr_t)array + (size_t)offset * tg_dtype_size(p->dtype) : NULL;
}

static operands operands_of(const tg_projector *p, bool is_of_rows, const void *small) {
    const void *own = is_of_rows ? tg_rows_own(p) : NULL;
    const void *array = own ? own : small;
    const int64_t first = own ? tg_rows_first_count(p) : p->branch[0].count;
    return (operands){.modes = is_of_rows ? p->view.modes : p->modes,
                      .bitmap = !p->sparse   ? NULL
                                : is_of_rows ? &p->view.kept
                                             : &p->sparse->bitmap,
                      .values = values_of(p, p->sparse, array, first),
                      .core = values_of(p, p->low_rank, array, first)};
}

static tg_status require_ready(const tg_projector *p) {
    for (int i = 0; i < p->branches; i++) {
        if (!p->branch[i].is_ready) {
            return tg_fail(p->ctx, TG_E_ARGUMENT, "projector: used before its first refresh");
        }
    }
    return TG_OK;
}

/* Adds alpha times the low-rank part at the kept entries to the sparse values. */
static tg_status add_sampled(tg_projector *p, double alpha, void *small) {
    const operands all = operands_of(p, false, small);
    const tg_sample at_kept = {.modes = all.modes,
                               .bitmap = all.bitmap,
                               .core = all.core,
                               .alpha = alpha,
                               .values = all.values,
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
    const tg_wanted wanted = {"gradient", NULL, p->dtype, p->shape, false};
    TG_CALL(require_ready(p));
    TG_CALL(tg_gradient_check(p->be, gradient, &wanted));
    if (!gradient->dense && !tg_projector_takes_factored(p)) {
        return tg_fail(p->ctx, TG_E_UNSUPPORTED,
                       "gradient: the matrix projection takes it dense, found a factored one");
    }
    return TG_OK;
}

static tg_compress compress_of(const tg_projector *p, const tg_gradient *gradient, double scale,
                               double beta, uint32_t *guard, const operands *to) {
    return (tg_compress){.modes = to->modes,
                         .source = tg_gradient_source(gradient),
                         .bitmap = to->bitmap,
                         .masked = tg_projector_masks(p),
                         .scale = scale,
                         .beta = beta,
                         .values = to->values,
                         .core = to->core,
                         .workspace = p->workspace->memory,
                         .guard = guard};
}

/* Values accumulated earlier already had their low-rank part subtracted; it is added back first, so
 * that one subtraction at the end covers old and new. */
tg_status tg_projector_project_into(tg_projector *p, const tg_gradient *gradient, double scale,
                                    double beta, uint32_t *guard, void *small) {
    const bool has_rows = is_of_rows(p, gradient), scatters = has_rows && tg_rows_own(p);
    const bool samples = tg_projector_samples(p);
    const operands to = operands_of(p, has_rows, small);
    const tg_compress op = compress_of(p, gradient, scale, scatters ? 0.0 : beta, guard, &to);
    TG_CALL(samples && beta != 0.0 ? add_sampled(p, 1.0, small) : TG_OK);
    TG_CALL(p->be->ops->compress(p->be, &op));
    TG_CALL(scatters ? tg_rows_scatter(p, beta, small) : TG_OK);
    return samples ? add_sampled(p, -1.0, small) : TG_OK;
}

tg_status tg_projector_project(tg_projector *p, const tg_gradient *gradient, double scale,
                               double beta, const tg_tensor *small) {
    TG_NEED(NULL, p);
    TG_NEED(p->ctx, gradient, small);
    TG_CALL(check_small(p, small));
    TG_CALL(check_gradient(p, gradient));
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
static tg_expand expand_of(const tg_projector *p, const operands *from, back_weights weights,
                           const tg_back *back, void *out) {
    const bool has_core = weights.low_rank != 0.0;
    return (tg_expand){.modes = from->modes,
                       .bitmap = from->bitmap,
                       .values = from->values,
                       .lambda = has_core ? weights.sparse / weights.low_rank : weights.sparse,
                       .core = has_core ? from->core : NULL,
                       .alpha = expand_alpha(weights, back->alpha),
                       .beta = back->beta,
                       .out = out,
                       .workspace = p->workspace->memory,
                       .out_store = back->store,
                       .rounding = back->rounding,
                       .rates = back->rates,
                       .guard = back->guard};
}

tg_status tg_projector_back_by(tg_projector *p, const void *small, const tg_back *back, void *out) {
    const bool has_rows = p->view.rows.count > 0;
    const operands from = operands_of(p, has_rows, small);
    const tg_expand op = expand_of(p, &from, weights_of(p), back, out);
    TG_CALL(has_rows && tg_rows_own(p) ? tg_rows_gather(p, small) : TG_OK);
    return p->be->ops->expand(p->be, &op);
}

bool tg_projector_steps_at_once(const tg_projector *p) {
    return p->be->ops->step_compressed && !tg_projector_samples(p) && p->view.rows.count == 0;
}

tg_status tg_projector_step(tg_projector *p, const tg_gradient *gradient, uint32_t *guard,
                            const tg_adam *adam, const tg_back *back, void *small, void *out) {
    const operands all = operands_of(p, false, small);
    const tg_compress project = compress_of(p, gradient, 1.0, 0.0, guard, &all);
    const tg_expand expand = expand_of(p, &all, weights_of(p), back, out);
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
    TG_CALL(require_ready(p));
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
    TG_CALL(require_ready(p));
    TG_CALL(tg_projector_project_into(p, &dense, 1.0, 0.0, NULL, small->data));
    TG_CALL(p->be->ops->copy(p->be, out->data, gradient->data, tg_tensor_bytes(gradient)));
    const back_weights weights = {p->low_rank ? 1.0 : 0.0, 1.0};
    const operands from = operands_of(p, false, small->data);
    const tg_expand op =
        expand_of(p, &from, weights, &(tg_back){.alpha = -1.0, .beta = 1.0}, out->data);
    return p->be->ops->expand(p->be, &op);
}

/* The plans of calls: made once for each kind of call and kept by the backend.
 *
 * A kind is what sizes and paths depend on: calls whose pointers are reduced to whether they are
 * NULL and how they are aligned, and whose scalars to what conditions ask of them. Conditions see
 * reduced calls only, so calls of one kind take one path. */
#include "backend/cuda/compress/compress.cuh"

enum { PLANS = 64 }; /* kept; a network has a few kinds of call per shape of weight */

struct plan_kind {
    tg_multimode modes;
    bool projects, updates, expands;
    tg_compress project; /* without its modes, as are the others */
    tg_adam adam;
    tg_expand expand;
};

struct cuda_plans {
    int64_t made; /* the last PLANS of them are kept */
    plan_kind kind[PLANS];
    cuda_plan plan[PLANS];
};

/* ---- kinds of calls ---- */

/* Not NULL if the pointer is not, with its alignment to 16 bytes. */
template <class T> static T *like(T *pointer) {
    return pointer ? reinterpret_cast<T *>(256 + (uintptr_t)pointer % 16) : NULL;
}

static void reduce_modes(const tg_multimode *modes, tg_multimode *kind) {
    kind->dtype = modes->dtype;
    kind->ndim = modes->ndim;
    for (int d = 0; d < modes->ndim; d++) {
        kind->dim[d] = modes->dim[d];
        kind->rank[d] = modes->rank[d];
        kind->factor[d] = like(modes->factor[d]);
    }
}

static void reduce_project(const tg_compress *op, tg_compress *kind) {
    kind->source.dense = like(op->source.dense);
    kind->source.x = like(op->source.x);
    kind->source.dy = like(op->source.dy);
    kind->source.batch = op->source.batch;
    kind->source.store = op->source.store;
    kind->bitmap = like(op->bitmap);
    kind->masked = op->masked;
    kind->scale = op->scale == 1.0 ? 1.0 : 2.0;
    kind->beta = op->beta == 0.0 ? 0.0 : 1.0;
    kind->values = like(op->values);
    kind->core = like(op->core);
    kind->workspace = like(op->workspace);
}

/* The gradient is as far from the core as in the call. */
static void reduce_adam(const tg_adam *op, const tg_compress *project, tg_adam *kind) {
    kind->n = op->n;
    kind->split = op->split;
    kind->grad = static_cast<const char *>(like(project->core)) +
                 ((intptr_t)op->grad - (intptr_t)project->core);
    kind->m = like(op->m);
    kind->form = op->form;
    kind->eps = op->eps;
    kind->direction = like(op->direction);
    kind->weight = like(op->weight);
    kind->grad_store = op->grad_store;
    kind->counts = op->counts;
}

static void reduce_expand(const tg_expand *op, tg_expand *kind) {
    kind->bitmap = like(op->bitmap);
    kind->values = like(op->values);
    kind->core = like(op->core);
    kind->out = like(op->out);
    kind->out_store = op->out_store;
    kind->rounding = like(op->rounding);
}

/* ---- plans ---- */

template <class OP>
static const cuda_path<OP> *choose(const tg_backend *be, const cuda_path<OP> *table, const OP *op,
                                   const cuda_plan *plan, int64_t *at_once) {
    while ((*at_once = table->fits(be, op, plan)) == 0) {
        table++;
    }
    return table;
}

static cuda_plan make_plan(const tg_backend *be, const plan_kind *kind) {
    cuda_plan plan = cuda_plan_sizes(be, &kind->modes);
    tg_compress project = kind->project;
    tg_expand expand = kind->expand;
    project.modes = expand.modes = kind->modes;
    if (plan.dim0 * plan.unit == 0) { /* nothing to do */
        return plan;
    }
    if (kind->projects) {
        plan.project = choose(be, cuda_project_paths, &project, &plan, &plan.project_at_once);
        plan.counts = plan.project->counts && plan.project->counts(be, &project, &plan);
    }
    if (kind->updates) {
        plan.half = cuda_expand_half_fits(be, &kind->adam, &expand, &plan);
        plan.moves_core = cuda_sm90_core_adam_fits(be, &project, &kind->adam, &plan);
    }
    if (kind->expands) {
        plan.expand = choose(be, cuda_expand_paths, &expand, &plan, &plan.expand_at_once);
    }
    return plan;
}

static const cuda_plan *find_plan(const tg_backend *be, const plan_kind *kind) {
    cuda_plans *plans = cuda_state_of(be)->plans;
    for (int i = 0; i < PLANS && i < plans->made; i++) {
        if (memcmp(&plans->kind[i], kind, sizeof *kind) == 0) {
            return &plans->plan[i];
        }
    }
    const int64_t at = plans->made++ % PLANS;
    memcpy(&plans->kind[at], kind, sizeof *kind);
    plans->plan[at] = make_plan(be, kind);
    return &plans->plan[at];
}

cuda_plan cuda_plan_of(const tg_backend *be, const tg_multimode *modes, const tg_compress *project,
                       const tg_adam *adam, const tg_expand *expand) {
    plan_kind kind;
    memset(&kind, 0, sizeof kind); /* compared as a whole, padding included */
    reduce_modes(modes, &kind.modes);
    kind.projects = project != NULL;
    kind.updates = adam != NULL;
    kind.expands = expand != NULL;
    if (project) {
        reduce_project(project, &kind.project);
    }
    if (adam) {
        reduce_adam(adam, project, &kind.adam);
    }
    if (expand) {
        reduce_expand(expand, &kind.expand);
    }
    cuda_plan plan = *find_plan(be, &kind);
    const auto bind = [&](cuda_factor *factor) {
        factor->u = factor->u ? modes->factor[factor->mode] : NULL;
    };
    bind(&plan.first);
    for (int q = 0; q < plan.steps; q++) {
        bind(&plan.step[q].factor);
    }
    return plan;
}

size_t cuda_plans_bytes(void) {
    return sizeof(cuda_plans);
}

/* The table of branch kinds, and their common part: checks and the rank rule. */
#include "project/branch.h"

#include <math.h>

#include "base/minmax.h"

static const struct {
    const tg_branch_kind *kind;
    const char *name, *title;
} kinds[TG_BRANCH_TYPES] = {
#define TG_BRANCH_KIND(id, word, title, table) [TG_BRANCH_##id] = {&(table), word, title},
#include "project/kinds.def"
};

const tg_choice tg_branch_choices[] = {
#define TG_BRANCH_KIND(id, word, title, table) {word, TG_BRANCH_##id},
#include "project/kinds.def"
    {NULL, 0}};

const tg_branch_kind *tg_branch_kind_of(tg_branch_type type) {
    return (int)type >= 0 && type < TG_BRANCH_TYPES ? kinds[type].kind : NULL;
}

const char *tg_branch_type_title(tg_branch_type type) {
    return tg_branch_kind_of(type) ? kinds[type].title : NULL;
}

tg_branch_config tg_branch_config_default(void) {
    return (tg_branch_config){.type = TG_BRANCH_LOW_RANK,
                              .rank = {.count = 1, .value = {0.25}},
                              .sparse_ratio = 0.25,
                              .sparse_type = TG_SPARSE_TOPK,
                              .scale = 1.0,
                              .svd_type = TG_SVD_TRUNCATED,
                              .tucker_init = TG_INIT_HOSVD,
                              .n_iter_max_tucker = 1,
                              .tucker_warm_restart = true,
                              .first_dim_rollup = 1,
                              .side = TG_SIDE_LEFT};
}

void tg_workspace_reserve(tg_workspace *workspace, size_t bytes, size_t step_bytes,
                          size_t host_bytes) {
    workspace->bytes = tg_max_size(workspace->bytes, bytes);
    workspace->step_bytes = tg_max_size(workspace->step_bytes, step_bytes);
    workspace->host_bytes = tg_max_size(workspace->host_bytes, host_bytes);
}

tg_status tg_workspace_allocate_host(tg_workspace *workspace) {
    tg_context *ctx = workspace->be->ctx;
    workspace->host = tg_mem_alloc(ctx, TG_MEM_WORKSPACE, workspace->host_bytes, 1);
    return workspace->host ? TG_OK : TG_E_MEMORY;
}

tg_status tg_workspace_allocate(tg_workspace *workspace) {
    tg_backend *be = workspace->be;
    workspace->memory = be->ops->alloc(be, TG_MEM_WORKSPACE, workspace->bytes);
    return workspace->memory ? tg_workspace_allocate_host(workspace) : TG_E_MEMORY;
}

void tg_workspace_release(tg_workspace *workspace) {
    if (workspace->be) {
        workspace->be->ops->release(workspace->be, workspace->memory);
        TG_FREE(workspace->be->ctx, workspace->host);
        workspace->memory = NULL;
    }
}

tg_status tg_branch_plan(tg_context *ctx, tg_backend *be, const tg_branch_config *config,
                         const char *key, tg_dtype dtype, const tg_shape *shape, tg_branch *out) {
    *out = (tg_branch){.config = *config, .key = key, .be = be, .dtype = dtype, .shape = *shape};
    out->kind = tg_branch_kind_of(config->type);
    if (!out->kind) {
        return tg_fail(ctx, TG_E_CONFIG, "%sproj_type: number %d does not exist", key,
                       (int)config->type);
    }
    out->name = kinds[config->type].name;
    if (out->kind->is_sparse && !(config->sparse_ratio > 0.0 && config->sparse_ratio <= 1.0)) {
        return tg_fail(ctx, TG_E_CONFIG, "%ssparse_ratio: %g is not in (0, 1]", key,
                       config->sparse_ratio);
    }
    if (!isfinite(config->scale)) {
        return tg_fail(ctx, TG_E_CONFIG, "%sscale: %g is not finite", key, config->scale);
    }
    if (config->n_iter_max_tucker < 0) {
        return tg_fail(ctx, TG_E_CONFIG, "opt.n_iter_max_tucker: %d is negative",
                       config->n_iter_max_tucker);
    }
    return out->kind->plan(ctx, out);
}

/* A fraction in (0, 1) or an integer >= 1. */
static bool is_rank_value(double value) {
    return (value > 0.0 && value < 1.0) || (value >= 1.0 && value <= 1e15 && value == floor(value));
}

static tg_status bad_rank(tg_context *ctx, const char *key, const tg_rank *rank, int entry,
                          const tg_shape *shape) {
    char text[128];
    return tg_fail(ctx, TG_E_CONFIG,
                   "%srank: %g (entry %d of %d) is not a fraction below 1, a positive integer or a "
                   "list of %d (weight is %s)",
                   key, rank->count > entry ? rank->value[entry] : (double)NAN, entry + 1,
                   rank->count, shape->ndim, tg_shape_text(shape, text, sizeof text));
}

/* The rank of a mode is at most the product of the other dims. */
void tg_rank_limits(const tg_shape *shape, int64_t *out) {
    const int64_t numel = tg_shape_numel(shape);
    for (int d = 0; d < shape->ndim; d++) {
        out[d] = tg_min(shape->dim[d], numel / shape->dim[d]);
    }
}

tg_status tg_rank_resolve(tg_context *ctx, const char *key, const tg_rank *rank,
                          const tg_shape *shape, int64_t *out, int64_t *asked) {
    if (rank->count != 1 && rank->count != shape->ndim) {
        return bad_rank(ctx, key, rank, 0, shape);
    }
    int64_t most[TG_MAX_NDIM];
    tg_rank_limits(shape, most);
    int wide_dims = 0;
    for (int d = 0; d < shape->ndim; d++) {
        wide_dims += shape->dim[d] != 1;
    }
    for (int d = 0; d < shape->ndim; d++) {
        const int entry = rank->count == 1 ? 0 : d;
        const double value = rank->value[entry];
        if (!is_rank_value(value)) {
            return bad_rank(ctx, key, rank, entry, shape);
        }
        const int64_t dim = shape->dim[d];
        int64_t rounded_up = 0;
        if (value >= 1.0) {
            asked[d] = (int64_t)value;
        } else if (rank->count == 1) { /* a share of all entries, spread over the modes */
            asked[d] = (int64_t)(pow(value, 1.0 / wide_dims) * (double)dim);
            rounded_up = 1;
        } else {
            asked[d] = (int64_t)(value * (double)dim);
        }
        out[d] = tg_min(tg_max(asked[d] + rounded_up, 1), most[d]);
    }
    return TG_OK;
}

int tg_branch_clamped_mode(const tg_branch *branch) {
    for (int d = 0; d < branch->modes.ndim; d++) {
        const bool is_limited = branch->modes.dim[d] > 1 && branch->asked[d] != TG_EVERY_RANK;
        if (is_limited && branch->modes.factor[d] && branch->modes.rank[d] < branch->asked[d]) {
            return d;
        }
    }
    return -1;
}

tg_status tg_bitmap_set_words(tg_backend *be, tg_bitmap *bitmap, const uint64_t *words) {
    TG_CALL(be->ops->upload(be, bitmap->words, words, tg_bitmap_word_bytes(bitmap)));
    return tg_bitmap_rank(be, bitmap);
}

double tg_branch_back_scale(const tg_branch *branch) {
    double scale = branch->config.scale;
    if (branch->kind->is_sparse && branch->config.scale_by_mask_ratio) {
        scale *= sqrt((double)branch->bitmap.n / (double)branch->count);
    }
    return scale;
}

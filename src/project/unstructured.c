/* Unstructured sparse branch: k = max(1, ceil(ratio * entries)) entries of the tensor. */
#include <math.h>

#include "project/branch.h"

static tg_status unstructured_plan(tg_context *ctx, tg_branch *branch) {
    const int64_t numel = tg_shape_numel(&branch->shape);
    const double k = ceil(branch->config.sparse_ratio * (double)numel);
    branch->bitmap.n = numel;
    branch->count = k < (double)numel ? (k > 1.0 ? (int64_t)k : 1) : numel;
    if (branch->count > UINT32_MAX) {
        return tg_fail(ctx, TG_E_UNSUPPORTED,
                       "%ssparse_ratio: %lld kept entries, at most %lld are supported", branch->key,
                       (long long)branch->count, (long long)UINT32_MAX);
    }
    return TG_OK;
}

static void no_scratch(const tg_branch *branch, size_t *bytes, size_t *host_bytes) {
    (void)branch;
    *bytes = *host_bytes = 0;
}

static tg_status unstructured_refresh(tg_branch *branch, const void *x, tg_storage store,
                                      const tg_bitmap *mask, void *scratch, void *host_scratch) {
    (void)mask; /* a sparse branch that comes second follows a low-rank one: nothing is masked */
    (void)scratch;
    (void)host_scratch;
    const tg_backend_ops *ops = branch->be->ops;
    const tg_dtype dtype = tg_stored(branch->dtype, store);
    const tg_sparse_type type = branch->config.sparse_type;
    const tg_select op = {.kind = type == TG_SPARSE_RANDK         ? TG_SELECT_RANDOM
                                  : type == TG_SPARSE_PROBABILITY ? TG_SELECT_WEIGHTED
                                                                  : TG_SELECT_TOPK,
                          .bitmap = &branch->bitmap,
                          .k = branch->count,
                          .dtype = dtype,
                          .x = x,
                          .rng = branch->rng};
    return ops->select(branch->be, &op);
}

static tg_scratch_need unstructured_scratch_need(const tg_branch *branch) {
    const tg_backend_ops *ops = branch->be->ops;
    return branch->config.sparse_type == TG_SPARSE_RANDK || !ops->scratch_need
               ? (tg_scratch_need){0}
               : ops->scratch_need(branch->be, TG_SCRATCH_SELECT, branch->dtype, branch->bitmap.n,
                                   branch->count);
}

const tg_branch_kind tg_branch_unstructured = {.is_sparse = true,
                                               .plan = unstructured_plan,
                                               .scratch = no_scratch,
                                               .scratch_need = unstructured_scratch_need,
                                               .refresh = unstructured_refresh};

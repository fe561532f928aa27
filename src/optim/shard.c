/* Owners of moments, and updates that the owner begins and every rank ends. */
#include "optim/shard.h"

#include "backend/tensor.h"
#include "optim/step.h"

/* ---- owners ---- */

/* Bytes of moments that a single rank is to hold for all; 0: every rank has its own. */
static tg_status weigh(tg_context *ctx, const tg_optim_setup *setup, int index, size_t *out) {
    const tg_optim_param *param = &setup->params[index];
    const tg_dtype dtype = tg_dtype_wide(param->dtype);
    const size_t dense = (size_t)tg_shape_numel(&param->shape) * tg_dtype_size(dtype);
    const bool is_projected = tg_is_projected(setup, param);
    int64_t count = 0;
    *out = 0;
    if (!is_projected && dense <= TG_SMALL_PARAM) {
        return TG_OK;
    }
    TG_CALL(tg_slot_plan_values(ctx, setup, index, &count));
    const tg_moments moments = tg_moments_plan_param(setup, param, count);
    *out = tg_moments_bytes(&moments);
    return TG_OK;
}

static int lightest(const size_t *load, int ranks) {
    int best = 0;
    for (int i = 1; i < ranks; i++) {
        best = load[i] < load[best] ? i : best;
    }
    return best;
}

/* Largest first, each to the rank with the least so far. */
static void spread(const size_t *bytes, int count, size_t *load, int ranks, int *owner) {
    for (;;) {
        int next = -1;
        for (int i = 0; i < count; i++) {
            const bool is_open = bytes[i] > 0 && owner[i] == TG_ON_ALL;
            next = is_open && (next < 0 || bytes[i] > bytes[next]) ? i : next;
        }
        if (next < 0) {
            return;
        }
        owner[next] = lightest(load, ranks);
        load[owner[next]] += bytes[next];
    }
}

/* Swaps rank 0, whose memory is planned and reported, with the rank that has most. */
static void put_most_first(const size_t *load, int ranks, int *owner, int count) {
    int most = 0;
    for (int i = 1; i < ranks; i++) {
        most = load[i] > load[most] ? i : most;
    }
    for (int i = 0; i < count; i++) {
        owner[i] = owner[i] == most ? 0 : owner[i] == 0 ? most : owner[i];
    }
}

tg_status tg_shard_assign(tg_context *ctx, const tg_optim_setup *setup, int *owner) {
    const int count = setup->param_count, ranks = setup->shard_ranks;
    size_t *bytes = NULL, *load = NULL;
    tg_status status = TG_OK;
    for (int i = 0; i < count; i++) {
        owner[i] = TG_ON_ALL;
    }
    if (ranks < 2) {
        return TG_OK;
    }
    TG_TRY(TG_NEW(ctx, TG_MEM_OTHER, bytes, count));
    TG_TRY(TG_NEW(ctx, TG_MEM_OTHER, load, ranks));
    for (int i = 0; i < count; i++) {
        TG_TRY(weigh(ctx, setup, i, &bytes[i]));
    }
    spread(bytes, count, load, ranks, owner);
    put_most_first(load, ranks, owner, count);
fail:
    tg_mem_free(ctx, bytes);
    tg_mem_free(ctx, load);
    return status;
}

/* ---- sums ---- */

tg_status tg_sum_measure(tg_optim *optim, int param, bool clips, tg_sum_facts *out) {
    tg_slot *slot = &optim->slots[param];
    int64_t nonfinite = 0;
    tg_norms norms = {0};
    TG_CALL(tg_sum_read_count(optim, slot, &nonfinite));
    TG_CALL(clips ? tg_sum_norms(optim, slot, &norms) : TG_OK);
    *out = (tg_sum_facts){(double)nonfinite, norms.sum_squares};
    return TG_OK;
}

tg_status tg_sum_learn(tg_optim *optim, int param, const tg_sum_facts *facts) {
    tg_slot *slot = &optim->slots[param];
    uint32_t *guard = NULL;
    TG_CALL(tg_update_begin(optim, slot, &guard));
    /* the facts include what was counted here: the guard lets the update pass */
    TG_CALL(optim->be->ops->fill(optim->be, TG_F32, 1, (tg_scalar){0}, guard));
    slot->nonfinite = (int64_t)facts->nonfinite;
    slot->squares = facts->squares;
    return TG_OK;
}

/* ---- updates ---- */

tg_status tg_sum_begin_update(tg_optim *optim, int param, const tg_tensor *weight, bool *is_made,
                              tg_tensor *update) {
    tg_slot *slot = &optim->slots[param];
    const tg_shape values = {1, {slot->count}};
    *is_made = slot->nonfinite == 0;
    if (!*is_made) {
        const int64_t nonfinite = slot->nonfinite;
        tg_sum_end(optim, slot);
        return tg_slot_refused(optim, slot, nonfinite);
    }
    TG_CALL(tg_slot_check_weight(optim, slot, weight));
    TG_CALL(optim->shares_workspace ? tg_optim_use_shared(optim) : TG_OK);
    if (slot->owner == optim->shard_rank) {
        const tg_update call = {.values = slot->sum, .weight = weight->data};
        TG_CALL(tg_slot_run_rule(optim, slot, &call));
    }
    *update =
        slot->projector ? tg_backend_view(optim->be, slot->dtype, &values, optim->small) : *weight;
    return TG_OK;
}

tg_status tg_sum_end_update(tg_optim *optim, int param, const tg_tensor *weight) {
    tg_slot *slot = &optim->slots[param];
    const tg_update call = {.weight = weight->data};
    TG_CALL(slot->projector ? tg_slot_expand_update(optim, slot, &call) : TG_OK);
    tg_update_end(optim, slot);
    tg_sum_end(optim, slot);
    return TG_OK;
}

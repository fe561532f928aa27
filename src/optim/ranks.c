/* Owners of moments, and updates that the owner begins and every rank ends. */
#include "optim/ranks.h"

#include <math.h>

#include "backend/tensor.h"
#include "base/minmax.h"
#include "optim/step.h"

/* ---- owners ---- */

/* A group of ranks has all parts of each tensor: the ranks g parts .. g parts + parts - 1. */
static int group_count(const tg_optim *optim) {
    return optim->shard_ranks / optim->parts;
}

/* Bytes of moments that a single rank is to hold for all; 0: every rank has its own. The same on
 * every rank: of a dense block, the mean of all blocks of its tensor, which one rank of each group
 * has. */
static size_t weigh(const tg_optim *optim, const tg_slot *slot) {
    const size_t dense = (size_t)tg_shape_numel(&slot->whole) * tg_dtype_size(slot->dtype);
    if (!slot->projector && dense <= TG_SMALL_PARAM) {
        return 0;
    }
    if (!tg_slot_is_dense_block(slot)) {
        return tg_moments_bytes(&slot->moments);
    }
    const tg_moments whole =
        tg_moments_plan_dense(&optim->groups[slot->group], slot->dtype, &slot->whole, &slot->whole);
    return group_count(optim) > 1 ? tg_moments_bytes(&whole) / (size_t)optim->parts + 1 : 0;
}

/* The first of `count` neighbours in a row whose largest load is least. */
static int lightest(const size_t *load, int ranks, int count) {
    int best = 0;
    size_t least = SIZE_MAX;
    for (int first = 0; first < ranks; first += count) {
        size_t most = 0;
        for (int i = first; i < first + count; i++) {
            most = tg_max_size(load[i], most);
        }
        best = most < least ? first : best;
        least = most < least ? most : least;
    }
    return best;
}

/* Largest first, each to the rank, or a dense block to the group, with the least so far. */
static void spread(tg_optim *optim, size_t *load) {
    for (;;) {
        tg_slot *next = NULL;
        size_t bytes = 0;
        for (int i = 0; i < optim->slot_count; i++) {
            tg_slot *slot = &optim->slots[i];
            const size_t own = slot->owner == TG_ON_ALL ? weigh(optim, slot) : 0;
            next = own > bytes ? slot : next;
            bytes = tg_max_size(own, bytes);
        }
        if (!next) {
            return;
        }
        const int count = tg_slot_is_dense_block(next) ? optim->parts : 1;
        const int first = lightest(load, optim->shard_ranks, count);
        next->owner = first / count;
        for (int i = first; i < first + count; i++) {
            load[i] += bytes;
        }
    }
}

static int swap(int number, int other) {
    return number == other ? 0 : number == 0 ? other : number;
}

/* Swaps the group and the part of rank 0, whose memory is planned and reported, with those of the
 * rank that has most. */
static void put_most_first(tg_optim *optim, const size_t *load) {
    const int parts = optim->parts;
    int most = 0;
    for (int i = 1; i < optim->shard_ranks; i++) {
        most = load[i] > load[most] ? i : most;
    }
    for (int i = 0; i < optim->slot_count; i++) {
        tg_slot *slot = &optim->slots[i];
        const int rank = slot->owner;
        if (rank != TG_ON_ALL) {
            slot->owner = tg_slot_is_dense_block(slot) ? swap(rank, most / parts)
                                                       : swap(rank / parts, most / parts) * parts +
                                                             swap(rank % parts, most % parts);
            slot->is_elsewhere =
                slot->owner !=
                (tg_slot_is_dense_block(slot) ? optim->shard_rank / parts : optim->shard_rank);
        }
    }
}

tg_status tg_shard_assign(tg_optim *optim) {
    size_t *load = NULL;
    for (int i = 0; i < optim->slot_count; i++) {
        optim->slots[i].owner = TG_ON_ALL;
    }
    if (optim->shard_ranks > 1) {
        TG_CALL(TG_NEW(optim->ctx, TG_MEM_OTHER, load, optim->shard_ranks));
        spread(optim, load);
        put_most_first(optim, load);
        tg_mem_free(optim->ctx, load);
    }
    return TG_OK;
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
    slot->is_handed_out = false; /* decided */
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
    TG_CALL(optim->shares_workspace ? tg_optim_use_shared(optim, false) : TG_OK);
    if (!slot->is_elsewhere) {
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

/* ---- one rank refreshes a projection for all ---- */

bool tg_sum_is_to_refresh(const tg_optim *optim, int param) {
    const tg_slot *slot = &optim->slots[param];
    return slot->is_summing && slot->dense_sum;
}

/* From now on the sum is the compressed one. */
static void drop_dense(tg_optim *optim, tg_slot *slot) {
    optim->be->ops->release(optim->be, slot->dense_sum);
    optim->be->ops->release(optim->be, slot->whole_sum);
    slot->dense_sum = slot->whole_sum = NULL;
    slot->nonfinite = 0;
    slot->is_handed_out = true; /* its present values decide, not the local gradients */
}

tg_status tg_sum_refresh(tg_optim *optim, int param, tg_refresh_news *news) {
    tg_slot *slot = &optim->slots[param];
    tg_projector *p = slot->projector;
    *news = (tg_refresh_news){0};
    TG_CALL(tg_sum_read_count(optim, slot, &news->nonfinite));
    slot->is_handed_out = true;
    if (news->nonfinite > 0) {
        return TG_OK;
    }
    const tg_gradient whole = {.param = param,
                               .dtype = slot->dtype,
                               .shape = p->shape,
                               .dense = slot->whole_sum ? slot->whole_sum : slot->dense_sum,
                               .place = optim->be->ops->place};
    TG_CALL(tg_slot_refresh_and_project(optim, slot, &whole, slot->sum));
    *news = (tg_refresh_news){.refreshes = p->refreshes,
                              .failures = p->failures,
                              .is_ready = {p->branch[0].is_ready, p->branch[1].is_ready},
                              .error = slot->error};
    drop_dense(optim, slot);
    return TG_OK;
}

tg_status tg_sum_begin_refreshed(tg_optim *optim, int param, const tg_refresh_news *news) {
    tg_slot *slot = &optim->slots[param];
    tg_projector *p = slot->projector;
    const tg_backend_ops *ops = optim->be->ops;
    if (news->nonfinite > 0) {
        const tg_tensor sum = tg_sum_get(optim, param);
        const int64_t numel = tg_tensor_numel(&sum);
        const tg_scalar nan = {(double)NAN, (double)NAN};
        TG_CALL(ops->fill(optim->be, slot->dtype, numel, (tg_scalar){0}, sum.data));
        return ops->fill(optim->be, slot->dtype, tg_min(news->nonfinite, numel), nan, sum.data);
    }
    drop_dense(optim, slot);
    p->refreshes = news->refreshes;
    p->failures = news->failures;
    p->branch[0].is_ready = news->is_ready[0] != 0;
    p->branch[1].is_ready = news->is_ready[1] != 0;
    slot->error = news->error;
    return tg_slot_is_refreshed(optim, slot);
}

int tg_sum_list_refreshed(const tg_optim *optim, int param, tg_tensor parts[TG_REFRESHED_PARTS]) {
    const tg_slot *slot = &optim->slots[param];
    int count = 0;
    for (int b = 0; b < slot->projector->branches; b++) {
        const tg_branch *branch = &slot->projector->branch[b];
        for (int d = 0; d < TG_MAX_NDIM; d++) {
            const tg_shape shape = {2, {branch->modes.dim[d], branch->modes.rank[d]}};
            if (branch->factor[d]) {
                parts[count++] = tg_backend_view(optim->be, slot->dtype, &shape, branch->factor[d]);
            }
        }
        if (branch->kind->is_sparse) {
            const tg_shape words = {1, {tg_bitmap_words(branch->bitmap.n)}};
            parts[count++] = tg_backend_view(optim->be, TG_U64, &words, branch->bitmap.words);
        }
    }
    const tg_shape values = {1, {slot->count}};
    parts[count++] = tg_backend_view(optim->be, slot->dtype, &values, slot->sum);
    return count;
}

tg_status tg_sum_end_refreshed(tg_optim *optim, int param) {
    return tg_projector_complete(optim->slots[param].projector);
}

tg_status tg_sum_add_nothing(tg_optim *optim, int param) {
    tg_slot *slot = &optim->slots[param];
    const tg_backend_ops *ops = optim->be->ops;
    uint32_t *guard = NULL;
    if (slot->is_summing) {
        return TG_OK;
    }
    /* no checked gradient has set the address of the shared workspace yet */
    TG_CALL(optim->shares_workspace ? tg_optim_use_shared(optim, false) : TG_OK);
    TG_CALL(tg_update_begin(optim, slot, &guard));
    TG_CALL(tg_sum_begin(optim, slot));
    TG_CALL(slot->dense_sum
                ? ops->fill(optim->be, slot->dtype, slot->numel, (tg_scalar){0}, slot->dense_sum)
                : ops->fill(optim->be, slot->dtype, slot->count, (tg_scalar){0}, slot->sum));
    slot->is_summing = true;
    return TG_OK;
}

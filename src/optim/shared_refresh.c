/* One process refreshes; the others receive factors, index set and projected sum. Their states are
 * equal to the bit, whatever decomposition their machines would compute. */
#include "optim/shared_refresh.h"

#include <math.h>

#include "backend/tensor.h"
#include "optim/step.h"

bool tg_sum_is_to_refresh(const tg_optim *optim, int param) {
    const tg_slot *slot = &optim->slots[param];
    return slot->is_summing && slot->dense_sum;
}

/* From now on the sum is the compressed one. */
static void drop_dense(tg_optim *optim, tg_slot *slot) {
    optim->be->ops->release(optim->be, slot->dense_sum);
    slot->dense_sum = NULL;
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
                               .shape = slot->shape,
                               .dense = slot->dense_sum,
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
        const int64_t count = news->nonfinite < slot->numel ? news->nonfinite : slot->numel;
        const tg_scalar nan = {(double)NAN, (double)NAN};
        slot->is_handed_out = true;
        TG_CALL(ops->fill(optim->be, slot->dtype, slot->numel, (tg_scalar){0}, slot->dense_sum));
        return ops->fill(optim->be, slot->dtype, count, nan, slot->dense_sum);
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
    const tg_projector *p = optim->slots[param].projector;
    return p->sparse ? tg_bitmap_rank(optim->be, &p->sparse->bitmap) : TG_OK;
}

tg_status tg_sum_add_nothing(tg_optim *optim, int param) {
    tg_slot *slot = &optim->slots[param];
    const tg_backend_ops *ops = optim->be->ops;
    uint32_t *guard = NULL;
    if (slot->is_summing) {
        return TG_OK;
    }
    /* no checked gradient has set the address of the shared workspace yet */
    TG_CALL(optim->shares_workspace ? tg_optim_use_shared(optim) : TG_OK);
    TG_CALL(tg_update_begin(optim, slot, &guard));
    TG_CALL(tg_sum_begin(optim, slot));
    TG_CALL(slot->dense_sum
                ? ops->fill(optim->be, slot->dtype, slot->numel, (tg_scalar){0}, slot->dense_sum)
                : ops->fill(optim->be, slot->dtype, slot->count, (tg_scalar){0}, slot->sum));
    slot->is_summing = true;
    return TG_OK;
}

#include "optim/bucket.h"

#include "optim/shard.h"

bool tg_bucket_takes(const tg_optim_setup *setup, const tg_optim_param *param) {
    const tg_dtype dtype = tg_dtype_wide(param->dtype);
    const tg_dtype real = tg_dtype_real(tg_dtype_wide(setup->params[0].dtype));
    return !tg_is_projected(setup, param) && tg_dtype_real(dtype) == real &&
           (size_t)tg_shape_numel(&param->shape) * tg_dtype_size(dtype) <= TG_SMALL_PARAM;
}

tg_status tg_bucket_create(tg_optim *optim, const tg_optim_setup *setup) {
    const tg_backend_ops *ops = optim->be->ops;
    int64_t reals = 0;
    for (int i = 0; i < optim->slot_count; i++) {
        tg_slot *slot = &optim->slots[i];
        slot->is_bucketed = setup->accumulates && tg_bucket_takes(setup, &setup->params[i]);
        if (slot->is_bucketed) {
            reals += slot->numel * (tg_dtype_is_complex(slot->dtype) ? 2 : 1);
        }
    }
    if (reals == 0) {
        return TG_OK;
    }
    const tg_dtype real = tg_dtype_real(optim->slots[0].dtype);
    const tg_shape shape = {1, {reals}};
    char *at = ops->alloc(optim->be, TG_MEM_GRADIENTS, (size_t)reals * tg_dtype_size(real));
    optim->bucket = tg_backend_view(optim->be, real, &shape, at);
    for (int i = 0; i < optim->slot_count && at; i++) {
        tg_slot *slot = &optim->slots[i];
        if (slot->is_bucketed) {
            slot->sum = at;
            at += (size_t)slot->numel * tg_dtype_size(slot->dtype);
        }
    }
    return at ? ops->fill(optim->be, real, reals, (tg_scalar){0}, optim->bucket.data) : TG_E_MEMORY;
}

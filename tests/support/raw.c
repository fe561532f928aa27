/* Plain arrays as tensors. */
#include "support/raw.h"

#include "backend/tensor.h"
#include "optim/optim.h"

/* Empty if the parameter does not exist. */
static tg_tensor of_param(const tg_optim *optim, int param, bool is_weight, const void *data) {
    if (param < 0 || param >= optim->slot_count) {
        return (tg_tensor){.data = (void *)(uintptr_t)data};
    }
    const tg_slot *slot = &optim->slots[param];
    const tg_dtype dtype = is_weight ? tg_stored(slot->dtype, slot->weight_store) : slot->dtype;
    return tg_backend_view(optim->be, dtype, &slot->shape, data);
}

tg_status raw_optim_step(tg_optim *optim, int param, const void *gradient, void *weight) {
    const tg_tensor g = of_param(optim, param, false, gradient);
    const tg_tensor w = of_param(optim, param, true, weight);
    return tg_optim_step(optim, param, &g, &w);
}

tg_status raw_optim_step_gradient(tg_optim *optim, const tg_gradient *gradient, void *weight) {
    const tg_tensor w = of_param(optim, gradient->param, true, weight);
    return tg_optim_step_gradient(optim, gradient, &w);
}

tg_status raw_optim_save(tg_optim *optim, const char *path) {
    tg_archive *archive = NULL;
    tg_status status = tg_archive_create(optim->ctx, &archive);
    status = status == TG_OK ? tg_optim_save(optim, archive) : status;
    status = status == TG_OK ? tg_safetensors_write(optim->ctx, path, archive) : status;
    tg_archive_destroy(&archive);
    return status;
}

tg_status raw_optim_load(tg_optim *optim, const char *path) {
    tg_archive *archive = NULL;
    tg_status status = tg_safetensors_read(optim->ctx, path, &archive);
    status = status == TG_OK ? tg_optim_load(optim, archive) : status;
    tg_archive_destroy(&archive);
    return status;
}

tg_status raw_optim_apply(tg_optim *optim, int param, void *weight) {
    const tg_tensor w = of_param(optim, param, true, weight);
    return tg_optim_apply(optim, param, &w);
}

tg_status raw_optim_bind(tg_optim *optim, int param, void *weight) {
    const tg_tensor w = of_param(optim, param, true, weight);
    return tg_optim_bind(optim, param, &w);
}

static tg_tensor whole(const tg_projector *p, const void *data) {
    return tg_backend_view(p->be, p->dtype, &p->shape, data);
}

static tg_tensor compressed(const tg_projector *p, const void *data) {
    return tg_backend_view(p->be, p->dtype, &(tg_shape){1, {tg_projector_count(p)}}, data);
}

tg_status raw_projector_refresh(tg_projector *p, const void *gradient) {
    const tg_tensor g = whole(p, gradient);
    return tg_projector_refresh(p, &g);
}

tg_status raw_projector_project(tg_projector *p, const tg_gradient *gradient, double scale,
                                double beta, void *small) {
    const tg_tensor c = compressed(p, small);
    return tg_projector_project(p, gradient, scale, beta, &c);
}

tg_status raw_projector_back(tg_projector *p, const void *small, double alpha, double beta,
                             void *out) {
    const tg_tensor c = compressed(p, small), x = whole(p, out);
    return tg_projector_back(p, &c, alpha, beta, &x);
}

tg_status raw_projector_residual(tg_projector *p, const void *gradient, void *small, void *out) {
    const tg_tensor g = whole(p, gradient), c = compressed(p, small), x = whole(p, out);
    return tg_projector_residual(p, &g, &c, &x);
}

/* The Sobolev norm of order s of an error e on the unit periodic grid of P points, by its Fourier
 * coefficients E_k = sum_x e(x) exp(-2 pi i k.x):
 *
 *   |e|_s^2 = 1/P sum_k w_k |E_k|^2,   w_k = (1 + |2 pi k|^2)^s
 *
 * which is sum |e|^2 for s = 0. The gradient of |e|_s^2 / 2 is F^-1(w E) with F^-1 F = 1. All in
 * f64: the weights grow with the grid, and the rounding of a transform with them. */
#include "nn/losses.h"

#include <string.h>

#include "base/minmax.h"

/* ---- transforms and their memory ---- */

tg_fft_desc nn_transforms_of(int ndim, const int64_t *grid, bool is_complex, int64_t images) {
    tg_fft_desc desc = {.dtype = TG_F64, .complex = is_complex, .ndim = ndim, .howmany = images};
    for (int d = 0; d < ndim; d++) {
        const bool is_half = !is_complex && d == ndim - 1;
        desc.grid[d] = grid[d];
        desc.kept[d] = is_half ? grid[d] / 2 + 1 : grid[d];
        desc.first[d] = is_half ? 0 : -(grid[d] / 2);
    }
    return desc;
}

void nn_transforms_free(tg_backend *be, nn_transforms *t) {
    if (be) {
        be->ops->fft_destroy(be, &t->fft);
        be->ops->release(be, t->memory);
    }
    *t = (nn_transforms){0};
}

tg_status nn_transforms_prepare(tg_backend *be, const tg_fft_desc *desc, int64_t numbers,
                                nn_transforms *t) {
    tg_status status = TG_OK;
    if (t->fft && t->desc.complex == desc->complex && t->desc.ndim == desc->ndim &&
        memcmp(t->desc.grid, desc->grid, sizeof desc->grid) == 0 &&
        t->desc.howmany >= desc->howmany) {
        return TG_OK;
    }
    nn_transforms_free(be, t);
    t->desc = *desc;
    TG_TRY(be->ops->fft_create(be, desc, &t->fft));
    TG_TRY(TG_BACKEND_ALLOC(be, TG_MEM_WORKSPACE, t->memory, (size_t)numbers * sizeof *t->memory));
fail:
    if (status != TG_OK) {
        nn_transforms_free(be, t);
    }
    return status;
}

tg_status nn_transforms_plan(tg_backend *be, const tg_fft_desc *desc, int64_t numbers,
                             size_t *bytes, size_t *host) {
    const tg_place place = be->ops->place;
    const size_t there = tg_context_memory(be->ctx, place).current[TG_MEM_WORKSPACE];
    const size_t here = tg_context_memory(be->ctx, TG_HOST).current[TG_MEM_WORKSPACE];
    tg_fft_plan *fft = NULL; /* the size of its own workspace is known once it exists */
    TG_CALL(be->ops->fft_create(be, desc, &fft));
    *bytes = tg_context_memory(be->ctx, place).current[TG_MEM_WORKSPACE] - there +
             (size_t)numbers * sizeof(double);
    *host =
        place == TG_HOST ? 0 : tg_context_memory(be->ctx, TG_HOST).current[TG_MEM_WORKSPACE] - here;
    be->ops->fft_destroy(be, &fft);
    return TG_OK;
}

/* ---- the norm ---- */

/* Counts of f64 numbers: of all fields, of all spectra, and of both plus the powers. */
typedef struct sizes {
    int64_t field, spectrum, total;
} sizes;

static sizes sizes_of(const tg_fft_desc *desc) {
    const int64_t points = tg_product(desc->ndim, desc->grid) * (desc->complex ? 2 : 1);
    const int64_t kept = 2 * tg_product(desc->ndim, desc->kept), images = desc->howmany;
    return (sizes){images * points, images * kept, images * (points + kept + 2)};
}

tg_status nn_spectral_prepare(tg_backend *be, const tg_loss_op *op, nn_spectral *work) {
    const tg_fft_desc desc = nn_transforms_of(op->ndim, op->grid, op->components == 2, op->images);
    TG_CALL(nn_transforms_prepare(be, &desc, sizes_of(&desc).total, &work->all));
    const sizes size = sizes_of(&work->all.desc);
    work->field = work->all.memory;
    work->spectrum = work->field + size.field;
    work->powers = work->spectrum + size.spectrum;
    return TG_OK;
}

tg_status nn_spectral_plan(tg_backend *be, const tg_loss_op *op, size_t *bytes, size_t *host) {
    const tg_fft_desc desc = nn_transforms_of(op->ndim, op->grid, op->components == 2, op->images);
    return nn_transforms_plan(be, &desc, sizes_of(&desc).total, bytes, host);
}

/* powers = |.|_s^2 of the field's images, or of the target's; leaves the spectrum in `work`. */
static tg_status transform(tg_backend *be, const nn_spectral *work, const tg_loss_op *op,
                           bool is_target) {
    tg_sobolev call = {.complex = work->all.desc.complex,
                       .ndim = op->ndim,
                       .images = op->images,
                       .order = op->p,
                       .weighs = !is_target && op->dpred,
                       .spectrum = work->spectrum,
                       .squares = work->powers + is_target};
    memcpy(call.grid, op->grid, sizeof call.grid);
    TG_CALL(be->ops->fft(be, work->all.fft, TG_FFT_FORWARD, op->images, TG_FFT_PLAIN, 1.0,
                         work->field, work->spectrum));
    return be->ops->sobolev_squares(be, &call);
}

tg_status nn_spectral_add(tg_backend *be, nn_spectral *work, const tg_loss_op *op) {
    const tg_backend_ops *ops = be->ops;
    const int64_t points = tg_product(op->ndim, op->grid);
    const int64_t numbers = op->images * points * op->components;
    tg_loss_op given = *op;
    TG_CALL(ops->convert(be, numbers, op->dtype, op->target, TG_F64, work->field));
    TG_CALL(op->relative ? transform(be, work, op, true) : TG_OK);
    /* target - pred: the gradient's sign is flipped below; the spectrum is free now */
    TG_CALL(ops->convert(be, numbers, op->dtype, op->pred, TG_F64, work->spectrum));
    TG_CALL(ops->axpy(be, TG_F64, numbers, (tg_scalar){-1.0, 0.0}, work->spectrum, work->field));
    TG_CALL(transform(be, work, op, false));
    if (op->dpred) {
        TG_CALL(ops->fft(be, work->all.fft, TG_FFT_INVERSE, op->images, TG_FFT_PLAIN,
                         -1.0 / (double)points, work->spectrum, work->field));
    }
    given.norm = TG_LOSS_NORM_GIVEN;
    given.powers = work->powers;
    given.slope = work->field;
    return ops->loss(be, &given);
}

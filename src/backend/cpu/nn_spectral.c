/* The contraction of spectra with a spectral weight: a product at every frequency. */
#include "backend/cpu/nn.h"
#include "backend/cpu/spectral_product.h"

static tg_status cpu_spectral_contract(tg_backend *be, const tg_spectral *op) {
    const int64_t row = 2 * op->modes; /* reals */
    const int64_t from = op->adjoint ? op->out : op->in, to = op->adjoint ? op->in : op->out;
    const cpu_spectral_product product = {
        .form = op->adjoint ? CPU_TILE_CONJ_B : CPU_TILE_PRODUCT,
        .frequencies = op->modes,
        .depth = from,
        .rows = op->batch,
        .columns = to,
        .a = {.x = op->src, .store = op->store, .depth = row, .across = from * row},
        .b = {.x = op->weight,
              .store = op->weight_store,
              .depth = op->adjoint ? row : op->out * row,
              .across = op->adjoint ? op->out * row : row},
        .c = op->dst,
        .c_store = op->store,
        .c_row = to * row,
        .c_column = row,
        .scale = 1.0f};
    if (op->dtype != TG_C64 || !cpu_spectral_fits(be, &product)) {
        return be->ref->spectral_contract(be, op);
    }
    cpu_spectral_multiply(be, &product);
    return TG_OK;
}

void cpu_fill_nn_spectral(tg_backend_ops *ops) {
    ops->spectral_contract = cpu_spectral_contract;
}

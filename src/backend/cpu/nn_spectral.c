/* The contraction of spectra with a spectral weight. Threads take ranges of modes; inside, a block
 * of modes of all samples and channels (some 100 KiB, in L2) meets every row of the weight once, so
 * the weight streams through and nothing is permuted. */
#include "backend/cpu/nn.h"

enum {
    LANES = 4,             /* modes of a register: blocks are whole ones */
    BLOCK_BYTES = 1 << 17, /* of src */
    GRAIN = 1 << 15        /* products worth a thread */
};

static int64_t block_of(const tg_spectral *op) {
    const int64_t channels = op->adjoint ? op->out : op->in;
    const int64_t modes = BLOCK_BYTES / (8 * op->batch * channels) / LANES * LANES;
    return modes < 16 ? 16 : modes > 256 ? 256 : modes;
}

/* Modes [first, first + n) of all samples and channels. */
static void contract_block(const cpu_nn_kernels *k, const tg_spectral *op, int64_t first,
                           int64_t n) {
    const int64_t from = op->adjoint ? op->out : op->in, to = op->adjoint ? op->in : op->out;
    const int64_t row = 2 * op->modes; /* reals */
    cpu_contraction c = {.batch = op->batch,
                         .from = from,
                         .n = n,
                         .conjugated = op->adjoint,
                         .src = (const float *)op->src + 2 * first,
                         .src_sample = from * row,
                         .src_channel = row,
                         .w_channel = op->adjoint ? row : op->out * row,
                         .dst_sample = to * row};
    for (int64_t t = 0; t < to; t++) {
        const int64_t at = op->adjoint ? t * op->out : t;
        c.w = (const float *)op->weight + at * row + 2 * first;
        c.dst = (float *)op->dst + t * row + 2 * first;
        k->contract(&c);
    }
}

static tg_status cpu_spectral_contract(tg_backend *be, const tg_spectral *op) {
    if (op->dtype != TG_C64) {
        return be->ref->spectral_contract(be, op);
    }
    const int64_t block = block_of(op);
    const int64_t blocks = (op->modes + block - 1) / block;
    int parts = cpu_parts(be, op->batch * op->in * op->out * op->modes, GRAIN);
    parts = blocks < parts ? (blocks > 0 ? (int)blocks : 1) : parts;
#pragma omp parallel for num_threads(parts) schedule(static)
    for (int p = 0; p < parts; p++) {
        const tg_range r = tg_partition(op->modes, LANES, parts, p);
        for (int64_t k = r.begin; k < r.end; k += block) {
            contract_block(cpu_nn_of(be), op, k, k + block < r.end ? block : r.end - k);
        }
    }
    return TG_OK;
}

void cpu_fill_nn_spectral(tg_backend_ops *ops) {
    ops->spectral_contract = cpu_spectral_contract;
}

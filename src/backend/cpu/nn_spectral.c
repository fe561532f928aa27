/* The contraction of spectra with a spectral weight. Threads take ranges of modes; inside, a block
 * of modes of all samples and channels (some 100 KiB, in L2) meets every row of the weight once, so
 * the weight streams through. Both are packed first, a few modes of a row after those of the row
 * before: rows of a weight lie a whole number of pages apart and would evict each other. */
#include <string.h>

#include "backend/cpu/nn.h"
#include "backend/cpu/stored.h"

enum {
    LANES = 4,            /* modes of a register: blocks are whole ones */
    SRC_BYTES = 3 << 18,  /* of a packed block of src */
    ROWS_BYTES = 1 << 18, /* of packed rows of the weight */
    GRAIN = 1 << 18       /* products worth a thread */
};

_Static_assert(SRC_BYTES + ROWS_BYTES <= CPU_SCRATCH, "both are in the scratch of a thread");

static int64_t from_of(const tg_spectral *op) {
    return op->adjoint ? op->out : op->in;
}

/* Whether blocks of n modes are packed: src, and of 16-bit formats a row of dst, and rows of the
 * weight. */
static bool fits(const tg_spectral *op, int64_t n) {
    const int64_t from = from_of(op), rows = op->batch * (from + (op->store ? 1 : 0));
    return rows * n * 8 <= SRC_BYTES && from * n * 8 <= ROWS_BYTES;
}

/* Modes of a block: as many as keep src in some 128 KiB, but whole cache lines of the weight. */
static int64_t block_of(const tg_spectral *op) {
    const int64_t row = 8 * from_of(op), samples = op->batch;
    int64_t modes = (1 << 17) / (row * samples) / 8 * 8;
    modes = modes < 32 ? 32 : modes > 256 ? 256 : modes;
    while (modes > LANES && !fits(op, modes)) {
        modes /= 2;
    }
    return modes;
}

/* Rows of n modes from real `at` of x on, `stride` reals apart, one after the other in f32. */
static void pack(const cpu_kernels *k, tg_storage store, int64_t rows, int64_t n, const void *x,
                 int64_t at, int64_t stride, float *packed) {
    for (int64_t i = 0; i < rows; i++) {
        k->load_f32(tg_stored(TG_F32, store), 2 * n, cpu_stored_at(store, x, at + i * stride),
                    packed + 2 * i * n);
    }
}

/* Modes [first, first + n) of all samples and channels; scratch of the thread. */
static void contract_block(tg_backend *be, const tg_spectral *op, int64_t first, int64_t n,
                           float *scratch) {
    const cpu_kernels *convert = cpu_state_of(be)->kernels;
    const int64_t from = from_of(op), to = op->adjoint ? op->in : op->out;
    const int64_t row = 2 * op->modes; /* reals */
    float *src = scratch, *rows = scratch + SRC_BYTES / sizeof *scratch;
    float *dst = src + 2 * op->batch * from * n; /* of 16-bit formats */
    const bool packs = fits(op, n), is_half = op->store != TG_STORE_FULL;
    cpu_contraction c = {.batch = op->batch,
                         .from = from,
                         .n = n,
                         .conjugated = op->adjoint,
                         .src = packs ? src : (const float *)op->src + 2 * first,
                         .src_sample = from * (packs ? 2 * n : row),
                         .src_channel = packs ? 2 * n : row,
                         .w_channel = packs         ? 2 * n
                                      : op->adjoint ? row
                                                    : op->out * row,
                         .dst_sample = is_half ? 2 * n : to * row};
    if (packs) {
        pack(convert, op->store, op->batch * from, n, op->src, 2 * first, row, src);
    }
    for (int64_t t = 0; t < to; t++) {
        const int64_t w = (op->adjoint ? t * op->out : t) * row + 2 * first;
        c.w = packs ? rows : (const float *)op->weight + w;
        c.dst = is_half ? dst : (float *)op->dst + t * row + 2 * first;
        if (packs) {
            pack(convert, op->weight_store, from, n, op->weight, w,
                 op->adjoint ? row : op->out * row, rows);
        }
        cpu_nn_of(be)->contract(&c);
        for (int64_t b = 0; is_half && b < op->batch; b++) {
            cpu_write(convert, op->store, 2 * n, dst + 2 * b * n, op->dst,
                      (b * to + t) * row + 2 * first);
        }
    }
}

static tg_status cpu_spectral_contract(tg_backend *be, const tg_spectral *op) {
    const bool is_half = op->store != TG_STORE_FULL || op->weight_store != TG_STORE_FULL;
    if (op->dtype != TG_C64 || (is_half && !fits(op, LANES))) {
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
            contract_block(be, op, k, k + block < r.end ? block : r.end - k, cpu_scratch_of(be, p));
        }
    }
    return TG_OK;
}

void cpu_fill_nn_spectral(tg_backend_ops *ops) {
    ops->spectral_contract = cpu_spectral_contract;
}

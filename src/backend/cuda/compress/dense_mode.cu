/* A single mode of a dense complex tensor, as refreshes contract them one by one: directly from the
 * tensor to the core, without a chunk in between.
 *
 *     core (left, rank, right) = beta core + scale conj(U)^T x (left, dim, right)
 *
 * A kernel for Hopper GPUs multiplies the leading modes (sm90/mode_columns.cu). The last one (right
 * = 1) is a product of real matrices (left, 2 dim) and (2 dim, 2 rank) by cuBLAS, which needs rows
 * aligned to 16 bytes. With an odd number of entries only every second row is. So rows 0, 2, .. are
 * one product, and rows 1, 3, .. another one, in which a row begins one entry earlier. That entry,
 * and the one after a row of the first product, have weight 0. */
#include "backend/cuda/compress/compress.cuh"

enum { THREADS = 256 };

struct dense_mode {
    int64_t left, right;
    cuda_factor factor;
};

/* The mode that has a factor, if it is the only one. */
static bool only_mode(const tg_multimode *modes, dense_mode *mode) {
    int found = 0;
    *mode = {1, 1, cuda_factor()};
    for (int d = 0; d < modes->ndim; d++) {
        if (modes->factor[d]) {
            mode->factor.u = modes->factor[d];
            mode->factor.dim = modes->dim[d];
            mode->factor.rank = modes->rank[d];
            found++;
        } else {
            *(found ? &mode->right : &mode->left) *= modes->dim[d];
        }
    }
    return found == 1;
}

/* ---- the last mode ---- */

/* Products, and reals per row in them. */
static int64_t products_of(const dense_mode *mode) {
    return mode->factor.dim % 2 == 0 ? 1 : 2;
}
static int64_t width_of(const dense_mode *mode) {
    return 2 * (mode->factor.dim + products_of(mode) - 1);
}

/* out (2 rank, width): row 2 j + to maps the parts of a row's entries to part `to` of entry j of
 * the core. `first`: where entry 0 is. */
static __global__ void __launch_bounds__(THREADS)
    write_rows(cuda_factor f, int64_t width, int64_t first, float *out) {
    for (int64_t e = (int64_t)blockIdx.x * THREADS + threadIdx.x; e < 2 * f.rank * width;
         e += (int64_t)gridDim.x * THREADS) {
        const int64_t row = e / width, j = row / 2, i = e % width / 2 - first;
        const int to = (int)(row % 2), from = (int)(e % width % 2);
        float value = 0.0f;
        if (i >= 0 && i < f.dim) {
            const float *entry = static_cast<const float *>(f.u) + 2 * (i * f.rank + j);
            value = from == to ? entry[0] : to == 0 ? entry[1] : -entry[1];
        }
        out[e] = value;
    }
}

static tg_status multiply_rows(tg_backend *be, const tg_compress *op, const dense_mode *mode) {
    const int64_t dim = mode->factor.dim, rank = mode->factor.rank;
    const int64_t products = products_of(mode), width = width_of(mode), size = 2 * rank * width;
    for (int64_t q = 0; q < products; q++) {
        float *factor = static_cast<float *>(op->workspace) + q * size;
        TG_CALL(launch_alone(be, "laying out factors", write_rows, cuda_blocks(be, size, THREADS),
                             THREADS, 0, mode->factor, width, q, factor));
        const tg_gemm gemm =
            gemm_of(TG_F32, mode->left / products, 2 * rank, width, op->scale, TG_OP_N,
                    static_cast<const float *>(op->source.dense) + q * 2 * (dim - 1),
                    products * 2 * dim, TG_OP_T, factor, width, op->beta,
                    static_cast<float *>(op->core) + q * 2 * rank, products * 2 * rank);
        TG_CALL(cuda_gemm(be, &gemm));
    }
    return TG_OK;
}

/* ---- selection ---- */

int64_t cuda_dense_mode_fits(const tg_backend *be, const tg_compress *op, const cuda_plan *plan) {
    dense_mode mode;
    if (!op->source.dense || op->source.store != TG_STORE_FULL || op->bitmap ||
        plan->real != TG_F32 || plan->parts != 2 || (uintptr_t)op->source.dense % 16 != 0 ||
        !only_mode(&op->modes, &mode)) {
        return 0;
    }
    const int64_t most = tg_max(mode.factor.dim, mode.factor.rank);
    const bool fits =
        mode.right > 1
            ? mode.left * mode.right * most <= INT32_MAX &&
                  cuda_mode_kernel(be, &mode.factor, mode.right / 4 * 4, plan->split) ==
                      CUDA_OWN_DIRECT
            : mode.left % products_of(&mode) == 0 &&
                  products_of(&mode) * 2 * mode.factor.rank * width_of(&mode) <= plan->size;
    return fits ? plan->dim0 : 0;
}

tg_status cuda_dense_mode(tg_backend *be, const tg_compress *op, const cuda_plan *plan) {
    dense_mode mode;
    only_mode(&op->modes, &mode);
    return mode.right > 1 ? cuda_mode_dense(be, &mode.factor, plan->split, mode.left, mode.right,
                                            op->source.dense, op->scale, op->beta, op->core)
                          : multiply_rows(be, op, &mode);
}

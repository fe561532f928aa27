/* HOSVD start and HOOI sweeps over a tree of modes. */
#include "linalg/tucker.h"

#include <math.h>
#include <string.h>

#include "linalg/scratch.h"

enum { MAX_DEPTH = 4, OVERSAMPLING = 8 }; /* 2^3 modes at most: three levels of products */

/* Chunks save memory and cost time: thin ones made the refresh of weights of 1 GB half as slow
 * again on a GPU. */
static const size_t default_chunk = (size_t)1 << 30;

/* Everything one decomposition works on; all pieces come from the scratch. */
typedef struct decomposition {
    tg_backend *be;
    const tg_tucker_plan *plan;
    const tg_bitmap *mask; /* of the tensor at the root of the tree */
    bool is_aligned;       /* column phases follow `working` */
    tg_dtype wide;         /* f64 or c128 */
    void *working[TG_MAX_NDIM];
    void *sketch[TG_MAX_NDIM]; /* random factors of a sketched start */
    void *gram;                /* (d, d) wide, or (rows, rank) wide for tall matrices */
    double *eigenvalues;
    void *tall;                 /* (rows, rank) product of a tall matrix */
    void *level[MAX_DEPTH];     /* products at each depth of the tree */
    void *workspace[MAX_DEPTH]; /* of the compress slot that makes them, over the deeper levels */
    const void *whole;          /* the tensor itself, the one that may be 16-bit */
} decomposition;

static int64_t product(const int64_t *size, int begin, int end) {
    int64_t numel = 1;
    for (int d = begin; d < end; d++) {
        numel *= size[d];
    }
    return numel;
}

/* A mode whose Gram matrix would be larger than the matrix itself goes by the other side. */
static bool is_tall(const tg_tucker_plan *plan, int mode) {
    return plan->ndim == 2 && plan->dim[mode] > plan->dim[1 - mode] &&
           plan->rank[mode] <= plan->dim[1 - mode];
}

/* Sketch width of mode j for finding mode k: together the widths exceed the rank wanted. */
static int64_t sketch_width(const tg_tucker_plan *plan, int k, int j) {
    const double wanted = (double)(2 * plan->rank[k] + OVERSAMPLING);
    const int64_t width = (int64_t)ceil(pow(wanted, 1.0 / (plan->ndim - 1)));
    return width < plan->dim[j] ? width : plan->dim[j];
}

/* The map that contracts modes [first, last) of a tensor of the given size, the others stay. */
static tg_multimode contraction(const decomposition *dc, const int64_t *size, int first, int last) {
    tg_multimode modes = {.dtype = dc->plan->dtype, .ndim = dc->plan->ndim};
    for (int d = 0; d < modes.ndim; d++) {
        const bool contracts = d >= first && d < last && dc->plan->is_active[d];
        modes.dim[d] = size[d];
        modes.rank[d] = contracts ? dc->plan->rank[d] : size[d];
        modes.factor[d] = contracts ? dc->working[d] : NULL;
    }
    return modes;
}

static tg_multimode sketching(const decomposition *dc, int k) {
    tg_multimode modes = {.dtype = dc->plan->dtype, .ndim = dc->plan->ndim};
    for (int d = 0; d < modes.ndim; d++) {
        modes.dim[d] = dc->plan->dim[d];
        modes.rank[d] = d == k ? modes.dim[d] : sketch_width(dc->plan, k, d);
        modes.factor[d] = d == k ? NULL : dc->sketch[d];
    }
    return modes;
}

/* ---- sizes ---- */

typedef struct extent {
    size_t level[MAX_DEPTH], workspace[MAX_DEPTH];
} extent;

static void grow(size_t *bytes, size_t needed) {
    *bytes = needed > *bytes ? needed : *bytes;
}

/* Rows of the first mode that a product takes at once. Contracting that mode, a slot keeps all
 * other modes' products, as large as the tensor; chunks of it add up to the same. They begin where
 * whole counters of an index set do. */
static int64_t chunk_of(const decomposition *dc, const tg_multimode *modes) {
    const int64_t whole = modes->dim[0], unit = product(modes->dim, 1, modes->ndim);
    int64_t grain = 1;
    while (grain < 512 && grain * unit % 512 != 0) {
        grain *= 2;
    }
    tg_multimode chunk = *modes;
    const size_t most = dc->plan->chunk ? dc->plan->chunk : default_chunk;
    while (modes->factor[0] && chunk.dim[0] > grain &&
           dc->be->ops->compress_workspace(dc->be, &chunk, false) > most) {
        chunk.dim[0] = ((chunk.dim[0] + 1) / 2 + grain - 1) / grain * grain;
    }
    return chunk.dim[0] < whole ? chunk.dim[0] : whole;
}

/* Room for one product at a depth, and for the slot that makes it. */
static void measure_product(const decomposition *dc, const tg_multimode *modes, int depth,
                            extent *ext) {
    grow(&ext->level[depth],
         (size_t)product(modes->rank, 0, modes->ndim) * tg_dtype_size(modes->dtype));
    tg_multimode chunk = *modes;
    chunk.dim[0] = chunk_of(dc, modes);
    chunk.rank[0] = modes->factor[0] ? modes->rank[0] : chunk.dim[0];
    grow(&ext->workspace[depth], dc->be->ops->compress_workspace(dc->be, &chunk, false));
}

static void measure_tree(const decomposition *dc, const int64_t *size, int first, int last,
                         int depth, extent *ext) {
    if (last - first == 1) {
        return;
    }
    const int middle = (first + last) / 2;
    const int parts[2][4] = {{middle, last, first, middle}, {first, middle, middle, last}};
    for (int i = 0; i < 2; i++) {
        const tg_multimode modes = contraction(dc, size, parts[i][0], parts[i][1]);
        measure_product(dc, &modes, depth, ext);
        measure_tree(dc, modes.rank, parts[i][2], parts[i][3], depth + 1, ext);
    }
}

/* While a product at one depth is made, those further down do not exist: the slot works there. */
static void lay_out_levels(decomposition *dc, const extent *ext, tg_scratch *scratch) {
    size_t most = 0;
    for (int i = 0; i < MAX_DEPTH; i++) {
        dc->level[i] = tg_scratch_take(scratch, ext->level[i]);
        tg_scratch beyond = *scratch;
        dc->workspace[i] = tg_scratch_take(&beyond, ext->workspace[i]);
        grow(&most, beyond.used);
    }
    grow(&scratch->used, most);
}

/* Cuts the scratch into the pieces of a decomposition; with a NULL block it only adds up. */
static void lay_out(decomposition *dc, tg_scratch *scratch) {
    const tg_tucker_plan *plan = dc->plan;
    const size_t size = tg_dtype_size(plan->dtype), wide = tg_dtype_size(dc->wide);
    size_t gram = 0, eigenvalues = 0, tall = 0;
    extent ext = {0};
    for (int d = 0; d < plan->ndim; d++) {
        if (!plan->is_active[d]) {
            continue;
        }
        dc->working[d] = tg_scratch_take(scratch, (size_t)(plan->dim[d] * plan->rank[d]) * size);
        const int64_t side = is_tall(plan, d) ? plan->dim[1 - d] : plan->dim[d];
        grow(&gram, (size_t)(side * side) * wide);
        grow(&eigenvalues, (size_t)side * sizeof(double));
        if (plan->sweeps > 0 || plan->svd_type == TG_SVD_RANDOMIZED) {
            /* what a sweep or a sketch leaves of the short side may have fewer vectors than are
             * wanted: they take the Gram matrix of a long side as well */
            grow(&gram, (size_t)(plan->dim[d] * plan->dim[d]) * wide);
            grow(&eigenvalues, (size_t)plan->dim[d] * sizeof(double));
        }
        if (is_tall(plan, d)) {
            const size_t entries = (size_t)(plan->dim[d] * plan->rank[d]);
            grow(&gram, entries * wide);
            grow(&tall, 2 * entries * size + (size_t)(plan->rank[d] * side) * size);
            tg_multimode modes = contraction(dc, plan->dim, 0, 0);
            modes.rank[1 - d] = plan->rank[d];
            modes.factor[1 - d] = dc->working[d];
            measure_product(dc, &modes, 0, &ext);
            ext.level[0] = 0;
        }
    }
    const bool sketches = plan->svd_type == TG_SVD_RANDOMIZED && plan->ndim > 1;
    for (int k = 0; sketches && k < plan->ndim; k++) {
        int64_t width = 0;
        for (int other = 0; other < plan->ndim; other++) {
            const int64_t w = other == k ? 0 : sketch_width(plan, other, k);
            width = w > width ? w : width;
        }
        dc->sketch[k] = tg_scratch_take(scratch, (size_t)(plan->dim[k] * width) * size);
        const tg_multimode modes = sketching(dc, k);
        measure_product(dc, &modes, 0, &ext);
    }
    for (int k = 1; plan->init == TG_INIT_ST_HOSVD && k < plan->ndim; k++) {
        const tg_multimode modes = contraction(dc, plan->dim, 0, k);
        measure_product(dc, &modes, 0, &ext);
    }
    if (plan->sweeps > 0) {
        measure_tree(dc, plan->dim, 0, plan->ndim, 0, &ext);
    }
    dc->gram = tg_scratch_take(scratch, gram);
    dc->eigenvalues = tg_scratch_take(scratch, eigenvalues);
    dc->tall = tg_scratch_take(scratch, tall);
    lay_out_levels(dc, &ext, scratch);
}

size_t tg_tucker_scratch(tg_backend *be, const tg_tucker_plan *plan) {
    decomposition dc = {
        .be = be, .plan = plan, .wide = tg_dtype_is_complex(plan->dtype) ? TG_C128 : TG_F64};
    tg_scratch scratch = {0};
    lay_out(&dc, &scratch);
    return scratch.used;
}

tg_scratch_need tg_tucker_scratch_need(tg_backend *be, const tg_tucker_plan *plan) {
    const tg_backend_ops *ops = be->ops;
    const tg_dtype wide = tg_dtype_is_complex(plan->dtype) ? TG_C128 : TG_F64;
    const bool sketches = plan->svd_type == TG_SVD_RANDOMIZED && plan->ndim > 1;
    tg_scratch_need most = {0};
    for (int d = 0; ops->scratch_need && d < plan->ndim; d++) {
        if (!plan->is_active[d]) {
            continue;
        }
        const bool tall = is_tall(plan, d) && !sketches;
        if (!tall || plan->sweeps > 0) {
            tg_scratch_raise(&most, ops->scratch_need(be, TG_SCRATCH_EIGH, wide, 0, plan->dim[d]));
        }
        if (tall) {
            const int64_t rows = plan->dim[d], side = plan->dim[1 - d], rank = plan->rank[d];
            tg_scratch_raise(&most, ops->scratch_need(be, TG_SCRATCH_EIGH, wide, 0, side));
            tg_scratch_raise(&most, ops->scratch_need(be, TG_SCRATCH_QR, wide, rows, rank));
        }
    }
    return most;
}

/* ---- one mode ---- */

static tg_storage storage_of(const decomposition *dc, const void *x) {
    return x == dc->whole ? dc->plan->store : TG_STORE_FULL;
}

/* out = the contraction of x at a depth of the tree, done by the compress slot. */
static tg_status multiply(const decomposition *dc, int depth, const tg_multimode *modes,
                          const void *x, const tg_bitmap *mask, void *out) {
    const int64_t rows = chunk_of(dc, modes), unit = product(modes->dim, 1, modes->ndim);
    const tg_storage store = storage_of(dc, x);
    const size_t entry = tg_dtype_size(tg_stored(modes->dtype, store));
    tg_status status = TG_OK;
    for (int64_t row = 0; row < modes->dim[0] && status == TG_OK; row += rows) {
        const int64_t left = modes->dim[0] - row, first = row * unit;
        tg_bitmap part = mask ? *mask : (tg_bitmap){0};
        tg_compress op = {
            .modes = *modes,
            .source = {.dense = (const char *)x + (size_t)first * entry, .store = store},
            .bitmap = mask ? &part : NULL,
            .masked = mask != NULL,
            .scale = 1.0,
            .beta = row > 0 ? 1.0 : 0.0,
            .core = out,
            .workspace = dc->workspace[depth]};
        if (rows < modes->dim[0]) { /* the first mode has a factor, and the mask only masks */
            op.modes.dim[0] = left < rows ? left : rows;
            op.modes.factor[0] = (const char *)modes->factor[0] +
                                 (size_t)(row * modes->rank[0]) * tg_dtype_size(modes->dtype);
        }
        if (mask && rows < modes->dim[0]) {
            part = (tg_bitmap){.n = op.modes.dim[0] * unit,
                               .count = mask->count,
                               .words = mask->words + first / 64,
                               .ranks = mask->ranks + first / 512};
        }
        status = dc->be->ops->compress(dc->be, &op);
    }
    return status;
}

/* working[k] = leading vectors of the k-th unfolding of x (size..). */
static tg_status leading_vectors(const decomposition *dc, const void *x, const tg_bitmap *mask,
                                 const int64_t *size, int k) {
    const tg_backend_ops *ops = dc->be->ops;
    const tg_tucker_plan *plan = dc->plan;
    const int64_t dim = size[k];
    tg_status status =
        ops->gram(dc->be, tg_stored(plan->dtype, storage_of(dc, x)), product(size, 0, k), dim,
                  product(size, k + 1, plan->ndim), x, mask, dc->gram);
    if (status == TG_OK) {
        status = ops->eigh(dc->be, dc->wide, dim, dc->gram, dc->eigenvalues);
    }
    if (status == TG_OK) {
        status = ops->leading_columns(dc->be, plan->dtype, dim, dim, plan->rank[k], dc->gram,
                                      dc->is_aligned ? dc->working[k] : NULL, dc->working[k]);
    }
    return status;
}

/* The same for a matrix whose mode k is the long one: with W the leading vectors of the short side,
 * the product of x and W has the wanted vectors, times singular values, in its columns (k = 0) or
 * rows (k = 1); a QR in f64 makes them orthonormal to the last bit. */
static tg_status leading_vectors_tall(const decomposition *dc, const void *x, const tg_bitmap *mask,
                                      int k) {
    const tg_backend_ops *ops = dc->be->ops;
    const tg_tucker_plan *plan = dc->plan;
    const int64_t rows = plan->dim[k], side = plan->dim[1 - k], rank = plan->rank[k];
    const size_t size = tg_dtype_size(plan->dtype);
    char *product_out = dc->tall;
    char *upright = product_out + (size_t)(rows * rank) * size;  /* (rows, rank) */
    char *short_factor = upright + (size_t)(rows * rank) * size; /* (side, rank) */
    tg_status status = TG_OK;
    TG_TRY(ops->gram(dc->be, tg_stored(plan->dtype, storage_of(dc, x)), k == 0 ? rows : 1, side,
                     k == 0 ? 1 : rows, x, mask, dc->gram));
    TG_TRY(ops->eigh(dc->be, dc->wide, side, dc->gram, dc->eigenvalues));
    TG_TRY(
        ops->leading_columns(dc->be, plan->dtype, side, side, rank, dc->gram, NULL, short_factor));
    tg_multimode modes = contraction(dc, plan->dim, 0, 0);
    modes.rank[1 - k] = rank;
    modes.factor[1 - k] = short_factor;
    TG_TRY(multiply(dc, 0, &modes, x, mask, product_out));
    if (k == 1) { /* (rank, rows) to (rows, rank): a product with the identity */
        TG_TRY(ops->fill(dc->be, plan->dtype, rank * rank, (tg_scalar){0}, short_factor));
        for (int64_t i = 0; i < rank; i++) {
            TG_TRY(ops->fill(dc->be, plan->dtype, 1, (tg_scalar){1.0, 0.0},
                             short_factor + (size_t)(i * rank + i) * size));
        }
        const tg_gemm turn = {.dtype = plan->dtype,
                              .op_a = TG_OP_T,
                              .m = rows,
                              .n = rank,
                              .k = rank,
                              .alpha = {1.0, 0.0},
                              .a = product_out,
                              .lda = rows,
                              .b = short_factor,
                              .ldb = rank,
                              .c = upright,
                              .ldc = rank,
                              .batch = 1};
        TG_TRY(ops->gemm(dc->be, &turn));
        product_out = upright;
    }
    TG_TRY(ops->convert(dc->be, rows * rank, plan->dtype, product_out, dc->wide, dc->gram));
    TG_TRY(ops->qr(dc->be, dc->wide, rows, rank, dc->gram, NULL));
    TG_TRY(ops->leading_columns(dc->be, plan->dtype, rows, rank, rank, dc->gram,
                                dc->is_aligned ? dc->working[k] : NULL, dc->working[k]));
fail:
    return status;
}

/* ---- start and sweeps ---- */

/* Random factors, the same for the same stream: mode k draws from index 2^32 k on. */
static tg_status start_by_sketches(const decomposition *dc, const void *x, const tg_rng *rng) {
    tg_status status = TG_OK;
    const tg_tucker_plan *plan = dc->plan;
    for (int k = 0; k < plan->ndim; k++) {
        const tg_multimode modes = sketching(dc, k);
        for (int j = 0; j < plan->ndim; j++) {
            if (j != k) {
                const int64_t count = modes.dim[j] * modes.rank[j];
                TG_TRY(dc->be->ops->random_normal(dc->be, plan->dtype, rng, (uint64_t)j << 32, 0.0,
                                                  1.0, count, dc->sketch[j]));
            }
        }
        TG_TRY(multiply(dc, 0, &modes, x, dc->mask, dc->level[0]));
        TG_TRY(leading_vectors(dc, dc->level[0], NULL, modes.rank, k));
    }
fail:
    return status;
}

static tg_status start_cold(const decomposition *dc, const void *x, const tg_rng *rng) {
    tg_status status = TG_OK;
    const tg_tucker_plan *plan = dc->plan;
    if (plan->svd_type == TG_SVD_RANDOMIZED && plan->ndim > 1) {
        return start_by_sketches(dc, x, rng);
    }
    for (int k = 0; k < plan->ndim; k++) {
        if (!plan->is_active[k]) {
            continue;
        }
        if (is_tall(plan, k)) {
            TG_TRY(leading_vectors_tall(dc, x, dc->mask, k));
        } else if (plan->init == TG_INIT_ST_HOSVD && k > 0) {
            const tg_multimode modes = contraction(dc, plan->dim, 0, k);
            TG_TRY(multiply(dc, 0, &modes, x, dc->mask, dc->level[0]));
            TG_TRY(leading_vectors(dc, dc->level[0], NULL, modes.rank, k));
        } else {
            TG_TRY(leading_vectors(dc, x, dc->mask, plan->dim, k));
        }
    }
fail:
    return status;
}

/* One sweep over modes [first, last), which are the ones x (size..) still has whole. */
static tg_status sweep_tree(const decomposition *dc, const void *x, const int64_t *size, int first,
                            int last, int depth) {
    const tg_bitmap *mask = depth == 0 ? dc->mask : NULL;
    if (last - first == 1) {
        return dc->plan->is_active[first] ? leading_vectors(dc, x, mask, size, first) : TG_OK;
    }
    const int middle = (first + last) / 2;
    tg_multimode modes = contraction(dc, size, middle, last);
    tg_status status = multiply(dc, depth, &modes, x, mask, dc->level[depth]);
    if (status == TG_OK) {
        status = sweep_tree(dc, dc->level[depth], modes.rank, first, middle, depth + 1);
    }
    if (status == TG_OK) {
        modes = contraction(dc, size, first, middle);
        status = multiply(dc, depth, &modes, x, mask, dc->level[depth]);
    }
    if (status == TG_OK) {
        status = sweep_tree(dc, dc->level[depth], modes.rank, middle, last, depth + 1);
    }
    return status;
}

tg_status tg_tucker_factors(tg_backend *be, const tg_tucker_plan *plan, const void *x,
                            const tg_bitmap *mask, const tg_rng *rng, bool warm,
                            void *const factor[], void *scratch) {
    tg_status status = TG_OK;
    decomposition dc = {.be = be,
                        .plan = plan,
                        .mask = mask,
                        .whole = x,
                        .is_aligned = warm,
                        .wide = tg_dtype_is_complex(plan->dtype) ? TG_C128 : TG_F64};
    lay_out(&dc, &(tg_scratch){.block = scratch});
    size_t bytes[TG_MAX_NDIM] = {0};
    for (int d = 0; d < plan->ndim; d++) {
        if (plan->is_active[d]) {
            bytes[d] = (size_t)(plan->dim[d] * plan->rank[d]) * tg_dtype_size(plan->dtype);
        }
        if (warm && bytes[d] > 0) {
            TG_TRY(be->ops->copy(be, dc.working[d], factor[d], bytes[d]));
        }
    }
    if (!warm || plan->sweeps == 0 || plan->restarts) {
        TG_TRY(start_cold(&dc, x, rng));
    }
    for (int i = 0; i < plan->sweeps; i++) {
        TG_TRY(sweep_tree(&dc, x, plan->dim, 0, plan->ndim, 0));
    }
    for (int d = 0; d < plan->ndim; d++) {
        if (bytes[d] > 0) {
            TG_TRY(be->ops->copy(be, factor[d], dc.working[d], bytes[d]));
        }
    }
fail:
    return status;
}

/* ---- eigenvalues alone ---- */

/* A mode has as many eigenvalues other than 0 as the smaller side of its unfolding. */
static bool goes_by_other_side(const tg_tucker_plan *plan, int k) {
    return plan->ndim == 2 && plan->dim[k] > plan->dim[1 - k];
}

static int64_t widest_side(const tg_tucker_plan *plan) {
    int64_t widest = 1;
    for (int k = 0; k < plan->ndim; k++) {
        const int64_t side = goes_by_other_side(plan, k) ? plan->dim[1 - k] : plan->dim[k];
        widest = side > widest ? side : widest;
    }
    return widest;
}

static void lay_out_spectrum(const tg_tucker_plan *plan, tg_scratch *scratch, void **gram,
                             double **eigenvalues) {
    const size_t side = (size_t)widest_side(plan);
    *gram = tg_scratch_take(
        scratch,
        side * side * (tg_dtype_is_complex(plan->dtype) ? 2 * sizeof(double) : sizeof(double)));
    *eigenvalues = tg_scratch_take(scratch, side * sizeof(double));
}

size_t tg_tucker_spectrum_scratch(const tg_tucker_plan *plan) {
    tg_scratch scratch = {0};
    void *gram;
    double *eigenvalues;
    lay_out_spectrum(plan, &scratch, &gram, &eigenvalues);
    return scratch.used;
}

tg_status tg_tucker_spectrum(tg_backend *be, const tg_tucker_plan *plan, const void *x,
                             const tg_bitmap *mask, double *values, void *scratch) {
    const tg_dtype wide = tg_dtype_is_complex(plan->dtype) ? TG_C128 : TG_F64;
    tg_status status = TG_OK;
    void *gram;
    double *eigenvalues;
    lay_out_spectrum(plan, &(tg_scratch){.block = scratch}, &gram, &eigenvalues);
    for (int k = 0; k < plan->ndim; k++) {
        const int mode = goes_by_other_side(plan, k) ? 1 - k : k;
        const int64_t side = plan->dim[mode];
        TG_TRY(be->ops->gram(be, tg_stored(plan->dtype, plan->store), product(plan->dim, 0, mode),
                             side, product(plan->dim, mode + 1, plan->ndim), x, mask, gram));
        TG_TRY(be->ops->eigh(be, wide, side, gram, eigenvalues));
        TG_TRY(be->ops->download(be, values, eigenvalues, (size_t)side * sizeof(double)));
        memset(values + side, 0, (size_t)(plan->dim[k] - side) * sizeof(double));
        values += plan->dim[k];
    }
fail:
    return status;
}

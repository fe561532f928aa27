/* Unfoldings; HOSVD start and HOOI sweeps over a tree of modes; spectra. */
#include "linalg/tucker.h"

#include <math.h>
#include <string.h>

#include "backend/backend.h"
#include "base/memory.h"
#include "base/minmax.h"

enum { MAX_DEPTH = 4, OVERSAMPLING = 8 }; /* at most 2^3 modes: three levels of products */

/* Chunks save memory but cost time: with thin ones, a refresh of 1 GB weights took 1.5 times as
 * long on a GPU. */
static const size_t default_chunk = (size_t)1 << 30;

/* ---- unfoldings ---- */

/* The unfolding of one mode of a tensor: a matrix of dim rows stored as (left, dim, right).
 *
 * It has no more singular values than its short side. A tall one, of a mode that is longer than all
 * others together, is decomposed by the Gram matrix of its columns, which never takes more room
 * than the tensor. The columns of a mode in the middle are not contiguous: they are gathered first,
 * as a matrix (1, dim, columns). */
typedef struct unfolding {
    int64_t left, dim, right;
} unfolding;

static unfolding unfold(int ndim, const int64_t *size, int mode) {
    unfolding u = {1, size[mode], 1};
    for (int d = 0; d < ndim; d++) {
        *(d < mode ? &u.left : &u.right) *= d == mode ? 1 : size[d];
    }
    return u;
}

static int64_t columns_of(unfolding u) {
    return u.left * u.right;
}

static bool is_tall(unfolding u) {
    return u.dim > columns_of(u);
}

static int64_t short_side(unfolding u) {
    return is_tall(u) ? columns_of(u) : u.dim;
}

int64_t tg_tucker_short_side(const tg_tucker_plan *plan, int mode) {
    return short_side(unfold(plan->ndim, plan->dim, mode));
}

static bool is_scattered(unfolding u) {
    return is_tall(u) && u.left > 1 && u.right > 1;
}

static unfolding gathered(unfolding u) {
    return is_scattered(u) ? (unfolding){1, u.dim, columns_of(u)} : u;
}

/* The arrays of gathering. */
typedef struct gathering {
    void *matrix;   /* (dim, left, right) */
    void *dense;    /* (left, dim, right) in full precision, masked */
    void *identity; /* (right, right) */
} gathering;

static gathering lay_out_gathering(tg_dtype dtype, unfolding u, tg_scratch *scratch) {
    const size_t size = tg_dtype_size(dtype);
    const size_t whole = (size_t)(u.dim * columns_of(u)) * size;
    gathering p = {0};
    if (is_scattered(u)) {
        p.matrix = tg_scratch_take(scratch, whole);
        p.dense = tg_scratch_take(scratch, whole);
        p.identity = tg_scratch_take(scratch, (size_t)(u.right * u.right) * size);
    }
    return p;
}

/* Bytes of scratch for gather; 0 if there is nothing to gather. */
static size_t gather_scratch(tg_dtype dtype, unfolding u) {
    tg_scratch scratch = {0};
    (void)lay_out_gathering(dtype, u, &scratch);
    return scratch.used;
}

tg_status tg_fill_identity(tg_backend *be, tg_dtype dtype, int64_t rows, int64_t columns,
                           void *out) {
    TG_CALL(be->ops->fill(be, dtype, rows * columns, (tg_scalar){0}, out));
    for (int64_t i = 0; i < rows && i < columns; i++) {
        char *one = (char *)out + (size_t)(i * columns + i) * tg_dtype_size(dtype);
        TG_CALL(be->ops->fill(be, dtype, 1, (tg_scalar){1.0, 0.0}, one));
    }
    return TG_OK;
}

/* Gathers a scattered unfolding in the scratch: *u, *x, *store and *mask (which may be NULL) then
 * describe the matrix; all others stay as they are. */
static tg_status gather(tg_backend *be, tg_dtype dtype, unfolding *u, const void **x,
                        tg_storage *store, const tg_bitmap **mask, void *scratch) {
    const tg_backend_ops *ops = be->ops;
    const int64_t columns = columns_of(*u), numel = u->dim * columns;
    if (!is_scattered(*u)) {
        return TG_OK;
    }
    const gathering p = lay_out_gathering(dtype, *u, &(tg_scratch){.block = scratch});
    if (*store != TG_STORE_FULL || *mask) {
        TG_CALL(ops->convert(be, numel, tg_stored(dtype, *store), *x, dtype, p.dense));
        TG_CALL(*mask ? ops->bitmap_clear(be, dtype, *mask, p.dense, p.dense) : TG_OK);
        *x = p.dense;
    }
    TG_CALL(tg_fill_identity(be, dtype, u->right, u->right, p.identity));
    tg_gemm product = tg_whole_product(dtype, TG_OP_N, TG_OP_N, u->dim, u->right, u->right, *x,
                                       p.identity, p.matrix);
    product.stride_a = u->dim * u->right;
    product.ldc = columns;
    product.stride_c = u->right;
    product.batch = u->left;
    TG_CALL(ops->gemm(be, &product));
    *u = gathered(*u);
    *x = p.matrix;
    *store = TG_STORE_FULL;
    *mask = NULL;
    return TG_OK;
}

/* gram (short side, short side) in f64 or c128 of a gathered unfolding; entries of mask (may be
 * NULL) count as 0. x has the dtype as stored. */
static tg_status gram_of(tg_backend *be, tg_dtype dtype, unfolding u, const void *x,
                         const tg_bitmap *mask, void *gram) {
    if (!is_tall(u)) {
        return be->ops->gram(be, dtype, u.left, u.dim, u.right, x, mask, gram);
    }
    return u.left == 1 ? be->ops->gram(be, dtype, u.dim, u.right, 1, x, mask, gram)
                       : be->ops->gram(be, dtype, 1, u.left, u.dim, x, mask, gram);
}

/* ---- decompositions ---- */

/* Sizes of the pieces below, and memory that is allocated by calls. */
typedef struct extent {
    size_t gram, eigenvalues, tall, gathered;
    size_t level[MAX_DEPTH], workspace[MAX_DEPTH];
    tg_scratch_need borrowed;
} extent;

/* Everything one decomposition works on; all pieces come from the scratch. Their sizes are found by
 * the decomposition itself, in a pass that computes nothing. */
typedef struct decomposition {
    extent *measured; /* in that pass; NULL: it computes */
    tg_backend *be;
    const tg_tucker_plan *plan;
    const tg_bitmap *mask; /* of the tensor at the root of the tree */
    bool is_aligned;       /* column phases are aligned with `working` */
    tg_dtype wide;         /* f64 or c128 */
    void *working[TG_MAX_NDIM];
    void *sketch[TG_MAX_NDIM]; /* random factors of a sketched start */
    void *gram;                /* (d, d) wide, or (rows, rank) wide for tall unfoldings */
    double *eigenvalues;
    void *tall;                 /* products of a tall unfolding, see leading_vectors_tall */
    void *gathered;             /* a tall unfolding as a matrix */
    void *level[MAX_DEPTH];     /* products at each depth of the tree */
    void *workspace[MAX_DEPTH]; /* of the compress slot that makes them, over the deeper levels */
    size_t room[MAX_DEPTH]; /* bytes from there on, at least those asked for; 0: not yet known */
    const void *whole;      /* the tensor itself, the only one that may be 16-bit */
} decomposition;

/* Whether a mode is decomposed by its short side, at every depth of the tree. */
static bool is_tall_mode(const tg_tucker_plan *plan, int mode) {
    return is_tall(unfold(plan->ndim, plan->dim, mode));
}

/* Sketch width of mode j for finding mode k: together the widths exceed the rank wanted. */
static int64_t sketch_width(const tg_tucker_plan *plan, int k, int j) {
    const double wanted = (double)(2 * plan->rank[k] + OVERSAMPLING);
    const int64_t width = (int64_t)ceil(pow(wanted, 1.0 / (plan->ndim - 1)));
    return tg_min(width, plan->dim[j]);
}

/* The map that contracts modes [first, last) of a tensor of this size and keeps the others. */
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

/* The product of a gathered tall unfolding and the leading `found` vectors of its short side. */
static tg_multimode tall_product(const decomposition *dc, unfolding u, int64_t found,
                                 const void *short_factor) {
    const int side = u.left == 1; /* the columns' mode */
    tg_multimode modes = {.dtype = dc->plan->dtype, .ndim = 2};
    modes.dim[1 - side] = modes.rank[1 - side] = u.dim;
    modes.dim[side] = columns_of(u);
    modes.rank[side] = found;
    modes.factor[side] = short_factor;
    return modes;
}

/* ---- sizes ---- */

static void grow(size_t *bytes, size_t needed) {
    *bytes = needed > *bytes ? needed : *bytes;
}

/* Rows of the first mode in one product. A slot that contracts that mode keeps the products of all
 * other modes, as large as the tensor; chunks add up to the same result, the fewer the faster, so
 * they get all the room at this depth. Each starts at a whole counter of the index set. */
static int64_t chunk_of(const decomposition *dc, const tg_multimode *modes, int depth) {
    const int64_t whole = modes->dim[0], unit = tg_product(modes->ndim - 1, modes->dim + 1);
    int64_t grain = 1;
    while (grain < 512 && grain * unit % 512 != 0) {
        grain *= 2;
    }
    tg_multimode chunk = *modes;
    const size_t most =
        tg_max_size(dc->plan->chunk ? dc->plan->chunk : default_chunk, dc->room[depth]);
    while (modes->factor[0] && chunk.dim[0] > grain &&
           tg_workspace_bytes(dc->be, (tg_query){.compress = &chunk}) > most) {
        chunk.dim[0] = ((chunk.dim[0] + 1) / 2 + grain - 1) / grain * grain;
    }
    return tg_min(chunk.dim[0], whole);
}

/* Room for the slot that makes a product at a depth. */
static void measure_product(const decomposition *dc, const tg_multimode *modes, int depth) {
    tg_multimode chunk = *modes;
    chunk.dim[0] = chunk_of(dc, modes, depth);
    chunk.rank[0] = modes->factor[0] ? modes->rank[0] : chunk.dim[0];
    grow(&dc->measured->workspace[depth],
         tg_workspace_bytes(dc->be, (tg_query){.compress = &chunk}));
}

static void measure_call(const decomposition *dc, tg_scratch_call call, int64_t m, int64_t n) {
    const tg_backend_ops *ops = dc->be->ops;
    if (ops->scratch_need) {
        tg_scratch_raise(&dc->measured->borrowed, ops->scratch_need(dc->be, call, dc->wide, m, n));
    }
}

/* Room for the vectors of mode k from an unfolding at a depth. */
static void measure_vectors(const decomposition *dc, unfolding u, int k, int depth) {
    const tg_tucker_plan *plan = dc->plan;
    const size_t number = tg_dtype_size(plan->dtype), wide = tg_dtype_size(dc->wide);
    extent *ext = dc->measured;
    const int64_t side = is_tall_mode(plan, k) ? columns_of(u) : u.dim;
    grow(&ext->gram, (size_t)(side * side) * wide);
    grow(&ext->eigenvalues, (size_t)side * sizeof(double));
    measure_call(dc, TG_SCRATCH_EIGH, 0, side);
    if (is_tall_mode(plan, k)) {
        const int64_t rank = plan->rank[k];
        grow(&ext->gram, (size_t)(u.dim * rank) * wide);
        grow(&ext->tall, (size_t)((2 * u.dim + side) * rank) * number);
        grow(&ext->gathered, gather_scratch(plan->dtype, u));
        measure_call(dc, TG_SCRATCH_QR, u.dim, rank);
        u = gathered(u);
        const tg_multimode modes = tall_product(dc, u, tg_min(rank, side), dc->working[k]);
        measure_product(dc, &modes, depth);
    }
}

/* ---- one mode ---- */

static tg_storage storage_of(const decomposition *dc, const void *x) {
    return x == dc->whole ? dc->plan->store : TG_STORE_FULL;
}

/* out = the contraction of x at a depth of the tree, by the compress slot. */
static tg_status multiply(const decomposition *dc, int depth, const tg_multimode *modes,
                          const void *x, const tg_bitmap *mask, void *out) {
    if (dc->measured) {
        measure_product(dc, modes, depth);
        return TG_OK;
    }
    const int64_t rows = chunk_of(dc, modes, depth),
                  unit = tg_product(modes->ndim - 1, modes->dim + 1);
    const tg_storage store = storage_of(dc, x);
    const size_t entry = tg_dtype_size(tg_stored(modes->dtype, store));
    for (int64_t row = 0; row < modes->dim[0]; row += rows) {
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
        if (rows < modes->dim[0]) { /* the first mode has a factor, so the mask only masks */
            op.modes.dim[0] = tg_min(left, rows);
            op.modes.factor[0] = (const char *)modes->factor[0] +
                                 (size_t)(row * modes->rank[0]) * tg_dtype_size(modes->dtype);
        }
        if (mask && rows < modes->dim[0]) {
            part = (tg_bitmap){.n = op.modes.dim[0] * unit,
                               .count = mask->count,
                               .words = mask->words + first / 64,
                               .ranks = mask->ranks + first / 512};
        }
        TG_CALL(dc->be->ops->compress(dc->be, &op));
    }
    return TG_OK;
}

/* level[depth] = such a contraction. */
static tg_status make_level(const decomposition *dc, int depth, const tg_multimode *modes,
                            const void *x, const tg_bitmap *mask) {
    if (dc->measured) {
        grow(&dc->measured->level[depth],
             (size_t)tg_product(modes->ndim, modes->rank) * tg_dtype_size(modes->dtype));
    }
    return multiply(dc, depth, modes, x, mask, dc->level[depth]);
}

/* working[k] = the first columns of dc->gram (rows, columns). */
static tg_status keep_leading(const decomposition *dc, int64_t rows, int64_t columns, int k) {
    return dc->be->ops->leading_columns(dc->be, dc->plan->dtype, rows, columns, dc->plan->rank[k],
                                        dc->gram, dc->is_aligned ? dc->working[k] : NULL,
                                        dc->working[k]);
}

/* Vectors of a tall unfolding: its product with the leading vectors of its short side has them,
 * times singular values, in its columns (or rows, where the mode is the last); a QR in f64 makes
 * them orthonormal and completes them where the rank exceeds the short side. */
static tg_status leading_vectors_tall(const decomposition *dc, const void *x, const tg_bitmap *mask,
                                      unfolding u, int k, int depth) {
    const tg_backend_ops *ops = dc->be->ops;
    const tg_tucker_plan *plan = dc->plan;
    const int64_t rows = u.dim, side = columns_of(u);
    const int64_t rank = plan->rank[k], found = tg_min(rank, side);
    const size_t size = tg_dtype_size(plan->dtype);
    char *product_out = dc->tall;                                /* (rows, found) or transposed */
    char *upright = product_out + (size_t)(rows * rank) * size;  /* (rows, rank) */
    char *short_factor = upright + (size_t)(rows * rank) * size; /* (side, found) */
    tg_storage store = storage_of(dc, x);
    TG_CALL(gather(dc->be, plan->dtype, &u, &x, &store, &mask, dc->gathered));
    TG_CALL(gram_of(dc->be, tg_stored(plan->dtype, store), u, x, mask, dc->gram));
    TG_CALL(ops->eigh(dc->be, dc->wide, side, dc->gram, dc->eigenvalues));
    TG_CALL(
        ops->leading_columns(dc->be, plan->dtype, side, side, found, dc->gram, NULL, short_factor));
    const tg_multimode modes = tall_product(dc, u, found, short_factor);
    TG_CALL(multiply(dc, depth, &modes, x, mask, product_out));
    if (u.left > 1 || found < rank) { /* transposes and pads with zeros, by the identity */
        TG_CALL(tg_fill_identity(dc->be, plan->dtype, found, rank, short_factor));
        const tg_gemm pad = tg_whole_product(plan->dtype, u.left > 1 ? TG_OP_T : TG_OP_N, TG_OP_N,
                                             rows, rank, found, product_out, short_factor, upright);
        TG_CALL(ops->gemm(dc->be, &pad));
        product_out = upright;
    }
    TG_CALL(ops->convert(dc->be, rows * rank, plan->dtype, product_out, dc->wide, dc->gram));
    TG_CALL(ops->qr(dc->be, dc->wide, rows, rank, dc->gram, NULL));
    return keep_leading(dc, rows, rank, k);
}

/* working[k] = leading vectors of the k-th unfolding of x (size..) at a depth of the tree. */
static tg_status leading_vectors(const decomposition *dc, const void *x, const tg_bitmap *mask,
                                 const int64_t *size, int k, int depth) {
    const tg_tucker_plan *plan = dc->plan;
    const unfolding u = unfold(plan->ndim, size, k);
    if (dc->measured) {
        measure_vectors(dc, u, k, depth);
        return TG_OK;
    }
    if (is_tall_mode(plan, k)) {
        return leading_vectors_tall(dc, x, mask, u, k, depth);
    }
    /* The whole Gram matrix, even where a sweep has left fewer columns than rows. */
    TG_CALL(dc->be->ops->gram(dc->be, tg_stored(plan->dtype, storage_of(dc, x)), u.left, u.dim,
                              u.right, x, mask, dc->gram));
    TG_CALL(dc->be->ops->eigh(dc->be, dc->wide, u.dim, dc->gram, dc->eigenvalues));
    return keep_leading(dc, u.dim, u.dim, k);
}

/* ---- start and sweeps ---- */

/* Random factors, the same for the same stream: mode k draws from index 2^32 k on. */
static tg_status start_by_sketches(const decomposition *dc, const void *x, const tg_rng *rng) {
    const tg_tucker_plan *plan = dc->plan;
    for (int k = 0; k < plan->ndim; k++) {
        const tg_multimode modes = sketching(dc, k);
        for (int j = 0; j < plan->ndim; j++) {
            if (j != k && !dc->measured) {
                const tg_random op = {.law = TG_RANDOM_NORMAL,
                                      .dtype = plan->dtype,
                                      .rng = *rng,
                                      .first = (uint64_t)j << 32,
                                      .b = 1.0,
                                      .n = modes.dim[j] * modes.rank[j],
                                      .x = dc->sketch[j]};
                TG_CALL(dc->be->ops->random(dc->be, &op));
            }
        }
        TG_CALL(make_level(dc, 0, &modes, x, dc->mask));
        TG_CALL(leading_vectors(dc, dc->level[0], NULL, modes.rank, k, 0));
    }
    return TG_OK;
}

static tg_status start_cold(const decomposition *dc, const void *x, const tg_rng *rng) {
    const tg_tucker_plan *plan = dc->plan;
    if (plan->svd_type == TG_SVD_RANDOMIZED && plan->ndim > 1) {
        return start_by_sketches(dc, x, rng);
    }
    for (int k = 0; k < plan->ndim; k++) {
        if (!plan->is_active[k]) {
            continue;
        }
        if (plan->init == TG_INIT_ST_HOSVD && k > 0 && !is_tall_mode(plan, k)) {
            const tg_multimode modes = contraction(dc, plan->dim, 0, k);
            TG_CALL(make_level(dc, 0, &modes, x, dc->mask));
            TG_CALL(leading_vectors(dc, dc->level[0], NULL, modes.rank, k, 0));
        } else {
            TG_CALL(leading_vectors(dc, x, dc->mask, plan->dim, k, 0));
        }
    }
    return TG_OK;
}

/* One sweep over modes [first, last), those not yet contracted in x (size..). */
static tg_status sweep_tree(const decomposition *dc, const void *x, const int64_t *size, int first,
                            int last, int depth) {
    const tg_bitmap *mask = depth == 0 ? dc->mask : NULL;
    if (last - first == 1) {
        return dc->plan->is_active[first] ? leading_vectors(dc, x, mask, size, first, depth)
                                          : TG_OK;
    }
    const int middle = (first + last) / 2;
    tg_multimode modes = contraction(dc, size, middle, last);
    TG_CALL(make_level(dc, depth, &modes, x, mask));
    TG_CALL(sweep_tree(dc, dc->level[depth], modes.rank, first, middle, depth + 1));
    modes = contraction(dc, size, first, middle);
    TG_CALL(make_level(dc, depth, &modes, x, mask));
    return sweep_tree(dc, dc->level[depth], modes.rank, middle, last, depth + 1);
}

/* ---- memory ---- */

/* Deeper products do not exist yet while one is computed: the slot uses their memory. */
static void lay_out_levels(decomposition *dc, const extent *ext, tg_scratch *scratch) {
    size_t begin[MAX_DEPTH], most = 0;
    for (int i = 0; i < MAX_DEPTH; i++) {
        dc->level[i] = tg_scratch_take(scratch, ext->level[i]);
        begin[i] = scratch->used;
        tg_scratch beyond = *scratch;
        dc->workspace[i] = tg_scratch_take(&beyond, ext->workspace[i]);
        grow(&most, beyond.used);
    }
    grow(&scratch->used, most);
    for (int i = 0; i < MAX_DEPTH; i++) {
        dc->room[i] = scratch->used - begin[i];
    }
}

/* Cuts the scratch into the pieces of a decomposition; a NULL block only adds up sizes. Returns the
 * further memory that its calls allocate. */
static tg_scratch_need lay_out(decomposition *dc, tg_scratch *scratch) {
    const tg_tucker_plan *plan = dc->plan;
    const size_t size = tg_dtype_size(plan->dtype);
    extent ext = {0};
    for (int d = 0; d < plan->ndim; d++) {
        if (plan->is_active[d]) {
            dc->working[d] =
                tg_scratch_take(scratch, (size_t)(plan->dim[d] * plan->rank[d]) * size);
        }
    }
    const bool sketches = plan->svd_type == TG_SVD_RANDOMIZED && plan->ndim > 1;
    for (int k = 0; sketches && k < plan->ndim; k++) {
        int64_t width = 0;
        for (int other = 0; other < plan->ndim; other++) {
            const int64_t w = other == k ? 0 : sketch_width(plan, other, k);
            width = tg_max(width, w);
        }
        dc->sketch[k] = tg_scratch_take(scratch, (size_t)(plan->dim[k] * width) * size);
    }
    dc->measured = &ext;
    (void)start_cold(dc, NULL, NULL);
    (void)(plan->sweeps > 0 ? sweep_tree(dc, NULL, plan->dim, 0, plan->ndim, 0) : TG_OK);
    dc->measured = NULL;
    dc->gram = tg_scratch_take(scratch, ext.gram);
    dc->eigenvalues = tg_scratch_take(scratch, ext.eigenvalues);
    dc->tall = tg_scratch_take(scratch, ext.tall);
    dc->gathered = tg_scratch_take(scratch, ext.gathered);
    lay_out_levels(dc, &ext, scratch);
    return ext.borrowed;
}

static decomposition decomposition_of(tg_backend *be, const tg_tucker_plan *plan) {
    return (decomposition){
        .be = be, .plan = plan, .wide = tg_dtype_is_complex(plan->dtype) ? TG_C128 : TG_F64};
}

size_t tg_tucker_scratch(tg_backend *be, const tg_tucker_plan *plan) {
    decomposition dc = decomposition_of(be, plan);
    tg_scratch scratch = {0};
    (void)lay_out(&dc, &scratch);
    return scratch.used;
}

tg_scratch_need tg_tucker_scratch_need(tg_backend *be, const tg_tucker_plan *plan) {
    decomposition dc = decomposition_of(be, plan);
    return lay_out(&dc, &(tg_scratch){0});
}

tg_status tg_tucker_factors(tg_backend *be, const tg_tucker_plan *plan, const void *x,
                            const tg_bitmap *mask, const tg_rng *rng, bool warm,
                            void *const factor[], void *scratch) {
    decomposition dc = decomposition_of(be, plan);
    (void)lay_out(&dc, &(tg_scratch){.block = scratch});
    dc.mask = mask;
    dc.whole = x;
    dc.is_aligned = warm;
    size_t bytes[TG_MAX_NDIM] = {0};
    for (int d = 0; d < plan->ndim; d++) {
        if (plan->is_active[d]) {
            bytes[d] = (size_t)(plan->dim[d] * plan->rank[d]) * tg_dtype_size(plan->dtype);
        }
        if (warm && bytes[d] > 0) {
            TG_CALL(be->ops->copy(be, dc.working[d], factor[d], bytes[d]));
        }
    }
    if (!warm || plan->sweeps == 0) {
        TG_CALL(start_cold(&dc, x, rng));
    }
    for (int i = 0; i < plan->sweeps; i++) {
        TG_CALL(sweep_tree(&dc, x, plan->dim, 0, plan->ndim, 0));
    }
    for (int d = 0; d < plan->ndim; d++) {
        if (bytes[d] > 0) {
            TG_CALL(be->ops->copy(be, factor[d], dc.working[d], bytes[d]));
        }
    }
    return TG_OK;
}

/* ---- eigenvalues alone ---- */

typedef struct spectrum_pieces {
    void *gram;
    double *eigenvalues;
    void *gathered;
} spectrum_pieces;

static spectrum_pieces lay_out_spectrum(const tg_tucker_plan *plan, tg_scratch *scratch) {
    const size_t wide = tg_dtype_size(tg_dtype_is_complex(plan->dtype) ? TG_C128 : TG_F64);
    size_t side = 1, gathered = 0;
    for (int k = 0; k < plan->ndim; k++) {
        const unfolding u = unfold(plan->ndim, plan->dim, k);
        grow(&side, (size_t)short_side(u));
        grow(&gathered, gather_scratch(plan->dtype, u));
    }
    spectrum_pieces p;
    p.gram = tg_scratch_take(scratch, side * side * wide);
    p.eigenvalues = tg_scratch_take(scratch, side * sizeof(double));
    p.gathered = tg_scratch_take(scratch, gathered);
    return p;
}

size_t tg_tucker_spectrum_scratch(const tg_tucker_plan *plan) {
    tg_scratch scratch = {0};
    lay_out_spectrum(plan, &scratch);
    return scratch.used;
}

tg_status tg_tucker_spectrum(tg_backend *be, const tg_tucker_plan *plan, const void *x,
                             const tg_bitmap *mask, double *values, void *scratch) {
    const tg_dtype wide = tg_dtype_is_complex(plan->dtype) ? TG_C128 : TG_F64;
    const spectrum_pieces p = lay_out_spectrum(plan, &(tg_scratch){.block = scratch});
    for (int k = 0; k < plan->ndim; k++) {
        unfolding u = unfold(plan->ndim, plan->dim, k);
        const int64_t side = short_side(u);
        const void *now = x;
        const tg_bitmap *now_mask = mask;
        tg_storage store = plan->store;
        TG_CALL(gather(be, plan->dtype, &u, &now, &store, &now_mask, p.gathered));
        TG_CALL(gram_of(be, tg_stored(plan->dtype, store), u, now, now_mask, p.gram));
        TG_CALL(be->ops->eigh(be, wide, side, p.gram, p.eigenvalues));
        TG_CALL(be->ops->download(be, values, p.eigenvalues, (size_t)side * sizeof(double)));
        memset(values + side, 0, (size_t)(plan->dim[k] - side) * sizeof(double));
        values += plan->dim[k];
    }
    return TG_OK;
}

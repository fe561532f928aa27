/* Pruned Fourier transforms, one dimension after the other, for all images of a chunk at once.
 *
 * Forward starts with the last dimension, inverse with the first. Each dimension outputs only its
 * kept frequencies. Its length alone selects one of two methods, so that every process and every
 * run uses the same:
 *
 *   lines   one kernel with fast transforms (lines.cu), in f32 or f64 whatever the context's
 *           math. For lengths with small prime factors that fit in shared memory.
 *   matrix  a product with the matrix of roots of unity, for all other lengths; f32 in the
 *           context's math (TF32 or not). Real rows are transformed directly to and from their half
 *           spectrum.
 *
 * Between dimensions, data are in the plan's workspace, whose size is fixed: many images are
 * processed in chunks. */
#include "backend/cuda/fft/fft.cuh"

#include "backend/cuda/fft/butterfly.cuh"

enum {
    CHUNK_BYTES = 64 << 20, /* of workspace, unless one image needs more */
    ROW_UNIT = 4,           /* rows of kept columns are padded to a multiple of it: whole sectors */
    MAX_LENGTH = INT32_MAX / 16
};

/* One dimension. */
struct fft_axis {
    int64_t n, kept, first; /* first: as an index, 0 .. n-1 */
    int64_t outer, inner;   /* of one image: grid points before it, kept frequencies after it */
    int64_t row;            /* pitch of the kept side's (K, inner): K * inner, or padded */
    bool real;
    bool multiplied;
    fft_lines lines; /* for the method `lines` */
    /* For the method `matrix`. Complex: F (K, N), F[k, n] = e^{-2 pi i f_k n / N}, and its
     * conjugate; real: (N, K) complex, that is (N, 2K) real: for a half spectrum as it is, and with
     * the interior doubled. The transpose of each is the inverse with the weights of the other. */
    void *matrix[2];
    void *table; /* device memory: roots or matrices */
};

struct tg_fft_plan {
    tg_fft_desc desc;
    fft_axis axes[3];
    int64_t points, modes; /* of one image */
    int64_t chunk;         /* images per chunk */
    char *workspace;
    void *attached;                /* cuda_fft_attach */
    size_t between[3];             /* byte offset of the array before dimension d; 0 is not used */
    size_t grid_stage, kept_stage; /* staging of `matrix`, in full precision */
};

static size_t number_size(const tg_fft_desc *desc) {
    return 2 * tg_dtype_size(desc->dtype);
}

static tg_dtype grid_dtype(const tg_fft_desc *desc) {
    return desc->complex ? tg_dtype_complex(desc->dtype) : desc->dtype;
}

static tg_dtype kept_dtype(const tg_fft_desc *desc) {
    return tg_dtype_complex(desc->dtype);
}

/* ---- tables ---- */

template <class R> static void put(void *table, int64_t i, tg_scalar value) {
    static_cast<slot<R> *>(table)[i] = {(R)value.re, (R)value.im};
}

static void put_number(bool wide, void *table, int64_t i, tg_scalar value) {
    wide ? put<double>(table, i, value) : put<float>(table, i, value);
}

/* Size of an axis's table, in numbers. */
static int64_t table_length(const fft_axis *axis) {
    return axis->multiplied ? 2 * axis->kept * axis->n : axis->n;
}

static void fill_matrices(const fft_axis *axis, bool wide, const tg_scalar *roots, void *table) {
    const int64_t size = axis->kept * axis->n;
    for (int64_t k = 0; k < axis->kept; k++) {
        const double more = k == 0 || 2 * k == axis->n ? 1.0 : 2.0;
        for (int64_t n = 0; n < axis->n; n++) {
            const tg_scalar w = roots[(axis->first + k) % axis->n * n % axis->n];
            const int64_t at = axis->real ? n * axis->kept + k : k * axis->n + n;
            put_number(wide, table, at, w);
            put_number(wide, table, size + at,
                       axis->real ? tg_scalar{more * w.re, more * w.im} : tg_scalar{w.re, -w.im});
        }
    }
}

/* New device memory with what fill(host) writes. */
template <class F>
static tg_status make_on_device(tg_backend *be, size_t bytes, F fill, void **out) {
    tg_status status = TG_OK;
    void *host = tg_mem_alloc(be->ctx, TG_MEM_WORKSPACE, bytes, 1);
    TG_TRY(host ? TG_OK : TG_E_MEMORY);
    fill(host);
    *out = be->ops->alloc(be, TG_MEM_WORKSPACE, bytes);
    TG_TRY(*out ? TG_OK : TG_E_MEMORY);
    TG_TRY(be->ops->upload(be, *out, host, bytes));
fail:
    tg_mem_free(be->ctx, host);
    return status;
}

static tg_status make_table(tg_backend *be, const tg_fft_desc *desc, fft_axis *axis) {
    tg_status status = TG_OK;
    const bool wide = desc->dtype == TG_F64;
    const size_t bytes = (size_t)table_length(axis) * number_size(desc);
    tg_scalar *roots = static_cast<tg_scalar *>(
        tg_mem_alloc(be->ctx, TG_MEM_WORKSPACE, (size_t)axis->n, sizeof(tg_scalar)));
    const auto fill = [&](void *table) {
        for (int64_t j = 0; j < axis->n; j++) {
            roots[j] = tg_root_of_unity(j, axis->n);
            if (!axis->multiplied) {
                put_number(wide, table, j, roots[j]);
            }
        }
        if (axis->multiplied) {
            fill_matrices(axis, wide, roots, table);
        }
    };
    TG_TRY(roots ? TG_OK : TG_E_MEMORY);
    TG_TRY(make_on_device(be, bytes, fill, &axis->table));
    axis->lines.roots = axis->table;
    axis->matrix[0] = axis->table;
    axis->matrix[1] = static_cast<char *>(axis->table) + bytes / 2;
fail:
    tg_mem_free(be->ctx, roots);
    return status;
}

/* ---- plans ---- */

void cuda_fft_destroy(tg_backend *be, tg_fft_plan **plan) {
    if (!plan || !*plan) {
        return;
    }
    for (int d = 0; d < 3; d++) {
        be->ops->release(be, (*plan)->axes[d].table);
    }
    be->ops->release(be, (*plan)->attached);
    be->ops->release(be, (*plan)->workspace);
    tg_mem_free(be->ctx, *plan);
    *plan = NULL;
}

static int64_t padded_row(int64_t kept) {
    return (kept + ROW_UNIT - 1) / ROW_UNIT * ROW_UNIT;
}

static void set_axes(tg_fft_plan *plan) {
    const tg_fft_desc *desc = &plan->desc;
    const int last = desc->ndim - 1;
    plan->points = plan->modes = 1;
    for (int d = 0; d < desc->ndim; d++) {
        fft_axis *axis = &plan->axes[d];
        axis->n = desc->grid[d];
        axis->kept = desc->kept[d];
        axis->first = (desc->first[d] + desc->grid[d]) % desc->grid[d];
        axis->real = !desc->complex && d == last;
        axis->outer = plan->points;
        plan->points *= axis->n;
    }
    for (int d = last; d >= 0; d--) {
        fft_axis *axis = &plan->axes[d];
        axis->inner = plan->modes;
        plan->modes *= axis->kept;
        axis->row = plan->modes;
        if (d == last && d > 0) {
            axis->row = padded_row(axis->kept);
        }
        axis->multiplied =
            !cuda_fft_lines_layout(desc->dtype == TG_F64, axis->real, axis->n, axis->kept,
                                   axis->first, axis->inner, &axis->lines);
    }
}

/* `matrix` needs full-precision numbers, and rows of a half spectrum with the ignored parts set to
 * 0. */
static bool stages_grid(const tg_fft_plan *plan) {
    return plan->axes[plan->desc.ndim - 1].multiplied && plan->desc.grid_store != TG_STORE_FULL;
}

static bool stages_kept(const tg_fft_plan *plan) {
    const fft_axis *first = &plan->axes[0];
    return first->multiplied && (first->real || plan->desc.kept_store != TG_STORE_FULL);
}

/* Reserves `bytes` per image of a chunk, starting at *total. */
static size_t reserve(size_t *total, size_t bytes, int64_t chunk) {
    const size_t at = *total, unit = 256;
    *total += (bytes * (size_t)chunk + unit - 1) / unit * unit;
    return at;
}

/* Bytes of workspace for a chunk of this many images. */
static size_t lay_out(tg_fft_plan *plan, int64_t chunk) {
    const tg_fft_desc *desc = &plan->desc;
    const size_t size = number_size(desc);
    size_t total = 0;
    for (int d = 1; d < desc->ndim; d++) {
        const fft_axis *axis = &plan->axes[d];
        plan->between[d] = reserve(&total, (size_t)(axis->outer * axis->row) * size, chunk);
    }
    if (stages_grid(plan)) {
        const size_t bytes = (size_t)plan->points * tg_dtype_size(grid_dtype(desc));
        plan->grid_stage = reserve(&total, bytes, chunk);
    }
    if (stages_kept(plan)) {
        plan->kept_stage = reserve(&total, (size_t)plan->modes * size, chunk);
    }
    plan->chunk = chunk;
    return total;
}

/* Size of equal chunks that fit, at least one image; all images if no workspace is needed. The size
 * is even, so that the pairing of rows does not depend on an image's position. */
static size_t choose_chunk(tg_fft_plan *plan) {
    const int64_t many = plan->desc.howmany > 1 ? plan->desc.howmany : 1;
    const size_t one = lay_out(plan, 1);
    const int64_t fit = one > 0 ? (int64_t)(CHUNK_BYTES / one) : many;
    const int64_t most = tg_max(tg_min(fit, many), 1);
    const int64_t chunks = (many + most - 1) / most;
    const int64_t chunk = (many + chunks - 1) / chunks;
    return lay_out(plan, chunk > 1 && chunk < many ? chunk + chunk % 2 : chunk);
}

tg_status cuda_fft_create(tg_backend *be, const tg_fft_desc *desc, tg_fft_plan **out) {
    tg_status status = TG_OK;
    tg_fft_plan *plan = NULL;
    size_t bytes = 0;
    *out = NULL;
    TG_TRY(tg_check_fft(be->ctx, desc));
    for (int d = 0; d < desc->ndim; d++) {
        if (desc->grid[d] > MAX_LENGTH) {
            return tg_fail(be->ctx, TG_E_UNSUPPORTED,
                           "fft: %lld points along dimension %d; up to %d are possible here",
                           (long long)desc->grid[d], d, MAX_LENGTH);
        }
    }
    plan = static_cast<tg_fft_plan *>(
        tg_mem_calloc(be->ctx, TG_MEM_WORKSPACE, 1, sizeof(tg_fft_plan)));
    TG_TRY(plan ? TG_OK : TG_E_MEMORY);
    plan->desc = *desc;
    set_axes(plan);
    for (int d = 0; d < desc->ndim; d++) {
        TG_TRY(make_table(be, desc, &plan->axes[d]));
    }
    bytes = choose_chunk(plan);
    plan->workspace = static_cast<char *>(be->ops->alloc(be, TG_MEM_WORKSPACE, bytes));
    TG_TRY(plan->workspace ? TG_OK : TG_E_MEMORY);
    TG_TRY(cuda_block_prepare(be, desc, plan));
    *out = plan;
    return TG_OK;
fail:
    cuda_fft_destroy(be, &plan);
    return status;
}

/* ---- products with a matrix ---- */

static __global__ void drop_edges(int64_t rows, int64_t kept, int64_t nyquist, bool wide,
                                  void *spectrum) {
    for (int64_t i = blockIdx.x * (int64_t)blockDim.x + threadIdx.x; i < 2 * rows;
         i += (int64_t)gridDim.x * blockDim.x) {
        const int64_t k = i % 2 == 0 ? 0 : nyquist, at = 2 * (i / 2 * kept + k) + 1;
        if (wide) {
            static_cast<double *>(spectrum)[at] = 0.0;
        } else {
            static_cast<float *>(spectrum)[at] = 0.0f;
        }
    }
}

/* The spectrum in full precision for `matrix`, with ignored parts set to 0: multiplying them by 0
 * would propagate NaN. */
static tg_status stage_kept(tg_backend *be, const tg_fft_plan *plan, int64_t images,
                            const void *spectrum, void *stage) {
    const fft_axis *axis = &plan->axes[0];
    const tg_dtype dtype = kept_dtype(&plan->desc);
    TG_CALL(be->ops->convert(be, images * plan->modes, tg_stored(dtype, plan->desc.kept_store),
                             spectrum, dtype, stage));
    if (!axis->real) {
        return TG_OK;
    }
    const int64_t nyquist = 2 * (axis->kept - 1) == axis->n ? axis->kept - 1 : 0;
    return launch_alone(be, "preparing a spectrum", drop_edges, cuda_blocks(be, 2 * images, 256),
                        256, 0, images, axis->kept, nyquist, dtype == TG_C128, stage);
}

/* Real rows: (rows, N) times (N, 2K), or (rows, 2K) times its transpose. */
static tg_gemm product_of_rows(tg_dtype dtype, double scale, const fft_axis *axis,
                               const fft_pass *pass, bool adjoint) {
    const int64_t n = axis->n, kept = 2 * axis->kept;
    const void *matrix = axis->matrix[adjoint != pass->inverse];
    return pass->inverse ? gemm_of(dtype, pass->outer, n, kept, scale, TG_OP_N, pass->kept.data,
                                   2 * pass->kept.outer, TG_OP_T, matrix, kept, 0.0,
                                   pass->grid.data, pass->grid.outer)
                         : gemm_of(dtype, pass->outer, kept, n, scale, TG_OP_N, pass->grid.data,
                                   pass->grid.outer, TG_OP_N, matrix, kept, 0.0, pass->kept.data,
                                   2 * pass->kept.outer);
}

/* Complex rows of the last dimension, x F^T and X conj(F); columns of the others, F x and F^H X. */
static tg_gemm product_of_lines(tg_dtype dtype, double scale, const fft_axis *axis,
                                const fft_pass *pass, bool rows) {
    const fft_side *in = pass->inverse ? &pass->kept : &pass->grid;
    const fft_side *out = pass->inverse ? &pass->grid : &pass->kept;
    const int64_t in_length = pass->inverse ? axis->kept : axis->n;
    const int64_t out_length = pass->inverse ? axis->n : axis->kept;
    void *matrix = axis->matrix[pass->inverse];
    if (rows) {
        return gemm_of(dtype, pass->outer, out_length, in_length, scale, TG_OP_N, in->data,
                       in->outer, pass->inverse ? TG_OP_N : TG_OP_T, matrix, axis->n, 0.0,
                       out->data, out->outer);
    }
    tg_gemm g =
        gemm_of(dtype, out_length, pass->inner, in_length, scale, pass->inverse ? TG_OP_T : TG_OP_N,
                matrix, axis->n, TG_OP_N, in->data, in->step, 0.0, out->data, out->step);
    g.stride_b = in->outer;
    g.stride_c = out->outer;
    g.batch = pass->outer;
    return g;
}

static tg_status multiply(tg_backend *be, const tg_fft_plan *plan, int d, const fft_pass *wanted,
                          tg_fft_weight weight, double scale, int64_t images) {
    const tg_fft_desc *desc = &plan->desc;
    const fft_axis *axis = &plan->axes[d];
    fft_pass pass = *wanted;
    const bool grid_staged = d == desc->ndim - 1 && stages_grid(plan);
    const bool kept_staged =
        d == 0 && stages_kept(plan) && (pass.inverse || pass.kept.store != TG_STORE_FULL);
    const tg_dtype grid_stored = tg_stored(grid_dtype(desc), desc->grid_store);
    if (grid_staged) {
        pass.grid.data = plan->workspace + plan->grid_stage;
        TG_CALL(pass.inverse
                    ? TG_OK
                    : be->ops->convert(be, images * plan->points, grid_stored, wanted->grid.data,
                                       grid_dtype(desc), pass.grid.data));
    }
    if (kept_staged) {
        pass.kept.data = plan->workspace + plan->kept_stage;
        TG_CALL(pass.inverse ? stage_kept(be, plan, images, wanted->kept.data, pass.kept.data)
                             : TG_OK);
    }
    const tg_gemm g =
        axis->real ? product_of_rows(desc->dtype, scale, axis, &pass, weight == TG_FFT_ADJOINT)
                   : product_of_lines(kept_dtype(desc), scale, axis, &pass, d == desc->ndim - 1);
    TG_CALL(cuda_gemm(be, &g));
    if (grid_staged && pass.inverse) {
        TG_CALL(be->ops->convert(be, images * plan->points, grid_dtype(desc), pass.grid.data,
                                 grid_stored, wanted->grid.data));
    }
    if (kept_staged && !pass.inverse) {
        TG_CALL(be->ops->convert(be, images * plan->modes, kept_dtype(desc), pass.kept.data,
                                 tg_stored(kept_dtype(desc), desc->kept_store), wanted->kept.data));
    }
    return TG_OK;
}

/* ---- execution ---- */

/* The array before dimension d, or the spectrum before the first, as its kept side. */
static fft_side kept_side(const tg_fft_plan *plan, int d, void *spectrum) {
    const fft_axis *axis = &plan->axes[d];
    return {d == 0 ? spectrum : plan->workspace + plan->between[d],
            d == 0 ? plan->desc.kept_store : TG_STORE_FULL, axis->row, axis->inner};
}

/* The array after dimension d, or the grid after the last, as its grid side; to_rows: x is the
 * array before the last dimension. */
static fft_side grid_side(const tg_fft_plan *plan, int d, void *x, bool to_rows) {
    const fft_axis *axis = &plan->axes[d];
    if (d == plan->desc.ndim - 1) {
        return {x, plan->desc.grid_store, axis->n, 1};
    }
    const int64_t row = plan->axes[d + 1].row;
    void *between = plan->workspace + plan->between[d + 1];
    return {to_rows && d + 2 == plan->desc.ndim ? x : between, TG_STORE_FULL, axis->n * row, row};
}

/* One dimension of one chunk. The last one applies scale and weights. */
static tg_status transform(tg_backend *be, const tg_fft_plan *plan, int d, bool inverse,
                           tg_fft_weight weight, double scale, int64_t images, void *x,
                           void *spectrum, bool to_rows) {
    const fft_axis *axis = &plan->axes[d];
    const bool last = d == plan->desc.ndim - 1;
    const double factor = last ? scale : 1.0;
    const bool weighted = axis->real && weight == TG_FFT_ADJOINT;
    const double interior = !weighted ? factor : inverse ? 0.5 * factor : 2.0 * factor;
    const fft_pass pass = {inverse,
                           images * axis->outer,
                           axis->inner,
                           grid_side(plan, d, x, to_rows),
                           kept_side(plan, d, spectrum),
                           factor,
                           interior};
    if (axis->multiplied) {
        return multiply(be, plan, d, &pass, weight, factor, images);
    }
    return cuda_fft_lines_run(be, &axis->lines, &pass);
}

/* to_rows: without the last dimension, and x is the array before it. */
static tg_status run(tg_backend *be, const tg_fft_plan *plan, int64_t count, bool inverse,
                     tg_fft_weight weight, double scale, char *x, char *spectrum, bool to_rows) {
    const tg_fft_desc *desc = &plan->desc;
    const int dims = to_rows ? desc->ndim - 1 : desc->ndim;
    const fft_axis *last = &plan->axes[desc->ndim - 1];
    const int64_t image =
        to_rows
            ? last->outer * last->row * (int64_t)number_size(desc)
            : plan->points * (int64_t)tg_dtype_size(tg_stored(grid_dtype(desc), desc->grid_store));
    const int64_t modes =
        plan->modes * (int64_t)tg_dtype_size(tg_stored(kept_dtype(desc), desc->kept_store));
    for (int64_t h = 0; h < count; h += plan->chunk) {
        const int64_t images = tg_min(count - h, plan->chunk);
        for (int i = 0; i < dims; i++) {
            const int d = inverse ? i : dims - 1 - i;
            TG_CALL(transform(be, plan, d, inverse, weight, scale, images, x + h * image,
                              spectrum + h * modes, to_rows));
        }
    }
    return TG_OK;
}

/* ---- without the last dimension ---- */

bool cuda_fft_rows_of(const tg_fft_desc *desc, fft_rows *out) {
    const int last = desc->ndim - 1;
    if (last < 1 || desc->complex || desc->dtype != TG_F32) {
        return false;
    }
    *out = {desc->grid[last], desc->kept[last], padded_row(desc->kept[last]), 1};
    for (int d = 0; d < last; d++) {
        out->rows *= desc->grid[d];
    }
    return true;
}

tg_status cuda_fft_inverse_to_rows(tg_backend *be, const tg_fft_plan *plan, int64_t count,
                                   const void *spectrum, void *rows) {
    return run(be, plan, count, true, TG_FFT_PLAIN, 1.0, static_cast<char *>(rows),
               const_cast<char *>(static_cast<const char *>(spectrum)), true);
}

tg_status cuda_fft_attach(tg_backend *be, tg_fft_plan *plan, size_t bytes,
                          void (*fill)(const tg_fft_desc *desc, void *out)) {
    return make_on_device(
        be, bytes, [&](void *out) { fill(&plan->desc, out); }, &plan->attached);
}

const void *cuda_fft_attached(const tg_fft_plan *plan) {
    return plan->attached;
}

tg_status cuda_fft(tg_backend *be, tg_fft_plan *plan, tg_fft_direction direction, int64_t count,
                   tg_fft_weight weight, double scale, const void *from, void *to) {
    const bool inverse = direction == TG_FFT_INVERSE;
    char *in = const_cast<char *>(static_cast<const char *>(from)), *out = static_cast<char *>(to);
    return run(be, plan, count, inverse, weight, scale, inverse ? out : in, inverse ? in : out,
               false);
}

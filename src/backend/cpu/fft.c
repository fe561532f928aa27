/* Fourier transforms, pruned to the kept modes.
 *
 * All transforms are complex and contiguous, CPU_FFT_LINES at once (cpu.h), FFTW's best case.
 * Rows (last dimension) of real data are transformed in pairs as one complex row; only their kept
 * columns are stored, as a partial spectrum (rows, columns). Its columns are gathered into lines
 * and transformed, and only kept frequencies are scattered. So no full spectrum exists, and the
 * working set fits in cache:
 *
 *   1-D  x -> [rows] -> partial -> X
 *   2-D  x -> [rows] -> partial -> [columns] -> X
 *   3-D  x -> [rows] -> partial -> [columns] -> volume (planes, kept rows, columns) -> [columns]
 *          -> X
 *
 * and the inverse in reverse. Stage A is everything up to the partial spectrum (3-D: up to the
 * volume), stage B the rest. With enough transforms each thread does both stages of its share; with
 * fewer, all threads share stage A and then stage B of one transform. 1-D transforms run in blocks
 * of rows. A dimension of awkward length is multiplied by a matrix instead. 16-bit numbers
 * are converted when read or written: the grid a block of rows at a time, the spectrum a group of
 * columns. */

#include <math.h>
#include <string.h>

#include "backend/check.h"
#include "backend/cpu/compress.h"
#include "backend/cpu/cpu.h"
#include "base/memory.h"
#include "base/minmax.h"

/* ---- products with a matrix ---- */

/* Transforms of awkward length as products with a matrix, in f32.
 *
 * FFTW takes about ten times as long for a length with a large prime factor (421 is a common grid)
 * as for its neighbours. If few frequencies are kept, multiplying by the matrix of roots of unity
 * is faster: it computes only these, at the CPU's full speed. Real rows are transformed directly to
 * and from their kept half spectrum. */
typedef enum cpu_dft_kind { CPU_DFT_REAL, CPU_DFT_COMPLEX } cpu_dft_kind;

/* Multiplies rows (inner) to rows (outer): n points to the kept frequencies, or back. Real data:
 * floats, the spectrum as 2 * kept floats; forward gives twice the transform. Complex data: pairs.
 */
typedef struct cpu_dft {
    bool pairs;
    int64_t inner, outer;
    const float *matrix; /* (inner, outer); NULL: none */
} cpu_dft;

static int64_t largest_prime_factor(int64_t n) {
    int64_t largest = 1;
    for (int64_t p = 2; p * p <= n; p++) {
        while (n % p == 0) {
            largest = p;
            n /= p;
        }
    }
    return n > 1 ? n : largest;
}

/* Measured: FFTW takes about 9 ns a point for primes and half of that for multiples of a prime
 * beyond its code for small ones; a product 0.08 ns a point and kept frequency. */
static bool dft_pays(const cpu_compress_kernels *kernels, int64_t n, int64_t kept) {
    const int64_t prime = largest_prime_factor(n);
    return kernels != &cpu_compress_plain && prime > 13 && kept <= (prime == n ? 96 : 48);
}

static cpu_dft dft_layout(cpu_dft_kind kind, bool inverse, int64_t n, int64_t kept) {
    const bool pairs = kind == CPU_DFT_COMPLEX;
    const int64_t spectrum = pairs ? kept : 2 * kept;
    return (cpu_dft){
        .pairs = pairs, .inner = inverse ? spectrum : n, .outer = inverse ? n : spectrum};
}

/* Floats of a row of the matrix. */
static int64_t row_floats(const cpu_dft *dft) {
    return (dft->pairs ? 2 : 1) * dft->outer;
}

static size_t dft_bytes(const cpu_dft *dft) {
    return (size_t)(dft->inner * row_floats(dft)) * sizeof(float);
}

/* Float number `column` of row `row` of the matrix. The real and imaginary parts of a spectrum
 * entry are adjacent. */
static double entry(cpu_dft_kind kind, bool inverse, int64_t n, int64_t first, int64_t row,
                    int64_t column) {
    const double turn = 6.28318530717958647692 / (double)n;
    if (kind == CPU_DFT_COMPLEX) { /* e^{-+ i angle} */
        const int64_t k = inverse ? row : column / 2, at = inverse ? column / 2 : row;
        const double angle = turn * (double)((first + k) % n * at % n);
        return column % 2 ? (inverse ? sin(angle) : -sin(angle)) : cos(angle);
    }
    const int64_t k = (inverse ? row : column) / 2, at = inverse ? column : row;
    const bool imaginary = (inverse ? row : column) % 2, edge = k == 0 || 2 * k == n;
    const double angle = turn * (double)(k * at % n);
    const double root = imaginary ? -sin(angle) : cos(angle);
    if (inverse) { /* Re of w X e^{+ i angle}: w = 2 except at the edges, whose im is ignored */
        return edge ? (imaginary ? 0.0 : root) : 2.0 * root;
    }
    return 2.0 * root; /* twice the transform, like the split of two rows */
}

static void dft_fill(const cpu_dft *dft, cpu_dft_kind kind, bool inverse, int64_t n, int64_t first,
                     float *matrix) {
    for (int64_t row = 0; row < dft->inner; row++) {
        for (int64_t j = 0; j < row_floats(dft); j++) {
            *matrix++ = (float)entry(kind, inverse, n, first, row, j);
        }
    }
}

/* c (m, outer) = a (m, inner) times the matrix; lda and ldc in floats or pairs. */
static void dft_apply(const cpu_compress_kernels *kernels, const cpu_dft *dft, int64_t m,
                      const void *a, int64_t lda, void *c, int64_t ldc) {
    const cpu_product product = {.m = m,
                                 .n = dft->outer,
                                 .k = dft->inner,
                                 .a = a,
                                 .row_a = lda,
                                 .col_a = 1,
                                 .b = dft->matrix,
                                 .ldb = dft->outer,
                                 .c = c,
                                 .ldc = ldc,
                                 .alpha = 1.0f};
    kernels->product(dft->pairs, &product);
}

/* ---- the plan ---- */

/* One dimension of a transform; unused ones have n = 1. */
typedef struct fft_axis {
    int64_t n;
    int64_t kept;
    int64_t first;    /* index of the first kept frequency, 0 .. n-1 */
    int64_t head;     /* number kept from `first` to the end; the others begin at 0 */
    bool transformed; /* false: skipped */
    bool paired;      /* real data: two rows as one */
    bool multiplied;  /* by a matrix */
    void *lines;      /* the engine's plan, if transformed and not multiplied */
    cpu_dft dft[2];   /* [inverse]: the matrix, if multiplied */
} fft_axis;

/* Sizes and pitches are in complex numbers of the plan's precision. */
struct tg_fft_plan {
    tg_fft_desc desc;
    const cpu_kernels *kernels;
    const cpu_compress_kernels *products;
    const cpu_lines_engine *engine;
    int parts;    /* threads in use */
    int team;     /* threads of the loop over them */
    bool shared;  /* they share each transform */
    int64_t many; /* transforms (1-D: blocks of rows) */

    fft_axis along[3];     /* planes, rows, length of a row; 1-D: rows of a block */
    int64_t columns;       /* kept per row */
    int64_t groups;        /* of CPU_FFT_LINES columns */
    int64_t block_rows;    /* rows of the grid transformed at once */
    int64_t line_pitch;    /* distance of lines */
    int64_t partial_pitch; /* distance of rows of a partial spectrum or volume */

    void *scratch;        /* for the buffers below, initially zero */
    size_t line_bytes;    /* of CPU_FFT_LINES lines, two of them per part: before and after */
    size_t partial_bytes; /* of a partial spectrum: one per part, a single one if 2-D and shared */
    size_t volume_bytes;  /* of a volume: one per part, a single one if shared; 0 if not 3-D */
    size_t grid_bytes;    /* 16-bit: a block of rows of the grid in f32, one per part */
    size_t kept_bytes;    /* 16-bit: kept entries of a group of columns in f32, one per part */
    size_t partial_at, volume_at, grid_at, kept_at;
    float *matrices; /* of all multiplied dimensions */
};

/* One call of forward or inverse. */
typedef struct fft_job {
    const tg_fft_plan *plan;
    int64_t count; /* transforms */
    bool inverse;
    double edge, interior; /* factors of spectrum entries by position in the last dimension */
    const void *in;        /* grid (forward) or spectrum */
    void *out;             /* spectrum (forward) or grid */
} fft_job;

/* Scratch of one part. */
typedef struct fft_scratch {
    void *lines, *output; /* (CPU_FFT_LINES, line_pitch) before and after a transform */
    void *partial, *volume;
    float *grid, *kept; /* 16-bit numbers in f32 */
} fft_scratch;

static fft_scratch scratch_of(const tg_fft_plan *plan, int part) {
    char *base = plan->scratch;
    const size_t number = (size_t)part;
    const bool is_single = plan->shared && plan->desc.ndim < 3;
    return (fft_scratch){base + 2 * number * plan->line_bytes,
                         base + (2 * number + 1) * plan->line_bytes,
                         base + plan->partial_at + (is_single ? 0 : number * plan->partial_bytes),
                         base + plan->volume_at + (plan->shared ? 0 : number * plan->volume_bytes),
                         (float *)(void *)(base + plan->grid_at + number * plan->grid_bytes),
                         (float *)(void *)(base + plan->kept_at + number * plan->kept_bytes)};
}

/* Rows of transform number h: all, except for the last block of rows in 1-D. */
static int64_t rows_of(const fft_job *job, int64_t h) {
    const int64_t rows = job->plan->along[1].n;
    return job->plan->desc.ndim > 1 ? rows : tg_min(rows, job->count - h * rows);
}

/* ---- 16-bit storage, for arithmetic in f32 ---- */

/* The real number `at` of an array. */
static void *real_at(const tg_fft_plan *plan, tg_storage store, const void *x, int64_t at) {
    const size_t size = tg_dtype_size(tg_stored(plan->desc.dtype, store));
    return (char *)(uintptr_t)x + (size_t)at * size;
}

/* `reals` reals of the grid from `at` on: in place or converted. */
static const void *read_grid(const fft_job *job, int64_t at, int64_t reals, const fft_scratch *s) {
    const tg_storage store = job->plan->desc.grid_store;
    const void *x = real_at(job->plan, store, job->in, at);
    if (store == TG_STORE_FULL) {
        return x;
    }
    job->plan->kernels->load_f32(tg_stored(TG_F32, store), reals, x, s->grid);
    return s->grid;
}

/* The destination of computed reals, and their conversion to the grid. */
static void *grid_room(const fft_job *job, int64_t at, const fft_scratch *s) {
    const tg_storage store = job->plan->desc.grid_store;
    return store == TG_STORE_FULL ? real_at(job->plan, store, job->out, at) : s->grid;
}

static void write_grid(const fft_job *job, int64_t at, int64_t reals, const fft_scratch *s) {
    const tg_storage store = job->plan->desc.grid_store;
    if (store != TG_STORE_FULL) {
        job->plan->kernels->store_f32(tg_stored(TG_F32, store), reals, s->grid,
                                      real_at(job->plan, store, job->out, at));
    }
}

/* The same for `rows` rows of `count` <= CPU_FFT_LINES pairs of the spectrum, *pitch pairs apart:
 * in place, or CPU_FFT_LINES apart in f32. */
static const void *read_kept(const fft_job *job, int64_t at, int64_t rows, int64_t count,
                             int64_t *pitch, const fft_scratch *s) {
    const tg_storage store = job->plan->desc.kept_store;
    if (store == TG_STORE_FULL) {
        return real_at(job->plan, store, job->in, at);
    }
    for (int64_t r = 0; r < rows; r++) {
        job->plan->kernels->load_f32(tg_stored(TG_F32, store), 2 * count,
                                     real_at(job->plan, store, job->in, at + 2 * r * *pitch),
                                     s->kept + 2 * r * CPU_FFT_LINES);
    }
    *pitch = CPU_FFT_LINES;
    return s->kept;
}

static void *kept_room(const fft_job *job, int64_t at, int64_t *pitch, const fft_scratch *s) {
    const tg_storage store = job->plan->desc.kept_store;
    if (store == TG_STORE_FULL) {
        return real_at(job->plan, store, job->out, at);
    }
    *pitch = CPU_FFT_LINES;
    return s->kept;
}

static void write_kept(const fft_job *job, int64_t at, int64_t rows, int64_t count, int64_t pitch,
                       const fft_scratch *s) {
    const tg_storage store = job->plan->desc.kept_store;
    for (int64_t r = 0; store != TG_STORE_FULL && r < rows; r++) {
        job->plan->kernels->store_f32(tg_stored(TG_F32, store), 2 * count,
                                      s->kept + 2 * r * CPU_FFT_LINES,
                                      real_at(job->plan, store, job->out, at + 2 * r * pitch));
    }
}

#define REAL    float
#define NAME(x) x##_f32
#define KERNELS rows_f32
#include "backend/cpu/fft.inc"

#define REAL    double
#define NAME(x) x##_f64
#define KERNELS rows_f64
#include "backend/cpu/fft.inc"

/* ---- plans ---- */

void cpu_fft_destroy(tg_backend *be, tg_fft_plan **plan) {
    if (!plan || !*plan) {
        return;
    }
    for (int d = 0; d < 3; d++) {
        (*plan)->engine->destroy(be, (*plan)->along[d].lines);
    }
    tg_mem_free(be->ctx, (*plan)->scratch);
    tg_mem_free(be->ctx, (*plan)->matrices);
    TG_FREE(be->ctx, *plan);
}

/* Pitch of rows of n numbers: an odd number of whole cache lines, so that neighbours along a column
 * map to different sets of the cache. */
static int64_t pitch_for(int64_t n, size_t number) {
    const int64_t per_line = TG_ALIGNMENT / (int64_t)number;
    const int64_t lines = (n + per_line - 1) / per_line;
    return (lines | 1) * per_line;
}

/* Dimensions as planes, rows and length of a row. */
static void set_axes(const tg_fft_desc *desc, tg_fft_plan *plan) {
    for (int d = 0; d < 3; d++) {
        plan->along[d] = (fft_axis){.n = 1, .kept = 1, .head = 1};
    }
    for (int d = 0; d < desc->ndim; d++) {
        fft_axis *axis = &plan->along[d + 3 - desc->ndim];
        axis->n = desc->grid[d];
        axis->kept = desc->kept[d];
        axis->first = (desc->first[d] + desc->grid[d]) % desc->grid[d];
        axis->head = tg_min(axis->kept, axis->n - axis->first);
        axis->transformed = axis->n > 1;
    }
    plan->along[2].paired = !desc->complex;
    plan->columns = plan->along[2].kept;
    plan->groups = (plan->columns + CPU_FFT_LINES - 1) / CPU_FFT_LINES;
    plan->block_rows = desc->complex ? CPU_FFT_LINES : 2 * CPU_FFT_LINES;
    plan->many = desc->howmany;
    if (desc->ndim == 1) {
        fft_axis *rows = &plan->along[1];
        rows->n = rows->kept = rows->head = plan->block_rows;
        plan->many = (desc->howmany + rows->n - 1) / rows->n;
    }
}

/* Everything but scratch, matrices and the engine's plans. */
static void lay_out(tg_backend *be, const tg_fft_desc *desc, tg_fft_plan *plan) {
    const size_t number = desc->dtype == TG_F32 ? 2 * sizeof(float) : 2 * sizeof(double);
    plan->desc = *desc;
    plan->kernels = cpu_state_of(be)->kernels;
    plan->products = cpu_state_of(be)->compress;
    plan->engine = cpu_state_of(be)->lines;
    set_axes(desc, plan);
    plan->shared = desc->ndim > 1 && plan->many < be->threads;
    plan->parts = plan->shared ? be->threads : cpu_parts(be, plan->many, 1);
    plan->team = cpu_team(be, plan->parts);

    int64_t longest = 1;
    for (int d = 0; d < 3; d++) {
        longest = tg_max(longest, plan->engine->room(plan->along[d].n));
    }
    plan->line_pitch = pitch_for(longest + 1, number);
    plan->partial_pitch = pitch_for(plan->columns, number);

    const bool solid = desc->ndim == 3;
    const size_t parts = (size_t)plan->parts, one = plan->shared ? 1 : parts;
    const int64_t rows = plan->along[1].n + plan->along[1].n % 2; /* real rows go in pairs */
    const int64_t kept = plan->along[0].n * plan->along[1].kept;
    plan->line_bytes = (size_t)(CPU_FFT_LINES * plan->line_pitch) * number;
    plan->partial_bytes = (size_t)(rows * plan->partial_pitch) * number;
    plan->volume_bytes = solid ? (size_t)(kept * plan->partial_pitch) * number : 0;
    plan->partial_at = 2 * parts * plan->line_bytes;
    plan->volume_at = plan->partial_at + (solid ? parts : one) * plan->partial_bytes;
    const int64_t columns = CPU_FFT_LINES * plan->along[solid ? 0 : 1].kept;
    if (desc->grid_store != TG_STORE_FULL) { /* the reals of rows of pairs */
        plan->grid_bytes = tg_align((size_t)(CPU_FFT_LINES * plan->along[2].n) * number);
    }
    if (desc->kept_store != TG_STORE_FULL) {
        plan->kept_bytes = tg_align((size_t)columns * number);
    }
    plan->grid_at = plan->volume_at + one * plan->volume_bytes;
    plan->kept_at = plan->grid_at + parts * plan->grid_bytes;
}

static size_t scratch_bytes(const tg_fft_plan *plan) {
    return plan->kept_at + (size_t)plan->parts * plan->kept_bytes;
}

/* Matrices for the dimensions where they are faster. */
static tg_status make_matrices(tg_backend *be, tg_fft_plan *plan) {
    size_t bytes = 0;
    for (int i = 0; i < 6 && plan->desc.dtype == TG_F32; i++) {
        fft_axis *axis = &plan->along[i / 2];
        const cpu_dft_kind kind = axis->paired ? CPU_DFT_REAL : CPU_DFT_COMPLEX;
        axis->multiplied = axis->transformed && dft_pays(plan->products, axis->n, axis->kept);
        axis->dft[i % 2] = dft_layout(kind, i % 2, axis->n, axis->kept);
        bytes += axis->multiplied ? dft_bytes(&axis->dft[i % 2]) : 0;
    }
    if (bytes == 0) {
        return TG_OK;
    }
    plan->matrices = tg_mem_alloc(be->ctx, TG_MEM_WORKSPACE, bytes, 1);
    if (!plan->matrices) {
        return TG_E_MEMORY;
    }
    float *next = plan->matrices;
    for (int i = 0; i < 6; i++) {
        fft_axis *axis = &plan->along[i / 2];
        if (axis->multiplied) {
            cpu_dft *dft = &axis->dft[i % 2];
            dft_fill(dft, axis->paired ? CPU_DFT_REAL : CPU_DFT_COMPLEX, i % 2, axis->n,
                     axis->first, next);
            dft->matrix = next;
            next += dft_bytes(dft) / sizeof *next;
        }
    }
    return TG_OK;
}

/* The engine's plans of all other dimensions. */
static tg_status make_lines(tg_backend *be, tg_fft_plan *plan) {
    const fft_scratch s = scratch_of(plan, 0);
    for (int d = 0; d < 3; d++) {
        fft_axis *axis = &plan->along[d];
        const cpu_lines_desc lines = {.real = plan->desc.dtype,
                                      .n = axis->n,
                                      .rest = d < 2 ? plan->columns % CPU_FFT_LINES : 0,
                                      .pitch = plan->line_pitch,
                                      .from = s.lines,
                                      .to = s.output};
        if (axis->transformed && !axis->multiplied) {
            TG_CALL(plan->engine->create(be, &lines, &axis->lines));
        }
    }
    return TG_OK;
}

tg_status cpu_fft_create(tg_backend *be, const tg_fft_desc *desc, tg_fft_plan **out) {
    tg_status status = TG_OK;
    tg_fft_plan *plan = NULL;
    *out = NULL;
    TG_TRY(tg_check_fft(be->ctx, desc));
    for (int d = 0; d < desc->ndim; d++) {
        if (desc->grid[d] > INT32_MAX / 16) {
            return tg_fail(be->ctx, TG_E_UNSUPPORTED,
                           "fft: %lld points along dimension %d; up to %d are possible here",
                           (long long)desc->grid[d], d, INT32_MAX / 16);
        }
    }
    TG_TRY(TG_NEW(be->ctx, TG_MEM_WORKSPACE, plan, 1));
    lay_out(be, desc, plan);
    plan->scratch = tg_mem_calloc(be->ctx, TG_MEM_WORKSPACE, scratch_bytes(plan), 1);
    if (!plan->scratch) {
        TG_TRY(TG_E_MEMORY);
    }
    TG_TRY(make_matrices(be, plan));
    TG_TRY(make_lines(be, plan));
    *out = plan;
    return TG_OK;
fail:
    cpu_fft_destroy(be, &plan);
    return status;
}

/* ---- execution ---- */

typedef void (*stage_fn)(const fft_job *job, int64_t h, const fft_scratch *s, tg_range units);

/* One stage of one transform, shared by all threads. */
static void share(const fft_job *job, stage_fn stage, int64_t h, int64_t units) {
    const int parts = job->plan->parts;
#pragma omp parallel for num_threads(job->plan->team) schedule(static)
    for (int p = 0; p < parts; p++) {
        const fft_scratch s = scratch_of(job->plan, p);
        stage(job, h, &s, tg_partition(units, 1, parts, p));
    }
}

/* Both stages of every transform, A before B if forward. Stage A counts blocks of rows (3-D:
 * planes), stage B groups of columns (3-D: of every kept row). */
static void run(const fft_job *job) {
    const tg_fft_plan *plan = job->plan;
    const bool f32 = plan->desc.dtype == TG_F32, solid = plan->desc.ndim == 3;
    const stage_fn a = f32 ? stage_a_f32 : stage_a_f64, b = f32 ? stage_b_f32 : stage_b_f64;
    const int64_t blocks = (plan->along[1].n + plan->block_rows - 1) / plan->block_rows;
    const int64_t units_a = solid ? plan->along[0].n : blocks;
    const int64_t units_b = plan->groups * (solid ? plan->along[1].kept : 1);
    const stage_fn first = job->inverse ? b : a, second = job->inverse ? a : b;
    const int64_t units[2] = {job->inverse ? units_b : units_a, job->inverse ? units_a : units_b};
    const int64_t rows = plan->along[1].n;
    const int64_t many = plan->desc.ndim > 1 ? job->count : (job->count + rows - 1) / rows;
    if (plan->shared) {
        for (int64_t h = 0; h < many; h++) {
            share(job, first, h, units[0]);
            share(job, second, h, units[1]);
        }
        return;
    }
    const int parts = plan->parts;
#pragma omp parallel for num_threads(plan->team) schedule(static)
    for (int p = 0; p < parts; p++) {
        const fft_scratch s = scratch_of(plan, p);
        const tg_range mine = tg_partition(many, 1, parts, p);
        for (int64_t h = mine.begin; h < mine.end; h++) {
            first(job, h, &s, (tg_range){0, units[0]});
            second(job, h, &s, (tg_range){0, units[1]});
        }
    }
}

tg_status cpu_fft(tg_backend *be, tg_fft_plan *plan, tg_fft_direction direction, int64_t count,
                  tg_fft_weight weight, double scale, const void *from, void *to) {
    (void)be;
    const bool real = !plan->desc.complex, adjoint = real && weight == TG_FFT_ADJOINT;
    const bool inverse = direction == TG_FFT_INVERSE;
    const double edge = real && !inverse ? 0.5 * scale : scale; /* splitting doubles the rows */
    const double interior = (inverse ? 0.5 : 2.0) * edge;
    run(&(fft_job){plan, count, inverse, edge, adjoint ? interior : edge, from, to});
    return TG_OK;
}

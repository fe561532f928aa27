/* clang-format off */
/* Muon (Jordan et al. 2024), mode by mode: a spectral weight (Cin, Cout, modes..) is a complex
 * matrix (Cin, Cout) for every mode, any other one a matrix alone.
 *     m <- b1 m + (1 - b1) g,  n = b1 m + (1 - b1) g,  u = .2 sqrt(max(Cin, Cout)) unitary(n)
 * unitary(n) of a matrix n = U S V^H is about U V^H: five Newton-Schulz steps from X = n / |n|,
 *     X <- (a + b A + c A^2) X,  A = X X^H, or X^H X if that is smaller, on the other side
 * which bring singular values above .01 |n| to .7 .. 1.2. The mean entry of u is then about .2. */
/* clang-format on */
#include <math.h>
#include <string.h>

#include "base/minmax.h"
#include "base/threads.h"
#include "linalg/scratch.h"
#include "optim/rules/rules.h"

enum { NEWTON_SCHULZ = 5, MODES = 64 /* that are worked on together */ };

static const double A = 3.4445, B = -4.7750, C = 2.0315;

/* A weight as matrices, and some of them as they are worked on. */
typedef struct matrices {
    int64_t rows, columns, modes, together;
    void *u;           /* (rows, columns, modes) the direction */
    void *x, *y;       /* (together, rows, columns) */
    void *gram, *poly; /* (together, small, small), small = min(rows, columns) */
} matrices;

static matrices lay_out(const tg_whole *whole, tg_scratch *scratch) {
    const tg_shape *shape = &whole->shape;
    const size_t size = tg_dtype_size(whole->dtype);
    matrices m = {.rows = shape->dim[0], .columns = shape->dim[1]};
    const int64_t entries = m.rows * m.columns, small = tg_min(m.rows, m.columns);
    m.modes = tg_shape_numel(shape) / entries;
    m.together = tg_min(m.modes, MODES);
    m.u = tg_scratch_take(scratch, (size_t)(entries * m.modes) * size);
    m.x = tg_scratch_take(scratch, (size_t)(entries * m.together) * size);
    m.y = tg_scratch_take(scratch, (size_t)(entries * m.together) * size);
    m.gram = tg_scratch_take(scratch, (size_t)(small * small * m.together) * size);
    m.poly = tg_scratch_take(scratch, (size_t)(small * small * m.together) * size);
    return m;
}

static int64_t values(const tg_optim_config *config, const tg_shape *shape) {
    (void)config;
    return tg_shape_numel(shape);
}

static size_t work(const tg_whole *whole) {
    tg_scratch scratch = {0};
    lay_out(whole, &scratch);
    return scratch.used;
}

static void move(const tg_adam *op, const tg_rule_arrays *a) {
    for (int64_t i = 0; i < a->n; i++) {
        a->m[i] = op->beta1 * a->m[i] + (1.0 - op->beta1) * a->g[i];
        a->u[i] = op->beta1 * a->m[i] + (1.0 - op->beta1) * a->g[i];
    }
}

/* Threads that pay for so many modes; each has some of them to itself, so that sums, and with them
 * all bits, are the same for any number of threads. */
static int threads_for(const tg_backend *be, int64_t count) {
    return (int)tg_min(count, be->threads);
}

/* x (together, entries) at mode k = u (entries, modes) at mode first + k or, backwards, u from x;
 * one number of `size` bytes after the other. */
static inline void transpose(const matrices *m, size_t size, int64_t first, tg_range modes,
                             bool is_back) {
    enum { LINE = 8 }; /* entries that share a cache line of x */
    const int64_t entries = m->rows * m->columns;
    for (int64_t i = 0; i < entries; i += LINE) {
        const int64_t end = tg_min(i + LINE, entries);
        for (int64_t k = modes.begin; k < modes.end; k++) {
            for (int64_t j = i; j < end; j++) {
                char *u = (char *)m->u + (size_t)(j * m->modes + first + k) * size;
                char *x = (char *)m->x + (size_t)(k * entries + j) * size;
                memcpy(is_back ? u : x, is_back ? x : u, size);
            }
        }
    }
}

/* With sizes and directions that the compiler knows. */
static void transpose_any(const matrices *m, tg_dtype dtype, int64_t first, tg_range modes,
                          bool is_back) {
    const size_t size = tg_dtype_size(dtype);
    if (size == sizeof(float)) {
        is_back ? transpose(m, sizeof(float), first, modes, true)
                : transpose(m, sizeof(float), first, modes, false);
    } else if (size == sizeof(double)) { /* or two floats */
        is_back ? transpose(m, sizeof(double), first, modes, true)
                : transpose(m, sizeof(double), first, modes, false);
    } else {
        transpose(m, size, first, modes, is_back);
    }
}

/* x[k] times a factor; 0: by one over its norm. */
static void scale_matrix(const matrices *m, tg_dtype dtype, int64_t k, double factor) {
    enum { BLOCK = 512 };
    const int64_t width = tg_dtype_is_complex(dtype) ? 2 : 1;
    const int64_t reals = m->rows * m->columns * width;
    double value[BLOCK], squares = 0.0;
    for (int64_t i = 0; factor == 0.0 && i < reals; i += BLOCK) {
        const int64_t n = tg_min(reals - i, BLOCK);
        tg_load_reals(dtype, m->x, k * reals + i, n, value);
        for (int64_t j = 0; j < n; j++) {
            squares += value[j] * value[j];
        }
    }
    factor = squares > 0.0 ? 1.0 / sqrt(squares) : factor;
    for (int64_t i = 0; i < reals; i += BLOCK) {
        const int64_t n = tg_min(reals - i, BLOCK);
        tg_load_reals(dtype, m->x, k * reals + i, n, value);
        for (int64_t j = 0; j < n; j++) {
            value[j] *= factor;
        }
        tg_store_reals(dtype, m->x, k * reals + i, n, value);
    }
}

/* x = u at modes first .., each divided by its norm. */
static void gather(const tg_backend *be, const matrices *m, tg_dtype dtype, int64_t first,
                   int64_t count) {
    const int threads = threads_for(be, count);
#pragma omp parallel for num_threads(threads) schedule(static)
    for (int t = 0; t < threads; t++) {
        const tg_range modes = tg_partition(count, 1, threads, t);
        transpose_any(m, dtype, first, modes, false);
        for (int64_t k = modes.begin; k < modes.end; k++) {
            scale_matrix(m, dtype, k, 0.0);
        }
    }
}

/* u at modes first .. = x, as long as a direction is. */
static void scatter(const tg_backend *be, const matrices *m, tg_dtype dtype, int64_t first,
                    int64_t count) {
    const double length = 0.2 * sqrt((double)tg_max(m->rows, m->columns));
    const int threads = threads_for(be, count);
#pragma omp parallel for num_threads(threads) schedule(static)
    for (int t = 0; t < threads; t++) {
        const tg_range modes = tg_partition(count, 1, threads, t);
        for (int64_t k = modes.begin; k < modes.end; k++) {
            scale_matrix(m, dtype, k, length);
        }
        transpose_any(m, dtype, first, modes, true);
    }
}

/* A product of every matrix of a with that of b; c, lda, ldb, ldc and strides as m, n, k say. */
static tg_gemm product(tg_dtype dtype, int64_t rows, int64_t columns, int64_t inner, int64_t count,
                       const void *a, const void *b, void *c) {
    return (tg_gemm){.dtype = dtype,
                     .m = rows,
                     .n = columns,
                     .k = inner,
                     .alpha = {1.0, 0.0},
                     .a = a,
                     .lda = inner,
                     .stride_a = rows * inner,
                     .b = b,
                     .ldb = columns,
                     .stride_b = inner * columns,
                     .c = c,
                     .ldc = columns,
                     .stride_c = rows * columns,
                     .batch = count};
}

/* y = (a + b A + c A^2) x; of a tall x on the other side, with A = X^H X. */
static tg_status iterate(tg_backend *be, const matrices *m, tg_dtype dtype, int64_t count) {
    const bool is_tall = m->rows > m->columns;
    const int64_t small = tg_min(m->rows, m->columns), large = tg_max(m->rows, m->columns);
    tg_status status = TG_OK;
    tg_gemm gram = product(dtype, small, small, large, count, m->x, m->x, m->gram);
    gram.op_a = is_tall ? TG_OP_H : TG_OP_N;
    gram.op_b = is_tall ? TG_OP_N : TG_OP_H;
    gram.lda = gram.ldb = m->columns;
    TG_TRY(be->ops->gemm(be, &gram));
    TG_TRY(be->ops->copy(be, m->poly, m->gram,
                         (size_t)(small * small * count) * tg_dtype_size(dtype)));
    tg_gemm poly = product(dtype, small, small, small, count, m->gram, m->gram, m->poly);
    poly.alpha.re = C;
    poly.beta.re = B;
    TG_TRY(be->ops->gemm(be, &poly));
    for (int64_t k = 0; k < count; k++) {
        for (int64_t i = 0; i < small; i++) {
            const int64_t at = (k * small + i) * small + i;
            tg_scalar value = tg_load(dtype, m->poly, at);
            value.re += A;
            tg_store(dtype, m->poly, at, value);
        }
    }
    const tg_gemm next = product(dtype, m->rows, m->columns, small, count, is_tall ? m->x : m->poly,
                                 is_tall ? m->poly : m->x, m->y);
    TG_TRY(be->ops->gemm(be, &next));
fail:
    return status;
}

static tg_status step_whole(tg_backend *be, const tg_whole *whole, const tg_adam *op) {
    tg_scratch scratch = {.block = whole->work};
    matrices m = lay_out(whole, &scratch);
    tg_adam moment = *op;
    tg_status status = TG_OK;
    moment.weight = NULL;
    moment.direction = m.u;
    TG_TRY(be->ops->rule_step(be, &moment, move));
    for (int64_t first = 0; first < m.modes; first += m.together) {
        const int64_t count = tg_min(m.together, m.modes - first);
        gather(be, &m, whole->dtype, first, count);
        for (int i = 0; i < NEWTON_SCHULZ; i++) {
            TG_TRY(iterate(be, &m, whole->dtype, count));
            void *next = m.y;
            m.y = m.x;
            m.x = next;
        }
        scatter(be, &m, whole->dtype, first, count);
    }
    TG_TRY(tg_rule_use_direction(be, op, m.u));
fail:
    return status;
}

const tg_rule tg_rule_muon = {.states = 1,
                              .state = {{.name = "m"}},
                              .values = values,
                              .work = work,
                              .step_whole = step_whole};

/* clang-format off */
/* Muon (Jordan et al. 2024), mode by mode: a spectral weight (Cin, Cout, modes..) is a complex
 * matrix (Cin, Cout) for every mode, any other one a matrix alone.
 *     m <- b1 m + (1 - b1) g,  n = b1 m + (1 - b1) g,  u = .2 sqrt(max(Cin, Cout)) unitary(n)
 * unitary(n) of a matrix n = U S V^H is about U V^H: five Newton-Schulz steps from X = n / |n|,
 *     X <- a X + (b A + c A^2) X,  A = X X^H, or X^H X if that is smaller, on the other side
 * which bring singular values above .01 |n| to .7 .. 1.2. The mean entry of u is then about .2. */
/* clang-format on */
#include <math.h>

#include "base/minmax.h"
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

/* x (count, entries) = u (entries, modes) at modes first .., each divided by its norm. */
static void gather(const matrices *m, tg_dtype dtype, int64_t first, int64_t count) {
    const int64_t entries = m->rows * m->columns;
    for (int64_t k = 0; k < count; k++) {
        double squares = 0.0;
        for (int64_t i = 0; i < entries; i++) {
            const tg_scalar value = tg_load(dtype, m->u, i * m->modes + first + k);
            squares += value.re * value.re + value.im * value.im;
        }
        const double scale = squares > 0.0 ? 1.0 / sqrt(squares) : 0.0;
        for (int64_t i = 0; i < entries; i++) {
            const tg_scalar value = tg_load(dtype, m->u, i * m->modes + first + k);
            tg_store(dtype, m->x, k * entries + i, (tg_scalar){scale * value.re, scale * value.im});
        }
    }
}

static void scatter(const matrices *m, tg_dtype dtype, int64_t first, int64_t count) {
    const int64_t entries = m->rows * m->columns;
    const double scale = 0.2 * sqrt((double)tg_max(m->rows, m->columns));
    for (int64_t k = 0; k < count; k++) {
        for (int64_t i = 0; i < entries; i++) {
            const tg_scalar value = tg_load(dtype, m->x, k * entries + i);
            tg_store(dtype, m->u, i * m->modes + first + k,
                     (tg_scalar){scale * value.re, scale * value.im});
        }
    }
}

/* y = a x + (b A + c A^2) x; of a tall x on the other side, with A = X^H X. */
static tg_status iterate(tg_backend *be, const matrices *m, tg_dtype dtype, int64_t count) {
    const bool is_tall = m->rows > m->columns;
    const int64_t small = tg_min(m->rows, m->columns), entries = m->rows * m->columns;
    tg_status status = TG_OK;
    const tg_gemm gram = {.dtype = dtype,
                          .op_a = is_tall ? TG_OP_H : TG_OP_N,
                          .op_b = is_tall ? TG_OP_N : TG_OP_H,
                          .m = small,
                          .n = small,
                          .k = is_tall ? m->rows : m->columns,
                          .alpha = {1.0, 0.0},
                          .a = m->x,
                          .lda = m->columns,
                          .stride_a = entries,
                          .b = m->x,
                          .ldb = m->columns,
                          .stride_b = entries,
                          .c = m->gram,
                          .ldc = small,
                          .stride_c = small * small,
                          .batch = count};
    TG_TRY(be->ops->gemm(be, &gram));
    TG_TRY(be->ops->copy(be, m->poly, m->gram,
                         (size_t)(small * small * count) * tg_dtype_size(dtype)));
    const tg_gemm poly = {.dtype = dtype,
                          .m = small,
                          .n = small,
                          .k = small,
                          .alpha = {C, 0.0},
                          .beta = {B, 0.0},
                          .a = m->gram,
                          .lda = small,
                          .stride_a = small * small,
                          .b = m->gram,
                          .ldb = small,
                          .stride_b = small * small,
                          .c = m->poly,
                          .ldc = small,
                          .stride_c = small * small,
                          .batch = count};
    TG_TRY(be->ops->gemm(be, &poly));
    TG_TRY(be->ops->copy(be, m->y, m->x, (size_t)(entries * count) * tg_dtype_size(dtype)));
    const tg_gemm next = {.dtype = dtype,
                          .m = m->rows,
                          .n = m->columns,
                          .k = small,
                          .alpha = {1.0, 0.0},
                          .beta = {A, 0.0},
                          .a = is_tall ? m->x : m->poly,
                          .lda = small,
                          .stride_a = is_tall ? entries : small * small,
                          .b = is_tall ? m->poly : m->x,
                          .ldb = m->columns,
                          .stride_b = is_tall ? small * small : entries,
                          .c = m->y,
                          .ldc = m->columns,
                          .stride_c = entries,
                          .batch = count};
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
        gather(&m, whole->dtype, first, count);
        for (int i = 0; i < NEWTON_SCHULZ; i++) {
            TG_TRY(iterate(be, &m, whole->dtype, count));
            void *next = m.y;
            m.y = m.x;
            m.x = next;
        }
        scatter(&m, whole->dtype, first, count);
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

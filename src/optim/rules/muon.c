/* clang-format off */
/* Muon (Jordan et al. 2024), mode by mode: a spectral weight (Cin, Cout, modes..) is a complex
 * matrix (Cin, Cout) for every mode, any other one a single matrix.
 *     m <- b1 m + (1 - b1) g,  n = b1 m + (1 - b1) g,  u = 0.2 sqrt(max(Cin, Cout)) unitary(n)
 * unitary(n) of a matrix n = U S V^H is about U V^H: five Newton-Schulz steps from X = n / |n|,
 *     X <- (a + b A + c A^2) X,  A = X X^H, or X^H X if that is smaller, on the other side
 * which bring singular values above 0.01 |n| to 0.7 .. 1.2. The mean entry of u is about 0.2. */
/* clang-format on */
#include <math.h>

#include "backend/backend.h"
#include "base/memory.h"
#include "base/minmax.h"
#include "optim/rules/rules.h"

enum { NEWTON_SCHULZ = 5, BATCH = 256 /* processed at once */ };

static const double A = 3.4445, B = -4.7750, C = 2.0315;

/* A weight as matrices, and the batch being processed. */
typedef struct matrices {
    int64_t rows, columns, modes, batch;
    void *u;           /* (rows, columns, modes) the direction */
    void *x, *y;       /* (batch, rows, columns) */
    void *gram, *poly; /* (batch, small, small), small = min(rows, columns) */
    double *squares;   /* (modes) sum of squares of each matrix's entries */
} matrices;

static matrices lay_out(const tg_whole *whole, tg_scratch *scratch) {
    const tg_shape *shape = &whole->shape;
    const size_t size = tg_dtype_size(whole->dtype);
    matrices m = {.rows = shape->dim[0], .columns = shape->dim[1]};
    const int64_t entries = m.rows * m.columns, small = tg_min(m.rows, m.columns);
    m.modes = tg_shape_numel(shape) / entries;
    m.batch = tg_min(m.modes, BATCH);
    m.u = tg_scratch_take(scratch, (size_t)(entries * m.modes) * size);
    m.x = tg_scratch_take(scratch, (size_t)(entries * m.batch) * size);
    m.y = tg_scratch_take(scratch, (size_t)(entries * m.batch) * size);
    m.gram = tg_scratch_take(scratch, (size_t)(small * small * m.batch) * size);
    m.poly = tg_scratch_take(scratch, (size_t)(small * small * m.batch) * size);
    m.squares = tg_scratch_take(scratch, (size_t)m.modes * sizeof(double));
    return m;
}

static size_t work(const tg_whole *whole) {
    tg_scratch scratch = {0};
    lay_out(whole, &scratch);
    return scratch.used;
}

/* Products of each of `count` matrices of a with that of b. */
static tg_gemm product(tg_dtype dtype, tg_op op_a, tg_op op_b, int64_t rows, int64_t columns,
                       int64_t inner, int64_t count, const void *a, const void *b, void *c) {
    tg_gemm g = tg_whole_product(dtype, op_a, op_b, rows, columns, inner, a, b, c);
    g.stride_a = rows * inner;
    g.stride_b = inner * columns;
    g.stride_c = rows * columns;
    g.batch = count;
    return g;
}

/* y = length (a + b A + c A^2) x; for a tall x from the other side, with A = X^H X. */
static tg_status iterate(tg_backend *be, const matrices *m, tg_dtype dtype, int64_t count,
                         double length) {
    const bool is_tall = m->rows > m->columns;
    const int64_t small = tg_min(m->rows, m->columns), large = tg_max(m->rows, m->columns);
    const size_t size = tg_dtype_size(dtype);
    const tg_gemm gram = product(dtype, is_tall ? TG_OP_H : TG_OP_N, is_tall ? TG_OP_N : TG_OP_H,
                                 small, small, large, count, m->x, m->x, m->gram);
    TG_CALL(be->ops->gemm(be, &gram));
    TG_CALL(be->ops->copy(be, m->poly, m->gram, (size_t)(small * small * count) * size));
    tg_gemm poly =
        product(dtype, TG_OP_N, TG_OP_N, small, small, small, count, m->gram, m->gram, m->poly);
    poly.alpha.re = C;
    poly.beta.re = B;
    TG_CALL(be->ops->gemm(be, &poly));
    TG_CALL(be->ops->copy(be, m->y, m->x, (size_t)(small * large * count) * size));
    tg_gemm next = product(dtype, TG_OP_N, TG_OP_N, m->rows, m->columns, small, count,
                           is_tall ? m->x : m->poly, is_tall ? m->poly : m->x, m->y);
    next.alpha.re = length;
    next.beta.re = length * A;
    return be->ops->gemm(be, &next);
}

/* Modes first .. of u, whose matrices have norm 1, get the norm of a direction. */
static tg_status make_unitary(tg_backend *be, matrices m, tg_dtype dtype, int64_t first) {
    const int64_t count = tg_min(m.batch, m.modes - first), entries = m.rows * m.columns;
    const double length = 0.2 * sqrt((double)tg_max(m.rows, m.columns));
    void *u = (char *)m.u + (size_t)first * tg_dtype_size(dtype);
    TG_CALL(be->ops->transpose(be, dtype, entries, count, u, m.modes, m.x, entries));
    for (int i = 1; i <= NEWTON_SCHULZ; i++) {
        TG_CALL(iterate(be, &m, dtype, count, i == NEWTON_SCHULZ ? length : 1.0));
        void *next = m.y;
        m.y = m.x;
        m.x = next;
    }
    return be->ops->transpose(be, dtype, count, entries, m.x, entries, u, m.modes);
}

static tg_status step_whole(tg_backend *be, const tg_whole *whole, const tg_adam *op) {
    const tg_dtype dtype = whole->dtype;
    tg_scratch scratch = {.block = whole->work};
    const matrices m = lay_out(whole, &scratch);
    tg_adam moment = *op;
    moment.weight = NULL;
    moment.direction = m.u;
    TG_CALL(be->ops->update(be, 1, &moment));
    const int64_t entries = m.rows * m.columns;
    TG_CALL(be->ops->column_squares(be, dtype, entries, m.modes, m.u, m.squares));
    TG_CALL(be->ops->scale_columns(be, dtype, entries, m.modes, 1.0, NULL, m.squares, m.u));
    for (int64_t first = 0; first < m.modes; first += m.batch) {
        TG_CALL(make_unitary(be, m, dtype, first));
    }
    return tg_rule_use_direction(be, op, m.u);
}

const tg_rule tg_rule_muon = {.states = 1,
                              .kernel = TG_KERNEL_NESTEROV,
                              .keys = "min_entries",
                              .state = {{.name = "m"}},
                              .work = work,
                              .step_whole = step_whole};

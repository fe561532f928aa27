/* From one grid to another, as neuraloperator resamples skip connections:
 *
 *   1-D and 2-D  linear and cubic interpolation (Keys, a = -3/4), first and last points aligned,
 *                edges repeated: a matrix (to, from) for each dimension
 *   3-D          the frequencies that both grids have
 *
 *   RESAMPLE     y[.., j, ..] = sum_i A[j, i] x[.., i, ..] along one dimension, or its adjoint */
#include <math.h>
#include <string.h>

#include "base/minmax.h"
#include "nn/ops.h"
#include "nn/program.h"

/* ---- matrices ---- */

/* The cubic kernel at distance t. */
static double cubic(double t) {
    const double a = -0.75;
    t = fabs(t);
    return t <= 1.0  ? ((a + 2.0) * t - (a + 3.0)) * t * t + 1.0
           : t < 2.0 ? ((a * t - 5.0 * a) * t + 8.0 * a) * t - 4.0 * a
                     : 0.0;
}

static double linear(double t) {
    return fmax(0.0, 1.0 - fabs(t));
}

/* A[j, i] at j, i in this order. Points beyond an edge count as the one at it. */
tg_scalar nn_resampling_entry(const void *of, int64_t at) {
    const nn_resampling *r = of;
    const int64_t j = at / r->from, i = at % r->from;
    const double x = r->to > 1 ? (double)(j * (r->from - 1)) / (double)(r->to - 1) : 0.0;
    const int64_t below = (int64_t)floor(x);
    double sum = 0.0;
    for (int64_t k = below - 1; k <= below + 2; k++) {
        const int64_t inside = k < 0 ? 0 : k < r->from ? k : r->from - 1;
        sum += inside == i ? (r->is_cubic ? cubic : linear)(x - (double)k) : 0.0;
    }
    return (tg_scalar){.re = sum};
}

/* ---- the op ---- */

/* x (left, from, right) to y (left, to, right); of an adjoint from y to x. */
static tg_status run(tg_fno *fno, const nn_op *op) {
    const nn_value *x = &fno->run.program.values[op->in[NN_X]];
    const nn_value *y = &fno->run.program.values[op->out[0]];
    const nn_resampling *r = &fno->run.program.resamplings[op->resampling];
    const int d = op->dimension, after = fno->model.config.n_dim - d - 1;
    const int64_t left = x->planes * fno->run.batch * x->channels * tg_product(d, x->grid.size);
    const int64_t right = tg_product(after, x->grid.size + d + 1);
    const int64_t from = x->grid.size[d], to = y->grid.size[d];
    const bool is_last = right == 1; /* then all rows are one product */
    const tg_gemm gemm = {.dtype = x->dtype,
                          .op_a = !is_last && op->is_adjoint ? TG_OP_T : TG_OP_N,
                          .op_b = is_last && !op->is_adjoint ? TG_OP_T : TG_OP_N,
                          .m = is_last ? left : to,
                          .n = is_last ? to : right,
                          .k = from,
                          .alpha = {1.0, 0.0},
                          .a = is_last ? x->data : r->matrix,
                          .lda = is_last ? from : r->from,
                          .b = is_last ? r->matrix : x->data,
                          .ldb = is_last ? r->from : right,
                          .stride_b = is_last ? 0 : from * right,
                          .c = y->data,
                          .ldc = is_last ? to : right,
                          .stride_c = to * right,
                          .batch = is_last ? 1 : left};
    return fno->be->ops->gemm(fno->be, &gemm);
}

static double flops(const nn_program *p, const nn_op *op) {
    const nn_value *y = &p->values[op->out[0]];
    const nn_value *x = &p->values[op->in[NN_X]];
    return 2.0 * y->planes * (double)p->batch * (double)y->channels * (double)y->points *
           (double)x->grid.size[op->dimension];
}

static int add(nn_program *p, int resampling, int dimension, bool is_adjoint, int x) {
    const nn_resampling r = p->resamplings[resampling];
    nn_op op = nn_op_on(p, NN_RESAMPLE, x);
    nn_grid grid = p->values[x].grid;
    grid.size[dimension] = is_adjoint ? r.from : r.to;
    op.resampling = resampling;
    op.dimension = dimension;
    op.is_adjoint = is_adjoint;
    nn_value_set_grid(p, op.out[0], grid);
    return nn_op_add(p, op);
}

static int back(nn_program *p, const nn_op *op, nn_request ask) {
    return add(p, op->resampling, op->dimension, true, ask.dy);
}

const nn_kind_row nn_kind_resample = {
    .name = "resampling", .slot = NN_SLOT(gemm), .run = run, .back = back, .flops = flops};

static int find(nn_program *p, nn_resampling r) {
    for (int i = 0; i < p->resampling_count; i++) {
        if (p->resamplings[i].from == r.from && p->resamplings[i].to == r.to) {
            return i;
        }
    }
    if (nn_failed(p, NN_GROW(p, resamplings, resampling))) {
        return 0;
    }
    p->resamplings[p->resampling_count] = r;
    return p->resampling_count++;
}

/* Of real data the last dimension has half of the modes; others have a middle at -m/2. */
static int by_frequency(nn_program *p, nn_grid grid, int x) {
    const int n_dim = p->model->config.n_dim;
    int64_t modes[TG_FNO_MAX_DIMS] = {0};
    for (int d = 0; d < n_dim; d++) {
        const int64_t both = tg_min(p->values[x].grid.size[d], grid.size[d]);
        modes[d] = d == n_dim - 1 ? both / 2 + 1 : tg_max(1, both / 2 * 2);
    }
    return nn_add_filtered(p, modes, grid, x);
}

int nn_add_resample(nn_program *p, nn_grid grid, int x) {
    const int n_dim = p->model->config.n_dim;
    if (n_dim == 3) {
        return memcmp(&p->values[x].grid, &grid, sizeof grid) == 0 ? x : by_frequency(p, grid, x);
    }
    for (int d = n_dim - 1; d >= 0; d--) {
        const nn_resampling r = {
            .from = p->values[x].grid.size[d], .to = grid.size[d], .is_cubic = n_dim == 2};
        x = r.from == r.to ? x : add(p, find(p, r), d, false, x);
    }
    return x;
}

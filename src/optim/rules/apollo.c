/* clang-format off */
/* APOLLO (Zhu et al. 2024): SGD whose columns are scaled as Adam on a random projection would.
 * A weight is a matrix G of its first dim (rows) and all others; P (rows, r) has random entries
 * with E|p|^2 = 1 / r, redrawn from the seed every update_proj_gap updates.
 *     R = P^H G,  (m, v) and A = Adam's direction of R,  s_j = |A_j| / |R_j| of column j
 *     u_j = scale sqrt(rows / r) s_j G_j, with Adam's correction for t, and |u| at most 1.01 times
 *     that of the update before
 * With r = 1 (APOLLO-Mini) there is one s for all columns, |A| / |R|. */
/* clang-format on */
#include <math.h>

#include "backend/backend.h"
#include "base/memory.h"
#include "base/minmax.h"
#include "optim/rules/rules.h"

static const double GROWTH = 1.01;

static int64_t rank_of(const tg_optim_config *config, int64_t rows) {
    const double rank = config->projector.first.rank.value[0];
    const int64_t r = (int64_t)(rank < 1.0 ? rank * (double)rows : fmin(rank, (double)rows));
    return r > 1 ? r : 1;
}

typedef struct arrays {
    int64_t rows, columns, rank;
    void *u;           /* (rows, columns) the gradient, then the direction */
    void *p;           /* (rows, rank) */
    void *r;           /* (rank, columns) R, then A */
    double *old, *new; /* (columns) squares of R_j and of A_j */
} arrays;

static arrays lay_out(const tg_whole *whole, tg_scratch *scratch) {
    const size_t size = tg_dtype_size(whole->dtype);
    const int64_t rows = whole->shape.dim[0], columns = tg_shape_numel(&whole->shape) / rows;
    arrays a = {.rows = rows, .columns = columns, .rank = rank_of(whole->config, rows)};
    a.u = tg_scratch_take(scratch, (size_t)(rows * columns) * size);
    a.p = tg_scratch_take(scratch, (size_t)(rows * a.rank) * size);
    a.r = tg_scratch_take(scratch, (size_t)(a.rank * columns) * size);
    a.old = tg_scratch_take(scratch, (size_t)columns * sizeof(double));
    a.new = tg_scratch_take(scratch, (size_t)columns * sizeof(double));
    return a;
}

static int64_t values(const tg_optim_config *config, const tg_shape *shape) {
    return rank_of(config, shape->dim[0]) * (tg_shape_numel(shape) / shape->dim[0]);
}

static size_t work(const tg_whole *whole) {
    tg_scratch scratch = {0};
    lay_out(whole, &scratch);
    return scratch.used;
}

static tg_status draw(tg_backend *be, const tg_whole *whole, const tg_adam *op, const arrays *a) {
    const int64_t gap = (int64_t)whole->config->update_proj_gap;
    const tg_rng rng = {
        .seed = op->rounding->seed, .purpose = TG_RNG_RANGE, .step = (uint32_t)(whole->step / gap)};
    const bool is_complex = tg_dtype_is_complex(whole->dtype);
    const double deviation = 1.0 / sqrt((double)(is_complex ? 2 * a->rank : a->rank));
    const tg_random normal = {.law = TG_RANDOM_NORMAL,
                              .dtype = whole->dtype,
                              .rng = rng,
                              .b = deviation,
                              .n = a->rows * a->rank,
                              .x = a->p};
    return be->ops->random(be, &normal);
}

/* R = P^H G. */
static tg_status project(tg_backend *be, tg_dtype dtype, const arrays *a) {
    const tg_gemm gemm =
        tg_whole_product(dtype, TG_OP_H, TG_OP_N, a->rank, a->columns, a->rows, a->p, a->u, a->r);
    return be->ops->gemm(be, &gemm);
}

/* Replaces R by A, Adam's direction for it. */
static tg_status move(tg_backend *be, const tg_adam *op, const arrays *a) {
    tg_adam adam = *op;
    adam.n = a->rank * a->columns;
    adam.grad = adam.direction = a->r;
    adam.grad_store = TG_STORE_FULL;
    adam.scale = 1.0;
    adam.weight = NULL;
    return be->ops->update(be, 1, &adam);
}

/* u_j = factor |A_j| / |R_j| G_j. */
static tg_status scale_by_column(tg_backend *be, const tg_whole *whole, const tg_adam *op,
                                 double factor, const arrays *a) {
    const tg_dtype dtype = whole->dtype;
    TG_CALL(be->ops->column_squares(be, dtype, a->rank, a->columns, a->r, a->old));
    TG_CALL(move(be, op, a));
    TG_CALL(be->ops->column_squares(be, dtype, a->rank, a->columns, a->r, a->new));
    return be->ops->scale_columns(be, dtype, a->rows, a->columns, factor, a->new, a->old, a->u);
}

/* Sums squares of columns in order, and over blocks. */
static tg_status add_up(tg_backend *be, const tg_whole *whole, const arrays *a,
                        const double *squares, double *sum) {
    enum { BLOCK = 4096 };
    double block[BLOCK];
    *sum = 0.0;
    for (int64_t i = 0; i < a->columns; i += BLOCK) {
        const int64_t count = tg_min(a->columns - i, BLOCK);
        TG_CALL(be->ops->download(be, block, squares + i, (size_t)count * sizeof *block));
        for (int64_t j = 0; j < count; j++) {
            *sum += block[j];
        }
    }
    const tg_tensor value = {.dtype = TG_F64, .shape = {1, {1}}, .data = sum};
    return whole->parts.add ? whole->parts.add(whole->parts.user, &value) : TG_OK;
}

/* u = factor |A| / |R| G. */
static tg_status scale_at_once(tg_backend *be, const tg_whole *whole, const tg_adam *op,
                               double factor, const arrays *a) {
    const tg_dtype dtype = whole->dtype;
    double old = 0.0, new = 0.0;
    TG_CALL(be->ops->column_squares(be, dtype, 1, a->columns, a->r, a->old));
    TG_CALL(move(be, op, a));
    TG_CALL(be->ops->column_squares(be, dtype, 1, a->columns, a->r, a->new));
    TG_CALL(add_up(be, whole, a, a->old, &old));
    TG_CALL(add_up(be, whole, a, a->new, &new));
    factor *= old > 0.0 ? sqrt(new / old) : 0.0;
    return be->ops->axpy(be, dtype, a->rows * a->columns, (tg_scalar){factor, 0.0}, NULL, a->u);
}

/* Limits the growth of u to 1 % per update, through *factor, and stores its norm. */
static tg_status limit(tg_backend *be, const tg_whole *whole, const arrays *a, double *factor) {
    const tg_dtype real = tg_dtype_real(whole->dtype);
    double cell = 0.0 /* room for a real */, squares = 0.0;
    TG_CALL(be->ops->column_squares(be, whole->dtype, a->rows, a->columns, a->u, a->old));
    TG_CALL(add_up(be, whole, a, a->old, &squares));
    TG_CALL(be->ops->download(be, &cell, whole->single, tg_dtype_size(real)));
    const double norm = sqrt(squares), before = tg_load(real, &cell, 0).re;
    const double most = before > 0.0 && norm > GROWTH * before ? GROWTH * before : norm;
    *factor = norm > 0.0 ? most / norm : 1.0;
    tg_store(real, &cell, 0, (tg_scalar){most, 0.0});
    return be->ops->upload(be, whole->single, &cell, tg_dtype_size(real));
}

static tg_status step_whole(tg_backend *be, const tg_whole *whole, const tg_adam *op) {
    tg_scratch scratch = {.block = whole->work};
    const arrays a = lay_out(whole, &scratch);
    const double factor = whole->config->projector.first.scale *
                          sqrt((double)a.rows / (double)a.rank) *
                          tg_rule_correction(&tg_rule_adam, whole->config, whole->t);
    tg_adam use = *op;
    double growth = 1.0;
    TG_CALL(tg_rule_read_gradient(be, op, a.u));
    TG_CALL(draw(be, whole, op, &a));
    TG_CALL(project(be, whole->dtype, &a));
    TG_CALL((a.rank == 1 ? scale_at_once : scale_by_column)(be, whole, op, factor, &a));
    TG_CALL(limit(be, whole, &a, &growth));
    use.alpha *= growth;
    return tg_rule_use_direction(be, &use, a.u);
}

const tg_rule tg_rule_apollo = {
    .states = 3,
    .keys = "rank scale update_proj_gap min_entries",
    .state = {{.name = "m"}, {.name = "v", .is_square = true}, {.name = "norm", .is_single = true}},
    .values = values,
    .work = work,
    .step_whole = step_whole};

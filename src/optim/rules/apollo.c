/* clang-format off */
/* APOLLO (Zhu et al. 2024): SGD whose columns are scaled as Adam on a random projection would.
 * A weight is a matrix G of its first dim (rows) and all others; P (rows, r) has random entries
 * with E|p|^2 = 1 / r and is drawn anew every update_proj_gap updates, from the seed.
 *     R = P^H G,  (m, v) and A = Adam's direction of R,  s_j = |A_j| / |R_j| of column j
 *     u_j = scale sqrt(rows / r) s_j G_j, with Adam's correction for t, and |u| at most 1.01 times
 *     that of the update before
 * With r = 1 (APOLLO-Mini) there is one s for all columns, |A| / |R|. */
/* clang-format on */
#include <math.h>
#include <string.h>

#include "base/minmax.h"
#include "base/threads.h"
#include "linalg/scratch.h"
#include "optim/rules/rules.h"

static const double GROWTH = 1.01;

static int64_t rank_of(const tg_optim_config *config, int64_t rows) {
    const double rank = config->projector.first.rank.value[0];
    const int64_t r = (int64_t)(rank < 1.0 ? rank * (double)rows : fmin(rank, (double)rows));
    return r > 1 ? r : 1;
}

typedef struct arrays {
    int64_t rows, columns, rank;
    void *u;             /* (rows, columns) the gradient, then the direction */
    void *p;             /* (rows, rank) */
    void *r;             /* (rank, columns) projected, then Adam's direction of it */
    double *old, *scale; /* (columns) squares of R_j; of A_j, then the factors of columns */
} arrays;

static arrays lay_out(const tg_whole *whole, tg_scratch *scratch) {
    const size_t size = tg_dtype_size(whole->dtype);
    const int64_t rows = whole->shape.dim[0], columns = tg_shape_numel(&whole->shape) / rows;
    arrays a = {.rows = rows, .columns = columns, .rank = rank_of(whole->config, rows)};
    a.u = tg_scratch_take(scratch, (size_t)(rows * columns) * size);
    a.p = tg_scratch_take(scratch, (size_t)(rows * a.rank) * size);
    a.r = tg_scratch_take(scratch, (size_t)(a.rank * columns) * size);
    a.old = tg_scratch_take(scratch, (size_t)columns * sizeof(double));
    a.scale = tg_scratch_take(scratch, (size_t)columns * sizeof(double));
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

static void draw(const tg_whole *whole, const tg_adam *op, const arrays *a) {
    const int64_t gap = (int64_t)whole->config->update_proj_gap;
    const tg_rng rng = {
        .seed = op->rounding->seed, .purpose = TG_RNG_RANGE, .step = (uint32_t)(whole->step / gap)};
    const bool is_complex = tg_dtype_is_complex(whole->dtype);
    const double deviation = 1.0 / sqrt((double)(is_complex ? 2 * a->rank : a->rank));
    for (int64_t i = 0; i < a->rows * a->rank; i++) {
        const uint64_t at = 2 * (uint64_t)i;
        tg_store(whole->dtype, a->p, i,
                 (tg_scalar){deviation * tg_rng_normal(&rng, at),
                             is_complex ? deviation * tg_rng_normal(&rng, at + 1) : 0.0});
    }
}

enum { BLOCK = 256 /* columns worked on together */ };

/* Some columns of x (rows, columns) times their factors, where there are some, and the squares of
 * what they are then. */
static void scale_block(tg_dtype dtype, int64_t rows, int64_t columns, tg_range some,
                        const double *factor, void *x, double *squares) {
    const int64_t width = tg_dtype_is_complex(dtype) ? 2 : 1, n = some.end - some.begin;
    double value[2 * BLOCK], sum[BLOCK] = {0};
    for (int64_t i = 0; i < rows; i++) {
        const int64_t at = width * (i * columns + some.begin);
        tg_load_reals(dtype, x, at, width * n, value);
        for (int64_t j = 0; j < width * n; j++) {
            const int64_t column = width == 2 ? j / 2 : j;
            value[j] *= factor ? factor[some.begin + column] : 1.0;
            sum[column] += value[j] * value[j];
        }
        if (factor) {
            tg_store_reals(dtype, x, at, width * n, value);
        }
    }
    memcpy(squares + some.begin, sum, (size_t)n * sizeof *sum);
}

/* All columns. A column is one thread's, which adds its rows in order: the same bits for any number
 * of threads. */
static void scale_columns(const tg_backend *be, tg_dtype dtype, int64_t rows, int64_t columns,
                          const double *factor, void *x, double *squares) {
    enum { THREAD_GRAIN = 1 << 12 };
    const int threads = (int)tg_max(tg_min(be->threads, rows * columns / THREAD_GRAIN), 1);
#pragma omp parallel for num_threads(threads) schedule(static)
    for (int t = 0; t < threads; t++) {
        const tg_range mine = tg_partition(columns, BLOCK, threads, t);
        for (int64_t j = mine.begin; j < mine.end; j += BLOCK) {
            const tg_range some = {j, tg_min(j + BLOCK, mine.end)};
            scale_block(dtype, rows, columns, some, factor, x, squares);
        }
    }
}

/* r = P^H G, then Adam's direction of it; squares of the columns of both. */
static tg_status project_and_move(tg_backend *be, const tg_whole *whole, const tg_adam *op,
                                  const arrays *a) {
    const tg_gemm project = {.dtype = whole->dtype,
                             .op_a = TG_OP_H,
                             .m = a->rank,
                             .n = a->columns,
                             .k = a->rows,
                             .alpha = {1.0, 0.0},
                             .a = a->p,
                             .lda = a->rank,
                             .b = a->u,
                             .ldb = a->columns,
                             .c = a->r,
                             .ldc = a->columns,
                             .batch = 1};
    tg_adam adam = *op;
    tg_status status = TG_OK;
    TG_TRY(be->ops->gemm(be, &project));
    scale_columns(be, whole->dtype, a->rank, a->columns, NULL, a->r, a->old);
    adam.n = a->rank * a->columns;
    adam.grad = adam.direction = a->r;
    adam.grad_store = TG_STORE_FULL;
    adam.scale = 1.0;
    adam.weight = NULL;
    TG_TRY(be->ops->adam(be, &adam));
    scale_columns(be, whole->dtype, a->rank, a->columns, NULL, a->r, a->scale);
fail:
    return status;
}

static double ratio(double squares, double of) {
    return of > 0.0 ? sqrt(squares / of) : 0.0;
}

/* scale: from the squares of directions to the factors of columns. */
static void find_factors(const tg_whole *whole, const arrays *a) {
    const tg_optim_config *config = whole->config;
    const double factor = config->projector.first.scale * sqrt((double)a->rows / (double)a->rank) *
                          tg_rule_correction(&tg_rule_adam, config, whole->t);
    double old = 0.0, new = 0.0;
    for (int64_t j = 0; j < a->columns; j++) {
        old += a->old[j];
        new += a->scale[j];
    }
    for (int64_t j = 0; j < a->columns; j++) {
        a->scale[j] = factor * (a->rank == 1 ? ratio(new, old) : ratio(a->scale[j], a->old[j]));
    }
}

/* u_j = scale_j g_j; its norm. */
static double scale_gradient(const tg_backend *be, const tg_whole *whole, const arrays *a) {
    double sum = 0.0;
    scale_columns(be, whole->dtype, a->rows, a->columns, a->scale, a->u, a->old);
    for (int64_t j = 0; j < a->columns; j++) {
        sum += a->old[j];
    }
    return sqrt(sum);
}

/* The factor that lets u grow by 1 % at most; remembers its norm. */
static double limit(const tg_whole *whole, double norm) {
    const tg_dtype real = tg_dtype_real(whole->dtype);
    const double before = tg_load(real, whole->single, 0).re;
    const double most = before > 0.0 && norm > GROWTH * before ? GROWTH * before : norm;
    tg_store(real, whole->single, 0, (tg_scalar){most, 0.0});
    return norm > 0.0 ? most / norm : 1.0;
}

static tg_status step_whole(tg_backend *be, const tg_whole *whole, const tg_adam *op) {
    tg_scratch scratch = {.block = whole->work};
    const arrays a = lay_out(whole, &scratch);
    tg_adam use = *op;
    tg_status status = TG_OK;
    TG_TRY(tg_rule_read_gradient(be, op, a.u));
    draw(whole, op, &a);
    TG_TRY(project_and_move(be, whole, op, &a));
    find_factors(whole, &a);
    use.alpha *= limit(whole, scale_gradient(be, whole, &a));
    TG_TRY(tg_rule_use_direction(be, &use, a.u));
fail:
    return status;
}

const tg_rule tg_rule_apollo = {
    .states = 3,
    .state = {{.name = "m"}, {.name = "v", .is_square = true}, {.name = "norm", .is_single = true}},
    .values = values,
    .work = work,
    .step_whole = step_whole};

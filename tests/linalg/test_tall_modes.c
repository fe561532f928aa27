/* Modes longer than all others together, whose factors and spectra are found by way of the short
 * side: against the Gram matrix of the long one, by its definition. In the first, the middle and
 * the last place, real and complex, masked and stored in 16 bits, with ranks within and beyond what
 * the short side has; and what they take of memory is what was planned. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "backend/nn.h"
#include "base/rng.h"
#include "linalg/tucker.h"
#include "support/network.h"

static const char *const backends[] = {"ref", "cpu"};

enum { ROWS = 40, COLUMNS = 12, NUMEL = ROWS * COLUMNS, GUARD = 256 };

/* Where the long mode is among (3, 4), or alone. */
static const struct {
    int ndim, mode;
    int64_t dim[3];
} shapes[] = {{3, 0, {ROWS, 3, 4}}, {3, 1, {3, ROWS, 4}}, {3, 2, {3, 4, ROWS}},
              {2, 0, {ROWS, 12}},   {2, 1, {12, ROWS}},   {1, 0, {ROWS}}};

typedef struct scene {
    tg_context *ctx;
    tg_backend *be;
    tg_tucker_plan plan;
    int mode;
    int64_t numel;
    tg_scalar value[NUMEL]; /* the tensor, masked */
    char x[NUMEL * 2 * sizeof(double)];
    bool has_mask;
    tg_bitmap mask;
    uint64_t words[(NUMEL + 63) / 64];
    uint32_t ranks[NUMEL / 512 + 1];
    double tolerance;
} scene;

/* Small whole numbers, which every format holds; the entries of the mask are large. */
static void make_scene(scene *s, const char *backend, int shape, tg_dtype dtype, tg_storage store,
                       bool has_mask) {
    *s = (scene){.ctx = net_context(backend, 2), .mode = shapes[shape].mode, .numel = 1};
    net_ok(s->ctx, tg_backend_get(s->ctx, &s->be));
    s->plan = (tg_tucker_plan){.dtype = dtype, .store = store, .ndim = shapes[shape].ndim};
    for (int d = 0; d < s->plan.ndim; d++) {
        s->plan.dim[d] = s->plan.rank[d] = shapes[shape].dim[d];
        s->plan.is_active[d] = true;
        s->numel *= s->plan.dim[d];
    }
    s->tolerance = tg_dtype_real(dtype) == TG_F64 ? 1e-11 : 2e-5;
    s->has_mask = has_mask;
    s->mask = (tg_bitmap){.n = s->numel, .words = s->words, .ranks = s->ranks};
    const tg_rng rng = {.seed = 5, .purpose = TG_RNG_TEST};
    for (int64_t i = 0; i < s->numel; i++) {
        const bool masked = has_mask && i % 7 == 3;
        tg_scalar v = {floor(8.0 * tg_rng_normal(&rng, (uint64_t)(2 * i))), 0.0};
        v.im = tg_dtype_is_complex(dtype) ? floor(8.0 * tg_rng_normal(&rng, (uint64_t)(2 * i + 1)))
                                          : 0.0;
        tg_store(tg_stored(dtype, store), s->x, i, masked ? (tg_scalar){1000.0, 0.0} : v);
        s->value[i] = masked ? (tg_scalar){0} : v;
        s->words[i / 64] |= (uint64_t)masked << (i % 64);
    }
    net_ok(s->ctx, tg_bitmap_rank(s->be, &s->mask));
}

/* Entry (row, column) of the unfolding. */
static tg_scalar entry(const scene *s, int64_t row, int64_t column) {
    int64_t right = 1;
    for (int d = s->mode + 1; d < s->plan.ndim; d++) {
        right *= s->plan.dim[d];
    }
    return s->value[(column / right * ROWS + row) * right + column % right];
}

/* y (ROWS) = A A^H u. */
static void multiply_gram(const scene *s, const tg_scalar *u, tg_scalar *y) {
    memset(y, 0, ROWS * sizeof *y);
    for (int64_t c = 0; c < s->numel / ROWS; c++) {
        tg_scalar along = {0};
        for (int64_t i = 0; i < ROWS; i++) {
            const tg_scalar a = entry(s, i, c);
            along.re += a.re * u[i].re + a.im * u[i].im;
            along.im += a.re * u[i].im - a.im * u[i].re;
        }
        for (int64_t i = 0; i < ROWS; i++) {
            const tg_scalar a = entry(s, i, c);
            y[i].re += a.re * along.re - a.im * along.im;
            y[i].im += a.re * along.im + a.im * along.re;
        }
    }
}

static tg_scalar inner(const tg_scalar *x, const tg_scalar *y) {
    tg_scalar sum = {0};
    for (int64_t i = 0; i < ROWS; i++) {
        sum.re += x[i].re * y[i].re + x[i].im * y[i].im;
        sum.im += x[i].re * y[i].im - x[i].im * y[i].re;
    }
    return sum;
}

/* Eigenvalues of the long mode, checked by the traces of the Gram matrix and of its square. */
static void find_spectrum(const scene *s, double *values) {
    double all[64], squares = 0.0, found[2] = {0.0, 0.0}, energy = 0.0;
    void *scratch =
        s->be->ops->alloc(s->be, TG_MEM_WORKSPACE, tg_tucker_spectrum_scratch(&s->plan));
    net_ok(s->ctx,
           tg_tucker_spectrum(s->be, &s->plan, s->x, s->has_mask ? &s->mask : NULL, all, scratch));
    s->be->ops->release(s->be, scratch);
    const double *of_mode = all;
    for (int d = 0; d < s->mode; d++) {
        of_mode += s->plan.dim[d];
    }
    for (int64_t i = 0; i < s->numel; i++) {
        energy += s->value[i].re * s->value[i].re + s->value[i].im * s->value[i].im;
    }
    for (int64_t i = 0; i < ROWS; i++) {
        tg_scalar unit[ROWS] = {{0}}, row[ROWS];
        unit[i].re = 1.0;
        multiply_gram(s, unit, row);
        squares += inner(row, row).re;
        values[i] = of_mode[i];
        found[0] += values[i];
        found[1] += values[i] * values[i];
        assert_true(i == 0 || values[i] <= values[i - 1]);
    }
    assert_true(fabs(found[0] - energy) <= 1e-12 * energy);
    assert_true(fabs(found[1] - squares) <= 1e-12 * squares);
    assert_true(values[s->numel / ROWS] == 0.0);
}

/* The factor of the long mode by a plan; nothing is written beyond the scratch, and the ledger sees
 * what was planned. */
static void find_factor(scene *s, tg_scalar u[][ROWS]) {
    const size_t bytes = tg_tucker_scratch(s->be, &s->plan), number = tg_dtype_size(s->plan.dtype);
    char *scratch = s->be->ops->alloc(s->be, TG_MEM_WORKSPACE, bytes + GUARD);
    void *factor[TG_MAX_NDIM] = {NULL};
    for (int d = 0; d < s->plan.ndim; d++) {
        factor[d] = calloc((size_t)(s->plan.dim[d] * s->plan.rank[d]), number);
    }
    memset(scratch, 0x7f, bytes + GUARD);
    const tg_rng rng = {.seed = 1, .purpose = TG_RNG_RANGE};
    const size_t held = tg_context_memory(s->ctx, TG_HOST).current[TG_MEM_WORKSPACE];
    tg_context_memory_reset_peak(s->ctx);
    net_ok(s->ctx, tg_tucker_factors(s->be, &s->plan, s->x, s->has_mask ? &s->mask : NULL, &rng,
                                     false, factor, scratch));
    const size_t need = tg_tucker_scratch_need(s->be, &s->plan).place;
    assert_int_equal(tg_context_memory(s->ctx, TG_HOST).peak[TG_MEM_WORKSPACE], held + need);
    for (int i = 0; i < GUARD; i++) {
        assert_int_equal(scratch[bytes + (size_t)i], 0x7f);
    }
    for (int64_t i = 0; i < ROWS * s->plan.rank[s->mode]; i++) {
        const int64_t rank = s->plan.rank[s->mode];
        u[i % rank][i / rank] = tg_load(s->plan.dtype, factor[s->mode], i);
    }
    for (int d = 0; d < s->plan.ndim; d++) {
        free(factor[d]);
    }
    s->be->ops->release(s->be, scratch);
}

/* U^H U = I, and the energy in its span is that of the leading eigenvalues (NULL: whatever). */
static void check_factor(const scene *s, tg_scalar u[][ROWS], int64_t rank, const double *values) {
    double energy = 0.0, expected = 0.0;
    for (int64_t j = 0; j < rank; j++) {
        tg_scalar y[ROWS];
        multiply_gram(s, u[j], y);
        energy += inner(u[j], y).re;
        expected += values ? values[j] : 0.0;
        for (int64_t c = 0; c <= j; c++) {
            const tg_scalar dot = inner(u[c], u[j]);
            assert_true(fabs(dot.re - (c == j ? 1.0 : 0.0)) <= s->tolerance);
            assert_true(fabs(dot.im) <= s->tolerance);
        }
    }
    if (values && !(fabs(energy - expected) <= s->tolerance * expected)) {
        fail_msg("mode %d of %d, rank %d: energy %.15g, expected %.15g", s->mode, s->plan.ndim,
                 (int)rank, energy, expected);
    }
}

static void check_scene(scene *s) {
    static const int64_t ranks[] = {1, 5, 12, 15};
    static tg_scalar u[ROWS][ROWS];
    double values[ROWS];
    find_spectrum(s, values);
    for (int i = 0; i < 4 * 3; i++) {
        s->plan.rank[s->mode] = ranks[i / 3];
        s->plan.sweeps = i % 3 == 1;
        s->plan.svd_type = i % 3 == 2 ? TG_SVD_RANDOMIZED : TG_SVD_TRUNCATED;
        find_factor(s, u);
        /* a sketch finds the best vectors only where it finds all */
        const bool is_best = i % 3 < 2 || s->plan.rank[s->mode] >= COLUMNS;
        check_factor(s, u, s->plan.rank[s->mode], is_best ? values : NULL);
    }
}

TEST(test_tall_modes) {
    static const struct {
        tg_dtype dtype;
        tg_storage store;
    } formats[] = {{TG_F64, TG_STORE_FULL},
                   {TG_C128, TG_STORE_FULL},
                   {TG_F32, TG_STORE_BF16},
                   {TG_C64, TG_STORE_F16}};
    for (int i = 0; i < 2 * 6 * 4 * 2; i++) {
        scene s;
        make_scene(&s, backends[i % 2], i / 2 % 6, formats[i / 12 % 4].dtype,
                   formats[i / 12 % 4].store, i / 48);
        check_scene(&s);
        tg_context_destroy(&s.ctx);
    }
}

/* Ranks of all modes at once, by sweeps: the tensor has them, so nothing is lost. */
TEST(test_sweeps) {
    for (int i = 0; i < 2 * 3; i++) {
        tg_context *ctx = net_context(backends[i % 2], 2);
        const tg_shape shape = tg_shape_of(3, shapes[i / 2].dim);
        const int mode = shapes[i / 2].mode;
        int64_t ranks[3] = {2, 2, 2};
        double x[NUMEL];
        for (int64_t at = 0; at < NUMEL; at++) {
            const int64_t index[3] = {at / (shape.dim[1] * shape.dim[2]),
                                      at / shape.dim[2] % shape.dim[1], at % shape.dim[2]};
            double term[2] = {1.0, 1.0};
            for (int d = 0; d < 3; d++) {
                term[0] *= cos((double)(index[d] + d));
                term[1] *= sin(2.0 * (double)index[d] + d);
            }
            x[at] = term[0] + 0.3 * term[1];
        }
        for (ranks[mode] = 2; ranks[mode] < 8; ranks[mode] += 5) { /* 7: beyond 2 x 2 */
            tg_tucker_result result;
            tg_tensor t;
            net_ok(ctx, tg_tensor_wrap(ctx, TG_F64, &shape, x, &t));
            net_ok(ctx, tg_tucker(ctx, &t, ranks, 2, TG_SVD_TRUNCATED, 0, &result));
            assert_true(result.relative_error <= 1e-12);
            tg_tucker_result_destroy(&result);
        }
        tg_context_destroy(&ctx);
    }
}

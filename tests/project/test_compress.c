/* Compressed gradients of every backend: gathering and projecting, expanding, sampling, and the
 * dense form of a factored gradient.
 *
 * Every subset of modes with factors is run over shapes with ones, primes and sizes beyond the
 * backends' blocks, with outputs that are poisoned or accumulated to. ref itself is checked by
 * algebra: for orthonormal factors U, P(P^H c) = c, <P G, c> = <G, P^H c>, sampling is expanding
 * read off, and P is linear. */
#define _DEFAULT_SOURCE /* MAP_ANONYMOUS */
#include <math.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "backend/cpu/cpu.h"
#include "base/rng_math.h"
#include "support/runner.h"

typedef struct sizes {
    int ndim;
    int64_t dim[5], rank[5]; /* rank: of the modes that have a factor */
} sizes;

static const sizes shapes[] = {
    {1, {1}, {1}},
    {1, {7}, {3}},
    {1, {521}, {5}},
    {2, {1, 5}, {1, 2}},
    {2, {5, 7}, {3, 7}},
    {2, {7, 33}, {5, 25}},
    {2, {530, 3}, {7, 2}},
    {2, {3, 530}, {2, 7}},
    {3, {1, 1, 1}, {1, 1, 1}},
    {3, {7, 5, 3}, {3, 4, 2}},
    {3, {3, 1, 65}, {2, 1, 33}},
    {3, {11, 33, 9}, {7, 9, 5}},
    {4, {3, 5, 7, 3}, {2, 3, 5, 1}},
    {4, {1, 7, 5, 11}, {1, 4, 5, 7}},
    {4, {7, 5, 13, 7}, {5, 3, 7, 5}},
    {5, {3, 3, 7, 3, 11}, {2, 2, 3, 2, 5}},
    {5, {3, 1, 2, 1, 5}, {2, 1, 2, 1, 3}},
};

/* Larger than the panels that the backends cut tensors into. */
static const sizes large_shapes[] = {
    {2, {150, 270}, {2, 3}},
    {2, {270, 150}, {3, 2}},
    {3, {2, 150, 270}, {2, 2, 2}},
};

/* One call; everything but the shape varies from call to call. */
typedef struct trial {
    tg_multimode modes;
    int64_t numel, cells;   /* of the tensor and the core */
    double growth;          /* of rounding errors */
    bool masked, nothing;   /* nothing: no index set at all */
    bool gathers, projects; /* outputs of a compression */
    double beta;
    int64_t batch; /* 0: dense */
} trial;

static int64_t product(const int64_t *size, int begin, int end) {
    int64_t numel = 1;
    for (int d = begin; d < end; d++) {
        numel *= size[d];
    }
    return numel;
}

/* The modes of a shape; bit d of `subset`: mode d has a factor, with random entries. */
static trial trial_of(t_side *s, const sizes *shape, unsigned subset) {
    trial t = {.modes = {.dtype = s->dtype, .ndim = shape->ndim}, .growth = 4.0};
    for (int d = 0; d < shape->ndim; d++) {
        const bool has_factor = subset >> d & 1;
        t.modes.dim[d] = shape->dim[d];
        t.modes.rank[d] = has_factor ? shape->rank[d] : shape->dim[d];
        if (has_factor) {
            t.modes.factor[d] = t_random(s, s->dtype, shape->dim[d] * shape->rank[d]);
            t.growth += sqrt((double)shape->dim[d]);
        }
    }
    t.numel = product(t.modes.dim, 0, t.modes.ndim);
    t.cells = product(t.modes.rank, 0, t.modes.ndim);
    return t;
}

/* Choice number `variant` of all that a call may be, every combination within 72 numbers. */
static void vary(trial *t, int variant) {
    static const int64_t batches[] = {0, 1, 3};
    t->masked = variant % 2;
    t->nothing = variant / 2 % 4 == 3;
    t->gathers = variant / 2 % 4 != 1;
    t->projects = variant / 2 % 4 != 2;
    t->beta = variant / 8 % 3 == 0 ? 0.0 : variant / 8 % 3 == 1 ? 1.0 : -0.75;
    t->batch = t->modes.ndim >= 2 ? batches[variant / 24 % 3] : 0;
}

static void note(t_side *s, const char *what, const trial *t) {
    char text[120] = "";
    size_t used = 0;
    for (int d = 0; d < t->modes.ndim; d++) {
        used += (size_t)snprintf(text + used, sizeof text - used, "%s%lld", d ? " " : "",
                                 (long long)t->modes.dim[d]);
        if (t->modes.factor[d]) {
            used += (size_t)snprintf(text + used, sizeof text - used, ">%lld",
                                     (long long)t->modes.rank[d]);
        }
    }
    t_note(s, "%s %s%s%s, beta %g, batch %lld", what, text, t->masked ? ", masked" : "",
           t->nothing ? ", no index set" : "", t->beta, (long long)t->batch);
}

/* About every third or every tenth entry, all or none, scattered by a multiplicative hash. */
static tg_bitmap random_set(t_side *s, int64_t n) {
    static const double parts[] = {0.3, 0.1, 0.3, 0.1, 0.3, 0.1, 0.0, 1.0};
    const double draw = 0.5 + 0.5 * tg_load(TG_F64, t_host_random(s, TG_F64, 1), 0).re;
    const double limit = parts[(int)(8.0 * draw)] * 4294967296.0;
    const uint64_t seed = (uint64_t)(draw * 1e15);
    const int64_t words = tg_bitmap_words(n);
    uint64_t *bits = t_host_alloc(s, TG_U64, words);
    memset(bits, 0, (size_t)words * sizeof *bits);
    for (int64_t i = 0; i < n; i++) {
        const uint64_t hash = ((uint64_t)i + seed) * UINT64_C(0x9E3779B97F4A7C15);
        bits[i / 64] |= (uint64_t)((double)(hash >> 32) < limit) << i % 64;
    }
    return t_bitmap_input(s, n, bits);
}

/* An output that is poisoned, or that a call adds to. */
static void *target(t_side *s, int64_t n, double beta) {
    return beta == 0.0 ? t_output(s, s->dtype, n)
                       : t_inout(s, s->dtype, n, t_host_random(s, s->dtype, n));
}

static void *workspace(t_side *s, const tg_multimode *modes) {
    return t_workspace(s,
                       tg_workspace_bytes(s->be, (tg_query){.compress = modes, .factored = true}));
}

static tg_grad_source random_source(t_side *s, const trial *t) {
    const int64_t *dim = t->modes.dim;
    if (t->batch == 0) {
        return (tg_grad_source){.dense = t_random(s, s->dtype, t->numel)};
    }
    const int64_t frequencies = product(dim, 2, t->modes.ndim);
    return (tg_grad_source){.x = t_random(s, s->dtype, t->batch * dim[0] * frequencies),
                            .dy = t_random(s, s->dtype, t->batch * dim[1] * frequencies),
                            .batch = t->batch};
}

static void run_compress(t_side *s, const trial *t) {
    note(s, "compress", t);
    const tg_bitmap set = random_set(s, t->numel);
    tg_compress op = {.modes = t->modes,
                      .source = random_source(s, t),
                      .bitmap = t->nothing ? NULL : &set,
                      .masked = t->masked,
                      .scale = 0.6,
                      .beta = t->beta};
    op.values = t->gathers && !t->nothing ? target(s, set.count, t->beta) : NULL;
    op.core = t->projects ? target(s, t->cells, t->beta) : NULL;
    op.workspace = workspace(s, &t->modes);
    t_ok(s, s->ops->compress(s->be, &op));
    if (op.values) {
        t_keep_close(s, op.values, 4.0);
    }
    if (op.core) {
        t_keep_close(s, op.core, t->growth);
    }
}

static void run_expand(t_side *s, const trial *t) {
    note(s, "expand", t);
    const tg_bitmap set = random_set(s, t->numel);
    tg_expand op = {.modes = t->modes,
                    .bitmap = t->nothing ? NULL : &set,
                    .lambda = 1.5,
                    .alpha = -0.7,
                    .beta = t->beta,
                    .out = target(s, t->numel, t->beta)};
    op.values = t->gathers && !t->nothing ? t_random(s, s->dtype, set.count) : NULL;
    op.core = t->projects ? t_random(s, s->dtype, t->cells) : NULL;
    op.workspace = workspace(s, &t->modes);
    t_ok(s, s->ops->expand(s->be, &op));
    t_keep_close(s, op.out, t->growth);
}

static const tg_rng rounding = {.seed = 78, .purpose = TG_RNG_ROUNDING, .step = 3};

/* An array of any dtype that is poisoned or has numbers in it, as beta asks for. */
static void *stored_target(t_side *s, tg_dtype dtype, int64_t n, double beta) {
    return beta == 0.0 ? t_output(s, dtype, n) : t_inout(s, dtype, n, t_host_random(s, dtype, n));
}

/* Expanding to 16 bits, with rates that are read late and a guard. The trial's mask picks
 * whether the rates are late, its batch the guard: none, open or closed. */
static void expand_stored(t_side *s, const trial *t, tg_storage store, bool is_rounded) {
    const tg_dtype dtype = tg_stored(s->dtype, store);
    const bool late = t->masked, closed = t->batch == 3;
    const tg_bitmap set = random_set(s, t->numel);
    const tg_rates rates = {.alpha = -0.7, .beta = t->beta, .scale = 1e3, .step = rounding.step};
    const tg_rng other = {rounding.seed, rounding.purpose, rounding.step + (late ? 1u : 0u)};
    const uint32_t count = closed ? 2 : 0;
    tg_expand op = {.modes = t->modes,
                    .bitmap = t->nothing ? NULL : &set,
                    .lambda = 1.5,
                    .alpha = late ? 5.0 : -0.7,
                    .beta = late ? 2.0 : t->beta,
                    .out = stored_target(s, dtype, t->numel, t->beta),
                    .out_store = store,
                    .rounding = is_rounded ? &other : NULL,
                    .rates = late ? t_input(s, TG_F64, sizeof rates / 8, &rates) : NULL,
                    .guard = t->batch > 0 ? t_input(s, TG_U32, 1, &count) : NULL};
    op.values = t->gathers && !t->nothing ? t_random(s, s->dtype, set.count) : NULL;
    op.core = t->projects ? t_random(s, s->dtype, t->cells) : NULL;
    op.workspace = workspace(s, &t->modes);
    const void *before = t_download(s, op.out);
    t_ok(s, s->ops->expand(s->be, &op));
    if (closed) {
        t_true(s, t_first_difference(dtype, t->numel, t_download(s, op.out), before) == -1);
    } else { /* of 16-bit numbers a neighbour may be taken, twice as far away where rounding is
                random */
        t_keep_close(s, op.out, store == TG_STORE_FULL ? t->growth : 2.0);
    }
}

static void run_stored(t_side *s, const trial *t) {
    static const tg_storage stores[] = {TG_STORE_BF16, TG_STORE_BF16, TG_STORE_F16, TG_STORE_FULL,
                                        TG_STORE_F16};
    const bool has_halves = s->dtype == TG_F32 || s->dtype == TG_C64;
    note(s, "stored", t);
    const int number = has_halves ? (int)(s->draws % 5) : 3;
    expand_stored(s, t, stores[number], number == 1 || number == 4);
}

/* Values of 2^-12 added to 16-bit numbers are exact in f32, so the rounded bits are those of the
 * definition on every backend. */
ROW(rounding_to_the_bit, "expand, rounding", 1 << TG_F32 | 1 << TG_C64) {
    const bool complex = tg_dtype_is_complex(s->dtype);
    for (int i = 0; i < 2 * T_COUNT(shapes); i++) {
        const trial t = trial_of(s, &shapes[i / 2], 0);
        const tg_storage store = i % 2 ? TG_STORE_F16 : TG_STORE_BF16;
        const tg_dtype half = tg_stored(s->dtype, store);
        note(s, "rounding", &t);
        const tg_bitmap set = random_set(s, t.numel);
        void *const small = t_host_alloc(s, s->dtype, set.count);
        for (int64_t j = 0; j < set.count; j++) {
            tg_store(s->dtype, small, j, (tg_scalar){0x1p-12, -0x1p-13});
        }
        const tg_rates rates = {1.0, 1.0, 1.0, rounding.step};
        const tg_rng other = {rounding.seed, rounding.purpose, rounding.step + 1};
        const void *old = t_host_random(s, half, t.numel);
        const tg_expand op = {.modes = t.modes,
                              .bitmap = &set,
                              .values = t_input(s, s->dtype, set.count, small),
                              .lambda = 1.0,
                              .alpha = 1.0,
                              .beta = 1.0,
                              .out = t_inout(s, half, t.numel, old),
                              .workspace = workspace(s, &t.modes),
                              .out_store = store,
                              .rounding = i % 4 > 1 ? &other : &rounding,
                              .rates =
                                  i % 4 > 1 ? t_input(s, TG_F64, sizeof rates / 8, &rates) : NULL};
        t_ok(s, s->ops->expand(s->be, &op));
        t_keep_same(s, op.out);
        const uint64_t *words = t_download(s, set.words);
        const uint16_t *found = t_download(s, op.out);
        for (int64_t j = 0; j < (complex ? 2 : 1) * t.numel; j++) {
            const double step = complex && j % 2 ? -0x1p-13 : 0x1p-12;
            const double added = t_bit(words, complex ? j / 2 : j) ? step : 0.0;
            const float sum = (float)(tg_load(tg_dtype_real(half), old, j).re + added);
            const uint32_t random = tg_rounding_bits(&rounding, (uint64_t)j);
            t_true(s, found[j] == (store == TG_STORE_F16 ? tg_round_to_f16(sum, random)
                                                         : tg_round_to_bf16(sum, random)));
        }
        t_release(s);
    }
}

static void run_sample(t_side *s, const trial *t) {
    note(s, "sample", t);
    const tg_bitmap set = random_set(s, t->numel);
    const tg_sample op = {.modes = t->modes,
                          .bitmap = &set,
                          .core = t_random(s, s->dtype, t->cells),
                          .alpha = -0.7,
                          .values = target(s, set.count, 1.0),
                          .workspace = workspace(s, &t->modes)};
    t_ok(s, s->ops->sample(s->be, &op));
    t_keep_close(s, op.values, t->growth);
}

/* Some variants of a call on every subset of modes. */
static void run_shapes(t_side *s, const sizes *list, int count, int variants,
                       void (*run)(t_side *s, const trial *t)) {
    int variant = 0;
    for (int i = 0; i < count; i++) {
        for (unsigned subset = 0; subset < 1u << list[i].ndim; subset++) {
            for (int v = 0; v < variants;
                 v++, variant += 5) { /* 5 has no factor in common with 72 */
                if (t_leaves_out(s)) {
                    continue;
                }
                trial t = trial_of(s, &list[i], subset);
                vary(&t, variant);
                run(s, &t);
                t_release(s);
            }
        }
    }
}

ROW(compress_shapes, "compress", T_WIDE) {
    run_shapes(s, shapes, T_COUNT(shapes), 2, run_compress);
}
ROW(compress_large, "compress large", 1 << TG_F32 | 1 << TG_C64) {
    run_shapes(s, large_shapes, T_COUNT(large_shapes), 1, run_compress);
}
ROW(expand_shapes, "expand", T_WIDE) {
    run_shapes(s, shapes, T_COUNT(shapes), 2, run_expand);
}
ROW(expand_large, "expand large", 1 << TG_F32 | 1 << TG_C64) {
    run_shapes(s, large_shapes, T_COUNT(large_shapes), 1, run_expand);
}
ROW(stored_shapes, "expand, stored", T_WIDE) {
    run_shapes(s, shapes, T_COUNT(shapes), 2, run_stored);
}
ROW(stored_large, "expand, stored, large", 1 << TG_F32 | 1 << TG_C64) {
    run_shapes(s, large_shapes, T_COUNT(large_shapes), 1, run_stored);
}
ROW(sample_shapes, "sample", T_WIDE) {
    run_shapes(s, shapes, T_COUNT(shapes), 1, run_sample);
}
ROW(sample_large, "sample large", 1 << TG_F32 | 1 << TG_C64) {
    run_shapes(s, large_shapes, T_COUNT(large_shapes), 1, run_sample);
}

/* The kernels that the cpu backend has for other CPUs. */
ROW(plain_kernels, "plain kernels", 1 << TG_F32 | 1 << TG_C64) {
    cpu_state *state = strcmp(s->ops->name, "cpu") == 0 ? cpu_state_of(s->be) : NULL;
    const cpu_kernels *chosen = state ? state->kernels : NULL;
    if (state) {
        state->kernels = &cpu_kernels_plain;
    }
    run_shapes(s, shapes, T_COUNT(shapes), 1, run_compress);
    run_shapes(s, shapes, T_COUNT(shapes), 1, run_expand);
    if (state) {
        state->kernels = chosen;
    }
}

/* What is masked is 0 in the projection, also where G is not finite. */
ROW(masked_is_dropped, "masked is dropped", T_WIDE) {
    trial t = trial_of(s, &shapes[T_COUNT(shapes) - 2], 0x1f);
    const int64_t words = tg_bitmap_words(t.numel);
    uint64_t *bits = t_host_alloc(s, TG_U64, words);
    memset(bits, 0, (size_t)words * sizeof *bits);
    void *g = t_host_random(s, s->dtype, t.numel);
    for (int64_t i = 0; i < t.numel; i += 5) {
        bits[i / 64] |= UINT64_C(1) << i % 64;
        tg_store(s->dtype, g, i, (tg_scalar){i % 2 ? (double)INFINITY : (double)NAN, 0.0});
    }
    const tg_bitmap set = t_bitmap_input(s, t.numel, bits);
    const tg_compress op = {.modes = t.modes,
                            .source = {.dense = t_input(s, s->dtype, t.numel, g)},
                            .bitmap = &set,
                            .masked = true,
                            .scale = 1.0,
                            .core = t_output(s, s->dtype, t.cells),
                            .workspace = workspace(s, &t.modes)};
    t_ok(s, s->ops->compress(s->be, &op));
    t_keep_close(s, op.core, t.growth);
}

ROW(grad_dense, "grad_dense", T_WIDE) {
    for (int i = 0; i < T_COUNT(shapes); i++) {
        for (int64_t batch = 1; batch <= 3; batch += 2) {
            trial t = trial_of(s, &shapes[i], 0);
            if (t.modes.ndim < 2) {
                continue;
            }
            t.batch = batch;
            note(s, "dense", &t);
            const tg_grad_source source = random_source(s, &t);
            void *out = t_output(s, s->dtype, t.numel);
            t_ok(s, s->ops->grad_dense(s->be, &t.modes, &source, 0.6, out));
            t_keep_close(s, out, 4.0);
            t_release(s);
        }
    }
}

/* ---- algebra ---- */

static tg_scalar conj_times(tg_scalar a, tg_scalar b) {
    return (tg_scalar){a.re * b.re + a.im * b.im, a.re * b.im - a.im * b.re};
}

/* sum conj(a) b of arrays of the backend. */
static tg_scalar inner(t_side *s, int64_t n, const void *a, const void *b) {
    const void *x = t_download(s, a), *y = t_download(s, b);
    tg_scalar sum = {0};
    for (int64_t i = 0; i < n; i++) {
        const tg_scalar term = conj_times(tg_load(s->dtype, x, i), tg_load(s->dtype, y, i));
        sum.re += term.re;
        sum.im += term.im;
    }
    return sum;
}

/* Makes the columns of u (dim, rank) orthonormal, one after the other and twice, in double. */
static void orthonormalize(int64_t dim, int64_t rank, void *u) {
    for (int64_t j = 0; j < rank; j++) {
        for (int64_t p = 0; p < 2 * j + 1; p++) { /* all before it, again, then itself */
            const int64_t other = p < 2 * j ? p % j : j;
            tg_scalar sum = {0};
            for (int64_t i = 0; i < dim; i++) {
                const tg_scalar t = conj_times(tg_load(TG_C128, u, i * rank + other),
                                               tg_load(TG_C128, u, i * rank + j));
                sum = (tg_scalar){sum.re + t.re, sum.im + t.im};
            }
            for (int64_t i = 0; i < dim; i++) {
                const tg_scalar x = tg_load(TG_C128, u, i * rank + j);
                const tg_scalar y = tg_load(TG_C128, u, i * rank + other);
                const double norm = sqrt(sum.re);
                tg_scalar z = {x.re - (sum.re * y.re - sum.im * y.im),
                               x.im - (sum.re * y.im + sum.im * y.re)};
                z = other == j ? (tg_scalar){x.re / norm, x.im / norm} : z;
                tg_store(TG_C128, u, i * rank + j, z);
            }
        }
    }
}

/* As trial_of with all factors, which are orthonormal. */
static trial orthonormal_trial(t_side *s, const sizes *shape) {
    trial t = trial_of(s, shape, 0);
    for (int d = 0; d < shape->ndim; d++) {
        const int64_t n = shape->dim[d] * shape->rank[d];
        const void *draws = t_host_random(s, s->dtype, n);
        void *wide = t_host_alloc(s, TG_C128, n), *u = t_host_alloc(s, s->dtype, n);
        for (int64_t i = 0; i < n; i++) {
            tg_store(TG_C128, wide, i, tg_load(s->dtype, draws, i));
        }
        orthonormalize(shape->dim[d], shape->rank[d], wide);
        for (int64_t i = 0; i < n; i++) {
            tg_store(s->dtype, u, i, tg_load(TG_C128, wide, i));
        }
        t.modes.rank[d] = shape->rank[d];
        t.modes.factor[d] = t_input(s, s->dtype, n, u);
        t.growth += 4.0 * sqrt((double)shape->dim[d]);
    }
    t.cells = product(t.modes.rank, 0, shape->ndim);
    return t;
}

static void *project(t_side *s, const trial *t, const void *g, double beta, void *core) {
    core = core ? core : t_output(s, s->dtype, t->cells);
    const tg_compress op = {.modes = t->modes,
                            .source = {.dense = g},
                            .scale = 1.0,
                            .beta = beta,
                            .core = core,
                            .workspace = workspace(s, &t->modes)};
    t_ok(s, s->ops->compress(s->be, &op));
    return core;
}

static void *back(t_side *s, const trial *t, const void *core) {
    const tg_expand op = {.modes = t->modes,
                          .core = core,
                          .alpha = 1.0,
                          .out = t_output(s, s->dtype, t->numel),
                          .workspace = workspace(s, &t->modes)};
    t_ok(s, s->ops->expand(s->be, &op));
    return op.out;
}

ROW(round_trip, "round trip", T_WIDE) {
    for (int i = 0; i < T_COUNT(shapes); i++) {
        const trial t = orthonormal_trial(s, &shapes[i]);
        note(s, "round trip", &t);
        const void *core = t_random(s, s->dtype, t.cells);
        const void *again = project(s, &t, back(s, &t, core), 0.0, NULL);
        const double error =
            t_relative_error(s->dtype, t.cells, t_download(s, again), t_download(s, core));
        t_below(s, error, t.growth * t_tolerance(s->dtype));
        t_release(s);
    }
}

ROW(adjoint, "adjoint", T_WIDE) {
    for (int i = 0; i < T_COUNT(shapes); i++) {
        const trial t = orthonormal_trial(s, &shapes[i]);
        note(s, "adjoint", &t);
        const void *g = t_random(s, s->dtype, t.numel), *core = t_random(s, s->dtype, t.cells);
        const tg_scalar a = inner(s, t.cells, project(s, &t, g, 0.0, NULL), core);
        const tg_scalar b = inner(s, t.numel, g, back(s, &t, core));
        const double size = sqrt(inner(s, t.numel, g, g).re * inner(s, t.cells, core, core).re);
        t_below(s, hypot(a.re - b.re, a.im - b.im) / size, t.growth * t_tolerance(s->dtype));
        t_release(s);
    }
}

/* P(a) + P(b), added up by beta, is P(a + b). */
ROW(linear, "linear", T_WIDE) {
    for (int i = 0; i < T_COUNT(shapes); i++) {
        const trial t = orthonormal_trial(s, &shapes[i]);
        note(s, "linear", &t);
        const void *a = t_host_random(s, s->dtype, t.numel);
        const void *b = t_host_random(s, s->dtype, t.numel);
        void *c = t_host_alloc(s, s->dtype, t.numel);
        for (int64_t e = 0; e < t.numel; e++) {
            const tg_scalar x = tg_load(s->dtype, a, e), y = tg_load(s->dtype, b, e);
            tg_store(s->dtype, c, e, (tg_scalar){x.re + y.re, x.im + y.im});
        }
        void *sum = project(s, &t, t_input(s, s->dtype, t.numel, a), 0.0, NULL);
        project(s, &t, t_input(s, s->dtype, t.numel, b), 1.0, sum);
        const void *whole = project(s, &t, t_input(s, s->dtype, t.numel, c), 0.0, NULL);
        const double error =
            t_relative_error(s->dtype, t.cells, t_download(s, sum), t_download(s, whole));
        t_below(s, error, t.growth * t_tolerance(s->dtype));
        t_release(s);
    }
}

/* Sampling equals entries of the expanded tensor. */
ROW(sample_is_gathered, "sample is gathered", T_WIDE) {
    for (int i = 0; i < T_COUNT(shapes); i++) {
        const trial t = orthonormal_trial(s, &shapes[i]);
        note(s, "read off", &t);
        const void *core = t_random(s, s->dtype, t.cells);
        const tg_bitmap set = random_set(s, t.numel);
        void *zeros = t_host_alloc(s, s->dtype, set.count);
        memset(zeros, 0, (size_t)set.count * tg_dtype_size(s->dtype));
        const tg_sample op = {.modes = t.modes,
                              .bitmap = &set,
                              .core = core,
                              .alpha = 1.0,
                              .values = t_inout(s, s->dtype, set.count, zeros),
                              .workspace = workspace(s, &t.modes)};
        t_ok(s, s->ops->sample(s->be, &op));
        const void *full = t_download(s, back(s, &t, core));
        const uint64_t *bits = t_download(s, set.words);
        void *expected = t_host_alloc(s, s->dtype, set.count);
        int64_t at = 0;
        for (int64_t e = 0; e < t.numel; e++) {
            if (t_bit(bits, e)) {
                tg_store(s->dtype, expected, at++, tg_load(s->dtype, full, e));
            }
        }
        const double error =
            t_relative_error(s->dtype, set.count, t_download(s, op.values), expected);
        t_below(s, error, t.growth * t_tolerance(s->dtype));
        t_release(s);
    }
}

/* Arrays that end where a page ends are not read beyond, as the next page may not be touched. */
ROW(end_of_page, "end of page", T_WIDE) {
    const size_t page = (size_t)sysconf(_SC_PAGESIZE), size = tg_dtype_size(s->dtype);
    if (strcmp(s->ops->name, "cpu") != 0) {
        return; /* ref has no vectors to read with, devices no such pages */
    }
    char *pages = mmap(NULL, 2 * page, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    t_true(s, pages != MAP_FAILED && mprotect(pages + page, page, PROT_NONE) == 0);
    for (int64_t columns = 1; columns < 30; columns++) {
        const int64_t rows = columns % 3 + 1;
        const sizes shape = {2, {rows, columns}, {rows, columns}};
        const trial t = trial_of(s, &shape, 1);
        note(s, "end of page", &t);
        void *last = pages + page - (size_t)t.numel * size;
        memcpy(last, t_host_random(s, s->dtype, t.numel), (size_t)t.numel * size);
        project(s, &t, last, 0.0, NULL);
        back(s, &t, last);
        t_release(s);
    }
    munmap(pages, 2 * page);
}

int main(void) {
    return t_run_rows("compress");
}

/* Compressed gradients and Adam of every backend.
 *
 * Each result is compared with its definition, written out as one sum over all entries, and with
 * ref. Workspaces have exactly the promised size and lie between guard zones like everything else.
 */
#include <math.h>
#include <string.h>

#include "support/runner.h"

/* ---- cases ---- */

/* Shapes with the ranks they are compressed to; a rank of 0 stands for a mode that is left alone
 * (no factor). */
typedef struct shape {
    int ndim;
    int64_t dim[5], rank[5];
} shape;

static const shape shapes[] = {
    {1, {5}, {3}},
    {1, {1}, {1}},
    {2, {7, 5}, {3, 0}},
    {2, {5, 7}, {0, 0}},
    {2, {3, 1}, {1, 1}},
    {3, {3, 5, 7}, {2, 0, 3}},
    {3, {1, 5, 1}, {1, 2, 0}},
    {3, {7, 3, 5}, {7, 3, 5}},
    {4, {5, 3, 4, 7}, {2, 3, 2, 3}},
    {4, {3, 4, 5, 2}, {1, 1, 1, 1}},
    {5, {2, 3, 2, 3, 2}, {1, 2, 0, 2, 1}},
    {4, {9, 11, 8, 5}, {5, 7, 3, 2}},
    /* Wide enough for products that begin with the first mode of a factored gradient. */
    {3, {16, 15, 5}, {5, 3, 2}},
    {4, {13, 17, 2, 3}, {3, 2, 0, 2}},
};

/* A set-up on one side: the modes with factors on the backend, and the same on the host. */
typedef struct setup {
    tg_multimode modes;
    const void *host_factor[TG_MAX_NDIM];
    int64_t numel, count; /* of the tensor and the core */
    tg_bitmap bitmap;
    const uint64_t *words;
    void *workspace;
} setup;

static tg_scalar add(tg_scalar a, tg_scalar b) {
    return (tg_scalar){a.re + b.re, a.im + b.im};
}

static tg_scalar multiply(tg_scalar a, tg_scalar b) {
    return (tg_scalar){a.re * b.re - a.im * b.im, a.re * b.im + a.im * b.re};
}

static tg_scalar times(double factor, tg_scalar a) {
    return (tg_scalar){factor * a.re, factor * a.im};
}

static tg_scalar conjugate(tg_scalar a) {
    return (tg_scalar){a.re, -a.im};
}

/* Factors are any matrices: nothing here needs them to be orthonormal. */
static setup make_setup(t_side *s, const shape *sizes, double share, bool factored) {
    setup u = {.modes = {.dtype = s->dtype, .ndim = sizes->ndim}, .numel = 1, .count = 1};
    for (int d = 0; d < sizes->ndim; d++) {
        const int64_t dim = sizes->dim[d], rank = sizes->rank[d] ? sizes->rank[d] : dim;
        u.modes.dim[d] = dim;
        u.modes.rank[d] = rank;
        u.numel *= dim;
        u.count *= rank;
        if (sizes->rank[d]) {
            u.host_factor[d] = t_host_random(s, s->dtype, dim * rank);
            u.modes.factor[d] = t_input(s, s->dtype, dim * rank, u.host_factor[d]);
        }
    }
    const double *coin = t_host_random(s, TG_F64, u.numel);
    uint64_t *words = t_host_alloc(s, TG_U64, tg_bitmap_words(u.numel));
    memset(words, 0, (size_t)tg_bitmap_words(u.numel) * sizeof *words);
    for (int64_t i = 0; i < u.numel; i++) {
        words[i / 64] |= (uint64_t)(coin[i] < 2.0 * share - 1.0) << (i % 64);
    }
    u.words = words;
    u.bitmap = t_bitmap_input(s, u.numel, words);
    u.workspace = t_workspace(
        s, tg_workspace_bytes(s->be, (tg_query){.compress = &u.modes, .factored = factored}));
    return u;
}

/* Product over the modes of U_d[i_d][r_d], identity where there is no factor. */
static tg_scalar entry(const setup *u, int64_t i, int64_t r) {
    tg_scalar product = {1.0, 0.0};
    for (int d = u->modes.ndim - 1; d >= 0; d--) {
        const int64_t dim = u->modes.dim[d], rank = u->modes.rank[d];
        const int64_t row = i % dim, column = r % rank;
        product =
            multiply(product, u->host_factor[d]
                                  ? tg_load(u->modes.dtype, u->host_factor[d], row * rank + column)
                                  : (tg_scalar){row == column ? 1.0 : 0.0, 0.0});
        i /= dim;
        r /= rank;
    }
    return product;
}

/* (core x_n U_n)[i]. */
static tg_scalar expanded(const setup *u, const void *core, int64_t i) {
    tg_scalar sum = {0};
    for (int64_t r = 0; r < u->count; r++) {
        sum = add(sum, multiply(entry(u, i, r), tg_load(u->modes.dtype, core, r)));
    }
    return sum;
}

/* Whether the sum over all pairs of entries of tensor and core is worth its time; larger ones are
 * compared with ref alone. */
static bool is_small(const setup *u) {
    return u->numel * u->count <= 4000;
}

/* Found is expected (NULL: not known) up to rounding of sums of about numel terms; recorded for the
 * twin. */
static void expect(t_side *s, const setup *u, int64_t n, const void *found, const void *expected) {
    const double growth = 2.0 * sqrt((double)u->numel);
    if (expected) {
        t_below(s, t_relative_error(s->dtype, n, found, expected), growth * t_tolerance(s->dtype));
    }
    t_record_close(s, s->dtype, n, found, growth);
}

/* ---- sources ---- */

/* A gradient in either form, and all of it on the host. */
static const void *make_source(t_side *s, const setup *u, int64_t batch, tg_grad_source *source) {
    const tg_multimode *modes = &u->modes;
    *source = (tg_grad_source){0};
    if (batch == 0) {
        const void *dense = t_host_random(s, s->dtype, u->numel);
        source->dense = t_input(s, s->dtype, u->numel, dense);
        return dense;
    }
    const int64_t in = modes->dim[0], out = modes->dim[1], k = u->numel / in / out;
    const void *x = t_host_random(s, s->dtype, batch * in * k);
    const void *dy = t_host_random(s, s->dtype, batch * out * k);
    source->batch = batch;
    source->x = t_input(s, s->dtype, batch * in * k, x);
    source->dy = t_input(s, s->dtype, batch * out * k, dy);
    void *wide = t_host_alloc(s, s->dtype, u->numel);
    for (int64_t e = 0; e < u->numel; e++) {
        const int64_t i = e / k / out, o = e / k % out;
        tg_scalar sum = {0};
        for (int64_t b = 0; b < batch; b++) {
            sum = add(sum, multiply(conjugate(tg_load(s->dtype, x, (b * in + i) * k + e % k)),
                                    tg_load(s->dtype, dy, (b * out + o) * k + e % k)));
        }
        tg_store(s->dtype, wide, e, sum);
    }
    return wide;
}

/* Batches of 0 stand for a dense source; a factored one needs two dimensions. */
static const int64_t batches[] = {0, 1, 3};

/* Runs `check` for all shapes, shares of kept entries and forms of the source. */
static void for_all_setups(t_side *s, void (*check)(t_side *s, const setup *u, int64_t batch)) {
    static const double shares[] = {0.0, 0.1, 1.0};
    for (int i = 0; i < T_COUNT(shapes); i++) {
        for (int v = 0; v < T_COUNT(shares) * T_COUNT(batches); v++) {
            const int64_t batch = batches[v % T_COUNT(batches)];
            const double share = shares[v / T_COUNT(batches)];
            if ((batch > 0 && shapes[i].ndim < 2) || t_leaves_out(s)) {
                continue;
            }
            t_note(s, "shape %d, share %g, batch %lld", i, share, (long long)batch);
            const setup u = make_setup(s, &shapes[i], share, batch > 0);
            check(s, &u, batch);
            t_release(s);
        }
    }
}

static void check_grad_dense(t_side *s, const setup *u, int64_t batch) {
    if (batch == 0) {
        return;
    }
    tg_grad_source source;
    const void *gradient = make_source(s, u, batch, &source);
    void *out = t_output(s, s->dtype, u->numel), *expected = t_host_alloc(s, s->dtype, u->numel);
    for (int64_t i = 0; i < u->numel; i++) {
        tg_store(s->dtype, expected, i, times(-0.75, tg_load(s->dtype, gradient, i)));
    }
    t_ok(s, s->ops->grad_dense(s->be, &u->modes, &source, -0.75, out));
    expect(s, u, u->numel, t_download(s, out), expected);
}

ROW(grad_dense, "grad_dense", T_WIDE) {
    for_all_setups(s, check_grad_dense);
}

/* ---- compress ---- */

/* With or without values, core, mask and what was in the outputs before (bits of `options`). */
enum { WITH_VALUES = 1, WITH_CORE = 2, MASKED = 4, ADDED = 8, OPTIONS = 16 };

/* beta old + scale (G' x_n U_n^H) by its definition. */
static void *projected(t_side *s, const setup *u, const void *gradient, bool masked, double scale,
                       double beta, const void *old) {
    void *out = t_host_alloc(s, s->dtype, u->count);
    for (int64_t r = 0; r < u->count; r++) {
        tg_scalar sum = times(beta, tg_load(s->dtype, old, r));
        for (int64_t i = 0; i < u->numel; i++) {
            if (!masked || !t_bit(u->words, i)) {
                const tg_scalar g = tg_load(s->dtype, gradient, i);
                sum = add(sum, times(scale, multiply(conjugate(entry(u, i, r)), g)));
            }
        }
        tg_store(s->dtype, out, r, sum);
    }
    return out;
}

static void check_compress_with(t_side *s, const setup *u, int64_t batch, int options) {
    const double scale = 1.5, beta = options & ADDED ? -0.5 : 0.0;
    tg_grad_source source;
    const void *gradient = make_source(s, u, batch, &source);
    const int64_t kept = u->bitmap.count;
    const void *old_values = t_host_random(s, s->dtype, kept);
    const void *old_core = t_host_random(s, s->dtype, u->count);
    tg_compress op = {.modes = u->modes,
                      .source = source,
                      .bitmap = &u->bitmap,
                      .masked = options & MASKED,
                      .scale = scale,
                      .beta = beta,
                      .workspace = u->workspace};
    if (options & WITH_VALUES) {
        op.values =
            options & ADDED ? t_inout(s, s->dtype, kept, old_values) : t_output(s, s->dtype, kept);
    }
    if (options & WITH_CORE) {
        op.core = options & ADDED ? t_inout(s, s->dtype, u->count, old_core)
                                  : t_output(s, s->dtype, u->count);
    }
    t_ok(s, s->ops->compress(s->be, &op));

    if (options & WITH_VALUES) {
        void *expected = t_host_alloc(s, s->dtype, kept);
        for (int64_t i = 0, at = 0; i < u->numel; i++) {
            if (t_bit(u->words, i)) {
                const tg_scalar old = times(beta, tg_load(s->dtype, old_values, at));
                tg_store(s->dtype, expected, at++,
                         add(old, times(scale, tg_load(s->dtype, gradient, i))));
            }
        }
        expect(s, u, kept, t_download(s, op.values), expected);
    }
    if (options & WITH_CORE) {
        const void *expected =
            is_small(u) ? projected(s, u, gradient, options & MASKED, scale, beta, old_core) : NULL;
        expect(s, u, u->count, t_download(s, op.core), expected);
    }
}

/* Small ones with all options, others with those that are used most. */
static void check_compress(t_side *s, const setup *u, int64_t batch) {
    for (int options = 0; options < OPTIONS; options++) {
        if (is_small(u) || (options & ~ADDED) == (WITH_CORE | WITH_VALUES | MASKED) ||
            options == (WITH_CORE | ADDED)) {
            check_compress_with(s, u, batch, options);
        }
    }
}

ROW(compress, "compress", T_WIDE) {
    for_all_setups(s, check_compress);
}

/* More frequencies and a longer first rank than a product takes at a time. */
ROW(compress_in_pieces, "compress, in pieces", 1 << TG_C64) {
    const shape sizes = {3, {80, 8, 257}, {65, 2, 64}};
    const setup u = make_setup(s, &sizes, 0.005, true);
    check_compress_with(s, &u, 1, WITH_CORE | WITH_VALUES | MASKED | ADDED);
}

/* Entries of a dense gradient that are not finite, kept ones too, are added to the guard. */
ROW(compress_counts, "compress, not finite", T_WIDE) {
    for (int i = 0; i < T_COUNT(shapes); i++) {
        t_note(s, "shape %d", i);
        const setup u = make_setup(s, &shapes[i], 0.5, false);
        const uint32_t before = 3;
        uint32_t bad = before;
        void *host = t_host_random(s, s->dtype, u.numel);
        for (int64_t e = i; e < u.numel; e += 5) {
            tg_store(s->dtype, host, e, (tg_scalar){e % 2 ? (double)NAN : 0.5, HUGE_VAL});
            bad += e % 2 || tg_dtype_is_complex(s->dtype);
        }
        uint32_t *guard = t_inout(s, TG_U32, 1, &before);
        const tg_compress op = {.modes = u.modes,
                                .source = {.dense = t_input(s, s->dtype, u.numel, host)},
                                .bitmap = &u.bitmap,
                                .masked = true,
                                .scale = 1.0,
                                .values = t_output(s, s->dtype, u.bitmap.count),
                                .core = t_output(s, s->dtype, u.count),
                                .workspace = u.workspace,
                                .guard = guard};
        t_ok(s, s->ops->compress(s->be, &op));
        t_true(s, *(uint32_t *)t_download(s, guard) == bad);
        t_release(s);
    }
}

/* No index set at all: the core is that of the whole gradient. */
ROW(compress_without_bitmap, "compress, no bitmap", T_WIDE) {
    for (int i = 0; i < T_COUNT(shapes); i++) {
        t_note(s, "shape %d", i);
        const setup u = make_setup(s, &shapes[i], 0.5, false);
        tg_grad_source source;
        make_source(s, &u, 0, &source);
        void *core[2];
        for (int with = 0; with < 2; with++) {
            core[with] = t_output(s, s->dtype, u.count);
            const tg_compress op = {.modes = u.modes,
                                    .source = source,
                                    .bitmap = with ? &u.bitmap : NULL,
                                    .masked = !with,
                                    .scale = 1.0,
                                    .core = core[with],
                                    .workspace = u.workspace};
            t_ok(s, s->ops->compress(s->be, &op));
        }
        expect(s, &u, u.count, t_download(s, core[0]), t_download(s, core[1]));
        t_release(s);
    }
}

/* ---- expanding ---- */

/* Options as above: values or core, and whether to add to the output. */
static void check_expand_with(t_side *s, const setup *u, int options) {
    const double alpha = -1.25, lambda = 0.5, beta = options & ADDED ? 0.75 : 0.0;
    const void *core = t_host_random(s, s->dtype, u->count);
    const void *values = t_host_random(s, s->dtype, u->bitmap.count);
    const void *old = t_host_random(s, s->dtype, u->numel);
    void *out =
        options & ADDED ? t_inout(s, s->dtype, u->numel, old) : t_output(s, s->dtype, u->numel);
    tg_expand op = {.modes = u->modes,
                    .lambda = lambda,
                    .alpha = alpha,
                    .beta = beta,
                    .out = out,
                    .workspace = u->workspace};
    if (options & WITH_VALUES) {
        op.bitmap = &u->bitmap;
        op.values = t_input(s, s->dtype, u->bitmap.count, values);
    }
    if (options & WITH_CORE) {
        op.core = t_input(s, s->dtype, u->count, core);
    }
    t_ok(s, s->ops->expand(s->be, &op));
    void *expected = is_small(u) ? t_host_alloc(s, s->dtype, u->numel) : NULL;
    for (int64_t i = 0, at = 0; expected && i < u->numel; i++) {
        tg_scalar sum = options & WITH_CORE ? expanded(u, core, i) : (tg_scalar){0};
        if (options & WITH_VALUES && t_bit(u->words, i)) {
            sum = add(sum, times(lambda, tg_load(s->dtype, values, at++)));
        }
        const tg_scalar before = times(beta, tg_load(s->dtype, old, i));
        tg_store(s->dtype, expected, i, add(before, times(alpha, sum)));
    }
    expect(s, u, u->numel, t_download(s, out), expected);
}

static void check_expand(t_side *s, const setup *u, int64_t batch) {
    for (int options = 0; batch == 0 && options < OPTIONS; options++) {
        if (!(options & MASKED)) {
            check_expand_with(s, u, options);
        }
    }
}

ROW(expand, "expand", T_WIDE) {
    for_all_setups(s, check_expand);
}

/* values += alpha (core x_n U_n)[kept]. */
static void check_sample(t_side *s, const setup *u, int64_t batch) {
    if (batch > 0) {
        return;
    }
    const int64_t kept = u->bitmap.count;
    const void *core = t_host_random(s, s->dtype, u->count);
    const void *old = t_host_random(s, s->dtype, kept);
    void *values = t_inout(s, s->dtype, kept, old);
    const tg_sample op = {.modes = u->modes,
                          .bitmap = &u->bitmap,
                          .core = t_input(s, s->dtype, u->count, core),
                          .alpha = -0.5,
                          .values = values,
                          .workspace = u->workspace};
    t_ok(s, s->ops->sample(s->be, &op));
    void *expected = is_small(u) ? t_host_alloc(s, s->dtype, kept) : NULL;
    for (int64_t i = 0, at = 0; expected && i < u->numel; i++) {
        if (t_bit(u->words, i)) {
            const tg_scalar sum =
                add(tg_load(s->dtype, old, at), times(-0.5, expanded(u, core, i)));
            tg_store(s->dtype, expected, at++, sum);
        }
    }
    expect(s, u, kept, t_download(s, values), expected);
}

ROW(sample, "sample", T_WIDE) {
    for_all_setups(s, check_sample);
}

/* ---- Adam ---- */

/* One real number: new moments, and the direction. */
static double adam_direction(const tg_adam *op, double m, double v) {
    return m / (sqrt(v) + op->eps);
}

/* kind: bit 0 split, bit 1 direction into grad's memory, bit 2 direction, bit 3 weight. */
static void check_adam(t_side *s, int64_t n, int kind) {
    const bool pairs = tg_dtype_is_complex(s->dtype), split = kind & 1;
    const tg_dtype real = tg_dtype_real(s->dtype);
    const int parts = pairs && split ? 2 : 1;
    const void *g0 = t_host_random(s, s->dtype, n), *m0 = t_host_random(s, s->dtype, n);
    const void *w0 = t_host_random(s, s->dtype, n);
    void *v0 = t_host_random(s, real, parts * n);
    for (int64_t i = 0; i < parts * n; i++) { /* second moments are positive; some are zero */
        const double v = tg_load(real, v0, i).re;
        tg_store(real, v0, i, (tg_scalar){i % 11 == 0 ? 0.0 : v * v, 0.0});
    }
    void *grad = kind & 2 ? t_inout(s, s->dtype, n, g0) : t_input(s, s->dtype, n, g0);
    tg_adam op = {.dtype = s->dtype,
                  .n = n,
                  .split = split,
                  .grad = grad,
                  .scale = 0.5,
                  .m = t_inout(s, s->dtype, n, m0),
                  .v = t_inout(s, real, parts * n, v0),
                  .beta1 = 0.9,
                  .beta2 = 0.999,
                  .eps = 1e-6,
                  .alpha = -0.01,
                  .beta = 0.99};
    op.direction = kind & 2 ? grad : kind & 4 ? t_output(s, s->dtype, n) : NULL;
    op.weight = kind & 8 ? t_inout(s, s->dtype, n, w0) : NULL;
    t_ok(s, s->ops->update(s->be, 1, &op));
    t_keep_close(s, op.m, 1.0);
    t_keep_close(s, op.v, 1.0);
    const void *m_out = t_download(s, op.m), *v_out = t_download(s, op.v);
    void *m1 = t_host_alloc(s, s->dtype, n), *v1 = t_host_alloc(s, real, parts * n);
    void *u1 = t_host_alloc(s, s->dtype, n), *w1 = t_host_alloc(s, s->dtype, n);
    for (int64_t i = 0; i < n; i++) {
        const tg_scalar g = times(0.5, tg_load(s->dtype, g0, i));
        const tg_scalar m = add(times(0.9, tg_load(s->dtype, m0, i)), times(0.1, g));
        const double squares[2] = {parts == 2 ? g.re * g.re : g.re * g.re + g.im * g.im,
                                   g.im * g.im};
        double v[2] = {0};
        for (int p = 0; p < parts; p++) {
            v[p] = 0.999 * tg_load(real, v0, parts * i + p).re + 0.001 * squares[p];
            tg_store(real, v1, parts * i + p, (tg_scalar){v[p], 0.0});
        }
        const tg_scalar u = {adam_direction(&op, m.re, v[0]),
                             adam_direction(&op, m.im, v[parts - 1])};
        tg_store(s->dtype, m1, i, m);
        tg_store(s->dtype, u1, i, u);
        tg_store(s->dtype, w1, i, add(times(0.99, tg_load(s->dtype, w0, i)), times(-0.01, u)));
    }
    const double tolerance = 2.0 * t_tolerance(s->dtype);
    t_below(s, t_relative_error(s->dtype, n, m_out, m1), tolerance);
    t_below(s, t_relative_error(real, parts * n, v_out, v1), tolerance);
    if (op.direction) {
        t_below(s, t_relative_error(s->dtype, n, t_download(s, op.direction), u1), tolerance);
        t_keep_close(s, op.direction, 2.0);
    }
    if (op.weight) {
        t_below(s, t_relative_error(s->dtype, n, t_download(s, op.weight), w1), 4.0 * tolerance);
        t_keep_close(s, op.weight, 8.0);
    }
    t_release(s);
}

ROW(adam, "adam", T_WIDE) {
    for (int l = 0; l < t_length_count; l++) {
        for (int kind = t_lengths[l] < 1000 ? 0 : 12; kind < 16; kind++) {
            if (t_leaves_out(s)) {
                continue;
            }
            t_note(s, "n %lld, kind %d", (long long)t_lengths[l], kind);
            check_adam(s, t_lengths[l], kind);
        }
    }
}

int main(void) {
    return t_run_rows("compress");
}

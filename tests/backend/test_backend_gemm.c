/* Matrix products and Gram matrices of every backend.
 *
 * Matrices lie in rows longer than needed, the rest NaN: an input's must not be read, an output's
 * not be written. ref itself is checked by numbers worked out by hand and by (AB)^H = B^H A^H. */
#include <math.h>
#include <string.h>

#include "backend/backend.h"
#include "support/runner.h"

static const char *const op_names[] = {"N", "T", "H", "CONJ"};

/* 16-bit formats are promised by ref only. */
static bool takes_dtype(const t_side *s) {
    return s->ops == s->be->ref || T_WIDE >> s->dtype & 1;
}

/* One product: run_product derives the fields that are not set. */
typedef struct product {
    int64_t m, n, k, batch;
    tg_op op_a, op_b;
    tg_scalar alpha, beta;
    int pad;                 /* elements that rows are longer than needed */
    bool shared_a, shared_b; /* the same matrix for all of the batch: stride 0 */
    bool sums;               /* one C for all of the batch */
} product;

/* count random matrices (rows, columns) with NaN after each row; *ld and *stride as chosen. */
static void *padded_host(t_side *s, int64_t count, int64_t rows, int64_t columns, int pad,
                         int64_t *ld, int64_t *stride) {
    *ld = columns + pad;
    *stride = rows * *ld + pad;
    const size_t size = tg_dtype_size(s->dtype);
    const char *values = t_host_random(s, s->dtype, count * rows * columns);
    char *x = t_host_alloc(s, s->dtype, count * *stride);
    for (int64_t r = 0; r < count * rows; r++) {
        const int64_t at = r / rows * *stride + r % rows * *ld;
        memcpy(x + (size_t)at * size, values + (size_t)(r * columns) * size,
               (size_t)columns * size);
    }
    return x;
}

/* The matrices of a padded array without the padding, which must be untouched. */
static void *compact(t_side *s, const char *x, int64_t count, int64_t rows, int64_t columns,
                     int64_t ld, int64_t stride) {
    const size_t size = tg_dtype_size(s->dtype);
    char *out = t_host_alloc(s, s->dtype, count * rows * columns);
    char *seen = t_host_alloc(s, TG_U8, count * stride);
    memset(seen, 0, (size_t)(count * stride));
    for (int64_t e = 0; e < count * rows * columns; e++) {
        const int64_t r = e / columns;
        const int64_t at = r / rows * stride + r % rows * ld + e % columns;
        memcpy(out + (size_t)e * size, x + (size_t)at * size, size);
        seen[at] = 1;
    }
    for (int64_t i = 0; i < count * stride * (int64_t)size; i++) {
        t_true(s, seen[i / (int64_t)size] || (unsigned char)x[i] == 0xFF);
    }
    return out;
}

static void run_product(t_side *s, const product *p) {
    if (t_leaves_out(s)) {
        return;
    }
    t_note(s, "%s %s, m %lld n %lld k %lld, batch %lld, pad %d%s%s%s, beta %g", op_names[p->op_a],
           op_names[p->op_b], (long long)p->m, (long long)p->n, (long long)p->k,
           (long long)p->batch, p->pad, p->shared_a ? ", one a" : "", p->shared_b ? ", one b" : "",
           p->sums ? ", summed" : "", p->beta.re);
    const bool turn_a = p->op_a == TG_OP_T || p->op_a == TG_OP_H;
    const bool turn_b = p->op_b == TG_OP_T || p->op_b == TG_OP_H;
    const int64_t count_a = p->shared_a ? 1 : p->batch, count_b = p->shared_b ? 1 : p->batch;
    const int64_t count_c = p->sums ? 1 : p->batch;
    tg_gemm g = {.dtype = s->dtype,
                 .op_a = p->op_a,
                 .op_b = p->op_b,
                 .m = p->m,
                 .n = p->n,
                 .k = p->k,
                 .alpha = p->alpha,
                 .beta = p->beta,
                 .batch = p->batch};
    const void *a = padded_host(s, count_a, turn_a ? p->k : p->m, turn_a ? p->m : p->k, p->pad,
                                &g.lda, &g.stride_a);
    const void *b = padded_host(s, count_b, turn_b ? p->n : p->k, turn_b ? p->k : p->n, p->pad,
                                &g.ldb, &g.stride_b);
    const void *c = padded_host(s, count_c, p->m, p->n, p->pad, &g.ldc, &g.stride_c);
    g.a = t_input(s, s->dtype, count_a * g.stride_a, a);
    g.b = t_input(s, s->dtype, count_b * g.stride_b, b);
    const bool overwrites = p->beta.re == 0.0 && p->beta.im == 0.0;
    g.c = overwrites ? t_output(s, s->dtype, count_c * g.stride_c)
                     : t_inout(s, s->dtype, count_c * g.stride_c, c);
    g.stride_a = p->shared_a ? 0 : g.stride_a;
    g.stride_b = p->shared_b ? 0 : g.stride_b;
    const int64_t stride_c = g.stride_c;
    g.stride_c = p->sums ? 0 : stride_c;
    t_ok(s, s->ops->gemm(s->be, &g));
    t_record_close(s, s->dtype, count_c * p->m * p->n,
                   compact(s, t_download(s, g.c), count_c, p->m, p->n, g.ldc, stride_c),
                   sqrt((double)(p->batch / (count_c > 0 ? count_c : 1) * p->k) + 1.0));
    t_release(s);
}

ROW(gemm_pairs, "gemm, all op pairs", T_WIDE) {
    static const int64_t sizes[][3] = {{1, 1, 1}, {3, 5, 7}, {33, 1, 5}, {1, 33, 7}, {17, 33, 65}};
    for (int i = 0; i < T_COUNT(sizes); i++) {
        for (int ops = 0; ops < 16; ops++) {
            for (int accumulate = 0; accumulate < 2; accumulate++) {
                run_product(s, &(product){.m = sizes[i][0],
                                          .n = sizes[i][1],
                                          .k = sizes[i][2],
                                          .batch = 1,
                                          .op_a = (tg_op)(ops / 4),
                                          .op_b = (tg_op)(ops % 4),
                                          .alpha = {0.75, -0.5},
                                          .beta = {accumulate ? -1.25 : 0.0, 0.0},
                                          .pad = ops % 3});
            }
        }
    }
}

ROW(gemm_batches, "gemm, batches", T_WIDE) {
    static const int64_t sizes[][3] = {{1, 1, 1}, {3, 7, 5}, {7, 3, 1}, {5, 33, 7}};
    for (int i = 0; i < T_COUNT(sizes); i++) {
        for (int v = 0; v < 64; v++) { /* ops of a, ops of b, and which inputs are shared */
            run_product(s, &(product){.m = sizes[i][0],
                                      .n = sizes[i][1],
                                      .k = sizes[i][2],
                                      .batch = 1 + v % 5,
                                      .op_a = (tg_op)(v % 4),
                                      .op_b = (tg_op)(v / 4 % 4),
                                      .alpha = {1.0, 0.0},
                                      .beta = {v % 3 ? 0.0 : 0.5, v % 3 ? 0.0 : 1.5},
                                      .pad = v % 2,
                                      .shared_a = v / 16 & 1,
                                      .shared_b = v / 32 & 1});
        }
    }
}

/* Sums over a batch: few, many and long ones, entries in one block and in several; and long sums of
 * one product, which a backend may share out in the same way. */
ROW(gemm_sums, "gemm, sums over a batch", T_WIDE) {
    static const int64_t sizes[][4] = {{3, 5, 7, 1},    {5, 3, 1, 13},   {1, 1, 33, 65},
                                       {17, 9, 33, 21}, {67, 70, 11, 5}, {33, 19, 65, 3},
                                       {3, 5, 0, 2},    {9, 5, 2053, 1}};
    for (int i = 0; i < T_COUNT(sizes); i++) {
        for (int v = 0; v < 8; v++) {
            run_product(s, &(product){.m = sizes[i][0],
                                      .n = sizes[i][1],
                                      .k = sizes[i][2],
                                      .batch = sizes[i][3],
                                      .op_a = (tg_op)(v % 4),
                                      .op_b = (tg_op)(v * 3 % 4),
                                      .alpha = {0.5, -0.25},
                                      .beta = {v % 3 ? 0.0 : 0.5, v % 3 ? 0.0 : 1.5},
                                      .pad = v % 2,
                                      .shared_a = v == 5,
                                      .shared_b = v == 6,
                                      .sums = true});
        }
    }
}

/* Sizes of zero, products larger than a block of any kernel, and many small ones. */
ROW(gemm_extremes, "gemm, extremes", T_WIDE) {
    static const int64_t sizes[][4] = {{0, 3, 5, 2},   {3, 0, 5, 2},  {3, 5, 0, 2},
                                       {3, 5, 7, 0},   {0, 0, 0, 1},  {371, 33, 65, 1},
                                       {1, 257, 1, 3}, {5, 3, 7, 101}};
    for (int i = 0; i < T_COUNT(sizes); i++) {
        for (int v = 0; v < 4; v++) {
            run_product(s, &(product){.m = sizes[i][0],
                                      .n = sizes[i][1],
                                      .k = sizes[i][2],
                                      .batch = sizes[i][3],
                                      .op_a = v % 2 ? TG_OP_H : TG_OP_N,
                                      .op_b = v / 2 ? TG_OP_CONJ : TG_OP_N,
                                      .alpha = {1.0, 0.25},
                                      .beta = {v % 2 ? 2.0 : 0.0, 0.0},
                                      .pad = v % 2});
        }
    }
}

/* Tall, wide and deep products, where tuned backends change blocks, panels or the way. */
ROW(gemm_shapes, "gemm, shapes", 1 << TG_F32 | 1 << TG_C64) {
    static const int64_t sizes[][3] = {{11, 301, 67}, {8, 25, 1},    {9, 13, 256},
                                       {40, 9, 300},  {1031, 5, 11}, {257, 49, 131}};
    static const tg_op ops[][2] = {{TG_OP_N, TG_OP_N}, {TG_OP_H, TG_OP_T}, {TG_OP_CONJ, TG_OP_H}};
    for (int i = 0; i < T_COUNT(sizes); i++) {
        for (int v = 0; v < T_COUNT(ops); v++) {
            run_product(s, &(product){.m = sizes[i][0],
                                      .n = sizes[i][1],
                                      .k = sizes[i][2],
                                      .batch = 1,
                                      .op_a = ops[v][0],
                                      .op_b = ops[v][1],
                                      .alpha = {v == 0 ? 1.0 : 0.5, v == 0 ? 0.0 : 0.25},
                                      .beta = {v == 1 ? -0.5 : 0.0, v == 1 ? 2.0 : 0.0},
                                      .pad = v == 2});
        }
    }
}

/* A = [1 2i; -1 1+i], B = [3 i; 1-i 2]: op(A) op(B) worked out by hand. Real dtypes see
 * A = [1 0; -1 1], B = [3 0; 1 2]. */
ROW(gemm_by_hand, "gemm by hand", T_FLOATS) {
    if (!takes_dtype(s)) {
        return;
    }
    static const tg_scalar a[4] = {{1, 0}, {0, 2}, {-1, 0}, {1, 1}};
    static const tg_scalar b[4] = {{3, 0}, {0, 1}, {1, -1}, {2, 0}};
    static const struct {
        tg_op op_a, op_b;
        tg_scalar pair[4], real[4];
    } rows[] = {
        {TG_OP_N, TG_OP_N, {{5, 2}, {0, 5}, {-1, 0}, {2, 1}}, {{3, 0}, {0, 0}, {-2, 0}, {2, 0}}},
        {TG_OP_T, TG_OP_N, {{2, 1}, {-2, 1}, {2, 6}, {0, 2}}, {{2, 0}, {-2, 0}, {1, 0}, {2, 0}}},
        {TG_OP_N, TG_OP_H, {{5, 0}, {1, 5}, {-2, -1}, {1, 1}}, {{3, 0}, {1, 0}, {-3, 0}, {1, 0}}},
        {TG_OP_H,
         TG_OP_CONJ,
         {{2, -1}, {-2, -1}, {2, -6}, {0, -2}},
         {{2, 0}, {-2, 0}, {1, 0}, {2, 0}}},
        {TG_OP_CONJ,
         TG_OP_T,
         {{5, 0}, {1, -5}, {-2, 1}, {1, -1}},
         {{3, 0}, {1, 0}, {-3, 0}, {1, 0}}},
    };
    void *a_host = t_host_alloc(s, s->dtype, 4), *b_host = t_host_alloc(s, s->dtype, 4);
    for (int i = 0; i < 4; i++) {
        tg_store(s->dtype, a_host, i, a[i]);
        tg_store(s->dtype, b_host, i, b[i]);
    }
    const void *x = t_input(s, s->dtype, 4, a_host), *y = t_input(s, s->dtype, 4, b_host);
    for (int r = 0; r < T_COUNT(rows); r++) {
        t_note(s, "%s %s", op_names[rows[r].op_a], op_names[rows[r].op_b]);
        void *c = t_output(s, s->dtype, 4);
        const tg_gemm g = tg_whole_product(s->dtype, rows[r].op_a, rows[r].op_b, 2, 2, 2, x, y, c);
        t_ok(s, s->ops->gemm(s->be, &g));
        const void *out = t_download(s, c);
        for (int i = 0; i < 4; i++) {
            const tg_scalar v = tg_load(s->dtype, out, i);
            const tg_scalar e = tg_dtype_is_complex(s->dtype) ? rows[r].pair[i] : rows[r].real[i];
            t_true(s, v.re == e.re && v.im == e.im);
        }
    }
}

/* (AB)^H = B^H A^H, with A (m, k) and B (k, n) stored once. */
ROW(gemm_adjoint, "gemm, (AB)^H", T_FLOATS) {
    if (!takes_dtype(s)) {
        return;
    }
    const int64_t m = 33, n = 7, k = 65;
    const void *a = t_random(s, s->dtype, m * k), *b = t_random(s, s->dtype, k * n);
    void *ab = t_output(s, s->dtype, m * n), *ba = t_output(s, s->dtype, n * m);
    const tg_gemm straight = tg_whole_product(s->dtype, TG_OP_N, TG_OP_N, m, n, k, a, b, ab);
    const tg_gemm adjoint = tg_whole_product(s->dtype, TG_OP_H, TG_OP_H, n, m, k, b, a, ba);
    t_ok(s, s->ops->gemm(s->be, &straight));
    t_ok(s, s->ops->gemm(s->be, &adjoint));
    const void *x = t_download(s, ab), *y = t_download(s, ba);
    void *turned = t_host_alloc(s, s->dtype, m * n);
    for (int64_t i = 0; i < m * n; i++) {
        const tg_scalar v = tg_load(s->dtype, x, i);
        tg_store(s->dtype, turned, i % n * m + i / n, (tg_scalar){v.re, -v.im});
    }
    t_below(s, t_relative_error(s->dtype, m * n, y, turned),
            t_tolerance(s->dtype) * sqrt((double)k));
}

ROW(gemm_refusals, "gemm, refusals", T_ONCE) {
    void *x = t_output(s, TG_F64, 9);
    const tg_gemm good = tg_whole_product(TG_F64, TG_OP_N, TG_OP_N, 3, 3, 3, x, x, x);
    tg_gemm g = good;
    g.dtype = TG_I64;
    t_refused(s, TG_E_DTYPE, s->ops->gemm(s->be, &g));
    g = good;
    g.m = -1;
    t_refused(s, TG_E_SHAPE, s->ops->gemm(s->be, &g));
    g = good;
    g.ldb = 2;
    t_refused(s, TG_E_SHAPE, s->ops->gemm(s->be, &g));
    t_refused(s, TG_E_DTYPE, s->ops->gram(s->be, TG_I64, 1, 3, 3, x, NULL, x));
    double norms[3];
    t_refused(s, TG_E_DTYPE, s->ops->slice_norms(s->be, TG_I64, 1, 3, 3, x, norms));
    t_keep_same(s, x);
}

/* ---- gram and slice norms: f64 sums for every dtype ---- */

static const int64_t mode_shapes[][3] = {
    {1, 1, 1},   {1, 5, 7},   {7, 5, 1},   {3, 7, 5},   {5, 33, 3},  {0, 3, 5},   {3, 0, 5},
    {3, 5, 0},   {2, 65, 13}, {65, 3, 2},  {1, 7, 515}, {257, 7, 1}, {2, 401, 2}, {1, 401, 3},
    {3, 401, 1}, {37, 65, 1}, {3, 64, 33}, {1, 97, 50}, {5, 129, 7}};

/* A mask of some of n entries, which become NaN: if they counted at all, it would show. */
static tg_bitmap mask_some(t_side *s, int64_t n, void *host) {
    const double *coin = t_host_random(s, TG_F64, n);
    uint64_t *words = t_host_alloc(s, TG_U64, tg_bitmap_words(n));
    memset(words, 0, (size_t)tg_bitmap_words(n) * sizeof *words);
    for (int64_t j = 0; j < n; j++) {
        if (coin[j] > 0.4) {
            words[j / 64] |= (uint64_t)1 << (j % 64);
            tg_store(s->dtype, host, j, (tg_scalar){(double)NAN, (double)NAN});
        }
    }
    return t_bitmap_input(s, n, words);
}

static void run_gram(t_side *s, bool masked) {
    const tg_dtype wide = tg_dtype_is_complex(s->dtype) ? TG_C128 : TG_F64;
    for (int i = 0; i < T_COUNT(mode_shapes); i++) {
        const int64_t left = mode_shapes[i][0], dim = mode_shapes[i][1], right = mode_shapes[i][2];
        const int64_t n = left * dim * right;
        t_note(s, "shape %lldx%lldx%lld", (long long)left, (long long)dim, (long long)right);
        if (t_leaves_out(s)) {
            continue;
        }
        void *host = t_host_random(s, s->dtype, n);
        const tg_bitmap mask = masked ? mask_some(s, n, host) : (tg_bitmap){0};
        const void *x = t_input(s, s->dtype, n, host);
        void *out = t_output(s, wide, dim * dim);
        t_ok(s, s->ops->gram(s->be, s->dtype, left, dim, right, x, masked ? &mask : NULL, out));
        t_keep_close(s, out, sqrt((double)(left * right) + 1.0));
        t_release(s);
    }
}

ROW(gram, "gram", T_FLOATS) {
    run_gram(s, false);
}

ROW(gram_masked, "gram, masked", T_FLOATS) {
    run_gram(s, true);
}

/* The diagonal of the Gram matrix. */
ROW(slice_norms, "slice_norms", T_FLOATS) {
    const tg_dtype wide = tg_dtype_is_complex(s->dtype) ? TG_C128 : TG_F64;
    for (int i = 0; i < T_COUNT(mode_shapes); i++) {
        const int64_t left = mode_shapes[i][0], dim = mode_shapes[i][1], right = mode_shapes[i][2];
        t_note(s, "shape %lldx%lldx%lld", (long long)left, (long long)dim, (long long)right);
        if (t_leaves_out(s)) {
            continue;
        }
        const double growth = sqrt((double)(left * right) + 1.0);
        const void *x = t_random(s, s->dtype, left * dim * right);
        void *gram = t_output(s, wide, dim * dim);
        double *norms = t_host_alloc(s, TG_F64, dim), *diagonal = t_host_alloc(s, TG_F64, dim);
        t_ok(s, s->ops->slice_norms(s->be, s->dtype, left, dim, right, x, norms));
        t_ok(s, s->ops->gram(s->be, s->dtype, left, dim, right, x, NULL, gram));
        const void *square = t_download(s, gram);
        for (int64_t j = 0; j < dim; j++) {
            diagonal[j] = tg_load(wide, square, j * (dim + 1)).re;
        }
        t_below(s, t_relative_error(TG_F64, dim, norms, diagonal), growth * t_tolerance(TG_F64));
        t_record_close(s, TG_F64, dim, norms, growth);
        t_release(s);
    }
}

/* x = [1+i 2; 0 -i] as (1, 2, 2), and the same with left and right exchanged. */
ROW(gram_by_hand, "gram by hand", T_FLOATS) {
    static const tg_scalar x[4] = {{1, 1}, {2, 0}, {0, 0}, {0, -1}};
    static const tg_scalar pair[4] = {{6, 0}, {0, 2}, {0, -2}, {1, 0}}, real[4] = {{5, 0}};
    const bool pairs = tg_dtype_is_complex(s->dtype);
    const tg_dtype wide = pairs ? TG_C128 : TG_F64;
    for (int turned = 0; turned < 2; turned++) {
        void *host = t_host_alloc(s, s->dtype, 4);
        for (int i = 0; i < 4; i++) {
            tg_store(s->dtype, host, turned ? i % 2 * 2 + i / 2 : i, x[i]);
        }
        void *out = t_output(s, wide, 4);
        t_ok(s, s->ops->gram(s->be, s->dtype, turned ? 2 : 1, 2, turned ? 1 : 2,
                             t_input(s, s->dtype, 4, host), NULL, out));
        const void *found = t_download(s, out);
        for (int i = 0; i < 4; i++) {
            const tg_scalar v = tg_load(wide, found, i), e = pairs ? pair[i] : real[i];
            t_true(s, v.re == e.re && v.im == e.im);
        }
    }
}

int main(void) {
    return t_run_rows("gemm");
}

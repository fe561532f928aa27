/* Index sets of every backend: which entries are chosen, and reading, adding to and clearing them.
 *
 * The definitions are checked one entry at a time: entry i belongs to the k first in an order if
 * fewer than k entries come before it. Sets must be the same bits on every backend. */
#include <math.h>
#include <string.h>

#include "support/runner.h"

static const tg_rng rng = {.seed = 99, .purpose = TG_RNG_SELECT, .step = 3};

/* Lengths around the 64 bits of a word and the 512 of a rank, and one that is worth threads. */
static const int64_t lengths[] = {0, 1, 3, 7, 33, 63, 64, 65, 127, 511, 512, 513, 1025, 100003};

/* k = a part, 0, 1, all but one, all. Of each list of variants, long arrays take the first. */
enum { CUTS = 5 };
static int cut_count(int64_t n) {
    return n < 4000 ? CUTS : 1;
}
static int64_t cut(int64_t n, int which) {
    const int64_t cuts[CUTS] = {n / 3, 0, n < 1 ? 0 : 1, n < 1 ? 0 : n - 1, n};
    return cuts[which];
}

static void keep_bitmap(t_side *s, const tg_bitmap *bitmap) {
    t_bitmap_check(s, bitmap);
    t_keep_same(s, bitmap->words);
    t_keep_same(s, bitmap->ranks);
    t_record_same(s, TG_I64, 1, &bitmap->count);
}

/* ---- top k ---- */

typedef enum values {
    RANDOM,
    TIES,     /* five different moduli */
    EQUAL,    /* one modulus, several signs */
    SPECIALS, /* NaN, Inf, huge and tiny numbers among others */
    ZERO,     /* 0 and -0 */
    VALUES
} values;

static int value_count(int64_t n) {
    return n < 4000 ? VALUES : 1 + EQUAL;
}

static void *make_values(t_side *s, values kind, int64_t n) {
    static const double odd[] = {(double)NAN, HUGE_VAL, -HUGE_VAL, 1e30, -1e30, 1e-30, 0.0, -0.0};
    void *x = t_host_random(s, s->dtype, n);
    for (int64_t i = 0; i < n; i++) {
        tg_scalar v = tg_load(s->dtype, x, i);
        const double sign = v.re < 0.0 ? -1.0 : 1.0;
        switch (kind) {
        case TIES:
            v = (tg_scalar){rint(2.0 * v.re), rint(v.im)};
            break;
        case EQUAL:
            v = v.im < 0.0 ? (tg_scalar){0.75 * sign, 0.0} : (tg_scalar){0.0, 0.75 * sign};
            v.re = tg_dtype_is_complex(s->dtype) ? v.re : 0.75 * sign;
            break;
        case ZERO:
            v = (tg_scalar){0.0 * sign, 0.0};
            break;
        case SPECIALS:
            v.re = i % 5 == 2 ? odd[i / 5 % T_COUNT(odd)] : v.re;
            v.im = i % 7 == 3 ? odd[i / 7 % T_COUNT(odd)] : v.im;
            break;
        default:
            break;
        }
        tg_store(s->dtype, x, i, v);
    }
    return x;
}

/* Order of the k largest: by |x|^2, NaN above all, then by index. */
static bool comes_before(double a, int64_t i, double b, int64_t j) {
    if (isnan(a) || isnan(b)) {
        return isnan(a) && isnan(b) ? i < j : (bool)isnan(a);
    }
    return a == b ? i < j : a > b;
}

/* key (n): the k entries of `words` are those before which fewer than k others come. */
static void check_first_k(t_side *s, const double *key, int64_t n, int64_t k,
                          const uint64_t *words) {
    for (int64_t i = 0; i < n; i++) {
        int64_t before = 0;
        for (int64_t j = 0; j < n; j++) {
            before += j != i && comes_before(key[j], j, key[i], i);
        }
        t_true(s, t_bit(words, i) == (before < k));
    }
}

static double square(tg_scalar v) {
    return v.re * v.re + v.im * v.im;
}

/* What the first k of n entries are by: their moduli; weighted: the times that they wait for. */
static double key_of(const t_side *s, bool weighted, const void *host, int64_t i) {
    const double modulus2 = square(tg_load(s->dtype, host, i)), weight = sqrt(modulus2);
    if (!weighted) {
        return modulus2;
    }
    return weight == 0.0      ? -HUGE_VAL
           : isfinite(weight) ? -tg_rng_exponential(&rng, (uint64_t)i) / weight
                              : 0.0;
}

static tg_status run(t_side *s, tg_select_kind kind, const tg_rng *stream, const void *x, int64_t k,
                     tg_bitmap *bitmap) {
    return s->ops->select(s->be, &(tg_select){kind, bitmap, k, s->dtype, x, *stream});
}

static void select_by_value(t_side *s, bool weighted) {
    for (int l = 0; l < T_COUNT(lengths); l++) {
        const int64_t n = lengths[l];
        for (int v = 0; v < value_count(n) * cut_count(n); v++) {
            if (t_leaves_out(s)) {
                continue;
            }
            const int64_t k = cut(n, v / value_count(n));
            t_note(s, "%lld of %lld, values %d", (long long)k, (long long)n, v % value_count(n));
            const void *host = make_values(s, (values)(v % value_count(n)), n);
            const void *x = t_input(s, s->dtype, n, host);
            tg_bitmap bitmap = t_bitmap_output(s, n);
            t_ok(s, run(s, weighted ? TG_SELECT_WEIGHTED : TG_SELECT_TOPK, &rng, x, k, &bitmap));
            t_true(s, bitmap.n == n && bitmap.count == k);
            keep_bitmap(s, &bitmap);
            if (n < 200) {
                double *key = t_host_alloc(s, TG_F64, n);
                for (int64_t i = 0; i < n; i++) {
                    key[i] = key_of(s, weighted, host, i);
                }
                check_first_k(s, key, n, k, t_download(s, bitmap.words));
            }
            t_release(s);
        }
    }
}

ROW(select_topk, "select_topk", T_FLOATS) {
    select_by_value(s, false);
}

ROW(select_weighted, "select_weighted", T_FLOATS) {
    select_by_value(s, true);
}

/* ---- random ---- */

ROW(select_random, "select_random", T_ONCE) {
    for (int l = 0; l < T_COUNT(lengths); l++) {
        const int64_t n = lengths[l];
        for (int c = 0; c < cut_count(n); c++) {
            if (t_leaves_out(s)) {
                continue;
            }
            const int64_t k = cut(n, c);
            t_note(s, "%lld of %lld", (long long)k, (long long)n);
            tg_bitmap bitmap = t_bitmap_output(s, n);
            t_ok(s, run(s, TG_SELECT_RANDOM, &rng, NULL, k, &bitmap));
            t_true(s, bitmap.count == k);
            const uint64_t *words = t_download(s, bitmap.words);
            for (int64_t i = 0; i < k; i++) {
                t_true(s, t_bit(words, (int64_t)tg_rng_permute(&rng, (uint64_t)n, (uint64_t)i)));
            }
            keep_bitmap(s, &bitmap);
            t_release(s);
        }
    }
}

/* Every entry is chosen equally often: 2,000 draws of 5 from 17, five standard deviations. */
ROW(random_is_uniform, "select_random is uniform", T_ONCE) {
    enum { N = 17, K = 5, DRAWS = 2000 };
    int times[N] = {0};
    if (t_runs_once()) {
        return;
    }
    for (uint32_t step = 0; step < DRAWS; step++) {
        tg_bitmap bitmap = t_bitmap_output(s, N);
        const tg_rng stream = {.seed = 5, .purpose = TG_RNG_SELECT, .step = step};
        t_ok(s, run(s, TG_SELECT_RANDOM, &stream, NULL, K, &bitmap));
        const uint64_t *words = t_bitmap_check(s, &bitmap);
        for (int i = 0; i < N; i++) {
            times[i] += t_bit(words, i);
        }
        t_release(s);
    }
    const double p = (double)K / N;
    for (int i = 0; i < N; i++) {
        t_note(s, "entry %d", i);
        t_below(s, fabs(times[i] - DRAWS * p), 5.0 * sqrt(DRAWS * p * (1.0 - p)));
    }
}

/* ---- weighted ---- */

/* One of three entries, weights 1, 2 and 5: chosen with those odds. */
ROW(weights_are_odds, "select_weighted, odds", T_WIDE) {
    enum { DRAWS = 4000 };
    if (t_runs_once()) {
        return;
    }
    static const double weights[3] = {1.0, 2.0, 5.0};
    void *host = t_host_alloc(s, s->dtype, 3);
    for (int i = 0; i < 3; i++) {
        tg_store(s->dtype, host, i, (tg_scalar){i == 1 ? -weights[i] : weights[i], 0.0});
    }
    const void *x = t_input(s, s->dtype, 3, host);
    tg_bitmap bitmap = t_bitmap_output(s, 3);
    int times[3] = {0};
    for (uint32_t step = 0; step < DRAWS; step++) {
        const tg_rng stream = {.seed = 6, .purpose = TG_RNG_SELECT, .step = step};
        t_ok(s, run(s, TG_SELECT_WEIGHTED, &stream, x, 1, &bitmap));
        uint64_t word = 0;
        t_ok(s, s->ops->download(s->be, &word, bitmap.words, sizeof word));
        for (int i = 0; i < 3; i++) {
            times[i] += t_bit(&word, i);
        }
    }
    for (int i = 0; i < 3; i++) {
        const double p = weights[i] / 8.0;
        t_below(s, fabs(times[i] - DRAWS * p), 5.0 * sqrt(DRAWS * p * (1.0 - p)));
    }
}

/* ---- use of a set ---- */

/* About `share` of the bits, from none to all. */
static uint64_t *random_words(t_side *s, int64_t n, double share) {
    const double *coin = t_host_random(s, TG_F64, n);
    uint64_t *words = t_host_alloc(s, TG_U64, tg_bitmap_words(n));
    memset(words, 0, (size_t)tg_bitmap_words(n) * sizeof *words);
    for (int64_t i = 0; i < n; i++) {
        words[i / 64] |= (uint64_t)(coin[i] < 2.0 * share - 1.0) << (i % 64);
    }
    return words;
}

static const double shares[] = {0.05, 0.5, 0.0, 1.0};

static int share_count(int64_t n) {
    return n < 4000 ? T_COUNT(shares) : 1;
}

ROW(bitmap_rank, "bitmap_rank", T_ONCE) {
    for (int l = 0; l < T_COUNT(lengths); l++) {
        for (int p = 0; p < share_count(lengths[l]); p++) {
            if (t_leaves_out(s)) {
                continue;
            }
            const int64_t n = lengths[l];
            t_note(s, "n %lld, share %g", (long long)n, shares[p]);
            tg_bitmap bitmap = t_bitmap_output(s, n);
            bitmap.words = t_input(s, TG_U64, tg_bitmap_words(n), random_words(s, n, shares[p]));
            t_ok(s, tg_bitmap_rank(s->be, &bitmap));
            keep_bitmap(s, &bitmap);
            t_release(s);
        }
    }
}

/* The kept entries become 0, the others stay. */
static void check_use(t_side *s, int64_t n, double share) {
    const uint64_t *words = random_words(s, n, share);
    const tg_bitmap bitmap = t_bitmap_input(s, n, words);
    const void *host = t_host_random(s, s->dtype, n);
    const void *x = t_input(s, s->dtype, n, host);
    void *rest = t_output(s, s->dtype, n), *in_place = t_inout(s, s->dtype, n, host);
    t_ok(s, s->ops->bitmap_clear(s->be, s->dtype, &bitmap, x, rest));
    t_ok(s, s->ops->bitmap_clear(s->be, s->dtype, &bitmap, in_place, in_place));
    const void *rest_host = t_download(s, rest);
    for (int64_t i = 0; i < n; i++) {
        const tg_scalar v = tg_load(s->dtype, host, i), r = tg_load(s->dtype, rest_host, i);
        t_true(s, t_bit(words, i) ? r.re == 0.0 && r.im == 0.0 : r.re == v.re && r.im == v.im);
    }
    t_true(s, t_first_difference(s->dtype, n, t_download(s, in_place), rest_host) == -1);
    t_keep_same(s, rest);
    t_release(s);
}

ROW(use, "gather, scatter, clear", T_FLOATS) {
    for (int l = 0; l < T_COUNT(lengths); l++) {
        for (int p = 0; p < share_count(lengths[l]); p++) {
            if (t_leaves_out(s)) {
                continue;
            }
            t_note(s, "n %lld, share %g", (long long)lengths[l], shares[p]);
            check_use(s, lengths[l], shares[p]);
        }
    }
}

/* Kept NaN becomes 0, other NaN is copied. */
ROW(nan_stays_where_it_is, "NaN stays where it is", T_FLOATS) {
    const int64_t n = 513;
    void *host = t_host_random(s, s->dtype, n);
    for (int64_t i = 0; i < n; i += 3) {
        tg_store(s->dtype, host, i, (tg_scalar){(double)NAN, HUGE_VAL});
    }
    const tg_bitmap bitmap = t_bitmap_input(s, n, random_words(s, n, 0.5));
    void *rest = t_output(s, s->dtype, n);
    t_ok(s, s->ops->bitmap_clear(s->be, s->dtype, &bitmap, t_input(s, s->dtype, n, host), rest));
    t_keep_same(s, rest);
}

/* ---- failures ---- */

ROW(refusals, "refusals", T_ONCE) {
    const int64_t n = 7;
    void *x = t_output(s, TG_I32, n);
    tg_bitmap bitmap = t_bitmap_output(s, n);
    for (int i = 0; i < 2; i++) {
        const int64_t k = i ? -1 : n + 1;
        t_note(s, "k %lld of 7", (long long)k);
        for (int kind = TG_SELECT_TOPK; kind <= TG_SELECT_WEIGHTED; kind++) {
            const tg_select op = {
                .kind = (tg_select_kind)kind, .bitmap = &bitmap, .k = k, .dtype = TG_F32, .x = x};
            t_refused(s, TG_E_ARGUMENT, s->ops->select(s->be, &op));
        }
    }
    tg_select op = {.bitmap = &bitmap, .k = 1, .dtype = TG_I32, .x = x};
    op.kind = TG_SELECT_TOPK;
    t_refused(s, TG_E_DTYPE, s->ops->select(s->be, &op));
    op.kind = TG_SELECT_WEIGHTED;
    t_refused(s, TG_E_DTYPE, s->ops->select(s->be, &op));
    t_refused(s, TG_E_DTYPE, s->ops->bitmap_clear(s->be, TG_I32, &bitmap, x, x));
    t_keep_same(s, x);
    t_keep_same(s, bitmap.words);
}

ROW(out_of_memory, "out of memory", T_FLOATS) {
    const int64_t n = 1025;
    for (int kind = TG_SELECT_TOPK; kind <= TG_SELECT_WEIGHTED; kind++) {
        tg_status status = TG_E_MEMORY;
        for (long a = 1; status != TG_OK; a++) {
            t_note(s, "selection %d, allocation %ld fails", kind, a);
            const void *x = t_random(s, s->dtype, n);
            tg_bitmap bitmap = t_bitmap_output(s, n);
            const size_t before = tg_context_memory(s->be->ctx, TG_HOST).blocks;
            tg_mem_test_fail_at(a);
            status = run(s, (tg_select_kind)kind, &rng, x, 9, &bitmap);
            tg_mem_test_fail_at(0);
            t_true(s, status == TG_OK || status == TG_E_MEMORY);
            t_true(s, tg_context_memory(s->be->ctx, TG_HOST).blocks == before);
            t_true(s, a < 100);
            t_release(s);
        }
    }
}

int main(void) {
    return t_run_rows("index");
}

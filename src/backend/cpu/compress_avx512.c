/* Kernels of compressed gradients for CPUs with AVX-512; an empty table where the compiler has
 * none.
 *
 * Complex products take three real products instead of four, as Gauss did: of a = x + iy and b = u
 * + iv,
 *
 *     re(ab) = u (x + y) - y (u + v),   im(ab) = u (x + y) + x (v - u).
 *
 * u, v - u and u + v of a tile of B are packed as planes; x + y is computed while x and y are
 * broadcast, by otherwise idle units of the CPU. 32 registers hold a tile of three rows, two groups
 * of columns and three sums. A fifth to a third faster than four products (Zen 4); the 16 registers
 * of AVX2 are too few. */
#ifdef __AVX512VL__
#include "backend/cpu/compress_kernels.inc"

enum {
    GROUP = LANES,  /* columns per vector of each plane */
    GROUPS = 2,     /* per tile */
    ROWS = 3,       /* per tile */
    PLANES = 3,     /* u, v - u, u + v */
    MAX_DEPTH = 72, /* terms whose packed B stays in the first cache */
    MIN_ROWS = 12   /* fewer do not repay the packing */
};

/* The common part of the tiles of columns [.., + columns); strides are in floats. */
typedef struct gauss {
    const cpu_product *p; /* of a slice of k, with strides in elements */
    int columns;          /* 1..GROUPS * GROUP */
    float beta;
    const float *next; /* B of the next tiles, to be prefetched; NULL: cached */
    float b[MAX_DEPTH * GROUPS * PLANES * LANES]; /* (k, groups, plane, lane) */
} gauss;

/* Columns of a group. */
static int group_columns(int columns, int group) {
    const int left = columns - group * GROUP;
    return left < GROUP ? left : GROUP;
}

/* Keeps v in a register: compilers would otherwise add x and y before broadcasting them, and reload
 * B for every row. */
static inline __attribute__((always_inline)) vector pinned(vector v) {
    __asm__("" : "+v"(v));
    return v;
}

/* Up to 16 complex numbers in two vectors. */
static inline void load_pairs(const float *at, int columns, vector pair[2]) {
    const int reals = 2 * columns;
    pair[0] = load_first(at, reals < LANES ? reals : LANES);
    pair[1] = reals > LANES ? load_first(at + LANES, reals - LANES) : zeros();
}

static inline void store_pairs(float *at, int columns, const vector pair[2]) {
    const int reals = 2 * columns;
    store_first(at, pair[0], reals < LANES ? reals : LANES);
    if (reals > LANES) {
        store_first(at + LANES, pair[1], reals - LANES);
    }
}

static void pack(gauss *g, const float *b) {
    const __m512i even =
        _mm512_set_epi32(30, 28, 26, 24, 22, 20, 18, 16, 14, 12, 10, 8, 6, 4, 2, 0);
    const __m512i odd = _mm512_add_epi32(even, _mm512_set1_epi32(1));
    const vector sign = g->p->conj_b ? all(-0.0f) : zeros();
    float *to = g->b;
    for (int64_t q = 0; q < g->p->k; q++, b += 2 * g->p->ldb) {
        for (int group = 0; group * GROUP < g->columns; group++, to += PLANES * LANES) {
            vector pair[2];
            load_pairs(b + 2 * group * GROUP, group_columns(g->columns, group), pair);
            const vector u = _mm512_permutex2var_ps(pair[0], even, pair[1]);
            const vector v = change(_mm512_permutex2var_ps(pair[0], odd, pair[1]), sign);
            store_whole(to, u);
            store_whole(to + LANES, v - u);
            store_whole(to + 2 * LANES, u + v);
        }
    }
}

/* c = alpha (re + i im) + beta c */
static inline __attribute__((always_inline)) void finish_group(const gauss *g, vector re, vector im,
                                                               int columns, float *c) {
    const __m512i low = _mm512_set_epi32(23, 7, 22, 6, 21, 5, 20, 4, 19, 3, 18, 2, 17, 1, 16, 0);
    const __m512i high = _mm512_add_epi32(low, _mm512_set1_epi32(8));
    const vector alpha = all(g->p->alpha);
    vector pair[2] = {alpha * _mm512_permutex2var_ps(re, low, im),
                      alpha * _mm512_permutex2var_ps(re, high, im)};
    if (g->beta != 0.0f) {
        vector old[2];
        load_pairs(c, columns, old);
        pair[0] = add_product(all(g->beta), old[0], pair[0]);
        pair[1] = add_product(all(g->beta), old[1], pair[1]);
    }
    store_pairs(c, columns, pair);
}

/* Sizes are constants where this is inlined; narrow: the last group has up to NARROW columns. */
static inline __attribute__((always_inline)) void gauss_tile(const gauss *g, const float *a,
                                                             float *c, const int rows,
                                                             const int groups, const bool narrow,
                                                             const bool conj_a) {
    const int64_t row_a = 2 * g->p->row_a, col_a = 2 * g->p->col_a;
    const float *b = g->b;
    vector sum[ROWS][GROUPS][PLANES];
#pragma GCC unroll 3
    for (int i = 0; i < rows; i++) {
#pragma GCC unroll 2
        for (int j = 0; j < groups; j++) {
            sum[i][j][0] = sum[i][j][1] = sum[i][j][2] = zeros();
        }
    }
    for (int64_t q = 0; q < g->p->k; q++, a += col_a, b += groups * PLANES * LANES) {
        vector plane[GROUPS][PLANES];
#pragma GCC unroll 2
        for (int j = 0; j < groups; j++) {
            const bool half = narrow && j == groups - 1;
#pragma GCC unroll 3
            for (int s = 0; s < PLANES; s++) {
                const float *at = b + (j * PLANES + s) * LANES;
                plane[j][s] = pinned(half ? load_narrow(at) : load_whole(at));
            }
        }
#pragma GCC unroll 3
        for (int i = 0; i < rows; i++) {
            const vector x = pinned(all(a[i * row_a])), y = pinned(all(a[i * row_a + 1]));
            const vector factor[PLANES] = {conj_a ? x - y : x + y, x, y};
#pragma GCC unroll 2
            for (int j = 0; j < groups; j++) {
                const bool half = narrow && j == groups - 1;
#pragma GCC unroll 3
                for (int s = 0; s < PLANES; s++) {
                    sum[i][j][s] = half ? add_product_narrow(factor[s], plane[j][s], sum[i][j][s])
                                        : add_product(factor[s], plane[j][s], sum[i][j][s]);
                }
            }
        }
    }
#pragma GCC unroll 3
    for (int i = 0; i < rows; i++) {
#pragma GCC unroll 2
        for (int j = 0; j < groups; j++) {
            const vector *s = sum[i][j];
            finish_group(g, conj_a ? s[0] + s[2] : s[0] - s[2], s[0] + s[1],
                         group_columns(g->columns, j), c + 2 * (i * g->p->ldc + j * GROUP));
        }
    }
}

/* Prefetches for the next tiles while rows of C from i on are summed: the same rows there, and a
 * share of the rows of B. Inlined by force: gcc drops calls of functions that only prefetch. */
static inline __attribute__((always_inline)) void prefetch_next(const gauss *g, int64_t i,
                                                                const float *c) {
    enum { REALS = 2 * GROUPS * GROUP };
    const cpu_product *p = g->p;
    const int64_t share = (p->k * ROWS + p->m - 1) / p->m, begin = i / ROWS * share;
    for (int at = 0; at < REALS; at += LINE) {
        for (int64_t row = i; row < i + ROWS; row++) {
            __builtin_prefetch(c + 2 * row * p->ldc + REALS + at, 1);
        }
        for (int64_t q = begin; q < begin + share && q < p->k; q++) {
            __builtin_prefetch(g->next + 2 * q * p->ldb + at);
        }
    }
}

/* All rows of the columns at c. */
static inline __attribute__((always_inline)) void
gauss_rows(const gauss *g, float *c, const int groups, const bool narrow, const bool conj_a) {
    const cpu_product *p = g->p;
    int64_t i = 0;
    for (; i + ROWS <= p->m; i += ROWS) {
        if (g->next) {
            prefetch_next(g, i, c);
        }
        gauss_tile(g, p->a + 2 * i * p->row_a, c + 2 * i * p->ldc, ROWS, groups, narrow, conj_a);
    }
    for (; i < p->m; i++) {
        gauss_tile(g, p->a + 2 * i * p->row_a, c + 2 * i * p->ldc, 1, groups, narrow, conj_a);
    }
}

static inline __attribute__((always_inline)) void gauss_columns(const gauss *g, float *c,
                                                                const bool conj_a) {
    const int groups = g->columns > GROUP ? 2 : 1;
    const bool narrow = group_columns(g->columns, groups - 1) <= NARROW;
    if (groups == 2 && !narrow) {
        gauss_rows(g, c, 2, false, conj_a);
    } else if (groups == 2) {
        gauss_rows(g, c, 2, true, conj_a);
    } else if (!narrow) {
        gauss_rows(g, c, 1, false, conj_a);
    } else {
        gauss_rows(g, c, 1, true, conj_a);
    }
}

static void product_of_three(const cpu_product *product) {
    if (product->m < MIN_ROWS) {
        product_c64(product);
        return;
    }
    cpu_product p = *product;
    gauss g; /* the space for B is not cleared */
    g.p = &p;
    const int64_t width = GROUPS * GROUP, slices = (p.k + MAX_DEPTH - 1) / MAX_DEPTH;
    const int64_t tiles = (p.n + width - 1) / width;
    const bool is_far = 2 * p.ldb * p.k * (int64_t)sizeof(float) > L2_SHARE;
    for (int64_t unit = 0; unit < tiles * slices; unit++) {
        const int64_t slice = unit % slices, j = unit / slices * width;
        const int64_t first = product->k * slice / slices, end = product->k * (slice + 1) / slices;
        const bool is_last = slice == slices - 1;
        g.columns = p.n - j < width ? (int)(p.n - j) : (int)width;
        g.beta = slice == 0 ? product->beta : 1.0f;
        g.next = NULL;
        if (is_far && unit + 1 < tiles * slices) {
            g.next = product->b + 2 * (is_last ? j + width : end * p.ldb + j);
        }
        p.k = end - first;
        p.a = product->a + 2 * first * p.col_a;
        pack(&g, product->b + 2 * (first * p.ldb + j));
        if (p.conj_a) {
            gauss_columns(&g, p.c + 2 * j, true);
        } else {
            gauss_columns(&g, p.c + 2 * j, false);
        }
    }
}

const cpu_compress_kernels cpu_compress_avx512 = CPU_COMPRESS_KERNELS(product_of_three);
#else
#include "backend/cpu/compress.h"
const cpu_compress_kernels cpu_compress_avx512 = {0};
#endif

/* Kernels of compressed gradients for CPUs with AVX2 and FMA; an empty table where the compiler has
 * none.
 *
 * A product is cut into tiles of C that are summed in registers: single elements of A, broadcast,
 * times rows of B. Complex numbers stay interleaved: one sum takes Re(a) b, one Im(a) b, and the
 * two are combined with a swap of re and im when the tile is done; conjugations are signs of that
 * combination. Every element of C is summed over k in the same order in whatever tile it lies, so
 * that results do not depend on how a product is cut. */
#include "backend/cpu/compress.h"

#ifdef __AVX2__
#include <immintrin.h>
#include <string.h>

enum {
    LANES = 8,           /* floats of a vector */
    LINE = 16,           /* floats of a cache line */
    RUN = 4,             /* vectors of a stretch at a time */
    VECTORS = 3,         /* vectors of a tile's row */
    ROWS_F32 = 4,        /* rows of a tile: 12 sums */
    ROWS_C64 = 2,        /* likewise, two sums each */
    L1_SHARE = 16 << 10, /* bytes of B that stay in the first cache beside A and C */
    L2_SHARE = 768 << 10 /* likewise in the second */
};

/* The first `count` (1..8) lanes. */
static inline __m256i lane_mask(int count) {
    const __m256i lane = _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7);
    return _mm256_cmpgt_epi32(_mm256_set1_epi32(count), lane);
}

/* By pieces: a masked store is slow on some CPUs. */
static inline void store_lanes(float *at, __m256 v, int count) {
    __m128 half = _mm256_castps256_ps128(v);
    if (count == LANES) {
        _mm256_storeu_ps(at, v);
        return;
    }
    if (count & 4) {
        _mm_storeu_ps(at, half);
        half = _mm256_extractf128_ps(v, 1);
        at += 4;
    }
    if (count & 2) {
        _mm_storel_pi((__m64 *)(void *)at, half);
        half = _mm_movehl_ps(half, half);
        at += 2;
    }
    if (count & 1) {
        _mm_store_ss(at, half);
    }
}

static inline __m256 load_lanes(const float *at, bool cut, __m256i mask) {
    return cut ? _mm256_maskload_ps(at, mask) : _mm256_loadu_ps(at);
}

/* What the tiles of a product share. Lengths and strides are in floats. */
typedef struct tiling {
    cpu_product p; /* of one slice of k */
    int rows;      /* of a tile */
    bool complex;
    bool adds;                            /* beta is not 0 */
    int last;                             /* lanes of the last vector of a row of C, 1..8 */
    int64_t safe;                         /* rows of B where a whole last vector lies inside of B */
    int64_t share;                        /* rows of B to prefetch per tile */
    __m256 alpha, beta, sign_re, sign_im; /* c64: signs of the two sums, before they are added */
} tiling;

/* c = alpha sum + beta c */
static inline void finish(const tiling *g, bool cut, float *c, __m256 sum) {
    sum = _mm256_mul_ps(g->alpha, sum);
    if (g->adds) {
        sum = _mm256_fmadd_ps(g->beta, load_lanes(c, cut, lane_mask(g->last)), sum);
    }
    if (cut) {
        store_lanes(c, sum, g->last);
    } else {
        _mm256_storeu_ps(c, sum);
    }
}

/* The sums of a tile. For complex numbers: with the real and with the imaginary part of a. */
typedef struct sums {
    __m256 re[ROWS_F32][VECTORS], im[ROWS_C64][VECTORS];
} sums;

/* In what follows the sizes are constants where a tile is called, so that the sums live in
 * registers: rows of the tile, vectors of a row, whether numbers are complex, whether the last
 * vector is cut. */

/* Adds up `depth` terms from a and b on. */
static inline __attribute__((always_inline)) void
add_terms(const tiling *g, int64_t depth, const float *a, const float *b, const int rows,
          const int vectors, const bool complex, const bool cut, sums *s) {
    const int64_t row_a = g->p.row_a, col_a = g->p.col_a, ldb = g->p.ldb;
    for (int64_t p = 0; p < depth; p++, a += col_a, b += ldb) {
        __m256 row[VECTORS];
#pragma GCC unroll 3
        for (int j = 0; j < vectors; j++) {
            row[j] = load_lanes(b + j * LANES, cut && j == vectors - 1, lane_mask(g->last));
        }
#pragma GCC unroll 4
        for (int i = 0; i < rows; i++) {
            const __m256 x = _mm256_broadcast_ss(a + i * row_a);
#pragma GCC unroll 3
            for (int j = 0; j < vectors; j++) {
                s->re[i][j] = _mm256_fmadd_ps(x, row[j], s->re[i][j]);
            }
            if (complex) {
                const __m256 y = _mm256_broadcast_ss(a + i * row_a + 1);
#pragma GCC unroll 3
                for (int j = 0; j < vectors; j++) {
                    s->im[i][j] = _mm256_fmadd_ps(y, row[j], s->im[i][j]);
                }
            }
        }
    }
}

/* Lanes beyond a cut are read while that is harmless, as masks cost time; they are not stored. */
static inline __attribute__((always_inline)) void tile(const tiling *g, const float *a,
                                                       const float *b, float *c, const int rows,
                                                       const int vectors, const bool complex,
                                                       const bool cut) {
    const int64_t k = g->p.k, safe = cut ? g->safe : k;
    sums s = {0};
    add_terms(g, safe, a, b, rows, vectors, complex, false, &s);
    if (cut) {
        add_terms(g, k - safe, a + safe * g->p.col_a, b + safe * g->p.ldb, rows, vectors, complex,
                  true, &s);
    }
#pragma GCC unroll 4
    for (int i = 0; i < rows; i++) {
#pragma GCC unroll 3
        for (int j = 0; j < vectors; j++) {
            __m256 sum = s.re[i][j];
            if (complex) {
                const __m256 swapped = _mm256_permute_ps(s.im[i][j], 0xb1);
                sum = _mm256_add_ps(_mm256_xor_ps(sum, g->sign_re),
                                    _mm256_xor_ps(swapped, g->sign_im));
            }
            finish(g, cut && j == vectors - 1, c + i * g->p.ldc + j * LANES, sum);
        }
    }
}

/* A tile of all rows, or of one. */
static inline __attribute__((always_inline)) void tile_rows(const tiling *g, const float *a,
                                                            const float *b, float *c, bool one,
                                                            const int vectors, const bool complex,
                                                            const bool cut) {
    if (one) {
        tile(g, a, b, c, 1, vectors, complex, cut);
    } else {
        tile(g, a, b, c, complex ? ROWS_C64 : ROWS_F32, vectors, complex, cut);
    }
}

/* `vectors` of a row, the last of them cut; 0 = a full tile. */
static inline __attribute__((always_inline)) void tile_vectors(const tiling *g, const float *a,
                                                               const float *b, float *c, bool one,
                                                               int vectors, const bool complex) {
    switch (vectors) {
    case 0:
        tile_rows(g, a, b, c, one, VECTORS, complex, false);
        break;
    case 1:
        tile_rows(g, a, b, c, one, 1, complex, true);
        break;
    case 2:
        tile_rows(g, a, b, c, one, 2, complex, true);
        break;
    default:
        tile_rows(g, a, b, c, one, VECTORS, complex, true);
    }
}

/* The tile of C at row i and column j. */
static inline void run_tile(const tiling *g, int64_t i, int64_t j) {
    const cpu_product *p = &g->p;
    const int64_t columns = p->n - j, rows = p->m - i;
    const int vectors = columns < VECTORS * LANES ? (int)((columns + LANES - 1) / LANES) : 0;
    const float *a = p->a + i * p->row_a;
    float *c = p->c + i * p->ldc + j;
    const bool one = rows < g->rows;
    for (int64_t r = 0; r < (one ? rows : 1); r++, a += p->row_a, c += p->ldc) {
        if (g->complex) {
            tile_vectors(g, a, p->b + j, c, one, vectors, true);
        } else {
            tile_vectors(g, a, p->b + j, c, one, vectors, false);
        }
    }
}

/* Asks for what the next tile needs while tile `i` of a column is summed: its rows of C, and if B
 * is not in cache, a share of the rows of B. Inlined by force: gcc drops calls of functions that do
 * nothing but prefetch. */
static inline __attribute__((always_inline)) void prefetch_share(const tiling *g, int64_t i,
                                                                 int64_t j) {
    const cpu_product *p = &g->p;
    for (int64_t row = i; row < i + g->rows && row < p->m; row++) {
        __builtin_prefetch(p->c + row * p->ldc + j, 1);
        __builtin_prefetch(p->c + row * p->ldc + j + LINE, 1);
    }
    const int64_t begin = i / g->rows * g->share;
    for (int64_t row = begin; row < begin + g->share && row < p->k; row++) {
        __builtin_prefetch(p->b + row * p->ldb + j);
        __builtin_prefetch(p->b + row * p->ldb + j + LINE);
    }
}

/* All of C for one slice of k. A small B stays in cache while rows of A and C stream by; of a large
 * one the tile does, and the next is fetched bit by bit while it is used. */
static void run_slice(tiling *g) {
    const cpu_product *p = &g->p;
    const int64_t width = VECTORS * LANES, size = sizeof(float);
    if (p->n * p->k * size <= L1_SHARE) {
        for (int64_t i = 0; i < p->m; i += g->rows) {
            for (int64_t j = 0; j < p->n; j += width) {
                run_tile(g, i, j);
            }
        }
        return;
    }
    const bool far = p->ldb * p->k * size > L2_SHARE;
    g->share = far ? (p->k * g->rows + p->m - 1) / p->m : 0;
    for (int64_t j = 0; j < p->n; j += width) {
        for (int64_t i = 0; i < p->m; i += g->rows) {
            if (j + 2 * width <= p->n) {
                prefetch_share(g, i, j + width);
            }
            run_tile(g, i, j);
        }
    }
}

static void run_product(tiling *g) {
    const cpu_product whole = g->p;
    g->rows = g->complex ? ROWS_C64 : ROWS_F32;
    g->alpha = _mm256_set1_ps(whole.alpha);
    g->last = (int)((whole.n - 1) % LANES) + 1;
    for (int64_t first = 0; first < whole.k; first += CPU_PRODUCT_DEPTH) {
        const int64_t left = whole.k - first;
        g->p.k = left < CPU_PRODUCT_DEPTH ? left : CPU_PRODUCT_DEPTH;
        g->p.a = whole.a + first * whole.col_a;
        g->p.b = whole.b + first * whole.ldb;
        const float beta = first == 0 ? whole.beta : 1.0f;
        g->beta = _mm256_set1_ps(beta);
        g->adds = beta != 0.0f;
        /* Row p is followed by k - 1 - p more, the last of which has n floats. */
        const int64_t unsafe = (LANES - g->last + whole.ldb - 1) / whole.ldb;
        g->safe = unsafe < g->p.k ? g->p.k - unsafe : 0;
        run_slice(g);
    }
}

static void product_f32(const cpu_product *product) {
    tiling g = {.p = *product};
    run_product(&g);
}

static void product_c64(const cpu_product *product) {
    const __m256 minus = _mm256_set1_ps(-0.0f), none = _mm256_setzero_ps();
    const __m256 minus_re = _mm256_blend_ps(none, minus, 0x55);
    const __m256 minus_im = _mm256_blend_ps(none, minus, 0xaa);
    /* With a = x + iy: a b = xb + iyb, conj(a) b = xb - iyb, a conj(b) = conj(conj(a) b). */
    tiling g = {.p = *product,
                .complex = true,
                .sign_re = product->conj_b ? minus_im : none,
                .sign_im = product->conj_b   ? none
                           : product->conj_a ? minus_im
                                             : minus_re};
    g.p.n *= 2;
    g.p.row_a *= 2;
    g.p.col_a *= 2;
    g.p.ldb *= 2;
    g.p.ldc *= 2;
    run_product(&g);
}

/* Eight reals from number `at` on, or `last` of them and zeros; `store` is a constant. */
static inline __attribute__((always_inline)) __m256
load_stored(const void *x, int64_t at, const tg_storage store, const bool cut, int last) {
    if (store == TG_STORE_FULL) {
        return load_lanes((const float *)x + at, cut, lane_mask(last));
    }
    const uint16_t *from = (const uint16_t *)x + at;
    uint16_t few[LANES] = {0};
    if (cut) {
        for (int i = 0; i < last; i++) {
            few[i] = from[i];
        }
        from = few;
    }
    const __m128i half = _mm_loadu_si128((const __m128i *)(const void *)from);
    return store == TG_STORE_F16
               ? _mm256_cvtph_ps(half)
               : _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(half), 16));
}

/* `vectors` (a constant) of a stretch from float `at` on. Steps between samples are often multiples
 * of a page, which all fall into one set of the first cache: whole lines are used at each visit. */
static inline __attribute__((always_inline)) void stretch_part_c64(const cpu_stretch *s,
                                                                   const tg_storage store,
                                                                   int64_t at, const int vectors,
                                                                   const bool cut, int last) {
    __m256 same[RUN], crossed[RUN];
    int64_t x = at, dy = at;
#pragma GCC unroll 4
    for (int j = 0; j < vectors; j++) {
        same[j] = crossed[j] = _mm256_setzero_ps();
    }
    for (int64_t b = 0; b < s->batch; b++, x += 2 * s->step_x, dy += 2 * s->step_dy) {
#pragma GCC unroll 4
        for (int j = 0; j < vectors; j++) {
            const __m256 u = load_stored(s->x, x + j * LANES, store, cut, last);
            const __m256 v = load_stored(s->dy, dy + j * LANES, store, cut, last);
            same[j] = _mm256_fmadd_ps(u, v, same[j]);
            crossed[j] = _mm256_fmadd_ps(u, _mm256_permute_ps(v, 0xb1), crossed[j]);
        }
    }
#pragma GCC unroll 4
    for (int j = 0; j < vectors; j++) { /* re = same.re + same.im, im = crossed.re - crossed.im */
        const __m256 re = _mm256_add_ps(same[j], _mm256_permute_ps(same[j], 0xb1));
        const __m256 im = _mm256_sub_ps(_mm256_permute_ps(crossed[j], 0xb1), crossed[j]);
        const __m256 sum = _mm256_mul_ps(_mm256_blend_ps(re, im, 0xaa), _mm256_set1_ps(s->scale));
        store_lanes(s->out + at + j * LANES, sum, cut ? last : LANES);
    }
}

static inline __attribute__((always_inline)) void stretch_part_f32(const cpu_stretch *s,
                                                                   const tg_storage store,
                                                                   int64_t at, const int vectors,
                                                                   const bool cut, int last) {
    __m256 sum[RUN];
    int64_t x = at, dy = at;
#pragma GCC unroll 4
    for (int j = 0; j < vectors; j++) {
        sum[j] = _mm256_setzero_ps();
    }
    for (int64_t b = 0; b < s->batch; b++, x += s->step_x, dy += s->step_dy) {
#pragma GCC unroll 4
        for (int j = 0; j < vectors; j++) {
            const __m256 u = load_stored(s->x, x + j * LANES, store, cut, last);
            const __m256 v = load_stored(s->dy, dy + j * LANES, store, cut, last);
            sum[j] = _mm256_fmadd_ps(u, v, sum[j]);
        }
    }
#pragma GCC unroll 4
    for (int j = 0; j < vectors; j++) {
        store_lanes(s->out + at + j * LANES, _mm256_mul_ps(sum[j], _mm256_set1_ps(s->scale)),
                    cut ? last : LANES);
    }
}

static inline __attribute__((always_inline)) void stretch_stored_c64(const cpu_stretch *s,
                                                                     const tg_storage store) {
    const int64_t n = 2 * s->n;
    int64_t at = 0;
    for (; at + RUN * LANES <= n; at += RUN * LANES) {
        stretch_part_c64(s, store, at, RUN, false, LANES);
    }
    for (; at < n; at += LANES) {
        stretch_part_c64(s, store, at, 1, true, n - at < LANES ? (int)(n - at) : LANES);
    }
}

static void stretch_c64(const cpu_stretch *s) {
    switch (s->store) {
    case TG_STORE_BF16:
        stretch_stored_c64(s, TG_STORE_BF16);
        break;
    case TG_STORE_F16:
        stretch_stored_c64(s, TG_STORE_F16);
        break;
    case TG_STORE_FULL:
        stretch_stored_c64(s, TG_STORE_FULL);
        break;
    }
}

static inline __attribute__((always_inline)) void stretch_stored_f32(const cpu_stretch *s,
                                                                     const tg_storage store) {
    int64_t at = 0;
    for (; at + RUN * LANES <= s->n; at += RUN * LANES) {
        stretch_part_f32(s, store, at, RUN, false, LANES);
    }
    for (; at < s->n; at += LANES) {
        stretch_part_f32(s, store, at, 1, true, s->n - at < LANES ? (int)(s->n - at) : LANES);
    }
}

static void stretch_f32(const cpu_stretch *s) {
    switch (s->store) {
    case TG_STORE_BF16:
        stretch_stored_f32(s, TG_STORE_BF16);
        break;
    case TG_STORE_F16:
        stretch_stored_f32(s, TG_STORE_F16);
        break;
    case TG_STORE_FULL:
        stretch_stored_f32(s, TG_STORE_FULL);
        break;
    }
}

/* The sum of all lanes. */
static inline float add_lanes(__m256 v) {
    __m128 half = _mm_add_ps(_mm256_castps256_ps128(v), _mm256_extractf128_ps(v, 1));
    half = _mm_add_ps(half, _mm_movehl_ps(half, half));
    return _mm_cvtss_f32(_mm_add_ss(half, _mm_movehdup_ps(half)));
}

static void dot_f32(int64_t n, const float *a, const float *b, float alpha, float *value) {
    __m256 sum = _mm256_setzero_ps();
    for (int64_t at = 0; at < n; at += LANES) {
        const __m256i mask = lane_mask(n - at < LANES ? (int)(n - at) : LANES);
        sum = _mm256_fmadd_ps(_mm256_maskload_ps(a + at, mask), _mm256_maskload_ps(b + at, mask),
                              sum);
    }
    *value += alpha * add_lanes(sum);
}

static void dot_c64(int64_t n, const float *a, const float *b, float alpha, float *value) {
    __m256 same = _mm256_setzero_ps(), crossed = _mm256_setzero_ps();
    for (int64_t at = 0; at < 2 * n; at += LANES) {
        const __m256i mask = lane_mask(2 * n - at < LANES ? (int)(2 * n - at) : LANES);
        const __m256 u = _mm256_maskload_ps(a + at, mask), v = _mm256_maskload_ps(b + at, mask);
        same = _mm256_fmadd_ps(u, v, same);
        crossed = _mm256_fmadd_ps(u, _mm256_permute_ps(v, 0xb1), crossed);
    }
    const __m256 minus_im = _mm256_setr_ps(0.0f, -0.0f, 0.0f, -0.0f, 0.0f, -0.0f, 0.0f, -0.0f);
    value[0] += alpha * add_lanes(_mm256_xor_ps(same, minus_im));
    value[1] += alpha * add_lanes(crossed);
}

const cpu_compress_kernels cpu_compress_avx2 = {
    .product_f32 = product_f32,
    .product_c64 = product_c64,
    .stretch_f32 = stretch_f32,
    .stretch_c64 = stretch_c64,
    .dot_f32 = dot_f32,
    .dot_c64 = dot_c64,
};
#else
const cpu_compress_kernels cpu_compress_avx2 = {0};
#endif

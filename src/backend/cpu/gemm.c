/* Matrix products: how they are shared out to threads, and by whom they are done.
 *
 * The longer of m and n is cut into units of a few rows or columns; units of all matrices of the
 * batch are dealt out evenly. Products with a short inner dimension, the bulk of compressing a
 * gradient, go to our own kernels (gemm.inc): OpenBLAS spends as much time there on copying A as on
 * computing. All others are serial OpenBLAS calls on tiles. */
#include "backend/cpu/cpu.h"

#include <limits.h>
#include <string.h>

#include "backend/check.h"

enum {
    GRAIN = 16,              /* rows or columns that a split keeps together */
    STREAMED = 512 * 1024,   /* bytes of A and C that one OpenBLAS call streams through */
    TINY = 1 << 14,          /* products of numbers that are not worth a thread */
    SHORT = 256,             /* the longest inner dimension of our kernels */
    PACKED = 32 * 1024,      /* bytes of B packed at a time: stay in the first cache .. */
    PACKED_TALL = 96 * 1024, /* .. or in the second, where A is too tall to be read twice */
    TALL = 256,
    STRIP = 4,       /* rows of C between two requests of memory for the next block of B */
    FEW_ROWS = 8,    /* fewer do not pay for packing B */
    MANY_ROWS = 1024 /* of an A whose columns are contiguous: more are better copied */
};

/* Of C. */
static int64_t matrices_of(const tg_gemm *g) {
    return g->batch > 1 && g->stride_c == 0 ? 1 : g->batch;
}

/* C = beta C where there is nothing to add. */
static tg_status scale_only(tg_backend *be, const tg_gemm *g) {
    const bool zero = g->beta.re == 0.0 && (g->beta.im == 0.0 || !tg_dtype_is_complex(g->dtype));
    const size_t size = tg_dtype_size(g->dtype);
    for (int64_t b = 0; b < matrices_of(g); b++) {
        for (int64_t i = 0; i < g->m; i++) {
            char *row = (char *)g->c + size * (size_t)(b * g->stride_c + i * g->ldc);
            if (zero) {
                memset(row, 0, size * (size_t)g->n);
            } else {
                TG_CALL(cpu_scale(be, g->dtype, g->n, g->beta, row));
            }
        }
    }
    return TG_OK;
}

/* ---- our own kernels ---- */

/* Some columns of op(B), (k, n). */
typedef struct block_b {
    const float *first;  /* its first entry */
    int64_t row, column; /* from one row or column to the next, in numbers */
    int64_t k, n;
} block_b;

/* The block times alpha, as panels: (panel, k, vectors of it), zero beyond n. Loops run along B's
 * rows in memory: p outside where these are rows of op(B), inside where they are columns. */
static void pack(const tg_gemm *g, const block_b *b, float *packed) {
    const bool pairs = g->dtype == TG_C64, lying = b->column == 1;
    const float re = (float)g->alpha.re, im = pairs ? (float)g->alpha.im : 0.0f;
    const float sign = pairs && (g->op_b == TG_OP_H || g->op_b == TG_OP_CONJ) ? -1.0f : 1.0f;
    const bool as_is = sign > 0.0f && re == 1.0f && im == 0.0f;
    const int64_t reals = pairs ? 2 : 1;
    for (int64_t j = 0, number = 0; j < b->n; number++) {
        const int64_t width = 8 / reals * cpu_panel_vectors(reals * b->n, number);
        const int64_t count = b->n - j < width ? b->n - j : width;
        const float *corner = b->first + reals * j * b->column;
        if (count < width) {
            memset(packed, 0, (size_t)(reals * b->k * width) * sizeof *packed);
        }
        for (int64_t o = 0; o < (lying ? b->k : count); o++) {
            const float *from = corner + reals * o * (lying ? b->row : b->column);
            float *to = packed + reals * o * (lying ? width : 1);
            const int64_t step = reals * (lying ? 1 : width), inner = lying ? count : b->k;
            if (lying && as_is) {
                memcpy(to, from, (size_t)(reals * inner) * sizeof *to);
                continue;
            }
            for (int64_t i = 0; pairs && i < inner; i++, to += step) {
                const float br = from[2 * i], bi = sign * from[2 * i + 1];
                to[0] = re * br - im * bi;
                to[1] = re * bi + im * br;
            }
            for (int64_t i = 0; !pairs && i < inner; i++, to += step) {
                *to = re * from[i];
            }
        }
        packed += reals * b->k * width;
        j += width;
    }
}

static bool is_ours(const tg_backend *be, const tg_gemm *g) {
    const cpu_kernels *k = ((const cpu_state *)be->state)->kernels;
    return k->gemm_c64 && (g->dtype == TG_C64 || g->dtype == TG_F32) && g->k <= SHORT &&
           g->m >= FEW_ROWS && !(cpu_is_transposed(g->op_a) && g->m > MANY_ROWS);
}

/* Asks for some rows (of `floats` floats, `distance` apart) of the next block of B ahead of its
 * packing, so that memory works while we compute. */
static void fetch_rows(const float *b, int64_t distance, int64_t floats, tg_range rows) {
    for (int64_t p = rows.begin; p < rows.end; p++) {
        for (int64_t i = 0; i < floats; i += 16) {
            __builtin_prefetch(b + p * distance + i, 0, 2);
        }
    }
}

/* All rows of one tile of C, from one block of B; `next` more columns of B will follow. */
static void gemm_block(const cpu_kernels *kernels, const tg_gemm *g, const cpu_gemm_rows *s,
                       int64_t m, const float *a, const block_b *b, int64_t next,
                       const float *packed, float *c) {
    const bool pairs = g->dtype == TG_C64;
    const int64_t reals = pairs ? 2 : 1;
    const int strips = (int)((m + STRIP - 1) / STRIP);
    for (int strip = 0; strip < strips; strip++) {
        const int64_t i = strip * STRIP, rows = m - i < STRIP ? m - i : STRIP;
        if (next > 0 && b->column == 1) {
            fetch_rows(b->first + reals * b->n, reals * b->row, reals * next,
                       tg_partition(b->k, 1, strips, strip));
        }
        (pairs ? kernels->gemm_c64 : kernels->gemm_f32)(s, rows, a + reals * i * s->a_row, b->n,
                                                        packed, c + reals * i * s->ldc);
    }
}

/* One tile: blocks of B are packed to stay in cache and multiplied with all rows of A. */
static void gemm_tile(const cpu_kernels *kernels, const tg_gemm *g, const cpu_tile *t,
                      float *packed) {
    const bool pairs = g->dtype == TG_C64;
    const int64_t reals = pairs ? 2 : 1, panel = 24 / reals; /* columns */
    const float *a = (const float *)g->a + reals * t->batch * g->stride_a;
    const float *b = (const float *)g->b + reals * t->batch * g->stride_b;
    float *c = (float *)g->c + reals * (t->batch * g->stride_c + t->i * g->ldc);
    const cpu_gemm_rows s = {.k = g->k,
                             .a_row = cpu_is_transposed(g->op_a) ? 1 : g->lda,
                             .a_column = cpu_is_transposed(g->op_a) ? g->lda : 1,
                             .ldc = g->ldc,
                             .conjugate_a = g->op_a == TG_OP_H || g->op_a == TG_OP_CONJ,
                             .reads_c = g->beta.re != 0.0 || (pairs && g->beta.im != 0.0),
                             .beta = {(float)g->beta.re, (float)g->beta.im}};
    int64_t width = (t->m > TALL ? PACKED_TALL : PACKED) / (4 * reals * g->k * panel) * panel;
    width = width < panel ? panel : width;
    for (int64_t j = t->j; j < t->j + t->n; j += width) {
        const int64_t left = t->j + t->n - j;
        block_b block = {.row = cpu_is_transposed(g->op_b) ? 1 : g->ldb,
                         .column = cpu_is_transposed(g->op_b) ? g->ldb : 1,
                         .k = g->k,
                         .n = left < width ? left : width};
        block.first = b + reals * j * block.column;
        pack(g, &block, packed);
        gemm_block(kernels, g, &s, t->m, a + reals * t->i * s.a_row, &block,
                   left - block.n < width ? left - block.n : width, packed, c + reals * j);
    }
}

/* ---- sharing out ---- */

/* Tiles along the longer of m and n; a matrix has `units` of `grain` rows or columns. */
typedef struct split {
    bool by_rows;
    bool ours;
    int64_t length; /* m or n */
    int64_t grain;
    int64_t units;
    int64_t most; /* units that one call takes */
} split;

static split split_of(const tg_backend *be, const tg_gemm *g) {
    split s = {.by_rows = g->m >= g->n, .ours = is_ours(be, g)};
    s.length = s.by_rows ? g->m : g->n;
    s.grain = s.ours && !s.by_rows ? 24 : GRAIN; /* whole panels */
    s.units = (s.length + s.grain - 1) / s.grain;
    const int64_t other = s.by_rows ? g->n : g->m;
    const int64_t bytes = (g->k + other) * (int64_t)tg_dtype_size(g->dtype) * s.grain;
    s.most = s.ours ? s.units : STREAMED / bytes;
    s.most = s.most < 64 ? 64 : s.most;
    return s;
}

/* A tile of C, of the matrices number t->batch or, of a sum, of all of the batch. */
static void multiply_tile(tg_backend *be, const tg_gemm *g, bool ours, int part, cpu_tile t) {
    tg_gemm one = *g;
    for (const int64_t end = g->stride_c == 0 ? g->batch : t.batch + 1; t.batch < end; t.batch++) {
        if (ours) {
            gemm_tile(cpu_state_of(be)->kernels, &one, &t, cpu_scratch_of(be, part));
        } else {
            cpu_blas_gemm(&one, &t);
        }
        one.beta = (tg_scalar){1.0, 0.0};
    }
}

/* Units [begin, end) of all matrices in turn. */
static void gemm_units(tg_backend *be, const tg_gemm *g, const split *s, int part, tg_range r) {
    while (r.begin < r.end) {
        const int64_t batch = r.begin / s->units, unit = r.begin % s->units;
        int64_t count = s->units - unit;
        count = count < r.end - r.begin ? count : r.end - r.begin;
        count = count < s->most ? count : s->most;
        const int64_t first = unit * s->grain;
        const int64_t last = first + count * s->grain;
        const int64_t span = (last < s->length ? last : s->length) - first;
        const cpu_tile t = s->by_rows ? (cpu_tile){batch, first, span, 0, g->n}
                                      : (cpu_tile){batch, 0, g->m, first, span};
        multiply_tile(be, g, s->ours, part, t);
        r.begin += count;
    }
}

tg_status cpu_gemm(tg_backend *be, const tg_gemm *g) {
    TG_CALL(tg_check_gemm(be->ctx, g));
    if (g->m == 0 || g->n == 0 || g->batch == 0) {
        return TG_OK;
    }
    const tg_dtype real = tg_dtype_real(g->dtype);
    const int64_t sizes[] = {g->m, g->n, g->k, g->lda, g->ldb, g->ldc};
    bool tuned = real == TG_F32 || real == TG_F64;
    for (int i = 0; i < 6; i++) {
        tuned = tuned && sizes[i] <= INT_MAX;
    }
    if (!tuned) {
        return be->ref->gemm(be, g);
    }
    if (g->k == 0) {
        return scale_only(be, g);
    }
    const split s = split_of(be, g);
    const int64_t units = matrices_of(g) * s.units;
    const double work = (double)g->batch * (double)g->m * (double)g->n * (double)g->k;
    const int parts = work < 2.0 * TINY ? 1 : cpu_parts(be, units, 1);
#pragma omp parallel for num_threads(cpu_team(be, parts)) schedule(static)
    for (int p = 0; p < parts; p++) {
        gemm_units(be, g, &s, p, tg_partition(units, 1, parts, p));
    }
    return TG_OK;
}

/* Matrix products: their division among threads, and the choice of kernels.
 *
 * The longer of m and n is divided into units, and the units of all matrices of the batch are
 * distributed evenly. Products with a short inner dimension go to the kernels of compressed
 * gradients (compress_kernels.inc): OpenBLAS spends as much time there on copying A as on
 * computing. All others are serial OpenBLAS calls, one per unit: OpenBLAS rounds an entry
 * differently depending on its position in a call, so calls depend only on the shape, and the
 * number of threads does not change the bits. */
#include <limits.h>
#include <omp.h>
#include <string.h>

#include "backend/check.h"
#include "backend/cpu/compress.h"
#include "base/minmax.h"

enum {
    GRAIN = 16,      /* rows or columns kept together */
    CALLS = 32,      /* OpenBLAS calls for a long matrix */
    MIN_CALL = 128,  /* rows or columns per call: fewer do not repay packing the other factor */
    MAX_CALL = 1024, /* more only while A and C have up to STREAMED bytes */
    STREAMED = 512 * 1024,
    TINY = 1 << 14,     /* fewer multiplications do not repay a thread */
    SHORT = 256,        /* the longest inner dimension of our kernels */
    COPIED = 64 * 1024, /* bytes of B copied at a time: they stay in the second cache */
    MAX_COPIED = 1024,  /* numbers of a column: at least 16 columns are copied at a time */
    FEW_ROWS = 8,       /* fewer do not repay our kernels */
    MANY_ROWS = 1024    /* of an A with contiguous columns: more are better copied */
};

/* Of C. */
static int64_t matrices_of(const tg_gemm *g) {
    return g->batch > 1 && g->stride_c == 0 ? 1 : g->batch;
}

/* C = beta C, for k = 0. */
static tg_status scale_only(tg_backend *be, const tg_gemm *g) {
    const bool zero = g->beta.re == 0.0 && (g->beta.im == 0.0 || !tg_dtype_is_complex(g->dtype));
    const size_t size = tg_dtype_size(g->dtype);
    for (int64_t b = 0; b < matrices_of(g); b++) {
        for (int64_t i = 0; i < g->m; i++) {
            char *row = (char *)g->c + size * (size_t)(b * g->stride_c + i * g->ldc);
            if (zero) {
                memset(row, 0, size * (size_t)g->n);
            } else {
                TG_CALL(cpu_axpy(be, g->dtype, g->n, g->beta, NULL, row));
            }
        }
    }
    return TG_OK;
}

/* ---- our own kernels ---- */

static bool is_conjugate(const tg_gemm *g, tg_op op) {
    return g->dtype == TG_C64 && (op == TG_OP_H || op == TG_OP_CONJ);
}

/* alpha op(B), columns [first, first + n), as (k, n); c64. Loops follow B's rows in memory. */
static void copy_block(const tg_gemm *g, const float *b, int64_t first, int64_t n, float *out) {
    const bool transposed = cpu_is_transposed(g->op_b);
    const float re = (float)g->alpha.re, im = (float)g->alpha.im;
    const float sign = is_conjugate(g, g->op_b) ? -1.0f : 1.0f;
    for (int64_t o = 0; o < (transposed ? n : g->k); o++) {
        const float *from = b + 2 * (transposed ? (first + o) * g->ldb : o * g->ldb + first);
        float *to = out + 2 * o * (transposed ? 1 : n);
        const int64_t inner = transposed ? g->k : n;
        for (int64_t i = 0; i < inner; i++, to += transposed ? 2 * n : 2) {
            const float br = from[2 * i], bi = sign * from[2 * i + 1];
            to[0] = re * br - im * bi;
            to[1] = re * bi + im * br;
        }
    }
}

static bool has_kernels(tg_backend *be) {
    return cpu_state_of(be)->compress != &cpu_compress_plain;
}

static bool is_ours(tg_backend *be, const tg_gemm *g) {
    return has_kernels(be) && (g->dtype == TG_C64 || g->dtype == TG_F32) && g->k <= SHORT &&
           g->m >= FEW_ROWS && !(cpu_is_transposed(g->op_a) && g->m > MANY_ROWS);
}

/* One tile. B is read in place, or copied block by block if its rows are not those of op(B), or are
 * conjugated or multiplied by a complex number. */
static void gemm_tile(tg_backend *be, const tg_gemm *g, const cpu_tile *t, float *room) {
    const cpu_state *state = cpu_state_of(be);
    const bool pairs = g->dtype == TG_C64, transposed = cpu_is_transposed(g->op_a);
    const bool in_place =
        !cpu_is_transposed(g->op_b) && !(pairs && (g->op_b == TG_OP_CONJ || g->alpha.im != 0.0));
    const int64_t reals = pairs ? 2 : 1, row_a = transposed ? 1 : g->lda;
    const float *b = (const float *)g->b + reals * t->batch * g->stride_b;
    float *c = (float *)g->c + reals * (t->batch * g->stride_c + t->i * g->ldc + t->j);
    cpu_product product = {
        .m = t->m,
        .k = g->k,
        .a = (const float *)g->a + reals * (t->batch * g->stride_a + t->i * row_a),
        .row_a = row_a,
        .col_a = transposed ? g->lda : 1,
        .conj_a = is_conjugate(g, g->op_a),
        .ldc = g->ldc,
        .alpha = in_place || !pairs ? (float)g->alpha.re : 1.0f,
        .beta = (float)g->beta.re,
    };
    if (pairs && g->beta.im != 0.0) {
        for (int64_t i = 0; i < t->m; i++) {
            state->kernels->f32.update(true, t->n, g->beta, NULL, c + 2 * i * g->ldc);
        }
        product.beta = 1.0f;
    }
    const int64_t most = in_place ? t->n : COPIED / (4 * reals * g->k);
    for (int64_t j = 0; j < t->n; j += most) {
        product.n = t->n - j < most ? t->n - j : most;
        product.b = in_place ? b + reals * (t->j + j) : room;
        product.ldb = in_place ? g->ldb : product.n;
        product.c = c + reals * j;
        if (!in_place && pairs) {
            copy_block(g, b, t->j + j, product.n, room);
        } else if (!in_place) {
            state->compress->transpose(product.n, g->k, b + (t->j + j) * g->ldb, g->ldb, room,
                                       product.n);
        }
        state->compress->product(pairs, &product);
    }
}

void cpu_sgemm(tg_backend *be, bool transpose_a, bool transpose_b, int64_t m, int64_t n, int64_t k,
               float alpha, const float *a, int64_t lda, const float *b, int64_t ldb, float beta,
               float *c, int64_t ldc) {
    const tg_gemm g = {.dtype = TG_F32,
                       .op_a = transpose_a ? TG_OP_T : TG_OP_N,
                       .op_b = transpose_b ? TG_OP_T : TG_OP_N,
                       .m = m,
                       .n = n,
                       .k = k,
                       .alpha = {(double)alpha, 0.0},
                       .beta = {(double)beta, 0.0},
                       .a = a,
                       .lda = lda,
                       .b = b,
                       .ldb = ldb,
                       .c = c,
                       .ldc = ldc};
    const cpu_tile whole = {0, 0, m, 0, n};
    if (has_kernels(be) && (!transpose_b || k <= MAX_COPIED)) {
        gemm_tile(be, &g, &whole, cpu_scratch_of(be, omp_get_thread_num()));
    } else {
        cpu_blas_gemm(&g, &whole);
    }
}

/* ---- division of work ---- */

/* Tiles along the longer of m and n; a matrix has `units` of `grain` rows or columns. */
typedef struct split {
    bool by_rows;
    bool ours;
    int64_t length; /* m or n */
    int64_t grain;
    int64_t units;
} split;

/* Rows or columns per OpenBLAS call; each has `bytes` in A and C. */
static int64_t call_length(int64_t length, int64_t bytes) {
    const int64_t share = tg_max(length / CALLS, MIN_CALL);
    return tg_min(share, tg_max(STREAMED / bytes, MAX_CALL)) / GRAIN * GRAIN;
}

static split split_of(tg_backend *be, const tg_gemm *g) {
    split s = {.by_rows = g->m >= g->n, .ours = is_ours(be, g)};
    s.length = s.by_rows ? g->m : g->n;
    const int64_t other = s.by_rows ? g->n : g->m;
    const int64_t bytes = (g->k + other) * (int64_t)tg_dtype_size(g->dtype);
    s.grain = !s.ours ? call_length(s.length, bytes) : s.by_rows ? GRAIN : 24; /* whole panels */
    s.units = (s.length + s.grain - 1) / s.grain;
    return s;
}

/* A tile of C for matrix t->batch or, for a sum, for the whole batch. */
static void multiply_tile(tg_backend *be, const tg_gemm *g, bool ours, int part, cpu_tile t) {
    tg_gemm one = *g;
    for (const int64_t end = g->stride_c == 0 ? g->batch : t.batch + 1; t.batch < end; t.batch++) {
        if (ours) {
            gemm_tile(be, &one, &t, cpu_scratch_of(be, part));
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
        count = s->ours ? count : 1;
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

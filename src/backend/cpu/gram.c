/* Gram matrices of one mode of x (left, dim, right), accumulated in f64.
 *
 * Panels of x are widened to f64 in cached scratch, then multiplied by BLAS. A panel is P (dim, w),
 * its columns some (l, r), and adds P P^H; for right = 1 it is P (w, dim) as stored and adds
 * conj(P^H P). Small matrices: every part sums its panels into a separate matrix, and these are
 * added in the order of the parts. Large ones: every part owns tiles of the result and visits all
 * panels. Only the lower triangle is computed, the upper one mirrors it. */
#include "backend/cpu/cpu.h"

#include <string.h>

#include "backend/check.h"

#define PANEL_BYTES ((size_t)1 << 19) /* of a panel in f64, and of a partial matrix */

_Static_assert(2 * PANEL_BYTES <= CPU_SCRATCH, "both are in the scratch of a thread");

typedef struct gram_task {
    const cpu_kernels *kernels;
    tg_dtype dtype; /* of x */
    tg_dtype wide;  /* f64 or c128 */
    int64_t left, dim, right;
    const char *x;
    const tg_bitmap *mask;
    double *out;
} gram_task;

/* Zeroes the masked ones among entries first .. first + count - 1 of x in `wide`. */
static void apply_mask(const gram_task *t, int64_t first, int64_t count, double *wide) {
    const int parts = t->wide == TG_C128 ? 2 : 1;
    const int64_t end = first + count;
    for (int64_t w = first / 64; w * 64 < end; w++) {
        uint64_t bits = t->mask->words[w];
        if (w * 64 < first) {
            bits &= ~(uint64_t)0 << (first - w * 64);
        }
        while (bits) {
            const int64_t i = w * 64 + __builtin_ctzll(bits);
            if (i >= end) {
                break;
            }
            memset(wide + parts * (i - first), 0, (size_t)parts * sizeof *wide);
            bits &= bits - 1;
        }
    }
}

/* Entries first .. first + count - 1 of x, widened and masked. */
static void load_run(const gram_task *t, int64_t first, int64_t count, double *wide) {
    const int parts = t->wide == TG_C128 ? 2 : 1;
    t->kernels->load_f64(tg_dtype_real(t->dtype), parts * count,
                         t->x + (size_t)first * tg_dtype_size(t->dtype), wide);
    if (t->mask) {
        apply_mask(t, first, count, wide);
    }
}

/* Panels: blocks of `lefts` l and `rights` r. */
typedef struct panels {
    int64_t lefts, rights;    /* of a full panel */
    int64_t along_l, along_r; /* number of panels along each */
    int64_t width;            /* lefts * rights, columns of a full panel */
} panels;

static panels panels_of(const gram_task *t, int64_t rows) {
    const int64_t most = (int64_t)(PANEL_BYTES / tg_dtype_size(t->wide)) / rows;
    panels p = {.rights = t->right < most ? t->right : most};
    p.lefts = most / p.rights;
    p.lefts = p.lefts < t->left ? p.lefts : t->left;
    p.along_l = (t->left + p.lefts - 1) / p.lefts;
    p.along_r = (t->right + p.rights - 1) / p.rights;
    p.width = p.lefts * p.rights;
    return p;
}

/* Rows [i0, i0 + rows) of panel number `index`, into p (rows, width), or (columns, rows) for
 * right = 1; returns the number of columns. */
static int64_t load_panel(const gram_task *t, const panels *s, int64_t index, int64_t i0,
                          int64_t rows, double *p) {
    const int parts = t->wide == TG_C128 ? 2 : 1;
    const int64_t l0 = index / s->along_r * s->lefts, r0 = index % s->along_r * s->rights;
    const int64_t lefts = t->left - l0 < s->lefts ? t->left - l0 : s->lefts;
    const int64_t rights = t->right - r0 < s->rights ? t->right - r0 : s->rights;
    if (t->right == 1 && rows == t->dim) {
        load_run(t, l0 * rows, lefts * rows, p);
        return lefts;
    }
    for (int64_t l = 0; l < lefts; l++) {
        if (t->right == 1) {
            load_run(t, (l0 + l) * t->dim + i0, rows, p + parts * l * rows);
            continue;
        }
        for (int64_t i = 0; i < rows; i++) {
            load_run(t, ((l0 + l) * t->dim + i0 + i) * t->right + r0, rights,
                     p + parts * (i * s->width + l * rights));
        }
    }
    return lefts * rights;
}

/* Panels [begin, end) into the lower triangle of sum (dim, dim). */
static void sum_panels(const gram_task *t, const panels *s, tg_range r, double *panel,
                       double *sum) {
    for (int64_t index = r.begin; index < r.end; index++) {
        const int64_t columns = load_panel(t, s, index, 0, t->dim, panel);
        const bool lying = t->right == 1;
        cpu_herk(t->wide, lying, t->dim, columns, panel, lying ? t->dim : s->width, sum, t->dim);
    }
}

/* Every part sums its share of the panels. */
static void gram_small(tg_backend *be, const gram_task *t) {
    const int64_t reals = t->dim * t->dim * (t->wide == TG_C128 ? 2 : 1);
    const panels s = panels_of(t, t->dim);
    const int parts = cpu_parts(be, s.along_l * s.along_r, 1);
#pragma omp parallel for num_threads(cpu_team(be, parts)) schedule(static)
    for (int p = 0; p < parts; p++) {
        double *sum = cpu_scratch_of(be, p);
        double *panel = sum + PANEL_BYTES / sizeof *sum;
        memset(sum, 0, (size_t)reals * sizeof *sum);
        sum_panels(t, &s, tg_partition(s.along_l * s.along_r, 1, parts, p), panel, sum);
    }
    memset(t->out, 0, (size_t)reals * sizeof *t->out);
    for (int p = 0; p < parts; p++) {
        const double *sum = cpu_scratch_of(be, p);
        for (int64_t i = 0; i < reals; i++) {
            t->out[i] += sum[i];
        }
    }
}

enum { TILE = 128 }; /* rows and columns of a tile of a large matrix */

/* Tile (i, j) of the result, over all panels; a and b are scratch for a panel each. */
static void sum_tile(const gram_task *t, const panels *s, int64_t i, int64_t j, double *a,
                     double *b) {
    const int64_t m = t->dim - i * TILE < TILE ? t->dim - i * TILE : TILE;
    const int64_t n = t->dim - j * TILE < TILE ? t->dim - j * TILE : TILE;
    const bool lying = t->right == 1;
    double *c = t->out + (t->wide == TG_C128 ? 2 : 1) * (i * TILE * t->dim + j * TILE);
    for (int64_t index = 0; index < s->along_l * s->along_r; index++) {
        const int64_t columns = load_panel(t, s, index, i * TILE, m, a);
        if (i != j) {
            load_panel(t, s, index, j * TILE, n, b);
        }
        cpu_gemm_nh(t->wide, lying, m, n, columns, a, lying ? m : s->width, i == j ? a : b,
                    lying ? n : s->width, c, t->dim);
    }
}

/* Every part computes its share of the tiles (i, j), j <= i, of the lower triangle. */
static void gram_large(tg_backend *be, const gram_task *t) {
    const panels s = panels_of(t, TILE);
    const int64_t side = (t->dim + TILE - 1) / TILE, tiles = side * (side + 1) / 2;
    const int parts = cpu_parts(be, tiles, 1);
    memset(t->out, 0, (size_t)(t->dim * t->dim) * tg_dtype_size(t->wide));
#pragma omp parallel for num_threads(cpu_team(be, parts)) schedule(static)
    for (int p = 0; p < parts; p++) {
        const tg_range r = tg_partition(tiles, 1, parts, p);
        double *a = cpu_scratch_of(be, p), *b = a + PANEL_BYTES / sizeof *a;
        int64_t number = 0;
        for (int64_t i = 0; i < side; i++) {
            for (int64_t j = 0; j <= i; j++, number++) {
                if (number >= r.begin && number < r.end) {
                    sum_tile(t, &s, i, j, a, b);
                }
            }
        }
    }
}

/* The upper triangle from the lower one, which holds the conjugate if `conjugated`. */
static void mirror(const gram_task *t, bool conjugated) {
    const int64_t n = t->dim;
    if (t->wide == TG_F64) {
        for (int64_t i = 0; i < n; i++) {
            for (int64_t j = 0; j < i; j++) {
                t->out[j * n + i] = t->out[i * n + j];
            }
        }
        return;
    }
    for (int64_t i = 0; i < n; i++) {
        for (int64_t j = 0; j <= i; j++) {
            double *lower = t->out + 2 * (i * n + j), *upper = t->out + 2 * (j * n + i);
            const double re = lower[0], im = i == j ? 0.0 : (conjugated ? -lower[1] : lower[1]);
            lower[0] = upper[0] = re;
            upper[1] = -im;
            lower[1] = im;
        }
    }
}

tg_status cpu_gram(tg_backend *be, tg_dtype dtype, int64_t left, int64_t dim, int64_t right,
                   const void *x, const tg_bitmap *mask, void *out) {
    tg_status status = tg_check_float(be->ctx, "gram", dtype);
    if (status != TG_OK || dim <= 0) {
        return status;
    }
    const gram_task t = {.kernels = cpu_state_of(be)->kernels,
                         .dtype = dtype,
                         .wide = tg_dtype_is_complex(dtype) ? TG_C128 : TG_F64,
                         .left = left,
                         .dim = dim,
                         .right = right,
                         .x = x,
                         .mask = mask,
                         .out = out};
    const size_t bytes = (size_t)dim * (size_t)dim * tg_dtype_size(t.wide);
    if (left == 0 || right == 0) {
        memset(out, 0, bytes);
        return TG_OK;
    }
    const bool small = bytes <= PANEL_BYTES;
    if (small) {
        gram_small(be, &t);
    } else {
        gram_large(be, &t);
    }
    mirror(&t, small && right == 1);
    return TG_OK;
}

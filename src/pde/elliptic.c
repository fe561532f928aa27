/* The scheme: the flow between neighbouring points is t (u_P - u_Q), t the harmonic mean of a at
 * both; the net outflow of a point equals h^2 f. Outflow of one point is inflow of the other, even
 * where a jumps, so mass is conserved exactly and A is symmetric.
 *
 * The preconditioner is one V-cycle. A level of m intervals has a coarser one of ceil(m / 2) equal
 * intervals for any m; interpolation is bilinear between the true positions, restriction its
 * transpose. The coarse coefficient is the local geometric mean, the effective one of two equal
 * phases. Smoothing is red-black Gauss-Seidel, in reverse order after the correction, which keeps
 * the cycle symmetric as conjugate gradients require.
 *
 * Arrays hold (n, n) points with the boundary, where u is 0, so no loop checks for edges. */
#include "pde/solvers.h"

#include <math.h>
#include <string.h>

#include "base/memory.h"

enum { MAX_LEVELS = 20 };

typedef struct level {
    int64_t n;       /* points per dimension */
    double *a;       /* (n, n): the coefficient */
    double *down;    /* (n, n): t between (i, j) and (i + 1, j) */
    double *right;   /* (n, n): t between (i, j) and (i, j + 1) */
    double *inverse; /* (n, n): 1 / (sum of the four t around a point) */
    double *u, *f; /* (n, n): correction and right-hand side; the finest level uses the caller's */
    double *rest;  /* (n, n): residual */
    /* To the next coarser level: point i is at cell[i] + share[i] of its intervals. */
    int64_t *cell; /* (n), at most coarse n - 2 */
    double *share; /* (n), 0 .. 1 */
    double *line;  /* (coarse n) */
} level;

struct tg_elliptic {
    int levels;
    level level[MAX_LEVELS];                           /* finest first */
    double *residual, *direction, *image, *correction; /* (n, n) each, of the finest */
    double *ones;                                      /* (n, n) */
};

/* ---- levels ---- */

static void place_points(level *fine, int64_t coarse_n) {
    const int64_t m = fine->n - 1, coarse = coarse_n - 1;
    for (int64_t i = 0; i <= m; i++) {
        const int64_t at = i * coarse / m;
        fine->cell[i] = at < coarse ? at : coarse - 1; /* the last point: share 1 of the last */
        fine->share[i] = (double)(i * coarse - fine->cell[i] * m) / (double)m;
    }
}

static tg_status open_level(tg_pool *pool, int64_t n, level *v) {
    double **const arrays[] = {&v->a, &v->down, &v->right, &v->inverse, &v->u, &v->f, &v->rest};
    v->n = n;
    for (int i = 0; i < 7; i++) {
        TG_CALL(TG_POOL(pool, *arrays[i], n * n));
    }
    TG_CALL(TG_POOL(pool, v->share, n));
    TG_CALL(TG_POOL(pool, v->line, n));
    return TG_POOL(pool, v->cell, n);
}

tg_status tg_elliptic_create(tg_pool *pool, int64_t n, tg_elliptic **out) {
    *out = NULL;
    if (n < 3 || n > 1 << 20) {
        return tg_fail(pool->ctx, TG_E_ARGUMENT, "elliptic: expected 3 to %d points, found %lld",
                       1 << 20, (long long)n);
    }
    TG_CALL(TG_POOL(pool, *out, 1));
    tg_elliptic *e = *out;
    double **const arrays[] = {&e->residual, &e->direction, &e->image, &e->correction, &e->ones};
    for (int i = 0; i < 5; i++) {
        TG_CALL(TG_POOL(pool, *arrays[i], n * n));
    }
    for (int64_t p = 0; p < n * n; p++) {
        e->ones[p] = 1.0;
    }
    for (int64_t m = n - 1;; m = (m + 1) / 2) {
        TG_CALL(open_level(pool, m + 1, &e->level[e->levels++]));
        if (e->levels > 1) {
            place_points(&e->level[e->levels - 2], m + 1);
        }
        if (m == 2) {
            return TG_OK;
        }
    }
}

/* ---- the operator on each level ---- */

static double harmonic(double a, double b) {
    return 2.0 * a * b / (a + b);
}

static void set_faces(level *v) {
    const int64_t n = v->n;
    for (int64_t i = 0; i < n; i++) {
        for (int64_t j = 0; j < n; j++) {
            const int64_t p = i * n + j;
            v->down[p] = i + 1 < n ? harmonic(v->a[p], v->a[p + n]) : 0.0;
            v->right[p] = j + 1 < n ? harmonic(v->a[p], v->a[p + 1]) : 0.0;
        }
    }
    for (int64_t i = 1; i < n - 1; i++) {
        for (int64_t j = 1; j < n - 1; j++) {
            const int64_t p = i * n + j;
            v->inverse[p] = 1.0 / (v->down[p - n] + v->down[p] + v->right[p - 1] + v->right[p]);
        }
    }
}

/* The transpose of interpolation: adds the weighted values at the points of `fine` to those of
 * `coarse`. */
static void restrict_to(const level *fine, const double *from, const level *coarse, double *to) {
    const int64_t n = fine->n, m = coarse->n;
    memset(to, 0, (size_t)(m * m) * sizeof *to);
    for (int64_t i = 0; i < n; i++) {
        double *line = fine->line;
        memset(line, 0, (size_t)m * sizeof *line);
        for (int64_t j = 0; j < n; j++) {
            const double value = from[i * n + j], share = fine->share[j];
            line[fine->cell[j]] += (1.0 - share) * value;
            line[fine->cell[j] + 1] += share * value;
        }
        double *upper = to + fine->cell[i] * m, *lower = upper + m;
        const double share = fine->share[i];
        for (int64_t j = 0; j < m; j++) {
            upper[j] += (1.0 - share) * line[j];
            lower[j] += share * line[j];
        }
    }
}

/* Adds the interpolated correction at inner points. */
static void interpolate(const level *coarse, const double *from, const level *fine, double *to) {
    const int64_t n = fine->n, m = coarse->n;
    for (int64_t i = 1; i < n - 1; i++) {
        double *line = fine->line;
        const double *upper = from + fine->cell[i] * m, *lower = upper + m;
        const double share = fine->share[i];
        for (int64_t j = 0; j < m; j++) {
            line[j] = (1.0 - share) * upper[j] + share * lower[j];
        }
        for (int64_t j = 1; j < n - 1; j++) {
            const double *cell = line + fine->cell[j];
            to[i * n + j] += cell[0] + fine->share[j] * (cell[1] - cell[0]);
        }
    }
}

void tg_elliptic_set(tg_elliptic *e, const double *a) {
    level *finest = &e->level[0];
    const int64_t points = finest->n * finest->n;
    memcpy(finest->a, a, (size_t)points * sizeof *a);
    set_faces(finest);
    for (int64_t p = 0; p < points; p++) {
        finest->rest[p] = log(a[p]); /* `rest` carries the logarithms down */
    }
    for (int l = 1; l < e->levels; l++) {
        level *fine = &e->level[l - 1], *coarse = &e->level[l];
        restrict_to(fine, fine->rest, coarse, coarse->rest);
        restrict_to(fine, e->ones, coarse, coarse->a); /* sums of weights, temporarily */
        for (int64_t p = 0; p < coarse->n * coarse->n; p++) {
            coarse->rest[p] /= coarse->a[p];
            coarse->a[p] = exp(coarse->rest[p]);
        }
        set_faces(coarse);
    }
}

/* Net outflow of point p. */
static double outflow(const level *v, const double *u, int64_t p) {
    const int64_t n = v->n;
    return v->down[p - n] * (u[p] - u[p - n]) + v->down[p] * (u[p] - u[p + n]) +
           v->right[p - 1] * (u[p] - u[p - 1]) + v->right[p] * (u[p] - u[p + 1]);
}

void tg_elliptic_apply(const tg_elliptic *e, const double *u, double *out) {
    const level *v = &e->level[0];
    memset(out, 0, (size_t)(v->n * v->n) * sizeof *out);
    for (int64_t i = 1; i < v->n - 1; i++) {
        for (int64_t j = 1; j < v->n - 1; j++) {
            out[i * v->n + j] = outflow(v, u, i * v->n + j);
        }
    }
}

/* ---- the cycle ---- */

/* One half sweep of Gauss-Seidel, over the points with i + j of one parity. */
static void smooth(const level *v, int parity, const double *f, double *u) {
    const int64_t n = v->n;
    for (int64_t i = 1; i < n - 1; i++) {
        for (int64_t p = i * n + 1 + (i + 1 + parity) % 2; p < i * n + n - 1; p += 2) {
            u[p] = v->inverse[p] * (f[p] + v->down[p - n] * u[p - n] + v->down[p] * u[p + n] +
                                    v->right[p - 1] * u[p - 1] + v->right[p] * u[p + 1]);
        }
    }
}

/* u ~ A^{-1} f on level l. */
static void cycle(tg_elliptic *e, int l, const double *f, double *u) {
    level *v = &e->level[l];
    const int64_t n = v->n;
    memset(u, 0, (size_t)(n * n) * sizeof *u);
    smooth(v, 0, f, u);
    if (l + 1 == e->levels) {
        return; /* a single point */
    }
    smooth(v, 1, f, u);
    memset(v->rest, 0, (size_t)(n * n) * sizeof *u);
    for (int64_t i = 1; i < n - 1; i++) {
        for (int64_t p = i * n + 1; p < i * n + n - 1; p++) {
            v->rest[p] = f[p] - outflow(v, u, p);
        }
    }
    level *coarse = &e->level[l + 1];
    restrict_to(v, v->rest, coarse, coarse->f);
    cycle(e, l + 1, coarse->f, coarse->u);
    interpolate(coarse, coarse->u, v, u);
    smooth(v, 1, f, u);
    smooth(v, 0, f, u);
}

/* ---- conjugate gradients ---- */

static double dot(int64_t count, const double *x, const double *y) {
    double sum = 0.0;
    for (int64_t i = 0; i < count; i++) {
        sum += x[i] * y[i];
    }
    return sum;
}

bool tg_elliptic_solve(tg_elliptic *e, const double *f, double tolerance, int limit, double *u,
                       int *iterations) {
    const int64_t n = e->level[0].n, points = n * n;
    const double h = 1.0 / (double)(n - 1);
    memset(u, 0, (size_t)points * sizeof *u);
    memset(e->residual, 0, (size_t)points * sizeof *u);
    for (int64_t i = 1; i < n - 1; i++) {
        for (int64_t p = i * n + 1; p < i * n + n - 1; p++) {
            e->residual[p] = h * h * f[p];
        }
    }
    memset(e->direction, 0, (size_t)points * sizeof *u);
    const double goal = tolerance * sqrt(dot(points, e->residual, e->residual));
    double size = goal > 0.0 ? HUGE_VAL : 0.0, product = 1.0;
    int count = 0;
    while (size > goal && count < limit) {
        cycle(e, 0, e->residual, e->correction);
        const double next = dot(points, e->residual, e->correction);
        for (int64_t p = 0; p < points; p++) {
            e->direction[p] = e->correction[p] + next / product * e->direction[p];
        }
        product = next;
        tg_elliptic_apply(e, e->direction, e->image);
        const double length = product / dot(points, e->direction, e->image);
        for (int64_t p = 0; p < points; p++) {
            u[p] += length * e->direction[p];
            e->residual[p] -= length * e->image[p];
        }
        size = sqrt(dot(points, e->residual, e->residual));
        count++;
    }
    if (iterations) {
        *iterations = count;
    }
    return size <= goal;
}

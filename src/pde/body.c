/* The boundary integral equation of potential flow past a body.
 *
 * The potential of the whole flow, Phi = far . y + (decaying at infinity), has no normal derivative
 * on the surface. Green's formula then leaves only the double layer, and the solid angle of the
 * surface, -1/2 on it, removes the singularity of the kernel:
 *
 *     Phi(x) = far . x + int K(x, y) (Phi(y) - Phi(x)) dS_y,   K = n_y . (x - y) / (4 pi |x -
 * y|^3).
 *
 * Phi is expanded in spherical harmonics of the parameter w up to a degree L. For each of the
 * (L + 1) x (2 L + 2) nodes x of a Gauss grid the integral is taken on a grid whose pole is x: in
 * polar coordinates around it the integrand is smooth (K is O(1/r), the difference O(r), the area
 * O(r)), so that errors fall faster than any power of L. Testing with harmonics on the Gauss grid
 * gives a square system for the coefficients. Everything in double. */
#include "pde/solvers.h"

#include <math.h>
#include <string.h>

#include "base/memory.h"

#define PI 3.14159265358979323846

/* ---- harmonics ---- */

/* Y_lm = Q_lm(z) Re (x + i y)^m, or Im. Q by the recursion in l,
 * Q_lm = up_lm z Q_(l-1)m - down_lm Q_(l-2)m, from Q_mm = first_m. */
struct tg_harmonics {
    int order;
    double *first;     /* (order + 1) */
    double *up, *down; /* (order + 1, order + 1): l, m */
};

tg_status tg_harmonics_create(tg_pool *pool, int order, tg_harmonics **out) {
    const int64_t n = order + 1;
    TG_CALL(TG_POOL(pool, *out, 1));
    tg_harmonics *h = *out;
    h->order = order;
    TG_CALL(TG_POOL(pool, h->first, n));
    TG_CALL(TG_POOL(pool, h->up, n * n));
    TG_CALL(TG_POOL(pool, h->down, n * n));
    double norm = 0.5 / PI; /* m > 0: sin and cos share the square */
    for (int m = 0; m <= order; m++) {
        norm *= m > 0 ? (2.0 * m + 1.0) / (2.0 * m) : 1.0;
        h->first[m] = sqrt(m > 0 ? norm : 0.5 * norm);
        double before = 0.0;
        for (int l = m + 1; l <= order; l++) {
            const double up = sqrt((4.0 * l * l - 1.0) / ((double)l * l - (double)m * m));
            h->up[l * n + m] = up;
            h->down[l * n + m] = l > m + 1 ? up / before : 0.0;
            before = up;
        }
    }
    return TG_OK;
}

/* Values and gradients of one pair +-m at one l, from Q, Q' and (x + i y)^m, ^(m-1). */
static void put_pair(int l, int m, const double q[2], const double power[4], double *value,
                     double (*gradient)[3]) {
    const int at = l * l + l;
    value[at + m] = q[0] * power[0];
    value[at - m] = q[0] * power[m > 0 ? 1 : 0];
    if (gradient) {
        const double slope = m * q[0];
        gradient[at - m][0] = slope * power[3];
        gradient[at - m][1] = slope * power[2];
        gradient[at - m][2] = q[1] * power[1];
        gradient[at + m][0] = slope * power[2];
        gradient[at + m][1] = -slope * power[3];
        gradient[at + m][2] = q[1] * power[0];
    }
}

void tg_harmonics_at(const tg_harmonics *h, int degree, const double w[3], double *value,
                     double (*gradient)[3]) {
    const int n = h->order + 1;
    double power[4] = {1.0, 0.0, 0.0, 0.0}; /* (x + i y)^m and ^(m-1), re and im */
    for (int m = 0; m <= degree; m++) {
        double q[2] = {h->first[m], 0.0}, before[2] = {0.0, 0.0};
        put_pair(m, m, q, power, value, gradient);
        for (int l = m + 1; l <= degree; l++) {
            const double up = h->up[l * n + m], down = h->down[l * n + m];
            const double next[2] = {up * w[2] * q[0] - down * before[0],
                                    up * (q[0] + w[2] * q[1]) - down * before[1]};
            memcpy(before, q, sizeof before);
            memcpy(q, next, sizeof q);
            put_pair(l, m, q, power, value, gradient);
        }
        const double re = power[0], im = power[1];
        power[0] = w[0] * re - w[1] * im;
        power[1] = w[0] * im + w[1] * re;
        power[2] = re;
        power[3] = im;
    }
}

/* ---- surfaces ---- */

static double dot(const double a[3], const double b[3]) {
    return a[0] * b[0] + a[1] * b[1] + a[2] * b[2];
}

/* The radius before the axes, and its gradient along the sphere. */
static double radius_at(const tg_harmonics *h, const tg_body *body, const double w[3],
                        double slope[3]) {
    enum { COUNT = (TG_BODY_MAX_DEGREE + 1) * (TG_BODY_MAX_DEGREE + 1) };
    double value[COUNT], gradient[COUNT][3], radius = 1.0;
    const int count = (body->degree + 1) * (body->degree + 1);
    slope[0] = slope[1] = slope[2] = 0.0;
    tg_harmonics_at(h, body->degree, w, value, gradient);
    for (int k = 0; k < count; k++) {
        radius += body->bumps[k] * value[k];
        for (int i = 0; i < 3; i++) {
            slope[i] += body->bumps[k] * gradient[k][i];
        }
    }
    const double across = dot(slope, w);
    for (int i = 0; i < 3; i++) {
        slope[i] -= across * w[i];
    }
    return radius;
}

void tg_body_point(const tg_harmonics *h, const tg_body *body, const double w[3], double point[3],
                   double area[3]) {
    double slope[3];
    const double radius = radius_at(h, body, w, slope);
    const double *axes = body->axes, volume = axes[0] * axes[1] * axes[2];
    for (int i = 0; i < 3; i++) {
        point[i] = axes[i] * radius * w[i];
        area[i] = volume / axes[i] * radius * (radius * w[i] - slope[i]);
    }
}

/* Two unit vectors that make a right-handed frame with w. */
static void frame_at(const double w[3], double e[2][3]) {
    const double side = sqrt(w[0] * w[0] + w[1] * w[1]);
    const double c = side > 0.0 ? w[0] / side : 1.0, s = side > 0.0 ? w[1] / side : 0.0;
    const double frame[2][3] = {{w[2] * c, w[2] * s, -side}, {-s, c, 0.0}};
    memcpy(e, frame, sizeof frame);
}

/* ---- grids ---- */

/* Gauss-Legendre nodes and weights on [-1, 1]. */
static void gauss_legendre(int n, double *node, double *weight) {
    for (int i = 0; i < n; i++) {
        double z = cos(PI * (i + 0.75) / (n + 0.5)), slope = 1.0, step = 1.0;
        for (int turn = 0; turn < 100 && fabs(step) > 1e-15; turn++) {
            double p = 1.0, before = 0.0;
            for (int l = 1; l <= n; l++) {
                const double next = ((2.0 * l - 1.0) * z * p - (l - 1.0) * before) / l;
                before = p;
                p = next;
            }
            slope = n * (z * p - before) / (z * z - 1.0);
            step = p / slope;
            z -= step;
        }
        node[i] = z;
        weight[i] = 2.0 / ((1.0 - z * z) * slope * slope);
    }
}

typedef struct node {
    double w[3], weight;
} node;

struct tg_body_flow {
    tg_context *ctx;
    int order, count;  /* L, (L + 1)^2 */
    tg_harmonics *h;   /* of degree L or that of the bumps, whichever is larger */
    int outer, inner;  /* nodes on the sphere, and around each node */
    node *at, *around; /* (outer), (inner): the latter with pole (0, 0, 1) */
    double *value;     /* (count) harmonics at a point */
    double (*gradient)[3];
    double *here, *row; /* (count) */
    double *matrix;     /* (count, count) */
    double *potential;  /* (count) coefficients of Phi */
    tg_body body;
};

const tg_harmonics *tg_body_flow_harmonics(const tg_body_flow *flow) {
    return flow->h;
}

/* rows x columns nodes of the sphere; the outer grid is Gauss in z, the inner one in the polar
 * angle, in which its integrand is smooth. */
static void fill_grid(int rows, int columns, bool in_angle, const double *gauss, node *out) {
    for (int i = 0; i < rows; i++) {
        const double angle = in_angle ? 0.5 * PI * (gauss[i] + 1.0) : acos(gauss[i]);
        const double weight = gauss[rows + i] * (in_angle ? 0.5 * PI * sin(angle) : 1.0);
        for (int j = 0; j < columns; j++, out++) {
            const double phi = 2.0 * PI * j / columns;
            *out = (node){.w = {sin(angle) * cos(phi), sin(angle) * sin(phi), cos(angle)},
                          .weight = weight * 2.0 * PI / columns};
        }
    }
}

tg_status tg_body_flow_create(tg_pool *pool, int order, tg_body_flow **out) {
    const int rows = order + 1, columns = 2 * order + 2, turns = 2 * order, spokes = 2 * order + 4;
    const int degree = order > TG_BODY_MAX_DEGREE ? order : TG_BODY_MAX_DEGREE;
    double gauss[4 * TG_BODY_MAX_ORDER + 4];
    TG_CALL(TG_POOL(pool, *out, 1));
    tg_body_flow *f = *out;
    *f = (tg_body_flow){.ctx = pool->ctx,
                        .order = order,
                        .count = (order + 1) * (order + 1),
                        .outer = rows * columns,
                        .inner = turns * spokes};
    TG_CALL(tg_harmonics_create(pool, degree, &f->h));
    TG_CALL(TG_POOL(pool, f->at, f->outer));
    TG_CALL(TG_POOL(pool, f->around, f->inner));
    TG_CALL(TG_POOL(pool, f->gradient, f->count));
    double **const arrays[] = {&f->value, &f->here, &f->row, &f->potential};
    for (int i = 0; i < 4; i++) {
        TG_CALL(TG_POOL(pool, *arrays[i], f->count));
    }
    TG_CALL(TG_POOL(pool, f->matrix, (int64_t)f->count * f->count));
    gauss_legendre(rows, gauss, gauss + rows);
    fill_grid(rows, columns, false, gauss, f->at);
    gauss_legendre(turns, gauss, gauss + turns);
    fill_grid(turns, spokes, true, gauss, f->around);
    return TG_OK;
}

/* ---- the equation ---- */

/* row_k = int K(x, y) (Y_k(y) - Y_k(x)) dS_y at the image x of w; `here` is Y_k(x). */
static void integrate_around(tg_body_flow *f, const double w[3], const double x[3]) {
    double e[2][3], sum = 0.0;
    frame_at(w, e);
    memset(f->row, 0, (size_t)f->count * sizeof *f->row);
    for (int q = 0; q < f->inner; q++) {
        const node *at = &f->around[q];
        double u[3], y[3], area[3], to[3];
        for (int i = 0; i < 3; i++) {
            u[i] = at->w[0] * e[0][i] + at->w[1] * e[1][i] + at->w[2] * w[i];
        }
        tg_body_point(f->h, &f->body, u, y, area);
        for (int i = 0; i < 3; i++) {
            to[i] = x[i] - y[i];
        }
        const double r2 = dot(to, to);
        const double kernel = at->weight * dot(area, to) / (4.0 * PI * r2 * sqrt(r2));
        tg_harmonics_at(f->h, f->order, u, f->value, NULL);
        for (int k = 0; k < f->count; k++) {
            f->row[k] += kernel * f->value[k];
        }
        sum += kernel;
    }
    for (int k = 0; k < f->count; k++) {
        f->row[k] -= sum * f->here[k];
    }
}

/* Solves matrix c = potential in place, by elimination with pivoting. */
static tg_status eliminate(tg_body_flow *f) {
    const int n = f->count;
    double *a = f->matrix, *b = f->potential;
    for (int k = 0; k < n; k++) {
        int pivot = k;
        for (int i = k + 1; i < n; i++) {
            pivot = fabs(a[i * n + k]) > fabs(a[pivot * n + k]) ? i : pivot;
        }
        if (!(fabs(a[pivot * n + k]) > 1e-12)) {
            return tg_fail(f->ctx, TG_E_NUMERIC, "the flow past this body has no stable solution");
        }
        for (int j = k; j < n && pivot != k; j++) {
            const double swap = a[k * n + j];
            a[k * n + j] = a[pivot * n + j];
            a[pivot * n + j] = swap;
        }
        const double swap = b[k];
        b[k] = b[pivot];
        b[pivot] = swap;
        for (int i = k + 1; i < n; i++) {
            const double factor = a[i * n + k] / a[k * n + k];
            for (int j = k + 1; j < n; j++) {
                a[i * n + j] -= factor * a[k * n + j];
            }
            b[i] -= factor * b[k];
        }
    }
    for (int k = n - 1; k >= 0; k--) {
        for (int j = k + 1; j < n; j++) {
            b[k] -= a[k * n + j] * b[j];
        }
        b[k] /= a[k * n + k];
    }
    return TG_OK;
}

tg_status tg_body_flow_solve(tg_body_flow *f, const tg_body *body, const double far[3]) {
    const int n = f->count;
    f->body = *body;
    memset(f->potential, 0, (size_t)n * sizeof *f->potential);
    for (int k = 0; k < n * n; k++) {
        f->matrix[k] = k % (n + 1) == 0 ? 1.0 : 0.0;
    }
    for (int i = 0; i < f->outer; i++) {
        const node *at = &f->at[i];
        double x[3], area[3];
        tg_body_point(f->h, body, at->w, x, area);
        tg_harmonics_at(f->h, f->order, at->w, f->here, NULL);
        integrate_around(f, at->w, x);
        for (int k = 0; k < n; k++) {
            const double test = at->weight * f->here[k];
            f->potential[k] += test * dot(far, x);
            for (int j = 0; j < n; j++) {
                f->matrix[k * n + j] -= test * f->row[j];
            }
        }
    }
    return eliminate(f);
}

void tg_body_flow_at(tg_body_flow *f, const double w[3], double *potential, double *speed2) {
    double e[2][3], slope[3], rise[3] = {0.0, 0.0, 0.0}, along[2], tangent[2][3];
    *potential = 0.0;
    tg_harmonics_at(f->h, f->order, w, f->value, f->gradient);
    for (int k = 0; k < f->count; k++) {
        *potential += f->potential[k] * f->value[k];
        for (int i = 0; i < 3; i++) {
            rise[i] += f->potential[k] * f->gradient[k][i];
        }
    }
    const double radius = radius_at(f->h, &f->body, w, slope);
    frame_at(w, e);
    for (int d = 0; d < 2; d++) {
        const double growth = dot(slope, e[d]);
        along[d] = dot(rise, e[d]);
        for (int i = 0; i < 3; i++) {
            tangent[d][i] = f->body.axes[i] * (radius * e[d][i] + growth * w[i]);
        }
    }
    /* |grad Phi|^2 with the metric of the surface */
    const double g00 = dot(tangent[0], tangent[0]), g11 = dot(tangent[1], tangent[1]);
    const double g01 = dot(tangent[0], tangent[1]), det = g00 * g11 - g01 * g01;
    *speed2 =
        (g11 * along[0] * along[0] - 2.0 * g01 * along[0] * along[1] + g00 * along[1] * along[1]) /
        det;
}

/* Fourier-Galerkin in space: only |k1|, |k2| <= K with 3 K < N are kept (the 2/3 rule), so that
 * products have no aliasing error in them. With psi = -Laplace^{-1} w the velocity is
 * (psi_y, -psi_x), and since it has no divergence
 *
 *     u.grad w = d_xy (v^2 - u^2) + (d_xx - d_yy) (u v),
 *
 * which takes two transforms in each direction instead of the four and one of the plain form. In
 * time: Runge-Kutta of order four on e^{-nu Laplace t} w (integrating factor), so that viscosity is
 * exact and stiffness no issue. The factor of half a step is a product of one for x and one for
 * y. */
#include "pde/vorticity.h"

#include <math.h>
#include <string.h>

#define PI         3.14159265358979323846
#define MOST_STEPS 1e7 /* in one call */

struct tg_vorticity {
    tg_backend *be;
    tg_vorticity_desc desc;
    int64_t modes, rows, columns; /* K, 2K + 1, K + 1 */
    tg_fft_plan *plan;            /* real, two fields */
    double *wave;                 /* (rows): 2 pi k / length of k = -K .. K */
    double *decay;                /* (rows): e^{-nu wave^2 dt / 2} */
    double decay_step;            /* dt it was made for; < 0: none */
    double *state, *forcing;      /* (rows, columns) complex, and so are the next three */
    double *slope, *stage, *sum;
    double *pair;   /* (2, rows, columns) complex: velocity, then products */
    double *values; /* (2, N, N) */
};

void tg_vorticity_destroy(tg_vorticity **v) {
    if (!v || !*v) {
        return;
    }
    tg_vorticity *s = *v;
    tg_context *ctx = s->be->ctx;
    double *const arrays[] = {s->wave,  s->decay, s->state, s->forcing, s->slope,
                              s->stage, s->sum,   s->pair,  s->values};
    s->be->ops->fft_destroy(s->be, &s->plan);
    for (size_t i = 0; i < sizeof arrays / sizeof arrays[0]; i++) {
        tg_mem_free(ctx, arrays[i]);
    }
    TG_FREE(ctx, *v);
}

tg_status tg_vorticity_create(tg_backend *be, const tg_vorticity_desc *desc, tg_vorticity **out) {
    tg_status status = TG_OK;
    tg_vorticity *v = NULL;
    *out = NULL;
    TG_TRY(TG_NEW(be->ctx, TG_MEM_WORKSPACE, v, 1));
    v->be = be;
    v->desc = *desc;
    v->modes = (desc->grid - 1) / 3;
    v->rows = 2 * v->modes + 1;
    v->columns = v->modes + 1;
    v->decay_step = -1.0;
    const int64_t reals = 2 * v->rows * v->columns;
    double **const spectra[] = {&v->state, &v->forcing, &v->slope, &v->stage, &v->sum};
    for (int i = 0; i < 5; i++) {
        TG_TRY(TG_NEW(be->ctx, TG_MEM_WORKSPACE, *spectra[i], reals));
    }
    TG_TRY(TG_ALLOC(be->ctx, TG_MEM_WORKSPACE, v->wave, v->rows));
    TG_TRY(TG_ALLOC(be->ctx, TG_MEM_WORKSPACE, v->decay, v->rows));
    TG_TRY(TG_ALLOC(be->ctx, TG_MEM_WORKSPACE, v->pair, 2 * reals));
    TG_TRY(TG_ALLOC(be->ctx, TG_MEM_WORKSPACE, v->values, 2 * desc->grid * desc->grid));
    for (int64_t r = 0; r < v->rows; r++) {
        v->wave[r] = 2.0 * PI / desc->length * (double)(r - v->modes);
    }
    const tg_fft_desc fft = {.dtype = TG_F64,
                             .ndim = 2,
                             .grid = {desc->grid, desc->grid},
                             .kept = {v->rows, v->columns},
                             .first = {-v->modes, 0},
                             .howmany = 2};
    TG_TRY(be->ops->fft_create(be, &fft, &v->plan));
    *out = v;
    return TG_OK;
fail:
    tg_vorticity_destroy(&v);
    return status;
}

int64_t tg_vorticity_modes(const tg_vorticity *v) {
    return v->modes;
}

double *tg_vorticity_state(tg_vorticity *v) {
    return v->state;
}

double *tg_vorticity_forcing(tg_vorticity *v) {
    return v->forcing;
}

/* ---- right-hand side ---- */

/* values = velocity of w at the points. */
static tg_status velocity_of(tg_vorticity *v, const double *w, double *values) {
    const int64_t columns = v->columns, reals = 2 * v->rows * columns;
    const int threads = v->be->threads;
#pragma omp parallel for num_threads(threads) schedule(static)
    for (int64_t r = 0; r < v->rows; r++) {
        const double *from = w + 2 * r * columns, k1 = v->wave[r];
        double *across = v->pair + 2 * r * columns, *along = across + reals;
        for (int64_t c = 0; c < columns; c++) {
            const double k2 = v->wave[v->modes + c], square = k1 * k1 + k2 * k2;
            const double inverse = square > 0.0 ? 1.0 / square : 0.0;
            const double re = inverse * from[2 * c], im = inverse * from[2 * c + 1];
            across[2 * c] = -k2 * im; /* psi_y */
            across[2 * c + 1] = k2 * re;
            along[2 * c] = k1 * im; /* -psi_x */
            along[2 * c + 1] = -k1 * re;
        }
    }
    return v->be->ops->fft_inverse(v->be, v->plan, 2, TG_FFT_PLAIN, 1.0, v->pair, values);
}

/* Replaces (u, v) by (u v, v^2 - u^2) at every point; the largest |u| + |v|. */
static double multiply(tg_vorticity *v) {
    const int64_t n = v->desc.grid;
    const int threads = v->be->threads;
    double speed = 0.0;
#pragma omp parallel for num_threads(threads) schedule(static) reduction(max : speed)
    for (int64_t i = 0; i < n; i++) {
        double *first = v->values + i * n, *second = first + n * n;
        for (int64_t j = 0; j < n; j++) {
            const double across = first[j], along = second[j];
            const double sum = fabs(across) + fabs(along);
            speed = sum <= speed ? speed : sum; /* NaN wins */
            first[j] = across * along;
            second[j] = along * along - across * across;
        }
    }
    return speed;
}

/* slope = f - u.grad w, and the largest speed on the way. */
static tg_status slope_of(tg_vorticity *v, const double *w, double *speed) {
    tg_status status = TG_OK;
    const int64_t columns = v->columns, reals = 2 * v->rows * columns;
    const double points = (double)(v->desc.grid * v->desc.grid);
    const int threads = v->be->threads;
    TG_TRY(velocity_of(v, w, v->values));
    *speed = multiply(v);
    TG_TRY(
        v->be->ops->fft_forward(v->be, v->plan, 2, TG_FFT_PLAIN, 1.0 / points, v->values, v->pair));
#pragma omp parallel for num_threads(threads) schedule(static)
    for (int64_t r = 0; r < v->rows; r++) {
        const double *product = v->pair + 2 * r * columns, *squares = product + reals;
        const double *force = v->forcing + 2 * r * columns, k1 = v->wave[r];
        double *out = v->slope + 2 * r * columns;
        for (int64_t c = 0; c < columns; c++) {
            const double k2 = v->wave[v->modes + c];
            const double mixed = k1 * k2, difference = k1 * k1 - k2 * k2;
            for (int64_t i = 2 * c; i < 2 * c + 2; i++) {
                out[i] = force[i] + mixed * squares[i] + difference * product[i];
            }
        }
    }
    return TG_OK;
fail:
    return status;
}

/* ---- time ---- */

/* What follows the slope of each of the four stages; e is the decay over half a step. */
static void combine(tg_vorticity *v, int stage, double dt) {
    const int64_t columns = v->columns;
    const int threads = v->be->threads;
#pragma omp parallel for num_threads(threads) schedule(static)
    for (int64_t r = 0; r < v->rows; r++) {
        const int64_t row = 2 * r * columns;
        double *w = v->state + row, *next = v->stage + row, *sum = v->sum + row;
        const double *slope = v->slope + row;
        for (int64_t i = 0; i < 2 * columns; i++) {
            const double e = v->decay[r] * v->decay[v->modes + i / 2];
            if (stage == 0) {
                next[i] = e * (w[i] + 0.5 * dt * slope[i]);
                sum[i] = e * e * (w[i] + dt / 6.0 * slope[i]);
            } else if (stage == 1) {
                next[i] = e * w[i] + 0.5 * dt * slope[i];
                sum[i] += e * dt / 3.0 * slope[i];
            } else if (stage == 2) {
                next[i] = e * (e * w[i] + dt * slope[i]);
                sum[i] += e * dt / 3.0 * slope[i];
            } else {
                w[i] = sum[i] + dt / 6.0 * slope[i];
            }
        }
    }
}

/* One step; the slope of the state is there already. */
static tg_status finish_step(tg_vorticity *v, double dt) {
    tg_status status = TG_OK;
    double speed = 0.0;
    if (dt != v->decay_step) {
        for (int64_t r = 0; r < v->rows; r++) {
            v->decay[r] = exp(-0.5 * dt * v->desc.viscosity * v->wave[r] * v->wave[r]);
        }
        v->decay_step = dt;
    }
    combine(v, 0, dt);
    for (int stage = 1; stage < 4; stage++) {
        TG_TRY(slope_of(v, v->stage, &speed));
        combine(v, stage, dt);
    }
    return TG_OK;
fail:
    return status;
}

tg_status tg_vorticity_advance(tg_vorticity *v, double time) {
    tg_status status = TG_OK;
    double rest = time;
    while (rest > 0.0) {
        double speed = 0.0;
        TG_TRY(slope_of(v, v->state, &speed));
        const double cells = speed * (double)v->desc.grid / v->desc.length;
        const double steps = ceil(fmax(rest * cells / v->desc.cfl, rest / v->desc.longest));
        if (!isfinite(speed) || !(steps <= MOST_STEPS)) {
            return tg_fail(v->be->ctx, TG_E_NUMERIC,
                           "the flow has become too fast to follow (speed %g); a finer grid than "
                           "%lld points may help",
                           speed, (long long)v->desc.grid);
        }
        TG_TRY(finish_step(v, rest / steps));
        rest = steps > 1.0 ? rest - rest / steps : 0.0;
    }
    return TG_OK;
fail:
    return status;
}

tg_status tg_vorticity_advance_steps(tg_vorticity *v, double time, int64_t steps) {
    tg_status status = TG_OK;
    double speed = 0.0;
    for (int64_t i = 0; i < steps; i++) {
        TG_TRY(slope_of(v, v->state, &speed));
        TG_TRY(finish_step(v, time / (double)steps));
    }
    return TG_OK;
fail:
    return status;
}

tg_status tg_vorticity_velocity(tg_vorticity *v, double *velocity) {
    return velocity_of(v, v->state, velocity);
}

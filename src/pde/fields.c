/* Sampling and random fields. At the points j / N the exponentials of frequencies k and k + N
 * coincide: every coefficient is added to that of its frequency modulo N, and an inverse transform
 * of N points gives the values. A real field stores only the half k2 >= 0; with k2 > 0 counted
 * twice, the real part of the sum is the field. */
#include "pde/fields.h"

#include <math.h>
#include <stdbool.h>
#include <string.h>

#include "pde/pde.h"

struct tg_sampler {
    tg_backend *be;
    int ndim;
    int64_t resolution, points; /* N, N^ndim */
    tg_fft_plan *plan;          /* complex, of one field */
    double *folded;             /* (points) complex */
    double *values;             /* (points) complex */
};

typedef struct owned_plan {
    tg_backend *be;
    tg_fft_plan *plan;
} owned_plan;

static void release_plan(void *block) {
    owned_plan *owned = block;
    owned->be->ops->fft_destroy(owned->be, &owned->plan);
}

tg_status tg_pool_fft(tg_pool *pool, tg_backend *be, const tg_fft_desc *desc, tg_fft_plan **out) {
    owned_plan *owned = tg_pool_alloc(pool, 1, sizeof *owned, release_plan);
    if (!owned) {
        return TG_E_MEMORY;
    }
    owned->be = be;
    TG_CALL(be->ops->fft_create(be, desc, &owned->plan));
    *out = owned->plan;
    return TG_OK;
}

tg_status tg_sampler_create(tg_pool *pool, tg_backend *be, int ndim, int64_t resolution,
                            tg_sampler **out) {
    tg_fft_desc desc = {.dtype = TG_F64, .complex = true, .ndim = ndim, .howmany = 1};
    TG_CALL(TG_POOL(pool, *out, 1));
    tg_sampler *s = *out;
    s->be = be;
    s->ndim = ndim;
    s->resolution = resolution;
    s->points = ndim == 1 ? resolution : resolution * resolution;
    for (int d = 0; d < ndim; d++) {
        desc.grid[d] = desc.kept[d] = resolution;
    }
    TG_CALL(TG_POOL(pool, s->folded, 2 * s->points));
    TG_CALL(TG_POOL(pool, s->values, 2 * s->points));
    return tg_pool_fft(pool, be, &desc, &s->plan);
}

/* k modulo n in 0 .. n-1 */
static int64_t modulo(int64_t k, int64_t n) {
    const int64_t rest = k % n;
    return rest < 0 ? rest + n : rest;
}

/* Adds the coefficients of frequencies first .. first + count - 1 to a row of N. */
static void fold_row(int64_t n, int64_t first, int64_t count, double weight, const double *from,
                     double *row) {
    int64_t at = modulo(first, n);
    for (int64_t k = 0; k < count; k++) {
        row[2 * at] += weight * from[2 * k];
        row[2 * at + 1] += weight * from[2 * k + 1];
        at = at + 1 < n ? at + 1 : 0;
    }
}

static tg_status transform(tg_sampler *s) {
    return s->be->ops->fft(s->be, s->plan, TG_FFT_INVERSE, 1, TG_FFT_PLAIN, 1.0, s->folded,
                           s->values);
}

tg_status tg_sampler_real(tg_sampler *s, int64_t modes, const double *spectrum, float *out) {
    const int64_t n = s->resolution, columns = modes + 1;
    const int64_t first = s->ndim == 1 ? 0 : -modes, last = s->ndim == 1 ? 0 : modes;
    memset(s->folded, 0, 2 * (size_t)s->points * sizeof *s->folded);
    for (int64_t k1 = first; k1 <= last; k1++) {
        const double *from = spectrum + 2 * (k1 - first) * columns;
        double *row = s->folded + 2 * modulo(k1, n) * (s->ndim == 1 ? 0 : n);
        fold_row(n, 0, 1, 1.0, from, row);
        fold_row(n, 1, modes, 2.0, from + 2, row);
    }
    const tg_status status = transform(s);
    for (int64_t i = 0; i < s->points; i++) {
        out[i] = (float)s->values[2 * i];
    }
    return status;
}

tg_status tg_sampler_complex(tg_sampler *s, int64_t first, int64_t count, const double *spectrum,
                             float *out) {
    memset(s->folded, 0, 2 * (size_t)s->points * sizeof *s->folded);
    fold_row(s->resolution, first, count, 1.0, spectrum, s->folded);
    const tg_status status = transform(s);
    for (int64_t i = 0; i < 2 * s->points; i++) {
        out[i] = (float)s->values[i];
    }
    return status;
}

tg_status tg_samplers_open(const tg_pde_setup *setup, int ndim, tg_samplers *out) {
    for (int i = 0; i < setup->views; i++) {
        TG_CALL(
            tg_sampler_create(setup->pool, setup->be, ndim, setup->resolution[i], &out->item[i]));
    }
    out->count = setup->views;
    return TG_OK;
}

/* Gaussian random fields, see fields.h. Elements of a sample's stream: the mode (k1, k2) with k1 in
 * -2^20 .. 2^20 - 1 and k2 in 0 .. 2^20 - 1 owns two; numbers of no mode come after all modes. */

#define PI        3.14159265358979323846
#define SQRT2     1.41421356237309504880
#define SQRT_HALF 0.70710678118654752440 /* sqrt(1/2) */
#define K_RANGE   ((int64_t)1 << 20)
#define NO_MODE   ((uint64_t)1 << 44) /* first number that belongs to no mode */

tg_field_key tg_field_key_of(uint64_t seed, unsigned equation, tg_split split, uint32_t sample) {
    return (tg_field_key){
        .rng = {.seed = seed, .purpose = TG_RNG_FIELD, .step = sample},
        .base = ((uint64_t)equation << 1 | (uint64_t)split) << 48,
    };
}

double tg_field_uniform(const tg_field_key *key, unsigned number, double low, double high) {
    return low + (high - low) * tg_rng_uniform(&key->rng, key->base + NO_MODE + number);
}

/* Standard normal number `part` (0 or 1) of a mode. */
static double mode_normal(const tg_field_key *key, int64_t k1, int64_t k2, int part) {
    const uint64_t mode = (uint64_t)(k1 + K_RANGE) << 21 | (uint64_t)k2;
    return tg_rng_normal(&key->rng, key->base + 2 * mode + (uint64_t)part);
}

double tg_covariance_sigma(double alpha, double tau) {
    return pow(tau, alpha - 1.0);
}

/* Deviation of the coefficient of a mode with squared wave number k2 (2 pi / L included). */
static double deviation_of(const tg_covariance *c, double k2) {
    return c->sigma * pow(k2 + c->tau * c->tau, -0.5 * c->alpha);
}

void tg_grf_periodic_1d(const tg_field_key *key, const tg_covariance *c, int64_t modes,
                        double *spectrum) {
    spectrum[0] = spectrum[1] = 0.0;
    for (int64_t k = 1; k <= modes; k++) {
        const double wave = 2.0 * PI * (double)k;
        const double deviation = SQRT_HALF * deviation_of(c, wave * wave);
        spectrum[2 * k] = deviation * mode_normal(key, k, 0, 0);
        spectrum[2 * k + 1] = -deviation * mode_normal(key, k, 0, 1);
    }
}

void tg_grf_periodic_2d(const tg_field_key *key, const tg_covariance *c, double length,
                        int64_t modes, double *spectrum) {
    const double unit = 2.0 * PI / length;
    const int64_t columns = modes + 1;
    for (int64_t k1 = -modes; k1 <= modes; k1++) {
        double *row = spectrum + 2 * (k1 + modes) * columns;
        for (int64_t k2 = 0; k2 <= modes; k2++) {
            const double wave2 = unit * unit * (double)(k1 * k1 + k2 * k2);
            const double deviation = SQRT_HALF * deviation_of(c, wave2);
            /* At k2 = 0 the half k1 < 0 is the conjugate of the other half. */
            const bool mirrored = k2 == 0 && k1 < 0;
            const int64_t k = mirrored ? -k1 : k1;
            row[2 * k2] = deviation * mode_normal(key, k, k2, 0);
            row[2 * k2 + 1] = (mirrored ? deviation : -deviation) * mode_normal(key, k, k2, 1);
        }
    }
    spectrum[2 * modes * columns] = spectrum[2 * modes * columns + 1] = 0.0; /* the mean */
}

void tg_grf_neumann(const tg_field_key *key, const tg_covariance *c, int64_t modes,
                    double *coefficients) {
    for (int64_t k1 = 0; k1 < modes; k1++) {
        for (int64_t k2 = 0; k2 < modes; k2++) {
            const double norm = (k1 > 0 ? SQRT2 : 1.0) * (k2 > 0 ? SQRT2 : 1.0);
            const double wave2 = PI * PI * (double)(k1 * k1 + k2 * k2);
            coefficients[k1 * modes + k2] =
                norm * deviation_of(c, wave2) * mode_normal(key, k1, k2, 0);
        }
    }
    coefficients[0] = 0.0;
}

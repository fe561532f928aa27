/* Fields: their sampling on grids, and random ones.
 *
 * A sampler evaluates a trigonometric polynomial at the N or N x N points of a grid, for any N:
 * exact values of the polynomial, so that a grid contained in a finer one has the same numbers. */
#ifndef TG_PDE_FIELDS_H
#define TG_PDE_FIELDS_H

#include "backend/backend.h"
#include "base/memory.h"
#include "base/rng.h"

enum { TG_SAMPLERS = 16 }; /* at most, in a list */

typedef struct tg_sampler tg_sampler;

/* A plan of a backend, destroyed with the pool. */
TG_NODISCARD tg_status tg_pool_fft(tg_pool *pool, tg_backend *be, const tg_fft_desc *desc,
                                   tg_fft_plan **out);

/* For grids of `resolution` points in each of ndim (1 or 2) dimensions. */
TG_NODISCARD tg_status tg_sampler_create(tg_pool *pool, tg_backend *be, int ndim,
                                         int64_t resolution, tg_sampler **out);

/* A real field from its half spectrum, frequencies up to `modes`: (modes + 1) complex in 1-D,
 * (2 modes + 1, modes + 1) in 2-D; out (N..). */
TG_NODISCARD tg_status tg_sampler_real(tg_sampler *s, int64_t modes, const double *spectrum,
                                       float *out);

/* A complex field in 1-D from the frequencies first .. first + count - 1; out (N) pairs. */
TG_NODISCARD tg_status tg_sampler_complex(tg_sampler *s, int64_t first, int64_t count,
                                          const double *spectrum, float *out);

/* A sampler for each of several resolutions. */
typedef struct tg_samplers {
    int count;
    tg_sampler *item[TG_SAMPLERS];
} tg_samplers;

struct tg_pde_setup;
/* For the resolutions of a setup. */
TG_NODISCARD tg_status tg_samplers_open(const struct tg_pde_setup *setup, int ndim,
                                        tg_samplers *out);

/* Gaussian random fields, one per sample, and their random numbers.
 *
 * A field is a sum of modes with independent normal coefficients. The coefficient of a mode depends
 * only on the sample and the wave number, so the same sample has the same field on every grid that
 * resolves it. */

/* ---- Random numbers of one sample. ---- */

typedef enum tg_split { TG_SPLIT_TRAIN, TG_SPLIT_TEST, TG_SPLITS } tg_split;

typedef struct tg_field_key {
    tg_rng rng;
    uint64_t base; /* number of the first element */
} tg_field_key;

/* `equation`, below 2^14, separates the streams of different equations. */
tg_field_key tg_field_key_of(uint64_t seed, unsigned equation, tg_split split, uint32_t sample);

/* Numbers that belong to no mode, such as a pulse energy: uniform in [low, high). */
double tg_field_uniform(const tg_field_key *key, unsigned number, double low, double high);

/* ---- Fields. ---- */

/* Covariance sigma^2 (-Laplace + tau^2)^(-alpha), zero mean. */
typedef struct tg_covariance {
    double alpha, tau, sigma;
} tg_covariance;

/* sigma = tau^(alpha - 1): in two dimensions the variance stays of order one as tau varies. */
double tg_covariance_sigma(double alpha, double tau);

/* Periodic on [0, 1): Fourier coefficients c_k of w = sum_k c_k e^{2 pi i k x} for k = 0 .. modes,
 * (modes + 1) complex; those of negative k are their conjugates. E|c_k|^2 is the squared deviation.
 */
void tg_grf_periodic_1d(const tg_field_key *key, const tg_covariance *c, int64_t modes,
                        double *spectrum);
/* The same in two dimensions, k1 = -modes .. modes and k2 = 0 .. modes: (2 modes + 1, modes + 1)
 * complex. */
void tg_grf_periodic_2d(const tg_field_key *key, const tg_covariance *c, double length,
                        int64_t modes, double *spectrum);

/* Zero normal derivative on the boundary of (0,1)^2: coefficients of cos(pi k1 x) cos(pi k2 y),
 * k = 0 .. modes - 1, (modes, modes) real, including the norms of the cosines (1 for k = 0, else
 * sqrt 2). */
void tg_grf_neumann(const tg_field_key *key, const tg_covariance *c, int64_t modes,
                    double *coefficients);

#endif

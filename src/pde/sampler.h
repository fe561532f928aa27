/* Evaluates a trigonometric polynomial at the N or N x N points of a grid, for any N: exact values
 * of the polynomial, so that a grid contained in a finer one has the same numbers. */
#ifndef TG_PDE_SAMPLER_H
#define TG_PDE_SAMPLER_H

#include "backend/backend.h"

enum { TG_SAMPLERS = 16 }; /* at most, in a list */

typedef struct tg_sampler tg_sampler;

/* For grids of `resolution` points in each of ndim (1 or 2) dimensions. */
TG_NODISCARD tg_status tg_sampler_create(tg_backend *be, int ndim, int64_t resolution,
                                         tg_sampler **out);
void tg_sampler_destroy(tg_sampler **sampler);

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

TG_NODISCARD tg_status tg_samplers_open(tg_backend *be, int ndim, int count,
                                        const int64_t *resolution, tg_samplers *out);
void tg_samplers_close(tg_samplers *samplers); /* accepts a partly opened list */

#endif

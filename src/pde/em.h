/* Pulses in a nonlinear waveguide, for the generator and its tests. Time in fs, length in mm, |A|^2
 * in W, hence energy in fJ. */
#ifndef TG_PDE_EM_H
#define TG_PDE_EM_H

#include "backend/backend.h"

typedef struct tg_pulse tg_pulse;

/* Envelopes at `points` points of a periodic window of `window` fs. */
TG_NODISCARD tg_status tg_pulse_create(tg_backend *be, int64_t points, double window,
                                       tg_pulse **out);
void tg_pulse_destroy(tg_pulse **p);

/* Lowest frequency of a spectrum, -(points / 2), in 2 pi / window. */
int64_t tg_pulse_first(const tg_pulse *p);

/* Transforms between envelope and Fourier coefficients, (points) complex each. */
TG_NODISCARD tg_status tg_pulse_analyse(tg_pulse *p, const double *envelope, double *spectrum);
TG_NODISCARD tg_status tg_pulse_synthesise(tg_pulse *p, const double *spectrum, double *envelope);

/* dA/dz = -i (dispersion / 2) A_tt + i kerr |A|^2 A + i coupling A* e^{i mismatch z} */
typedef struct tg_waveguide {
    double dispersion; /* fs^2 / mm */
    double kerr;       /* 1 / (W mm) */
    double coupling;   /* 1 / mm */
    double mismatch;   /* 1 / mm */
    double length;     /* mm */
} tg_waveguide;

/* Propagates the spectrum of A(0, .) to that of A(length, .) in `steps` steps. */
TG_NODISCARD tg_status tg_pulse_propagate(tg_pulse *p, const tg_waveguide *guide, int64_t steps,
                                          double *spectrum);

#endif

/* The solver of Burgers' equation, for the generator and its tests. */
#ifndef TG_PDE_BURGERS_H
#define TG_PDE_BURGERS_H

#include "backend/backend.h"

typedef struct tg_burgers tg_burgers;

/* On `grid` points of [0, 1); 3 modes < grid. */
TG_NODISCARD tg_status tg_burgers_create(tg_backend *be, int64_t grid, double viscosity,
                                         tg_burgers **out);
void tg_burgers_destroy(tg_burgers **solver);

int64_t tg_burgers_modes(const tg_burgers *b);

/* Number of steps short enough for a solution that starts at u. */
TG_NODISCARD tg_status tg_burgers_steps(tg_burgers *b, double time, const double *u,
                                        int64_t *steps);

/* Advances u (modes + 1, complex), Fourier coefficients of k = 0 .. modes, by `time`. */
TG_NODISCARD tg_status tg_burgers_integrate(tg_burgers *b, double time, int64_t steps, double *u);

#endif

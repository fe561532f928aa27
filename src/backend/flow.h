/* Operands of the slots for flow in two dimensions: the steps between Fourier transforms of
 * w_t + u.grad w = nu Laplace w + f on a periodic square (see pde/vorticity.c), all in f64, for
 * several independent flows at once.
 *
 * A spectrum is (flows, 2K + 1, K + 1) complex, row k1 + K, and q = 2 pi k / length is the wave
 * vector of k = (k1, k2). Fields on the grid are (flows, 2, N, N). */
#ifndef TG_BACKEND_FLOW_H
#define TG_BACKEND_FLOW_H

#include "tgrad/tensor.h"

typedef struct tg_flow {
    int64_t flows;
    int64_t grid;  /* N */
    int64_t modes; /* K */
    double length; /* of the square's side */
} tg_flow;

/* One of the four stages of a Runge-Kutta step with an integrating factor:
 * slope = forcing + q1 q2 D + (q1^2 - q2^2) P, and with e = decay[k1] decay[k2]
 *   stage 0: next = e (state + dt/2 slope);    sum = e^2 (state + dt/6 slope)
 *   stage 1: next = e state + dt/2 slope;      sum += e dt/3 slope
 *   stage 2: next = e (e state + dt slope);    sum += e dt/3 slope
 *   stage 3: state = sum + dt/6 slope */
typedef struct tg_flow_stage {
    int stage;
    const double *dt;       /* (flows) */
    const double *decay;    /* (flows, 2K + 1) */
    const double *products; /* (flows, 2, 2K + 1, K + 1) complex: P of u v, D of v^2 - u^2 */
    const double *forcing;  /* a spectrum, as the next three */
    double *state, *next, *sum;
} tg_flow_stage;

#endif

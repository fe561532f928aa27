/* Operands of the slot for flow in two dimensions: the steps between Fourier transforms of
 * w_t + u.grad w = nu Laplace w + f on a periodic square (see pde/vorticity.c), all in f64, for
 * several independent flows at once. Arrays must not alias.
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

/* The stages are those of a Runge-Kutta step with an integrating factor:
 * slope = forcing + q1 q2 D + (q1^2 - q2^2) P, and e = decay[k1] decay[k2]. */
typedef enum tg_flow_part {
    TG_FLOW_VELOCITY, /* velocity = i q2 w / q^2 and -i q1 w / q^2, 0 at q = 0 */
    TG_FLOW_PRODUCTS, /* (u, v) in values becomes (u v, v^2 - u^2); speed = the largest |u| + |v|,
                         NaN if one is NaN */
    TG_FLOW_DECAY,    /* decay = e^{-viscosity q^2 dt / 2}, q of wave number k = -K .. K */
    TG_FLOW_STAGE_0,  /* next = e (state + dt/2 slope);  sum = e^2 (state + dt/6 slope) */
    TG_FLOW_STAGE_1,  /* next = e state + dt/2 slope;  sum += e dt/3 slope */
    TG_FLOW_STAGE_2,  /* next = e (e state + dt slope);  sum += e dt/3 slope */
    TG_FLOW_STAGE_3   /* state = sum + dt/6 slope */
} tg_flow_part;

typedef struct tg_flow_op {
    tg_flow of;
    tg_flow_part part;
    double viscosity;
    const double *dt;       /* (flows) */
    double *decay;          /* (flows, 2K + 1) */
    const double *w;        /* a spectrum */
    double *velocity;       /* (flows, 2, 2K + 1, K + 1) complex */
    double *values;         /* (flows, 2, N, N) */
    double *speed;          /* (flows) */
    const double *products; /* (flows, 2, 2K + 1, K + 1) complex: P of u v, D of v^2 - u^2 */
    const double *forcing;  /* a spectrum, as the next three */
    double *state, *next, *sum;
} tg_flow_op;

#endif

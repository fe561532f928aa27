/* The spectrum of a gradient: eigenvalues of every mode, beside the sparse set of the settings. */
#ifndef TG_PROJECT_SPECTRUM_H
#define TG_PROJECT_SPECTRUM_H

#include "tgrad/tensor.h"

/* What the largest entries leave of a residual. */
typedef struct tg_left {
    double part;              /* of its energy, 0 .. 1 */
    double rank[TG_MAX_NDIM]; /* of the core that left the residual; 0: not known yet */
} tg_left;

typedef struct tg_spectrum {
    int ndim;
    int64_t dim[TG_MAX_NDIM];      /* eigenvalues of each mode */
    int64_t max_rank[TG_MAX_NDIM]; /* that the projector has memory for */
    int64_t kept;                  /* entries of the sparse set, 0 without one */
    bool is_behind;                /* the set takes of what the core leaves .. */
    tg_left left;                  /* .. which is this */
    double energy;                 /* |G|^2 */
    double *values;                /* (sum of dim) on the host, descending in each mode */
} tg_spectrum;

static inline int64_t tg_spectrum_values(const tg_spectrum *s) {
    int64_t count = 0;
    for (int d = 0; d < s->ndim; d++) {
        count += s->dim[d];
    }
    return count;
}

/* Eigenvalues of one mode. */
static inline double *tg_spectrum_mode(const tg_spectrum *s, int mode) {
    double *at = s->values;
    for (int d = 0; d < mode; d++) {
        at += s->dim[d];
    }
    return at;
}

#endif

/* The spectrum of a gradient: eigenvalues of every mode, for some sizes of the sparse set. */
#ifndef TG_PROJECT_SPECTRUM_H
#define TG_PROJECT_SPECTRUM_H

#include "tgrad/tensor.h"

enum { TG_MAX_SHARES = 5 };

/* What the largest entries leave of a residual. */
typedef struct tg_left {
    double part[TG_MAX_SHARES]; /* of its energy, 0 .. 1, by the size of the set */
    double rank[TG_MAX_NDIM];   /* of the core that left the residual; 0: not known yet */
} tg_left;

typedef struct tg_spectrum {
    int ndim;
    int64_t dim[TG_MAX_NDIM];      /* eigenvalues of each mode */
    int64_t max_rank[TG_MAX_NDIM]; /* that the projector has memory for */
    int shares;                    /* sizes of the sparse set, 1 .. TG_MAX_SHARES */
    int64_t kept[TG_MAX_SHARES];   /* entries of each, ascending; {0} without a sparse set */
    bool is_shared;                /* the set takes of what the core leaves: one for all sizes */
    tg_left left;                  /* is_shared: what it takes */
    double energy;                 /* |G|^2 */
    double *values; /* (1 or shares, sum of dim) on the host, descending in each mode */
} tg_spectrum;

static inline int64_t tg_spectrum_width(const tg_spectrum *s) {
    int64_t width = 0;
    for (int d = 0; d < s->ndim; d++) {
        width += s->dim[d];
    }
    return width;
}

static inline int64_t tg_spectrum_values(const tg_spectrum *s) {
    return (s->is_shared ? 1 : s->shares) * tg_spectrum_width(s);
}

/* Eigenvalues of one mode beside one sparse set. */
static inline double *tg_spectrum_mode(const tg_spectrum *s, int share, int mode) {
    double *at = s->values + (s->is_shared ? 0 : share) * tg_spectrum_width(s);
    for (int d = 0; d < mode; d++) {
        at += s->dim[d];
    }
    return at;
}

#endif

/* Internals that the two sources of tgrad_predict share. Fields are (channels, points), spectra
 * (channels, real and imaginary part, frequencies). */
#ifndef TGRAD_PREDICT_INSIDE_H
#define TGRAD_PREDICT_INSIDE_H

#include "tgrad_predict.h"

enum { TGP_TILE = 64 }; /* points processed together */

typedef enum { SKIP_LINEAR, SKIP_IDENTITY, SKIP_SOFT_GATING, SKIPS } skip_kind;
typedef enum { NORM_NONE, NORM_GROUP, NORM_INSTANCE, NORMS } norm_kind;

typedef struct {
    size_t in, hidden, out;
    const float *w1, *b1, *w2, *b2;
} mlp;

typedef struct {
    const float *weight; /* (out, in, re and im, modes..) */
    const float *bias;
    const float *fno_skip, *mlp_skip;
    const float *norm[2]; /* a factor and a summand for each channel, of group norms */
    mlp mlp;
} block;

struct tgp_model {
    void *owned; /* the file, or NULL if it is the caller's */
    int dims, layers;
    int embeds, is_tanh, is_symmetric;
    size_t in, out, channels;
    size_t modes[TGP_MAX_DIMS]; /* of the weights; in the last dimension frequencies from 0 */
    size_t mode_count;
    double padding; /* share of each size */
    skip_kind fno_skip, mlp_skip;
    norm_kind norm;
    const float *x_scale, *x_shift, *y_scale, *y_shift;
    mlp lifting, projection;
    block *blocks;
};

/* Tables for one dimension of a session's grid. */
typedef struct {
    size_t grid, padded, before; /* points; with padding; zeros before the first */
    size_t kept, window;         /* frequencies, and the weight's mode of the first one */
    float *cosines, *sines;      /* (kept, padded) e^(-2 pi i k n / N) */
    float *back_cosines, *back_sines;
} axis;

struct tgp_session {
    const tgp_model *model;
    axis axes[TGP_MAX_DIMS];
    size_t points, padded, kept; /* products over the dimensions */
    int threads;
    size_t scratch_size;      /* per thread, in numbers */
    float *field, *other;     /* (channels, padded) */
    float *spectrum, *result; /* (channels, 2, the largest stage) */
    float *scratch;
    void *memory;
    size_t bytes;
};

static inline size_t tgp_min(size_t a, size_t b) {
    return a < b ? a : b;
}

static inline size_t tgp_max(size_t a, size_t b) {
    return a > b ? a : b;
}

#endif

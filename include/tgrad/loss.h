/* Losses between fields: relative or absolute Lp, H1 and Hs, or a sum of several.
 *
 * Norms are taken per sample and channel and summed over both: with a = pred[b, c] and
 * t = target[b, c] the relative one is sum_b sum_c w_c |a - t| / |t|. That is what training
 * minimizes; test errors (tgrad/train.h) take all channels of a sample together and the mean over
 * samples. |.| of complex data is the modulus.
 *
 * H1 uses central differences on the unit periodic grid. An absolute norm is that of the function,
 * not of the vector: (1 / points)^(1/p) in front, so that it does not grow with the grid. */
#ifndef TGRAD_LOSS_H
#define TGRAD_LOSS_H

#include "tgrad/tensor.h"

TG_C_BEGIN

#define TG_LOSS_MAX_TERMS    4
#define TG_LOSS_MAX_CHANNELS 8

typedef enum tg_loss_kind {
    TG_LOSS_LP, /* (sum |e|^p)^(1/p) */
    TG_LOSS_H1, /* sqrt(sum |e|^2 + sum_j |D_j e|^2) */
    TG_LOSS_HS  /* sqrt(sum_k (1 + |2 pi k|^2)^s |e_k|^2), e_k Fourier coefficients with which that
                   is sum |e|^2 for s = 0. Not on points */
} tg_loss_kind;

/* Equations whose residual can be a further term, see docs/training.md. */
typedef enum tg_physics {
    TG_PHYSICS_NONE,
    TG_PHYSICS_DARCY,   /* -div(a grad u) = f, x = a, y = u */
    TG_PHYSICS_BURGERS, /* u_t + (u^2 / 2)_x = nu u_xx, from the last frame of x to y */
    TG_PHYSICS_NS       /* w_t + u w_x + v w_y = nu Laplace w + f, likewise */
} tg_physics;

typedef struct tg_loss_term {
    tg_loss_kind kind;
    double p;      /* of Lp, 1 .. 16; of Hs: s, in -4 .. 4 */
    bool absolute; /* not divided by the target's norm */
    double weight; /* factor in the sum */
} tg_loss_term;

typedef struct tg_loss_config {
    size_t size; /* of the struct, see status.h */
    int terms;   /* 1 .. TG_LOSS_MAX_TERMS */
    tg_loss_term term[TG_LOSS_MAX_TERMS];
    /* Factors of the channels in every term; none: all alike. */
    int channels;                                /* 0, or those of pred */
    double channel_weight[TG_LOSS_MAX_CHANNELS]; /* >= 0 */
    /* The residual of an equation, of a network's x and y alone (tg_fno_loss_backward, tg_step). */
    tg_physics physics;
    double physics_weight;    /* its factor in the sum; 0.1 */
    double physics_forcing;   /* Darcy: f; NS: A of f = A (sin 2 pi (x + y) / L + cos ..); 1 */
    double physics_viscosity; /* Burgers, NS: nu; 0.01 */
    double physics_time;      /* Burgers, NS: from frame to frame, > 0 */
    double physics_length;    /* NS: L, > 0; 1 */
    double x_mean, x_scale;   /* data are mean + scale * the input of the network; 0 and 1 */
    double y_mean, y_scale;
} tg_loss_config;

/* One term: relative L2. */
TG_API void tg_loss_config_init(tg_loss_config *config, size_t size);
static inline tg_loss_config tg_loss_config_default(void) {
    tg_loss_config config;
    tg_loss_config_init(&config, sizeof config);
    return config;
}

/* Reads "l2", "h1", "l1.5", "hs0.5", "abs_l2", "abs_h1", and sums such as "l2 + 0.1*h1". `key`
 * names the setting in errors. */
TG_API TG_NODISCARD tg_status tg_loss_config_parse(tg_context *ctx, const char *key,
                                                   const char *text, tg_loss_config *out);

/* Loss of pred against target, both (batch, channels, grid..) of the same float dtype f32, f64, c64
 * or c128 where the context's backend computes; dpred (may be NULL) gets the gradient dL/dpred,
 * g = dL/dRe + i dL/dIm. */
TG_API TG_NODISCARD tg_status tg_loss_eval(tg_context *ctx, const tg_loss_config *config,
                                           const tg_tensor *pred, const tg_tensor *target,
                                           double *loss, tg_tensor *dpred);

TG_C_END
#endif

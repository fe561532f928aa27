/* The residual of an equation as a term of the loss. */
#ifndef TG_NN_PHYSICS_LOSS_H
#define TG_NN_PHYSICS_LOSS_H

#include "nn/flow_residual.h"
#include "tgrad/fno.h"

/* Fields where the backend computes as the network sees them, f32 or f64. */
typedef struct nn_physics {
    const tg_loss_config *config;
    tg_dtype dtype;
    int64_t batch, in_channels;
    int64_t grid[3];
    const void *x;             /* (batch, in_channels, grid..) */
    const void *pred, *target; /* (batch, 1, grid..) */
    double *value;             /* is added to */
    double grad_scale;         /* of the gradient alone */
    void *dpred;               /* is added to; NULL: not wanted */
} nn_physics;

/* Room for the residuals of a call. All zero is none yet. */
typedef struct nn_residual {
    int64_t samples, points;
    double *slope;  /* (samples, points) */
    double *powers; /* (samples, 2) */
    nn_flow flow;   /* of that equation only */
} nn_residual;

/* Whether the equation of a loss can be that of this network; nothing to say if it has none. */
TG_NODISCARD tg_status nn_physics_check(tg_backend *be, const tg_loss_config *loss,
                                        const tg_fno_config *network);

/* Takes what calls like this one of so many samples work in, unless it is there already. */
TG_NODISCARD tg_status nn_residual_prepare(tg_backend *be, const nn_physics *call, int64_t samples,
                                           nn_residual *work);
size_t nn_residual_bytes(int64_t samples, int64_t points); /* but for that of a flow */
void nn_residual_free(tg_backend *be, nn_residual *work);

/* Adds the residuals of all samples, for which there must be room. */
TG_NODISCARD tg_status nn_physics_add(tg_backend *be, nn_residual *work, const nn_physics *call);

#endif

/* The residual of an equation as a term of the loss. */
#ifndef TG_NN_PHYSICS_LOSS_H
#define TG_NN_PHYSICS_LOSS_H

#include "nn/flow_residual.h"
#include "tgrad/fno.h"

/* Fields on the backend as the network sees them, f32 or f64. */
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

/* Room for the residuals of a call. Initially all zero. */
typedef struct nn_residual {
    int64_t samples, points;
    double *slope;  /* (samples, points) */
    double *powers; /* (samples, 2) */
    nn_flow flow;   /* for that equation only */
} nn_residual;

/* Whether the equation of a loss suits this network; always if it has none. */
TG_NODISCARD tg_status nn_physics_check(tg_backend *be, const tg_loss_config *loss,
                                        const tg_fno_config *network);

/* Allocates the workspace of such calls with up to `samples` samples, unless it is there. */
TG_NODISCARD tg_status nn_residual_prepare(tg_backend *be, const nn_physics *call, int64_t samples,
                                           nn_residual *work);
size_t nn_residual_bytes(int64_t samples, int64_t points); /* without that of a flow */
void nn_residual_free(tg_backend *be, nn_residual *work);

/* Adds the residuals of all samples, for which there must be room. */
TG_NODISCARD tg_status nn_physics_add(tg_backend *be, nn_residual *work, const nn_physics *call);

#endif

/* The residual of an equation as a term of the loss. */
#ifndef TG_NN_PHYSICS_LOSS_H
#define TG_NN_PHYSICS_LOSS_H

#include "backend/backend.h"
#include "tgrad/fno.h"

/* Fields on the host as the network sees them, f32 or f64. */
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

/* Whether the equation of a loss can be that of this network; nothing to say if it has none. */
TG_NODISCARD tg_status nn_physics_check(tg_backend *be, const tg_loss_config *loss,
                                        const tg_fno_config *network);

/* Adds the residuals of all samples; those of flows are in flow_residual.h. */
void nn_physics_add(const nn_physics *call);

#endif

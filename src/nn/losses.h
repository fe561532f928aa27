/* Losses beside those of the slot: norms in Fourier space and residuals of equations. */
#ifndef TG_NN_LOSSES_H
#define TG_NN_LOSSES_H

#include "backend/backend.h"
#include "nn/model.h"
#include "tgrad/fno.h"
#include "tgrad/loss.h"

/* Transforms of a grid, and memory for f64 numbers of their images. Initially all zero. */
typedef struct nn_transforms {
    tg_fft_desc desc; /* of the largest number of images */
    tg_fft_plan *fft;
    double *memory;
} nn_transforms;

/* Of every frequency of a grid, the last dimension of real data from 0 on. */
tg_fft_desc nn_transforms_of(int ndim, const int64_t *grid, bool is_complex, int64_t images);

/* Creates both, unless they are there. */
TG_NODISCARD tg_status nn_transforms_prepare(tg_backend *be, const tg_fft_desc *desc,
                                             int64_t numbers, nn_transforms *t);
/* Bytes that they take on the backend and, for a device, on the host. */
TG_NODISCARD tg_status nn_transforms_plan(tg_backend *be, const tg_fft_desc *desc, int64_t numbers,
                                          size_t *bytes, size_t *host);
void nn_transforms_free(tg_backend *be, nn_transforms *t);

/* Room for the images of a call on the backend. Initially all zero. */
typedef struct nn_spectral {
    nn_transforms all; /* of all frequencies */
    double *field;     /* (images, grid.., components) */
    double *spectrum;  /* (images, kept..) complex */
    double *powers;    /* (images, 2) */
} nn_spectral;

/* Allocates the workspace for op->images of that grid, unless it is there; and its bytes. */
TG_NODISCARD tg_status nn_spectral_prepare(tg_backend *be, const tg_loss_op *op, nn_spectral *work);
TG_NODISCARD tg_status nn_spectral_plan(tg_backend *be, const tg_loss_op *op, size_t *bytes,
                                        size_t *host);

/* As the slot `loss`, in the norm of order op->p; powers are ignored. Needs nn_spectral_prepare. */
TG_NODISCARD tg_status nn_spectral_add(tg_backend *be, nn_spectral *work, const tg_loss_op *op);

/* Slabs of a split network (slab_loss.c). Of `op`, the sizes of the slab and of pred and target. */

/* What a rank sends: the bytes of messages, sums and copies, as tg_comm_stats counts them, and the
 * messages one after the other. */
typedef struct nn_traffic {
    size_t bytes;
    int64_t messages;
} nn_traffic;

/* A rank's part of the fields, and memory for their losses on the backend. */
typedef struct nn_loss_slab {
    const nn_split *split; /* NULL: no slab */
    int64_t whole;         /* rows of the grid */
    void *memory;          /* nn_slab_loss_bytes */
} nn_loss_slab;

size_t nn_slab_loss_bytes(const tg_loss_op *op);
/* What an exchange sends, of a grid with `whole` rows. */
nn_traffic nn_slab_edges_sent(const tg_loss_op *op, const nn_split *split, int64_t whole);
/* Before losses in H1: collects the edges of pred and target, which ranks call together. */
TG_NODISCARD tg_status nn_slab_exchange(tg_backend *be, const nn_loss_slab *slab,
                                        const tg_loss_op *op);
/* Makes `op` a loss of this slab, with the edges collected. */
void nn_slab_set(const nn_loss_slab *slab, tg_loss_op *op);
/* As the slot `loss`, of all slabs together; powers are ignored. */
TG_NODISCARD tg_status nn_slab_loss(tg_backend *be, const nn_loss_slab *slab, const tg_loss_op *op);

/* The terms of relative errors: squares (batch, channels, 2), f64 where the context's backend
 * computes, gets |pred - target|^2 and |target|^2 of every sample and channel, in the norm `kind`
 * with p = 2. pred and target as for tg_loss_eval; those of a `slab` (NULL: none) are its part of
 * the sums. */
TG_NODISCARD tg_status tg_loss_squares(tg_context *ctx, tg_loss_kind kind, const tg_tensor *pred,
                                       const tg_tensor *target, const nn_loss_slab *slab,
                                       tg_tensor *squares);
/* Bytes of such a slab's memory, for pred of that shape. */
size_t tg_loss_squares_bytes(tg_dtype dtype, const tg_shape *shape);

/* The residual of the vorticity equation in two dimensions. */

/* Room for the samples of a call on the backend, in f64. Initially all zero. */
typedef struct nn_flow {
    nn_transforms all;
    double *u, *v, *wx, *wy;  /* (samples, n, m): velocity and gradient of the vorticity */
    double *r;                /* (samples, n, m): the residual */
    double *spectrum, *other; /* (samples, n, m / 2 + 1, 2) */
} nn_flow;

/* Allocates what a call needs, unless it is there; and its bytes. */
TG_NODISCARD tg_status nn_flow_prepare(tg_backend *be, int64_t samples, int64_t n, int64_t m,
                                       nn_flow *flow);
TG_NODISCARD tg_status nn_flow_plan(tg_backend *be, int64_t samples, int64_t n, int64_t m,
                                    size_t *bytes, size_t *host);

/* Sets flow->r for the fields of `of` and, if wanted, `field` to the gradient of |r|^2 / 2 except r
 * / dt, in the units of the data. Overwrites `field` (samples, n, m) in any case. */
TG_NODISCARD tg_status nn_flow_find(tg_backend *be, nn_flow *flow, const tg_residual *of,
                                    double length, bool wants_slope, double *field);

/* The residual of an equation as a term of the loss. */

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

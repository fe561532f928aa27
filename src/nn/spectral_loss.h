/* Losses in Fourier space: their workspace, and one term of a loss. */
#ifndef TG_NN_SPECTRAL_LOSS_H
#define TG_NN_SPECTRAL_LOSS_H

#include "backend/backend.h"
#include "tgrad/loss.h"

/* Room for the images of a call on the backend. Initially all zero. */
typedef struct nn_spectral {
    tg_fft_desc desc; /* all frequencies of the largest number of images */
    tg_fft_plan *fft;
    double *field;    /* (images, grid.., components) */
    double *spectrum; /* (images, kept..) complex */
    double *powers;   /* (images, 2) */
} nn_spectral;

/* Allocates the workspace for op->images of that grid, unless it is there. */
TG_NODISCARD tg_status nn_spectral_prepare(tg_backend *be, const tg_loss_op *op, nn_spectral *work);
/* Bytes that a plan for transforms takes on the backend and, for a device, on the host. */
TG_NODISCARD tg_status nn_fft_plan(tg_backend *be, const tg_fft_desc *desc, size_t *bytes,
                                   size_t *host);
/* The same for everything that nn_spectral_prepare allocates. */
TG_NODISCARD tg_status nn_spectral_plan(tg_backend *be, const tg_loss_op *op, size_t *bytes,
                                        size_t *host);
void nn_spectral_free(tg_backend *be, nn_spectral *work);

/* As the slot `loss`, in the norm of order op->p; powers are ignored. Needs nn_spectral_prepare. */
TG_NODISCARD tg_status nn_spectral_add(tg_backend *be, nn_spectral *work, const tg_loss_op *op);

/* The terms of relative errors: squares (batch, channels, 2), f64 where the context's backend
 * computes, gets |pred - target|^2 and |target|^2 of every sample and channel, in the norm `kind`
 * with p = 2. pred and target as for tg_loss_eval. */
TG_NODISCARD tg_status tg_loss_squares(tg_context *ctx, tg_loss_kind kind, const tg_tensor *pred,
                                       const tg_tensor *target, tg_tensor *squares);

#endif

/* Losses in Fourier space: what they work in, and one term of a loss. */
#ifndef TG_NN_SPECTRAL_LOSS_H
#define TG_NN_SPECTRAL_LOSS_H

#include "backend/backend.h"

/* Room for the images of a call, where the backend computes. All zero is none yet. */
typedef struct nn_spectral {
    tg_fft_desc desc; /* all frequencies of as many images as there is room for */
    tg_fft_plan *fft;
    double *field;    /* (images, grid.., components) */
    double *spectrum; /* (images, kept..) complex */
    double *powers;   /* (images, 2) */
} nn_spectral;

/* Takes what a call for op->images of that grid works in, unless it is there already. */
TG_NODISCARD tg_status nn_spectral_prepare(tg_backend *be, const tg_loss_op *op, nn_spectral *work);
/* Bytes that a plan for transforms takes of the workspace where the backend computes and, if that
 * is elsewhere, on the host. */
TG_NODISCARD tg_status nn_fft_plan(tg_backend *be, const tg_fft_desc *desc, size_t *bytes,
                                   size_t *host);
/* Those of all that nn_spectral_prepare takes. */
TG_NODISCARD tg_status nn_spectral_plan(tg_backend *be, const tg_loss_op *op, size_t *bytes,
                                        size_t *host);
void nn_spectral_free(tg_backend *be, nn_spectral *work);

/* As the slot `loss`, in the norm of order op->p; powers are ignored. There must be room. */
TG_NODISCARD tg_status nn_spectral_add(tg_backend *be, nn_spectral *work, const tg_loss_op *op);

#endif

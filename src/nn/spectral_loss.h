/* Losses in Fourier space: what they work in, and one term of a loss. */
#ifndef TG_NN_SPECTRAL_LOSS_H
#define TG_NN_SPECTRAL_LOSS_H

#include "backend/backend.h"

/* Room for one image. All zero is none yet. */
typedef struct nn_spectral {
    tg_fft_desc desc;
    tg_fft_plan *fft;     /* of all frequencies */
    int components;       /* 2: complex data */
    int64_t points, kept; /* of the grid, of the spectrum */
    void *error;          /* (grid..) */
    void *spectrum;       /* (kept..) complex */
    double *weights;      /* (kept..) */
} nn_spectral;

/* Takes what a call of that grid and dtype works in, unless it is there already. */
TG_NODISCARD tg_status nn_spectral_prepare(tg_backend *be, const tg_loss_op *op, nn_spectral *work);
void nn_spectral_free(tg_backend *be, nn_spectral *work);

/* As the slot `loss`, in the norm of order op->p; host backends, value wanted, powers ignored. */
TG_NODISCARD tg_status nn_spectral_add(tg_backend *be, nn_spectral *work, const tg_loss_op *op);

#endif

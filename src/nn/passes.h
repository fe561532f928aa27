/* Forward and backward of a whole network, shared by the public calls. */
#ifndef TG_NN_PASSES_H
#define TG_NN_PASSES_H

#include "nn/layers.h"

/* dtype of the data and shape (batch, channels, grid..). */
TG_NODISCARD tg_status nn_check_tensor(const tg_fno *fno, const char *what, const tg_tensor *tensor,
                                       int64_t batch, int64_t channels);
/* A tensor of host or device to where the backend computes. */
TG_NODISCARD tg_status nn_bring(const tg_fno *fno, const tg_tensor *from, void *to);

/* z1 = norm(convolution + bias) + skip(act(x)) of block l, from the kept modes of the input. */
TG_NODISCARD tg_status nn_convolution(tg_fno *fno, int l, void *x, tg_act act, void *product,
                                      void *conv, void *z1);

/* The lifting of what is embedded to x (planes, B, C, P), through `lifted` if it is padded. */
TG_NODISCARD tg_status nn_lift(tg_fno *fno, void *lifted, void *x);

/* The second half of block l: mixed = mlp(gelu(z1)) + skip(x); z2 = norm(mixed); next = gelu(z2).
 * Without norm mixed is z2, with real data it may be z1, and next (NULL: not wanted) may be x. */
typedef struct nn_mix_arrays {
    void *x, *z1, *mixed, *z2, *next;
} nn_mix_arrays;

TG_NODISCARD tg_status nn_mix(tg_fno *fno, int l, const nn_mix_arrays *arrays);

/* The call of block l's perceptron, as both passes make it, without its arrays. */
nn_mlp_call nn_block_mlp(const tg_fno *fno, int l);

TG_NODISCARD tg_status nn_forward(tg_fno *fno, const tg_tensor *x); /* to run.out */
/* From run.dout. */
TG_NODISCARD tg_status nn_backward(tg_fno *fno, const tg_grad_sink *sink);

/* The host's part of a pass whose work was queued from a recording. */
void nn_forward_replayed(tg_fno *fno, int64_t batch);
void nn_backward_replayed(tg_fno *fno);
/* Takes back a backward of which nothing was run. */
void nn_backward_undone(tg_fno *fno, uint64_t step);

/* Loss of what lies where the backend computes, `shape` = (batch, channels, grid..), and grad_scale
 * times its gradient. */
TG_NODISCARD tg_status nn_loss(tg_backend *be, const tg_loss_config *config, tg_dtype dtype,
                               const tg_shape *shape, const void *pred, const void *target,
                               double *loss, double grad_scale, void *dpred);

/* tg_fno_forward_loss, with all gradients of the backward pass behind it grad_scale times as large.
 */
TG_NODISCARD tg_status nn_forward_loss(tg_fno *fno, const tg_tensor *x, const tg_tensor *target,
                                       const tg_loss_config *config, double grad_scale,
                                       double *loss);

#endif

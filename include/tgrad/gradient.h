/* Gradients are passed to sinks, not stored.
 *
 * The backward pass hands each parameter's gradient to a sink as soon as it exists and then reuses
 * the memory; those of spectral weights, as the factors in which they arise, at its end, and on a
 * device all small ones together. The optimizer is a sink: it updates the weight at once, so that
 * one gradient is alive at a time. Others accumulate, add up a norm for clipping, or copy. */
#ifndef TGRAD_GRADIENT_H
#define TGRAD_GRADIENT_H

#include "tgrad/tensor.h"

TG_C_BEGIN

/* The gradient of one parameter, g = dL/dRe + i dL/dIm. Either dense, or factored as it arises in a
 * spectral convolution, G[i,o,k] = sum_b conj(x[b,i,k]) dy[b,o,k], where x and dy are many times
 * smaller than G. The memory lives where the backend computes, until the sink returns. */
typedef struct tg_gradient {
    int param;         /* index of the parameter in its owner's list */
    tg_dtype dtype;    /* of the arrays below: the parameter's, or a 16-bit format of it */
    tg_shape shape;    /* of the parameter; factored: (Cin, Cout, modes..) */
    const void *dense; /* (shape); NULL: factored */
    const void *x;     /* (batch, Cin, modes..); NULL: dense */
    const void *dy;    /* (batch, Cout, modes..) */
    int64_t batch;
    tg_place place; /* of the arrays: where the backend computes */
} tg_gradient;

typedef struct tg_grad_sink {
    /* An error ends the backward pass and is returned from it. */
    tg_status (*receive)(void *user, const tg_gradient *gradient);
    void *user;
    /* Several at once, with the same result as one by one; NULL: they come one by one. */
    tg_status (*receive_all)(void *user, int count, const tg_gradient *gradients);
} tg_grad_sink;

/* The workspace that an optimizer shares with a network (tg_step_share_workspace): the memory of
 * the activations, free from the end of a backward pass, when the gradients of spectral weights are
 * handed over, until the next forward. */
typedef struct tg_shared_workspace {
    size_t dense_bytes; /* for a gradient that is formed of its factors */
    size_t work_bytes;  /* for everything else */
    void *dense, *work; /* where the backend computes; NULL in plans, and where nothing is needed */
} tg_shared_workspace;

/* Copies the gradient, whichever form it has, into a tensor of its shape on the host, of
 * tg_dtype_wide(gradient->dtype). */
TG_API TG_NODISCARD tg_status tg_gradient_read(tg_context *ctx, const tg_gradient *gradient,
                                               const tg_tensor *out);

TG_C_END
#endif

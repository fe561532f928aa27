/* A network as a function of the caller's arrays, for frameworks with weights, memory and automatic
 * differentiation of their own.
 *
 *     tg_function_create(ctx, &config, batch, grid, true, &function);
 *     tg_function_sizes(function, &activations, &workspace);
 *     tg_function_forward(function, &call, &x, &y);      activations hold what backward needs
 *     tg_function_backward(function, &call, &dy, &dx);   and are overwritten by it
 *
 * A function keeps no numbers between calls: it serves any number of networks of the same config,
 * and of forwards before their backwards, each with its own activations. On a GPU, passes of small
 * networks with arrays at the same addresses are captured as graphs and replayed: the last four of
 * each direction, without dropout. They become parts of a graph that the owner of the stream
 * captures. */
#ifndef TGRAD_FUNCTION_H
#define TGRAD_FUNCTION_H

#include "tgrad/fno.h"
#include "tgrad/gradient.h"

TG_C_BEGIN

typedef struct tg_function tg_function;

/* Arrays where the backend computes, aligned to 64 bytes. */
typedef struct tg_function_call {
    const void **weights; /* one for each parameter, in the order of tg_fno_get_param */
    void **gradients; /* backward: likewise, overwritten, of tg_dtype_wide of the parameter; NULL:
                         not wanted. Where all that do not arise as factors are in one block, each
                         at the next multiple of 64 bytes after the one before, they are computed
                         in place, which is faster; the padding is overwritten */
    tg_gradient *factors; /* backward: likewise; those of spectral weights that are NULL in
                             `gradients`, as factors in `activations` and `workspace`. The others
                             stay as they are. NULL: not wanted */
    void *activations;    /* of tg_function_sizes; backward takes those of its forward */
    void *workspace;
    uint64_t seed; /* of dropout's masks: the same in forward and backward */
} tg_function_call;

/* A function for batches of up to `batch` samples on a grid (n_dim sizes), of a network on a grid
 * without micro-batches. With config.input_gradient backward can also compute dL/dx. Without
 * `training` there is no backward. Its arrays have room for the bytes of `shared` (NULL: none) for
 * the receiver of the factors. */
TG_API TG_NODISCARD tg_status tg_function_create(tg_context *ctx, const tg_fno_config *config,
                                                 int64_t batch, const int64_t *grid, bool training,
                                                 const tg_shared_workspace *shared,
                                                 tg_function **out);
TG_API void tg_function_destroy(tg_function **function);

/* Bytes of the caller's arrays. */
TG_API TG_NODISCARD tg_status tg_function_sizes(const tg_function *function, size_t *activations,
                                                size_t *workspace);

/* Whether the gradient of a parameter arises as factors. */
TG_API bool tg_function_sends_factors(const tg_function *function, int param);

/* That room in the arrays of the last backward: free as long as the factors exist. */
TG_API tg_shared_workspace tg_function_shared(const tg_function *function);

/* y (b, out_channels, grid..) = network(x (b, in_channels, grid..)), as tg_fno_forward. */
TG_API TG_NODISCARD tg_status tg_function_forward(tg_function *function,
                                                  const tg_function_call *call, const tg_tensor *x,
                                                  tg_tensor *y);

/* From dy = dL/dy, gradients of the parameters with room in the call, and of x unless dx is NULL.
 */
TG_API TG_NODISCARD tg_status tg_function_backward(tg_function *function,
                                                   const tg_function_call *call,
                                                   const tg_tensor *dy, tg_tensor *dx);

TG_C_END
#endif

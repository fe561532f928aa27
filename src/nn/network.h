/* Internals of a network: a model, its weights, and the program that is ready to run. */
#ifndef TG_NN_NETWORK_H
#define TG_NN_NETWORK_H

#include "backend/tensor.h"
#include "nn/losses.h"
#include "nn/program.h"

/* Workspace of losses in Fourier space and of residuals of equations; the slab of the fields. */
typedef struct nn_loss_work {
    int64_t samples; /* of a call, at most */
    nn_loss_slab slab;
    nn_spectral spectral;
    nn_residual residual;
    void *x; /* of residuals, if the caller's x is elsewhere */
} nn_loss_work;

/* Its parts; and whether a loss takes differences on the grid. */
enum { NN_LOSS_SPECTRAL = 1, NN_LOSS_RESIDUAL = 2, NN_LOSS_FLOW = 4, NN_LOSS_DIFFERENCES = 8 };

/* The arguments of a forward or backward call. */
typedef struct nn_call {
    const tg_tensor *x, *target;
    const tg_loss_config *loss_config;
    double grad_scale; /* of dL/dy */
    double *loss;      /* on the backend */
    const tg_grad_sink *sink;
    void *dx; /* for dL/dx, if the network computes it; NULL: discard it */
} nn_call;

typedef struct nn_run {
    bool ready;
    bool saved;           /* the activations of a forward are kept for its backward */
    bool has_dout;        /* and so is dL/dy */
    int64_t whole;        /* samples of the step */
    int64_t first, batch; /* the part of them in flight */
    nn_program program;
    tg_fft_plan **fft;                         /* (program.transform_count) */
    void *activations, *workspace, *gradients; /* the arenas, and the buffer of gradients */
    void *matrices;
    void *places; /* of a GINO: the memory of the fields below */
    tg_neighbours near[NN_SIDES];
    double *latent;         /* (pixels, n_dim): the grid of the unit box */
    bool has_points;        /* the coordinates are set */
    tg_tensor features;     /* a view of the caller's */
    nn_loss_work loss_work; /* allocated by the first step whose loss needs it */
    int gradient_first;     /* the first parameter in `gradients` */
    nn_call call;
} nn_run;

struct tg_fno {
    tg_context *ctx;
    tg_backend *be;
    nn_model model;
    uint64_t seed, step;
    char *weights; /* (model.weight_bytes) where the backend computes */
    const void *
        *bound; /* during a call of a tg_function: the caller's weights, in place of these */
    nn_run run;
    tg_shared_workspace shared; /* bytes to be shared from the next preparation for training on */
    int64_t preparations; /* number of times the buffers of `run` were created; earlier captured
                             graphs are invalid */
};

static inline void *nn_weight(const tg_fno *fno, int param) {
    if (param < 0) {
        return NULL;
    }
    return fno->bound ? (void *)(uintptr_t)fno->bound[param]
                      : fno->weights + fno->model.params[param].offset;
}

/* The address `count` elements of a dtype after x. */
static inline void *nn_element(tg_dtype dtype, const void *x, int64_t count) {
    return (char *)(uintptr_t)x + (size_t)count * tg_dtype_size(dtype);
}

/* Fails for an outline, which has no weights. */
TG_NODISCARD tg_status nn_check_weights(const tg_fno *fno);

/* Makes the program for a batch and a grid, with its transforms and the buffer of gradients: all of
 * tg_fno_prepare but the arenas. On failure the caller frees the run. */
TG_NODISCARD tg_status nn_run_make(tg_fno *fno, int64_t batch, const int64_t *grid, bool training);
/* Frees what tg_fno_prepare allocated. */
void nn_run_free(tg_fno *fno);

/* Sets the bytes that preparations for training keep for the receiver of gradients. The result,
 * valid as long as the network, holds the address of that memory after a preparation: it may be
 * used when gradients of spectral weights are received, at the end of a backward pass, until the
 * next forward. */
const tg_shared_workspace *nn_share(tg_fno *fno, const tg_shared_workspace *shared);

/* ---- gradients of parameters (ops/hand_over.c) ---- */

/* Bytes of the gradients of `count` parameters from `first` on. */
size_t nn_gradient_span(const nn_model *model, int first, int count);
/* Begins them, from zero if `cleared` .. */
TG_NODISCARD tg_status nn_gradient_begin(tg_fno *fno, int first, int count, bool cleared);
/* .. and finds one by its number (NULL for -1). */
void *nn_gradient(const tg_fno *fno, int param);

/* ---- places of a GINO (places.c) ---- */

/* Bytes allocated for them; 0 without them. */
size_t nn_places_bytes(const nn_model *model, tg_backend *be, const nn_domain *domain);
TG_NODISCARD tg_status nn_places_lay_out(tg_fno *fno, void *memory);
/* Fails unless the coordinates and features of a forward were set. */
TG_NODISCARD tg_status nn_places_check(const tg_fno *fno);

/* ---- matrices (prepare.c): of resamplings (ops/resample.c), and of the first dimension of a split
 * network (ops/split.c) ---- */

/* Their numbers, in the order of the memory; `of` an nn_resampling, or an nn_transform. */
tg_scalar nn_resampling_entry(const void *of, int64_t at);
int64_t nn_split_entries(const nn_transform *transform);
tg_scalar nn_split_entry(const void *of, int64_t at);

/* Computes `count` numbers piece by piece, and copies them to the backend. */
TG_NODISCARD tg_status nn_upload_entries(tg_backend *be, tg_dtype dtype, int64_t count,
                                         tg_scalar (*entry)(const void *of, int64_t at),
                                         const void *of, void *to);

/* What a split network sends in a step. */
nn_traffic nn_split_sent(const nn_program *program);

/* ---- weights (fno.c) ---- */

/* tg_fno_create and tg_fno_outline of a network that is split; NULL: it is not. */
TG_NODISCARD tg_status nn_outline(tg_context *ctx, const tg_fno_config *config,
                                  const nn_split *split, tg_fno **out);
TG_NODISCARD tg_status nn_create(tg_context *ctx, const tg_fno_config *config,
                                 const nn_split *split, uint64_t seed, tg_fno **out);
/* tg_fno_plan of one; *sent (NULL: not wanted): as nn_split_sent. */
TG_NODISCARD tg_status nn_plan(tg_context *ctx, const tg_fno_config *config, const nn_split *split,
                               int64_t batch, const int64_t *grid, bool training,
                               const tg_shared_workspace *shared, tg_fno_memory *out,
                               nn_traffic *sent);

/* The shape of a parameter with the rows of all ranks. */
static inline tg_shape nn_whole_shape(const tg_fno_param *param) {
    tg_shape shape = param->shape;
    shape.dim[2] = param->whole > 0 ? param->whole : shape.dim[2];
    return shape;
}

/* Of parts of a sample, fails on all if one has failed, so that none waits for it. */
TG_NODISCARD static inline tg_status nn_agree(const nn_split *split, tg_status status) {
    return split->comm ? tg_comm_agree(split->comm, status) : status;
}

/* Copies the rows in dimension 2 that each part has of a tensor, `own`, to the host of part 0,
 * where it creates `whole`; all parts call it. nn_gather_bytes: of the host, while it runs, for
 * those of a parameter in transit. */
TG_NODISCARD tg_status nn_gather(tg_backend *be, const nn_split *split, const tg_tensor *own,
                                 int64_t rows, tg_tensor *whole);
size_t nn_gather_bytes(const tg_fno_param *param, int parts);

/* ---- passes over the program (run.c) ---- */

/* Copies the samples in flight of a host or device tensor to the backend. */
TG_NODISCARD tg_status nn_bring(const tg_fno *fno, const tg_tensor *from, void *to);

/* Number of the training step: the seed of dropout masks, counted by backward passes. */
uint64_t tg_fno_step(const tg_fno *fno);
void tg_fno_set_step(tg_fno *fno, uint64_t step);

/* Forward, and the loss of its result: a sum over batch and channels, in `loss` on the backend. Its
 * gradient, times grad_scale, stays with the network for a backward without dy. Waits for nothing
 * if x and target are where the backend computes. A loss that is not finite has gradients of NaN.
 */
TG_NODISCARD tg_status nn_forward_loss(tg_fno *fno, const tg_tensor *x, const tg_tensor *target,
                                       const tg_loss_config *config, double grad_scale,
                                       double *loss);

/* Forward of a network prepared for training, whose output stays inside. */
TG_NODISCARD tg_status nn_forward(tg_fno *fno, const tg_tensor *x);
/* The output of the last forward, and dL/dy, which may be added to before backward. */
void *nn_output(const tg_fno *fno);
void *nn_output_gradient(const tg_fno *fno);
/* Backward of a forward that computed the loss; dL/dx, if the network computes it, goes to `dx` on
 * the backend (NULL: discard it). */
TG_NODISCARD tg_status nn_backward(tg_fno *fno, const tg_grad_sink *sink, void *dx);

/* tg_fno_backward that can also write dL/dx. */
TG_NODISCARD tg_status nn_backward_from(tg_fno *fno, const tg_tensor *dy, const tg_grad_sink *sink,
                                        const tg_tensor *dx);

/* The host's part of a pass whose results are there: it was queued from a captured graph, or made
 * by another call with the same activations. */
void nn_forward_replayed(tg_fno *fno, int64_t batch);
void nn_backward_replayed(tg_fno *fno);
/* Undoes a backward none of which was run. */
void nn_backward_undone(tg_fno *fno, uint64_t step);

/* The caller's config converted to this library's. */
TG_NODISCARD tg_status nn_loss_config_read(tg_context *ctx, const tg_loss_config *config,
                                           tg_loss_config *out);

/* Whether the backend has this loss, and it suits this network. */
TG_NODISCARD tg_status nn_loss_fits(tg_backend *be, const tg_loss_config *config,
                                    const tg_fno_config *network);
/* Adds the loss of tensors on the backend, `shape` = (batch, channels, grid..), and computes its
 * gradient times grad_scale. A spectral one works in `work`, allocated for work->samples by the
 * first call, and cannot be of a slab; residuals of equations are not included. */
TG_NODISCARD tg_status nn_loss(tg_backend *be, const tg_loss_config *config, tg_dtype dtype,
                               const tg_shape *shape, const void *pred, const void *target,
                               nn_loss_work *work, double *loss, double grad_scale, void *dpred);
/* What a rank of a split network sends for it; `shape` has the whole grid. */
nn_traffic nn_loss_sent(const tg_loss_config *config, tg_dtype dtype, const tg_shape *shape,
                        const nn_split *split);
/* The parts of `work` that a loss needs. */
unsigned nn_loss_parts(const tg_loss_config *config);
void nn_loss_work_free(tg_backend *be, nn_loss_work *work);
/* Bytes of these parts for fields of that shape, on the backend and, for a device, on the host. */
TG_NODISCARD tg_status nn_loss_workspace(tg_backend *be, unsigned parts, tg_dtype dtype,
                                         const tg_shape *shape, size_t *bytes, size_t *host);

#endif

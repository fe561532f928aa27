/* Inside of a network: a model, its weights, and the program that is ready to run. */
#ifndef TG_NN_NETWORK_H
#define TG_NN_NETWORK_H

#include "backend/tensor.h"
#include "nn/physics_loss.h"
#include "nn/program.h"
#include "nn/spectral_loss.h"

/* What losses in Fourier space and residuals of equations work in. */
typedef struct nn_loss_work {
    int64_t samples; /* of a call, at most */
    nn_spectral spectral;
    nn_residual residual;
    void *x; /* of residuals, where the caller has it on another side */
} nn_loss_work;

/* Its parts. */
enum { NN_LOSS_SPECTRAL = 1, NN_LOSS_RESIDUAL = 2, NN_LOSS_FLOW = 4 };

/* What a call of forward or backward works on. */
typedef struct nn_call {
    const tg_tensor *x, *target;
    const tg_loss_config *loss_config;
    double grad_scale; /* of dL/dy */
    double *loss;      /* where the backend computes */
    const tg_grad_sink *sink;
    void *dx; /* where dL/dx goes, of a network that makes it; NULL: nowhere */
} nn_call;

typedef struct nn_run {
    bool ready;
    bool saved;           /* the activations of a forward wait for their backward */
    bool has_dout;        /* and so does dL/dy */
    int64_t whole;        /* samples of the step */
    int64_t first, batch; /* those of them that are in flight */
    nn_program program;
    tg_fft_plan *fft;                          /* of program.images images: C transforms each */
    void *activations, *workspace, *gradients; /* the arenas, and where gradients leave from */
    void *places;                              /* of a GINO: memory of what follows */
    tg_neighbours near[NN_SIDES];
    double *latent;         /* (pixels, n_dim): the grid of the unit box */
    bool has_points;        /* the places are known */
    tg_tensor features;     /* a view of the caller's */
    nn_loss_work loss_work; /* from the first step on whose loss needs it */
    int gradient_first;     /* parameter whose gradient stands first in `gradients` */
    nn_call call;
} nn_run;

struct tg_fno {
    tg_context *ctx;
    tg_backend *be;
    nn_model model;
    uint64_t seed, step;
    char *weights; /* (model.weight_bytes) where the backend computes */
    nn_run run;
    tg_shared_workspace shared; /* bytes to be shared from the next preparation for training on */
    int64_t preparations; /* times the buffers of `run` were made: graphs captured before are of no
                             use */
};

static inline void *nn_weight(const tg_fno *fno, int param) {
    return param < 0 ? NULL : fno->weights + fno->model.params[param].offset;
}

/* The address `count` elements of a dtype behind x. */
static inline void *nn_element(tg_dtype dtype, const void *x, int64_t count) {
    return (char *)(uintptr_t)x + (size_t)count * tg_dtype_size(dtype);
}

/* An outline has none. */
TG_NODISCARD tg_status nn_check_weights(const tg_fno *fno);

/* Frees what tg_fno_prepare made. */
void nn_run_free(tg_fno *fno);

/* Bytes that preparations for training are to keep ready for the receiver of gradients from now on.
 * Returns where the memory that the last one kept is told, for as long as the network lives: to be
 * used when gradients of spectral weights are received, at the end of a backward pass, and until
 * the next forward. */
const tg_shared_workspace *nn_share(tg_fno *fno, const tg_shared_workspace *shared);

/* ---- gradients of parameters (ops/hand_over.c) ---- */

/* Bytes of those of `count` parameters from `first` on. */
size_t nn_gradient_span(const nn_model *model, int first, int count);
/* They begin, from zero if they are `cleared` .. */
TG_NODISCARD tg_status nn_gradient_begin(tg_fno *fno, int first, int count, bool cleared);
/* .. and each is found by its number (NULL for -1). */
void *nn_gradient(const tg_fno *fno, int param);

/* ---- places of a GINO (places.c) ---- */

/* Bytes that are taken for them; 0 for others. */
size_t nn_places_bytes(const nn_model *model, tg_backend *be, const nn_geometry *geometry);
TG_NODISCARD tg_status nn_places_lay_out(tg_fno *fno, void *memory);
/* Whether what a forward needs of them was set. */
TG_NODISCARD tg_status nn_places_check(const tg_fno *fno);

/* ---- weights (fno.c) ---- */

/* As tg_fno_save, with copies in a staging buffer, if there is one. */
TG_NODISCARD tg_status nn_save(const tg_fno *fno, const char *prefix, tg_staging *staging,
                               tg_archive *archive);

/* ---- passes over the program (run.c) ---- */

/* The samples in flight of a tensor of host or device, to where the backend computes. */
TG_NODISCARD tg_status nn_bring(const tg_fno *fno, const tg_tensor *from, void *to);

/* tg_fno_forward_loss, with all gradients of the backward pass grad_scale times as large. */
TG_NODISCARD tg_status nn_forward_loss(tg_fno *fno, const tg_tensor *x, const tg_tensor *target,
                                       const tg_loss_config *config, double grad_scale,
                                       double *loss);

/* Forward of a network that is prepared for training, whose output stays inside. */
TG_NODISCARD tg_status nn_forward(tg_fno *fno, const tg_tensor *x);
/* Where the last forward left its output, and dL/dy, which may be added to before backward. */
void *nn_output(const tg_fno *fno);
void *nn_output_gradient(const tg_fno *fno);
/* Backward of a forward that made the loss; dL/dx, if the network makes it, goes to `dx` (NULL:
 * nowhere), where the backend computes. */
TG_NODISCARD tg_status nn_backward(tg_fno *fno, const tg_grad_sink *sink, void *dx);

/* The host's part of a pass whose work was queued from a captured graph. */
void nn_forward_replayed(tg_fno *fno, int64_t batch);
void nn_backward_replayed(tg_fno *fno);
/* Takes back a backward of which nothing was run. */
void nn_backward_undone(tg_fno *fno, uint64_t step);

/* A config of the caller as one of this library's. */
TG_NODISCARD tg_status nn_loss_config_read(tg_context *ctx, const tg_loss_config *config,
                                           tg_loss_config *out);

/* Whether this is a loss that the backend has, of this network. */
TG_NODISCARD tg_status nn_loss_fits(tg_backend *be, const tg_loss_config *config,
                                    const tg_fno_config *network);
/* Adds to the loss that of what lies where the backend computes, `shape` = (batch, channels,
 * grid..), and makes grad_scale times its gradient. A spectral one works in `work`, taken for
 * work->samples with the first call; residuals of equations are not in it. */
TG_NODISCARD tg_status nn_loss(tg_backend *be, const tg_loss_config *config, tg_dtype dtype,
                               const tg_shape *shape, const void *pred, const void *target,
                               nn_loss_work *work, double *loss, double grad_scale, void *dpred);
/* The parts of `work` that a loss needs. */
unsigned nn_loss_parts(const tg_loss_config *config);
void nn_loss_work_free(tg_backend *be, nn_loss_work *work);
/* Bytes of these parts for fields of that shape, where the backend computes and, if that is
 * elsewhere, on the host. */
TG_NODISCARD tg_status nn_loss_workspace(tg_backend *be, unsigned parts, tg_dtype dtype,
                                         const tg_shape *shape, size_t *bytes, size_t *host);

#endif

/* The layers of a network: each walks batch, planes and parts and calls the backend. */
#ifndef TG_NN_LAYERS_H
#define TG_NN_LAYERS_H

#include "nn/model.h"

/* ---- geometry.c ---- */

TG_NODISCARD tg_status nn_geometry_make(const nn_model *model, int64_t batch, const int64_t *grid,
                                        nn_geometry *out);
tg_fft_desc nn_geometry_fft(const nn_model *model, const nn_geometry *g, int64_t images);

/* ---- lives.c ---- */

/* Asks for every buffer of a step and places them: both arenas, solved. */
TG_NODISCARD tg_status nn_lay_out(const nn_model *model, tg_backend *be, nn_run *run,
                                  nn_plan *activations, nn_plan *workspace);

/* The phases of a step that those lives are counted in. */
int nn_phase_count(const nn_model *model);
void nn_phase_describe(const nn_model *model, int phase, tg_fno_phase *out); /* but for bytes */

/* Points the buffers that are another one's memory in this configuration there. */
void nn_run_alias(const nn_model *model, nn_run *run);

/* Whether backward makes again what lies inside a block. */
static inline bool nn_recomputes(const nn_model *model) {
    return model->config.activation_checkpoint != TG_CHECKPOINT_OFF;
}

/* Whether it makes the inputs of blocks again, too: real data without norms, which was checked. */
static inline bool nn_forgets(const nn_model *model) {
    return model->config.activation_checkpoint == TG_CHECKPOINT_MINIMAL;
}

/* Whether backward makes the input of the first block again, straight from the lifting. */
static inline bool nn_lifts_again(const nn_model *model, const nn_geometry *g) {
    return nn_forgets(model) || (nn_recomputes(model) && !g->pads);
}

/* Whether the gradient at a block's input takes the place of that at its output. */
static inline bool nn_stays(const nn_model *model) {
    return nn_recomputes(model) && model->planes == 1 &&
           model->config.channel_mlp_skip != TG_SKIP_LINEAR;
}

/* Whether x is kept as it came before it is embedded or split into planes. */
static inline bool nn_stages_input(const nn_model *model) {
    return model->planes == 2 || model->embedded_channels != model->config.in_channels;
}

/* ---- gradients.c: the gradients of a few parameters that are made together ---- */

/* Bytes that the largest such group needs. */
size_t nn_gradient_bytes(const nn_model *model);

/* Parameters first .. first + count - 1 start from gradients of zero in run->gradients .. */
TG_NODISCARD tg_status nn_gradient_begin(tg_fno *fno, int first, int count);
/* .. where each is found by its number (NULL for -1) .. */
void *nn_gradient(const tg_fno *fno, int param);
/* .. and leave through the sink. */
TG_NODISCARD tg_status nn_gradient_send(tg_fno *fno, const tg_grad_sink *sink, int first,
                                        int count);
/* A spectral weight's, by its factors (batch, C, modes). */
TG_NODISCARD tg_status nn_gradient_send_factors(tg_fno *fno, const tg_grad_sink *sink, int param,
                                                const void *x, const void *dy);

/* Parameters of a perceptron or a skip: the first one and how many. */
int nn_mlp_params(const nn_model *model);
int nn_skip_params(const nn_model *model, const nn_skip *skip);

/* ---- layers.c ---- */

/* Bytes of scratch for all perceptrons and skips. */
size_t nn_scratch_bytes(tg_backend *be, const nn_model *model, const nn_geometry *g, int64_t batch,
                        bool training);

/* A call of a perceptron; arrays (planes, batch, channels, pixels). y = f(act(x)), and with real
 * data y = f(act(x)) + gate add, activated = gelu(y). */
typedef struct nn_mlp_call {
    const nn_mlp *mlp;
    int64_t pixels;
    tg_act act;
    double dropout;
    int module; /* number of the perceptron, for dropout */
    void *x, *y;
    const void *add, *gate;
    void *activated;
    const void *dy;
    void *dx; /* through act; real data: may be x; NULL: not wanted */
} nn_mlp_call;

TG_NODISCARD tg_status nn_mlp_forward(tg_fno *fno, const nn_mlp_call *call);
TG_NODISCARD tg_status nn_mlp_backward(tg_fno *fno, const nn_mlp_call *call);

/* A call of a skip inside a block: y += S(x) + bias (to the real parts). Backward: gradients at the
 * skip's parameters and at the bias, dx = beta dx + S^T dy, and after that dx *= act'(x) if
 * through; real data: dx may be dy unless the skip is linear. */
typedef struct nn_skip_call {
    const nn_skip *skip;
    int bias;   /* parameter; -1: none */
    tg_act act; /* the input is act(x) */
    bool through;
    void *x, *y;
    const void *dy;
    void *dx;
    double beta;
} nn_skip_call;

TG_NODISCARD tg_status nn_skip_forward(tg_fno *fno, const nn_skip_call *call);
TG_NODISCARD tg_status nn_skip_backward(tg_fno *fno, const nn_skip_call *call);

/* A bias alone: y += bias on the real parts; its gradient. */
TG_NODISCARD tg_status nn_bias_forward(tg_fno *fno, int bias, void *y);
TG_NODISCARD tg_status nn_bias_backward(tg_fno *fno, int bias, const void *dy);

/* Norm number n of a block: y = norm(x); dx = its gradient for dy, where dx may be x or dy. */
TG_NODISCARD tg_status nn_norm_forward(tg_fno *fno, const nn_norm *norm, const void *x,
                                       double *stats, void *y);
TG_NODISCARD tg_status nn_norm_backward(tg_fno *fno, const nn_norm *norm, const void *x,
                                        double *stats, const void *dy, void *dx);

/* ---- spectral.c: between activations inside the blocks and spectra (batch, C, modes) ---- */

/* spectrum = scale transform(x), x through the stabilizer first if it is wanted. */
TG_NODISCARD tg_status nn_transform(tg_fno *fno, tg_fft_weight weight, double scale, bool stabilize,
                                    const void *x, void *spectrum);
TG_NODISCARD tg_status nn_inverse(tg_fno *fno, tg_fft_weight weight, double scale,
                                  const void *spectrum, void *y);
/* dst (batch, C, modes) = src times weight number `param`, or its adjoint. */
TG_NODISCARD tg_status nn_multiply(tg_fno *fno, int param, bool adjoint, const void *src,
                                   void *dst);
/* dx *= stabilizer'(act(x)). */
TG_NODISCARD tg_status nn_unstabilize(tg_fno *fno, tg_act act, const void *x, void *dx);

/* Into the padded grid with zeros around, or out of it. */
TG_NODISCARD tg_status nn_pad(tg_fno *fno, const void *x, void *padded);
TG_NODISCARD tg_status nn_crop(tg_fno *fno, const void *padded, void *x);

#endif

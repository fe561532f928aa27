/* Backward pass, last layer first. A parameter's gradient goes to the sink when nothing of this
 * pass reads the parameter any more: the sink may change it. Those of spectral weights wait, as
 * factors, until the activations are no longer needed: the sink may work in their memory.
 *
 * With g the gradient at z2 of a block: the perceptron turns z1 into its gradient (its hidden layer
 * is made again); the transform of that is, with the kept modes of the input, the factored
 * gradient of the spectral weight; back on the grid come the skips, and the slope of the GELU that
 * made the input out of the z2 before. */
#include "nn/passes.h"

static tg_status unproject(tg_fno *fno, const tg_grad_sink *sink) {
    tg_status status = TG_OK;
    const nn_model *model = &fno->model;
    nn_run *run = &fno->run;
    if (model->planes == 2) {
        const int64_t n = run->batch * model->config.out_channels * run->geometry.pixels;
        TG_TRY(fno->be->ops->planes_split(fno->be, nn_dtype(fno), n, run->dout, run->dprojected,
                                          nn_at(fno, run->dprojected, n)));
    }
    const int first = model->projection.param[0][0], count = nn_mlp_params(model);
    const nn_mlp_call call = {.mlp = &model->projection,
                              .pixels = run->geometry.pixels,
                              .x = run->cropped,
                              .dy = run->dprojected,
                              .dx = run->dcropped};
    TG_TRY(nn_gradient_begin(fno, first, count));
    TG_TRY(nn_mlp_backward(fno, &call));
    TG_TRY(nn_gradient_send(fno, sink, first, count));
    if (run->geometry.pads) {
        TG_TRY(nn_pad(fno, run->dcropped, run->dtop));
    }
fail:
    return status;
}

/* The input of block l is act(what stands here): the z2 before it, or the lifting's result. */
static void *input_of(const tg_fno *fno, int l) {
    const bool own = l == 0 || nn_forgets(&fno->model);
    return own ? fno->run.blocks[l].back_x : fno->run.blocks[l - 1].z2;
}

static tg_act input_act(int l) {
    return l == 0 ? TG_ACT_NONE : TG_ACT_GELU;
}

/* z2 of the block before l, from the lifting on through all blocks before, by the kept modes of
 * their inputs; the memory of z1 of block l holds the inputs on the way. */
static tg_status remake_input(tg_fno *fno, int l) {
    tg_status status = TG_OK;
    const nn_block_buffers *b = &fno->run.blocks[l];
    void *x = b->back_z1, *z = b->back_x;
    TG_TRY(nn_lift(fno, b->back_lifted, x));
    for (int j = 0; j < l; j++) {
        const nn_mix_arrays arrays = {
            .x = x, .z1 = z, .mixed = z, .z2 = z, .next = j + 1 < l ? x : NULL};
        TG_TRY(nn_convolution(fno, j, x, TG_ACT_NONE, b->back_product, z, z));
        TG_TRY(nn_mix(fno, j, &arrays));
    }
fail:
    return status;
}

/* What was not kept of block l, made as in forward. */
static tg_status remake(tg_fno *fno, int l) {
    tg_status status = TG_OK;
    const nn_block_buffers *b = &fno->run.blocks[l];
    if (l == 0 && nn_lifts_again(&fno->model, &fno->run.geometry)) {
        TG_TRY(nn_lift(fno, b->back_lifted, b->back_x));
    } else if (nn_forgets(&fno->model)) {
        TG_TRY(remake_input(fno, l));
    }
    TG_TRY(nn_convolution(fno, l, input_of(fno, l), input_act(l), b->back_product, b->back_conv,
                          b->back_z1));
fail:
    return status;
}

/* g at z2 becomes that at mixed; dz1 from it. */
static tg_status unmix(tg_fno *fno, int l, void *g, const tg_grad_sink *sink) {
    tg_status status = TG_OK;
    const nn_model *model = &fno->model;
    const nn_block *block = &model->blocks[l];
    const nn_block_buffers *b = &fno->run.blocks[l];
    if (model->config.norm != TG_NORM_NONE) {
        const nn_norm *norm = &block->norm[1];
        const int count = norm->weight < 0 ? 0 : 2;
        TG_TRY(nn_gradient_begin(fno, norm->weight, count));
        TG_TRY(nn_norm_backward(fno, norm, b->mixed, b->stats[1], g, g));
        TG_TRY(nn_gradient_send(fno, sink, norm->weight, count));
    }
    const int first = block->mlp.param[0][0], count = nn_mlp_params(model);
    nn_mlp_call call = nn_block_mlp(fno, l);
    call.x = b->back_z1;
    call.dy = g;
    call.dx = b->dz1;
    TG_TRY(nn_gradient_begin(fno, first, count));
    TG_TRY(nn_mlp_backward(fno, &call));
    TG_TRY(nn_gradient_send(fno, sink, first, count));
fail:
    return status;
}

/* The factor of the spectral weight's gradient from dz1, and the gradient at the input's modes. */
static tg_status unconvolve(tg_fno *fno, int l, const tg_grad_sink *sink) {
    tg_status status = TG_OK;
    const nn_block *block = &fno->model.blocks[l];
    const nn_block_buffers *b = &fno->run.blocks[l];
    const void *dconv = b->dz1;
    if (fno->model.config.norm != TG_NORM_NONE) {
        const nn_norm *norm = &block->norm[0];
        const int count = norm->weight < 0 ? 0 : 2;
        TG_TRY(nn_gradient_begin(fno, norm->weight, count));
        TG_TRY(nn_norm_backward(fno, norm, b->back_conv, b->stats[0], b->dz1, b->back_conv));
        TG_TRY(nn_gradient_send(fno, sink, norm->weight, count));
        dconv = b->back_conv;
        TG_TRY(nn_gradient_begin(fno, block->bias, 1));
        TG_TRY(nn_bias_backward(fno, block->bias, dconv));
        TG_TRY(nn_gradient_send(fno, sink, block->bias, 1));
    }
    TG_TRY(nn_transform(fno, TG_FFT_ADJOINT, 1.0, false, dconv, b->dspectrum));
    TG_TRY(nn_multiply(fno, block->weight, true, b->dspectrum, b->dx_spectrum));
fail:
    return status;
}

/* What the convolution carries to the input of block l. */
static tg_status carry(tg_fno *fno, int l, void *dx) {
    const double scale = 1.0 / (double)fno->run.geometry.padded_pixels;
    const tg_status status =
        nn_inverse(fno, TG_FFT_ADJOINT, scale, fno->run.blocks[l].dx_spectrum, dx);
    return status == TG_OK && fno->model.config.stabilizer == TG_STABILIZER_TANH
               ? nn_unstabilize(fno, input_act(l), input_of(fno, l), dx)
               : status;
}

/* A skip of block l, backwards, and its gradients to the sink; with those of the bias, if it has
 * one. */
static tg_status unskip(tg_fno *fno, const nn_skip_call *call, const tg_grad_sink *sink) {
    tg_status status = TG_OK;
    const int first = call->bias < 0 ? call->skip->param[0] : call->bias;
    const int count = nn_skip_params(&fno->model, call->skip) + (call->bias < 0 ? 0 : 1);
    TG_TRY(nn_gradient_begin(fno, first, count));
    TG_TRY(nn_skip_backward(fno, call));
    TG_TRY(nn_gradient_send(fno, sink, first, count));
fail:
    return status;
}

/* The gradient at the z2 before block l: what the convolution and the skips carry, through the
 * GELU that made the input. */
static tg_status gather(tg_fno *fno, int l, void *g, const tg_grad_sink *sink) {
    tg_status status = TG_OK;
    const nn_block *block = &fno->model.blocks[l];
    const nn_block_buffers *b = &fno->run.blocks[l];
    const bool norm = fno->model.config.norm != TG_NORM_NONE;
    nn_skip_call inner = {.skip = &block->fno_skip,
                          .bias = norm ? -1 : block->bias,
                          .act = input_act(l),
                          .x = input_of(fno, l),
                          .dy = b->dz1,
                          .dx = b->dx,
                          .beta = 1.0};
    nn_skip_call outer = inner;
    outer.skip = &block->mlp_skip;
    outer.bias = -1;
    outer.dy = g;
    if (!nn_stays(&fno->model)) {
        outer.through = true;
        TG_TRY(carry(fno, l, b->dx));
        TG_TRY(unskip(fno, &inner, sink));
        TG_TRY(unskip(fno, &outer, sink));
        return TG_OK;
    }
    /* dx is g: the outer skip in place, then the inner one; dz1 is then free for the rest. */
    outer.beta = 0.0;
    TG_TRY(unskip(fno, &outer, sink));
    TG_TRY(unskip(fno, &inner, sink));
    TG_TRY(carry(fno, l, b->dz1));
    const nn_skip none = {.kind = TG_MIX_IDENTITY, .param = {-1, -1}};
    nn_skip_call rest = inner;
    rest.skip = &none;
    rest.bias = -1;
    rest.through = true;
    TG_TRY(nn_skip_backward(fno, &rest));
fail:
    return status;
}

static tg_status unlift(tg_fno *fno, const tg_grad_sink *sink) {
    tg_status status = TG_OK;
    const nn_model *model = &fno->model;
    nn_run *run = &fno->run;
    if (run->geometry.pads) {
        TG_TRY(nn_crop(fno, run->blocks[0].dx, run->dlifted));
    }
    const int first = model->lifting.param[0][0], count = nn_mlp_params(model);
    const nn_mlp_call call = {.mlp = &model->lifting,
                              .pixels = run->geometry.pixels,
                              .x = run->embedded,
                              .dy = run->dlifted};
    TG_TRY(nn_gradient_begin(fno, first, count));
    TG_TRY(nn_mlp_backward(fno, &call));
    TG_TRY(nn_gradient_send(fno, sink, first, count));
fail:
    return status;
}

tg_status nn_backward(tg_fno *fno, const tg_grad_sink *sink) {
    tg_status status = TG_OK;
    fno->run.saved = fno->run.has_dout = false; /* what was kept is now worked on in place */
    TG_TRY(unproject(fno, sink));
    void *g = fno->run.dtop;
    for (int l = (int)fno->model.config.n_layers - 1; l >= 0; l--) {
        if (nn_recomputes(&fno->model)) {
            TG_TRY(remake(fno, l));
        }
        TG_TRY(unmix(fno, l, g, sink));
        TG_TRY(unconvolve(fno, l, sink));
        TG_TRY(gather(fno, l, g, sink));
        g = fno->run.blocks[l].dx;
    }
    TG_TRY(unlift(fno, sink));
    for (int l = (int)fno->model.config.n_layers - 1; l >= 0; l--) {
        const nn_block_buffers *b = &fno->run.blocks[l];
        TG_TRY(nn_gradient_send_factors(fno, sink, fno->model.blocks[l].weight, b->spectrum,
                                        b->dspectrum));
    }
    fno->step++;
fail:
    return status;
}

void nn_forward_replayed(tg_fno *fno, int64_t batch) {
    fno->run.batch = batch;
    fno->run.saved = fno->run.has_dout = true;
}

void nn_backward_replayed(tg_fno *fno) {
    fno->run.saved = fno->run.has_dout = false;
    fno->step++;
}

void nn_backward_undone(tg_fno *fno, uint64_t step) {
    fno->run.saved = fno->run.has_dout = true;
    fno->step = step;
}

static tg_status check_sink(const tg_fno *fno, const tg_grad_sink *sink) {
    return sink->receive ? TG_OK
                         : tg_fail(fno->ctx, TG_E_ARGUMENT,
                                   "backward: the sink of the gradients has no receive");
}

static tg_status check_saved(const tg_fno *fno) {
    return fno->run.saved ? TG_OK
                          : tg_fail(fno->ctx, TG_E_ARGUMENT,
                                    "backward needs a forward of its own, of a network that "
                                    "tg_fno_prepare made ready for training");
}

tg_status tg_fno_backward(tg_fno *fno, const tg_tensor *dy, const tg_grad_sink *sink) {
    TG_NEED(NULL, fno);
    TG_NEED(fno->ctx, sink);
    tg_status status = TG_OK;
    TG_TRY(check_saved(fno));
    TG_TRY(check_sink(fno, sink));
    if (dy) {
        TG_TRY(nn_check_tensor(fno, "dy", dy, fno->run.batch, fno->model.config.out_channels));
        TG_TRY(nn_bring(fno, dy, fno->run.dout));
    } else if (!fno->run.has_dout) {
        TG_TRY(tg_fail(fno->ctx, TG_E_ARGUMENT,
                       "backward needs dL/dy, or a forward that made the loss: "
                       "tg_fno_forward_loss"));
    }
    TG_TRY(nn_backward(fno, sink));
fail:
    return status;
}

tg_status nn_forward_loss(tg_fno *fno, const tg_tensor *x, const tg_tensor *target,
                          const tg_loss_config *config, double grad_scale, double *loss) {
    tg_status status = TG_OK;
    nn_run *run = &fno->run;
    TG_TRY(nn_forward(fno, x));
    TG_TRY(check_saved(fno));
    TG_TRY(nn_check_tensor(fno, "target", target, run->batch, fno->model.config.out_channels));
    TG_TRY(nn_bring(fno, target, run->target));
    TG_TRY(nn_loss(fno->be, config, target->dtype, &target->shape, run->out, run->target, loss,
                   grad_scale, run->dout));
    run->has_dout = true;
fail:
    return status;
}

tg_status tg_fno_forward_loss(tg_fno *fno, const tg_tensor *x, const tg_tensor *target,
                              const tg_loss_config *config, double *loss) {
    TG_NEED(NULL, fno);
    TG_NEED(fno->ctx, x, target, config, loss);
    return nn_forward_loss(fno, x, target, config, 1.0, loss);
}

tg_status tg_fno_loss_backward(tg_fno *fno, const tg_tensor *x, const tg_tensor *target,
                               const tg_loss_config *config, const tg_grad_sink *sink,
                               double *loss) {
    TG_NEED(NULL, fno);
    TG_NEED(fno->ctx, x, target, config, sink, loss);
    tg_status status = TG_OK;
    TG_TRY(check_sink(fno, sink));
    TG_TRY(tg_fno_forward_loss(fno, x, target, config, fno->be->cell));
    TG_TRY(fno->be->ops->download(fno->be, loss, fno->be->cell, sizeof *loss));
    TG_TRY(nn_backward(fno, sink));
fail:
    return status;
}

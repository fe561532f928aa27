/* Backward pass, last layer first. A parameter's gradient goes to the sink when nothing of this
 * pass reads the parameter any more: the sink may change it.
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

/* What checkpointing did not keep of block l, made as in forward. */
static tg_status remake(tg_fno *fno, int l) {
    tg_status status = TG_OK;
    const nn_block_buffers *b = &fno->run.blocks[l];
    if (l == 0 && nn_lifts_again(&fno->model, &fno->run.geometry)) {
        const nn_mlp_call lifting = {.mlp = &fno->model.lifting,
                                     .pixels = fno->run.geometry.pixels,
                                     .x = fno->run.embedded,
                                     .y = b->back_x};
        TG_TRY(nn_mlp_forward(fno, &lifting));
    }
    void *x = l == 0 ? b->back_x : fno->run.blocks[l - 1].z2;
    TG_TRY(nn_convolution(fno, l, x, l == 0 ? TG_ACT_NONE : TG_ACT_GELU, b->back_product,
                          b->back_conv, b->back_z1));
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

/* dx from dz1 through the convolution, and the spectral weight's gradient. */
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
    const double scale = 1.0 / (double)fno->run.geometry.padded_pixels;
    TG_TRY(nn_transform(fno, TG_FFT_ADJOINT, 1.0, false, dconv, b->dspectrum));
    TG_TRY(nn_multiply(fno, block->weight, true, b->dspectrum, b->dx_spectrum));
    TG_TRY(nn_gradient_send_factors(fno, sink, block->weight, b->spectrum, b->dspectrum));
    TG_TRY(nn_inverse(fno, TG_FFT_ADJOINT, scale, b->dx_spectrum, b->dx));
fail:
    return status;
}

/* dx gets what the skips carry, then goes through the GELU that made the input. */
static tg_status unskip(tg_fno *fno, int l, const void *g, const tg_grad_sink *sink) {
    tg_status status = TG_OK;
    const nn_model *model = &fno->model;
    const nn_block *block = &model->blocks[l];
    const nn_block_buffers *b = &fno->run.blocks[l];
    const bool norm = model->config.norm != TG_NORM_NONE;
    const tg_act act = l == 0 ? TG_ACT_NONE : TG_ACT_GELU;
    void *x = l == 0 ? b->back_x : fno->run.blocks[l - 1].z2; /* the input is act(x) */
    if (model->config.stabilizer == TG_STABILIZER_TANH) {
        TG_TRY(nn_unstabilize(fno, act, x, b->dx));
    }
    nn_skip_call skip = {.skip = &block->fno_skip,
                         .bias = norm ? -1 : block->bias,
                         .act = act,
                         .x = x,
                         .dy = b->dz1,
                         .dx = b->dx};
    int first = norm ? block->fno_skip.param[0] : block->bias;
    int count = nn_skip_params(model, &block->fno_skip) + (norm ? 0 : 1);
    TG_TRY(nn_gradient_begin(fno, first, count));
    TG_TRY(nn_skip_backward(fno, &skip));
    TG_TRY(nn_gradient_send(fno, sink, first, count));
    skip.skip = &block->mlp_skip;
    skip.bias = -1;
    skip.through = true;
    skip.dy = g;
    first = block->mlp_skip.param[0];
    count = nn_skip_params(model, &block->mlp_skip);
    TG_TRY(nn_gradient_begin(fno, first, count));
    TG_TRY(nn_skip_backward(fno, &skip));
    TG_TRY(nn_gradient_send(fno, sink, first, count));
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
        TG_TRY(unskip(fno, l, g, sink));
        g = fno->run.blocks[l].dx;
    }
    TG_TRY(unlift(fno, sink));
    fno->step++;
fail:
    return status;
}

static tg_status check_saved(const tg_fno *fno) {
    return fno->run.saved ? TG_OK
                          : tg_fail(fno->ctx, TG_E_ARGUMENT,
                                    "backward needs a forward of its own, of a network that "
                                    "tg_fno_prepare made ready for training");
}

tg_status tg_fno_backward(tg_fno *fno, const tg_tensor *dy, const tg_grad_sink *sink) {
    tg_status status = TG_OK;
    TG_TRY(check_saved(fno));
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

tg_status tg_fno_forward_loss(tg_fno *fno, const tg_tensor *x, const tg_tensor *target,
                              const tg_loss_config *config, double *loss) {
    tg_status status = TG_OK;
    nn_run *run = &fno->run;
    TG_TRY(nn_forward(fno, x));
    TG_TRY(check_saved(fno));
    TG_TRY(nn_check_tensor(fno, "target", target, run->batch, fno->model.config.out_channels));
    TG_TRY(nn_bring(fno, target, run->target));
    TG_TRY(nn_loss(fno->be, config, target->dtype, &target->shape, run->out, run->target, loss,
                   run->dout));
    run->has_dout = true;
fail:
    return status;
}

tg_status tg_fno_loss_backward(tg_fno *fno, const tg_tensor *x, const tg_tensor *target,
                               const tg_loss_config *config, const tg_grad_sink *sink,
                               double *loss) {
    tg_status status = TG_OK;
    TG_TRY(tg_fno_forward_loss(fno, x, target, config, fno->be->cell));
    TG_TRY(fno->be->ops->download(fno->be, loss, fno->be->cell, sizeof *loss));
    TG_TRY(nn_backward(fno, sink));
fail:
    return status;
}

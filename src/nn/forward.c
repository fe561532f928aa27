/* Forward pass: embed, lift, blocks, project. In training the sums before the GELUs stay where they
 * are; in inference each step writes over what it no longer needs. */
#include "nn/passes.h"

tg_status nn_check_tensor(const tg_fno *fno, const char *what, const tg_tensor *tensor,
                          int64_t batch, int64_t channels) {
    const tg_fno_config *config = &fno->model.config;
    const tg_dtype dtype = config->complex_data ? tg_dtype_complex(config->dtype) : config->dtype;
    tg_shape expected = {.ndim = 2 + config->n_dim, .dim = {batch, channels}};
    for (int d = 0; d < config->n_dim; d++) {
        expected.dim[2 + d] = fno->run.geometry.grid[d];
    }
    if (tensor->dtype != dtype) {
        return tg_fail(fno->ctx, TG_E_DTYPE, "%s: %s is needed, not %s", what, tg_dtype_name(dtype),
                       tg_dtype_name(tensor->dtype));
    }
    if (!tg_shape_equal(&tensor->shape, &expected)) {
        char a[96], b[96];
        return tg_fail(fno->ctx, TG_E_SHAPE, "%s: the shape is %s; %s is needed", what,
                       tg_shape_text(&tensor->shape, a, sizeof a),
                       tg_shape_text(&expected, b, sizeof b));
    }
    return TG_OK;
}

tg_status nn_bring(const tg_fno *fno, const tg_tensor *from, void *to) {
    const tg_backend_ops *ops = fno->be->ops;
    const size_t bytes = tg_tensor_bytes(from);
    return from->place == TG_HOST ? ops->upload(fno->be, to, from->data, bytes)
                                  : ops->copy(fno->be, to, from->data, bytes);
}

/* Pairs as they came to the data channels of both planes, sample by sample. */
static tg_status split_input(tg_fno *fno) {
    tg_status status = TG_OK;
    const nn_model *model = &fno->model;
    nn_run *run = &fno->run;
    const int64_t data = model->config.in_channels * run->geometry.pixels;
    const int64_t sample = model->embedded_channels * run->geometry.pixels;
    for (int64_t b = 0; b < run->batch; b++) {
        TG_TRY(fno->be->ops->planes_split(fno->be, nn_dtype(fno), data,
                                          nn_at(fno, run->staged, 2 * b * data),
                                          nn_at(fno, run->embedded, b * sample),
                                          nn_at(fno, run->embedded, (run->batch + b) * sample)));
    }
fail:
    return status;
}

/* x as it came to planes with coordinates, which are real. */
static tg_status embed(tg_fno *fno, const tg_tensor *x) {
    tg_status status = TG_OK;
    const nn_model *model = &fno->model;
    nn_run *run = &fno->run;
    const bool pairs = model->planes == 2;
    TG_TRY(nn_bring(fno, x, run->staged));
    if (pairs) {
        TG_TRY(split_input(fno));
    }
    if (model->embedded_channels == model->config.in_channels) {
        return TG_OK;
    }
    const int64_t plane = run->batch * model->embedded_channels * run->geometry.pixels;
    for (int q = 0; q < model->planes; q++) {
        tg_embed op = {.dtype = nn_dtype(fno),
                       .batch = run->batch,
                       .channels = model->config.in_channels,
                       .ndim = model->config.n_dim,
                       .unit = q == 0 ? 1.0 : 0.0,
                       .x = pairs ? NULL : run->staged,
                       .y = nn_at(fno, run->embedded, q * plane)};
        for (int d = 0; d < op.ndim; d++) {
            op.grid[d] = run->geometry.grid[d];
        }
        TG_TRY(fno->be->ops->grid_embed(fno->be, &op));
    }
fail:
    return status;
}

tg_status nn_lift(tg_fno *fno, void *lifted, void *x) {
    const bool pads = fno->run.geometry.pads;
    const nn_mlp_call call = {.mlp = &fno->model.lifting,
                              .pixels = fno->run.geometry.pixels,
                              .x = fno->run.embedded,
                              .y = pads ? lifted : x};
    const tg_status status = nn_mlp_forward(fno, &call);
    return status == TG_OK && pads ? nn_pad(fno, lifted, x) : status;
}

tg_status nn_convolution(tg_fno *fno, int l, void *x, tg_act act, void *product, void *conv,
                         void *z1) {
    tg_status status = TG_OK;
    const nn_block *block = &fno->model.blocks[l];
    const nn_block_buffers *b = &fno->run.blocks[l];
    const bool norm = fno->model.config.norm != TG_NORM_NONE;
    TG_TRY(nn_multiply(fno, block->weight, false, b->spectrum, product));
    TG_TRY(nn_inverse(fno, TG_FFT_PLAIN, 1.0, product, conv));
    if (norm) {
        TG_TRY(nn_bias_forward(fno, block->bias, conv));
        TG_TRY(nn_norm_forward(fno, &block->norm[0], conv, b->stats[0], z1));
    }
    const nn_skip_call skip = {
        .skip = &block->fno_skip, .bias = norm ? -1 : block->bias, .act = act, .x = x, .y = z1};
    TG_TRY(nn_skip_forward(fno, &skip));
fail:
    return status;
}

static tg_status convolve(tg_fno *fno, int l) {
    const nn_block_buffers *b = &fno->run.blocks[l];
    const bool stabilize = fno->model.config.stabilizer == TG_STABILIZER_TANH;
    const double scale = 1.0 / (double)fno->run.geometry.padded_pixels;
    const tg_status status = nn_transform(fno, TG_FFT_PLAIN, scale, stabilize, b->x, b->spectrum);
    return status == TG_OK ? nn_convolution(fno, l, b->x, TG_ACT_NONE, b->product, b->conv, b->z1)
                           : status;
}

/* The skip around the perceptron can be added where the perceptron writes its result. */
static bool fuses_skip(const nn_model *model, const nn_block *block) {
    return model->planes == 1 && block->mlp_skip.kind != TG_MIX_LINEAR;
}

nn_mlp_call nn_block_mlp(const tg_fno *fno, int l) {
    const bool last = l == (int)fno->model.config.n_layers - 1;
    return (nn_mlp_call){.mlp = &fno->model.blocks[l].mlp,
                         .pixels = fno->run.geometry.padded_pixels,
                         .act = last ? TG_ACT_NONE : TG_ACT_GELU,
                         .dropout = fno->model.config.channel_mlp_dropout,
                         .module = l};
}

tg_status nn_mix(tg_fno *fno, int l, const nn_mix_arrays *a) {
    tg_status status = TG_OK;
    const nn_model *model = &fno->model;
    const nn_block *block = &model->blocks[l];
    const bool norm = model->config.norm != TG_NORM_NONE;
    const bool fused = fuses_skip(model, block);
    nn_mlp_call call = nn_block_mlp(fno, l);
    call.x = a->z1;
    call.y = a->mixed;
    if (fused) {
        call.add = a->x;
        call.gate = nn_weight(fno, block->mlp_skip.param[0]);
        call.activated = norm ? NULL : a->next;
    }
    TG_TRY(nn_mlp_forward(fno, &call));
    if (!fused) {
        const nn_skip_call skip = {.skip = &block->mlp_skip, .bias = -1, .x = a->x, .y = a->mixed};
        TG_TRY(nn_skip_forward(fno, &skip));
    }
    if (norm) {
        TG_TRY(nn_norm_forward(fno, &block->norm[1], a->mixed, fno->run.blocks[l].stats[1], a->z2));
    }
    if (a->next && (norm || !fused)) {
        const int64_t n = model->planes * fno->run.batch * model->config.hidden_channels *
                          fno->run.geometry.padded_pixels;
        TG_TRY(fno->be->ops->act_forward(fno->be, nn_activation_dtype(model), TG_ACT_GELU, n, a->z2,
                                         a->next));
    }
fail:
    return status;
}

static tg_status mix(tg_fno *fno, int l) {
    const nn_block_buffers *b = &fno->run.blocks[l];
    const bool last = l == (int)fno->model.config.n_layers - 1;
    const nn_mix_arrays arrays = {.x = b->x,
                                  .z1 = b->z1,
                                  .mixed = b->mixed,
                                  .z2 = b->z2,
                                  .next = last ? NULL : fno->run.blocks[l + 1].x};
    return nn_mix(fno, l, &arrays);
}

static tg_status project(tg_fno *fno) {
    tg_status status = TG_OK;
    nn_run *run = &fno->run;
    const nn_model *model = &fno->model;
    if (run->geometry.pads) {
        TG_TRY(nn_crop(fno, run->blocks[model->config.n_layers - 1].z2, run->cropped));
    }
    const nn_mlp_call call = {.mlp = &model->projection,
                              .pixels = run->geometry.pixels,
                              .x = run->cropped,
                              .y = run->projected};
    TG_TRY(nn_mlp_forward(fno, &call));
    if (model->planes == 2) {
        const int64_t n = run->batch * model->config.out_channels * run->geometry.pixels;
        TG_TRY(fno->be->ops->planes_join(fno->be, nn_dtype(fno), n, run->projected,
                                         nn_at(fno, run->projected, n), run->out));
    }
fail:
    return status;
}

tg_status nn_forward(tg_fno *fno, const tg_tensor *x) {
    tg_status status = TG_OK;
    nn_run *run = &fno->run;
    if (!run->ready) {
        return tg_fail(fno->ctx, TG_E_ARGUMENT,
                       "the network is not prepared: tg_fno_prepare first");
    }
    const int64_t batch = x->shape.ndim > 0 ? x->shape.dim[0] : 0;
    if (batch < 1 || batch > run->max_batch) {
        return tg_fail(fno->ctx, TG_E_SHAPE,
                       "x: %lld samples; the network is prepared for 1 .. %lld", (long long)batch,
                       (long long)run->max_batch);
    }
    TG_TRY(nn_check_tensor(fno, "x", x, batch, fno->model.config.in_channels));
    run->batch = batch;
    run->saved = run->has_dout = false;
    TG_TRY(embed(fno, x));
    TG_TRY(nn_lift(fno, run->lifted, run->blocks[0].x));
    for (int l = 0; l < (int)fno->model.config.n_layers; l++) {
        TG_TRY(convolve(fno, l));
        TG_TRY(mix(fno, l));
    }
    TG_TRY(project(fno));
    run->saved = run->training;
fail:
    return status;
}

tg_status tg_fno_forward(tg_fno *fno, const tg_tensor *x, tg_tensor *y) {
    TG_NEED(NULL, fno);
    TG_NEED(fno->ctx, x, y);
    tg_status status = nn_forward(fno, x);
    if (status != TG_OK) {
        return status;
    }
    const tg_backend_ops *ops = fno->be->ops;
    TG_TRY(nn_check_tensor(fno, "y", y, fno->run.batch, fno->model.config.out_channels));
    const size_t bytes = tg_tensor_bytes(y);
    TG_TRY(y->place == TG_HOST ? ops->download(fno->be, y->data, fno->run.out, bytes)
                               : ops->copy(fno->be, y->data, fno->run.out, bytes));
fail:
    return status;
}

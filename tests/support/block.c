#include "support/block.h"

static int64_t pixels_of(const tg_fft_desc *desc) {
    int64_t pixels = 1;
    for (int d = 0; d < desc->ndim; d++) {
        pixels *= desc->grid[d];
    }
    return pixels;
}

/* Up to where the next array may begin. */
static size_t whole(size_t bytes) {
    return (bytes + 255) / 256 * 256;
}

static size_t image_bytes(const tg_block *op) {
    return whole((size_t)(op->batch * op->channels * pixels_of(op->desc)) *
                 tg_dtype_size(tg_stored(op->dtype, op->store)));
}

static tg_skip skip_of(const tg_block *op) {
    return (tg_skip){.dtype = op->dtype,
                     .kind = TG_SKIP_MAP_LINEAR,
                     .batch = op->batch,
                     .in = op->channels,
                     .out = op->channels,
                     .pixels = pixels_of(op->desc),
                     .act = op->act,
                     .weight = op->skip,
                     .bias = op->bias,
                     .alpha = 1.0,
                     .beta = 1.0,
                     .x = op->x,
                     .store = op->store};
}

static tg_mlp mlp_of(const tg_block *op) {
    return (tg_mlp){.dtype = op->dtype,
                    .batch = op->batch,
                    .in = op->channels,
                    .hidden = op->hidden,
                    .out = op->channels,
                    .pixels = pixels_of(op->desc),
                    .act = op->act1,
                    .w1 = op->w1,
                    .b1 = op->b1,
                    .w2 = op->w2,
                    .b2 = op->b2,
                    .alpha = 1.0,
                    .add = op->adds ? op->x : NULL,
                    .gate = op->gate,
                    .x_store = op->store,
                    .y_store = op->store};
}

static size_t larger(size_t a, size_t b) {
    return a > b ? a : b;
}

size_t t_block_bytes(tg_backend *be, const tg_block *op) {
    const tg_skip skip = skip_of(op);
    const tg_mlp mlp = mlp_of(op);
    const size_t parts =
        larger(tg_workspace_bytes(be, (tg_query){.skip = &skip}),
               op->hidden > 0 ? tg_workspace_bytes(be, (tg_query){.mlp = &mlp}) : 0);
    return 3 * image_bytes(op) + parts;
}

tg_status t_block_by_parts(tg_backend *be, const tg_block *op) {
    tg_status status = TG_OK;
    char *z1 = op->workspace, *z2 = z1 + image_bytes(op), *activated = z2 + image_bytes(op);
    const int64_t n = op->batch * op->channels * pixels_of(op->desc);
    const size_t bytes = (size_t)n * tg_dtype_size(tg_stored(op->dtype, op->store));
    tg_skip skip = skip_of(op);
    tg_mlp mlp = mlp_of(op);
    skip.y = z1;
    mlp.x = z1;
    mlp.y = z2;
    mlp.activated = op->activated ? activated : NULL;
    skip.workspace = mlp.workspace = activated + image_bytes(op);
    TG_TRY(be->ops->fft(be, op->fft, TG_FFT_INVERSE, op->batch * op->channels, TG_FFT_PLAIN,
                        op->scale, op->spectrum, z1));
    TG_TRY(be->ops->add_skip(be, &skip));
    TG_TRY(op->hidden > 0 ? be->ops->mlp(be, &mlp) : TG_OK);
    /* results last: they may lie where x does */
    TG_TRY(op->z1_quantized ? be->ops->quantize(be, &(tg_quantization){n, false, z1, op->z1})
           : op->z1         ? be->ops->copy(be, op->z1, z1, bytes)
                            : TG_OK);
    TG_TRY(op->z2_quantized ? be->ops->quantize(be, &(tg_quantization){n, false, z2, op->z2})
           : op->z2         ? be->ops->copy(be, op->z2, z2, bytes)
                            : TG_OK);
    TG_TRY(op->activated ? be->ops->copy(be, op->activated, activated, bytes) : TG_OK);
fail:
    return status;
}

/* ---- backward ---- */

static tg_skip back_of(const tg_block_back *op, tg_skip_map kind) {
    return (tg_skip){.dtype = op->dtype,
                     .backward = true,
                     .kind = kind,
                     .batch = op->batch,
                     .in = op->channels,
                     .out = op->channels,
                     .pixels = pixels_of(op->desc),
                     .act = op->act,
                     .alpha = 1.0,
                     .beta = 1.0,
                     .x = op->x,
                     .store = op->store};
}

static size_t gradient_bytes(const tg_block_back *op) {
    return (size_t)(op->batch * op->channels * pixels_of(op->desc)) *
           tg_dtype_size(tg_stored(op->dtype, op->store));
}

/* Bytes of a quantized x once it is restored. */
static size_t restored_bytes(bool quantized, size_t values) {
    return quantized ? whole(values * sizeof(float)) : 0;
}

size_t t_mlp_back_bytes(tg_backend *be, const tg_mlp *op) {
    tg_mlp parts = *op;
    parts.x_quantized = false;
    return tg_workspace_bytes(be, (tg_query){.mlp = &parts}) +
           restored_bytes(op->x_quantized, (size_t)(op->batch * op->in * op->pixels));
}

tg_status t_mlp_back_by_parts(tg_backend *be, const tg_mlp *op) {
    tg_mlp call = *op;
    tg_status status = TG_OK;
    if (op->x_quantized) {
        const int64_t n = op->batch * op->in * op->pixels;
        call.x = op->workspace;
        call.workspace = (char *)op->workspace + whole((size_t)n * sizeof(float));
        call.x_quantized = false;
        status = be->ops->quantize(be, &(tg_quantization){n, true, op->x, op->workspace});
    }
    return status == TG_OK ? be->ops->mlp(be, &call) : status;
}

size_t t_block_back_bytes(tg_backend *be, const tg_block_back *op) {
    const tg_skip linear = back_of(op, TG_SKIP_MAP_LINEAR), gate = back_of(op, TG_SKIP_MAP_GATE);
    return whole(gradient_bytes(op)) +
           restored_bytes(op->x_quantized, gradient_bytes(op) / sizeof(float)) +
           larger(tg_workspace_bytes(be, (tg_query){.skip = &linear}),
                  tg_workspace_bytes(be, (tg_query){.skip = &gate}));
}

tg_status t_block_back_by_parts(tg_backend *be, const tg_block_back *op) {
    tg_status status = TG_OK;
    char *dx = op->workspace;
    tg_skip linear = back_of(op, TG_SKIP_MAP_LINEAR);
    tg_skip gate = back_of(op, op->gate ? TG_SKIP_MAP_GATE : TG_SKIP_MAP_IDENTITY);
    linear.weight = op->skip;
    linear.dweight = op->dskip;
    linear.dbias = op->dbias;
    linear.dy = op->dz1;
    gate.weight = op->gate;
    gate.dweight = op->dgate;
    gate.dy = op->dz2;
    gate.through = op->through;
    linear.dx = gate.dx = dx;
    linear.workspace = gate.workspace = dx + whole(gradient_bytes(op));
    if (op->x_quantized) {
        float *x = (float *)(void *)(dx + whole(gradient_bytes(op)));
        const int64_t n = op->batch * op->channels * pixels_of(op->desc);
        linear.x = gate.x = x;
        linear.workspace = gate.workspace = (char *)x + whole(gradient_bytes(op));
        TG_TRY(be->ops->quantize(be, &(tg_quantization){n, true, op->x, x}));
    }
    TG_TRY(be->ops->fft(be, op->fft, TG_FFT_INVERSE, op->batch * op->channels, TG_FFT_ADJOINT,
                        op->scale, op->spectrum, dx));
    TG_TRY(be->ops->add_skip(be, &linear));
    TG_TRY(be->ops->add_skip(be, &gate));
    /* last: it may lie where an input does */
    TG_TRY(be->ops->copy(be, op->dx, dx, gradient_bytes(op)));
fail:
    return status;
}

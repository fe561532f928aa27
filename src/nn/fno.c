/* Creating a network: weights initialised from a seed, read from and written to archives. */
#include "tgrad/fno.h"

#include <stdio.h>
#include <string.h>

#include "backend/tensor.h"
#include "nn/network.h"

/* A block of a weight begins with the numbers of its rows in the whole. */
static tg_status init_block(const tg_fno *fno, const nn_param *param, tg_random op) {
    const int64_t left = param->shape.dim[0] * param->shape.dim[1];
    const int64_t row = tg_shape_numel(&param->shape) / (left * param->block.count);
    op.n = param->block.count * row;
    for (int64_t i = 0; i < left; i++) {
        op.first = (uint64_t)((i * param->whole + param->block.first) * row);
        TG_CALL(fno->be->ops->random(fno->be, &op));
        op.x = nn_element(op.dtype, op.x, op.n);
    }
    return TG_OK;
}

static tg_status init_param(tg_fno *fno, int number) {
    const nn_param *param = &fno->model.params[number];
    const tg_backend_ops *ops = fno->be->ops;
    const tg_rng rng = {.seed = fno->seed, .purpose = TG_RNG_INIT, .step = (uint32_t)param->stream};
    const int64_t n = tg_shape_numel(&param->shape);
    const bool is_uniform = param->init == NN_INIT_UNIFORM;
    void *w = nn_weight(fno, number);
    const tg_random op = {.law = is_uniform ? TG_RANDOM_UNIFORM : TG_RANDOM_NORMAL,
                          .dtype = param->dtype,
                          .rng = rng,
                          .a = is_uniform ? -param->scale : 0.0,
                          .b = param->scale,
                          .n = n,
                          .x = w};
    switch (param->init) {
    case NN_INIT_SPECTRAL:
    case NN_INIT_NORMAL:
    case NN_INIT_UNIFORM:
        return param->whole > 0 ? init_block(fno, param, op) : ops->random(fno->be, &op);
    case NN_INIT_CONST:
        break;
    }
    return ops->fill(fno->be, param->dtype, n, (tg_scalar){param->scale, 0.0}, w);
}

tg_status nn_outline(tg_context *ctx, const tg_fno_config *config, const nn_split *split,
                     tg_fno **out) {
    tg_status status = TG_OK;
    tg_fno *fno = NULL;
    TG_TRY(TG_NEW(ctx, TG_MEM_OTHER, fno, 1));
    fno->ctx = ctx;
    TG_TRY(tg_backend_get(ctx, &fno->be));
    TG_TRY(nn_model_create(ctx, config, split, &fno->model));
    *out = fno;
    return TG_OK;
fail:
    tg_fno_destroy(&fno);
    return status;
}

tg_status tg_fno_outline(tg_context *ctx, const tg_fno_config *config, tg_fno **out) {
    TG_NEED_OUT(ctx, out, ctx, config);
    return nn_outline(ctx, config, NULL, out);
}

tg_status tg_fno_create(tg_context *ctx, const tg_fno_config *config, uint64_t seed, tg_fno **out) {
    TG_NEED_OUT(ctx, out, ctx, config);
    return nn_create(ctx, config, NULL, seed, out);
}

tg_status nn_create(tg_context *ctx, const tg_fno_config *config, const nn_split *split,
                    uint64_t seed, tg_fno **out) {
    tg_status status = TG_OK;
    tg_fno *fno = NULL;
    TG_TRY(nn_outline(ctx, config, split, &fno));
    fno->seed = seed;
    TG_TRY(TG_BACKEND_ALLOC(fno->be, TG_MEM_WEIGHTS, fno->weights, fno->model.weight_bytes));
    for (int i = 0; i < fno->model.param_count; i++) {
        TG_TRY(init_param(fno, i));
    }
    *out = fno;
    return TG_OK;
fail:
    tg_fno_destroy(&fno);
    return status;
}

tg_status nn_check_weights(const tg_fno *fno) {
    return fno->weights ? TG_OK
                        : tg_fail(fno->ctx, TG_E_ARGUMENT,
                                  "this network is an outline without weights: tg_fno_create makes "
                                  "one with them");
}

void tg_fno_destroy(tg_fno **fno) {
    if (!fno || !*fno) {
        return;
    }
    tg_context *ctx = (*fno)->ctx;
    if ((*fno)->be) {
        nn_run_free(*fno);
        (*fno)->be->ops->release((*fno)->be, (*fno)->weights);
    }
    nn_model_destroy(&(*fno)->model);
    TG_FREE(ctx, *fno);
}

const tg_fno_config *tg_fno_get_config(const tg_fno *fno) {
    return fno ? &fno->model.config : NULL;
}

int tg_fno_param_count(const tg_fno *fno) {
    return fno ? fno->model.param_count : 0;
}

tg_fno_param tg_fno_get_param(const tg_fno *fno, int index) {
    if (index < 0 || index >= tg_fno_param_count(fno)) {
        return (tg_fno_param){0};
    }
    const nn_param *param = &fno->model.params[index];
    return (tg_fno_param){.name = param->name,
                          .dtype = param->dtype,
                          .gradient = param->factored
                                          ? tg_stored(tg_dtype_complex(fno->model.config.dtype),
                                                      fno->model.stores.spectrum)
                                          : param->dtype,
                          .shape = param->shape,
                          .weight = tg_backend_view(fno->be, param->dtype, &param->shape,
                                                    fno->weights ? nn_weight(fno, index) : NULL),
                          .spectral = param->spectral,
                          .first = param->block.first,
                          .whole = param->whole};
}

tg_status tg_fno_nonfinite(const tg_fno *fno, int64_t *count, int64_t *total) {
    TG_NEED(NULL, fno);
    TG_NEED(fno->ctx, count, total);
    *count = *total = 0;
    TG_CALL(nn_check_weights(fno));
    for (int i = 0; i < fno->model.param_count; i++) {
        const nn_param *param = &fno->model.params[i];
        const int64_t n = tg_shape_numel(&param->shape);
        tg_norms norms;
        TG_CALL(fno->be->ops->norms(fno->be, param->dtype, n, nn_weight(fno, i), &norms));
        *count += norms.nonfinite;
        *total += n;
    }
    return TG_OK;
}

uint64_t tg_fno_step(const tg_fno *fno) {
    return fno ? fno->step : 0;
}

void tg_fno_set_step(tg_fno *fno, uint64_t step) {
    if (fno) {
        fno->step = step;
    }
}

tg_status tg_fno_set_modes(tg_fno *fno, const int64_t *modes) {
    TG_NEED(NULL, fno);
    TG_NEED(fno->ctx, modes);
    tg_fno_config config = fno->model.config;
    config.n_incremental = config.n_dim;
    memcpy(config.incremental_n_modes, modes, (size_t)config.n_dim * sizeof *modes);
    TG_CALL(tg_fno_config_check(fno->ctx, &config));
    fno->model.config = config;
    nn_run_free(fno);
    return TG_OK;
}

/* ---- archives ---- */

static tg_status full_name(tg_context *ctx, const char *prefix, const char *name, char *text,
                           size_t capacity) {
    const int length = snprintf(text, capacity, "%s%s", prefix, name);
    return length >= 0 && (size_t)length < capacity
               ? TG_OK
               : tg_fail(ctx, TG_E_ARGUMENT, "the prefix '%.40s..' is too long", prefix);
}

/* Finite values of the file must remain finite in the network's 16-bit weights. */
static tg_status check_range(tg_fno *fno, const char *name, const tg_tensor *source,
                             const tg_tensor *copy) {
    tg_tensor_stats before, after;
    if (source->dtype == copy->dtype || copy->dtype == tg_dtype_wide(copy->dtype)) {
        return TG_OK;
    }
    TG_CALL(tg_tensor_get_stats(fno->ctx, source, &before));
    TG_CALL(tg_tensor_get_stats(fno->ctx, copy, &after));
    const int64_t lost = after.inf_count + after.nan_count - before.inf_count - before.nan_count;
    if (lost > 0) {
        return tg_fail(fno->ctx, TG_E_NUMERIC,
                       "%s: %lld of its values, the largest %g, are beyond the range of %s, which "
                       "the network keeps it in; take fno.fno_block_weights_precision %s",
                       name, (long long)lost, before.max, tg_dtype_name(copy->dtype),
                       tg_storage_of(copy->dtype) == TG_STORE_F16 ? "bf16 or full" : "full");
    }
    return TG_OK;
}

/* Copies rows of dimension 2 between a whole tensor on the host and a block of it. */
static void copy_block(const tg_tensor *whole, nn_rows rows, bool inwards, tg_tensor *block) {
    const int64_t left = whole->shape.dim[0] * whole->shape.dim[1];
    const size_t stride = tg_tensor_bytes(whole) / (size_t)left;
    const size_t row = stride / (size_t)whole->shape.dim[2], bytes = (size_t)rows.count * row;
    for (int64_t i = 0; i < left; i++) {
        char *outer = (char *)whole->data + (size_t)i * stride + (size_t)rows.first * row;
        char *inner = (char *)block->data + (size_t)i * bytes;
        memcpy(inwards ? outer : inner, inwards ? inner : outer, bytes);
    }
}

static tg_status load_param(tg_fno *fno, int number, const char *name, const tg_tensor *source) {
    tg_status status = TG_OK;
    const nn_param *param = &fno->model.params[number];
    const tg_fno_param facts = tg_fno_get_param(fno, number);
    const tg_shape whole = nn_whole_shape(&facts);
    tg_tensor copy = {0}, block = {0};
    char expected[96], found[96];
    if (!source) {
        return tg_fail(fno->ctx, TG_E_FORMAT, "%s: the parameter is missing", name);
    }
    if (!tg_shape_equal(&source->shape, &whole)) {
        return tg_fail(fno->ctx, TG_E_SHAPE, "%s: the network has %s, the file has %s", name,
                       tg_shape_text(&whole, expected, sizeof expected),
                       tg_shape_text(&source->shape, found, sizeof found));
    }
    if (param->whole > 0) {
        TG_TRY(tg_tensor_create(fno->ctx, TG_MEM_OTHER, source->dtype, &param->shape, &block));
        copy_block(source, param->block, false, &block);
        source = &block;
    }
    TG_TRY(tg_tensor_create(fno->ctx, TG_MEM_OTHER, param->dtype, &param->shape, &copy));
    TG_TRY(tg_tensor_convert(fno->ctx, source, &copy));
    TG_TRY(check_range(fno, name, source, &copy));
    TG_TRY(fno->be->ops->upload(fno->be, fno->weights + param->offset, copy.data,
                                tg_tensor_bytes(&copy)));
fail:
    tg_tensor_destroy(&block);
    tg_tensor_destroy(&copy);
    return status;
}

size_t nn_gather_bytes(const tg_fno_param *param, int parts) {
    tg_shape largest = param->shape;
    largest.dim[2] = (param->whole + parts - 1) / parts;
    return (size_t)tg_shape_numel(&largest) * tg_dtype_size(param->dtype);
}

tg_status nn_gather(tg_backend *be, const nn_split *split, const tg_tensor *own, int64_t rows,
                    tg_tensor *whole) {
    tg_status status = TG_OK;
    const bool is_first = split->part == 0;
    tg_tensor block = {0};
    tg_shape shape = own->shape;
    *whole = (tg_tensor){0};
    shape.dim[2] = (rows + split->parts - 1) / split->parts; /* the largest */
    status = tg_tensor_create(be->ctx, TG_MEM_DATA, own->dtype, &shape, &block);
    shape.dim[2] = rows;
    if (status == TG_OK && is_first) {
        status = tg_tensor_create(be->ctx, TG_MEM_DATA, own->dtype, &shape, whole);
    }
    TG_TRY(tg_comm_agree(split->comm, status));
    for (int part = 0; part < split->parts; part++) {
        const nn_rows there = nn_rows_of(split, part, rows);
        block.shape.dim[2] = there.count;
        status = part == split->part ? tg_backend_copy(be->ctx, own, &block) : TG_OK;
        TG_TRY(tg_comm_agree(split->comm, status));
        TG_TRY(tg_comm_broadcast(split->comm, part, &block));
        if (is_first) {
            copy_block(whole, there, true, &block);
        }
    }
fail:
    tg_tensor_destroy(&block);
    if (status != TG_OK) {
        tg_tensor_destroy(whole);
    }
    return status;
}

tg_status tg_fno_load(tg_fno *fno, const tg_archive *archive, const char *prefix) {
    TG_NEED(NULL, fno);
    TG_NEED(fno->ctx, archive, prefix);
    TG_CALL(nn_check_weights(fno));
    for (int i = 0; i < fno->model.param_count; i++) {
        const nn_param *param = &fno->model.params[i];
        char name[256];
        TG_CALL(full_name(fno->ctx, prefix, param->name, name, sizeof name));
        TG_CALL(load_param(fno, i, name, tg_archive_find(archive, name)));
    }
    return TG_OK;
}

tg_status tg_fno_save(const tg_fno *fno, tg_archive *archive, const char *prefix) {
    TG_NEED(NULL, fno);
    TG_NEED(fno->ctx, archive, prefix);
    TG_CALL(nn_check_weights(fno));
    for (int i = 0; i < fno->model.param_count; i++) {
        const nn_param *param = &fno->model.params[i];
        char name[256];
        TG_CALL(full_name(fno->ctx, prefix, param->name, name, sizeof name));
        tg_tensor copy;
        const tg_tensor weight =
            tg_backend_view(fno->be, param->dtype, &param->shape, fno->weights + param->offset);
        TG_CALL(tg_backend_download(fno->be, &weight, NULL, &copy));
        TG_CALL(tg_archive_take(archive, name, &copy));
    }
    return TG_OK;
}

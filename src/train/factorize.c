/* Converts the spectral weights of a model to another factorization. */
#include <math.h>
#include <string.h>

#include "data/dataset.h"
#include "io/formats.h"
#include "nn/config.h"
#include "nn/model.h"
#include "nn/network.h"
#include "train/model.h"

/* One weight being converted. */
typedef struct passage {
    const nn_model *from, *to;
    tg_backend *be;
    tg_dtype dtype;
    tg_tensor before[NN_MAX_FACTORS + 1], after[NN_MAX_FACTORS + 1]; /* factors */
    tg_tensor dense, again;
} passage;

static void passage_end(passage *p) {
    for (int i = 0; i <= NN_MAX_FACTORS; i++) {
        tg_tensor_destroy(&p->before[i]);
        tg_tensor_destroy(&p->after[i]);
    }
    tg_tensor_destroy(&p->dense);
    tg_tensor_destroy(&p->again);
}

static int params_of(const nn_conv *conv) {
    return conv->factors.params > 0 ? conv->factors.params : 1;
}

/* A parameter of the weight of layer l, in the arithmetic's dtype. */
static tg_status read_factor(const passage *p, const nn_model *model, const tg_archive *archive,
                             int number, tg_tensor *out) {
    const tg_tensor *stored = tg_archive_find(archive, model->params[number].name);
    TG_CALL(tg_tensor_create(model->ctx, TG_MEM_WORKSPACE, p->dtype, &model->params[number].shape,
                             out));
    return tg_tensor_convert(model->ctx, stored, out);
}

/* |W - W'| / |W|; 0 for W = 0. W' becomes the difference. */
static tg_status compare(const passage *p, double *error) {
    const int64_t n = tg_tensor_numel(&p->dense);
    const tg_backend_ops *ops = p->be->ops;
    tg_norms whole, rest;
    TG_CALL(ops->axpy(p->be, p->dtype, n, (tg_scalar){-1.0, 0.0}, p->dense.data, p->again.data));
    TG_CALL(ops->norms(p->be, p->dtype, n, p->dense.data, &whole));
    TG_CALL(ops->norms(p->be, p->dtype, n, p->again.data, &rest));
    *error = whole.sum_squares > 0.0 ? sqrt(rest.sum_squares / whole.sum_squares) : 0.0;
    return TG_OK;
}

/* Adds the converted weight of layer l to the archive of the new network. */
static tg_status pass_weight(passage *p, int l, const tg_archive *from, tg_archive *to,
                             double *error) {
    const nn_conv *before = &p->from->blocks[l].conv, *after = &p->to->blocks[l].conv;
    tg_status status = TG_OK;
    for (int i = 0; i < params_of(before); i++) {
        TG_TRY(read_factor(p, p->from, from, before->weight + i, &p->before[i]));
    }
    TG_TRY(nn_compose(p->from, p->be, before, p->before, &p->dense));
    TG_TRY(nn_decompose(p->to, p->be, after, &p->dense, p->after));
    for (int i = 0; i < params_of(after); i++) {
        TG_TRY(tg_archive_add(to, p->to->params[after->weight + i].name, &p->after[i]));
    }
    if (error) {
        TG_TRY(nn_compose(p->to, p->be, after, p->after, &p->again));
        TG_TRY(compare(p, error));
    }
fail:
    passage_end(p);
    return status;
}

/* Copies all other parameters. */
static tg_status pass_others(const nn_model *from, const tg_archive *archive, tg_archive *to) {
    for (int i = 0; i < from->param_count; i++) {
        const char *name = from->params[i].name;
        TG_CALL(strstr(name, ".weight.")
                    ? TG_OK
                    : tg_archive_add(to, name, tg_archive_find(archive, name)));
    }
    return TG_OK;
}

static tg_status pass_all(const tg_model *model, tg_fno *to, double *errors) {
    tg_archive *before = NULL, *after = NULL;
    tg_status status = TG_OK;
    TG_TRY(tg_archive_create(model->ctx, &before));
    TG_TRY(tg_archive_create(model->ctx, &after));
    TG_TRY(tg_fno_save(model->fno, before, ""));
    TG_TRY(pass_others(&model->fno->model, before, after));
    for (int l = 0; l < (int)to->model.config.n_layers; l++) {
        passage p = {.from = &model->fno->model,
                     .to = &to->model,
                     .be = model->be,
                     .dtype = tg_dtype_complex(to->model.config.dtype)};
        TG_TRY(pass_weight(&p, l, before, after, errors ? &errors[l] : NULL));
    }
    TG_TRY(tg_fno_load(to, after, ""));
fail:
    tg_archive_destroy(&before);
    tg_archive_destroy(&after);
    return status;
}

/* The settings of the new network: those of the old one, except for the form of its weights. */
static tg_status new_config(const tg_model *model, const tg_fno_config *network,
                            tg_run_config *out) {
    tg_fno_config wish;
    *out = model->config;
    out->fno = *tg_fno_get_config(model->fno);
    TG_CALL(nn_config_read(model->ctx, network, &wish));
    out->fno.factorization = wish.factorization;
    out->fno.implementation = wish.implementation;
    out->fno.n_rank = wish.n_rank;
    memcpy(out->fno.rank, wish.rank, sizeof wish.rank);
    out->fno.n_fixed_rank_modes = wish.n_fixed_rank_modes;
    memcpy(out->fno.fixed_rank_modes, wish.fixed_rank_modes, sizeof wish.fixed_rank_modes);
    return TG_OK;
}

tg_status tg_model_factorize(const tg_model *model, const tg_fno_config *network, double *errors,
                             tg_model **out) {
    TG_NEED(model ? model->ctx : NULL, out);
    *out = NULL;
    TG_NEED(NULL, model);
    TG_NEED(model->ctx, network);
    tg_run_config config;
    tg_status status = TG_OK;
    if (model->be->ops->place != TG_HOST) {
        return tg_fail(model->ctx, TG_E_ARGUMENT,
                       "spectral weights are decomposed on the host: take backend cpu or ref");
    }
    if (tg_fno_get_config(model->fno)->separable) {
        return tg_fail(
            model->ctx, TG_E_CONFIG,
            "fno.separable: such weights have no other form; they are small as they are");
    }
    TG_TRY(new_config(model, network, &config));
    TG_TRY(tg_model_create(model->ctx, model->settings, &config, out));
    TG_TRY(pass_all(model, (*out)->fno, errors));
    (*out)->is_imported = model->is_imported;
    (*out)->is_on_pairs = model->is_on_pairs;
    for (int side = 0; side < 2; side++) {
        if (model->encoder[side]) {
            TG_TRY(tg_normalizer_copy(model->ctx, model->encoder[side], &(*out)->encoder[side]));
        }
    }
    TG_TRY(tg_model_describe(*out, (*out)->settings));
    return TG_OK;
fail:
    tg_model_destroy(out);
    return status;
}

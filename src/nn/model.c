/* Models: the list of parameters, with names, shapes, offsets in one block of weights, and
 * initialisation. The architecture declares them. */
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "base/memory.h"
#include "nn/config.h"
#include "nn/models/models.h"

/* ---- the list ---- */

static bool failed(nn_model *model, tg_status status) {
    if (model->status == TG_OK) {
        model->status = status;
    }
    return model->status != TG_OK;
}

/* Appends a parameter, stored after the previous one. Returns its number. */
static int add_param(nn_model *model, nn_param param, const char *format, ...) TG_PRINTF(3, 4);
static int add_param(nn_model *model, nn_param param, const char *format, ...) {
    const int64_t numel = tg_shape_numel(&param.shape);
    const size_t size = tg_dtype_size(param.dtype);
    if (failed(model, NN_GROW(model, params, param))) {
        return -1;
    }
    if (numel < 0 || (uint64_t)numel > (SIZE_MAX / 4 - model->weight_bytes) / size) {
        char shape[96];
        model->status = tg_fail(model->ctx, TG_E_CONFIG,
                                "fno.hidden_channels and fno.n_modes: a weight of %s is too large",
                                tg_shape_text(&param.shape, shape, sizeof shape));
        return -1;
    }
    va_list args;
    va_start(args, format);
    vsnprintf(param.name, sizeof param.name, format, args);
    va_end(args);
    param.offset = model->weight_bytes;
    param.dense_offset = model->dense_bytes;
    const size_t bytes = tg_align((size_t)numel * size);
    model->weight_bytes += bytes;
    model->dense_bytes += param.factored ? 0 : bytes;
    const int64_t whole =
        param.whole > 0 ? numel / param.shape.dim[2] * param.whole : numel; /* of all ranks */
    model->parameters += tg_dtype_is_complex(param.dtype) ? 2 * whole : whole;
    model->params[model->param_count] = param;
    return model->param_count++;
}

/* ".fr", ".fi" or nothing, after the name of a module that comes in pairs. */
static const char *part_name(const nn_model *model, int part) {
    return model->planes == 1 ? "" : part == 0 ? ".fr" : ".fi";
}

/* ---- layers ---- */

/* The weight of a linear layer, of this shape, or its bias. */
static nn_param linear_param(const nn_model *model, tg_shape weight, bool is_bias) {
    return (nn_param){.dtype = model->config.dtype,
                      .shape = is_bias ? (tg_shape){1, {weight.dim[0]}} : weight,
                      .init = NN_INIT_UNIFORM,
                      .scale = 1.0 / sqrt((double)weight.dim[1]),
                      .stream = model->param_count};
}

void nn_declare_mlp(nn_model *model, const char *module, int64_t in, int64_t hidden, int64_t out,
                    nn_mlp *mlp) {
    const int64_t size[3] = {in, hidden, out};
    *mlp = (nn_mlp){.in = in, .hidden = hidden, .out = out, .act = TG_ACT_GELU};
    for (int part = 0; part < model->planes; part++) {
        for (int i = 0; i < 4; i++) {
            const int layer = i / 2;
            const bool is_bias = i % 2 == 1;
            const tg_shape weight = {3, {size[layer + 1], size[layer], 1}};
            nn_param param = linear_param(model, weight, is_bias);
            param.stream = part == 0 ? model->param_count : mlp->param[0][i];
            mlp->param[part][i] =
                add_param(model, param, "%s%s.fcs.%d.%s", module, part_name(model, part), layer,
                          is_bias ? "bias" : "weight");
        }
    }
}

void nn_declare_skip(nn_model *model, const char *module, tg_fno_skip kind, int64_t in, int64_t out,
                     nn_skip *skip) {
    static const tg_skip_map kinds[] = {[TG_SKIP_LINEAR] = TG_SKIP_MAP_LINEAR,
                                        [TG_SKIP_IDENTITY] = TG_SKIP_MAP_IDENTITY,
                                        [TG_SKIP_SOFT_GATING] = TG_SKIP_MAP_GATE};
    *skip = (nn_skip){.kind = kinds[kind], .param = {-1, -1}};
    for (int part = 0; kind != TG_SKIP_IDENTITY && part < model->planes; part++) {
        nn_param param = linear_param(model, (tg_shape){3, {out, in, 1}}, false);
        if (kind != TG_SKIP_LINEAR) {
            param.shape = (tg_shape){2 + model->config.n_dim, {1, out, 1, 1, 1}};
            param.init = NN_INIT_CONST;
            param.scale = 1.0;
        }
        param.stream = part == 0 ? model->param_count : skip->param[0];
        skip->param[part] = add_param(model, param, "%s%s.%s", module, part_name(model, part),
                                      kind == TG_SKIP_LINEAR ? "conv.weight" : "weight");
    }
}

void nn_declare_norm(nn_model *model, const char *module, int64_t channels, nn_norm *norm) {
    *norm = (nn_norm){-1, -1};
    if (model->config.norm != TG_NORM_GROUP) {
        return;
    }
    nn_param param = {.dtype = model->config.dtype,
                      .shape = {1, {channels}},
                      .init = NN_INIT_CONST,
                      .scale = 1.0};
    norm->weight = add_param(model, param, "%s.weight", module);
    param.scale = 0.0;
    norm->bias = add_param(model, param, "%s.bias", module);
}

void nn_declare_gno(nn_model *model, const char *module, const tg_gno_config *config, nn_side side,
                    nn_gno *gno) {
    const tg_gno_sizes sizes = tg_gno_sizes_of(config, true);
    *gno = (nn_gno){
        .config = *config, .side = side, .layers = sizes.layers, .param = model->param_count};
    for (int i = 0; i < 2 * sizes.layers; i++) {
        const tg_shape weight = {2, {sizes.width[i / 2 + 1], sizes.width[i / 2]}};
        (void)add_param(model, linear_param(model, weight, i % 2 == 1),
                        "%s.integral_transform.channel_mlp.fcs.%d.%s", module, i / 2,
                        i % 2 == 1 ? "bias" : "weight");
    }
}

/* Declares the parameters of a factorized weight; returns the number of the first. */
static int declare_factors(nn_model *model, const char *module, const nn_factors *factors) {
    const tg_factorization form = model->config.factorization;
    const int first = model->param_count;
    for (int i = 0; i < factors->params; i++) {
        const bool is_one = factors->deviation[i] == 0.0;
        const nn_param param = {.dtype = tg_dtype_complex(model->config.dtype),
                                .shape = factors->shape[i],
                                .spectral = nn_factors_compresses(form, factors, i),
                                .init = is_one ? NN_INIT_CONST : NN_INIT_SPECTRAL,
                                .scale = is_one ? 1.0 : factors->deviation[i],
                                .stream = model->param_count};
        char name[40];
        nn_factors_name(form, i, name, sizeof name);
        (void)add_param(model, param, "%s.%s", module, name);
    }
    return first;
}

static int declare_dense(nn_model *model, const char *module, const nn_conv *conv) {
    const tg_fno_config *config = &model->config;
    nn_param spectral = {.dtype = tg_stored(tg_dtype_complex(config->dtype), model->stores.weight),
                         .shape = {2 + config->n_dim, {conv->in, conv->out}},
                         .spectral = true,
                         .factored = true,
                         .init = NN_INIT_SPECTRAL,
                         .scale = sqrt(1.0 / (double)(conv->in + conv->out)),
                         .stream = model->param_count};
    memcpy(spectral.shape.dim + 2, conv->modes, sizeof conv->modes);
    if (nn_is_split(&model->split)) {
        spectral.whole = conv->modes[0];
        spectral.block = nn_rows_of(&model->split, model->split.part, spectral.whole);
        spectral.shape.dim[2] = spectral.block.count;
    }
    return add_param(model, spectral, "%s.weight.tensor", module);
}

void nn_declare_conv(nn_model *model, const char *module, int64_t in, int64_t out,
                     const int64_t *n_modes, nn_conv *conv) {
    const tg_fno_config *config = &model->config;
    *conv = (nn_conv){.in = in, .out = out, .mode_count = 1};
    for (int d = 0; d < config->n_dim; d++) {
        const bool halved = d == config->n_dim - 1 && !config->complex_data;
        conv->modes[d] = halved ? n_modes[d] / 2 + 1 : n_modes[d];
        conv->mode_count *= conv->modes[d]; /* at most 2^60: the config is checked */
    }
    if (failed(model, nn_factors_make(model->ctx, config, in, out, conv->modes, &conv->factors))) {
        return;
    }
    conv->weight = conv->factors.params > 0 ? declare_factors(model, module, &conv->factors)
                                            : declare_dense(model, module, conv);
    const nn_param real = {.dtype = config->dtype,
                           .shape = {1 + config->n_dim, {out, 1, 1, 1}},
                           .init = NN_INIT_NORMAL,
                           .scale = sqrt(2.0 / (double)(in + out)),
                           .stream = model->param_count};
    conv->bias = add_param(model, real, "%s.bias", module);
}

/* ---- the model ---- */

/* Whether a network of these settings can be split. */
static tg_status check_split(const nn_model *model) {
    const tg_fno_config *config = &model->config;
    const struct {
        bool is_met;
        const char *text;
    } refused[] = {
        {config->architecture != TG_ARCHITECTURE_FNO, "fno.architecture: fno"},
        {config->factorization != TG_FACTORIZATION_DENSE || config->separable,
         "fno.factorization: dense and fno.separable: false"},
        {config->micro_batch > 0, "fno.micro_batch: 0"},
        {config->n_incremental > 0, "fno.incremental_n_modes: null"},
        {model->stores.activation != TG_STORE_FULL || model->stores.spectrum != TG_STORE_FULL ||
             model->stores.weight != TG_STORE_FULL,
         "full precision of activations, spectra and weights"},
    };
    for (size_t i = 0; i < sizeof refused / sizeof refused[0]; i++) {
        if (refused[i].is_met) {
            return tg_fail(model->ctx, TG_E_CONFIG, "distributed.split: %d takes %s",
                           model->split.parts, refused[i].text);
        }
    }
    const bool is_halved = config->n_dim == 1 && !config->complex_data;
    const int64_t modes = is_halved ? config->n_modes[0] / 2 + 1 : config->n_modes[0];
    if (model->split.parts > modes) {
        return tg_fail(
            model->ctx, TG_E_CONFIG,
            "distributed.split: %d takes as many modes in the first dimension, which has "
            "%lld (fno.n_modes)",
            model->split.parts, (long long)modes);
    }
    return TG_OK;
}

tg_status nn_model_create(tg_context *ctx, const tg_fno_config *config, const nn_split *split,
                          nn_model *out) {
    tg_status status = TG_OK;
    nn_model model = {.ctx = ctx};
    *out = (nn_model){0};
    TG_TRY(nn_config_read(ctx, config, &model.config));
    config = &model.config;
    TG_TRY(tg_fno_config_check(ctx, config));
    model.act = nn_act_of(config);
    model.planes = config->complex_data ? 2 : 1;
    model.architecture = nn_architecture_of(config);
    model.stores = nn_stores_of(config);
    if (split && nn_is_split(split)) {
        model.split = *split;
        TG_TRY(check_split(&model));
    }
    model.embedded_channels = config->in_channels;
    if (config->architecture == TG_ARCHITECTURE_GINO) {
        model.embedded_channels = config->fno_in_channels + config->latent_feature_channels;
    } else if (config->positional_embedding == TG_EMBEDDING_GRID) {
        model.embedded_channels += config->n_dim;
    }
    TG_TRY(TG_NEW(ctx, TG_MEM_OTHER, model.blocks, config->n_layers));
    model.architecture->declare(&model);
    TG_TRY(model.status);
    *out = model;
    return TG_OK;
fail:
    nn_model_destroy(&model);
    return status;
}

void nn_model_destroy(nn_model *model) {
    if (model->ctx) {
        tg_mem_free(model->ctx, model->blocks);
        tg_mem_free(model->ctx, model->params);
    }
    *model = (nn_model){0};
}

/* The list of parameters of a network, in the order of the data's way through it: names, shapes,
 * places in one block of weights, and how each is initialised. */
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "nn/model.h"

static int parts_of(const nn_model *model) {
    return model->config.complex_data ? 2 : 1;
}

/* Most parameters that a network of this config can have. */
static int64_t most_params(const tg_fno_config *config) {
    const int64_t parts = config->complex_data ? 2 : 1;
    const int64_t block = 2 + parts * (4 + 2) + 4;
    return config->n_layers * block + 2 * 4 * parts;
}

/* Appends a parameter; its place follows the one before. Returns its number, -1 if it is too
 * large (the caller has room: most_params). */
static int add_param(nn_model *model, nn_param param, const char *format, ...) TG_PRINTF(3, 4);
static int add_param(nn_model *model, nn_param param, const char *format, ...) {
    const int64_t numel = tg_shape_numel(&param.shape);
    const size_t size = tg_dtype_size(param.dtype);
    if (numel < 0 || (uint64_t)numel > (SIZE_MAX / 4 - model->weight_bytes) / size) {
        return -1;
    }
    va_list args;
    va_start(args, format);
    vsnprintf(param.name, sizeof param.name, format, args);
    va_end(args);
    param.offset = model->weight_bytes;
    const size_t bytes = (size_t)numel * size;
    model->weight_bytes += (bytes + TG_ALIGNMENT - 1) / TG_ALIGNMENT * TG_ALIGNMENT;
    model->parameters += tg_dtype_is_complex(param.dtype) ? 2 * numel : numel;
    model->params[model->param_count] = param;
    return model->param_count++;
}

/* ".fr", ".fi" or nothing, after the name of a module that comes in pairs. */
static const char *part_name(const nn_model *model, int part) {
    return !model->config.complex_data ? "" : part == 0 ? ".fr" : ".fi";
}

static bool add_mlp(nn_model *model, nn_mlp *mlp, const char *module) {
    const double bound[2] = {1.0 / sqrt((double)mlp->in), 1.0 / sqrt((double)mlp->hidden)};
    const int64_t size[3] = {mlp->in, mlp->hidden, mlp->out};
    for (int part = 0; part < parts_of(model); part++) {
        for (int layer = 0; layer < 2; layer++) {
            nn_param param = {.dtype = model->config.dtype,
                              .shape = {3, {size[layer + 1], size[layer], 1}},
                              .init = NN_INIT_UNIFORM,
                              .scale = bound[layer]};
            for (int b = 0; b < 2; b++) {
                param.stream = part == 0 ? model->param_count : mlp->param[0][2 * layer + b];
                const int number =
                    add_param(model, param, "%s%s.fcs.%d.%s", module, part_name(model, part), layer,
                              b == 0 ? "weight" : "bias");
                if (number < 0) {
                    return false;
                }
                mlp->param[part][2 * layer + b] = number;
                param.shape = (tg_shape){1, {size[layer + 1]}};
            }
        }
    }
    return true;
}

static bool add_skip(nn_model *model, nn_skip *skip, tg_fno_skip kind, const char *list, int l) {
    static const tg_mix_kind kinds[] = {[TG_SKIP_LINEAR] = TG_MIX_LINEAR,
                                        [TG_SKIP_IDENTITY] = TG_MIX_IDENTITY,
                                        [TG_SKIP_SOFT_GATING] = TG_MIX_GATE};
    const int64_t channels = model->config.hidden_channels;
    *skip = (nn_skip){.kind = kinds[kind], .param = {-1, -1}};
    for (int part = 0; kind != TG_SKIP_IDENTITY && part < parts_of(model); part++) {
        nn_param param = {.dtype = model->config.dtype};
        param.stream = part == 0 ? model->param_count : skip->param[0];
        const char *leaf = "weight";
        if (kind == TG_SKIP_LINEAR) {
            leaf = "conv.weight";
            param.shape = (tg_shape){3, {channels, channels, 1}};
            param.init = NN_INIT_UNIFORM;
            param.scale = 1.0 / sqrt((double)channels);
        } else {
            param.shape = (tg_shape){2 + model->config.n_dim, {1, channels, 1, 1, 1}};
            param.init = NN_INIT_CONST;
            param.scale = 1.0;
        }
        skip->param[part] =
            add_param(model, param, "fno_blocks.%s.%d%s.%s", list, l, part_name(model, part), leaf);
        if (skip->param[part] < 0) {
            return false;
        }
    }
    return true;
}

static bool add_norms(nn_model *model, nn_block *block, int l) {
    for (int n = 0; n < 2; n++) {
        nn_norm *norm = &block->norm[n];
        *norm = (nn_norm){-1, -1};
        if (model->config.norm != TG_NORM_GROUP) {
            continue;
        }
        nn_param param = {.dtype = model->config.dtype,
                          .shape = {1, {model->config.hidden_channels}},
                          .init = NN_INIT_CONST,
                          .scale = 1.0};
        norm->weight = add_param(model, param, "fno_blocks.norm.%d.weight", 2 * l + n);
        param.scale = 0.0;
        norm->bias = add_param(model, param, "fno_blocks.norm.%d.bias", 2 * l + n);
        if (norm->weight < 0 || norm->bias < 0) {
            return false;
        }
    }
    return true;
}

static bool add_block(nn_model *model, int l) {
    const tg_fno_config *config = &model->config;
    const int64_t channels = config->hidden_channels;
    nn_block *block = &model->blocks[l];
    nn_param weight = {.dtype = tg_stored(tg_dtype_complex(config->dtype), model->stores.weight),
                       .shape = {2 + config->n_dim, {channels, channels}},
                       .spectral = true,
                       .init = NN_INIT_SPECTRAL,
                       .scale = sqrt(0.5 / (double)channels),
                       .stream = model->param_count};
    memcpy(weight.shape.dim + 2, model->modes, sizeof model->modes);
    block->weight = add_param(model, weight, "fno_blocks.convs.%d.weight.tensor", l);
    nn_param bias = {.dtype = config->dtype,
                     .shape = {1 + config->n_dim, {channels, 1, 1, 1}},
                     .init = NN_INIT_NORMAL,
                     .scale = sqrt(1.0 / (double)channels),
                     .stream = model->param_count};
    block->bias = add_param(model, bias, "fno_blocks.convs.%d.bias", l);
    const tg_storage inside = model->stores.activation;
    block->mlp = (nn_mlp){channels, nn_mlp_hidden(config), channels, inside, inside, {{0}}};
    char module[48];
    snprintf(module, sizeof module, "fno_blocks.channel_mlp.%d", l);
    return block->weight >= 0 && block->bias >= 0 &&
           add_skip(model, &block->fno_skip, config->fno_skip, "fno_skips", l) &&
           add_mlp(model, &block->mlp, module) &&
           add_skip(model, &block->mlp_skip, config->channel_mlp_skip, "channel_mlp_skips", l) &&
           add_norms(model, block, l);
}

static bool add_all(nn_model *model) {
    const tg_fno_config *config = &model->config;
    const int64_t channels = config->hidden_channels;
    const tg_storage inside = model->stores.activation;
    model->lifting = (nn_mlp){model->embedded_channels,
                              nn_lifting_hidden(config),
                              channels,
                              TG_STORE_FULL,
                              inside,
                              {{0}}};
    if (!add_mlp(model, &model->lifting, "lifting")) {
        return false;
    }
    for (int l = 0; l < (int)config->n_layers; l++) {
        if (!add_block(model, l)) {
            return false;
        }
    }
    model->projection = (nn_mlp){
        channels, nn_projection_hidden(config), config->out_channels, inside, TG_STORE_FULL, {{0}}};
    return add_mlp(model, &model->projection, "projection");
}

tg_status nn_model_create(tg_context *ctx, const tg_fno_config *config, nn_model *out) {
    tg_status status = TG_OK;
    nn_model model = {.ctx = ctx, .config = *config, .planes = config->complex_data ? 2 : 1};
    *out = (nn_model){0};
    TG_TRY(tg_fno_config_check(ctx, config));
    const int last = config->n_dim - 1;
    model.stores = nn_stores_of(config);
    model.mode_count = 1;
    for (int d = 0; d <= last; d++) {
        const bool halved = d == last && !config->complex_data;
        model.modes[d] = halved ? config->n_modes[d] / 2 + 1 : config->n_modes[d];
        model.mode_count *= model.modes[d]; /* at most 2^60: checked above */
    }
    model.embedded_channels = config->in_channels;
    if (config->positional_embedding == TG_EMBEDDING_GRID) {
        model.embedded_channels += config->n_dim;
    }
    TG_TRY(TG_NEW(ctx, TG_MEM_OTHER, model.blocks, config->n_layers));
    TG_TRY(TG_NEW(ctx, TG_MEM_OTHER, model.params, most_params(config)));
    if (!add_all(&model)) {
        TG_TRY(tg_fail(ctx, TG_E_CONFIG,
                       "fno.hidden_channels and fno.n_modes: %lld channels and %lld modes are too "
                       "many for one weight",
                       (long long)config->hidden_channels, (long long)model.mode_count));
    }
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

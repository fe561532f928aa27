/* The geometry-informed neural operator: from points to a latent grid, and from there to queries.
 *
 *   points -> graph kernel (mean) -> latent grid, with features from the caller
 *          -> lifting -> blocks of a Fourier neural operator
 *          -> graph kernel (sum, or weighted) -> queries -> projection
 *
 * The blocks are those of fno.c, with all their options. */
#include <string.h>

#include "nn/models/models.h"

static tg_gno_config common_of(const tg_fno_config *config) {
    tg_gno_config gno = tg_gno_config_default();
    gno.coord_dim = config->n_dim;
    gno.pos_embedding_channels = config->gno_embed_channels;
    gno.pos_embedding_max_positions = config->gno_embed_max_positions;
    return gno;
}

static tg_gno_config in_gno_of(const tg_fno_config *config) {
    tg_gno_config gno = common_of(config);
    gno.in_channels = config->in_channels;
    gno.out_channels = config->fno_in_channels;
    gno.radius = config->in_gno_radius;
    gno.transform_type = config->in_gno_transform_type;
    gno.reduction = TG_GNO_MEAN;
    gno.pos_embedding_type = config->in_gno_pos_embed_type;
    gno.n_channel_mlp_layers = config->n_in_gno_channel_mlp_hidden_layers;
    memcpy(gno.channel_mlp_layers, config->in_gno_channel_mlp_hidden_layers,
           sizeof gno.channel_mlp_layers);
    return gno;
}

static tg_gno_config out_gno_of(const tg_fno_config *config) {
    tg_gno_config gno = common_of(config);
    gno.in_channels = gno.out_channels = config->hidden_channels;
    gno.radius = config->out_gno_radius;
    gno.transform_type = config->out_gno_transform_type;
    gno.reduction = TG_GNO_SUM;
    gno.weighting_function = config->gno_weighting_function;
    gno.weight_function_scale = config->gno_weight_function_scale;
    gno.pos_embedding_type = config->out_gno_pos_embed_type;
    gno.n_channel_mlp_layers = config->n_out_gno_channel_mlp_hidden_layers;
    memcpy(gno.channel_mlp_layers, config->out_gno_channel_mlp_hidden_layers,
           sizeof gno.channel_mlp_layers);
    return gno;
}

static void declare(nn_model *model) {
    const tg_fno_config *config = &model->config;
    const tg_gno_config in = in_gno_of(config), out = out_gno_of(config);
    nn_declare_gno(model, "gno_in", &in, NN_TO_GRID, &model->gno[NN_TO_GRID]);
    nn_declare_gno(model, "gno_out", &out, NN_TO_QUERIES, &model->gno[NN_TO_QUERIES]);
    nn_fno_declare(model);
}

static void build(const nn_model *model, nn_program *p) {
    const tg_fno_config *config = &model->config;
    nn_phase_begin(p, "graph kernel to the grid", "graph kernel to the grid");
    int x = nn_add_gno(p, &model->gno[NN_TO_GRID], false, nn_add_input(p));
    x = nn_fno_build_blocks(model, p, nn_add_features(p, x));
    nn_phase_begin(p, "graph kernel to the queries", "graph kernel to the queries");
    x = nn_add_gno(p, &model->gno[NN_TO_QUERIES], config->out_gno_tanh == TG_GNO_TANH_LATENT, x);
    nn_phase_begin(p, "projection", "projection");
    p->output = nn_add_mlp(p, &model->projection, NN_DATA, x);
}

const nn_architecture nn_architecture_gino = {.declare = declare, .build = build};

/* The Fourier neural operator.
 *
 *   x -> embed -> lifting -> pad -> block 1 .. block L -> crop -> projection -> y
 *
 * One block, with activations (fno.non_linearity) everywhere but in the last:
 *
 *   x -+-> transform -> product with the weight -> inverse -> bias -> norm -> + -> act -> z1
 *      +--------------------- fno_skip ---------------------------------------+
 *
 *   z1 --> channel MLP -> + -> norm -> act -> next x
 *   x ---- channel_mlp_skip ---+
 *
 * With fno.preactivation, act and norm come first instead of last, x -> act -> norm, and the rest
 * of the block works on the result:
 *
 *   u = norm(act(x)),  z1 = norm(act(convolution(u) + fno_skip(u))),
 *   next x = channel MLP(z1) + channel_mlp_skip(u)
 */
#include <stdio.h>

#include "nn/models/models.h"

/* ---- parameters ---- */

void nn_fno_declare(nn_model *model, nn_declare_block_fn *declare_block) {
    const tg_fno_config *config = &model->config;
    const int64_t channels = config->hidden_channels;
    nn_declare_mlp(model, "lifting", model->embedded_channels, nn_lifting_hidden(config), channels,
                   &model->lifting);
    model->lifting.act = model->act;
    for (int l = 0; l < (int)config->n_layers; l++) {
        declare_block(model, l);
    }
    nn_declare_mlp(model, "projection", channels, nn_projection_hidden(config),
                   config->out_channels, &model->projection);
    model->projection.act = model->act;
}

void nn_fno_declare_convolution(nn_model *model, int l) {
    nn_block *block = &model->blocks[l];
    char module[48];
    snprintf(module, sizeof module, "fno_blocks.convs.%d", l);
    nn_declare_convolution(model, module, &block->weight, &block->bias);
    snprintf(module, sizeof module, "fno_blocks.fno_skips.%d", l);
    nn_declare_skip(model, module, model->config.fno_skip, &block->fno_skip);
}

void nn_fno_declare_block(nn_model *model, int l) {
    const tg_fno_config *config = &model->config;
    const int64_t channels = config->hidden_channels;
    nn_block *block = &model->blocks[l];
    char module[48];
    nn_fno_declare_convolution(model, l);
    snprintf(module, sizeof module, "fno_blocks.channel_mlp.%d", l);
    nn_declare_mlp(model, module, channels, nn_mlp_hidden(config), channels, &block->mlp);
    snprintf(module, sizeof module, "fno_blocks.channel_mlp_skips.%d", l);
    nn_declare_skip(model, module, config->channel_mlp_skip, &block->mlp_skip);
    for (int n = 0; n < 2; n++) {
        snprintf(module, sizeof module, "fno_blocks.norm.%d", 2 * l + n);
        nn_declare_norm(model, module, &block->norm[n]);
    }
}

static void declare(nn_model *model) {
    nn_fno_declare(model, nn_fno_declare_block);
}

/* ---- the program ---- */

int nn_fno_activate(const nn_model *model, nn_program *p, int l, int x) {
    return l + 1 < (int)model->config.n_layers ? nn_add_activation(p, x) : x;
}

int nn_fno_preactivate(const nn_model *model, nn_program *p, int l, int x) {
    if (!model->config.preactivation) {
        return x;
    }
    nn_phase_begin(p, "transform", "skips");
    return nn_add_norm(p, &model->blocks[l].norm[0], nn_add_activation(p, x));
}

int nn_fno_convolve(const nn_model *model, nn_program *p, int l, int x) {
    const nn_block *block = &model->blocks[l];
    nn_phase_begin(p, "transform", "skips");
    int z = nn_add_transform(p, x);
    nn_phase_begin(p, "product with the weight", "transforms");
    z = (model->factors.params > 0 ? nn_add_factorized : nn_add_contract)(p, block->weight, z);
    nn_phase_begin(p, "inverse transform", "transforms");
    z = nn_add_inverse(p, z);
    z = nn_add_bias(p, block->bias, z);
    z = model->config.preactivation ? z : nn_add_norm(p, &block->norm[0], z);
    nn_phase_begin(p, "inverse transform", "skips");
    return nn_add_skip(p, &block->fno_skip, x, z);
}

int nn_fno_build_block(const nn_model *model, nn_program *p, int l, int x) {
    const nn_block *block = &model->blocks[l];
    const bool is_pre = model->config.preactivation;
    x = nn_fno_preactivate(model, p, l, x);
    int z = nn_fno_convolve(model, p, l, x);
    nn_phase_begin(p, "mixing", "mixing");
    z = nn_fno_activate(model, p, l, z);
    z = is_pre ? nn_add_norm(p, &block->norm[1], z) : z;
    z = nn_add_channel_mlp(p, &block->mlp, l, z);
    nn_phase_begin(p, "mixing", "skips");
    z = nn_boundary(p, nn_add_skip(p, &block->mlp_skip, x, z));
    if (is_pre) {
        return z;
    }
    nn_phase_begin(p, "mixing", "mixing");
    z = nn_boundary(p, nn_add_norm(p, &block->norm[1], z));
    return nn_fno_activate(model, p, l, z);
}

int nn_fno_build_blocks(const nn_model *model, nn_program *p, nn_build_block_fn *build_block,
                        int x) {
    const int layers = (int)model->config.n_layers;
    nn_phase_begin(p, "lifting", "lifting");
    x = nn_add_mlp(p, &model->lifting, NN_ACTIVATION, x);
    if (p->geometry.pads) { /* otherwise lifting again is cheap */
        x = nn_boundary(p, nn_add_pad(p, x));
    }
    for (int l = 0; l < layers; l++) {
        char name[24];
        snprintf(name, sizeof name, "block %d", l + 1);
        nn_scope(p, l + 1, name);
        x = build_block(model, p, l, x);
    }
    nn_scope(p, layers + 1, NULL);
    nn_phase_begin(p, "projection", "projection");
    return nn_add_crop(p, x);
}

void nn_fno_build(const nn_model *model, nn_program *p, nn_build_block_fn *build_block) {
    nn_phase_begin(p, "embedding", "embedding");
    const int x = nn_add_embed(p, nn_add_input(p));
    const int y = nn_fno_build_blocks(model, p, build_block, x);
    p->output = nn_add_join(p, nn_add_mlp(p, &model->projection, NN_DATA, y));
}

static void build(const nn_model *model, nn_program *p) {
    nn_fno_build(model, p, nn_fno_build_block);
}

static const nn_architecture with_mlp = {.name = "fno", .declare = declare, .build = build};

const nn_architecture *nn_architecture_of(const tg_fno_config *config) {
    return config->architecture == TG_ARCHITECTURE_GINO ? &nn_architecture_gino
           : config->use_channel_mlp                    ? &with_mlp
                                                        : &nn_architecture_fno_without_mlp;
}

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
 *
 * The original one has no channel MLPs (fno.use_channel_mlp: false): a block ends with its first
 * activation and, with fno.preactivation, with convolution(u) + fno_skip(u). */
#include <stdio.h>

#include "nn/models/models.h"

/* ---- parameters ---- */

void nn_fno_declare_block(nn_model *model, const nn_block_shape *shape, nn_block *block) {
    const tg_fno_config *config = &model->config;
    const int64_t in = shape->in, out = shape->out;
    const int norms = config->use_channel_mlp ? 2 : 1;
    char module[64];
    snprintf(module, sizeof module, "%s.convs.%d", shape->module, shape->index);
    nn_declare_conv(model, module, in, out, shape->n_modes, &block->conv);
    snprintf(module, sizeof module, "%s.fno_skips.%d", shape->module, shape->index);
    nn_declare_skip(model, module, config->fno_skip, in, out, &block->fno_skip);
    if (config->use_channel_mlp) {
        snprintf(module, sizeof module, "%s.channel_mlp.%d", shape->module, shape->index);
        nn_declare_mlp(model, module, out, nn_mlp_hidden(config, out), out, &block->mlp);
        snprintf(module, sizeof module, "%s.channel_mlp_skips.%d", shape->module, shape->index);
        nn_declare_skip(model, module, config->channel_mlp_skip, in, out, &block->mlp_skip);
    }
    for (int n = 0; n < norms; n++) {
        snprintf(module, sizeof module, "%s.norm.%d", shape->module, norms * shape->index + n);
        nn_declare_norm(model, module, out, &block->norm[n]);
    }
}

static void declare_stack(nn_model *model) {
    const tg_fno_config *config = &model->config;
    const int64_t channels = config->hidden_channels;
    const int layers = (int)config->n_layers;
    for (int l = 0; l < layers; l++) {
        const nn_block_shape shape = {"fno_blocks", l, channels, channels, config->n_modes};
        model->blocks[l] = (nn_block){.number = l, .activates = l + 1 < layers};
        nn_fno_declare_block(model, &shape, &model->blocks[l]);
    }
}

void nn_fno_declare(nn_model *model) {
    const tg_fno_config *config = &model->config;
    const int64_t channels = config->hidden_channels;
    nn_declare_mlp(model, "lifting", model->embedded_channels, nn_lifting_hidden(config), channels,
                   &model->lifting);
    model->lifting.act = model->act;
    declare_stack(model);
    nn_declare_mlp(model, "projection", channels, nn_projection_hidden(config),
                   config->out_channels, &model->projection);
    model->projection.act = model->act;
}

/* ---- the program ---- */

/* act(x), or x in the last block. */
static int activate(nn_program *p, const nn_block *block, int x) {
    return block->activates ? nn_add_activation(p, x) : x;
}

int nn_fno_convolve(nn_program *p, const nn_block *block, int x, int u) {
    const nn_conv *conv = &block->conv;
    nn_phase_begin(p, "transform", "skips");
    int z = nn_add_transform(p, conv->modes, x);
    nn_phase_begin(p, "product with the weight", "transforms");
    z = (conv->factors.params > 0 ? nn_add_factorized : nn_add_contract)(p, conv, z);
    nn_phase_begin(p, "inverse transform", "transforms");
    z = nn_add_bias(p, conv->bias, nn_add_inverse_on(p, p->values[u].grid, z));
    z = p->model->config.preactivation ? z : nn_add_norm(p, &block->norm[0], z);
    nn_phase_begin(p, "inverse transform", "skips");
    return nn_add_skip(p, &block->fno_skip, u, z);
}

int nn_fno_build_block(nn_program *p, const nn_block *block, nn_grid grid, int x) {
    const tg_fno_config *config = &p->model->config;
    const bool is_pre = config->preactivation;
    nn_phase_begin(p, "transform", "skips");
    x = is_pre ? nn_add_norm(p, &block->norm[0], nn_add_activation(p, x)) : x;
    const int u = nn_add_resample(p, grid, x);
    int z = nn_fno_convolve(p, block, x, u);
    if (!config->use_channel_mlp) {
        z = nn_boundary(p, z);
        return is_pre ? z : activate(p, block, z);
    }
    nn_phase_begin(p, "mixing", "mixing");
    z = activate(p, block, z);
    z = is_pre ? nn_add_norm(p, &block->norm[1], z) : z;
    z = nn_add_channel_mlp(p, &block->mlp, block->number, z);
    nn_phase_begin(p, "mixing", "skips");
    z = nn_boundary(p, nn_add_skip(p, &block->mlp_skip, u, z));
    if (is_pre) {
        return z;
    }
    nn_phase_begin(p, "mixing", "mixing");
    z = nn_boundary(p, nn_add_norm(p, &block->norm[1], z));
    return activate(p, block, z);
}

/* All blocks, between padding and cropping. */
static int build_stack(const nn_model *model, nn_program *p, int x) {
    const int layers = (int)model->config.n_layers;
    x = nn_add_pad(p, x);
    for (int l = 0; l < layers; l++) {
        char name[24];
        snprintf(name, sizeof name, "block %d", l + 1);
        nn_scope(p, l + 1, name);
        x = nn_fno_build_block(p, &model->blocks[l], p->values[x].grid, x);
    }
    nn_scope(p, layers + 1, NULL);
    nn_phase_begin(p, "projection", "projection");
    return nn_add_crop(p, p->domain.grid, x);
}

int nn_fno_build_blocks(const nn_model *model, nn_program *p, int x) {
    nn_phase_begin(p, "lifting", "lifting");
    return build_stack(model, p, nn_add_mlp(p, &model->lifting, NN_ACTIVATION, x));
}

static void build(const nn_model *model, nn_program *p) {
    nn_phase_begin(p, "embedding", "embedding");
    const int x = nn_fno_build_blocks(model, p, nn_add_embed(p, nn_add_input(p)));
    p->output = nn_add_join(p, nn_add_mlp(p, &model->projection, NN_DATA, x));
}

static const nn_architecture fno = {.declare = nn_fno_declare, .build = build};

/* ---- blocks alone ---- */

static void build_blocks_only(const nn_model *model, nn_program *p) {
    nn_phase_begin(p, "input", "input");
    const int x = nn_boundary(p, nn_add_embed(p, nn_add_input(p)));
    p->output = nn_add_join(p, build_stack(model, p, x));
}

static const nn_architecture blocks_only = {.declare = declare_stack, .build = build_blocks_only};

const nn_architecture *nn_architecture_of(const tg_fno_config *config) {
    return config->blocks_only                            ? &blocks_only
           : config->architecture == TG_ARCHITECTURE_GINO ? &nn_architecture_gino
           : config->architecture == TG_ARCHITECTURE_UNO  ? &nn_architecture_uno
                                                          : &fno;
}

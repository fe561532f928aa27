/* The U-shaped neural operator: blocks of a Fourier neural operator with modes, channels and a grid
 * of their own, and horizontal skips from the first ones to the last ones.
 *
 *   x -> embed -> lifting -> pad -> block 1 .. block L -> crop -> projection -> y
 *
 * Block l works on the output of the block before it, and of the one that horizontal_skips_map
 * names, through its skip and resampled (ops/resample.c):
 *
 *   x' = [x, R S z_a],  z1 = norm(inverse(weight transform(x')) + bias) + fno_skip(R x'),
 *   z = norm(channel MLP(z1) + channel_mlp_skip(R x'))
 *
 * R leads to the grid of the block's output, uno_scalings times that of its input. There are no
 * activations between blocks, as in neuraloperator. */
#include <math.h>
#include <stdio.h>

#include "nn/models/models.h"

/* Whether a later layer reads the output of this one. */
static bool is_read_later(const tg_fno_config *config, int layer) {
    bool is_read = false;
    for (int l = layer + 1; l < (int)config->n_layers; l++) {
        is_read = is_read || nn_uno_reads(config, l) == layer;
    }
    return is_read;
}

static void declare(nn_model *model) {
    const tg_fno_config *config = &model->config;
    const int layers = (int)config->n_layers;
    int64_t channels = config->hidden_channels;
    char module[48];
    nn_declare_mlp(model, "lifting", model->embedded_channels, nn_lifting_hidden(config), channels,
                   &model->lifting);
    for (int l = 0; l < layers; l++) {
        const int from = nn_uno_reads(config, l);
        snprintf(module, sizeof module, "fno_blocks.%d", l);
        const nn_block_shape shape = {
            module, 0, channels + (from < 0 ? 0 : config->uno_out_channels[from]),
            config->uno_out_channels[l], config->uno_n_modes + l * config->n_dim};
        model->blocks[l] = (nn_block){.number = l};
        nn_fno_declare_block(model, &shape, &model->blocks[l]);
        channels = shape.out;
    }
    for (int l = 0; l < layers; l++) {
        const int64_t out = config->uno_out_channels[l];
        snprintf(module, sizeof module, "horizontal_skips.%d", l);
        if (is_read_later(config, l)) {
            nn_declare_skip(model, module, config->horizontal_skip, out, out,
                            &model->blocks[l].horizontal);
        }
    }
    nn_declare_mlp(model, "projection", channels, nn_projection_hidden(config),
                   config->out_channels, &model->projection);
    model->projection.act = model->act;
}

/* That of layer l's output, from that of its input; the last one is again the first. */
static nn_grid next_grid(nn_program *p, int l, nn_grid first, nn_grid grid) {
    const tg_fno_config *config = &p->model->config;
    tg_shape widest = {
        .ndim = 2 + config->n_dim,
        .dim = {2 * p->whole, p->model->blocks[l].conv.in + p->model->blocks[l].conv.out}};
    for (int d = 0; d < config->n_dim; d++) {
        const double size =
            nearbyint((double)grid.size[d] * config->uno_scalings[l * config->n_dim + d]);
        grid.size[d] = l + 1 == (int)config->n_layers ? first.size[d] : (int64_t)fmin(size, 0x1p30);
        widest.dim[2 + d] = grid.size[d];
    }
    if (tg_shape_numel(&widest) < 1 && p->status == TG_OK) {
        char text[96];
        p->status = tg_fail(p->ctx, TG_E_SHAPE,
                            "fno.uno_scalings: layer %d would have no points or too many: %s", l,
                            tg_shape_text(&widest, text, sizeof text));
        return first;
    }
    return grid;
}

static void build(const nn_model *model, nn_program *p) {
    const tg_fno_config *config = &model->config;
    const int layers = (int)config->n_layers;
    int skipped[TG_UNO_MAX_LAYERS];
    char name[24];
    nn_phase_begin(p, "embedding", "embedding");
    int x = nn_add_embed(p, nn_add_input(p));
    nn_phase_begin(p, "lifting", "lifting");
    x = nn_add_mlp(p, &model->lifting, NN_ACTIVATION, x);
    x = nn_add_pad(p, x);
    const nn_grid first = p->values[x].grid;
    for (int l = 0; l < layers; l++) {
        const nn_block *block = &model->blocks[l];
        const int from = nn_uno_reads(config, l);
        snprintf(name, sizeof name, "block %d", l + 1);
        nn_scope(p, l + 1, name);
        if (from >= 0) {
            nn_phase_begin(p, "horizontal skip", "horizontal skip");
            x = nn_add_concat(p, x, nn_add_resample(p, p->values[x].grid, skipped[from]));
        }
        const nn_grid grid = next_grid(p, l, first, p->values[x].grid);
        x = nn_fno_build_block(p, block, grid, x);
        if (is_read_later(config, l)) {
            nn_phase_begin(p, "horizontal skip", "horizontal skip");
            skipped[l] = nn_add_map(p, &block->horizontal, x);
        }
    }
    nn_scope(p, layers + 1, NULL);
    nn_phase_begin(p, "projection", "projection");
    p->output = nn_add_mlp(p, &model->projection, NN_DATA, nn_add_crop(p, p->domain.grid, x));
}

const nn_architecture nn_architecture_uno = {.declare = declare, .build = build};

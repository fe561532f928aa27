/* The Fourier neural operator without channel MLPs (fno.use_channel_mlp: false), the original one:
 * between lifting and projection of fno.c every block is
 *
 *   x -+-> transform -> product with the weight -> inverse -> bias -> norm -> + -> act -> next x
 *      +--------------------- fno_skip ---------------------------------------+
 *
 * and with fno.preactivation z = convolution(u) + fno_skip(u), u = norm(act(x)). */
#include <stdio.h>

#include "nn/models/models.h"

void nn_fno_declare_block_without_mlp(nn_model *model, const nn_block_shape *shape,
                                      nn_block *block) {
    char module[64];
    nn_fno_declare_conv(model, shape, block);
    snprintf(module, sizeof module, "%s.norm.%d", shape->module, shape->index);
    nn_declare_norm(model, module, shape->out, &block->norm[0]);
}

static void declare(nn_model *model) {
    nn_fno_declare(model, nn_fno_declare_block_without_mlp);
}

int nn_fno_build_block_without_mlp(nn_program *p, const nn_block *block, nn_grid grid, int x) {
    x = nn_fno_preactivate(p, block, x);
    const int u = nn_fno_resample(p, grid, x);
    const int z = nn_boundary(p, nn_fno_convolve(p, block, x, u));
    return p->model->config.preactivation ? z : nn_fno_activate(p, block, z);
}

static void build(const nn_model *model, nn_program *p) {
    nn_fno_build(model, p, nn_fno_build_block_without_mlp);
}

const nn_architecture nn_architecture_fno_without_mlp = {
    .name = "fno without channel MLPs", .declare = declare, .build = build};

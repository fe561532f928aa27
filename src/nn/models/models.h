/* The architectures, and their common parts. A new one is a file in this folder and a line in
 * nn_architecture_of. */
#ifndef TG_NN_MODELS_MODELS_H
#define TG_NN_MODELS_MODELS_H

#include "nn/ops.h"

/* The architecture of a configuration. */
const nn_architecture *nn_architecture_of(const tg_fno_config *config);

extern const nn_architecture nn_architecture_gino;
extern const nn_architecture nn_architecture_uno;

/* ---- shared by the Fourier neural operators (fno.c) ---- */

/* Sizes and names of the parameters of a block: "<module>.convs.<index>". */
typedef struct nn_block_shape {
    const char *module;
    int index;
    int64_t in, out;
    const int64_t *n_modes;
} nn_block_shape;

/* Parameters of a block, and the block, whose output is on `grid`. */
void nn_fno_declare_block(nn_model *model, const nn_block_shape *shape, nn_block *block);
int nn_fno_build_block(nn_program *program, const nn_block *block, nn_grid grid, int x);
/* norm(convolution(x)) + skip(u), u = x on the grid of the output; with fno.preactivation without a
 * norm. */
int nn_fno_convolve(nn_program *program, const nn_block *block, int x, int u);

/* Parameters of the lifting, of all blocks in turn, and of the projection. */
void nn_fno_declare(nn_model *model);
/* Lifting and all blocks; later ops belong to the block after them. */
int nn_fno_build_blocks(const nn_model *model, nn_program *program, int x);

#endif

/* The architectures, and their common parts. A new one is a file in this folder and a line in
 * nn_architecture_of. */
#ifndef TG_NN_MODELS_MODELS_H
#define TG_NN_MODELS_MODELS_H

#include "nn/ops.h"

/* The architecture of a configuration. */
const nn_architecture *nn_architecture_of(const tg_fno_config *config);

extern const nn_architecture nn_architecture_fno_without_mlp;
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

/* Parameters of a block, and the block, whose output is on `grid`: with a channel MLP, or without.
 */
typedef void nn_declare_block_fn(nn_model *model, const nn_block_shape *shape, nn_block *block);
typedef int nn_build_block_fn(nn_program *program, const nn_block *block, nn_grid grid, int x);
nn_declare_block_fn nn_fno_declare_block, nn_fno_declare_block_without_mlp;
nn_build_block_fn nn_fno_build_block, nn_fno_build_block_without_mlp;

/* Parameters of the lifting, of all blocks in turn, and of the projection. */
void nn_fno_declare(nn_model *model, nn_declare_block_fn *declare_block);
/* Lifting and all blocks; later ops belong to the block after them. */
int nn_fno_build_blocks(const nn_model *model, nn_program *program, nn_build_block_fn *build_block,
                        int x);
/* Embedding, lifting, all blocks, projection. */
void nn_fno_build(const nn_model *model, nn_program *program, nn_build_block_fn *build_block);

/* Parameters of the convolution of a block and of the skip around it. */
nn_declare_block_fn nn_fno_declare_conv;
/* norm(act(x)) with fno.preactivation, otherwise x. */
int nn_fno_preactivate(nn_program *program, const nn_block *block, int x);
/* x on the grid of the block's output. */
int nn_fno_resample(nn_program *program, nn_grid grid, int x);
/* norm(convolution(x)) + skip(u), u = x on that grid; with fno.preactivation without a norm. */
int nn_fno_convolve(nn_program *program, const nn_block *block, int x, int u);
/* act(x), or x in the last block. */
int nn_fno_activate(nn_program *program, const nn_block *block, int x);

#endif

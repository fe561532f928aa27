/* The passes between a model's builder and a program that can run, in their order. */
#ifndef TG_NN_PASSES_PASSES_H
#define TG_NN_PASSES_PASSES_H

#include "nn/program.h"

/* Backward ops behind the loss, last layer first, and the hand-overs of factored gradients. */
TG_NODISCARD tg_status nn_pass_differentiate(nn_program *program);

/* What a backend computes in one call becomes one op. */
TG_NODISCARD tg_status nn_pass_fuse(nn_program *program);

/* fno.activation_checkpoint: what is not kept is made again in backward. */
TG_NODISCARD tg_status nn_pass_checkpoint(nn_program *program);

/* A hand-over behind every op that makes gradients of parameters. */
TG_NODISCARD tg_status nn_pass_hand_over(nn_program *program);

/* The storage format of every value, from its role. */
void nn_pass_choose_formats(nn_program *program);

/* Blocks that the backend computes in one call become one op. */
TG_NODISCARD tg_status nn_pass_fuse_blocks(nn_program *program, tg_backend *be);

/* fno.saved_precision: what waits for backward is stored in less, and restored there. */
TG_NODISCARD tg_status nn_pass_save_small(nn_program *program, tg_backend *be);

/* Buffer lifetimes, writing in place, and offsets in the arenas. */
TG_NODISCARD tg_status nn_pass_place(nn_program *program, tg_backend *be);

#endif

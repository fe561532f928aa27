/* The passes between a model's builder and a program that can run, in their order. */
#ifndef TG_NN_PASSES_PASSES_H
#define TG_NN_PASSES_PASSES_H

#include "nn/program.h"

/* Backward ops after the loss, last layer first, and the hand-overs of factored gradients. */
TG_NODISCARD tg_status nn_pass_differentiate(nn_program *program);

/* Fuses ops that a backend computes in one call. */
TG_NODISCARD tg_status nn_pass_fuse(nn_program *program);

/* fno.activation_checkpoint: values that are not kept are recomputed in backward. */
TG_NODISCARD tg_status nn_pass_checkpoint(nn_program *program);

/* A hand-over after every op that completes gradients of parameters. */
TG_NODISCARD tg_status nn_pass_hand_over(nn_program *program);

/* The storage format of every value, from its role. */
void nn_pass_choose_formats(nn_program *program);

/* Fuses blocks that the backend computes in one call. */
TG_NODISCARD tg_status nn_pass_fuse_blocks(nn_program *program, tg_backend *be);

/* fno.saved_precision: values kept for backward are stored in less memory, and restored there. */
TG_NODISCARD tg_status nn_pass_save_small(nn_program *program, tg_backend *be);

/* Buffer lifetimes, writing in place, and offsets in the arenas. */
TG_NODISCARD tg_status nn_pass_place(nn_program *program, tg_backend *be);

#endif

/* Rollouts in training: a network that is applied to its own predictions, for as long as a step
 * lives (rollout.c says how). */
#ifndef TG_TRAIN_ROLLOUT_H
#define TG_TRAIN_ROLLOUT_H

#include "tgrad/step.h"
#include "train/phases.h"

typedef struct tg_rollout tg_rollout;

/* What the step's config asks for; the network outlives it. */
TG_NODISCARD tg_status tg_rollout_create(tg_context *ctx, const tg_step_config *config,
                                         tg_rollout **out);
void tg_rollout_destroy(tg_rollout **rollout);

/* Steps of the next rollout, at most those of the config. */
TG_NODISCARD tg_status tg_rollout_set_steps(tg_rollout *r, int64_t steps);

/* How the loss of every step is made: with gradients `scale` times as large. */
typedef struct tg_rollout_loss {
    const tg_loss_config *config;
    double scale;
    double *loss; /* (steps of the config) where the backend computes */
} tg_rollout_loss;

/* All steps from x (batch, in_channels, grid..), target (batch, steps * out_channels, grid..), both
 * where the backend computes and unchanged until the backward. Losses of how many steps count. */
TG_NODISCARD tg_status tg_rollout_forward(tg_rollout *r, const tg_tensor *x,
                                          const tg_tensor *target, const tg_rollout_loss *loss);
int64_t tg_rollout_losses(const tg_rollout *r);

/* Of TG_ROLLOUT_ALL the sink gets every gradient once per step. */
TG_NODISCARD tg_status tg_rollout_backward(tg_rollout *r, const tg_rollout_loss *loss,
                                           const tg_grad_sink *sink);

/* ---- of a run ---- */

TG_NODISCARD tg_status tg_run_check_rollout(tg_context *ctx, const tg_run_config *config);
/* Whether gradients go through several steps, so that they are summed. */
bool tg_run_unrolls(const tg_run_config *config);
/* Steps in the `epoch`th epoch of a stage, counted from 0. */
int64_t tg_run_rollout_steps(const tg_run_config *config, int64_t epoch);
/* Adds what a rollout holds, for batches of `size` samples of such training data. */
void tg_rollout_add_bytes(const tg_run_config *config, tg_place place,
                          const tg_dataset_facts *facts, int64_t size, tg_amounts *out);

#endif

/* Rollouts in training: applies a network to its own predictions within a step (see rollout.c). */
#ifndef TG_TRAIN_ROLLOUT_H
#define TG_TRAIN_ROLLOUT_H

#include "tgrad/step.h"
#include "train/config.h"

typedef struct tg_rollout tg_rollout;

/* By the step's config; the network must outlive it. */
TG_NODISCARD tg_status tg_rollout_create(tg_context *ctx, const tg_step_config *config,
                                         tg_rollout **out);
void tg_rollout_destroy(tg_rollout **rollout);

/* Sets the steps of the next rollout, at most those of the config. */
TG_NODISCARD tg_status tg_rollout_set_steps(tg_rollout *r, int64_t steps);

/* How the loss of every step is computed, with gradients times `scale`. */
typedef struct tg_rollout_loss {
    const tg_loss_config *config;
    double scale;
    double *loss; /* (steps of the config) on the backend */
} tg_rollout_loss;

/* All steps from x (batch, in_channels, grid..) and target (batch, steps * out_channels, grid..),
 * both on the backend, unchanged until backward. tg_rollout_losses: losses that count. */
TG_NODISCARD tg_status tg_rollout_forward(tg_rollout *r, const tg_tensor *x,
                                          const tg_tensor *target, const tg_rollout_loss *loss);
int64_t tg_rollout_losses(const tg_rollout *r);

/* With TG_ROLLOUT_ALL the sink gets every gradient once per step. */
TG_NODISCARD tg_status tg_rollout_backward(tg_rollout *r, const tg_rollout_loss *loss,
                                           const tg_grad_sink *sink);

/* ---- of a run ---- */

TG_NODISCARD tg_status tg_run_check_rollout(tg_context *ctx, const tg_run_config *config);
/* Whether gradients pass through several steps, and are therefore accumulated. */
bool tg_run_unrolls(const tg_run_config *config);
/* Steps in the `epoch`th epoch of a stage, counted from 0. */
int64_t tg_run_rollout_steps(const tg_run_config *config, int64_t epoch);
/* Adds the memory of a rollout, for batches of `size` samples of such training data. */
void tg_rollout_add_bytes(const tg_run_config *config, tg_place place,
                          const tg_dataset_facts *facts, int64_t size, tg_amounts *out);

#endif
